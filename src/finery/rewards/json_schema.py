"""The `json_schema` reward: is the completion JSON that fits a JSON Schema (draft 2020-12)?"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from finery.errors import InputError, StageError
from finery.rewards.fences import last_block
from finery.rewards.patterns import TOO_LONG, ask
from finery.rewards.rewardset import text_of

_REFERENCES = ("$ref", "$dynamicRef")
_SCHEMA = """additionalProperties contains contentSchema else if items not propertyNames then unevaluatedItems
unevaluatedProperties"""
_SCHEMAS = {
    "allOf", "anyOf", "oneOf", "prefixItems", "$defs", "definitions", "dependentSchemas", "patternProperties",
    "properties",
}  # fmt: skip
"""Keywords whose items or values are schemas; of the others, `enum` or `const`, what is inside is data."""


class JsonSchemaFunction:
    """1.0 for a completion whose JSON fits the schema, else 0.0; a truncated one has 0.0.

    Args:
        file: the schema.
        how: where the JSON stands: the last ``` block (`fence`), the whole text; `auto` takes a block if there is one.
        field: how an error calls the file.

    Raises:
        InputError: the file is no JSON, no schema, or refers to what is not in it.
        StageError: the package jsonschema is not installed.
    """

    def __init__(self, file: Path, how: str, field: str = "file") -> None:
        self.how = how
        self.schema = json.dumps(_read(file, field))

    def __call__(self, completions: list[Any], truncated: list[bool] | None = None, **_: Any) -> list[float | None]:
        cut = truncated or [False] * len(completions)
        return [
            float(not short and self.fault(text_of(completion)) is None)
            for completion, short in zip(completions, cut, strict=True)
        ]

    def fault(self, text: str) -> str | None:
        """Why a completion does not fit, or None."""
        found = last_block(text) if self.how != "whole" else None
        if found is None and self.how == "fence":
            return "there is no ``` block"
        found = text if found is None else found
        try:
            value = parse(found)
        except (ValueError, RecursionError) as error:
            return f"is not JSON: {str(error)[:200] or 'nested too deep'}"
        reply = ask("schema", schema=self.schema, text=json.dumps(value))
        return None if reply is True else reply or TOO_LONG

    def explain(self, row: Mapping[str, Any], completion: str, completion_ids: list[int], truncated: bool) -> str:
        """Why it does not fit."""
        if truncated:
            return "truncated"
        return self.fault(completion) or "fits the schema"


def parse(text: str) -> Any:
    """JSON that every reader takes the same: no NaN, no number beyond a double, and no key twice.

    Raises:
        ValueError: it is something else.
        RecursionError: it is nested too deep.
    """
    return json.loads(text, object_pairs_hook=_once, parse_constant=_refused, parse_float=_number)


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"the key {next(name for name in names if names.count(name) > 1)[:60]!r} is there twice")
    return found


def _refused(constant: str) -> Any:
    raise ValueError(f"{constant} is no JSON number")


def _number(text: str) -> float:
    number = float(text)
    if math.isinf(number):
        raise ValueError(f"{text[:60]} is beyond what a number holds")
    return number


def _read(file: Path, field: str) -> Any:
    try:
        from jsonschema import Draft202012Validator
        from jsonschema.exceptions import SchemaError
    except ModuleNotFoundError as error:
        raise StageError(f"{field}: needs the Python package {error.name}; pip install 'finery[train]'") from error
    try:
        schema = parse(file.read_text(encoding="utf-8"))
        Draft202012Validator.check_schema(schema)
    except OSError as error:
        raise InputError(f"{field}: {file}: cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise InputError(f"{field}: {file}: is not JSON: {error}") from error
    except SchemaError as error:
        raise InputError(f"{field}: {file}: is no JSON Schema: {error.json_path}: {error.message}") from error
    _follow(schema, f"{field}: {file}")
    return schema


def _follow(schema: Any, where: str) -> None:
    """Refuse a reference that leads nowhere, or to what is no schema, whether a completion would reach it or not."""
    from jsonschema import Draft202012Validator
    from jsonschema.exceptions import SchemaError
    from jsonschema_specifications import REGISTRY  # type: ignore[import-untyped]
    from referencing.exceptions import Unresolvable
    from referencing.jsonschema import DRAFT202012

    known = {id(part) for _, part in _parts(schema, "#")}
    root = REGISTRY.resolver_with_root(DRAFT202012.create_resource(schema))
    waiting = [(schema, "#", root)]
    seen: set[int] = set()
    while waiting:
        part, pointer, resolver = waiting.pop()
        if not isinstance(part, dict) or id(part) in seen:
            continue
        seen.add(id(part))
        for key in (key for key in _REFERENCES if key in part):
            said = f"{where}: {pointer}/{key}: refers to {part[key]},"
            try:
                found = resolver.lookup(part[key])
                Draft202012Validator.check_schema({} if id(found.contents) in known else found.contents)
            except Unresolvable:
                raise InputError(f"{said} which is not in this file; nothing is fetched") from None
            except SchemaError as error:
                raise InputError(f"{said} which is no JSON Schema: {error.message[:200]}") from None
            waiting.append((found.contents, f"{pointer}/{key}", found.resolver))
        for inner, child in _children(part, pointer):
            if isinstance(child, dict):
                waiting.append((child, inner, resolver.in_subresource(DRAFT202012.create_resource(child))))


def _parts(schema: Any, pointer: str) -> Iterator[tuple[str, Any]]:
    """A schema and all within it, with their JSON pointers."""
    yield pointer, schema
    for inner, child in _children(schema, pointer):
        yield from _parts(child, inner)


def _children(schema: Any, pointer: str) -> Iterator[tuple[str, Any]]:
    if not isinstance(schema, dict):
        return
    for key, value in schema.items():
        if key in _SCHEMA.split():
            yield f"{pointer}/{key}", value
        elif key in _SCHEMAS:
            pairs = value.items() if isinstance(value, dict) else enumerate(value)
            for name, child in pairs:
                yield f"{pointer}/{key}/{str(name).replace('~', '~0').replace('/', '~1')}", child
