"""The judge's side of the pipe to the candidate: requests, callbacks, exceptions, and what crosses as a stand-in."""

from __future__ import annotations

import builtins
import reprlib
import types
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

from . import wire
from .handle import Handle
from .kept import KEPT, SHARED, own, share

_CHANGES = frozenset(["call", "base", "setattr", "delattr", "setitem", "delitem"])
_HANDS_OVER = _CHANGES | {"getattr"}
_FUNCTIONS = {id(value): name for name, value in vars(builtins).items() if callable(value)}


class Unsupported(BaseException):
    """The tests hand over what cannot cross, whatever the completion is; not to be caught by tests."""


class OutOfTime(BaseException):
    """The time is up; not to be caught by tests."""


class Flooded(BaseException):
    """The judged code printed too much; not to be caught by tests."""


class _Short(reprlib.Repr):
    def __init__(self) -> None:
        super().__init__()
        self.maxstring = self.maxother = self.maxlong = 120
        self.maxlist = self.maxtuple = self.maxdict = self.maxset = 20

    def repr_int(self, value: int, _: int) -> str:
        return repr(value) if value.bit_length() < 400 else f"<an int of {value.bit_length()} bits>"

    def repr_Handle(self, value: Handle, _: int) -> str:
        return f"<{value._finery_name} object>"


describe = _Short().repr
"""A value in few words, for a message; the candidate's objects are not asked."""


class Link:
    """One candidate, as the judge sees it.

    Args:
        pipe: to the candidate.
    """

    def __init__(self, pipe: wire.Pipe) -> None:
        self._pipe = pipe
        self._handles: dict[int, Handle] = {}
        self._exceptions: dict[int, type[BaseException]] = {}
        self._places: dict[type, int] = {}
        self._functions: list[Callable[..., Any]] = []
        self._names: dict[int, str] = {}
        self.asked = 0
        """Requests made for values; tests that made none proved nothing."""
        self.fatal: BaseException | None = None
        """What ended the check, even if a bare `except:` of the tests swallowed it."""
        self.changes = 0
        """Requests that may change objects of the candidate's."""
        self._state, self._handing = SHARED, False
        self.last = ""
        """The last call of a named function and what it gave, for a message."""

    def greet(self) -> None:
        """Wait until the candidate's process is bound; nothing judged has run yet, so a failure is the machine's.

        Raises:
            wire.Broken: it did not come up.
        """
        if self._pipe.receive() != ["ready"]:
            raise wire.Broken("the candidate's process did not come up")

    def start(self, order: Mapping[str, Any]) -> Any:
        """Hand over the program and run it; None, or the reason why there is no code to run.

        Raises:
            BaseException: what the program raised.
        """
        self._pipe.send(dict(order))
        message = self._pipe.receive()
        if isinstance(message, list) and message[:1] == ["none"]:
            return str(message[1])
        self._answer(message, [])
        return None

    def closing(self) -> None:
        """Take what a program that ran to its end says last.

        Raises:
            BaseException: what it raised.
            wire.Broken: nothing; it ended by itself.
        """
        self._answer(self._pipe.receive(), [])

    def get(self, name: str, expression: str | None = None) -> Any:
        """What the program calls `name`, or the value of an expression in it."""
        value = self.ask("eval", expression) if expression else self.ask("get", name)
        if isinstance(value, Handle):
            self._names[value._finery_place] = name
        else:
            self.asked += 1  # a constant, which is an answer by itself
        return value

    def defined(self, names: list[str]) -> list[str]:
        """Those of the names that the program has."""
        found = self.ask("globals", *names)
        return [name for name in names if isinstance(found, list) and name in found]

    def ask(self, operation: str, *arguments: Any) -> Any:
        """The result of one operation; callbacks of the candidate are served meanwhile.

        Raises:
            BaseException: what the operation raised there, as the built-in of that name or a class that stands for it.
            Unsupported: an argument cannot cross.
            wire.Broken: the candidate is gone or talks nonsense.
        """
        self.asked += operation not in ("globals", "get", "eval")
        try:
            return self._ask(operation, arguments)
        except (wire.Broken, Unsupported, OutOfTime, Flooded) as error:
            self.fatal = self.fatal or error
            raise

    def _ask(self, operation: str, arguments: tuple[Any, ...]) -> Any:
        self.changes += operation in _CHANGES
        self._handing = operation in _HANDS_OVER
        try:
            data = [wire.encode(argument, self._foreign) for argument in arguments]
            self._pipe.send(["q", operation, data])
        except wire.TooMuch as error:
            raise Unsupported(f"an argument is too much: {error}") from None
        name = self._names.get(arguments[0]._finery_place, "") if operation == "call" else ""
        made = name.rpartition(".")[2][:1].isupper()  # a class, which the tests write with a capital
        given = [*arguments[1], *arguments[2].values()] if operation == "call" else []
        label = self._label(arguments) if operation == "call" else ""
        try:
            while True:
                message = self._pipe.receive()
                if not (isinstance(message, list) and message[:1] == ["c"]):
                    self._state = KEPT if name and not made else SHARED
                    result = self._answer(message, given)
                    break
                self._serve(message)
        except Exception as error:
            self.last = f"{label} raised {type(error).__name__}: {error}" if label else self.last
            raise
        if made and isinstance(result, Handle):
            own(result)
        self.last = f"{label} gave {describe(result)}" if label else self.last
        return result

    def _label(self, arguments: tuple[Any, ...]) -> str:
        name = self._names.get(arguments[0]._finery_place)
        shown = [*map(describe, arguments[1]), *(f"{key}={describe(value)}" for key, value in arguments[2].items())]
        return f"{name}({', '.join(shown)})" if name else ""

    def _answer(self, message: Any, given: list[Any]) -> Any:
        """The result in a reply; arguments that the call changed are changed here, and one given back is itself."""
        try:
            if message[0] == "x":
                raised = self._exception(message)
            else:
                for place, data in message[2]:
                    _change(given[place], self._decode(data))
                same = isinstance(message[1], dict) and "a" in message[1]
                return given[message[1]["a"]] if same else self._decode(message[1])
        except (TypeError, ValueError, KeyError, IndexError, AttributeError) as error:
            raise wire.Broken(f"what came is no message: {error}") from None
        raise raised

    def _decode(self, data: Any) -> Any:
        return wire.decode(data, self._known)

    def _known(self, tag: str, content: Any) -> Any:
        if tag == "f":
            return self._functions[content]
        if tag == "X":
            return self._exception_class(*content)
        if tag != "h":
            raise ValueError(tag)
        place, name, base = content
        if place not in self._handles:
            if not (isinstance(place, int) and isinstance(name, str) and base in _BASES):
                raise ValueError("no handle")
            self._handles[place] = Handle(self, place, name, base, self._state)
        return self._handles[place]

    def _foreign(self, value: Any) -> Any:
        if isinstance(value, Handle):
            if self._handing:
                share(value)
            return {"h": value._finery_place}
        if isinstance(value, type) and value in self._places:
            return {"h": self._places[value]}
        if id(value) in _FUNCTIONS:
            return {"Y": _FUNCTIONS[id(value)]}
        if callable(value):
            self._functions.append(value)
            return {"f": len(self._functions) - 1}
        raise Unsupported(f"a {type(value).__name__} cannot be handed to the judged code; plain data and functions can")

    def _serve(self, message: Any) -> None:
        """Call a function of the tests for the candidate: it gets plain data and gives plain data."""
        try:
            _, place, positional, named = message
            function = self._functions[place]
            arguments, keywords = self._decode(positional), self._decode(named)
        except (TypeError, ValueError, IndexError) as error:
            raise wire.Broken(f"what came is no message: {error}") from None
        try:
            self._handing = True
            reply = ["r", wire.encode(function(*arguments, **keywords), self._foreign)]
        except (Exception, Unsupported) as error:
            name = type(error).__name__ if type(error).__name__ in vars(builtins) else "TypeError"
            reply = ["x", name, str(error)[:1000]]
        try:
            self._pipe.send(reply)
        except wire.TooMuch as error:
            self._pipe.send(["x", "OverflowError", str(error)])

    def _exception(self, message: Any) -> BaseException:
        _, ancestry, text, sent = message
        kind = self._exception_class(*ancestry)
        arguments, held = self._decode(sent)
        try:
            error = kind(*arguments)
        except TypeError:  # UnicodeDecodeError and its like take five arguments
            error = kind.__new__(kind)
            error.args = (str(text),)
        for key, value in held.items():
            setattr(error, str(key), value)
        return error

    def _exception_class(self, own: list[Any], base: str) -> type[BaseException]:
        """The built-in exception, or classes that stand for the candidate's own, each made once."""
        kind = getattr(builtins, base)
        if not (isinstance(kind, type) and issubclass(kind, BaseException)):
            raise ValueError(base)
        for place, name in reversed(own):
            if place not in self._exceptions:
                made = types.new_class(str(name), (kind,))
                self._exceptions[place], self._places[made] = made, place
            kind = self._exceptions[place]
        return kind


_BASES = (None, "int", "float", "complex", "str", "bytes", "list", "tuple", "dict", "set", "frozenset")


def _change(target: Any, value: Any) -> None:
    """Make a list, dict, set, bytearray or deque of the tests' hold what the call left in it."""
    if isinstance(target, list | bytearray):
        target[:] = value
    elif isinstance(target, dict | set):
        target.clear()
        target.update(value)
    elif isinstance(target, deque):
        target.clear()
        target.extend(value)
    else:
        raise ValueError("only what can change is changed")
