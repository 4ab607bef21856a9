"""All sources of a data stage as rows, one after another: each is kept on disk, or listed with its reason.

A record goes through: its format, reasoning, chat and system, the cleaning steps, the verifier. What is left goes to
the spill, with its place, its group and its mark; duplicates are found afterwards, from the marks alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Any

from finery.data.clean.texts import CleanStep
from finery.data.columns import Columns
from finery.data.dataset import Message, Row, row_of
from finery.data.drawing import balanced_value
from finery.data.fields import Fields
from finery.data.formats import some
from finery.data.groups import Intervals, digest, fingerprint, group_key
from finery.data.kept import Kept
from finery.data.reasoning import rewrite
from finery.data.records import Reading, Record, Reject, place
from finery.data.rejects import DUPLICATE, Rejects
from finery.data.repeats import Repeats
from finery.data.sources import read_source
from finery.errors import InputError
from finery.schemas.data import DataStage, Source, Split

RECOGNISED = 1000
"""Records whose columns tell a format."""
BATCH = 256
"""Rows that are judged and counted together."""
REPORTED = 20_000
"""Records between two reports of progress."""


@dataclass(frozen=True)
class Steps:
    """What is done to rows, as the stage composes it.

    Attributes:
        clean: steps, in order.
        judge: for each of some rows why it is not kept, or None.
        tokens: counts the tokens of some rows.
        difficulty: how hard a row is, from the row and its id; NaN when that is not known.
    """

    clean: Sequence[CleanStep] = ()
    judge: Callable[[Sequence[Row]], Sequence[Reject | None]] | None = None
    tokens: Callable[[Sequence[Row]], Sequence[int]] | None = None
    difficulty: Callable[[Row, str], float] | None = None


class Collector:
    """Reads sources one after another, in the order of the config.

    Args:
        config: the stage's.
        inputs: its inputs.
        seed: its seed.
        work: an empty folder for what is kept only while the stage runs.
        rejects: where rows are listed that are not kept.
        steps: what is done to the rows.

    Attributes:
        kept: the rows.
        read: how many records there were.
        sources: for each source what the card says of it.
        changed: cleaning step to the number of rows it changed.
        warnings: what the user should know.
    """

    def __init__(
        self,
        config: DataStage,
        inputs: Mapping[str, Path],
        *,
        seed: int,
        work: Path,
        rejects: Rejects,
        steps: Steps | None = None,
    ) -> None:
        self.config, self.inputs, self.seed, self.work = config, inputs, seed, work
        self.rejects, self.steps = rejects, steps or Steps()
        splits = config.splits.items()
        self._intervals = Intervals({name: s.fraction if isinstance(s, Split) else s for name, s in splits})
        self._prompts = any(isinstance(split, Split) and split.unique_prompts for split in config.splits.values())
        self._balance = config.balance.by if config.balance and config.balance.by != "source" else None
        self._fields = Fields(config)
        self.kept = Kept(work, self._columns())
        self._repeats = None if config.deduplicate == "none" else Repeats(work / "marks")
        self.read = 0
        self.sources: list[dict[str, Any]] = []
        self.changed: Counter[str] = Counter({step.name: 0 for step in self.steps.clean})
        self.warnings: list[str] = []

    def collect(self) -> Iterator[tuple[int, str]]:
        """Read every source; yields how many are done, and what was done last."""
        for index, source in enumerate(self.config.sources):
            reading = read_source(source, index, self.inputs, seed=self.seed, work=self.work)
            self.warnings.extend(reading.warnings)
            for count in self._add(source, index, reading):
                yield index, f"source {index}: {count} rows read"
            yield index + 1, f"source {index} read"
        self.kept.close()
        self._fields.check_order()

    def finish(self) -> Kept:
        """Drop exact duplicates; what is kept then."""
        if self._repeats is not None:
            self.kept.drop(self._repeats.found(), self.rejects, DUPLICATE, "repeats")
        return self.kept

    def _columns(self) -> dict[str, str]:
        """The facts that are kept of a row beside those every row has; the codes are those of `array`."""
        columns = {"prompt_high": "Q", "prompt_low": "Q"} if self._prompts else {}
        if self.steps.difficulty is not None:
            columns["difficulty"] = "d"
        if self._balance is not None:
            columns["balance"] = "Q"
        if self.steps.tokens is not None:
            columns["tokens"] = "i"
        return columns

    def _add(self, source: Source, index: int, reading: Reading) -> Iterator[int]:
        """Read a source; yields how many records of it were read, now and then."""
        records = iter(reading.records)
        head = list(islice(records, RECOGNISED))
        whole = len(head) < RECOGNISED
        where = f"sources.{index}"
        columns = Columns(source, where, reading, head, whole=whole, cot=self.config.reasoning is not None)
        stream = chain(_emptied(head), records)
        before, read, first = self.kept.rows, 0, list[str]()
        self._fields.begin()
        while batch := list(islice(stream, BATCH)):
            self._batch(batch, columns, index, first)
            read += len(batch)
            if read % REPORTED < BATCH:
                yield read
        self.read += read
        facts: dict[str, Any] = {"kind": source.kind, "format": columns.format, "read": read}
        if (ignored := columns.ignored()) is not None:
            facts["ignored_columns"] = ignored
            if ignored:
                self.warnings.append(
                    f"{where}: not used: {some(ignored)}; a column can be kept with columns: {{meta.NAME: COLUMN}}"
                )
        self.sources.append({**facts, **reading.facts})
        if self.kept.rows == before:
            self._fields.check_source(where)
            raise InputError(f"{where}: none of its {read} rows can be used: {'; '.join(first) or 'it is empty'}")

    def _batch(self, records: Sequence[Record], columns: Columns, source: int, first: list[str]) -> None:
        """Make rows of records and keep them, or list them; `first` takes the first of the source's rejects."""
        done: list[Row | Reject] = []
        for record in records:
            try:
                done.append(self._row(record, columns))
            except Reject as reject:
                done.append(reject)
        if self.steps.judge is not None:
            self._judge(done)
        tokens = iter(self.steps.tokens([row for row in done if isinstance(row, dict)]) if self.steps.tokens else ())
        for record, row in zip(records, done, strict=True):
            try:
                if isinstance(row, Reject):
                    raise row
                self._keep(record, row, source, tokens)
            except Reject as reject:
                self.rejects.add(source, record.file, record.at, reject)
                if len(first) < 3:
                    first.append(f"{place(record.file, record.at)}: {reject}")

    def _row(self, record: Record, columns: Columns) -> Row:
        row, config = columns.row(record), self.config
        if config.reasoning is not None:
            row = rewrite(row, config.reasoning)
        if config.chat or config.system:
            row = _conversational(row, chat=config.chat, system=config.system)
        for step in self.steps.clean:
            after = step(row)
            if after is not row:
                self.changed[step.name] += 1
                row = after
        return row

    def _judge(self, done: list[Row | Reject]) -> None:
        assert self.steps.judge is not None
        places = [place for place, row in enumerate(done) if isinstance(row, dict)]
        faults = self.steps.judge([row for row in done if isinstance(row, dict)])
        for at, fault in zip(places, faults, strict=True):
            if fault is not None:
                done[at] = fault

    def _keep(self, record: Record, row: Row, source: int, tokens: Iterator[int]) -> None:
        counted = {"tokens": next(tokens)} if self.steps.tokens is not None else {}
        if self._fields.asked:
            self._fields.note(row, made=record.task is not None)
        hashed = digest(group_key(row, self.config.group_by, record.task), self.config.salt)
        row_id = row_of(row)
        facts: dict[str, float] = {
            "group": int.from_bytes(hashed[:8], "big"),
            "split": self._intervals.index(hashed),
            "id": int(row_id, 16),
            **counted,
        }
        if self._balance is not None:
            facts["balance"] = balanced_value(row, self._balance)
        if self.steps.difficulty is not None:
            facts["difficulty"] = self.steps.difficulty(row, row_id)
        if self._prompts:
            mark = fingerprint(row, prompt_only=True)
            facts["prompt_high"] = int.from_bytes(mark[:8], "big")
            facts["prompt_low"] = int.from_bytes(mark[8:], "big")
        if self._repeats is not None:
            self._repeats.add(fingerprint(row, prompt_only=self.config.deduplicate == "prompt"))
        self.kept.add(row, source, record, facts)


def _emptied(items: list[Record]) -> Iterator[Record]:
    """Its items; each is let go once it is taken."""
    items.reverse()
    while items:
        yield items.pop()


def _conversational(row: Row, *, chat: bool, system: str | None) -> Row:
    """Text as messages when `chat` asks for it, and the system message first where there is none."""
    if chat and isinstance(row.get("prompt"), str):
        row = {**row, "prompt": [{"role": "user", "content": row["prompt"]}]}
        for said in ("completion", "chosen", "rejected"):
            if isinstance(row.get(said), str):
                row[said] = [{"role": "assistant", "content": row[said]}]
    if system:
        row = {n: _with_system(v, system) if n in ("prompt", "messages") else v for n, v in row.items()}
    return row


def _with_system(turns: str | list[Message], system: str) -> str | list[Message]:
    if isinstance(turns, str) or turns[0]["role"] == "system":
        return turns
    return [{"role": "system", "content": system}, *turns]
