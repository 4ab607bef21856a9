"""The `json_schema` reward: is the completion JSON that fits a JSON Schema (draft 2020-12)?"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from finery.errors import InputError, StageError
from finery.rewards.fences import last_block
from finery.rewards.patterns import TOO_LONG, ask
from finery.rewards.rewardset import text_of

_REFERENCES = ("$ref", "$dynamicRef")


class JsonSchemaFunction:
    """1.0 for a completion whose JSON fits the schema, else 0.0; a truncated one has 0.0.

    Args:
        file: the schema.
        how: where the JSON stands: the last ``` block (`fence`), the whole text; `auto` takes a block if there is one.
        field: how an error calls the file.

    Raises:
        InputError: the file is no JSON, no schema, or refers to another document.
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
    """JSON as RFC 8259 has it: no NaN, and no key twice, of which readers would take the one or the other.

    Raises:
        ValueError: it is something else.
        RecursionError: it is nested too deep.
    """
    return json.loads(text, object_pairs_hook=_once, parse_constant=_refused)


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"the key {next(name for name in names if names.count(name) > 1)[:60]!r} is there twice")
    return found


def _refused(constant: str) -> Any:
    raise ValueError(f"{constant} is no JSON number")


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
    named = {value for key, value in _pairs(schema) if key in ("$id", "$anchor", "$dynamicAnchor")}
    for key, value in _pairs(schema):
        if key in _REFERENCES and not value.startswith("#") and value.split("#")[0] not in named:
            raise InputError(f"{field}: {file}: refers to {value}, which is not in this file; nothing is fetched")
    return schema


def _pairs(schema: Any) -> Iterator[tuple[str, str]]:
    """Every key with a text value, wherever it stands."""
    if isinstance(schema, dict):
        for key, value in schema.items():
            if isinstance(value, str):
                yield key, value
            else:
                yield from _pairs(value)
    elif isinstance(schema, list):
        for value in schema:
            yield from _pairs(value)
