"""Whatever a model writes, a verifier of finery's gives None or a finite number, in bounded time, and leaves no process."""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from finery.rewards import RewardSet, latex, patterns, worker
from finery.rewards.answer import AnswerFunction

pytestmark = pytest.mark.slow

GOLDS = [
    "42",
    "1/3",
    "-5",
    "\\sqrt{2}",
    "(1,2)",
    "\\{1,2\\}",
    "x^2+1",
    "see figure",
    "",
    "\\text{odd}",
    "12:30",
    "B",
    None,
]
PIECES = [
    "\\boxed{", "}", "{", "(", ")", "[", "]", "####", "<answer>", "</answer>", "<think>", "</think>", "answer is", "答案是",
    "答：", "Answer:", "\\frac", "\\sqrt", "\\pi", "\\text{", "\\left(", "\\right)", "^", "_", "$", "$$", "\\(", "\\)", "\\[",
    "1", "2", "0", "42", "1,234", "1 234", "３", "²", "½", "%", "\\%", "+", "-", "−", "*", "/", "=", "17+8=25", "e", "e9",
    "10^", "×", "\\times", "!", "!!", ",", "、", "，", "。", ".", ":", ";", " ", "\n", "\t", "\x00", "\x1b", "\u2028", "\u200b",
    "\ud800", "\U0010ffff", "or", "and", "或", "和", "分之", "百分之", "万", "million", "个", "\\pm", "±", "\\infty", "∞", "i",
    "x", "B", "(A)", "```", "```json\n", '{"a": ', '"a"', "null", "NaN", "\\begin{pmatrix}", "\\end{pmatrix}", "&", "\\\\",
    "9" * 30, "0." + "3" * 40, "\\cup", "[0,1)", "nan", "inf", "\\sum", "\\int", "_{", "^{", "\\mathrm{", "|", "<", ">",
]  # fmt: skip
MUTATED = st.lists(st.sampled_from(PIECES), max_size=25).map("".join)
ANY = st.text(max_size=200)
DEEP = st.builds(
    lambda opening, count, inner: opening * count + inner + {"(": ")", "{": "}", "[": "]", "\\boxed{": "}"}[opening] * count,
    st.sampled_from(["(", "{", "[", "\\boxed{"]), st.integers(1, 3000), MUTATED,
)  # fmt: skip
HUGE = st.builds(
    lambda mark, digits, tail: mark + digits * 300 + tail,
    st.sampled_from(["#### ", "\\boxed{", "", "17+8="]), st.sampled_from(["9", "9,", "1 ", "1/", "9^", "0.", "-", "3!"]), MUTATED,
)  # fmt: skip
COMPLETION = st.one_of(MUTATED, MUTATED, ANY, DEEP, HUGE)
WALL = 60.0
"""Seconds: far over the deadline of one verifier, twice, on a host that does other things."""


def fuzzed(examples: int) -> Callable[[Any], Any]:
    return settings(
        max_examples=examples, derandomize=True, deadline=None, database=None,
        suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.data_too_large],
    )  # fmt: skip


def judged(function: Any, texts: list[str], **columns: Any) -> None:
    begun = time.monotonic()
    ids = [[ord(character) for character in text] for text in texts]
    scores = function(completions=texts, completion_ids=ids, **columns)
    assert time.monotonic() - begun < WALL
    assert len(scores) == len(texts)
    assert all(score is None or math.isfinite(score) for score in scores)


def finite(made: RewardSet, row: dict[str, Any], text: str) -> None:
    for function in made.functions:
        judged(function, [text], **{key: [value] for key, value in row.items()})
    assert all(isinstance(line, str) for line in made.explain(row, text, [1, 2, 3], False).values())


@pytest.fixture(scope="module", autouse=True)
def short() -> Any:
    """A short deadline for both processes, and afterwards no child of this process that they were."""
    before, shared = children(), (worker.SHARED, patterns.PROCESS)
    worker.SHARED, patterns.PROCESS = worker.Worker(deadline=1.0), worker.Worker(patterns.PROCESS.script, deadline=0.2)
    yield
    worker.SHARED.close()
    patterns.PROCESS.close()
    assert children() <= before
    worker.SHARED, patterns.PROCESS = shared
    latex._verdicts.clear()
    latex._faults.clear()


def children() -> set[int]:
    """The processes, dead ones included, whose parent this one is."""
    found = set()
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if int(fields[1]) == os.getpid():
            found.add(int(stat.parent.name))
    return found


@fuzzed(700)
@given(text=COMPLETION, gold=st.sampled_from(GOLDS))
def test_answer_as_a_number(text: str, gold: str | None) -> None:
    for how in ("auto", "hash", "boxed", "tag", "last_number", "whole"):
        judged(AnswerFunction(how, "number"), [text], answer=[gold])


@fuzzed(300)
@given(text=MUTATED, gold=st.sampled_from(GOLDS))
def test_answer_as_mathematics(text: str, gold: str | None) -> None:
    function = AnswerFunction("auto", "auto")
    judged(function, [f"\\boxed{{{text}}}", "\\boxed{42}"], answer=[gold, gold])
    if gold == "42":
        assert function(["\\boxed{42}"], [gold]) == [1.0]
    assert isinstance(function.explain({"answer": gold}, text, [], False), str)


@fuzzed(150)
@given(text=COMPLETION)
def test_an_answer_column_with_anything_in_it(text: str) -> None:
    function = AnswerFunction("auto", "auto")
    reason = function.check({"answer": text})
    assert reason is None or isinstance(reason, str)
    judged(function, ["\\boxed{42}"], answer=[text])


@fuzzed(500)
@given(text=COMPLETION, gold=st.sampled_from(["A", "B", "yes", "", None]))
def test_format_choice_length_and_repetition(rewards: Callable[..., RewardSet], text: str, gold: str | None) -> None:
    made = rewards(
        {"kind": "format", "verifier": True},
        {"kind": "choice"},
        {"kind": "choice", "choices": ["yes", "no"], "extract": "last"},
        {"kind": "length", "max_tokens": 100, "cache": 10},
        {"kind": "repetition", "ngram": 3},
    )
    finite(made, {"prompt": "p", "answer": gold}, text)


@fuzzed(500)
@given(text=COMPLETION, solution=MUTATED)
def test_steps(rewards: Callable[..., RewardSet], text: str, solution: str) -> None:
    made = rewards({"kind": "steps"})
    judged(made.functions[0], [text, text], solution=[solution, "17+8=25"])
    assert isinstance(made.explain({"completion": solution}, text, [], False)["steps"], str)


@fuzzed(200)
@given(text=COMPLETION, gold=st.sampled_from(["42", "", None]))
def test_regex_and_a_formats_pattern(rewards: Callable[..., RewardSet], text: str, gold: str | None) -> None:
    made = rewards(
        {"kind": "regex", "pattern": r"(?P<it>\d+)|boxed\{([^}]*)", "group": "it", "verifier": True},
        {"kind": "format", "pattern": r"(\s*\S+)*\s*"},
        {"kind": "steps", "pattern": r"(?P<left>[^=]+)=(?P<right>[^=]+)"},
    )
    finite(made, {"prompt": "p", "answer": gold, "completion": "1+1=2"}, text)


@fuzzed(150)
@given(text=st.one_of(COMPLETION, MUTATED.map(lambda text: f"```json\n{text}\n```"), st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner, max_size=4),
).map(json.dumps)))  # fmt: skip
def test_json_schema(rewards: Callable[..., RewardSet], tmp_path: Path, text: str) -> None:
    (tmp_path / "schema.json").write_text('{"type": "object", "properties": {"a": {"type": ["integer", "null"]}}}')
    finite(rewards({"kind": "json_schema", "file": "schema.json"}), {"prompt": "p"}, text)
