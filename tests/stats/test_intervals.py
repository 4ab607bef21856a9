"""Intervals: coverage, the degenerate cases, pairing, missing problems."""

from __future__ import annotations

import numpy as np
import pytest

from finery.stats.beta import beta_cdf, beta_quantile
from finery.stats.intervals import CHANGE, Bootstrap, bootstrap, paired_bootstrap


def test_same_seed_same_interval_and_another_seed_another() -> None:
    values = np.linspace(0, 1, 40)
    assert bootstrap(values, seed=3) == bootstrap(values, seed=3)
    assert bootstrap(values, seed=3) != bootstrap(values, seed=4)


def test_binary_values_get_jeffreys_interval() -> None:
    values = [1.0] * 30 + [0.0] * 70
    interval = bootstrap(values, seed=0, resamples=40_000)
    assert interval is not None
    assert interval.value == pytest.approx(0.3)
    assert interval.low == pytest.approx(beta_quantile(0.025, 30.5, 70.5), abs=0.003)
    assert interval.high == pytest.approx(beta_quantile(0.975, 30.5, 70.5), abs=0.003)


@pytest.mark.parametrize("level", [0.0, 1.0])
def test_problems_that_all_agree_do_not_get_a_width_of_zero(level: float) -> None:
    interval = bootstrap([level] * 150, seed=0)
    assert interval is not None
    assert interval.value == level
    assert 0.01 < interval.high - interval.low < 0.03
    wider = bootstrap([level] * 10, seed=0)
    assert wider is not None
    assert wider.high - wider.low > 5 * (interval.high - interval.low)


def test_one_failure_more_never_raises_the_lower_limit() -> None:
    lows = [bootstrap([1.0] * (150 - failed) + [0.0] * failed, seed=0).low for failed in range(6)]  # type: ignore[union-attr]
    assert lows == sorted(lows, reverse=True)


def test_intervals_cover_as_often_as_they_say() -> None:
    """Per-problem pass@1 of 8 completions with problem rates from Beta(1, 1): true mean 1/2."""
    rng = np.random.default_rng(5)
    covered = 0
    for trial in range(400):
        values = rng.binomial(8, rng.uniform(size=60)) / 8
        interval = bootstrap(values, confidence=0.9, seed=trial, resamples=1000)
        assert interval is not None
        covered += interval.low <= 0.5 <= interval.high
    assert 0.86 <= covered / 400 <= 0.95


def test_paired_changes_are_narrower_than_the_numbers_they_come_from() -> None:
    rng = np.random.default_rng(1)
    reference = rng.uniform(size=200)
    values = np.clip(reference + rng.normal(0.05, 0.02, 200), 0, 1)
    change = paired_bootstrap(values, reference, seed=0)
    alone = bootstrap(values, seed=0)
    assert change is not None
    assert alone is not None
    assert change.value == pytest.approx(float(np.mean(values - reference)))
    assert change.low > 0
    assert change.high - change.low < (alone.high - alone.low) / 2


def test_missing_problems_are_left_out_and_counted() -> None:
    weights = Bootstrap(4, confidence=0.95, seed=0)
    interval = weights.mean([1.0, np.nan, 0.0, np.nan])
    assert interval is not None
    assert (interval.value, interval.n) == (0.5, 2)
    assert weights.mean([np.nan] * 4) is None
    change = weights.change([1.0, 1.0, np.nan, 0.0], [0.0, np.nan, 0.0, 0.0])
    assert change is not None
    assert (change.value, change.n) == (0.5, 2)


def test_impossible_requests_are_refused() -> None:
    with pytest.raises(ValueError, match="no problems"):
        Bootstrap(0, confidence=0.95, seed=0)
    with pytest.raises(ValueError, match="confidence"):
        Bootstrap(3, confidence=1.0, seed=0)
    with pytest.raises(ValueError, match="outside"):
        bootstrap([0.5, 1.5])
    with pytest.raises(ValueError, match="one value for each"):
        Bootstrap(3, confidence=0.95, seed=0).mean([0.5, 0.5])
    assert bootstrap([-0.5, 0.5], support=CHANGE) is not None


def test_beta_quantiles_agree_with_closed_forms() -> None:
    assert beta_cdf(0.3, 1, 1) == pytest.approx(0.3, abs=1e-12)
    assert beta_quantile(0.25, 2, 1) == pytest.approx(0.5, abs=1e-10)  # x^2
    assert beta_quantile(0.5, 7.5, 7.5) == pytest.approx(0.5, abs=1e-10)
    # 1 - (1 - x)^n, the rule behind "no failure in n"
    assert beta_quantile(0.95, 1, 150) == pytest.approx(1 - 0.05 ** (1 / 150), abs=1e-10)
    assert beta_cdf(0.0, 2, 3) == 0.0
    assert beta_cdf(1.0, 2, 3) == 1.0
