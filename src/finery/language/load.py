"""Load a pipeline: text to a validated pipeline with its edges, or every mistake at once."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from finery.errors import InputError
from finery.language import overrides as sets
from finery.language.check import Stages, check_cycles, check_references
from finery.language.exam import check_conditions
from finery.language.explain import Explained, explain
from finery.language.fields import type_of
from finery.language.functions import check_functions
from finery.language.nodes import MAX_BYTES, Node, find, key_place, parse, walk
from finery.language.problems import Keys, Place, Problem, dotted, render, shown
from finery.language.secrets import check_secrets, check_text
from finery.language.warn import warnings
from finery.schemas.pipeline import Pipeline
from finery.schemas.reference import StageRef, parse_reference, uses
from finery.schemas.stage import KINDS


@dataclass(frozen=True)
class Loaded:
    """A valid pipeline.

    Attributes:
        path: the YAML file, absolute.
        project: the nearest folder at or above the file that holds flows.yaml or .finery/, else the file's own.
        source: the file's text.
        overrides: dotted key to value, as `--set` gave them.
        positions: dotted path to (line, column), from 1, of each key and list item that the file writes.
        edges: each stage, in topological order, to the stages it needs.
        order: the stages in topological order; of those that could come next, the first in the file.
        warnings: `file:line:column path: text`.
    """

    pipeline: Pipeline
    path: Path
    project: Path
    source: str
    overrides: dict[str, Any]
    positions: Mapping[str, tuple[int, int]]
    edges: dict[str, list[str]]
    order: list[str]
    warnings: list[str]


def load(path: str | Path, overrides: Sequence[str] = ()) -> Loaded:
    """Read, validate and cross-check a pipeline.

    Args:
        overrides: `dotted.key=value`, each value written as in YAML.

    Raises:
        InputError: with every mistake, one a line, as `file:line:column path: text`.
    """
    file = Path(os.path.abspath(path))
    source = _read(file)
    root, problems = parse(source)
    if root is None:
        if not problems:
            problems = [Problem(Place(), (), "the file is empty; `finery init` writes a pipeline to begin with")]
        raise _refusal(problems, file)
    root, values, found = sets.apply(root, overrides)
    problems += found
    pipeline, stages, found = _validate(root, file.parent)
    problems += found
    found, needs = check_references(stages)
    problems += found + check_cycles(needs) + check_secrets(root, stages.kinds) + check_conditions(stages)
    problems += check_functions(stages)
    problems += check_text(source, problems)
    if problems or pipeline is None:
        raise _refusal(problems, file)
    edges = _edges(pipeline)
    order = _order(edges)
    return Loaded(
        pipeline=pipeline,
        path=file,
        project=find_project(file.parent),
        source=source,
        overrides=values,
        positions=_positions(root),
        edges={name: edges[name] for name in order},
        order=order,
        warnings=render(warnings(stages), file),
    )


def json_schema() -> dict[str, Any]:
    """The JSON Schema of a pipeline, which editors take."""
    from finery.language.schema import PipelineSchema

    schema = Pipeline.model_json_schema(by_alias=True, schema_generator=PipelineSchema)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema, "title": "A finery pipeline"}


def find_project(folder: Path) -> Path:
    """The nearest folder at or above `folder` that holds flows.yaml or .finery/, else `folder`."""
    for place in (folder, *folder.parents):
        if (place / "flows.yaml").is_file() or (place / ".finery").is_dir():
            return place
    return folder


def _refusal(problems: list[Problem], file: Path) -> InputError:
    return InputError("\n".join(render(problems, file)))


def _read(file: Path) -> str:
    name = shown(file)
    if file.is_dir():
        raise InputError(f"{name}: is a folder; name a pipeline's YAML file in it")
    if file.exists() and not file.is_file():
        raise InputError(f"{name}: is no regular file; name a pipeline's YAML file")
    try:
        size = file.stat().st_size
        raw = file.read_bytes() if size <= MAX_BYTES else b""
    except FileNotFoundError:
        raise InputError(f"{name}: no such file; `finery init` writes a pipeline to begin with") from None
    except OSError as error:
        raise InputError(f"{name}: cannot be read: {error.strerror}") from error
    if size > MAX_BYTES:
        raise InputError(
            f"{name}: is larger than {MAX_BYTES >> 20} MiB; a pipeline names its data in files of their own"
        )
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise InputError(f"{name}:{line}: is not UTF-8 at byte {error.start}; save it as UTF-8") from None


def _validate(root: Node, folder: Path) -> tuple[Pipeline | None, Stages, list[Problem]]:
    """The pipeline if it is valid; what is known of its stages; the schema's problems."""
    stages, kind = Stages(root, folder), type_of(Pipeline)
    pipeline, found = None, Explained()
    try:
        pipeline = Pipeline.model_validate(root.plain())
    except ValidationError as error:
        found = explain(kind, root, list(error.errors(include_url=False)))
    problems = list(found.problems)
    for name in stages.names:
        node = find(root, ("stages", name, "kind"))
        cls = KINDS.get(node.value) if node and isinstance(node.value, str) else None
        if cls is None:
            continue
        stages.kinds[name] = cls
        here: Keys = ("stages", name)
        if pipeline is not None:
            stages.configs[name] = pipeline.stages[name]
            continue
        own = {path for path in found.renames if path[:2] == here}
        wrong = {problem.path for problem in found.problems if problem.path[:2] == here and len(problem.path) > 1}
        if wrong - own - {here}:
            continue
        # with its unknown keys mended, what the stage's own rules say can be told in the same go
        mended = _mend(root, here, {path: found.renames[path] for path in own})
        stage = find(mended, here)
        assert stage is not None
        try:
            stages.configs[name] = cls.model_validate(stage.plain())
        except ValidationError as error:
            again = explain(type_of(cls), mended, list(error.errors(include_url=False)), at=here)
            problems += again.problems
    return pipeline, stages, list(dict.fromkeys(problems))


def _mend(root: Node, path: Keys, renames: Mapping[Keys, str | None]) -> Node:
    """A copy of the tree in which the unknown keys below `path` have the names they most likely mean, or are gone."""

    def mend(node: Node, here: Keys) -> Node:
        if node.kind == "list":
            return replace(node, value=[mend(item, (*here, index)) for index, item in enumerate(node.value)])
        if node.kind != "map":
            return node
        value, keys = {}, {}
        for key, child in node.value.items():
            name = renames.get((*here, key)) if (*here, key) in renames else key
            if name is not None and (name == key or name not in node.value):
                value[name], keys[name] = mend(child, (*here, key)), node.keys[key]
        return replace(node, value=value, keys=keys)

    return mend(root, ()) if renames else root


def _edges(pipeline: Pipeline) -> dict[str, list[str]]:
    """Stage to the stages it needs, in the order it names them."""
    edges: dict[str, list[str]] = {}
    for name, config in pipeline.stages.items():
        parsed = [parse_reference(use.text) for use in uses(config) if not use.ref.local_only]
        needs = [reference.stage for reference in parsed if isinstance(reference, StageRef)]
        edges[name] = list(dict.fromkeys([*needs, *config.after]))
    return edges


def _order(edges: Mapping[str, Sequence[str]]) -> list[str]:
    """Topological; of the stages that could come next, the first in the file."""
    order: list[str] = []
    left = list(edges)
    while left:
        name = next(name for name in left if all(need in order for need in edges[name]))
        order.append(name)
        left.remove(name)
    return order


def _positions(root: Node) -> dict[str, tuple[int, int]]:
    found: dict[str, tuple[int, int]] = {}
    for path, _ in walk(root):
        place = key_place(root, path)
        if path and place.override is None:
            found[dotted(path)] = (place.line, place.column)
    return found
