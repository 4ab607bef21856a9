"""Completions written from a chain of thought and an answer, in either order, so that the two can be compared.

Neither the prompt nor the row's `answer` changes, so rows keep their ids and their splits whatever the order.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple

from finery.data.dataset import Row
from finery.data.formats import COT
from finery.data.records import Reject
from finery.schemas.data import Reasoning

CODE = "reasoning"
_THINK = re.compile(r"<think>(.*?)</think>(.*)", re.DOTALL)
_TAG = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)
_BOXED = "\\boxed{"


class Taken(NamedTuple):
    """What a completion was taken apart into; white space at the ends is dropped."""

    cot: str
    answer: str | None


def rewrite(row: Row, config: Reasoning) -> Row:
    """The row with its completion (or the conversation's last turn) written from chain of thought and answer.

    The chain of thought is the row's column `cot`, the answer then its `answer`, or what its completion answers; a
    row without that column has its completion taken apart, and the answer is the completion's own, right or wrong,
    so that `verify_completion` still judges it.

    Returns:
        A new row without the column `cot`.

    Raises:
        Reject: with code `reasoning`, when there is no chain of thought or no answer.
    """
    row = dict(row)
    cot, written = row.pop(COT, None), _completion(row)
    if cot is not None:
        taken = Taken(cot.strip(), row.get("answer") or (written and _answer_of(written, config.extract)))
    elif written is None:
        raise Reject("completion", CODE, "is missing, and there is no column cot to write it from")
    else:
        taken = _apart(written, config.extract, row.get("answer"))
    if not taken.cot:
        raise Reject("cot" if cot is not None else "completion", CODE, "the chain of thought is empty")
    if not taken.answer:
        raise Reject("answer", CODE, "there is none beside the chain of thought, nor in the completion")
    parts = [config.cot.replace("{cot}", taken.cot), config.answer.replace("{answer}", taken.answer.strip())]
    _put(row, "".join(parts if config.order == "cot_then_answer" else parts[::-1]).rstrip())
    return row


def _completion(row: Row) -> str | None:
    """The text that answers the row's prompt, or None."""
    said = row.get("completion") if "messages" not in row else row["messages"]
    return said if said is None or isinstance(said, str) else str(said[-1]["content"])


def _put(row: Row, text: str) -> None:
    column = "messages" if "messages" in row else "completion"
    said = row.get(column)
    if isinstance(said, list):
        row[column] = [*said[:-1], {**said[-1], "content": text}]
    elif isinstance(row["prompt"], list):
        row[column] = [{"role": "assistant", "content": text}]
    else:
        row[column] = text


def _answer_of(completion: str, how: str) -> str:
    """The answer of a completion that stands beside a chain of thought: the marked one, else all of it."""
    taken = _find(completion, how)
    return (taken.answer if taken else None) or completion


def _apart(completion: str, how: str, answer: str | None) -> Taken:
    taken = _find(completion, how)
    if taken is None:
        marks = ", ".join(_MARKS.values()) if how == "auto" else _MARKS[how]
        raise Reject("completion", CODE, f"cannot be taken apart: it holds no {marks}")
    return taken if taken.answer else Taken(taken.cot, answer)


def _find(completion: str, how: str) -> Taken | None:
    if how != "auto":
        return _HOW[how](completion)
    return next((taken for find in _HOW.values() if (taken := find(completion)) is not None), None)


def _think(text: str) -> Taken | None:
    """Within <think>; the answer is the marked one in what follows, else all that follows."""
    match = _THINK.search(text)
    if match is None:
        return None
    rest = match[2].strip()
    marked = _tag(rest) or _boxed(rest) or _hash(rest)
    return Taken(match[1].strip(), marked.answer if marked else rest or None)


def _tag(text: str) -> Taken | None:
    """Around the last <answer> tag."""
    matches = list(_TAG.finditer(text))
    if not matches:
        return None
    return Taken(_joined(text[: matches[-1].start()], text[matches[-1].end() :]), matches[-1][1].strip())


def _boxed(text: str) -> Taken | None:
    """The whole text with its last `\\boxed{}`, which holds the answer."""
    start = text.rfind(_BOXED)
    if start < 0:
        return None
    depth, inside = 1, start + len(_BOXED)
    for place in range(inside, len(text)):
        if text[place - 1] != "\\":
            depth += {"{": 1, "}": -1}.get(text[place], 0)
        if depth == 0:
            return Taken(text.strip(), text[inside:place].strip())
    return None


def _hash(text: str) -> Taken | None:
    """Before the last `####` (and after its line); the answer is the rest of that line."""
    before, mark, rest = text.rpartition("####")
    if not mark:
        return None
    answer, _, after = rest.partition("\n")
    return Taken(_joined(before, after), answer.strip())


def _joined(before: str, after: str) -> str:
    return "\n".join(part for part in (before.strip(), after.strip()) if part)


_HOW: dict[str, Callable[[str], Taken | None]] = {"think": _think, "tag": _tag, "boxed": _boxed, "hash": _hash}
"""In the order in which `auto` tries them: a chain within <think> may hold any other mark, and Markdown has `####`."""
_MARKS = {"think": "<think>", "tag": "<answer>", "boxed": "\\boxed{}", "hash": "####"}
