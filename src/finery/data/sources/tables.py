"""CSV and Parquet. A CSV cell is text and stays text; a Parquet value keeps the file's own type."""

from __future__ import annotations

import csv
import io
import sys

from finery.data.records import Record, Reject
from finery.errors import InputError


def csv_records(text: str, name: str, delimiter: str) -> list[Record]:
    """One record a row below the header, at the line it begins on; blank lines are skipped.

    Raises:
        InputError: no header, a column twice or without a name, or quoting that is broken.
    """
    limit = csv.field_size_limit(sys.maxsize)
    try:
        reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
        header = next(reader, None)
        if header is None:
            raise InputError(f"{name}: is empty; a header of column names is expected on line 1")
        if bad := [column for i, column in enumerate(header) if not column.strip() or column in header[:i]]:
            raise InputError(f"{name}:1: column {bad[0]!r} stands twice or has no name; name each column once")
        records, line = [], reader.line_num + 1
        for cells in reader:
            if cells:
                records.append(_row(header, cells, name, line))
            line = reader.line_num + 1
        return records
    except csv.Error as error:
        raise InputError(f"{name}:{reader.line_num}: is not CSV: {error}") from error
    finally:
        csv.field_size_limit(limit)


def _row(header: list[str], cells: list[str], name: str, line: int) -> Record:
    if len(cells) != len(header):
        fault = Reject("", "cell_count", f"{len(cells)} cells where the header has {len(header)}")
        return Record(name, ("line", line), None, fault)
    return Record(name, ("line", line), dict(zip(header, cells, strict=True)))


def parquet_records(data: bytes, name: str) -> list[Record]:
    """One record a row.

    Raises:
        InputError: the bytes are not Parquet.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        rows = pq.ParquetFile(pa.BufferReader(data)).read().to_pylist()
    except (pa.ArrowException, OSError) as error:
        raise InputError(f"{name}: cannot be read as Parquet: {error}") from error
    return [Record(name, ("row", number), row) for number, row in enumerate(rows, 1)]
