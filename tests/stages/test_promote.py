"""Promotion: what holds, what fails and by how much, and that nothing missing ever passes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from finery.contract import StageContext, StageResult
from finery.errors import InputError
from finery.schemas.promote import PromoteStage
from finery.stages import promote

DIGEST = "a" * 64


def _evaluation(**changed: Any) -> dict[str, Any]:
    def metrics(value: Any) -> dict[str, Any]:
        return {"value": value, "low": 0.0, "high": 1.0, "n": 10}

    return {
        "reference": "sft",
        "models": {
            "merged": {"domain": {"pass_at_1": metrics(0.61)}, "general": {"greedy": metrics(0.93)}},
            "base": {"domain": {"pass_at_1": metrics(0.0)}, "general": {"greedy": metrics(0.97)}},
            "./models/v1.2": {"domain": {"pass_at_1": metrics(0.8)}},
        },
        "digests": {"merged": DIGEST, "base": "b" * 64, "./models/v1.2": "c" * 64},
        "same": {},
    } | changed


def _run(
    folder: Path, require: dict[str, Any], *, evaluation: Any = None, digest: str = DIGEST, **fields: Any
) -> tuple[StageResult, dict[str, Any]]:
    (folder / "exam").mkdir(parents=True, exist_ok=True)
    text = evaluation if isinstance(evaluation, str) else json.dumps(evaluation or _evaluation())
    (folder / "exam" / "evaluation.json").write_text(text)
    context = StageContext(
        stage="promote",
        seed=0,
        output_dir=folder / "outputs",
        checkpoint_dir=folder / "checkpoints",
        metrics_path=folder / "metrics.jsonl",
        base_dir=folder,
        input_digests={"model": digest, "evaluation": "e" * 64},
    )
    given = {"kind": "promote", "model": "merged", "evaluation": "exam", "require": require} | fields
    result = promote.run(
        PromoteStage.model_validate(given), {"evaluation": folder / "exam", "model": folder / "model"}, context
    )
    return result, json.loads((folder / "outputs" / "decision" / "decision.json").read_text())


def test_a_model_that_meets_every_condition_is_promoted(tmp_path: Path) -> None:
    require = {
        "merged.domain.pass_at_1": {"min": 0.6, "max": 0.7},
        "merged.general.greedy": {"max_drop": 0.04, "from": "base"},
    }
    result, decision = _run(tmp_path, require, name="arith", alias="best")
    assert decision["verdict"] == "promote"
    assert (decision["name"], decision["alias"], decision["model"], decision["model_digest"]) == (
        "arith", "best", "merged", DIGEST,
    )  # fmt: skip
    assert [condition["passed"] for condition in decision["conditions"]] == [True, True]
    assert decision["conditions"][1]["bound"] == {"max_drop": 0.04, "from": "base"}
    assert result.summary["headline"] == "merged earns best: all 2 conditions hold"
    assert result.metrics == {"conditions": 2, "failed": 0}


@pytest.mark.parametrize(
    ("require", "reason"),
    [
        ({"merged.domain.pass_at_1": {"min": 0.7}}, "merged.domain.pass_at_1 0.61 is 0.09 below min 0.70"),
        ({"merged.domain.pass_at_1": {"max": 0.5}}, "merged.domain.pass_at_1 0.61 is 0.11 above max 0.50"),
        ({"merged.domain.pass_at_1": {"min": 0.61005}}, "0.61 is 0.000050 below min 0.61005"),
        (
            {"merged.general.greedy": {"max_drop": 0.02, "from": "base"}},
            "merged.general.greedy 0.93 lies 0.04 below base.general.greedy 0.97, 0.02 more than max_drop 0.02",
        ),
        ({"merged.domain.pass_at_8": {"min": 0.0}}, "has no metric pass_at_8, only pass_at_1"),
        ({"merged.code.pass_at_1": {"min": 0.0}}, "has no suite code, only domain, general"),
        ({"grpo.domain.pass_at_1": {"min": 0.0}}, "has no model grpo, only merged, base, ./models/v1.2"),
        (
            {"merged.general.greedy": {"max_drop": 0.5, "from": "./models/v1.2"}},
            "./models/v1.2.general.greedy is missing: the exam has no suite general, only domain",
        ),
    ],
)
def test_a_failed_condition_says_by_how_much(tmp_path: Path, require: dict[str, Any], reason: str) -> None:
    result, decision = _run(tmp_path, {"merged.general.greedy": {"min": 0.9}} | require)
    assert decision["verdict"] == "refuse"
    failed = [condition for condition in decision["conditions"] if not condition["passed"]]
    assert len(failed) == 1
    assert reason in failed[0]["reason"]
    assert reason in str(result.summary["headline"])
    assert result.metrics["failed"] == 1


@pytest.mark.parametrize("value", ["NaN", "Infinity", "-Infinity", "null", '"0.9"', "true", "[]"])
def test_a_number_that_is_not_finite_never_passes(tmp_path: Path, value: str) -> None:
    text = json.dumps(_evaluation()).replace("0.61", value)
    for bound in ({"min": -1e9}, {"max": 1e9}):
        _, decision = _run(tmp_path, {"merged.domain.pass_at_1": bound}, evaluation=text)
        assert decision["verdict"] == "refuse"
        assert "not a finite number" in decision["conditions"][0]["reason"]
        assert decision["conditions"][0]["value"] is None
    _, decision = _run(tmp_path, {"base.domain.pass_at_1": {"max_drop": 1.0, "from": "merged"}}, evaluation=text)
    assert decision["verdict"] == "refuse"


def test_a_bound_that_is_met_exactly_holds_in_spite_of_rounding(tmp_path: Path) -> None:
    text = json.dumps(_evaluation()).replace("0.93", "0.3").replace("0.97", "0.4")
    _, decision = _run(tmp_path, {"merged.general.greedy": {"max_drop": 0.1, "from": "base"}}, evaluation=text)
    assert 0.4 - 0.3 > 0.1
    assert decision["verdict"] == "promote"


def test_a_reference_with_dots_is_read_from_the_end(tmp_path: Path) -> None:
    require = {"./models/v1.2.domain.pass_at_1": {"min": 0.75}}
    _, decision = _run(tmp_path, require, model="./models/v1.2", digest="c" * 64)
    assert decision["verdict"] == "promote"


def test_an_exam_of_another_model_of_that_name_promotes_nothing(tmp_path: Path) -> None:
    _, decision = _run(tmp_path, {"merged.domain.pass_at_1": {"min": 0.1}}, digest="d" * 64)
    assert decision["verdict"] == "refuse"
    assert "the exam measured another merged (digest aaaaaaaaaaaa)" in decision["conditions"][0]["reason"]


def test_conditions_on_other_models_alone_promote_nothing(tmp_path: Path) -> None:
    _, decision = _run(tmp_path, {"base.general.greedy": {"min": 0.1}})
    assert decision["verdict"] == "refuse"
    assert "no condition is about merged itself" in decision["conditions"][0]["reason"]


def test_a_skipped_stages_name_stands_for_the_model_it_hands_on(tmp_path: Path) -> None:
    """promote names `grpo`, which was skipped and is the same model that the exam shows as `merged`."""
    _, decision = _run(tmp_path, {"merged.domain.pass_at_1": {"min": 0.1}}, model="grpo")
    assert decision["verdict"] == "promote"


@pytest.mark.parametrize("text", ["{", "[]", '{"models": 3}'])
def test_what_is_no_evaluation_is_refused_by_name(tmp_path: Path, text: str) -> None:
    with pytest.raises(InputError, match=r"evaluation\.json: is not"):
        _run(tmp_path, {"merged.domain.pass_at_1": {"min": 0.1}}, evaluation=text)


def test_a_number_judged_on_less_than_half_of_the_prompts_promotes_nothing(tmp_path: Path) -> None:
    evaluation = _evaluation()
    evaluation["suites"] = {"domain": {"prompts": 6}, "general": {"prompts": 6}}
    evaluation["models"]["merged"]["domain"]["pass_at_1"]["n"] = 2
    _, decision = _run(tmp_path, {"merged.domain.pass_at_1": {"min": 0.1}}, evaluation=evaluation)
    assert decision["verdict"] == "refuse"
    assert "judged on 2 of 6 prompts only" in decision["conditions"][0]["reason"]


def _forgot(**changed: Any) -> dict[str, Any]:
    lost = {"value": 0.04, "low": 0.01, "high": 0.07, "n": 10, "suites": {"general": {"drop": 0.04, "n": 10}}}
    return _evaluation(forgetting={"merged": lost | changed}, suites={"general": {"prompts": 10}})


@pytest.mark.parametrize(
    ("condition", "said"),
    [
        ({"max": 0.05}, None),
        ({"max": 0.03}, "merged.forgetting 0.04 is 0.01 above max 0.03"),
        ({"max": 0.05, "on": "high"}, "merged.forgetting (high) 0.07 is 0.02 above max 0.05"),
        ({"max": 0.05, "on": "low"}, None),
    ],
)
def test_what_was_forgotten_is_bounded_by_its_number_or_a_limit(
    tmp_path: Path, condition: dict[str, Any], said: str | None
) -> None:
    _, decision = _run(tmp_path, {"merged.forgetting": condition}, evaluation=_forgot())
    (judged,) = decision["conditions"]
    assert judged["passed"] is (said is None)
    assert judged["value"] == 0.04
    assert said is None or judged["reason"] == said


def test_forgetting_that_was_not_measured_or_on_few_prompts_promotes_nothing(tmp_path: Path) -> None:
    _, decision = _run(tmp_path / "none", {"merged.forgetting": {"max": 0.5}})
    assert "the exam has no general suite" in decision["conditions"][0]["reason"]
    few = _forgot(suites={"general": {"drop": 0.04, "n": 4}})
    _, decision = _run(tmp_path / "few", {"merged.forgetting": {"max": 0.5}}, evaluation=few)
    assert "judged on 4 of 10 prompts only" in decision["conditions"][0]["reason"]
    _, decision = _run(
        tmp_path / "bare", {"merged.forgetting": {"max": 0.5, "on": "high"}}, evaluation=_forgot(high=None)
    )
    assert decision["conditions"][0]["reason"] == "merged.forgetting has no limit high to hold it to"
    assert decision["verdict"] == "refuse"


def test_a_bound_is_held_to_the_limit_that_it_names(tmp_path: Path) -> None:
    _, decision = _run(tmp_path, {"merged.domain.pass_at_1": {"min": 0.5, "on": "low"}})
    assert decision["verdict"] == "refuse"
    assert decision["conditions"][0]["bound"] == {"min": 0.5, "on": "low"}
    assert "merged.domain.pass_at_1 (low) 0.00 is 0.50 below min 0.50" in decision["conditions"][0]["reason"]
