"""GRPO on TRL's GRPOTrainer: prompts drawn by a plan, rewards by the one verifier, resumed exactly.

B is the completions of a generation batch, G those of one prompt (the group), F the reward functions.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from datasets import Dataset
from transformers import PreTrainedTokenizerBase
from trl import GRPOConfig, GRPOTrainer

from finery.contract import StageContext
from finery.errors import InputError
from finery.schemas.grpo import GrpoStage
from finery.stats.grpo import zero_std_groups
from finery.training.adapters import check_reached, check_targets, new_adapter
from finery.training.arguments import lora_config, on_cpu, quietly, trainer_arguments, trainer_seed
from finery.training.callbacks import Fingerprint, Kept
from finery.training.checkpoints import Checkpoint, Checkpoints
from finery.training.prompts import PromptPlan
from finery.training.quantize import is_quantized, to_device, unseen_by_trl
from finery.training.rendering import render_prompt
from finery.training.rollouts import steer, vllm_arguments

if TYPE_CHECKING:
    from finery.rewards.rewardset import RewardSet, Scores

SAMPLES_AT_ONCE = 8
SAMPLED_STEPS = 50
"""At most so many steps leave samples, so samples.jsonl stays small however long the run."""
_STATE = "rl_state.pt"


@dataclass(frozen=True)
class GrpoRun:
    """What a training run left behind.

    Attributes:
        model: the trained model, a PeftModel when an adapter was trained.
        metrics: the last value of each metric.
        samples: completions with their scores, one dict a completion.
    """

    model: Any
    metrics: dict[str, float] = field(default_factory=dict)
    samples: list[dict[str, Any]] = field(default_factory=list)


class PlannedTrainer(Kept, GRPOTrainer):  # type: ignore[misc]
    """GRPOTrainer whose prompts are drawn when they are generated from.

    TRL's data loader reads a batch ahead, and starts its permutation anew on a resume; here it only counts slots,
    one epoch of them, and `plan` says what fills them.
    """

    hidden = ("epoch",)

    def __init__(
        self, model: Any, *, rows: Sequence[Mapping[str, Any]], rewards: RewardSet, plan: PromptPlan, args: GRPOConfig,
        **kwargs: Any,
    ) -> None:  # fmt: skip
        self._rows, self._rewards, self.plan = list(rows), rewards, plan
        self.samples: list[dict[str, Any]] = []
        self._scored: tuple[Scores, list[bool], list[str]] | None = None
        generations = -(
            -args.max_steps * args.gradient_accumulation_steps // (args.steps_per_generation * args.num_iterations)
        )
        slots = generations * (args.generation_batch_size // args.num_generations)
        super().__init__(
            model,
            reward_funcs=list(rewards.functions),
            args=args,
            train_dataset=Dataset.from_dict({"prompt": [self._rows[0]["prompt"]] * slots}),
            **kwargs,
        )
        if args.use_vllm:
            steer(self)

    def _tokenize_prompts(self, prompts: list[Any]) -> tuple[list[list[int]], None, dict[str, Any]]:
        """As gate, evaluate and sft render them."""
        return [render_prompt(self.processing_class, prompt) for prompt in prompts], None, {}

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        training = self.model.training
        if training:
            drawn = self.plan.draw(len(inputs) // self.num_generations)
            inputs = [dict(self._rows[position]) for position in drawn for _ in range(self.num_generations)]
        output: dict[str, Any] = super()._generate_and_score_completions(inputs)
        if training:
            self._silence_constant_groups(output)
            self._record(inputs, output["advantages"])
        return output

    def _calculate_rewards(
        self,
        inputs: list[dict[str, Any]],
        prompts: list[Any],
        completions: list[Any],
        completion_ids_list: list[list[int]],
    ) -> torch.Tensor:
        """float32 [B, F], NaN where a reward abstains; the tracker and the metrics take in what was solved."""
        ends = set(self.eos_token_ids)
        truncated = [ids[-1] not in ends for ids in completion_ids_list]
        texts = [
            # decoded as the sampler of gate and evaluate does, so that they judge the same text
            self.processing_class.decode(
                ids if cut else ids[:-1], skip_special_tokens=True, clean_up_tokenization_spaces=False
            )
            for ids, cut in zip(completion_ids_list, truncated, strict=True)
        ]
        scores = self._rewards.score(inputs, texts, completion_ids_list, truncated)
        self._scored = (scores, truncated, texts)
        if self.model.training:
            self.plan.tracker.update([row["id"] for row in inputs], scores.solved)
            self._log_solved(scores.solved)
        columns = [[float("nan") if s is None else s for s in scores.per_reward[name]] for name in self._rewards.names]
        return torch.tensor(columns, dtype=torch.float32, device=self.accelerator.device).T.contiguous()

    def _log_solved(self, solved: Sequence[bool | None]) -> None:
        groups = [solved[start : start + self.num_generations] for start in range(0, len(solved), self.num_generations)]
        judged = [[s for s in group if s is not None] for group in groups]
        judged = [group for group in judged if group]
        metrics = self._metrics["train"]
        if judged:
            metrics["solved"].append(sum(map(sum, judged)) / sum(map(len, judged)))
            metrics["frac_all_solved"].append(sum(all(group) for group in judged) / len(judged))
            metrics["frac_none_solved"].append(sum(not any(group) for group in judged) / len(judged))
        metrics["passes"] = [float(self.plan.passes)]
        metrics["prompts_in_pass"] = [float(self.plan.candidates)]

    def _silence_constant_groups(self, output: dict[str, Any]) -> None:
        """Advantage exactly 0 where a group's rewards differ by rounding only, which TRL compares with 1e-8.

        TRL counts `frac_reward_zero_std` by the same comparison (grpo_trainer.py, is_std_zero); it is replaced.
        """
        assert self._scored is not None
        totals = np.array([np.nan if total is None else total for total in self._scored[0].total], dtype=np.float64)
        constant_Q = zero_std_groups(totals, self.num_generations)
        mask_B = torch.from_numpy(np.repeat(constant_Q, self.num_generations)).to(output["advantages"].device)
        output["advantages"] = output["advantages"].masked_fill(mask_B, 0.0)
        metrics = self._metrics["train"]
        metrics["frac_reward_zero_std"][-1] = float(constant_Q.mean())
        metrics["advantage_std"].append(output["advantages"].std().item())

    def _record(self, inputs: Sequence[Mapping[str, Any]], advantages: torch.Tensor) -> None:
        """Keep some completions of this step for samples.jsonl."""
        every = max(self.args.logging_steps, -(-self.args.max_steps // SAMPLED_STEPS))
        step = self.state.global_step
        if step % every or (self.samples and self.samples[-1]["step"] == step + 1):
            return
        assert self._scored is not None
        scores, truncated, texts = self._scored
        for index in range(0, len(inputs), max(1, len(inputs) // SAMPLES_AT_ONCE)):
            row = inputs[index]
            self.samples.append(
                {
                    "step": step + 1,
                    "id": row["id"],
                    "prompt": row["prompt"],
                    "completion": texts[index],
                    "answer": row.get("answer"),
                    "score": {name: values[index] for name, values in scores.per_reward.items()},
                    "advantage": float(advantages[index]),
                    "solved": scores.solved[index],
                    "truncated": truncated[index],
                }
            )

    def extra_state(self) -> dict[str, Any]:
        return super().extra_state() | {"plan": self.plan.state_dict(), "samples": self.samples}

    def load_extra_state(self, state: dict[str, Any]) -> None:
        super().load_extra_state(state)
        self.plan.load_state_dict(state["plan"])
        self.samples = list(state["samples"])

    def write_extra(self, folder: Path) -> None:
        """TRL forgets where it is within a generation batch; without this a resume would generate anew mid-batch."""
        inside = self._step % (self.args.steps_per_generation * self.num_iterations)
        torch.save({"step": self._step, "buffered": self._buffered_inputs if inside else None}, folder / _STATE)

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        super()._load_optimizer_and_scheduler(checkpoint)
        if checkpoint is not None:
            state = torch.load(Path(checkpoint) / _STATE, weights_only=True)
            self._step, self._buffered_inputs = state["step"], state["buffered"]


def train_grpo(
    model: Any,
    tokenizer: PreTrainedTokenizerBase,
    config: GrpoStage,
    context: StageContext,
    *,
    rows: Sequence[Mapping[str, Any]],
    rewards: RewardSet,
    plan: PromptPlan,
    keeper: Checkpoints,
    checkpoint: Checkpoint | None,
) -> GrpoRun:
    """Train `model` by its own judged completions, from the last whole checkpoint if there is one.

    Args:
        model: a full model, or a PeftModel whose adapter `default` is continued. With beta > 0 its reference is the
            model as it is in its folder, or a frozen copy of the adapter.
        rows: distinct prompts with their columns.
        plan: draws positions in `rows`, and holds the tracker.

    Raises:
        InputError: `lora` on an adapter, prompts of text and of messages mixed, or a prompt too long for the model.
        StageError: the loss was not finite, or training changed nothing.
        Interrupted: the user asked to stop; the next run goes on from there.
    """
    if config.lora is not None and hasattr(model, "peft_config"):
        raise InputError("lora: the policy is an adapter already, and grpo continues it; leave lora out")
    lengths = _check_prompts(rows, tokenizer, model, config.sampling.max_completion_length)
    adapter = None
    if config.lora is not None and is_quantized(model):
        model = new_adapter(model, config.lora, seed=trainer_seed(context.seed))
    elif config.lora is not None:
        # with an adapter of its own making TRL takes the base as the reference, and keeps no second one
        check_targets(model, config.lora)
        adapter = lora_config(config.lora)
    if is_quantized(model) and not on_cpu(config):
        model = to_device(model, torch.device("cuda", torch.cuda.current_device()))
    with unseen_by_trl(model):
        trainer = PlannedTrainer(
            model,
            rows=rows,
            rewards=rewards,
            plan=plan,
            args=grpo_arguments(config, context, model, rewards.weights, lengths),
            # TRL gives a tokenizer without a pad token one, which the output would then carry on
            processing_class=copy.deepcopy(tokenizer),
            peft_config=adapter,
        )
    trainer.attach(context, keeper)
    before = Fingerprint(trainer.model)
    trainer.train_from(checkpoint)
    before.check(
        trainer.model,
        "the policy",
        "either no group's completions differed in reward in any step (see frac_reward_zero_std: the prompts are too "
        "easy, too hard, or their reward is always the same), or learning_rate is too small",
    )
    if idle := check_reached(trainer.model):
        context.warn(f"no gradient reached the adapters of {len(idle)} modules: {', '.join(idle[:5])}")
    return GrpoRun(trainer.model, trainer.report.last, trainer.samples)


def grpo_arguments(
    config: GrpoStage, context: StageContext, model: Any, weights: Sequence[float], lengths: Sequence[int] = ()
) -> Any:
    """TRL's config: one generation batch a step, every field of the schema, no default of TRL's that matters.

    Args:
        lengths: tokens of each prompt, for vLLM.
    """
    return quietly(
        GRPOConfig,
        **trainer_arguments(config, context, model, max_steps=config.max_steps),
        num_generations=config.num_generations,
        steps_per_generation=config.gradient_accumulation_steps,
        max_completion_length=config.sampling.max_completion_length,
        temperature=config.sampling.temperature,
        top_p=config.sampling.top_p,
        top_k=config.sampling.top_k,
        min_p=None,
        repetition_penalty=1.0,
        beta=config.beta,
        epsilon=config.epsilon,
        epsilon_high=config.epsilon_high,
        delta=None,
        num_iterations=config.num_iterations,
        loss_type=config.loss_type,
        importance_sampling_level=config.importance_sampling_level,
        scale_rewards=config.scale_rewards,
        mask_truncated_completions=config.mask_truncated_completions,
        multi_objective_aggregation="sum_then_normalize",
        reward_weights=list(weights),
        disable_dropout=True,
        shuffle_dataset=False,
        log_completions=False,
        **vllm_arguments(config, lengths),
    )


def _check_prompts(
    rows: Sequence[Mapping[str, Any]], tokenizer: PreTrainedTokenizerBase, model: Any, max_completion_length: int
) -> list[int]:
    """The tokens of each prompt."""
    kinds = {isinstance(row["prompt"], str) for row in rows}
    if len(kinds) > 1:
        raise InputError("data: some prompts are text and some are messages; give them a stage each")
    positions = getattr(model.config.get_text_config(decoder=True), "max_position_embeddings", None)
    lengths = []
    for row in rows:
        length = len(render_prompt(tokenizer, row["prompt"]))
        lengths.append(length)
        if length == 0:
            raise InputError(f"data: row {row['id']}: the prompt has no token")
        if positions is not None and length + max_completion_length > positions:
            raise InputError(
                f"data: row {row['id']}: its prompt has {length} tokens, and with sampling.max_completion_length "
                f"{max_completion_length} it passes the model's {positions} positions; leave it out, or lower "
                "max_completion_length"
            )
    return lengths
