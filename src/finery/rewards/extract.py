"""Where the final answer of a completion stands."""

from __future__ import annotations

import re

from finery.rewards.numbers import LONGEST

_NUMBER = re.compile(
    r"(?:(?<![\w.)\]}])[-+−])?\\?[$€£¥]?\s?(?:(?<![\w.)\]}$€£¥])[-+−])?"
    r"(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)(?:\.\d+)?(?:[eE][-+]?\d+)?(?:\s?/\s?\d+)?(?::\d+)*(?:\s?\\?%)?|\.\d+"
)
_STATED = re.compile(r"answer\s+(?:is|should\s+be|equals)\s*:?|answer\s*[:=]", re.IGNORECASE)
_SENTENCE = re.compile(r"\n|[.!?](?=\s|$)")
_TAG = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)
_JOINT = re.compile(r"[\s$,]*(?:or|and)?[\s$,]*", re.IGNORECASE)


def extract(text: str, how: str) -> str | None:
    """The final answer in `text`, or None when there is none.

    Args:
        text: a completion.
        how: `hash`: what follows the last `####` on its line; `boxed`: the last `\\boxed{}`, or the list of boxes
            joined by `or`, `and` or a comma that ends there; `tag`: the last <answer> tag; `last_number`; `whole`;
            `auto`: hash, boxed, what follows `answer is`, last_number, in that order.
    """
    if how == "auto":
        if "####" in text:
            return after_hash(text)
        if "\\boxed" in text:
            return boxed(text)
        stated = _stated(text)
        return stated if stated is not None else last_number(text)
    return {"hash": after_hash, "boxed": boxed, "tag": tag, "last_number": last_number, "whole": _whole}[how](text)


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
        if not _JOINT.fullmatch(text, end, start):
            break
        answers.insert(0, content)
    distinct = list(dict.fromkeys(answers))
    return ",".join(distinct) or None


def tag(text: str) -> str | None:
    """What the last <answer> tag holds."""
    found = _TAG.findall(text)
    return found[-1].strip() if found else None


def last_number(text: str) -> str | None:
    """The last number as it is written; a sign after a digit, letter or bracket is a minus, not a part of it."""
    numbers = _NUMBER.findall(text)
    return numbers[-1].strip() if numbers else None


def _whole(text: str) -> str | None:
    return text.strip() or None


def _stated(text: str) -> str | None:
    """The number, or else the text, in the sentence after the last `the answer is`."""
    stated = list(_STATED.finditer(text))
    if not stated:
        return None
    sentence = _SENTENCE.split(text[stated[-1].end() :].lstrip(), maxsplit=1)[0].strip().strip("$*: ")
    if len(sentence) > LONGEST:
        return None
    number = _NUMBER.search(sentence)
    plain = number and not re.search(r"[\\^_{}=()\[\]]", sentence)
    return number[0].strip() if number and plain else sentence or None


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
