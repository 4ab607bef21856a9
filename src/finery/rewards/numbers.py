"""Exact numbers in text: `1,234.`, `$29.00`, `-5`, `1/2`, `1.5e3`, `28%`, `\\frac{1}{2}`, `15\\text{ apples}`.

A percent sign is a unit like any other: 28%, 28 percent and 28 are one number, and 0.28 is another.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

LONGEST = 200
"""Texts longer than this are not numbers; it bounds the work a completion can cause."""
LARGEST_EXPONENT = 400
PLACES = 6
"""So many written decimals make a rounding of a fraction that never ends equal to it (0.333333 for 1/3)."""

_DIGITS = r"(?:\d{1,3}(?:,\d{3})+|\d+)"
_DECIMAL = rf"(?:{_DIGITS}(?:\.\d*)?|\.\d+)"
_NUMBER = re.compile(rf"([+-]?)\s*({_DECIMAL})(?:[eE]([+-]?\d{{1,4}}))?(?:\s*/\s*({_DIGITS}))?")
_FRACTION = re.compile(r"([+-]?)\s*\\[dt]?frac\s*(?:\{\s*([+-]?\d+)\s*\}|(\d))\s*(?:\{\s*([+-]?\d+)\s*\}|(\d))")
_DRESS = re.compile(r"\\[()\[\]]|\\left|\\right|\\,|\\!|\\;|\\ |~|\*\*")
_CURRENCY = re.compile(r"\\?[$€£¥]")
_UNIT = re.compile(
    r"\s*(?:\\?%|(?:\\(?:text|mathrm|textbf)\s*\{[^{}]*\}|°|\^\{?\\circ\}?)+|(?:\s[A-Za-z]{2,}\.?){1,3})"
)
_NOT_UNITS = re.compile(
    r"\b(?:pi|tau|sqrt|root|log|ln|sin|cos|tan|exp|mod|or|and|to|over|plus|minus|times|by|dozen|"
    r"hundred|thousand|million|billion|trillion|infinity|sqrt)\b",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class Number:
    """An exact value and how it was written: `places` decimals, or None for a fraction or a power of ten."""

    value: Fraction
    places: int | None


@lru_cache(maxsize=65536)
def parse_number(text: str) -> Number | None:
    """The number that `text` as a whole writes, or None; a trailing unit and punctuation are allowed."""
    if len(text) > LONGEST:
        return None
    text = _DRESS.sub("", text.replace("{,}", ",").replace("−", "-"))
    text = _CURRENCY.sub("", text).strip().rstrip(".,;:!").strip()
    match = _FRACTION.match(text)
    if match:
        number = _fraction(match)
    else:
        match = _NUMBER.match(text)
        number = _decimal(match) if match else None
    return number if match and _is_unit(text[match.end() :]) else None


def same_number(a: Number, b: Number) -> bool:
    """Equal exactly; or one is a fraction without an end and the other its rounding to 6 decimals or more."""
    if a.value == b.value:
        return True
    for exact, written in ((a, b), (b, a)):
        if exact.places is None and written.places is not None and written.places >= PLACES and _endless(exact.value):
            return round(exact.value, written.places) == written.value
    return False


def _fraction(match: re.Match[str]) -> Number | None:
    sign, top, digit, bottom, bottom_digit = match.groups()
    denominator = int(bottom or bottom_digit)
    if denominator == 0:
        return None
    value = Fraction(int(top or digit), denominator)
    return Number(-value if sign == "-" else value, None)


def _decimal(match: re.Match[str]) -> Number | None:
    sign, digits, exponent, denominator = match.groups()
    digits = digits.replace(",", "")
    value, places = Fraction(digits), len(digits.partition(".")[2])
    if exponent is not None:
        if abs(int(exponent)) > LARGEST_EXPONENT:
            return None
        value *= Fraction(10) ** int(exponent)
    if denominator is not None:
        if not int(denominator.replace(",", "")):
            return None
        value /= int(denominator.replace(",", ""))
    plain = exponent is None and denominator is None
    return Number(-value if sign == "-" else value, places if plain else None)


def _is_unit(rest: str) -> bool:
    return not rest or (_UNIT.fullmatch(rest) is not None and _NOT_UNITS.search(rest) is None)


def _endless(value: Fraction) -> bool:
    denominator = value.denominator
    for prime in (2, 5):
        while denominator % prime == 0:
            denominator //= prime
    return denominator != 1
