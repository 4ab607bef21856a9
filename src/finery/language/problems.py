"""Problems: what is wrong or doubtful in a pipeline, where, and the line that tells it."""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

Keys = tuple[str | int, ...]
"""A place in the data: keys of maps and positions in lists, from the top."""


@dataclass(frozen=True)
class Place:
    """Where a value is written: line and column from 1, or the `--set` key it came from."""

    line: int = 1
    column: int = 1
    override: str | None = None


@dataclass(frozen=True)
class Problem:
    place: Place
    path: Keys
    text: str

    def render(self, file: str) -> str:
        """`file:line:column path: text`; for an override `--set key=... path: text`, its value never shown."""
        path = dotted(self.path)
        if self.place.override is None:
            where = f"{file}:{self.place.line}:{self.place.column}"
        else:
            where = f"--set {self.place.override}=..."
            path = "" if path == self.place.override else path
        return f"{where} {path}: {self.text}" if path else f"{where}: {self.text}"


def dotted(path: Iterable[str | int]) -> str:
    """`stages.exam.models.0`."""
    return ".".join(map(str, path))


def render(problems: Iterable[Problem], file: Path) -> list[str]:
    """One line a problem, in the order of the file, those of `--set` last, none twice."""

    def order(problem: Problem) -> tuple[bool, int, int, str]:
        place = problem.place
        return place.override is not None, place.line, place.column, dotted(problem.path)

    name = shown(file)
    return list(dict.fromkeys(problem.render(name) for problem in sorted(problems, key=order)))


def shown(file: Path) -> str:
    """A path as the user sees it: relative to the working directory when below it."""
    path = Path(os.path.abspath(file))
    try:
        return str(path.relative_to(Path.cwd()))
    except ValueError:
        return str(path)


def cut(text: str, length: int = 60) -> str:
    """Text for the middle of a sentence: one line, not too long."""
    text = text.replace("\n", "\\n")
    return text if len(text) <= length else text[: length - 3] + "..."


def nearest(word: str, candidates: Iterable[str], *, cutoff: float = 0.6) -> str | None:
    """The candidate most like `word`, or None when none is."""
    known = {candidate.lower(): candidate for candidate in candidates}
    found = difflib.get_close_matches(word.lower(), list(known), n=1, cutoff=cutoff)
    return known[found[0]] if found else None


def hint(word: str, candidates: Sequence[str], *, listed: str = "") -> str:
    """`; did you mean X?`, else what there is: `; LISTED a, b, c`."""
    if (near := nearest(word, candidates)) is not None:
        return f"; did you mean {near}?"
    return f"; {listed} {', '.join(candidates)}" if listed and candidates else ""
