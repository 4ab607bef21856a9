"""Where the final answer of a completion stands."""

from __future__ import annotations

import re
from dataclasses import dataclass

from finery.rewards.statement import COMMAND, FORMULA, NUMBER, PROSE, content, is_formula, statement
from finery.rewards.symbols import fold

_BOX_JOINT = re.compile(
    r"(?:[\s$,，、]|\\[,;()\[\] ]|\\q?quad)*(?:or|and|\\(?:text|mathrm)\s*\{\s*(?:or|and)\s*\}|或者?|和)?"
    r"(?:[\s$,，、]|\\[,;()\[\] ]|\\q?quad)*",
    re.IGNORECASE,
)
_OR = re.compile(r"\s*(?:,\s*)?(?:or\b|或者?)\s*", re.IGNORECASE)
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
    stated = statement(text, folded)
    answer = stated.answer() if stated else None
    return Found(answer, stated.where) if stated and answer else _last(text, folded)


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
    for (_, end, box), (start, _, _) in zip(reversed(boxes[:-1]), reversed(boxes[1:]), strict=True):
        if start - end > WIDEST or not _BOX_JOINT.fullmatch(text, end, start):
            break
        answers.insert(0, box)
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
    if alone := FORMULA.fullmatch(folded.strip()):
        return Found(content(alone).strip(), "the only formula")
    formulas = [match for match in FORMULA.finditer(folded) if is_formula(content(match))]
    if formulas and (not numbers or formulas[-1].end() >= numbers[-1].end()):
        inner = content(formulas[-1])
        number = NUMBER.fullmatch(inner.strip())
        if number is None:
            return Found(inner.strip(), "the last formula")
    return Found(_joined(text, folded, numbers), "the last number") if numbers else None


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
