"""Whether a regular expression can be searched without a guard: how many ways it has to match, at worst."""

from __future__ import annotations

import re
from typing import Any

_parser: Any = re._parser  # type: ignore[attr-defined]
"""The parser of `re`: (operation, argument) pairs; nothing public gives them."""
_MOST = 100_000
"""Ways to match at one place: two repeats over 200 characters have 40,000, a search some hundredths of a second."""


def is_quick(pattern: str, length: int) -> bool:
    """Whether a search of a text of `length` characters tries at most _MOST ways to match at each of its places.

    A repeat of what can itself match in several ways or lengths has exponentially many and is never quick.
    """
    return _ways(_parser.parse(pattern, re.IGNORECASE), length) <= _MOST


def _ways(items: Any, length: int) -> float:
    ways = 1.0
    for operation, argument in items:
        ways *= _item(str(operation), argument, length)
    return ways


def _item(operation: str, argument: Any, length: int) -> float:
    if operation in ("MAX_REPEAT", "MIN_REPEAT", "POSSESSIVE_REPEAT"):
        least, most, body = argument
        inner, most = _ways(body, length), min(int(most), length)
        if inner > 1 and most > 1:
            return float("inf")
        return float(max(1, most - min(int(least), most) + 1)) * inner
    if operation == "SUBPATTERN":
        return _ways(argument[-1], length)
    if operation == "ATOMIC_GROUP":
        return _ways(argument, length)
    if operation == "BRANCH":
        return sum(_ways(branch, length) for branch in argument[1])
    if operation in ("ASSERT", "ASSERT_NOT"):
        return _ways(argument[1], length)
    if operation == "GROUPREF_EXISTS":
        return sum(_ways(branch, length) for branch in argument[1:] if branch is not None)
    return 1.0
