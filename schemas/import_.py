"""`import`: gives an outside model a name, a digest and a lineage; makes safetensors of a GGUF."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from finery.schemas.base import Dtype, ModelRef, Stage
from finery.schemas.reference import ArtifactKind


class ImportStage(Stage):
    kind: Literal["import"]
    """Brings a model from outside into the line."""
    packages = ("torch", "transformers", "safetensors", "gguf")
    from_: Annotated[ModelRef, Field(alias="from")]
    """A folder of safetensors or a GGUF file (`./path`), `hf:org/name@revision`, or `registry:name@alias`."""
    base: ModelRef | None = None
    """For a folder that holds an adapter: the model it was trained on. Needed unless its model.json says so."""
    dtype: Dtype | None = None
    """The weights' type; by default that of the source, and float32 for a GGUF. An adapter keeps its own."""

    def outputs(self) -> dict[str, ArtifactKind]:
        return {"model": "model"}
