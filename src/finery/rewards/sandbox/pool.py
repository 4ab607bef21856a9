"""The side of whoever asks: zygotes, one a worker, each with one check at a time."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import weakref
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from finery.errors import StageError

if TYPE_CHECKING:  # named, so that the digest of a stage's code covers what runs in the process
    from finery.rewards.sandbox import zygote  # noqa: F401

STARTUP = 60.0
"""Seconds a zygote may take to be ready."""
SLACK = 20.0
"""Seconds beyond a check's time in which a zygote must report."""
_SCRIPT = Path(__file__).with_name("zygote.py")
_told: set[str] = set()


@dataclass(frozen=True)
class Verdict:
    """What a check found.

    Attributes:
        score: 1.0, 0.0, or None when the tests cannot judge.
        why: one line.
        seconds: of wall time.
    """

    score: float | None
    why: str
    seconds: float


class Fault(Exception):
    """A zygote ended or fell silent: no fault of the judged code."""


class Sandbox:
    """Runs checks confined, several side by side.

    Args:
        seconds: wall time of a check, at most, and the limit on its CPU time.
        memory_mb: MiB of address space beyond the interpreter's own, of each process.
        full: whether a kernel without Landlock is refused.
        workers: checks side by side.
        python: the interpreter; this one by default.
        without: `namespaces`, `landlock`: mechanisms to do without, as a kernel would that has none; for tests.
    """

    def __init__(
        self,
        *,
        seconds: float,
        memory_mb: int,
        full: bool,
        workers: int,
        python: str | None = None,
        without: Sequence[str] = (),
    ) -> None:
        self._options = {"seconds": seconds, "memory": memory_mb << 20, "full": full, "without": list(without)}
        self._python = python or sys.executable
        self._workers = workers
        self._owner = 0
        self._lock = threading.Lock()

    def check(self, job: Mapping[str, Any]) -> Verdict:
        """Judge one job of forms.Tests, in fresh processes.

        Raises:
            StageError: the sandbox cannot be set up, or died twice on this job.
        """
        body = json.dumps(job).encode("ascii")
        with self._one() as zygote:
            try:
                return zygote.check(body, job)
            except Fault:
                zygote.close()  # the machine may have been short of memory; another try with a fresh one
            try:
                return zygote.check(body, job)
            except Fault as error:
                zygote.close()
                raise StageError(f"the sandbox of code_tests failed twice on one completion: {error}") from None

    def close(self) -> None:
        """End the zygotes, once their checks are done; the next check starts them again."""
        with self._lock:
            if self._owner == os.getpid():
                for _ in range(self._workers):
                    zygote = self._idle.get()
                    zygote.close()
                    self._idle.put(zygote)

    @contextlib.contextmanager
    def _one(self) -> Iterator[_Zygote]:
        with self._lock:
            if self._owner != os.getpid():  # the first time, or in a fork, whose parent's zygotes are not its own
                self._idle: queue.SimpleQueue[_Zygote] = queue.SimpleQueue()
                for _ in range(self._workers):
                    self._idle.put(_Zygote(self._python, self._options))
                self._owner = os.getpid()
        zygote = self._idle.get()
        try:
            yield zygote
        except BaseException:  # even an interrupt must not leave half an exchange behind
            zygote.close()
            raise
        finally:
            self._idle.put(zygote)


class _Zygote:
    """One zygote process, started at the first check and again after each fault."""

    def __init__(self, python: str, options: Mapping[str, Any]) -> None:
        self._python, self._options = python, options
        self._process: subprocess.Popen[bytes] | None = None
        self._buffer = b""
        self._finalizer: weakref.finalize[Any, Any] | None = None

    def check(self, body: bytes, job: Mapping[str, Any]) -> Verdict:
        process = self._running()
        start = time.monotonic()
        assert process.stdin is not None
        try:
            process.stdin.write(len(body).to_bytes(4, "big") + body)
            process.stdin.flush()
        except OSError as error:
            raise Fault(f"it has ended ({error})") from None
        until = start + self._options["seconds"] + SLACK
        verdict: dict[str, Any] | None = None
        while True:
            line = self._line(process, until)
            if line and "judge" in line:
                return self._read(verdict, line, job, time.monotonic() - start)
            verdict = line or verdict

    def close(self) -> None:
        """End the process and all that it started."""
        if self._finalizer is not None:
            self._finalizer()
        self._process, self._finalizer, self._buffer = None, None, b""

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is not None and self._process.poll() is None:
            return self._process
        self.close()
        if sys.platform != "linux":
            raise StageError(
                f"code_tests confines code by means of the Linux kernel, and this is {sys.platform}; run the stage in "
                "a Linux container (runtime: docker), or write the test as a reward of kind python, at your own risk"
            )
        work = tempfile.mkdtemp(prefix="finery-code-")
        options = json.dumps({**self._options, "work": work})
        kept = {"LD_LIBRARY_PATH": os.environ["LD_LIBRARY_PATH"]} if "LD_LIBRARY_PATH" in os.environ else {}
        try:
            process = subprocess.Popen(
                [self._python, "-s", "-P", "-B", "-X", "utf8", str(_SCRIPT), options],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env={"PYTHONHASHSEED": "0", **kept},
                cwd="/",
                start_new_session=True,
            )
        except OSError as error:
            shutil.rmtree(work)
            raise StageError(f"the sandbox of code_tests cannot start {self._python}: {error}") from error
        self._process = process
        self._finalizer = weakref.finalize(self, _end, process, work, os.getpid())
        self._greet(process)
        return process

    def _greet(self, process: subprocess.Popen[bytes]) -> None:
        try:
            line = self._line(process, time.monotonic() + STARTUP)
        except Fault as error:
            process.kill()
            said = process.stderr.read().decode("utf-8", "replace").strip().splitlines() if process.stderr else []
            self.close()
            raise StageError(
                f"the sandbox of code_tests does not start with {self._python}: {said[-1] if said else error}"
            ) from None
        if line is None or "lacking" in line:
            self.close()
            raise StageError(
                f"code_tests cannot confine code here: this machine lacks {line['lacking'] if line else 'an answer'}. "
                "`confinement: limits` accepts less (docs/confinement.md says what), or run the stage where it is there"
            )
        told = f"code_tests: in force: {', '.join(line['ready'])}"
        told += f"; missing: {', '.join(line['missing'])}" if line["missing"] else ""
        if told not in _told:
            _told.add(told)
            print(told, file=sys.stderr, flush=True)

    def _line(self, process: subprocess.Popen[bytes], until: float) -> dict[str, Any] | None:
        """The next line that the zygote or a judge wrote, None for an empty one."""
        assert process.stdout is not None
        descriptor = process.stdout.fileno()
        while b"\n" not in self._buffer:
            poll = select.poll()
            poll.register(descriptor, select.POLLIN)
            if not poll.poll(max(0.0, until - time.monotonic()) * 1000):
                raise Fault("it does not answer")
            part = os.read(descriptor, 65536)
            if not part:
                raise Fault("it ended")
            self._buffer += part
        line, _, self._buffer = self._buffer.partition(b"\n")
        try:
            read: dict[str, Any] | None = json.loads(line) if line else None
        except ValueError:  # a judge that was killed in the middle of its line
            return None
        return read

    def _read(
        self, verdict: dict[str, Any] | None, end: Mapping[str, Any], job: Mapping[str, Any], seconds: float
    ) -> Verdict:
        if end["late"]:
            return Verdict(0.0, f"time is up after {seconds:.3g} s, in the tests themselves", seconds)
        if verdict is None:
            raise Fault(f"its judge {_status(end['judge'])}")
        score, why = verdict["score"], str(verdict["why"])
        if verdict.get("ended"):
            why = f"the code's process {_status(end['candidate'])} before the tests were done: {why}"
        elif job["order"]["main"] and score and end["candidate"]:
            score, why = 0, f"the output is right, but the program {_status(end['candidate'])}"
        shown = "".join(letter if letter.isprintable() else " " for letter in why)  # the code may have written it
        return Verdict(None if score is None else float(score), " ".join(shown.split()), seconds)


def _status(status: int) -> str:
    code = os.waitstatus_to_exitcode(status)
    if code >= 0:
        return f"ended with status {code}"
    names = {signal.SIGXCPU: ": its CPU time was up", signal.SIGKILL: ": its CPU time was up, or it was ended"}
    return f"was ended by {signal.Signals(-code).name}{names.get(signal.Signals(-code), '')}"


def _end(process: subprocess.Popen[bytes], work: str, owner: int) -> None:
    """Kill a zygote's session; with namespaces the kernel takes the rest with it."""
    if owner != os.getpid():
        return
    process.kill()
    process.wait()
    for pipe in (process.stdin, process.stdout, process.stderr):
        if pipe is not None:
            with contextlib.suppress(OSError):
                pipe.close()
    try:
        shutil.rmtree(work)
    except FileNotFoundError:
        pass
    except (OSError, RecursionError):  # judged code can make folders deeper than Python follows
        subprocess.run(["rm", "-rf", "--", work], stderr=subprocess.DEVNULL, check=False)
