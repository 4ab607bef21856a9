"""What of a stage's config makes its key, and what changed between two keys."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from typing import Any

from finery.schemas.base import Model, Stage
from finery.schemas.reference import Execution


def execution_fields(config: Model) -> set[str]:
    """The fields, by alias, that decide how a stage is run and never what it makes."""
    return {
        info.alias or name
        for name, info in type(config).model_fields.items()
        if any(isinstance(mark, Execution) for mark in info.metadata)
    }


def result_config(config: Model, outside: Collection[str] = (), prefix: str = "") -> dict[str, Any]:
    """A stage's config as it enters the key: without defaults, execution fields, the seed, and outside references.

    An outside reference counts by its digest, so that a folder may move; a stage's name counts as it is written,
    since result tables show it.
    """
    dropped = execution_fields(config) | ({"seed"} if isinstance(config, Stage) else set())
    kept: dict[str, Any] = {}
    for name, info in type(config).model_fields.items():
        key, value = info.alias or name, getattr(config, name)
        if key in dropped or (not info.is_required() and value == info.get_default(call_default_factory=True)):
            continue
        kept[key] = _plain(value, outside, f"{prefix}{key}")
    return kept


def mapping_orders(config: Any, path: str = "") -> dict[str, list[str]]:
    """The order in which the keys of each mapping are written: splits take their intervals by it.

    Canonical JSON sorts keys, so the order enters the key by itself.
    """
    found: dict[str, list[str]] = {}
    if isinstance(config, Model):
        for name, info in type(config).model_fields.items():
            key = info.alias or name
            if key not in execution_fields(config):
                found |= mapping_orders(getattr(config, name), f"{path}.{key}" if path else key)
    elif isinstance(config, dict):
        if len(config) > 1:
            found[path] = list(config)
        for key, value in config.items():
            found |= mapping_orders(value, f"{path}.{key}")
    elif isinstance(config, list):
        for index, value in enumerate(config):
            found |= mapping_orders(value, f"{path}.{index}")
    return found


def _plain(value: Any, outside: Collection[str], path: str) -> Any:
    if path in outside:
        return "by its content"  # its digest is among the inputs
    if isinstance(value, Model):
        return result_config(value, outside, f"{path}.")
    if isinstance(value, list):
        return [_plain(item, outside, f"{path}.{index}") for index, item in enumerate(value)]
    if isinstance(value, dict):
        return {key: _plain(item, outside, f"{path}.{key}") for key, item in value.items()}
    return value


def differences(old: Mapping[str, Any], new: Mapping[str, Any], refs: Mapping[str, str]) -> list[str]:
    """What changed between two specs, one sentence each."""
    found = [f"{key} {_show(a)} -> {_show(b)}" for key, a, b in _changes(old["config"], new["config"])]
    for path, keys in new["order"].items():
        before = old.get("order", {}).get(path, keys)
        if before != keys and set(before) == set(keys):
            found.append(f"the order of {path} changed")
    for name, digest in new["inputs"].items():
        if old["inputs"].get(name) not in (None, digest):
            found.append(f"input {refs.get(name, name)} changed")
    if old["seed"] != new["seed"]:
        found.append(f"seed {old['seed']} -> {new['seed']}")
    if old["threads"] != new["threads"]:
        found.append(f"resources.cpus {old['threads']} -> {new['threads']}")
    if old["code"] != new["code"] or old["schema"] != new["schema"]:
        found.append("the stage's code changed (finery adopt accepts the old result)")
    found += [f"{key} {_show(a)} -> {_show(b)}" for key, a, b in _changes(old["versions"], new["versions"])]
    return found


def _changes(old: Any, new: Any, prefix: str = "") -> list[tuple[str, Any, Any]]:
    if isinstance(old, dict) and isinstance(new, dict):
        keys = [*old, *(key for key in new if key not in old)]
        return [
            change
            for key in keys
            for change in _changes(
                old.get(key, "default"), new.get(key, "default"), f"{prefix}.{key}" if prefix else key
            )
        ]
    return [] if old == new else [(prefix, old, new)]


def _show(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 60 else text[:57] + "..."
