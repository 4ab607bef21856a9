"""Unicode normalisation and full-width folding."""

from __future__ import annotations

import re
import unicodedata

from finery.data.clean.texts import mend_row
from finery.data.dataset import Row
from finery.schemas.clean import UnicodeStep

_WIDE = re.compile("[\uff01-\uff5e\u3000]")
_PLAIN = {code: code - 0xFEE0 for code in range(0xFF01, 0xFF5F)} | {0x3000: 0x20}
"""U+FF01..FF5E are ASCII's U+0021..007E in full width, U+3000 is the full-width space (Unicode chart UFF00)."""


class Unicode:
    """NFC or NFKC (Unicode Standard Annex 15), after folding where that is asked for."""

    def __init__(self, name: str, config: UnicodeStep) -> None:
        self.name, self._form, self._fold = name, config.form, config.fold_width

    def __call__(self, row: Row) -> Row:
        return mend_row(row, self._mend, self.name)

    def _mend(self, text: str, where: str) -> str:
        if text.isascii():
            return text
        if self._fold and _WIDE.search(text):
            text = text.translate(_PLAIN)
        return text if unicodedata.is_normalized(self._form, text) else unicodedata.normalize(self._form, text)
