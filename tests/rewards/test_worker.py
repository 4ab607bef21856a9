"""Verifier processes: what they are asked, what becomes of those that hang, die or fail, and that none stays behind."""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from finery.errors import StageError
from finery.rewards.answer import AnswerFunction
from finery.rewards.worker import Pool, TooLong, VerifierError, Worker

SCRIPT = """
import os, time
class Broken(Exception):
    pass
FAULTS = (Broken,)
def echo(text):
    return text
def pid():
    return os.getpid()
def spin():
    while True:
        pass
def sleep(seconds):
    time.sleep(seconds)
    return seconds
def raises(text):
    raise ValueError(text)
def broken():
    raise Broken("the disk is gone")
def dies():
    os._exit(3)
def dies_once(mark):
    if not os.path.exists(mark):
        open(mark, "w").close()
        os._exit(3)
    return "alive"
def hungry():
    return len(bytearray(1 << 40))
def lacks():
    import finery_no_such_package
def big(size):
    return "x" * size
PREPARED = []
def prepare(op):
    PREPARED.append(op)
def prepared():
    return PREPARED
OPERATIONS = {f.__name__: f for f in (echo, pid, spin, sleep, raises, broken, dies, dies_once, hungry, lacks, big, prepared)}
"""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "script.py"
    path.write_text(SCRIPT)
    return path


@pytest.fixture
def worker(script: Path) -> Worker:
    return Worker(script, deadline=0.5)


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_a_worker_runs_any_script_and_prepares_each_operation_once(worker: Worker) -> None:
    for text in ("a", "é 中 \ud800 \u2028\n", "x" * 300_000):
        assert worker.ask("echo", text=text) == text
    assert worker.ask("prepared") == ["echo", "prepared"]
    assert len(worker.ask("big", size=1 << 20)) == 1 << 20


def test_what_hangs_is_killed_by_cpu_time_and_by_wall_time(worker: Worker) -> None:
    before = worker.ask("pid")
    with pytest.raises(TooLong, match=r"no answer within 0\.5 s"):
        worker.ask("spin")
    with pytest.raises(TooLong):
        worker.ask("sleep", seconds=3600)
    assert not alive(before)
    assert worker.ask("echo", text="next") == "next"


def test_waiting_for_a_busy_host_is_no_fault_of_the_completion(script: Path) -> None:
    assert Worker(script, deadline=0.3, wall=30).ask("sleep", seconds=0.6) == 0.6


def test_a_process_that_dies_is_asked_once_more(worker: Worker, tmp_path: Path) -> None:
    assert worker.ask("dies_once", mark=str(tmp_path / "mark")) == "alive"
    with pytest.raises(TooLong, match="died, twice"):
        worker.ask("dies")


def test_the_completions_errors_are_told_from_the_systems(worker: Worker) -> None:
    with pytest.raises(VerifierError, match="ValueError: no"):
        worker.ask("raises", text="no")
    with pytest.raises(StageError, match="Broken: the disk is gone"):
        worker.ask("broken")
    with pytest.raises(StageError, match="needs the Python package finery_no_such_package"):
        worker.ask("lacks")


@pytest.mark.skipif(sys.platform != "linux", reason="address space is limited on Linux")
def test_memory_is_limited(script: Path) -> None:
    with pytest.raises(VerifierError, match="MemoryError"):
        Worker(script, memory=1 << 30).ask("hungry")


def test_a_script_that_cannot_be_loaded_is_no_fault_of_the_completion(tmp_path: Path) -> None:
    (tmp_path / "bad.py").write_text("import finery_no_such_package")
    with pytest.raises(StageError, match="does not start"):
        Worker(tmp_path / "bad.py").ask("echo", text="a")


def test_a_pool_keeps_the_order_and_spares_the_neighbours_of_what_hangs(script: Path) -> None:
    pool = Pool(3, script, deadline=0.5)
    replies = pool.map("echo", [{"text": str(i)} for i in range(100)])
    assert [reply.value for reply in replies] == [str(i) for i in range(100)]
    mixed = pool.map("sleep", [{"seconds": s} for s in (0.1, 3600, 0.0, "x", 0.05)])
    assert [reply.value for reply in mixed] == [0.1, None, 0.0, None, 0.05]
    assert [type(reply.error) for reply in mixed] == [type(None), TooLong, type(None), VerifierError, type(None)]
    assert pool.map("echo", []) == []


def test_a_pool_uses_several_processes_and_gives_up_a_batch_on_a_broken_system(script: Path) -> None:
    pool = Pool(2, script, deadline=5)
    assert len({reply.value for reply in pool.map("pid", [{}] * 40)} | {w.ask("pid") for w in pool.workers}) == 2
    with pytest.raises(StageError, match="the disk is gone"):
        pool.map("broken", [{}] * 10)


def test_no_process_stays_behind(script: Path) -> None:
    pool = Pool(3, script)
    pids = [worker.ask("pid") for worker in pool.workers]
    pool.close()
    assert not any(map(alive, pids))
    dropped = Worker(script)
    pid = dropped.ask("pid")
    del dropped
    gc.collect()
    assert not alive(pid)


def test_no_process_outlives_a_caller_that_was_killed(script: Path) -> None:
    code = f"""
import threading, time
from pathlib import Path
from finery.rewards.worker import Worker
worker = Worker(Path({str(script)!r}), deadline=1)
print(worker.ask("pid"), flush=True)
worker.ask("sleep", seconds=3600)
"""
    caller = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert caller.stdout is not None
    pid = int(caller.stdout.readline())
    caller.kill()
    caller.wait()
    caller.stdout.close()
    until = time.monotonic() + 30
    while alive(pid) and time.monotonic() < until:
        time.sleep(0.05)
    assert not alive(pid)


@pytest.mark.slow
def test_case_R4_a_reward_with_four_workers_in_any_thread(cases: Path, score: Callable[..., Any]) -> None:
    case = json.loads((cases / "R4.json").read_text())
    reward = {"kind": "answer", "workers": 4}
    pairs = [(case["gold"], pred) for pred in case["preds"]]
    found: list[Any] = []
    threads = [
        threading.Thread(target=lambda: found.append(score(reward, pairs).per_reward["answer"])) for _ in range(2)
    ]
    for thread in threads:
        thread.start()
    found.append(score(reward, pairs).per_reward["answer"])
    for thread in threads:
        thread.join()
    assert found == [case["expected"]] * 3


@pytest.mark.slow
def test_case_R4_hanging_answers_beside_right_ones_over_four_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    from finery.rewards import latex, worker

    pool = worker.Pool(4, deadline=1.0)
    monkeypatch.setattr(worker, "pool", lambda workers: pool)
    monkeypatch.setattr(latex, "_within_guards", lambda text: True)
    latex._verdicts.clear()
    texts = ["\\boxed{9^{9^{9^{9}}}}", "\\boxed{7}", "\\boxed{8^{9^{9^{9}}}}", "\\boxed{6+1}", "\\boxed{8}"]
    assert AnswerFunction("auto", "math", workers=4)(texts, ["\\sqrt{49}"] * 5) == [0.0, 1.0, 0.0, 1.0, 0.0]
    pool.close()
    latex._verdicts.clear()


def test_workers_change_no_score() -> None:
    texts = ["\\boxed{\\sqrt{4}}", "\\boxed{x+1}", "\\boxed{2}", "\\boxed{\\frac{4}{2}+0}", "2.0"] * 3
    golds = ["2", "1+x", "\\sqrt{4}", "2", "see figure"] * 3
    one = AnswerFunction("auto", "auto")(texts, golds)
    assert one == AnswerFunction("auto", "auto", workers=3)(texts, golds) == [0.0, 1.0, 1.0, 0.0, None] * 3
