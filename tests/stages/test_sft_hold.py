"""The sft stage against forgetting: what it writes, what it takes from another stage, what it refuses."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import ValidationError
from safetensors.torch import load_file

from finery.contract import StageContext
from finery.data.chains import chain_rows
from finery.data.dataset import write_dataset
from finery.data.skills import skill_rows
from finery.errors import InputError
from finery.schemas.sft import SftStage
from finery.stages import sft
from finery.training.models import load_model

ROOT = Path(__file__).parents[2]
BASE = ROOT / "pipelines" / "base"


def _context(folder: Path) -> StageContext:
    folder.mkdir(parents=True, exist_ok=True)
    return StageContext(
        stage="sft",
        seed=5,
        output_dir=folder / "out",
        checkpoint_dir=folder / "ck",
        metrics_path=folder / "metrics.jsonl",
        base_dir=folder,
        input_refs={"model": "base"},
        input_digests={"model": "d" * 64},
        bases={"d" * 64: BASE},
    )


def _config(**changes: Any) -> SftStage:
    given = {
        "kind": "sft", "model": "base", "data": "d", "max_steps": 2, "per_device_train_batch_size": 4,
        "learning_rate": 1e-3, "logging_steps": 1, "max_length": 64,
    }  # fmt: skip
    return SftStage.model_validate(given | changes)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("data")
    write_dataset(chain_rows(12, seed=1), root / "data")
    write_dataset(skill_rows(12, seed=2), root / "general")
    return {"model": BASE, "data": root / "data", "ewc.data": root / "general"}


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"ewc": {"weight": 1.0}}, "takes either data"),
        ({"ewc": {"weight": 1.0, "data": "d", "fisher": "a.fisher"}}, "takes either data"),
        ({"ewc": {"weight": 1.0, "fisher": "a.fisher", "rows": 3}}, "is for data"),
        ({"ewc": {"weight": 0.0, "data": "d"}}, "greater than 0"),
        ({"ewc": {"weight": 1.0, "data": "d"}, "lora": {}}, "is for training of all weights"),
        ({"freeze": [".*mlp.*"], "lora": {}}, "is for training of all weights"),
        ({"frozen_layers": 1, "lora": {}}, "is for training of all weights"),
        ({"frozen_layers": 1, "adapter": "continue"}, "is for training of all weights"),
        ({"freeze": ["(mlp"]}, r"\(mlp is no regular expression"),
        ({"freeze": []}, "at least 1"),
        ({"kl_weight": -0.1}, "greater than or equal to 0"),
        ({"packing": True, "group_by_length": True}, "take one of the two"),
    ],
)
def test_what_cannot_be_meant_is_refused_before_anything_runs(changes: dict[str, Any], told: str) -> None:
    with pytest.raises(ValidationError, match=told):
        _config(**changes)


def test_fisher_is_an_output_only_where_it_is_measured() -> None:
    assert _config().outputs() == {"model": "model"}
    assert _config(ewc={"weight": 1.0, "fisher": "a.fisher"}).outputs() == {"model": "model"}
    assert _config(ewc={"weight": 1.0, "data": "d"}).outputs() == {"model": "model", "fisher": "fisher"}


def test_the_plan_says_what_the_start_of_kl_is() -> None:
    assert _config().notes() == []
    assert _config(kl_weight=0.5).notes() == ["kl_weight 0.5: the start is a second copy of the trained weights"]
    lora = _config(kl_weight=0.5, lora={}).notes()
    assert lora[-1] == "kl_weight 0.5: the start is the model with its adapter switched off"
    assert "LoRA" in lora[0]


def test_one_stage_measures_fisher_and_another_takes_it(tmp_path: Path, folders: dict[str, Path]) -> None:
    first = _context(tmp_path / "first")
    result = sft.run(_config(ewc={"weight": 10.0, "data": "g", "rows": 4}), folders, first)
    assert result.metrics["ewc"] > 0
    assert [path.name for path in first.output("fisher").iterdir()] == ["fisher.safetensors"]
    held = load_file(first.output("fisher") / "fisher.safetensors")
    for name, weight in load_model(BASE).named_parameters():
        assert torch.equal(held[f"start/{name}"], weight)
        assert held[f"fisher/{name}"].shape == weight.shape
        assert held[f"fisher/{name}"].min() >= 0
    same = _context(tmp_path / "same")
    given = folders | {"ewc.fisher": first.output("fisher")}
    sft.run(_config(ewc={"weight": 10.0, "fisher": "first.fisher"}), given, same)
    published = [context.output("model") / "model.safetensors" for context in (first, same)]
    assert published[0].read_bytes() == published[1].read_bytes()
    # on the first stage's model the penalty is not 0 at the start: theta* is still the base's
    second = _context(tmp_path / "second")
    sft.run(_config(ewc={"weight": 10.0, "fisher": "first.fisher"}), given | {"model": first.output("model")}, second)
    events = [json.loads(line) for line in second.metrics_path.read_text().splitlines()]
    assert next(event["metrics"]["ewc"] for event in events if event["type"] == "metrics") > 0


def test_a_resumed_stage_measures_fisher_no_second_time(
    tmp_path: Path, folders: dict[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    config = _config(ewc={"weight": 10.0, "data": "g", "rows": 4})
    sft.run(config, folders, _context(tmp_path))
    assert "ewc: F is measured on 4 of 12 rows" in capsys.readouterr().out
    before = (tmp_path / "out" / "fisher" / "fisher.safetensors").read_bytes()
    shutil.rmtree(tmp_path / "out")
    sft.run(config, folders, _context(tmp_path))
    assert "F is measured" not in capsys.readouterr().out
    assert (tmp_path / "out" / "fisher" / "fisher.safetensors").read_bytes() == before


def test_an_adapter_is_held_by_kl_alone(tmp_path: Path, folders: dict[str, Path]) -> None:
    made = _context(tmp_path / "made")
    result = sft.run(_config(lora={"r": 2}, kl_weight=0.5), folders, made)
    assert result.metrics["kl"] >= 0
    adapter = folders | {"model": made.output("model")}
    for changes, told in (
        ({"ewc": {"weight": 1.0, "data": "g"}}, "ewc: the model is an adapter"),
        ({"freeze": [".*mlp.*"]}, "freeze: the model is an adapter"),
        ({"frozen_layers": 1}, "frozen_layers: the model is an adapter"),
    ):
        with pytest.raises(InputError, match=told):
            sft.run(_config(**changes), adapter, _context(tmp_path / "refused"))
    result = sft.run(_config(kl_weight=0.5), adapter, _context(tmp_path / "continued"))
    assert result.metrics["kl"] > 0


def test_columns_that_are_not_trained_on_are_listed(
    tmp_path: Path, folders: dict[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    result = sft.run(_config(), folders, _context(tmp_path))
    assert result.summary["unused_columns"] == {"data": ["answer", "meta"]}
    assert "data: columns that are not trained on: answer, meta" in capsys.readouterr().out


def test_frozen_parameters_come_out_as_they_went_in(tmp_path: Path, folders: dict[str, Path]) -> None:
    context = _context(tmp_path)
    sft.run(_config(frozen_layers=2, freeze=[".*embed_tokens.*"]), folders, context)
    before, after = load_model(BASE).state_dict(), load_model(context.output("model")).state_dict()
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    assert changed
    assert all(".layers.2." in name or name == "model.norm.weight" for name in changed)
    with pytest.raises(InputError, match="rows of added_tokens"):
        sft.run(_config(freeze=[".*embed_tokens.*"], added_tokens=["<x>"]), folders, _context(tmp_path / "added"))


@pytest.mark.slow
def test_two_stages_in_a_row_hold_what_was_there_before(project_class: Any, tmp_path: Path) -> None:
    folder = tmp_path / "tests" / "lines"
    folder.mkdir(parents=True)
    shutil.copy(ROOT / "tests" / "lines" / "progressive.yaml", folder)
    shutil.copytree(BASE, tmp_path / "pipelines" / "base")
    (folder / "flows.yaml").write_text("deployments: {}\n")
    project = project_class(folder)
    summary = project.run("progressive.yaml")
    assert {name: stage["state"] for name, stage in summary["stages"].items()} == dict.fromkeys(
        ("base", "corpus", "general", "first", "second"), "Completed"
    )
    assert {"ewc", "kl", "own_loss"} <= set(summary["stages"]["second"]["metrics"])
    text = (folder / "progressive.yaml").read_text()
    (folder / "wrong.yaml").write_text(text.replace("fisher: first.fisher", "fisher: corpus.card"))
    told = project.finery("validate", "wrong.yaml", code=2)
    assert "stages.second.ewc.fisher: corpus.card is a file, and this must be a fisher" in told.stdout + told.stderr
