"""`promote`: a model earns its alias, under conditions on an exam."""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, model_validator

from finery.schemas.base import Model, ModelRef, Stage, refuse
from finery.schemas.reference import EVALUATION, ArtifactKind

Metric = Annotated[str, Field(pattern=r"^[^\s]+\.([a-z][a-z0-9_-]*\.[a-z][a-z0-9_]*|forgetting)$")]


def metric_parts(metric: str) -> tuple[str, str | None, str]:
    """(model, suite, name) of `model.suite.name`, the suite None for `model.forgetting`; a model may hold dots itself."""
    ref, _, name = metric.rpartition(".")
    if name == "forgetting":
        return ref, None, name
    model, _, suite = ref.rpartition(".")
    return model, suite, name


def _free_alias(value: str) -> str:
    if value.lower() == "latest" or re.fullmatch(r"v\d+", value.lower()):
        raise refuse("is an alias MLflow keeps for itself (latest, v1, v2, ...); take another, such as champion")
    return value


class Condition(Model):
    """Bounds on one number of the exam."""

    min: float | None = None
    """It must be at least this."""
    max: float | None = None
    """It must be at most this."""
    max_drop: Annotated[float, Field(ge=0)] | None = None
    """It may lie at most so far below the same number of the model `from`: the forgetting budget."""
    from_: Annotated[str | None, Field(alias="from")] = None
    """The model that max_drop compares with, one of the exam's."""
    on: Literal["value", "low", "high"] = "value"
    """What min and max are held to: the number, or the lower or upper limit of its interval. `{min: 0.7, on: low}` asks for 0.7 surely."""

    @model_validator(mode="after")
    def _check(self) -> Condition:
        if self.min is None and self.max is None and self.max_drop is None:
            raise refuse("asks for nothing; give min, max or max_drop")
        if (self.max_drop is None) != (self.from_ is None):
            raise refuse("max_drop and from go together: {max_drop: 0.02, from: base}", field="max_drop")
        if self.on != "value" and self.min is None and self.max is None:
            raise refuse("says what min and max are held to; max_drop compares the numbers themselves", field="on")
        if self.min is not None and self.max is not None and self.min > self.max:
            raise refuse("is above max, so nothing can hold both", field="min")
        return self


class PromoteStage(Stage):
    kind: Literal["promote"]
    """Decides whether a model is promoted; the engine applies the decision to the registry."""
    model: ModelRef
    """The model."""
    evaluation: Annotated[str, EVALUATION]
    """The exam its conditions are read from."""
    alias: Annotated[str, Field(pattern=r"^[A-Za-z][A-Za-z0-9_-]*$"), AfterValidator(_free_alias)] = "champion"
    """The alias it earns."""
    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_. -]*$")] | None = None
    """The registered model's name; the pipeline's by default."""
    form: Literal["full", "adapter"] = "full"
    """What is shipped when the model is an adapter: whole weights with the adapter merged in, or the adapter as it is."""
    require: Annotated[dict[Metric, Condition], Field(min_length=1)]
    """`model.suite.metric` to its bounds, for example `merged.domain.pass_at_1: {min: 0.7}`; `model.forgetting: {max: 0.05}` bounds what the general suites lost; a missing or non-finite number refuses."""

    def outputs(self) -> dict[str, ArtifactKind]:
        return {"decision": "decision"}

    @model_validator(mode="after")
    def _check(self) -> PromoteStage:
        for metric, condition in self.require.items():
            if metric_parts(metric)[1] is None and condition.max_drop is not None:
                raise refuse("{metric} is a drop already; bound it by max", field=f"require.{metric}", metric=metric)
        return self
