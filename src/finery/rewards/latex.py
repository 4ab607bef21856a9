"""LaTeX answers, compared by math-verify in the worker process, behind guards against oversized expressions."""

from __future__ import annotations

import re
from functools import lru_cache

from finery.rewards import worker

LONGEST = 2000
DEEPEST = 15
"""Brackets within brackets: math-verify's parser takes exponential time in them (19 take seconds)."""

_TOWER = re.compile(r"(?:\^|\*\*)[^+\-=,]{0,40}?(?:\^|\*\*)[^+\-=,]{0,40}?(?:\^|\*\*)")
_HUGE = re.compile(r"(?:\^|\*\*)\s*\{?\(?\s*\d{5,}|\d{5,}\s*!|!\s*!")
_COMMAND = re.compile(r"\\(?:text|mathrm|textbf|mathbf|operatorname)\s*\{[^{}]*\}|\\[A-Za-z]+")
_WORD = re.compile(r"[A-Za-z]{3,}")
_FUNCTIONS = re.compile(
    "(?:arc)?(?:sin|cos|tan|cot|sec|csc)h?|log|exp|sqrt|mod|max|min|gcd|lcm|det|and|cases|array|[pbv]?matrix",
    re.IGNORECASE,
)


def equal(gold: str, answer: str) -> bool | None:
    """Whether two LaTeX answers are equal; None when the gold one is not mathematics or has no value (1/0).

    An answer that is oversized, cannot be read or takes longer than the deadline is not equal.
    """
    if not readable(gold):
        return None
    if not _within_guards(answer):
        return False
    return _verified(gold, answer)


@lru_cache(maxsize=65536)
def _verified(gold: str, answer: str) -> bool:
    """math-verify's word, kept: samples of one prompt repeat their answers, and an unequal pair costs some 25 ms."""
    try:
        return bool(worker.SHARED.ask("math", gold=gold, answer=answer))
    except (worker.VerifierError, worker.TooLong):
        return False


@lru_cache(maxsize=65536)
def readable(gold: str) -> bool:
    """Whether math-verify can read this gold answer; not prose, which it would take for a product of letters."""
    words = _WORD.findall(_COMMAND.sub(" ", gold))
    if not gold.strip() or not _within_guards(gold) or not all(map(_FUNCTIONS.fullmatch, words)):
        return False
    try:
        return bool(worker.SHARED.ask("math_gold", gold=gold))
    except (worker.VerifierError, worker.TooLong):
        return False


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
