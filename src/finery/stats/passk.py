"""pass@k and maj@k from counts of solved completions.

P is the number of problems, n the completions of a problem, c how many of them are solved.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray


def pass_at_k(n: ArrayLike, c: ArrayLike, k: int) -> Any:
    """The unbiased estimate of the chance that k completions hold a solved one: 1 - C(n-c, k) / C(n, k).

    Chen et al. 2021 (arXiv 2107.03374), equation 1, as the running product prod_{i<k} (n-c-i)/(n-i): no
    factorial, so nothing overflows at n = 2000.

    Args:
        n: completions drawn, an integer or an array of them [P].
        c: solved ones, broadcast against n. A score is not a count: a fraction is refused.
        k: completions allowed, 1 <= k <= every n.

    Returns:
        A float, or a float64 array [P] when n or c is an array.

    Raises:
        ValueError: k < 1, k > n, c outside 0..n, or a value that is not a whole number.
    """
    n_P, c_P = _whole(n, "n"), _whole(c, "c")
    if isinstance(k, bool) or not isinstance(k, int | np.integer) or k < 1:
        raise ValueError(f"k must be a whole number of at least 1, not {k!r}")
    n_P, c_P = np.broadcast_arrays(n_P, c_P)
    if np.any(n_P < k):
        raise ValueError(f"pass@{k} cannot be estimated from n={int(n_P.min())} completions; draw at least {k}")
    if np.any((c_P < 0) | (c_P > n_P)):
        raise ValueError("c, the solved completions, must lie between 0 and n")
    none_solved = np.ones(n_P.shape, dtype=np.float64)
    for i in range(int(k)):
        none_solved = none_solved * np.maximum(n_P - c_P - i, 0) / (n_P - i)
    result = 1.0 - none_solved
    return result if result.ndim else float(result)


def mean_pass_at_k(counts: Sequence[tuple[int, int]], k: int) -> float:
    """The mean of pass@k over problems, from their (n, c).

    Raises:
        ValueError: there is no problem, or one has fewer than k completions (exclude and count those first).
    """
    if len(counts) == 0:
        raise ValueError("the mean of pass@k over no problems is undefined")
    pairs = np.asarray(counts)
    return float(np.mean(pass_at_k(pairs[:, 0], pairs[:, 1], k)))


def maj_at_k(answers: Sequence[Hashable | None], solved: Sequence[bool | None], k: int) -> float | None:
    """The chance that the most frequent answer among k completions of one problem is right (self-consistency).

    Wang et al. 2022 (arXiv 2203.11171). The n completions are cut into n // k blocks of k; in each the answers
    are counted, answers that are None do not vote, a tie counts the mean of the tied answers' correctness, and
    a block without a vote counts 0. The blocks are averaged.

    Args:
        answers: the final answer of each completion [n], None where there is none.
        solved: whether it is right [n]; a completion that is None abstained and is left out with its answer.
        k: votes.

    Returns:
        A number in [0, 1], or None when fewer than k completions did not abstain.

    Raises:
        ValueError: k < 1, or answers and solved differ in length.
    """
    if k < 1:
        raise ValueError(f"k must be at least 1, not {k}")
    votes = [(a, bool(s)) for a, s in zip(answers, solved, strict=True) if s is not None]
    blocks = [votes[i : i + k] for i in range(0, len(votes) - k + 1, k)]
    if not blocks:
        return None
    return sum(_majority(block) for block in blocks) / len(blocks)


def _majority(block: Sequence[tuple[Hashable | None, bool]]) -> float:
    ballots: dict[Hashable, list[bool]] = {}
    for answer, right in block:
        if answer is not None:
            ballots.setdefault(answer, []).append(right)
    if not ballots:
        return 0.0
    most = max(len(ballot) for ballot in ballots.values())
    winners = [sum(ballot) / most for ballot in ballots.values() if len(ballot) == most]
    return sum(winners) / len(winners)


def _whole(value: ArrayLike, name: str) -> NDArray[np.int64]:
    array = np.asarray(value)
    if array.dtype.kind not in "iu":
        raise ValueError(f"{name} counts completions and must be whole numbers, not {array.dtype}")
    return array.astype(np.int64)
