"""`grpo`: group-relative policy optimisation on verifiable prompts, those that teach drawn first."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from finery.contract import StageContext, StageResult
from finery.data.dataset import read_dataset
from finery.data.order import is_ordered, weights_of
from finery.errors import InputError, StageError
from finery.rewards import build
from finery.schemas.grpo import GrpoStage
from finery.stats.difficulty import DifficultyTracker, read_difficulty


def run(config: GrpoStage, inputs: Mapping[str, Path], context: StageContext) -> StageResult:
    """Train `inputs["model"]` on the prompts of `inputs["data"]`; write model, difficulty.json and samples.jsonl.

    Raises:
        InputError: the model, a prompt or a reward cannot be used.
        StageError: a reward failed, the loss was not finite, or training changed nothing.
    """
    from finery.training.adapters import sits_on
    from finery.training.grpo import train_grpo
    from finery.training.measure import prompts_of
    from finery.training.models import load_tokenizer, publish_model
    from finery.training.prompts import PromptPlan
    from finery.training.sft import start

    keeper, checkpoint = start(context)
    rewards = build(config.rewards, inputs)
    rows, duplicates = prompts_of(read_dataset(inputs["data"]), "data", None)
    if not rows:
        raise StageError("data: there are no prompts")
    if duplicates and checkpoint is None:
        context.warn(f"data: {duplicates} rows repeat a prompt and answer and were dropped")
    known = read_difficulty(inputs["difficulty.start"]) if config.difficulty.start else None
    tracker = DifficultyTracker(known, discount=config.difficulty.discount)
    if checkpoint is None:
        _warn_of_band(config, tracker, context)
    groups = config.per_device_train_batch_size * config.gradient_accumulation_steps // config.num_generations
    plan = PromptPlan(
        [row["id"] for row in rows],
        tracker,
        policy=config.difficulty.policy,
        band=config.difficulty.band,
        batch=groups,
        seed=context.seed,
        warn=context.warn,
        weights=weights_of(rows, "data"),
        ordered=is_ordered(inputs["data"]),
    )
    tokenizer = load_tokenizer(inputs["model"])
    trained = train_grpo(
        _policy(config, inputs["model"], context),
        tokenizer,
        config,
        context,
        rows=rows,
        rewards=rewards,
        plan=plan,
        keeper=keeper,
        checkpoint=checkpoint,
    )
    sits = sits_on(trained.model, config, inputs["model"], context)
    publish_model(trained.model, tokenizer, context.output("model"), **sits)
    _write(context, tracker, trained.samples)
    metrics = trained.metrics | {"steps": config.max_steps, "prompts": len(rows), "passes": plan.passes}
    return StageResult(
        metrics=metrics,
        summary={"headline": f"reward {metrics['reward']:.3f} after {config.max_steps} steps"},
    )


def _policy(config: GrpoStage, folder: Path, context: StageContext) -> Any:
    """The policy in train mode, in 4 bits if it is to be."""
    from finery.training.arguments import check_machine, on_cpu
    from finery.training.models import is_adapter, load_model, root_folder
    from finery.training.rollouts import require_vllm, start_from

    on_cpu(config)
    check_machine(config)
    if config.quantization and not config.lora and not is_adapter(folder):
        raise InputError("quantization: weights in 4 bits are not trained; add lora")
    if config.use_vllm:
        require_vllm()
    model = load_model(
        folder,
        dtype=config.dtype,
        bases=context.bases,
        trainable=True,
        quantization=config.quantization,
        attention=config.attn_implementation,
    )
    if config.use_vllm:
        start_from(model, root_folder(folder, context.bases))
    return model


def _write(context: StageContext, tracker: DifficultyTracker, samples: list[dict[str, object]]) -> None:
    text = json.dumps(tracker.as_difficulty(), ensure_ascii=False, indent=1)
    (context.output("difficulty") / "difficulty.json").write_text(text + "\n", encoding="utf-8")
    with (context.output("samples") / "samples.jsonl").open("w", encoding="utf-8") as file:
        file.writelines(json.dumps(sample, ensure_ascii=False) + "\n" for sample in samples)


def _warn_of_band(config: GrpoStage, tracker: DifficultyTracker, context: StageContext) -> None:
    difficulty = config.difficulty
    if difficulty.policy == "epoch_filter" and not tracker.can_bite(difficulty.band, config.num_generations):
        context.warn(
            f"difficulty.band {list(difficulty.band)} can drop no prompt: with groups of {config.num_generations} and "
            f"discount {difficulty.discount} no estimate reaches its ends; narrow the band, or raise discount"
        )
