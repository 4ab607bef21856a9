"""Arrow arrays of lists and numpy arrays, from their buffers.

`pa.array` imports pandas to ask whether it was given something of pandas', which takes 45 MiB and half a second
(measured, pyarrow 25).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
    from numpy.typing import NDArray


def text_array(values: Sequence[str], count: int | None = None, absent: Sequence[int] = ()) -> pa.Array:
    """Texts as an array of `count` values, those at the places `absent` being null; the last may be left out."""
    import numpy as np
    import pyarrow as pa

    encoded = [value.encode() for value in values]
    count = len(encoded) if count is None else count
    offsets = np.zeros(count + 1, dtype=np.int64)
    np.cumsum(np.fromiter(map(len, encoded), dtype=np.int64, count=len(encoded)), out=offsets[1 : len(encoded) + 1])
    offsets[len(encoded) + 1 :] = offsets[len(encoded)]
    data = pa.py_buffer(b"".join(encoded))
    return pa.LargeStringArray.from_buffers(count, pa.py_buffer(offsets), data, _valid(count, absent))


def number_array(values: NDArray[Any]) -> pa.Array:
    """Numbers as an array of their type."""
    import pyarrow as pa

    return pa.Array.from_buffers(pa.from_numpy_dtype(values.dtype), len(values), [None, pa.py_buffer(values)])


def list_array(
    offsets: NDArray[np.int32], values: pa.Array, absent: Sequence[int] | NDArray[np.int64] = ()
) -> pa.Array:
    """Lists of values, list i from offsets[i] to offsets[i + 1]; those at the places `absent` are null."""
    import pyarrow as pa

    count = len(offsets) - 1
    buffers = [_valid(count, absent), pa.py_buffer(offsets)]
    return pa.Array.from_buffers(pa.list_(values.type), count, buffers, children=[values])


def numbers_of(column: pa.Array) -> NDArray[Any]:
    """The whole numbers of an array without nulls, not copied."""
    import numpy as np

    dtype = np.dtype(str(column.type))
    if not len(column):
        return np.empty(0, dtype=dtype)
    return np.frombuffer(column.buffers()[1], dtype=dtype)[column.offset : column.offset + len(column)]


def _valid(count: int, absent: Sequence[int] | NDArray[np.int64]) -> pa.Buffer | None:
    """The bitmap of values that are there; None when all are."""
    import numpy as np
    import pyarrow as pa

    if not len(absent):
        return None
    mask = np.ones(count, dtype=bool)
    mask[absent] = False
    return pa.py_buffer(np.packbits(mask, bitorder="little"))
