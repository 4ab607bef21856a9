"""The pretrain stage as the engine calls it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from finery.contract import StageContext
from finery.data.chains import chain_rows
from finery.data.dataset import write_dataset
from finery.data.skills import skill_rows
from finery.errors import InputError
from finery.schemas.pretrain import PretrainStage
from finery.schemas.training import Sampling
from finery.stages import pretrain
from finery.training.models import load_model, load_tokenizer
from finery.training.sampling import sample

WORDS = ["add", "sub", "rev", "srt", "cpy", "cmp", "max", *"0123456789+-=,:<> "]


def _context(folder: Path) -> StageContext:
    folder.mkdir(parents=True, exist_ok=True)
    return StageContext(
        stage="base",
        seed=5,
        output_dir=folder / "out",
        checkpoint_dir=folder / "ck",
        metrics_path=folder / "metrics.jsonl",
        base_dir=folder,
    )


def _config(**changes: Any) -> PretrainStage:
    given = {
        "kind": "pretrain", "data": "d", "tokenizer": {"kind": "words", "words": WORDS}, "max_steps": 4,
        "architecture": {"hidden_size": 32, "num_hidden_layers": 1, "intermediate_size": 32},
        "per_device_train_batch_size": 8, "learning_rate": 5e-3, "save_steps": 100, "logging_steps": 2,
        "max_length": 48,
    }  # fmt: skip
    return PretrainStage.model_validate(given | changes)


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("data")
    write_dataset(skill_rows(64, seed=1, skills=["cpy"]), root / "data")
    write_dataset(chain_rows(20, seed=2, style="compact", levels=[1]), root / "chains")
    return {"data": root / "data", "replay.data": root / "chains"}


def _files(context: StageContext) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(context.output("model").iterdir())}


@pytest.mark.parametrize("tokenizer", [{"kind": "words", "words": WORDS}, {"kind": "bpe", "vocab_size": 280}])
def test_a_model_is_made_the_same_each_time(tmp_path: Path, inputs: dict[str, Path], tokenizer: dict[str, Any]) -> None:
    config = _config(tokenizer=tokenizer, replay={"data": "c", "per_device_train_batch_size": 2, "weight": 0.35})
    one, two = _context(tmp_path / "one"), _context(tmp_path / "two")
    result = pretrain.run(config, inputs, one)
    pretrain.run(config, inputs, two)
    assert _files(one) == _files(two)
    model, made = load_model(one.output("model")), load_tokenizer(one.output("model"))
    assert result.metrics["parameters"] == sum(weight.numel() for weight in model.parameters())
    assert result.metrics["vocab_size"] == len(made) == model.config.vocab_size
    assert model.config.use_cache
    assert (model.config.pad_token_id, model.config.eos_token_id, model.config.bos_token_id) == (0, 1, None)
    assert "replay_loss" in result.metrics


@pytest.mark.slow
def test_it_learns(tmp_path: Path, inputs: dict[str, Path]) -> None:
    write_dataset([{"prompt": f"cpy:{digit}=", "completion": str(digit)} for digit in range(10)], tmp_path / "digits")
    context = _context(tmp_path / "run")
    pretrain.run(_config(max_steps=150), {"data": tmp_path / "digits"}, context)
    rows = [{"id": str(digit), "prompt": f"cpy:{digit}="} for digit in range(10)]
    folder = context.output("model")
    got = sample(
        load_model(folder), load_tokenizer(folder), rows,
        n=1, sampling=Sampling(max_completion_length=4), seed=0, greedy=True,
    )  # fmt: skip
    assert [one.text for (one,) in got] == [str(digit) for digit in range(10)]
    assert not any(one.truncated for (one,) in got)


def test_unknown_characters_and_long_rows_are_said(tmp_path: Path) -> None:
    rows = [{"prompt": "rev:12?=", "completion": "21"}, {"prompt": "cpy:1=", "completion": "1" * 60}]
    write_dataset(rows, tmp_path / "data")
    context = _context(tmp_path / "run")
    result = pretrain.run(_config(), {"data": tmp_path / "data"}, context)
    events = [json.loads(line) for line in context.metrics_path.read_text().splitlines()]
    said = [event["message"] for event in events if event["type"] == "warning"]
    assert "more than max_length 48" in said[0]
    assert said[1].startswith("data: 1 of 9 tokens are no word of tokenizer.words")
    assert result.metrics["rows_rejected"] == 1


def test_rows_of_messages_are_refused(tmp_path: Path) -> None:
    messages = [{"role": "user", "content": "1"}, {"role": "assistant", "content": "1"}]
    write_dataset([{"messages": messages}], tmp_path / "data")
    with pytest.raises(InputError, match="prompt and completion of text"):
        pretrain.run(_config(), {"data": tmp_path / "data"}, _context(tmp_path / "run"))
