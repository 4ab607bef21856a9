"""`sft`: supervised fine-tuning on TRL's SFTTrainer, whole, LoRA or QLoRA, with replay against forgetting."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from finery.schemas.base import EXECUTION, Dtype, FilePath, ModelRef, refuse
from finery.schemas.reference import VERDICT, ArtifactKind
from finery.schemas.training import (
    DatasetRef,
    Lora,
    Quantization,
    Replay,
    TrainingStage,
    check_length,
    check_quantization,
)


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
    chat_template: FilePath | None = None
    """A Jinja file that replaces the model's chat template and is saved with it."""

    def outputs(self) -> dict[str, ArtifactKind]:
        return {"model": "model"}

    @model_validator(mode="after")
    def _check(self) -> SftStage:
        check_length(self)
        if self.eval_steps and not self.eval_data:
            raise refuse("needs eval_data", field="eval_steps")
        check_quantization(self, self.quantization, self.lora, dtype=self.dtype, continues=True)
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

    def packages_in_use(self) -> tuple[str, ...]:
        return (*self.packages, "bitsandbytes") if self.quantization else self.packages
