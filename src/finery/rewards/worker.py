"""Verifiers that may hang, run in a process of their own with a deadline; works from any thread.

math-verify's own timeout is SIGALRM, which raises off the main thread and cannot interrupt C code; here the process
is killed instead and a new one started for the next request.
"""

from __future__ import annotations

import atexit
import json
import os
import selectors
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

from finery.errors import StageError

DEADLINE = 5.0
"""Seconds a verifier may take for one completion."""
STARTUP = 120.0
"""Seconds its first request may take, as it imports sympy or reasoning-gym then."""
_KEPT = ("PATH", "HOME", "LANG", "TMPDIR", "VIRTUAL_ENV", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "SYSTEMROOT")


class VerifierError(Exception):
    """The verifier raised on what it was given."""


class TooLong(Exception):
    """The verifier did not answer within the deadline and was killed."""


class Worker:
    """One verifier process, started at the first request and again after each kill or fork.

    Args:
        deadline: seconds for one request.
    """

    def __init__(self, deadline: float = DEADLINE) -> None:
        self.deadline = deadline
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._owner = 0
        self._warm: set[str] = set()
        atexit.register(self.close)

    def ask(self, op: str, **request: Any) -> Any:
        """The value of one request of worker_main.

        Raises:
            VerifierError: the verifier raised.
            TooLong: it took longer than the deadline, or died (out of memory).
            StageError: its package is not installed, or the process cannot start.
        """
        with self._lock:
            package = "gym" if op == "gym" else "math"
            process = self._running()
            wait = self.deadline if package in self._warm else self._warm_up(process, package)
            reply = self._exchange(process, {"op": op, **request}, wait)
        if "value" in reply:
            return reply["value"]
        if "missing" in reply:
            raise StageError(f"this reward needs the Python package {reply['missing']}; pip install 'finery[train]'")
        raise VerifierError(reply["error"])

    def close(self) -> None:
        """End the process."""
        if self._process is not None and self._owner == os.getpid():
            self._process.kill()
            self._process.wait()
            for pipe in (self._process.stdin, self._process.stdout):
                if pipe is not None:
                    pipe.close()
        self._process = None
        self._warm = set()

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is None or self._owner != os.getpid() or self._process.poll() is not None:
            self.close()
            environment = {k: v for k, v in os.environ.items() if k in _KEPT or k.startswith(("PYTHON", "LC_"))}
            try:
                self._process = subprocess.Popen(
                    [sys.executable, "-P", str(Path(__file__).with_name("worker_main.py"))],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.DEVNULL,
                    env=environment | {"OMP_NUM_THREADS": "1"},
                )
            except OSError as error:
                raise StageError(f"the verifier process cannot be started: {error}") from error
            self._owner = os.getpid()
        return self._process

    def _warm_up(self, process: subprocess.Popen[bytes], package: str) -> float:
        """Import what the verifier needs before the clock of a request starts."""
        probe: dict[str, Any] = {"op": "math", "gold": "x", "answer": "x"}
        if package == "gym":
            probe = {"op": "gym", "task": "chain_sum", "entry": {"answer": "1", "metadata": {}}, "answer": "1"}
        try:
            reply = self._exchange(process, probe, STARTUP)
        except TooLong:
            raise StageError(f"the verifier process does not start: no answer within {STARTUP:g} s") from None
        if "value" in reply:
            self._warm.add(package)
        elif "error" in reply:
            raise StageError(f"the verifier process does not work: {reply['error']}")
        return self.deadline

    def _exchange(self, process: subprocess.Popen[bytes], request: dict[str, Any], wait: float) -> dict[str, Any]:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(json.dumps({**request, "wait": wait}).encode() + b"\n")
            process.stdin.flush()
            line = _line(process.stdout.fileno(), wait)
        except BrokenPipeError:
            line = None
        if line is None:
            self.close()
            raise TooLong(f"no answer within {wait:g} s")
        reply: dict[str, Any] = json.loads(line)
        return reply


def _line(descriptor: int, wait: float) -> bytes | None:
    """One line from a pipe, or None when it does not come within `wait` seconds or the pipe ends."""
    until = time.monotonic() + wait
    buffer = b""
    with selectors.DefaultSelector() as selector:
        selector.register(descriptor, selectors.EVENT_READ)
        while not buffer.endswith(b"\n"):
            if not selector.select(max(0.0, until - time.monotonic())):
                return None
            chunk = os.read(descriptor, 65536)
            if not chunk:
                return None
            buffer += chunk
    return buffer


SHARED = Worker()
"""The process all rewards of this interpreter share."""
