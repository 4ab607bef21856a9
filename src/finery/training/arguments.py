"""The Trainer's arguments from a stage's config: every field passed, nothing left to a default that TRL may change."""

from __future__ import annotations

import warnings
from importlib.util import find_spec
from typing import Any

import torch

from finery.contract import StageContext
from finery.errors import InputError
from finery.schemas.training import Lora, TrainingStage
from finery.training.distributed import launched_arguments

_ATTENTION_PACKAGES = {"flash_attention_2": "flash_attn", "flash_attention_3": "flash_attn_interface"}
_TORCH_OPTIMIZERS = ("adamw_torch_fused", "adamw_torch", "adafactor", "sgd")


def trainer_arguments(config: TrainingStage, context: StageContext, model: Any, *, max_steps: int) -> dict[str, Any]:
    """Keyword arguments that SFTConfig and GRPOConfig share.

    Args:
        model: its config keeps its `use_cache`, which the Trainer would overwrite and the output then carry on.
        max_steps: optimizer steps.

    Raises:
        InputError: the stage asks for GPUs that are not there, for more than one, or for what the machine lacks
            (`check_machine`).
    """
    cpu = on_cpu(config)
    check_machine(config)
    cosine_floor = {"min_lr_rate": config.min_lr_rate} if config.lr_scheduler_type == "cosine_with_min_lr" else None
    return {
        "output_dir": str(context.checkpoint_dir),
        "max_steps": max_steps,
        "per_device_train_batch_size": config.per_device_train_batch_size,
        "gradient_accumulation_steps": config.gradient_accumulation_steps,
        "learning_rate": config.learning_rate,
        "lr_scheduler_type": config.lr_scheduler_type,
        "lr_scheduler_kwargs": cosine_floor,
        "warmup_steps": config.warmup_steps,
        "optim": config.optim,
        "weight_decay": config.weight_decay,
        "adam_beta1": config.adam_beta1,
        "adam_beta2": config.adam_beta2,
        "adam_epsilon": 1e-8,
        "max_grad_norm": config.max_grad_norm,
        "save_strategy": "steps",
        "save_steps": config.save_steps,
        "save_total_limit": None,
        "logging_strategy": "steps",
        "logging_steps": config.logging_steps,
        "logging_first_step": False,
        # the Trainer's filter would show a NaN as the mean of earlier losses
        "logging_nan_inf_filter": False,
        "use_cache": model.config.get_text_config().use_cache,
        "gradient_checkpointing": config.gradient_checkpointing,
        "seed": trainer_seed(context.seed),
        "use_cpu": cpu,
        "use_liger_kernel": config.use_liger_kernel,
        "bf16": config.bf16,
        "fp16": False,
        "dataloader_num_workers": 0,
        "dataloader_pin_memory": not cpu,
        "remove_unused_columns": False,
        "report_to": [],
        "disable_tqdm": True,
        "push_to_hub": False,
        **launched_arguments(config),
    }


def quietly(config_class: type, **arguments: Any) -> Any:
    """A config of TRL's, without the warning that its own field `gradient_checkpointing` has a newer name."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*gradient_checkpointing.*", category=FutureWarning)
        return config_class(**arguments)


def on_cpu(config: TrainingStage) -> bool:
    """Whether the stage trains on the CPU: it does unless it is given a GPU.

    Raises:
        InputError: the GPUs asked for are not there.
    """
    gpus = config.resources.gpus
    if gpus > (seen := torch.cuda.device_count() if torch.cuda.is_available() else 0):
        raise InputError(
            f"resources.gpus: {gpus} is asked for and torch sees {seen or 'none'} here; give gpus: 0 to train on the "
            "CPU"
        )
    return not gpus


def check_machine(config: TrainingStage) -> None:
    """What the schema cannot know: whether the GPU and the environment have what the stage asks for.

    Raises:
        InputError: bfloat16, FlashAttention, Liger's kernels or bitsandbytes are asked for and not there.
    """
    if config.bf16 and not torch.cuda.is_bf16_supported(including_emulation=False):
        name = torch.cuda.get_device_name()
        raise InputError(f"bf16: {name} computes no bfloat16 (Ampere and later do); set it to false")
    needed = {
        "attn_implementation": _ATTENTION_PACKAGES.get(config.attn_implementation or ""),
        "use_liger_kernel": "liger_kernel" if config.use_liger_kernel else None,
        "optim": None if config.optim in _TORCH_OPTIMIZERS else "bitsandbytes",
    }
    for field, package in needed.items():
        if package and not find_spec(package):
            raise InputError(
                f"{field}: {getattr(config, field)} needs the package {package.replace('_', '-')}, which the stage's "
                f"environment lacks; install it there, or leave {field} out"
            )


def trainer_seed(seed: int) -> int:
    """The stage's seed folded into the 32 bits that numpy takes."""
    return (seed ^ (seed >> 32)) & 0xFFFFFFFF


def lora_config(lora: Lora, **more: Any) -> Any:
    """peft's LoraConfig, with further arguments of its own; peft is imported here and in `adapters` alone."""
    from peft import LoraConfig

    return LoraConfig(
        r=lora.r,
        lora_alpha=lora.lora_alpha,
        lora_dropout=lora.lora_dropout,
        target_modules=lora.target_modules,
        use_rslora=lora.use_rslora,
        use_dora=lora.use_dora,
        layers_to_transform=lora.layers_to_transform,
        modules_to_save=lora.modules_to_save,
        bias="none",
        task_type="CAUSAL_LM",
        **more,
    )
