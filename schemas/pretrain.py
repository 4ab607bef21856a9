"""`pretrain`: a tiny causal language model and its tokenizer, from scratch."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from finery.schemas.base import Model, refuse
from finery.schemas.launch import Launch, check_launch
from finery.schemas.reference import ArtifactKind
from finery.schemas.training import DatasetRef, Replay, TrainingStage, check_length


class Architecture(Model):
    """A Llama; every name is LlamaConfig's."""

    hidden_size: Annotated[int, Field(ge=8)] = 96
    """Width."""
    num_hidden_layers: Annotated[int, Field(ge=1)] = 3
    """Depth."""
    num_attention_heads: Annotated[int, Field(ge=1)] = 4
    """Attention heads; hidden_size must be a multiple of them, with an even quotient."""
    intermediate_size: Annotated[int, Field(ge=8)] = 256
    """Width of the feed-forward layers."""
    max_position_embeddings: Annotated[int, Field(ge=8)] = 256
    """The longest text."""
    rope_theta: Annotated[float, Field(gt=0)] = 10000.0
    """Base of the rotary embedding."""
    initializer_range: Annotated[float, Field(gt=0)] = 0.05
    """Standard deviation of the first weights."""


class WordTokenizer(Model):
    kind: Literal["words"]
    """One id a word of a fixed list."""
    words: Annotated[list[str], Field(min_length=1)]
    """The vocabulary after <pad>, <eos> and <unk>; longer words are matched first, any other character is <unk>."""


class BpeTokenizer(Model):
    kind: Literal["bpe"]
    """Byte-level BPE, trained on the data."""
    vocab_size: Annotated[int, Field(ge=260)] = 512
    """The size of the vocabulary, special tokens included."""


class PretrainStage(TrainingStage):
    kind: Literal["pretrain"]
    """Trains a small model from random weights."""
    packages = ("torch", "transformers", "trl", "accelerate", "tokenizers", "safetensors")
    data: DatasetRef
    """Rows of prompt and completion; the loss is on the completions."""
    replay: Replay | None = None
    """A second data set beside it, with its own rows a step and its own share of the loss."""
    architecture: Architecture = Architecture()
    """The model's shape."""
    tokenizer: Annotated[WordTokenizer | BpeTokenizer, Field(discriminator="kind")]
    """The tokenizer to make."""
    max_length: Annotated[int, Field(ge=2)] = 256
    """The longest row, in tokens; longer ones are rejected by name."""
    launch: Launch | None = None
    """More than one process: how many, and how the model is shared out among them (docs/launch.md)."""

    def outputs(self) -> dict[str, ArtifactKind]:
        return {"model": "model"}

    def packages_in_use(self) -> tuple[str, ...]:
        return (*self.packages, *(self.launch.packages if self.launch else ()))

    @model_validator(mode="after")
    def _check(self) -> PretrainStage:
        check_length(self)
        check_launch(self, self.launch)
        shape = self.architecture
        if shape.hidden_size % (2 * shape.num_attention_heads):
            raise refuse(
                "hidden_size {hidden} must be a multiple of 2 * num_attention_heads = {step}",
                field="architecture.hidden_size", hidden=shape.hidden_size, step=2 * shape.num_attention_heads,
            )  # fmt: skip
        if self.max_length > shape.max_position_embeddings:
            raise refuse("max_length exceeds architecture.max_position_embeddings", field="max_length")
        return self
