"""The operations of math-verify and reasoning-gym, run by worker_main in a process of their own.

math_gold(gold) -> bool      can math-verify read the gold answer?
math(gold, answer) -> bool   are they equal?
gym(task, entry, answer) -> float
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any


@functools.lru_cache(maxsize=4096)
def _parsed(text: str) -> list[Any]:
    from math_verify import parse

    read: list[Any] = parse(f"\\boxed{{{text}}}", parsing_timeout=None)
    return read


def math_gold(gold: str) -> bool:
    """Whether the gold answer is mathematics with a value; 1/0 has none, and text alone is not."""
    from sympy import nan, zoo
    from sympy.core.basic import Basic

    read = [item for item in _parsed(gold) if not isinstance(item, str)]
    return bool(read) and not any(isinstance(item, Basic) and item.has(zoo, nan) for item in read)


def math(gold: str, answer: str) -> bool:
    """Whether math-verify finds the two equal (6 decimals, 15 significant digits: its defaults)."""
    from math_verify import verify

    return bool(verify(_parsed(gold), _parsed(answer), timeout_seconds=None))


def gym(task: str, entry: dict[str, Any], answer: str) -> float:
    """reasoning-gym's own score of an answer to one of its entries."""
    import reasoning_gym

    return float(reasoning_gym.get_score_answer_fn(task)(answer, _revived(entry)))


def _revived(value: Any) -> Any:
    """An entry as reasoning-gym made it: `data` keeps tuples as {"__tuple__": [...]}."""
    if isinstance(value, list):
        return [_revived(item) for item in value]
    if isinstance(value, dict):
        if set(value) == {"__tuple__"}:
            return tuple(_revived(item) for item in value["__tuple__"])
        return {key: _revived(item) for key, item in value.items()}
    return value


OPERATIONS: dict[str, Callable[..., Any]] = {"math_gold": math_gold, "math": math, "gym": gym}


def prepare(op: str) -> None:
    """Import what an operation needs, and use it once: sympy finishes its imports at the first expression."""
    if op == "gym":
        gym("chain_sum", {"answer": "1", "metadata": {}}, "1")
    else:
        math("x", "x")
