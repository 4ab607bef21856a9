"""JSON and JSON Lines. A damaged line is a rejected row; a damaged JSON file is an error with its line."""

from __future__ import annotations

import json
import re
from typing import Any

from finery.data.records import Record, Reject, Written, found
from finery.errors import InputError

_SPACE = re.compile(r"[ \t\r\n]*")


class _Duplicate(ValueError):
    """An object with the same key twice."""

    def __init__(self, key: str) -> None:
        super().__init__(key)
        self.key = key


def _pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) != len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise _Duplicate(key)
            seen.add(key)
    return value


def _constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


_DECODER = json.JSONDecoder(object_pairs_hook=_pairs, parse_float=Written, parse_constant=_constant)
_LENIENT = json.JSONDecoder()


def jsonl_records(text: str, name: str) -> list[Record]:
    """One record a line; blank ones are skipped. Lines end at `\\n` or `\\r\\n` only: U+2028 stays inside its row."""
    records = []
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip(" \t\r"):
            records.append(_line(line.strip(" \t\r"), name, number))
    return records


def _line(line: str, name: str, number: int) -> Record:
    at = ("line", number)
    try:
        value = _DECODER.decode(line)
    except _Duplicate as error:
        return Record(
            name, at, None, Reject(error.key, "duplicate_key", f"key {error.key!r} stands twice in one object")
        )
    except json.JSONDecodeError as error:
        reason = f"not JSON: {error.msg} at column {error.colno}"
        return Record(name, at, None, Reject("", "not_json", reason))
    except (ValueError, RecursionError) as error:
        return Record(name, at, None, Reject("", "not_json", f"not JSON: {error}"))
    return _record(value, name, number)


def _record(value: Any, name: str, line: int) -> Record:
    if isinstance(value, dict):
        return Record(name, ("line", line), value)
    fault = Reject("", "not_an_object", f"found {found(value)}; a row is an object")
    return Record(name, ("line", line), None, fault)


def json_records(text: str, name: str) -> list[Record]:
    """The objects of a file that is one list, each at the line it begins on.

    Raises:
        InputError: the file is not one whole JSON list; the message has the line and column.
    """
    at = _skip(text, 0)
    if text[at : at + 1] != "[":
        raise InputError(f"{name}:{_line_of(text, at)}: a list of objects is expected; found {text[at : at + 20]!r}")
    records: list[Record] = []
    at = _skip(text, at + 1)
    line, counted = _line_of(text, at), at
    ended = text[at : at + 1] == "]"
    while not ended:
        line, counted = line + text.count("\n", counted, at), at
        value, end = _element(text, at, name, line)
        records.append(value if isinstance(value, Record) else _record(value, name, line))
        at, ended = _next(text, _skip(text, end), name)
    if rest := text[_skip(text, at + 1) :]:
        raise InputError(
            f"{_place(text, len(text) - len(rest), name)}: nothing may follow the list; found {rest[:20]!r}"
        )
    return records


def _next(text: str, at: int, name: str) -> tuple[int, bool]:
    """Where the next value begins, or the list's end, after the value that ends before `at`."""
    if text[at : at + 1] == "]":
        return at, True
    if text[at : at + 1] != ",":
        raise InputError(f"{_place(text, at, name)}: a comma or ] is expected here")
    after = _skip(text, at + 1)
    if text[after : after + 1] == "]":
        raise InputError(
            f"{_place(text, after, name)}: a row is expected before ]; "
            f"delete the trailing comma at the end of line {_line_of(text, at)}"
        )
    return after, False


def _element(text: str, at: int, name: str, line: int) -> tuple[Any, int]:
    """The value at `at` and where it ends; a Record when it can be told apart but not read."""
    try:
        return _DECODER.raw_decode(text, at)
    except _Duplicate as error:
        _, end = _LENIENT.raw_decode(text, at)
        key = json.dumps(error.key, ensure_ascii=False)
        twice = _line_of(text, text.rfind(key, at, end))
        reason = f"key {error.key!r} stands twice in one object, again on line {twice}"
        return Record(name, ("line", line), None, Reject(error.key, "duplicate_key", reason)), end
    except json.JSONDecodeError as error:
        raise InputError(f"{_place(text, error.pos, name)}: not JSON: {error.msg}") from None
    except (ValueError, RecursionError) as error:
        raise InputError(f"{name}:{line}: the row that begins here is not JSON: {error}") from None


def _skip(text: str, at: int) -> int:
    match = _SPACE.match(text, at)
    return match.end() if match else at


def _line_of(text: str, at: int) -> int:
    return text.count("\n", 0, at) + 1


def _place(text: str, at: int, name: str) -> str:
    return f"{name}:{_line_of(text, at)}:{at - text.rfind(chr(10), 0, at)}"
