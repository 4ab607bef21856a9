"""A clean interpreter that forks a judge and a candidate for each check; run as a script by `pool`.

    python -s -P -B -X utf8 zygote.py '{"work": folder, "full": bool, "memory": bytes, "seconds": float,
        "without": [mechanisms left out]}'

A job comes on stdin (4 bytes of length, JSON) and is read by the judge alone, so nothing of a test is ever in the
memory that candidates are forked from. On stdout come a line when the zygote is ready ({"ready": ..., "missing": ...}
or {"lacking": ...}), and for each job the judge's verdict, unless it was killed, and a line of the zygote's own:
{"judge": wait status, "candidate": wait status, "late": bool}.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import importlib.util
import json
import os
import random
import select
import shutil
import signal
import sys
import time
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # named, so that the digest of a stage's code covers what `load` brings in
    from finery.rewards.sandbox import candidate, confine, judge, wire  # noqa: F401

_PRELOADED = """abc array bisect collections contextlib copy dataclasses datetime decimal enum fractions functools
hashlib heapq inspect itertools json math operator queue random re statistics string struct textwrap
threading time traceback typing unittest"""
PRELOADED = _PRELOADED.split()
"""Imported once, so that checks need not."""
GRACE = 0.5
"""Seconds beyond its time after which a judge is killed: tests that loop by themselves."""

SETTLE = 0.2
"""Seconds that a candidate may take to end by itself once its pipes are closed."""


def load(name: str) -> ModuleType:
    """A module of this package under a name of its own, as finery need not be importable here."""
    folder = os.path.dirname(os.path.abspath(__file__))
    if "finery_sandbox" not in sys.modules:
        path = os.path.join(folder, "__init__.py")
        spec = importlib.util.spec_from_file_location("finery_sandbox", path, submodule_search_locations=[folder])
        assert spec is not None and spec.loader is not None
        sys.modules["finery_sandbox"] = importlib.util.module_from_spec(spec)
    return importlib.import_module(f"finery_sandbox.{name}")


class Zygote:
    """Forks pairs, one after the other.

    Args:
        options: as the module says.
        confinement: a confine.Confinement.
    """

    def __init__(self, options: dict[str, Any], confinement: Any) -> None:
        self._options, self._confinement = options, confinement
        self._judge, self._candidate = load("judge"), load("candidate")
        self._wire = load("wire")

    def serve(self) -> None:
        """One check after the other, until nobody asks any more."""
        for number in range(sys.maxsize):
            folder = os.path.join(self._options["work"], str(number))
            os.mkdir(folder, 0o700)
            if not self._check(folder):
                return
            self._clean()

    def _check(self, folder: str) -> bool:
        """Fork a pair, wait for the judge, kill both, and report; False when the asking side is gone."""
        life, alive = os.pipe()
        to_candidate, from_judge = os.pipe()
        to_judge, from_candidate = os.pipe()
        output, printing = os.pipe()
        typing, feed = os.pipe()
        ends = [life, alive, to_candidate, from_judge, to_judge, from_candidate, output, printing, typing, feed]
        candidate = os.fork()
        if candidate == 0:
            _end(lambda: self._run_candidate(folder, typing, printing, to_candidate, from_candidate))
        judge = os.fork()
        if judge == 0:
            _end(lambda: self._run_judge(folder, alive, to_judge, from_judge, output, feed))
        for end in ends[1:]:
            os.close(end)
        late = self._follow(life)
        os.close(life)
        if late:
            os.kill(judge, signal.SIGKILL)
        status = os.waitpid(judge, 0)[1]
        if os.waitstatus_to_exitcode(status) == 2:
            self._settle(candidate)
        os.kill(candidate, signal.SIGKILL)  # it is not reaped yet, so this is no other process
        report = {"judge": status, "candidate": os.waitpid(candidate, 0)[1], "late": late}
        self._sweep()
        if os.waitstatus_to_exitcode(status) == 3:
            return False
        try:
            os.write(1, b"\n" + json.dumps(report).encode() + b"\n")
        except BrokenPipeError:
            return False
        return True

    def _settle(self, child: int) -> None:
        """A candidate whose pipes are closed is about to end by itself; its own exit status is wanted."""
        until = time.monotonic() + SETTLE
        while time.monotonic() < until and os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
            time.sleep(0.0005)

    def _follow(self, life: int) -> bool:
        """Wait until the judge is gone; whether it has to be killed, late or as nobody asks any more."""
        poll = select.poll()
        poll.register(life, select.POLLIN)
        poll.register(0, 0)  # a hang-up is always reported
        until: float | None = None
        while True:
            left = None if until is None else max(0.0, until - time.monotonic()) * 1000
            events = dict(poll.poll(left))
            if life in events:
                if not os.read(life, 1):
                    return False
                until = time.monotonic() + self._options["seconds"] + GRACE
            elif 0 in events or (until is not None and time.monotonic() >= until):
                return True

    def _run_candidate(self, folder: str, typing: int, printing: int, source: int, sink: int) -> None:
        nothing = os.open(os.devnull, os.O_WRONLY)
        self._bind(folder)
        _place([typing, printing, nothing, source, sink])
        _reopen()
        self._candidate.Candidate(self._wire.Pipe(3, 4, lambda: None)).run()

    def _run_judge(self, folder: str, alive: int, source: int, sink: int, output: int, feed: int) -> int:
        nothing = os.open(os.devnull, os.O_RDWR)
        self._bind(folder)
        _place([nothing, nothing, nothing, 0, 1, alive, source, sink, output, feed])
        _reopen()
        status: int = self._judge.main(*range(3, 10))
        return status

    def _bind(self, folder: str) -> None:
        os.chdir(folder)
        random.seed(0)
        self._confinement.bind(memory=self._options["memory"], cpu=self._options["seconds"])
        gc.enable()

    def _sweep(self) -> None:
        """Reap whatever was left to this process; in a pid namespace of its own, kill it first."""
        if os.getpid() == 1:
            with contextlib.suppress(ProcessLookupError):
                os.kill(-1, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, 0 if os.getpid() == 1 else os.WNOHANG)[0]:
                pass

    def _clean(self) -> None:
        work = self._options["work"]
        for name in os.listdir(work):
            path = os.path.join(work, name)
            try:
                os.rmdir(path)
            except OSError:
                _remove(path)


def _remove(path: str) -> None:
    """A file or a tree, whatever its modes are."""
    if os.path.islink(path) or not os.path.isdir(path):
        os.unlink(path)
        return
    for folder, _, _ in os.walk(path):
        os.chmod(folder, 0o700)
    shutil.rmtree(path)


def _place(descriptors: list[int]) -> None:
    """Make the descriptors 0, 1, 2 ... in this order, and close all others."""
    high = [os.dup(descriptor) for descriptor in descriptors]
    base = max(high) + 1
    moved = [os.dup2(descriptor, base + place) for place, descriptor in enumerate(high)]
    for place, descriptor in enumerate(moved):
        os.dup2(descriptor, place)
    os.closerange(len(descriptors), 1 << 16)


def _reopen() -> None:
    """Python's standard streams for the descriptors 0, 1 and 2 as they are now."""
    for place, (name, mode) in enumerate((("stdin", "r"), ("stdout", "w"), ("stderr", "w"))):
        stream = os.fdopen(place, mode)
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)


def _end(run: Any) -> None:
    """Run what a fork is for, and leave without the zygote's own clean-up."""
    status = 70
    try:
        status = run() or 0
    finally:
        os._exit(status)


def main() -> None:
    """Set up, say what is in force, and serve."""
    options = json.loads(sys.argv[1])
    confine = load("confine")
    guard = "namespaces" not in options["without"] and _guard(options["work"], confine)
    os.environ["TZ"] = "UTC"
    time.tzset()
    try:
        confinement = confine.Confinement(
            options["work"], full=options["full"], namespaces=guard, landlocked="landlock" not in options["without"]
        )
        confinement.prove(memory=options["memory"], cpu=options["seconds"])
    except confine.Lacking as error:
        os.write(1, json.dumps({"lacking": str(error)}).encode() + b"\n")
        return
    for name in PRELOADED:
        importlib.import_module(name)
    os.environ.clear()
    for library in ("OMP", "OPENBLAS", "MKL"):  # numpy would start a thread a core, each with memory of its own
        os.putenv(f"{library}_NUM_THREADS", "1")  # seen by C libraries only
    sys.argv[:] = [""]
    zygote = Zygote(options, confinement)
    gc.collect()
    gc.freeze()
    gc.disable()
    os.write(1, json.dumps({"ready": confinement.in_force, "missing": confinement.missing}).encode() + b"\n")
    zygote.serve()
    confine.leave(options["work"])  # nobody is left to do it


def _guard(work: str, confine: Any) -> bool:
    """Namespaces where there are any: this process then only waits, and its child is the zygote, pid 1 of its own."""
    if not confine.enter(work):
        return False
    child = os.fork()
    if child:
        os.closerange(0, 2)
        os._exit(0 if os.waitpid(child, 0)[1] == 0 else 1)
    confine.c_library().prctl(1, ctypes.c_ulong(signal.SIGKILL), 0, 0, 0)  # PR_SET_PDEATHSIG
    if os.getppid() != 0:
        os._exit(1)
    return True


if __name__ == "__main__":
    main()
