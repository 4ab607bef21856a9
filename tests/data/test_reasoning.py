"""Chain of thought and answer, written in either order; the same rows keep their ids and splits."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from finery.data.dataset import row_of
from finery.data.formats import COT, Format
from finery.data.reasoning import rewrite
from finery.data.records import Reject
from finery.schemas.data import Reasoning

ORDERS = ("cot_then_answer", "answer_then_cot")


def asked(order: str = "cot_then_answer", **more: Any) -> Reasoning:
    return Reasoning.model_validate({"order": order, **more})


def written(row: dict[str, Any], **more: Any) -> tuple[str, str]:
    """The completion in both orders."""
    first, second = (rewrite(row, asked(order, **more))["completion"] for order in ORDERS)
    return first, second


def test_a_column_cot_and_the_answer_are_written_in_both_orders() -> None:
    row = {"prompt": "17+8-3?", COT: " 17+8=25\n25-3=22\n", "answer": "22"}
    assert written(row) == ("17+8=25\n25-3=22\n#### 22", "#### 22\n17+8=25\n25-3=22")
    assert rewrite(row, asked()) == {"prompt": "17+8-3?", "answer": "22", "completion": "17+8=25\n25-3=22\n#### 22"}
    assert COT in row  # the row that was given is left alone


@pytest.mark.parametrize(
    ("completion", "how", "cot", "answer"),
    [
        ("17+8=25\n#### 25", "auto", "17+8=25", "25"),
        ("17+8=25\n#### 25\nDone.", "hash", "17+8=25\nDone.", "25"),
        (r"It is \boxed{\frac{1}{2}}.", "auto", r"It is \boxed{\frac{1}{2}}.", r"\frac{1}{2}"),
        (r"\boxed{1}, no: \boxed{\{2\}}", "boxed", r"\boxed{1}, no: \boxed{\{2\}}", r"\{2\}"),
        ("First. <answer> 5 </answer> Last.", "auto", "First.\nLast.", "5"),
        ("<think>\na #### b\n</think>\nso 5", "auto", "a #### b", "so 5"),
        ("<think>a</think><answer>5</answer>", "auto", "a", "5"),
        (r"#### Step 1" "\n" r"add: \boxed{5}", "auto", "#### Step 1\n" r"add: \boxed{5}", "5"),
        ("想一想\n#### 五", "auto", "想一想", "五"),
    ],
)
def test_a_completion_is_taken_apart(completion: str, how: str, cot: str, answer: str) -> None:
    row = {"prompt": "p", "completion": completion, "answer": "gold"}
    assert written(row, extract=how, cot="[{cot}]", answer="({answer})") == (f"[{cot}]({answer})", f"({answer})[{cot}]")
    assert rewrite(row, asked(extract=how))["answer"] == "gold"


@pytest.mark.parametrize(
    ("row", "more", "field", "reason"),
    [
        ({"completion": "22"}, {}, "completion", "<think>, <answer>, .*####"),
        ({"completion": "a #### 22"}, {"extract": "tag"}, "completion", "no <answer>"),
        ({"completion": "#### 22"}, {}, "completion", "chain of thought is empty"),
        ({"completion": "<think>a</think>"}, {}, "answer", "there is none"),
        ({"completion": r"a \boxed{22"}, {}, "completion", "taken apart"),
        ({COT: "a"}, {}, "answer", "there is none"),
        ({COT: " \n", "answer": "1"}, {}, "cot", "empty"),
        ({"answer": "1"}, {}, "completion", "missing"),
    ],
)
def test_a_row_without_chain_or_answer_is_rejected(
    row: dict[str, Any], more: dict[str, Any], field: str, reason: str
) -> None:
    with pytest.raises(Reject, match=reason) as caught:
        rewrite({"prompt": "p", **row}, asked(**more))
    assert (caught.value.field, caught.value.code) == (field, "reasoning")


def test_the_answer_beside_a_column_cot_may_be_the_completion_itself() -> None:
    assert written({"prompt": "p", COT: "a", "completion": "5 "})[0] == "a\n#### 5"
    assert written({"prompt": "p", COT: "a", "completion": "it is #### 5"})[0] == "a\n#### 5"
    assert written({"prompt": "p", COT: "a", "completion": "5", "answer": "6"})[0] == "a\n#### 6"
    assert written({"prompt": "p", "completion": "<think>a</think>", "answer": "6"})[0] == "a\n#### 6"


def test_messages_are_rewritten_where_the_assistant_speaks_last() -> None:
    turns = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a\n#### 1"}]
    more = [*turns, {"role": "user", "content": "q2"}, {"role": "assistant", "content": "b\n#### 2"}]
    row = rewrite({"messages": more}, asked("answer_then_cot"))
    assert row["messages"] == [*more[:3], {"role": "assistant", "content": "#### 2\nb"}]
    assert more[3]["content"] == "b\n#### 2"
    pair = rewrite({"prompt": turns[:1], "completion": turns[1:]}, asked("answer_then_cot"))
    assert pair["completion"] == [{"role": "assistant", "content": "#### 1\na"}]
    asks = rewrite({"prompt": turns[:1], COT: "a", "answer": "1"}, asked())
    assert asks["completion"] == [{"role": "assistant", "content": "a\n#### 1"}]


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"cot": "{chain}"}, r"\{chain\} is no placeholder of it; it has \{cot\}"),
        ({"answer": "#### {cot}"}, r"\{cot\} is no placeholder of it; it has \{answer\}"),
        ({"answer": "the answer"}, r"must hold \{answer\} once"),
        ({"cot": "{cot}{cot}"}, r"must hold \{cot\} once"),
    ],
)
def test_templates_hold_their_placeholder_once(config: dict[str, str], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        asked(**config)
    assert asked(answer=r"\boxed{{answer}}").answer.replace("{answer}", "5") == r"\boxed{5}"


def test_every_format_takes_a_column_cot_when_it_is_asked_for() -> None:
    values = {
        "prompt_completion": {"prompt": "p", "completion": "c"},
        "answer": {"prompt": "p", "answer": "1"},
        "messages": {"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]},
        "sharegpt": {"conversations": [{"from": "human", "value": "q"}, {"from": "gpt", "value": "a"}]},
        "alpaca": {"instruction": "i", "output": "o"},
    }
    for name, value in values.items():
        row = Format(name, {"cot": "why"}, cot=True).row({**value, "why": "because"})
        assert row[COT] == "because"
        assert rewrite(row, asked(answer="A {answer}", cot="{cot}. "))
        assert COT not in Format(name, {"cot": "why"}).row({**value, "why": "because"})


def test_two_stages_in_the_two_orders_have_the_same_ids_and_splits(
    make: Callable[..., Any], write: Callable[..., Path]
) -> None:
    write("a.jsonl", [{"question": f"{n}+1?", "why": f"{n} and one", "answer": str(n + 1)} for n in range(40)])
    columns = {"prompt": "question", "cot": "why"}
    made = [
        make({
            "sources": [{"kind": "file", "path": "a.jsonl", "columns": columns}],
            "splits": {"train": 0.7, "test": 0.3},
            "reasoning": {"order": order},
        })
        for order in ORDERS
    ]  # fmt: skip
    for split in ("train", "test"):
        first, second = (one.rows(split) for one in made)
        assert [row["id"] for row in first] == [row["id"] for row in second] == [row_of(row) for row in first]
        assert first[0]["completion"] == f"{int(first[0]['answer']) - 1} and one\n#### {first[0]['answer']}"
        assert second[0]["completion"] == f"#### {second[0]['answer']}\n{int(second[0]['answer']) - 1} and one"


def test_a_mapped_column_cot_that_nothing_reads_is_named(make: Callable[..., Any], write: Callable[..., Path]) -> None:
    write("a.jsonl", [{"prompt": "p", "completion": "c", "why": "w"}])
    made = make({"sources": [{"kind": "file", "path": "a.jsonl", "columns": {"cot": "why"}}]})
    assert any("not used: why" in warning for warning in made.warnings)
    assert "cot" not in str(made.rows("train"))
