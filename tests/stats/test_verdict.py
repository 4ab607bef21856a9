"""The gate's verdict: the order of its rules, and what the reason says."""

from __future__ import annotations

import pytest

from finery.stats.intervals import Interval
from finery.stats.verdict import Verdict, decide


def _point(value: float, half: float = 0.0) -> Interval:
    return Interval(value, value - half, value + half, 100)


def _decide(p1: float, pk: float, half: float = 0.0, **options: float) -> Verdict:
    return decide(_point(p1, half), _point(pk, half), _point(pk - p1, half), k=8, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("p1", "pk", "verdict"),
    [(0.40, 0.80, "rl"), (0.40, 0.45, "more_data"), (0.93, 0.99, "skip_rl"), (0.40, 0.60, "rl"), (0.9, 0.9, "skip_rl")],
)
def test_the_designs_examples(p1: float, pk: float, verdict: str) -> None:
    result = _decide(p1, pk)
    assert result.verdict == verdict
    assert result.conclusive
    assert f"{p1:.3f}" in result.reason


def test_solved_comes_before_the_gap() -> None:
    assert _decide(0.6, 0.9, solved_at=0.5).verdict == "skip_rl"


@pytest.mark.parametrize(
    ("p1", "pk", "half", "verdict"),
    [
        (0.91, 0.99, 0.03, "skip_rl"),  # pass@1 may lie on either side of 0.9
        (0.89, 0.99, 0.03, "more_data"),
        (0.40, 0.62, 0.05, "rl"),  # the gap may lie on either side of 0.2
        (0.40, 0.58, 0.05, "more_data"),
    ],
)
def test_when_intervals_do_not_settle_it_the_point_estimates_do_and_the_reason_says_so(
    p1: float, pk: float, half: float, verdict: str
) -> None:
    result = _decide(p1, pk, half)
    assert result.verdict == verdict
    assert not result.conclusive
    assert "point estimates decided" in result.reason


def test_weak_greedy_accuracy_is_a_warning_of_an_rl_verdict_only() -> None:
    weak = _decide(0.34, 0.82, greedy=0.465)
    assert weak.verdict == "rl"
    assert weak.weak_greedy
    assert "greedy accuracy 0.465 is below 0.8" in weak.reason
    strong = _decide(0.34, 0.82, greedy=0.97)
    assert not strong.weak_greedy
    assert "warning" not in strong.reason
    assert not _decide(0.34, 0.40, greedy=0.2).weak_greedy


def test_case_P3_a_gate_is_not_passed_by_one_completion_in_two_hundred() -> None:
    result = _decide(0.005, 0.04, solved_at=0.5)
    assert result.verdict == "more_data"
    assert "0.005" in result.reason
