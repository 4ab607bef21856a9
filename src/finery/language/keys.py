"""A key that nobody knows: what was meant, or where it belongs."""

from __future__ import annotations

import re
from collections.abc import Iterator

from pydantic import BaseModel

from finery.language.fields import Type, fields, type_of
from finery.language.nodes import Node
from finery.language.problems import Keys, dotted, nearest
from finery.schemas.pipeline import Pipeline
from finery.schemas.stage import KINDS

_ELSEWHERE = {
    "lr": "learning_rate",
    "epochs": "num_train_epochs",
    "steps": "max_steps",
    "max_iters": "max_steps",
    "batch_size": "per_device_train_batch_size",
    "micro_batch_size": "per_device_train_batch_size",
    "group_size": "num_generations",
    "grad_accum": "gradient_accumulation_steps",
    "scheduler": "lr_scheduler_type",
    "optim_steps": "max_steps",
    "max_seq_length": "max_length",
    "kl_coef": "beta",
    "lora_r": "lora.r",
    "lora_rank": "lora.r",
    "rank": "lora.r",
    "max_new_tokens": "sampling.max_completion_length",
    "max_tokens": "sampling.max_completion_length",
    "needs": "after",
    "depends_on": "after",
    "base_model": "model",
    "model_name_or_path": "model",
    "dataset": "data",
    "type": "kind",
    "reward_funcs": "rewards",
    "reward": "rewards",
    "tracking_uri": "tracking.uri",
    "experiment_name": "tracking.experiment",
}
"""Words of other tools to finery's, by a dotted path within the stage."""

_LISTED = 16


def unknown(key: str, owner: type[BaseModel], path: Keys, root: Node) -> tuple[str, str | None]:
    """What to say of an unknown key, and the key of the same map that it most likely means.

    Args:
        owner: the model that does not know it.
        path: where the key stands, itself included.
        root: the whole file.
    """
    own, word = fields(owner), _normal(key)
    same = next((name for name in own if _normal(name) == word), None)
    other = _ELSEWHERE.get(word)
    if same or (other and other.split(".")[0] in own):
        return _meant(same or str(other), path)
    if place := _belongs(word, owner, path, root):
        return f"unknown key; {place}", None
    known = {
        **{name: target for name, target in _ELSEWHERE.items() if target.split(".")[0] in own},
        **{n: n for n in own},
    }
    if near := nearest(word, known):
        return _meant(known[near], path)
    if takers := [kind for kind, cls in KINDS.items() if word in fields(cls)]:
        mine = next((kind for kind, cls in KINDS.items() if cls is owner), None)
        if mine:
            return f"unknown key; it is a key of {', '.join(takers)}, not of {mine}", None
    takes = [name for name in own if name != "kind"]
    return "unknown key" + (f"; the keys here are {', '.join(takes)}" if len(takes) <= _LISTED else ""), None


def _normal(key: str) -> str:
    """`num-epochs`, `numEpochs` and `num_epochs` alike."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", key).replace("-", "_").lower()


def _meant(name: str, path: Keys) -> tuple[str, str | None]:
    if "." not in name:
        return f"unknown key; did you mean {name}?", name
    outer, inner = name.split(".")
    return f"unknown key; did you mean {dotted((*path[:-1], outer, inner))}, written {outer}: {{{inner}: ...}}?", None


def _belongs(word: str, owner: type[BaseModel], path: Keys, root: Node) -> str | None:
    """Where a right key at the wrong level belongs."""
    here = path[:-1]
    for name, model in _nested(owner):
        if word in fields(model):
            return f"it belongs in {name}: {dotted((*here, name, word))}"
    if owner is Pipeline:
        return _stage_with(word, root)
    if len(here) > 2 and here[0] == "stages":
        cls = _class_at(root, here[:2])
        if cls and word in fields(cls):
            return f"it belongs in the stage: {dotted((*here[:2], word))}"
    if word in fields(Pipeline):
        return f"it belongs at the top of the file: {word}"
    return None


def _nested(owner: type[BaseModel]) -> Iterator[tuple[str, type[BaseModel]]]:
    """The maps that stand in a model, by field."""
    for name, info in fields(owner).items():
        kind: Type = type_of(info.annotation, tuple(info.metadata), info.discriminator)
        for member in kind.members():
            if member.model and not kind.tag:
                yield name, member.model


def _stage_with(word: str, root: Node) -> str | None:
    takers = [kind for kind, cls in KINDS.items() if word in fields(cls)]
    target = _ELSEWHERE.get(word)
    if not takers and target:
        takers = [kind for kind, cls in KINDS.items() if target.split(".")[0] in fields(cls)]
        word = target
    if not takers:
        return None
    stages = root.child("stages")
    if stages and stages.kind == "map":
        for name in stages.value:
            cls = _class_at(root, ("stages", name))
            if cls and word.split(".")[0] in fields(cls):
                return f"it belongs in a stage, for example stages.{name}.{word}"
    return f"it belongs in a stage of kind {' or '.join(takers[:3])}"


def _class_at(root: Node, path: Keys) -> type[BaseModel] | None:
    stages = root.child(path[0])
    stage = stages.child(path[1]) if stages else None
    kind = stage.child("kind") if stage else None
    return KINDS.get(kind.value) if kind and isinstance(kind.value, str) else None
