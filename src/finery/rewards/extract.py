"""Where the final answer of a completion stands."""

from __future__ import annotations

import re
from dataclasses import dataclass

from finery.rewards.numbers import INTEGER, LONGEST
from finery.rewards.symbols import fold

_DIGITS = rf"(?:[0-9]{{1,3}}(?:(?:,\\!|\{{,\}}|\\,)[0-9]{{3}})+(?![0-9])|{INTEGER})"
_RAISED = r"(?:\^\s*(?:\{\s*[+-]?[0-9]{1,5}\s*\}|[+-]?[0-9]{1,5})|-?[⁰¹²³⁴-⁹]{1,5})"
_LATEX_FRACTION = r"\\[dtc]?frac\s*(?:\{[^{}\n]{1,60}\}|[0-9])\s*(?:\{[^{}\n]{1,60}\}|[0-9])"
_MINUS = r"(?:(?<![A-Za-z0-9_.)\]}])[-+]|负)"
_MONEY = r"(?:(?<![A-Za-z0-9_.)\]}$€£¥])[-+]|负)"
NUMBER = re.compile(
    rf"{_MINUS}?\s?\\?[$€£¥]?\s?{_MONEY}?"
    r"(?<![A-Za-z^_\\])(?<!\^\{)(?<!_\{)"
    rf"(?:{_LATEX_FRACTION}"
    rf"|{_DIGITS}\s?(?:{_LATEX_FRACTION}|[¼-¾⅐-⅞])"
    rf"|{INTEGER}(?: |\s?又\s?)[0-9]+/[0-9]+"
    r"|[0-9]+\s?分之\s?[0-9]+"
    rf"|{_DIGITS}(?:(?:,[0-9]+)+|(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?"
    rf"(?:\s?(?:\\times|\\cdot|[×·*xX])\s?10{_RAISED}|\s?/\s?[0-9]+|\^\{{?[0-9]{{1,5}}\}}?)?(?::[0-9]+)*)"
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
    r"[,，;；]\s*(?:because|since|as|which|where|so|hence|therefore|thus|i\.e|因为|所以|因此|即|也就是|其中)|\s[(（](?=[A-Za-z㐀-鿿]{2})",
    re.IGNORECASE,
)
_CLAIM = re.compile(r"(?:\b(?:is|are|equals)\s+|[是为]\s*)\**\s*(?=[^A-Za-z㐀-鿿]*$)", re.IGNORECASE)
_FORMULA = re.compile(r"\$\$(.{1,400}?)\$\$|\$([^$\n]{1,400})\$|\\\((.{1,400}?)\\\)|\\\[(.{1,400}?)\\\]", re.DOTALL)
_COMMAND = re.compile(r"\\(?:text|textbf|mathrm|textnormal|mbox|begin|end|operatorname)\s*\{[^{}]*\}|\\[A-Za-z]+")
_PROSE = re.compile(r"[A-Za-z]{3,}|[㐀-鿿]{3,}")
_BOX_JOINT = re.compile(
    r"(?:[\s$,，、]|\\[,;()\[\] ]|\\q?quad)*(?:or|and|\\(?:text|mathrm)\s*\{\s*(?:or|and)\s*\}|或者?|和)?"
    r"(?:[\s$,，、]|\\[,;()\[\] ]|\\q?quad)*",
    re.IGNORECASE,
)
_OR = re.compile(r"\s*(?:,\s*)?(?:or\b|或者?)\s*", re.IGNORECASE)
_AND = re.compile(r"(?:\s[A-Za-z]{1,15}){0,2}\s*(?:,\s*(?:and|or)?\b|、|\b(?:and|or)\b|或者?|和)\s*", re.IGNORECASE)
_UNIT_WORD = re.compile(r"(?:\s?[A-Za-z]{1,15}){0,2}|[㐀-鿿]{1,2}")
WIDEST = 40
"""Characters between two boxes that may still make them one list."""


@dataclass(frozen=True)
class Found:
    """What is taken for the answer of a completion; `text` None when a mark is there and no answer with it."""

    text: str | None
    where: str


def extract(text: str, how: str) -> str | None:
    """The final answer in `text`, or None when there is none; see `locate`."""
    found = locate(text, how)
    return found.text if found else None


def locate(text: str, how: str) -> Found | None:
    """The final answer in `text` and where it stands, or None when no mark of one is there.

    Args:
        text: a completion.
        how: `hash`: what follows the last `####` on its line; `boxed`: the last `\\boxed{}`, or the list of boxes
            joined by `or`, `and` or a comma that ends there; `tag`: the last <answer> tag; `last_number`; `whole`;
            `auto`: hash, boxed, tag, what follows `answer is` or `答案是`, the last number or formula, in that order.
    """
    if how != "auto":
        return _named(text, how)
    if "####" in text:
        answer = after_hash(text)
        if answer is None or not _is_heading(answer):
            return Found(answer, "after ####")
    if "\\boxed" in text:
        return Found(boxed(text), "in \\boxed{}")
    if "</answer>" in text:
        return Found(tag(text), "in <answer>")
    folded = fold(text)
    return _stated(text, folded) or _last(text, folded)


def _named(text: str, how: str) -> Found | None:
    if how == "whole":
        return Found(text.strip() or None, "the whole text")
    if how == "last_number":
        number = last_number(text)
        return Found(number, "the last number") if number else None
    mark, where, look = {
        "hash": ("####", "after ####", after_hash),
        "boxed": ("\\boxed", "in \\boxed{}", boxed),
        "tag": ("<answer>", "in <answer>", tag),
    }[how]
    return Found(look(text), where) if mark in text else None


def after_hash(text: str) -> str | None:
    """What follows the last `####` on its line."""
    _, mark, rest = text.rpartition("####")
    answer = rest.partition("\n")[0].strip()
    return answer if mark and answer else None


def boxed(text: str) -> str | None:
    """The last `\\boxed{}`; boxes joined to it by `or`, `and` or a comma are taken with it, as `64,63`."""
    boxes: list[tuple[int, int, str]] = []
    at = text.find("\\boxed{")
    while at >= 0:
        end = _closing(text, at + len("\\boxed{") - 1)
        if end is None:
            return None
        boxes.append((at, end, text[at + len("\\boxed{") : end - 1].strip()))
        at = text.find("\\boxed{", end)
    if not boxes:
        return None
    answers = [boxes[-1][2]]
    for (_, end, content), (start, _, _) in zip(reversed(boxes[:-1]), reversed(boxes[1:]), strict=True):
        if start - end > WIDEST or not _BOX_JOINT.fullmatch(text, end, start):
            break
        answers.insert(0, content)
    return ",".join(dict.fromkeys(answers)) or None


def tag(text: str) -> str | None:
    """What the last <answer> tag holds; what is boxed in it, if anything is."""
    end = text.rfind("</answer>")
    start = text.rfind("<answer>", 0, max(end, 0))
    if start < 0:
        return None
    inner = text[start + len("<answer>") : end].strip()
    return boxed(inner) if "\\boxed" in inner else inner or None


def last_number(text: str) -> str | None:
    """The last number as it is written; numbers joined to it by `or` are taken with it: `5 or 6` is not 6."""
    folded = fold(text)
    numbers = list(NUMBER.finditer(folded))
    return _joined(text, folded, numbers) if numbers else None


def _joined(text: str, folded: str, numbers: list[re.Match[str]]) -> str:
    start, end = numbers[-1].span()
    for before in reversed(numbers[:-1]):
        gap = folded[before.end() : start]
        unit = _UNIT_WORD.match(gap) if len(gap) <= WIDEST else None
        if unit is None or not (_OR.fullmatch(gap) or _OR.fullmatch(gap, unit.end())):
            break
        start = before.start()
    return text[start:end].strip()


def _last(text: str, folded: str) -> Found | None:
    """The last number, or the last formula when that is no part of an earlier sentence: `so $x = \\sqrt{2}$`."""
    numbers = list(NUMBER.finditer(folded))
    if alone := _FORMULA.fullmatch(folded.strip()):
        return Found(_content(alone).strip(), "the only formula")
    formulas = [match for match in _FORMULA.finditer(folded) if _is_formula(_content(match))]
    if formulas and (not numbers or formulas[-1].end() >= numbers[-1].end()):
        inner = _content(formulas[-1])
        number = NUMBER.fullmatch(inner.strip())
        if number is None:
            return Found(inner.strip(), "the last formula")
    return Found(_joined(text, folded, numbers), "the last number") if numbers else None


def _stated(text: str, folded: str) -> Found | None:
    """The number, or else the text, in the sentence after the last `the answer is`."""
    for mark in reversed(list(_STATED.finditer(folded))):
        if _NEGATED.match(folded, mark.end()):
            continue
        start = _LEAD.match(folded, mark.end()).end()  # type: ignore[union-attr]  # it matches nothing, too
        display = _FORMULA.match(folded, start)
        end = _SENTENCE.search(folded, start)
        sentence = text[start : end.start() if end else len(text)]
        where = f"after `{mark[0].strip('*:： ')}`"
        if display and _is_formula(_content(display)):
            return Found(_formulas(folded, display), where)
        sentence = _REASON.split(sentence[: 10 * LONGEST], maxsplit=1)[0].strip().strip("$*:： ")
        if len(sentence) > LONGEST or not sentence:
            return None
        return Found(_number_in(sentence) or sentence, where)
    return None


def _number_in(sentence: str) -> str | None:
    """The first number of a sentence without further mathematics, with those listed behind it."""
    folded = fold(sentence)
    if claim := _CLAIM.search(folded):
        sentence, folded = sentence[claim.end() :], folded[claim.end() :]
    first = NUMBER.search(folded)
    if first is None or re.search(r"[\\^_{}=()\[\]±√π∞∪<>≤≥]", NUMBER.sub("", folded)):
        return None
    start, end = first.span()
    for number in NUMBER.finditer(folded, end):
        if not _AND.fullmatch(folded, end, number.start()):
            break
        end = number.end()
    return sentence[start:end].strip()


def _formulas(folded: str, first: re.Match[str]) -> str:
    """A formula, with those joined to it by `or`, `and` or a comma, as one list."""
    parts, end = [_content(first).strip()], first.end()
    while joint := _AND.match(folded, end):
        following = _FORMULA.match(folded, joint.end())
        if following is None or not _is_formula(_content(following)):
            break
        parts.append(_content(following).strip())
        end = following.end()
    return ", ".join(parts)


def _content(match: re.Match[str]) -> str:
    return next(group for group in match.groups() if group is not None)


def _is_formula(text: str) -> bool:
    """Whether what stands between two dollar signs is mathematics, not the prose between two prices."""
    return bool(text.strip()) and _PROSE.search(_COMMAND.sub(" ", text)) is None


def _is_heading(text: str) -> bool:
    """Whether what follows `####` is a heading of Markdown: words, not an answer with a unit."""
    words = _PROSE.search(_COMMAND.sub(" ", text)) is not None and (":" in text or " " in text)
    return words and NUMBER.match(fold(text)) is None


def _closing(text: str, opening: int) -> int | None:
    """The index after the brace that closes the one at `opening`, or None."""
    depth = 0
    for index in range(opening, len(text)):
        if text[index] == "{" and text[index - 1] != "\\":
            depth += 1
        elif text[index] == "}" and text[index - 1] != "\\":
            depth -= 1
            if depth == 0:
                return index + 1
    return None
