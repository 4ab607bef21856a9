"""Numbers kept for every row, a file a column: written once while rows come in, read back a column at a time."""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

HELD = 16384
"""Values of a column that are held before they are written."""
_DTYPES = {"B": "u1", "H": "u2", "i": "i4", "q": "i8", "Q": "u8", "d": "f8"}


class Facts:
    """Columns of numbers, one value a row each.

    Args:
        folder: where the files lie; made if need be.
        columns: name to the type code of `array`: B, H, i, q, Q (unsigned and signed whole numbers), d (a float).
    """

    def __init__(self, folder: Path, columns: Mapping[str, str]) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder, self._codes = folder, dict(columns)
        self._held: dict[str, array[Any]] = {name: array(code) for name, code in columns.items()}
        self._files = {name: (folder / f"{name}.bin").open("wb") for name in columns}

    def append(self, values: Mapping[str, float]) -> None:
        """Add a row's values, one for each column."""
        held = self._held
        for name, value in values.items():
            held[name].append(value)
        if len(held[name]) >= HELD:
            self._flush()

    def close(self) -> None:
        """Write what is held; nothing can be added any more."""
        self._flush()
        for file in self._files.values():
            file.close()

    def column(self, name: str) -> NDArray[Any]:
        """A column of a closed one, as a numpy array."""
        import numpy as np

        return np.fromfile(self._folder / f"{name}.bin", dtype=np.dtype(_DTYPES[self._codes[name]]))

    def _flush(self) -> None:
        for name, values in self._held.items():
            values.tofile(self._files[name])
            del values[:]


def first_of(high: NDArray[np.uint64], low: NDArray[np.uint64]) -> NDArray[np.int64]:
    """For each of n 16-byte marks, given as two halves, the place of the first that equals it."""
    import numpy as np

    order = np.lexsort((low, high))  # stable: equal marks stay in order
    high, low = high[order], low[order]
    begins = np.ones(len(order), dtype=bool)
    begins[1:] = (high[1:] != high[:-1]) | (low[1:] != low[:-1])
    first = np.empty(len(order), dtype=np.int64)
    first[order] = order[np.maximum.accumulate(np.where(begins, np.arange(len(order)), 0))]
    return first
