"""A new LoRA adapter: what it goes on, checked by name before peft sees it, and whether training reached it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from finery.contract import StageContext
from finery.errors import InputError, StageError
from finery.schemas.training import Lora
from finery.training.added_tokens import complete_head, trained_rows
from finery.training.arguments import lora_config
from finery.training.folders import adapter_base, adapter_quantization
from finery.training.quantize import quantization_record

if TYPE_CHECKING:
    from finery.schemas.dpo import DpoStage
    from finery.schemas.grpo import GrpoStage
    from finery.schemas.sft import SftStage

_SHOWN = 30


def new_adapter(model: Any, lora: Lora, *, seed: int, token_ids: Sequence[int] = ()) -> Any:
    """The model with a new adapter named `default`, its weights drawn from `seed` as TRL would draw them.

    Args:
        model: full or 4-bit weights.
        seed: the Trainer's (`trainer_seed`).
        token_ids: rows of the embedding and the head that are trained and saved with the adapter.

    Raises:
        InputError: `lora` names modules that the model has not, or that no adapter can go on.
    """
    from peft import get_peft_model
    from transformers import set_seed

    check_targets(model, lora)
    rows = {"trainable_token_indices": trained_rows(model, token_ids)} if token_ids else {}
    set_seed(seed)
    made = get_peft_model(model, lora_config(_by_name(lora, model), **rows))
    complete_head(made)
    return made


def sits_on(model: Any, config: SftStage | DpoStage | GrpoStage, folder: Path, context: StageContext) -> dict[str, Any]:
    """What model.json says of a trained adapter: the model it sits on, and how that was quantized.

    Args:
        model: as trained.
        config: `lora` is given for a new adapter; without it the one in `folder` was trained further, on its base.
        folder: the stage's input `model`.

    Returns:
        `{base, quantization}`, as `publish_model` takes them; {} of a model that is no adapter.

    Raises:
        InputError: `folder` is an adapter that does not say what it sits on.
    """
    if not hasattr(model, "peft_config"):
        return {}
    given = {"digest": context.input_digests.get("model", ""), "ref": context.input_refs.get("model", "")}
    if config.lora is None:
        return {"base": adapter_base(folder, **given), "quantization": adapter_quantization(folder)}
    record = quantization_record(config.quantization, config.dtype) if config.quantization else None
    return {"base": given, "quantization": record}


def check_targets(model: Any, lora: Lora) -> None:
    """Hold `lora` to the model's modules: peft passes over a name that matches nothing as long as another one does.

    Raises:
        InputError: with the names the model has.
    """
    modules = {name: module for name, module in model.named_modules() if name}
    layers = _layers(model)
    chosen = _chosen(lora, modules, model)
    if lora.layers_to_transform is not None and (beyond := [n for n in lora.layers_to_transform if n >= layers]):
        raise InputError(f"lora.layers_to_transform: {beyond} of a model with layers 0 to {layers - 1}")
    head, embedding = model.get_output_embeddings(), model.get_input_embeddings()
    tied = head is not None and head.weight is embedding.weight
    for name in chosen:
        if modules[name] is head:
            remedy = (
                "leave lora out to train it" if tied else f"train it whole, by lora.modules_to_save: [{_leaf(name)}]"
            )
            raise InputError(
                f"lora.target_modules: {name} is the head, which TRL's fused loss reads past an adapter; {remedy}"
            )
        if not _takes_adapter(modules[name]) or modules[name] is embedding:
            raise InputError(
                f"lora.target_modules: {name} is a {type(modules[name]).__name__}, and adapters go on linear layers; "
                f"{_names(model)}"
            )
    _check_saved(lora, modules, chosen, tied, model)


def _chosen(lora: Lora, modules: dict[str, Any], model: Any) -> list[str]:
    """The modules that `target_modules` names, by peft's rules (tuners_utils.check_target_module_exists)."""
    wanted = lora.target_modules
    if wanted == "all-linear":
        if not _linear(model):
            raise InputError(f"lora.target_modules: {_names(model)}")
        return []
    if isinstance(wanted, list):
        found = {
            target: [name for name in modules if name == target or name.endswith(f".{target}")] for target in wanted
        }
        if missing := [target for target, names in found.items() if not names]:
            raise InputError(f"lora.target_modules: nothing is named {', '.join(missing)}; {_names(model)}")
        return [name for names in found.values() for name in names]
    try:
        names = [name for name in modules if re.fullmatch(wanted, name)]
    except re.error as error:
        raise InputError(f"lora.target_modules: {wanted!r} is no regular expression ({error})") from error
    if not names:
        hint = f"; to name modules write a list: [{wanted}]" if re.fullmatch(r"\w+", wanted) else ""
        raise InputError(
            f"lora.target_modules: the pattern {wanted!r} matches no module's whole name{hint}; {_names(model)}"
        )
    return names


def _by_name(lora: Lora, model: Any) -> Lora:
    """all-linear as a list of names where layers are chosen: peft takes `layers_to_transform` with a list alone."""
    if lora.target_modules != "all-linear" or lora.layers_to_transform is None:
        return lora
    return lora.model_copy(update={"target_modules": sorted({_leaf(name) for name in _linear(model)})})


def _check_saved(lora: Lora, modules: dict[str, Any], chosen: Iterable[str], tied: bool, model: Any) -> None:
    for wanted in lora.modules_to_save or ():
        found = _named(wanted, modules)
        if not found:
            raise InputError(f"lora.modules_to_save: nothing is named {wanted}; {_names(model)}")
        if both := sorted(set(found) & set(chosen)):
            raise InputError(f"lora.modules_to_save: {both[0]} is among lora.target_modules too; name it once")
        ends = (model.get_input_embeddings(), model.get_output_embeddings())
        if tied and (end := next((name for name in found if any(modules[name] is part for part in ends)), None)):
            raise InputError(
                f"lora.modules_to_save: {end} is tied to the model's other end, and a copy of its own would not be; "
                "leave lora out to train it, or name new tokens in added_tokens"
            )


def check_reached(model: Any) -> list[str]:
    """After training: the modules whose adapter is still 0 although others are not.

    Raises:
        StageError: every lora_B is 0, as it was made: no gradient reached the adapter, and the model is its base.
    """
    zero = {
        name.split(".lora_B.")[0]: not bool(weight.detach().any())
        for name, weight in model.named_parameters()
        if ".lora_B.default." in name  # TRL keeps a frozen copy of the start beside it, named ref
    }
    if zero and all(zero.values()):
        raise StageError(
            "training left the adapter at 0 (every lora_B is as it was made), so the model is its base; raise "
            "learning_rate, train beyond warmup_steps, or name target modules that the forward pass uses"
        )
    return [name.removeprefix("base_model.model.") for name, is_zero in zero.items() if is_zero]


def _named(wanted: str, modules: Iterable[str]) -> list[str]:
    return [name for name in modules if name == wanted or name.endswith(f".{wanted}")]


def _takes_adapter(module: Any) -> bool:
    import torch
    from transformers.pytorch_utils import Conv1D

    return isinstance(module, torch.nn.Linear | Conv1D)


def _linear(model: Any) -> list[str]:
    """The names of the linear layers, the head left out."""
    head = model.get_output_embeddings()
    return [name for name, module in model.named_modules() if _takes_adapter(module) and module is not head]


def _layers(model: Any) -> int:
    return int(model.config.get_text_config().num_hidden_layers)


def _leaf(name: str) -> str:
    return name.rsplit(".", 1)[-1]


def _names(model: Any) -> str:
    """The names an adapter can be asked for by, the numbers of layers left out."""
    full = _linear(model)
    short = list(dict.fromkeys(_leaf(name) for name in full))
    if not full:
        return f"a {type(model).__name__} has no linear layers"
    return f"the model's linear layers are {', '.join(short[:_SHOWN])} (in full, for instance {full[0]})"
