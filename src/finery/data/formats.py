"""From the columns of a file to finery's: which format the rows have, and each row in it or why not.

prompt_completion  prompt, completion (text, or messages), answer, tests, sql
answer             prompt, and answer, tests or sql
preference         prompt, chosen, rejected; or chosen and rejected as whole conversations, which begin with the prompt
messages           messages, a list of {role, content}; system
sharegpt           conversations, a list of {from, value}; system
alpaca             instruction, input, output, system, history

Each also takes answer, tests, sql, meta, and cot (a chain of thought), which is read only when the stage rewrites
completions (`finery.data.reasoning`) and stands in the row as `COT` until then.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from finery.data.dataset import JSON_COLUMNS, Row
from finery.data.readers import READERS, VERIFIED
from finery.data.records import Foreign, Reject, Written, found
from finery.data.turns import ROLES, read_turns
from finery.errors import InputError

_COLUMNS: dict[str, tuple[str, ...]] = {
    "prompt_completion": ("prompt", "completion", "answer", "tests", "sql"),
    "answer": ("prompt", "answer", "tests", "sql"),
    "preference": ("prompt", "chosen", "rejected", "role", "content", "answer", "tests", "sql"),
    "messages": ("messages", "role", "content", "system", "answer", "tests", "sql"),
    "sharegpt": ("conversations", "from", "value", "system", "answer", "tests", "sql"),
    "alpaca": ("instruction", "input", "output", "system", "history", "answer", "tests", "sql"),
}
_ASIDE = ("id", "meta")
"""Columns of every format: `id` is made anew, `meta` is kept."""
COT = "_cot"
"""The row's key of a chain of thought that `finery.data.reasoning.rewrite` has yet to take."""
DEEPEST = 100
"""Objects and lists in one another that a row may hold: what goes through it calls itself for each."""
_AS_TEXT = " (numbers_as_text: true on the source takes it as written)"


@dataclass
class Format:
    """How one source's rows are read.

    Attributes:
        name: the format.
        columns: finery's column to the file's, as the user mapped them.
        numbers_as_text: take a number in a text column as the text it was written as.
        roles: the source's own role words to finery's, beside ROLES.
        cot: read the column `cot`.
        ignored: columns, and keys of messages, that no row's reading used.
        reached: paths `a.b` of `columns` that some row has.
    """

    name: str
    columns: Mapping[str, str]
    numbers_as_text: bool = False
    roles: Mapping[str, str] = field(default_factory=dict)
    cot: bool = False
    ignored: set[str] = field(default_factory=set)
    reached: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        # worked out once: `row` runs a million times
        columns = (*VERIFIED, *(["cot"] if self.cot else []))
        self._kept = [(name, self.columns.get(name, name)) for name in columns]
        self._metas = [(name.removeprefix("meta."), name) for name in self.columns if name.startswith("meta.")]
        self._all_roles = {**ROLES, **self.roles}
        self._read = READERS[self.name]

    def row(self, value: Mapping[str, Any]) -> Row:
        """The row that a record's columns write.

        Raises:
            Reject: the row cannot be used.
        """
        row = self._read(self, value)
        for column, name in self._kept:
            if name in value or "." in name:
                self._keep(row, value, column)
        if self._metas or "meta" in value or "meta" in self.columns:
            meta = self._meta(value)
            if meta:
                row["meta"] = meta
        if self.name == "answer" and not any(column in row for column in VERIFIED):
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
        if inner is not None:
            self.reached.add(name)
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
        if content is None or isinstance(content, str):
            return content
        if self.numbers_as_text and isinstance(content, int | float) and not isinstance(content, bool):
            return content.written if isinstance(content, Written) else _digits(content, column)
        if self.numbers_as_text and isinstance(content, Foreign) and content.written is not None:
            return content.written
        number = isinstance(content, int | float) and not isinstance(content, bool)
        remedy = _AS_TEXT if number or _has_text(content) else ""
        raise Reject(column, "wrong_type", f"found {found(content)}; text is expected{remedy}")

    def turns(self, value: Mapping[str, Any], column: str, keys: tuple[str, str]) -> Any:
        """A column that holds a conversation, as messages."""
        role, content = (self.columns.get(key, key) for key in keys)
        return read_turns(self.get(value, column), column, self._all_roles, (role, content), self.ignored)

    def _keep(self, row: Row, value: Mapping[str, Any], column: str) -> None:
        if column not in JSON_COLUMNS:
            text = self.optional(value, column)
            if text is not None:
                if not text.strip():
                    raise Reject(column, "empty", "is empty")
                row[COT if column == "cot" else column] = text
        elif (content := self.get(value, column)) is not None:
            row[column] = plain(content, column, as_text=self.numbers_as_text)

    def _meta(self, value: Mapping[str, Any]) -> dict[str, Any]:
        meta = self.get(value, "meta")
        if meta is not None and not isinstance(meta, dict):
            raise Reject("meta", "wrong_type", f"found {found(meta)}; an object is expected")
        named = {key: self.get(value, column) for key, column in self._metas}
        given = {**(meta or {}), **{k: v for k, v in named.items() if v is not None}}
        return {str(key): plain(v, f"meta.{key}", as_text=self.numbers_as_text) for key, v in given.items()}


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
        "answer": "prompt" in known
        and not known & {"completion", "chosen", "rejected"}
        and bool(known & set(VERIFIED)),
        "preference": {"chosen", "rejected"} <= known,
    }
    if asked != "auto":
        return asked
    fitting = [name for name, fits in fit.items() if fits]
    if len(fitting) == 1:
        return fitting[0]
    shown = some(there)
    if fitting:
        raise InputError(f"{where}: the columns fit {' and '.join(fitting)}: {shown}; say which with `format:`")
    raise InputError(
        f"{where}: the columns ({shown}) are those of no format; name them, for example "
        "`columns: {prompt: question, completion: solution}` or `columns: {prompt: question, answer: answer}`; "
        f"formats are {', '.join(_COLUMNS)}"
    )


def stray(name: str, columns: Mapping[str, str], present: Iterable[str], *, cot: bool = False) -> list[str]:
    """The columns that reading a format leaves unread; `cot` says whether chains of thought are read."""
    read = (*_COLUMNS[name], *_ASIDE, *(("cot",) if cot else ()))
    mapped = {target for column, target in columns.items() if column != "cot" or cot}
    used = {columns.get(column, column).split(".")[0] for column in read}
    used |= {target.split(".")[0] for target in mapped} | mapped
    return [column for column in dict.fromkeys(present) if column not in used]


def some(names: Iterable[str]) -> str:
    """Names for the middle of a sentence: the first thirty, and how many more there are."""
    names = [name if len(name) <= 60 else f"{name[:57]}..." for name in names]
    return ", ".join(names[:30]) + (f" and {len(names) - 30} more" if len(names) > 30 else "") or "none"


def _check_columns(asked: str, columns: Mapping[str, str], there: Mapping[str, None], where: str) -> None:
    known = (
        _COLUMNS[asked] if asked != "auto" else tuple(dict.fromkeys(c for names in _COLUMNS.values() for c in names))
    )
    keys = {"role", "content", "from", "value"}
    for column, target in columns.items():
        if column not in known and column not in ("meta", "cot") and not column.startswith("meta."):
            near = difflib.get_close_matches(column, known, 1)
            hint = f"; did you mean {near[0]}?" if near else f"; it has {', '.join(known)}, cot, meta, meta.NAME"
            raise InputError(f"{where}.columns: {column} is no column of format {asked}{hint}")
        if column == "meta.":
            raise InputError(f"{where}.columns: meta. names nothing; write meta.NAME: {target}")
        if column not in keys and target not in there and target.split(".")[0] not in there:
            raise InputError(f"{where}.columns.{column}: no row has a column {target}; there are {some(there)}")


def plain(value: Any, column: str, *, as_text: bool = False, depth: int = 1) -> Any:
    """A value as JSON can hold it, without the classes that reading gave it.

    Args:
        value: what was read.
        column: its column, for the Reject.
        as_text: take dates, timestamps and decimals as the text they are written as.
        depth: how many objects and lists it stands in.

    Raises:
        Reject: it holds something JSON has no form for, or is nested more than DEEPEST deep.
    """
    if isinstance(value, dict | list | tuple):
        if depth > DEEPEST:
            reason = f"is nested more than {DEEPEST} deep; flatten it, or write it as text"
            raise Reject(column, "too_deep", reason)
        if isinstance(value, dict):
            return {str(key): plain(item, column, as_text=as_text, depth=depth + 1) for key, item in value.items()}
        return [plain(item, column, as_text=as_text, depth=depth + 1) for item in value]
    if value is None or isinstance(value, str | bool | int):
        return value
    if isinstance(value, float) and value == value and abs(value) != float("inf"):
        return float(value)
    if as_text and isinstance(value, Foreign) and value.written is not None:
        return value.written
    remedy = _AS_TEXT if _has_text(value) else ""
    raise Reject(column, "wrong_type", f"found {found(value)}, which JSON cannot hold{remedy}")


def _has_text(value: Any) -> bool:
    return isinstance(value, Foreign) and value.written is not None


def _digits(number: int | float, column: str) -> str:
    try:
        return str(number)
    except ValueError:  # past the digits that Python writes
        raise Reject(column, "wrong_type", "found a number of more than 4300 digits; write it as text") from None


def check_text(value: Mapping[str, Any]) -> None:
    """Refuse text with half a surrogate pair, which no file can hold.

    Raises:
        Reject: with the column.
    """
    for column, content in value.items():
        if not _is_whole(content):
            raise Reject(column.removeprefix("_"), "bad_text", "holds half a surrogate pair, which is no character")


def _is_whole(value: Any) -> bool:
    if isinstance(value, str):
        if value.isascii():
            return True
        try:
            value.encode()
        except UnicodeEncodeError:
            return False
        return True
    # loops, and no call for ASCII: this sees every text of a million rows
    if isinstance(value, dict):
        for key, item in value.items():
            if not (type(item) is str and item.isascii()) and not _is_whole(item):
                return False
            if not (type(key) is str and key.isascii()) and not _is_whole(key):
                return False
    elif isinstance(value, list):
        for item in value:
            if not _is_whole(item):
                return False
    return True


def repr_of(value: Any) -> str:
    """All text within a value, joined."""
    if isinstance(value, str):
        return value
    if isinstance(value, dict):
        return "".join(str(key) + repr_of(item) for key, item in value.items())
    return "".join(map(repr_of, value)) if isinstance(value, list) else ""
