"""Loading a model folder: full weights or an adapter on its base, with the tokenizer that tokenizer.json says.

The other half is `finery.training.publish`; its `publish_model` and the checks of `finery.training.folders` are
importable from here. Nothing here touches torch's threads or its random state.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from finery.errors import InputError
from finery.schemas.training import Quantization
from finery.training.added_tokens import complete_head, grow
from finery.training.folders import (
    ADAPTER_CONFIG,
    ADAPTER_WEIGHTS,
    CONFIG,
    TOKENIZER,
    adapter_base,
    check_folder,
    is_adapter,
    read_json,
    read_model_info,
    vocabulary_size,
)
from finery.training.publish import publish_model
from finery.training.quantize import quantize, read_record, same_weights, through_4bit

__all__ = [
    "adapter_base",
    "check_folder",
    "is_adapter",
    "load_model",
    "load_tokenizer",
    "merge_adapter",
    "publish_model",
    "read_model_info",
]

NO_BASES: Mapping[str, Path] = {}


def load_tokenizer(folder: Path) -> Any:
    """The folder's tokenizer, as its tokenizer.json says.

    AutoTokenizer is not asked when there is a tokenizer.json: for some model types (qwen2) it builds a class of its own
    around the vocabulary and drops the file's pre-tokenizer (case T7).

    Raises:
        InputError: there is no tokenizer, or it cannot be read.
    """
    from transformers import AutoTokenizer, PreTrainedTokenizerFast

    check_folder(folder)
    loader = PreTrainedTokenizerFast if (folder / TOKENIZER).is_file() else AutoTokenizer
    try:
        return loader.from_pretrained(folder, local_files_only=True)
    except Exception as error:  # the tokenizers library raises a bare Exception for a file it cannot read
        raise InputError(f"{folder}: its tokenizer cannot be loaded ({first_line(error)})") from error


def load_model(
    folder: Path,
    *,
    dtype: str | None = None,
    bases: Mapping[str, Path] = NO_BASES,
    trainable: bool = False,
    base: Mapping[str, str] | None = None,
    quantization: Quantization | None = None,
    attention: str | None = None,
) -> Any:
    """The causal LM in `folder`: full weights, or a PeftModel whose adapter is named `default`.

    An adapter that sits on an adapter finds that one merged, in float32, with one rounding. One that was trained on
    4-bit weights sits on those, dequantized unless `quantization` asks for the bits themselves.

    Args:
        folder: a published model, or a user's own folder in the layout of transformers.
        dtype: the weights' type ("float32", "bfloat16", "float16"); that of the folder by default. For an adapter it is
            the base's; peft keeps adapter weights in float32.
        bases: digest of a model -> its folder (`context.bases`), where an adapter's base is looked up.
        trainable: train mode with gradients, for an adapter on its weights alone; else eval mode, frozen.
        base: `{digest, ref}` of the base of an adapter whose folder does not say it.
        quantization: hold the linear layers in 4 bits, to train an adapter on them.
        attention: transformers' `attn_implementation`; its own choice by default.

    Raises:
        InputError: the folder is refused (`check_folder`), misses weights, is an adapter whose base is not at hand, or
            one that was trained on other weights than those that `dtype` and `quantization` make.
    """
    check_folder(folder)
    if is_adapter(folder):
        below = base_folder(folder, bases, base)
        recorded = read_model_info(folder).get("quantization")
        if quantization is not None:
            _check_quantization(folder, recorded, quantization, dtype)
        model = _load_below(folder, below, recorded, dtype, bases, quantization, attention)
        model = _put_adapter(model, folder, below, trainable)
    else:
        model, _ = load_full(folder, dtype, attention)
        if quantization is not None:
            model = quantize(model, quantization)
    model.train(trainable)
    return model if trainable else model.requires_grad_(False)


def merge_adapter(
    folder: Path, *, dtype: str | None = None, bases: Mapping[str, Path] = NO_BASES, attention: str | None = None
) -> Any:
    """The full model that an adapter amounts to: W + scale * B A, summed in float32 and rounded once.

    W is what the adapter was trained on: the adapters below it merged, 4-bit weights dequantized.

    Args:
        folder: an adapter; a full model is loaded as it is.
        dtype: the result's type; that of the full model below by default.
        bases: as in `load_model`.
        attention: as in `load_model`.

    Raises:
        InputError: as `load_model`.
    """
    import torch

    if not is_adapter(folder):
        return load_model(folder, dtype=dtype, bases=bases, attention=attention)
    target = dtype or read_model_info(root_folder(folder, bases))["dtype"] or "float32"
    # peft's own ValueError for a kind of adapter that cannot be merged would name no folder
    model = load_model(folder, dtype="float32", bases=bases, attention=attention)
    try:
        merged = model.merge_and_unload(safe_merge=True)
    except (ValueError, NotImplementedError, AttributeError) as error:
        raise InputError(f"{folder}: this adapter cannot be merged into its base ({first_line(error)})") from error
    return merged.to(getattr(torch, target)).eval()


def base_folder(folder: Path, bases: Mapping[str, Path], base: Mapping[str, str] | None = None) -> Path:
    """The folder of the model that the adapter in `folder` sits on, which may be an adapter as well.

    Args:
        base: which one, where the folder does not say.

    Raises:
        InputError: the adapter does not say, or the base is not among `bases`.
    """
    base = base or read_model_info(folder).get("base")
    if not base:
        raise InputError(
            f"{folder}: is an adapter that does not say which model it sits on; bring it in with a stage of kind "
            "import that names base"
        )
    where = bases.get(base["digest"])
    if where is None:
        raise InputError(
            f"{folder}: its base {base.get('ref') or 'model'} ({base['digest'][:12]}) is not at hand; an adapter is "
            "loaded on the very model it was trained on"
        )
    return where


def root_folder(folder: Path, bases: Mapping[str, Path]) -> Path:
    """The full model at the bottom of a stack of adapters.

    Raises:
        InputError: as `base_folder`, or the stack comes back to where it was.
    """
    seen = [folder]
    while is_adapter(seen[-1]):
        below = base_folder(seen[-1], bases)
        if below in seen:
            raise InputError(f"{folder}: the adapters sit on each other in a circle, with {below} in it twice")
        seen.append(below)
    return seen[-1]


def load_full(folder: Path, dtype: str | None = None, attention: str | None = None) -> tuple[Any, list[str]]:
    """The causal LM in a folder of full weights, and the names of stored tensors that it has no place for.

    Raises:
        InputError: transformers cannot load it, or weights are missing.
    """
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()
    try:
        model, loading = AutoModelForCausalLM.from_pretrained(
            folder,
            dtype=dtype or "auto",
            use_safetensors=True,
            local_files_only=True,
            output_loading_info=True,
            attn_implementation=attention,
        )
    except (OSError, ValueError, KeyError, RuntimeError, ImportError) as error:
        raise InputError(f"{folder}: cannot be loaded as a causal language model ({first_line(error)})") from error
    # transformers fills a missing weight at random with a warning; such a model is not the one that was named
    if missing := sorted({*loading["missing_keys"], *(key[0] for key in loading["mismatched_keys"])}):
        raise InputError(
            f"{folder}: {len(missing)} weights that {type(model).__name__} needs are missing or of another shape: "
            f"{', '.join(missing[:5])}"
        )
    return model, sorted(loading["unexpected_keys"])


def _load_below(
    folder: Path,
    below: Path,
    recorded: Mapping[str, Any] | None,
    dtype: str | None,
    bases: Mapping[str, Path],
    quantization: Quantization | None,
    attention: str | None,
) -> Any:
    """What the adapter in `folder` sits on: adapters merged, rows added for its tokens, weights as 4 bits have them."""
    import torch

    check_folder(below)
    before = recorded["dtype"] if recorded else dtype
    if is_adapter(below):
        root_folder(below, bases)
        model = merge_adapter(below, dtype=before, bases=bases, attention=attention)
    else:
        model, _ = load_full(below, before, attention)
    if (folder / CONFIG).is_file() and (size := vocabulary_size(read_json(folder / CONFIG))):
        grow(model, size)
    if not recorded:
        return model
    if quantization is not None:
        return quantize(model, quantization)
    model = through_4bit(model, read_record(recorded, folder))
    return model.to(getattr(torch, dtype)) if dtype else model


def _check_quantization(
    folder: Path, recorded: Mapping[str, Any] | None, quantization: Quantization, dtype: str | None
) -> None:
    """An adapter goes on in 4 bits on the very bits it was trained on."""
    if not recorded:
        raise InputError(
            f"{folder}: is an adapter trained on weights that were not quantized; leave quantization out, or put a new "
            "adapter on it (adapter: stack)"
        )
    trained = read_record(recorded, folder)
    if not same_weights(trained, quantization) or dtype != recorded["dtype"]:
        raise InputError(
            f"{folder}: is an adapter trained on {recorded['dtype']} weights in {trained.in_words()}; train it further "
            "with the same dtype and quantization, or without quantization on the dequantized weights"
        )


def _put_adapter(base: Any, folder: Path, where: Path, trainable: bool) -> Any:
    from peft import PeftModel, get_peft_model_state_dict
    from safetensors import safe_open

    try:
        model = PeftModel.from_pretrained(
            base, str(folder), adapter_name="default", is_trainable=trainable, local_files_only=True
        )
    except (OSError, ValueError, KeyError, TypeError, RuntimeError) as error:
        raise InputError(f"{folder}: cannot be put on its base {where} ({first_line(error)})") from error
    with safe_open(folder / ADAPTER_WEIGHTS, "pt") as opened:
        stored = set(opened.keys())
    # peft leaves a weight that the file lacks at its initial value, with a warning, and drops one it does not know
    if odd := sorted(stored ^ set(get_peft_model_state_dict(model, save_embedding_layers=False))):
        raise InputError(
            f"{folder}: its weights are not those that {ADAPTER_CONFIG} describes on the base {where}; missing or "
            f"unknown: {', '.join(odd[:5])}"
        )
    complete_head(model)
    return model


def first_line(error: Exception) -> str:
    """An error's first line, short enough for one message."""
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[0][:300]}" if text else type(error).__name__
