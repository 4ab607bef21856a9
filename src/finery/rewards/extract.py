"""Where the final answer of a completion stands."""

from __future__ import annotations

import re
from dataclasses import dataclass

from finery.rewards.statement import (
    COMMAND,
    FORMULA,
    NUMBER,
    PROSE,
    content,
    is_formula,
    more_said,
    statement,
    without_denied,
)
from finery.rewards.symbols import fold
from finery.rewards.unit_names import name_of

_JOINT_WORD = (
    r"or|and|to|maybe|perhaps|possibly|also|even|else|either|alternatively|it|is|be|could|might|may"
    r"|或者?|和|与|也?可能是?|也许|到|至"
)
_BOX_JOINT = re.compile(
    rf"(?:[\s$,，、.;；:/|~?!。？！()-]|\\[,;()\[\] ]|\\q?quad|\\(?:text|mathrm)\s*\{{|\}}"
    rf"|(?<![A-Za-z])(?:{_JOINT_WORD})(?![A-Za-z]))*",
    re.IGNORECASE,
)
"""Between two boxes or tags: no words but those that make them two answers."""
_OR = re.compile(
    rf"\s*[$,;?!，；]?\s*[$]?(?:(?:or|to|maybe|perhaps|possibly)\b|或者?|~|至|到|也?可能是?)(?:\s*(?:{_JOINT_WORD})(?![A-Za-z]))*\s*[$]?\s*|\s*[;；]\s*",
    re.IGNORECASE,
)
_BETWEEN = re.compile(rf"[\s,;/，；、?]*(?:(?<![A-Za-z])(?:{_JOINT_WORD})(?![A-Za-z])\s*)*", re.IGNORECASE)
"""Between two formulas at the end of a text."""
_BOX = re.compile(r"\\boxed\s*\{")
_CHANGED = re.compile(
    r"(?:√|\b(?:sqrt|root|log|ln|sin|cos|tan|gcd|lcm|exp|half|twice|double|triple|square|cube)(?:\s+of)?\b"
    r"|\b(?:not|never|cannot\s+be|than|least|most|(?:any|every)thing\s+but|except)\b|n['’]t(?:\s+be)?\b|\b(?:not|n['’]t)\s+equal\s+to"
    r"|\\(?:neq?|ge[q]?|le[q]?|sqrt)\b|[≠≤≥]|\s[<>]|!=|[不非没小大]\s?(?:是|于|等于|为|到)|不)\s*[$({]*\s*$",
    re.IGNORECASE,
)
_CHANGING = re.compile(
    r"\s?(?:π|\\pi|\^|!=|(?:squared|cubed|doubled|tripled|halved|pi|tau|factorial|dozens?|lakhs?|crores?|half|halves"
    r"|thirds?|quarters?|\w+(?:[nfvx]ths?|eighths?|hundredths?|thousandths?)|below|fold)(?![A-Za-z])"
    r"|的(?:平方|立方|[一两二三]?[半倍]|倒数|阶乘|[0-9零一二三四五六七八九十]+次)|次方|[成折])|(?![eE][0-9])[A-Za-z]+",
    re.IGNORECASE,
)
_UNIT = re.compile(
    r"\s?(?:[°℃℉]\s?[CF]?|[A-Za-z]{1,12}(?:\s?/\s?[A-Za-z]{1,12})?(?:\^?[23])?(?![A-Za-z])|[㐀-鿿]{1,4})"
)
_MINUS = re.compile(r"\b(?:minus|negative)\s+$", re.IGNORECASE)
_LOOSE = re.compile(r"(?![0-9]{1,3}(?:,[0-9]{3})+$)[0-9]+(?:,[0-9]+)+")
_SENTENCE_END = re.compile(r"\n|[.!](?=\s|$)|[。！]")
_NO_UNIT = ("in", "am", "m", "s", "h")
_UNIT_WORD = re.compile(r"(?:\s?[A-Za-z]{1,15}){0,2}|[㐀-鿿]{1,2}")
WIDEST = 40
"""Characters between two boxes that may still make them one list."""
MOST = 64
"""Tags joined to one list."""


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
    text = concluded(text)
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
    stated = statement(text, folded)
    answer = stated.answer() if stated else None
    if stated and stated.asked:
        return Found(None, stated.where)
    folded = without_denied(folded)
    return Found(answer, stated.where) if stated and answer else _last(text, folded)


def concluded(text: str) -> str:
    """What follows the last `</think>`, where something does: what was only thought is no answer."""
    _, mark, rest = text.rpartition("</think>")
    return rest if mark and rest.strip() else text


def _named(text: str, how: str) -> Found | None:
    if how == "whole":
        return Found(text.strip() or None, "the whole text")
    if how == "last_number":
        return _last_number(text, fold(text))
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
    opening = _BOX.search(text)
    while opening:
        end = _closing(text, opening.end() - 1)
        if end is None:
            return None
        boxes.append((opening.start(), end, text[opening.end() : end - 1].strip()))
        opening = _BOX.search(text, end)
    if not boxes:
        return None
    answers = [boxes[-1][2]]
    for (_, end, box), (start, _, _) in zip(reversed(boxes[:-1]), reversed(boxes[1:]), strict=True):
        if start - end > WIDEST or not _BOX_JOINT.fullmatch(text, end, start):
            break
        answers.insert(0, box)
    return ",".join(dict.fromkeys(answers)) or None


def tag(text: str) -> str | None:
    """What the last <answer> tag holds, what is boxed in it if anything is; with the tags joined to it by `or`."""
    answers: list[str] = []
    limit, after = len(text), None
    while (end := text.rfind("</answer>", 0, limit)) >= 0:
        start = text.rfind("<answer>", 0, end)
        past = end + len("</answer>")
        if start < 0 or (after is not None and (after - past > WIDEST or not _BOX_JOINT.fullmatch(text, past, after))):
            break
        inner = text[start + len("<answer>") : end].strip()
        answers.insert(0, (boxed(inner) if "\\boxed" in inner else inner) or "")
        limit = after = start
        if len(answers) > MOST:
            break
    return ", ".join(dict.fromkeys(answers)) or None


def last_number(text: str) -> str | None:
    """The last number as it is written; numbers joined to it by `or` are taken with it: `5 or 6` is not 6."""
    found = _last_number(text, fold(text))
    return found.text if found else None


def _last_number(text: str, folded: str, *, guessed: bool = False) -> Found | None:
    numbers = list(NUMBER.finditer(folded))
    if not numbers:
        return None
    start, end = numbers[-1].span()
    # `25-3=22,22` ends in two numbers, and `1,234` in one; unasked, `1000,99` is not taken for 99
    if not guessed and _LOOSE.fullmatch(folded, start, end):
        start = folded.rindex(",", start, end) + 1
    for before in reversed(numbers[:-1]):
        gap = folded[before.end() : start]
        unit = _UNIT_WORD.match(gap) if len(gap) <= WIDEST else None
        if unit is None or not (_OR.fullmatch(gap) or _OR.fullmatch(gap, unit.end())):
            break
        start = before.start()
    unit = _UNIT.match(folded, end)
    if unit and name_of(unit[0]) and unit[0].strip() not in _NO_UNIT:
        end = unit.end()
    elif _CHANGING.match(folded, end) and not (unit and name_of(unit[0])):
        return Found(None, "the last number, which more mathematics stands with")
    if _CHANGED.search(folded[max(0, start - 20) : start]):
        return Found(None, "the last number, which is not what is said to be the answer")
    if sign := _MINUS.search(folded[max(0, start - 10) : start]):
        start -= len(sign[0])
    if folded[start] == "$" and folded[end : end + 1] == "$":
        start += 1
    return Found(text[start:end].strip(), "the last number")


def _last(text: str, folded: str) -> Found | None:
    """The last number, or the last formula when that is no part of an earlier sentence: `so $x = \\sqrt{2}$`."""
    if alone := FORMULA.fullmatch(folded.strip()):
        return Found(content(alone).strip(), "the only formula")
    found = _last_number(text, folded, guessed=True)
    formulas = [match for match in FORMULA.finditer(folded) if is_formula(content(match))]
    numbers = list(NUMBER.finditer(folded))
    if formulas and (not numbers or formulas[-1].end() >= numbers[-1].end()):
        inner, rest = content(formulas[-1]).strip(), folded[formulas[-1].end() :]
        before = formulas[-2] if len(formulas) > 1 else None
        if before and _BETWEEN.fullmatch(folded, before.end(), formulas[-1].start()):
            return Found(f"{content(before).strip()} or {inner}", "the last formulas")
        if NUMBER.fullmatch(inner) is None and not more_said(_SENTENCE_END.split(rest, maxsplit=1)[0]):
            return Found(inner, "the last formula")
    return found


def _is_heading(text: str) -> bool:
    """Whether what follows `####` is a heading of Markdown: words, not an answer with a unit."""
    words = PROSE.search(COMMAND.sub(" ", text)) is not None and (":" in text or " " in text)
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
