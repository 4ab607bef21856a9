"""`finery init`: what it writes is a project that validates and that its comments tell the truth about."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from finery.errors import InputError
from finery.init import FILES, init_project
from finery.language.nodes import parse
from finery.load import load

ROOT = Path(__file__).parent.parent


def test_the_starter_project_validates_where_it_is_written(tmp_path):
    folder = tmp_path / "new" / "project"
    written = init_project(folder)
    assert sorted(written) == sorted(path for path in folder.rglob("*") if path.is_file())
    loaded = load(folder / "pipeline.yaml")
    assert loaded.project == folder
    assert loaded.warnings == []
    assert {"import", "data", "sft", "gate", "grpo", "evaluate", "promote"} == {
        stage.kind for stage in loaded.pipeline.stages.values()
    }


def test_nothing_is_overwritten_and_what_is_there_is_named(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "train.jsonl").write_text("mine")
    (tmp_path / "reward.py").symlink_to("nowhere")
    with pytest.raises(InputError, match=r"^reward\.py, data/train\.jsonl: already there; finery init writes a new"):
        init_project(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data", "reward.py"]
    assert (tmp_path / "data" / "train.jsonl").read_text() == "mine"


def test_a_file_in_the_way_is_named(tmp_path):
    (tmp_path / "data").write_text("")
    with pytest.raises(InputError, match=r"data: is a file; choose another folder"):
        init_project(tmp_path)


def test_its_rows_are_right_and_its_reward_tells_steps_from_none(tmp_path):
    init_project(tmp_path)
    rows = [json.loads(line) for line in (tmp_path / "data" / "train.jsonl").read_text().splitlines()]
    assert len({row["prompt"] for row in rows}) == len(rows) >= 500
    for row in rows:
        assert row["answer"] == str(eval(row["prompt"].removeprefix("Q:")))
    wrong = sum(row["answer"] != row["completion"].rsplit("#### ", 1)[1] for row in rows)
    assert 0.35 < wrong / len(rows) < 0.45  # the 4 in 10 that pipeline.yaml tells of
    namespace: dict = {}
    exec((tmp_path / "reward.py").read_text(), namespace)
    good = [row["completion"] for row in rows]
    short = [f"A:#### {row['answer']}" for row in rows]
    prompts = [row["prompt"] for row in rows]
    assert set(namespace["worked_out"](prompts, good, answer=None)) == {1.0}
    assert set(namespace["worked_out"](prompts, short, answer=None)) == {0.0}


def test_its_deployment_names_its_pipeline_and_sets_what_it_has(tmp_path):
    init_project(tmp_path)
    root, problems = parse((tmp_path / "flows.yaml").read_text())
    assert root is not None
    assert not problems
    nightly = root.plain()["deployments"]["nightly"]
    sets = [f"{key}={json.dumps(value)}" for key, value in nightly["parameters"].items()]
    assert load(tmp_path / nightly["pipeline"], sets).overrides == nightly["parameters"]


@pytest.mark.slow
def test_a_wheel_holds_every_file_of_the_starter(tmp_path):
    source = tmp_path / "source"  # a copy, so that nothing is built in the repository
    source.mkdir()
    for name in ("src", "schemas", "stages", "pipelines/base"):
        shutil.copytree(ROOT / name, source / name, symlinks=True, ignore=shutil.ignore_patterns("*.egg-info"))
    for path in [*ROOT.glob("*.toml"), *ROOT.glob("*.md"), *ROOT.glob("LICENSE")]:
        shutil.copy(path, source)
    pip = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation"]
    done = subprocess.run([*pip, "-w", str(tmp_path), str(source)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    with zipfile.ZipFile(next(tmp_path.glob("*.whl"))) as wheel:
        for name in FILES:
            assert wheel.read(f"finery/starter/{name}") == (ROOT / "src" / "finery" / "starter" / name).read_bytes()
