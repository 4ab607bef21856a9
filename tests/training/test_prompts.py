"""Which prompts a pass takes."""

from __future__ import annotations

import json
from typing import Any

import pytest

from finery.stats.difficulty import DifficultyTracker
from finery.training.prompts import PromptPlan

IDS = [f"p{index}" for index in range(6)]


def _plan(
    tracker: DifficultyTracker, said: list[str], *, policy: str = "epoch_filter", batch: int = 2, **more: Any
) -> PromptPlan:
    return PromptPlan(IDS, tracker, policy=policy, band=[0.2, 0.8], batch=batch, seed=5, warn=said.append, **more)  # type: ignore[arg-type]


def _known(**solved: int) -> DifficultyTracker:
    return DifficultyTracker({name: {"n": 16, "solved": count} for name, count in solved.items()})


def test_a_pass_takes_each_prompt_once_in_an_order_of_its_own() -> None:
    plan = _plan(DifficultyTracker(), [], policy="none")
    passes = [[position for _ in range(3) for position in plan.draw(2)] for _ in range(4)]
    assert all(sorted(drawn) == list(range(6)) for drawn in passes)
    assert len({tuple(drawn) for drawn in passes}) > 1
    assert plan.passes == 4


def test_too_easy_and_too_hard_prompts_sit_out_and_unseen_ones_do_not() -> None:
    said: list[str] = []
    plan = _plan(_known(p0=0, p1=16, p2=8), said)
    assert sorted(plan.draw(2) + plan.draw(2)) == [2, 3, 4, 5]
    assert plan.candidates == 4
    assert not said


def test_the_band_is_judged_anew_at_each_pass() -> None:
    tracker = DifficultyTracker()
    plan = _plan(tracker, [])
    first = plan.draw(6)
    for position in first:
        tracker.update([IDS[position]] * 8, [position % 2 == 0 and place % 2 == 0 for place in range(8)])
    # p1, p3 and p5 were never solved
    assert sorted(plan.draw(3)) == [0, 2, 4]


def test_a_pass_of_fewer_than_a_batch_is_widened_to_the_nearest_and_said_once() -> None:
    said: list[str] = []
    plan = _plan(_known(p0=0, p1=16, p2=14, p3=1, p4=16, p5=8), said, batch=3)
    # p2 lies .05 outside the band, p3 .11
    assert sorted(plan.draw(3)) == [2, 3, 5]
    plan.draw(3)
    assert len(said) == 1
    assert "only 1 of 6 prompts" in said[0]


def test_a_batch_over_the_end_of_a_pass_repeats_no_prompt() -> None:
    plan = _plan(DifficultyTracker(), [], policy="none", batch=4)
    counts = dict.fromkeys(range(6), 0)
    for _ in range(9):
        drawn = plan.draw(4)
        assert len(set(drawn)) == 4
        for position in drawn:
            counts[position] += 1
    assert set(counts.values()) == {6}


def test_fewer_prompts_than_a_batch_are_repeated() -> None:
    drawn = _plan(DifficultyTracker(), [], policy="none").draw(13)
    assert {drawn.count(position) for position in range(6)} <= {2, 3}


def test_an_order_is_kept_in_every_pass_and_the_filter_still_leaves_out() -> None:
    plan = _plan(_known(p0=0, p4=16), [], ordered=True)
    assert [plan.draw(2) for _ in range(4)] == [[1, 2], [3, 5], [1, 2], [3, 5]]
    assert _plan(_known(p0=0, p1=16, p2=14, p3=1, p4=16, p5=8), [], batch=3, ordered=True).draw(3) == [2, 3, 5]


def test_weighted_prompts_are_drawn_with_replacement_among_those_in_the_band() -> None:
    weights = [1.0, 1.0, 2.0, 2.0, 2.0, 8.0]
    plan = _plan(_known(p5=16), [], weights=weights)
    drawn = [position for _ in range(4000) for position in plan.draw(2)]
    assert plan.passes == 1600
    shares = [drawn.count(position) / len(drawn) for position in range(6)]
    assert shares == pytest.approx([0.125, 0.125, 0.25, 0.25, 0.25, 0], abs=0.025)


@pytest.mark.parametrize("more", [{}, {"ordered": True}, {"weights": [1.0, 5.0, 1.0, 1.0, 2.0, 2.0]}])
@pytest.mark.parametrize("before", [1, 3, 4])
def test_a_plan_goes_on_from_its_state(before: int, more: dict[str, Any]) -> None:
    def visit(plan: PromptPlan) -> list[int]:
        drawn = plan.draw(2)
        plan.tracker.update([IDS[p] for p in drawn for _ in range(4)], [p < 3 for p in drawn for _ in range(4)])
        return drawn

    whole = _plan(DifficultyTracker(), [], **more)
    expected = [visit(whole) for _ in range(8)]
    killed = _plan(DifficultyTracker(), [], **more)
    for _ in range(before):
        visit(killed)
    state = json.loads(json.dumps(killed.state_dict()))
    resumed = _plan(DifficultyTracker(), [], **more)
    resumed.load_state_dict(state)
    assert [visit(resumed) for _ in range(8 - before)] == expected[before:]
    assert resumed.state_dict() == whole.state_dict()
