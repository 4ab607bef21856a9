"""What a model lost of what its start could do: the forgetting table and its one number."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from finery.stats.intervals import Bootstrap, weighted


@dataclass(frozen=True)
class GeneralSuite:
    """A suite of what must not be lost, P prompts: its main metric, its share, and its resampling weights."""

    name: str
    metric: str
    weight: float
    resamples: Bootstrap


def forgetting(
    suites: Sequence[GeneralSuite], before: Mapping[str, Sequence[float]], after: Mapping[str, Sequence[float]]
) -> dict[str, Any] | None:
    """The weighted mean drop over the general suites, negative where the model gained, and each suite's own.

    The negative of backward transfer, Lopez-Paz and Ranzato 2017 (arXiv 1706.08840), with one task a suite.
    Drops are paired by prompt; a prompt undefined before or after is left out.

    Args:
        before, after: suite name -> the metric's value for each prompt [P], NaN where it is undefined.

    Returns:
        `{value, low, high, n, suites: {name: {metric, before, after, drop, low, high, n}}}`, or None when a suite has
        no prompt that is defined in both.
    """
    parts, table = [], {}
    for suite in suites:
        before_P = np.asarray(before[suite.name], dtype=np.float64)
        after_P = np.asarray(after[suite.name], dtype=np.float64)
        drop_P = before_P - after_P
        drop = suite.resamples.change(before_P, after_P)
        if drop is None:
            return None
        both_P = ~np.isnan(drop_P)
        table[suite.name] = {
            "metric": suite.metric,
            "before": float(before_P[both_P].mean()),
            "after": float(after_P[both_P].mean()),
            "drop": drop.value,
            "low": drop.low,
            "high": drop.high,
            "n": drop.n,
        }
        parts.append((suite.resamples, drop_P))
    if not parts:
        return None
    whole = weighted(parts, [suite.weight for suite in suites])
    return None if whole is None else whole.as_dict() | {"suites": table}
