"""References: how one stage names another's output, a file, or a model outside.

`word` and `word.output` are stages; `./x`, `../x`, `/x` are paths from the YAML file; `hf:org/name@rev` and
`registry:name@alias` are outside models.
"""

from __future__ import annotations

import re
import types
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Union, get_args, get_origin

ArtifactKind = Literal["model", "dataset", "verdict", "difficulty", "evaluation", "decision", "fisher", "file"]

_STAGE = re.compile(r"^([a-z][a-z0-9_-]{0,62})(?:\.([a-z][a-z0-9_-]{0,62}))?$")
_HUB = re.compile(r"^hf:([\w.-]+/[\w.-]+)(?:@([\w./-]+))?$")
_REGISTRY = re.compile(r"^registry:([\w. -]+)@([\w.-]+)$")


@dataclass(frozen=True)
class Execution:
    """Metadata of a field that does not change the result."""


@dataclass(frozen=True)
class SecretMark:
    """Metadata of a field whose value must never be shown, stored or logged."""


@dataclass(frozen=True)
class Ref:
    """Metadata of a string field that names an artifact of one of `kinds`."""

    kinds: tuple[ArtifactKind, ...]
    local_only: bool = False
    """True for a user's own file, folder or glob, which no stage makes."""


SECRET = SecretMark()
MODEL = Ref(("model",))
DATASET = Ref(("dataset",))
VERDICT = Ref(("verdict",))
DIFFICULTY = Ref(("difficulty",))
EVALUATION = Ref(("evaluation",))
FISHER = Ref(("fisher",))
ANY = Ref(("model", "dataset", "verdict", "difficulty", "evaluation", "decision", "fisher", "file"))
FILE = Ref(("file",), local_only=True)


@dataclass(frozen=True)
class StageRef:
    stage: str
    output: str | None = None


@dataclass(frozen=True)
class PathRef:
    path: str


@dataclass(frozen=True)
class HubRef:
    repo: str
    revision: str | None = None


@dataclass(frozen=True)
class RegistryRef:
    name: str
    alias: str


Reference = StageRef | PathRef | HubRef | RegistryRef


def parse_reference(text: str) -> Reference:
    """The reference that `text` writes.

    Raises:
        ValueError: it is none of the four forms; the message says which are accepted.
    """
    if text.startswith(("./", "../", "/")) or text in (".", ".."):
        return PathRef(text)
    if match := _STAGE.match(text):
        return StageRef(match[1], match[2])
    if match := _HUB.match(text):
        return HubRef(match[1], match[2])
    if match := _REGISTRY.match(text):
        return RegistryRef(match[1], match[2])
    raise ValueError(
        "is not a reference; write stage, stage.output, ./path, hf:org/name@revision or registry:name@alias"
    )


@dataclass(frozen=True)
class Use:
    """One reference found in a stage's config: `field` is its dotted path (`models.0.model`), the key of `inputs`."""

    field: str
    text: str
    ref: Ref


def uses(config: Any) -> Iterator[Use]:
    """Every reference in a stage's config, in the order of its fields."""
    for name, info in type(config).model_fields.items():
        value = getattr(config, name)
        marks = [mark for mark in info.metadata if isinstance(mark, Ref)]
        key = info.alias or name
        yield from _walk(Annotated[info.annotation, marks[0]] if marks else info.annotation, value, key)


def _walk(annotation: Any, value: Any, field: str) -> Iterator[Use]:
    origin = get_origin(annotation)
    if origin is Annotated:
        inner, *marks = get_args(annotation)
        ref = next((mark for mark in marks if isinstance(mark, Ref)), None)
        if ref and isinstance(value, str):
            yield Use(field, value, ref)
        else:
            yield from _walk(
                Annotated[get_args(inner)[0], ref] if ref and type(None) in get_args(inner) else inner, value, field
            )
    elif origin in (Union, types.UnionType):
        for member in get_args(annotation):
            found = list(_walk(member, value, field))
            if found:
                yield from found
                return
    elif origin is list and isinstance(value, list):
        for index, item in enumerate(value):
            yield from _walk(get_args(annotation)[0], item, f"{field}.{index}")
    elif origin is dict and isinstance(value, dict):
        for key, item in value.items():
            yield from _walk(get_args(annotation)[1], item, f"{field}.{key}")
    elif hasattr(type(value), "model_fields") and (
        annotation is Any or (isinstance(annotation, type) and isinstance(value, annotation))
    ):
        for use in uses(value):
            yield Use(f"{field}.{use.field}", use.text, use.ref)
