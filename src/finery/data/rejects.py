"""rejects.jsonl: every row that is not kept, one a line, written while the rows are read."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from types import TracebackType

from finery.data.records import Reject, place

SHOWN = 20
"""Damaged rows that an error shows."""
DUPLICATE, NEAR_DUPLICATE, UNSOLVED = "duplicate", "near_duplicate", "unsolved_completion"
FILTERS = (DUPLICATE, NEAR_DUPLICATE, UNSOLVED)
"""Codes of rows that are whole, and that the stage was asked to drop."""


class Rejects:
    """Writes rejects and counts them.

    Args:
        path: rejects.jsonl.
        filters: codes that are no damage, beside FILTERS: those of the cleaning steps.

    Attributes:
        by_code: code to count.
        by_source: source to count.
        shown: the first damaged rows, in words.
    """

    def __init__(self, path: Path, filters: frozenset[str] = frozenset()) -> None:
        self._filters = filters | set(FILTERS)
        self.by_code: Counter[str] = Counter()
        self.by_source: Counter[int] = Counter()
        self.shown: list[str] = []
        # a key or a file's name may hold half a surrogate pair
        self._file = path.open("w", encoding="utf-8", errors="backslashreplace")

    def add(self, source: int, file: str, at: tuple[str, int], reject: Reject) -> None:
        """List a row: the number of its source, its file, its place in it, and why it is not kept."""
        kind, number = at
        line = {
            "source": source,
            "file": file,
            kind: number,
            "field": reject.field,
            "code": reject.code,
            "reason": reject.reason,
        }
        self._file.write(json.dumps(line, ensure_ascii=False) + "\n")
        self.by_code[reject.code] += 1
        self.by_source[source] += 1
        if len(self.shown) < SHOWN and reject.code not in self._filters:
            self.shown.append(f"{place(file, at)}: {reject}")

    @property
    def count(self) -> int:
        """All of them."""
        return self.by_code.total()

    @property
    def damaged(self) -> int:
        """Those that could not be used; the others were dropped because the stage was asked to."""
        return sum(count for code, count in self.by_code.items() if code not in self._filters)

    @property
    def reasons(self) -> dict[str, int]:
        """Code to count, sorted."""
        return dict(sorted(self.by_code.items()))

    def __enter__(self) -> Rejects:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()
