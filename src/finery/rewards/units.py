"""What may stand behind a number: a unit, which is set aside, or a word that multiplies it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction

_SCALES = {
    "hundred": 10**2, "thousand": 10**3, "million": 10**6, "billion": 10**9, "trillion": 10**12,
    "百": 10**2, "千": 10**3, "万": 10**4, "亿": 10**8,
}  # fmt: skip
_SCALE = re.compile(
    r"\s*(hundred|thousand|million|billion|trillion)\b|\s*(百(?![分帕])|千(?![米克瓦卡伏帕焦赫])|万|亿)", re.IGNORECASE
)
_PERCENT = re.compile(r"\s*(?:\\?%|percent(?:age)?(?:\s+points?)?|per\s?cent|pct\.?|个?百分点)\s*")
_LATEX = re.compile(
    r"(?:\s*\\(?:text|textbf|textit|textrm|textnormal|mathrm|mathbf|mbox|rm|operatorname)\s*\{([^{}]*)\}"
    r"\s*(?:\^\s*(?:\{?[23]\}?))?)+"
)
_DEGREE = re.compile(r"\s*(?:°|\^\s*\{?\s*\\circ\s*\}?|\\degree|\\circ|℃|℉)\s*[CF]?\s*")
_SYMBOLS = (
    "mm|cm|dm|km|nm|um|μm|µm|m|mg|kg|g|ml|mL|cl|L|l|ms|min|hrs?|h|s|kJ|J|kW|W|kV|V|kPa|Pa|kN|N|K|Hz|kHz|MHz|GHz|"
    "mph|kmh|in|ft|yd|mi|oz|lbs?|KB|MB|GB|TB"
)
_SYMBOL = re.compile(
    rf"\s*(?:{_SYMBOLS})(?:\^\s*\{{?[23]\}}?|[23])?(?:\s?[/·]\s?(?:{_SYMBOLS})(?:\^\s*\{{?-?[23]\}}?|[23])?)?"
)
_WORDS = re.compile(r"(?:\s[A-Za-z]{2,}\.?){1,3}")
_NOT_WORDS = re.compile(
    r"\b(?:pi|tau|sqrt|root|log|ln|sin|cos|tan|exp|mod|or|and|to|over|plus|minus|times|by|dozen|half|quarter|third|"
    r"infinity|squared|cubed|factorial|choose|power|divided|than|base|point|less|more|if|when|not|score)\b",
    re.IGNORECASE,
)
_HAN = re.compile(r"\s*[㐀-䶿一-鿿]{1,8}")
_NOT_HAN = re.compile(
    "[零一二三四五六七八九十百千万亿两半又分点负加减乘除和或与及到至多余几不的根约]|次方|立方根|平方根"
)
_UNIT_WITH = re.compile(
    r"分钟|分米|百分|平方千米|立方千米|千米|千克|千瓦|千卡|百米|分(?=$)|点(?=$)|百帕|小时|万元(?=$)"
)

_SAME = {
    "%": "% percent percentage pct 百分点 个百分点",
    "mm": "mm millimeter millimetre 毫米", "cm": "cm centimeter centimetre 厘米 公分", "dm": "dm 分米",
    "m": "m meter metre 米", "km": "km kilometer kilometre 千米 公里",
    "in": "in inch inche 英寸", "ft": "ft foot feet 英尺", "mi": "mi mile 英里",
    "mg": "mg milligram 毫克", "g": "g gram 克", "kg": "kg kilogram 千克 公斤",
    "ml": "ml mL milliliter millilitre 毫升", "l": "l L liter litre 升",
    "s": "s sec second 秒", "min": "min minute 分钟", "h": "h hr hour 小时", "day": "day 天",
    "week": "week 周 星期", "month": "month 个月", "year": "year 年",
    "°": "° degree 度",
}  # fmt: skip
_KNOWN = {word: unit for unit, words in _SAME.items() for word in words.split()}


@dataclass(frozen=True)
class Unit:
    """What stands behind a number.

    Attributes:
        scale: what the number is to be multiplied by: 10**6 for `million`.
        name: the unit in one spelling where finery knows it (cm for 厘米 and centimeters), else None.
        letter: the unit is a bare letter, as in `5m`, where a variable might be meant.
    """

    scale: Fraction = Fraction(1)
    name: str | None = None
    letter: bool = False


NONE = Unit()


def parse_unit(rest: str) -> Unit | None:
    """The unit that `rest` as a whole is, perhaps empty; None when it is something else, as `x` in `5x`."""
    scale = Fraction(1)
    rest = _opened(rest)
    while match := _SCALE.match(rest):
        scale *= _SCALES[(match[1] or match[2]).lower()]
        rest = rest[match.end() :]
    if not rest.strip():
        return Unit(scale)
    if _PERCENT.fullmatch(rest):
        return Unit(scale, "%")
    if _DEGREE.fullmatch(rest):
        return Unit(scale, None if re.search("[CF℃℉]", rest) else "°")
    if _SYMBOL.fullmatch(rest):
        return Unit(scale, _KNOWN.get(rest.strip()), letter=len(rest) == 1)
    words = _LATEX.fullmatch(rest)
    if words:
        inner = " ".join(part[1].strip() for part in _LATEX.finditer(rest))
        plain = "^" not in rest
        return None if _NOT_WORDS.search(inner) else Unit(scale, _named(inner) if plain else None)
    if _WORDS.fullmatch(rest):
        return None if _NOT_WORDS.search(rest) else Unit(scale, _named(rest))
    if _HAN.fullmatch(rest):
        return None if _NOT_HAN.search(_UNIT_WITH.sub("", rest)) else Unit(scale, _named(rest))
    return None


def conflict(a: Unit, b: Unit) -> bool:
    """Whether two known units differ: 5 cm is not 5 m. Nothing is converted."""
    return a.name is not None and b.name is not None and a.name != b.name


def _opened(rest: str) -> str:
    """`\\text{ million}` as ` million`, so that it multiplies."""
    match = _LATEX.match(rest)
    return f" {match[1].strip()}{rest[match.end() :]}" if match and match[1] and _SCALE.fullmatch(match[1]) else rest


def _named(word: str) -> str | None:
    word = word.strip().rstrip(".")
    return _KNOWN.get(word) or _KNOWN.get(word.lower()) or _KNOWN.get(word.lower().removesuffix("s"))
