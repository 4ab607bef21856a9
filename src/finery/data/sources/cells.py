"""Arrow columns as Python values: what JSON has no form for keeps its written text, what cannot be read says why."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from finery.data.records import Foreign, Written

if TYPE_CHECKING:
    import pyarrow as pa

_FRACTION = re.compile(r"\.(\d*?)0+(?!\d)")
_ZONE = re.compile(r"([+-]\d\d)(\d\d)$")


def values(array: pa.Array) -> list[Any]:
    """The values of an array, in the types of JSON where it has them.

    A float16 or float32 is the shortest decimal that reads back as it (0.1, not 0.10000000149011612). A date, time or
    timestamp is a Foreign with its ISO 8601 text, a decimal one with its digits. A value that Python cannot hold (bad
    UTF-8, a date past the year 9999, an unknown time zone) is a Foreign without text; its neighbours are read.
    """
    import pyarrow as pa

    # what pyarrow and pytz raise for single values; an unknown time zone is a KeyError
    errors = (pa.ArrowException, ValueError, OverflowError, KeyError, TypeError, RecursionError)
    try:
        return _values(array)
    except errors as error:
        if len(array) == 1:
            return [Foreign(_kind(array.type), None, _words(error))]
    return [value for at in range(len(array)) for value in values(array.slice(at, 1))]


def _values(array: pa.Array) -> list[Any]:
    import pyarrow.types as t

    kind = array.type
    if not _special(kind):
        return list(array.to_pylist())
    if t.is_dictionary(kind):
        return _values(array.dictionary_decode())
    if t.is_struct(kind):
        names = [field.name for field in kind]
        if len(set(names)) < len(names):
            raise ValueError("two of its keys have one name")
        rows = zip(*(values(part) for part in array.flatten()), strict=True) if names else iter([()] * len(array))
        made = [dict(zip(names, row, strict=True)) for row in rows]
        return [row if valid else None for row, valid in zip(made, array.is_valid().to_pylist(), strict=True)]
    if t.is_list(kind) or t.is_large_list(kind):
        inner, sizes = iter(values(array.flatten())), array.value_lengths().to_pylist()
        return [None if size is None else [next(inner) for _ in range(size)] for size in sizes]
    if t.is_floating(kind):
        import numpy as np

        small = {16: np.float16, 32: np.float32}[kind.bit_width]
        return [None if number is None else Written(str(small(number))) for number in array.to_pylist()]
    if t.is_duration(kind):
        fault = "no form of it is known to JSON; write it as a number or as text"
        return [Foreign("duration", None, fault) if valid else None for valid in array.is_valid().to_pylist()]
    return _texts(array)


def _texts(array: pa.Array) -> list[Any]:
    import pyarrow as pa

    name, made = _kind(array.type), list[Any]()
    for text in array.cast(pa.string()).to_pylist():
        if text is None:
            made.append(None)
        elif text.startswith("<"):  # how Arrow writes what is past its calendar
            made.append(Foreign(name, None, text.strip("<>")))
        else:
            made.append(Foreign(name, text if name == "decimal" else _iso(text)))
    return made


def _iso(text: str) -> str:
    """`2024-01-02 03:04:05.500000+0100` in the form of ISO 8601: `2024-01-02T03:04:05.5+01:00`."""
    text = _FRACTION.sub(lambda found: f".{found[1]}" if found[1] else "", text.replace(" ", "T"))
    return _ZONE.sub(r"\1:\2", text) if "T" in text else text


def _special(kind: pa.DataType) -> bool:
    """Whether a type is, or holds, one whose values `to_pylist` gives in another form than is wanted."""
    import pyarrow.types as t

    if t.is_struct(kind):
        return any(_special(field.type) for field in kind)
    if t.is_list(kind) or t.is_large_list(kind):
        return _special(kind.value_type)
    if t.is_dictionary(kind):
        return _special(kind.value_type)
    small = t.is_floating(kind) and kind.bit_width < 64
    timed = t.is_date(kind) or t.is_timestamp(kind) or t.is_time(kind) or t.is_duration(kind)
    return bool(small or timed or t.is_decimal(kind))


def _kind(kind: pa.DataType) -> str:
    """What a message calls a type: `date`, `timestamp`, `decimal`, `text`."""
    import pyarrow.types as t

    if t.is_string(kind) or t.is_large_string(kind):
        return "text"
    return re.split(r"\d|\[|\(|<", str(kind))[0]


def _words(error: Exception) -> str:
    if isinstance(error, UnicodeError):
        return "it is not UTF-8"
    if isinstance(error, RecursionError):
        return "it is nested too deeply"
    return str(error).strip("'") or type(error).__name__
