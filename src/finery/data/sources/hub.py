"""Data sets on the Hugging Face hub: `datasets` says which files make up a split, finery's own readers read them.

`load_dataset` is not used for the rows: it infers types (a CSV's 007 becomes 7, a date becomes a timestamp), and when
a revision cannot be had it takes whatever was cached of another one.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from finery.data.records import Reading
from finery.data.sources.files import ACCEPTED, DataFile, parsed, read_all
from finery.errors import InputError
from finery.schemas.data import HubSource

_NAME = re.compile(r"^[\w.-]+/[\w.-]+$")
_CARD = "README.md"
_PATTERNS = ["*.json*", "*.ndjson*", "*.csv*", "*.tsv*", "*.parquet", _CARD]


def read_hub(source: HubSource, *, where: str, work: Path, cache: Path | None = None) -> Reading:
    """The records of one split of a hub data set, at its pinned revision.

    Args:
        source: its config.
        where: the source in errors, `sources.0`.
        work: a folder for what `datasets` caches while it looks.
        cache: the hub cache's folder; huggingface_hub's own by default.

    Raises:
        InputError: it cannot be had, runs code, has no such configuration or split, or files of another form.
    """
    if not _NAME.match(source.name):
        raise InputError(f"{where}.name: {source.name} is not a hub data set; write org/name")
    folder, commit = fetch(source, where, cache)
    files = split_files(source, folder, where, work)
    reading = read_all(files, encoding="utf-8", where=where, work=work, parsed=parsed(source.columns))
    facts = {"hub": source.name, "revision": source.revision, "commit": commit, "split": source.split, **reading.facts}
    return Reading(reading.records, source.format, facts | ({"config": source.config} if source.config else {}))


def fetch(source: HubSource, where: str, cache: Path | None) -> tuple[Path, str]:
    """The data files of a revision in the hub cache, downloaded if need be, and its commit.

    Raises:
        InputError: the data set or revision cannot be had, or it is made by a script.
    """
    try:
        from huggingface_hub import snapshot_download
        from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError
    except ImportError as error:
        raise InputError(f"{where}: needs the Python package huggingface_hub; pip install 'finery[train]'") from error
    asked: dict[str, Any] = {"repo_type": "dataset", "revision": source.revision, "cache_dir": cache}
    try:
        card = Path(snapshot_download(source.name, allow_patterns=[_CARD, "*.py"], **asked))
        _refuse_scripts(source, card, where)
        folder = Path(snapshot_download(source.name, allow_patterns=_wanted(source, card, where), **asked))
    except (HfHubHTTPError, LocalEntryNotFoundError, OSError) as error:
        raise InputError(
            f"{where}: {source.name} at {source.revision} cannot be had from the hub or its cache: "
            f"{str(error).strip().splitlines()[0]}"
        ) from error
    return folder, folder.name


def _refuse_scripts(source: HubSource, folder: Path, where: str) -> None:
    script = f"{source.name.split('/')[1]}.py"
    if (folder / script).exists():
        raise InputError(
            f"{where}: {source.name} is made by a script, {script}, and finery runs none; "
            "use its Parquet form, revision: refs/convert/parquet, or download the data and use kind: file"
        )


def _wanted(source: HubSource, folder: Path, where: str) -> list[str]:
    """What to download: the files the card names for this configuration and split, or all data files."""
    for named in _configurations(folder / _CARD):
        if source.config is None or named.get("config_name", "default") == source.config:
            files = named.get("data_files")
            if isinstance(files, str):
                return [_CARD, files]
            if isinstance(files, list):
                mine = [f["path"] for f in files if isinstance(f, dict) and f.get("split") == source.split]
                return [_CARD, *(path for item in mine for path in ([item] if isinstance(item, str) else item))]
    return _PATTERNS


def _configurations(card: Path) -> list[dict[str, Any]]:
    if not card.is_file():
        return []
    from huggingface_hub import DatasetCardData, metadata_load

    data = DatasetCardData(**(metadata_load(card) or {}), ignore_metadata_errors=True).to_dict()
    return [item for item in data.get("configs") or [] if isinstance(item, dict)]


def split_files(source: HubSource, folder: Path, where: str, work: Path) -> list[DataFile]:
    """The files of a configuration and split, as `datasets` resolves them, named relative to the data set.

    Raises:
        InputError: there is no such configuration or split, or its files have a form finery does not read.
    """
    import datasets
    from datasets.exceptions import DatasetNotFoundError

    try:
        builder = datasets.load_dataset_builder(str(folder), name=source.config, cache_dir=str(work / "datasets"))
    except (ValueError, FileNotFoundError, RuntimeError, DatasetNotFoundError) as error:
        raise InputError(f"{where}: {source.name}: {str(error).strip().splitlines()[0]}") from error
    resolved = builder.config.data_files or {}
    if source.split not in resolved:
        raise InputError(f"{where}.split: {source.name} has no split {source.split}; it has {', '.join(resolved)}")
    return _named(resolved[source.split], folder, source, where)


def _named(paths: Sequence[str], folder: Path, source: HubSource, where: str) -> list[DataFile]:
    files = []
    for path in sorted(map(str, paths)):
        name = os.path.relpath(path, folder).replace(os.sep, "/")
        file = DataFile(Path(path), f"{source.name}/{name}")
        if file.form is None:
            raise InputError(f"{where}: {source.name}: {name} cannot be read; accepted are {ACCEPTED}")
        files.append(file)
    return files
