"""What a data stage needs to know of a tokenizer: how many tokens rows have."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Protocol


class Tokens(Protocol):
    """Counts tokens as a model would see them; `finery.training.tokens.RowTokens` is the one that is used."""

    def count(self, row: Mapping[str, Any]) -> int:
        """Tokens of one row: the chat template (if it is messages) and the final EOS are among them."""
        ...

    def count_many(self, rows: Iterable[Mapping[str, Any]]) -> list[int]:
        """`count` of each, faster."""
        ...
