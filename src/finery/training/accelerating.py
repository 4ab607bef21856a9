"""The settings file of `accelerate launch` for a stage: made from its `launch`, checked by accelerate's own parser."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from finery.errors import InputError, StageError
from finery.schemas.launch import DEEPSPEED, Launch
from finery.schemas.training import TrainingStage
from finery.training.distributed import Ranks

if TYPE_CHECKING:
    import torch


def accelerate_config(launch: Launch, config: TrainingStage) -> dict[str, Any]:
    """What `accelerate launch --config_file` reads, by accelerate's names; no host, path or time is in it.

    On a CPU distributed_type is MULTI_GPU or FSDP all the same: accelerate's launcher takes MULTI_CPU for mpirun's,
    and use_cpu decides. Port 0 is any that is free.
    """
    kinds = {"ddp": "MULTI_GPU", "fsdp": "FSDP", "deepspeed_zero2": "DEEPSPEED", "deepspeed_zero3": "DEEPSPEED"}
    settings: dict[str, Any] = {
        "compute_environment": "LOCAL_MACHINE",
        "distributed_type": kinds[launch.strategy],
        "num_machines": 1,
        "num_processes": launch.processes,
        "machine_rank": 0,
        "main_process_port": 0,
        "mixed_precision": "bf16" if config.bf16 else "no",
        "use_cpu": not config.resources.gpus,
        "rdzv_backend": "static",
        "same_network": True,
        "main_training_function": "main",
        "downcast_bf16": "no",
        "enable_cpu_affinity": False,
        "debug": False,
    }
    if launch.strategy == "fsdp":
        settings["fsdp_config"] = _fsdp(launch)
    elif launch.strategy in DEEPSPEED:
        settings["deepspeed_config"] = _deepspeed(launch, config)
    return settings


def _fsdp(launch: Launch) -> dict[str, Any]:
    """FSDP2, each of the model's own blocks a unit; every process loads the weights itself."""
    return {
        "fsdp_version": 2,
        "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
        "fsdp_reshard_after_forward": True,
        "fsdp_offload_params": launch.offload == "parameters",
        "fsdp_state_dict_type": "SHARDED_STATE_DICT",
        "fsdp_cpu_ram_efficient_loading": False,
        "fsdp_activation_checkpointing": False,
    }


def _deepspeed(launch: Launch, config: TrainingStage) -> dict[str, Any]:
    """ZeRO of stage 2 or 3; what waits on the host with `offload`."""
    third = launch.strategy == "deepspeed_zero3"
    return {
        "zero_stage": 3 if third else 2,
        "gradient_accumulation_steps": config.gradient_accumulation_steps,
        "gradient_clipping": config.max_grad_norm,
        "offload_optimizer_device": "none" if launch.offload == "none" else "cpu",
        "offload_param_device": "cpu" if launch.offload == "parameters" else "none",
        "zero3_init_flag": False,
        "zero3_save_16bit_model": False,
    }


def check_packages(launch: Launch) -> None:
    """Raise unless the strategy's package is installed.

    Raises:
        InputError: it is not.
    """
    if launch.strategy in DEEPSPEED and find_spec("deepspeed") is None:
        raise InputError(
            f"launch.strategy: {launch.strategy} needs the package deepspeed, which the stage's environment lacks; "
            "pip install deepspeed there, or take fsdp"
        )


def write_config(settings: dict[str, Any], path: Path) -> None:
    """Write the settings as JSON and hold them to what accelerate reads.

    accelerate passes over a key that it does not know within fsdp_config and deepspeed_config, so those are compared
    with its launcher's arguments.

    Raises:
        InputError: a key or a value is none of accelerate's; the installed version is another one.
    """
    from accelerate.commands.config.config_args import load_config_from_file
    from accelerate.commands.launch import launch_command_parser

    path.write_text(json.dumps(settings, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    known = vars(launch_command_parser().parse_args(["script"]))
    nested = [name for part in ("fsdp_config", "deepspeed_config") for name in settings.get(part, {})]
    unknown = [name for name in nested if name not in known]
    try:
        load_config_from_file(str(path))
    except ValueError as error:
        raise InputError(f"launch: {error}") from error
    if unknown:
        raise InputError(
            f"launch: the installed accelerate does not know {', '.join(unknown)}; install the version that finery's "
            "constraints name"
        )


def settle_strategy(ranks: Ranks, device: torch.device) -> None:
    """Called in each process before its accelerator is made: FSDP on a CPU is FSDP.

    accelerate 1.15 turns FSDP on for MULTI_GPU and its kin, and passes over it for MULTI_CPU: training would go on as
    DDP without a word. torch's FSDP2 works over gloo, and the device stays the CPU (docs/decisions/launch.md).
    """
    if ranks.strategy != "fsdp" or device.type != "cpu":
        return
    from accelerate.state import PartialState
    from accelerate.utils import DistributedType

    state = PartialState()
    if state.distributed_type == DistributedType.MULTI_CPU:
        state.distributed_type = DistributedType.MULTI_GPU


def check_strategy(ranks: Ranks, trainer: Any) -> None:
    """Raise unless the Trainer trains as `launch` says, in as many processes.

    Raises:
        StageError: it does not; nothing was trained.
    """
    found = "fsdp" if trainer.is_fsdp_enabled else "deepspeed" if trainer.is_deepspeed_enabled else "ddp"
    processes = trainer.args.world_size
    if ranks.strategy and not (ranks.strategy.startswith(found) and processes == ranks.count):
        raise StageError(
            f"launch: {ranks.count} processes with {ranks.strategy} were asked for, and accelerate set up {processes} "
            f"with {found}; nothing was trained. Install the versions that finery's constraints name"
        )


def check_shared(ranks: Ranks, model: Any) -> None:
    """Raise unless the model that a step is taken with joins the gradients of all processes.

    Raises:
        StageError: it does not, and each process would go its own way.
    """
    if ranks.count == 1:
        return
    from torch.distributed.fsdp import FSDPModule
    from torch.nn.parallel import DistributedDataParallel

    wrappers: dict[str, type] = {"ddp": DistributedDataParallel, "fsdp": FSDPModule}
    wanted = wrappers.get(ranks.strategy)
    if wanted is not None and not isinstance(model, wanted):
        raise StageError(
            f"launch: the model is a {type(model).__name__} and no {wanted.__name__}, so that {ranks.count} processes "
            "would train a model each; nothing was trained. This is finery's mistake: please report it"
        )
