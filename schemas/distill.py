"""`distill`: a student learns from a teacher's verified chains."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from finery.schemas.base import Dtype, Model, ModelRef, refuse
from finery.schemas.reference import ArtifactKind
from finery.schemas.rewards import Rewards, check_rewards, reward_packages
from finery.schemas.training import DatasetRef, Lora, Replay, Sampling, TrainingStage, check_length


class Shrink(Model):
    """A smaller copy of the teacher."""

    layers: Annotated[list[Annotated[int, Field(ge=0)]], Field(min_length=1)]
    """The teacher's layers to keep, counted from 0, in order."""
    intermediate_size: Annotated[int, Field(ge=8)] | None = None
    """Keep so many units of each feed-forward layer, those with the largest product of gate, up and down norms."""


class ShrunkStudent(Model):
    shrink: Shrink
    """How the copy is made."""


class DistillStage(TrainingStage):
    kind: Literal["distill"]
    """Samples a teacher, keeps what the verifier passes, and trains a student on it."""
    packages = ("torch", "transformers", "trl", "peft", "accelerate", "safetensors")
    teacher: ModelRef
    """The model to learn from."""
    student: ModelRef | ShrunkStudent
    """A model of your own, or a shrunken copy of the teacher."""
    data: DatasetRef
    """Verifiable prompts for the teacher."""
    rewards: Rewards
    """The verifier the teacher's chains must pass."""
    method: Literal["sequence"] = "sequence"
    """`sequence`: SFT on the teacher's verified chains (arXiv 1606.07947)."""
    verified: bool = True
    """Keep only chains the verifier passes. false keeps all, to measure what verification is worth."""
    samples_per_prompt: Annotated[int, Field(ge=1)] = 2
    """Chains drawn for each prompt."""
    max_prompts: Annotated[int, Field(ge=1)] | None = None
    """Use the first so many prompts; all by default."""
    max_rows: Annotated[int, Field(ge=1)] | None = None
    """Train on at most so many chains; all that were kept by default."""
    sampling: Sampling = Sampling()
    """How chains are drawn."""
    batch_size: Annotated[int, Field(ge=1)] = 64
    """Chains drawn at once."""
    replay: Replay | None = None
    """General data shown beside the chains."""
    lora: Lora | None = None
    """Train an adapter on the student; without it, all weights."""
    dtype: Dtype = "float32"
    """The type the student is trained in."""
    max_length: Annotated[int, Field(ge=2)] = 1024
    """The longest row, in tokens."""

    def outputs(self) -> dict[str, ArtifactKind]:
        return {"model": "model", "chains": "dataset"}

    @model_validator(mode="after")
    def _check(self) -> DistillStage:
        check_rewards(self.rewards)
        check_length(self)
        if self.lora and isinstance(self.student, ShrunkStudent):
            raise refuse("a shrunken student is in no folder an adapter could sit on; leave it out", field="lora")
        return self

    def packages_in_use(self) -> tuple[str, ...]:
        return (*self.packages, *reward_packages(self.rewards))
