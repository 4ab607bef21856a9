"""`grpo`: group-relative policy optimisation on TRL's GRPOTrainer, with difficulty filtering."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from finery.schemas.base import EXECUTION, Dtype, Model, ModelRef, refuse
from finery.schemas.reference import DIFFICULTY, VERDICT, ArtifactKind
from finery.schemas.rewards import Rewards, check_rewards, reward_packages
from finery.schemas.training import (
    DatasetRef,
    Lora,
    Quantization,
    Sampling,
    TrainingStage,
    check_quantization,
)

VLLM_TEMPERATURES = (0.01, 2.0)
"""vLLM draws at the first of these where a lower one is asked for, and refuses one above the second (vllm/sampling_params.py)."""


class Difficulty(Model):
    policy: Literal["none", "epoch_filter"] = "epoch_filter"
    """`epoch_filter`: at the start of each pass over the prompts, those whose estimated pass rate is outside the band sit out."""
    start: Annotated[str, DIFFICULTY] | None = None
    """Pass rates to start from, for example `gate.difficulty`; without it every prompt starts unknown and is drawn."""
    band: Annotated[list[Annotated[float, Field(ge=0, le=1)]], Field(min_length=2, max_length=2)] = [0.05, 0.95]
    """Prompts whose estimate lies in it teach. It is judged on the tracker's estimate, not on one group's rate."""
    discount: Annotated[float, Field(gt=0, le=1)] = 0.9
    """What remains of the old evidence at each new visit, since the policy moves."""


class GrpoStage(TrainingStage):
    kind: Literal["grpo"]
    """Trains a model by its own verified completions."""
    packages = ("torch", "transformers", "trl", "peft", "accelerate", "safetensors")
    model: ModelRef
    """The policy to start from. An adapter is continued."""
    data: DatasetRef
    """Verifiable prompts."""
    gate: Annotated[Annotated[str, VERDICT] | None, EXECUTION] = None
    """A gate that may skip this stage (`skip_rl`) or block it (`more_data`)."""
    rewards: Rewards
    """What is maximised: the weighted sum."""
    sampling: Sampling = Sampling()
    """How completions are drawn."""
    lora: Lora | None = None
    """Train a new adapter on a whole model; without it, all weights (or the adapter the policy already is)."""
    quantization: Quantization | None = None
    """QLoRA: hold the frozen weights in 4 bits while the adapter trains and completions are drawn."""
    dtype: Dtype = "float32"
    """The type the weights are trained in."""
    max_steps: Annotated[int, Field(ge=1)]
    """Optimizer steps."""
    per_device_train_batch_size: Annotated[int, Field(ge=1)] = 8
    """Completions in a step, per process; a multiple of num_generations."""
    num_generations: Annotated[int, Field(ge=1)] = 8
    """Completions for each prompt: the group."""
    learning_rate: Annotated[float, Field(gt=0)] = 1e-6
    """Peak learning rate of AdamW."""
    lr_scheduler_type: Literal["linear", "cosine", "cosine_with_min_lr", "constant", "constant_with_warmup"] = (
        "constant_with_warmup"
    )
    """The schedule after the warm-up."""
    beta: Annotated[float, Field(ge=0)] = 0.0
    """Weight of the KL to the starting policy."""
    epsilon: Annotated[float, Field(gt=0, lt=1)] = 0.2
    """Lower clip of the probability ratio."""
    epsilon_high: Annotated[float, Field(gt=0)] | None = None
    """Upper clip; epsilon by default. DAPO's clip-higher is 0.28."""
    num_iterations: Annotated[int, Field(ge=1)] = 1
    """Updates on each batch of completions."""
    loss_type: Literal["grpo", "bnpo", "dr_grpo", "dapo"] = "dapo"
    """How token losses are normalised."""
    importance_sampling_level: Literal["token", "sequence"] = "token"
    """`sequence` is GSPO."""
    scale_rewards: Literal["group", "batch", "none"] = "group"
    """What the advantage is divided by."""
    mask_truncated_completions: bool = False
    """Leave completions that were cut out of the loss."""
    difficulty: Difficulty = Difficulty()
    """Which prompts are drawn."""
    use_vllm: bool = False
    """Draw completions with vLLM instead of the model's own generate. Needs a GPU, and vLLM in the stage's interpreter."""
    vllm_mode: Literal["colocate"] = "colocate"
    """Where vLLM runs: `colocate` is the training process and its GPU."""
    vllm_gpu_memory_utilization: Annotated[float, Field(gt=0, lt=1)] = 0.3
    """The share of the GPU's memory that vLLM takes for its weights and cache; training has the rest."""
    vllm_max_model_length: Annotated[int, Field(ge=2)] | None = None
    """The tokens of prompt and completion that vLLM has room for; by default those of the longest prompt with max_completion_length."""
    vllm_importance_sampling_correction: bool = True
    """Weigh the loss by what training makes of a completion's probability over what vLLM made of it; the two round differently."""
    vllm_importance_sampling_mode: Literal["sequence_mask", "sequence_truncate", "token_mask", "token_truncate"] = (
        "sequence_mask"
    )
    """That ratio of a whole completion or of each token; where it passes its bound it is made 0 (mask) or the bound (truncate)."""
    vllm_importance_sampling_clip_max: Annotated[float, Field(gt=0)] = 3.0
    """The bound."""

    def outputs(self) -> dict[str, ArtifactKind]:
        return {"model": "model", "difficulty": "difficulty", "samples": "file"}

    @model_validator(mode="after")
    def _check(self) -> GrpoStage:
        check_rewards(self.rewards)
        check_quantization(self, self.quantization, self.lora, dtype=self.dtype, continues=True)
        group, batch = self.num_generations, self.per_device_train_batch_size * self.gradient_accumulation_steps
        if group < 2:
            raise refuse("must be at least 2: an advantage compares completions of one prompt", field="num_generations")
        if batch % group:
            fits = [n for n in range(2, batch + 1) if batch % n == 0]
            raise refuse(
                "{group} does not divide the batch of {batch} completions; num_generations can be {fits}",
                field="num_generations", group=group, batch=batch, fits=", ".join(map(str, fits)) or "nothing: enlarge the batch",
            )  # fmt: skip
        low, high = self.difficulty.band
        if low >= high:
            raise refuse("must rise", field="difficulty.band")
        return self

    @model_validator(mode="after")
    def _check_vllm(self) -> GrpoStage:
        if not self.use_vllm:
            if given := sorted(name for name in self.model_fields_set if name.startswith("vllm_")):
                raise refuse("is for use_vllm: true; completions are drawn by the model's own generate", field=given[0])
            return self
        if not self.resources.gpus:
            raise refuse(
                "vLLM needs a GPU (resources.gpus: 1); on a CPU leave it out: the model's own generate draws the "
                "completions",
                field="use_vllm",
            )
        if self.quantization:
            raise refuse(
                "not with use_vllm: TRL would round the adapter into the 4 bits on each step, for vLLM and for the "
                "model that trains; leave quantization out, and an adapter that was trained in 4 bits goes on on the "
                "same weights dequantized",
                field="quantization",
            )
        low, high = VLLM_TEMPERATURES
        if not low <= self.sampling.temperature <= high:
            raise refuse(
                "{given} is outside what vLLM draws at, {low} to {high}; change it, or leave use_vllm out",
                field="sampling.temperature", given=self.sampling.temperature, low=low, high=high,
            )  # fmt: skip
        cut = "top_p" if self.sampling.top_p < 1 else "top_k" if self.sampling.top_k else None
        if cut and self.vllm_importance_sampling_correction:
            raise refuse(
                "vLLM's probabilities are then those of the tokens that are left, and the correction would take the "
                "difference for an error; leave it out, or set vllm_importance_sampling_correction: false",
                field=f"sampling.{cut}",
            )
        return self

    def packages_in_use(self) -> tuple[str, ...]:
        quantized = ("bitsandbytes",) if self.quantization else ()
        drawn = ("vllm",) if self.use_vllm else ()
        return (*self.packages, *quantized, *drawn, *reward_packages(self.rewards))
