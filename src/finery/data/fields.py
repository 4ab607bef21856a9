"""The fields of rows that a data stage's config names: one that no row has is a mistake, and has a nearest name."""

from __future__ import annotations

import difflib
from typing import Any

from finery.data.dataset import Row
from finery.data.drawing import number_of
from finery.data.records import found
from finery.errors import InputError
from finery.schemas.data import DataStage

_ORDER = "curriculum.by"


class Fields:
    """What `group_by`, `balance.by` and `curriculum.by` name, and what of it stands in the rows.

    Attributes:
        asked: the config's key to the field, without those that every row has.
    """

    def __init__(self, config: DataStage) -> None:
        asked = {
            "group_by": config.group_by,
            "balance.by": config.balance.by if config.balance else "source",
            _ORDER: (config.curriculum.by if config.curriculum else None) or "length",
        }
        self.asked = {key: field for key, field in asked.items() if field not in ("prompt", "source", "length")}
        self._there: dict[str, None] = {}
        self._rows = 0
        self._needed: set[str] = set()
        """Without it a row is rejected: what no row of the source has had so far."""
        self._order = self.asked.get(_ORDER)
        """The number to order by, until a row has it; without it a row comes last."""
        self._other: str | None = None

    def begin(self) -> None:
        """A new source begins: `note` is told of its rows next."""
        self._rows, self._needed = 0, set(self.asked) - {_ORDER}

    def note(self, row: Row, *, made: bool) -> None:
        """Take a row's fields in; `made` rows have a group of their own, whatever `group_by` says."""
        self._rows += 1
        if not row.get("meta", {}).keys() <= self._there.keys():
            self._there.update(dict.fromkeys(row["meta"]))
        if self._needed:
            self._needed = {
                key for key in self._needed if _value(row, self.asked[key]) is None and not (made and key == "group_by")
            }
        if self._order is not None and (value := _value(row, self._order)) is not None:
            if number_of(value) == number_of(value):
                self._order = None
            else:
                self._other = found(value)

    def check_source(self, where: str) -> None:
        """Refuse a field that no row of a source has, though each needs it.

        Raises:
            InputError: with the config's key, and the nearest field.
        """
        for key in self.asked:
            if key in self._needed and self._rows:
                raise InputError(f"{key}: no row of {where} has {self.asked[key]}{self._hint(key)}")

    def check_order(self) -> None:
        """Refuse to order by what is a number in no row of any source.

        Raises:
            InputError: with the nearest field.
        """
        if self._order is not None and self._other is not None:
            raise InputError(f"{_ORDER}: {self._order} is a number in no row; the last was {self._other}")
        if self._order is not None:
            raise InputError(f"{_ORDER}: no row has {self._order}{self._hint(_ORDER)}")

    def _hint(self, key: str) -> str:
        names = [f"meta.{name}" for name in self._there]
        near = difflib.get_close_matches(self.asked[key], names, 1)
        if near:
            return f"; did you mean {near[0]}?"
        kept = "a column is kept beside the row with columns: {meta.NAME: COLUMN}"
        return f"; there are {', '.join(names[:20])}; {kept}" if names else f"; {kept}"


def _value(row: Row, field: str) -> Any:
    return row.get("meta", {}).get(field.removeprefix("meta.")) if field.startswith("meta.") else row.get(field)
