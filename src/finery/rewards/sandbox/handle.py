"""The judge's stand-in for an object that stays with the candidate.

Attributes, methods, indexing, length and iteration are asked of the object. What a test compares with is not: an object
is equal only to itself, or, if it is a subclass's (of int, str, list ...), by the plain value it holds; two objects of
the candidate's are compared by its own methods, which are then part of what is tested. Arithmetic with plain data may
give another object but no plain answer, and what comes of it has no number of its own: `abs(f(x) - 3.5) < 1e-6` cannot
be answered by an object that subtracts as it likes.
"""

from __future__ import annotations

import builtins
import operator
from collections.abc import Callable, Iterator
from typing import Any, Protocol


class Link(Protocol):
    """What a handle needs of the judge's side."""

    def ask(self, operation: str, *arguments: Any) -> Any:
        """The result of one of candidate.OPERATIONS."""


_SPECIAL = frozenset(["__name__", "__qualname__", "__module__", "__dict__", "__annotations__", "__cause__", "__next__"])


class Handle:
    """An object, a function or a class of the candidate's.

    Args:
        link: to the candidate.
        place: which of its objects.
        name: the name of its type.
        base: the plain type that it is a subclass of, or None.
    """

    __slots__ = ("_finery_base", "_finery_derived", "_finery_link", "_finery_name", "_finery_place")

    def __init__(self, link: Link, place: int, name: str, base: str | None) -> None:
        for slot, value in zip(self.__slots__, (base, False, link, name, place), strict=True):
            object.__setattr__(self, slot, value)

    @property  # type: ignore[misc]  # isinstance(f(x), int) is true of a subclass's object
    def __class__(self) -> Any:
        return Handle if self._finery_base is None else getattr(builtins, self._finery_base)

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        return self._finery_link.ask("call", self, list(arguments), named)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name not in _SPECIAL:  # numpy would take an address from __array_interface__
            raise AttributeError(f"{self._finery_name} object has no {name} here")
        return self._finery_link.ask("getattr", self, name)

    def __setattr__(self, name: str, value: Any) -> None:
        self._finery_link.ask("setattr", self, name, value)

    def __delattr__(self, name: str) -> None:
        self._finery_link.ask("delattr", self, name)

    def __copy__(self) -> Any:
        return self._finery_link.ask("copy", self)

    def __deepcopy__(self, memo: Any) -> Any:
        return self._finery_link.ask("deepcopy", self)

    def __dir__(self) -> Any:
        return self._finery_link.ask("dir", self)

    def __iter__(self) -> Iterator[Any]:
        return _Items(self._finery_link, self._finery_link.ask("iter", self))

    def __reversed__(self) -> Iterator[Any]:
        return _Items(self._finery_link, self._finery_link.ask("reversed", self))

    def __contains__(self, item: Any) -> bool:
        if isinstance(item, Handle):
            return bool(self._finery_link.ask("contains", self, item))
        return any(item is found or item == found for found in self)

    def __hash__(self) -> int:
        return hash(plain(self)) if self._finery_base else hash(("finery handle", self._finery_place))

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if self._finery_base is not None or (isinstance(other, Handle) and other._finery_base is not None):
            return bool(plain(self) == plain(other))
        return isinstance(other, Handle) and bool(self._finery_link.ask("eq", self, other))

    def __ne__(self, other: object) -> bool:
        if isinstance(other, Handle) and self is not other and self._finery_base is None and other._finery_base is None:
            return bool(self._finery_link.ask("ne", self, other))
        return not self == other

    def __instancecheck__(self, instance: Any) -> bool:
        return isinstance(instance, Handle) and bool(self._finery_link.ask("isinstance", instance, self))

    def __subclasscheck__(self, subclass: Any) -> bool:
        return isinstance(subclass, Handle) and bool(self._finery_link.ask("issubclass", subclass, self))

    def __enter__(self) -> Any:
        return self._finery_link.ask("getattr", self, "__enter__")()

    def __exit__(self, *error: Any) -> Any:
        return self._finery_link.ask("getattr", self, "__exit__")(None, None, None)

    def __format__(self, specification: str) -> Any:
        return self._finery_link.ask("format", self, specification)

    def __round__(self, digits: int | None = None) -> Any:
        _refuse_derived(self)
        return self._finery_link.ask("round", self, *([] if digits is None else [digits]))


class _Items:
    """An iterator that stays with the candidate."""

    def __init__(self, link: Link, source: Any) -> None:
        self._link, self._source = link, source

    def __iter__(self) -> _Items:
        return self

    def __next__(self) -> Any:
        return self._link.ask("next", self._source)


def plain(value: Any) -> Any:
    """What a subclass's object holds, asked of its base class; anything else as it is."""
    if isinstance(value, Handle) and value._finery_base is not None:
        return value._finery_link.ask("value", value)
    return _Itself(value) if isinstance(value, Handle) else value


class _Itself:
    """Equal to nothing but the same object."""

    def __init__(self, handle: Handle) -> None:
        self._handle = handle

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Itself) and other._handle is self._handle

    __hash__ = None  # type: ignore[assignment]


def _refuse_derived(handle: Handle) -> None:
    if handle._finery_derived:
        raise TypeError(f"an object of type {handle._finery_name} that arithmetic gave has no number of its own here")


def _unary(name: str) -> Callable[[Handle], Any]:
    def operation(self: Handle) -> Any:
        _refuse_derived(self)
        return self._finery_link.ask(name, self)

    return operation


def _asked(name: str) -> Callable[..., Any]:
    def operation(self: Handle, *arguments: Any) -> Any:
        return self._finery_link.ask(name, self, *arguments)

    return operation


def _ordering(name: str) -> Callable[[Handle, Any], Any]:
    compare = getattr(operator, name)

    def operation(self: Handle, other: Any) -> Any:
        if self._finery_base is not None:
            return compare(plain(self), plain(other))
        if isinstance(other, Handle):
            return bool(self._finery_link.ask(name, self, other))
        return NotImplemented

    return operation


def _arithmetic(name: str, swapped: bool) -> Callable[[Handle, Any], Any]:
    compute = getattr(operator, name)

    def operation(self: Handle, other: Any) -> Any:
        if isinstance(other, Handle):
            return self._finery_link.ask(name, *((other, self) if swapped else (self, other)))
        if self._finery_base is not None:
            return compute(other, plain(self)) if swapped else compute(plain(self), other)
        result = self._finery_link.ask(name, *((other, self) if swapped else (self, other)))
        if not isinstance(result, Handle):
            raise TypeError(f"arithmetic of an object of type {self._finery_name} with plain data gave plain data")
        object.__setattr__(result, "_finery_derived", True)
        return result

    return operation


for _name in ("len", "bool", "int", "float", "complex", "neg", "pos", "invert", "abs", "index", "trunc"):
    setattr(Handle, f"__{_name}__", _unary(_name))
for _name in ("str", "repr", "getitem", "setitem", "delitem", "next"):
    setattr(Handle, f"__{_name}__", _asked(_name))
for _name in ("lt", "le", "gt", "ge"):
    setattr(Handle, f"__{_name}__", _ordering(_name))
_ARITHMETIC = "add sub mul truediv floordiv mod pow matmul and_ or_ xor lshift rshift"
for _name in _ARITHMETIC.split():
    setattr(Handle, f"__{_name.strip('_')}__", _arithmetic(_name, False))
    setattr(Handle, f"__r{_name.strip('_')}__", _arithmetic(_name, True))
