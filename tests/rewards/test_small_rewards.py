"""length, repetition, regex, choice, json_schema and steps, on values worked out by hand."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pydantic import TypeAdapter, ValidationError

from finery.contract import Interrupted
from finery.errors import InputError, StageError
from finery.rewards import RewardSet, build
from finery.rewards.arithmetic import equations, value
from finery.rewards.length import overlong
from finery.rewards.repetition import repeated
from finery.rewards.rewardset import checked
from finery.rewards.steps import StepsFunction
from finery.rewards.user import UserFunction
from finery.schemas.rewards import PythonReward, Reward

Make = Callable[..., RewardSet]


def run(made: RewardSet, texts: list[str], rows: Any = None, cut: bool = False, ids: Any = None) -> list[float | None]:
    rows = rows or [{"prompt": "p"}] * len(texts)
    scores = made.score(rows, texts, ids or [[1]] * len(texts), [cut] * len(texts))
    return scores.per_reward[made.names[0]]


# length


@pytest.mark.parametrize(
    ("tokens", "penalty"), [(0, 0.0), (80, 0.0), (81, -0.05), (90, -0.5), (95, -0.75), (100, -1.0), (5000, -1.0)]
)
def test_the_penalty_of_dapo_grows_over_the_cache(tokens: int, penalty: float) -> None:
    assert overlong(tokens, most=100, cache=20) == pytest.approx(penalty, abs=1e-15)


def test_length_counts_tokens_and_gives_a_truncated_completion_the_whole_penalty(rewards: Make) -> None:
    made = rewards({"kind": "length", "max_tokens": 100, "cache": 20})
    assert run(made, ["a", "b"], ids=[[1] * 90, [1] * 10]) == [-0.5, 0.0]
    assert run(made, ["a"], ids=[[1] * 10], cut=True) == [-1.0]
    assert made.explain({}, "a", [1] * 90, False) == {"length": "90 tokens; free up to 80, -1 from 100"}
    assert made.explain({}, "a", [1] * 90, True) == {"length": "truncated: it would have gone on"}


# repetition


@pytest.mark.parametrize(
    ("ids", "ngram", "share"),
    [
        ([1, 2, 3, 4], 2, 0.0),
        ([1, 2, 1, 2], 2, 1 / 3),  # 12 21 12
        ([7] * 9, 2, 7 / 8),
        ([1, 2, 3, 1, 2, 3, 1, 2, 3], 3, 4 / 7),  # 123 231 312, seven in all
        ([1, 1], 3, 0.0),
        ([], 1, 0.0),
        ([5, 5, 6], 1, 1 / 3),
    ],
)
def test_repetition_is_the_share_of_ngrams_that_were_there_before(ids: list[int], ngram: int, share: float) -> None:
    assert repeated(ids, ngram) == pytest.approx(share)


def test_repetition_is_a_penalty_and_judges_what_there_is_of_a_truncated_completion(rewards: Make) -> None:
    made = rewards({"kind": "repetition", "ngram": 2})
    assert run(made, ["a", "b"], ids=[[7] * 9, [1, 2]]) == [-7 / 8, 0.0]
    assert run(made, ["a"], ids=[[7] * 9], cut=True) == [-7 / 8]
    assert made.explain({}, "a", [7] * 9, False) == {"repetition": "1 of 8 2-grams are new"}


# regex


def test_a_pattern_is_searched_for_over_lines(rewards: Make) -> None:
    made = rewards({"kind": "regex", "pattern": r"A:.*B"})
    assert run(made, ["x A: 1\n2 B y", "A:", ""]) == [1.0, 0.0, 0.0]
    assert run(made, ["A: B"], cut=True) == [0.0]
    assert made.explain({}, "A: B", [], False) == {"regex": "the pattern is found"}


def test_a_group_of_the_last_match_is_compared_with_the_answer(rewards: Make) -> None:
    made = rewards({"kind": "regex", "pattern": r"name: (?P<who>[^\n]+)", "group": "who"})
    rows = [{"prompt": "p", "answer": gold} for gold in ("Ann  Lee", "Ann Lee", "４", "", None)]
    texts = ["name: Bob\nname: Ann Lee ", "name: Ann Lee\nname: Bob", "name: 4", "name: 4", "name: 4"]
    assert run(made, texts, rows) == [1.0, 0.0, 1.0, None, None]
    assert made.check(rows) == [None, None, None, ("answer", "is missing or empty"), ("answer", "is missing or empty")]
    assert made.explain(rows[1], texts[1], [], False) == {"regex": "'Bob' is not 'Ann Lee'"}
    assert run(rewards({"kind": "regex", "pattern": "(a)|b", "group": 1}), ["a b"], [{"answer": "a"}]) == [0.0]


def test_a_pattern_that_runs_for_ever_is_wrong_and_its_batch_mates_are_judged(
    rewards: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    from finery.rewards import patterns
    from finery.rewards.worker import Worker

    monkeypatch.setattr(patterns, "PROCESS", Worker(patterns.PROCESS.script, deadline=0.5))
    texts = ["a" * 20, "a" * 5000 + "b", "aaa"]
    assert run(rewards({"kind": "regex", "pattern": "^(a+)+$"}), texts) == [1.0, 0.0, 1.0]
    assert run(rewards({"kind": "format", "pattern": "(a+)+"}), texts) == [1.0, 0.0, 1.0]


@pytest.mark.parametrize(
    ("reward", "message"),
    [
        ({"kind": "regex", "pattern": "("}, r"rewards\.0\.pattern: is not a regular expression"),
        ({"kind": "regex", "pattern": "(a)", "group": 2}, r"rewards\.0\.pattern: has no group 2; it has 1"),
        ({"kind": "regex", "pattern": "a", "group": "x"}, "has no group x; it has none"),
        ({"kind": "steps", "pattern": "(?P<left>a)=b"}, "needs the groups"),
        ({"kind": "choice", "choices": ["A", "A"]}, "each choice is to be there once"),
        ({"kind": "choice", "choices": ["A", " "]}, "none empty"),
    ],
)
def test_a_reward_that_cannot_be_used_is_bad_input(rewards: Make, reward: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        rewards(reward)


# choice


@pytest.mark.parametrize(
    ("text", "chosen"),
    [
        ("#### B", "B"), ("\\boxed{B}", "B"), ("\\boxed{\\text{(B)}}", "B"), ("<answer> B. </answer>", "B"),
        ("A is wrong. The answer is B.", "B"), ("The answer is (B) 12 apples.", "B"), ("The answer is B: 12", "B"),
        ("The answer is **B**, because A is too small.", "B"), ("答案是B。", "B"), ("答案：（B）", "B"), ("选项A不对，答案是 Ｂ", "B"),
        ("B", "B"), ("b", "B"), ("I choose B", "B"), ("A or B", None), ("The answer is A or B", None), ("", None),
        ("A bee is B", None), ("\\boxed{A} or \\boxed{B}", None), ("\\boxed{E}", None), ("#### A\n#### B", "B"),
        ("BAD", None), ("none of these", None), ("The answer is not B. The answer is C", "C"),
    ],
)  # fmt: skip
def test_a_choice_is_found_and_never_guessed(rewards: Make, text: str, chosen: str | None) -> None:
    made = rewards({"kind": "choice"})
    rows = [{"prompt": "p", "answer": gold} for gold in "ABCD"]
    assert run(made, [text] * 4, rows) == [float(gold == chosen) for gold in "ABCD"]
    assert run(made, [text] * 4, rows, cut=True) == [0.0] * 4


def test_choices_may_be_words_and_stand_first_or_last(rewards: Make) -> None:
    rows = [{"prompt": "p", "answer": "Not Enough Info"}]
    words = {"kind": "choice", "choices": ["enough info", "not enough info", "yes"]}
    assert run(rewards(words), ["It is NOT ENOUGH INFO."], rows) == [1.0]
    assert run(rewards({**words, "extract": "last"}), ["yes ... not enough  info"], rows) == [1.0]
    assert run(rewards({**words, "extract": "first"}), ["yes ... not enough info"], rows) == [0.0]
    chinese = {"kind": "choice", "choices": ["对", "错"]}
    assert run(rewards(chinese), ["这是错的", "不对", "答案：错"], [{"answer": "错"}] * 3) == [1.0, 0.0, 1.0]


def test_an_answer_that_is_none_of_the_choices_abstains(rewards: Make) -> None:
    made = rewards({"kind": "choice"})
    rows = [{"prompt": "p", "answer": gold} for gold in ("(b).", "E", "", None)]
    assert run(made, ["B"] * 4, rows) == [1.0, None, None, None]
    assert made.check(rows) == [
        None, ("answer", "'E' is none of A, B, C, D"), ("answer", "'' is none of A, B, C, D"), ("answer", "is missing"),
    ]  # fmt: skip
    assert made.explain(rows[0], "A or B", [], False) == {
        "choice": "no choice: in the whole text, where there are several: A, B"
    }
    assert made.explain(rows[0], "#### A", [], False) == {"choice": "chose 'A' after ####; right is '(b).'"}


# json_schema

SCHEMA = {
    "type": "object",
    "required": ["name", "age"],
    "properties": {"name": {"$ref": "#/$defs/name"}, "age": {"type": "integer", "minimum": 0}},
    "additionalProperties": False,
    "$defs": {"name": {"type": "string", "minLength": 1}},
}


@pytest.fixture
def schema(rewards: Make, tmp_path: Path) -> Callable[..., RewardSet]:
    def schema_(document: Any = SCHEMA, **more: Any) -> RewardSet:
        text = document if isinstance(document, str) else json.dumps(document)
        (tmp_path / "schema.json").write_text(text)
        return rewards({"kind": "json_schema", "file": "schema.json", **more})

    return schema_


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ('{"name": "Ann", "age": 4}', "fits the schema"),
        ('Here:\n```json\n{"name": "Ann", "age": 4}\n```\nDone.', "fits the schema"),
        ('```\n{}\n```\n```json\n{"name": "Ann", "age": 4}\n```', "fits the schema"),
        ('{"name": "Ann"}', "$: 'age' is a required property"),
        ('{"name": "", "age": 4}', "$.name: '' should be non-empty"),
        ('{"name": "Ann", "age": 4, "x": 1}', "$: Additional properties are not allowed ('x' was unexpected)"),
        ('{"name": "Ann", "age": "4"}', "$.age: '4' is not of type 'integer'"),
        ('{"name": "Ann", "age": 3, "age": 4}', "is not JSON: the key 'age' is there twice"),
        ('{"name": "Ann", "age": NaN}', "is not JSON: NaN is no JSON number"),
        ('{"name": "Ann", "age": 4} and more', "is not JSON: Extra data: line 1 column 27 (char 26)"),
        ("", "is not JSON: Expecting value: line 1 column 1 (char 0)"),
    ],
)
def test_json_fits_a_schema_or_not_and_why(schema: Callable[..., RewardSet], text: str, why: str) -> None:
    made = schema()
    assert run(made, [text]) == [float(why == "fits the schema")]
    assert made.explain({}, text, [], False) == {"json_schema": why}
    assert run(made, [text], cut=True) == [0.0]


def test_json_stands_in_a_block_or_is_the_whole_text(schema: Callable[..., RewardSet]) -> None:
    bare, block = '{"name": "Ann", "age": 4}', '```json\n{"name": "Ann", "age": 4}\n```'
    assert run(schema(extract="fence"), [bare, block]) == [0.0, 1.0]
    assert run(schema(extract="whole"), [bare, block]) == [1.0, 0.0]


def test_json_that_is_nested_too_deep_or_hangs_the_schema_is_wrong(
    schema: Callable[..., RewardSet], monkeypatch: pytest.MonkeyPatch
) -> None:
    from finery.rewards import patterns
    from finery.rewards.worker import Worker

    monkeypatch.setattr(patterns, "PROCESS", Worker(patterns.PROCESS.script, deadline=1.0))
    made = schema({"type": ["string", "array"], "pattern": "^(a+)+$"})
    assert run(made, ["[" * 100_000, json.dumps("a" * 5000 + "b"), '"aaa"', "1" * 5000]) == [0.0, 0.0, 1.0, 0.0]


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ("{", r"rewards\.0\.file: .*schema\.json: is not JSON"),
        ({"type": "objekt"}, r"is no JSON Schema: \$\.type"),
        (
            {"$ref": "https://example.org/schema.json"},
            r"refers to https://example\.org/schema\.json.*nothing is fetched",
        ),
    ],
)
def test_a_file_that_is_no_schema_is_bad_input(schema: Callable[..., RewardSet], document: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        schema(document)


# steps


@pytest.mark.parametrize(
    ("text", "worth"),
    [("17+8", 25), ("(1+2)*3", 9), ("7--2", 9), ("1,000+1", 1001), ("3 × 4", 12), ("12÷4", 3), ("2 x 3", 6), ("$5*3", 15),
     ("1/3", "1/3"), ("1/0", None), ("2^3", None), ("", None), ("1+", None), ("(1", None), ("x", None), ("((((1))))", 1)],
)  # fmt: skip
def test_arithmetic_is_exact(text: str, worth: Any) -> None:
    from fractions import Fraction

    assert value(text) == (None if worth is None else Fraction(worth))


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("17+8=25\n25-3=22", ["17+8=25", "25-3=22"]), ("so (2+3=5) it is", ["2+3=5"]), ("3*4=12=10+2", ["3*4=12", "12=10+2"]),
        ("- 17+8=25\n* 2*3=6", ["17+8=25", "2*3=6"]), ("1. 17+8=25", ["17+8=25"]), ("x - 17+8=25", []),
        ("1=1", []), ("x+1=2", []), ("2*3=6x", []), ("2^3+1=9", []), ("3+4=2+5", ["3+4=2+5"]), ("2+2=4.5", ["2+2=4.5"]),
        ("\\(2 \\times 3 = 6\\)", ["2 * 3=6"]), ("<<5*3=15>>15", ["5*3=15"]), ("１７＋８＝２５。", ["17+8=25"]),
    ],
)  # fmt: skip
def test_equations_are_found_whole(text: str, found: list[str]) -> None:
    assert [step.text for step in equations(text)] == found


def test_the_steps_formula_on_its_worked_example() -> None:
    solution = "17+8=25, 25-3=22, 22*2=44"
    assert StepsFunction(None)(["17+8=25, 25-3=22, 22*2=45, 1+1=2"], [solution]) == [0.25]


GOLD = "17+8=25\n25-3=22\n#### 22"


@pytest.mark.parametrize(
    ("text", "score"),
    [
        (GOLD, 1.0), ("8+17=25", 0.5), ("17+8=25, 25-3=21", 0.0), ("", 0.0), ("22", 0.0),
        ("17+8=25 17+8=25 17+8=25 17+8=25", 0.5),  # repeating a right step
        ("17+8=25 1+0=1 1=1", 0.5), ("17+8=25 1+0=1 2+0=2 3+0=3", 0.25),  # padding
        (" ".join(f"{a}+{b}={a + b}" for a in range(30) for b in range(30)), 1 / 465),  # a table of sums
        ("17+8=26", 0.0), ("17+8=26 25-3=23 1+1=3", 0.0),
    ],
)  # fmt: skip
def test_steps_pay_once_and_padding_does_not_pay(rewards: Make, text: str, score: float) -> None:
    row = {"prompt": "p", "completion": GOLD}
    assert run(rewards({"kind": "steps"}), [text], [row]) == [pytest.approx(score)]


def test_steps_come_from_the_completion_the_meta_or_the_answer_and_only_true_ones_count(rewards: Make) -> None:
    made = rewards({"kind": "steps"})
    rows: list[dict[str, Any]] = [
        {"prompt": "p", "completion": "17+8=26\n26-3=23"},
        {"prompt": "p", "meta": {"steps": ["17+8=25"]}},
        {"prompt": "p", "answer": "17+8=25 #### 25"},
        {"prompt": "p", "answer": "25"},
        {"prompt": "p", "completion": "17+8=26\n25-3=22"},
    ]
    assert run(made, ["17+8=25", "17+8=25", "17+8=25", "17+8=25", "17+8=26 25-3=22"], rows) == [
        0.0,
        1.0,
        1.0,
        None,
        0.5,
    ]
    assert made.check(rows)[3] == ("completion", "has no step that is right, nor has meta.steps or answer")
    assert made.explain(rows[4], "25-3=22 1+1=3", [], False) == {
        "steps": "1 of 1 steps right, 1 wrong (1+1=3), 2 shown"
    }
    assert run(made, ["17+8=25"], rows[1:2], cut=True) == [0.0]


def test_steps_of_a_pattern_of_ones_own(rewards: Make) -> None:
    made = rewards({"kind": "steps", "pattern": r"\[(?P<left>.*?) gives (?P<right>.*?)\]"})
    row = {"prompt": "p", "completion": "[2*3 gives 6] [6+1 gives 7]"}
    assert run(made, ["[3*2 gives 6] 6+1=7", "[2*3 gives 6][6+1 gives 7]", "[x gives y]"], [row] * 3) == [0.5, 1.0, 0.0]


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        ({"$ref": "#/nope"}, "#/$ref: refers to #/nope, which is not in this file"),
        ({"$dynamicRef": "#x"}, "#/$dynamicRef: refers to #x"),
        ({"properties": {"a/b": {"items": {"anyOf": [{}, {"$ref": "#/$defs/gone"}]}}}}, "#/properties/a~1b/items/anyOf/1/$ref: refers to #/$defs/gone"),
        ({"$id": "http://h/a", "$ref": "http://h/a#/x"}, "refers to http://h/a#/x"),
        ({"$ref": "http://127.0.0.1:9/x"}, "nothing is fetched"),
        ({"$id": "http://127.0.0.1:9/", "$ref": "other.json"}, "refers to other.json"),
        ({"$ref": "file:///etc/passwd"}, "refers to file:///etc/passwd"),
        ({"$id": "http://h/", "$defs": {"a": {"$anchor": "q"}}, "$ref": "http://evil#q"}, "refers to http://evil#q"),
        ({"$ref": "#/required", "required": ["a"]}, "which is no JSON Schema"),
        ({"$ref": "#/x-mine", "x-mine": {"type": "strnig"}}, "which is no JSON Schema: 'strnig' is not valid"),
        ({"$ref": "#/x-mine", "x-mine": {"items": {"$ref": "#/gone"}}}, "#/$ref/items/$ref: refers to #/gone"),
        ({"enum": [1], "items": {"$ref": "#/enum/1"}}, "#/items/$ref: refers to #/enum/1"),
    ],
)  # fmt: skip
def test_a_reference_that_leads_nowhere_is_an_error_at_the_start(
    rewards: Make, tmp_path: Path, schema: Any, said: str
) -> None:
    (tmp_path / "schema.json").write_text(json.dumps(schema))
    with pytest.raises(InputError) as error:
        rewards({"kind": "json_schema", "file": "schema.json"})
    assert said in str(error.value)


@pytest.mark.parametrize(
    ("schema", "good", "bad"),
    [
        ({"enum": [{"$ref": "http://x"}]}, '{"$ref": "http://x"}', "{}"),
        ({"const": {"$ref": "#/gone", "$dynamicRef": 5}}, '{"$ref": "#/gone", "$dynamicRef": 5}', "{}"),
        ({"properties": {"$ref": {"type": "string"}}}, '{"$ref": "x"}', '{"$ref": 1}'),
        ({"default": {"$ref": "#/gone"}, "examples": [{"$ref": "#/gone"}], "type": "object"}, "{}", "1"),
        ({"$defs": {"n": {"$dynamicAnchor": "x", "type": "integer"}}, "items": {"$dynamicRef": "#x"}}, "[1]", '["a"]'),
        ({"$id": "urn:a", "$defs": {"b": {"$id": "urn:b", "type": "object"}}, "$ref": "urn:b"}, "{}", "1"),
        ({"type": "array", "items": {"$ref": "#"}}, "[[], [[]]]", "[1]"),
        ({"$ref": "https://json-schema.org/draft/2020-12/schema"}, '{"type": "string"}', '{"type": "strnig"}'),
    ],
)
def test_references_within_the_file_and_data_that_looks_like_one_are_fine(
    rewards: Make, tmp_path: Path, schema: Any, good: str, bad: str
) -> None:
    (tmp_path / "schema.json").write_text(json.dumps(schema))
    made = rewards({"kind": "json_schema", "file": "schema.json"})
    assert run(made, [good, bad]) == [1.0, 0.0]


def test_a_number_that_none_holds_is_not_json(rewards: Make, tmp_path: Path) -> None:
    (tmp_path / "schema.json").write_text("{}")
    made = rewards({"kind": "json_schema", "file": "schema.json"})
    assert run(made, ["1e999", '{"a": [-1e999]}', "1e308", "1e-999", "NaN"]) == [0.0, 0.0, 1.0, 1.0, 0.0]
    assert "beyond what a number holds" in made.explain({}, "1e999", [], False)["json_schema"]


# what a list may say


@pytest.mark.parametrize(
    ("config", "field", "said"),
    [
        ({"kind": "format", "tags": []}, "tags", "at least 1 item"),
        ({"kind": "format", "tags": ["a b"]}, "tags", "letters, digits"),
        ({"kind": "format", "tags": [""]}, "tags", "letters, digits"),
        ({"kind": "format", "tags": ["<a>"]}, "tags", "letters, digits"),
        ({"kind": "format", "tags": ["a\n"]}, "tags", "letters, digits"),
        ({"kind": "format", "tags": ["a", "b", "a"]}, "tags", "twice"),
        *(({"kind": kind, **more, "pass_threshold": 1.5}, "pass_threshold", "1.0") for kind, more in [
            ("answer", {}), ("format", {}), ("choice", {}), ("regex", {"pattern": "a"}), ("json_schema", {"file": "s.json"}), ("code_tests", {}), ("sql", {}), ("steps", {})]),
        ({"kind": "length", "max_tokens": 9, "cache": 3, "pass_threshold": 0.5}, "pass_threshold", "0.0"),
        ({"kind": "repetition", "pass_threshold": 1}, "pass_threshold", "0.0"),
    ],
)  # fmt: skip
def test_what_could_never_be_met_is_refused_before_anything_runs(config: dict[str, Any], field: str, said: str) -> None:
    with pytest.raises(ValidationError) as error:
        TypeAdapter(Reward).validate_python(config)
    (problem,) = error.value.errors()
    context = problem.get("ctx", {})
    assert field in map(str, [*problem["loc"], *context.values()])
    assert said in f"{problem['msg']} {context}"


def test_thresholds_and_tags_that_can_be_met_are_taken() -> None:
    for config in (
        {"kind": "format", "tags": ["step-1", "step_2", "Answer"]}, {"kind": "answer", "pass_threshold": 0.5}, {"kind": "answer", "pass_threshold": 1},
        {"kind": "repetition", "pass_threshold": -0.1}, {"kind": "repetition"}, {"kind": "python", "file": "a.py", "function": "f", "pass_threshold": 7},
    ):  # fmt: skip
        TypeAdapter(Reward).validate_python(config)


# python


@pytest.mark.parametrize(
    "error", ["SystemExit", "SystemExit(0)", "KeyboardInterrupt()", "GeneratorExit", "BaseException"]
)
def test_a_function_that_ends_the_process_is_a_stage_error_with_the_sample(tmp_path: Path, error: str) -> None:
    (tmp_path / "own.py").write_text(f"def score(completions, **_):\n    raise {error}\n")
    config = PythonReward(kind="python", file="own.py", function="score")
    made = build([config], {"rewards.0.file": tmp_path / "own.py"})
    name = error.partition("(")[0]
    with pytest.raises(
        StageError, match=rf"python own\.py:score\) raised {name}.* at own\.py:2 on sample 0 \(row r7\)"
    ):
        made.score([{"id": "r7"}], ["x"], [[1]], [False])


def test_a_file_that_ends_the_process_when_it_is_loaded_is_bad_input(tmp_path: Path) -> None:
    for line in ("raise SystemExit(0)", "import sys; sys.exit()", "raise KeyboardInterrupt", "raise BaseException"):
        (tmp_path / "own.py").write_text(line)
        with pytest.raises(InputError, match=r"own\.py: cannot be loaded: \w+"):
            UserFunction(tmp_path / "own.py", "score")


def test_ctrl_c_while_a_function_runs_stays_ctrl_c(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(
        "import os, signal\ndef score(completions, **_):\n    os.kill(os.getpid(), signal.SIGINT)\n"
        "    for _ in range(10 ** 6): pass\n    return [1.0]\n"
    )
    config = PythonReward(kind="python", file="own.py", function="score")
    made = build([config], {"rewards.0.file": tmp_path / "own.py"})
    with pytest.raises(KeyboardInterrupt):
        made.score([{}], ["x"], [[1]], [False])


def test_a_stage_that_is_told_to_stop_while_a_function_runs_stops() -> None:
    def score(completions: list[str]) -> list[float]:
        raise Interrupted

    with pytest.raises(Interrupted):
        checked(score, name="score", where="here")(completions=["x"])
