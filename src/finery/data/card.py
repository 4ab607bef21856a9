"""What the card of a data set says of a split: counts, and lengths in characters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from finery.data.dataset import Row
from finery.data.formats import repr_of

MEASURED = ("prompt", "completion", "messages", "answer")


def lengths(rows: Sequence[Row]) -> dict[str, dict[str, float]]:
    """Column to the least, mean, middle, 95th percentile (nearest rank) and greatest length of its text."""
    result = {}
    for column in MEASURED:
        sizes = sorted(len(_text(row[column])) for row in rows if column in row)
        if sizes:
            result[column] = {
                "min": sizes[0],
                "mean": round(sum(sizes) / len(sizes), 2),
                "p50": _rank(sizes, 50),
                "p95": _rank(sizes, 95),
                "max": sizes[-1],
            }
    return result


def _text(value: Any) -> str:
    return value if isinstance(value, str) else repr_of([turn["content"] for turn in value])


def _rank(sizes: Sequence[int], percent: int) -> int:
    return sizes[max(0, -(-percent * len(sizes) // 100) - 1)]
