"""GRPO's completions by vLLM, in the training process (TRL's `vllm_mode: colocate`).

TRL starts the engine and draws from it; what it does there that would make another policy of it is done here: the
weights that are handed over are those that train, to one rounding, and the policy itself is left as it is; a completion
ends at the tokens at which the trainer says it has ended; and the draws follow the stage's seed.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from finery.errors import InputError
from finery.training.folders import CONFIG, read_json, vocabulary_size

if TYPE_CHECKING:
    from finery.schemas.grpo import GrpoStage


def require_vllm() -> None:
    """Raises:
    InputError: vLLM is not installed in the stage's interpreter.
    """
    if find_spec("vllm") is None:
        raise InputError(
            f"use_vllm: {sys.executable} has no vLLM, which fixes versions of torch and transformers of its own. Make "
            "an environment for the stage (python3.11 -m venv vllm-env; vllm-env/bin/pip install 'finery[train]' "
            "'vllm>=0.22,<=0.31') and name it: runtime: {process: {python: ./vllm-env/bin/python}}; or leave use_vllm "
            "out"
        )


def start_from(model: Any, folder: Path) -> None:
    """Let vLLM start from `folder`, the full model at the bottom of the policy.

    What it reads there are shapes and a type: before the first completion it is given the weights that train.

    Raises:
        InputError: the policy has other shapes, since an adapter added tokens; or its embedding's rows are trained.
    """
    rows = model.get_input_embeddings().weight.shape[0]
    size = vocabulary_size(read_json(folder / CONFIG))
    grown = size is not None and rows != size
    if grown or any("trainable_tokens" in name for name, _ in model.named_parameters()):
        raise InputError(
            f"use_vllm: the policy is an adapter with tokens of its own, and {folder.name}, from which vLLM starts, "
            "has none of them; make one model of it first, by a stage of kind merge, method linear, of this one model"
        )
    inner = model.get_base_model() if hasattr(model, "peft_config") else model
    inner.name_or_path = str(folder)


def vllm_arguments(config: GrpoStage, lengths: Sequence[int]) -> dict[str, Any]:
    """GRPOConfig's arguments on vLLM, none left to a default.

    Args:
        lengths: tokens of each prompt.

    Raises:
        InputError: the longest prompt and its completion pass vllm_max_model_length.
    """
    if not config.use_vllm:
        return {"use_vllm": False}
    needed = max(lengths) + config.sampling.max_completion_length
    room = config.vllm_max_model_length or needed
    if needed > room:
        raise InputError(
            f"vllm_max_model_length: {room} is less than the longest prompt, {max(lengths)} tokens, and "
            f"sampling.max_completion_length {config.sampling.max_completion_length} need; vLLM would cut completions "
            f"short: give {needed} or more, or leave it out"
        )
    return {
        "use_vllm": True,
        "vllm_mode": config.vllm_mode,
        "vllm_model_impl": "vllm",
        "vllm_enable_sleep_mode": False,
        "vllm_structured_outputs_regex": None,
        "vllm_tensor_parallel_size": 1,
        "vllm_gpu_memory_utilization": config.vllm_gpu_memory_utilization,
        "vllm_max_model_length": room,
        "vllm_importance_sampling_correction": config.vllm_importance_sampling_correction,
        "vllm_importance_sampling_mode": config.vllm_importance_sampling_mode,
        "vllm_importance_sampling_clip_max": config.vllm_importance_sampling_clip_max,
        "vllm_importance_sampling_clip_min": None,
    }


def steer(trainer: Any) -> None:
    """Make TRL's vLLM draw from the very policy that trains. Called once, after GRPOTrainer's constructor.

    - Ends: vLLM would take those of the folder it starts from, and the policy's tokenizer may say others.
    - Seed: each engine seeds all of this process's generators with 0 (vllm/v1/worker/gpu_worker.py), and draws from
      them. A seed of a request's own is no remedy: TRL sends one for all, and a group's completions would be equal.
      The Trainer keeps and restores the generators with a checkpoint.
    - Weights: see `whole_weights`.
    """
    from accelerate.utils import set_seed

    engine, policy = trainer.vllm_generation, trainer.model
    engine.generation_kwargs = {"stop_token_ids": list(trainer.eos_token_ids), "ignore_eos": True}
    engine._iter_named_params = lambda: whole_weights(policy)
    set_seed(trainer.args.seed, device_specific=True)


def whole_weights(model: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """Each parameter by its name in the full model, one after another; an adapter's layers are W + scale * B A.

    Summed in float32, rounded once to W's type, one layer at a time, and W is not touched. TRL merges into W and
    subtracts again on each step instead, which moves the frozen weights by a rounding each time.
    """
    if not hasattr(model, "peft_config"):
        yield from ((name, parameter.data) for name, parameter in model.named_parameters())
        return
    from peft.tuners.tuners_utils import BaseTunerLayer

    inner = model.get_base_model()
    adapted = {name: module for name, module in inner.named_modules() if isinstance(module, BaseTunerLayer)}
    for name, layer in adapted.items():
        yield f"{name}.weight", _merged(layer)
        if (bias := getattr(layer.get_base_layer(), "bias", None)) is not None:
            yield f"{name}.bias", bias.data
    for name, parameter in inner.named_parameters():
        if any(name.startswith(f"{prefix}.") for prefix in adapted) or ".original_module." in name:
            continue
        if ".modules_to_save." in name:
            # the frozen start that TRL keeps for beta > 0 is named ref
            if ".modules_to_save.default." not in name:
                continue
            name = name.replace(".modules_to_save.default", "")
        yield name, parameter.data


def _merged(layer: Any) -> torch.Tensor:
    """What the layer's weight is with its active adapter merged in, by peft, on a copy."""
    base = layer.get_base_layer()
    kept = base.weight.data
    try:
        with torch.no_grad():
            base.weight.data = kept.to(torch.float32, copy=True)
            layer.merge()
            merged: torch.Tensor = base.weight.data.to(kept.dtype, copy=True)
            layer.unmerge()
    finally:
        base.weight.data = kept
    return merged


__all__ = ["require_vllm", "start_from", "steer", "vllm_arguments", "whole_weights"]
