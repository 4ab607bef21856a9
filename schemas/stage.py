"""The union of all stage kinds: the one place a new kind is listed."""

from __future__ import annotations

from typing import Annotated, get_args

from pydantic import Field

from finery.schemas.base import Stage
from finery.schemas.data import DataStage
from finery.schemas.distill import DistillStage
from finery.schemas.dpo import DpoStage
from finery.schemas.evaluate import EvaluateStage
from finery.schemas.gate import GateStage
from finery.schemas.grpo import GrpoStage
from finery.schemas.import_ import ImportStage
from finery.schemas.merge import MergeStage
from finery.schemas.pretrain import PretrainStage
from finery.schemas.promote import PromoteStage
from finery.schemas.script import ScriptStage
from finery.schemas.sft import SftStage

AnyStage = Annotated[
    ImportStage
    | DataStage
    | PretrainStage
    | SftStage
    | DpoStage
    | GateStage
    | GrpoStage
    | DistillStage
    | MergeStage
    | EvaluateStage
    | PromoteStage
    | ScriptStage,
    Field(discriminator="kind"),
]

KINDS: dict[str, type[Stage]] = {
    get_args(cls.model_fields["kind"].annotation)[0]: cls for cls in get_args(get_args(AnyStage)[0])
}
"""Kind to its class."""
