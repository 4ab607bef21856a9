"""Words as texts are compared by: for n-grams of repetition, contamination and near duplicates."""

from __future__ import annotations

import re
import unicodedata
from functools import lru_cache

_SINGLE = "\u0e01-\u0e3a\u0e40-\u0e4e\u0e81-\u0ece\u1000-\u103f\u1050-\u109f\u1780-\u17d3"  # Thai, Lao, Myanmar, Khmer
_SINGLE += "\u3005-\u3007\u3041-\u309f\u30a1-\u30fa\u30fc-\u30ff\u31f0-\u31ff"  # kana and its marks
_SINGLE += "\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"  # Han
"""Scripts that write no spaces between words: each character is a word."""


def _marks() -> str:
    """Combining marks outside those scripts; Python's `\\w` leaves them out, and would cut Hindi or Arabic words."""
    single = re.compile(f"[{_SINGLE}]")
    ranges = (range(0x0300, 0x2100), range(0x2DE0, 0x2E00), range(0xA66F, 0xAC00), range(0xFE20, 0xFE30))
    found = (chr(code) for codes in ranges for code in codes)
    return "".join(c for c in found if unicodedata.category(c)[0] == "M" and not single.match(c))


_SIGN = r"[-+*/=<>^%](?=\s*(?:[-+]?\.?[\d(]|[a-z](?![^\W_])))"
"""A sign of arithmetic before a number, a bracket or a single letter: 17+8 is not 17-8, but well-known is two words."""
_ASCII = re.compile(rf"[a-z0-9]+|{_SIGN}")
_WORD = rf"[^\W_{_SINGLE}]+"
_ANY = re.compile(rf"{_WORD}(?:[{_marks()}]+(?:{_WORD})?)*|[{_SINGLE}]|{_SIGN}")
_SIGNS = str.maketrans({"−": "-", "×": "*", "÷": "/"})


@lru_cache(maxsize=16)  # repetition, contamination and near duplicates ask for the same texts one after another
def words(text: str) -> tuple[str, ...]:
    """The words of a text: NFKC, lower case, punctuation dropped.

    A word is a run of letters, marks and digits; in scripts without spaces (Han, kana, Thai, Lao, Myanmar, Khmer) each
    character; and a sign of arithmetic before a number, a bracket or a single letter, since 17+8 and 17-8 are not the
    same question.
    """
    if text.isascii():
        return tuple(_ASCII.findall(text.lower()))
    return tuple(_ANY.findall(unicodedata.normalize("NFKC", text).lower().translate(_SIGNS)))


def plain(text: str) -> str:
    """A text as short ones are compared, whole: NFKC, lower case, every white space one space; punctuation stays."""
    return " ".join((text if text.isascii() else unicodedata.normalize("NFKC", text)).lower().split())
