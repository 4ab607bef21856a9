"""Exact numbers in text: `1,234.`, `$29.00`, `-5`, `1/2`, `2 1/3`, `1.5 \\times 10^{3}`, `28%`, `15\\text{ apples}`.

A percent sign is a unit like any other: 28%, 28 percent and 28 are one number, and 0.28 is another.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache

from finery.rewards.symbols import ALL, plain
from finery.rewards.unit_names import CURRENCIES
from finery.rewards.units import NONE, Unit, conflict, parse_unit

LONGEST = 200
"""Texts longer than this are not numbers; it bounds the work a completion can cause."""
LARGEST_EXPONENT = 400
PLACES = 6
"""So many written decimals make a rounding of a fraction that never ends equal to it (0.333333 for 1/3)."""

INTEGER = r"(?:[0-9]{1,3}(?:,[0-9]{3})+(?![0-9])|[0-9]{1,3}(?: [0-9]{3})+(?![0-9])|[0-9]+)"
"""With thousands separators, commas or spaces."""
_DECIMAL = rf"(?:{INTEGER}(?:\.[0-9]*)?|\.[0-9]+)"
_PART = rf"\s*(?:\{{\s*([+-]?\s*{_DECIMAL})\s*\}}|([0-9]))"
_FRACTION = re.compile(rf"(?:({INTEGER})\s*)?\\[dtc]?frac{_PART}{_PART}")
_MIXED = re.compile(rf"({INTEGER})(?: +| ?又 ?)([0-9]+)\s?/\s?([0-9]+)")
_RAISED = r"10\s*\^\s*(?:\{\s*([+-]?[0-9]{1,5})\s*\}|([+-]?[0-9]{1,5}))"
_TEN = re.compile(_RAISED)
_SCIENTIFIC = re.compile(rf"({_DECIMAL})\s*(?:\\times|\\cdot|[×·*xX])\s*{_RAISED}")
_NUMBER = re.compile(rf"({_DECIMAL})(?:[eE]([+-]?[0-9]{{1,5}}))?(?:\s*/\s*({_DECIMAL}))?")
_SIGN = re.compile(r"([+-]|负|(?:minus|negative)(?= ))\s*", re.IGNORECASE)
_MONEY = re.compile(r"(?:\b(?:US|HK|NZ|[AC]))?\\?[$€£¥₹]")
_OPENING = re.compile(r"\s*[+-]?\s*\$")
_UNESCAPED = re.compile(r"(?<!\\)\$")
_HAN_FRACTION = re.compile(r"([0-9]+)\s*分之\s*([0-9]+)")
_HAN_PERCENT = re.compile(rf"百分之\s*({_DECIMAL})$")


@dataclass(frozen=True)
class Number:
    """An exact value and how it was written: `places` decimals, or None for a fraction or a power of ten."""

    value: Fraction
    places: int | None
    unit: Unit = NONE


@lru_cache(maxsize=65536)
def parse_number(text: str) -> Number | None:
    """The number that `text` as a whole writes, or None; a trailing unit and punctuation are allowed."""
    if len(text) > LONGEST:
        return None
    money = _money(text)
    text = plain(text)
    sign = _SIGN.match(text)
    body = text[sign.end() :] if sign else text
    if "分之" in body:
        body = _HAN_FRACTION.sub(r"\2/\1", _HAN_PERCENT.sub(r"\1%", body))
    read = _read(body)
    if read is None:
        return None
    (value, places), end = read
    unit = parse_unit(body[end:], one=value <= 1)
    if unit is None or (money and unit.name):
        return None
    unit = replace(unit, name=money) if money else unit
    value = (-value if sign and sign[1] != "+" else value) * unit.scale
    return Number(value, places if unit.scale == 1 else None, unit)


def same_number(a: Number, b: Number) -> bool:
    """Equal exactly, in units that do not contradict each other.

    Two numbers that can both be written in decimals are never equal by rounding. A fraction without an end cannot: its
    correct rounding to 6 decimals or more stands for it (docs/decisions/exact-answers.md).
    """
    if conflict(a.unit, b.unit):
        return False
    if a.value == b.value:
        return True
    return any(
        exact.places is None
        and written.places is not None
        and written.places >= PLACES
        and _endless(exact.value)
        and round(exact.value, written.places) == written.value
        for exact, written in ((a, b), (b, a))
    )


def _money(text: str) -> str | None:
    """The currency that stands before a number: `\\$5`, `€5`, and `$5`, where the dollar sign opens no formula."""
    match = _MONEY.search(text if text.isascii() else text.translate(ALL))
    if match is None:
        return None
    if match[0].endswith("$") and "\\" not in match[0]:
        paired = len(_UNESCAPED.findall(text)) % 2 == 0
        if paired or not (_OPENING.match(text) or text.rstrip().endswith("$") or len(match[0]) > 1):
            return None
    return CURRENCIES.get(match[0].replace("\\", ""))


def _read(text: str) -> tuple[tuple[Fraction, int | None], int] | None:
    """The value and places that stand at the beginning of a text, and where they end."""
    if match := _FRACTION.match(text):
        whole, top, digit, bottom, bottom_digit = match.groups()
        value = _ratio(top or digit, bottom or bottom_digit)
        value = _mixed(whole, value) if whole is not None and value is not None else value
        return ((value, None), match.end()) if value is not None else None
    if match := _MIXED.match(text):
        whole, top, bottom = match.groups()
        if (
            len(top) == 3
            and " " in match[0][: match.start(3) - match.start()]
            and len(whole) <= 3
            and "又" not in match[0]
        ):
            return None  # 1 234/567: a mixed number, or thousands over 567
        mixed = _mixed(whole, _ratio(top, bottom))
        return ((mixed, None), match.end()) if mixed is not None else None
    for pattern in (_SCIENTIFIC, _TEN):
        if match := pattern.match(text):
            *mantissa, braced, bare = match.groups()
            power = _power(braced or bare)
            return ((_fraction(mantissa[0] if mantissa else "1") * power, None), match.end()) if power else None
    return _decimal(text)


def _decimal(text: str) -> tuple[tuple[Fraction, int | None], int] | None:
    match = _NUMBER.match(text)
    if match is None:
        return None
    digits, exponent, denominator = match.groups()
    value, places = _fraction(digits), len(digits.partition(".")[2])
    if exponent is not None:
        power = _power(exponent)
        if power is None:
            return None
        value *= power
    if denominator is not None:
        divisor = _fraction(denominator)
        if not divisor:
            return None
        value /= divisor
    whole = exponent is None and denominator is None
    return (value, places if whole else None), match.end()


def _fraction(digits: str) -> Fraction:
    return Fraction(digits.replace(",", "").replace(" ", "").rstrip("."))


def _ratio(top: str, bottom: str) -> Fraction | None:
    divisor = _fraction(bottom)
    return _fraction(top) / divisor if divisor else None


def _mixed(whole: str, part: Fraction | None) -> Fraction | None:
    """The sum, when the part is a proper fraction; 11 7/6 is no number."""
    return _fraction(whole) + part if part is not None and 0 <= part < 1 else None


def _power(exponent: str) -> Fraction | None:
    return Fraction(10) ** int(exponent) if abs(int(exponent)) <= LARGEST_EXPONENT else None


def _endless(value: Fraction) -> bool:
    denominator = value.denominator
    for prime in (2, 5):
        while denominator % prime == 0:
            denominator //= prime
    return denominator != 1
