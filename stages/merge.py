"""`merge`: several models of one shape into one, tensor by tensor, in float32, with one rounding."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from finery.contract import StageContext, StageResult
from finery.errors import InputError, StageError
from finery.schemas.merge import MergeStage

if TYPE_CHECKING:
    from finery.training.weights import Weights


@dataclass(frozen=True)
class _Part:
    """One entry of `models`, with the stage's defaults filled in."""

    field: str
    ref: str
    weight: float
    density: float
    position: int


@dataclass(frozen=True)
class _Models:
    """The merged models by their input field, the base first if there is one; `base` is its field."""

    weights: dict[str, Weights]
    names: dict[str, str]
    base: str | None
    parts: list[_Part]


def run(config: MergeStage, inputs: Mapping[str, Path], context: StageContext) -> StageResult:
    """Compare all models first, then merge them tensor by tensor; never more than one tensor of each is in memory.

    Raises:
        InputError: models that cannot be merged, with every difference; weights that sum to 0.
        StageError: a merged number is not finite.
    """
    parts = _without_repeats(_parts(config), config, context)
    _check_weights(parts, config)
    models = _open(parts, config, inputs, context)
    _compare(models, inputs, context)
    folder = context.output("model")
    _write(models, config, folder, context)
    _finish(models, inputs, folder, config, context)
    shares = {part.ref: part.weight for part in models.parts}
    over = f" over {config.base}" if config.base else ""
    return StageResult(
        metrics={"models": len(parts), "tensors": len(next(iter(models.weights.values())).shapes)},
        summary={
            "headline": f"{config.method} of {', '.join(f'{weight:g} {ref}' for ref, weight in shares.items())}{over}",
            "weights": shares,
        },
    )


def _parts(config: MergeStage) -> list[_Part]:
    parts = []
    for position, entry in enumerate(config.models):
        if isinstance(entry, str):
            parts.append(_Part(f"models.{position}", entry, config.weight, config.density, position))
            continue
        weight = config.weight if entry.weight is None else entry.weight
        density = config.density if entry.density is None else entry.density
        parts.append(_Part(f"models.{position}.model", entry.model, weight, density, position))
    return parts


def _without_repeats(parts: list[_Part], config: MergeStage, context: StageContext) -> list[_Part]:
    """A model that comes twice, as when a skipped stage hands on its input, counts once, with its first weight."""
    kept: dict[str, _Part] = {}
    for part in parts:
        digest = context.input_digests[part.field]
        if digest in kept:
            first = kept[digest].ref
            context.warn(f"{part.ref} is the same model as {first}; it is left out with its weight {part.weight:g}")
        else:
            kept[digest] = part
    if config.base is not None and (same := kept.get(context.input_digests["base"])):
        context.warn(f"{same.ref} is the base itself; its task vector is 0")
    return list(kept.values())


def _check_weights(parts: list[_Part], config: MergeStage) -> None:
    from finery.training.merging import RECIPES

    recipe = RECIPES[config.method]
    if not (recipe.normalize if config.normalize is None else config.normalize):
        return
    weights = {part.ref: part.weight for part in parts}
    if sum(part.weight for part in parts) == 0:
        raise InputError(
            f"models: the weights {weights} sum to 0, so a mean by them has no value; set normalize: false"
        )
    if recipe.elect and any(part.weight < 0 for part in parts):
        raise InputError(
            f"models: {config.method} takes the mean of the entries that agree, by weights {weights}, and a negative "
            "one would turn its sign; set normalize: false"
        )


def _open(parts: list[_Part], config: MergeStage, inputs: Mapping[str, Path], context: StageContext) -> _Models:
    from finery.training.weights import open_weights

    names = {part.field: part.ref for part in parts}
    if config.base is not None:
        names = {"base": config.base, **names}
    weights: dict[str, Weights] = {}
    for number, field in enumerate(names):
        scratch = context.checkpoint_dir / f"adapter-{number}"
        weights[field] = open_weights(inputs[field], bases=context.bases, scratch=scratch)
    return _Models(weights, names, "base" if config.base is not None else None, parts)


def _compare(models: _Models, inputs: Mapping[str, Path], context: StageContext) -> None:
    from finery.training.compatible import concerns, differences
    from finery.training.folders import tokenizer_sha256

    labels = _labels(models.names)
    weights = {labels[field]: opened for field, opened in models.weights.items()}
    tokenizers = {labels[field]: tokenizer_sha256(_tokenizer_folder(field, models, inputs)) for field in labels}
    if found := differences(weights, tokenizers):
        raise InputError("these models cannot be merged:\n" + "\n".join(f"  - {line}" for line in found))
    for line in concerns(weights):
        context.warn(line)


def _labels(names: Mapping[str, str]) -> dict[str, str]:
    """Field -> the reference, with the field beside it where a reference stands twice."""
    refs = list(names.values())
    return {field: ref if refs.count(ref) == 1 else f"{ref} ({field})" for field, ref in names.items()}


def _tokenizer_folder(field: str, models: _Models, inputs: Mapping[str, Path]) -> Path:
    """An adapter's folder without a tokenizer has its base's."""
    from finery.training.folders import has_tokenizer

    return inputs[field] if has_tokenizer(inputs[field]) else models.weights[field].base_folder


def _write(models: _Models, config: MergeStage, folder: Path, context: StageContext) -> None:
    import torch

    from finery.training.merging import Share, merge_tensor
    from finery.training.publish import clear_folder
    from finery.training.weights import write_weights

    measure = next(iter(models.weights.values()))
    base = models.weights[models.base] if models.base else None
    names = sorted(measure.shapes)
    shares = [Share(part.weight, part.density, part.position) for part in models.parts]

    def dtype(name: str) -> torch.dtype:
        stored = measure.dtype(name)
        return getattr(torch, config.dtype) if config.dtype and stored.is_floating_point else stored

    done = 0

    def make(name: str) -> torch.Tensor:
        nonlocal done
        tensors = [models.weights[part.field].read(name) for part in models.parts]
        origin = base.read(name) if base else None
        if not measure.dtype(name).is_floating_point:
            merged: torch.Tensor = _same(name, [*tensors, *([] if origin is None else [origin])])
        else:
            merged = merge_tensor(
                tensors, shares, method=config.method, base=origin, scale=config.lambda_,
                normalize=config.normalize, seed=context.seed, name=name,
            ).to(dtype(name))  # fmt: skip
            if not bool(merged.isfinite().all()):
                raise StageError(f"the merged {name} holds numbers that are not finite in {merged.dtype}")
        done += 1
        context.progress(done, len(names), name)
        return merged

    clear_folder(folder)
    write_weights(names, lambda name: measure.shapes[name], dtype, make, folder)


def _same(name: str, tensors: list[Any]) -> Any:
    """A tensor that is not of floating point is handed on, and has to be the same in all models."""
    if any(not tensor.equal(tensors[0]) for tensor in tensors):
        raise InputError(f"{name} is of type {tensors[0].dtype} and differs between the models; only floats are merged")
    return tensors[0]


def _finish(
    models: _Models, inputs: Mapping[str, Path], folder: Path, config: MergeStage, context: StageContext
) -> None:
    """Config, tokenizer and chat template are those of the first of `models`: a base often has no template."""
    from finery.training.folders import CONFIG, read_chat_template, read_json
    from finery.training.models import load_tokenizer
    from finery.training.publish import finish_folder, write_json

    first = models.parts[0]
    measure = next(iter(models.weights.values()))
    written = {**models.weights[first.field].config}
    written.pop("torch_dtype", None)
    written["dtype"] = config.dtype or measure.main_dtype
    write_json(folder / CONFIG, written)
    generation = models.weights[first.field].folder / "generation_config.json"
    if generation.is_file():
        write_json(folder / "generation_config.json", read_json(generation))
    sources = {part.ref: _tokenizer_folder(part.field, models, inputs) for part in models.parts}
    templates = {ref: read_chat_template(source) for ref, source in sources.items()}
    if len(set(templates.values())) > 1:
        others = ", ".join(ref for ref, template in templates.items() if template != templates[first.ref])
        context.warn(f"the chat template is that of {first.ref}; it differs in {others}")
    finish_folder(folder, load_tokenizer(sources[first.ref]), dtype=written["dtype"])
