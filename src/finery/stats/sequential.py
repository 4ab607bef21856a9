"""Sampling in rounds and stopping early: when a gate looks, how much error a look may spend, and what a prompt's counts
are worth when how many completions it got depended on them.

A prompt is what is drawn at random, so a gate first takes more prompts at few completions each, and only then more
completions of the same ones.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from finery.stats.passk import pass_at_k

BLOCKS = 6
"""Looks at the first round, one after each part of the prompts."""
LOOK_RESAMPLES = 20_000
"""Of an interval that a look is read from: its limits lie far out."""
FEWEST = 25
"""Prompts before the first look: intervals over fewer are not to be trusted at the levels that a look is read at."""


@dataclass(frozen=True)
class Look:
    """The first `prompts` prompts have `samples` completions each, and the verdict is read at 1 - alpha."""

    prompts: int
    samples: int
    alpha: float


def spent(t: float, alpha: float) -> float:
    """The error that may be spent up to the share t of the information: alpha * ln(1 + (e - 1) t).

    Lan and DeMets 1983, "Discrete sequential boundaries for clinical trials" (Biometrika 70:659), the spending function
    alpha_2* of their section 2, which comes near Pocock's boundary. Looks get its increments, and the union bound holds
    the error of all of them at alpha, however they depend on each other.
    """
    return alpha * math.log(1 + (math.e - 1) * t)


def looks(prompts: int, k: int, max_samples: int, alpha: float) -> list[Look]:
    """When to look, and at which level: parts of the prompts with k completions each, then all with more.

    Args:
        prompts: P, how many there are.
        k: the largest k of pass@k: fewer completions say nothing of it.
        max_samples: the most for a prompt, at least k.
        alpha: 1 - confidence, for all looks together.

    Returns:
        Looks in their order; the last has all prompts with max_samples completions, and the alphas add up to `alpha`.
    """
    if prompts < 1 or k < 1 or max_samples < k:
        raise ValueError(f"{prompts} prompts with {max_samples} completions cannot be looked at for pass@{k}")
    block = max(FEWEST, math.ceil(prompts / BLOCKS))
    places = [(min(end, prompts), k) for end in range(block, prompts + block, block)]
    between = (k + max_samples + 1) // 2
    places += [(prompts, n) for n in sorted({between, max_samples}) if n > k]
    levels = [spent(m * n / (prompts * max_samples), alpha) for m, n in places]
    steps = [level - before for before, level in zip([0.0, *levels], levels, strict=False)]
    return [Look(m, n, step) for (m, n), step in zip(places, steps, strict=True)]


def goes_on(judged: int, solved: int, k: int) -> bool:
    """Whether a prompt gets more completions in the next round: not when each of at least k judged ones is solved."""
    return judged < k or solved < judged


def unbiased(rounds: Sequence[int], solved: int, k: int, most: int) -> float | None:
    """pass@k of one prompt from all of its completions, unbiased although `goes_on` decided how many there are.

    The estimate 1 - C(n-c, k) / C(n, k) is biased when n depends on c. That of the first round alone is not, and its
    mean given what is known at the end, over all orders in which the solved ones may have come without stopping before,
    is the unbiased estimate of least variance: Girshick, Mosteller and Savage 1946, "Unbiased estimates for certain
    binomial sampling problems" (Annals of Mathematical Statistics 17:13), by the theorem of Rao and Blackwell.

    Args:
        rounds: judged completions of each round that was drawn for it, in order.
        solved: how many of all of them are solved.
        k: at most `most`.
        most: the largest k that is asked for; the first round is what it takes to have so many judged.

    Returns:
        None when fewer than `most` completions were judged.

    Raises:
        ValueError: so many solved ones cannot have come without stopping before.
    """
    merged: list[int] = []
    for count in rounds:
        if merged and merged[0] >= most:
            merged.append(count)
        else:
            merged = [sum(merged) + count]
    if not merged or merged[0] < most:
        return None
    value = _values(tuple(count for count in merged if count), k)[solved]
    if value is None:
        raise ValueError(f"{solved} solved of {sum(rounds)}: sampling would have stopped before")
    return value


@lru_cache(maxsize=4096)
def _values(rounds: tuple[int, ...], k: int) -> tuple[float | None, ...]:
    """The estimate by the number of solved completions; None where sampling cannot have got there.

    ways[c] counts the orders of the completions so far with c solved, and worth[c] adds up what the first round of each
    was worth.
    """
    n = rounds[0]
    if len(rounds) == 1:
        return tuple(pass_at_k(n, c, k) for c in range(n + 1))
    ways = [math.comb(n, c) for c in range(n + 1)]
    worth = [ways[c] * pass_at_k(n, c, k) for c in range(n + 1)]
    for count in rounds[1:]:
        more_ways, more_worth = [0] * (n + count + 1), [0.0] * (n + count + 1)
        for c in range(n):  # c = n has stopped
            for x in range(count + 1):
                more_ways[c + x] += ways[c] * math.comb(count, x)
                more_worth[c + x] += worth[c] * math.comb(count, x)
        n, ways, worth = n + count, more_ways, more_worth
    return tuple(value / way if way else None for value, way in zip(worth, ways, strict=True))
