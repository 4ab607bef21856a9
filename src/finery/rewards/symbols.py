"""Characters and LaTeX dress that mean the same: full-width forms, minus signs, superscripts, spaces, delimiters."""

from __future__ import annotations

import re
import unicodedata

_WIDE = {code: code - 0xFEE0 for code in range(0xFF01, 0xFF5F)}
_MINUS = dict.fromkeys(map(ord, "−‐‑–﹣⁻₋"), "-")
_SPACES = dict.fromkeys(map(ord, "\u3000\u00a0\u202f\u2009\u2002\u2003\u2007\u2008\t"), " ")
_ALIKE = {ord("⁄"): "/", ord("∕"): "/", ord("￥"): "¥", ord("∶"): ":", ord("﹪"): "%"}
_PROSE = dict.fromkeys(map(ord, "，：；！？（）［］｛｝＂＇"))
"""Full-width punctuation that separates words in Chinese prose, where it is no part of a number."""
_ONE_TO_ONE: dict[int, int | str | None] = {**_WIDE, **_MINUS, **_SPACES, **_ALIKE}
SAFE = {code: char for code, char in _ONE_TO_ONE.items() if code not in _PROSE}
"""One character to one character, so that places in a text stay where they are; safe in running text."""
ALL: dict[int, int | str | None] = {
    **_ONE_TO_ONE,
    ord("、"): ", ",
    **dict.fromkeys(map(ord, "\u200b\u200c\u200d\u2060\ufeff")),
}

_WIDE_COMMA = re.compile(r"(?<=[０-９])，(?=[０-９]{3})")
_SUPERSCRIPT = re.compile(r"[⁺⁻]?[⁰¹²³⁴-⁹]+")
_RAISED = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻", "0123456789+-")
_VULGAR = re.compile("[¼-¾⅐-⅞]")
_SPACING = re.compile(r"\\[,;: ]|~|\\q?quad(?![A-Za-z])|\\(?:thinspace|hspace\s*\{[^{}]*\})")
_DRESS = re.compile(r"\\[()\[\]]|\\(?:left|right|displaystyle|bigl?|bigr|Bigl?|Bigr)(?![A-Za-z])|\\!|\*\*|\\\\$")
_GROUPED = re.compile(r"\s*\{\s*,\s*\}\s*|,\\!\s*")
_CURRENCY = re.compile(r"(?:\b(?:US|HK|NZ|[AC]))?\\?[$€£¥₹]")
_FACTORIAL = re.compile(r"[0-9)}\]]\s?!+$")
"""`6!` is 720: in an answer, no punctuation."""
_WRAPPER = re.compile(r"\\(?:text|textbf|textit|mathrm|mathbf|bf|mbox|boxed)\s*\{([^{}\\]*)\}")


def fold(text: str) -> str:
    """A text of the same length with full-width digits and letters, minus signs and spaces made plain."""
    if text.isascii():
        return text
    return _WIDE_COMMA.sub(",", text).translate(SAFE)


def plain(text: str) -> str:
    """An answer without dress: ASCII digits and punctuation, `^{3}` for superscripts, no `$` and no spacing macros."""
    text = raised(text)
    if not text.isascii():
        text = text.translate(ALL)
    text = _SPACING.sub(" ", _GROUPED.sub(",", text))
    text = _CURRENCY.sub("", _DRESS.sub("", text)).replace("$", "")
    text = " ".join(text.split()).strip("\"“”'` ").rstrip(".,;:?。 ").strip()
    text = text if _FACTORIAL.search(text) else text.rstrip(".,;:!?。 ")
    whole = _WRAPPER.fullmatch(text)
    return whole[1].strip() if whole else text


def raised(text: str) -> str:
    """Superscript digits as `^{3}`, and `½` as ` 1/2`."""
    if text.isascii():
        return text
    text = _SUPERSCRIPT.sub(lambda run: f"^{{{run[0].translate(_RAISED)}}}", text)
    return _VULGAR.sub(lambda one: " " + unicodedata.normalize("NFKC", one[0]).replace("⁄", "/"), text)
