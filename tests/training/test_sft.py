"""The SFT core on the real tiny base: its loss is the formula's, and a killed run ends in the same bytes."""

from __future__ import annotations

import dataclasses
import json
import math
import resource
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from finery.contract import Interrupted, StageContext
from finery.data.chains import chain_rows
from finery.data.dataset import row_of
from finery.data.skills import skill_rows
from finery.errors import InputError, StageError
from finery.schemas.sft import SftStage
from finery.schemas.training import Replay
from finery.training.encode import IGNORED, Encoded, encode
from finery.training.models import load_model, load_tokenizer
from finery.training.sft import SftRun, start, total_steps, train_sft

BASE = Path(__file__).parents[2] / "pipelines" / "base"


class Killed(BaseException):
    """As good as kill -9: nothing catches it."""


@dataclass(frozen=True)
class Mortal(StageContext):
    """A context whose process dies when step `dies_at` is done."""

    dies_at: int = -1

    def progress(self, done: int, total: int, note: str = "") -> None:
        super().progress(done, total, note)
        if done == self.dies_at:
            raise Killed


def _context(folder: Path, **changes: Any) -> Mortal:
    folder.mkdir(parents=True, exist_ok=True)
    paths = {"output_dir": folder / "out", "checkpoint_dir": folder / "ck", "metrics_path": folder / "metrics.jsonl"}
    return Mortal(stage="sft", seed=11, base_dir=folder, **paths, **changes)


def _config(**changes: Any) -> SftStage:
    given = {
        "kind": "sft", "model": "base", "data": "d", "max_steps": 7, "per_device_train_batch_size": 4,
        "learning_rate": 1e-3, "warmup_steps": 2, "save_steps": 3, "logging_steps": 2, "lr_scheduler_type": "linear",
    }  # fmt: skip
    return SftStage.model_validate(given | changes)


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return load_tokenizer(BASE)


def _encode(rows: list[dict[str, Any]], tokenizer: Any) -> Encoded:
    return encode([{"id": row_of(row), **row} for row in rows], tokenizer, ends=[1], max_length=128)


@pytest.fixture(scope="module")
def data(tokenizer: Any) -> Encoded:
    return _encode(chain_rows(22, seed=1), tokenizer)


@pytest.fixture(scope="module")
def replay(tokenizer: Any) -> tuple[Encoded, Replay]:
    return _encode(skill_rows(9, seed=2), tokenizer), Replay(data="g", per_device_train_batch_size=3, weight=0.3)


def _train(context: StageContext, tokenizer: Any, data: Encoded, config: SftStage | None = None, **more: Any) -> SftRun:
    model = more.pop("model", None) or load_model(BASE, trainable=True)
    return train_sft(model, tokenizer, config or _config(), context, data=data, **more)


def _weights(run: SftRun) -> dict[str, torch.Tensor]:
    return {name: weight.detach().clone() for name, weight in run.model.state_dict().items()}


def _same(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def _logged(context: StageContext) -> list[tuple[int, dict[str, float]]]:
    events = [json.loads(line) for line in context.metrics_path.read_text().splitlines()]
    return [(event["step"], event["metrics"]) for event in events if event["type"] == "metrics"]


def _token_sum(model: Any, data: Encoded, rows: list[int]) -> tuple[float, int]:
    """The summed cross-entropy of rows, one row at a time, straight from the logits."""
    total, count = 0.0, 0
    for row in rows:
        ids, labels = (torch.from_numpy(array.astype("int64"))[None] for array in data.row(row))
        with torch.no_grad():
            logits = model(input_ids=ids).logits[:, :-1]
        loss = torch.nn.functional.cross_entropy(
            logits.flatten(0, 1).double(), labels[:, 1:].flatten(), ignore_index=IGNORED, reduction="sum"
        )
        total, count = total + float(loss), count + int((labels[:, 1:] != IGNORED).sum())
    return total, count


@pytest.mark.parametrize("accumulate", [1, 2])
def test_the_loss_is_the_weighted_sum_of_two_token_means(
    tmp_path: Path, tokenizer: Any, data: Encoded, replay: tuple[Encoded, Replay], accumulate: int
) -> None:
    from finery.training.collate import Feed

    model = load_model(BASE)
    feed = Feed(data, 4, 11, replay=replay[0], replay_batch_size=3)
    own, again = zip(*(feed.rows(index) for index in range(accumulate)), strict=True)
    own_sum, own_count = _token_sum(model, data, [row for rows in own for row in rows])
    replay_sum, replay_count = _token_sum(model, replay[0], [row for rows in again for row in rows])
    expected = 0.7 * own_sum / own_count + 0.3 * replay_sum / replay_count

    context = _context(tmp_path)
    config = _config(max_steps=1, logging_steps=1, gradient_accumulation_steps=accumulate, warmup_steps=0)
    _train(context, tokenizer, data, config, replay=replay)

    ((step, metrics),) = _logged(context)
    assert step == 1
    assert metrics["loss"] == pytest.approx(expected, rel=1e-5)
    rows = [(data, row) for part in own for row in part] + [(replay[0], row) for part in again for row in part]
    assert metrics["num_tokens"] == sum(of.lengths[row] for of, row in rows)
    assert 0 <= metrics["mean_token_accuracy"] <= 1
    assert metrics["learning_rate"] == pytest.approx(1e-3)


def test_a_killed_run_ends_in_the_bytes_of_an_undisturbed_one(
    tmp_path: Path, tokenizer: Any, data: Encoded, replay: tuple[Encoded, Replay]
) -> None:
    whole = _context(tmp_path / "whole")
    expected = _train(whole, tokenizer, data, replay=replay, evaluation=data, eval_steps=2)
    # 22 rows in batches of 4: the second epoch begins with step 7, so both kinds of resume are met
    for dies_at in (5, 7):
        folder = tmp_path / str(dies_at)
        with pytest.raises(Killed):
            _train(_context(folder, dies_at=dies_at), tokenizer, data, replay=replay, evaluation=data, eval_steps=2)
        context = _context(folder)
        again = _train(context, tokenizer, data, replay=replay, evaluation=data, eval_steps=2)
        assert _same(_weights(again), _weights(expected))
        assert _logged(context) == _logged(whole)
        assert again.metrics == expected.metrics


def test_weighted_and_ordered_data_resume_in_the_same_bytes_too(
    tmp_path: Path, tokenizer: Any, data: Encoded, replay: tuple[Encoded, Replay]
) -> None:
    heavy = dataclasses.replace(data, weights=np.array([20.0] + [1.0] * (len(data) - 1)))
    more = {"replay": (dataclasses.replace(replay[0], ordered=True), replay[1])}
    expected = _train(_context(tmp_path / "whole"), tokenizer, heavy, **more)
    with pytest.raises(Killed):
        _train(_context(tmp_path / "killed", dies_at=5), tokenizer, heavy, **more)
    again = _train(_context(tmp_path / "killed"), tokenizer, heavy, **more)
    assert _same(_weights(again), _weights(expected))
    plain = _train(_context(tmp_path / "plain"), tokenizer, data, **more)
    assert not _same(_weights(plain), _weights(expected))


def test_a_run_that_died_after_its_last_step_only_reads_its_checkpoint(
    tmp_path: Path, tokenizer: Any, data: Encoded
) -> None:
    expected = _train(_context(tmp_path), tokenizer, data)
    context = _context(tmp_path)
    before = context.metrics_path.read_bytes()
    again = _train(context, tokenizer, data)
    assert _same(_weights(again), _weights(expected))
    assert again.metrics == expected.metrics
    assert context.metrics_path.read_bytes() == before


def test_a_stop_checkpoints_first_and_the_next_run_goes_on(tmp_path: Path, tokenizer: Any, data: Encoded) -> None:
    expected = _train(_context(tmp_path / "whole"), tokenizer, data)

    class Stopping(Mortal):
        def progress(self, done: int, total: int, note: str = "") -> None:
            super().progress(done, total, note)
            self.stop.requested = done == 4

    folder = tmp_path / "stopped"
    with pytest.raises(Interrupted):
        _train(Stopping(**vars(_context(folder))), tokenizer, data)
    assert (folder / "ck" / "checkpoint-4").is_dir()
    assert _same(_weights(_train(_context(folder), tokenizer, data)), _weights(expected))


def test_a_full_disk_stops_with_the_last_checkpoint_whole(tmp_path: Path, tokenizer: Any, data: Encoded) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)

    class Filling(Mortal):
        def progress(self, done: int, total: int, note: str = "") -> None:
            super().progress(done, total, note)
            if done == 5:  # the model is larger than this
                resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, hard))

    expected = _train(_context(tmp_path / "whole"), tokenizer, data)
    folder = tmp_path / "full"
    try:
        with pytest.raises(StageError, match="checkpoint of step 6 could not be written"):
            _train(Filling(**vars(_context(folder))), tokenizer, data)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert [path.name for path in (folder / "ck").iterdir() if path.name.startswith("checkpoint")] == ["checkpoint-3"]
    assert _same(_weights(_train(_context(folder), tokenizer, data)), _weights(expected))


def test_lora_trains_the_adapter_alone_with_dropout_and_resumes_in_the_same_bytes(
    tmp_path: Path, tokenizer: Any, data: Encoded
) -> None:
    config = _config(lora={"r": 4, "lora_alpha": 8, "lora_dropout": 0.1})
    base = load_model(BASE).state_dict()
    expected = _train(_context(tmp_path / "whole"), tokenizer, data, config, lora=config.lora)
    inner = expected.model.get_base_model().state_dict()
    for name, weight in base.items():
        module, _, kind = name.rpartition(".")
        assert torch.equal(inner[name] if name in inner else inner[f"{module}.base_layer.{kind}"], weight)
    with pytest.raises(Killed):
        _train(_context(tmp_path / "killed", dies_at=5), tokenizer, data, config, lora=config.lora)
    again = _train(_context(tmp_path / "killed"), tokenizer, data, config, lora=config.lora)
    assert _same(_weights(again), _weights(expected))
    with pytest.raises(InputError, match="adapter already"):
        _train(_context(tmp_path / "twice"), tokenizer, data, config, lora=config.lora, model=expected.model)


def test_evaluation_is_the_token_mean_and_leaves_training_alone(tmp_path: Path, tokenizer: Any, data: Encoded) -> None:
    plain = _train(_context(tmp_path / "plain"), tokenizer, data)
    context = _context(tmp_path / "evaluated")
    run = _train(context, tokenizer, data, evaluation=data, eval_steps=4)
    assert _same(_weights(run), _weights(plain))
    seen = [(step, metrics["eval_loss"]) for step, metrics in _logged(context) if "eval_loss" in metrics]
    assert [step for step, _ in seen] == [4, 7]
    total, count = _token_sum(run.model, data, list(range(len(data))))
    assert seen[-1][1] == pytest.approx(total / count, rel=1e-5)


def test_a_loss_of_nan_stops_with_the_reason(tmp_path: Path, tokenizer: Any, data: Encoded) -> None:
    model = load_model(BASE, trainable=True)
    with torch.no_grad():
        model.model.norm.weight[0] = math.nan
    with pytest.raises(StageError, match=r"step 1: the loss is nan.*learning_rate"):
        _train(_context(tmp_path), tokenizer, data, model=model)


def test_training_that_changes_nothing_is_an_error(tmp_path: Path, tokenizer: Any, data: Encoded) -> None:
    config = _config(max_steps=1, warmup_steps=1)  # the first step of a warm-up has learning rate 0
    with pytest.raises(StageError, match="left the model exactly as it was"):
        _train(_context(tmp_path), tokenizer, data, config)


def test_the_config_and_the_tokenizer_leave_as_they_came(tmp_path: Path, tokenizer: Any, data: Encoded) -> None:
    before = load_model(BASE).config.to_dict()
    run = _train(_context(tmp_path), tokenizer, data, _config(max_steps=2, warmup_steps=0))
    assert run.model.config.to_dict() == before
    assert not list(tmp_path.rglob("README.md"))


def test_steps_from_epochs() -> None:
    assert total_steps(_config(max_steps=None, num_train_epochs=2.5, gradient_accumulation_steps=2), 7) == 10
    assert total_steps(_config(max_steps=3, num_train_epochs=9.0), 7) == 3


def test_without_a_checkpoint_the_metrics_start_anew(tmp_path: Path) -> None:
    context = _context(tmp_path)
    context.log(1, loss=1.0)
    assert start(context)[1] is None
    assert context.metrics_offset() == 0
