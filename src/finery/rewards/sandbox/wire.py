"""What passes between judge and candidate: plain data, as JSON with tags, in frames of 4 bytes of length and a body.

A value is sent only if its type is exactly one of those here; what else there is goes through a hook of either side
(a callback of the judge, a handle of the candidate). A list is a JSON list; every other container or special value is
an object with one key, its tag. Integers beyond 64 bits are hexadecimal, so that no limit on digits bites.
"""

from __future__ import annotations

import builtins
import collections
import datetime
import decimal
import fractions
import json
import keyword
import math
import os
import sys
from collections.abc import Callable
from typing import Any

MESSAGE = 8 << 20
"""Bytes of one message, at most."""
DEPTH = 64
"""Containers inside one another, at most."""


class TooMuch(Exception):
    """A value is larger or deeper than what may cross."""


class Broken(BaseException):
    """The other side is gone, or what it sent is no message; not to be caught by tests."""


_DATA = (int, float, str, bool, list, tuple, dict, set, frozenset, bytes, bytearray, complex, object)
_CLASSES: dict[str, Any] = {
    name: value
    for name, value in vars(builtins).items()
    if isinstance(value, type) and (value in _DATA or issubclass(value, BaseException))
}
"""Classes that cross by name; not `type`, `eval` and the like, which the judge would call on the candidate's word."""
_NAMES = {id(value): name for name, value in _CLASSES.items()}
_SCALARS = frozenset({type(None), bool, float, str})
_TIMES: dict[type, str] = {datetime.datetime: "datetime", datetime.date: "date", datetime.time: "time"}
_OF_TIMES = {name: kind for kind, name in _TIMES.items()}
_MAPPINGS: dict[type, str] = {collections.Counter: "Counter", collections.OrderedDict: "OrderedDict"}
_OF_MAPPINGS = {name: kind for kind, name in _MAPPINGS.items()}
_SEQUENCES: dict[type, str] = {tuple: "t", set: "s", frozenset: "z"}
_OF_SEQUENCES: dict[str, Callable[[list[Any]], Any]] = {"t": tuple, "s": set, "z": frozenset}


def encode(value: Any, foreign: Callable[[Any], Any], depth: int = 0) -> Any:
    """`value` as JSON data; what is not plain becomes what `foreign` makes of it.

    Raises:
        TooMuch: it is nested deeper than DEPTH, as a cyclic one is.
    """
    kind = type(value)
    if kind in _SCALARS:
        return value
    if kind is int:
        return value if -(1 << 63) <= value < 1 << 63 else {"i": hex(value)}
    if depth > DEPTH:
        raise TooMuch(f"it is nested deeper than {DEPTH} levels")
    deeper = depth + 1
    if kind is list:
        return [encode(item, foreign, deeper) for item in value]
    if kind in _SEQUENCES:
        return {_SEQUENCES[kind]: [encode(item, foreign, deeper) for item in value]}
    if kind is dict:
        return {"d": [[encode(k, foreign, deeper), encode(v, foreign, deeper)] for k, v in value.items()]}
    special = _encode_special(value, kind, foreign, deeper)
    return special if special is not None else foreign(value)


def _encode_special(value: Any, kind: type, foreign: Callable[[Any], Any], depth: int) -> Any:
    if kind is bytes or kind is bytearray:
        return {"b" if kind is bytes else "B": value.decode("latin-1")}
    if kind is complex:
        return {"c": [value.real, value.imag]}
    if kind is range:
        return {"r": [encode(bound, foreign, depth) for bound in (value.start, value.stop, value.step)]}
    if value is Ellipsis or value is NotImplemented:
        return {"e": value is Ellipsis}
    if kind is fractions.Fraction:
        return {"q": [encode(value.numerator, foreign, depth), encode(value.denominator, foreign, depth)]}
    if kind is decimal.Decimal:
        return {"D": str(value)}
    if kind in _TIMES and getattr(value, "tzinfo", None) is None:
        return {"T": [_TIMES[kind], value.isoformat()]}
    if kind is datetime.timedelta:
        return {"L": [value.days, value.seconds, value.microseconds]}
    if kind is collections.deque:
        return {"Q": [[encode(item, foreign, depth) for item in value], value.maxlen]}
    if kind in _MAPPINGS:
        return {"M": [_MAPPINGS[kind], encode(dict(value), foreign, depth)]}
    if kind is collections.defaultdict:
        return {"F": [_NAMES.get(id(value.default_factory)), encode(dict(value), foreign, depth)]}
    if id(value) in _NAMES:
        return {"y": _NAMES[id(value)]}
    if kind.__module__ == "numpy" and "numpy" in sys.modules:
        return _encode_numpy(value)
    fields = getattr(kind, "_fields", None)
    if kind.__bases__ == (tuple,) and type(fields) is tuple:
        return {"N": [kind.__name__, list(fields), [encode(item, foreign, depth) for item in tuple.__iter__(value)]]}
    return None


def _encode_numpy(value: Any) -> Any:
    numpy = sys.modules["numpy"]
    if isinstance(value, numpy.ndarray | numpy.generic) and value.dtype.kind in "biufU":
        shape = list(value.shape) if type(value) is numpy.ndarray else None
        return {"n": [value.dtype.str, shape, value.ravel().tolist()]}
    return None


def decode(data: Any, foreign: Callable[[str, Any], Any]) -> Any:
    """The value that `encode` made the data of; `foreign` is given a tag that is not of plain data, and what it holds.

    Raises:
        Broken: it is no such data.
    """
    try:
        return _decode(data, foreign)
    except (TypeError, ValueError, KeyError, IndexError, ArithmeticError, RecursionError, AttributeError) as error:
        raise Broken(f"what came is no message: {error}") from None


def _decode(data: Any, foreign: Callable[[str, Any], Any]) -> Any:
    kind = type(data)
    if kind is list:
        return [_decode(item, foreign) for item in data]
    if kind is not dict:
        return data
    ((tag, content),) = data.items()
    if tag in _OF_SEQUENCES:
        return _OF_SEQUENCES[tag]([_decode(item, foreign) for item in content])
    if tag == "d":
        return {_decode(key, foreign): _decode(value, foreign) for key, value in content}
    if tag in _PLAIN:
        return _PLAIN[tag](content)
    if tag == "Q":
        return collections.deque([_decode(item, foreign) for item in content[0]], content[1])
    if tag == "M":
        return _OF_MAPPINGS[content[0]](_decode(content[1], foreign))
    if tag == "F":
        return collections.defaultdict(_CLASSES[content[0]] if content[0] else None, _decode(content[1], foreign))
    if tag == "N":
        return _named(content[0], tuple(content[1]))(*[_decode(item, foreign) for item in content[2]])
    return foreign(tag, content)


def _whole(data: Any) -> int:
    return int(data["i"], 16) if isinstance(data, dict) else data


_NAMED: dict[tuple[str, tuple[str, ...]], Any] = {}


def _named(name: str, fields: tuple[str, ...]) -> Any:
    """A namedtuple class like the candidate's; names are checked, as namedtuple builds source text of them."""
    if (name, fields) not in _NAMED:
        if not all(field.isidentifier() and not keyword.iskeyword(field) for field in (name, *fields)):
            raise ValueError("no field names")
        _NAMED[name, fields] = collections.namedtuple(name, fields)
    return _NAMED[name, fields]


def _numpy(content: Any) -> Any:
    import numpy

    dtype, shape, items = content
    if numpy.dtype(dtype).kind not in "biufU" or (shape is not None and math.prod(shape) != len(items)):
        raise ValueError("no array")
    array = numpy.array(items, dtype=dtype)
    return array.reshape(shape) if shape is not None else array[0]


_PLAIN: dict[str, Callable[[Any], Any]] = {
    "i": lambda content: int(content, 16),
    "b": lambda content: content.encode("latin-1"),
    "B": lambda content: bytearray(content.encode("latin-1")),
    "c": lambda content: complex(*content),
    "r": lambda content: range(*map(_whole, content)),
    "e": lambda content: Ellipsis if content else NotImplemented,
    "q": lambda content: fractions.Fraction(*map(_whole, content)),
    "D": decimal.Decimal,
    "T": lambda content: _OF_TIMES[content[0]].fromisoformat(content[1]),  # type: ignore[attr-defined]
    "L": lambda content: datetime.timedelta(*content),
    "n": _numpy,
    "y": lambda content: _CLASSES[content],
}


class Pipe:
    """Frames over a pair of file descriptors.

    Args:
        source, sink: descriptors to read from and to write to.
        wait: called before each read; it may raise when nothing comes in time.
    """

    def __init__(self, source: int, sink: int, wait: Callable[[], None]) -> None:
        self._source, self._sink, self._wait = source, sink, wait

    def send(self, message: Any) -> None:
        """Send JSON data.

        Raises:
            TooMuch: it is larger than MESSAGE.
            Broken: nobody reads.
        """
        body = json.dumps(message, check_circular=False).encode("ascii")
        if len(body) > MESSAGE:
            raise TooMuch(f"it takes {len(body)} bytes; {MESSAGE} may cross")
        data = memoryview(len(body).to_bytes(4, "big") + body)
        try:
            while data:
                data = data[os.write(self._sink, data) :]
        except OSError:
            raise Broken("the other side is gone") from None

    def receive(self) -> Any:
        """The next message.

        Raises:
            Broken: there is none, or it is no message.
        """
        size = int.from_bytes(self._exactly(4), "big")
        if size > MESSAGE:
            raise Broken(f"a message of {size} bytes")
        try:
            return json.loads(self._exactly(size))
        except (ValueError, RecursionError) as error:
            raise Broken(f"what came is no message: {error}") from None

    def _exactly(self, size: int) -> bytes:
        parts = []
        while size:
            self._wait()
            part = os.read(self._source, min(size, 1 << 16))
            if not part:
                raise Broken("the other side is gone")
            parts.append(part)
            size -= len(part)
        return b"".join(parts)
