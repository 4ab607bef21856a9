"""The data set artifact: a folder with `data.parquet` (explicit schema) and `dataset.json` (columns, counts).

A row is a dict with some of these keys; a key whose value is absent is absent from the row:

    id          str, the first 16 hex digits of sha256 of the canonical prompt and answer
    prompt      str, or a list of messages {"role": str, "content": str}
    completion  str, or a list of messages
    messages    a list of messages
    answer      str
    tests, sql, meta   any JSON value (`meta` a dict); stored as canonical JSON text
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from finery.errors import InputError

if TYPE_CHECKING:
    import pyarrow as pa

Row = dict[str, Any]
Message = dict[str, str]

CONVERSATIONAL = ("prompt", "completion", "messages")
"""Columns that may hold messages; the first two may hold text instead."""
JSON_COLUMNS = ("tests", "sql", "meta")
COLUMNS = ("id", *CONVERSATIONAL, "answer", *JSON_COLUMNS)
DATA_FILE = "data.parquet"
INFO_FILE = "dataset.json"


_ENCODER = json.JSONEncoder(ensure_ascii=False, sort_keys=True, separators=(",", ":"), allow_nan=False)


def canonical(value: Any) -> str:
    """Canonical JSON text of a value: sorted keys, no spaces, characters as they are."""
    return _ENCODER.encode(value)


def row_id(prompt: str | Sequence[Mapping[str, str]], answer: str | None) -> str:
    """The first 16 hex digits of sha256 of the canonical JSON of [prompt, answer]; pass rates are joined by it.

    `prompt` is text, or messages (for a row of `messages`, those); `answer` is None for a row without one.
    """
    text = canonical([prompt, answer])
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]


def write_dataset(rows: Sequence[Row], folder: Path, *, info: dict[str, Any] | None = None) -> dict[str, Any]:
    """Write rows as a data set artifact; the same rows give the same bytes.

    Args:
        rows: at least one; `id` is added where it is absent.
        folder: made if need be.
        info: further keys of dataset.json.

    Returns:
        What dataset.json says: `rows`, `prompts` (distinct ids), `columns` (name to type), and `info`.

    Raises:
        InputError: no rows, an unknown column, or a column that holds text in some rows and messages in others.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows = [row if "id" in row else {"id": row_of(row), **row} for row in rows]
    types = column_types(rows)
    fields, arrays = [], []
    for name, kind in types.items():
        values = [row.get(name) for row in rows]
        if kind == "json":
            values = [None if value is None else canonical(value) for value in values]
        fields.append(pa.field(name, _arrow_type(kind), nullable=name != "id", metadata={"finery": kind}))
        arrays.append(pa.array(values, type=_arrow_type(kind)))
    folder.mkdir(parents=True, exist_ok=True)
    table = pa.Table.from_arrays(arrays, schema=pa.schema(fields))
    pq.write_table(table, folder / DATA_FILE, compression="zstd", row_group_size=65536)
    described = {"rows": len(rows), "prompts": len({row["id"] for row in rows}), "columns": types, **(info or {})}
    text = json.dumps(described, ensure_ascii=False, indent=2, allow_nan=False)
    (folder / INFO_FILE).write_text(text + "\n", encoding="utf-8")
    return described


def read_dataset(folder: Path) -> list[Row]:
    """The rows of a data set artifact, in order.

    Raises:
        InputError: the folder is not a data set, or its columns are not those of one.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    data = folder / DATA_FILE
    if not data.is_file() or not (folder / INFO_FILE).is_file():
        raise InputError(
            f"{folder}: is not a data set of finery: it needs {DATA_FILE} and {INFO_FILE}; "
            f"make one from your own files with a stage of kind data"
        )
    try:
        table = pq.ParquetFile(data).read()
    except pa.ArrowException as error:
        raise InputError(f"{data}: cannot be read as Parquet: {error}") from error
    if unknown := [name for name in table.column_names if name not in COLUMNS]:
        raise InputError(f"{data}: unknown column {unknown[0]}; a data set has {', '.join(COLUMNS)}")
    if "id" not in table.column_names:
        raise InputError(f"{data}: has no column id; make data sets with a stage of kind data")
    rows = [{key: value for key, value in row.items() if value is not None} for row in table.to_pylist()]
    for name in set(JSON_COLUMNS) & set(table.column_names):
        for row in rows:
            if name in row:
                row[name] = json.loads(row[name])
    return rows


def row_of(row: Row) -> str:
    """The id of a row: of its prompt, or of its messages when it has no prompt."""
    return row_id(row["prompt"] if "prompt" in row else row["messages"], row.get("answer"))


def column_types(rows: Iterable[Row]) -> dict[str, str]:
    """Column to type (`text`, `messages` or `json`), in the order of COLUMNS; every row must agree.

    Raises:
        InputError: no rows, an unknown column, a wrong type, or text in some rows and messages in others.
    """
    seen: dict[str, str] = {}
    count = 0
    for count, row in enumerate(rows, 1):
        for name, value in row.items():
            if value is None:
                continue
            kind = _value_type(name, value)
            if seen.setdefault(name, kind) != kind:
                raise InputError(
                    f"row {count}: {name} is {kind} where it was {seen[name]} before; "
                    "a data set holds one or the other, so give them a data stage each"
                )
    if not count:
        raise InputError("a data set needs at least one row")
    return {name: seen[name] for name in COLUMNS if name in seen}


def _value_type(name: str, value: Any) -> str:
    if name in JSON_COLUMNS:
        return "json"
    if name in COLUMNS and isinstance(value, str) and name != "messages":
        return "text"
    if name in CONVERSATIONAL and isinstance(value, list):
        return "messages"
    if name not in COLUMNS:
        raise InputError(f"unknown column {name}; a data set has {', '.join(COLUMNS)}")
    raise InputError(f"column {name} cannot hold {type(value).__name__}")


def _arrow_type(kind: str) -> pa.DataType:
    import pyarrow as pa

    if kind == "messages":
        return pa.list_(pa.struct([pa.field("role", pa.string()), pa.field("content", pa.string())]))
    return pa.string()
