"""What the training kinds share: the optimizer's arguments by TRL's names, LoRA, replay, sampling."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from finery.schemas.base import Model, Stage, refuse
from finery.schemas.reference import DATASET

DatasetRef = Annotated[str, DATASET]


class Sampling(Model):
    """How completions are drawn; gate, evaluate, grpo and distill share it."""

    temperature: Annotated[float, Field(gt=0)] = 1.0
    """Softmax temperature."""
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Nucleus: the smallest set of tokens whose probability reaches it."""
    top_k: Annotated[int, Field(ge=0)] = 0
    """Only the k most likely tokens; 0 takes all."""
    max_completion_length: Annotated[int, Field(ge=1)] = 256
    """The most tokens of a completion; one that has not ended by then is truncated and counts as unsolved."""


class Replay(Model):
    data: DatasetRef
    """General data, shown beside the stage's own so that the model does not forget it."""
    per_device_train_batch_size: Annotated[int, Field(ge=1)] = 8
    """Replay rows in each step, beside the stage's own batch."""
    weight: Annotated[float, Field(gt=0, lt=1)] = 0.3
    """The replay batch's share of the loss: L = (1 - weight) * own token mean + weight * replay token mean."""


class Lora(Model):
    r: Annotated[int, Field(ge=1)] = 16
    """Rank."""
    lora_alpha: Annotated[int, Field(ge=1)] = 32
    """Scale: the update is multiplied by lora_alpha / r."""
    lora_dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Dropout before the adapter."""
    target_modules: str | list[str] = "all-linear"
    """The modules that get an adapter: `all-linear`, a list of names, or one regular expression."""
    use_rslora: bool = False
    """Scale by lora_alpha / sqrt(r) instead (rsLoRA, arXiv 2312.03732)."""
    use_dora: bool = False
    """Weight-decomposed LoRA (arXiv 2402.09353)."""


class TrainingStage(Stage):
    """The arguments of a Trainer run, by their names in transformers and TRL."""

    max_steps: Annotated[int, Field(ge=1)] | None = None
    """Optimizer steps; wins over num_train_epochs. One of the two must be given."""
    num_train_epochs: Annotated[float, Field(gt=0)] | None = None
    """Passes over the data."""
    per_device_train_batch_size: Annotated[int, Field(ge=1)] = 8
    """Rows in a step, per process."""
    gradient_accumulation_steps: Annotated[int, Field(ge=1)] = 1
    """Batches summed into one step."""
    learning_rate: Annotated[float, Field(gt=0)] = 2e-5
    """Peak learning rate of AdamW."""
    lr_scheduler_type: Literal["linear", "cosine", "cosine_with_min_lr", "constant", "constant_with_warmup"] = "cosine"
    """The schedule after the warm-up."""
    min_lr_rate: Annotated[float, Field(ge=0, lt=1)] | None = None
    """For cosine_with_min_lr: the share of the peak at which it ends."""
    warmup_steps: Annotated[int, Field(ge=0)] = 0
    """Steps over which the learning rate rises from 0."""
    weight_decay: Annotated[float, Field(ge=0)] = 0.0
    """AdamW's decoupled weight decay."""
    adam_beta1: Annotated[float, Field(ge=0, lt=1)] = 0.9
    """AdamW's first-moment decay."""
    adam_beta2: Annotated[float, Field(ge=0, lt=1)] = 0.999
    """AdamW's second-moment decay."""
    max_grad_norm: Annotated[float, Field(gt=0)] = 1.0
    """Gradients are clipped to this norm."""
    save_steps: Annotated[int, Field(ge=1)] = 50
    """Steps between checkpoints, from which a killed stage goes on."""
    logging_steps: Annotated[int, Field(ge=1)] = 10
    """Steps between logged metrics."""
    gradient_checkpointing: bool = False
    """Recompute activations in the backward pass: less memory, about a third more time."""

    @model_validator(mode="after")
    def _check_schedule(self) -> TrainingStage:
        has_floor = self.lr_scheduler_type == "cosine_with_min_lr"
        if has_floor and self.min_lr_rate is None:
            raise refuse("needs min_lr_rate, the share of the peak at which it ends", field="lr_scheduler_type")
        if self.min_lr_rate is not None and not has_floor:
            raise refuse(
                "is for lr_scheduler_type: cosine_with_min_lr; {kind} has no use for it",
                field="min_lr_rate", kind=self.lr_scheduler_type,
            )  # fmt: skip
        return self


def check_length(stage: TrainingStage) -> None:
    """One of max_steps and num_train_epochs is given."""
    if stage.max_steps is None and stage.num_train_epochs is None:
        raise refuse("needs max_steps or num_train_epochs")


__all__ = ["DatasetRef", "Lora", "Replay", "Sampling", "TrainingStage", "check_length"]
