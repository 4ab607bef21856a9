"""The distill stage as the engine calls it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from finery.contract import StageContext
from finery.data.chains import chain_rows
from finery.data.dataset import read_dataset, write_dataset
from finery.data.skills import skill_rows
from finery.errors import StageError
from finery.rewards import build
from finery.schemas.distill import DistillStage
from finery.stages import distill
from finery.training.models import load_model, load_tokenizer
from finery.training.publish import publish_model
from finery.training.tokenizers import bpe_tokenizer

BASE = Path(__file__).parents[2] / "pipelines" / "base"


def _context(folder: Path) -> StageContext:
    folder.mkdir(parents=True, exist_ok=True)
    return StageContext(
        stage="student",
        seed=5,
        output_dir=folder / "out",
        checkpoint_dir=folder / "ck",
        metrics_path=folder / "metrics.jsonl",
        base_dir=folder,
        input_refs={"teacher": "base", "student": "small"},
        input_digests={"teacher": "a" * 64, "student": "b" * 64},
    )


def _config(**changes: Any) -> DistillStage:
    given: dict[str, Any] = {
        "kind": "distill", "teacher": "base", "student": {"shrink": {"layers": [0, 2], "intermediate_size": 96}},
        "data": "d", "rewards": [{"kind": "answer", "extract": "last_number"}], "samples_per_prompt": 4, "max_steps": 4,
        "sampling": {"max_completion_length": 20, "temperature": 2.5}, "per_device_train_batch_size": 8,
        "learning_rate": 1e-3, "save_steps": 2, "logging_steps": 1, "batch_size": 16,
    }  # fmt: skip
    return DistillStage.model_validate(given | changes)


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("data")
    prompts = [
        {name: row[name] for name in ("prompt", "answer", "meta")}
        for row in chain_rows(16, seed=4, style="compact", levels=[1, 2])
    ]
    write_dataset(prompts, root / "data")
    write_dataset(skill_rows(20, seed=2), root / "replay")
    return {"teacher": BASE, "data": root / "data", "replay.data": root / "replay"}


def _files(context: StageContext, output: str) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(context.output(output).iterdir())}


def test_the_student_is_smaller_and_learns_only_chains_that_pass(tmp_path: Path, inputs: dict[str, Path]) -> None:
    config = _config(replay={"data": "g", "per_device_train_batch_size": 4, "weight": 0.3})
    context = _context(tmp_path / "one")
    result = distill.run(config, inputs, context)
    chains = read_dataset(context.output("chains"))
    verifier = build(config.rewards, {})
    solved = verifier.score(
        chains, [row["completion"] for row in chains], [[0]] * len(chains), [False] * len(chains)
    ).solved
    assert all(solved)
    assert len({(row["prompt"], row["completion"]) for row in chains}) == len(chains)
    assert result.metrics["chains_drawn"] == 64
    assert result.metrics["chains_kept"] == len(chains)
    assert 0 < result.metrics["teacher_accuracy"] < 1
    assert {row["level"] for row in result.summary["acceptance"]} == {"1", "2"}
    info = json.loads((context.output("chains") / "dataset.json").read_text())
    assert info["solved"] == len(chains) + info["repeated"]
    student = load_model(context.output("model"))
    assert (student.config.num_hidden_layers, student.config.intermediate_size) == (2, 96)
    assert result.metrics["parameters"] == sum(weight.numel() for weight in student.parameters())

    again = _context(tmp_path / "two")
    distill.run(config, inputs, again)
    assert _files(again, "model") == _files(context, "model")
    assert _files(again, "chains") == _files(context, "chains")


def test_unverified_keeps_wrong_chains_and_no_cut_one(tmp_path: Path, inputs: dict[str, Path]) -> None:
    context = _context(tmp_path)
    config = _config(verified=False, sampling={"max_completion_length": 11, "temperature": 2.5}, max_rows=9)
    result = distill.run(config, inputs, context)
    assert len(read_dataset(context.output("chains"))) == 9
    counts = result.summary["chains"]
    assert counts["truncated"] > 0
    assert counts["drawn"] - counts["truncated"] - counts["repeated"] >= 9
    drawn = [
        one
        for line in (context.checkpoint_dir / "chains.jsonl").read_text().splitlines()
        for many in json.loads(line).values()
        for one in many
    ]
    cut = {one["text"] for one in drawn if one["truncated"]}
    assert not cut & {row["completion"] for row in read_dataset(context.output("chains"))}


def test_chains_of_an_earlier_attempt_are_not_drawn_again(tmp_path: Path, inputs: dict[str, Path]) -> None:
    whole, killed = _context(tmp_path / "whole"), _context(tmp_path / "killed")
    distill.run(_config(), inputs, whole)
    lines = (whole.checkpoint_dir / "chains.jsonl").read_bytes().splitlines(keepends=True)
    (killed.checkpoint_dir).mkdir(parents=True)
    # all but the last batch, and half of that one
    (killed.checkpoint_dir / "chains.jsonl").write_bytes(b"".join(lines[:-1]) + lines[-1][:40])
    distill.run(_config(), inputs, killed)
    assert (killed.checkpoint_dir / "chains.jsonl").read_bytes() == b"".join(lines)
    assert _files(killed, "model") == _files(whole, "model")


def test_a_student_of_ones_own_may_have_another_tokenizer(tmp_path: Path, inputs: dict[str, Path]) -> None:
    from finery.schemas.pretrain import Architecture
    from finery.training.llama import new_llama

    tokenizer = bpe_tokenizer(["17+8=25,25-3=22,22"], 270)
    model = new_llama(Architecture(hidden_size=16, num_hidden_layers=1, intermediate_size=16), tokenizer, 1)
    publish_model(model, tokenizer, tmp_path / "own")
    context = _context(tmp_path / "run")
    config = _config(student="small", lora={"r": 2})
    distill.run(config, inputs | {"student": tmp_path / "own"}, context)
    info = json.loads((context.output("model") / "model.json").read_text())
    assert (info["form"], info["base"]) == ("adapter", {"digest": "b" * 64, "ref": "small"})
    assert len(load_tokenizer(context.output("model"))) == len(tokenizer)


def test_chains_keep_the_order_of_a_curriculum_and_the_weights_of_their_prompts(
    tmp_path: Path, inputs: dict[str, Path]
) -> None:
    rows = read_dataset(inputs["data"])
    weights = {row["id"]: 1.0 + place for place, row in enumerate(rows)}
    write_dataset(rows, tmp_path / "ordered", info={"order": "curriculum"})
    write_dataset([{**row, "weight": weights[row["id"]]} for row in rows], tmp_path / "weighted")
    ordered, weighted = _context(tmp_path / "one"), _context(tmp_path / "two")
    distill.run(_config(max_rows=9), inputs | {"data": tmp_path / "ordered"}, ordered)
    distill.run(_config(), inputs | {"data": tmp_path / "weighted"}, weighted)
    places = {row["id"]: place for place, row in enumerate(rows)}
    chains = [places[row["id"]] for row in read_dataset(ordered.output("chains"))]
    assert len(chains) == 9
    assert chains == sorted(chains)
    assert json.loads((ordered.output("chains") / "dataset.json").read_text())["order"] == "curriculum"
    drawn = read_dataset(weighted.output("chains"))
    assert [row["weight"] for row in drawn] == [weights[row["id"]] for row in drawn]
    assert [row["id"] for row in drawn] != sorted((row["id"] for row in drawn), key=places.__getitem__)


def test_no_chain_that_passes_is_an_error(tmp_path: Path, inputs: dict[str, Path]) -> None:
    config = _config(sampling={"max_completion_length": 1})
    with pytest.raises(StageError, match=r"none of the teacher's 64 chains can be learned: 0 passed.*64 were cut"):
        distill.run(config, inputs, _context(tmp_path))
