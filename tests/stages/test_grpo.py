"""The grpo stage as the engine calls it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from finery.contract import StageContext
from finery.data.chains import chain_rows
from finery.data.dataset import read_dataset, write_dataset
from finery.schemas.grpo import GrpoStage
from finery.stages import grpo
from finery.training.models import load_model, read_model_info

BASE = Path(__file__).parents[2] / "pipelines" / "base"


def _context(folder: Path) -> StageContext:
    folder.mkdir(parents=True, exist_ok=True)
    return StageContext(
        stage="grpo",
        seed=5,
        output_dir=folder / "out",
        checkpoint_dir=folder / "ck",
        metrics_path=folder / "metrics.jsonl",
        base_dir=folder,
        input_refs={"model": "sft"},
        input_digests={"model": "c" * 64},
    )


def _config(**changes: Any) -> GrpoStage:
    given: dict[str, Any] = {
        "kind": "grpo", "model": "m", "data": "d", "rewards": [{"kind": "answer", "extract": "last_number"}],
        "max_steps": 3, "per_device_train_batch_size": 8, "num_generations": 4, "learning_rate": 1e-3,
        "sampling": {"max_completion_length": 20, "temperature": 2.5}, "save_steps": 2, "logging_steps": 1,
    }  # fmt: skip
    return GrpoStage.model_validate(given | changes)


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("data")
    prompts = [
        {name: row[name] for name in ("prompt", "answer", "meta")}
        for row in chain_rows(12, seed=4, style="compact", levels=[1, 2])
    ]
    write_dataset([*prompts, prompts[0]], root / "data")
    return {"model": BASE, "data": root / "data"}


def _warnings(context: StageContext) -> list[str]:
    events = [json.loads(line) for line in context.metrics_path.read_text().splitlines()]
    return [event["message"] for event in events if event["type"] == "warning"]


def _files(context: StageContext) -> dict[str, bytes]:
    return {
        path.relative_to(context.output_dir).as_posix(): path.read_bytes()
        for path in sorted(context.output_dir.rglob("*"))
        if path.is_file()
    }


def test_a_policy_is_trained_and_what_was_seen_is_kept(tmp_path: Path, inputs: dict[str, Path]) -> None:
    one, two = _context(tmp_path / "one"), _context(tmp_path / "two")
    result = grpo.run(_config(), inputs, one)
    grpo.run(_config(), inputs, two)
    assert _files(one) == _files(two)
    assert "data: 1 rows repeat a prompt" in _warnings(one)[0]
    before, after = load_model(BASE).state_dict(), load_model(one.output("model")).state_dict()
    assert any(not before[name].equal(after[name]) for name in before)
    assert (one.output("model") / "config.json").read_text() == (BASE / "config.json").read_text()

    samples = [json.loads(line) for line in (one.output("samples") / "samples.jsonl").read_text().splitlines()]
    prompts = json.loads((one.output("difficulty") / "difficulty.json").read_text())["prompts"]
    # 3 steps of 2 prompts with 4 completions each, all of them in the samples
    assert len(samples) == 24
    assert prompts == {
        name: {"n": 4, "solved": sum(sample["solved"] for sample in samples if sample["id"] == name)}
        for name in sorted({sample["id"] for sample in samples})
    }
    assert len(prompts) == 6
    assert set(samples[0]) == {
        "step", "id", "prompt", "completion", "answer", "score", "advantage", "solved", "truncated",
    }  # fmt: skip
    assert result.metrics["prompts"] == 12
    assert {"reward", "solved", "frac_all_solved", "frac_none_solved", "advantage_std", "loss"} <= set(result.metrics)


def test_known_pass_rates_keep_prompts_out(tmp_path: Path, inputs: dict[str, Path]) -> None:
    rows = read_dataset(inputs["data"])
    ids = list(dict.fromkeys(row["id"] for row in rows))
    known = {name: {"n": 16, "solved": 8 if place < 6 else 16} for place, name in enumerate(ids)}
    (tmp_path / "gate").mkdir()
    (tmp_path / "gate" / "difficulty.json").write_text(json.dumps({"prompts": known}))
    context = _context(tmp_path / "run")
    config = _config(difficulty={"start": "gate.difficulty"})
    result = grpo.run(config, inputs | {"difficulty.start": tmp_path / "gate"}, context)
    samples = [json.loads(line) for line in (context.output("samples") / "samples.jsonl").read_text().splitlines()]
    assert {sample["id"] for sample in samples} == set(ids[:6])
    assert result.metrics["prompts_in_pass"] == 6
    after = json.loads((context.output("difficulty") / "difficulty.json").read_text())["prompts"]
    assert all(after[name] == known[name] for name in ids[6:])
    assert all(after[name]["n"] == pytest.approx(0.9 * 16 + 4) for name in ids[:6])


def test_a_band_that_cannot_bite_is_said(tmp_path: Path, inputs: dict[str, Path]) -> None:
    context = _context(tmp_path)
    grpo.run(_config(max_steps=2, difficulty={"discount": 0.1}), inputs, context)
    assert any("can drop no prompt: with groups of 4" in line for line in _warnings(context))


def test_a_new_adapter_is_published_with_its_base(tmp_path: Path, inputs: dict[str, Path]) -> None:
    context = _context(tmp_path)
    grpo.run(_config(lora={"r": 2}, beta=0.05), inputs, context)
    folder = context.output("model")
    info = read_model_info(folder)
    assert (info["form"], info["base"]) == ("adapter", {"digest": "c" * 64, "ref": "sft"})
    assert not (folder / "ref").exists()
    assert not (folder / "model.safetensors").exists()
