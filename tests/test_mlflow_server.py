"""Tracking and registry through a real `mlflow server` on this machine, which goes away and comes back."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from finery.receipts import RunInfo, already_applied
from finery.registry import apply_decision, resolve_alias
from finery.spool import Spool
from finery.tracking.connect import connect
from finery.tracking.sender import Tracker

pytestmark = pytest.mark.slow
BASE = Path(__file__).parent.parent / "pipelines" / "base"
NOW = 1_790_000_000.0


class Server:
    """An MLflow server that can be killed and started again on the same port and database."""

    def __init__(self, folder: Path) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.folder, self.uri = folder, f"http://127.0.0.1:{self.port}"
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        argv = [
            sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(self.port), "--workers", "1",
            "--backend-store-uri", f"sqlite:///{self.folder / 'mlflow.db'}",
            "--artifacts-destination", str(self.folder / "mlartifacts"),
        ]  # fmt: skip
        env = {**os.environ, "MLFLOW_DISABLE_TELEMETRY": "true", "DO_NOT_TRACK": "1"}
        with (self.folder / "server.log").open("ab") as log:
            self.process = subprocess.Popen(argv, env=env, stdout=log, stderr=log, start_new_session=True)
        deadline = time.monotonic() + 400
        while time.monotonic() < deadline and self.process.poll() is None:
            try:
                urllib.request.urlopen(f"{self.uri}/health", timeout=5)
                return
            except (urllib.error.URLError, OSError):
                time.sleep(0.3)
        raise AssertionError((self.folder / "server.log").read_text())

    def kill(self) -> None:
        if self.process and self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server that is not started yet; the tests of this file run in order."""
    server = Server(tmp_path_factory.mktemp("server"))
    yield server
    server.kill()


def points(uri: str, run: Any, name: str) -> list[tuple[int, float]]:
    return [(metric.step, metric.value) for metric in connect(uri).get_metric_history(run.info.run_id, name)]


def flushed(tracker: Tracker) -> bool:
    """Whether MLflow has everything within two minutes; a flush that finds it away returns at once."""
    deadline = time.monotonic() + 120
    while tracker.flush(120) and time.monotonic() < deadline:
        time.sleep(0.1)
    return tracker.remaining() == 0


def test_a_server_that_goes_away_and_comes_back_gets_everything_once(server: Server, tmp_path: Path) -> None:
    connect(f"sqlite:///{server.folder / 'mlflow.db'}")  # migrated here, so that the server starts sooner
    spool = Spool(tmp_path / ".finery" / "runs" / "run-1")
    tracker = Tracker(spool, server.uri)
    try:
        tracker.start()  # the server is not there yet
        spool.open_run("line", uri=server.uri, params={"seed": 7})
        attempt = spool.open_stage("sft", "sft", "k", 1, {"lr": 2e-4})
        spool.metrics(attempt, 0, NOW, {"loss": 9.0})
        assert tracker.flush(2) == 3
        server.start()
        assert flushed(tracker)
        for step in range(1, 41):
            spool.metrics(attempt, step, NOW + step, {"loss": 1 / step})
            if step == 10:
                server.kill()
            if step == 30:
                server.start()
            time.sleep(0.02)
        source = tmp_path / "模型 1.txt"
        source.write_bytes(b"bytes \xff")
        spool.artifact(attempt, source, "ok dir")
        spool.model(attempt, "sft.model", tmp_path, "d" * 64)
        spool.close_stage(attempt, "FINISHED", {"pass_at_1": 0.5})
        spool.close_run("FINISHED")
        assert flushed(tracker)
    finally:
        tracker.stop()
        spool.close()
    assert tracker.failed is None
    assert any("is back" in warning for warning in tracker.warnings)
    client = connect(server.uri)
    found = client.search_runs([client.get_experiment_by_name("line").experiment_id])
    runs = {run.data.tags["finery.id"]: run for run in found}
    assert sorted(runs) == ["run-1", attempt]
    assert len(found) == 2
    assert {run.info.status for run in found} == {"FINISHED"}
    assert points(server.uri, runs[attempt], "loss") == [(0, 9.0), *((step, 1 / step) for step in range(1, 41))]
    fetched = client.download_artifacts(runs[attempt].info.run_id, "ok dir/模型 1.txt")
    assert Path(fetched).read_bytes() == b"bytes \xff"
    assert len(runs[attempt].outputs.model_outputs) == 1


def test_a_promotion_through_a_server_is_fetched_again(server: Server, tmp_path: Path) -> None:
    if server.process is None:
        server.start()
    home = tmp_path / ".finery"
    model = tmp_path / "model"
    shutil.copytree(BASE, model)
    decision = {
        "verdict": "promote", "name": "served", "alias": "champion", "model": "merged", "model_digest": "a" * 64,
        "conditions": [{"metric": "merged.domain.pass_at_1", "value": 0.8, "bound": {}, "passed": True, "reason": ""}],
    }  # fmt: skip
    info: RunInfo = {"run_id": "run-1", "stage": "promote", "key": "k" * 64, "pipeline": "line"}
    first = apply_decision(decision, model, uri=server.uri, home=home, run_info=info)
    assert (first.version, first.moved, first.reused) == ("1", True, False)
    again = apply_decision(decision, model, uri=server.uri, home=home, run_info=info)
    assert (again.version, again.moved, again.reused) == ("1", False, True)
    assert already_applied(decision, server.uri, home) is not None
    resolved = resolve_alias(server.uri, "served", "champion", home)
    assert resolved.path.is_relative_to(home)
    assert {p.name: p.read_bytes() for p in resolved.path.iterdir()} == {p.name: p.read_bytes() for p in BASE.iterdir()}
    assert resolve_alias(server.uri, "served", "champion", home) == resolved
