"""All sources of a data stage as rows: each input row is kept, rejected with its reason, or dropped as a duplicate."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from finery.data.dataset import Message, Row, row_of
from finery.data.formats import Format, check_text, recognise, stray
from finery.data.groups import fingerprint, group_key
from finery.data.records import Reading, Record, Reject
from finery.data.sources import read_source
from finery.errors import InputError
from finery.schemas.data import DataStage, FileSource, HubSource, Source


@dataclass(frozen=True)
class Kept:
    """A usable row, the number of its source, and the key of its group."""

    row: Row
    source: int
    key: str


@dataclass(frozen=True)
class Rejected:
    """A row that is not used."""

    source: int
    record: Record
    reject: Reject

    def to_json(self) -> dict[str, Any]:
        """Its line in rejects.jsonl."""
        kind, number = self.record.at
        return {
            "source": self.source,
            "file": self.record.file,
            kind: number,
            "field": self.reject.field,
            "code": self.reject.code,
            "reason": self.reject.reason,
        }

    def __str__(self) -> str:
        return f"{self.record.place}: {self.reject}"


@dataclass
class Corpus:
    """What the sources gave; `read` = len(kept) + len(rejected) + `duplicates`.

    Attributes:
        sources: for each source what the card says of it.
        warnings: what the user should know.
    """

    kept: list[Kept] = field(default_factory=list)
    rejected: list[Rejected] = field(default_factory=list)
    duplicates: int = 0
    sources: list[dict[str, Any]] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    @property
    def read(self) -> int:
        return len(self.kept) + len(self.rejected) + self.duplicates

    @property
    def reasons(self) -> dict[str, int]:
        """Reject code to count."""
        return dict(sorted(Counter(item.reject.code for item in self.rejected).items()))


class Collector:
    """Reads sources one after another into a Corpus, in the order of the config.

    Args:
        config: the stage's.
        inputs: its inputs.
        seed: its seed.
        work: a folder for what is kept only while the stage runs.
    """

    def __init__(self, config: DataStage, inputs: Mapping[str, Path], *, seed: int, work: Path) -> None:
        self.config, self.inputs, self.seed, self.work = config, inputs, seed, work
        self.corpus = Corpus()
        self._seen: set[bytes] = set()

    def collect(self) -> Iterator[int]:
        """Read every source; yields how many are done after each."""
        for index, source in enumerate(self.config.sources):
            reading = read_source(source, index, self.inputs, seed=self.seed, work=self.work)
            self.corpus.warnings.extend(reading.warnings)
            self._add(source, index, reading)
            yield index + 1

    def _add(self, source: Source, index: int, reading: Reading) -> None:
        corpus = self.corpus
        kept, rejected, duplicates = len(corpus.kept), len(corpus.rejected), corpus.duplicates
        how = _format(source, index, reading)
        for record in reading.records:
            try:
                row = self._row(record, how)
                key = group_key(row, self.config.group_by, record.task)
            except Reject as reject:
                corpus.rejected.append(Rejected(index, record, reject))
                continue
            if self._is_new(row):
                corpus.kept.append(Kept({"id": row_of(row), **row}, index, key))
            else:
                corpus.duplicates += 1
        facts: dict[str, Any] = {
            "kind": source.kind,
            "format": how.name if how else "generated",
            "read": len(reading.records),
            "kept": len(corpus.kept) - kept,
            "rejected": len(corpus.rejected) - rejected,
            "duplicates": corpus.duplicates - duplicates,
        }
        self._note_ignored(index, reading, how, facts)
        corpus.sources.append({**facts, **reading.facts})
        if len(corpus.kept) == kept and corpus.duplicates == duplicates:
            first = "; ".join(str(item) for item in corpus.rejected[rejected : rejected + 3])
            raise InputError(f"sources.{index}: none of its {facts['read']} rows can be used: {first or 'it is empty'}")

    def _row(self, record: Record, how: Format | None) -> Row:
        if record.fault is not None or record.value is None:
            raise record.fault or Reject("", "unreadable", "cannot be read")
        if how is None:
            row = {name: value for name, value in record.value.items() if name != "id"}
            check_text(row)
        else:
            row = how.row(record.value)
        return _conversational(row, chat=self.config.chat, system=self.config.system)

    def _is_new(self, row: Row) -> bool:
        if self.config.deduplicate == "none":
            return True
        mark = fingerprint(row, prompt_only=self.config.deduplicate == "prompt")
        if mark in self._seen:
            return False
        self._seen.add(mark)
        return True

    def _note_ignored(self, index: int, reading: Reading, how: Format | None, facts: dict[str, Any]) -> None:
        if how is None:
            return
        columns = stray(how.name, how.columns, (key for record in reading.records for key in record.value or ()))
        facts["ignored_columns"] = [*columns, *sorted(how.ignored)]
        if facts["ignored_columns"]:
            self.corpus.warnings.append(
                f"sources.{index}: not used: {', '.join(facts['ignored_columns'])}; "
                "a column can be kept with columns: {meta.NAME: COLUMN}"
            )


def _format(source: Source, index: int, reading: Reading) -> Format | None:
    """How a source's records are read; None when they are rows already."""
    if reading.format == "made" or not isinstance(source, FileSource | HubSource):
        return None
    present = dict.fromkeys(key for record in reading.records for key in record.value or ())
    if not present and reading.records:
        first = next(record for record in reading.records if record.fault)
        raise InputError(f"sources.{index}: none of its rows can be read: {first.place}: {first.fault}")
    if not reading.records:
        raise InputError(f"sources.{index}: holds no rows")
    name = recognise(reading.format, source.columns, present, f"sources.{index}")
    return Format(name, source.columns, source.numbers_as_text)


def _conversational(row: Row, *, chat: bool, system: str | None) -> Row:
    """Text as messages when `chat` asks for it, and the system message first where there is none."""
    if chat and isinstance(row.get("prompt"), str):
        row = {**row, "prompt": [{"role": "user", "content": row["prompt"]}]}
        if isinstance(row.get("completion"), str):
            row["completion"] = [{"role": "assistant", "content": row["completion"]}]
    if system:
        row = {n: _with_system(v, system) if n in ("prompt", "messages") else v for n, v in row.items()}
    return row


def _with_system(turns: str | list[Message], system: str) -> str | list[Message]:
    if isinstance(turns, str) or turns[0]["role"] == "system":
        return turns
    return [{"role": "system", "content": system}, *turns]
