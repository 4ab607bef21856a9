"""Mixing sources by weight within a split, after the split, and the caps."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import TypeVar

from finery.data.dataset import Row
from finery.data.groups import fingerprint

T = TypeVar("T")


@dataclass(frozen=True)
class Mixed:
    """A split's rows in their final order.

    Attributes:
        rows: the rows.
        taken: how many of them each source gave.
        repeated: how many of those are repeats of a row.
        capped: rows that `rows` cut off.
        same_prompt: rows that `unique_prompts` left out.
    """

    rows: list[Row]
    taken: list[int]
    repeated: list[int]
    capped: int
    same_prompt: int


def mix(
    by_source: Sequence[Sequence[Row]],
    weights: Sequence[float] | None,
    *,
    seed: int,
    split: str,
    cap: int | None,
    unique_prompts: bool,
) -> Mixed:
    """Shuffle a split's rows by the seed, mix its sources by weight, and cut it to its cap.

    Without weights every row is taken once. With weights w_i and n_i rows, T rows are made, round(w_i / sum(w) * T)
    of source i: T = max(n_i * sum(w) / w_i), so that no row is left out and smaller sources are repeated, whole rounds
    first; or, with unique_prompts, T = min(n_i * sum(w) / w_i), so that none is repeated. `cap` bounds T.
    """
    rng = random.Random(int.from_bytes(hashlib.sha256(f"{seed}/split/{split}".encode()).digest()[:8], "big"))
    pools = [_shuffled(rows, rng) for rows in by_source]
    available = sum(map(len, pools))
    if unique_prompts:
        pools = _unique(pools)
    same_prompt = available - sum(map(len, pools))
    counts = _counts([len(pool) for pool in pools], weights, cap, repeat=not unique_prompts)
    picked = [(index, row) for index, pool in enumerate(pools) for row in _repeat(pool, counts[index])]
    mixed = _shuffled(picked, rng)
    kept = mixed[:cap]
    taken = [sum(source == index for source, _ in kept) for index in range(len(pools))]
    return Mixed(
        rows=[row for _, row in kept],
        taken=taken,
        repeated=[count - min(count, len(pool)) for count, pool in zip(taken, pools, strict=True)],
        capped=len(mixed) - len(kept),
        same_prompt=same_prompt,
    )


def _counts(sizes: Sequence[int], weights: Sequence[float] | None, cap: int | None, *, repeat: bool) -> list[int]:
    if weights is None:
        return list(sizes)
    shares = [Fraction(str(weight)) if size else Fraction(0) for size, weight in zip(sizes, weights, strict=True)]
    whole = sum(shares)
    if not whole:
        return [0] * len(sizes)
    totals = [size * whole / share for size, share in zip(sizes, shares, strict=True) if share]
    total = max(totals) if repeat else min(totals)
    if cap is not None:
        total = min(total, Fraction(cap))
    return [round(share / whole * total) for share in shares]


def _unique(pools: Sequence[Sequence[Row]]) -> list[list[Row]]:
    seen: set[bytes] = set()
    result = []
    for pool in pools:
        kept = []
        for row in pool:
            key = fingerprint(row, prompt_only=True)
            if key not in seen:
                seen.add(key)
                kept.append(row)
        result.append(kept)
    return result


def _repeat(pool: Sequence[T], count: int) -> list[T]:
    """`count` rows of a shuffled pool: whole rounds, then its first ones."""
    if not pool:
        return []
    rounds, rest = divmod(count, len(pool))
    return [*pool] * rounds + [*pool[:rest]]


def _shuffled(items: Sequence[T], rng: random.Random) -> list[T]:
    """Fisher-Yates over randrange, whose stream Python keeps."""
    result = list(items)
    for index in range(len(result) - 1, 0, -1):
        other = rng.randrange(index + 1)
        result[index], result[other] = result[other], result[index]
    return result
