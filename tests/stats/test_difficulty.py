"""The difficulty tracker: what a band drops, how evidence fades, and that its state round-trips."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from finery.errors import InputError
from finery.stats.difficulty import DifficultyTracker, read_difficulty

BAND = [0.05, 0.95]


def test_unseen_prompts_are_always_drawn() -> None:
    tracker = DifficultyTracker({"seen": {"n": 0, "solved": 0}})
    assert tracker.in_band(["new", "seen"], [0.6, 0.7]) == [True, True]
    assert tracker.estimate("new") == 0.5


def test_the_band_is_judged_on_the_estimate_and_not_on_one_groups_rate() -> None:
    tracker = DifficultyTracker(discount=1.0)
    tracker.update(["a"] * 8, [False] * 8)
    assert tracker.estimate("a") == pytest.approx(0.5 / 9)
    assert tracker.in_band(["a"], BAND) == [True]
    tracker.update(["a"] * 8, [False] * 8)
    assert tracker.in_band(["a"], BAND) == [False]


def test_a_gates_sixteen_completions_place_prompts_in_and_out_of_the_band() -> None:
    counts = {f"p{c}": {"n": 16, "solved": c} for c in (0, 1, 8, 15, 16)}
    tracker = DifficultyTracker(counts)
    assert tracker.in_band(list(counts), BAND) == [False, True, True, True, False]


def test_old_evidence_is_discounted_once_a_visit() -> None:
    tracker = DifficultyTracker({"a": {"n": 10, "solved": 0}}, discount=0.5)
    tracker.update(["a", "b", "a", "a"], [True, False, True, None])
    assert tracker.as_difficulty() == {"prompts": {"a": {"n": 7, "solved": 2}, "b": {"n": 1, "solved": 0}}}
    assert tracker.estimate("a") == pytest.approx(2.5 / 8)


def test_a_visit_whose_completions_all_abstained_changes_nothing() -> None:
    tracker = DifficultyTracker({"a": {"n": 10, "solved": 5}}, discount=0.5)
    tracker.update(["a", "a"], [None, None])
    assert tracker.estimate("a") == 0.5
    assert tracker.as_difficulty()["prompts"]["a"] == {"n": 10, "solved": 5}


def test_intervals_narrow_with_evidence() -> None:
    tracker = DifficultyTracker({"few": {"n": 4, "solved": 2}, "many": {"n": 400, "solved": 200}})
    few, many = tracker.interval("few"), tracker.interval("many")
    assert few[0] < many[0] < 0.5 < many[1] < few[1]
    assert many[1] - many[0] == pytest.approx(2 * 1.96 * 0.025, rel=0.02)


def test_state_round_trips_through_json_exactly() -> None:
    tracker = DifficultyTracker({"a": {"n": 3, "solved": 1}}, discount=0.9)
    for _ in range(5):
        tracker.update(["a", "b"], [True, False])
    other = DifficultyTracker(discount=0.1)
    other.load_state_dict(json.loads(json.dumps(tracker.state_dict())))
    assert other.state_dict() == tracker.state_dict()
    tracker.update(["a"], [True])
    other.update(["a"], [True])
    assert other.as_difficulty() == tracker.as_difficulty()


def test_a_band_that_can_never_drop_a_prompt_is_known() -> None:
    tracker = DifficultyTracker(discount=0.1)
    assert not tracker.can_bite(BAND, 8)  # at most 8.9 completions of evidence: 0.5/9.9 > 0.05
    assert tracker.can_bite(BAND, 16)
    assert tracker.can_bite([0.3, 0.7], 8)
    assert DifficultyTracker(discount=1.0).can_bite(BAND, 2)
    assert not DifficultyTracker(discount=1.0).can_bite([0.0, 1.0], 64)
    assert DifficultyTracker({"a": {"n": 16, "solved": 0}}, discount=0.1).can_bite(BAND, 8)


def test_impossible_counts_are_refused() -> None:
    with pytest.raises(ValueError, match="impossible"):
        DifficultyTracker({"a": {"n": 3, "solved": 4}})
    with pytest.raises(ValueError, match="discount"):
        DifficultyTracker(discount=0.0)


def test_a_difficulty_file_is_read_or_refused_by_name(tmp_path: Path) -> None:
    tracker = DifficultyTracker({"a": {"n": 16, "solved": 3}})
    (tmp_path / "difficulty.json").write_text(json.dumps(tracker.as_difficulty()))
    assert read_difficulty(tmp_path) == {"a": {"n": 16.0, "solved": 3.0}}
    (tmp_path / "other.json").write_text('{"prompts": [1]}')
    with pytest.raises(InputError, match=r"other\.json: is not a difficulty"):
        read_difficulty(tmp_path / "other.json")
    with pytest.raises(InputError, match="not found"):
        read_difficulty(tmp_path / "absent")
