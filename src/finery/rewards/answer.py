"""The `answer` reward: does the completion's final answer equal the row's?"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from finery.errors import StageError
from finery.rewards import latex
from finery.rewards.extract import after_hash, boxed, extract
from finery.rewards.numbers import parse_number, same_number
from finery.rewards.rewardset import text_of

_CLOCK = re.compile(r"\d+(?::\d+)+")


class AnswerFunction:
    """1.0 or 0.0 for each completion; None where the row's `answer` cannot be read, whatever the completion."""

    def __init__(self, how: str, compare: str) -> None:
        self.how = how
        self.compare = compare

    def __call__(
        self,
        completions: list[Any],
        answer: list[str | None] | None = None,
        truncated: list[bool] | None = None,
        **_: Any,
    ) -> list[float | None]:
        if answer is None:
            raise StageError("the reward answer needs rows with an `answer`; these have none")
        cut = truncated or [False] * len(completions)
        return [
            self.score(text_of(completion), gold, short)
            for completion, gold, short in zip(completions, answer, cut, strict=True)
        ]

    column = "answer"

    def check(self, row: Mapping[str, Any]) -> str | None:
        """Why no completion can be judged by this row's answer, or None."""
        answer = row.get("answer")
        return "cannot be read as an answer" if self.score("", answer) is None else None

    def score(self, text: str, gold: str | None, truncated: bool = False) -> float | None:
        """The score of one completion; a truncated one has no final answer."""
        gold = clean_gold(gold) if gold is not None else None
        if gold is None:
            return None
        found = None if truncated else extract(text, self.how)
        equal = compare(gold, found, self.compare)
        return None if equal is None else float(equal)


@lru_cache(maxsize=65536)
def clean_gold(gold: str) -> str | None:
    """The answer proper of an `answer` column: what follows `####` or stands in `\\boxed{}`, if one is there."""
    if "####" in gold:
        return after_hash(gold)
    if "\\boxed" in gold:
        return boxed(gold)
    return gold.strip().strip("$").strip() or None


def compare(gold: str, found: str | None, how: str) -> bool | None:
    """Whether the found answer equals the gold one; None when the gold one cannot be read.

    Args:
        gold: the right answer, not empty.
        found: the completion's, None when it has none.
        how: `number` (exact), `text`, `math` (math-verify), or `auto`: numbers when both are, else math-verify.
    """
    if how == "text":
        return found is not None and _plain(found) == _plain(gold)
    if how == "math":
        return _math(gold, found)
    right = parse_number(gold)
    if how == "number":
        if right is None:
            return None
        given = parse_number(found) if found is not None else None
        return given is not None and same_number(right, given)
    if _CLOCK.fullmatch(gold):
        return found is not None and found.strip(" .$") == gold
    if right is None:
        return _math(gold, found)
    if found is None:
        return False
    given = parse_number(found)
    return same_number(right, given) if given is not None else _math(gold, found)


def _math(gold: str, found: str | None) -> bool | None:
    if found is None:
        return False if latex.readable(gold) else None
    return latex.equal(gold, found)


def _plain(text: str) -> str:
    return " ".join(unicodedata.normalize("NFKC", text).split())
