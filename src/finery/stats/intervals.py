"""Intervals for means over problems: the Bayesian bootstrap over problems, with one pseudo-problem of prior.

P is the number of problems, R of resamples. The unit that is drawn again is the problem, with all its
completions: completions of one problem are not independent.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

RESAMPLES = 4000
UNIT = (0.0, 1.0)
CHANGE = (-1.0, 1.0)


@dataclass(frozen=True)
class Interval:
    """A mean over problems with its interval; `n` is the number of problems it is over."""

    value: float
    low: float
    high: float
    n: int

    def as_dict(self) -> dict[str, float | int]:
        """`{"value", "low", "high", "n"}`, as evaluation.json has it."""
        return {"value": self.value, "low": self.low, "high": self.high, "n": self.n}

    def __str__(self) -> str:
        return f"{self.value:.2f} [{self.low:.2f}, {self.high:.2f}]"


class Bootstrap:
    """Resampling weights of one set of P problems, drawn once and used for every number on it.

    Rubin 1981, "The Bayesian Bootstrap" (Annals of Statistics 9:130): each resample weights the problems by a
    flat Dirichlet instead of by how often each was drawn; limits are percentiles of the weighted means. As in
    Hjort 1991, "Bayesian and Empirical Bayesian Bootstrapping" (arXiv 2605.11677), there is a prior beside the
    P problems: one problem, half of it at each end of the number's range. For numbers that are 0 or 1 the
    result is then Jeffreys' Beta(s + 1/2, P - s + 1/2) interval (Brown, Cai, DasGupta 2001, Statistical Science
    16:101), and problems that all agree get an honest interval instead of one of width zero: 150 solved of 150
    gives [0.98, 1.00].
    """

    def __init__(self, problems: int, *, confidence: float, seed: int, resamples: int = RESAMPLES) -> None:
        if problems < 1:
            raise ValueError("an interval over no problems is undefined")
        if not 0 < confidence < 1:
            raise ValueError(f"confidence must lie between 0 and 1, not {confidence}")
        rng = np.random.default_rng(seed)
        self.problems = problems
        self.confidence = confidence
        self._weights_RP = rng.standard_exponential((resamples, problems), dtype=np.float32)
        self._prior_R2 = rng.standard_gamma(0.5, (resamples, 2))

    def mean(self, values: ArrayLike, *, support: tuple[float, float] = UNIT) -> Interval | None:
        """The mean of one number a problem, and its interval.

        Args:
            values: float [P]; NaN leaves a problem out (the number is undefined for it).
            support: the smallest and largest value the number can take.

        Returns:
            None when every value is NaN.

        Raises:
            ValueError: the shape is not [P], or a value lies outside support.
        """
        found = self.means(values, support=support)
        if found is None:
            return None
        value, n, means_R = found
        return _interval(value, n, means_R, support, self.confidence)

    def means(
        self, values: ArrayLike, *, support: tuple[float, float] = UNIT
    ) -> tuple[float, int, NDArray[np.float64]] | None:
        """The plain mean, how many problems it is over, and its resampled means, float64 [R]; arguments as `mean`'s."""
        values_P = np.asarray(values, dtype=np.float64)
        if values_P.shape != (self.problems,):
            raise ValueError(f"expected one value for each of {self.problems} problems, got shape {values_P.shape}")
        valid_P = ~np.isnan(values_P)
        if not valid_P.any():
            return None
        low, high = support
        if np.any((values_P[valid_P] < low - 1e-9) | (values_P[valid_P] > high + 1e-9)):
            raise ValueError(f"a value lies outside [{low:g}, {high:g}]")
        filled_P = np.where(valid_P, values_P, 0.0)
        sums_R2 = self._weights_RP @ np.stack([filled_P, valid_P.astype(np.float64)], axis=1).astype(np.float32)
        tops_R = sums_R2[:, 0] + self._prior_R2 @ np.array([low, high])
        means_R = tops_R / (sums_R2[:, 1] + self._prior_R2.sum(axis=1))
        return float(values_P[valid_P].mean()), int(valid_P.sum()), means_R

    def change(self, values: ArrayLike, reference: ArrayLike) -> Interval | None:
        """The mean of values - reference on the same problems, paired: problems undefined in either are left out."""
        difference_P = np.asarray(values, dtype=np.float64) - np.asarray(reference, dtype=np.float64)
        return self.mean(difference_P, support=CHANGE)


def weighted(
    parts: Sequence[tuple[Bootstrap, ArrayLike]], weights: Sequence[float], *, support: tuple[float, float] = CHANGE
) -> Interval | None:
    """The weighted mean of means over several sets of problems, and its interval; the sets are resampled apart.

    Args:
        parts: each set's Bootstrap and one number a problem, float [P] of its own P; NaN leaves a problem out.
        weights: of the sets, above 0; only their ratios count.

    Returns:
        `n` adds up the problems. None when a set has no number at all.
    """
    found = [weights_of.means(values, support=support) for weights_of, values in parts]
    known = [one for one in found if one is not None]
    if not known or len(known) < len(found):
        return None
    shares = np.asarray(weights, dtype=np.float64) / float(np.sum(weights))
    value = float(sum(share * mean for share, (mean, _, _) in zip(shares, known, strict=True)))
    means_R = np.sum([share * means for share, (_, _, means) in zip(shares, known, strict=True)], axis=0)
    return _interval(value, sum(n for _, n, _ in known), means_R, support, parts[0][0].confidence)


def _interval(
    value: float, n: int, means_R: NDArray[np.float64], support: tuple[float, float], confidence: float
) -> Interval:
    low, high = support
    tail = (1.0 - confidence) / 2
    bounds: NDArray[np.float64] = np.quantile(means_R, [tail, 1.0 - tail])
    return Interval(value, min(value, max(low, float(bounds[0]))), max(value, min(high, float(bounds[1]))), n)


def bootstrap(
    values: ArrayLike,
    *,
    confidence: float = 0.95,
    seed: int = 0,
    support: tuple[float, float] = UNIT,
    resamples: int = RESAMPLES,
) -> Interval | None:
    """`Bootstrap(...).mean(values)` for a single number."""
    problems = np.asarray(values).shape[0]
    return Bootstrap(problems, confidence=confidence, seed=seed, resamples=resamples).mean(values, support=support)


def paired_bootstrap(
    values: ArrayLike, reference: ArrayLike, *, confidence: float = 0.95, seed: int = 0, resamples: int = RESAMPLES
) -> Interval | None:
    """`Bootstrap(...).change(values, reference)` for a single number."""
    problems = np.asarray(values).shape[0]
    return Bootstrap(problems, confidence=confidence, seed=seed, resamples=resamples).change(values, reference)
