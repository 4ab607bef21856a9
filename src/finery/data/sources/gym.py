"""Tasks of the package reasoning-gym, with what its verifiers need kept in `meta`."""

from __future__ import annotations

import dataclasses
import difflib
import json
from collections.abc import Iterable
from typing import Any

from finery.data.records import Reading, found
from finery.errors import InputError
from finery.schemas.data import ReasoningGymSource

KEY = "reasoning_gym"
"""The key of `meta` that holds {"task": name, "entry": {question, answer, metadata}}."""
TUPLE = "__tuple__"
"""Tuples are kept as {"__tuple__": [...]}: some verifiers compare with them, and JSON has none."""
_DUE: tuple[tuple[Any, str], ...] = (
    (bool, "true or false"),
    ((int, float), "a number"),
    (str, "text"),
    ((list, tuple), "a list"),
)
"""The type of a parameter's default, and what a user calls it."""


def read_gym(source: ReasoningGymSource, *, seed: int, where: str) -> Reading:
    """`rows` tasks; the prompt is the question and the suffix, the group's key the question alone.

    Raises:
        InputError: the package is absent, the task or one of its parameters unknown, or its entries cannot be kept.
    """
    from finery.data.sources import generated

    rows = []
    for entry in _entries(source, seed, where):
        row: dict[str, Any] = {"prompt": entry["question"] + source.prompt_suffix}
        if entry["answer"] is not None:
            row["answer"] = str(entry["answer"])
            row["completion"] = source.completion.replace("{answer}", row["answer"])
        row["meta"] = {KEY: {"task": source.task, "entry": entry}}
        rows.append(row)
    reading = generated(f"reasoning_gym:{source.task}", rows, [row["meta"][KEY]["entry"]["question"] for row in rows])
    return Reading(reading.records, reading.format, {"made": "reasoning_gym", "task": source.task})


def _entries(source: ReasoningGymSource, seed: int, where: str) -> list[dict[str, Any]]:
    try:
        import reasoning_gym
        from reasoning_gym.factory import DATASETS
    except ImportError as error:
        raise InputError(f"{where}: needs the Python package reasoning-gym; pip install 'finery[train]'") from error
    if source.task not in DATASETS:
        raise InputError(f"{where}.task: reasoning-gym has no task {source.task}; {_near(source.task, DATASETS)}")
    _check_config(source, DATASETS[source.task][1], where)
    try:
        made = reasoning_gym.create_dataset(source.task, seed=seed, size=source.rows, **source.config)
        items = list(made)
    except Exception as error:  # whatever one of a hundred generators raises on a config it cannot work with
        raise InputError(f"{where}.config: {source.task} refuses it: {str(error) or type(error).__name__}") from error
    score = reasoning_gym.get_score_answer_fn(source.task)
    entries = []
    for item in items:
        entry = {name: item.get(name) for name in ("question", "answer", "metadata")}
        kept = json_form(entry, source.task, where)
        if entry["answer"] is not None and score(entry["answer"], revived(kept)) != score(entry["answer"], entry):
            raise InputError(
                f"{where}.task: {source.task}: its verifier needs what JSON cannot hold; it cannot be used"
            )
        entries.append(kept)
    return entries


def _near(name: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(name, list(known), 3)
    if near:
        return f"did you mean {' or '.join(near)}?"
    names = sorted(known)
    more = f" and {len(names) - 12} more" if len(names) > 12 else ""
    return f"there are {', '.join(names[:: max(1, len(names) // 12)][:12])}{more}"


def _check_config(source: ReasoningGymSource, config: type, where: str) -> None:
    """Hold a task's parameters to their names, and numbers, text and lists to what the defaults are.

    Raises:
        InputError: with the parameter.
    """
    known = {field.name: field for field in dataclasses.fields(config) if field.name not in ("seed", "size")}
    for name, value in source.config.items():
        at = f"{where}.config.{name}"
        if name not in known:
            raise InputError(f"{at}: {source.task} has no parameter {name}; {_near(name, known)}")
        default = known[name].default
        due = next((words for kinds, words in _DUE if isinstance(default, kinds)), None)
        fits = next((kinds for kinds, words in _DUE if words == due), object)
        if (
            due
            and value is not None
            and (not isinstance(value, fits) or isinstance(value, bool) != isinstance(default, bool))
        ):
            raise InputError(f"{at}: found {found(value)}; {due} is expected (by default {default})")


def json_form(value: Any, task: str, where: str) -> Any:
    """An entry as JSON holds it, tuples marked."""
    marked = _marked(value)
    try:
        return json.loads(json.dumps(marked, allow_nan=False))
    except (TypeError, ValueError) as error:
        raise InputError(f"{where}.task: {task}: its entries cannot be kept as JSON: {error}") from error


def _marked(value: Any) -> Any:
    if isinstance(value, tuple):
        return {TUPLE: [_marked(item) for item in value]}
    if isinstance(value, list):
        return [_marked(item) for item in value]
    return {key: _marked(item) for key, item in value.items()} if isinstance(value, dict) else value


def revived(value: Any) -> Any:
    """What `json_form` was made of (dict keys are text, as JSON has them)."""
    if isinstance(value, list):
        return [revived(item) for item in value]
    if isinstance(value, dict):
        return tuple(map(revived, value[TUPLE])) if set(value) == {TUPLE} else {k: revived(v) for k, v in value.items()}
    return value
