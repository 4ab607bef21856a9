"""From the order in which rows came to the order in which they are written, without random access into a file.

Each row goes to the bucket file of its place in the final order; then one bucket after another is read, a column at a
time, put in order and written as a row group.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from finery.data.dataset import GROUP_ROWS
from finery.data.spill import TURNS, Spill

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
    from numpy.typing import NDArray

GROUP_BYTES = 1 << 27
"""Rows that are larger than GROUP_BYTES / GROUP_ROWS on average make smaller row groups."""
LEAST_ROWS = 512
MOST_BUCKETS = 512
"""Files that are open at once; beyond it a bucket holds several row groups."""
MOST_BYTES = (1 << 31) - 1
"""What one Arrow array of text holds."""
_AT = "at"


def ordered(
    spill: Spill, order: NDArray[np.int64], types: Mapping[str, str], folder: Path
) -> Iterator[dict[str, pa.ChunkedArray]]:
    """Rows of a spill in an order, a row group at a time: each column as a data set holds it.

    Args:
        spill: a closed one.
        order: the numbers of its rows; a row may stand in it more than once.
        types: column of the data set to its type, without `id` and `weight`.
        folder: for the buckets; made if need be.
    """
    import pyarrow as pa

    parts = {name: name + TURNS if kind == "messages" else name for name, kind in types.items()}
    rows = _group_rows(spill)
    bucket_rows = rows * -(-len(order) // (rows * MOST_BUCKETS))
    buckets = _Buckets(folder, spill, list(parts.values()))
    buckets.fill(order, bucket_rows)
    roles = pa.array(list(spill.roles), pa.string())
    for number in range(-(-len(order) // bucket_rows)):
        columns = {name: _final(buckets.column(number, part), part, roles) for name, part in parts.items()}
        buckets.drop(number)
        for start in range(0, min(bucket_rows, len(order) - number * bucket_rows), rows):
            yield {name: column.slice(start, rows) for name, column in columns.items()}


def _group_rows(spill: Spill) -> int:
    rows = GROUP_ROWS
    while rows > LEAST_ROWS and rows * spill.bytes > GROUP_BYTES * spill.rows:
        rows //= 2
    return rows


class _Buckets:
    """Files of rows by their place in the final order.

    Args:
        folder: made if need be.
        spill: where the rows are.
        parts: the columns of it that are wanted.
    """

    def __init__(self, folder: Path, spill: Spill, parts: list[str]) -> None:
        import pyarrow as pa

        folder.mkdir(parents=True, exist_ok=True)
        self._folder, self._spill, self._parts = folder, spill, parts
        self._schema = pa.schema([*(spill.schema.field(part) for part in parts), (_AT, pa.int32())])
        self._files: dict[int, tuple[Any, Any]] = {}

    def fill(self, order: NDArray[np.int64], bucket_rows: int) -> None:
        """Write every row into the bucket of its place in `order`, with the place within the bucket."""
        import numpy as np
        import pyarrow as pa

        places = np.argsort(order, kind="stable")
        numbers = order[places]
        for start, batch in self._spill.batches(self._parts):
            low, high = np.searchsorted(numbers, (start, start + batch.num_rows))
            bucket, at = np.divmod(places[low:high], bucket_rows)
            by = np.argsort(bucket, kind="stable")
            taken = batch.take(pa.array(numbers[low:high][by] - start))
            arrays = [taken.column(part) for part in self._parts]
            whole = pa.RecordBatch.from_arrays([*arrays, pa.array(at[by].astype(np.int32))], schema=self._schema)
            which, begins = np.unique(bucket[by], return_index=True)
            for number, begin, end in zip(which.tolist(), begins, [*begins[1:], len(by)], strict=True):
                self._write(number, whole.slice(begin, end - begin))
        for file, sink in self._files.values():
            file.close()
            sink.close()

    def column(self, number: int, part: str) -> pa.Array:
        """A column of a bucket, in order."""
        import numpy as np
        import pyarrow as pa

        at = self._read(number, _AT).to_numpy()
        order = np.empty(len(at), dtype=np.int64)
        order[at] = np.arange(len(at))
        column = self._read(number, part).take(pa.array(order))
        return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column

    def drop(self, number: int) -> None:
        """A bucket is needed no more."""
        self._path(number).unlink()

    def _write(self, number: int, batch: pa.RecordBatch) -> None:
        import pyarrow as pa

        if number not in self._files:
            sink = pa.OSFile(str(self._path(number)), "wb")
            options = pa.ipc.IpcWriteOptions(compression="lz4", use_threads=False)
            self._files[number] = (pa.ipc.new_stream(sink, self._schema, options=options), sink)
        self._files[number][0].write_batch(batch)

    def _read(self, number: int, part: str) -> pa.ChunkedArray:
        import pyarrow as pa

        options = pa.ipc.IpcReadOptions(included_fields=[self._schema.get_field_index(part)], use_threads=False)
        with pa.OSFile(str(self._path(number))) as source, pa.ipc.open_stream(source, options=options) as reader:
            return reader.read_all().column(0)

    def _path(self, number: int) -> Path:
        return self._folder / f"bucket-{number}.arrow"


def _final(column: pa.Array, part: str, roles: pa.Array) -> pa.ChunkedArray:
    """A column of the spill as a data set holds it; more than one chunk when the text is too much for one."""
    import pyarrow as pa

    if column.nbytes > MOST_BYTES and len(column) > 1:
        half = len(column) // 2
        halves = [_final(column.slice(0, half), part, roles), _final(column.slice(half), part, roles)]
        return pa.chunked_array([chunk for one in halves for chunk in one.chunks])
    if not part.endswith(TURNS):
        return pa.chunked_array([column.cast(pa.string())])
    turns = column.flatten()
    said = pa.StructArray.from_arrays(
        [roles.take(turns.field("role")), turns.field("content").cast(pa.string())], ["role", "content"]
    )
    absent = column.is_null() if column.null_count else None
    sizes = column.value_lengths().fill_null(0)
    offsets = pa.array([0], pa.int32()) if not len(column) else _offsets(sizes)
    return pa.chunked_array([pa.ListArray.from_arrays(offsets, said, mask=absent)])


def _offsets(sizes: pa.Array) -> pa.Array:
    import numpy as np
    import pyarrow as pa

    return pa.array(np.concatenate([[0], np.cumsum(sizes.to_numpy(zero_copy_only=False))]).astype(np.int32))
