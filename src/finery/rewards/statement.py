"""Answers in running text: numbers, formulas, and what is said to be the answer, in English and in Chinese."""

from __future__ import annotations

import re
from dataclasses import dataclass

from finery.rewards.groups import parse_group
from finery.rewards.numbers import INTEGER, LONGEST, parse_number
from finery.rewards.symbols import fold
from finery.rewards.units import changes, parse_unit

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
_DENIED = re.compile(
    r"answers?\s+(?:[a-z]+\s+){0,3}?(?:[a-z]*n['’]t|[a-z]*not|never|no\s+way)(?![a-z])"
    r"|(?:答案|答)[^，。,.\n：:]{0,4}[:：]?\s?(?:不|并非|绝非)",
    re.IGNORECASE,
)
"""An answer that is denied: `the answer is probably not`, `答案不是`."""
_RATHER = re.compile(r"[,;，；]?\s*\bbut\b|[,;，；]\s*(?:it|rather|instead|而?是)", re.IGNORECASE)
_LEAD = re.compile(r"[\s*:：]{0,200}")
_SENTENCE = re.compile(
    r"\n|(?:[.!?](?=\s|$|\*)|[。！？])(?!\**\s*(?:or|maybe|perhaps|或|也?可能)(?![a-z]))", re.IGNORECASE
)
_MORE_SAID = re.compile(
    r"\b(?:or|maybe|perhaps|possibly|but|not|if|unless|otherwise|except)\b|n['’]t\b|[=<>≠≤≥+*/^√π;?；？~～±]|或|可能|不|吗|的|至|到",
    re.IGNORECASE,
)
_REASON = re.compile(
    r"[,，;；]\s*(?:because|since|as|which|where|so|hence|therefore|thus|i\.e|因为|所以|因此|即|也就是|其中)"
    r"|(?:\s[(（](?=[A-Za-z㐀-鿿]{2})|（(?=[A-Za-z㐀-鿿]))(?!or\b|and\b|maybe|perhaps|possibly|not\b|[或也不可])",
    re.IGNORECASE,
)
_CLAIM = re.compile(r"(?:\b(?:is|are|equals)\s+|[是为]\s*)\**\s*(?=[^\n是为]*$)", re.IGNORECASE)
_UNLIKE = re.compile(r"[不非没或除半倍约]|[小大少多]于|平方|立方|以[上下内]")
_PLACE = re.compile(r"\s(?:in|on|at|for|from|of|that|which|who|with|as|after|before|during)\s", re.IGNORECASE)
FORMULA = re.compile(r"\$\$(.{1,400}?)\$\$|\$([^$\n]{1,400})\$|\\\((.{1,400}?)\\\)|\\\[(.{1,400}?)\\\]", re.DOTALL)
COMMAND = re.compile(r"\\(?:text|textbf|mathrm|textnormal|mbox|begin|end|operatorname)\s*\{[^{}]*\}|\\[A-Za-z]+")
PROSE = re.compile(r"[A-Za-z]{3,}|[㐀-鿿]{3,}")
AND = re.compile(r"\\(?:text|textbf|mathrm|textnormal|mbox|begin|end|operatorname)\s*\{[^{}]*\}|\\[A-Za-z]+")
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
    asked: bool = False

    @property
    def where(self) -> str:
        return f"after `{self.mark}`"

    def answer(self) -> str | None:
        """The formula; or the number, where no other word may change it; or the sentence. None for a question."""
        if self.asked:
            return None
        if self.formula is not None:
            return self.formula
        if not self.sentence or len(self.sentence) > LONGEST:
            return None
        return _number_in(self.sentence) or self.sentence


def statement(text: str, folded: str) -> Statement | None:
    """The last `the answer is` that is not denied, with what follows it.

    Args:
        text: a completion.
        folded: the same after `symbols.fold`, of equal length.
    """
    denied = [match.span() for match in _DENIED.finditer(folded)]
    for mark in reversed(list(_STATED.finditer(folded))):
        if any(first <= mark.start() < last for first, last in denied):
            continue
        lead = _LEAD.match(folded, mark.end())
        start = lead.end() if lead else mark.end()
        display = FORMULA.match(folded, start)
        display = display if display and is_formula(content(display)) else None
        formula, past = _formulas(folded, display) if display else (None, start)
        end = _SENTENCE.search(folded, past)
        stop = end.start() if end else len(text)
        if formula is not None and more_said(_REASON.split(folded[past:stop][: 10 * LONGEST], maxsplit=1)[0]):
            formula = None
        sentence = _REASON.split(text[start:stop][: 10 * LONGEST], maxsplit=1)[0].strip().strip("*:： ")
        sentence = sentence.strip("$") if sentence.count("$") == 2 else sentence
        asked = end is not None and end[0] in ("?", "？")
        return Statement(mark[0].strip("*:： "), sentence, formula, asked)
    return None


def without_denied(folded: str) -> str:
    """A text of the same length with blanks for what is denied: `the answer is not 5`."""
    for match in reversed(list(_DENIED.finditer(folded))):
        end = _SENTENCE.search(folded, match.end())
        stop = end.start() if end else len(folded)
        rather = _RATHER.search(folded, match.end(), stop)
        stop = rather.start() if rather else stop
        folded = folded[: match.start()] + " " * (stop - match.start()) + folded[stop:]
    return folded


def more_said(rest: str) -> bool:
    """Whether what follows a number or formula changes it, or says another: `or maybe $6$`, `squared`."""
    if not rest.strip() or parse_unit(rest) is not None:
        return False
    first = re.match(r"\s*([A-Za-z]+)", rest)
    return (
        (first is not None and changes(first[1]))
        or _MORE_SAID.search(rest) is not None
        or NUMBER.search(rest) is not None
        or FORMULA.search(rest) is not None
    )


def _number_in(sentence: str) -> str | None:
    """The number or list that a sentence is, or claims (`the total is 5`), or begins with (`5 apples in the box`)."""
    if _alone(sentence):
        return sentence
    folded = fold(sentence)
    claims = list(_CLAIM.finditer(folded))
    if claims:
        lead, claimed = folded[: claims[-1].start()], sentence[claims[-1].end() :].strip()
        words = FORMULA.sub(" ", lead)
        if not changes(words) and not _UNLIKE.search(words) and not NUMBER.search(words) and _alone(claimed):
            return claimed
    number = NUMBER.match(folded)
    place = _PLACE.search(folded, number.end()) if number else None
    if number is None or place is None:
        return None
    rest = folded[place.start() :]
    return (
        sentence[: place.start()]
        if _alone(sentence[: place.start()]) and not more_said(rest) and not changes(rest)
        else None
    )


def _alone(text: str) -> bool:
    return parse_number(text) is not None or parse_group(text) is not None


def _formulas(folded: str, first: re.Match[str]) -> tuple[str, int]:
    """A formula, with those joined to it by `or`, `and` or a comma, as one list; and where it ends."""
    parts, end = [content(first).strip()], first.end()
    while joint := AND.match(folded, end):
        following = FORMULA.match(folded, joint.end())
        if following is None or not is_formula(content(following)):
            break
        parts.append(content(following).strip())
        end = following.end()
    return ", ".join(parts), end


def content(match: re.Match[str]) -> str:
    return next(group for group in match.groups() if group is not None)


def is_formula(text: str) -> bool:
    """Whether what stands between two dollar signs is mathematics, not the prose between two prices."""
    return bool(text.strip()) and PROSE.search(COMMAND.sub(" ", text)) is None
