"""Outside models: hub ids become commits in the lock file, registry aliases versions."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
COMMIT = "0123456789abcdef0123456789abcdef01234567"
PIPELINE = """
    name: hub
    stages:
      base: {kind: import, from: "hf:someone/tiny@main"}
    """


@pytest.fixture
def hub(tmp_path):
    """A hub cache as huggingface_hub leaves one after a download, with the tiny base in it."""
    repo = tmp_path / "hf" / "hub" / "models--someone--tiny"
    shutil.copytree(ROOT / "pipelines" / "base", repo / "snapshots" / COMMIT)
    (repo / "refs").mkdir()
    (repo / "refs" / "main").write_text(COMMIT)
    return tmp_path / "hf"


def test_a_hub_id_is_resolved_once_and_locked(project, hub):
    project.write("pipeline.yaml", PIPELINE)
    env = {"HF_HOME": str(hub)}
    unresolved = project.finery("plan", "pipeline.yaml", **env).stdout
    assert "unresolved" in unresolved and "hf:someone/tiny@main is not in the lock file" in unresolved
    summary = project.run(**env)
    assert summary["stages"]["base"]["state"] == "Completed"
    assert f"commit: {COMMIT}" in (project.folder / "pipeline.lock.yaml").read_text()
    (hub / "hub" / "models--someone--tiny" / "refs" / "main").write_text(
        "f" * 40
    )  # the branch moves; the lock does not
    assert project.run(**env)["stages"]["base"]["state"] == "Cached"


def test_a_hub_id_that_cannot_be_fetched_is_one_clear_error(project, tmp_path):
    project.write("pipeline.yaml", PIPELINE)
    done = project.finery("run", "pipeline.yaml", "--plain", code=1, HF_HOME=str(tmp_path / "empty"))
    assert "hf:someone/tiny@main cannot be fetched" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_damaged_lock_file_is_named(project, hub):
    project.write("pipeline.yaml", PIPELINE)
    (project.folder / "pipeline.lock.yaml").write_text("- what\n")
    assert "is not a lock file" in project.finery("plan", "pipeline.yaml", code=2).stderr


@pytest.mark.slow
def test_a_promoted_model_is_a_base_by_its_alias(project):
    shutil.copytree(ROOT / "pipelines" / "base", project.folder / "base")
    project.write(
        "first.yaml",
        """
        name: first
        stages:
          base: {kind: import, from: ./base}
          rows: {kind: data, sources: [{kind: skills, rows: 20}]}
          exam:
            kind: evaluate
            models: [base]
            suites: {s: {data: rows, rewards: [{kind: answer, extract: whole, compare: text}], sampling: {max_completion_length: 8}}}
          promote: {kind: promote, model: base, evaluation: exam, require: {base.s.greedy: {min: 0.1}}}
        """,
    )
    assert project.run("first.yaml")["promotions"][0]["version"] == "1"
    project.write(
        "second.yaml",
        """
        name: second
        stages:
          start: {kind: import, from: "registry:first@champion"}
        """,
    )
    assert project.run("second.yaml")["stages"]["start"]["state"] == "Completed"
    lock = (project.folder / "second.lock.yaml").read_text()
    assert "version: '1'" in lock
    assert str(project.folder) not in lock.replace(str(project.home), "")
