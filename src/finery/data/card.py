"""What the card of a data set says of lengths: least, mean, middle, 95th percentile, greatest."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING

from finery.data.arrays import numbers_of

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
    from numpy.typing import NDArray

MEASURED = ("prompt", "completion", "messages", "chosen", "rejected", "answer")


class Histogram:
    """Lengths, counted: as large as they are different."""

    def __init__(self) -> None:
        self._counts: Counter[int] = Counter()

    def add(self, lengths: NDArray[np.int64]) -> None:
        """Count some lengths."""
        import numpy as np

        values, counts = np.unique(lengths, return_counts=True)
        for value, count in zip(values.tolist(), counts.tolist(), strict=True):
            self._counts[value] += count

    @property
    def total(self) -> int:
        """Their sum."""
        return sum(value * count for value, count in self._counts.items())

    def summary(self) -> dict[str, float]:
        """The least, mean, middle, 95th percentile (nearest rank) and greatest."""
        count = self._counts.total()
        return {
            "min": min(self._counts),
            "mean": round(self.total / count, 2),
            "p50": self._rank(50, count),
            "p95": self._rank(95, count),
            "max": max(self._counts),
        }

    def _rank(self, percent: int, count: int) -> int:
        rank, passed = max(1, -(-percent * count // 100)), 0
        for value in sorted(self._counts):
            passed += self._counts[value]
            if passed >= rank:
                return value
        raise ValueError("nothing was counted")


class Lengths:
    """The lengths in characters of the columns of text; of messages, those of their contents together."""

    def __init__(self) -> None:
        self._columns: dict[str, Histogram] = {}

    def add(self, columns: Mapping[str, pa.ChunkedArray]) -> None:
        """Count the rows of some columns."""
        for name in MEASURED:
            for chunk in columns[name].chunks if name in columns else ():
                self._columns.setdefault(name, Histogram()).add(_characters(chunk))

    def summary(self) -> dict[str, dict[str, float]]:
        """Column to what its histogram says."""
        return {name: self._columns[name].summary() for name in MEASURED if name in self._columns}


def _characters(column: pa.Array) -> NDArray[np.int64]:
    """The lengths of a column's values, those that are absent left out."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    column = column.drop_null()
    if not pa.types.is_list(column.type):
        lengths: NDArray[np.int64] = numbers_of(pc.utf8_length(column)).astype(np.int64)
        return lengths
    each = numbers_of(pc.utf8_length(column.flatten().field("content")))
    ends = np.cumsum(numbers_of(column.value_lengths()))
    sums = np.concatenate([[0], np.cumsum(each)])
    sums_of: NDArray[np.int64] = np.diff(sums[ends], prepend=sums[:1])
    return sums_of
