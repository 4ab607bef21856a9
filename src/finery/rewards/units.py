"""What may stand behind a number: a unit, which is set aside, or a word that multiplies it.

The rule is positive: a known unit, or a few words that end in a plural noun (`3 red apples`). Any other word might
change the value (`5 tenths`, `5 halved`, `5 maybe six`), and what it follows is then no number.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction

from finery.rewards.unit_names import differ, name_of

_SCALES = {
    "dozen": 12, "hundred": 10**2, "thousand": 10**3, "lakh": 10**5, "million": 10**6, "crore": 10**7,
    "billion": 10**9, "trillion": 10**12, "百": 10**2, "千": 10**3, "万": 10**4, "亿": 10**8,
}  # fmt: skip
_SCALE = re.compile(
    r"\s*(dozen|hundred|thousand|lakh|million|crore|billion|trillion)\b"
    r"|\s*(百(?![分帕])|千(?![米克瓦卡伏帕焦赫])|万|亿)",
    re.IGNORECASE,
)
_PERCENT = re.compile(r"\s*(?:\\?%|percent(?:age)?(?:\s+points?)?|per\s?cent|pct\.?|个?百分点)\s*")
_LATEX = re.compile(r"\\(?:text|textbf|textit|textrm|textnormal|mathrm|mathbf|mbox|rm|operatorname)\s*\{([^{}]*)\}")
_OVER = re.compile(r"\\[dt]?frac\s*\{\s*([A-Za-z ]+?)\s*\}\s*\{\s*([A-Za-z ]+?)\s*\}")
_DEGREE = re.compile(r"\s*(?:degrees?\b|°|\^\s*\{?\s*\\circ\s*\}?|\\degree|\\circ)\s*(C|F|Celsius|Fahrenheit)?\s*")
_WORD = re.compile(r"[A-Za-z][A-Za-z'-]+")
_TAIL = re.compile(r"\s+(?:in\s+(?:total|all)|altogether|total|each|apiece|left|remaining|per\s+[a-z]{2,15})$")
_TENS = "twen|thir|for|fif|six|seven|eigh|nine"
_CHANGES = re.compile(
    rf"(?:zero|one|two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|hundred|thousand|million|billion)(?:e?s)?"
    rf"|(?:{_TENS})t(?:y|ies)|(?:four|fif|six|seven|eigh|nin|ten|eleven|twelf|hundred|thousand|million|billion)ths?"
    rf"|(?:{_TENS}|four)teen(?:th)?s?|(?:{_TENS})tieths?|hal(?:f|ves?|ved|ving)|thirds?|quarters?"
    r"|dozens?|scores?|gross|lakhs?|crores?|\w*fold|twice|thrice|times|(?:double|triple|square|cube)[sd]?|roots?"
    r"|not|no|nor|never|none|neither|cannot|\w+n't|wrong|incorrect|maybe|perhaps|possibly|probably|or|and|but|if|unless"
    r"|unlikely|otherwise|anything|except|excluding|versus|vs|between|either|to|through|by|than|least|most|less|more"
    r"|minus|plus|over|under|below|above|negative|inver\w+|recipro\w+|mod\w*|base|basis|point|pi|tau|sqrt|log|ln|sin"
    r"|cos|tan|exp|powers?|factorials?|choose|divided?|infinity|when|permilles?|about|sum|product|difference",
    re.IGNORECASE,
)
_PLURALS = frozenset(
    [
        "people",
        "children",
        "men",
        "women",
        "feet",
        "teeth",
        "mice",
        "geese",
        "fish",
        "sheep",
        "deer",
        "dice",
        "cattle",
        "pence",
        "students'",
        "boys'",
        "girls'",
    ]
)
_MEASURE = (
    "个只本支枝条张把件位名口头匹辆艘架棵株朵颗粒块片根座间所套台部对双副层排行列组班队人天日月周时点分秒岁页次回遍"
    "场步级种类样袋包盒箱瓶杯碗盘壶桶罐筐篮串束堆群家户节课题道枚笔份元角毛名架顶幅篇首句字轮圈期届辈批车船发颗门项例"
)
_HAN = re.compile(rf"\s*[{_MEASURE}][㐀-䶿一-鿿]{{0,6}}")
_NOT_HAN = re.compile(
    "[零一二三四五六七八九十百千万亿两半又负加减乘除和或与及到至多余几不的根约倍成折打吗么吧呢非没]|分之|次方|平方|立方|倒数|以[上下内外]|左右"
)


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


def parse_unit(rest: str, one: bool = False) -> Unit | None:
    """The unit that `rest` as a whole is, perhaps empty; None when it is something else, as `x` in `5x`.

    Args:
        rest: what follows a number.
        one: the number is 1 or less, so that a noun need not be a plural.
    """
    scale = Fraction(1)
    bare = rest
    rest = _OVER.sub(r" \1/\2", unwrapped) if (unwrapped := _LATEX.sub(r" \1 ", rest)) != rest else rest
    while match := _SCALE.match(rest):
        scale *= _SCALES[(match[1] or match[2]).lower()]
        rest = rest[match.end() :]
    text = rest.strip()
    if not text:
        return Unit(scale)
    if _PERCENT.fullmatch(rest):
        return Unit(scale, "%")
    if degree := _DEGREE.fullmatch(rest):
        return Unit(scale, f"°{degree[1][0]}" if degree[1] else "°")
    if bare == "K":
        return None  # 5K: thousands as well as kelvin
    if (name := name_of(text) or name_of(_TAIL.sub("", text))) is not None:
        return Unit(scale, name, letter=len(bare) == 1 and bare.isascii())
    if rest[:1].isascii():
        return Unit(scale) if rest[:1] == " " and _noun(text, one) else None
    return Unit(scale) if _HAN.fullmatch(rest) and not _NOT_HAN.search(text[1:]) else None


def conflict(a: Unit, b: Unit) -> bool:
    """Whether two known units differ: 5 cm is not 5 m. Nothing is converted."""
    return differ(a.name, b.name)


def changes(text: str) -> bool:
    """Whether words among these may change a value: `not`, `half`, `squared`, a number word."""
    return any(_CHANGES.fullmatch(word) for word in re.findall(r"(?<![\\A-Za-z])[A-Za-z']+", text))


def _noun(text: str, one: bool) -> bool:
    """Whether a text is at most three words that end in a plural noun, perhaps `of` something, perhaps `in total`."""
    text = _TAIL.sub("", f" {text.removesuffix('.')}").strip()
    if not text:
        return True
    if re.fullmatch(r"(?:sq\.?|square|cubic) units?", text):
        return True
    head, _, of = text.partition(" of ")
    words, more = head.split(), of.split()
    if not 1 <= len(words) <= 3 or len(more) > 2 or not all(map(_WORD.fullmatch, [*words, *more])) or changes(text):
        return False
    last = words[-1].lower()
    return one or last in _PLURALS or (last.endswith("s") and not last.endswith(("ss", "us", "is")))
