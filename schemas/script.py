"""`script`: a command of your own as a stage."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from finery.schemas.base import FilePath, Free, Name, Secret, Stage, refuse
from finery.schemas.reference import ANY, ArtifactKind


class ScriptStage(Stage):
    kind: Literal["script"]
    """Runs a command that finds its inputs, outputs and parameters in the JSON file FINERY_SPEC names."""
    network = True
    command: Annotated[str, Field(min_length=1)] | Annotated[list[str], Field(min_length=1)]
    """A list of arguments, or one text for `/bin/sh -c`; it runs in the YAML file's folder."""
    files: list[FilePath] = []
    """Files it runs or reads; these and no others are hashed."""
    inputs: dict[Name, Annotated[str, ANY]] = {}
    """Named inputs: any artifact."""
    makes: dict[Name, ArtifactKind] = {}
    """Named outputs and what they are; the command writes each under its folder of the spec's `outputs`."""
    params: dict[str, Free] = {}
    """Anything the command wants to know."""
    env: dict[Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")], Secret] = {}
    """Environment variables from finery's own: `{HF_TOKEN: "${env:HF_TOKEN}"}`. Others are not passed on, but for PATH, HOME and the like."""

    def outputs(self) -> dict[str, ArtifactKind]:
        return dict(self.makes)

    @model_validator(mode="after")
    def _check(self) -> ScriptStage:
        if isinstance(self.command, list) and not self.command[0]:
            raise refuse("names no program", field="command")
        return self
