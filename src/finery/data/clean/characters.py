"""Damaged characters: control characters, mojibake, U+FFFD."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any

from finery.data.clean.texts import mend_row
from finery.data.dataset import Row
from finery.data.records import Reject
from finery.schemas.clean import CharactersStep

_ASCII_CONTROLS = bytes([*range(9), 11, *range(14, 32), 127])
"""All but tab, newline, form feed and carriage return."""
_DAMAGE = re.compile("[\x00-\x08\x0b\x0e-\x1f\x7f-\x9f\u206a-\u206f\ufeff\ufff9-\ufffd\ud800-\udfff]")
"""What ftfy removes, C1 control characters, U+FFFD, lone surrogates."""
_C1 = re.compile("[\x80-\x84\x86-\x9f]")
"""C1 control characters but U+0085, which is a newline."""
_MIXABLE = re.compile("[\x80-\x9f\xa1-\u04ff\u20a0-\u2bff\u2020\u2021\u2030\u2044\uf8ff\ufb01\ufb02]")
"""Characters one of which stands in whatever ftfy takes for mojibake: beside ASCII, typographic quotes and dashes."""
_MIXED = re.compile("[\x80-\x9f\u0152\u0153]|[\xc2\xc3][ ]|[^\x00-\x7f][^\x00-\x7f]")
"""ftfy's heuristic asks for two characters beyond ASCII side by side, for an œ, or for Â or Ã before a space."""
_BEFORE_SPACE = re.compile("[\xc2\xc3][ ]")


class Characters:
    """Control characters go, mojibake is mended, U+FFFD is dealt with; by ftfy 6 (Robyn Speer).

    Of ftfy's fixes only those run that the schema promises: quotes, ligatures, widths, HTML entities, line breaks and
    the normal form of the text are left alone.
    """

    def __init__(self, name: str, config: CharactersStep) -> None:
        self.name, self._encoding, self._replacement = name, config.fix_encoding, config.replacement

    def __call__(self, row: Row) -> Row:
        mended = mend_row(row, self._mend, self.name)
        if self._replacement == "drop":
            self._drop(mended)
        return mended

    def _drop(self, row: Row) -> None:
        for column in ("prompt", "completion", "chosen", "rejected", "messages", "answer"):
            value = row.get(column)
            if isinstance(value, str):
                if "\ufffd" in value:
                    raise Reject(column, self.name, _lost(value))
            elif value is not None:
                for number, turn in enumerate(value):
                    if "\ufffd" in turn["content"]:
                        raise Reject(f"{column}[{number}].content", self.name, _lost(turn["content"]))

    def _mend(self, text: str, where: str) -> str:
        if text.isascii():
            kept = text.encode().translate(None, _ASCII_CONTROLS)
            return text if len(kept) == len(text) else self._until_stable(text)
        if _DAMAGE.search(text) or (self._encoding and _suspicious(text)):
            return self._until_stable(text)
        return text

    def _until_stable(self, text: str) -> str:
        """What is removed may join what then looks like mojibake; ftfy is stable and removing shortens, so it ends."""
        while True:
            mended = self._once(text)
            if mended == text:
                return text
            text = mended

    def _once(self, text: str) -> str:
        import ftfy

        text = ftfy.fix_text(text, _config(self._encoding))
        text = _C1.sub("", text)
        return text.replace("\ufffd", "") if self._replacement == "remove" else text


def _suspicious(text: str) -> bool:
    from ftfy.badness import is_bad

    if not _MIXABLE.search(text) or not _MIXED.search(text):
        return False
    # ftfy looks at single lines, at whose beginning a lone Ã counts: only ftfy itself can tell
    return bool(_BEFORE_SPACE.search(text)) or is_bad(text)


@lru_cache
def _config(encoding: bool) -> Any:
    from ftfy import TextFixerConfig

    return TextFixerConfig(
        unescape_html=False,
        remove_terminal_escapes=True,
        fix_encoding=encoding,
        replace_lossy_sequences=False,  # it would write U+FFFD where there was none
        fix_c1_controls=encoding,
        fix_latin_ligatures=False,
        fix_character_width=False,
        uncurl_quotes=False,
        fix_line_breaks=False,
        fix_surrogates=True,
        remove_control_chars=True,
        normalization=None,
        explain=True,  # without it ftfy 6.3 mends encodings with its defaults, not with this config
    )


def _lost(text: str) -> str:
    at = text.index("\ufffd")
    return f"holds U+FFFD, so something was lost: {text[max(0, at - 20) : at + 20]!r}"
