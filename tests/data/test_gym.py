from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from finery.data.sources.gym import json_form, revived
from finery.errors import InputError
from finery.rewards import build
from finery.schemas.rewards import ReasoningGymReward

pytest.importorskip("reasoning_gym")


def source(**more: Any) -> dict[str, Any]:
    return {"sources": [{"kind": "reasoning_gym", "rows": 6, **more}]}


def solved(rows: list[dict[str, Any]], completions: list[str]) -> list[bool | None]:
    rewards = build([ReasoningGymReward(kind="reasoning_gym")], {})
    return rewards.score(rows, completions, [[1]] * len(rows), [False] * len(rows)).solved


def test_a_task_gives_prompts_answers_and_what_its_verifier_needs(make: Callable[..., Any]) -> None:
    config = source(
        task="chain_sum", config={"max_terms": 2}, prompt_suffix=" End with ####.", completion="#### {answer}"
    )
    made = make(config)
    rows = made.rows("train")
    assert len(rows) == 6
    for row in rows:
        assert row["prompt"].endswith(" End with ####.")
        assert row["completion"] == f"#### {row['answer']}"
        assert row["meta"]["reasoning_gym"]["task"] == "chain_sum"
    assert solved(rows, [row["completion"] for row in rows]) == [True] * 6
    assert solved(rows, ["#### none"] * 6) == [False] * 6
    assert make(config).rows("train") == rows
    assert make(config, seed=8).rows("train") != rows


def test_the_suffix_is_no_part_of_the_group(make: Callable[..., Any]) -> None:
    splits = {"splits": {"a": 0.5, "b": 0.5}}
    one = make({**source(task="chain_sum", rows=60), **splits})
    two = make({**source(task="chain_sum", rows=60, prompt_suffix="!"), **splits})
    assert {row["prompt"] + "!" for row in one.rows("a")} == {row["prompt"] for row in two.rows("a")}


def test_tuples_survive_so_that_the_verifier_accepts_its_own_answer(make: Callable[..., Any]) -> None:
    rows = make(source(task="rearc", rows=2)).rows("train")
    assert solved(rows, [f"<answer>{row['answer']}</answer>" for row in rows]) == [True, True]
    entry = {"a": [(1, (2, "x")), {"b": ()}]}
    assert revived(json_form(entry, "t", "sources.0")) == entry


def test_a_task_without_one_answer_has_none_and_is_still_judged(make: Callable[..., Any]) -> None:
    rows = make(source(task="graph_color", rows=2)).rows("train")
    assert all("answer" not in row and "completion" not in row for row in rows)
    assert solved(rows, ["nonsense", "{"]) == [False, False]


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"task": "chain_sums"}, "no task chain_sums; did you mean chain_sum"),
        (
            {"task": "chain_sum", "config": {"max_term": 2}},
            "chain_sum has no parameter max_term; did you mean max_terms",
        ),
        ({"task": "chain_sum", "config": {"min_terms": 5, "max_terms": 2}}, "chain_sum refuses it"),
    ],
)
def test_an_unknown_task_or_parameter_is_an_error(make: Callable[..., Any], more: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        make(source(**more))
