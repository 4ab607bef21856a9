"""From the order in which rows came to the order in which they are written, without random access into a file.

Each row goes to the bucket file of its place in the final order; then one bucket after another is read, a column at a
time, put in order and written as a row group.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from finery.data.arrays import list_array, number_array, numbers_of, text_array
from finery.data.dataset import GROUP_ROWS
from finery.data.spill import TURNS, Spill

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
    from numpy.typing import NDArray

GROUP_BYTES = 1 << 26
"""Rows that are larger than GROUP_BYTES / GROUP_ROWS on average make smaller row groups."""
LEAST_ROWS = 512
PIECES = 4
"""Buckets of a row group: one is put in order at a time, which takes three times its size."""
MOST_BUCKETS = 512
"""Files that are open at once; beyond it buckets are larger."""
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
    bucket_rows = _group_rows(spill) // PIECES
    pieces = PIECES
    while len(order) > bucket_rows * MOST_BUCKETS:
        bucket_rows, pieces = bucket_rows * 2, max(1, pieces // 2)
    buckets = _Buckets(folder, spill, list(parts.values()))
    buckets.fill(order, bucket_rows)
    roles = text_array(list(spill.roles)).cast(pa.string())
    count = -(-len(order) // bucket_rows)
    for begin in range(0, count, pieces):
        numbers = range(begin, min(begin + pieces, count))
        yield {
            name: _joined([array for number in numbers for array in _final(buckets.column(number, part), part, roles)])
            for name, part in parts.items()
        }
        buckets.drop(numbers)


def _joined(arrays: list[pa.Array]) -> pa.ChunkedArray:
    """Arrays as one where one can hold them: what a Parquet file is like depends on where the arrays end."""
    import pyarrow as pa

    if sum(array.nbytes for array in arrays) > MOST_BYTES:
        return pa.chunked_array(arrays)
    return pa.chunked_array([pa.concat_arrays(arrays)])


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

        places = np.argsort(order, kind="stable")
        numbers = order[places]
        for start, batch in self._spill.batches(self._parts):
            low, high = np.searchsorted(numbers, (start, start + batch.num_rows))
            if low == high:
                continue
            bucket, at = np.divmod(places[low:high], bucket_rows)
            by = np.argsort(bucket, kind="stable")
            taken = batch.select(self._parts).take(number_array(numbers[low:high][by] - start))
            taken = taken.append_column(self._schema.field(_AT), number_array(at[by].astype(np.int32)))
            which, begins = np.unique(bucket[by], return_index=True)
            for number, begin, end in zip(which.tolist(), begins, [*begins[1:], len(by)], strict=True):
                self._write(number, taken.slice(begin, end - begin))
        for file, sink in self._files.values():
            file.close()
            sink.close()

    def column(self, number: int, part: str) -> pa.Array:
        """A column of a bucket, in order."""
        import numpy as np
        import pyarrow as pa

        at = numbers_of(self._read(number, _AT).combine_chunks())
        order = np.empty(len(at), dtype=np.int64)
        order[at] = np.arange(len(at))
        column = self._read(number, part).take(number_array(order))
        return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column

    def drop(self, numbers: Iterable[int]) -> None:
        """Some buckets are needed no more."""
        for number in numbers:
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


def _final(column: pa.Array, part: str, roles: pa.Array) -> list[pa.Array]:
    """A column of the spill as a data set holds it; more than one array when the text is too much for one."""
    import numpy as np
    import pyarrow as pa

    if column.nbytes > MOST_BYTES and len(column) > 1:
        half = len(column) // 2
        return [*_final(column.slice(0, half), part, roles), *_final(column.slice(half), part, roles)]
    if not part.endswith(TURNS):
        return [column.cast(pa.string())]
    turns = column.flatten()
    said = pa.StructArray.from_arrays(
        [roles.take(turns.field("role")), turns.field("content").cast(pa.string())], ["role", "content"]
    )
    offsets = numbers_of(column.offsets)
    absent = np.flatnonzero(numbers_of(column.is_null().cast(pa.uint8()))) if column.null_count else ()
    return [list_array(offsets - offsets[0], said, absent)]
