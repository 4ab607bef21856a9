"""The wheel, in a fresh environment and an empty folder: a user's own YAML, rows and reward."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow
ROOT = Path(__file__).resolve().parent.parent

PIPELINE = """
name: mine
stages:
  base: {kind: import, from: ./base}
  rows:
    kind: data
    sources: [{kind: file, path: ./rows.jsonl}]
    splits: {train: 0.6, test: 0.4}
  sft: {kind: sft, model: base, data: rows.train, max_steps: 4, learning_rate: 1.0e-3, max_length: 64, save_steps: 2}
  gate:
    kind: gate
    model: sft
    data: rows.test
    rewards: [&mine {kind: python, file: ./reward.py, function: says_the_sum}]
    k: [1, 2]
    samples: 2
    sampling: {max_completion_length: 8}
  exam:
    kind: evaluate
    models: [base, sft]
    suites: {sums: {data: rows.test, rewards: [*mine], sampling: {max_completion_length: 8}}}
"""
REWARD = """
import finery
print("finery is at", finery.__file__)


def says_the_sum(prompts, completions, completion_ids, answer, **columns):
    return [float(text.strip() == right) for text, right in zip(completions, answer)]
"""


@pytest.fixture(scope="module")
def python(tmp_path_factory) -> Path:
    """An interpreter that has finery from a wheel, and everything else from the environment the tests run in."""
    root = tmp_path_factory.mktemp("wheel")
    source = root / "source"
    for name in ("src", "schemas", "stages", "pipelines"):
        skipped = shutil.ignore_patterns("*.egg-info", "__pycache__", "smollm2", ".finery")
        shutil.copytree(ROOT / name, source / name, symlinks=True, ignore=skipped)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source / name)
    pip = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "-q",
        "--no-deps",
        "--no-build-isolation",
        "-w",
        str(root),
        str(source),
    ]
    subprocess.run(pip, check=True, capture_output=True)
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(root / "venv")], check=True)
    site = next((root / "venv" / "lib").glob("python*/site-packages"))
    subprocess.run(
        [
            sys.executable,
            "-m",
            "pip",
            "install",
            "-q",
            "--no-deps",
            "--no-index",
            "--target",
            str(site),
            str(next(root.glob("finery-*.whl"))),
        ],
        check=True,
    )
    # what stands first on the path wins: the wheel before the editable install that the shared folder names
    (site / "shared.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
    return root / "venv" / "bin" / "python"


def test_the_wheel_runs_a_users_own_line_in_an_empty_folder(python, tmp_path, project_class):
    shutil.copytree(ROOT / "pipelines" / "base", tmp_path / "base")
    rows = [
        {"prompt": f"add:{a}+{b}=", "completion": str(a + b), "answer": str(a + b)}
        for a in range(10, 30)
        for b in range(1, 4)
    ]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "pipeline.yaml").write_text(PIPELINE)
    (tmp_path / "reward.py").write_text(REWARD)
    env = project_class(tmp_path).environment()
    done = subprocess.run(
        [str(python), "-m", "finery", "run", "pipeline.yaml", "--json", "--plain"],
        cwd=tmp_path, env=env, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode in (0, 3), done.stderr
    summary = json.loads(done.stdout)
    assert {name: stage["state"] for name, stage in summary["stages"].items()} == dict.fromkeys(
        ["base", "rows", "sft", "gate", "exam"], "Completed"
    )
    log = (tmp_path / ".finery" / "store" / "gate" / summary["stages"]["gate"]["key"] / "log.txt").read_text()
    imported_from = Path(log.split("finery is at ", 1)[1].splitlines()[0])
    assert python.parent.parent in imported_from.parents
    assert summary["stages"]["exam"]["metrics"]["base.sums.greedy"] > 0.5
