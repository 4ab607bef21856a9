"""The quickstart, whole, as the README promises it: what it must reach, whatever the seed of the day."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]
ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="module")
def quickstart(tmp_path_factory, project_class):
    folder = tmp_path_factory.mktemp("quickstart")
    shutil.copy(ROOT / "flows.yaml", folder)
    (folder / "pipelines").mkdir()
    shutil.copy(ROOT / "pipelines" / "quickstart.yaml", folder / "pipelines")
    shutil.copytree(ROOT / "pipelines" / "base", folder / "pipelines" / "base")
    project = project_class(folder)
    done = project.finery("run", "pipelines/quickstart.yaml", timeout=1700)
    project.printed = done.stdout
    project.summary = json.loads(max((project.home / "runs").glob("*/summary.json")).read_text())
    return project


def exam(project) -> dict:
    place = Path(project.summary["stages"]["exam"]["outputs"]["evaluation"]["path"])
    return json.loads((place / "evaluation.json").read_text())["models"]


def test_the_gate_sees_a_gap_and_says_rl(quickstart):
    verdict = json.loads(
        (Path(quickstart.summary["stages"]["gate"]["outputs"]["verdict"]["path"]) / "verdict.json").read_text()
    )
    assert verdict["verdict"] == "rl"
    assert 0.3 < verdict["pass_at_1"]["value"] < 0.6
    assert verdict["pass_at_k"]["value"] > 0.85


def test_grpo_lifts_pass_at_1_the_student_follows_and_the_merge_keeps_what_was_won(quickstart):
    models = exam(quickstart)
    domain = {name: suites["domain"]["pass_at_1"]["value"] for name, suites in models.items()}
    general = {name: suites["general"]["greedy"]["value"] for name, suites in models.items()}
    assert domain["base"] < 0.05
    assert domain["grpo"] >= domain["sft"] + 0.2
    assert domain["student"] >= 0.7
    assert domain["merged"] >= domain["sft"] + (domain["grpo"] - domain["sft"]) / 2
    assert general["merged"] >= general["grpo"] - 0.02
    assert general["base"] > 0.95


def test_the_student_is_two_and_a_half_times_smaller(quickstart):
    from safetensors import safe_open

    def size(stage: str) -> int:
        place = Path(quickstart.summary["stages"][stage]["outputs"]["model"]["path"])
        with safe_open(place / "model.safetensors", "np") as file:
            return sum(file.get_tensor(name).size for name in file.keys())  # noqa: SIM118

    assert size("grpo") / size("student") > 2.5


def test_no_test_prompt_is_in_the_training_data(quickstart):
    from finery.data.dataset import read_dataset

    outputs = quickstart.summary["stages"]["corpus"]["outputs"]
    prompts = {
        name: {row["prompt"] for row in read_dataset(Path(outputs[name]["path"]))} for name in ("test", "rl", "sft")
    }
    assert len(prompts["test"]) == 150
    assert not prompts["test"] & (prompts["rl"] | prompts["sft"])


def test_it_prints_the_table_the_verdict_the_exam_the_promotion_and_the_report(quickstart):
    text = quickstart.printed
    assert "gate: rl: pass@1" in text
    assert all(name in text for name in ("base", "sft", "grpo", "student", "merged"))
    assert "promoted: quickstart version 1 is @champion" in text
    report = Path(text.split("report: ", 1)[1].splitlines()[0])
    page = report.read_text()
    assert "<script src" not in page and "<link" not in page and "http://" not in page.replace("http://www.w3.org", "")
