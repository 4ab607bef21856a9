"""The gate's verdict: is reinforcement learning worth it?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from finery.stats.intervals import Interval

_ROUNDING = 1e-12  # 0.6 - 0.4 is 0.19999999999999996 and still a gap of 0.2


@dataclass(frozen=True)
class Verdict:
    """`rl`, `skip_rl` or `more_data`; why, in a sentence; `conclusive` is False when point estimates decided."""

    verdict: Literal["rl", "skip_rl", "more_data"]
    reason: str
    conclusive: bool
    weak_greedy: bool


def decide(
    pass_at_1: Interval,
    pass_at_k: Interval,
    gap: Interval,
    *,
    k: int,
    solved_at: float = 0.9,
    min_gap: float = 0.2,
    greedy: float | None = None,
    min_greedy: float = 0.8,
) -> Verdict:
    """Read the verdict from the intervals, in this order (design, section 6):

    lower(pass@1) >= solved_at: `skip_rl`; else upper(pass@1) < solved_at and lower(gap) >= min_gap: `rl`; else
    upper(pass@1) < solved_at and upper(gap) < min_gap: `more_data`; else the intervals are inconclusive and the
    point estimates decide in the same order, and the reason says so.

    That RL with verified rewards turns pass@k into pass@1 rather than adding to it: Yue et al. 2025 (arXiv
    2504.13837). Greedy accuracy below min_greedy is a warning in the reason of an `rl` verdict: on tiny models
    a wide gap with weak greedy accuracy was followed by no gain.
    """
    if _at_least(pass_at_1.low, solved_at):
        verdict, conclusive = "skip_rl", True
    elif not _at_least(pass_at_1.high, solved_at) and _at_least(gap.low, min_gap):
        verdict, conclusive = "rl", True
    elif not _at_least(pass_at_1.high, solved_at) and not _at_least(gap.high, min_gap):
        verdict, conclusive = "more_data", True
    else:
        conclusive = False
        if _at_least(pass_at_1.value, solved_at):
            verdict = "skip_rl"
        else:
            verdict = "rl" if _at_least(gap.value, min_gap) else "more_data"
    solved = f"pass@1 {_shown(pass_at_1)}"
    wide = f"pass@{k} {_shown(pass_at_k)} lies {_shown(gap)} above it"
    if verdict == "skip_rl":
        reason = f"{solved} reaches {solved_at:g}: nothing is left for RL to gain"
    elif verdict == "rl":
        reason = f"{solved} is below {solved_at:g} and {wide}, at least the {min_gap:g} that RL can turn into pass@1"
    else:
        reason = f"{solved} is below {solved_at:g} and {wide}, less than {min_gap:g}: RL needs better data first"
    if not conclusive:
        reason += "; the intervals do not settle it, so the point estimates decided"
    weak = verdict == "rl" and greedy is not None and not _at_least(greedy, min_greedy)
    if weak:
        reason += (
            f"; warning: greedy accuracy {greedy:.3f} is below {min_greedy:g}, and a wide gap with weak greedy"
            " accuracy was followed by no gain"
        )
    return Verdict(verdict, reason, conclusive, weak)  # type: ignore[arg-type]


def _at_least(value: float, bound: float) -> bool:
    return value >= bound - _ROUNDING


def _shown(interval: Interval) -> str:
    return f"{interval.value:.3f} [{interval.low:.3f}, {interval.high:.3f}]"
