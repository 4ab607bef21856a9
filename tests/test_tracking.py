"""The journal and its sender, against real MLflow stores."""

from __future__ import annotations

import json
import math
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from finery.errors import InputError
from finery.spool import NullSpool, Spool, SpoolBusy, read_journal
from finery.tracking.connect import check_uri, connect
from finery.tracking.names import check_artifact_path, flatten, mlflow_name, shortened, spelled_out
from finery.tracking.replay import Replay
from finery.tracking.sender import Tracker, settled, sync, unsent

CASES = Path(__file__).parent / "cases"
NOW = 1_790_000_000.0


@pytest.fixture(scope="session")
def migrated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An empty SQLite store, migrated once; tests copy it."""
    path = tmp_path_factory.mktemp("mlflow") / "mlflow.db"
    connect(f"sqlite:///{path}")
    return path


@pytest.fixture
def home(tmp_path: Path, migrated: Path) -> Path:
    home = tmp_path / ".finery"
    home.mkdir()
    shutil.copy(migrated, home / "mlflow.db")
    return home


@pytest.fixture
def uri(home: Path) -> str:
    return f"sqlite:///{home / 'mlflow.db'}"


@pytest.fixture
def open_spool(home: Path, uri: str) -> Iterator[Callable[..., Spool]]:
    opened = []

    def make(run: str = "run-1") -> Spool:
        spool = Spool(home / "runs" / run)
        spool.open_run("line", uri=uri, params={"seed": 7})
        opened.append(spool)
        return spool

    yield make
    for spool in opened:
        spool.close()


def send(spool: Spool, uri: str) -> Replay:
    replay = Replay(spool, uri, connect(uri))
    replay.send()
    return replay


def runs_of(uri: str, query: str = "") -> dict[str, Any]:
    """finery.id -> run, of all experiments."""
    client = connect(uri)
    experiments = [experiment.experiment_id for experiment in client.search_experiments()]
    found = client.search_runs(experiments, query, max_results=1000)
    runs = {run.data.tags.get("finery.id", run.info.run_id): run for run in found}
    assert len(runs) == len(found)
    return runs


def points(uri: str, run: Any, name: str) -> list[tuple[int, float]]:
    return [(metric.step, metric.value) for metric in connect(uri).get_metric_history(run.info.run_id, name)]


def small_run(spool: Spool, status: str = "FINISHED") -> str:
    attempt = spool.open_stage("sft", "sft", "key-1", 1, {"lr": 2e-4, "rewards": [{"kind": "answer"}]})
    for step in range(1, 6):
        spool.metrics(attempt, step, NOW + step, {"loss": 1 / step, "grad_norm": 0.5})
    spool.artifact_text(attempt, "héllo", "notes/note.txt")
    spool.model(attempt, "sft.model", Path("/store/sft/key-1/outputs/model"), "d" * 64)
    spool.close_stage(attempt, status, {"loss": 0.2, "pass_at_1": 0.4})  # type: ignore[arg-type]
    return attempt


# names and parameters


def test_case_O3_names_are_taken_by_mlflow_and_stay_apart() -> None:
    from mlflow.utils.validation import _validate_metric_name

    case = json.loads((CASES / "O3.json").read_text())
    odd = ["", "/", "a//b", "../a", "a/", "x\n", "_x40_", "a@b", "a_x40_b", "loss", "rewards/answer/mean", "x" * 300]
    names = [*case["metrics"], *odd]
    written = [mlflow_name(name) for name in names]
    for name in [*written, *map(spelled_out, names)]:
        _validate_metric_name(name)
        assert len(name) <= 250
    assert len(set(written)) == len(names)
    assert mlflow_name("pass@1") == "pass_at_1"
    assert mlflow_name("pass@10") == "pass_at_10"
    assert mlflow_name("timing(s)/gen") == "timing_x28_s_x29_/gen"
    assert mlflow_name("准确率") == "准确率"
    assert mlflow_name("rewards/answer/mean") == "rewards/answer/mean"


def test_parameters_are_flattened_under_dotted_names() -> None:
    flat, troubles = flatten(
        {"lr": 2e-4, "lora": {"r": 8, "on": True}, "k": [1, 8], "rewards": [{"kind": "a"}], "x": None}
    )
    assert flat == {"lr": "0.0002", "lora.r": "8", "lora.on": "true", "k": "[1, 8]", "rewards.0.kind": "a", "x": "null"}
    assert troubles == []
    flat, troubles = flatten({"a.b": 1, "a": {"b": 2}, "a@b": 3, "a_x40_b": 4})
    assert flat == {"a.b": "1", "a.b_x_": "2", "a_x40_b": "3", "a_x5f_x40_b": "4"}
    assert len(troubles) == 1


def test_case_O3_everything_is_read_back_and_the_stage_is_finished(open_spool: Callable[..., Spool], uri: str) -> None:
    case = json.loads((CASES / "O3.json").read_text())
    spool = open_spool()
    attempt = spool.open_stage("exam", "evaluate", "k", 1, {"fits": "é" * 6000, "long": "é" * 6001})
    spool.metrics(attempt, 1, NOW, case["metrics"])
    spool.metrics(attempt, 2, NOW, dict.fromkeys(case["collision"], 0.25))
    spool.close_stage(attempt, "FINISHED", {"pass@1": 0.75})
    send(spool, uri)

    run = runs_of(uri)[attempt]
    assert run.info.status == "FINISHED"
    assert points(uri, run, "pass_at_1") == [(1, 0.5), (2, 0.25), (2, 0.75)]
    assert points(uri, run, "pass_at_10") == [(1, 0.9)]
    assert points(uri, run, "timing_x28_s_x29_/gen") == [(1, 1.0)]
    assert points(uri, run, "准确率") == [(1, 0.5)]
    assert points(uri, run, spelled_out("pass_at_1")) == [(2, 0.25)]  # the colliding name, on its own
    assert [w for w in spool.warnings if "'pass@1' and 'pass_at_1'" in w]
    assert run.data.params["fits"] == "é" * 6000
    assert len(run.data.params["long"]) == 6000
    whole, place = "é" * 6001, "params/long.txt"
    assert run.data.params["long"] == shortened("long", whole)[0]
    fetched = Path(connect(uri).download_artifacts(run.info.run_id, place))
    assert fetched.read_text(encoding="utf-8") == whole


# artifacts


def test_case_S2_names_that_lead_elsewhere_are_refused(
    open_spool: Callable[..., Spool], uri: str, tmp_path: Path
) -> None:
    case = json.loads((CASES / "S2.json").read_text())
    spool = open_spool()
    attempt = spool.open_stage("s", "script", "k", 1, {})
    *bad, good = case["artifact_names"]
    for name in bad:
        with pytest.raises(InputError, match="not a name inside the run"):
            check_artifact_path(name)
        assert not spool.artifact_text(attempt, "evil", name)
        assert any(name in warning for warning in spool.warnings)

    folder = tmp_path / "outputs"
    (folder / "ok dir").mkdir(parents=True)
    (folder / good).write_bytes(b"\x00\xffbytes")
    (folder / "%2e%2e%2fS2-enc.txt").write_text("evil")
    (folder / "hostname").symlink_to("/etc/hostname")
    (folder / "etc").symlink_to("/etc")
    spool.artifact(attempt, folder, "out")
    spool.artifact(attempt, folder / "hostname")
    spool.artifact(attempt, tmp_path / "absent")
    send(spool, uri)

    run = runs_of(uri)[attempt]
    client = connect(uri)
    assert [f.path for f in client.list_artifacts(run.info.run_id)] == ["out"]
    assert [f.path for f in client.list_artifacts(run.info.run_id, "out")] == ["out/ok dir"]
    assert Path(client.download_artifacts(run.info.run_id, f"out/{good}")).read_bytes() == b"\x00\xffbytes"
    assert sum("link is not followed" in warning for warning in spool.warnings) == 2  # the same one is told once
    assert any("absent: no longer there" in warning for warning in spool.warnings)
    assert not Path("/tmp/S2-abs.txt").exists()


# what a run looks like


def test_a_run_is_a_parent_with_children(open_spool: Callable[..., Spool], uri: str) -> None:
    spool = open_spool()
    attempt = small_run(spool)
    spool.close_run("FINISHED")
    replay = send(spool, uri)
    runs = runs_of(uri)
    parent, child = runs["run-1"], runs[attempt]
    assert parent.info.status == child.info.status == "FINISHED"
    assert parent.data.tags["finery.run_id"] == child.data.tags["finery.run_id"] == "run-1"
    assert child.data.tags["mlflow.parentRunId"] == parent.info.run_id
    tags = {key: child.data.tags[f"finery.{key}"] for key in ("stage", "kind", "key", "attempt")}
    assert tags == {"stage": "sft", "kind": "sft", "key": "key-1", "attempt": "1"}
    assert (parent.info.run_name, child.info.run_name) == ("run-1", "sft")
    assert parent.data.params == {"seed": "7"}
    assert child.data.params == {"lr": "0.0002", "rewards.0.kind": "answer"}
    assert points(uri, child, "loss") == [(step, 1 / step) for step in range(1, 6)]  # the final one is the last
    assert points(uri, child, "pass_at_1") == [(5, 0.4)]
    assert (
        Path(connect(uri).download_artifacts(child.info.run_id, "notes/note.txt")).read_text(encoding="utf-8")
        == "héllo"
    )
    [output] = child.outputs.model_outputs
    model = connect(uri).get_logged_model(output.model_id)
    assert (model.name, model.status, model.tags["finery.digest"]) == ("sft-model", "READY", "d" * 64)
    assert model.tags["finery.store"] == "/store/sft/key-1/outputs/model"
    assert model.tags["mlflow.model.isExternal"] == "true"
    assert replay.sent == sum(1 for _ in read_journal(spool.path))
    assert settled(spool.run_dir)


def test_artifacts_lie_beside_the_database_and_nothing_in_the_working_folder(
    open_spool: Callable[..., Spool], uri: str, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    spool = open_spool()
    small_run(spool)
    send(spool, uri)
    assert (home / "mlartifacts").is_dir()
    assert sorted(path.name for path in tmp_path.iterdir()) == [".finery"]


def test_a_cached_stage_links_to_the_run_that_made_it(open_spool: Callable[..., Spool], uri: str) -> None:
    first = open_spool("run-1")
    made = small_run(first)
    first.close_run("FINISHED")
    send(first, uri)
    second = open_spool("run-2")
    store = {"finery.store": "/store/sft/key-1"}
    attempt = second.open_stage("sft", "sft", "key-1", 0, {"lr": 2e-4}, cached=True, tags=store)
    second.close_stage(attempt, "FINISHED", {"pass_at_1": 0.4})
    other = second.open_stage("grpo", "grpo", "key-9", 0, {}, cached=True, tags=store)
    send(second, uri)
    runs = runs_of(uri)
    child = runs[attempt]
    assert child.data.tags["finery.cached_from"] == made
    assert child.data.tags["finery.cached_run"] == runs[made].info.run_id
    assert runs[made].info.run_id in child.data.tags["mlflow.note.content"]
    assert child.data.tags["finery.store"] == "/store/sft/key-1"
    assert child.data.metrics == {"pass_at_1": 0.4}
    assert runs[other].data.tags["finery.cached_from"] == "/store/sft/key-1"  # this MLflow never saw key-9 made


def test_a_resumed_attempt_is_a_child_of_its_own(open_spool: Callable[..., Spool], uri: str) -> None:
    spool = open_spool()
    broken = spool.open_stage("sft", "sft", "k", 1, {"lr": 1})
    spool.metrics(broken, 1, NOW, {"loss": 3.0})
    spool.close_stage(broken, "FAILED")
    resumed = spool.open_stage("sft", "sft", "k", 2, {"lr": 1})
    spool.metrics(resumed, 1, NOW, {"loss": 3.0})
    spool.metrics(resumed, 2, NOW + 1, {"loss": 2.0})
    spool.close_stage(resumed, "FINISHED")
    send(spool, uri)
    runs = runs_of(uri)
    assert [runs[i].info.status for i in (broken, resumed)] == ["FAILED", "FINISHED"]
    assert points(uri, runs[resumed], "loss") == [(1, 3.0), (2, 2.0)]


def test_numbers_that_are_not_finite_are_accepted(open_spool: Callable[..., Spool], uri: str) -> None:
    spool = open_spool()
    attempt = spool.open_stage("s", "sft", "k", 1, {})
    spool.metrics(attempt, 1, NOW, {"a": float("nan"), "b": "NaN", "c": "-Infinity", "d": float("inf")})
    spool.close_stage(attempt, "FINISHED", {"a": "NaN"})
    send(spool, uri)
    run = runs_of(uri)[attempt]
    assert math.isnan(points(uri, run, "a")[0][1])
    assert len(points(uri, run, "a")) == 1
    assert math.isnan(points(uri, run, "b")[0][1])
    assert points(uri, run, "c")[0][1] == -sys.float_info.max  # as MLflow's databases hold it
    assert spool.warnings == []


def test_many_metrics_and_large_parameters_go_in_pieces(open_spool: Callable[..., Spool], uri: str) -> None:
    spool = open_spool()
    attempt = spool.open_stage("s", "sft", "k", 1, {f"p{i}": "模" * 5000 for i in range(130)})
    other = spool.open_stage("t", "sft", "l", 1, {})
    for step in range(1200):
        spool.metrics(attempt, step, NOW + step, {"loss": step, "x": 1.0})
        spool.metrics(other, step, NOW + step, {"loss": -step})
    replay = send(spool, uri)
    runs = runs_of(uri)
    assert len(runs[attempt].data.params) == 130
    assert points(uri, runs[attempt], "loss") == [(step, step) for step in range(1200)]
    assert points(uri, runs[other], "loss") == [(step, -step) for step in range(1200)]
    assert replay.sent == 3 + 2400


# exactly once


def whole_state(uri: str) -> dict[str, Any]:
    state = {}
    for identity, run in runs_of(uri).items():
        outputs = [output.model_id for output in run.outputs.model_outputs]
        series = {name: points(uri, run, name) for name in run.data.metrics}
        files = [f.path for f in connect(uri).list_artifacts(run.info.run_id)]
        state[identity] = (run.info.run_id, run.info.status, run.info.end_time, run.data.params, series, files, outputs)
    return state


def test_sent_again_from_any_place_nothing_changes(open_spool: Callable[..., Spool], uri: str) -> None:
    spool = open_spool()
    small_run(spool)
    spool.close_run("FINISHED")
    send(spool, uri)
    before = whole_state(uri)
    cursor = spool.run_dir / "tracking" / "cursor.json"
    ends = [0, *(line.end for line in read_journal(spool.path))]
    for offset in ends[:-1]:
        cursor.write_text(json.dumps({**json.loads(cursor.read_text()), "offset": offset}))
        assert unsent(spool.run_dir, uri) > 0
        send(spool, uri)
        assert unsent(spool.run_dir, uri) == 0
        assert whole_state(uri) == before
    assert spool.warnings == []


KILLED_BEFORE_THE_CURSOR = """
import os, sys
from pathlib import Path
from finery.spool import Spool
from finery.tracking.connect import connect
from finery.tracking.replay import Replay
run, uri, calls = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
whole = Replay._advance
def advance(self, end, sent):
    global calls
    calls -= 1
    if calls < 0:
        os.kill(os.getpid(), 9)
    whole(self, end, sent)
Replay._advance = advance
with Spool(run) as spool:
    Replay(spool, uri, connect(uri)).send()
"""


@pytest.mark.slow
def test_a_sender_killed_before_it_writes_its_cursor_sends_nothing_twice(home: Path, uri: str) -> None:
    with Spool(home / "runs" / "run-1") as spool:
        spool.open_run("line", uri=uri, params={"seed": 7})
        attempt = small_run(spool)
        spool.close_run("FINISHED")
    for calls in (0, 2, 2, 1):  # when the run, the metrics, the model, the child's end are in MLflow
        argv = [sys.executable, "-c", KILLED_BEFORE_THE_CURSOR, str(home / "runs" / "run-1"), uri, str(calls)]
        assert subprocess.run(argv, check=False).returncode == -signal.SIGKILL
    report = sync([home / "runs" / "run-1"])
    assert report.left == {}
    runs = runs_of(uri)
    assert sorted(runs) == ["run-1", attempt]
    assert points(uri, runs[attempt], "loss") == [(step, 1 / step) for step in range(1, 6)]
    assert len(runs[attempt].outputs.model_outputs) == 1


def test_a_database_made_anew_gets_the_whole_log_again(
    open_spool: Callable[..., Spool], uri: str, home: Path, migrated: Path
) -> None:
    spool = open_spool()
    attempt = spool.open_stage("sft", "sft", "k", 1, {"lr": 1})
    spool.metrics(attempt, 1, NOW, {"loss": 3.0})
    send(spool, uri)
    shutil.copy(migrated, home / "mlflow.db")
    spool.metrics(attempt, 2, NOW, {"loss": 2.0})
    spool.close_stage(attempt, "FINISHED")
    send(spool, uri)
    run = runs_of(uri)[attempt]
    assert points(uri, run, "loss") == [(1, 3.0), (2, 2.0)]
    assert run.data.params == {"lr": "1"}
    assert any("sent again whole" in warning for warning in spool.warnings)


def test_a_run_deleted_in_mlflow_is_left_deleted(open_spool: Callable[..., Spool], uri: str) -> None:
    spool = open_spool()
    attempt = spool.open_stage("sft", "sft", "k", 1, {})
    replay = send(spool, uri)
    replay.client.delete_run(runs_of(uri)[attempt].info.run_id)
    spool.metrics(attempt, 1, NOW, {"loss": 3.0})
    spool.metrics(attempt, 2, NOW, {"loss": 3.0})
    spool.close_stage(attempt, "FINISHED")
    spool.close_run("FINISHED")
    replay.send()
    assert unsent(spool.run_dir, uri) == 0
    assert sorted(runs_of(uri)) == ["run-1"]
    assert any("was deleted in MLflow" in warning for warning in spool.warnings)


# the thread


def test_the_tracker_follows_a_live_run(open_spool: Callable[..., Spool], uri: str) -> None:
    spool = open_spool()
    tracker = Tracker(spool, uri)
    tracker.start()
    attempt = small_run(spool)
    assert tracker.flush(120) == 0
    spool.close_run("FINISHED")
    assert tracker.flush(120) == 0
    tracker.stop()
    assert tracker.failed is None
    assert tracker.warnings == []
    assert runs_of(uri)[attempt].info.status == "FINISHED"


def test_a_fault_of_the_sender_ends_the_sender_only(
    open_spool: Callable[..., Spool], uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    spool = open_spool()
    monkeypatch.setattr(Replay, "send", lambda self: 1 / 0)
    tracker = Tracker(spool, uri)
    tracker.start()
    assert tracker.flush(120) == 1  # returns as soon as the thread is dead
    assert tracker.failed == "ZeroDivisionError: division by zero"
    assert any("finery sync" in warning for warning in tracker.warnings)
    spool.metrics("run-1", 1, NOW, {"x": 1})  # the engine goes on


def test_case_O5_an_inherited_run_id_is_ignored_with_a_warning(
    open_spool: Callable[..., Spool], uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = connect(uri)
    foreign = client.create_run(client.create_experiment("outer")).info.run_id
    monkeypatch.setenv("MLFLOW_RUN_ID", foreign)
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "outer")
    spool = open_spool()
    tracker = Tracker(spool, uri)
    tracker.start()
    first = small_run(spool)
    second = spool.open_stage("gate", "gate", "k2", 1, {})
    spool.close_stage(second, "FINISHED", {"pass_at_1": 0.5})
    spool.close_run("FINISHED")
    assert tracker.flush(120) == 0
    tracker.stop()
    runs = runs_of(uri)
    assert len({runs[i].info.run_id for i in ("run-1", first, second)} | {foreign}) == 4
    assert {runs[i].data.tags["mlflow.parentRunId"] for i in (first, second)} == {runs["run-1"].info.run_id}
    untouched = client.get_run(foreign)
    assert (untouched.data.metrics, untouched.data.params, untouched.info.status) == ({}, {}, "RUNNING")
    assert any(foreign in warning and "ignored" in warning for warning in tracker.warnings)


# runs that died

DIES = """
import os, sys
from pathlib import Path
from finery.spool import Spool
spool = Spool(Path(sys.argv[1]))
spool.open_run("line", uri=sys.argv[2])
done = spool.open_stage("data", "data", "k0", 1, {})
spool.close_stage(done, "FINISHED")
attempt = spool.open_stage("sft", "sft", "k", 1, {})
spool.metrics(attempt, 1, 1790000000.0, {"loss": 1.0})
os.write(spool._file, b'{"event": "metrics", "id": "torn')
print("ready", flush=True)
sys.stdin.read()
"""


def test_case_O4_a_killed_run_is_ended_at_the_next_start(
    open_spool: Callable[..., Spool], home: Path, uri: str
) -> None:
    folder = home / "runs" / "run-0"
    argv = [sys.executable, "-c", DIES, str(folder), uri]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        assert process.stdout.readline() == "ready\n"
        assert sync([folder]).sent == 0  # alive: left alone
        with pytest.raises(SpoolBusy):
            Spool(folder)
        process.kill()
    spool = open_spool("run-1")
    tracker = Tracker(spool, uri, earlier=[folder, spool.run_dir])
    tracker.start()
    attempt = spool.open_stage("sft", "sft", "k", 1, {})
    deadline = time.monotonic() + 120
    while not settled(folder) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert tracker.flush(120) == 0
    tracker.stop()
    runs = runs_of(uri)
    status = {identity: run.info.status for identity, run in runs.items()}
    assert status == {
        "run-0": "KILLED", "run-0/data/1": "FINISHED", "run-0/sft/1": "KILLED", "run-1": "RUNNING", attempt: "RUNNING",
    }  # fmt: skip
    assert runs["run-0/sft/1"].info.end_time == 1790000000000
    assert points(uri, runs["run-0/sft/1"], "loss") == [(1, 1.0)]
    assert tracker.warnings == []


def test_case_O4_a_run_whose_folder_is_gone_is_ended_too(
    open_spool: Callable[..., Spool], home: Path, uri: str
) -> None:
    lost = open_spool("run-0")
    lost.open_stage("sft", "sft", "k", 1, {})
    send(lost, uri)
    lost.close()
    shutil.rmtree(lost.run_dir)
    spool = open_spool("run-1")
    tracker = Tracker(spool, uri)
    tracker.start()
    deadline = time.monotonic() + 120
    while runs_of(uri)["run-0"].info.status == "RUNNING" and time.monotonic() < deadline:
        time.sleep(0.1)
    tracker.stop()
    status = {identity: run.info.status for identity, run in runs_of(uri).items()}
    assert status == {"run-0": "KILLED", "run-0/sft/1": "KILLED", "run-1": "RUNNING"}


def test_a_log_meant_for_another_mlflow_waits_for_it(open_spool: Callable[..., Spool], home: Path, uri: str) -> None:
    elsewhere = "http://127.0.0.1:1"
    with Spool(home / "runs" / "run-0") as other:
        other.open_run("line", uri=elsewhere)
        other.close_run("FINISHED")
    spool = open_spool("run-1")
    tracker = Tracker(spool, uri, earlier=[other.run_dir])
    tracker.start()
    spool.close_run("FINISHED")
    assert tracker.flush(120) == 0
    tracker.stop()
    assert sorted(runs_of(uri)) == ["run-1"]
    report = sync([other.run_dir, spool.run_dir])
    assert report.left == {"run-0": 2}
    assert elsewhere in report.warnings[0]
    assert str(report).startswith("nothing to send")
    assert sync([other.run_dir], uri).left == {}  # told to, it goes here
    assert sorted(runs_of(uri)) == ["run-0", "run-1"]


def test_half_a_line_and_a_damaged_line_are_passed_over(open_spool: Callable[..., Spool], uri: str) -> None:
    spool = open_spool()
    attempt = spool.open_stage("sft", "sft", "k", 1, {})
    spool.close()
    with spool.path.open("ab") as file:
        file.write(b"\x00\x00\x00\n" + b'{"event": "metr')
    again = open_spool()
    again.metrics(attempt, 1, NOW, {"loss": 1.0})
    send(again, uri)
    assert points(uri, runs_of(uri)[attempt], "loss") == [(1, 1.0)]
    assert any("damaged" in warning for warning in again.warnings)


FULL_DISK = """
import json, resource, sys
from pathlib import Path
from finery.spool import Spool
spool = Spool(Path(sys.argv[1]))
spool.open_run("line")
resource.setrlimit(resource.RLIMIT_FSIZE, (spool.path.stat().st_size + 30, resource.RLIM_INFINITY))
spool.metrics("a", 1, 1.0, {"loss": 1.0})
spool.metrics("a", 2, 1.0, {"loss": 1.0})
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
spool.metrics("a", 3, 1.0, {"loss": 1.0})
print(json.dumps(spool.warnings))
"""


def test_a_full_disk_delays_the_journal_and_raises_nothing(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", FULL_DISK, str(tmp_path / "r")], capture_output=True, text=True, check=True
    )
    assert "waits in memory" in json.loads(done.stdout)[0]
    events = [line.event for line in read_journal(tmp_path / "r" / "tracking" / "events.jsonl")]
    assert [event.get("step") for event in events] == [None, 1, 2, 3]


# stores


def test_the_spool_imports_no_mlflow() -> None:
    code = "import sys, finery.spool, finery.receipts, finery.tracking.sender; print('mlflow' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"


def test_a_null_spool_keeps_nothing() -> None:
    spool = NullSpool()
    spool.open_run("line")
    attempt = spool.open_stage("s", "sft", "k", 1, {})
    spool.metrics(attempt, 1, NOW, {"loss": 1.0})
    spool.close_stage(attempt, "FINISHED", {})
    spool.close()
    assert not list(read_journal(spool.path))


def test_uris_that_keep_repeated_metrics_are_refused() -> None:
    for bad in ("./mlruns", "file:///x", "/tmp/x", "databricks", ""):
        with pytest.raises(InputError, match="write sqlite:///"):
            check_uri(bad)
    for good in ("sqlite:////tmp/x.db", "http://127.0.0.1:5000", "postgresql+psycopg2://h/d"):
        assert check_uri(good) == good


def test_a_password_in_the_uri_is_not_written_down(home: Path) -> None:
    with Spool(home / "runs" / "r") as spool:
        spool.open_run("line", uri="http://me:canary@127.0.0.1:1")
        tracker = Tracker(spool, "http://me:canary@127.0.0.1:1")
        tracker.start()
        assert tracker.flush(3) == 1
        tracker.stop(30)
        assert any("cannot be used now" in warning for warning in tracker.warnings)
        assert not any("canary" in warning for warning in tracker.warnings)
    assert not [path for path in home.rglob("*") if path.is_file() and b"canary" in path.read_bytes()]


FIRST_START = """
import sys
from pathlib import Path
from finery.spool import Spool
from finery.tracking.sender import Tracker
home, number = Path(sys.argv[1]), sys.argv[2]
spool = Spool(home / "runs" / f"run-{number}")
spool.open_run("line")
attempt = spool.open_stage("sft", "sft", "k", 1, {"n": number})
spool.metrics(attempt, 1, 1.0, {"loss": 1.0})
spool.close_stage(attempt, "FINISHED")
spool.close_run("FINISHED")
tracker = Tracker(spool, f"sqlite:///{home / 'mlflow.db'}")
tracker.start()
left = tracker.flush(300)
tracker.stop()
print(left, tracker.failed, tracker.warnings)
"""


@pytest.mark.slow
def test_case_O7_four_first_starts_at_once_on_one_empty_store(tmp_path: Path) -> None:
    argv = [sys.executable, "-c", FIRST_START, str(tmp_path)]
    processes = [
        subprocess.Popen([*argv, str(i)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for i in range(4)
    ]
    for process in processes:
        out, err = process.communicate(timeout=600)
        assert (process.returncode, out) == (0, "0 None []\n"), err
    uri = f"sqlite:///{tmp_path / 'mlflow.db'}"
    names = [experiment.name for experiment in connect(uri).search_experiments()]
    assert sorted(names) == ["Default", "line"]
    runs = runs_of(uri)
    assert sorted(runs) == sorted([f"run-{i}" for i in range(4)] + [f"run-{i}/sft/1" for i in range(4)])
    assert {run.info.status for run in runs.values()} == {"FINISHED"}
