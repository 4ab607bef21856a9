"""Completions drawn in rounds until a question is settled; what was drawn of a round is never drawn again."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from finery.stats.sequential import Look, goes_on
from finery.training.measure import Draw, Judged

Judge = Callable[[Sequence[int], Draw, str], list[list[Judged]]]
"""Draws and judges the completions of some rows, by their positions; the name is that of the log that keeps them."""


@dataclass
class Drawn:
    """What was drawn of each row: its completions, and how many were judged in each round. A row may have none.

    Attributes:
        level: at which the last look is read.
        looks: how often the numbers were looked at.
    """

    completions: list[list[Judged]]
    rounds: list[list[int]]
    level: float = math.nan
    looks: int = 0

    def counts(self, row: int) -> tuple[int, int]:
        """How many completions were judged, and how many of them solved."""
        return sum(self.rounds[row]), sum(one.solved is True for one in self.completions[row])

    @property
    def spent(self) -> int:
        """Completions of all rows."""
        return sum(map(len, self.completions))

    def take(self, row: int, completions: Sequence[Judged]) -> None:
        """A further round of a row."""
        self.completions[row] += completions
        self.rounds[row].append(sum(one.solved is not None for one in completions))


def draw_in_rounds(
    ids: Sequence[str], plan: Sequence[Look], draw: Draw, judge: Judge, *, k: int, settled: Callable[[Drawn], bool]
) -> Drawn:
    """Draw what each look of the plan asks for, of rows in an order of the seed's, until `settled` says so.

    Args:
        ids: of the rows, distinct.
        plan: as `finery.stats.sequential.looks` makes it; a fixed design is a plan of one look.
        draw: how; `n` and `first` are each round's own.
        k: the largest k of pass@k.
        settled: given what is drawn so far, and in it the level at which this look is read.
    """
    drawn = Drawn([[] for _ in ids], [[] for _ in ids])
    order = sorted(range(len(ids)), key=lambda row: hashlib.sha256(f"{draw.seed}/{ids[row]}".encode()).digest())
    for number, look in enumerate(plan):
        wanted = [row for row in order[: look.prompts] if _lacks(drawn, row, look, k)]
        if wanted:
            first = len(drawn.completions[wanted[0]])  # the same for all: a round is of new rows, or of all old ones
            how = replace(draw, n=look.samples - first, first=first)
            for row, completions in zip(wanted, judge(wanted, how, f"sampled.{number}"), strict=True):
                drawn.take(row, completions)
        drawn.level, drawn.looks = 1 - look.alpha, number + 1
        if settled(drawn):
            break
    return drawn


def _lacks(drawn: Drawn, row: int, look: Look, k: int) -> bool:
    return len(drawn.completions[row]) < look.samples and goes_on(*drawn.counts(row), k)
