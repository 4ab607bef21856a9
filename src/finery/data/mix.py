"""Mixing sources by weight within a split, after the split, and the caps. Rows are numbers here, 8 bytes each."""

from __future__ import annotations

import hashlib
import random
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING

from finery.data.facts import first_of
from finery.errors import InputError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

MOST_REPEATS = 1000
"""How often a source's rows may be repeated in a split, on average."""
MOST_ROWS = 100_000_000
"""Rows that repeats may bring a split to."""


@dataclass(frozen=True)
class Mixed:
    """A split's rows in their final order.

    Attributes:
        rows: their numbers, int64.
        taken: how many of them each source gave.
        repeated: how many of those are repeats of a row.
        capped: rows that `rows` cut off.
        same_prompt: rows that `unique_prompts` left out.
    """

    rows: NDArray[np.int64]
    taken: list[int]
    repeated: list[int]
    capped: int
    same_prompt: int


def mix(
    pools: Sequence[NDArray[np.int64]],
    weights: Sequence[float] | None,
    *,
    seed: int,
    split: str,
    cap: int | None,
    prompts: tuple[NDArray[np.uint64], NDArray[np.uint64]] | None = None,
    tokens: NDArray[np.int32] | None = None,
) -> Mixed:
    """Shuffle a split's rows by the seed, mix its sources by weight, and cut it to its cap.

    Without weights every row is taken once. With weights w_i and n_i rows, T rows are made, round(w_i / sum(w) * T)
    of source i: T = max(n_i * sum(w) / w_i), so that no row is left out and smaller sources are repeated, whole rounds
    first; or, with unique prompts, T = min(n_i * sum(w) / w_i), so that none is repeated. `cap` bounds T.

    Args:
        pools: for each source the numbers of its rows.
        weights: of the sources, or None.
        seed: the stage's.
        split: the split's name.
        cap: the most rows.
        prompts: the two halves of every row's mark of its prompt, by row number, when one row is kept a prompt.
        tokens: every row's tokens, by row number, when weights are shares of tokens: they are then divided by the
            mean tokens of the source's rows in the split.

    Raises:
        InputError: the weights ask for a source to be repeated absurdly often.
    """
    import numpy as np

    rng = random.Random(int.from_bytes(hashlib.sha256(f"{seed}/split/{split}".encode()).digest()[:8], "big"))
    pools = [shuffled(pool, rng) for pool in pools]
    available = sum(map(len, pools))
    if prompts is not None:
        pools = _unique(pools, prompts)
    same_prompt = available - sum(map(len, pools))
    shares = None if weights is None else _shares(pools, weights, tokens)
    sizes = [len(pool) for pool in pools]
    counts = _counts(sizes, shares, cap, repeat=prompts is None)
    if weights is not None:
        _check_repeats(sizes, counts, weights, f"splits.{split}")
    picked = [np.resize(pool, count) for pool, count in zip(pools, counts, strict=True)]
    sources = np.repeat(np.arange(len(pools), dtype=np.int16), counts)
    order = shuffled(np.arange(len(sources)), rng)[:cap]
    taken = np.bincount(sources[order], minlength=len(pools)).tolist()
    return Mixed(
        rows=np.concatenate(picked)[order],
        taken=taken,
        repeated=[count - min(count, len(pool)) for count, pool in zip(taken, pools, strict=True)],
        capped=len(sources) - len(order),
        same_prompt=same_prompt,
    )


def _shares(
    pools: Sequence[NDArray[np.int64]], weights: Sequence[float], tokens: NDArray[np.int32] | None
) -> list[Fraction]:
    """What the sources' rows are shares of: 0 for a source without rows."""
    shares = [Fraction(str(weight)) if len(pool) else Fraction(0) for pool, weight in zip(pools, weights, strict=True)]
    if tokens is None:
        return shares
    totals = [int(tokens[pool].sum(dtype="int64")) for pool in pools]
    return [share * len(pool) / max(1, total) for share, pool, total in zip(shares, pools, totals, strict=True)]


def _counts(sizes: Sequence[int], shares: Sequence[Fraction] | None, cap: int | None, *, repeat: bool) -> list[int]:
    if shares is None:
        return list(sizes)
    whole = sum(shares)
    if not whole:
        return [0] * len(sizes)
    totals = [size * whole / share for size, share in zip(sizes, shares, strict=True) if share]
    total = max(totals) if repeat else min(totals)
    if cap is not None:
        total = min(total, Fraction(cap))
    return [round(share / whole * total) for share in shares]


def _check_repeats(sizes: Sequence[int], counts: Sequence[int], weights: Sequence[float], where: str) -> None:
    """Refuse what nobody means and no memory holds, before it is made."""
    vast = sum(counts) > MOST_ROWS and sum(counts) > 2 * sum(sizes)
    for index, (size, count) in enumerate(zip(sizes, counts, strict=True)):
        if size and (count > MOST_REPEATS * size or (vast and count == max(counts))):
            least = min(weights)
            raise InputError(
                f"{where}: the {size} rows of sources.{index} (weight {weights[index]:g}) would be repeated to "
                f"{_many(count)}, {_many(count // size)} times each, since the least weight is {least:g} and no row is "
                f"left out; at most {MOST_REPEATS} times and {MOST_ROWS:,} rows are made: give the split fewer `rows`, "
                "or the sources weights nearer to one another"
            )


def _many(count: int) -> str:
    return f"{count:,}" if count < 10**12 else "more than a million million"


def _unique(
    pools: Sequence[NDArray[np.int64]], prompts: tuple[NDArray[np.uint64], NDArray[np.uint64]]
) -> list[NDArray[np.int64]]:
    """The pools with the first row of each prompt, those of earlier pools being first."""
    import numpy as np

    rows = np.concatenate(pools)
    first = first_of(prompts[0][rows], prompts[1][rows]) == np.arange(len(rows))
    ends = np.cumsum([len(pool) for pool in pools])
    return [pool[kept] for pool, kept in zip(pools, np.split(first, ends[:-1]), strict=True)]


def shuffled(items: NDArray[np.int64], rng: random.Random) -> NDArray[np.int64]:
    """Fisher-Yates over `rng.randrange(i + 1)`, whose stream Python keeps; i falls from the last to 1."""
    import numpy as np

    result = array("q", items.astype("<i8").tobytes())
    bits = rng.getrandbits
    index = len(result) - 1
    while index > 0:
        # randrange(n) takes n.bit_length() bits until they are below n; calling it costs three times as much
        width = (index + 1).bit_length()
        lowest = max(1, (1 << (width - 1)) - 1)
        for at in range(index, lowest - 1, -1):
            other = bits(width)
            while other > at:
                other = bits(width)
            result[at], result[other] = result[other], result[at]
        index = lowest - 1
    return np.frombuffer(result, dtype=np.int64)
