"""`evaluate`: several models on several suites, in one table, with the change against a reference."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from finery.schemas.base import Model, ModelRef, Name, Stage, refuse
from finery.schemas.reference import ArtifactKind
from finery.schemas.rewards import Rewards, check_rewards, reward_packages
from finery.schemas.training import DatasetRef, Sampling


class Suite(Model):
    data: DatasetRef
    """Its prompts."""
    rewards: Rewards
    """How completions are judged."""
    k: list[Annotated[int, Field(ge=1)]] = []
    """The k of pass@k; empty measures greedy accuracy only."""
    samples: Annotated[int, Field(ge=1)] | None = None
    """Completions for each prompt, at least max(k); max(k) by default."""
    greedy: bool = True
    """Measure greedy accuracy."""
    max_prompts: Annotated[int, Field(ge=1)] | None = None
    """Use the first so many prompts."""
    sampling: Sampling = Sampling()
    """How completions are drawn."""
    general: bool = False
    """It measures what must not be lost: its drop against the reference counts towards each model's `forgetting`."""
    weight: Annotated[float, Field(gt=0)] = 1.0
    """Its share of `forgetting` among the general suites."""

    @property
    def main_metric(self) -> str:
        """What forgetting is measured by: greedy accuracy where it is measured, else the smallest pass@k."""
        return "greedy" if self.greedy else f"pass_at_{min(self.k)}"

    @model_validator(mode="after")
    def _check(self) -> Suite:
        check_rewards(self.rewards)
        if not self.k and not self.greedy:
            raise refuse("measures nothing; give k, or greedy: true", field="k")
        if "weight" in self.model_fields_set and not self.general:
            raise refuse("is a general suite's share of forgetting; add general: true, or leave it out", field="weight")
        if self.samples is not None and self.samples < max(self.k, default=1):
            raise refuse(
                "{samples} samples cannot estimate pass@{k}; give at least {k}, or a smaller k",
                field="samples", samples=self.samples, k=max(self.k),
            )  # fmt: skip
        return self


class EvaluateStage(Stage):
    kind: Literal["evaluate"]
    """The exam: the same prompts and the same random numbers for every model."""
    packages = ("torch", "transformers")
    models: Annotated[list[ModelRef], Field(min_length=1)]
    """The models; the table uses the references as written here."""
    suites: Annotated[dict[Name, Suite], Field(min_length=1)]
    """Named suites."""
    reference: str | None = None
    """The model the others are compared with, one of `models`; the first by default."""
    confidence: Annotated[float, Field(gt=0.5, lt=1)] = 0.95
    """Of the intervals (bootstrap over prompts; paired for changes)."""
    batch_size: Annotated[int, Field(ge=1)] = 64
    """Completions drawn at once; it changes speed, and results only by rounding."""

    def outputs(self) -> dict[str, ArtifactKind]:
        return {"evaluation": "evaluation", "samples": "file"}

    @model_validator(mode="after")
    def _check(self) -> EvaluateStage:
        if len(set(self.models)) < len(self.models):
            raise refuse("names a model twice", field="models")
        if self.reference is not None and self.reference not in self.models:
            raise refuse("must be one of models: {models}", field="reference", models=", ".join(self.models))
        return self

    def packages_in_use(self) -> tuple[str, ...]:
        return (*self.packages, *reward_packages(reward for suite in self.suites.values() for reward in suite.rewards))


__all__ = ["EvaluateStage", "Literal", "Suite"]
