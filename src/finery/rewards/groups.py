"""Several exact numbers as one answer: `\\{1,2\\}`, `(1, 2)`, `[0,1)`, `3 or -3`, `\\pm 3`, `2 \\pm 1`, `3、4和5`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

from finery.rewards.numbers import LONGEST, Number, parse_number, same_number
from finery.rewards.symbols import plain

MOST = 64
"""Longer lists go to math-verify."""

_WORD = r"\\text\s*\{\s*(?:,\s*)?(?:and|or)\s*\}|\b(?:and|or)\b|或者?|和|以及"
_JOINT = re.compile(rf"\s*(?:[,;]\s*(?:{_WORD})?|{_WORD})\s*", re.IGNORECASE)
_LOOSE = re.compile(rf"\s*(?:[,;]\s+(?:{_WORD})?|,?\s*(?:{_WORD}))\s*", re.IGNORECASE)
"""Without brackets a comma with no space behind it may be a thousands separator."""
_NAME = re.compile(r"^[A-Za-z](?:_(?:\w|\{\w{1,4}\}))?\s*(?:=|\\in(?![A-Za-z]))\s*")
_PLUS_MINUS = re.compile(r"(.*?)\s*(?:\\pm(?![A-Za-z])|±|\+/-|\\mp(?![A-Za-z])|∓)\s*(.+)", re.DOTALL)
_OPEN = {"\\{": "{", "{": "{", "(": "(", "[": "["}
_CLOSE = {"\\}": "}", "}": "}", ")": ")", "]": "]"}


@dataclass(frozen=True)
class Group:
    """Numbers with the brackets around them; `{}` is a set, no brackets a list in any order, the rest have an order."""

    brackets: str
    items: tuple[Number, ...]

    @property
    def ordered(self) -> bool:
        return self.brackets not in ("", "{}")


@lru_cache(maxsize=65536)
def parse_group(text: str) -> Group | None:
    """The numbers that `text` as a whole lists, or None; a single number without brackets is not a group."""
    if len(text) > 4 * LONGEST:
        return None
    text = plain(text)
    text = text[match.end() :] if (match := _NAME.match(text)) and text[match.end() :][:1] in ("\\", "{", "(") else text
    for opening, left in _OPEN.items():
        for closing, right in _CLOSE.items():
            if text.startswith(opening) and text.endswith(closing) and len(text) > len(opening) + len(closing):
                inner = text[len(opening) : -len(closing)]
                if any(mark in inner for mark in "()[]") or left + right in ("{)", "{]", "(}", "[}"):
                    return None
                items = _items(_JOINT.split(inner))
                return Group(left + right, items) if items and (len(items) > 1 or left == "{") else None
    loose = _LOOSE.split(text)
    items = (_items(loose) if len(loose) > 1 else ()) or _items(_JOINT.split(text))
    return Group("", items) if items and len(items) > 1 else None


def same_group(a: Group, b: Group) -> bool | None:
    """Whether two groups hold the same numbers; None where the brackets leave it open, as for `1,2` and `(1,2)`.

    A set is equal in any order and with repeats, a list without brackets in any order; a list may stand for a set.
    Brackets with an order must be the same: (1,2) is not [1,2].
    """
    if a.ordered != b.ordered:
        return None
    if a.ordered:
        return a.brackets == b.brackets and len(a.items) == len(b.items) and _all_same(a.items, b.items)
    first, second = list(a.items), list(b.items)
    if "{}" in (a.brackets, b.brackets):
        first, second = _distinct(first), _distinct(second)
    if len(first) != len(second):
        return False
    return _all_same(sorted(first, key=_value), sorted(second, key=_value))


def _items(pieces: Sequence[str]) -> tuple[Number, ...]:
    """The numbers of all pieces, two for each with a plus-minus; empty when one piece is not a number."""
    found: list[Number] = []
    if len(pieces) > MOST:
        return ()
    for piece in pieces:
        piece = _NAME.sub("", piece.strip())
        match = _PLUS_MINUS.fullmatch(piece)
        if match:
            middle = parse_number(match[1].strip() or "0")
            spread = parse_number(match[2])
            if middle is None or spread is None:
                return ()
            found += [Number(middle.value + spread.value, None), Number(middle.value - spread.value, None)]
            continue
        number = parse_number(piece)
        if number is None or number.unit.letter:
            return ()
        found.append(number)
    return tuple(found)


def _value(item: Number) -> Fraction:
    return item.value


def _distinct(items: Sequence[Number]) -> list[Number]:
    return list({item.value: item for item in items}.values())


def _all_same(a: Sequence[Number], b: Sequence[Number]) -> bool:
    return all(same_number(one, other) for one, other in zip(a, b, strict=True))
