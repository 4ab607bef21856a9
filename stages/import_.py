"""`import`: an outside model, as a folder of safetensors, a GGUF file or an adapter, becomes a model output."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from finery.contract import StageContext, StageResult
from finery.errors import InputError
from finery.schemas.import_ import ImportStage

_SOURCE = "from"
_BASE = "base"


def run(config: ImportStage, inputs: Mapping[str, Path], context: StageContext) -> StageResult:
    """Load the model as transformers does, which proves it whole, and write it anew in the form of a model output.

    Raises:
        InputError: the source is no model, is unsafe (pickles, code), misses weights, or is an adapter whose base is
            not known.
        StageError: a weight is not finite in the type that was asked for.
    """
    from finery.training.folders import adapter_quantization
    from finery.training.models import check_folder, is_adapter, publish_model

    source = _source(inputs[_SOURCE])
    context.progress(0, 2, "loading")
    quantization = None
    if source.is_file():
        model, tokenizer, origin = _gguf(source, config)
        base = None
    else:
        check_folder(source)
        if is_adapter(source):
            model, tokenizer, base = _adapter(source, config, inputs, context)
            origin, quantization = "adapter", adapter_quantization(source)
        else:
            model, tokenizer, origin = _folder(source, config, context)
            base = None
    _mend_generation_config(model, context)
    _tell_of_pad_token(tokenizer, context)
    context.progress(1, 2, "writing")
    info = publish_model(model, tokenizer, context.output("model"), base=base, quantization=quantization)
    context.progress(2, 2)
    return _result(model, tokenizer, info, origin)


def _source(path: Path) -> Path:
    """The folder or GGUF file meant; a folder that holds nothing but one GGUF file, as hub folders may, means that."""
    if not path.is_dir():
        if not path.exists():
            raise InputError(f"{path}: no such file or folder")
        return path
    found = sorted(path.glob("*.gguf"))
    if not found or any((path / name).exists() for name in ("config.json", "adapter_config.json")):
        return path
    if len(found) > 1:
        names = ", ".join(file.name for file in found)
        raise InputError(f"{path}: holds several GGUF files ({names}); name one of them by its path in `from`")
    return found[0]


def _gguf(source: Path, config: ImportStage) -> tuple[Any, Any, str]:
    from finery.training.gguf_file import load_gguf

    _refuse_base(source, config)
    model, tokenizer, types = load_gguf(source, dtype=config.dtype)
    return model, tokenizer, f"GGUF of {types}"


def _folder(source: Path, config: ImportStage, context: StageContext) -> tuple[Any, Any, str]:
    from finery.training.models import load_full, load_tokenizer

    _refuse_base(source, config)
    tokenizer = load_tokenizer(source)
    model, unknown = load_full(source, config.dtype)
    if unknown:
        names = ", ".join(unknown[:3])
        context.warn(f"{len(unknown)} tensors are no part of a {type(model).__name__} and are left out: {names}")
    return model, tokenizer, "safetensors"


def _adapter(
    source: Path, config: ImportStage, inputs: Mapping[str, Path], context: StageContext
) -> tuple[Any, Any, dict[str, str]]:
    from finery.training.folders import has_tokenizer
    from finery.training.models import load_model, load_tokenizer, read_model_info

    if config.dtype is not None:
        raise InputError(f"{source}: is an adapter and keeps its own type; `dtype` is for full weights")
    base = read_model_info(source).get("base")
    bases = dict(context.bases)
    if config.base is not None:
        given = {"digest": context.input_digests[_BASE], "ref": config.base}
        if base and base["digest"] != given["digest"]:
            raise InputError(
                f"{source}: was trained on {base.get('ref') or 'another model'} ({base['digest'][:12]}), not on "
                f"{config.base} ({given['digest'][:12]}); name the model it was trained on as `base`"
            )
        base = given
        bases[given["digest"]] = inputs[_BASE]
    if not base:
        raise InputError(f"{source}: is an adapter; name the model it was trained on as `base`")
    model = load_model(source, bases=bases, base=base)
    tokenizer = load_tokenizer(source if has_tokenizer(source) else bases[base["digest"]])
    return model, tokenizer, base


def _refuse_base(source: Path, config: ImportStage) -> None:
    if config.base is not None:
        raise InputError(f"{source}: is a full model; `base` is for an adapter")


def _mend_generation_config(model: Any, context: StageContext) -> None:
    """Some hub models set a temperature with sampling off; transformers loads that and refuses to write it."""
    generation = getattr(model.get_base_model() if hasattr(model, "peft_config") else model, "generation_config", None)
    if generation is None:
        return
    try:
        generation.validate(strict=True)
    except ValueError as error:
        generation.do_sample = True
        context.warn(
            f"generation_config.json contradicts itself; do_sample is set to true ({str(error).splitlines()[0]})"
        )


def _tell_of_pad_token(tokenizer: Any, context: StageContext) -> None:
    if tokenizer.pad_token_id is not None and tokenizer.pad_token_id == tokenizer.eos_token_id:
        context.warn(
            f"the pad token is the EOS token ({tokenizer.eos_token}); it is kept, and training masks by position, so "
            "that EOS is learned all the same"
        )
    if tokenizer.eos_token_id is None:
        context.warn("the tokenizer has no EOS token; training on this model cannot teach it to stop")


def _result(model: Any, tokenizer: Any, info: dict[str, Any], origin: str) -> StageResult:
    parameters = sum(weight.numel() for weight in model.parameters())
    inner = model.get_base_model() if hasattr(model, "peft_config") else model
    template = "with a chat template" if info["chat_template_sha256"] else "no chat template"
    size = f"{parameters / 1e9:.2f}B" if parameters >= 1e9 else f"{parameters / 1e6:.2f}M"
    what = type(inner).__name__
    if info["base"]:
        what = f"adapter on {info['base']['ref']}, a {what}"
    return StageResult(
        metrics={"parameters": parameters, "vocabulary": len(tokenizer)},
        summary={
            "headline": f"{what}, {size} parameters, {info['dtype']}, {template}",
            "origin": origin,
            "form": info["form"],
        },
    )
