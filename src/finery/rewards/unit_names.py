"""The units that finery knows, each by one name, so that 5 cm^2 and 5 m^2 are told apart. Nothing is converted."""

from __future__ import annotations

import re
from functools import lru_cache

_PREFIXED = {
    "m": "nano micro milli centi deci kilo", "g": "micro milli kilo", "L": "milli centi deci", "s": "nano micro milli",
    "J": "kilo mega", "W": "milli kilo mega giga", "V": "milli kilo", "Pa": "hecto kilo mega", "N": "kilo",
    "Hz": "kilo mega giga", "B": "kilo mega giga tera", "cal": "kilo", "eV": "kilo mega giga", "mol": "milli",
}  # fmt: skip
_PREFIX = {
    "nano": "n", "micro": "μ", "milli": "m", "centi": "c", "deci": "d", "hecto": "h", "kilo": "k", "mega": "M",
    "giga": "G", "tera": "T",
}  # fmt: skip
_STEMS = {
    "m": "meter metre", "g": "gram", "L": "liter litre", "s": "second", "J": "joule", "W": "watt", "V": "volt",
    "Pa": "pascal", "N": "newton", "Hz": "hertz", "B": "byte", "cal": "calorie", "eV": "electronvolt", "mol": "mole",
}  # fmt: skip
_WORDS = {
    "s": "sec", "min": "minute", "h": "hour hr", "day": "", "week": "", "month": "", "year": "yr", "in": "inch inche",
    "ft": "foot feet", "yd": "yard", "mi": "mile", "oz": "ounce", "lb": "", "K": "kelvin", "°": "degree",
    "rad": "radian",
    "°C": "celsius", "°F": "fahrenheit", "mi/h": "mph", "km/h": "kmh kph", "pound": "", "dollar": "usd buck",
    "cent": "pennie penny pence", "euro": "eur", "gbp": "", "jpy": "yen", "cny": "yuan rmb renminbi", "inr": "rupee",
    "hkd": "", "am": "a.m", "pm": "p.m",
}  # fmt: skip
_HAN = {
    "mm": "毫米", "cm": "厘米 公分", "dm": "分米", "m": "米", "km": "千米 公里", "in": "英寸", "ft": "英尺",
    "mi": "英里",
    "mg": "毫克", "g": "克", "kg": "千克 公斤", "mL": "毫升", "L": "升", "s": "秒 秒钟", "min": "分钟", "h": "小时 时",
    "day": "天", "week": "周 星期", "month": "个月", "year": "年", "°": "度", "°C": "摄氏度", "°F": "华氏度", "W": "瓦",
    "kW": "千瓦", "J": "焦 焦耳", "kJ": "千焦", "Pa": "帕", "kPa": "千帕", "hPa": "百帕", "N": "牛 牛顿",
    "V": "伏 伏特",
    "kcal": "千卡", "cny": "元 块 块钱 元钱 人民币", "角": "角 毛", "dollar": "美元 美金", "cent": "美分",
    "euro": "欧元",
    "gbp": "英镑", "jpy": "日元", "hkd": "港元 港币", "%": "百分点 个百分点",
}  # fmt: skip
CURRENCIES = {
    "$": "dollar", "US$": "dollar", "HK$": "hkd", "NZ$": "nzd", "A$": "aud", "C$": "cad", "€": "euro", "£": "gbp",
    "¥": "¥", "₹": "inr",
}  # fmt: skip
_EITHER = {
    "°": {"°C", "°F"}, "¥": {"cny", "jpy"}, "pound": {"lb", "gbp"}, "dollar": {"hkd", "nzd", "aud", "cad"},
}  # fmt: skip
"""Names that say less than others: a degree may be one of Celsius."""


def _symbols() -> dict[str, str]:
    symbols = {name: name for name in [*_PREFIXED, *_WORDS] if "/" not in name and name not in ("B", "pound", "dollar")}
    for base, prefixes in _PREFIXED.items():
        symbols |= {_PREFIX[prefix] + base: _PREFIX[prefix] + base for prefix in prefixes.split()}
    return symbols | {
        "l": "L", "ml": "mL", "cl": "cL", "dl": "dL", "um": "μm", "µm": "μm", "µs": "μs", "us": "μs", "KB": "kB",
        "lbs": "lb", "hrs": "h", "℃": "°C", "℉": "°F", "deg": "°",
    }  # fmt: skip


def _words() -> dict[str, str]:
    words = {word: name for name, spelt in _WORDS.items() for word in [name.lower(), *spelt.split()]}
    for base, stems in _STEMS.items():
        for stem in stems.split():
            words[stem] = base
            words |= {prefix + stem: _PREFIX[prefix] + base for prefix in _PREFIXED[base].split()}
    return {word: name for word, name in words.items() if len(word) > 1}


SYMBOLS = _symbols()
WORDS = _words()
HAN = {word: name for name, words in _HAN.items() for word in words.split()}

_POWER = re.compile(r"(.+?)\s*(?:\^\s*\{?\s*(-?[1-9])\s*\}?|([23])|(squared)|(cubed))")
_SQUARE = re.compile(r"(?:(square|sq\.?|平方)|(cubic|cu\.?|立方))\s*(.+)", re.IGNORECASE)
_SPLIT = re.compile(r"\s*(/|·|\\cdot(?![A-Za-z])|\bper\b|每)\s*")


@lru_cache(maxsize=4096)
def name_of(text: str) -> str | None:
    """The one name of a unit: `m^2` for `square meters`, `km/h` for `千米/时`; None when it is not known."""
    powers: dict[str, int] = {}
    sign = 1
    for piece in _SPLIT.split(text.strip().removesuffix(".").strip()):
        if piece in ("/", "per", "每"):
            sign = -1
        elif piece not in ("·", "\\cdot"):
            factor = _factor(piece)
            if factor is None:
                return None
            for name, power in factor:
                powers[name] = powers.get(name, 0) + sign * power
    over = [_written(name, power) for name, power in sorted(powers.items()) if power > 0]
    under = [_written(name, -power) for name, power in sorted(powers.items()) if power < 0]
    return "/".join(["·".join(over) or "1", *under]) if over or under else None


def differ(a: str | None, b: str | None) -> bool:
    """Whether two names are known and say different things."""
    return None not in (a, b) and a != b and b not in _EITHER.get(a or "", ()) and a not in _EITHER.get(b or "", ())


def _factor(text: str) -> list[tuple[str, int]] | None:
    """A unit and its power: `m^2`, `m2`, `square meters`, `平方米`, `second squared`."""
    if (name := _base(text)) is not None:
        over, _, under = name.partition("/")
        return [(over, 1), (under, -1)] if under else [(over, 1)]
    power = 1
    if match := _SQUARE.fullmatch(text):
        text, power = match[3], 2 if match[1] else 3
    elif match := _POWER.fullmatch(text):
        text, power = match[1], int(match[2] or match[3] or (2 if match[4] else 3))
    name = _base(text)
    return [(name, power)] if name is not None and power != 1 else None


def _base(text: str) -> str | None:
    text = text.strip()
    if text in SYMBOLS or text in HAN:
        return SYMBOLS.get(text) or HAN.get(text)
    word = text.lower().removesuffix(".")
    return WORDS.get(word) or (WORDS.get(word.removesuffix("s")) if len(word) > 3 or word == "lbs" else None)


def _written(name: str, power: int) -> str:
    return name if power == 1 else f"{name}^{power}"
