"""Whether models can be merged: compared by names, shapes, sizes and tokenizers before a byte is written."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from finery.errors import InputError
from finery.training.weights import Weights

_MUST_AGREE = (
    "vocab_size", "tie_word_embeddings", "num_attention_heads", "num_key_value_heads", "head_dim", "hidden_act",
)  # fmt: skip
_SHOULD_AGREE = ("rope_parameters", "rms_norm_eps", "sliding_window", "layer_types")


def differences(models: Mapping[str, Weights], tokenizers: Mapping[str, str | None]) -> list[str]:
    """Every way in which a model differs from the first so that the two cannot be merged; empty when all agree.

    Args:
        models: reference as written -> weights; the first is the measure.
        tokenizers: the same references -> sha256 of the token map.

    Returns:
        One sentence a difference, each naming the two models and the tensors or values.

    Raises:
        InputError: a config is of a model_type that transformers does not have.
    """
    (first, measure), *others = models.items()
    found: list[str] = []
    for ref, model in others:
        kind, wanted = model.config.get("model_type"), measure.config.get("model_type")
        if kind != wanted:
            found.append(f"{ref} is a {kind} model, {first} a {wanted} model")
        else:
            found += _of_values(first, measure, ref, model, _MUST_AGREE)
        found += _of_tensors(first, measure, ref, model)
        if tokenizers[ref] != tokenizers[first]:
            found.append(f"{ref} has another tokenizer than {first}, so that equal token ids mean different text")
    return found


def concerns(models: Mapping[str, Weights]) -> list[str]:
    """Ways in which models without `differences` differ all the same; a merge of them may not work well."""
    (first, measure), *others = models.items()
    return [text for ref, model in others for text in _of_values(first, measure, ref, model, _SHOULD_AGREE)]


def _of_values(first: str, measure: Weights, ref: str, model: Weights, names: tuple[str, ...]) -> list[str]:
    values, wanted = _filled(model), _filled(measure)
    return [
        f"{ref} has {name} {values.get(name)}, {first} has {wanted.get(name)}"
        for name in names
        if values.get(name) != wanted.get(name)
    ]


def _of_tensors(first: str, measure: Weights, ref: str, model: Weights) -> list[str]:
    found = []
    if lacking := sorted(measure.shapes.keys() - model.shapes.keys()):
        found.append(f"{ref} lacks tensors of {first}: {', '.join(lacking)}")
    if further := sorted(model.shapes.keys() - measure.shapes.keys()):
        found.append(f"{ref} has tensors that {first} lacks: {', '.join(further)}")
    found += [
        f"{name} is {model.shapes[name]} in {ref} and {shape} in {first}"
        for name, shape in sorted(measure.shapes.items())
        if name in model.shapes and model.shapes[name] != shape
    ]
    return found


def _filled(model: Weights) -> dict[str, Any]:
    """The config with every default in place, so that one written by an older transformers compares equal."""
    from transformers import CONFIG_MAPPING

    kind = model.config.get("model_type")
    if kind not in CONFIG_MAPPING:
        raise InputError(f"{model.folder}: transformers has no model_type {kind!r}")
    values: dict[str, Any] = CONFIG_MAPPING[kind].from_dict(dict(model.config)).to_dict()
    return values
