"""A user's files: which they are, their bytes, their text. The readers of each form turn these into records."""

from __future__ import annotations

import bz2
import codecs
import glob
import gzip
import hashlib
import lzma
import os
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from finery.data.dataset import DATA_FILE, INFO_FILE, read_dataset
from finery.data.records import Reading, Record
from finery.data.sources.jsonfiles import json_records, jsonl_records
from finery.data.sources.tables import csv_records, parquet_records
from finery.errors import InputError
from finery.schemas.data import FileSource

_PACKED: dict[str, Callable[[bytes], bytes]] = {
    ".gz": gzip.decompress,
    ".bz2": bz2.decompress,
    ".xz": lzma.decompress,
}
_FORMS = (".json", ".jsonl", ".ndjson", ".csv", ".tsv", ".parquet")
ACCEPTED = f"{', '.join(_FORMS)}, as they are or with {', '.join(_PACKED)}"


@dataclass(frozen=True)
class DataFile:
    """A file to read: its path, and the name errors and rejects call it, which holds nothing of the host."""

    path: Path
    name: str

    @property
    def form(self) -> str | None:
        """Its suffix, without that of the compression; None when it is not a data file."""
        suffixes = [suffix.lower() for suffix in self.path.suffixes]
        if suffixes and suffixes[-1] in _PACKED:
            suffixes.pop()
        return suffixes[-1] if suffixes and suffixes[-1] in _FORMS else None


def read_files(source: FileSource, path: Path, *, where: str) -> Reading:
    """Every record of a file source, in the sorted order of its files.

    Raises:
        InputError: nothing is there, a file has another form, or it is damaged as a whole.
    """
    if path.is_dir() and (path / INFO_FILE).is_file() and (path / DATA_FILE).is_file():
        return _own(path, path.name)
    files, skipped = find_files(path, _shown(source.path), where)
    warnings = [f"{where}: {source.path}: not data, left out: {', '.join(skipped[:5])}"] if skipped else []
    reading = read_all(files, encoding=source.encoding, where=where)
    return Reading(reading.records, source.format, reading.facts, warnings)


def read_all(files: Sequence[DataFile], *, encoding: str, where: str) -> Reading:
    """Every record of some files, with each file's sha256, size and count for the card."""
    records: list[Record] = []
    facts = []
    for file in files:
        data = file.path.read_bytes()
        new = _read(file, data, encoding, where)
        records.extend(new)
        digest = hashlib.sha256(data).hexdigest()
        facts.append({"file": file.name, "sha256": digest, "bytes": len(data), "rows": len(new)})
    return Reading(records, "auto", {"files": facts})


def find_files(path: Path, shown: str, where: str) -> tuple[list[DataFile], list[str]]:
    """The data files of a file, folder or glob, sorted by name; and the names of a folder's other files.

    Hidden files are no part of a folder. A folder with Python code is refused: finery runs no data set scripts.
    """
    if path.is_file():
        file = DataFile(path, path.name if shown.startswith(("/", "~")) else shown)
        if file.form is None:
            raise InputError(f"{where}: {shown}: is not a data file; accepted are {ACCEPTED}")
        return [file], []
    if path.is_dir():
        found = [p for p in sorted(path.rglob("*")) if p.is_file() and not _hidden(p.relative_to(path))]
        root = path.name if shown.startswith(("/", "~")) else shown.rstrip("/")
        files = [DataFile(p, f"{root}/{p.relative_to(path).as_posix()}") for p in found]
        scripts = [file.name for file in files if file.path.suffix == ".py"]
        if scripts:
            raise InputError(
                f"{where}: {shown}: holds {scripts[0]}, and finery runs no data set scripts; "
                f"name the data files themselves, for example path: {shown.rstrip('/')}/*.jsonl"
            )
    else:
        matches = sorted(glob.glob(str(path), recursive=True))
        files = [DataFile(Path(p), _matched(p, path, shown)) for p in matches if os.path.isfile(p)]
        if not files:
            raise InputError(f"{where}: {shown}: no such file, folder or match")
        if strange := [file.name for file in files if file.form is None]:
            raise InputError(f"{where}: {shown}: matches {strange[0]}, no data file; accepted are {ACCEPTED}")
    if not any(file.form for file in files):
        raise InputError(f"{where}: {shown}: holds no data file; accepted are {ACCEPTED}")
    return [file for file in files if file.form], [file.name for file in files if not file.form]


def _own(path: Path, name: str) -> Reading:
    """A data set that finery wrote before; its rows are whole already."""
    rows = read_dataset(path)
    data = (path / DATA_FILE).read_bytes()
    file = f"{name}/{DATA_FILE}"
    facts = {"file": file, "sha256": hashlib.sha256(data).hexdigest(), "bytes": len(data), "rows": len(rows)}
    records = [Record(file, ("row", number), row) for number, row in enumerate(rows, 1)]
    return Reading(records, "made", {"files": [facts]})


def _read(file: DataFile, data: bytes, encoding: str, where: str) -> list[Record]:
    form = file.form
    if form == ".parquet":
        return parquet_records(unpacked(file, data), file.name)
    text = decoded(unpacked(file, data), encoding, file.name, where)
    if form in (".csv", ".tsv"):
        return csv_records(text, file.name, "\t" if form == ".tsv" else ",")
    if form == ".json" and text.lstrip()[:1] != "{":
        return json_records(text, file.name)
    return jsonl_records(text, file.name)


def unpacked(file: DataFile, data: bytes) -> bytes:
    """A file's bytes, decompressed if its suffix says so."""
    unpack = _PACKED.get(file.path.suffix.lower())
    if unpack is None:
        return data
    try:
        return unpack(data)
    except (OSError, EOFError, zlib.error, lzma.LZMAError) as error:
        raise InputError(f"{file.name}: cannot be decompressed: {error}") from error


def decoded(data: bytes, encoding: str, name: str, where: str) -> str:
    """The text of a file's bytes, without a byte order mark.

    Raises:
        InputError: with the file, the byte offset (in the decompressed data) and the option that mends it.
    """
    try:
        codec = codecs.lookup(encoding).name
    except LookupError:
        raise InputError(f"{where}.encoding: {encoding} is not an encoding; write for example utf-8, gbk") from None
    mark = len(codecs.BOM_UTF8) if codec in ("utf-8", "utf-8-sig") and data.startswith(codecs.BOM_UTF8) else 0
    try:
        return data[mark:].decode("utf-8" if codec == "utf-8-sig" else codec)
    except UnicodeDecodeError as error:
        offset = mark + error.start
        raise InputError(
            f"{name}: byte offset {offset} (0x{data[offset]:02x}) is not {encoding}; "
            f"say what the file is encoded in with `encoding:` in {where}, for example `encoding: gbk`"
        ) from None


def _hidden(path: Path) -> bool:
    return any(part.startswith(".") for part in path.parts)


def _shown(text: str) -> str:
    return text.removeprefix("./")


def _matched(match: str, pattern: Path, shown: str) -> str:
    """A match's name: relative to the YAML file's folder as the pattern is, or the bare name of an absolute one."""
    if shown.startswith(("/", "~")):
        return os.path.basename(match)
    root = str(pattern)[: -len(shown)] if str(pattern).endswith(shown) else str(pattern.parent) + "/"
    return os.path.relpath(match, root or ".").replace(os.sep, "/")
