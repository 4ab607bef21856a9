"""A user's own files: paths are taken from the YAML file's folder and must be there."""

from __future__ import annotations

import glob
import os
from pathlib import Path

from finery.language.problems import nearest

_MODEL_FILES = (".gguf",)


def missing(text: str, folder: Path) -> str | None:
    """What is wrong with a path, folder or glob of the user's own, or None."""
    path = folder / Path(text).expanduser()
    if path.is_file():
        return None
    if path.is_dir():
        return None if any(path.iterdir()) else f"{text} is an empty folder"
    if any(character in text for character in "*?["):
        return None if glob.glob(str(path), recursive=True) else f"{text} matches no file in {_shown(folder)}"
    return f"{text}: no such file or folder{_like(path, text)}"


def unfit(text: str, folder: Path, kinds: tuple[str, ...]) -> str | None:
    """What is wrong with a path that stands for an artifact of one of `kinds`, or None."""
    if wrong := missing(text, folder):
        return wrong
    path = folder / Path(text).expanduser()
    if kinds == ("model",):
        if path.is_file() and path.suffix.lower() not in _MODEL_FILES:
            return f"{text} is not a model; name a folder that holds config.json and safetensors, or a .gguf file"
        if path.is_dir() and not (path / "config.json").is_file() and not (path / "adapter_config.json").is_file():
            return f"{text} is not a model's folder: it holds no config.json"
    if kinds == ("dataset",) and not (path / "data.parquet").is_file():
        return (
            f"{text} is not a data set that finery made; read it in a stage: "
            f"corpus: {{kind: data, sources: [{{kind: file, path: {text}}}]}}, and write corpus here"
        )
    return None


def _like(path: Path, text: str) -> str:
    """The name in the same folder that is most like it."""
    if not path.parent.is_dir():
        return f"; {Path(text).parent} is not there either"
    near = nearest(path.name, [entry.name for entry in path.parent.iterdir()], cutoff=0.7)
    return f"; did you mean {text.removesuffix(path.name)}{near}?" if near else ""


def _shown(folder: Path) -> str:
    return os.path.relpath(folder) if os.path.relpath(folder) != "." else "this folder"
