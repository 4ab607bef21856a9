"""What a source gives: raw records, each with its place, before they become rows."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any


class Written(float):
    """A JSON number with a fraction or exponent, and the text it was written as."""

    written: str

    def __new__(cls, text: str) -> Written:
        number = super().__new__(cls, text)
        number.written = text
        return number


@dataclass(frozen=True, slots=True)
class Foreign:
    """A value of a type that JSON has no form for, as Parquet holds them.

    Attributes:
        kind: the type in a word: `date`, `timestamp`, `decimal`.
        written: its text, or None where it cannot be read.
        fault: why not.
    """

    kind: str
    written: str | None
    fault: str = ""


class Reject(Exception):
    """A row that cannot be used.

    Attributes:
        field: the column at fault, empty when it is the row as a whole.
        code: the reason in one word, by which rejects are counted.
        reason: the reason in words, with what was found.
    """

    def __init__(self, field: str, code: str, reason: str) -> None:
        super().__init__(f"{field}: {reason}" if field else reason)
        self.field, self.code, self.reason = field, code, reason


@dataclass(slots=True)
class Record:
    """One input row as it stands in its source.

    Attributes:
        file: the file's name, or what made the row.
        at: `line` or `row`, and its number from 1.
        value: its columns, or None when it cannot be read at all.
        fault: why it cannot be read.
        task: for generated rows, the bare task: the group's key.
    """

    file: str
    at: tuple[str, int]
    value: dict[str, Any] | None
    fault: Reject | None = None
    task: str | None = None

    @property
    def place(self) -> str:
        return place(self.file, self.at)


def place(file: str, at: tuple[str, int]) -> str:
    """How a message names a record: `a.jsonl:3`, `a.parquet row 3`."""
    kind, number = at
    return f"{file}:{number}" if kind == "line" else f"{file} {kind} {number}"


@dataclass(frozen=True)
class Reading:
    """What a source gives, one record after another; it can be gone through once.

    Attributes:
        records: in order.
        format: of the rows; `auto` where it is to be recognised from the columns.
        facts: JSON for the data set's card: files with their sha256, or what was asked of a generator. What depends
            on the records is in it once they have been gone through.
        warnings: what the user should know.
    """

    records: Iterable[Record]
    format: str
    facts: dict[str, Any]
    warnings: list[str] = field(default_factory=list)


def found(value: Any) -> str:
    """How a message names a value of a wrong type: `number 4`, `null`, `list of 2`."""
    if value is None:
        return "null"
    if isinstance(value, Foreign):
        return (
            f"{value.kind} {value.written}"
            if value.written is not None
            else f"{value.kind} that cannot be read ({value.fault})"
        )
    if isinstance(value, bool):
        return f"{'true' if value else 'false'}"
    if isinstance(value, Written):
        return f"number {_short(value.written)}"
    if isinstance(value, int | float):
        return f"number {_short(str(value))}"
    if isinstance(value, str):
        return f"text {value[:60]!r}"
    if isinstance(value, list | tuple):
        return f"list of {len(value)}"
    return "object" if isinstance(value, dict) else type(value).__name__


def _short(digits: str) -> str:
    return digits if len(digits) <= 60 else f"{digits[:20]}... of {len(digits)} characters"
