"""`finery init`: a pipeline to begin with, its data, a reward, and a base model small enough for any laptop."""

from __future__ import annotations

import os
from importlib.resources import as_file, files
from pathlib import Path

from finery.errors import InputError
from finery.language.problems import shown

FILES = (
    "pipeline.yaml",
    "flows.yaml",
    "reward.py",
    "data/train.jsonl",
    "base/config.json",
    "base/generation_config.json",
    "base/model.safetensors",
    "base/tokenizer.json",
    "base/tokenizer_config.json",
)
"""What a starter project consists of, as in finery/starter."""


def init_project(folder: Path) -> list[Path]:
    """Write the starter project into a folder, which is made if need be.

    Returns:
        The files written.

    Raises:
        InputError: some of them are there already; nothing is written then.
    """
    targets = {name: folder / name for name in FILES}
    there = [shown(path) for path in targets.values() if os.path.lexists(path)]
    if there:
        raise InputError(
            f"{', '.join(there)}: already there; finery init writes a new project, so choose another folder"
        )
    try:
        for name, path in targets.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            with as_file(files("finery").joinpath("starter", *name.split("/"))) as source:
                path.write_bytes(source.read_bytes())
    except (FileExistsError, NotADirectoryError) as error:
        raise InputError(f"{shown(Path(error.filename))}: is a file; choose another folder") from error
    except OSError as error:
        raise InputError(f"{shown(folder)}: cannot be written: {error.strerror}") from error
    return list(targets.values())
