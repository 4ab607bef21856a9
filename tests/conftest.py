"""What all tests share: a project folder, and finery's own command line as a user runs it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent
QUIET = {"DO_NOT_TRACK": "1", "HF_HUB_OFFLINE": "1", "MLFLOW_DISABLE_TELEMETRY": "true", "OMP_NUM_THREADS": "1"}


@dataclass
class Project:
    """A user's own folder."""

    folder: Path

    @property
    def home(self) -> Path:
        return self.folder / ".finery"

    def write(self, name: str, text: str) -> Path:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text), encoding="utf-8")
        return path

    def environment(self, **extra: str) -> dict[str, str]:
        env = {
            key: value for key, value in os.environ.items() if not key.startswith(("FINERY_", "MLFLOW_", "PREFECT_"))
        }
        return env | QUIET | extra

    def finery(
        self, *args: str, code: int | None = 0, timeout: int = 800, **env: str
    ) -> subprocess.CompletedProcess[str]:
        """Run the command line here and check its exit code (None: any)."""
        done = subprocess.run(
            [sys.executable, "-m", "finery", *args],
            cwd=self.folder, env=self.environment(**env), capture_output=True, text=True, timeout=timeout, check=False,
        )  # fmt: skip
        if code is not None:
            assert done.returncode == code, f"exit {done.returncode}, not {code}\n{done.stdout}\n{done.stderr}"
        return done

    def run(
        self, file: str = "pipeline.yaml", *args: str, code: int = 0, plain: bool = True, **env: str
    ) -> dict[str, Any]:
        """`finery run --json`, and its summary."""
        done = self.finery("run", file, "--json", *(["--plain"] if plain else []), *args, code=code, **env)
        return json.loads(done.stdout)

    def states(self, file: str = "pipeline.yaml", *args: str, code: int = 0, **env: str) -> dict[str, str]:
        return {name: stage["state"] for name, stage in self.run(file, *args, code=code, **env)["stages"].items()}

    def plan(self, file: str = "pipeline.yaml", *args: str) -> dict[str, Any]:
        return json.loads(self.finery("plan", file, "--json", *args).stdout)["stages"]


@pytest.fixture
def project(tmp_path: Path) -> Project:
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "flows.yaml").write_text("deployments: {}\n", encoding="utf-8")
    return Project(folder)


@pytest.fixture(scope="session")
def project_class() -> type[Project]:
    return Project


@pytest.fixture(scope="session")
def eventually() -> Callable[..., None]:
    """Wait until something holds; fails with what it was when it never does."""
    import time

    def wait(check: Callable[[], Any], *, seconds: float = 60.0) -> None:
        deadline = time.monotonic() + seconds
        while not check():
            assert time.monotonic() < deadline, f"still not so after {seconds} s"
            time.sleep(0.05)

    return wait


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest files first, so that two workers end together."""
    long = ["test_quickstart.py", "test_line.py", "test_run.py", "test_store.py", "test_flow.py", "test_tracking.py"]
    items.sort(key=lambda item: long.index(item.path.name) if item.path.name in long else len(long))
