"""The operations of users' regular expressions and JSON Schemas, which a model's text can make run for ever.

fits(pattern, text) -> bool                     does the whole text match?
last(pattern, text, group) -> str | bool | None what the group of the last match holds; True without a group
steps(pattern, text) -> [[left, right], ...]    the groups of all matches
search(pattern, text) -> str | None             the first match, without regard to case
schema(schema, text) -> str | True              why a JSON text does not fit a JSON Schema, or True
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable
from typing import Any

MOST_STEPS = 1000

_compiled = functools.lru_cache(maxsize=64)(functools.partial(re.compile, flags=re.DOTALL))

_caseless = functools.lru_cache(maxsize=64)(functools.partial(re.compile, flags=re.IGNORECASE))


class BrokenSchema(Exception):
    """A reference of the schema leads nowhere: no completion's fault."""


FAULTS = (BrokenSchema,)


def fits(pattern: str, text: str) -> bool:
    return _compiled(pattern).fullmatch(text) is not None


def last(pattern: str, text: str, group: str | int | None) -> str | bool | None:
    value: str | bool | None = None
    for match in _compiled(pattern).finditer(text):
        if group is None:
            return True
        value = match[group]
    return value


def steps(pattern: str, text: str) -> list[list[str]]:
    found = []
    for match in _compiled(pattern).finditer(text):
        if match["left"] is not None and match["right"] is not None:
            found.append([match["left"], match["right"]])
        if len(found) == MOST_STEPS:
            break
    return found


def search(pattern: str, text: str) -> str | None:
    match = _caseless(pattern).search(text)
    return match.group() if match else None


@functools.lru_cache(maxsize=16)
def _validator(schema: str) -> Any:
    from jsonschema import Draft202012Validator
    from referencing import Registry

    return Draft202012Validator(json.loads(schema), registry=Registry())


def schema(schema: str, text: str) -> str | bool:
    from jsonschema.exceptions import best_match
    from referencing.exceptions import Unresolvable

    try:
        error = best_match(_validator(schema).iter_errors(json.loads(text)))
    except Unresolvable as unresolvable:
        raise BrokenSchema(f"the schema's reference {unresolvable.ref} leads nowhere") from unresolvable
    return f"{error.json_path}: {error.message}"[:200] if error is not None else True


OPERATIONS: dict[str, Callable[..., Any]] = {
    "fits": fits,
    "last": last,
    "steps": steps,
    "search": search,
    "schema": schema,
}


def prepare(op: str) -> None:
    """Import what an operation needs."""
    if op == "schema":
        _validator("{}").is_valid({})
