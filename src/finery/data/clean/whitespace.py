"""One kind of newline and of space."""

from __future__ import annotations

import re

from finery.data.clean.texts import mend_row
from finery.data.dataset import Row
from finery.schemas.clean import WhitespaceStep

_OTHER = re.compile("[\r\x85\xa0\u1680\u2000-\u200b\u2028\u2029\u202f\u205f\u2060\u3000\ufeff]")
_ZERO_WIDTH = dict.fromkeys((0x200B, 0x2060, 0xFEFF))
"""Not U+200C and U+200D: Persian words and emoji are written with them."""
_SPACES = dict.fromkeys((0xA0, 0x1680, *range(0x2000, 0x200B), 0x202F, 0x205F, 0x3000), " ")
"""Unicode's category Zs."""
_NEWLINES = dict.fromkeys((0x85, 0x2028, 0x2029), "\n")
_TABLE: dict[int, str | None] = {**_ZERO_WIDTH, **_SPACES, **_NEWLINES}
_RUN_OF_SPACES = re.compile(r"[ \t]{2,}")
_RUN_OF_LINES = re.compile(r"\n{3,}")


class Whitespace:
    """Newlines and spaces of one kind, none at the ends of lines and texts; see the schema.

    Prompt and completion of a text row are one text, cut in two: at the cut nothing is taken away, or `Q: 1+1\\n` and
    `A: 2` would run into each other.
    """

    def __init__(self, name: str, config: WhitespaceStep) -> None:
        self.name, self._collapse = name, config.collapse

    def __call__(self, row: Row) -> Row:
        return mend_row(row, self._mend, self.name)

    def _mend(self, text: str, where: str) -> str:
        if _OTHER.search(text) if not text.isascii() else "\r" in text:
            text = text.translate(_TABLE) if not text.isascii() else text
            text = text.replace("\r\n", "\n").replace("\r", "\n")
        if " \n" in text or "\t\n" in text:
            *lines, last = text.split("\n")
            text = "\n".join([*(line.rstrip(" \t") for line in lines), last])
        if where != "completion":
            text = text.lstrip("\n")
        if where != "prompt":
            text = text.rstrip(" \t\n")
        if self._collapse:
            text = _RUN_OF_LINES.sub("\n\n", _RUN_OF_SPACES.sub(" ", text))
        return text
