"""`launch`: one stage on several processes, each of which takes its share of every step (`accelerate launch`)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from finery.schemas.base import Model, refuse

if TYPE_CHECKING:
    from finery.schemas.training import TrainingStage

DEEPSPEED = ("deepspeed_zero2", "deepspeed_zero3")
SHARDED = ("fsdp", "deepspeed_zero3")
"""The strategies under which no process has all the weights."""
_OFFLOADS = {
    "ddp": ("none",),
    "fsdp": ("none", "parameters"),
    "deepspeed_zero2": ("none", "optimizer"),
    "deepspeed_zero3": ("none", "optimizer", "parameters"),
}
_OPTIMIZERS = ("adamw_torch_fused", "adamw_torch", "sgd")


class Launch(Model):
    """Processes of one stage on one host; the loss is over the tokens of all of them."""

    processes: Annotated[int, Field(ge=1)]
    """How many; with GPUs one for each (resources.gpus), else the stage's cores are shared out among them. A step takes processes x per_device_train_batch_size x gradient_accumulation_steps rows."""
    strategy: Literal["ddp", "fsdp", "deepspeed_zero2", "deepspeed_zero3"] = "ddp"
    """ddp: each has the whole model. fsdp (FSDP2) and deepspeed_zero3: weights, gradients and optimizer state are shared out. deepspeed_zero2: gradients and optimizer state are."""
    offload: Literal["none", "optimizer", "parameters"] = "none"
    """What waits in the host's memory between uses: the optimizer's state (DeepSpeed), or the weights as well (fsdp, deepspeed_zero3)."""

    @property
    def packages(self) -> tuple[str, ...]:
        """Distributions beside the kind's own whose versions decide the result."""
        return ("deepspeed",) if self.strategy in DEEPSPEED else ()

    def in_words(self) -> str:
        """`2 processes, fsdp, parameters in the host's memory`."""
        parts = [f"{self.processes} process{'es' if self.processes > 1 else ''}", self.strategy]
        if self.offload != "none":
            parts.append(f"{'optimizer state' if self.offload == 'optimizer' else 'parameters'} in the host's memory")
        return ", ".join(parts)


def check_launch(
    stage: TrainingStage, launch: Launch | None, *, only: tuple[str, ...] = (), whole: dict[str, object] | None = None
) -> None:
    """What a strategy needs of the machine and of the rest of the stage.

    Args:
        only: the strategies that the kind has; all by default.
        whole: fields that need all weights in one process, by name; refused with any strategy but ddp.
    """
    if launch is None:
        return
    if only and launch.strategy not in only:
        raise refuse(
            "{kind} trains with {only} so far; {strategy} is sft's and pretrain's",
            field="launch.strategy", kind=stage.kind, only=" or ".join(only), strategy=launch.strategy,
        )  # fmt: skip
    _check_machine(stage, launch)
    if launch.strategy == "ddp":
        return
    if stage.optim not in _OPTIMIZERS:
        raise refuse(
            "{optim} does not work on weights or state that are shared out ({strategy}); take adamw_torch_fused, "
            "adamw_torch or sgd, or launch.strategy: ddp",
            field="optim", optim=stage.optim, strategy=launch.strategy,
        )  # fmt: skip
    if given := next((name for name, value in (whole or {}).items() if value), None):
        if launch.strategy in SHARDED:
            why = "needs the whole model in each process, which {strategy} shares out; take launch.strategy: ddp"
        else:
            why = "was never tried with {strategy}, which changes how gradients are kept; take launch.strategy: ddp"
        raise refuse(why, field=given, strategy=launch.strategy)


def _check_machine(stage: TrainingStage, launch: Launch) -> None:
    gpus, strategy = stage.resources.gpus, launch.strategy
    if gpus and gpus != launch.processes:
        raise refuse(
            "is {gpus} and launch.processes {processes}: each process trains on one GPU; give both the same number",
            field="resources.gpus", gpus=gpus, processes=launch.processes,
        )  # fmt: skip
    if strategy == "ddp" and launch.processes == 1:
        raise refuse("one process with ddp is what a stage does without launch; leave launch out", field="launch")
    if strategy == "fsdp" and launch.processes == 1:
        raise refuse("shares the model out among processes; give at least 2", field="launch.processes")
    if strategy in DEEPSPEED and not gpus:
        raise refuse(
            "DeepSpeed needs GPUs (resources.gpus: {processes}); on a CPU take ddp or fsdp",
            field="launch.strategy", processes=launch.processes,
        )  # fmt: skip
    if launch.offload not in _OFFLOADS[strategy]:
        raise refuse(
            "{offload} is not for {strategy}, which takes {accepted}",
            field="launch.offload", offload=launch.offload, strategy=strategy, accepted=", ".join(_OFFLOADS[strategy]),
        )  # fmt: skip
    if launch.offload != "none" and not gpus:
        raise refuse("a CPU's memory is the host's already; leave it out, or give GPUs", field="launch.offload")
