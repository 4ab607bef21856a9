"""LaTeX answers, compared by math-verify in worker processes, behind guards against oversized expressions."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from finery.rewards import worker
from finery.rewards.symbols import ALL, raised
from finery.rewards.units import parse_unit

if TYPE_CHECKING:  # named, so that the digest of a stage's code covers what runs in the process
    from finery.rewards import worker_main, worker_verifiers  # noqa: F401

LONGEST = 2000
DEEPEST = 15
"""Brackets within brackets: math-verify's parser takes exponential time in them (19 take seconds)."""
KEPT = 65536
"""Verdicts kept: samples of one prompt repeat their answers, and an unequal pair costs some 25 ms."""

_TOWER = re.compile(r"(?:\^|\*\*)[^+\-=,]{0,40}?(?:\^|\*\*)[^+\-=,]{0,40}?(?:\^|\*\*)")
_HUGE = re.compile(r"(?:\^|\*\*)\s*\{?\(?\s*\d{5,}|\d{5,}\s*!|!\s*!")
_COMMAND = re.compile(
    r"\\(?:text|textnormal|mathrm|textbf|mathbf|mbox|operatorname|begin|end)\s*\{[^{}]*\}|\\[A-Za-z]+|_\{[^{}]*\}"
)
_WORD = re.compile(r"[A-Za-z]{3,}")
_FUNCTIONS = re.compile(
    "(?:arc)?(?:sin|cos|tan|cot|sec|csc)h?|log|exp|sqrt|mod|max|min|gcd|lcm|det|and|cases|array|align|aligned|[pbv]?matrix",
    re.IGNORECASE,
)
_SIGNS = {
    "×": "\\times ", "÷": "\\div ", "·": "\\cdot ", "π": "\\pi ", "∞": "\\infty ", "±": "\\pm ", "≤": "\\le ",
    "≥": "\\ge ", "≠": "\\ne ", "∪": "\\cup ", "∩": "\\cap ", "∈": "\\in ", "°": "^{\\circ}", "无穷": "\\infty ",
    "或者": ", ", "或": ", ", "和": ", ", "根号": "√",
}  # fmt: skip
_LETTER = re.compile(r"\\(?:mathrm|mathbf|mathit|rm|it)\s*\{\s*([A-Za-z])\s*\}")
"""`\\mathrm{e}` is e; math-verify 0.9 drops what stands around it."""
_ROOT = re.compile(r"√\s*(?:\(([^()]{1,60})\)|(\d+(?:\.\d+)?|[A-Za-z]))")
_HAN_UNIT = re.compile(r"(?<=[0-9A-Za-z}\])])\s*[㐀-鿿]{1,6}$")
_TOO_BIG = "is beyond the guards against oversized expressions"

_verdicts: dict[tuple[str, str], bool] = {}
_faults: dict[str, str | None] = {}


def equal(pairs: Sequence[tuple[str, str]], workers: int = 1) -> list[bool | None]:
    """Whether LaTeX answers are equal; None when the gold one is not mathematics or has no value (1/0).

    An answer that is oversized, cannot be read or takes longer than the deadline is not equal.

    Args:
        pairs: gold and given answers.
        workers: processes that may be used at once.

    Raises:
        StageError: math-verify is not installed, or its process does not start.
    """
    tidied = [(tidy(gold), tidy(answer)) for gold, answer in pairs]
    _learn_faults([gold for gold, _ in tidied], workers)
    asked = dict.fromkeys(
        pair
        for pair in tidied
        if pair not in _verdicts and _faults.get(pair[0], _TOO_BIG) is None and _within_guards(pair[1])
    )
    replies = _map("math", [{"gold": gold, "answer": answer} for gold, answer in asked], workers)
    if len(_verdicts) > KEPT:
        _verdicts.clear()
    _verdicts.update(
        {pair: reply.error is None and bool(reply.value) for pair, reply in zip(asked, replies, strict=True)}
    )
    return [None if _faults.get(pair[0], _TOO_BIG) else _verdicts.get(pair, False) for pair in tidied]


def unreadable(gold: str, workers: int = 1) -> str | None:
    """Why math-verify cannot judge by this gold answer, or None.

    Prose, which math-verify takes for a product of letters, is not read.
    """
    gold = tidy(gold)
    _learn_faults([gold], workers)
    return _faults[gold]


def _learn_faults(golds: Iterable[str], workers: int) -> None:
    """Find out for each gold answer why it cannot be read, once."""
    if len(_faults) > KEPT:
        _faults.clear()
    asked = []
    for gold in dict.fromkeys(golds):
        if gold in _faults:
            continue
        words = [word for word in _WORD.findall(_COMMAND.sub(" ", gold)) if not _FUNCTIONS.fullmatch(word)]
        if not gold.strip():
            _faults[gold] = "is empty"
        elif words:
            _faults[gold] = f"is words ({words[0]}), not mathematics; compare: text compares words"
        elif not _within_guards(gold):
            _faults[gold] = _TOO_BIG
        else:
            asked.append(gold)
    for gold, reply in zip(asked, _map("math_gold", [{"gold": gold} for gold in asked], workers), strict=True):
        _faults[gold] = f"cannot be read by math-verify: {reply.error}" if reply.error else reply.value


def _map(op: str, requests: list[dict[str, str]], workers: int) -> list[worker.Reply]:
    if not requests:
        return []
    if workers == 1:
        return [worker.SHARED.reply(op, request) for request in requests]
    return worker.pool(workers).map(op, requests)


def tidy(text: str) -> str:
    """LaTeX for what stands outside ASCII: full-width forms, superscripts, √2, ×, π, and no Chinese unit at the end."""
    text = _LETTER.sub(r"\1", text)
    if text.isascii():
        return text
    text = raised(text).translate(ALL).strip().rstrip("。;, ")
    for sign, macro in _SIGNS.items():
        text = text.replace(sign, macro)
    text = _ROOT.sub(lambda root: f"\\sqrt{{{root[1] or root[2]}}}", text)
    unit = _HAN_UNIT.search(text)
    return text[: unit.start()] if unit and parse_unit(unit[0]) is not None else text


def _within_guards(text: str) -> bool:
    if len(text) > LONGEST or _TOWER.search(text) or _HUGE.search(text):
        return False
    depth = deepest = 0
    for character in text:
        if character in "([{":
            depth += 1
            deepest = max(deepest, depth)
        elif character in ")]}":
            depth -= 1
    return deepest <= DEEPEST
