from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from finery.contract import StageContext, StageResult
from finery.data.dataset import Row, read_dataset
from finery.schemas.data import DataStage
from finery.schemas.reference import uses
from finery.stages import data

CASES = Path(__file__).parents[1] / "cases"


@dataclass
class Made:
    """What one run of the stage left."""

    result: StageResult
    outputs: Path
    events: list[dict[str, Any]]

    def rows(self, split: str) -> list[Row]:
        return read_dataset(self.outputs / split)

    @property
    def card(self) -> dict[str, Any]:
        return json.loads((self.outputs / "card/card.json").read_text(encoding="utf-8"))

    @property
    def rejects(self) -> list[dict[str, Any]]:
        text = (self.outputs / "rejects/rejects.jsonl").read_text(encoding="utf-8")
        return [json.loads(line) for line in text.splitlines()]

    @property
    def warnings(self) -> list[str]:
        return [event["message"] for event in self.events if event["type"] == "warning"]


@pytest.fixture
def cases() -> Path:
    return CASES


@pytest.fixture
def make(tmp_path: Path) -> Callable[..., Made]:
    """Run the stage on a config; file paths are taken from `base` (tmp_path by default)."""
    runs: list[Path] = []

    def make_(config: dict[str, Any], *, seed: int = 7, base: Path = tmp_path) -> Made:
        stage = DataStage.model_validate({"kind": "data", **config})
        work = tmp_path / f".run{len(runs)}"
        runs.append(work)
        (work / "checkpoints").mkdir(parents=True)
        context = StageContext(
            stage="corpus",
            seed=seed,
            output_dir=work / "outputs",
            checkpoint_dir=work / "checkpoints",
            metrics_path=work / "metrics.jsonl",
            base_dir=base,
        )
        inputs = {use.field: base / use.text for use in uses(stage)}
        result = data.run(stage, inputs, context)
        events = [json.loads(line) for line in context.metrics_path.read_text(encoding="utf-8").splitlines()]
        return Made(result, work / "outputs", events)

    return make_


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    """Write a file of JSON lines, text or bytes below tmp_path."""

    def write_(name: str, content: list[Any] | str | bytes) -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(content, list):
            content = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in content)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    return write_
