"""Verifiers that may hang, run in processes of their own with a deadline; works from any thread.

math-verify's own timeout is SIGALRM, which raises off the main thread and cannot interrupt C code; here the process
is killed instead and a new one started for the next request.
"""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from finery.errors import StageError

DEADLINE = 5.0
"""Seconds of CPU time a verifier may take for one completion."""
STARVED = 4.0
"""Its wall time is so many deadlines: a busy host makes a verifier late, which is no fault of the completion."""
STARTUP = 120.0
"""Seconds its first request may take, as it imports sympy or reasoning-gym then."""
MEMORY = 4 << 30
"""Bytes of address space (Linux)."""
VERIFIERS = Path(__file__).with_name("worker_verifiers.py")
"""The operations of math-verify and reasoning-gym."""
_LOOP = Path(__file__).with_name("worker_main.py")
_KEPT = ("PATH", "HOME", "LANG", "TMPDIR", "VIRTUAL_ENV", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "SYSTEMROOT")


class VerifierError(Exception):
    """The verifier raised on what it was given."""


class TooLong(Exception):
    """The verifier did not answer within the deadline and was killed, or died of the request, twice."""


class _Died(Exception):
    """The process ended in the middle of a request."""


@dataclass(frozen=True)
class Reply:
    """What became of one request of a batch: its value, or the error that this request alone met."""

    value: Any = None
    error: VerifierError | TooLong | None = None


class Worker:
    """One verifier process, started at the first request and again after each kill or fork.

    The process runs `script`, a file with `OPERATIONS: dict[str, Callable]` whose functions take and give JSON values;
    it may also have `prepare(op)`, called once before an operation's clock first starts (imports), and
    `FAULTS: tuple[type[Exception], ...]`, exceptions that are nobody's answer but a broken system.

    Args:
        script: imports nothing of finery; it is run with no environment but PATH, HOME, locale and PYTHON*.
        deadline: seconds of CPU time for one request; the wall time is limited to `wall`.
        memory: bytes of address space (Linux), 0 for no limit.
        wall: seconds of wall time for one request; by default four deadlines.
    """

    def __init__(
        self,
        script: Path = VERIFIERS,
        deadline: float = DEADLINE,
        *,
        memory: int = MEMORY,
        wall: float | None = None,
    ) -> None:
        self.script = script
        self.deadline = deadline
        self.wall = STARVED * deadline if wall is None else wall
        self.memory = memory
        self._lock = threading.Lock()
        self._held: list[subprocess.Popen[bytes]] = []
        self._owner = 0
        self._warm: set[str] = set()
        weakref.finalize(self, _end, self._held, os.getpid())

    @property
    def _process(self) -> subprocess.Popen[bytes] | None:
        return self._held[0] if self._held else None

    def ask(self, op: str, **request: Any) -> Any:
        """The value of one request.

        Raises:
            VerifierError: the verifier raised.
            TooLong: it took longer than the deadline, or its process died of it.
            StageError: its package is not installed, it met one of its FAULTS, or the process cannot start.
        """
        with self._lock:
            try:
                reply = self._try(op, request)
            except _Died:  # perhaps of something else: it is asked once more, of a new process
                try:
                    reply = self._try(op, request)
                except _Died:
                    raise TooLong("its process died, twice (out of memory?)") from None
        if "value" in reply:
            return reply["value"]
        if "error" in reply:
            raise VerifierError(reply["error"])
        raise StageError(_fault(reply))

    def reply(self, op: str, request: Mapping[str, Any]) -> Reply:
        """`ask`, with the request's own errors as a value."""
        try:
            return Reply(self.ask(op, **request))
        except (VerifierError, TooLong) as error:
            return Reply(error=error)

    def close(self) -> None:
        """End the process."""
        _end(self._held, self._owner)
        self._warm = set()

    def _try(self, op: str, request: Mapping[str, Any]) -> dict[str, Any]:
        process = self._running()
        if op not in self._warm:
            self._warm_up(process, op)
        return self._exchange(process, {"op": op, "request": request}, self.deadline, self.wall)

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is None or self._owner != os.getpid() or self._process.poll() is not None:
            self.close()
            environment = {k: v for k, v in os.environ.items() if k in _KEPT or k.startswith(("PYTHON", "LC_"))}
            try:
                process = subprocess.Popen(
                    [sys.executable, "-P", str(_LOOP), str(self.script), str(self.memory)],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.DEVNULL,
                    env=environment | {"OMP_NUM_THREADS": "1"},
                )
            except OSError as error:
                raise StageError(f"the verifier process cannot be started: {error}") from error
            self._held.append(process)
            self._owner = os.getpid()
        return self._held[0]

    def _warm_up(self, process: subprocess.Popen[bytes], op: str) -> None:
        """Import what the verifier needs before the clock of a request starts."""
        try:
            reply = self._exchange(process, {"op": op, "request": None}, STARTUP, STARTUP)
        except (TooLong, _Died):
            raise StageError(f"the verifier process does not start: no answer within {STARTUP:g} s") from None
        if "value" not in reply:
            raise StageError(_fault(reply))
        self._warm.add(op)

    def _exchange(
        self, process: subprocess.Popen[bytes], message: dict[str, Any], wait: float, wall: float
    ) -> dict[str, Any]:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(json.dumps({**message, "cpu": wait, "wall": wall}).encode() + b"\n")
            process.stdin.flush()
            line = _line(process.stdout.fileno(), wall)
        except BrokenPipeError:
            line = b""
        if line:
            reply: dict[str, Any] = json.loads(line)
            return reply
        ended = process.wait() if line == b"" else None
        self.close()
        if ended is None or ended in (-signal.SIGPROF, -signal.SIGALRM):
            raise TooLong(f"no answer within {wait:g} s")
        raise _Died


class Pool:
    """Several workers of one script, over which a batch is spread.

    Args:
        workers: how many processes there may be at once; each is started when it is first needed.
        script, deadline, memory, wall: as for Worker.
    """

    def __init__(
        self,
        workers: int,
        script: Path = VERIFIERS,
        deadline: float = DEADLINE,
        *,
        memory: int = MEMORY,
        wall: float | None = None,
    ) -> None:
        self.workers = [Worker(script, deadline, memory=memory, wall=wall) for _ in range(workers)]

    def map(self, op: str, requests: Sequence[Mapping[str, Any]]) -> list[Reply]:
        """One reply a request, in their order; a request that hangs or raises costs its neighbours nothing.

        Raises:
            StageError: as for Worker.ask; the batch is given up.
        """
        replies: list[Reply] = [Reply()] * len(requests)
        pending = _Queue(requests)

        def serve(worker: Worker) -> None:
            for index, request in pending:
                replies[index] = worker.reply(op, request)

        if len(self.workers) == 1 or len(requests) <= 1:
            serve(self.workers[0])
            return replies
        with ThreadPoolExecutor(min(len(self.workers), len(requests))) as threads:
            try:
                for future in [threads.submit(serve, worker) for worker in self.workers[: len(requests)]]:
                    future.result()
            finally:
                pending.stop()
        return replies

    def close(self) -> None:
        """End the processes."""
        for worker in self.workers:
            worker.close()


class _Queue:
    """Requests with their index, handed to whichever thread asks next."""

    def __init__(self, requests: Sequence[Mapping[str, Any]]) -> None:
        self._lock = threading.Lock()
        self._items: Iterator[tuple[int, Mapping[str, Any]]] = iter(enumerate(requests))

    def __iter__(self) -> _Queue:
        return self

    def __next__(self) -> tuple[int, Mapping[str, Any]]:
        with self._lock:
            return next(self._items)

    def stop(self) -> None:
        with self._lock:
            self._items = iter(())


def _fault(reply: Mapping[str, str]) -> str:
    if "missing" in reply:
        return f"this reward needs the Python package {reply['missing']}; pip install 'finery[train]'"
    return f"the verifier process does not work: {reply.get('fault') or reply.get('error')}"


def _end(held: list[subprocess.Popen[bytes]], owner: int) -> None:
    """Kill the process that is held, if it is this process's own, and forget it."""
    for process in held:
        if owner == os.getpid():
            process.kill()
            process.wait()
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    try:
                        pipe.close()
                    except BrokenPipeError:  # a request it did not read
                        pass
    held.clear()


def _line(descriptor: int, wait: float) -> bytes | None:
    """One line from a pipe; None when it does not come within `wait` seconds, empty when the pipe ends."""
    until = time.monotonic() + wait
    buffer = bytearray()
    with selectors.DefaultSelector() as selector:
        selector.register(descriptor, selectors.EVENT_READ)
        while not buffer.endswith(b"\n"):
            if not selector.select(max(0.0, until - time.monotonic())):
                return None
            chunk = os.read(descriptor, 65536)
            if not chunk:
                return b""
            buffer += chunk
    return bytes(buffer)


SHARED = Worker()
"""The process all rewards of this interpreter share."""


@lru_cache(maxsize=8)
def pool(workers: int) -> Pool:
    """The pool of so many math-verify processes that all rewards of this interpreter share."""
    return Pool(workers)
