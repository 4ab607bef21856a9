"""Exact duplicates by their 16-byte marks, in partitions, so that the marks need not all be held at once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from finery.data.facts import first_of

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

PARTITIONS = 64
HELD = 32768
"""Marks that are held before they are dealt out."""


class Repeats:
    """Finds rows whose mark came before.

    Args:
        folder: where the partitions lie; made if need be.
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._held = bytearray()
        self._dealt = 0
        self._files: dict[int, IO[bytes]] = {}

    def add(self, mark: bytes) -> None:
        """Add the next row's mark, 16 bytes of a hash."""
        self._held += mark
        if len(self._held) >= 16 * HELD:
            self._deal()

    def found(self) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64]]]:
        """The numbers of rows that repeat one, and of the first rows that they repeat; a partition at a time."""
        import numpy as np

        self._deal()
        for file in self._files.values():
            file.close()
        for part in sorted(self._files):
            entries = np.fromfile(self._path(part), dtype=_entry())
            first = first_of(entries["high"], entries["low"])
            again = np.flatnonzero(first != np.arange(len(first)))
            yield entries["row"][again], entries["row"][first[again]]

    def _deal(self) -> None:
        import numpy as np

        marks = np.frombuffer(bytes(self._held), dtype=[("high", "<u8"), ("low", "<u8")])
        self._held.clear()
        entries = np.empty(len(marks), dtype=_entry())
        entries["high"], entries["low"] = marks["high"], marks["low"]
        entries["row"] = np.arange(self._dealt, self._dealt + len(marks))
        self._dealt += len(marks)
        part = (marks["high"] % PARTITIONS).astype(np.int64)
        order = np.argsort(part, kind="stable")
        ends = np.cumsum(np.bincount(part, minlength=PARTITIONS))
        for number, rows in enumerate(np.split(order, ends[:-1])):
            if len(rows):
                if number not in self._files:
                    self._files[number] = self._path(number).open("wb")
                entries[rows].tofile(self._files[number])

    def _path(self, part: int) -> Path:
        return self._folder / f"marks-{part}.bin"


def _entry() -> Any:
    import numpy as np

    return np.dtype([("high", "<u8"), ("low", "<u8"), ("row", "<i8")])
