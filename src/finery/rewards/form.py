"""The `format` reward: has the completion the form asked for?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from finery.rewards.patterns import ask, checked
from finery.rewards.rewardset import text_of


class FormatFunction:
    """1.0 for a completion that matches the pattern as a whole, or whose tags stand as they should; else 0.0.

    Raises:
        InputError: the pattern is not a regular expression.
    """

    def __init__(self, pattern: str | None, tags: Sequence[str], field: str = "pattern") -> None:
        if pattern is not None:
            checked(pattern, field)
        self.pattern = pattern
        self.tags = tags

    def __call__(self, completions: list[Any], truncated: list[bool] | None = None, **_: Any) -> list[float | None]:
        cut = truncated or [False] * len(completions)
        return [
            float(not short and self.fits(text_of(completion)))
            for completion, short in zip(completions, cut, strict=True)
        ]

    def fits(self, text: str) -> bool:
        """Whether the text has the form; a pattern that takes longer than the deadline does not match."""
        if self.pattern is not None:
            return ask("fits", pattern=self.pattern, text=text) is True
        return misplaced(text, self.tags) is None

    def explain(self, row: Mapping[str, Any], completion: str, completion_ids: list[int], truncated: bool) -> str:
        """What is wrong with the form."""
        if truncated:
            return "truncated"
        if self.pattern is not None:
            return "the pattern matches" if self.fits(completion) else "the pattern does not match the whole completion"
        return misplaced(completion, self.tags) or "each tag stands once, in order, with nothing outside"


def misplaced(text: str, tags: Sequence[str]) -> str | None:
    """What is wrong, or None when each tag stands exactly once, in order, not empty, with only white space outside."""
    for mark in (mark for name in tags for mark in (f"<{name}>", f"</{name}>")):
        if (count := text.count(mark)) != 1:
            return f"{mark} stands {count} times"
    at = 0
    for name in tags:
        opening, closing = text.index(f"<{name}>"), text.index(f"</{name}>")
        content = opening + len(name) + 2
        if opening < at or closing < content:
            return f"<{name}> is out of order"
        if text[at:opening].strip():
            return f"there is text before <{name}>"
        if not text[content:closing].strip():
            return f"<{name}> is empty"
        at = closing + len(name) + 3
    return "there is text after the last tag" if text[at:].strip() else None
