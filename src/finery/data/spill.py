"""Rows on disk while a data stage works: Arrow batches, compressed, in the order they came.

A row that has been added is no Python object again, unless it is asked for: what follows works on row numbers and on
Arrow arrays. A message holds the number of its role, since few roles stand in many messages.
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from finery.data.arrays import list_array, number_array, text_array
from finery.data.dataset import CONVERSATIONAL, JSON_COLUMNS, Message, Row, canonical

if TYPE_CHECKING:
    import pyarrow as pa

BATCH_ROWS = 8192
BATCH_CHARACTERS = 1 << 22
"""A batch is written when it has so many rows, or so many characters."""
TURNS = "[]"
"""Marks the columns of the spill that hold messages: `prompt[]` beside `prompt`."""
PARTS = (
    *("prompt", "completion", "chosen", "rejected", "answer"),
    *JSON_COLUMNS,
    *(name + TURNS for name in CONVERSATIONAL),
)
"""The columns of the spill; `id` and `weight` are not kept in it."""
BITS = {name: 1 << bit for bit, name in enumerate(PARTS)}
"""Column to its bit in the number that says which columns a row has."""


class Spill:
    """A file of rows.

    Args:
        path: the file.

    Attributes:
        rows: how many were added.
        bytes: the size of their Arrow arrays, uncompressed.
        roles: role to its number.
    """

    def __init__(self, path: Path) -> None:
        import pyarrow as pa

        self.path, self.rows, self.bytes = path, 0, 0
        self.roles: dict[str, int] = {}
        self.schema: pa.Schema = pa.schema([(name, _part_type(name)) for name in PARTS])
        self._sink = pa.OSFile(str(path), "wb")
        options = pa.ipc.IpcWriteOptions(compression="lz4", use_threads=False)
        self._file = pa.ipc.new_stream(self._sink, self.schema, options=options)
        self._count = self._characters = 0
        self._begin()

    def add(self, row: Row) -> int:
        """Add a row; returns the BITS of its columns."""
        bits, at = 0, self._count
        for name, value in row.items():
            if name in JSON_COLUMNS:
                value = canonical(value)
            elif type(value) is list:
                name += TURNS
            elif name not in BITS:
                continue
            bits |= BITS[name]
            self._characters += self._held[name].add(at, value)
        self._count = at + 1
        if self._count >= BATCH_ROWS or self._characters >= BATCH_CHARACTERS:
            self._flush()
        return bits

    def close(self) -> None:
        """Write what is held; nothing can be added any more."""
        self._flush()
        self._file.close()
        self._sink.close()

    def batches(self, parts: Sequence[str]) -> Iterator[tuple[int, pa.RecordBatch]]:
        """The number of a batch's first row, and the named columns of the batch."""
        import pyarrow as pa

        wanted = [self.schema.get_field_index(name) for name in parts]
        options = pa.ipc.IpcReadOptions(included_fields=wanted, use_threads=False)
        start = 0
        with pa.OSFile(str(self.path)) as source, pa.ipc.open_stream(source, options=options) as reader:
            for batch in reader:
                yield start, batch
                start += batch.num_rows

    def read(self) -> Iterator[Row]:
        """The rows again, in order, without `id` and `weight`."""
        names = list(self.roles)
        for _, batch in self.batches(PARTS):
            for packed in batch.to_pylist():
                yield {name.removesuffix(TURNS): _value(name, v, names) for name, v in packed.items() if v is not None}

    def _begin(self) -> None:
        self._count = self._characters = 0
        self._held: dict[str, _Texts | _Turns] = {
            name: _Turns(self.roles) if name.endswith(TURNS) else _Texts() for name in PARTS
        }

    def _flush(self) -> None:
        import pyarrow as pa

        if self._count:
            arrays = [held.array(self._count) for held in self._held.values()]
            batch = pa.RecordBatch.from_arrays(arrays, schema=self.schema)
            self._file.write_batch(batch)
            self.rows += self._count
            self.bytes += batch.nbytes
        self._begin()


def _value(name: str, value: Any, roles: Sequence[str]) -> Any:
    if name in JSON_COLUMNS:
        return json.loads(value)
    if name.endswith(TURNS):
        return [{"role": roles[turn["role"]], "content": turn["content"]} for turn in value]
    return value


class _Texts:
    """A column of text, being filled."""

    def __init__(self) -> None:
        self._values: list[str | None] = []

    def add(self, at: int, value: str) -> int:
        """Put row `at`'s text; returns its length."""
        values = self._values
        if len(values) < at:
            values.extend([None] * (at - len(values)))
        values.append(value)
        return len(value)

    def array(self, count: int) -> pa.Array:
        """The column of `count` rows."""
        import pyarrow as pa

        if not self._values:
            return pa.nulls(count, pa.large_string())
        absent = [at for at, value in enumerate(self._values) if value is None] if None in self._values else []
        return text_array([value or "" for value in self._values], count, [*absent, *range(len(self._values), count)])


class _Turns:
    """A column of messages, being filled."""

    def __init__(self, roles: dict[str, int]) -> None:
        self._roles = roles
        self._sizes: list[int] = []
        self._absent: list[int] = []
        self._said_by = array("h")
        self._contents: list[str] = []

    def add(self, at: int, turns: Sequence[Message]) -> int:
        """Put row `at`'s messages; returns their length."""
        self._pad(at)
        self._sizes.append(len(turns))
        length = 0
        for turn in turns:
            role, content = turn["role"], turn["content"]
            self._said_by.append(self._roles.setdefault(role, len(self._roles)))
            self._contents.append(content)
            length += len(content)
        return length

    def array(self, count: int) -> pa.Array:
        """The column of `count` rows."""
        import numpy as np
        import pyarrow as pa

        if not self._sizes:
            return pa.nulls(count, _part_type(TURNS))
        self._pad(count)
        said_by = number_array(np.frombuffer(self._said_by, dtype=np.int16))
        turns = pa.StructArray.from_arrays([said_by, text_array(self._contents)], ["role", "content"])
        offsets = np.zeros(count + 1, dtype=np.int32)
        np.cumsum(self._sizes, out=offsets[1:])
        return list_array(offsets, turns, self._absent)

    def _pad(self, at: int) -> None:
        while len(self._sizes) < at:
            self._absent.append(len(self._sizes))
            self._sizes.append(0)


def _part_type(name: str) -> pa.DataType:
    import pyarrow as pa

    if not name.endswith(TURNS):
        return pa.large_string()
    return pa.list_(pa.struct([("role", pa.int16()), ("content", pa.large_string())]))
