"""How a source's records are read: the format, recognised from the first of them, and the columns nothing reads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from finery.data.dataset import Row
from finery.data.formats import Format, check_text, recognise, stray
from finery.data.records import Reading, Record, Reject
from finery.errors import InputError
from finery.schemas.data import FileSource, HubSource, Source

_MADE_ANEW = ("id", "weight")
"""What rows of a data set of finery's have of their own; both are made for the new one."""
_OF_MESSAGES = ("role", "content", "from", "value")


class Columns:
    """Reads one source's records.

    Args:
        source: its config.
        where: the source in errors, `sources.0`.
        reading: what it gives.
        head: its first records.
        whole: whether these are all.
        cot: whether chains of thought are read.

    Raises:
        InputError: there are no records, none of the first can be read, or they are of no format.
    """

    def __init__(
        self, source: Source, where: str, reading: Reading, head: Sequence[Record], *, whole: bool, cot: bool
    ) -> None:
        self._where, self._cot = where, cot
        self._present: dict[str, None] = {}
        self._how: Format | None = None
        self._some = False
        if reading.format == "made" or not isinstance(source, FileSource | HubSource):
            return
        if not head:
            raise InputError(f"{where}: holds no rows")
        present = dict.fromkeys(key for record in head for key in record.value or ())
        if not present:
            first = next(record for record in head if record.fault)
            raise InputError(f"{where}: none of its rows can be read: {first.place}: {first.fault}")
        if not whole:  # a column that `columns` names may come later; `ignored` looks again
            present |= dict.fromkeys(source.columns.values())
        name = recognise(reading.format, source.columns, present, where)
        self._how = Format(name, source.columns, source.numbers_as_text, source.roles, cot)

    @property
    def format(self) -> str:
        """The format's name, for the card."""
        return self._how.name if self._how else "generated"

    def row(self, record: Record) -> Row:
        """The row that a record writes.

        Raises:
            Reject: it cannot be used.
        """
        value = record.value
        if value is None:
            raise record.fault or Reject("", "unreadable", "cannot be read")
        if self._how is None:
            row: dict[str, Any] = {name: item for name, item in value.items() if name not in _MADE_ANEW}
            check_text(row)
            return row
        if not value.keys() <= self._present.keys():
            self._present.update(dict.fromkeys(value))
        row = self._how.row(value)
        self._some = True
        return row

    def ignored(self) -> list[str] | None:
        """The columns that no row's reading used, once all are read; None for rows that were made, not read.

        Raises:
            InputError: `columns` names one that no row has.
        """
        if self._how is None:
            return None
        how = self._how
        recognise(how.name, how.columns, self._present, self._where)
        if self._some:
            self._check_paths(how)
        names = [*stray(how.name, how.columns, self._present, cot=self._cot), *sorted(how.ignored)]
        # a key may hold half a surrogate pair, which neither the card nor a warning can be written with
        return [name.encode("utf-8", "backslashreplace").decode() for name in names]

    def _check_paths(self, how: Format) -> None:
        """Refuse a path that leads to nothing in every row that was read."""
        for column, target in how.columns.items():
            unread = (*_OF_MESSAGES, *(() if self._cot else ("cot",)))
            if "." in target and target not in self._present and target not in how.reached and column not in unread:
                raise InputError(
                    f"{self._where}.columns.{column}: {target} leads to nothing in any row; "
                    "a path goes from a column through the keys of its objects"
                )
