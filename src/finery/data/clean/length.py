"""Limits of length; conversations lose their oldest turns before they are dropped."""

from __future__ import annotations

from typing import Any, NamedTuple

from finery.data.clean.texts import spoken, texts
from finery.data.dataset import Message, Row
from finery.data.records import Reject
from finery.data.tokens import Tokens
from finery.errors import InputError
from finery.schemas.clean import LengthStep


class _Size(NamedTuple):
    """characters of prompt and completion (or of the conversation); tokens, when a limit asks for them."""

    characters: int
    tokens: int | None


class Length:
    """Holds rows to their limits.

    A conversation (`messages`, or a prompt of messages) that is over one loses its oldest exchanges, each from a user
    turn up to the next, as few as will do; the system message, the last user turn and what follows it stay. A text
    prompt is never cut.

    Raises:
        InputError: a limit in tokens without a tokenizer.
    """

    def __init__(self, name: str, config: LengthStep, tokens: Tokens | None) -> None:
        self.name, self._config = name, config
        self._tokens = tokens if config.max_tokens is not None or config.min_tokens is not None else None
        if self._tokens is None and (config.max_tokens is not None or config.min_tokens is not None):
            raise InputError("a clean step of kind length counts tokens; name the stage's `tokenizer`")

    def __call__(self, row: Row) -> Row:
        size = self._size(row)
        if self._over(size):
            row, size = self._cut(row, size)
        if reason := self._under(row, size):
            raise Reject("", self.name, reason)
        return row

    def _size(self, row: Row) -> _Size:
        characters = sum(len(text) for _, _, text in texts(row))
        return _Size(characters, self._tokens.count(row) if self._tokens else None)

    def _over(self, size: _Size) -> str | None:
        most = self._config.max_characters
        if most is not None and size.characters > most:
            return f"has {size.characters} characters; max_characters is {most}"
        most = self._config.max_tokens
        if most is not None and size.tokens is not None and size.tokens > most:
            return f"has {size.tokens} tokens; max_tokens is {most}"
        return None

    def _under(self, row: Row, size: _Size) -> str | None:
        least = self._config.min_tokens
        if least is not None and size.tokens is not None and size.tokens < least:
            return f"has {size.tokens} tokens; min_tokens is {least}"
        least = self._config.min_characters
        if least is None:
            return None
        said = [len(text) for _, _, text in spoken(row)]
        if said and sum(said) < least:
            return f"its completion has {sum(said)} characters; min_characters is {least}"
        return None

    def _cut(self, row: Row, size: _Size) -> tuple[Row, _Size]:
        """The row without as few of its oldest exchanges as will do, by bisection."""
        shorter = _shorter(row)
        best: tuple[Row, _Size] | None = None
        low, high = 0, len(shorter) - 1
        if shorter:
            size = self._size(shorter[-1])
            if not self._over(size):
                best, high = (shorter[-1], size), high - 1
        if best is None:
            without = " without its older turns" if shorter else ""
            raise Reject("", self.name, f"{self._over(size)}{without}")
        while low <= high:
            middle = (low + high) // 2
            size = self._size(shorter[middle])
            if self._over(size):
                low = middle + 1
            else:
                best, high = (shorter[middle], size), middle - 1
        return best


def _shorter(row: Row) -> list[Row]:
    """The row without its first exchange, its first two, and so on, as long as a user turn is left."""
    column = "messages" if "messages" in row else "prompt"
    turns: Any = row.get(column)
    if not isinstance(turns, list):
        return []
    users = [number for number, turn in enumerate(turns) if turn["role"] == "user"]
    head: list[Message] = turns[: users[0]] if users else []
    return [{**row, column: [*head, *turns[start:]]} for start in users[1:]]
