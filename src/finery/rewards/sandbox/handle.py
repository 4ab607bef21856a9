"""The judge's stand-in for an object that stays with the candidate.

An object of a subclass of int, str, list ... counts as the plain value it holds, taken by the base class: its length,
items, methods, text and numbers are that value's; only names that the base does not have are asked of the object. Any
other object is asked for attributes, methods, items, length and iteration, and what it says of itself is kept, so that
it cannot be three long and hold nothing, or give another item at the second look. What a test compares with is not
asked: such an object is equal only to itself; two objects of the candidate's are compared by its own methods, which are
then part of what is tested. Arithmetic with plain data may give another object but no plain answer, and what comes of
it has no number of its own: `abs(f(x) - 3.5) < 1e-6` cannot be answered by an object that subtracts as it likes.

An object that the tests make by calling a class, `LRUCache(2)`, is what they test: its own methods are used throughout.
"""

from __future__ import annotations

import builtins
import copy
import math
import operator
from collections.abc import Callable, Iterator
from typing import Any, Protocol

from .kept import OWN, SHARED, Kept, agree, memory, read, replayed


class Link(Protocol):
    """What a handle needs of the judge's side."""

    changes: int
    """How often the candidate was asked for what may change its objects."""

    def ask(self, operation: str, *arguments: Any) -> Any:
        """The result of one of candidate.OPERATIONS."""


_SPECIAL = frozenset(["__name__", "__qualname__", "__module__", "__dict__", "__annotations__", "__cause__", "__next__"])
_CHANGING = """append extend insert remove pop clear sort reverse add discard update setdefault popitem
difference_update intersection_update symmetric_difference_update"""
_CHANGING_NAMES = frozenset(_CHANGING.split())


class Handle:
    """An object, a function or a class of the candidate's.

    Args:
        link: to the candidate.
        place: which of its objects.
        name: the name of its type.
        base: the plain type that it is a subclass of, or None.
        state: OWN, KEPT or SHARED.
    """

    __slots__ = (
        "_finery_base",
        "_finery_derived",
        "_finery_link",
        "_finery_memo",
        "_finery_name",
        "_finery_place",
        "_finery_state",
    )

    def __init__(self, link: Link, place: int, name: str, base: str | None, state: str = SHARED) -> None:
        values: tuple[Any, ...] = (base, False, link, {}, name, place, state)
        for slot, value in zip(self.__slots__, values, strict=True):
            object.__setattr__(self, slot, value)

    @property  # type: ignore[misc]  # isinstance(f(x), int) is true of a subclass's object
    def __class__(self) -> Any:
        return Handle if self._finery_base is None else getattr(builtins, self._finery_base)

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        return self._finery_link.ask("call", self, list(arguments), named)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name not in _SPECIAL:  # numpy would take an address from __array_interface__
            raise AttributeError(f"{self._finery_name} object has no {name} here")
        if _counts_as_plain(self) and hasattr(getattr(builtins, self._finery_base), name):
            if name in _CHANGING_NAMES:
                return lambda *given, **named: self._finery_link.ask("base", self, name, list(given), named)
            return getattr(plain(self), name)
        return self._finery_link.ask("getattr", self, name)

    def __setattr__(self, name: str, value: Any) -> None:
        self._finery_link.ask("setattr", self, name, value)

    def __delattr__(self, name: str) -> None:
        self._finery_link.ask("delattr", self, name)

    def __setitem__(self, key: Any, value: Any) -> None:
        _change_item(self, "setitem", key, value)

    def __delitem__(self, key: Any) -> None:
        _change_item(self, "delitem", key)

    def __copy__(self) -> Any:
        return copy.copy(plain(self)) if _counts_as_plain(self) else self._finery_link.ask("copy", self)

    def __deepcopy__(self, memo: Any) -> Any:
        return copy.deepcopy(plain(self), memo) if _counts_as_plain(self) else self._finery_link.ask("deepcopy", self)

    def __dir__(self) -> Any:
        return self._finery_link.ask("dir", self)

    def __len__(self) -> int:
        if _counts_as_plain(self):
            return len(plain(self))
        length = read(self, "len")
        agree(self)
        return length if isinstance(length, int) else operator.index(length)

    def __iter__(self) -> Iterator[Any]:
        if _counts_as_plain(self):
            return iter(plain(self))
        memo = memory(self)
        if memo is not None and "items" in memo:
            return replayed(self, memo["items"])
        source = self._finery_link.ask("iter", self)
        if memo is None or source is self:  # an iterator is used up
            return _Items(self._finery_link, source)
        memo["items"] = Kept(source)
        return replayed(self, memo["items"])

    def __reversed__(self) -> Iterator[Any]:
        if _counts_as_plain(self):
            backwards: Iterator[Any] = reversed(plain(self))
            return backwards
        return _Items(self._finery_link, self._finery_link.ask("reversed", self))

    def __contains__(self, item: Any) -> bool:
        if self._finery_base is not None:
            return (plain(item) if isinstance(item, Handle) and item._finery_base else item) in plain(self)
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
        return format(plain(self), specification) if _counts_as_plain(self) else read(self, "format", specification)

    def __round__(self, digits: int | None = None) -> Any:
        if _counts_as_plain(self):
            return round(plain(self), digits)
        _refuse_derived(self)
        return read(self, "round", *([] if digits is None else [digits]))


class _Items:
    """An iterator that stays with the candidate."""

    def __init__(self, link: Link, source: Any) -> None:
        self._link, self._source = link, source

    def __iter__(self) -> _Items:
        return self

    def __next__(self) -> Any:
        return self._link.ask("next", self._source)


def _counts_as_plain(handle: Handle) -> bool:
    return handle._finery_base is not None and handle._finery_state != OWN


def _change_item(handle: Handle, name: str, *arguments: Any) -> None:
    if _counts_as_plain(handle):
        handle._finery_link.ask("base", handle, f"__{name}__", list(arguments), {})
    else:
        handle._finery_link.ask(name, handle, *arguments)


def plain(value: Any) -> Any:
    """What a subclass's object holds, taken by its base class; anything else as it is."""
    if isinstance(value, Handle) and value._finery_base is not None:
        return read(value, "value")
    return _Itself(value) if isinstance(value, Handle) else value


def held(value: Any) -> Any:
    """`plain`, for a value that is looked into and not compared."""
    return plain(value) if isinstance(value, Handle) and value._finery_base is not None else value


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


_OF_PLAIN: dict[str, Callable[..., Any]] = {
    "trunc": math.trunc,
    **{name: getattr(operator, name) for name in ("neg", "pos", "invert", "abs", "index", "getitem")},
    **{name: getattr(builtins, name) for name in ("bool", "int", "float", "complex", "str", "repr")},
}


def _unary(name: str) -> Callable[..., Any]:
    def operation(self: Handle, *arguments: Any) -> Any:
        if _counts_as_plain(self):
            return _OF_PLAIN[name](plain(self), *arguments)
        if name not in ("str", "repr", "getitem"):
            _refuse_derived(self)
        return read(self, name, *arguments)

    return operation


def _next(self: Handle) -> Any:
    return self._finery_link.ask("next", self)


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
        if isinstance(other, Handle) and not (_counts_as_plain(self) and _counts_as_plain(other)):
            return self._finery_link.ask(name, *((other, self) if swapped else (self, other)))
        if isinstance(other, Handle):
            other = plain(other)
        if self._finery_base is not None:
            return compute(other, plain(self)) if swapped else compute(plain(self), other)
        result = self._finery_link.ask(name, *((other, self) if swapped else (self, other)))
        if not isinstance(result, Handle):
            raise TypeError(f"arithmetic of an object of type {self._finery_name} with plain data gave plain data")
        object.__setattr__(result, "_finery_derived", True)
        return result

    return operation


Handle.__next__ = _next  # type: ignore[attr-defined]
for _name in _OF_PLAIN:
    setattr(Handle, f"__{_name}__", _unary(_name))
for _name in ("lt", "le", "gt", "ge"):
    setattr(Handle, f"__{_name}__", _ordering(_name))
_ARITHMETIC = "add sub mul truediv floordiv mod pow matmul and_ or_ xor lshift rshift"
for _name in _ARITHMETIC.split():
    setattr(Handle, f"__{_name.strip('_')}__", _arithmetic(_name, False))
    setattr(Handle, f"__r{_name.strip('_')}__", _arithmetic(_name, True))
