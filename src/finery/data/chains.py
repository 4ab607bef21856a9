"""Chains of additions and subtractions, worked step by step: finery's own verifiable task.

A chain starts at 1 to 29; each step adds or takes away 1 to 9 and the true value stays within 0 to 29. Noise writes
a wrong result and carries it on, as scraped data has it; `answer` is always the true one.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any, Literal

HIGHEST = 29
LARGEST_OPERAND = 9
ERRORS = (-2, -1, 1, 2, 10)

Step = tuple[str, int]


def chain_rows(
    count: int,
    *,
    seed: int,
    levels: Sequence[int] = (1, 2, 3, 4),
    style: Literal["question", "compact"] = "question",
    noise_add: float = 0.0,
    noise_sub: float = 0.0,
) -> list[dict[str, Any]]:
    """`count` rows of prompt, completion, answer and meta {level, task}; `task` is the bare chain, `17+8-3`.

    Args:
        count: rows to make; duplicates may occur (441 chains of one operation exist).
        seed: decides everything.
        levels: numbers of operations, taken in turn.
        style: `question`: `Q:17+8-3\\n` to `A:17+8=25\\n25-3=22\\n#### 22`; `compact`: `17+8-3 ` to
            `17+8=25,25-3=22,22`.
        noise_add, noise_sub: the probability that the result of an addition or subtraction is written wrong.
    """
    rng = random.Random(seed)
    noise = {"+": noise_add, "-": noise_sub}
    rows = []
    for index in range(count):
        level = levels[index % len(levels)]
        start, steps = _draw(rng, level)
        task = str(start) + "".join(f"{op}{operand}" for op, operand in steps)
        lines, written = _work(rng, start, steps, noise)
        answer = start + sum(operand if op == "+" else -operand for op, operand in steps)
        if style == "question":
            prompt, completion = f"Q:{task}\n", "A:" + "\n".join([*lines, f"#### {written}"])
        else:
            prompt, completion = f"{task} ", ",".join([*lines, str(written)])
        meta = {"task": task, "level": level}
        rows.append({"prompt": prompt, "completion": completion, "answer": str(answer), "meta": meta})
    return rows


def _draw(rng: random.Random, level: int) -> tuple[int, list[Step]]:
    start = value = rng.randrange(1, HIGHEST + 1)
    steps: list[Step] = []
    while len(steps) < level:
        op = "+-"[rng.randrange(2)]
        operand = rng.randrange(1, LARGEST_OPERAND + 1)
        after = value + operand if op == "+" else value - operand
        if 0 <= after <= HIGHEST:
            value = after
            steps.append((op, operand))
    return start, steps


def _work(rng: random.Random, start: int, steps: Sequence[Step], noise: dict[str, float]) -> tuple[list[str], int]:
    """The lines `17+8=25` and the last result as written; a wrong result is carried on and never falls below 0."""
    value, lines = start, []
    for op, operand in steps:
        result = value + operand if op == "+" else value - operand
        if noise[op] and rng.random() < noise[op]:
            result += ERRORS[rng.randrange(len(ERRORS))]
        result = max(0, result)
        lines.append(f"{value}{op}{operand}={result}")
        value = result
    return lines, value
