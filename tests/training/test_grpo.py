"""GRPO on the real tiny base: TRL's advantages by our formula, and a killed run ends in the same bytes."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from finery.contract import StageContext
from finery.data.chains import chain_rows
from finery.data.dataset import row_of
from finery.errors import InputError, StageError
from finery.rewards import build
from finery.rewards.rewardset import RewardSet
from finery.schemas.grpo import GrpoStage
from finery.stats.difficulty import DifficultyTracker
from finery.stats.grpo import advantages, zero_std_groups
from finery.training.grpo import GrpoRun, PlannedTrainer, grpo_arguments, train_grpo
from finery.training.models import load_model, load_tokenizer
from finery.training.prompts import PromptPlan
from finery.training.sft import start

ROOT = Path(__file__).parents[2]
BASE = ROOT / "pipelines" / "base"
# at temperature 2.5 the base solves about half of these
ROWS = [
    {"id": row_of(row), **{name: row[name] for name in ("prompt", "answer", "meta")}}
    for row in chain_rows(10, seed=4, style="compact", levels=[1, 2])
]


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
    return Mortal(stage="grpo", seed=3, base_dir=folder, **paths, **changes)


def _config(**changes: Any) -> GrpoStage:
    given: dict[str, Any] = {
        "kind": "grpo", "model": "m", "data": "d", "rewards": [{"kind": "answer", "extract": "last_number"}],
        "max_steps": 6, "per_device_train_batch_size": 8, "num_generations": 4, "learning_rate": 1e-4,
        "sampling": {"max_completion_length": 20, "temperature": 2.5}, "save_steps": 2, "logging_steps": 1,
    }  # fmt: skip
    return GrpoStage.model_validate(given | changes)


def _plan(config: GrpoStage, context: StageContext, rows: list[dict[str, Any]]) -> PromptPlan:
    return PromptPlan(
        [row["id"] for row in rows],
        DifficultyTracker(discount=config.difficulty.discount),
        policy=config.difficulty.policy,
        band=config.difficulty.band,
        batch=2,
        seed=context.seed,
        warn=context.warn,
    )


def _train(config: GrpoStage, context: StageContext, model: Any = None, rows: list[dict[str, Any]] = ROWS) -> GrpoRun:
    keeper, checkpoint = start(context)
    return train_grpo(
        model or load_model(BASE, trainable=True),
        load_tokenizer(BASE),
        config,
        context,
        rows=rows,
        rewards=build(config.rewards, {}),
        plan=_plan(config, context, rows),
        keeper=keeper,
        checkpoint=checkpoint,
    )


def _weights(run: GrpoRun) -> dict[str, torch.Tensor]:
    return {name: weight.detach().clone() for name, weight in run.model.state_dict().items()}


def _same(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def _logged(context: StageContext) -> list[tuple[int, dict[str, float]]]:
    events = [json.loads(line) for line in context.metrics_path.read_text().splitlines()]
    return [(event["step"], event["metrics"]) for event in events if event["type"] == "metrics"]


def _table(rewards: list[float | None]) -> RewardSet:
    """A reward that gives the numbers of a table, in order."""

    def table(completions: list[Any], **_: Any) -> list[float | None]:
        assert len(completions) == len(rewards)
        return rewards

    return RewardSet(["table"], [table], [1.0], [1.0], 0, [False])


def _trl_advantages(
    folder: Path, rewards: list[float | None], group: int, **changes: Any
) -> tuple[Any, dict[str, Any]]:
    """What the trainer makes of these rewards in one generation, and its metrics."""
    context = _context(folder)
    config = _config(per_device_train_batch_size=len(rewards), num_generations=group, **changes)
    model = load_model(BASE, trainable=True)
    trainer = PlannedTrainer(
        model,
        rows=ROWS,
        rewards=_table(rewards),
        plan=_plan(config, context, ROWS),
        args=grpo_arguments(config, context, model, [1.0]),
        processing_class=load_tokenizer(BASE),
    )
    model.train()
    output = trainer._generate_and_score_completions([{"prompt": "unused"}] * len(rewards))
    return output["advantages"].double().numpy(), trainer._metrics["train"]


def test_case_G1_advantages_are_trls_and_a_constant_group_is_exactly_zero(tmp_path: Path) -> None:
    case = json.loads((ROOT / "tests/cases/G1.json").read_text())
    got, _ = _trl_advantages(tmp_path, case["rewards"], 5)
    assert got == pytest.approx(case["adv_sample_eps1e-4"], abs=case["tol"])
    plain, _ = _trl_advantages(tmp_path, case["rewards"], 5, scale_rewards="none")
    assert plain == pytest.approx(case["adv_no_scale_dr_grpo"], abs=case["tol"])
    flat = [float(reward) for group in case["two_groups"] for reward in group]
    both, metrics = _trl_advantages(tmp_path, flat, 4)
    assert both == pytest.approx([a for group in case["adv_group"] for a in group], abs=case["tol"])
    assert metrics["frac_reward_zero_std"] == [0.0]
    constant, metrics = _trl_advantages(tmp_path, case["constant_group"], 8)
    assert constant.tolist() == [0.0] * 8
    assert metrics["frac_reward_zero_std"] == [1.0]


def test_a_group_that_differs_by_rounding_only_is_silent_too(tmp_path: Path) -> None:
    rounded = [float(np.float32(0.7) + place * np.float32(6e-8)) for place in range(4)]
    got, metrics = _trl_advantages(tmp_path, [*rounded, 0.0, 1.0, 1.0, 1.0], 4)
    assert got[:4].tolist() == [0.0] * 4
    assert got[4:] == pytest.approx([-1.4997, 0.4999, 0.4999, 0.4999], abs=1e-4)
    assert metrics["frac_reward_zero_std"] == [0.5]
    assert metrics["advantage_std"][0] == pytest.approx(float(np.std(got, ddof=1)), rel=1e-5)


@pytest.mark.parametrize("scale", ["group", "batch", "none"])
def test_advantages_equal_the_formula_of_stats(tmp_path: Path, scale: Any) -> None:
    rng = random.Random(1)
    rewards = [rng.choice([0.0, 0.5, 1.0, None]) for _ in range(24)] + [1.0] * 4 + [None] * 3 + [1.0]
    got, metrics = _trl_advantages(tmp_path, rewards, 4, scale_rewards=scale)
    assert got == pytest.approx(advantages(rewards, 4, scale=scale), abs=1e-5)
    assert metrics["frac_reward_zero_std"] == [float(zero_std_groups(rewards, 4).mean())]


def test_prompts_are_drawn_by_the_plan_and_judged_by_the_verifier(tmp_path: Path) -> None:
    context = _context(tmp_path)
    run = _train(_config(max_steps=3), context)
    drawn = [sample["id"] for sample in run.samples]
    plan = _plan(_config(), context, ROWS)
    expected = [ROWS[position]["id"] for _ in range(3) for position in plan.draw(2)]
    assert drawn == [name for name in expected for _ in range(4)]
    verifier = build(_config().rewards, {})
    for sample in run.samples:
        row = next(row for row in ROWS if row["id"] == sample["id"])
        scores = verifier.score([row], [sample["completion"]], [[0]], [sample["truncated"]])
        assert sample["solved"] == scores.solved[0]
        assert sample["score"]["answer"] == scores.per_reward["answer"][0]
    for step, metrics in _logged(context):
        of_step = [sample for sample in run.samples if sample["step"] == step]
        assert metrics["solved"] == pytest.approx(sum(sample["solved"] for sample in of_step) / 8)
        assert metrics["reward"] == metrics["rewards/answer/mean"]
        assert {"grad_norm", "learning_rate", "entropy", "completions/mean_length", "num_tokens"} <= set(metrics)
        assert "epoch" not in metrics
    assert any(sample["solved"] for sample in run.samples)
    assert not all(sample["solved"] for sample in run.samples)


@pytest.mark.slow
@pytest.mark.parametrize(
    "changes",
    [{}, {"num_iterations": 2}, {"gradient_accumulation_steps": 2, "per_device_train_batch_size": 4, "save_steps": 3}],
)
def test_a_killed_run_ends_in_the_bytes_of_an_undisturbed_one(tmp_path: Path, changes: dict[str, Any]) -> None:
    # a step draws 2 of 10 prompts, so the second pass begins with step 6 (with 2 iterations later)
    config = _config(
        max_steps=8, save_steps=changes.get("save_steps", 3), **{k: v for k, v in changes.items() if k != "save_steps"}
    )
    whole = _context(tmp_path / "whole")
    expected = _train(config, whole)
    for dies_at in (5, 7):
        folder = tmp_path / str(dies_at)
        with pytest.raises(Killed):
            _train(config, _context(folder, dies_at=dies_at))
        again = _train(config, _context(folder))
        assert _same(_weights(again), _weights(expected))
        assert again.samples == expected.samples
        steps = _logged(_context(folder))
        assert [step for step, _ in steps] == [step for step, _ in _logged(whole)]
        timeless = [{name: value for name, value in metrics.items() if name != "step_time"} for _, metrics in steps]
        assert timeless == [{n: v for n, v in metrics.items() if n != "step_time"} for _, metrics in _logged(whole)]


@pytest.mark.slow
def test_an_adapter_is_continued_against_a_frozen_copy_of_itself(tmp_path: Path) -> None:
    from peft import LoraConfig, get_peft_model

    def adapter() -> Any:
        torch.manual_seed(0)
        model = get_peft_model(load_model(BASE), LoraConfig(r=4, lora_dropout=0.1, target_modules="all-linear"))
        for name, weight in model.named_parameters():
            if "lora_B" in name:
                torch.nn.init.normal_(weight, std=0.02)
        return model.train()

    config = _config(beta=0.1, max_steps=4)
    before = {name: weight.clone() for name, weight in adapter().state_dict().items()}
    context = _context(tmp_path / "whole")
    run = _train(config, context, adapter())
    kl = [metrics["kl"] for _, metrics in _logged(context)]
    assert kl[0] == 0.0  # the learning rate has no warm-up, so it moves from the second step on
    assert max(kl[1:]) > 0
    after = run.model.state_dict()
    assert any(not torch.equal(after[name], before[name]) for name in before if ".default." in name)
    for name, weight in before.items():
        if ".default." in name:
            assert torch.equal(after[name.replace(".default.", ".ref.")], weight)
        else:
            assert torch.equal(after[name], weight)
    with pytest.raises(Killed):
        _train(config, _context(tmp_path / "killed", dies_at=3), adapter())
    assert _same(_weights(_train(config, _context(tmp_path / "killed"), adapter())), _weights(run))
    with pytest.raises(InputError, match="adapter already"):
        _train(_config(lora={}), _context(tmp_path / "lora"), adapter())


def test_a_run_in_which_no_group_differs_is_an_error_that_says_so(tmp_path: Path) -> None:
    config = _config(max_steps=2, sampling={"max_completion_length": 1})
    with pytest.raises(StageError, match="no group's completions differed in reward"):
        _train(config, _context(tmp_path))


def test_the_reference_of_a_full_model_is_the_model_in_its_folder(tmp_path: Path) -> None:
    context = _context(tmp_path)
    _train(_config(beta=0.1, max_steps=2), context)
    first, second = (metrics["kl"] for _, metrics in _logged(context))
    assert first == 0.0
    assert second > 0


def test_a_prompt_that_would_pass_the_models_positions_is_named(tmp_path: Path) -> None:
    long = {"id": "long", "prompt": "1" * 250, "answer": "1"}
    with pytest.raises(InputError, match=r"row long: its prompt has 250 tokens.*256 positions"):
        _train(_config(), _context(tmp_path), rows=[*ROWS, long])
    mixed = {"id": "chat", "prompt": [{"role": "user", "content": "1"}], "answer": "1"}
    with pytest.raises(InputError, match="some prompts are text and some are messages"):
        _train(_config(), _context(tmp_path), rows=[*ROWS, mixed])


def test_the_trainers_bring_neither_mlflow_nor_prefect_along() -> None:
    code = "import sys, finery.training.grpo, finery.training.sft; print({'mlflow', 'prefect'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
