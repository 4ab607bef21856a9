"""When what a program gave is what was due."""

from __future__ import annotations

from itertools import zip_longest
from typing import Any

from .handle import held


def same(given: Any, due: Any, tolerance: float) -> bool:
    """Whether a result is the JSON value that was due.

    A tuple counts as the list that JSON makes of it, and an int as the float of its value; True is not 1. Keys of a
    dict are compared as text too, since JSON has no others.

    Args:
        given: what the code gave, of any type.
        due: from JSON.
        tolerance: the most by which two floats may differ, relative to the larger of 1 and the size of the one due.
    """
    given = held(given)
    if isinstance(due, bool) or due is None or isinstance(due, str):
        return type(given) is type(due) and bool(given == due)
    if isinstance(due, int | float):
        if type(given) not in (int, float):
            return False
        return bool(given == due) or (tolerance > 0 and abs(given - due) <= tolerance * max(1, abs(due)))
    if isinstance(due, list):
        if type(given) not in (list, tuple) or len(given) != len(due):
            return False
        return all(same(one, other, tolerance) for one, other in zip(given, due, strict=True))
    if type(given) is not dict or len(given) != len(due):
        return False
    named = {_key(key): value for key, value in given.items()}
    return len(named) == len(given) and all(key in named and same(named[key], due[key], tolerance) for key in due)


def _key(key: Any) -> str:
    return {True: "true", False: "false", None: "null"}[key] if key is None or type(key) is bool else str(key)


def lines(printed: str, due: str, tolerance: float) -> str | None:
    """Why the lines printed are not those due, or None; white space at the ends of lines and of the text is dropped."""
    shown, wanted = _lines(printed), _lines(due)
    for number, (one, other) in enumerate(zip_longest(shown, wanted), 1):
        if one != other and not _close(one, other, tolerance):
            what = "nothing" if one is None else repr(one[:120])
            return f"line {number} of the output is {what}; {'nothing' if other is None else repr(other[:120])} is due"
    return None


def _lines(text: str) -> list[str]:
    return [line.rstrip() for line in text.rstrip().split("\n")] if text.strip() else []


def _close(one: str | None, other: str | None, tolerance: float) -> bool:
    if not tolerance or one is None or other is None or len(one.split()) != len(other.split()):
        return False
    return all(a == b or _near(a, b, tolerance) for a, b in zip(one.split(), other.split(), strict=True))


def _near(one: str, other: str, tolerance: float) -> bool:
    try:
        return abs(float(one) - float(other)) <= tolerance * max(1.0, abs(float(other)))
    except ValueError:
        return False
