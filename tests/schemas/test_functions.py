"""A python reward names a function of its file; validate reads the file and never runs it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

BODY = """
import json as wire
from math import gcd

raise SystemExit("never run")


def reward(completions, **_):
    def inner():
        hidden = 1
    return [1.0 for _ in completions]


if True:
    async def later(**_): ...
else:
    class Judge: ...

partial = table = lambda **_: [0.0]
"""


@pytest.fixture
def python(change: Callable[[str, str], str], tmp_path: Path) -> Callable[[str, str], str]:
    def python_(body: str, function: str) -> str:
        (tmp_path / "r.py").write_text(body, encoding="utf-8")
        return change(
            "    rewards: [{kind: answer}]\n  exam",
            f"    rewards: [{{kind: python, file: ./r.py, function: {function}}}]\n  exam",
        )

    return python_


@pytest.mark.parametrize(
    ("function", "told"),
    [
        ("rewrd", "16:54 stages.grpo.rewards.0.function: ./r.py has no function rewrd; did you mean reward?"),
        ("zzz", "16:54 stages.grpo.rewards.0.function: ./r.py has no function zzz; it has reward, later, Judge"),
        ("hidden", "16:54 stages.grpo.rewards.0.function: ./r.py has no function hidden; it has reward, later, Judge"),
    ],
)
def test_a_function_that_is_not_there_is_named_with_the_nearest(python, bad, function, told):
    assert bad(python(BODY, function)) == [told]


@pytest.mark.parametrize("function", ["reward", "later", "Judge", "partial", "table", "gcd", "wire"])
def test_what_a_file_binds_at_its_top_is_there(python, good, function):
    assert good(python(BODY, function)).pipeline.stages["grpo"].rewards[0].function == function


@pytest.mark.parametrize(
    "body",
    [
        "from rules import *",
        "def __getattr__(name): ...",
        "globals()['made'] = len",
        "exec('made = 1')",
    ],
)
def test_a_file_that_makes_names_is_left_to_the_run(python, good, body):
    assert good(python(body, "made"))


def test_a_file_that_is_not_python_is_told_with_its_line(python, bad):
    (told,) = bad(python("ok = 1\ndef f(:\n", "f"))
    assert told.startswith("16:36 stages.grpo.rewards.0.file: ./r.py is not Python at line 2: ")


def test_a_file_of_no_functions_says_so(python, bad):
    assert bad(python("", "f"))[0].endswith("./r.py has no function f; it has none")
