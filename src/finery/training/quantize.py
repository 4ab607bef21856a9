"""4-bit weights (QLoRA, arXiv 2305.14314): quantized by bitsandbytes for training, dequantized for everything else.

Quantizing is always done on the CPU, from the weights in the stage's `dtype`, so that the weights an adapter was
trained on can be had again, bit for bit, on any machine. Evaluation and merging use those weights dequantized: a W on
the 4-bit grid either way, and x W is what the 4-bit layer computes (docs/decisions/qlora.md).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from finery.errors import InputError
from finery.schemas.training import Quantization

_FIELDS = ("bnb_4bit_quant_type", "bnb_4bit_use_double_quant", "bnb_4bit_compute_dtype")


def quantization_record(quantization: Quantization, dtype: str) -> dict[str, Any]:
    """What model.json says of an adapter's base: the settings, and the type the weights had before."""
    return {"quant_method": "bitsandbytes", "load_in_4bit": True, "dtype": dtype} | {
        name: getattr(quantization, name) for name in _FIELDS
    }


def read_record(record: Mapping[str, Any], folder: Path) -> Quantization:
    """The settings that a model.json records.

    Raises:
        InputError: it is no record of 4-bit weights by bitsandbytes.
    """
    from pydantic import ValidationError

    what = f"{folder}: its model.json says quantization {dict(record)}"
    if record.get("quant_method") != "bitsandbytes" or not record.get("load_in_4bit") or "dtype" not in record:
        raise InputError(f"{what}; only bitsandbytes in 4 bits is known")
    try:
        return Quantization.model_validate({name: record[name] for name in _FIELDS if name in record})
    except ValidationError as error:
        raise InputError(f"{what} ({error.errors()[0]['msg']})") from None


def same_weights(one: Quantization, other: Quantization) -> bool:
    """Whether two settings give the same 4-bit weights; the compute type does not change them."""
    return all(getattr(one, name) == getattr(other, name) for name in _FIELDS[:2])


def quantize(model: Any, quantization: Quantization) -> Any:
    """The same causal LM with its linear layers, all but the head, in 4 bits.

    Args:
        model: full weights on the CPU, whose type the embedding, the norms and the head keep.

    Raises:
        InputError: bitsandbytes is not there, or the model has no linear layer it can quantize.
    """
    require_bitsandbytes()
    import copy

    import torch
    from transformers import BitsAndBytesConfig
    from transformers.utils import logging

    logging.disable_progress_bar()
    settings = BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type=quantization.bnb_4bit_quant_type,
        bnb_4bit_use_double_quant=quantization.bnb_4bit_use_double_quant,
        bnb_4bit_compute_dtype=getattr(torch, quantization.bnb_4bit_compute_dtype),
    )
    made, loading = type(model).from_pretrained(
        None,
        config=copy.deepcopy(model.config),
        state_dict=model.state_dict(),
        quantization_config=settings,
        dtype=model.dtype,
        attn_implementation=model.config._attn_implementation,
        device_map={"": "cpu"},
        output_loading_info=True,
    )
    if lost := sorted({*loading["missing_keys"], *(key[0] for key in loading["mismatched_keys"])}):
        raise InputError(f"quantization: transformers loses weights of a {type(model).__name__}: {', '.join(lost[:5])}")
    made.generation_config = model.generation_config
    layers = quantized_layers(made)
    if not layers:
        raise InputError(f"quantization: a {type(model).__name__} has no linear layer that bitsandbytes can quantize")
    for layer in layers.values():
        # on CPUs with AVX512-BF16 bitsandbytes would compute in bfloat16 in eval mode, and pass no gradient afterwards
        layer.support_avx512bf16_for_cpu = False
    return made.train(model.training)


def dequantize(model: Any) -> Any:
    """What a 4-bit model amounts to: the same weights as plain linear layers, in the type they had before."""
    from transformers.utils import logging

    before = logging.get_verbosity()
    logging.set_verbosity_error()  # it warns of the type, which is the one that was asked for
    try:
        return model.dequantize()
    finally:
        logging.set_verbosity(before)


def through_4bit(model: Any, quantization: Quantization) -> Any:
    """The model with each quantizable weight replaced by its neighbour on the 4-bit grid."""
    return dequantize(quantize(model, quantization))


def to_device(model: Any, device: Any) -> Any:
    """Move a 4-bit model: the Trainer leaves those where they are, and accelerate compares `hf_device_map`."""
    model = model.to(device)
    model.hf_device_map = {"": device}
    return model


def is_quantized(model: Any) -> bool:
    """Whether a model or PeftModel holds 4-bit weights."""
    return bool(getattr(model, "is_loaded_in_4bit", False))


@contextmanager
def unseen_by_trl(model: Any) -> Iterator[None]:
    """TRL's constructors cast the adapter of a 4-bit model to bfloat16, which rounds one that is trained further.

    Adapters stay in float32 here, whatever their base is in.
    """
    inner = model.get_base_model() if hasattr(model, "peft_config") else model
    quantized = is_quantized(inner)
    if quantized:
        inner.is_loaded_in_4bit = False
    try:
        yield
    finally:
        if quantized:
            inner.is_loaded_in_4bit = True


def quantized_layers(model: Any) -> dict[str, Any]:
    """The 4-bit linear layers, by name."""
    from bitsandbytes.nn.modules import Linear4bit

    return {name: module for name, module in model.named_modules() if isinstance(module, Linear4bit)}


def require_bitsandbytes() -> None:
    """Raises:
    InputError: bitsandbytes is not installed in the stage's environment.
    """
    try:
        import bitsandbytes  # noqa: F401
    except ImportError as error:
        raise InputError(
            "quantization needs bitsandbytes, which this environment lacks; pip install bitsandbytes, or leave it out"
        ) from error


__all__ = [
    "dequantize", "is_quantized", "quantization_record", "quantize", "quantized_layers", "read_record",
    "require_bitsandbytes", "same_weights", "through_4bit", "to_device", "unseen_by_trl",
]  # fmt: skip
