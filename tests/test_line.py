"""The line end to end on the tiny base: states, MLflow, Prefect, gates, refusals, death and resumption."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from finery.guard import descendants
from finery.servers import PrefectServer

pytestmark = pytest.mark.slow
ROOT = Path(__file__).resolve().parent.parent
BASE_PARAMETERS = 336_672  # 336,384 of the Qwen2 form and 3 * 96 of o_proj's bias, which Llama has


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except FileNotFoundError:
        return False


@pytest.fixture(scope="module")
def make_project(tmp_path_factory, project_class):
    """A folder with the repository's lines in it, and the store of another project if one is given."""

    def make(name: str, store_of=None):
        root = tmp_path_factory.mktemp(name)
        folder = root / "tests" / "lines"
        shutil.copytree(ROOT / "tests" / "lines", folder)
        shutil.copytree(ROOT / "pipelines" / "base", root / "pipelines" / "base")
        (folder / "flows.yaml").write_text("deployments: {}\n")
        project = project_class(folder)
        if store_of is not None:
            for part in ("store", "stages", "cache"):
                shutil.copytree(store_of.home / part, project.home / part)
        return project

    return make


@pytest.fixture(scope="module")
def prefect(tmp_path_factory):
    with PrefectServer(tmp_path_factory.mktemp("prefect") / ".finery") as server:
        server.ready()
        settings = server.client_settings()
        yield {name: value for name, value in settings.items() if value is not None}


@pytest.fixture(scope="module")
def line(make_project, prefect):
    """The tiny line, run once as a user runs it, under a Prefect server and with MLflow."""
    project = make_project("line")
    project.summary = project.run("tiny.yaml", plain=False, **prefect)
    return project


def parameters_of(name: str, uri: str, place: Path) -> int:
    """Download a champion as a user does, in a process of its own, and load it with transformers alone."""
    code = (
        "import sys, mlflow; from pathlib import Path; from transformers import AutoModelForCausalLM\n"
        "name, uri, place = sys.argv[1:]; mlflow.set_tracking_uri(uri)\n"
        "folder = Path(mlflow.artifacts.download_artifacts(f'models:/{name}@champion', dst_path=place))\n"
        "found = next(folder.rglob('model.safetensors')).parent\n"
        "print(AutoModelForCausalLM.from_pretrained(found).num_parameters())"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, name, uri, str(place)], capture_output=True, text=True, check=True
    )
    return int(done.stdout.split()[-1])


def test_the_whole_line_completes_and_promotes(line):
    assert {name: stage["state"] for name, stage in line.summary["stages"].items()} == dict.fromkeys(
        ["base", "corpus", "general", "sft", "gate", "grpo", "student", "merged", "exam", "promote"], "Completed"
    )
    assert line.summary["promotions"] == [
        {"stage": "promote", "name": "tiny", "version": "1", "alias": "champion", "moved": True, "reused": False}
    ]
    report = Path(line.summary["report"]).read_text()
    assert all(name in report for name in line.summary["stages"])


def test_outputs_hold_no_pickle_no_path_no_host_and_no_time(line):
    import socket

    forbidden = [str(ROOT), str(line.folder), str(line.home), "/tmp/", "/root/"]
    host = re.compile(rf"\b{re.escape(socket.gethostname())}\b")
    for manifest in line.home.glob("store/*/*/manifest.json"):
        for path in (manifest.parent / "outputs").rglob("*"):
            if not path.is_file():
                continue
            assert path.suffix not in {".bin", ".pt", ".pth", ".pkl", ".pickle"}, path
            assert path.name not in {"training_args.bin", "README.md", "trainer_state.json"}, path
            content = path.read_bytes()
            for text in forbidden:
                assert text.encode() not in content, f"{path} holds {text}"
            if path.suffix in {".json", ".jsonl", ".txt", ".jinja"}:
                assert not host.search(content.decode()), f"{path} holds the host's name"


def test_mlflow_shows_the_run_its_stages_and_the_registered_model(line, tmp_path):
    from mlflow import MlflowClient

    uri = f"sqlite:///{line.home / 'mlflow.db'}"
    client = MlflowClient(uri)
    experiment = client.get_experiment_by_name("tiny")
    runs = client.search_runs([experiment.experiment_id])
    parents = [run for run in runs if "mlflow.parentRunId" not in run.data.tags]
    assert [run.info.status for run in parents] == ["FINISHED"]
    children = {
        run.data.tags["finery.stage"]: run
        for run in runs
        if run.data.tags.get("mlflow.parentRunId") == parents[0].info.run_id
    }
    assert set(children) == set(line.summary["stages"])
    assert all(run.info.status == "FINISHED" for run in children.values())
    assert all(run.data.tags["finery.key"] == line.summary["stages"][name]["key"] for name, run in children.items())
    losses = client.get_metric_history(children["sft"].info.run_id, "loss")
    assert [metric.step for metric in losses] == sorted({metric.step for metric in losses})
    assert children["grpo"].data.params["num_generations"] == "4"
    assert "report.html" in {file.path for file in client.list_artifacts(parents[0].info.run_id)}
    version = client.get_model_version_by_alias("tiny", "champion")
    assert version.tags["finery.digest"] == line.summary["stages"]["merged"]["outputs"]["model"]["digest"]
    assert parameters_of("tiny", uri, tmp_path) == BASE_PARAMETERS


def test_prefect_shows_the_flow_run_and_its_task_states(line, prefect):
    from prefect.client.orchestration import get_client
    from prefect.settings import PREFECT_API_AUTH_STRING, PREFECT_API_URL, temporary_settings

    async def ask():
        async with get_client() as client:
            flows = await client.read_flow_runs()
            tasks = await client.read_task_runs()
            return flows, tasks

    settings = {PREFECT_API_URL: prefect["PREFECT_API_URL"]}
    if "PREFECT_API_AUTH_STRING" in prefect:
        settings[PREFECT_API_AUTH_STRING] = prefect["PREFECT_API_AUTH_STRING"]
    with temporary_settings(settings):
        flows, tasks = asyncio.run(ask())
    flow = next(run for run in flows if line.summary["run"] in run.name)
    assert flow.state.is_completed()
    states = {task.name: task.state.name for task in tasks if task.flow_run_id == flow.id}
    assert states == dict.fromkeys(line.summary["stages"], "Completed")


def test_again_everything_is_cached_without_prefect_or_mlflow(line):
    """The second run imports neither; the promotion is applied once."""
    code = (
        "import sys, runpy; sys.argv = ['finery', 'run', 'tiny.yaml', '--json']\n"
        "try: runpy.run_module('finery', run_name='__main__')\n"
        "except SystemExit as e: assert not e.code, e.code\n"
        "heavy = {'torch', 'prefect', 'mlflow'} & set(sys.modules)\nassert not heavy, heavy"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=line.folder,
        env=line.environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout)
    assert {stage["state"] for stage in summary["stages"].values()} == {"Cached"}
    assert summary["promotions"][0] | {"reused": 0} == {
        "stage": "promote",
        "name": "tiny",
        "version": "1",
        "alias": "champion",
        "moved": False,
        "reused": 0,
    }


def files_of(project, summary, stage: str) -> dict[str, dict]:
    data = summary["stages"][stage]
    manifest = json.loads((project.home / "store" / data["kind"] / data["key"] / "manifest.json").read_text())
    return manifest["files"]


def metric_steps(project, summary, stage: str) -> list[int]:
    data = summary["stages"][stage]
    lines = (project.home / "store" / data["kind"] / data["key"] / "metrics.jsonl").read_text().splitlines()
    return [event["step"] for event in map(json.loads, lines) if event["type"] == "metrics"]


def kill_in(project, stage: str, checkpoint: int, eventually, *options: str) -> list[int]:
    """Start the line, `kill -9` its engine once `stage` has a checkpoint; the descendants that were left after 2 s."""
    engine = subprocess.Popen(
        [sys.executable, "-m", "finery", "run", "tiny.yaml", *options],
        cwd=project.folder, env=project.environment(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
    )  # fmt: skip

    def far_enough() -> bool:
        assert engine.poll() is None, "the run ended before it could be killed"
        return any(project.home.glob(f"store/{stage}/*.partial/checkpoints/checkpoint-{checkpoint}/whole.json"))

    eventually(far_enough, seconds=400)
    living = descendants(engine.pid)
    assert len(living) >= 2
    os.kill(engine.pid, signal.SIGKILL)
    engine.wait()
    time.sleep(2)
    return [pid for pid in living if alive(pid)]


def without(project, *stages: str) -> None:
    """Forget what some kinds of stage made."""
    for stage in stages:
        shutil.rmtree(project.home / "store" / stage, ignore_errors=True)


def test_kill_9_in_sft_resumes_at_its_checkpoint_and_ends_in_the_same_bytes(line, make_project, eventually):
    project = make_project("kill-sft", store_of=line)
    without(project, "sft", "gate", "grpo", "distill", "merge", "evaluate", "promote")
    assert kill_in(project, "sft", 4, eventually) == []
    assert project.plan("tiny.yaml")["sft"]["state"] == "resume"
    again = project.run("tiny.yaml", "--only", "sft")
    assert {name: stage["state"] for name, stage in again["stages"].items()} == {
        "base": "Cached", "corpus": "Cached", "general": "Cached", "sft": "Completed",
    }  # fmt: skip
    assert files_of(project, again, "sft") == files_of(line, line.summary, "sft")
    assert metric_steps(project, again, "sft") == metric_steps(line, line.summary, "sft")


def test_kill_9_in_grpo_resumes_at_its_checkpoint_and_logs_no_step_twice(line, make_project, eventually):
    project = make_project("kill-grpo", store_of=line)
    without(project, "grpo", "distill", "merge", "evaluate", "promote")
    assert kill_in(project, "grpo", 2, eventually, "--plain") == []
    assert project.plan("tiny.yaml")["grpo"]["state"] == "resume"
    again = project.run("tiny.yaml")
    assert {name: stage["state"] for name, stage in again["stages"].items()} == {
        name: "Completed" if name in ("grpo", "student", "merged", "exam", "promote") else "Cached" for name in line.summary["stages"]
    }  # fmt: skip
    assert metric_steps(project, again, "grpo") == metric_steps(line, line.summary, "grpo")
    assert files_of(project, again, "grpo") == files_of(line, line.summary, "grpo")


@pytest.fixture(scope="module")
def gated(make_project):
    project = make_project("gated")
    project.summary = project.run("gated.yaml")
    return project


def test_skip_rl_skips_grpo_and_the_line_goes_on_with_its_input(gated):
    stages = gated.summary["stages"]
    assert stages["grpo"]["state"] == "Skipped" and "skip_rl" in stages["grpo"]["message"]
    assert stages["grpo"]["outputs"]["model"]["digest"] == stages["base"]["outputs"]["model"]["digest"]
    assert stages["promote"]["state"] == "Completed"
    evaluation = json.loads((Path(stages["exam"]["outputs"]["evaluation"]["path"]) / "evaluation.json").read_text())
    assert evaluation["models"]["grpo"] == evaluation["models"]["base"] | {
        "general": evaluation["models"]["grpo"]["general"]
    }
    assert evaluation["same"]["grpo"] == "base"


def test_more_data_blocks_what_depends_on_it_and_exits_3(gated):
    summary = gated.run("gated.yaml", "--set", "stages.gate.solved_at=1.0", "--set", "stages.gate.min_gap=0.9", code=3)
    states = {name: stage["state"] for name, stage in summary["stages"].items()}
    assert states == {
        "base": "Cached", "general": "Cached", "gate": "Completed", "grpo": "Blocked", "merged": "Blocked", "exam": "Blocked", "promote": "Blocked",
    }  # fmt: skip
    assert "more_data" in summary["stages"]["grpo"]["message"]


def test_more_data_may_be_told_to_skip(gated):
    options = [
        "--set",
        "stages.gate.solved_at=1.0",
        "--set",
        "stages.gate.min_gap=0.9",
        "--set",
        "stages.gate.on_more_data=skip",
    ]
    assert gated.states("gated.yaml", *options)["grpo"] == "Skipped"


def test_a_refused_promotion_moves_nothing_says_by_how_much_and_exits_4(gated):
    before = sorted((gated.home / "registry").glob("*.json"))
    summary = gated.run(
        "gated.yaml", "--set", "stages.promote.require={merged.general.greedy: {min: 1.0, on: low}}", code=4
    )
    promote = summary["stages"]["promote"]
    assert promote["state"] == "Refused"
    assert "merged.general.greedy" in promote["message"] and "below min 1.00" in promote["message"]
    assert summary["promotions"] == []
    assert sorted((gated.home / "registry").glob("*.json")) == before
    assert (
        gated.run("gated.yaml", "--set", "stages.promote.require={merged.general.greedy: {min: 1.0, on: low}}", code=4)[
            "stages"
        ]["promote"]["state"]
        == "Refused"
    )


def test_an_adapter_is_trained_continued_measured_and_ships_as_whole_weights(make_project, tmp_path):
    project = make_project("adapter")
    summary = project.run("adapter.yaml")
    assert {stage["state"] for stage in summary["stages"].values()} == {"Completed"}
    place = Path(summary["stages"]["grpo"]["outputs"]["model"]["path"])
    info = json.loads((place / "model.json").read_text())
    assert info["form"] == "adapter"
    assert info["base"]["digest"] == summary["stages"]["base"]["outputs"]["model"]["digest"]
    assert not (place / "model.safetensors").exists() and not (place / "ref").exists()
    assert parameters_of("adapter", f"sqlite:///{project.home / 'mlflow.db'}", tmp_path) == BASE_PARAMETERS
