"""`sft`: supervised fine-tuning on TRL's SFTTrainer, whole, LoRA or QLoRA, with replay against forgetting."""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import Field, model_validator

from finery.schemas.base import EXECUTION, Dtype, FilePath, Model, ModelRef, refuse
from finery.schemas.launch import Launch, check_launch
from finery.schemas.reference import FISHER, VERDICT, ArtifactKind
from finery.schemas.training import (
    DatasetRef,
    Lora,
    Quantization,
    Replay,
    TrainingStage,
    check_length,
    check_quantization,
)


class Ewc(Model):
    """Elastic weight consolidation (arXiv 1612.00796): weights that mattered before are held where they were."""

    weight: Annotated[float, Field(gt=0)]
    """L + weight / 2 * sum of F * (theta - theta*)^2, with F the diagonal Fisher information at theta*."""
    data: DatasetRef | None = None
    """What must not be forgotten: F is measured on it before the first step, at the model as it comes in, and written as output `fisher`."""
    fisher: Annotated[str, FISHER] | None = None
    """The output `fisher` of another sft stage, in place of `data`: its F and its theta*."""
    rows: Annotated[int, Field(ge=1)] = 512
    """Rows of `data` that F is the mean over, drawn by the stage's seed; one forward and backward pass each."""

    @model_validator(mode="after")
    def _check(self) -> Ewc:
        if (self.data is None) == (self.fisher is None):
            raise refuse("takes either data, on which F is measured, or the fisher of another stage")
        if self.fisher is not None and "rows" in self.model_fields_set:
            raise refuse("is for data; a fisher has been measured already", field="rows")
        return self


class SftStage(TrainingStage):
    kind: Literal["sft"]
    """Trains a model on prompts and completions, or on messages."""
    packages = ("torch", "transformers", "trl", "peft", "accelerate", "safetensors")
    model: ModelRef
    """The model to train."""
    data: DatasetRef
    """Its training data."""
    gate: Annotated[Annotated[str, VERDICT] | None, EXECUTION] = None
    """A gate whose `skip_rl` skips this stage."""
    eval_data: DatasetRef | None = None
    """Data whose loss is logged as `eval_loss` at the end and every eval_steps."""
    eval_steps: Annotated[int, Field(ge=1)] | None = None
    """Steps between evaluations; needs eval_data."""
    replay: Replay | None = None
    """General data shown beside it."""
    kl_weight: Annotated[float, Field(ge=0)] = 0.0
    """Holds the model near its start: L + kl_weight * the mean KL(model || start) over the target tokens of its own rows, whole vocabulary."""
    ewc: Ewc | None = None
    """Holds each weight near its start as firmly as other data needed it; for training of all weights."""
    freeze: Annotated[list[str], Field(min_length=1)] | None = None
    """Parameters left as they are: regular expressions that match whole names, `.*embed_tokens.*`, say."""
    frozen_layers: Annotated[int, Field(ge=1)] | None = None
    """The first layers left as they are; the embedding is named in `freeze`."""
    lora: Lora | None = None
    """Train an adapter; without it, all weights."""
    quantization: Quantization | None = None
    """QLoRA: hold the frozen weights in 4 bits while the adapter trains. The adapter sits on the dequantized weights."""
    adapter: Literal["continue", "stack"] | None = None
    """When `model` is an adapter: `continue` trains it further (as without this key), `stack` puts the new adapter of `lora` on it."""
    added_tokens: list[Annotated[str, Field(min_length=1)]] | None = None
    """Special tokens to add to the tokenizer; their rows of the embedding and the head are trained and saved with the model or adapter."""
    dtype: Dtype = "float32"
    """The type the weights are trained in."""
    max_length: Annotated[int, Field(ge=2)] = 1024
    """The longest row, in tokens; one whose answer would be cut away entirely is rejected by name."""
    completion_only_loss: bool = True
    """Learn the completion, not the prompt (rows of prompt and completion)."""
    assistant_only_loss: bool = False
    """Learn only what the assistant says (rows of messages); the chat template needs {% generation %} marks."""
    packing: bool = False
    """Lay rows end to end in sequences of up to max_length tokens, each attending to itself alone; per_device_train_batch_size then counts sequences."""
    group_by_length: bool = False
    """Put rows of similar length into a batch: less padding, and batches that differ more from each other."""
    chat_template: FilePath | None = None
    """A Jinja file that replaces the model's chat template and is saved with it."""
    launch: Launch | None = None
    """More than one process: how many, and how the model is shared out among them (docs/launch.md)."""

    def outputs(self) -> dict[str, ArtifactKind]:
        return {"model": "model", **({"fisher": "fisher"} if self.ewc and self.ewc.data else {})}

    def notes(self) -> list[str]:
        start = "is the model with its adapter switched off" if self.lora else "is a second copy of the trained weights"
        held = [f"kl_weight {self.kl_weight:g}: the start {start}"] if self.kl_weight else []
        return super().notes() + held

    @model_validator(mode="after")
    def _check(self) -> SftStage:
        check_length(self)
        if self.eval_steps and not self.eval_data:
            raise refuse("needs eval_data", field="eval_steps")
        check_quantization(self, self.quantization, self.lora, dtype=self.dtype, continues=True)
        whole = {name: getattr(self, name) for name in ("quantization", "kl_weight", "ewc", "added_tokens")}
        check_launch(self, self.launch, whole=whole)
        if self.adapter == "continue" and self.lora:
            raise refuse("trains the adapter that `model` is; leave lora out, or say stack", field="adapter")
        if self.adapter == "stack" and not self.lora:
            raise refuse("puts a new adapter on the one that `model` is; add `lora`", field="adapter")
        if self.adapter == "continue" and self.added_tokens:
            raise refuse(
                "an adapter that is trained further keeps its tokenizer; take adapter: stack with lora",
                field="added_tokens",
            )
        if len(set(self.added_tokens or ())) != len(self.added_tokens or ()):
            raise refuse("names a token twice", field="added_tokens")
        return self

    @model_validator(mode="after")
    def _check_weights_held(self) -> SftStage:
        for pattern in self.freeze or ():
            try:
                re.compile(pattern)
            except re.error as error:
                raise refuse(
                    "{pattern} is no regular expression ({error})", field="freeze", pattern=pattern, error=str(error)
                ) from None
        adapter = self.lora or self.adapter or self.quantization
        held = {"ewc": self.ewc, "freeze": self.freeze, "frozen_layers": self.frozen_layers}
        if adapter and (given := next((name for name, value in held.items() if value is not None), None)):
            raise refuse(
                "is for training of all weights: an adapter leaves those as they are; take kl_weight or replay, or "
                "lora.layers_to_transform to spare layers",
                field=given,
            )
        if self.packing and self.group_by_length:
            raise refuse(
                "has nothing to do where packing leaves no padding; take one of the two", field="group_by_length"
            )
        return self

    def packages_in_use(self) -> tuple[str, ...]:
        launched = self.launch.packages if self.launch else ()
        return (*self.packages, *(("bitsandbytes",) if self.quantization else ()), *launched)
