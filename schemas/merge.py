"""`merge`: several models of one shape into one, by weights or by task vectors."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from finery.schemas.base import Dtype, Fraction, Model, ModelRef, Stage, refuse
from finery.schemas.reference import ArtifactKind


class Member(Model):
    model: ModelRef
    """The model."""
    weight: float | None = None
    """Its weight; the stage's by default."""
    density: Fraction | None = None
    """The share of its task vector that is kept (ties, dare_*); the stage's by default."""


class MergeStage(Stage):
    kind: Literal["merge"]
    """Merges models tensor by tensor, in float32, with one rounding at the end."""
    packages = ("torch", "transformers", "safetensors")
    method: Literal["linear", "task_arithmetic", "ties", "dare_linear", "dare_ties"]
    """linear: weighted mean of the models. The rest add task vectors (model - base) to `base`: task_arithmetic as they are,
    ties trimmed and by elected sign (arXiv 2306.01708), dare_* dropped at random and rescaled (arXiv 2311.03099)."""
    models: Annotated[list[ModelRef | Member], Field(min_length=1)]
    """The models, each a reference or `{model, weight, density}`."""
    base: ModelRef | None = None
    """What task vectors are measured from; linear has none."""
    weight: float = 1.0
    """The weight of a model that names none."""
    density: Fraction = 1.0
    """The density of a model that names none."""
    lambda_: Annotated[float, Field(alias="lambda")] = 1.0
    """Scales the merged task vector."""
    normalize: bool | None = None
    """Divide by the sum of weights; true for linear and ties, false for the rest by default."""
    dtype: Dtype | None = None
    """The type of the result; that of `base`, else of the first model, by default."""

    def outputs(self) -> dict[str, ArtifactKind]:
        return {"model": "model"}

    @model_validator(mode="after")
    def _check(self) -> MergeStage:
        if self.method == "linear":
            if self.base is not None:
                raise refuse(
                    "linear averages `models` and has no base; list it among them, or use task_arithmetic", field="base"
                )
            if "lambda_" in self.model_fields_set:
                raise refuse("scales a task vector; linear has none", field="lambda")
        elif self.base is None:
            raise refuse("{method} adds task vectors to a base; name it", field="base", method=self.method)
        dense = self.method in ("linear", "task_arithmetic")
        if dense and (
            "density" in self.model_fields_set or any(isinstance(m, Member) and m.density for m in self.models)
        ):
            raise refuse(
                "{method} keeps every entry and has no density; use ties, dare_linear or dare_ties",
                field="density",
                method=self.method,
            )
        return self
