"""The `format` reward: has the completion the form asked for?"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from finery.rewards.rewardset import text_of


class FormatFunction:
    """1.0 for a completion that matches the pattern as a whole, or whose tags stand as they should; else 0.0."""

    def __init__(self, pattern: str | None, tags: Sequence[str]) -> None:
        self.pattern = re.compile(pattern, re.DOTALL) if pattern is not None else None
        self.tags = tags

    def __call__(self, completions: list[Any], truncated: list[bool] | None = None, **_: Any) -> list[float | None]:
        cut = truncated or [False] * len(completions)
        return [
            float(not short and self.fits(text_of(completion)))
            for completion, short in zip(completions, cut, strict=True)
        ]

    def fits(self, text: str) -> bool:
        """Whether the text has the form."""
        return self.pattern.fullmatch(text) is not None if self.pattern else well_tagged(text, self.tags)


def well_tagged(text: str, tags: Sequence[str]) -> bool:
    """Whether each tag stands exactly once, in this order, not empty, with nothing but white space outside them."""
    if any(text.count(mark) != 1 for name in tags for mark in (f"<{name}>", f"</{name}>")):
        return False
    at = 0
    for name in tags:
        opening, closing = text.index(f"<{name}>"), text.index(f"</{name}>")
        content = opening + len(name) + 2
        if opening < at or closing < content or text[at:opening].strip() or not text[content:closing].strip():
            return False
        at = closing + len(name) + 3
    return not text[at:].strip()
