"""A pipeline: one YAML file, the whole line."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import AfterValidator, Field

from finery.schemas.base import Model, Name, Runtime, refuse
from finery.schemas.stage import AnyStage


def _no_password(value: str) -> str:
    if re.search(r"://[^/@]*@", value):
        raise refuse(
            "carries a user name or password; set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD instead"
        )
    return value


class Defaults(Model):
    runtime: Runtime = "process"
    """Where stages run that do not say."""


class Tracking(Model):
    uri: Annotated[str, AfterValidator(_no_password)] | None = None
    """MLflow's tracking URI; by default MLFLOW_TRACKING_URI, else the project's own `sqlite:///.finery/mlflow.db`."""
    experiment: str | None = None
    """MLflow's experiment; the pipeline's name by default."""


class Pipeline(Model):
    name: Name
    """The pipeline's name: Prefect's flow run, MLflow's experiment and the registered model bear it."""
    description: str = ""
    """What it is for."""
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    """Every stage's seed is derived from it and the stage's name."""
    defaults: Defaults = Defaults()
    """What holds for every stage that does not say otherwise."""
    tracking: Tracking = Tracking()
    """Where MLflow is."""
    stages: Annotated[dict[Name, AnyStage], Field(min_length=1)]
    """The stages by name, in any order; edges follow from references."""
