"""Blocks between ``` lines."""

from __future__ import annotations

import re

_BLOCK = re.compile(r"^[ \t]*```[^\n`]*\n(.*?)^[ \t]*```[ \t]*$", re.MULTILINE | re.DOTALL)


def last_block(text: str) -> str | None:
    """What the last ``` block holds, whatever language it names; None when there is no block that is closed."""
    blocks: list[str] = _BLOCK.findall(text)
    return blocks[-1] if blocks else None
