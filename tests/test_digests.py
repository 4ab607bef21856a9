"""What enters a key beside the config: code, files, packages."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from finery.digests import DigestCache
from finery.errors import InputError

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture
def package(tmp_path):
    """A copy of finery that may be edited."""
    for name in ("schemas", "stages", "src"):
        shutil.copytree(
            ROOT / name, tmp_path / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info")
        )
    return tmp_path / "src" / "finery"


def code(package: Path, kind: str) -> str:
    asked = f"from pathlib import Path; from finery.digests import DigestCache; import finery; print(finery.__file__); print(DigestCache(Path('cache')).code({kind!r}))"
    env = {**os.environ, "PYTHONPATH": str(package.parent)}
    done = subprocess.run(
        [sys.executable, "-c", asked], cwd=package.parent, env=env, capture_output=True, text=True, check=True
    )
    place, digest = done.stdout.split()
    assert Path(place).parent == package
    return digest


def test_a_comment_or_a_docstring_changes_no_key_an_edited_module_far_below_does(package):
    before = {kind: code(package, kind) for kind in ("gate", "merge")}
    path = package / "stats" / "passk.py"
    text = path.read_text()
    first, rest = text.split('"""', 2)[1:]
    path.write_text(f'"""Another docstring.\n{first}"""{rest}\n# a comment\n')
    assert code(package, "gate") == before["gate"]
    path.write_text(text + "\nSOMETHING = 1\n")
    assert code(package, "gate") != before["gate"]
    assert code(package, "merge") == before["merge"]  # merging never reaches pass@k


def test_late_imports_are_part_of_the_code(tmp_path):
    closure = DigestCache(tmp_path).closure("finery.stages.gate")
    assert {"finery.training.sampling", "finery.stats.verdict", "finery.rewards.builder"} <= set(closure)
    in_processes = {"worker_verifiers", "worker_patterns", "sql_main", "sql_engines", "sandbox.zygote", "sandbox.judge"}
    assert {f"finery.rewards.{name}" for name in (*in_processes, "sandbox.landlock", "sandbox.wire")} <= set(closure)
    assert not [name for name in closure if name.startswith(("finery.schemas", "finery.flow", "finery.plan"))]


def test_a_folder_is_its_names_and_bytes_not_its_place_or_times(tmp_path):
    cache = DigestCache(tmp_path / "home")
    for name in ("a", "b"):
        (tmp_path / name / "sub").mkdir(parents=True)
        (tmp_path / name / "sub" / "x.txt").write_text("1")
    os.utime(tmp_path / "b" / "sub" / "x.txt", (0, 0))
    first = cache.tree(tmp_path / "a")
    assert cache.tree(tmp_path / "b") == first
    (tmp_path / "b" / "sub" / "x.txt").write_text("2")
    assert cache.tree(tmp_path / "b") != first
    (tmp_path / "a" / "sub" / "x.txt").rename(tmp_path / "a" / "sub" / "y.txt")
    assert cache.tree(tmp_path / "a") != first


def test_nothing_there_is_named(tmp_path):
    with pytest.raises(InputError, match=r"nothing\*\.jsonl: no such file, folder or match"):
        DigestCache(tmp_path).tree(tmp_path / "nothing*.jsonl")


def test_versions_of_another_interpreter_are_asked_there(tmp_path):
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "venv")], check=True)
    cache = DigestCache(tmp_path / "home")
    assert cache.versions(("pydantic",), str(tmp_path / "venv" / "bin" / "python")) == {"pydantic": "absent"}
    assert cache.versions(("pydantic",), None)["pydantic"] != "absent"
    with pytest.raises(InputError, match="is not there"):
        cache.versions(("pydantic",), str(tmp_path / "none" / "bin" / "python"))


def test_a_stage_runs_in_an_environment_of_its_own(project):
    """Stage code needs neither prefect nor mlflow: here is an environment that has neither."""
    import pydantic

    site = Path(pydantic.__file__).parent.parent
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(project.folder / "venv")], check=True)
    target = next((project.folder / "venv" / "lib").glob("python*/site-packages"))
    for name in ("pydantic", "pydantic_core", "annotated_types", "typing_inspection", "typing_extensions.py"):
        (target / name).symlink_to(site / name)
    project.write(
        "pipeline.yaml",
        """
        name: own
        stages:
          here: {kind: script, command: "true", runtime: {process: {python: ./venv/bin/python}}}
        """,
    )
    assert project.states() == {"here": "Completed"}
