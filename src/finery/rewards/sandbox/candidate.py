"""The process that runs judged code and answers the judge; it is bound before it sees the code, and it sees no test.

Nothing it says is believed: the judge takes from it values, exceptions and handles of objects that stay here.
"""

from __future__ import annotations

import atexit
import builtins
import copy
import math
import operator
import os
import sys
import threading
import types
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

from . import source, wire

_BASES: dict[type, Callable[[Any], Any]] = {
    int: int.__pos__,
    float: float.__pos__,
    complex: complex.__pos__,
    str: str.__str__,
    bytes: lambda value: bytes.__getitem__(value, slice(None)),
    list: lambda value: list.__getitem__(value, slice(None)),
    tuple: lambda value: tuple.__getitem__(value, slice(None)),
    dict: lambda value: dict(dict.items(value)),  # dict.copy asks a subclass's own __iter__
    set: lambda value: set().union(value),
    frozenset: lambda value: frozenset().union(value),
}
"""What a subclass's object holds, asked of the base class and not of the object."""
_CHANGEABLE = (list, dict, set, bytearray, deque)
_FAILURE = 1


def _base(thing: Any) -> type:
    return next(kind for kind in _BASES if issubclass(type(thing), kind))


def _value(thing: Any) -> Any:
    return _BASES[_base(thing)](thing)


def _of_base(thing: Any, name: str, arguments: list[Any], named: dict[str, Any]) -> Any:
    """A method of the base class, whatever the subclass has of that name."""
    return getattr(_base(thing), name)(thing, *arguments, **named)


def _call(function: Any, arguments: list[Any], named: dict[str, Any]) -> Any:
    return function(*arguments, **named)


_OPERATORS = """eq ne lt le gt ge add sub mul truediv floordiv mod pow matmul and_ or_ xor lshift rshift neg pos
invert abs index"""
OPERATIONS: dict[str, Callable[..., Any]] = {
    "call": _call,
    "value": _value,
    "base": _of_base,
    "getattr": getattr,
    "setattr": setattr,
    "delattr": delattr,
    "getitem": operator.getitem,
    "setitem": operator.setitem,
    "delitem": operator.delitem,
    "contains": operator.contains,
    "isinstance": isinstance,
    "issubclass": issubclass,
    "iter": iter,
    "next": next,
    "reversed": reversed,
    "round": round,
    "trunc": math.trunc,
    "dir": dir,
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
    **{name: getattr(builtins, name) for name in ("len", "bool", "str", "repr", "format", "int", "float", "complex")},
    **{name: getattr(operator, name) for name in _OPERATORS.split()},
}
"""What the judge may ask to be done with objects that stay here."""


class Candidate:
    """One judged program.

    Args:
        pipe: to the judge.
    """

    def __init__(self, pipe: wire.Pipe) -> None:
        self._pipe = pipe
        self._objects: list[Any] = []
        self._places: dict[int, int] = {}
        self._thread = threading.get_ident()
        self._module = types.ModuleType("solution")

    def run(self) -> None:
        """Say that this process is bound, take the program, run it, and serve until the judge ends."""
        self._pipe.send(["ready"])
        order = self._pipe.receive()
        options = {key: order[key] for key in ("extract", "prefix", "entry", "imports")}
        try:
            text = source.program(order["text"], **options)
        except source.NoCode as error:
            self._pipe.send(["none", str(error)])
            return
        if order["main"]:
            self._pipe.send(["r", None, []])
            self._main(text)
        sys.modules["solution"] = self._module
        try:
            exec(compile(text, "<completion>", "exec", dont_inherit=True), self._module.__dict__)
        except BaseException as error:  # whatever the code raises is an answer
            self._pipe.send(self._raised(error))
            return
        self._reply(None, [], {})
        while True:
            self._serve(self._pipe.receive())

    def _main(self, text: str) -> None:
        """Run a program to its end as the interpreter would, and leave with its exit status."""
        module = types.ModuleType("__main__")
        sys.modules["__main__"] = module
        status = 0
        try:
            exec(compile(text, "<completion>", "exec", dont_inherit=True), module.__dict__)
            threading._shutdown()  # type: ignore[attr-defined]
        except SystemExit as error:
            status = 0 if error.code is None else error.code & 0xFF if isinstance(error.code, int) else _FAILURE
        except BaseException as error:
            self._pipe.send(self._raised(error))
            status = _FAILURE
        atexit._run_exitfuncs()
        sys.stdout.flush()
        os._exit(status)

    def _serve(self, message: Any) -> None:
        """Answer one request: ["q", operation, arguments]."""
        _, name, data = message
        try:
            arguments = wire.decode(data, self._known)
            result = self._globals(arguments) if name == "globals" else self._do(name, arguments)
        except BaseException as error:  # whatever the code raises is an answer
            self._pipe.send(self._raised(error))
            return
        positional, named = (arguments[1], arguments[2]) if name == "call" else ([], {})
        self._reply(result, list(zip([*positional, *named.values()], self._sent(name, data), strict=True)), named)

    def _sent(self, name: str, data: Any) -> list[Any]:
        return [*data[1], *(value for _, value in data[2]["d"])] if name == "call" else []

    def _do(self, name: str, arguments: list[Any]) -> Any:
        if name == "get":
            return self._module.__dict__[arguments[0]]
        if name == "eval":
            return eval(arguments[0], self._module.__dict__)
        return OPERATIONS[name](*arguments)

    def _globals(self, names: list[str]) -> list[str]:
        return [name for name in names if name in self._module.__dict__]

    def _reply(self, result: Any, given: list[tuple[Any, Any]], named: dict[str, Any]) -> None:
        """Send a result, and what a call changed in the arguments it was given."""
        sys.stdout.flush()
        same = next((place for place, (value, _) in enumerate(given) if value is result and self._mutable(value)), None)
        encoded = {"a": same} if same is not None else self._encoded(result)
        changes = []
        for place, (value, sent) in enumerate(given):
            if self._mutable(value):
                now = self._encoded(value)
                if now != sent and not (isinstance(now, dict) and "h" in now):
                    changes.append([place, now])
        try:
            self._pipe.send(["r", encoded, changes])
        except wire.TooMuch:
            self._pipe.send(["r", self._handle(result), []])

    def _mutable(self, value: Any) -> bool:
        return isinstance(value, _CHANGEABLE)

    def _encoded(self, value: Any) -> Any:
        """Plain data as it is; the rest, and what is too deep, as a handle."""
        try:
            return wire.encode(value, self._foreign)
        except wire.TooMuch:
            return self._handle(value)

    def _foreign(self, value: Any) -> Any:
        if isinstance(value, Judged):
            return {"f": value.place}
        if isinstance(value, type) and issubclass(value, BaseException):
            return {"X": self._ancestry(value)}
        return self._handle(value)

    def _handle(self, value: Any) -> Any:
        base = next((base.__name__ for base in _BASES if issubclass(type(value), base)), None)
        return {"h": [self._place(value), type(value).__name__, base]}

    def _place(self, value: Any) -> int:
        if id(value) not in self._places:
            self._places[id(value)] = len(self._objects)
            self._objects.append(value)  # kept, so that its id stays its own
        return self._places[id(value)]

    def _known(self, tag: str, content: Any) -> Any:
        """What the judge sends beside plain data: an object of ours, a function of its own, a built-in."""
        if tag == "h":
            return self._objects[content]
        if tag == "f":
            return Judged(self, content)
        return getattr(builtins, content)

    def _raised(self, error: BaseException) -> Any:
        try:
            text = str(error)[:1000]
        except Exception:
            text = ""
        arguments = [item if type(item) in (str, int, float, bool, type(None)) else str(item) for item in error.args]
        held = {key: value for key, value in vars(error).items() if type(value) in (str, int, float, bool, type(None))}
        try:
            sent = wire.encode([arguments, held], self._foreign)
            message = ["x", self._ancestry(type(error)), text, sent]
            return message if len(str(message)) < wire.MESSAGE // 8 else ["x", message[1], text, [[text], {"d": []}]]
        except wire.TooMuch:
            return ["x", self._ancestry(type(error)), text, [[text], {"d": []}]]

    def _ancestry(self, kind: type) -> list[Any]:
        """The exception's own classes, nearest first, and the built-in one they come from."""
        line = [cls for cls in kind.__mro__ if issubclass(cls, BaseException)]
        first = next(place for place, cls in enumerate(line) if vars(builtins).get(cls.__name__) is cls)
        return [[[self._place(cls), cls.__name__] for cls in line[:first]], line[first].__name__]

    def ask(self, place: int, arguments: tuple[Any, ...], named: Mapping[str, Any]) -> Any:
        """Call a function of the judge's; meanwhile the judge may ask in turn."""
        if threading.get_ident() != self._thread:
            raise RuntimeError("a function of the tests can be called from the main thread only")
        self._pipe.send(["c", place, self._encoded(list(arguments)), self._encoded(dict(named))])
        while True:
            message = self._pipe.receive()
            if message[0] == "q":
                self._serve(message)
            elif message[0] == "r":
                return wire.decode(message[1], self._known)
            else:
                raise getattr(builtins, message[1])(message[2])


class Judged:
    """A function that the tests passed in; calling it asks the judge."""

    def __init__(self, candidate: Candidate, place: int) -> None:
        self._candidate = candidate
        self.place = place

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        return self._candidate.ask(self.place, arguments, named)
