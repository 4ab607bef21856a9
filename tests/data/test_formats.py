from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from finery.errors import InputError


def source(path: str, **more: Any) -> dict[str, Any]:
    return {"sources": [{"kind": "file", "path": path, **more}], "max_reject_fraction": 0.9}


def said(turns: list[dict[str, str]]) -> list[str]:
    return [f"{turn['role']}:{turn['content']}" for turn in turns]


def test_case_D1_every_alpaca_row_is_kept_or_rejected_by_name(make: Callable[..., Any], cases: Path) -> None:
    due = json.loads((cases / "D1.expected.json").read_text())
    made = make(source("./D1.jsonl"), base=cases)
    assert [item["line"] for item in made.rejects] == due["reject_rows"]
    assert [(item["field"], item["code"]) for item in made.rejects] == [
        ("output", "wrong_type"),
        ("output", "null"),
        ("output", "missing"),
        ("output", "empty"),
        ("history", "bad_turns"),
        ("output", "wrong_type"),
        ("instruction", "missing"),
    ]
    assert all(item["file"] == "D1.jsonl" for item in made.rejects)
    assert "number 4" in made.rejects[0]["reason"]
    assert "list of 2" in made.rejects[5]["reason"]
    rows = made.rows("train")
    assert len(rows) == len(due["keep_rows"])
    assert len(rows) + len(made.rejects) == made.card["read"] == 11
    assert all(row["completion"][0]["content"] for row in rows)
    (long,) = (row for row in rows if len(row["prompt"]) > 1)
    assert said(long["prompt"] + long["completion"]) == due["row6_messages"]
    assert sum("note" in warning for warning in made.warnings) == 1


def test_case_D1_fails_unless_bad_rows_are_allowed(make: Callable[..., Any], cases: Path) -> None:
    config = {**source("./D1.jsonl"), "max_reject_fraction": 0.0}
    with pytest.raises(InputError, match=r"7 of 11 rows(.|\n)*D1\.jsonl:2: output: found number 4") as error:
        make(config, base=cases)
    assert error.value.exit_code == 2


def test_case_D1_a_number_becomes_text_when_asked(make: Callable[..., Any], cases: Path) -> None:
    made = make(source("./D1.jsonl", numbers_as_text=True), base=cases)
    assert [item["line"] for item in made.rejects if item["code"] != "duplicate"] == [3, 4, 5, 7, 9, 10]
    assert made.card["duplicates"] == 1  # row 2 is row 1 then


def test_case_D3_sharegpt_roles_and_order(make: Callable[..., Any], cases: Path) -> None:
    due = json.loads((cases / "D3.expected.json").read_text())
    made = make(source("./D3.jsonl"), base=cases)
    assert [item["line"] for item in made.rejects] == due["reject"]
    assert all(item["reason"] for item in made.rejects)
    assert "bing" in made.rejects[2]["reason"]
    conversations = {row["messages"][-1]["content"]: said(row["messages"]) for row in made.rows("train")}
    assert set(conversations) == {f"a{number}" for number in due["ok"]}
    assert conversations["a2"] == [f"system:{due['row2_system']}", "user:q2", "assistant:a2"]
    assert conversations["a5"] == ["user:q5", 'assistant:{"name":"f","arguments":{}}', "tool:42", "assistant:a5"]
    assert len(conversations) + len(made.rejects) == made.card["read"] == 8


def test_case_D3_a_source_without_a_usable_row_is_an_error(make: Callable[..., Any], cases: Path) -> None:
    config = source("./D3.jsonl", columns={"from": "speaker"})
    with pytest.raises(InputError, match=r"none of its 8 rows can be used: D3\.jsonl:1: conversations\[0\]\.speaker"):
        make({**config, "max_reject_fraction": 1.0}, base=cases)


@pytest.mark.parametrize(
    ("row", "form", "column"),
    [
        ({"prompt": "p", "completion": "c", "answer": "a"}, "prompt_completion", "completion"),
        ({"prompt": "p", "answer": "4"}, "answer", "answer"),
        ({"prompt": "p", "tests": ["t"]}, "answer", "tests"),
        (
            {"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]},
            "messages",
            "messages",
        ),
        ({"conversations": [{"from": "human", "value": "q"}, {"from": "gpt", "value": "a"}]}, "sharegpt", "messages"),
        ({"instruction": "i", "output": "o"}, "alpaca", "completion"),
    ],
)
def test_auto_recognises_the_format(
    make: Callable[..., Any], write: Callable[..., Path], row: dict[str, Any], form: str, column: str
) -> None:
    write("a.jsonl", [row])
    made = make(source("a.jsonl"))
    assert made.card["sources"][0]["format"] == form
    assert column in made.rows("train")[0]


def test_columns_are_mapped_and_reach_into_objects(make: Callable[..., Any], write: Callable[..., Path]) -> None:
    write("a.jsonl", [{"question": "q", "gold": {"value": "4"}, "topic": "sums", "level": 2}])
    columns = {"prompt": "question", "answer": "gold.value", "meta.topic": "topic", "meta.level": "level"}
    made = make(source("a.jsonl", columns=columns))
    (row,) = made.rows("train")
    assert (row["prompt"], row["answer"], row["meta"]) == ("q", "4", {"topic": "sums", "level": 2})
    assert made.warnings == []


@pytest.mark.parametrize(
    ("row", "more", "message"),
    [
        ({"question": "q", "answer": "4"}, {}, r"the columns \(question, answer\) are those of no format"),
        ({"prompt": "p", "completion": "c", "messages": []}, {}, "fit messages and prompt_completion"),
        ({"q": "x"}, {"columns": {"promt": "q"}}, "promt is no column .*did you mean prompt"),
        ({"q": "x"}, {"columns": {"prompt": "question"}}, "no row has a column question; there are q"),
    ],
)
def test_columns_that_fit_nothing_are_an_error_with_the_remedy(
    make: Callable[..., Any], write: Callable[..., Path], row: dict[str, Any], more: dict[str, Any], message: str
) -> None:
    write("a.jsonl", [row])
    with pytest.raises(InputError, match=message):
        make(source("a.jsonl", **more))


def talk(*turns: tuple[str, Any], **last: Any) -> dict[str, Any]:
    messages = [{"role": role, "content": content} for role, content in turns]
    messages[-1].update(last)
    return {"messages": messages}


@pytest.mark.parametrize(
    ("row", "field", "code"),
    [
        (talk(("user", "q"), ("user", "q")), "messages[1]", "bad_turns"),
        (talk(("user", "q")), "messages", "bad_turns"),
        (talk(("user", ["q"])), "messages[0].content", "wrong_type"),
        (talk(("user", "q"), ("assistant", " ")), "messages[1].content", "empty"),
        (talk(("user", "q"), ("assistant", ""), tool_calls=[1]), "messages[1]", "tool_calls"),
        (talk(("user", "q"), ("assistant", "\ud83d")), "messages", "bad_text"),
        ({"messages": "hello"}, "messages", "wrong_type"),
        (talk(("user", [])), "messages[0].content", "wrong_type"),
        (talk(("user", None)), "messages[0].content", "wrong_type"),
        (talk(("user", [{"type": "text", "text": "q"}, {"type": "image_url"}])), "messages[0].content", "not_text"),
        (talk(("user", [{"type": "text", "text": 3}])), "messages[0].content", "not_text"),
        (talk(("user", [{"type": "text", "text": " "}])), "messages[0].content", "empty"),
        (talk(("user", "q"), ("bard", "a")), "messages[1].role", "unknown_role"),
        ({"messages": [{"role": "assistant", "tool_calls": [1]}]}, "messages[0]", "tool_calls"),
    ],
)
def test_bad_conversations_are_rejected_with_the_turn(
    make: Callable[..., Any], write: Callable[..., Path], row: dict[str, Any], field: str, code: str
) -> None:
    good = {"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]}
    write("a.jsonl", "\n".join(json.dumps(item) for item in (good, row)))
    (reject,) = make(source("a.jsonl")).rejects
    assert (reject["line"], reject["field"], reject["code"]) == (2, field, code)


@pytest.mark.parametrize(
    ("words", "roles"),
    [
        (("human", "gpt"), "ua"),
        (("user", "chatgpt"), "ua"),
        (("developer", "user", "model"), "sua"),
        (("human", "function_call", "observation", "gpt"), "uata"),
        (("user", "tool_call", "tool_response", "bot"), "uata"),
        (("user", "assistant", "ipython", "assistant"), "uata"),
        (("user", "assistant", "function", "assistant"), "uata"),
        (("user", "assistant", "function_response", "assistant"), "uata"),
    ],
)
@pytest.mark.parametrize("keys", [("from", "value"), ("role", "content")])
@pytest.mark.parametrize("column", ["messages", "conversations"])
def test_the_role_words_in_use_are_known_under_either_pair_of_names(
    make: Callable[..., Any], write: Callable[..., Path], words: tuple[str, ...], roles: str, keys: tuple[str, str],
    column: str,
) -> None:  # fmt: skip
    write("a.jsonl", [{column: [{keys[0]: word, keys[1]: f"t{n}"} for n, word in enumerate(words)]}])
    (row,) = make({**source("a.jsonl"), "max_reject_fraction": 0.0}).rows("train")
    assert "".join(turn["role"][0] for turn in row["messages"]) == roles
    assert [turn["content"] for turn in row["messages"]] == [f"t{n}" for n in range(len(words))]


def test_a_role_word_of_ones_own_is_mapped_on_the_source(make: Callable[..., Any], cases: Path) -> None:
    made = make(source("./D3.jsonl", roles={"bing": "assistant"}), base=cases)
    assert [item["line"] for item in made.rejects] == [3, 4, 8]
    refused = make(source("./D3.jsonl"), base=cases).rejects[2]
    assert "roles: {bing: assistant}" in refused["reason"]


def test_parts_of_text_are_joined_and_other_parts_named(make: Callable[..., Any], write: Callable[..., Path]) -> None:
    parts = [{"type": "text", "text": "1+"}, {"type": "input_text", "text": "2?"}, {"text": "!"}]
    picture = [{"type": "text", "text": "q"}, {"type": "image_url", "image_url": {"url": "x"}}]
    write("a.jsonl", [talk(("user", parts), ("assistant", "3")), talk(("user", picture), ("assistant", "3"))])
    made = make(source("a.jsonl"))
    assert made.rows("train")[0]["messages"][0]["content"] == "1+2?!"
    assert "part 1 is of type image_url" in made.rejects[0]["reason"]


def test_a_system_message_may_stand_beside_the_conversation(
    make: Callable[..., Any], write: Callable[..., Path]
) -> None:
    own = talk(("system", "mine"), ("user", "q"), ("assistant", "a"))
    write("a.jsonl", [{**own, "system": "s"}, {**talk(("user", "q"), ("assistant", "b")), "system": "s"}])
    first, second = sorted(said(row["messages"]) for row in make(source("a.jsonl")).rows("train"))
    assert (first[0], second[0]) == ("system:mine", "system:s")


def test_an_alpaca_file_of_text_cells_may_leave_history_empty(
    make: Callable[..., Any], write: Callable[..., Path]
) -> None:
    write("a.csv", "instruction,input,output,history\nadd,1 2,3,\nadd,1 3,4,x\n")
    made = make(source("a.csv"))
    assert said(made.rows("train")[0]["prompt"]) == ["user:add\n1 2"]
    assert [(item["line"], item["field"], item["code"]) for item in made.rejects] == [(3, "history", "wrong_type")]


def test_half_a_character_is_refused_wherever_it_stands(make: Callable[..., Any], write: Callable[..., Path]) -> None:
    good = {"prompt": "p", "completion": "c"}
    bad = [{"answer": "\ud83d"}, {"meta": {"\ud83d": 1}}, {"tests": ["x", {"a": "\ud83d"}]}, {"prompt": "é\ud83d"}]
    write("a.jsonl", "\n".join(json.dumps({**good, **more}) for more in [{}, *bad]))
    rejects = make(source("a.jsonl")).rejects
    assert [(item["field"], item["code"]) for item in rejects] == [
        (name, "bad_text") for name in ("answer", "meta", "tests", "prompt")
    ]


def test_a_conversation_that_ends_with_the_user_is_a_prompt_when_it_can_be_verified(
    make: Callable[..., Any], write: Callable[..., Path]
) -> None:
    turns = [{"role": "user", "content": "2+2?"}]
    write("a.jsonl", [{"messages": turns, "answer": "4"}])
    (row,) = make(source("a.jsonl")).rows("train")
    assert (row["prompt"], row["answer"]) == (turns, "4")


def test_chat_writes_text_as_messages_with_the_system_message(
    make: Callable[..., Any], write: Callable[..., Path]
) -> None:
    write("a.jsonl", [{"prompt": "p", "completion": "c", "answer": "c"}])
    (row,) = make({**source("a.jsonl"), "chat": True, "system": "be brief"}).rows("train")
    assert said(row["prompt"] + row["completion"]) == ["system:be brief", "user:p", "assistant:c"]


def test_text_and_messages_in_one_split_are_refused_with_the_remedy(
    make: Callable[..., Any], write: Callable[..., Path]
) -> None:
    write("a.jsonl", [{"prompt": "p", "completion": "c"}])
    write("b.jsonl", [{"instruction": "p", "output": "c"}])
    config = {"sources": [{"kind": "file", "path": "a.jsonl"}, {"kind": "file", "path": "b.jsonl"}]}
    with pytest.raises(InputError, match="chat: true"):
        make(config)
    assert len(make({**config, "chat": True, "deduplicate": "none"}).rows("train")) == 2
