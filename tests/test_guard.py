"""The process guard: real processes, really killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from finery import guard

needs_proc = pytest.mark.skipif(not guard.LINUX, reason="lists processes by /proc")

ENGINE = """
import sys, time
from finery import guard
child = guard.spawn({argv!r}, guarded_by_child={inside})
print("up", flush=True)
time.sleep(600)
"""

WATCHER = """
import subprocess, sys, time
from finery import guard
guard.watch_parent()
subprocess.Popen(["sleep", "600"])
subprocess.Popen(["sleep", "600"], start_new_session=True)
subprocess.Popen(["sleep", "600"], process_group=0)
open(sys.argv[1], "w").close()
time.sleep(600)
"""


def eventually(condition: Callable[[], bool], seconds: float = 20.0) -> bool:
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.02)
    return True


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


@pytest.fixture
def engine() -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Starts a process that plays the engine."""
    started: list[subprocess.Popen[str]] = []

    def start(argv: list[str], inside: bool = False) -> subprocess.Popen[str]:
        code = ENGINE.format(argv=argv, inside=inside)
        process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
        started.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == "up\n"
        return process

    yield start
    for process in started:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def shell(code: str, ready: Path) -> list[str]:
    """A shell that runs `code`, then says it is ready, then stays."""
    return ["bash", "-c", f"{textwrap.dedent(code)}\ntouch {ready}; sleep 600"]


@needs_proc
@pytest.mark.parametrize(
    "code",
    [
        "sleep 600 &",
        "setsid sleep 600 &",
        "(setsid bash -c 'sleep 600 & sleep 600' &)",
        "trap '' TERM HUP INT; sleep 600 &",
        "set -m; sleep 600 & sleep 600 &",
    ],
    ids=["grandchild", "own-session", "orphan", "ignores-signals", "own-groups"],
)
def test_nothing_survives_kill_9_of_the_engine(engine: Callable[..., subprocess.Popen[str]], code: str, tmp_path: Path):
    ready = tmp_path / "ready"
    process = engine(shell(code, ready))
    assert eventually(ready.exists)
    before = guard.descendants(process.pid)
    assert len(before) >= 3  # warden, bash, sleep
    process.kill()
    assert eventually(lambda: not any(alive(pid) for pid in before)), [p for p in before if alive(p)]


@needs_proc
def test_a_child_that_watches_by_itself_dies_with_all_its_children(
    engine: Callable[..., subprocess.Popen[str]], tmp_path: Path
):
    ready = tmp_path / "ready"
    process = engine([sys.executable, "-c", WATCHER, str(ready)], inside=True)
    assert eventually(ready.exists)
    before = guard.descendants(process.pid)
    assert len(before) == 4
    process.kill()
    assert eventually(lambda: not any(alive(pid) for pid in before))


@needs_proc
def test_an_engine_killed_before_the_child_watches_still_ends_it(tmp_path: Path):
    late = "import time; time.sleep(1); from finery import guard; guard.watch_parent(); time.sleep(600)"
    code = f"""
import os, sys
from finery import guard
child = guard.spawn([sys.executable, "-c", {late!r}], guarded_by_child=True)
print(child.pid, flush=True)
os.kill(os.getpid(), 9)
"""
    pid = int(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout)
    assert eventually(lambda: not alive(pid))


@needs_proc
def test_a_command_that_kills_its_warden_dies_too(tmp_path: Path):
    child = guard.spawn(shell("sleep 600 & kill -9 $PPID", tmp_path / "ready"))
    assert eventually(lambda: child.poll() is not None)
    assert child.returncode == -signal.SIGKILL
    assert eventually(lambda: not _in_session(child.pid))


@needs_proc
def test_a_command_that_kills_its_own_group_leaves_nothing_and_is_seen(tmp_path: Path):
    others = guard.descendants(os.getpid())
    child = guard.spawn(shell("setsid sleep 600 & kill -9 0", tmp_path / "ready"))
    assert child.wait(20) == -signal.SIGKILL
    assert not set(guard.descendants(os.getpid())) - set(others)


@needs_proc
def test_what_a_finished_command_left_in_the_background_is_ended(tmp_path: Path):
    pids = tmp_path / "pids"
    child = guard.spawn(["bash", "-c", f"sleep 600 & echo $! >> {pids}; setsid sleep 600 & echo $! >> {pids}; exit 3"])
    assert child.wait(20) == 3
    left = [int(line) for line in pids.read_text().split()]
    assert len(left) == 2
    assert not any(alive(pid) for pid in left)


@pytest.mark.parametrize(
    ("code", "expected"),
    [("exit 0", 0), ("exit 7", 7), ("kill -9 $$", -9), ("kill -SEGV $$", -11), ("kill -TERM $$", -15)],
)
def test_the_exit_code_is_the_commands(code: str, expected: int):
    assert guard.spawn(["bash", "-c", code]).wait(20) == expected


def test_a_missing_command_is_127_and_named(tmp_path: Path):
    with (tmp_path / "err").open("wb") as err:
        child = guard.spawn(["finery-no-such-command"], stderr=err)
        assert child.wait(20) == 127
    assert (tmp_path / "err").read_text() == "finery: finery-no-such-command: No such file or directory\n"


def test_a_command_sees_its_own_environment_without_the_pipe(tmp_path: Path):
    with (tmp_path / "out").open("wb") as out:
        code = "import os; print(sorted(os.environ)); print(os.listdir('/dev/fd'))"
        guard.spawn([sys.executable, "-I", "-c", code], env={"ONLY": "this"}, stdout=out).wait(20)
    names, fds = (tmp_path / "out").read_text().splitlines()
    assert set(eval(names)) - {"LC_CTYPE"} == {"ONLY"}
    assert len(eval(fds)) <= 4  # 0, 1, 2 and the listing itself


def test_terminate_lets_a_command_finish_in_its_own_way(tmp_path: Path):
    ready, done = tmp_path / "ready", tmp_path / "done"
    child = guard.spawn(
        ["bash", "-c", f"trap 'touch {done}; exit 5' TERM; touch {ready}; while :; do sleep 0.05; done"]
    )
    assert eventually(ready.exists)
    assert guard.terminate(child, grace=20) == 5
    assert done.exists()


@needs_proc
@pytest.mark.parametrize("inside", [False, True])
def test_terminate_kills_what_ignores_it(tmp_path: Path, inside: bool):
    ready = tmp_path / "ready"
    child = guard.spawn(shell("trap '' TERM; sleep 600 &", ready), guarded_by_child=inside)
    assert eventually(ready.exists)
    session = child.pid
    assert guard.terminate(child, grace=0.2) == -signal.SIGKILL
    assert eventually(lambda: not _in_session(session))


@needs_proc
def test_no_child_started_meanwhile_holds_another_ones_pipe(
    engine: Callable[..., subprocess.Popen[str]], tmp_path: Path
):
    """Twenty at once from threads, beside a fork without exec: each one ends when its own handle is dropped."""
    children: list[guard.Guarded] = []
    threads = [threading.Thread(target=lambda: children.append(guard.spawn(["sleep", "600"]))) for _ in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    fork = os.fork()
    if fork == 0:
        time.sleep(600)
        os._exit(0)
    try:
        for child in children:
            child.hold()
        assert eventually(lambda: all(child.poll() is not None for child in children))
    finally:
        os.kill(fork, signal.SIGKILL)
        os.waitpid(fork, 0)


def test_a_child_without_a_guard_watches_nothing(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv(guard.GUARD_FD, raising=False)
    before = threading.active_count()
    guard.watch_parent()
    assert threading.active_count() == before


def _in_session(session: int) -> list[int]:
    return [pid for pid, _, of in guard._processes() if of == session]
