"""CSV and Parquet. A CSV cell is text and stays text; a Parquet value keeps the file's own type."""

from __future__ import annotations

import csv
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from finery.data.records import Record, Reject
from finery.data.sources.streams import ended_lines
from finery.errors import InputError

PARQUET_ROWS = 1024
"""Rows of a Parquet file held at a time."""


def csv_records(text: Iterable[str], name: str, delimiter: str) -> Iterator[Record]:
    """One record a row below the header, at the line it begins on; blank lines are skipped.

    Raises:
        InputError: no header, a column twice or without a name, or quoting that is broken.
    """
    limit = csv.field_size_limit(sys.maxsize)
    try:
        reader = csv.reader(ended_lines(text), delimiter=delimiter, strict=True)
        header = next(reader, None)
        if header is None:
            raise InputError(f"{name}: is empty; a header of column names is expected on line 1")
        if bad := [column for i, column in enumerate(header) if not column.strip() or column in header[:i]]:
            raise InputError(f"{name}:1: column {bad[0]!r} stands twice or has no name; name each column once")
        line = reader.line_num + 1
        for cells in reader:
            if cells:
                yield _row(header, cells, name, line)
            line = reader.line_num + 1
    except csv.Error as error:
        raise InputError(f"{name}:{reader.line_num}: is not CSV: {error}") from error
    finally:
        csv.field_size_limit(limit)


def _row(header: list[str], cells: list[str], name: str, line: int) -> Record:
    if len(cells) != len(header):
        fault = Reject("", "cell_count", f"{len(cells)} cells where the header has {len(header)}")
        return Record(name, ("line", line), None, fault)
    return Record(name, ("line", line), dict(zip(header, cells, strict=True)))


def parquet_records(path: Path, name: str) -> Iterator[Record]:
    """One record a row.

    Raises:
        InputError: the file is not Parquet.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    number = 0
    try:
        with pq.ParquetFile(path, pre_buffer=False) as file:
            for batch in file.iter_batches(PARQUET_ROWS):
                for row in batch.to_pylist():
                    number += 1
                    yield Record(name, ("row", number), row)
    except (pa.ArrowException, OSError) as error:
        raise InputError(f"{name}: cannot be read as Parquet: {error}") from error
