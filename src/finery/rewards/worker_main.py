"""The process of a `finery.rewards.worker.Worker`: one JSON request a line on stdin, one JSON reply a line on stdout.

Run as `worker_main.py SCRIPT MEMORY`; it imports nothing of finery. A request is
    {"op": str, "request": {...} or null, "cpu": seconds, "wall": seconds}
and calls OPERATIONS[op](**request) of the script; null asks for `prepare(op)`, if the script has it. After `cpu`
seconds of CPU time, or a while after `wall` seconds, when nobody listens any more, a signal ends this process, even in
the middle of C code. A reply is one of
    {"value": ...}, {"error": str} when the operation raised, {"missing": str} when its package is not installed,
    {"fault": str} when it raised one of the script's FAULTS.
"""

from __future__ import annotations

import json
import logging
import os
import resource
import runpy
import signal
import sys
from typing import Any

GRACE = 2
"""Seconds beyond `wall` before the alarm: the caller kills first, unless it is gone."""


def answer(script: dict[str, Any], op: str, request: dict[str, Any] | None) -> dict[str, Any]:
    """The reply to one request."""
    faults: tuple[type[Exception], ...] = script.get("FAULTS", ())
    try:
        if request is None:
            script.get("prepare", str)(op)
            return {"value": None}
        return {"value": script["OPERATIONS"][op](**request)}
    except ModuleNotFoundError as error:
        return {"missing": str(error.name)}
    except faults as error:
        return {"fault": f"{type(error).__name__}: {error}"[:1000]}
    except Exception as error:  # any text a model writes may break a verifier; the caller decides what that means
        return {"error": f"{type(error).__name__}: {error}"[:300]}


def main(script: str, memory: int) -> None:
    """Serve until stdin ends; what verifiers print goes to stderr, which is discarded."""
    replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    logging.disable(logging.CRITICAL)
    if memory and sys.platform == "linux":
        resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    loaded = runpy.run_path(script)
    for line in sys.stdin:
        message = json.loads(line)
        signal.setitimer(signal.ITIMER_PROF, message["cpu"])
        signal.alarm(int(message["wall"]) + GRACE)
        reply = answer(loaded, message["op"], message["request"])
        signal.alarm(0)
        signal.setitimer(signal.ITIMER_PROF, 0)
        replies.write(json.dumps(reply) + "\n")
        replies.flush()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
