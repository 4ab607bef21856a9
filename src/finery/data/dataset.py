"""The data set artifact: a folder with `data.parquet` (explicit schema) and `dataset.json` (columns, counts).

A row is a dict with some of these keys; a key whose value is absent is absent from the row:

    id          str, the first 16 hex digits of sha256 of the canonical prompt and answer
    prompt      str, or a list of messages {"role": str, "content": str}
    completion  str, or a list of messages
    messages    a list of messages
    chosen, rejected   two completions of the prompt, the better and the worse; as completion
    answer      str
    tests, sql, meta   any JSON value (`meta` a dict); stored as canonical JSON text
    weight      float, how often the row is drawn, 1 on average in a data set
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from json.encoder import encode_basestring
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from finery.errors import InputError

if TYPE_CHECKING:
    import pyarrow as pa

Row = dict[str, Any]
Message = dict[str, str]

CONVERSATIONAL = ("prompt", "completion", "messages", "chosen", "rejected")
"""Columns that may hold messages; all but `messages` may hold text instead."""
JSON_COLUMNS = ("tests", "sql", "meta")
COLUMNS = ("id", *CONVERSATIONAL, "answer", *JSON_COLUMNS, "weight")
DATA_FILE = "data.parquet"
INFO_FILE = "dataset.json"
GROUP_ROWS = 65536
"""Rows of a Parquet row group, at most."""
READ_ROWS = 1024
"""Rows that are read at a time."""


_ENCODER = json.JSONEncoder(ensure_ascii=False, sort_keys=True, separators=(",", ":"), allow_nan=False)


def canonical(value: Any) -> str:
    """Canonical JSON text of a value: sorted keys, no spaces, characters as they are."""
    return _ENCODER.encode(value)


def row_id(prompt: str | Sequence[Mapping[str, str]], answer: str | None) -> str:
    """The first 16 hex digits of sha256 of the canonical JSON of [prompt, answer]; pass rates are joined by it.

    `prompt` is text, or messages (for a row of `messages`, those); `answer` is None for a row without one.
    """
    try:
        text = f"[{canonical_text(prompt)},{'null' if answer is None else encode_basestring(answer)}]"
    except TypeError:  # not text
        text = canonical([prompt, answer])
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]


def canonical_text(value: str | Sequence[Mapping[str, str]]) -> str:
    """`canonical` of text or messages, in a fifth of its time."""
    if isinstance(value, str):
        return encode_basestring(value)
    turns = []
    for turn in value:
        if len(turn) != 2:
            return canonical(value)
        turns.append(f'{{"content":{encode_basestring(turn["content"])},"role":{encode_basestring(turn["role"])}}}')
    return f"[{','.join(turns)}]"


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

    rows = [row if "id" in row else {"id": row_of(row), **row} for row in rows]
    types = column_types(rows)
    with DatasetWriter(folder, types) as writer:
        for start in range(0, len(rows), GROUP_ROWS):
            group, arrays = rows[start : start + GROUP_ROWS], []
            for name, kind in types.items():
                values = [row.get(name) for row in group]
                if kind == "json":
                    values = [None if value is None else canonical(value) for value in values]
                arrays.append(pa.array(values, type=_arrow_type(kind)))
            writer.write(pa.Table.from_arrays(arrays, schema=writer.schema))
    return writer.describe(prompts=len({row["id"] for row in rows}), info=info)


class DatasetWriter:
    """Writes a data set a row group at a time.

    Args:
        folder: made if need be.
        types: column to type, in the order of COLUMNS; `id` among them.

    Attributes:
        schema: the Arrow schema of what is written.
        rows: how many were written.
    """

    def __init__(self, folder: Path, types: Mapping[str, str]) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        self.folder, self.types, self.rows = folder, dict(types), 0
        self.schema: pa.Schema = pa.schema(
            [
                pa.field(name, _arrow_type(kind), nullable=name != "id", metadata={"finery": kind})
                for name, kind in types.items()
            ]
        )
        folder.mkdir(parents=True, exist_ok=True)
        self._file = pq.ParquetWriter(folder / DATA_FILE, self.schema, compression="zstd")

    def write(self, table: pa.Table) -> None:
        """Write rows as row groups of at most GROUP_ROWS."""
        self._file.write_table(table, row_group_size=GROUP_ROWS)
        self.rows += table.num_rows

    def describe(self, *, prompts: int, info: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Write dataset.json and return what it says: `rows`, `prompts` (distinct ids), `columns`, and `info`."""
        described = {"rows": self.rows, "prompts": prompts, "columns": self.types, **(info or {})}
        text = json.dumps(described, ensure_ascii=False, indent=2, allow_nan=False)
        (self.folder / INFO_FILE).write_text(text + "\n", encoding="utf-8")
        return described

    def __enter__(self) -> DatasetWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()


def read_dataset(folder: Path) -> list[Row]:
    """The rows of a data set artifact, in order.

    Raises:
        InputError: the folder is not a data set, or its columns are not those of one.
    """
    return list(iter_dataset(folder))


def iter_dataset(folder: Path, columns: Sequence[str] | None = None) -> Iterator[Row]:
    """The rows of a data set artifact, in order, a few at a time.

    Args:
        folder: the data set's.
        columns: those to read; all by default.

    Raises:
        InputError: at once, when the folder is not a data set or its columns are not those of one.
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
        names = pq.read_schema(data).names
    except pa.ArrowException as error:
        raise InputError(f"{data}: cannot be read as Parquet: {error}") from error
    if unknown := [name for name in names if name not in COLUMNS]:
        raise InputError(f"{data}: unknown column {unknown[0]}; a data set has {', '.join(COLUMNS)}")
    if "id" not in names:
        raise InputError(f"{data}: has no column id; make data sets with a stage of kind data")
    return _rows(data, [name for name in names if columns is None or name in columns])


def _rows(data: Path, columns: Sequence[str]) -> Iterator[Row]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    json_columns = [name for name in columns if name in JSON_COLUMNS]
    try:
        with pq.ParquetFile(data, pre_buffer=False) as file:
            for batch in file.iter_batches(READ_ROWS, columns=list(columns)):
                for read in batch.to_pylist():
                    row = {key: value for key, value in read.items() if value is not None}
                    for name in json_columns:
                        if name in row:
                            row[name] = json.loads(row[name])
                    yield row
    except pa.ArrowException as error:
        raise InputError(f"{data}: cannot be read as Parquet: {error}") from error


def row_of(row: Row) -> str:
    """The id of a row: of its prompt, or of its messages when it has no prompt."""
    return row_id(row["prompt"] if "prompt" in row else row["messages"], row.get("answer"))


def column_types(rows: Iterable[Row]) -> dict[str, str]:
    """Column to type (`text`, `messages`, `json` or `number`), in the order of COLUMNS; every row must agree.

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
    if name == "weight" and isinstance(value, float):
        return "number"
    if name in COLUMNS and isinstance(value, str) and name not in ("messages", "weight"):
        return "text"
    if name in CONVERSATIONAL and isinstance(value, list):
        return "messages"
    if name not in COLUMNS:
        raise InputError(f"unknown column {name}; a data set has {', '.join(COLUMNS)}")
    raise InputError(f"column {name} cannot hold {type(value).__name__}")


def _arrow_type(kind: str) -> pa.DataType:
    import pyarrow as pa

    if kind == "number":
        return pa.float64()
    if kind == "messages":
        return pa.list_(pa.struct([pa.field("role", pa.string()), pa.field("content", pa.string())]))
    return pa.string()
