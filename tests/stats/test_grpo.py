"""Advantages on the hand-computable values of case G1, and what abstains."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from finery.stats.grpo import advantages, zero_std_groups

CASES = Path(__file__).parents[1] / "cases"


def test_case_G1_sample_deviation_as_trl_and_no_scale_as_dr_grpo() -> None:
    case = json.loads((CASES / "G1.json").read_text())
    got = advantages(case["rewards"], 5)
    assert got == pytest.approx(case["adv_sample_eps1e-4"], abs=1e-7)
    assert not np.allclose(got, case["adv_population_eps1e-4"], atol=0.05)
    assert advantages(case["rewards"], 5, scale="none") == pytest.approx(case["adv_no_scale_dr_grpo"], abs=1e-12)


def test_case_G1_groups_are_kept_apart() -> None:
    case = json.loads((CASES / "G1.json").read_text())
    got = advantages([r for group in case["two_groups"] for r in group], 4).reshape(2, 4)
    assert got == pytest.approx(np.array(case["adv_group"]), abs=case["tol"])
    batch = advantages([r for group in case["two_groups"] for r in group], 4, scale="batch")
    assert batch == pytest.approx(np.array([0.5, 0.5, -0.5, -0.5, -0.25, -0.25, -0.25, 0.75]) / (0.5175492 + 1e-4))


@pytest.mark.parametrize("scale", ["group", "batch", "none"])
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_case_G1_a_constant_group_has_advantage_exactly_zero(scale: str, dtype: type) -> None:
    case = json.loads((CASES / "G1.json").read_text())
    rewards = np.array([*case["constant_group"], 1, 0, 1, 0, 1, 0, 1, 0], dtype=dtype)
    got = advantages(rewards, 8, scale=scale)  # type: ignore[arg-type]
    assert np.all(got[:8] == 0.0)
    assert np.all(got[8:] != 0.0)
    assert zero_std_groups(rewards, 8).tolist() == [True, False]


def test_case_G1_a_spread_of_rounding_only_is_constant() -> None:
    assert np.all(advantages([0.1 + 0.2, 0.3, 0.3, 0.3], 4, eps=1e-8) == 0.0)
    assert np.all(advantages([1e6, 1e6 + 1e-3, 1e6, 1e6], 4) == 0.0)
    assert not np.any(advantages([0.0, 1e-5, 0.0, 0.0], 4) == 0.0)


def test_case_G1_a_group_of_one_is_refused() -> None:
    case = json.loads((CASES / "G1.json").read_text())
    with pytest.raises(ValueError, match="group of 1"):
        advantages(case["single"][0], 1)


def test_case_G2_an_abstained_reward_shifts_nothing() -> None:
    case = json.loads((CASES / "G2.json").read_text())
    assert advantages(case["rewards"], 4) == pytest.approx(case["adv"], abs=case["tol"])
    assert advantages([1, 0, float("nan"), 1], 4) == pytest.approx(case["adv"], abs=case["tol"])
    assert advantages(case["one_valid"], 4).tolist() == case["one_valid_adv"]
    assert zero_std_groups(case["one_valid"], 4).tolist() == [True]
    assert advantages([None, None], 2).tolist() == [0.0, 0.0]


def test_what_cannot_be_grouped_is_refused() -> None:
    with pytest.raises(ValueError, match="do not make groups"):
        advantages([1, 0, 1], 2)
    with pytest.raises(ValueError, match="infinite"):
        advantages([1, float("inf")], 2)
    with pytest.raises(ValueError, match="scale"):
        advantages([1, 0], 2, scale="std")  # type: ignore[arg-type]
