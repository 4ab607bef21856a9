"""How trainers take the rows of a data set: shuffled, drawn by weight (`balance`), or in order (`curriculum`)."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from finery.data.dataset import INFO_FILE
from finery.errors import InputError

CURRICULUM = "curriculum"
"""The value of `order` in dataset.json that asks trainers to keep the order of the rows."""


def is_ordered(folder: Path) -> bool:
    """Whether the rows of a data set are to be taken in their order.

    Raises:
        InputError: dataset.json asks for an order that is not known.
    """
    info = json.loads((folder / INFO_FILE).read_text(encoding="utf-8"))
    order = info.get("order")
    if order not in (None, CURRICULUM):
        raise InputError(f"{folder / INFO_FILE}: order {order!r} is not known; it is {CURRICULUM}, or left out")
    return order is not None


def weights_of(rows: Sequence[Mapping[str, Any]], name: str) -> list[float] | None:
    """The rows' sampling weights, or None when they have none.

    Raises:
        InputError: some rows have one and others none, or one is not a finite number above 0.
    """
    found = [row.get("weight") for row in rows]
    if all(weight is None for weight in found):
        return None
    for row, weight in zip(rows, found, strict=True):
        if not isinstance(weight, int | float) or not 0 < weight < float("inf"):
            raise InputError(
                f"{name}: row {row['id']} has weight {weight}; every row of a weighted data set needs one above 0"
            )
    return [float(weight) for weight in found if weight is not None]
