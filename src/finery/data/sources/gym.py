"""Tasks of the package reasoning-gym, with what its verifiers need kept in `meta`."""

from __future__ import annotations

import json
from typing import Any

from finery.data.records import Reading
from finery.errors import InputError
from finery.schemas.data import ReasoningGymSource

KEY = "reasoning_gym"
"""The key of `meta` that holds {"task": name, "entry": {question, answer, metadata}}."""
TUPLE = "__tuple__"
"""Tuples are kept as {"__tuple__": [...]}: some verifiers compare with them, and JSON has none."""


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
        import difflib

        near = difflib.get_close_matches(source.task, list(DATASETS), 3)
        raise InputError(f"{where}.task: reasoning-gym has no task {source.task}; did you mean {' or '.join(near)}?")
    try:
        made = reasoning_gym.create_dataset(source.task, seed=seed, size=source.rows, **source.config)
    except (TypeError, ValueError, AssertionError) as error:
        raise InputError(f"{where}.config: {source.task} refuses it: {error or type(error).__name__}") from error
    score = reasoning_gym.get_score_answer_fn(source.task)
    entries = []
    for item in made:
        entry = {name: item.get(name) for name in ("question", "answer", "metadata")}
        kept = json_form(entry, source.task, where)
        if entry["answer"] is not None and score(entry["answer"], revived(kept)) != score(entry["answer"], entry):
            raise InputError(
                f"{where}.task: {source.task}: its verifier needs what JSON cannot hold; it cannot be used"
            )
        entries.append(kept)
    return entries


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
