"""How rows are to be drawn: by weight, so that rare values come more often, or in the order of their difficulty."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from finery.data.dataset import Row, canonical
from finery.data.formats import repr_of
from finery.data.records import Reject
from finery.schemas.data import Curriculum

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


def balanced_value(row: Row, by: str) -> int:
    """8 bytes of a hash of the value of `meta.NAME` that rows are balanced by.

    Raises:
        Reject: the row has none.
    """
    value = row.get("meta", {}).get(by.removeprefix("meta."))
    if value is None:
        raise Reject(by, "missing", "is missing, and balance needs it")
    return int.from_bytes(hashlib.sha256(canonical(value).encode()).digest()[:8], "big")


def weights(values: NDArray[Any], power: float) -> NDArray[np.float64]:
    """n_v^-power for each row, n_v being how often its value stands among `values`, scaled to mean 1."""
    import numpy as np

    _, number, counts = np.unique(values, return_inverse=True, return_counts=True)
    each = counts.astype(np.float64) ** -power
    return (each / (each @ counts) * len(values))[number]


def difficulty(config: Curriculum, rates: Mapping[str, float]) -> Callable[[Row, str], float]:
    """How hard a row is, from the row and its id: a number, low being easy, or NaN where there is none.

    Args:
        config: what it is told by.
        rates: row id to a gate's pass rate, when that tells it.
    """
    if config.difficulty is not None:
        return lambda row, row_id: -rates[row_id] if row_id in rates else math.nan
    if config.by == "length":
        return lambda row, row_id: float(len(repr_of(_written(row))))
    name = (config.by or "").removeprefix("meta.")
    return lambda row, row_id: number_of(row.get("meta", {}).get(name))


def by_difficulty(
    rows: NDArray[np.int64], values: NDArray[np.float64], config: Curriculum
) -> tuple[NDArray[np.int64], int]:
    """Rows in the order of their difficulty, equal ones as they were, and how many have none; those come last."""
    import numpy as np

    of_rows = values[rows]
    key = of_rows if config.order == "easy_first" else -of_rows
    return rows[np.argsort(key, kind="stable")], int(np.isnan(of_rows).sum())


def _written(row: Row) -> Any:
    """What is learned: the completion (or chosen), of a conversation what the assistant says; else the prompt."""
    if "messages" in row:
        return [turn["content"] for turn in row["messages"] if turn["role"] == "assistant"]
    said = row.get("completion", row.get("chosen", row.get("prompt")))
    return said if isinstance(said, str) else [turn["content"] for turn in said or ()]


def number_of(value: Any) -> float:
    """A value that is a number, NaN otherwise."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return math.nan
    return float(value)
