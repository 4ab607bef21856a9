"""CSV and Parquet. A CSV cell is text and stays text; a Parquet value keeps the file's own type."""

from __future__ import annotations

import csv
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from finery.data.records import Record, Reject
from finery.data.sources.cells import values
from finery.data.sources.jsonfiles import json_value
from finery.data.sources.streams import ended_lines
from finery.errors import InputError

PARQUET_ROWS = 1024
"""Rows of a Parquet file held at a time."""


def csv_records(
    text: Iterable[str], name: str, delimiter: str, parsed: frozenset[str] = frozenset()
) -> Iterator[Record]:
    """One record a row below the header, at the line it begins on; blank lines are skipped.

    A cell of the columns `parsed` that is a JSON object or list is read as one; any other cell is text.

    Raises:
        InputError: no header, a column twice or without a name, or quoting that is broken.
    """
    limit = csv.field_size_limit(sys.maxsize)
    try:
        reader = csv.reader(ended_lines(text), delimiter=delimiter, strict=True)
        header = next(reader, None)
        if header is None:
            raise InputError(f"{name}: is empty; a header of column names is expected on line 1")
        _check_names(header, f"{name}:1")
        json_columns = [column for column in header if column in parsed]
        line = reader.line_num + 1
        for cells in reader:
            if cells:
                yield _row(header, cells, name, line, json_columns)
            line = reader.line_num + 1
    except csv.Error as error:
        raise InputError(f"{name}:{reader.line_num}: is not CSV: {error}") from error
    finally:
        csv.field_size_limit(limit)


def _row(header: list[str], cells: list[str], name: str, line: int, json_columns: list[str]) -> Record:
    if len(cells) != len(header):
        fault = Reject("", "cell_count", f"{len(cells)} cells where the header has {len(header)}")
        return Record(name, ("line", line), None, fault)
    value: dict[str, Any] = dict(zip(header, cells, strict=True))
    try:
        for column in json_columns:
            if value[column].lstrip().startswith(("{", "[")):
                value[column] = json_value(value[column])
    except Reject as fault:
        return Record(name, ("line", line), None, Reject(column, fault.code, fault.reason))
    return Record(name, ("line", line), value)


def parquet_records(path: Path, name: str) -> Iterator[Record]:
    """One record a row. A value that cannot be read is a `Foreign`: it matters only where its column is used.

    Raises:
        InputError: the file is not Parquet, part of it cannot be read, or two columns have one name.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    number = 0
    errors = (pa.ArrowException, OSError, ValueError, OverflowError, KeyError, NotImplementedError)
    try:
        with pq.ParquetFile(path, pre_buffer=False) as file:
            names = file.schema_arrow.names
            _check_names(names, name)
            for batch in file.iter_batches(PARQUET_ROWS):
                for cells in zip(*map(values, batch.columns), strict=True):
                    number += 1
                    yield Record(name, ("row", number), dict(zip(names, cells, strict=True)))
    except UnicodeError as error:
        raise InputError(f"{name}: cannot be read as Parquet: a column's name is not UTF-8") from error
    except errors as error:
        after = f" after row {number}" if number else ""
        raise InputError(f"{name}: cannot be read as Parquet{after}: {_words(error)}") from error


def _words(error: BaseException) -> str:
    """Arrow's message without what it adds on lines of its own."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def _check_names(names: Sequence[str], where: str) -> None:
    """Refuse columns without a name and two of one name: a row could hold but one of them."""
    seen: set[str] = set()
    for column in names:
        if not column.strip() or column in seen:
            raise InputError(f"{where}: column {column!r} stands twice or has no name; name each column once")
        seen.add(column)
