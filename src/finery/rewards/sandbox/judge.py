"""The process that holds the tests and says whether they passed; the judged code cannot reach it.

It passes a completion only after the last assert, and only if the candidate was asked at least once. Its verdict is a
line of JSON, {"score": 1 | 0 | null, "why": str}, on a descriptor that the candidate does not have.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import linecache
import os
import select
import sys
import time
import traceback
import types
from collections.abc import Callable, Mapping
from typing import Any

from . import compare, wire
from .link import Flooded, Link, OutOfTime, Unsupported, describe

OUTPUT = 1 << 20
"""Bytes that judged code may print."""
_TESTS = "<tests>"


class Failed(Exception):
    """A test did not hold; the text says which."""


class Judge:
    """One check.

    Args:
        source, sink: descriptors from and to the candidate.
        output, feed: descriptors of its standard output and input.
    """

    def __init__(self, source: int, sink: int, output: int, feed: int) -> None:
        self._source, self._output, self._feed = source, output, feed
        self._link = Link(wire.Pipe(source, sink, self._wait))
        self._until = 0.0
        self._printed = bytearray()
        self._shown = 0
        self._keep = False
        os.set_blocking(output, False)

    def verdict(self, job: Mapping[str, Any]) -> dict[str, Any]:
        """Judge one completion; see forms.Tests for what a job holds.

        Raises:
            BaseException: the candidate's process did not come up, which is no verdict.
        """
        self._until = time.monotonic() + job["seconds"]
        self._link.greet()
        try:
            self._keep = job["order"]["main"]
            none = self._link.start(job["order"])
            if none is not None:
                return _no(none)
            if job["order"]["main"]:
                return self._program(job["stdin"], job["expected"], job["tolerance"])
            os.close(self._feed)
            self._tests(job)
        except BaseException as error:  # whatever the judged code raises
            return self._refused(self._link.fatal or error, job["seconds"])
        if self._link.fatal:
            return self._refused(self._link.fatal, job["seconds"])
        if not self._link.asked:
            return {"score": None, "why": "the tests ask the judged code nothing"}
        return {"score": 1, "why": "passed"}

    def _refused(self, error: BaseException, seconds: float) -> dict[str, Any]:
        """The verdict on what ended the check."""
        during = f"; before that, {self._link.last}" if self._link.last else ""
        match error:
            case Unsupported():
                return {"score": None, "why": f"the tests cannot be run: {error}"}
            case OutOfTime():
                return _no(f"time is up after {seconds:.3g} s{during}")
            case Flooded():
                return _no(f"printed more than {OUTPUT} bytes{during}")
            case wire.Broken():
                return {"score": 0, "why": f"{error}{during}", "ended": True}
            case Failed():
                return _no(str(error))
            case MemoryError():
                return _no(f"memory ran out{during}")
        return _no(self._raised(error))

    def _tests(self, job: Mapping[str, Any]) -> None:
        """Run the asserts; the names they use and do not define are the judged code's."""
        space: dict[str, Any] = {"__name__": "tests", "__builtins__": __builtins__}
        function = self._names(job, space)
        if job["cases"] is not None:
            for place, case in enumerate(job["cases"], 1):
                self._case(f"case {place} of {len(job['cases'])}", case, function, job["tolerance"])
            return
        for place, (label, text) in enumerate(job["code"]):
            file = f"{_TESTS[:-1]} {place}>"
            linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
            try:
                exec(compile(text, file, "exec", dont_inherit=True), space)
                if place == len(job["code"]) - 1:
                    self._calls(job["calls"], space, function)
            except Failed:
                raise
            except Exception as error:
                raise Failed(f"{label}{self._raised(error)}") from None

    def _names(self, job: Mapping[str, Any], space: dict[str, Any]) -> Any:
        """Fill the tests' names: the prompt's helpers, modules, what the judged code defines; the function to test."""
        if job["helpers"]:
            exec(compile(job["helpers"], "<prompt>", "exec", dont_inherit=True), space)
        for name, module in job["modules"]:
            space.setdefault(name, importlib.import_module(module))
        wanted = [name for name in job["names"] if name not in space or name in job["required"]]
        found = self._link.defined([*wanted, *job["required"]])
        for name in job["required"]:
            if name not in found:
                raise Failed(f"the code defines no {name}")
        sys.modules["solution"] = _solution(self._link)
        space.update({name: self._link.get(name) for name in wanted if name in found})
        return self._link.get(job["entry"], job["entry"]) if job["entry"] else None

    def _case(self, label: str, case: Any, function: Callable[..., Any], tolerance: float) -> None:
        try:
            given = function(*case["args"], **case["kwargs"])
        except Exception as error:
            raise Failed(f"{label}: {self._raised(error)}") from None
        if not compare.same(given, case["output"], tolerance):
            due = describe(case["output"])
            raise Failed(f"{label}: {self._link.last or describe(given)}; {due} is due")

    def _calls(self, calls: list[list[str]], space: dict[str, Any], function: Any) -> None:
        """What test code defines to be called: check(candidate), test_ functions, unittest's cases."""
        for kind, name in calls:
            if kind == "check":
                space[name](function)
            elif kind == "function":
                space[name]()
            else:
                _unittest(space[name])

    def _raised(self, error: BaseException) -> str:
        """Which line of the tests failed, and on what."""
        frames = [
            frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename.startswith(_TESTS[:-1])
        ]
        line = f"`{frames[-1].line.strip()[:300]}`" if frames and frames[-1].line else ""
        text = f"{error}"[:300] if not isinstance(error, AssertionError) or error.args else ""
        if isinstance(error, AssertionError):
            said = f"does not hold{': ' if text else ''}{text}"
        else:
            said = f"{type(error).__name__}{': ' if text else ''}{text}"
        last = f"; {self._link.last}" if self._link.last and self._link.last[:200] not in said else ""
        return f"{line} {said}{last}".strip()

    def _program(self, stdin: str, expected: str, tolerance: float) -> dict[str, Any]:
        """Feed a program its input, take its output to the end, and compare."""
        self._pump(stdin.encode("utf-8", "surrogatepass"))
        printed = self._printed.decode("utf-8", "replace")
        with contextlib.suppress(wire.Broken):
            self._link.closing()
        reason = compare.lines(printed, expected, tolerance)
        return _no(reason) if reason else {"score": 1, "why": "passed"}

    def _pump(self, feed: bytes) -> None:
        os.set_blocking(self._feed, False)
        poll = select.poll()
        poll.register(self._output, select.POLLIN)
        if feed:
            poll.register(self._feed, select.POLLOUT)
        else:
            os.close(self._feed)
        rest = memoryview(feed)
        while True:
            for descriptor, event in self._ready(poll):
                if descriptor == self._output and not self._drain():
                    return
                if descriptor == self._feed:
                    with contextlib.suppress(BrokenPipeError):
                        rest = rest[os.write(self._feed, rest[:65536]) :] if event & select.POLLOUT else rest[:0]
                    if not rest or event & select.POLLERR:
                        poll.unregister(self._feed)
                        os.close(self._feed)

    def _ready(self, poll: select.poll) -> list[tuple[int, int]]:
        left = self._until - time.monotonic()
        events = poll.poll(max(0.0, left) * 1000) if left > 0 else []
        if not events:
            raise OutOfTime
        return events

    def _drain(self) -> bool:
        """Take what was printed; False at its end."""
        with contextlib.suppress(BlockingIOError):
            while part := os.read(self._output, 65536):
                self._printed += part
                if len(self._printed) + self._shown > OUTPUT:
                    raise Flooded
            return False
        return True

    def _wait(self) -> None:
        """Until the candidate sends something; what it prints meanwhile is kept (a program) or shown to the tests."""
        poll = select.poll()
        poll.register(self._source, select.POLLIN)
        poll.register(self._output, select.POLLIN)
        while True:
            events = dict(self._ready(poll))
            if self._output in events and not self._drain():
                poll.unregister(self._output)
            if self._printed and not self._keep:
                self._shown += len(self._printed)
                sys.stdout.write(self._printed.decode("utf-8", "replace"))
                self._printed.clear()
            if self._source in events:
                return


def _no(why: str) -> dict[str, Any]:
    return {"score": 0, "why": why}


def _solution(link: Link) -> types.ModuleType:
    """The module `solution`, for tests that import from it."""
    module = types.ModuleType("solution")

    def look(name: str) -> Any:
        if name.startswith("__") or name not in link.defined([name]):
            raise AttributeError(f"the code defines no {name}")
        return link.get(name)

    module.__dict__["__getattr__"] = look
    module.__dict__["__all__"] = []
    return module


def _unittest(case: Any) -> None:
    import unittest

    suite = unittest.defaultTestLoader.loadTestsFromTestCase(case)
    result = suite.run(unittest.TestResult())
    wrong = [*result.errors, *result.failures]
    if wrong:
        raise Failed(f"{wrong[0][0].id().rpartition('.')[2]}: {wrong[0][1].strip().splitlines()[-1]}")
    if result.testsRun - len(result.skipped) < 1 or not result.wasSuccessful():
        raise Failed("no test of the class ran, or one was expected to fail and did not")


def main(job: int, reply: int, started: int, source: int, sink: int, output: int, feed: int) -> int:
    """Take one job from descriptor `job`, judge it, and write the verdict to `reply`.

    Returns:
        the exit status: 0; 2 when the candidate's own exit status is wanted; 3 when nobody asks any more.
    """
    size = _exactly(job, 4)
    body = _exactly(job, int.from_bytes(size, "big")) if size else b""
    if not body:
        return 3
    os.write(started, b"s")
    os.close(job)
    work = json.loads(body)
    verdict = Judge(source, sink, output, feed).verdict(work)
    line = json.dumps({**verdict, "why": verdict["why"][:600]})  # less than PIPE_BUF, so written whole
    os.write(reply, line.encode("ascii") + b"\n")
    return 2 if (work["order"]["main"] and verdict["score"]) or "ended" in verdict else 0


def _exactly(descriptor: int, size: int) -> bytes:
    parts = bytearray()
    while len(parts) < size:
        part = os.read(descriptor, min(size - len(parts), 1 << 20))
        if not part:
            return b""
        parts += part
    return bytes(parts)
