"""pass@k and maj@k against hand-computed values and brute force."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import numpy as np
import pytest

from finery.stats.passk import maj_at_k, mean_pass_at_k, pass_at_k

CASES = Path(__file__).parents[1] / "cases"


def test_case_P1_unbiased_estimator_gives_the_known_values() -> None:
    case = json.loads((CASES / "P1.json").read_text())
    for row in case["values"]:
        assert pass_at_k(row["n"], row["c"], row["k"]) == pytest.approx(row["pass_at_k"], abs=case["tol"])
    n, c = (np.array([row[key] for row in case["values"] if row["k"] == 5]) for key in "nc")
    expected = [row["pass_at_k"] for row in case["values"] if row["k"] == 5]
    assert pass_at_k(n, c, 5) == pytest.approx(expected, abs=case["tol"])
    assert pass_at_k(10, 3, 5) != pytest.approx(case["biased_wrong"]["(10,3,5)"], abs=0.05)


def test_case_P1_more_k_than_completions_raises_and_is_never_one() -> None:
    for row in json.loads((CASES / "P1.json").read_text())["must_raise"]:
        with pytest.raises(ValueError, match=f"pass@{row['k']} cannot be estimated from n={row['n']}"):
            pass_at_k(row["n"], row["c"], row["k"])


def test_case_P2_problems_are_not_samples() -> None:
    case = json.loads((CASES / "P2.json").read_text())
    counts = [(1, 1)] * case["solved"] + [(1, 0)] * (case["problems"] - case["solved"])
    assert mean_pass_at_k(counts, 1) == pytest.approx(case["pass@1"], abs=1e-12)
    for k in (10, 100):
        with pytest.raises(ValueError, match=f"pass@{k} cannot be estimated from n=1"):
            mean_pass_at_k(counts, k)


def test_case_P3_a_score_is_not_a_truth_value() -> None:
    case = json.loads((CASES / "P3.json").read_text())
    counts = [(row["n"], row["c"]) for row in case["per_problem"]]
    assert mean_pass_at_k(counts, 1) == pytest.approx(case["pass@1"], abs=1e-12)
    assert mean_pass_at_k(counts, 1) < 0.5
    with pytest.raises(ValueError, match="whole numbers"):
        pass_at_k(200, 0.005, 1)


def test_pass_at_k_is_the_share_of_subsets_that_hold_a_solved_one() -> None:
    for n, c, k in itertools.product(range(1, 8), range(8), range(1, 8)):
        if c <= n and k <= n:
            subsets = list(itertools.combinations([True] * c + [False] * (n - c), k))
            assert pass_at_k(n, c, k) == pytest.approx(sum(map(any, subsets)) / len(subsets), abs=1e-12)


@pytest.mark.parametrize(("n", "c", "k"), [(5, 6, 1), (5, -1, 1), (5, 2, 0), (5, 2, 1.0), (5, 2, True)])
def test_impossible_counts_are_refused(n: int, c: int, k: int) -> None:
    with pytest.raises(ValueError):
        pass_at_k(n, c, k)


def test_no_problem_has_no_mean() -> None:
    with pytest.raises(ValueError, match="no problems"):
        mean_pass_at_k([], 1)


def test_the_most_frequent_answer_wins() -> None:
    assert maj_at_k(["7", "7", "9"], [True, True, False], 3) == 1.0
    assert maj_at_k(["9", "7", "9"], [False, True, False], 3) == 0.0


def test_a_tie_counts_half_and_completions_without_an_answer_do_not_vote() -> None:
    assert maj_at_k(["7", "9"], [True, False], 2) == 0.5
    assert maj_at_k([None, None, "7"], [False, False, True], 3) == 1.0
    assert maj_at_k([None, None], [False, False], 2) == 0.0


def test_whole_blocks_are_averaged_and_the_rest_is_left_out() -> None:
    assert maj_at_k(["7", "7", "9", "9", "9"], [True, True, False, False, False], 2) == 0.5


def test_abstained_completions_leave_the_vote() -> None:
    assert maj_at_k(["9", "7", "9"], [None, True, None], 1) == 1.0
    assert maj_at_k(["9", "7"], [None, True], 2) is None
