"""The `repetition` reward: a penalty on n-grams of tokens that were there before."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


class RepetitionFunction:
    """From 0 to -1 for each completion; a truncated one is judged by what there is of it.

    Args:
        ngram: tokens in an n-gram.
    """

    def __init__(self, ngram: int) -> None:
        self.ngram = ngram

    def __call__(self, completion_ids: list[Sequence[int]], **_: Any) -> list[float | None]:
        return [-repeated(ids, self.ngram) for ids in completion_ids]

    def explain(self, row: Mapping[str, Any], completion: str, completion_ids: list[int], truncated: bool) -> str:
        """How many n-grams there are, and how many of them are new."""
        count = max(0, len(completion_ids) - self.ngram + 1)
        return f"{distinct(completion_ids, self.ngram)} of {count} {self.ngram}-grams are new"


def repeated(ids: Sequence[int], ngram: int) -> float:
    """The share of n-grams that repeat an earlier one: 1 - distinct / all; 0 where there is none.

    The n-gram repetition penalty of arXiv 2502.03373, as open-r1 computes it for a whole completion
    (get_repetition_penalty_reward with max_penalty -1).
    """
    count = len(ids) - ngram + 1
    return 1 - distinct(ids, ngram) / count if count > 0 else 0.0


def distinct(ids: Sequence[int], ngram: int) -> int:
    """How many different n-grams there are."""
    return len({tuple(ids[start : start + ngram]) for start in range(len(ids) - ngram + 1)})
