"""JSON and JSON Lines. A damaged line is a rejected row; a damaged JSON file is an error with its line."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from finery.data.records import Record, Reject, Written, found
from finery.data.sources.streams import lines
from finery.errors import InputError

_SPACE = re.compile(r"[ \t\r\n]*")
_LONGEST = 16
"""An error so near the end of what was read may be a value that goes on: `tru`, `\\ud83d\\u`, `-Infinit`."""
_ENOUGH = 1 << 16
"""Characters that are read before the first try."""


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
_SCAN: Callable[[str, int], tuple[Any, int]] = vars(_DECODER)["scan_once"]
"""(text, at) -> (value, end), without what `decode` does about space: that costs as much as a short row."""


def jsonl_records(text: Iterable[str], name: str) -> Iterator[Record]:
    """One record a line; blank ones are skipped. Lines end at `\\n` or `\\r\\n` only: U+2028 stays inside its row."""
    for number, line in enumerate(lines(text), 1):
        line = line.strip(" \t\r")
        if not line:
            continue
        try:
            value, end = _SCAN(line, 0)
        except (StopIteration, ValueError, RecursionError):
            yield _line(line, name, number)
            continue
        if end == len(line) and type(value) is dict:
            yield Record(name, ("line", number), value)
        else:
            yield _line(line, name, number)


def json_value(text: str) -> Any:
    """The value of a cell that begins as an object or a list; text that is not JSON is left as it is.

    Raises:
        Reject: it is JSON that cannot be kept: a key twice, nested too deeply, a number of too many digits.
    """
    try:
        return _DECODER.decode(text)
    except json.JSONDecodeError:
        return text
    except _Duplicate as error:
        raise Reject("", "duplicate_key", f"key {error.key!r} stands twice in one object") from None
    except (ValueError, RecursionError) as error:
        raise Reject("", "not_json", f"not JSON: {_words(error)}") from None


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
        if number == 1 and (error.pos >= len(line) or line in ("{", "[")):
            reason += (
                "; if a row goes on on the next lines, write the rows as one list, [{...}, {...}], in a .json file"
            )
        return Record(name, at, None, Reject("", "not_json", reason))
    except (ValueError, RecursionError) as error:
        return Record(name, at, None, Reject("", "not_json", f"not JSON: {_words(error)}"))
    return _record(value, name, number)


def _words(error: Exception) -> str:
    """What is wrong beside the grammar: Python's own words speak of its limits."""
    if isinstance(error, RecursionError):
        return "it is nested too deeply"
    if "integer string conversion" in str(error):
        return "it holds a whole number of more than 4300 digits; write it as text, in quotes"
    return str(error)


def _record(value: Any, name: str, line: int) -> Record:
    if isinstance(value, dict):
        return Record(name, ("line", line), value)
    fault = Reject("", "not_an_object", f"found {found(value)}; a row is an object")
    return Record(name, ("line", line), None, fault)


class _Window:
    """The part of a text that is being read: it grows at its end and is cut at its beginning.

    Attributes:
        text: the part.
        at: where in it reading stands.
    """

    def __init__(self, pieces: Iterable[str], name: str) -> None:
        self._pieces, self.name = iter(pieces), name
        self.text, self.at = "", 0
        self._line, self._column = 1, 0  # of the first character of `text`; columns from 0
        self._counted = 0  # newlines before it are in _line_counted
        self._line_counted = 1

    def grow(self) -> bool:
        """Read at least as much again as is held; False at the end of the file."""
        more: list[str] = []
        due = max(_ENOUGH, len(self.text) - self.at)
        while due > 0 and (piece := next(self._pieces, None)) is not None:
            more.append(piece)
            due -= len(piece)
        if not more:
            return False
        self._cut()
        self.text = "".join([self.text, *more])
        return True

    def _cut(self) -> None:
        gone = self.text[: self.at]
        self._line_counted = self._line = self.line(self.at)
        last = gone.rfind("\n")
        self._column = self._column + len(gone) if last < 0 else len(gone) - last - 1
        self.text, self.at, self._counted = self.text[self.at :], 0, 0

    def space(self) -> str:
        """Pass white space; the character that stands there then, empty at the end of the file."""
        while True:
            match = _SPACE.match(self.text, self.at)
            self.at = match.end() if match else self.at
            if self.at < len(self.text) or not self.grow():
                return self.text[self.at : self.at + 1]

    def glimpse(self) -> str:
        """The next 20 characters."""
        while len(self.text) < self.at + 20 and self.grow():
            pass
        return self.text[self.at : self.at + 20]

    def line(self, at: int) -> int:
        """The line of a place in `text`, from 1."""
        if at < self._counted:
            return self._line + self.text.count("\n", 0, at)
        self._line_counted += self.text.count("\n", self._counted, at)
        self._counted = at
        return self._line_counted

    def place(self, at: int) -> str:
        """Where it is: file:line:column."""
        last = self.text.rfind("\n", 0, at)
        column = self._column + at + 1 if last < 0 else at - last
        return f"{self.name}:{self.line(at)}:{column}"

    def element(self) -> Any:
        """The value that begins here, passed; a Record when it can be told apart but not read."""
        line = self.line(self.at)
        while True:
            try:
                value, end = self._decode(line)
            except json.JSONDecodeError as error:
                open_text = error.msg.startswith("Unterminated string")
                if (open_text or error.pos + _LONGEST >= len(self.text)) and self.grow():
                    continue
                raise InputError(f"{self.place(error.pos)}: not JSON: {error.msg}") from None
            except (ValueError, RecursionError) as error:
                raise InputError(f"{self.name}:{line}: the row that begins here is not JSON: {_words(error)}") from None
            if end == len(self.text) and self.text[end - 1] not in '"}]' and self.grow():
                continue  # a number may go on
            self.at = end
            return value if isinstance(value, Record) else _record(value, self.name, line)

    def _decode(self, line: int) -> tuple[Any, int]:
        try:
            return _DECODER.raw_decode(self.text, self.at)
        except _Duplicate as error:
            _, end = _LENIENT.raw_decode(self.text, self.at)
            key = json.dumps(error.key, ensure_ascii=False)
            twice = self.line(self.text.rfind(key, self.at, end))
            reason = f"key {error.key!r} stands twice in one object, again on line {twice}"
            return Record(self.name, ("line", line), None, Reject(error.key, "duplicate_key", reason)), end


def json_records(text: Iterable[str], name: str) -> Iterator[Record]:
    """The objects of a file that is one list, each at the line it begins on.

    Raises:
        InputError: the file is not one whole JSON list; the message has the line and column.
    """
    window = _Window(text, name)
    if window.space() != "[":
        raise InputError(f"{name}:{window.line(window.at)}: a list of objects is expected; found {window.glimpse()!r}")
    window.at += 1
    ended = window.space() == "]"
    while not ended:
        yield window.element()
        ended = _next(window)
    window.at += 1
    if window.space():
        rest = window.glimpse()
        raise InputError(f"{window.place(window.at)}: nothing may follow the list; found {rest!r}")


def _next(window: _Window) -> bool:
    """Go to the next value, after one; whether the list ends instead."""
    here = window.space()
    if here == "]":
        return True
    if here != ",":
        raise InputError(f"{window.place(window.at)}: a comma or ] is expected here")
    comma = window.line(window.at)
    window.at += 1
    if window.space() == "]":
        raise InputError(
            f"{window.place(window.at)}: a row is expected before ]; "
            f"delete the trailing comma at the end of line {comma}"
        )
    return False
