"""DPO on the real tiny base: TRL's loss by the paper's formula, the right reference, and a killed run resumed exactly."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from finery.contract import StageContext
from finery.data.dataset import row_of
from finery.data.skills import skill_rows
from finery.errors import InputError, StageError
from finery.schemas.dpo import DpoStage
from finery.training.dpo import PairTrainer, dpo_arguments, train_dpo
from finery.training.encode import encode
from finery.training.models import load_model, load_tokenizer
from finery.training.pairs import PairFeed, Pairs, encode_pairs, warn_of_pairs
from finery.training.rendering import render_prompt
from finery.training.sft import SftRun, start

BASE = Path(__file__).parents[2] / "pipelines" / "base"
ROWS = [
    {"id": row_of(row), "prompt": row["prompt"], "chosen": row["completion"], "rejected": row["completion"][::-1] + "7"}
    for row in skill_rows(10, seed=4)
]
TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}{{ m.role[0] }}:{{ m.content }}{{ eos_token }}{% endfor %}"
    "{% if add_generation_prompt %}a:{% endif %}"
)


class Killed(BaseException):
    """As good as kill -9: nothing catches it."""


@dataclass(frozen=True)
class Mortal(StageContext):
    dies_at: int = -1

    def progress(self, done: int, total: int, note: str = "") -> None:
        super().progress(done, total, note)
        if done == self.dies_at:
            raise Killed


def _context(folder: Path, **changes: Any) -> Mortal:
    folder.mkdir(parents=True, exist_ok=True)
    paths = {"output_dir": folder / "out", "checkpoint_dir": folder / "ck", "metrics_path": folder / "metrics.jsonl"}
    return Mortal(stage="dpo", seed=3, base_dir=folder, **paths, **changes)


def _config(**changes: Any) -> DpoStage:
    given: dict[str, Any] = {
        "kind": "dpo", "model": "m", "data": "d", "max_steps": 6, "per_device_train_batch_size": 4,
        "learning_rate": 1e-3, "save_steps": 2, "logging_steps": 1, "lr_scheduler_type": "constant",
    }  # fmt: skip
    return DpoStage.model_validate(given | changes)


def _pairs(rows: list[dict[str, Any]] = ROWS, **changes: Any) -> Pairs:
    tokenizer = load_tokenizer(BASE)
    return encode_pairs(rows, tokenizer, ends={tokenizer.eos_token_id}, **{"max_length": 64, **changes})


def _train(config: DpoStage, context: StageContext, model: Any = None, evaluation: Pairs | None = None) -> SftRun:
    return train_dpo(
        model or load_model(BASE, trainable=True),
        load_tokenizer(BASE),
        config,
        context,
        data=_pairs(max_length=config.max_length),
        evaluation=evaluation,
        resume=start(context),
    )


def _weights(run: SftRun) -> dict[str, torch.Tensor]:
    return {name: weight.detach().clone() for name, weight in run.model.state_dict().items()}


def _same(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def _logged(context: StageContext) -> list[tuple[int, dict[str, float]]]:
    events = [json.loads(line) for line in context.metrics_path.read_text().splitlines()]
    return [(event["step"], event["metrics"]) for event in events if event["type"] == "metrics"]


def _trainer(folder: Path, model: Any, reference: Any = None, **changes: Any) -> PairTrainer:
    config = _config(**changes)
    return PairTrainer(
        model,
        feed=PairFeed(_pairs(), 4, 3, 0),
        evaluation=None,
        folder=folder,
        ref_model=reference,
        args=dpo_arguments(config, _context(folder), model, 6),
        processing_class=load_tokenizer(BASE),
    )


def _adapter(dropout: float = 0.0) -> Any:
    from peft import LoraConfig, get_peft_model

    torch.manual_seed(0)
    model = get_peft_model(load_model(BASE), LoraConfig(r=4, lora_dropout=dropout, target_modules="all-linear"))
    for name, weight in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(weight, std=0.02)
    return model.train()


def _logp(model: Any, prompt: str, completion: str) -> float:
    """log pi(completion, EOS | prompt), by the plain forward pass in float64."""
    tokenizer = load_tokenizer(BASE)
    start_at = len(render_prompt(tokenizer, prompt))
    ids = [*render_prompt(tokenizer, prompt + completion), tokenizer.eos_token_id]
    with torch.no_grad():
        logps = torch.log_softmax(model(torch.tensor([ids])).logits[0].double(), dim=-1)
    return float(sum(logps[place - 1, ids[place]] for place in range(start_at, len(ids))))


def _log_sigmoid(x: float) -> float:
    return -math.log1p(math.exp(-x))


def test_the_loss_is_equation_7_of_the_paper(tmp_path: Path) -> None:
    """L = -log sigmoid(beta (log pi(c)/ref(c) - log pi(r)/ref(r))), arXiv 2305.18290, on a policy moved from its start."""
    reference, policy = load_model(BASE), load_model(BASE, trainable=True)
    torch.manual_seed(1)
    with torch.no_grad():
        for weight in policy.parameters():
            weight.add_(0.5 * weight.std() * torch.randn_like(weight) if weight.dim() > 1 else 0)
    rows = ROWS[:4]
    scores = [
        [_logp(policy, row["prompt"], row[side]) - _logp(reference, row["prompt"], row[side]) for row in rows]
        for side in ("chosen", "rejected")
    ]
    chosen, rejected = (np.array(side) for side in scores)
    assert (
        min(np.abs(chosen - rejected).min(), np.abs(chosen).max()) > 0.1
    )  # the policy has moved, so the formula is not tried at 0 alone
    beta = 0.3
    tokens = np.array([[len(row[side]) + 1 for row in rows] for side in ("chosen", "rejected")])  # characters and EOS
    expected = {
        "sigmoid": -np.mean([_log_sigmoid(beta * d) for d in chosen - rejected]),
        "hinge": np.mean(np.maximum(0, 1 - beta * (chosen - rejected))),
        "ipo": np.mean((chosen / tokens[0] - rejected / tokens[1] - 1 / (2 * beta)) ** 2),
    }
    for name, value in expected.items():
        trainer = _trainer(tmp_path / name, policy, reference, beta=beta, loss_type=name)
        trainer.model.train()
        loss = trainer._compute_loss(trainer.model, trainer.feed.batch(range(4)), False)
        assert loss.item() == pytest.approx(value, rel=1e-4), name
        metrics = trainer._metrics["train"]
        assert metrics["rewards/chosen"][-1] == pytest.approx(beta * chosen.mean(), rel=1e-3)
        assert metrics["rewards/margins"][-1] == pytest.approx(beta * (chosen - rejected).mean(), rel=1e-3)
        assert metrics["rewards/accuracies"][-1] == np.mean(chosen > rejected)
        policy, reference = load_model_pair(policy, reference)
    both = _trainer(
        tmp_path / "both", policy, reference, beta=beta, loss_type=["sigmoid", "sft"], loss_weights=[1, 0.5]
    )
    nll = -sum(_logp(policy, row["prompt"], row["chosen"]) for row in rows) / tokens[0].sum()
    loss = both._compute_loss(both.model, both.feed.batch(range(4)), False)
    assert loss.item() == pytest.approx(expected["sigmoid"] + 0.5 * nll, rel=1e-4)


def load_model_pair(policy: Any, reference: Any) -> tuple[Any, Any]:
    """The same two models without the forward that TRL has put on them."""
    fresh = []
    for model in (policy, reference):
        other = load_model(BASE, trainable=model is policy)
        other.load_state_dict(model.state_dict())
        fresh.append(other)
    return fresh[0], fresh[1]


def test_the_loss_on_numbers_made_by_hand(tmp_path: Path) -> None:
    """A head of zeros gives every token 1/V, so a completion of n tokens has log-probability -n log V."""
    model = load_model(BASE, trainable=True)
    model.config.tie_word_embeddings = False
    model.lm_head.weight = torch.nn.Parameter(torch.zeros_like(model.lm_head.weight))
    trainer = _trainer(tmp_path, model, load_model(BASE), beta=0.5)
    feed, log_v = trainer.feed, math.log(model.config.vocab_size)
    feed.reference = np.array([[-3.0, -2.0]] * len(ROWS), dtype=np.float32)
    trainer.precompute_ref_logps = True
    loss = trainer._compute_loss(trainer.model, feed.batch([0]), False)
    tokens = {side: len(ROWS[0][side]) + 1 for side in ("chosen", "rejected")}
    margin = (-tokens["chosen"] * log_v + 3.0) - (-tokens["rejected"] * log_v + 2.0)
    assert loss.item() == pytest.approx(-_log_sigmoid(0.5 * margin), rel=1e-5)


def test_pairs_are_rendered_as_sft_and_sampling_render_them() -> None:
    tokenizer = load_tokenizer(BASE)
    tokenizer.chat_template = TEMPLATE
    ends = {tokenizer.eos_token_id}
    chats = [
        {**row, "prompt": [{"role": "user", "content": row["prompt"]}], "rejected": [{"role": "assistant", "content": "1"}]}
        for row in ROWS
    ]  # fmt: skip
    for rows in (ROWS, chats):
        pairs = encode_pairs(rows, tokenizer, ends=ends, max_length=64)
        for side, encoded in (("chosen", pairs.chosen), ("rejected", pairs.rejected)):
            as_sft = encode(
                [{"id": row["id"], "prompt": row["prompt"], "completion": row[side]} for row in rows],
                tokenizer, ends=ends, max_length=64,
            )  # fmt: skip
            assert encoded.ids.tolist() == as_sft.ids.tolist()
            assert encoded.labels.tolist() == as_sft.labels.tolist()
            for place, row in enumerate(rows):
                ids, labels = encoded.row(place)
                prompt = render_prompt(tokenizer, row["prompt"])
                assert ids[: len(prompt)].tolist() == prompt
                assert (labels == -100).tolist() == [True] * len(prompt) + [False] * (len(ids) - len(prompt))
                assert labels[-1] == tokenizer.eos_token_id
                assert tokenizer.bos_token_id is None or (ids == tokenizer.bos_token_id).sum() <= 1
    batch = PairFeed(_pairs(), 4, 3, 0).batch([0, 1])
    assert batch["input_ids"].shape == batch["completion_mask"].shape
    assert batch["input_ids"].shape[0] == 4
    assert batch["completion_mask"].sum(1).tolist() == [len(ROWS[i][s]) + 1 for s in ("chosen", "rejected") for i in (0, 1)]  # fmt: skip


def test_pairs_that_cannot_teach_are_left_out_by_name(tmp_path: Path) -> None:
    rows = [
        {"id": "same", "prompt": "1+1=", "chosen": "2", "rejected": "2"},
        {"id": "long", "prompt": "1" * 12, "chosen": "2", "rejected": "3"},
        {"id": "alike", "prompt": "1+1=", "chosen": "22222222", "rejected": "22222223"},
        {"id": "empty", "prompt": "1+1=", "chosen": "", "rejected": "3"},
        {"id": "cut", "prompt": "1+1=", "chosen": "2", "rejected": "3333333333"},
    ]
    pairs = _pairs(rows, max_length=10)
    assert {name: reason.split(",")[0] for name, reason in pairs.left_out} == {
        "same": "chosen and rejected are the same",
        "long": "its prompt alone has 12 tokens",
        "alike": "chosen and rejected are the same in their first 10 tokens (max_length)",
        "empty": "chosen: its completion is empty",
    }
    assert (pairs.chosen.names, pairs.cut) == (["cut"], ["cut"])
    assert pairs.rejected.lengths.tolist() == [10]
    context = _context(tmp_path)
    warn_of_pairs(pairs, context, "data", 10)
    told = context.metrics_path.read_text()
    assert "4 of 5 pairs are left out (same: chosen and rejected are the same" in told
    assert "1 of 5 pairs have a completion beyond max_length 10" in told
    with pytest.raises(StageError, match=r"none of its 1 pairs can be trained on \(row same: chosen and rejected are"):
        _pairs(rows[:1])
    with pytest.raises(InputError, match="row x has no rejected; dpo needs rows of prompt, chosen and rejected"):
        _pairs([{"id": "x", "prompt": "1", "chosen": "2"}])


def test_a_run_prefers_the_chosen_and_its_first_step_is_at_the_reference(tmp_path: Path) -> None:
    context = _context(tmp_path)
    evaluation = _pairs(ROWS[:3])
    run = _train(_config(max_steps=12, eval_data="e", eval_steps=6), context, evaluation=evaluation)
    steps = _logged(context)
    first = next(metrics for step, metrics in steps if step == 1)
    assert first["loss"] == pytest.approx(math.log(2), abs=1e-6)  # sigmoid(0) = 1/2: policy and reference are one
    assert first["rewards/margins"] == pytest.approx(0.0, abs=1e-6)
    assert run.metrics["rewards/margins"] > 0.5
    assert run.metrics["loss"] < 0.5
    names = {"rewards/chosen", "rewards/rejected", "rewards/accuracies", "logps/chosen", "logps/rejected", "grad_norm"}
    assert names <= set(first)
    evaluated = [(step, metrics) for step, metrics in steps if "eval_loss" in metrics]
    assert [step for step, _ in evaluated] == [6, 12]
    assert evaluated[1][1]["eval_rewards/margins"] > 0
    assert 0 < evaluated[1][1]["eval_loss"] < math.log(2)


@pytest.mark.slow
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"lora": {"r": 4}, "num_train_epochs": 2.0, "max_steps": None},
        {"precompute_ref_log_probs": True, "gradient_accumulation_steps": 2, "per_device_train_batch_size": 2},
    ],
)
def test_a_killed_run_ends_in_the_bytes_of_an_undisturbed_one(tmp_path: Path, changes: dict[str, Any]) -> None:
    config = _config(save_steps=2, **changes)  # 3 steps an epoch: the second begins with step 4
    whole = _context(tmp_path / "whole")
    expected = _train(config, whole)
    for dies_at in (3, 5):
        folder = tmp_path / str(dies_at)
        with pytest.raises(Killed):
            _train(config, _context(folder, dies_at=dies_at))
        again = _train(config, _context(folder))
        assert _same(_weights(again), _weights(expected))
        assert _logged(_context(folder)) == _logged(whole)
        assert again.metrics == expected.metrics


def test_a_reference_asked_beforehand_gives_the_same_training(tmp_path: Path) -> None:
    live, before = _context(tmp_path / "live"), _context(tmp_path / "before")
    evaluation = _pairs(ROWS[:3])
    config = _config(max_steps=4, eval_data="e")
    _train(config, live, evaluation=evaluation)
    _train(_config(max_steps=4, eval_data="e", precompute_ref_log_probs=True), before, evaluation=evaluation)
    for (step, one), (_, other) in zip(_logged(live), _logged(before), strict=True):
        assert set(one) == set(other)
        for name in set(one) - {"grad_norm"}:
            assert other[name] == pytest.approx(one[name], rel=1e-3, abs=2e-4), (step, name)
    assert not list((before.checkpoint_dir).glob("*.writing*"))


@pytest.mark.slow
def test_an_adapter_is_continued_against_a_frozen_copy_of_itself(tmp_path: Path) -> None:
    config = _config(max_steps=4)
    before = {name: weight.clone() for name, weight in _adapter().state_dict().items()}
    context = _context(tmp_path / "whole")
    run = _train(config, context, _adapter(dropout=0.1))
    first, *later = [metrics for _, metrics in _logged(context)]
    # its start, not the base below it, is the reference; and dropout is off, or they would differ
    assert first["loss"] == pytest.approx(math.log(2), abs=1e-6)
    assert first["rewards/margins"] == pytest.approx(0.0, abs=1e-6)
    assert later[-1]["rewards/margins"] > 0
    after = run.model.state_dict()
    assert any(not torch.equal(after[name], before[name]) for name in before if ".default." in name)
    for name, weight in before.items():
        if ".default." in name:
            assert torch.equal(after[name.replace(".default.", ".ref.")], weight)
        else:
            assert torch.equal(after[name], weight)
    with pytest.raises(Killed):
        _train(config, _context(tmp_path / "killed", dies_at=3), _adapter(dropout=0.1))
    assert _same(_weights(_train(config, _context(tmp_path / "killed"), _adapter(dropout=0.1))), _weights(run))
    with pytest.raises(InputError, match="adapter already, and dpo continues it"):
        _train(_config(lora={}), _context(tmp_path / "lora"), _adapter())


def test_a_new_adapters_reference_is_the_model_below_it(tmp_path: Path) -> None:
    context = _context(tmp_path)
    run = _train(_config(lora={"r": 4}, max_steps=3, learning_rate=1e-2), context)
    reference = load_model(BASE)
    frozen = {name.removeprefix("base_model.model."): weight for name, weight in run.model.state_dict().items()}
    for name, weight in reference.state_dict().items():
        module, _, leaf = name.rpartition(".")
        kept = frozen[name] if name in frozen else frozen[f"{module}.base_layer.{leaf}"]
        assert torch.equal(kept, weight), name
    losses = [metrics["loss"] for _, metrics in _logged(context)]
    assert losses[0] == pytest.approx(math.log(2), abs=1e-6)
    assert losses[-1] < losses[0]


def test_the_reference_is_the_model_as_it_is_and_not_as_it_lies_on_disk(tmp_path: Path) -> None:
    model = load_model(BASE, trainable=True)
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(1.02)
    context = _context(tmp_path)
    _train(_config(max_steps=2), context, model)
    assert _logged(context)[0][1]["rewards/margins"] == pytest.approx(0.0, abs=1e-6)


def test_what_cannot_be_trained_stops_with_the_reason(tmp_path: Path) -> None:
    broken = load_model(BASE, trainable=True)
    with torch.no_grad():
        broken.get_input_embeddings().weight.fill_(float("nan"))
    with pytest.raises(StageError, match=r"step 1: the loss is nan"):
        _train(_config(), _context(tmp_path / "nan"), broken)
    with pytest.raises(StageError, match="training left the model exactly as it was; raise learning_rate"):
        _train(
            _config(max_steps=1, lr_scheduler_type="constant_with_warmup", warmup_steps=5), _context(tmp_path / "still")
        )
    with pytest.raises(InputError, match=r"lora.target_modules: lm_head is the head"):
        _train(_config(lora={"target_modules": ["q_proj", "lm_head"]}), _context(tmp_path / "head"))
    with pytest.raises(InputError, match=r"lora.target_modules: lm_head is the head"):
        _train(_config(lora={"target_modules": ".*(q_proj|lm_head)"}), _context(tmp_path / "pattern"))
