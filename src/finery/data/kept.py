"""The rows of a data stage that may be used: their content in a spill, and numbers of each beside it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from finery.data.dataset import Row
from finery.data.facts import Facts
from finery.data.records import Record, Reject, place
from finery.data.rejects import Rejects
from finery.data.spill import Spill

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_FACTS = {"file": "i", "line": "q", "group": "Q", "split": "H", "id": "Q", "bits": "H"}
_LISTED = 4096
"""Duplicates whose places are looked up together."""


class Kept:
    """Rows by number, in the order they came.

    Args:
        work: an empty folder.
        facts: numbers that are kept of a row beside those every row has, name to the type code of `array`.

    Attributes:
        rows: how many were added.
        spill: their content.
        facts: numbers of each: file and line (its place), group (8 bytes of its key's hash), split, id (as a number),
            bits (which columns it has), and those asked for.
    """

    def __init__(self, work: Path, facts: Mapping[str, str]) -> None:
        self.rows = 0
        work.mkdir(parents=True, exist_ok=True)
        self.spill = Spill(work / "rows.arrow")
        self.facts = Facts(work / "facts", _FACTS | dict(facts))
        self._files: dict[tuple[int, str, str], int] = {}

    def add(self, row: Row, source: int, record: Record, facts: dict[str, float]) -> None:
        """Add a row, the number of its source, the record it was, and its numbers."""
        kind, line = record.at
        facts["file"] = self._files.setdefault((source, record.file, kind), len(self._files))
        facts["line"] = line
        facts["bits"] = self.spill.add(row)
        self.facts.append(facts)
        self.rows += 1

    def close(self) -> None:
        """All rows were added."""
        import numpy as np

        self.spill.close()
        self.facts.close()
        self._alive = np.ones(self.rows, dtype=bool)

    @property
    def alive(self) -> NDArray[np.bool_]:
        """By row number, whether the row is still kept."""
        return self._alive

    def sources(self) -> NDArray[np.int64]:
        """By row number, the number of its source."""
        import numpy as np

        of_files = np.array([source for source, _, _ in self._files] or [0], dtype=np.int64)
        return np.take(of_files, self.facts.column("file"))

    def place(self, number: int) -> str:
        """How a message names a row: file:line."""
        _, name, kind = list(self._files)[int(self.facts.column("file")[number])]
        return place(name, (kind, int(self.facts.column("line")[number])))

    def drop(
        self,
        pairs: Iterable[tuple[NDArray[np.int64], NDArray[np.int64]]],
        rejects: Rejects,
        code: str,
        reason: str,
    ) -> None:
        """Drop rows that repeat others, and list them in their order, each with the place of that other.

        Args:
            pairs: the numbers of rows to drop, and of those they repeat.
            rejects: where they are listed.
            code: the reject's.
            reason: what the place of the other follows: `repeats`.
        """
        import numpy as np

        found = [np.stack(pair) for pair in pairs]
        dropped, others = np.concatenate(found or [np.empty((2, 0), dtype=np.int64)], axis=1)
        order = np.argsort(dropped)
        files, columns = list(self._files), [self.facts.column("file"), self.facts.column("line")]
        for start in range(0, len(order), _LISTED):
            part = order[start : start + _LISTED]
            places = [column[rows[part]].tolist() for rows in (dropped, others) for column in columns]
            for file, line, other_file, other_line in zip(*places, strict=True):
                source, name, kind = files[file]
                _, other_name, other_kind = files[other_file]
                other = place(other_name, (other_kind, other_line))
                rejects.add(source, name, (kind, line), Reject("", code, f"{reason} {other}"))
        self._alive[dropped] = False
