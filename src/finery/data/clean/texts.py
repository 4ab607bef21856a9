"""The texts of a row: mended by the same function, or listed with who says them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, Protocol

from finery.data.dataset import Row
from finery.data.records import Reject

_COLUMNS = {
    **{"prompt": "user", "completion": "assistant", "chosen": "assistant", "rejected": "assistant"},
    "messages": "",
}
"""The columns of texts, and who says a text in them."""
_WHERE = {"prompt": "prompt", "answer": ""}
"""What `Mend` is told of a text in them; a text in another column is a completion."""


class CleanStep(Protocol):
    """One step of cleaning.

    Attributes:
        name: its kind, and `_2`, `_3` for further ones of a kind; the code of the rows it drops.
    """

    name: str

    def __call__(self, row: Row) -> Row:
        """The row: the same object when nothing changed, a new one when something did.

        Raises:
            Reject: the row is to be dropped; the code is the step's name.
        """
        ...


class Text(NamedTuple):
    """One text of a row: the column (`messages[3].content`), who says it, and what."""

    field: str
    role: str
    text: str


def texts(row: Row) -> Iterator[Text]:
    """What stands in prompt, completion, chosen, rejected and messages, in order.

    The role is a message's own; a text prompt is the user's, a text completion the assistant's.
    """
    for column, role in _COLUMNS.items():
        value = row.get(column)
        if isinstance(value, str):
            yield Text(column, role, value)
        elif value is not None:
            for number, turn in enumerate(value):
                yield Text(f"{column}[{number}].content", turn["role"], turn["content"])


def spoken(row: Row) -> Iterator[Text]:
    """What is learned from: the completion, in a conversation every turn of the assistant's; not those of a prompt."""
    for item in texts(row):
        if item.role == "assistant" and not item.field.startswith("prompt"):
            yield item


Mend = Callable[[str, str], str]
"""(text, where) -> text, where `where` is `prompt` or `completion` for the halves of a text row, otherwise empty."""


def mend_row(row: Row, mend: Mend, step: str) -> Row:
    """Apply a function to every text of a row: prompt, completion (chosen, rejected), contents of messages, answer.

    Returns:
        The same row when no text changed, otherwise a new one; ids and everything else are as they were.

    Raises:
        Reject: a text became empty.
    """
    changed: dict[str, Any] = {}
    for column in (*_COLUMNS, "answer"):
        value = row.get(column)
        if value is None:
            continue
        if isinstance(value, str):
            mended: Any = mend(value, _WHERE.get(column, "completion"))
            if mended is value or mended == value:
                continue
            if not mended.strip():
                raise Reject(column, step, f"is empty after {step}")
        else:
            mended = _mend_turns(value, mend, step, column)
            if mended is value:
                continue
        changed[column] = mended
    return {**row, **changed} if changed else row


def _mend_turns(turns: list[dict[str, str]], mend: Mend, step: str, column: str) -> list[dict[str, str]]:
    out: list[dict[str, str]] | None = None
    for number, turn in enumerate(turns):
        content = turn["content"]
        mended = mend(content, "")
        if mended is content or mended == content:
            continue
        if not mended.strip():
            raise Reject(f"{column}[{number}].content", step, f"is empty after {step}")
        if out is None:
            out = list(turns)
        out[number] = {**turn, "content": mended}
    return turns if out is None else out
