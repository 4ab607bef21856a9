"""The worked examples of docs/stages/data.md: what a file holds, what the stage is told, and the row it makes."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from finery.language.nodes import parse

PAGE = (Path(__file__).parents[2] / "docs/stages/data.md").read_text(encoding="utf-8")

EXAMPLES: dict[str, tuple[str, str, str]] = {
    "prompt_completion": (
        """{"question": "What is 7*8?", "solution": "7*8 = 56", "level": 2, "date": "2024-01-02"}""",
        """{kind: file, path: ./a.jsonl, columns: {prompt: question, completion: solution, meta.level: level,
 meta.date: date}}""",
        """{"id": "285383171eaec060", "prompt": "What is 7*8?", "completion": "7*8 = 56",
 "meta": {"date": "2024-01-02", "level": 2}}""",
    ),
    "answer": (
        """{"prompt": "Half of 3?", "answer": "3/2"}
{"prompt": "def inc(x):\\n", "tests": {"entry_point": "inc", "test": "def check(f):\\n    assert f(1) == 2"}}
{"prompt": "How many users are there?", "sql": {"query": "SELECT count(*) FROM users", "database": "shop.db"}}""",
        """{kind: file, path: ./a.jsonl}""",
        """{"id": "e25db65b21f8aa57", "prompt": "Half of 3?", "answer": "3/2"}
{"id": "014493afd2d8ec92", "prompt": "def inc(x):\\n", "tests": {"entry_point": "inc", "test": "def check(f):\\n    assert f(1) == 2"}}
{"id": "5d5f3c94c348ecae", "prompt": "How many users are there?", "sql": {"database": "shop.db", "query": "SELECT count(*) FROM users"}}""",
    ),
    "messages": (
        """{"messages": [{"role": "system", "content": "Be brief."},
 {"role": "user", "content": [{"type": "text", "text": "Capital of "}, {"type": "text", "text": "France?"}]},
 {"role": "assistant", "content": "Paris."}]}""",
        """{kind: file, path: ./a.json}""",
        """{"id": "2d036b6b5c5b06da", "messages": [{"role": "system", "content": "Be brief."},
 {"role": "user", "content": "Capital of France?"}, {"role": "assistant", "content": "Paris."}]}""",
    ),
    "sharegpt": (
        """{"system": "You can call f.", "conversations": [{"from": "human", "value": "What is f(2)?"},
 {"from": "function_call", "value": "{\\"name\\": \\"f\\", \\"arguments\\": {\\"x\\": 2}}"},
 {"from": "observation", "value": "42"}, {"from": "bing", "value": "It is 42."}]}""",
        """{kind: file, path: ./a.json, roles: {bing: assistant}}""",
        """{"id": "7a5738d0ab681f6b", "messages": [{"role": "system", "content": "You can call f."},
 {"role": "user", "content": "What is f(2)?"},
 {"role": "assistant", "content": "{\\"name\\": \\"f\\", \\"arguments\\": {\\"x\\": 2}}"},
 {"role": "tool", "content": "42"}, {"role": "assistant", "content": "It is 42."}]}""",
    ),
    "alpaca": (
        """{"instruction": "Add them.", "input": "3 and 4", "output": "7",
 "history": [["Can you add?", "Yes."]], "system": "Be brief."}""",
        """{kind: file, path: ./a.json}""",
        """{"id": "95b5b81337afb19d", "prompt": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Can you add?"},
 {"role": "assistant", "content": "Yes."}, {"role": "user", "content": "Add them.\\n3 and 4"}],
 "completion": [{"role": "assistant", "content": "7"}]}""",
    ),
    "preference": (
        """{"prompt": "2+2?", "chosen": "4", "rejected": "5"}""",
        """{kind: file, path: ./a.jsonl}""",
        """{"id": "bc288aea20f8d3bb", "prompt": "2+2?", "chosen": "4", "rejected": "5"}""",
    ),
}
REASONING = {
    "cot_then_answer": """{"id": "31a58bca2597e782", "prompt": "17+8-3?", "completion": "17+8=25, 25-3=22\\n#### 22", "answer": "22"}""",
    "answer_then_cot": """{"id": "31a58bca2597e782", "prompt": "17+8-3?", "completion": "#### 22\\n17+8=25, 25-3=22", "answer": "22"}""",
}
THOUGHT = """{"prompt": "17+8-3?", "thought": "17+8=25, 25-3=22", "answer": "22"}"""


def objects(text: str) -> list[Any]:
    """The JSON values that stand one after another in a text."""
    decoder, found, at = json.JSONDecoder(), [], 0
    while at < len(text):
        value, end = decoder.raw_decode(text, at)
        found.append(value)
        at = len(text) - len(text[end:].lstrip())
    return found


def source(text: str) -> dict[str, Any]:
    root, problems = parse(text)
    assert root is not None
    assert not problems
    return root.plain()


@pytest.mark.parametrize("name", list(EXAMPLES))
def test_an_example_of_each_format_makes_the_row_the_page_shows(
    make: Callable[..., Any], write: Callable[..., Path], name: str
) -> None:
    given, told, due = EXAMPLES[name]
    config = source(told)
    write(config["path"], objects(given) if config["path"].endswith("l") else json.dumps(objects(given)))
    made = make({"sources": [config]})
    assert made.card["sources"][0]["format"] == name
    assert not made.rejects
    assert made.warnings == []
    assert {row["id"]: row for row in made.rows("train")} == {row["id"]: row for row in objects(due)}


@pytest.mark.parametrize("order", list(REASONING))
def test_the_example_of_reasoning(make: Callable[..., Any], write: Callable[..., Path], order: str) -> None:
    write("a.jsonl", objects(THOUGHT))
    sources = [{"kind": "file", "path": "a.jsonl", "columns": {"cot": "thought"}}]
    made = make({"sources": sources, "reasoning": {"order": order}})
    assert made.rows("train") == objects(REASONING[order])
    assert made.warnings == []


@pytest.mark.parametrize("text", [*(t for example in EXAMPLES.values() for t in example), THOUGHT, *REASONING.values()])
def test_the_page_shows_the_examples_as_they_are_tested(text: str) -> None:
    assert re.search(rf"^```(json|yaml)\n(.*\n)*?{re.escape(text)}\n", PAGE, re.MULTILINE), text
