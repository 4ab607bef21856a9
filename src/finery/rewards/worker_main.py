"""The process that runs verifiers which may hang: one JSON request a line on stdin, one JSON reply a line on stdout.

Run as a script by `finery.rewards.worker`; it imports nothing of finery. Requests, each with `wait`, the seconds after
which nobody listens any more and an alarm ends this process, even in the middle of C code:
    {"op": "math_gold", "gold": str}              -> {"value": bool}   can math-verify read the gold answer?
    {"op": "math", "gold": str, "answer": str}    -> {"value": bool}   are they equal?
    {"op": "gym", "task": str, "entry": {...}, "answer": str} -> {"value": float}
A reply is {"error": str} when the verifier raised, {"missing": str} when its package is not installed.
"""

from __future__ import annotations

import functools
import json
import logging
import os
import resource
import signal
import sys
from collections.abc import Callable
from typing import Any

MEMORY = 4 << 30
"""Bytes of address space beyond which an allocation fails, so that 9^9^9 cannot take the host down."""
GRACE = 2
"""Seconds beyond `wait` before the alarm: the caller kills first, unless it is gone."""


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


def main() -> None:
    """Serve until stdin ends; what verifiers print goes to stderr, which is discarded."""
    replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    logging.disable(logging.CRITICAL)
    if sys.platform == "linux":
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    for line in sys.stdin:
        request = json.loads(line)
        operation = OPERATIONS[request.pop("op")]
        signal.alarm(int(request.pop("wait")) + GRACE)
        try:
            reply = {"value": operation(**request)}
        except ModuleNotFoundError as error:
            reply = {"missing": str(error.name)}
        except Exception as error:  # any text a model writes may break a verifier; the caller decides what that means
            reply = {"error": f"{type(error).__name__}: {error}"[:300]}
        signal.alarm(0)
        replies.write(json.dumps(reply) + "\n")
        replies.flush()


if __name__ == "__main__":
    main()
