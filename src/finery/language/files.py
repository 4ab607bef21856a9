"""A user's own files: paths are taken from the YAML file's folder and must be there."""

from __future__ import annotations

import glob
import os
from pathlib import Path

from finery.data.paths import strange
from finery.language.problems import cut, nearest


def missing(text: str, folder: Path) -> str | None:
    """What is wrong with a path, folder or glob of the user's own, or None."""
    path = _path(text, folder)
    try:
        if wrong := strange(path):
            return f"{cut(text)} {wrong}"
        if os.path.isdir(path):
            return None if os.listdir(path) else f"{cut(text)} is an empty folder"
        if os.path.isfile(path) or glob.glob(path, recursive=True):
            return None
        if any(character in text for character in "*?["):
            return f"{cut(text)} matches no file"
        return f"{cut(text)}: no such file or folder{_like(path, text)}"
    except OSError as error:
        return f"{cut(text)} cannot be read: {error.strerror}"


def unfit(text: str, folder: Path, kinds: tuple[str, ...]) -> str | None:
    """What is wrong with a path that stands for an artifact of one of `kinds`, or None."""
    if wrong := missing(text, folder):
        return wrong
    path = _path(text, folder)
    if kinds == ("model",):
        if os.path.isfile(path) and not path.lower().endswith(".gguf"):
            return f"{text} is not a model; name a folder that holds config.json and safetensors, or a .gguf file"
        if os.path.isdir(path) and not {"config.json", "adapter_config.json"} & set(os.listdir(path)):
            return f"{text} is not a model's folder: it holds no config.json"
    if kinds == ("dataset",) and not os.path.isfile(os.path.join(path, "data.parquet")):
        return (
            f"{text} is not a data set that finery made; read it in a stage: "
            f"corpus: {{kind: data, sources: [{{kind: file, path: {text}}}]}}, and write corpus here"
        )
    return None


def exists(text: str, folder: Path) -> bool:
    return os.path.exists(_path(text, folder))


def _path(text: str, folder: Path) -> str:
    return os.path.join(folder, os.path.expanduser(text))


def _like(path: str, text: str) -> str:
    """The name in the same folder that is most like it."""
    parent, name = os.path.split(path)
    if not os.path.isdir(parent):
        return f"; {cut(os.path.dirname(text))} is not there either"
    near = nearest(name, os.listdir(parent), cutoff=0.7)
    return f"; did you mean {text.removesuffix(name)}{near}?" if near else ""
