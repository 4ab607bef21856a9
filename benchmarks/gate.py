"""What sampling in rounds saves the gate, and what it costs in verdicts.

    python benchmarks/gate.py [--models 500] [--seed 1] [--json]

Models are simulated: Beta pass rates over 150 prompts, means uniform in .02 to .98, concentration .3 to 10. Each is
judged by the fixed design (16 completions of every prompt, one look) and in rounds (at most 16), on the same
completions, by the functions that `gate` uses. The truth is analytic: pass@1 = a / (a + b), pass@k = 1 - B(a, b + k) /
B(a, b). A model is far when its truth is .05 or more from every threshold that its verdict is read at: pass@1 from
`solved_at`, and, where pass@1 is below it, the gap from `min_gap`.

`samples_ratio` is completions in rounds over those of the fixed design, `agreement` the share of far models with the
same verdict by both, `error` the share of wrong verdicts in rounds where the gap is .03 or more from `min_gap`.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from finery.schemas.training import Sampling
from finery.stats.intervals import RESAMPLES, Bootstrap, Interval
from finery.stats.passk import pass_at_k
from finery.stats.sequential import LOOK_RESAMPLES, looks, unbiased
from finery.stats.verdict import Verdict, decide
from finery.training.measure import Draw
from finery.training.measure import Judged as Completion
from finery.training.rounds import Drawn, draw_in_rounds

PROMPTS, SAMPLES, K = 150, 16, 8
DRAW = Draw(n=SAMPLES, sampling=Sampling(), seed=0, batch_size=1)
COMPLETIONS = {solved: Completion("", 0, False, {}, solved) for solved in (False, True)}
SOLVED_AT, MIN_GAP, ALPHA = 0.9, 0.2, 0.05


@dataclass(frozen=True)
class Judged:
    """One model: its truth, both verdicts, and what the rounds took."""

    pass_at_1: float
    gap: float
    truth: str
    fixed: str
    rounds: Verdict
    spent: int
    looks: int

    @property
    def far(self) -> bool:
        """.05 or more from what its verdict is read at."""
        solved = self.pass_at_1 >= SOLVED_AT
        return abs(self.pass_at_1 - SOLVED_AT) >= 0.05 and (solved or abs(self.gap - MIN_GAP) >= 0.05)


def judge(a: float, b: float, rng: np.random.Generator) -> Judged:
    """Draw one model's completions and judge them both ways."""
    rates_P = rng.beta(a, b, PROMPTS)
    solved_PN = rng.random((PROMPTS, SAMPLES)) < rates_P[:, None]
    one = a / (a + b)
    most = 1 - math.exp(sum(math.log((b + i) / (a + b + i)) for i in range(K)))
    truth = "skip_rl" if one >= SOLVED_AT else "rl" if most - one >= MIN_GAP else "more_data"
    counts_P = solved_PN.sum(axis=1)
    fixed = read(pass_at_k(SAMPLES, counts_P, 1), pass_at_k(SAMPLES, counts_P, K), ALPHA, RESAMPLES)
    verdict, spent, number = in_rounds(solved_PN)
    return Judged(one, most - one, truth, fixed.verdict, verdict, spent, number)


def in_rounds(solved_PN: NDArray[np.bool_]) -> tuple[Verdict, int, int]:
    """Verdict, completions and looks of sampling in rounds; solved_PN is bool [P, N], by prompt and sample index."""

    def judge(rows: Sequence[int], how: Draw, _: str) -> list[list[Completion]]:
        return [[COMPLETIONS[bool(solved)] for solved in solved_PN[row, how.first : how.first + how.n]] for row in rows]

    verdicts: list[Verdict] = []

    def settled(drawn: Drawn) -> bool:
        seen = [row for row, rounds in enumerate(drawn.rounds) if rounds]
        one, most = (
            np.array([unbiased(drawn.rounds[row], drawn.counts(row)[1], k, K) for row in seen], dtype=np.float64)
            for k in (1, K)
        )
        verdicts.append(read(one, most, 1 - drawn.level, LOOK_RESAMPLES))
        return verdicts[-1].conclusive

    plan = looks(PROMPTS, K, SAMPLES, ALPHA)
    drawn = draw_in_rounds([str(row) for row in range(PROMPTS)], plan, DRAW, judge, k=K, settled=settled)
    return verdicts[-1], drawn.spent, drawn.looks


def read(one: NDArray[np.float64], most: NDArray[np.float64], alpha: float, resamples: int) -> Verdict:
    """The verdict from pass@1 and pass@K of each prompt, float64 [P]."""
    weights = Bootstrap(len(one), confidence=1 - alpha, seed=0, resamples=resamples)
    found: list[Interval] = []
    for values in (one, most, np.maximum(most - one, 0)):
        interval = weights.mean(values)
        assert interval is not None
        found.append(interval)
    return decide(*found, k=K, solved_at=SOLVED_AT, min_gap=MIN_GAP)


def figures(found: list[Judged]) -> dict[str, float]:
    """The ratios, and how often each design was wrong."""

    def share(chosen: list[Judged], holds: list[bool]) -> float:
        return sum(holds) / len(chosen) if chosen else math.nan

    far, near = [one for one in found if one.far], [one for one in found if not one.far]
    clear = [one for one in found if abs(one.gap - MIN_GAP) >= 0.03]
    return {
        "models": len(found),
        "samples_ratio": sum(one.spent for one in found) / (len(found) * PROMPTS * SAMPLES),
        "far": len(far),
        "agreement": share(far, [one.fixed == one.rounds.verdict for one in far]),
        "agreement_near": share(near, [one.fixed == one.rounds.verdict for one in near]),
        "gap_clear": len(clear),
        "error": share(clear, [one.rounds.verdict != one.truth for one in clear]),
        "error_fixed": share(clear, [one.fixed != one.truth for one in clear]),
        "conclusive": share(found, [one.rounds.conclusive for one in found]),
        "error_conclusive": share(
            [one for one in found if one.rounds.conclusive],
            [one.rounds.verdict != one.truth for one in found if one.rounds.conclusive],
        ),
    }


def main() -> None:
    """Simulate and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", type=int, default=500)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    asked = parser.parse_args()
    rng = np.random.default_rng(asked.seed)
    means, sizes = rng.uniform(0.02, 0.98, asked.models), rng.uniform(0.3, 10, asked.models)
    found = [judge(mean * size, (1 - mean) * size, rng) for mean, size in zip(means, sizes, strict=True)]
    result = figures(found)
    if asked.json:
        print(json.dumps(result))
        return
    for name, value in result.items():
        print(f"{name:18}{value:>8.3f}" if isinstance(value, float) else f"{name:18}{value:>8}")
    print("\nstopped at look  models  completions of the fixed design's")
    for number in range(1, max(one.looks for one in found) + 1):
        there = [one.spent for one in found if one.looks == number]
        if there:
            print(f"{number:<17}{len(there):>6}  {sum(there) / len(there) / (PROMPTS * SAMPLES):>8.3f}")


if __name__ == "__main__":
    main()
