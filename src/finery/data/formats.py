"""From the columns of a file to finery's: which format the rows have, and each row in it or why not.

prompt_completion  prompt, completion (text, or messages), answer, tests, sql
answer             prompt, and answer, tests or sql
messages           messages, a list of {role, content}
sharegpt           conversations, a list of {from, value}; system
alpaca             instruction, input, output, system, history
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from finery.data.dataset import JSON_COLUMNS, Row
from finery.data.records import Reject, Written, found
from finery.data.turns import ROLES, SHAREGPT_ROLES, check_turns, read_turns
from finery.errors import InputError

_COLUMNS: dict[str, tuple[str, ...]] = {
    "prompt_completion": ("prompt", "completion", "answer", "tests", "sql"),
    "answer": ("prompt", "answer", "tests", "sql"),
    "messages": ("messages", "role", "content", "answer", "tests", "sql"),
    "sharegpt": ("conversations", "from", "value", "system", "answer", "tests", "sql"),
    "alpaca": ("instruction", "input", "output", "system", "history", "answer", "tests", "sql"),
}
_VERIFIED = ("answer", "tests", "sql")
_ASIDE = ("id", "meta")
"""Columns of every format: `id` is made anew, `meta` is kept."""


@dataclass
class Format:
    """How one source's rows are read.

    Attributes:
        name: the format.
        columns: finery's column to the file's, as the user mapped them.
        numbers_as_text: take a number in a text column as the text it was written as.
        ignored: columns, and keys of messages, that no row's reading used.
    """

    name: str
    columns: Mapping[str, str]
    numbers_as_text: bool = False
    ignored: set[str] = field(default_factory=set)

    def row(self, value: Mapping[str, Any]) -> Row:
        """The row that a record's columns write.

        Raises:
            Reject: the row cannot be used.
        """
        row = _READERS[self.name](self, value)
        for column in _VERIFIED:
            self._keep(row, value, column)
        meta = self._meta(value)
        if meta:
            row["meta"] = meta
        if self.name == "answer" and not any(column in row for column in _VERIFIED):
            raise Reject("answer", "missing", "is missing or null; a row needs answer, tests or sql")
        check_text(row)
        return row

    def get(self, value: Mapping[str, Any], column: str) -> Any:
        """A column's value, by its own name or the one mapped to it; None when it is absent or null."""
        name = self.columns.get(column, column)
        if name in value or "." not in name:
            return value.get(name)
        inner: Any = value
        for part in name.split("."):
            inner = inner.get(part) if isinstance(inner, Mapping) else None
        return inner

    def text(self, value: Mapping[str, Any], column: str) -> str:
        """A column that must hold text with something in it."""
        text = self.optional(value, column)
        if text is None:
            name = self.columns.get(column, column)
            raise Reject(column, *(("null", "is null") if name in value else ("missing", "is missing")))
        if not text.strip():
            raise Reject(column, "empty", "is empty")
        return text

    def optional(self, value: Mapping[str, Any], column: str) -> str | None:
        """A column that may hold text, and may be absent or null."""
        content = self.get(value, column)
        if self.numbers_as_text and isinstance(content, int | float) and not isinstance(content, bool):
            return content.written if isinstance(content, Written) else str(content)
        if content is not None and not isinstance(content, str):
            number = isinstance(content, int | float) and not isinstance(content, bool)
            remedy = " (numbers_as_text: true on the source takes it as written)" if number else ""
            raise Reject(column, "wrong_type", f"found {found(content)}; text is expected{remedy}")
        return content

    def turns(self, value: Mapping[str, Any], column: str, roles: Mapping[str, str], keys: tuple[str, str]) -> Any:
        """A column that holds a conversation, as messages."""
        role, content = (self.columns.get(key, key) for key in keys)
        return read_turns(self.get(value, column), column, roles, (role, content), self.ignored)

    def _keep(self, row: Row, value: Mapping[str, Any], column: str) -> None:
        if column not in JSON_COLUMNS:
            text = self.optional(value, column)
            if text is not None:
                if not text.strip():
                    raise Reject(column, "empty", "is empty")
                row[column] = text
        elif (content := self.get(value, column)) is not None:
            row[column] = plain(content, column)

    def _meta(self, value: Mapping[str, Any]) -> dict[str, Any]:
        meta = self.get(value, "meta")
        if meta is not None and not isinstance(meta, dict):
            raise Reject("meta", "wrong_type", f"found {found(meta)}; an object is expected")
        named = {c.removeprefix("meta."): self.get(value, c) for c in self.columns if c.startswith("meta.")}
        kept: dict[str, Any] = plain({**(meta or {}), **{k: v for k, v in named.items() if v is not None}}, "meta")
        return kept


def recognise(asked: str, columns: Mapping[str, str], present: Iterable[str], where: str) -> str:
    """The format of a source's rows: the one asked for, or with `auto` the one whose columns are there.

    Args:
        asked: the source's `format`.
        columns: its `columns`.
        present: the columns of all its rows.

    Raises:
        InputError: no format or several fit, or `columns` names what no row has or finery does not know.
    """
    there = dict.fromkeys(present)
    _check_columns(asked, columns, there, where)
    known = set(columns) | set(there)
    fit = {
        "messages": "messages" in known,
        "sharegpt": "conversations" in known,
        "alpaca": {"instruction", "output"} <= known,
        "prompt_completion": {"prompt", "completion"} <= known,
        "answer": "prompt" in known and "completion" not in known and bool(known & set(_VERIFIED)),
    }
    if asked != "auto":
        return asked
    fitting = [name for name, fits in fit.items() if fits]
    if len(fitting) == 1:
        return fitting[0]
    shown = ", ".join(there) or "none"
    if fitting:
        raise InputError(f"{where}: the columns fit {' and '.join(fitting)}: {shown}; say which with `format:`")
    raise InputError(
        f"{where}: the columns ({shown}) are those of no format; name them, for example "
        "`columns: {prompt: question, completion: solution}` or `columns: {prompt: question, answer: answer}`; "
        f"formats are {', '.join(_COLUMNS)}"
    )


def stray(name: str, columns: Mapping[str, str], present: Iterable[str]) -> list[str]:
    """The columns that reading a format leaves unread."""
    used = {columns.get(column, column).split(".")[0] for column in (*_COLUMNS[name], *_ASIDE)}
    used |= {target.split(".")[0] for target in columns.values()} | set(columns.values())
    return [column for column in dict.fromkeys(present) if column not in used]


def _check_columns(asked: str, columns: Mapping[str, str], there: Mapping[str, None], where: str) -> None:
    known = (
        _COLUMNS[asked] if asked != "auto" else tuple(dict.fromkeys(c for names in _COLUMNS.values() for c in names))
    )
    keys = {"role", "content", "from", "value"}
    for column, target in columns.items():
        if column not in known and column != "meta" and not column.startswith("meta."):
            near = difflib.get_close_matches(column, known, 1)
            hint = f"; did you mean {near[0]}?" if near else f"; it has {', '.join(known)}, meta, meta.NAME"
            raise InputError(f"{where}.columns: {column} is no column of format {asked}{hint}")
        if column not in keys and target not in there and target.split(".")[0] not in there:
            raise InputError(
                f"{where}.columns.{column}: no row has a column {target}; there are {', '.join(there) or 'none'}"
            )


def plain(value: Any, column: str) -> Any:
    """A value as JSON can hold it, without the classes that reading gave it.

    Raises:
        Reject: it holds something JSON has no form for.
    """
    if isinstance(value, dict):
        return {str(key): plain(item, column) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item, column) for item in value]
    if value is None or isinstance(value, str | bool | int):
        return value
    if isinstance(value, float) and value == value and abs(value) != float("inf"):
        return float(value)
    raise Reject(column, "wrong_type", f"found {found(value)}, which JSON cannot hold")


def check_text(value: Any) -> None:
    """Refuse text with half a surrogate pair, which no file can hold.

    Raises:
        Reject: with the column.
    """
    for column, content in value.items():
        try:
            repr_of(content).encode()
        except UnicodeEncodeError:
            raise Reject(column, "bad_text", "holds half a surrogate pair, which is no character") from None


def repr_of(value: Any) -> str:
    """All text within a value, joined."""
    if isinstance(value, str):
        return value
    if isinstance(value, dict):
        return "".join(str(key) + repr_of(item) for key, item in value.items())
    return "".join(map(repr_of, value)) if isinstance(value, list) else ""


def _prompt_completion(how: Format, value: Mapping[str, Any]) -> Row:
    prompt = _prompt(how, value)
    given = how.get(value, "completion")
    if not isinstance(given, list):
        text = how.text(value, "completion")
        return {
            "prompt": prompt,
            "completion": text if isinstance(prompt, str) else [{"role": "assistant", "content": text}],
        }
    if isinstance(prompt, str):
        raise Reject("completion", "wrong_type", "holds messages beside a prompt of text; both must be of one form")
    completion = how.turns(value, "completion", ROLES, ("role", "content"))
    check_turns([*prompt, *completion], "completion", last="assistant")
    return {"prompt": prompt, "completion": completion}


def _prompt(how: Format, value: Mapping[str, Any]) -> Any:
    if not isinstance(how.get(value, "prompt"), list):
        return how.text(value, "prompt")
    prompt = how.turns(value, "prompt", ROLES, ("role", "content"))
    check_turns(prompt, "prompt", last="user")
    return prompt


def _answer(how: Format, value: Mapping[str, Any]) -> Row:
    return {"prompt": _prompt(how, value)}


def _messages(how: Format, value: Mapping[str, Any]) -> Row:
    return _conversation(how, value, how.turns(value, "messages", ROLES, ("role", "content")), "messages")


def _sharegpt(how: Format, value: Mapping[str, Any]) -> Row:
    turns = how.turns(value, "conversations", SHAREGPT_ROLES, ("from", "value"))
    system = how.optional(value, "system")
    if system and turns[0]["role"] != "system":
        turns = [{"role": "system", "content": system}, *turns]
    return _conversation(how, value, turns, "conversations")


def _conversation(how: Format, value: Mapping[str, Any], turns: list[dict[str, str]], column: str) -> Row:
    """A conversation to learn from; one that ends with the user is a prompt if something can verify its answer."""
    asks = turns[-1]["role"] in ("user", "tool") and any(how.get(value, name) is not None for name in _VERIFIED)
    check_turns(turns, column, last="user" if asks else "assistant")
    return {"prompt": turns} if asks else {"messages": turns}


def _alpaca(how: Format, value: Mapping[str, Any]) -> Row:
    instruction, output = how.text(value, "instruction"), how.text(value, "output")
    extra, system = how.optional(value, "input"), how.optional(value, "system")
    history = how.get(value, "history")
    if history is not None and not isinstance(history, list):
        raise Reject("history", "wrong_type", f"found {found(history)}; a list of [question, answer] is expected")
    prompt = [{"role": "system", "content": system}] if system else []
    for number, pair in enumerate(history or [], 1):
        if not isinstance(pair, list) or len(pair) != 2 or not all(isinstance(text, str) and text for text in pair):
            raise Reject("history", "bad_turns", f"item {number} is {found(pair)}; a pair of texts is expected")
        prompt += [{"role": "user", "content": pair[0]}, {"role": "assistant", "content": pair[1]}]
    question = f"{instruction}\n{extra}" if extra else instruction
    prompt.append({"role": "user", "content": question})
    return {"prompt": prompt, "completion": [{"role": "assistant", "content": output}]}


_READERS: dict[str, Callable[[Format, Mapping[str, Any]], Row]] = {
    "prompt_completion": _prompt_completion,
    "answer": _answer,
    "messages": _messages,
    "sharegpt": _sharegpt,
    "alpaca": _alpaca,
}
