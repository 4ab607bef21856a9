from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from finery.errors import InputError, StageError
from finery.rewards import RewardSet

ROW = {"id": "r0", "prompt": "p", "answer": "4"}
ANSWER = {"kind": "answer", "extract": "hash", "compare": "number"}
PLAIN = {"kind": "format", "pattern": "####.*"}


def run(rewards: RewardSet, texts: list[str], rows: Any = None, truncated: list[bool] | None = None) -> Any:
    rows = rows or [ROW] * len(texts)
    return rewards.score(rows, texts, [[1]] * len(texts), truncated or [False] * len(texts))


def python(tmp_path: Path, code: str, function: str = "score", **more: Any) -> dict[str, Any]:
    (tmp_path / "mine.py").write_text(code)
    return {"kind": "python", "file": "mine.py", "function": function, **more}


def test_case_R6_each_tag_once_in_order_and_nothing_outside(rewards: Callable[..., RewardSet], cases: Path) -> None:
    items = json.loads((cases / "R6.json").read_text())
    scores = run(rewards({"kind": "format"}), [item["text"] for item in items])
    assert scores.per_reward["format"] == [float(item["expected"]) for item in items]


def test_a_pattern_must_match_the_whole_completion_over_lines(rewards: Callable[..., RewardSet]) -> None:
    made = rewards({"kind": "format", "pattern": "A:.*#### \\d+"})
    assert run(made, ["A:1+1=2\n#### 2", "A:1+1=2\n#### 2 so", "#### 2"]).solved == [True, False, False]
    with pytest.raises(InputError, match=r"rewards\.0\.pattern: is not a regular expression"):
        rewards({"kind": "format", "pattern": "("})


def test_the_verifier_decides_and_the_total_is_weighted(rewards: Callable[..., RewardSet]) -> None:
    made = rewards({**ANSWER, "weight": 2.0, "verifier": True}, {**PLAIN, "weight": 0.5})
    assert (made.names, made.weights, made.verifier) == (["answer", "format"], [2.0, 0.5], 0)
    scores = run(made, ["#### 4", "#### 5", "4"])
    assert scores.per_reward == {"answer": [1.0, 0.0, 0.0], "format": [1.0, 1.0, 0.0]}
    assert scores.total == [2.5, 0.5, 0.0]
    assert scores.solved == [True, False, False]


def test_an_abstaining_reward_is_left_out_of_the_total(rewards: Callable[..., RewardSet]) -> None:
    made = rewards({**ANSWER, "verifier": True}, PLAIN)
    scores = run(made, ["#### 4"], [{**ROW, "answer": "?"}])
    assert (scores.total, scores.solved) == ([1.0], [None])


def test_solved_is_the_threshold_and_never_truth(rewards: Callable[..., RewardSet], tmp_path: Path) -> None:
    code = "def score(completions, **_):\n    return [float(c) if c != 'none' else None for c in completions]\n"
    texts = ["0.005", "0.5", "0.49999", "1", "-1", "none"]
    half = run(rewards(python(tmp_path, code, pass_threshold=0.5)), texts)
    assert half.solved == [False, True, False, True, False, None]
    assert run(rewards(python(tmp_path, code)), texts).solved == [False, False, False, True, False, None]
    cut = run(rewards(python(tmp_path, code)), texts, truncated=[True] * 6)
    assert cut.solved == [False] * 6


def test_functions_have_trls_signature_and_distinct_names(rewards: Callable[..., RewardSet]) -> None:
    made = rewards({**ANSWER, "verifier": True}, {"kind": "answer"}, PLAIN)
    assert [function.__name__ for function in made.functions] == made.names == ["answer", "answer_2", "format"]
    given = {"prompts": ["p"], "completions": ["#### 4"], "completion_ids": [[1]], "answer": ["4"]}
    assert made.functions[0](**given, id=["r"], meta=[None], trainer_state=object()) == [1.0]
    chat = [[{"role": "assistant", "content": "#### 4"}]]
    assert made.functions[0](**{**given, "completions": chat}) == [1.0]
    assert made.functions[0](**given, truncated=[True]) == [0.0]


def test_a_users_function_is_given_what_trl_would_give(rewards: Callable[..., RewardSet], tmp_path: Path) -> None:
    code = """
SEEN = {}
def score(prompts, completions, completion_ids, truncated, answer, **columns):
    SEEN.update(locals())
    return [1] * len(prompts)
def narrow(completions, answer):
    return [c == a for c, a in zip(completions, answer)]
"""
    rows: list[dict[str, Any]] = [{**ROW, "meta": {"a": 1}}, {**ROW, "prompt": [{"role": "user", "content": "q"}]}]
    made = rewards(python(tmp_path, code))
    run(made, ["x", "y"], rows, [False, True])
    seen = made.functions[0].__closure__
    assert seen is not None
    function = next(cell.cell_contents for cell in seen if getattr(cell.cell_contents, "__wrapped__", None)).__wrapped__
    got = function.__globals__["SEEN"]
    assert got["prompts"] == ["p", [{"role": "user", "content": "q"}]]
    assert got["completions"] == ["x", [{"role": "assistant", "content": "y"}]]
    assert (got["truncated"], got["answer"]) == ([False, True], ["4", "4"])
    assert got["columns"] == {"id": ["r0", "r0"], "meta": [{"a": 1}, None]}
    assert run(rewards(python(tmp_path, code, "narrow")), ["4", "5"]).solved == [True, False]


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("return [1.0]", "returned 1 values for 2 completions"),
        ("return 1.0", "returned float; a list"),
        ("return ['1', None]", r"returned str '1' for sample 0 \(row r0\)"),
        ("return [1.0, float('nan')]", r"returned nan for sample 1 \(row r1\)"),
        ("return [float('inf'), 0]", "returned inf for sample 0"),
        (
            "return [1 / int(c) for c in completions]",
            r"ZeroDivisionError: division by zero at mine\.py:2 on sample 1 \(row r1\): completion '0' "
            r"\(1 of 2 samples of the batch\)",
        ),
        (
            "assert len(completions) < 2; return [1]",
            "AssertionError.* on a batch of 2 completions, but on none of them alone",
        ),
    ],
)
def test_a_users_mistake_names_the_function_and_the_sample(
    rewards: Callable[..., RewardSet], tmp_path: Path, body: str, message: str
) -> None:
    made = rewards(python(tmp_path, f"def score(completions, **_):\n    {body}\n"))
    with pytest.raises(StageError, match=rf"rewards\.0 \(python mine\.py:score\) .*{message}"):
        run(made, ["1", "0"], [ROW, {**ROW, "id": "r1"}])


def test_a_rows_own_completion_goes_to_the_rewards_as_its_solution(
    rewards: Callable[..., RewardSet], tmp_path: Path
) -> None:
    made = rewards(
        python(
            tmp_path, "def score(completions, solution):\n    return [c == s for c, s in zip(completions, solution)]"
        )
    )
    assert run(made, ["a", "b"], [{**ROW, "completion": "a"}, {**ROW, "completion": "a"}]).solved == [True, False]


def test_rows_no_reward_can_judge_are_found_with_column_and_reason(
    rewards: Callable[..., RewardSet], tmp_path: Path
) -> None:
    own = python(tmp_path, "def score(completions, **_):\n    return [1] * len(completions)")
    made = rewards({**ANSWER, "verifier": True}, {"kind": "choice", "choices": ["4", "5"]}, PLAIN, own)
    rows = [{**ROW, "answer": answer} for answer in ("4", "see figure", "6", None)]
    assert made.check(rows) == [
        None, ("answer", "is not a number"), ("answer", "'6' is none of 4, 5"), ("answer", "is missing"),
    ]  # fmt: skip
    assert made.explain(ROW, "#### 5", [1], False) == {
        "answer": "'5' after #### is not '4', as exact numbers",
        "choice": "chose '5' after ####; right is '4'",
        "format": "the pattern matches",
    }


def test_an_asynchronous_function_is_refused(rewards: Callable[..., RewardSet], tmp_path: Path) -> None:
    made = rewards(python(tmp_path, "async def score(completions, **_):\n    return [1]\n"))
    with pytest.raises(StageError, match="is asynchronous"):
        run(made, ["1"])


def test_modules_beside_the_file_are_its_own(rewards: Callable[..., RewardSet], tmp_path: Path) -> None:
    for name, value in (("one", 1.0), ("two", 0.0)):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "finery_test_beside.py").write_text(f"VALUE = {value}\n")
        (folder / "late_beside.py").write_text(f"VALUE = {value}\n")
        (folder / "mine.py").write_text(
            "import finery_test_beside\n"
            "def score(completions, **_):\n"
            "    import late_beside\n"
            "    return [(finery_test_beside.VALUE + late_beside.VALUE) / 2] * len(completions)\n"
        )
    before = list(sys.path)
    items = [{"kind": "python", "file": f"{name}/mine.py", "function": "score"} for name in ("one", "two")]
    made = rewards({**items[0], "verifier": True}, items[1])
    for _ in range(2):
        assert run(made, ["a"]).per_reward == {"score": [1.0], "score_2": [0.0]}
    assert sys.path == before
    assert not {"finery_test_beside", "late_beside"} & set(sys.modules)


@pytest.mark.parametrize(
    ("code", "function", "message"),
    [
        ("def other(): pass", "score", r"mine\.py: has no function score; it has other"),
        ("def score(:\n", "score", r"mine\.py:1: cannot be loaded: SyntaxError"),
        ("import no_such_module_here", "score", "ModuleNotFoundError"),
        ("score = 3", "score", "has no function score; it has none"),
    ],
)
def test_a_file_that_cannot_be_used_is_bad_input(
    rewards: Callable[..., RewardSet], tmp_path: Path, code: str, function: str, message: str
) -> None:
    before = list(sys.path)
    with pytest.raises(InputError, match=message):
        rewards(python(tmp_path, code, function))
    assert sys.path == before


def test_a_file_that_is_not_there_is_bad_input(rewards: Callable[..., RewardSet]) -> None:
    with pytest.raises(InputError, match="no such file"):
        rewards({"kind": "python", "file": "gone.py", "function": "score"})


def test_reasoning_gym_needs_rows_it_made(rewards: Callable[..., RewardSet]) -> None:
    with pytest.raises(StageError, match=r"needs rows made by a data source of kind reasoning_gym"):
        run(rewards({"kind": "reasoning_gym"}), ["4"], [{**ROW, "meta": {"topic": "x"}}])


@pytest.mark.slow
def test_reasoning_gym_scores_in_part_and_calls_what_breaks_its_verifier_wrong(
    rewards: Callable[..., RewardSet],
) -> None:
    pytest.importorskip("reasoning_gym")
    entry = {"question": "factors of 12", "answer": "2 × 2 × 3", "metadata": {"number": 12, "factors": [2, 2, 3]}}
    row = {**ROW, "meta": {"reasoning_gym": {"task": "prime_factorization", "entry": entry}}}
    made = rewards({"kind": "reasoning_gym"})
    scores = run(made, ["so <answer>2 × 2 × 3</answer>", "abc", "2 × 6", ""], [row] * 4)
    right, broken, part, none = scores.per_reward["reasoning_gym"]
    assert (right, broken, none) == (1.0, 0.0, 0.0)
    assert part is not None
    assert 0.0 < part < 1.0
    assert scores.solved == [True, False, False, False]
    assert math.isclose(scores.total[2] or 0.0, part)
