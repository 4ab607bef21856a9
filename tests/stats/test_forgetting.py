"""The forgetting table and its number, by hand."""

from __future__ import annotations

import pytest

from finery.stats.forgetting import GeneralSuite, forgetting
from finery.stats.intervals import Bootstrap

NAN = float("nan")


def _suite(name: str, prompts: int, weight: float) -> GeneralSuite:
    return GeneralSuite(name, "greedy", weight, Bootstrap(prompts, confidence=0.95, seed=len(name)))


def test_the_number_is_the_weighted_mean_of_the_drops() -> None:
    suites = [_suite("facts", 4, 1.0), _suite("arithmetic", 2, 3.0)]
    before = {"facts": [1, 1, 1, 0], "arithmetic": [1, 0]}
    after = {"facts": [1, 0, 0, 0], "arithmetic": [1, 1]}
    found = forgetting(suites, before, after)
    assert found is not None
    assert found["suites"]["facts"]["drop"] == 0.5
    assert found["suites"]["arithmetic"]["drop"] == -0.5
    assert (found["suites"]["facts"]["before"], found["suites"]["facts"]["after"]) == (0.75, 0.25)
    assert found["value"] == pytest.approx((1 * 0.5 + 3 * -0.5) / 4)
    assert found["low"] < found["value"] < found["high"]
    assert found["n"] == 6


def test_prompts_undefined_in_either_are_left_out_and_counted() -> None:
    found = forgetting([_suite("facts", 4, 1.0)], {"facts": [1, NAN, 1, 0]}, {"facts": [0, 0, NAN, 0]})
    assert found is not None
    assert (found["value"], found["n"]) == (0.5, 2)
    assert forgetting([_suite("facts", 2, 1.0)], {"facts": [1, NAN]}, {"facts": [NAN, 0]}) is None


def test_more_prompts_make_the_interval_narrower_and_suites_are_resampled_apart() -> None:
    few = forgetting([_suite("a", 20, 1.0)], {"a": [1, 0] * 10}, {"a": [0, 0] * 10})
    many = forgetting([_suite("a", 400, 1.0)], {"a": [1, 0] * 200}, {"a": [0, 0] * 200})
    assert few is not None
    assert many is not None
    assert many["high"] - many["low"] < (few["high"] - few["low"]) / 3
    rows = {"a": [1, 0] * 100, "bb": [1, 0] * 100}
    two = forgetting([_suite("a", 200, 1.0), _suite("bb", 200, 1.0)], rows, {"a": [0] * 200, "bb": [0] * 200})
    one = forgetting([_suite("a", 200, 1.0)], rows, {"a": [0] * 200})
    assert two is not None
    assert one is not None
    assert two["high"] - two["low"] == pytest.approx((one["high"] - one["low"]) / 2**0.5, rel=0.1)
