"""The `length` reward: a soft penalty on completions that come near, or over, a budget of tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


class LengthFunction:
    """From 0 to -1 for each completion, by its tokens; a truncated one, whose true length is unknown, has -1.

    Args:
        most: tokens from which the penalty is whole.
        cache: the tokens before that over which it grows.
    """

    def __init__(self, most: int, cache: int) -> None:
        self.most = most
        self.cache = cache

    def __call__(
        self, completion_ids: list[Sequence[int]], truncated: list[bool] | None = None, **_: Any
    ) -> list[float | None]:
        cut = truncated or [False] * len(completion_ids)
        return [
            -1.0 if short else overlong(len(ids), self.most, self.cache)
            for ids, short in zip(completion_ids, cut, strict=True)
        ]

    def explain(self, row: Mapping[str, Any], completion: str, completion_ids: list[int], truncated: bool) -> str:
        """Its tokens and the budget."""
        if truncated:
            return "truncated: it would have gone on"
        return f"{len(completion_ids)} tokens; free up to {self.most - self.cache}, -1 from {self.most}"


def overlong(tokens: int, most: int, cache: int) -> float:
    """The soft overlong punishment of DAPO (arXiv 2503.14476, equation 13).

    0 where tokens <= most - cache; -1 where tokens > most; between, ((most - cache) - tokens) / cache.
    """
    if tokens <= most - cache:
        return 0.0
    return max(-1.0, (most - cache - tokens) / cache)
