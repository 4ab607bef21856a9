"""Answers in running text: numbers, formulas, and what is said to be the answer, in English and in Chinese."""

from __future__ import annotations

import re
from dataclasses import dataclass

from finery.rewards.numbers import INTEGER, LONGEST, parse_number
from finery.rewards.symbols import fold

_DIGITS = rf"(?:[0-9]{{1,3}}(?:(?:,\\!|\{{,\}}|\\,)[0-9]{{3}})+(?![0-9])|{INTEGER})"
_RAISED = r"(?:\^\s*(?:\{\s*[+-]?[0-9]{1,5}\s*\}|[+-]?[0-9]{1,5})|-?[⁰¹²³⁴-⁹]{1,5})"
_LATEX_FRACTION = r"\\[dtc]?frac\s*(?:\{[^{}\n]{1,60}\}|[0-9])\s*(?:\{[^{}\n]{1,60}\}|[0-9])"
_MINUS = r"(?:(?<![A-Za-z0-9_.)\]}])[-+]|负)"
_MONEY = r"(?:(?<![A-Za-z0-9_.)\]}$€£¥])[-+]|负)"
NUMBER = re.compile(
    r"(?=[-+负\\$€£¥0-9.¼-¾⅐-⅞])"  # most places in a text are told at once that nothing begins there
    rf"(?:{_MINUS}\s?)?(?:\\?[$€£¥]\s?)?{_MONEY}?"
    r"(?<![A-Za-z^_\\])(?<!\^\{)(?<!_\{)"
    rf"(?:{_LATEX_FRACTION}"
    rf"|{_DIGITS}\s?(?:{_LATEX_FRACTION}|[¼-¾⅐-⅞])"
    rf"|{INTEGER}(?: |\s?又\s?)[0-9]+/[0-9]+"
    r"|[0-9]+\s?分之\s?[0-9]+"
    rf"|{_DIGITS}(?:(?:,[0-9]+)+|(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?"
    rf"(?:\s?(?:\\times|\\cdot|[×·*xX])\s?10{_RAISED}|\s?/\s?[0-9]+|{_RAISED})?(?::[0-9]+)*)"
    rf"|\.[0-9]+|[¼-¾⅐-⅞])"
    r"(?:\s?(?:hundred|thousand|million|billion|trillion)\b|[百千万亿]+(?![分米克瓦卡]))?(?:\s?\\?%)?"
)
"""A number as it stands in prose (of a folded text); a sign after a digit, letter or bracket is a minus between two."""
_STATED = re.compile(
    r"answers?\s+(?:is|are|should\s+be|would\s+be|must\s+be|equals)\b\s*[:：]?|answer[\s*]{0,8}[:：=]"
    r"|答案(?:应该|应当|应)?(?:是|为|等于)\s*[:：]?|(?:答案|答)[\s*]{0,8}[:：]",
    re.IGNORECASE,
)
_NEGATED = re.compile(r"[\s*]{0,8}(?:not\b|n't|不是)")
_LEAD = re.compile(r"[\s*:：]{0,200}")
_SENTENCE = re.compile(r"\n|[.!?](?=\s|$|\*)|[。！？]")
_REASON = re.compile(
    r"[,，;；]\s*(?:because|since|as|which|where|so|hence|therefore|thus|i\.e|因为|所以|因此|即|也就是|其中)|\s[(（](?=[A-Za-z㐀-鿿]{2})|（(?=[A-Za-z㐀-鿿])",
    re.IGNORECASE,
)
_CLAIM = re.compile(r"(?:\b(?:is|are|equals)\s+|[是为]\s*)\**\s*(?=[^A-Za-z㐀-鿿]*$)", re.IGNORECASE)
FORMULA = re.compile(r"\$\$(.{1,400}?)\$\$|\$([^$\n]{1,400})\$|\\\((.{1,400}?)\\\)|\\\[(.{1,400}?)\\\]", re.DOTALL)
COMMAND = re.compile(r"\\(?:text|textbf|mathrm|textnormal|mbox|begin|end|operatorname)\s*\{[^{}]*\}|\\[A-Za-z]+")
PROSE = re.compile(r"[A-Za-z]{3,}|[㐀-鿿]{3,}")
_MORE = re.compile(r"\s*(?:and\s+(?:a|one|two|three)[\s-]+(?:half|third|quarter|fourth)|个?半|多|余|几)")
AND = re.compile(
    r"(?:\s[A-Za-z]{1,15}){0,2}\s*(?:,\s*(?:(?:and|or)(?![A-Za-z]))?|、|\b(?:and|or)\b|或者?|和)\s*", re.IGNORECASE
)


@dataclass(frozen=True)
class Statement:
    """What is said to be the answer: the words that say so, the sentence after them, and the formula it begins with."""

    mark: str
    sentence: str
    formula: str | None

    @property
    def where(self) -> str:
        return f"after `{self.mark}`"

    def answer(self) -> str | None:
        """The formula; or the number, if it has no further mathematics; or the sentence."""
        if self.formula is not None:
            return self.formula
        if not self.sentence or len(self.sentence) > LONGEST:
            return None
        return _number_in(self.sentence) or self.sentence


def statement(text: str, folded: str) -> Statement | None:
    """The last `the answer is` that is not `is not`, with what follows it.

    Args:
        text: a completion.
        folded: the same after `symbols.fold`, of equal length.
    """
    for mark in reversed(list(_STATED.finditer(folded))):
        if _NEGATED.match(folded, mark.end()):
            continue
        lead = _LEAD.match(folded, mark.end())
        start = lead.end() if lead else mark.end()
        display = FORMULA.match(folded, start)
        end = _SENTENCE.search(folded, start)
        sentence = _REASON.split(text[start : end.start() if end else len(text)][: 10 * LONGEST], maxsplit=1)[0]
        formula = _formulas(folded, display) if display and is_formula(content(display)) else None
        return Statement(mark[0].strip("*:： "), sentence.strip().strip("$*:： "), formula)
    return None


def _number_in(sentence: str) -> str | None:
    """The first number of a sentence without further mathematics, with those listed behind it."""
    if parse_number(sentence) is not None:
        return sentence
    folded = fold(sentence)
    if claim := _CLAIM.search(folded):
        sentence, folded = sentence[claim.end() :], folded[claim.end() :]
    first = NUMBER.search(folded)
    if first is None or re.search(r"[\\^_{}=()\[\]（）［］｛｝±√π∞∪<>≤≥]", NUMBER.sub("", folded)):
        return None
    start, end = first.span()
    for number in NUMBER.finditer(folded, end):
        if not AND.fullmatch(folded, end, number.start()):
            break
        end = number.end()
    if _MORE.match(folded, end):
        return None
    return sentence[start:end].strip()


def _formulas(folded: str, first: re.Match[str]) -> str:
    """A formula, with those joined to it by `or`, `and` or a comma, as one list."""
    parts, end = [content(first).strip()], first.end()
    while joint := AND.match(folded, end):
        following = FORMULA.match(folded, joint.end())
        if following is None or not is_formula(content(following)):
            break
        parts.append(content(following).strip())
        end = following.end()
    return ", ".join(parts)


def content(match: re.Match[str]) -> str:
    return next(group for group in match.groups() if group is not None)


def is_formula(text: str) -> bool:
    """Whether what stands between two dollar signs is mathematics, not the prose between two prices."""
    return bool(text.strip()) and PROSE.search(COMMAND.sub(" ", text)) is None
