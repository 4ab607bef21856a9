"""A user's files: which they are, and their records one after another."""

from __future__ import annotations

import glob
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from finery.data.dataset import DATA_FILE, INFO_FILE, iter_dataset
from finery.data.paths import strange
from finery.data.records import Reading, Record
from finery.data.sources.jsonfiles import json_records, jsonl_records
from finery.data.sources.streams import PACKED, Hashed, decoded, pieces, unpack_to
from finery.data.sources.tables import csv_records, parquet_records
from finery.errors import InputError
from finery.schemas.data import FileSource

_FORMS = (".json", ".jsonl", ".ndjson", ".csv", ".tsv", ".parquet")
ACCEPTED = f"{', '.join(_FORMS)}, as they are or with {', '.join(PACKED)}"


@dataclass(frozen=True)
class DataFile:
    """A file to read: its path, and the name errors and rejects call it, which holds nothing of the host."""

    path: Path
    name: str

    def __post_init__(self) -> None:
        # a name that is not UTF-8 holds halves of surrogate pairs, which the card cannot be written with
        object.__setattr__(self, "name", self.name.encode("utf-8", "backslashreplace").decode())

    @property
    def form(self) -> str | None:
        """Its suffix, without that of the compression; None when it is not a data file."""
        suffixes = [suffix.lower() for suffix in self.path.suffixes]
        if suffixes and suffixes[-1] in PACKED:
            suffixes.pop()
        return suffixes[-1] if suffixes and suffixes[-1] in _FORMS else None


def read_files(source: FileSource, path: Path, *, where: str, work: Path) -> Reading:
    """The records of a file source, in the sorted order of its files.

    Args:
        source: its config.
        path: where it is.
        where: the source in errors, `sources.0`.
        work: a folder for what is kept only while the stage runs.

    Raises:
        InputError: nothing is there or a file has another form; while reading: a file is damaged as a whole.
    """
    if path.is_dir() and (path / INFO_FILE).is_file() and (path / DATA_FILE).is_file():
        return _own(path, path.name)
    files, skipped = find_files(path, _shown(source.path), where)
    warnings = [f"{where}: {source.path}: not data, left out: {', '.join(skipped[:5])}"] if skipped else []
    reading = read_all(files, encoding=source.encoding, where=where, work=work, parsed=parsed(source.columns))
    return Reading(reading.records, source.format, reading.facts, warnings)


def parsed(columns: Mapping[str, str]) -> frozenset[str]:
    """The names of a file's columns whose CSV cells may hold JSON: those of `tests` and `sql`."""
    return frozenset(columns.get(column, column) for column in ("tests", "sql"))


def read_all(
    files: Sequence[DataFile], *, encoding: str, where: str, work: Path, parsed: frozenset[str] = frozenset()
) -> Reading:
    """The records of some files; each file's sha256, size and count are in `facts` once it has been read."""
    facts: list[dict[str, Any]] = []

    def records() -> Iterator[Record]:
        for file in files:
            yield from _counted(file, _records(file, encoding, where, work, parsed), facts)

    return Reading(records(), "auto", {"files": facts})


def find_files(path: Path, shown: str, where: str) -> tuple[list[DataFile], list[str]]:
    """The data files of a file, folder or glob, sorted by name; and the names of a folder's other files.

    Hidden files are no part of a folder. A folder with Python code is refused: finery runs no data set scripts.
    """
    if wrong := strange(path):
        raise InputError(f"{where}: {shown}: {wrong}")
    if path.is_file():
        file = DataFile(path, path.name if shown.startswith(("/", "~")) else shown)
        if file.form is None:
            raise InputError(f"{where}: {shown}: is not a data file; accepted are {ACCEPTED}")
        return [file], []
    if path.is_dir():
        found = [p for p in sorted(path.rglob("*")) if p.is_file() and not _hidden(p.relative_to(path))]
        root = path.name if shown.startswith(("/", "~")) else shown.rstrip("/")
        below = f"{root}/" if root not in ("", ".") else ""
        files = [DataFile(p, below + p.relative_to(path).as_posix()) for p in found]
        scripts = [file.name for file in files if file.path.suffix == ".py"]
        if scripts:
            raise InputError(
                f"{where}: {shown}: holds {scripts[0]}, and finery runs no data set scripts; "
                f"name the data files themselves, for example path: {shown.rstrip('/')}/*.jsonl"
            )
    else:
        matches = sorted(glob.glob(str(path), recursive=True))
        files = [DataFile(Path(p), _matched(p, path, shown)) for p in matches if os.path.isfile(p)]
        if not files and (odd := [f"{_matched(p, path, shown)} {why}" for p in matches if (why := strange(p))]):
            raise InputError(f"{where}: {shown}: {odd[0]}")
        if not files:
            raise InputError(f"{where}: {shown}: no such file, folder or match")
        if others := [file.name for file in files if file.form is None]:
            raise InputError(f"{where}: {shown}: matches {others[0]}, no data file; accepted are {ACCEPTED}")
    if not any(file.form for file in files):
        raise InputError(f"{where}: {shown}: holds no data file; accepted are {ACCEPTED}")
    return [file for file in files if file.form], [file.name for file in files if not file.form]


def _own(path: Path, name: str) -> Reading:
    """A data set that finery wrote before; its rows are whole already."""
    file = DataFile(path / DATA_FILE, f"{name}/{DATA_FILE}")
    facts: list[dict[str, Any]] = []

    def records(opened: Hashed) -> Iterator[Record]:
        opened.drain()
        for number, row in enumerate(iter_dataset(path), 1):
            # weights are of the split they were made for
            row.pop("weight", None)
            yield Record(file.name, ("row", number), row)

    return Reading(_counted(file, records, facts), "made", {"files": facts})


def _counted(
    file: DataFile, records: Callable[[Hashed], Iterator[Record]], facts: list[dict[str, Any]]
) -> Iterator[Record]:
    """A file's records; what the card says of the file is added to `facts` after the last."""
    try:
        opened = Hashed(file.path)
    except OSError as error:
        raise InputError(f"{file.name}: cannot be read: {error.strerror}") from error
    rows = 0
    with opened:
        for record in records(opened):
            rows += 1
            yield record
        facts.append({"file": file.name, "sha256": opened.sha256, "bytes": opened.size, "rows": rows})


def _records(
    file: DataFile, encoding: str, where: str, work: Path, parsed: frozenset[str]
) -> Callable[[Hashed], Iterator[Record]]:
    """What reads a file's form."""
    form = file.form
    if form == ".parquet":
        return lambda opened: _parquet(file, opened, work)

    def read(opened: Hashed) -> Iterator[Record]:
        text = decoded(pieces(opened, file.path, file.name), encoding, file.name, where)
        if form in (".csv", ".tsv"):
            return csv_records(text, file.name, "\t" if form == ".tsv" else ",", parsed)
        if form == ".json":
            begun, text = _begun(text)
            if begun != "{":
                return json_records(text, file.name)
        return jsonl_records(text, file.name)

    return read


def _begun(text: Iterator[str]) -> tuple[str, Iterator[str]]:
    """The first character that is not white space (empty if there is none), and the text as it was."""
    passed = []
    for piece in text:
        passed.append(piece)
        if begun := piece.lstrip()[:1]:
            return begun, chain(passed, text)
    return "", iter(passed)


def _parquet(file: DataFile, opened: Hashed, work: Path) -> Iterator[Record]:
    """Parquet is read from its end, so a compressed one is decompressed into a file first."""
    if file.path.suffix.lower() not in PACKED:
        opened.drain()
        yield from parquet_records(file.path, file.name)
        return
    work.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=work, suffix=".parquet") as unpacked:
        unpack_to(opened, file.path, file.name, unpacked.file)
        unpacked.flush()
        yield from parquet_records(Path(unpacked.name), file.name)


def _hidden(path: Path) -> bool:
    return any(part.startswith(".") for part in path.parts)


def _shown(text: str) -> str:
    return text.removeprefix("./") or "."


def _matched(match: str, pattern: Path, shown: str) -> str:
    """A match's name: relative to the YAML file's folder as the pattern is, or the bare name of an absolute one."""
    if shown.startswith(("/", "~")):
        return os.path.basename(match)
    root = str(pattern)[: -len(shown)] if str(pattern).endswith(shown) else str(pattern.parent) + "/"
    return os.path.relpath(match, root or ".").replace(os.sep, "/")
