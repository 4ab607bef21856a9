"""Packed rows: none lost, none mixed, the same loss; and batches of rows of similar length."""

from __future__ import annotations

import dataclasses
import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from trl.trainer.utils import add_fused_lm_head

from finery.contract import StageContext
from finery.data.chains import chain_rows
from finery.data.dataset import row_of
from finery.data.skills import skill_rows
from finery.errors import InputError
from finery.schemas.sft import SftStage
from finery.schemas.training import Replay
from finery.training.collate import Feed, Layout, by_length, permutation, targets
from finery.training.encode import IGNORED, Encoded, encode
from finery.training.models import load_model, load_tokenizer
from finery.training.packing import bins, check_apart, lay
from finery.training.sft import SftRun, train_sft

BASE = Path(__file__).parents[2] / "pipelines" / "base"
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return load_tokenizer(BASE)


def _encode(rows: list[dict[str, Any]], tokenizer: Any, **more: Any) -> Encoded:
    return encode([{"id": row_of(row), **row} for row in rows], tokenizer, ends=[1], max_length=128, **more)


@pytest.fixture(scope="module")
def data(tokenizer: Any) -> Encoded:
    return _encode(chain_rows(30, seed=1), tokenizer)


def _train(folder: Path, tokenizer: Any, data: Encoded, **more: Any) -> SftRun:
    folder.mkdir(parents=True, exist_ok=True)
    paths = {"output_dir": folder / "out", "checkpoint_dir": folder / "ck", "metrics_path": folder / "metrics.jsonl"}
    given = {
        "kind": "sft", "model": "base", "data": "d", "max_steps": 1, "per_device_train_batch_size": 2,
        "learning_rate": 1e-3, "logging_steps": 1, "lr_scheduler_type": "constant",
    }  # fmt: skip
    config = SftStage.model_validate(given | more.pop("config", {}))
    model = more.pop("model", None) or load_model(BASE, trainable=True, attention=config.attn_implementation)
    context = StageContext(stage="sft", seed=11, base_dir=folder, **paths)
    return train_sft(model, tokenizer, config, context, data=data, lora=config.lora, **more)


def _logged(folder: Path) -> list[dict[str, float]]:
    events = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [event["metrics"] for event in events if event["type"] == "metrics"]


def _token_mean(model: Any, data: Encoded, rows: list[int]) -> float:
    """The mean cross-entropy of rows, one row at a time, straight from the logits."""
    total, count = 0.0, 0
    for row in rows:
        ids, labels = (torch.from_numpy(part.astype("int64"))[None] for part in data.row(row))
        with torch.no_grad():
            logits = model(input_ids=ids).logits[0, :-1].double()
        total += float(torch.nn.functional.cross_entropy(logits, labels[0, 1:], ignore_index=IGNORED, reduction="sum"))
        count += int((labels[0, 1:] != IGNORED).sum())
    return total / count


# what shares a sequence


def test_every_row_is_packed_once_and_no_sequence_is_too_long() -> None:
    rng = random.Random(0)
    for _ in range(60):
        capacity = rng.randrange(8, 40)
        lengths = [rng.randrange(1, capacity + 1) for _ in range(rng.randrange(1, 80))]
        for in_order in (False, True):
            made = bins(lengths, capacity, in_order=in_order)
            assert sorted(row for unit in made for row in unit) == list(range(len(lengths)))
            assert all(unit and sum(lengths[row] for row in unit) <= capacity for unit in made)
            if in_order:
                assert [row for unit in made for row in unit] == list(range(len(lengths)))
        # best-fit decreasing leaves no two sequences that would fit into one
        room = sorted(sum(lengths[row] for row in unit) for unit in bins(lengths, capacity))
        assert len(room) < 2 or room[0] + room[1] > capacity


def test_packing_is_best_fit_decreasing() -> None:
    assert bins([4, 6, 3, 7, 10], 10) == [[4], [3, 2], [1, 0]]
    assert bins([4, 6, 3, 7, 10], 10, in_order=True) == [[0, 1], [2, 3], [4]]


def test_a_packed_epoch_takes_every_row_once_and_depends_on_its_place_alone(data: Encoded) -> None:
    feed = Feed(data, 2, 5, layout=Layout(capacity=128))
    orders = []
    for epoch in range(3):
        feed.set_epoch(epoch)
        orders.append([feed.rows(index)[0] for index in range(len(feed))])
        assert sorted(row for batch in orders[-1] for row in batch) == list(range(len(data)))
    assert orders[0] != orders[1]
    jumped = Feed(data, 2, 5, layout=Layout(capacity=128))
    jumped.set_epoch(2)
    assert jumped.rows(1)[0] == orders[2][1]
    assert len(feed) < len(Feed(data, 2, 5)) / 2


def test_a_curriculum_is_packed_in_its_order(data: Encoded) -> None:
    feed = Feed(dataclasses.replace(data, ordered=True), 2, 5, layout=Layout(capacity=128))
    for epoch in (0, 1):
        feed.set_epoch(epoch)
        assert [row for index in range(len(feed)) for row in feed.rows(index)[0]] == list(range(len(data)))


def test_a_packed_sequence_has_each_rows_tokens_positions_and_targets_but_its_first() -> None:
    one = (np.array([5, 6, 7], np.int32), np.array([5, IGNORED, 7], np.int32))
    two = (np.array([8, 9], np.int32), np.array([8, 9], np.int32))
    part = lay([one, two], bounds=True)
    assert part["input_ids"].tolist() == [[5, 6, 7, 8, 9]]
    assert part["position_ids"].tolist() == [[0, 1, 2, 0, 1]]
    assert part["labels"].tolist() == [[IGNORED, IGNORED, 7, IGNORED, 9]]
    assert part["cu_seq_lens_q"].tolist() == part["cu_seq_lens_k"].tolist() == [0, 3, 5]
    assert part["cu_seq_lens_q"].dtype == torch.int32
    assert part["max_length_q"] == part["max_length_k"] == 3
    assert targets([part]) == 2
    assert set(lay([one], bounds=False)) == {"input_ids", "labels", "position_ids"}


# no row sees another


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("completion_only", [True, False])
def test_the_packed_loss_is_that_of_the_rows_apart(
    tmp_path: Path, tokenizer: Any, attention: str, completion_only: bool
) -> None:
    data = _encode(chain_rows(30, seed=1), tokenizer, completion_only=completion_only)
    feed = Feed(data, 2, 11, layout=Layout(capacity=128))
    rows = feed.rows(0)[0]
    assert len(rows) > 4
    _train(tmp_path, tokenizer, data, layout=Layout(capacity=128), config={"attn_implementation": attention})
    (metrics,) = _logged(tmp_path)
    assert metrics["loss"] == pytest.approx(_token_mean(load_model(BASE), data, rows), rel=1e-5)
    assert metrics["num_tokens"] == data.lengths[rows].sum()


def test_packed_gradients_are_those_of_the_rows_apart(data: Encoded) -> None:
    """The same rows, packed and one by one: their summed losses and gradients."""
    rows = [data.row(row) for row in range(8)]
    found = []
    for packed in (True, False):
        model = load_model(BASE, trainable=True)
        add_fused_lm_head(model)
        parts = [lay(rows, bounds=False)] if packed else [lay([row], bounds=False) for row in rows]
        loss = torch.stack([-model(**part, fused_lm_head=True).log_probs.sum() for part in parts]).sum()
        loss.backward()
        found.append([loss.detach(), *(weight.grad for weight in model.parameters() if weight.grad is not None)])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-4)


def test_replay_rows_are_packed_within_their_step(tmp_path: Path, tokenizer: Any, data: Encoded) -> None:
    replay = (_encode(skill_rows(9, seed=2), tokenizer), Replay(data="g", per_device_train_batch_size=3, weight=0.3))
    feed = Feed(data, 2, 11, replay=replay[0], replay_batch_size=3, layout=Layout(capacity=128))
    own, again = feed.rows(0)
    assert len(feed[0]["replay"]) == 1
    _train(tmp_path, tokenizer, data, layout=Layout(capacity=128), replay=replay)
    base = load_model(BASE)
    expected = 0.7 * _token_mean(base, data, own) + 0.3 * _token_mean(base, replay[0], again)
    assert _logged(tmp_path)[0]["loss"] == pytest.approx(expected, rel=1e-5)


_SIZES = {
    "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2,
    "num_key_value_heads": 2, "vocab_size": 50,
}  # fmt: skip
_GPT = {"n_embd": 32, "n_layer": 2, "n_head": 2, "vocab_size": 50, "bos_token_id": 0, "eos_token_id": 1}


@pytest.mark.parametrize(
    ("config", "apart"),
    [
        (transformers.LlamaConfig(**_SIZES), True),
        (transformers.MistralConfig(**_SIZES, sliding_window=4), True),
        (transformers.GPT2Config(**_GPT), True),
        (transformers.BloomConfig(hidden_size=32, n_layer=2, n_head=2, vocab_size=50), False),
        (transformers.MambaConfig(hidden_size=32, num_hidden_layers=2, vocab_size=50), False),
    ],
    ids=lambda value: getattr(value, "model_type", str(value)),
)
def test_a_model_that_mixes_packed_rows_is_refused_by_name(config: Any, apart: bool) -> None:
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(config)
    add_fused_lm_head(model)
    ids = np.random.default_rng(0).integers(3, 50, 100).astype(np.int32)
    if apart:
        check_apart(model, ids, bounds=False, device=CPU)
        check_apart(model, np.full(4, 7, np.int32), bounds=False, device=CPU)
    else:
        with pytest.raises(InputError, match=rf"packing: in a {type(model).__name__} packed rows are not apart"):
            check_apart(model, ids, bounds=False, device=CPU)
    assert model.training


def test_a_model_that_takes_no_positions_is_found_before_the_first_step(
    tmp_path: Path, tokenizer: Any, data: Encoded
) -> None:
    config = transformers.BloomConfig(
        hidden_size=32, n_layer=1, n_head=2, vocab_size=len(tokenizer), bos_token_id=0, eos_token_id=1, pad_token_id=0
    )
    model = transformers.AutoModelForCausalLM.from_config(config).train()
    with pytest.raises(InputError, match="packing: in a BloomForCausalLM"):
        _train(tmp_path, tokenizer, data, layout=Layout(capacity=128), model=model)
    assert not (tmp_path / "metrics.jsonl").exists() or not _logged(tmp_path)


def test_layouts_that_contradict_the_data_are_refused(tmp_path: Path, tokenizer: Any, data: Encoded) -> None:
    weighted = dataclasses.replace(data, weights=np.ones(len(data)))
    with pytest.raises(InputError, match="packing: the rows have weights"):
        _train(tmp_path, tokenizer, weighted, layout=Layout(capacity=128))
    with pytest.raises(InputError, match="group_by_length: the data asks for its order"):
        _train(tmp_path, tokenizer, dataclasses.replace(data, ordered=True), layout=Layout(by_length=True))


# batches of similar length


def test_rows_of_similar_length_share_a_batch_and_every_row_comes_once() -> None:
    lengths = np.array([random.Random(row).randrange(1, 200) for row in range(1003)])
    order = permutation(1003, 5, "own", 0)
    got = by_length(order, lengths, 8, 5, 0)
    assert sorted(got.tolist()) == list(range(1003))

    def padding(rows: Any) -> int:
        return sum(
            int(lengths[part].max() * len(part) - lengths[part].sum()) for part in np.split(rows, range(8, 1003, 8))
        )

    assert padding(got) < padding(order) / 10
    assert lengths[got[:8]].max() == lengths.max()
    assert by_length(order, lengths, 8, 5, 0).tolist() == got.tolist()
    assert by_length(order, lengths, 8, 6, 0).tolist() != got.tolist()
    # the batches do not run from long to short
    longest = [int(lengths[part].max()) for part in np.split(got, range(8, 1003, 8))][1:-1]
    assert longest != sorted(longest, reverse=True)


def test_batches_by_length_are_another_order_of_the_same_rows(tmp_path: Path, tokenizer: Any, data: Encoded) -> None:
    feed = Feed(data, 4, 11, layout=Layout(by_length=True))
    rows = [feed.rows(index)[0] for index in range(len(feed))]
    assert sorted(row for batch in rows for row in batch) == list(range(len(data)))
    _train(tmp_path, tokenizer, data, layout=Layout(by_length=True), config={"per_device_train_batch_size": 4})
    assert _logged(tmp_path)[0]["loss"] == pytest.approx(_token_mean(load_model(BASE), data, rows[0]), rel=1e-5)


# less memory, the same numbers


@pytest.mark.parametrize("config", [{}, {"lora": {"r": 4}}], ids=["full", "lora"])
def test_gradient_checkpointing_changes_no_bit_on_a_cpu(
    tmp_path: Path, tokenizer: Any, data: Encoded, config: dict[str, Any]
) -> None:
    runs = []
    for checkpointed in (False, True):
        changes = {**config, "max_steps": 2, "gradient_checkpointing": checkpointed}
        run = _train(tmp_path / str(checkpointed), tokenizer, data, config=changes)
        runs.append(run.model.state_dict())
    assert all(torch.equal(weight, runs[1][name]) for name, weight in runs[0].items())


def test_gradient_checkpointing_recomputes_layers(tmp_path: Path, tokenizer: Any, data: Encoded) -> None:
    """That the option does something: each layer's forward runs once more in the backward pass."""
    calls = {}
    for checkpointed in (False, True):
        model = load_model(BASE, trainable=True)
        model.requires_grad_(True).get_input_embeddings().weight.requires_grad_(False)
        count = [0]
        model.model.layers[0].self_attn.register_forward_hook(
            lambda *_, count=count: count.__setitem__(0, count[0] + 1)
        )
        _train(
            tmp_path / str(checkpointed), tokenizer, data, model=model, config={"gradient_checkpointing": checkpointed}
        )
        calls[checkpointed] = count[0]
    assert calls[True] == 2 * calls[False]
