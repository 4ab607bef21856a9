"""`dpo`: direct preference optimisation on TRL's DPOTrainer, on pairs given or made of verified samples."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from finery.schemas.base import EXECUTION, Dtype, ModelRef, refuse
from finery.schemas.launch import Launch, check_launch
from finery.schemas.reference import VERDICT, ArtifactKind
from finery.schemas.rewards import Rewards, check_rewards, reward_packages
from finery.schemas.training import (
    DatasetRef,
    Lora,
    Quantization,
    Sampling,
    TrainingStage,
    check_length,
    check_quantization,
)

Loss = Literal[
    "sigmoid", "hinge", "ipo", "exo_pair", "nca_pair", "robust", "bco_pair", "sppo_hard",
    "aot", "aot_unpaired", "apo_zero", "apo_down", "discopop", "sft", "sigmoid_norm",
]  # fmt: skip
SMOOTHED = ("robust", "exo_pair", "aot", "aot_unpaired")
"""The losses of TRL that look at label_smoothing."""
_OF_PROMPTS = ("rewards", "sampling", "samples", "pairs_per_prompt", "max_prompts", "batch_size")


class DpoStage(TrainingStage):
    kind: Literal["dpo"]
    """Trains a model to prefer the chosen of two completions, held to the model it starts from."""
    packages = ("torch", "transformers", "trl", "peft", "accelerate", "safetensors")
    model: ModelRef
    """The policy to start from, which is also the reference. An adapter is continued."""
    data: DatasetRef | None = None
    """Pairs: rows of prompt, chosen and rejected."""
    prompts: DatasetRef | None = None
    """Verifiable prompts, instead of data: the model is sampled, and its right chains are paired with its wrong ones."""
    rewards: Rewards | None = None
    """With prompts: the verifier that says which chains are right."""
    sampling: Sampling = Sampling()
    """With prompts: how chains are drawn."""
    samples: Annotated[int, Field(ge=2)] = 8
    """With prompts: chains drawn for each."""
    pairs_per_prompt: Annotated[int, Field(ge=1)] = 1
    """With prompts: at most so many pairs of one prompt; its chains are used as evenly as they can be."""
    max_prompts: Annotated[int, Field(ge=1)] | None = None
    """With prompts: use the first so many; all by default."""
    batch_size: Annotated[int, Field(ge=1)] = 64
    """With prompts: chains drawn at once; it changes speed, and results only by rounding."""
    gate: Annotated[Annotated[str, VERDICT] | None, EXECUTION] = None
    """A gate whose `skip_rl` skips this stage."""
    eval_data: DatasetRef | None = None
    """Pairs whose loss and margins are logged as `eval_loss`, `eval_rewards/...` at the end and every eval_steps."""
    eval_steps: Annotated[int, Field(ge=1)] | None = None
    """Steps between evaluations; needs eval_data."""
    lora: Lora | None = None
    """Train a new adapter on a whole model; without it, all weights (or the adapter the policy already is)."""
    quantization: Quantization | None = None
    """QLoRA: hold the frozen weights in 4 bits while the adapter trains. The adapter sits on the dequantized weights."""
    dtype: Dtype = "float32"
    """The type the weights are trained in."""
    learning_rate: Annotated[float, Field(gt=0)] = 1e-6
    """Peak learning rate of AdamW."""
    beta: Annotated[float, Field(gt=0)] = 0.1
    """How strongly the policy is held to the reference; tau of ipo."""
    loss_type: Loss | Annotated[list[Loss], Field(min_length=1)] = "sigmoid"
    """The loss by TRL's name, or several, which are summed: `[sigmoid, sft]` also learns the chosen completion (arXiv 2404.19733)."""
    loss_weights: list[float] | None = None
    """The weight of each loss of a list; 1 by default."""
    label_smoothing: Annotated[float, Field(ge=0, lt=0.5)] = 0.0
    """The share of pairs that may be the wrong way round, for the losses robust, exo_pair, aot and aot_unpaired."""
    max_length: Annotated[int, Field(ge=2)] = 1024
    """The longest prompt with a completion, in tokens; what is longer loses its end."""
    precompute_ref_log_probs: bool = False
    """Ask the reference once for every pair before training, not at each step: no second model in memory when all weights are trained, and one forward pass a step less."""
    launch: Launch | None = None
    """More than one process: how many, and how the model is shared out among them (docs/launch.md)."""

    @property
    def losses(self) -> list[str]:
        """The losses as TRL takes them: a list."""
        return [self.loss_type] if isinstance(self.loss_type, str) else list(self.loss_type)

    def outputs(self) -> dict[str, ArtifactKind]:
        made: dict[str, ArtifactKind] = {"pairs": "dataset", "samples": "file"} if self.prompts else {}
        return {"model": "model", **made}

    @model_validator(mode="after")
    def _check(self) -> DpoStage:
        check_length(self)
        self._check_source()
        self._check_losses()
        check_quantization(self, self.quantization, self.lora, dtype=self.dtype, continues=True)
        self._check_launch()
        if self.eval_steps and not self.eval_data:
            raise refuse("needs eval_data", field="eval_steps")
        if self.lora and self.lora.lora_dropout:
            raise refuse(
                "policy and reference are compared without dropout, so it would do nothing; leave it out",
                field="lora.lora_dropout",
            )
        return self

    def packages_in_use(self) -> tuple[str, ...]:
        quantized = ("bitsandbytes",) if self.quantization else ()
        return (*self.packages, *quantized, *reward_packages(self.rewards or ()))

    def _check_launch(self) -> None:
        check_launch(self, self.launch, only=("ddp",))
        if self.launch and self.prompts:
            raise refuse(
                "is for pairs that are given: sampling is one process's work; make the pairs in a stage without "
                "launch and take its output `pairs` as data",
                field="launch",
            )

    def _check_source(self) -> None:
        if bool(self.data) == bool(self.prompts):
            raise refuse("needs either data (pairs) or prompts (to make pairs of the model's own chains), and not both")
        if self.data:
            for name in _OF_PROMPTS:
                if name in self.model_fields_set:
                    raise refuse("is for pairs made from prompts; with data it would do nothing", field=name)
            return
        if self.rewards is None:
            raise refuse("needs rewards: the verifier says which chains are right", field="prompts")
        check_rewards(self.rewards)

    def _check_losses(self) -> None:
        losses = self.losses
        if len(set(losses)) < len(losses):
            raise refuse("names a loss twice", field="loss_type")
        if losses == ["sft"]:
            raise refuse("sft alone never looks at what was rejected; use the kind sft", field="loss_type")
        if self.loss_weights is not None and len(self.loss_weights) != len(losses):
            raise refuse(
                "has {weights} weights for {losses} losses",
                field="loss_weights", weights=len(self.loss_weights), losses=len(losses),
            )  # fmt: skip
        if self.label_smoothing and not set(losses) & set(SMOOTHED):
            raise refuse(
                "is for the losses {smoothed}; {losses} has no use for it",
                field="label_smoothing", smoothed=", ".join(SMOOTHED), losses=", ".join(losses),
            )  # fmt: skip
        if "exo_pair" in losses and not self.label_smoothing:
            raise refuse("exo_pair needs label_smoothing above 0; its paper has 1e-3", field="loss_type")
