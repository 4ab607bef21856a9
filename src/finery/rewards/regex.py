"""The `regex` reward: is a pattern found, or does what it captures equal the row's answer?"""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping
from typing import Any

from finery.errors import InputError
from finery.rewards.patterns import ask, checked
from finery.rewards.rewardset import text_of


class RegexFunction:
    """1.0 or 0.0 for each completion; with a group, None where the row has no answer. A truncated completion has 0.0.

    Args:
        pattern: a regular expression, searched for; `.` takes newlines.
        group: the group whose text, in the last match, is compared with the row's answer.
        field: how an error calls the pattern.

    Raises:
        InputError: the pattern is not a regular expression, or has no such group.
    """

    column = "answer"

    def __init__(self, pattern: str, group: str | int | None, field: str = "pattern") -> None:
        compiled = checked(pattern, field)
        if group is not None and group not in compiled.groupindex and group not in range(compiled.groups + 1):
            names = [*compiled.groupindex, *range(1, compiled.groups + 1)]
            raise InputError(f"{field}: has no group {group}; it has {', '.join(map(str, names)) or 'none'}")
        self.pattern = pattern
        self.group = group

    def __call__(
        self,
        completions: list[Any],
        answer: list[str | None] | None = None,
        truncated: list[bool] | None = None,
        **_: Any,
    ) -> list[float | None]:
        golds = answer if answer is not None else [None] * len(completions)
        cut = truncated or [False] * len(completions)
        return [
            self.score(text_of(completion), gold, short)
            for completion, gold, short in zip(completions, golds, cut, strict=True)
        ]

    def score(self, text: str, gold: str | None, truncated: bool = False) -> float | None:
        """The score of one completion."""
        if self.group is not None and (gold is None or not gold.strip()):
            return None
        found = None if truncated else ask("last", pattern=self.pattern, text=text, group=self.group)
        if self.group is None:
            return float(found is True)
        return float(found is not None and even(found) == even(gold or ""))

    def check(self, row: Mapping[str, Any]) -> str | None:
        """Why no completion can be judged by this row's answer, or None."""
        if self.group is None or (row.get("answer") or "").strip():
            return None
        return "is missing or empty"

    def explain(self, row: Mapping[str, Any], completion: str, completion_ids: list[int], truncated: bool) -> str:
        """What the pattern found."""
        if truncated:
            return "truncated"
        found = ask("last", pattern=self.pattern, text=completion, group=self.group)
        if self.group is None:
            return "the pattern is found" if found else "the pattern is not found"
        if self.check(row) is not None:
            return "abstains: the row has no answer"
        if found is None:
            return "the pattern is not found"
        return f"{found[:80]!r} {'equals' if even(found) == even(row['answer']) else 'is not'} {row['answer']!r}"


def even(text: str) -> str:
    """A text after NFKC and with white space made even."""
    return " ".join(unicodedata.normalize("NFKC", text).split())
