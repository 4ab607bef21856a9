"""Where rows come from: files, hub data sets, reasoning-gym tasks, HumanEval, finery's own generators."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path

from finery.data.chains import chain_rows
from finery.data.records import Reading, Record
from finery.data.skills import skill_rows
from finery.data.sources.files import read_files
from finery.schemas.data import (
    ChainsSource,
    FileSource,
    HubSource,
    HumanEvalSource,
    ReasoningGymSource,
    SkillsSource,
    Source,
)


def read_source(source: Source, index: int, inputs: Mapping[str, Path], *, seed: int, work: Path) -> Reading:
    """What source number `index` of a data stage gives.

    Args:
        source: its config.
        index: its place in `sources`.
        inputs: the stage's inputs; `sources.{index}.path` is a file source's path.
        seed: the stage's; a generator's randomness comes from it and from `index`.
        work: a folder for what is kept only while the stage runs.

    Raises:
        InputError: nothing is there, or it cannot be read.
    """
    own = _seed(seed, index)
    match source:
        case FileSource():
            return read_files(source, inputs[f"sources.{index}.path"], where=f"sources.{index}", work=work)
        case HubSource():
            from finery.data.sources.hub import read_hub

            return read_hub(source, where=f"sources.{index}", work=work)
        case ReasoningGymSource():
            from finery.data.sources.gym import read_gym

            return read_gym(source, seed=own, where=f"sources.{index}")
        case ChainsSource():
            rows = chain_rows(
                source.rows,
                seed=own,
                levels=source.levels,
                style=source.style,
                noise_add=source.noise_add,
                noise_sub=source.noise_sub,
            )
            return generated("chains", rows, [row["meta"]["task"] for row in rows])
        case SkillsSource():
            rows = skill_rows(source.rows, seed=own, skills=source.skills)
            return generated("skills", rows, [row["meta"]["task"] for row in rows])
        case HumanEvalSource():
            from finery.data.sources.human_eval import read_human_eval

            return read_human_eval(where=f"sources.{index}")
    raise TypeError(f"unknown source {source!r}")


def generated(name: str, rows: Sequence[dict[str, object]], tasks: Sequence[str]) -> Reading:
    """Rows a generator made, with the bare task of each."""
    records = [
        Record(name, ("row", number), row, task=task)
        for number, (row, task) in enumerate(zip(rows, tasks, strict=True), 1)
    ]
    return Reading(records, "made", {"made": name})


def _seed(seed: int, index: int) -> int:
    return int.from_bytes(hashlib.sha256(f"{seed}/source/{index}".encode()).digest()[:4], "big")
