"""What holds a model near its start: KL, EWC and frozen parameters, each held to its formula."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import (
    CohereConfig,
    CohereForCausalLM,
    Gemma2Config,
    Gemma2ForCausalLM,
    GraniteConfig,
    GraniteForCausalLM,
)  # fmt: skip

from finery.contract import StageContext
from finery.data.chains import chain_rows
from finery.data.dataset import row_of
from finery.errors import InputError, StageError
from finery.schemas.sft import SftStage
from finery.training import anchor as anchor_module
from finery.training.anchor import Anchor, Hidden, Logits, hidden_states
from finery.training.collate import Feed, Layout
from finery.training.encode import IGNORED, Encoded, encode
from finery.training.ewc import Fisher, Penalty, draw, measure_fisher
from finery.training.freeze import freeze
from finery.training.models import load_model, load_tokenizer
from finery.training.sft import Hold, SftRun, train_sft

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


def _context(folder: Path, dies_at: int = -1) -> StageContext:
    folder.mkdir(parents=True, exist_ok=True)
    paths = {"output_dir": folder / "out", "checkpoint_dir": folder / "ck", "metrics_path": folder / "metrics.jsonl"}
    return Mortal(stage="sft", seed=11, base_dir=folder, dies_at=dies_at, **paths)


def _config(**changes: Any) -> SftStage:
    given = {
        "kind": "sft", "model": "base", "data": "d", "max_steps": 2, "per_device_train_batch_size": 4,
        "learning_rate": 1e-3, "save_steps": 50, "logging_steps": 1, "lr_scheduler_type": "constant",
    }  # fmt: skip
    return SftStage.model_validate(given | changes)


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return load_tokenizer(BASE)


@pytest.fixture(scope="module")
def data(tokenizer: Any) -> Encoded:
    rows = [{"id": row_of(row), **row} for row in chain_rows(22, seed=1)]
    return encode(rows, tokenizer, ends=[1], max_length=128)


def _train(folder: Path, tokenizer: Any, data: Encoded, config: SftStage | None = None, **more: Any) -> SftRun:
    model = more.pop("model", None) or load_model(BASE, trainable=True)
    context = _context(folder, more.pop("dies_at", -1))
    return train_sft(model, tokenizer, config or _config(), context, data=data, **more)


def _logged(folder: Path) -> list[dict[str, float]]:
    events = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [event["metrics"] for event in events if event["type"] == "metrics"]


def _log_probs(model: Any, data: Encoded, row: int) -> tuple[torch.Tensor, torch.Tensor]:
    """float64 log-probabilities [N, V] at a row's target positions, and the targets [N]."""
    ids, labels = (torch.from_numpy(part.astype("int64"))[None] for part in data.row(row))
    with torch.no_grad():
        logits = model.eval()(input_ids=ids).logits[0, :-1].double()
    mask = labels[0, 1:] != IGNORED
    return torch.log_softmax(logits, -1)[mask], labels[0, 1:][mask]


def _expected(model: Any, start: Any, data: Encoded, rows: list[int]) -> tuple[float, float]:
    """The token means of the loss and of KL(model || start), straight from logits."""
    nll = kl = count = 0.0
    for row in rows:
        (p, ids), (q, _) = _log_probs(model, data, row), _log_probs(start, data, row)
        nll -= float(p.gather(-1, ids[:, None]).sum())
        kl += float((p.exp() * (p - q)).sum())
        count += len(ids)
    return nll / count, kl / count


def _hidden(*log_p: list[float], rows: int = 1) -> Hidden:
    """States whose logits are `log_p`, one after another."""
    states = torch.tensor(log_p).reshape(rows, -1, len(log_p[0]))
    return Hidden(states, torch.eye(len(log_p[0])), None)


# KL


def test_kl_is_the_sum_over_the_vocabulary_at_target_tokens() -> None:
    anchor = Anchor(load_model(BASE), new_adapter=True)
    half, most = [math.log(0.5)] * 2, [math.log(0.9), math.log(0.1)]
    by_hand = 0.5 * math.log(0.5 / 0.9) + 0.5 * math.log(0.5 / 0.1)
    assert by_hand == pytest.approx(0.5108256)
    # the logits at a position are those of the token after it; the last one's belong to none
    labels = torch.tensor([[IGNORED, 1, IGNORED, 0]])
    policy, start = _hidden(half, half, most, half), _hidden(most, most, half, most)
    other = 0.9 * math.log(0.9 / 0.5) + 0.1 * math.log(0.1 / 0.5)
    assert float(anchor.divergence(policy, start, labels)) == pytest.approx(by_hand + other, rel=1e-6)
    assert float(anchor.divergence(start, start, labels)) == 0


def test_kl_in_chunks_is_the_same_sum_with_the_same_gradient(monkeypatch: pytest.MonkeyPatch) -> None:
    anchor = Anchor(load_model(BASE), new_adapter=True)
    torch.manual_seed(0)
    states, weight = torch.randn(3, 9, 8), torch.randn(50, 8)
    start = Hidden(torch.randn(3, 9, 8), torch.randn(50, 8), torch.randn(50))
    labels = torch.randint(0, 50, (3, 9))
    found = []
    for most in (2**24, 50 * 4):
        monkeypatch.setattr(anchor_module, "LOGITS", most)
        leaves = [part.clone().requires_grad_() for part in (states, weight)]
        value = anchor.divergence(Hidden(leaves[0], leaves[1], None), start, labels)
        value.backward()
        found.append([value.detach(), *(leaf.grad for leaf in leaves)])
    for whole, chunked in zip(*found, strict=True):
        torch.testing.assert_close(whole, chunked, rtol=1e-5, atol=1e-5)
    assert found[0][0] > 1


def test_the_loss_is_the_token_mean_and_kl_weight_times_the_kl_to_the_start(
    tmp_path: Path, tokenizer: Any, data: Encoded
) -> None:
    once = _train(tmp_path / "once", tokenizer, data, _config(max_steps=1), hold=Hold(kl_weight=0.7))
    start = load_model(BASE)
    _train(tmp_path / "twice", tokenizer, data, hold=Hold(kl_weight=0.7))
    first, second = _logged(tmp_path / "twice")[:2]
    assert first["kl"] == 0
    assert first["loss"] == pytest.approx(first["own_loss"], rel=1e-6)
    nll, kl = _expected(once.model, start, data, Feed(data, 4, 11).rows(1)[0])
    assert kl > 1e-3
    assert second["kl"] == pytest.approx(kl, rel=1e-4)
    assert second["own_loss"] == pytest.approx(nll, rel=1e-5)
    assert second["loss"] == pytest.approx(nll + 0.7 * kl, rel=1e-5)


def test_accumulated_batches_share_one_token_mean(tmp_path: Path, tokenizer: Any, data: Encoded) -> None:
    for batch, accumulate in ((8, 1), (4, 2)):
        config = _config(per_device_train_batch_size=batch, gradient_accumulation_steps=accumulate)
        _train(tmp_path / str(batch), tokenizer, data, config, hold=Hold(kl_weight=0.7))
    whole, parts = (_logged(tmp_path / name)[1] for name in ("8", "4"))
    assert parts["loss"] == pytest.approx(whole["loss"], rel=1e-4)
    assert parts["grad_norm"] == pytest.approx(whole["grad_norm"], rel=1e-3)


def test_a_new_adapters_start_is_the_model_without_it_and_no_copy_is_held(
    tmp_path: Path, tokenizer: Any, data: Encoded, capsys: pytest.CaptureFixture[str]
) -> None:
    lora = {"r": 4, "lora_dropout": 0.1, "modules_to_save": ["norm"]}
    config = _config(lora=lora, max_steps=3, learning_rate=1e-2)
    hold = Hold(kl_weight=0.7)
    run = _train(tmp_path, tokenizer, data, config, lora=config.lora, hold=hold)
    assert "no second copy" in capsys.readouterr().out
    first, second, *_ = _logged(tmp_path)
    assert first["kl"] == 0
    assert second["kl"] > 1e-4
    made = Anchor(run.model, new_adapter=True)
    assert made._kept == {}
    ids, labels = (torch.from_numpy(part.astype("int64"))[None] for part in data.row(0))
    part = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": labels}
    run.model.eval()
    with hidden_states(run.model) as seen, torch.no_grad():
        run.model(**part, fused_lm_head=True)
    value = made.divergence(seen[0], made.states(run.model, part), labels)
    _, kl = _expected(run.model, load_model(BASE), data, [0])
    assert float(value) / int((labels[:, 1:] != IGNORED).sum()) == pytest.approx(kl, rel=1e-4)
    assert all(weight.requires_grad for name, weight in run.model.named_parameters() if "lora_" in name)


def test_a_continued_adapters_start_is_the_adapter_as_it_came(tmp_path: Path, tokenizer: Any, data: Encoded) -> None:
    config = _config(lora={"r": 4})
    first = _train(tmp_path / "first", tokenizer, data, config, lora=config.lora)
    before = {name: weight.detach().clone() for name, weight in first.model.named_parameters()}
    anchor = Anchor(first.model, new_adapter=False)
    assert set(anchor._kept) == {name for name in before if "lora_" in name}
    _train(tmp_path / "second", tokenizer, data, model=first.model, hold=Hold(kl_weight=0.7))
    one, two = _logged(tmp_path / "second")[:2]
    assert one["kl"] == 0
    assert two["kl"] > 0
    for name, weight in first.model.named_parameters():
        assert torch.equal(weight, before[name]) == ("lora_" not in name)


@pytest.mark.parametrize(
    ("config", "model"),
    [
        (Gemma2Config(final_logit_softcapping=0.05, head_dim=8), Gemma2ForCausalLM),
        (GraniteConfig(logits_scaling=0.1), GraniteForCausalLM),
        (CohereConfig(logit_scale=9.0, pad_token_id=0), CohereForCausalLM),
    ],
)
def test_logits_are_scaled_as_each_model_scales_them(config: Any, model: Any) -> None:
    torch.manual_seed(0)
    sizes = {
        "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2,
        "num_key_value_heads": 2, "vocab_size": 40,
    }  # fmt: skip
    config.update(sizes)
    made = model(config).eval()
    ids = torch.randint(2, 40, (2, 7))
    with hidden_states(made) as seen, torch.no_grad():
        logits = made(input_ids=ids).logits
    got = Logits(config)(seen[0].states, seen[0].weight, seen[0].bias)
    torch.testing.assert_close(got, logits.float())
    plain = seen[0].states @ seen[0].weight.T
    assert not torch.allclose(plain, logits, rtol=1e-2)


# EWC


class _Coin(torch.nn.Module):
    """A language model of two tokens whose logits are (0, w) everywhere."""

    def __init__(self, w: float) -> None:
        super().__init__()
        self.w = torch.nn.Parameter(torch.tensor(w))
        self.idle = torch.nn.Parameter(torch.ones(2))
        self.device = torch.device("cpu")

    def forward(self, input_ids: torch.Tensor, use_cache: bool) -> Any:
        logits = torch.stack([torch.zeros(()), self.w]).expand(*input_ids.shape, 2)
        return type("Output", (), {"logits": logits})


def _rows(count: int, targets: int) -> Encoded:
    length = targets + 1
    labels = np.tile([IGNORED] + [0] * targets, count).astype(np.int32)
    offsets = np.arange(count + 1, dtype=np.int64) * length
    return Encoded(np.zeros(count * length, np.int32), labels, offsets, [str(row) for row in range(count)])


def test_the_penalty_is_half_the_weight_times_the_weighted_squares() -> None:
    model = torch.nn.Linear(2, 1, bias=True)
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[3.0, 1.5]]))
        model.bias.fill_(2.0)
    fisher = Fisher(
        {"weight": torch.tensor([[1.0, 2.0]]), "bias": torch.tensor([4.0])},
        {"weight": torch.tensor([[0.0, 1.0]]), "bias": torch.tensor([2.0])},
    )
    penalty = Penalty(model, fisher, 0.5)
    value = penalty(model)
    assert float(value.detach()) == pytest.approx(0.5 / 2 * (1 * 9 + 2 * 0.25 + 4 * 0))
    value.backward()
    assert model.weight.grad is not None
    assert model.weight.grad.tolist() == [[0.5 * 1 * 3, 0.5 * 2 * 0.5]]
    with pytest.raises(InputError, match=r"1 of the model's 2 trained parameters.*weight is \[1, 3\] here"):
        Penalty(torch.nn.Linear(3, 1), fisher, 1.0)


def test_fisher_is_the_mean_square_of_the_gradient_at_targets_drawn_from_the_model() -> None:
    # d log p(y) / dw = y - p; at w = 0 its square is 1/4 whatever is drawn
    fair = measure_fisher(_Coin(0.0), _rows(7, 1), rows=100, seed=3)
    assert float(fair.values["w"]) == 0.25
    assert fair.values["idle"].tolist() == [0, 0]
    assert fair.start["idle"].tolist() == [1, 1]
    # the labels are all token 0: the empirical Fisher would be p^2 = .534, the true one is p (1 - p) = .197
    p = 1 / (1 + math.exp(-1))
    bent = measure_fisher(_Coin(1.0), _rows(4000, 1), rows=4000, seed=3)
    assert float(bent.values["w"]) == pytest.approx(p * (1 - p), abs=0.01)
    # targets of a row are independent draws, so that a row of two has twice as much
    pairs = measure_fisher(_Coin(1.0), _rows(4000, 2), rows=4000, seed=3)
    assert float(pairs.values["w"]) == pytest.approx(2 * p * (1 - p), abs=0.03)
    again = measure_fisher(_Coin(1.0), _rows(4000, 2), rows=50, seed=3)
    assert float(again.values["w"]) == float(measure_fisher(_Coin(1.0), _rows(4000, 2), rows=50, seed=3).values["w"])


def test_draws_follow_the_probabilities() -> None:
    drawn = draw(torch.tensor([0.2, 0.0, 0.8]).repeat(5000, 1), 5)
    assert np.abs(np.bincount(drawn.numpy(), minlength=3) / 5000 - [0.2, 0, 0.8]).max() < 0.03
    assert torch.equal(drawn, draw(torch.tensor([0.2, 0.0, 0.8]).repeat(5000, 1), 5))


def test_fisher_survives_the_file_bit_for_bit_and_other_files_are_refused(tmp_path: Path) -> None:
    fisher = measure_fisher(_Coin(0.3), _rows(9, 2), rows=5, seed=1)
    fisher.write(tmp_path)
    again = Fisher.read(tmp_path)
    for name, value in fisher.values.items():
        assert torch.equal(again.values[name], value)
        assert torch.equal(again.start[name], fisher.start[name])
    with pytest.raises(InputError, match=r"ewc\.fisher: .* cannot be read"):
        Fisher.read(tmp_path / "nowhere")
    (tmp_path / "fisher.safetensors").write_bytes((BASE / "model.safetensors").read_bytes())
    with pytest.raises(InputError, match="does not hold F"):
        Fisher.read(tmp_path)


@pytest.mark.parametrize("accumulate", [1, 2])
def test_the_loss_is_the_token_mean_and_the_penalty(
    tmp_path: Path, tokenizer: Any, data: Encoded, accumulate: int
) -> None:
    fisher = measure_fisher(load_model(BASE, trainable=True), data, rows=6, seed=0)
    hold = Hold(fisher=fisher, ewc_weight=30.0)
    more = {"gradient_accumulation_steps": accumulate}
    once = _train(tmp_path / "once", tokenizer, data, _config(max_steps=1, **more), hold=hold)
    _train(tmp_path / "twice", tokenizer, data, _config(**more), hold=hold)
    first, second = _logged(tmp_path / "twice")[:2]
    assert first["ewc"] == 0
    expected = 0.0
    for name, weight in once.model.named_parameters():
        expected += 15 * float((fisher.values[name] * (weight.detach() - fisher.start[name]).square()).sum())
    assert expected > 1e-3
    assert second["ewc"] == pytest.approx(expected, rel=1e-4)
    rows = [row for index in range(accumulate) for row in Feed(data, 4, 11).rows(accumulate + index)[0]]
    nll, _ = _expected(once.model, once.model, data, rows)
    assert second["loss"] == pytest.approx(nll + expected, rel=1e-4)


def test_a_heavy_penalty_keeps_the_weights_where_they_were(tmp_path: Path, tokenizer: Any, data: Encoded) -> None:
    base = load_model(BASE, trainable=True)
    fisher = measure_fisher(base, data, rows=6, seed=0)
    moved = {}
    for name, hold in {"free": Hold(), "held": Hold(fisher=fisher, ewc_weight=1e4)}.items():
        run = _train(tmp_path / name, tokenizer, data, _config(max_steps=8), hold=hold)
        parts = [(f * (w.detach() - fisher.start[n]).square()).sum()
                 for (n, w), f in zip(run.model.named_parameters(), fisher.values.values(), strict=True)]  # fmt: skip
        moved[name] = float(torch.stack(parts).sum())
    assert moved["held"] < moved["free"] / 2


@pytest.mark.parametrize("layout", [Layout(by_length=True), Layout(capacity=128)], ids=["by_length", "packed"])
def test_a_killed_run_ends_in_the_bytes_of_an_undisturbed_one(
    tmp_path: Path, tokenizer: Any, data: Encoded, layout: Layout
) -> None:
    fisher = measure_fisher(load_model(BASE, trainable=True), data, rows=6, seed=0)
    config = _config(max_steps=7, save_steps=3, per_device_train_batch_size=3 if layout.by_length else 1)
    more: dict[str, Any] = {"hold": Hold(kl_weight=0.5, fisher=fisher, ewc_weight=5.0), "layout": layout}
    expected = _train(tmp_path / "whole", tokenizer, data, config, **more)
    with pytest.raises(Killed):
        _train(tmp_path / "killed", tokenizer, data, config, dies_at=5, **more)
    again = _train(tmp_path / "killed", tokenizer, data, config, **more)
    for name, weight in expected.model.state_dict().items():
        assert torch.equal(again.model.state_dict()[name], weight)
    assert _logged(tmp_path / "killed") == _logged(tmp_path / "whole")


# frozen parameters


def test_frozen_parameters_stay_bit_for_bit_and_the_others_do_not(
    tmp_path: Path, tokenizer: Any, data: Encoded
) -> None:
    model, before = load_model(BASE, trainable=True), load_model(BASE).state_dict()
    said = freeze(model, [r".*embed_tokens.*", r".*mlp.*"], 1)
    assert said.startswith("frozen: ")
    run = _train(tmp_path, tokenizer, data, _config(weight_decay=0.1), model=model)
    for name, weight in run.model.state_dict().items():
        held = "embed_tokens" in name or "lm_head" in name or ".mlp." in name or ".layers.0." in name
        assert torch.equal(weight, before[name]) == held, name


def test_patterns_that_freeze_nothing_or_everything_are_errors_with_names() -> None:
    model = load_model(BASE, trainable=True)
    with pytest.raises(InputError, match=r"'embed_token' matches no parameter.*'\.\*embed_token\.\*'"):
        freeze(model, ["embed_token"], 0)
    with pytest.raises(InputError, match=r"'wte' matches no parameter.*model\.layers\.N\.self_attn\.q_proj\.weight"):
        freeze(model, ["wte"], 0)
    with pytest.raises(InputError, match=r"'\.\*' matches every parameter"):
        freeze(model, [".*"], 0)
    with pytest.raises(InputError, match="every parameter is frozen"):
        freeze(model, [r".*layers.*", r"(?!.*layers).*"], 0)
    with pytest.raises(InputError, match="frozen_layers: 9 of a model with 3 layers"):
        freeze(model, [], 9)
    with pytest.raises(InputError, match="rows of added_tokens"):
        freeze(model, [".*embed_tokens.*"], 0, trained=[model.get_input_embeddings().weight])
    assert all(weight.requires_grad for weight in model.parameters())


def test_a_tied_weight_is_frozen_under_either_name() -> None:
    model = load_model(BASE, trainable=True)
    assert model.config.tie_word_embeddings
    freeze(model, [r"lm_head\.weight"], 0)
    assert not model.get_input_embeddings().weight.requires_grad


# never silent


def test_a_loss_of_zero_before_anything_was_learned_stops_with_the_reason(tmp_path: Path, tokenizer: Any) -> None:
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1}
    certain = LlamaForCausalLM(LlamaConfig(vocab_size=1, **sizes, pad_token_id=0, bos_token_id=0, eos_token_id=0))
    with pytest.raises(StageError, match=r"step 1: the loss is 0 before anything was learned.*certain of all"):
        _train(tmp_path, tokenizer, _rows(8, 2), model=certain.train())
