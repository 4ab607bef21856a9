"""What an object of the candidate's said of itself, kept by the judge until the object may have changed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .handle import Handle

OWN, KEPT, SHARED = "own", "kept", "shared"
"""Made by the tests from a class; given by a function and used by nobody since; what later calls may change."""


class Kept:
    """What an iteration has given so far."""

    def __init__(self, source: Any) -> None:
        self.source, self.items, self.done = source, list[Any](), False


def replayed(handle: Handle, kept: Kept) -> Iterator[Any]:
    """The items of an object, each asked for once however often a test walks over them."""
    place = 0
    while True:
        if place == len(kept.items):
            try:
                if not kept.done:
                    kept.items.append(handle._finery_link.ask("next", kept.source))
            except StopIteration:
                kept.done = True
            if place == len(kept.items):
                break
        yield kept.items[place]
        place += 1
    agree(handle)


def agree(handle: Handle) -> None:
    """An object is as long as it has items."""
    memo = memory(handle) or {}
    length, kept = memo.get(("len", (), ())), memo.get("items")
    if length is not None and kept is not None and kept.done and length != len(kept.items):
        raise TypeError(f"an object of type {handle._finery_name} has the length {length} and {len(kept.items)} items")


def memory(handle: Handle) -> dict[Any, Any] | None:
    """What an object said of itself since it may last have changed; None for one that may say something else."""
    if handle._finery_state == OWN:
        return None
    memo: dict[Any, Any] = handle._finery_memo
    if handle._finery_state == SHARED and memo.get("changes") != handle._finery_link.changes:
        memo.clear()
        memo["changes"] = handle._finery_link.changes
    return memo


def read(handle: Handle, operation: str, *arguments: Any) -> Any:
    """What an object says of itself, asked once."""
    memo = memory(handle)
    shown = tuple((a.start, a.stop, a.step) if isinstance(a, slice) else a for a in arguments)
    key = (operation, tuple(map(type, arguments)), shown)
    try:
        hash(key)
    except TypeError:  # such an item is asked for each time
        memo = None
    if memo is None:
        return handle._finery_link.ask(operation, handle, *arguments)
    if key not in memo:
        memo[key] = handle._finery_link.ask(operation, handle, *arguments)
    return memo[key]


def share(handle: Handle) -> None:
    """From now on later calls may change it, as it is handed over or its methods are used."""
    if handle._finery_state == KEPT:
        object.__setattr__(handle, "_finery_state", SHARED)


def own(handle: Handle) -> None:
    """The tests made it of a class."""
    object.__setattr__(handle, "_finery_state", OWN)
