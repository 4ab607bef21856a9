"""Seven small general skills on numbers, each `name:question=` to the bare answer.

add:47+8=  55      0..99 plus 0..19          rev:31524=  42513   3 to 6 digits, reversed
sub:47-8=  39      0..99 less 0..19, >= 0    srt:31524=  12345   3 to 6 digits, sorted
cmp:12,34= <       0..99 both; <, > or =     cpy:31524=  31524   3 to 6 digits, copied
max:12,34= 34      0..99 both; the larger
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

LARGEST = 99
LARGEST_OPERAND = 19
DIGITS = (3, 6)
TIES = 10
"""One comparison in so many is between equal numbers; by chance it would be one in a hundred."""

Question = tuple[str, str]


def skill_rows(count: int, *, seed: int, skills: Sequence[str] | None = None) -> list[dict[str, Any]]:
    """`count` rows of prompt, completion, answer and meta {skill, task}, skills in turn; `seed` decides everything."""
    rng = random.Random(seed)
    names = list(skills or SKILLS)
    rows = []
    for index in range(count):
        skill = names[index % len(names)]
        question, answer = SKILLS[skill](rng)
        prompt = f"{skill}:{question}="
        meta = {"task": prompt, "skill": skill}
        rows.append({"prompt": prompt, "completion": answer, "answer": answer, "meta": meta})
    return rows


def _add(rng: random.Random) -> Question:
    a, b = rng.randrange(LARGEST + 1), rng.randrange(LARGEST_OPERAND + 1)
    return f"{a}+{b}", str(a + b)


def _sub(rng: random.Random) -> Question:
    a = rng.randrange(LARGEST + 1)
    b = rng.randrange(min(a, LARGEST_OPERAND) + 1)
    return f"{a}-{b}", str(a - b)


def _digits(rng: random.Random) -> str:
    length = rng.randrange(DIGITS[0], DIGITS[1] + 1)
    return "".join(str(rng.randrange(10)) for _ in range(length))


def _rev(rng: random.Random) -> Question:
    digits = _digits(rng)
    return digits, digits[::-1]


def _srt(rng: random.Random) -> Question:
    digits = _digits(rng)
    return digits, "".join(sorted(digits))


def _cpy(rng: random.Random) -> Question:
    digits = _digits(rng)
    return digits, digits


def _cmp(rng: random.Random) -> Question:
    a, b = rng.randrange(LARGEST + 1), rng.randrange(LARGEST + 1)
    if rng.randrange(TIES) == 0:
        b = a
    return f"{a},{b}", "<" if a < b else ">" if a > b else "="


def _max(rng: random.Random) -> Question:
    a, b = rng.randrange(LARGEST + 1), rng.randrange(LARGEST + 1)
    return f"{a},{b}", str(max(a, b))


SKILLS: dict[str, Callable[[random.Random], Question]] = {
    "add": _add,
    "sub": _sub,
    "rev": _rev,
    "srt": _srt,
    "cpy": _cpy,
    "cmp": _cmp,
    "max": _max,
}
