"""Pairs in a data set: the format `preference`, and what the data stage does with its columns."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from finery.data.dataset import read_dataset, write_dataset
from finery.errors import InputError
from finery.training.tokens import RowTokens

BASE = Path(__file__).parents[2] / "pipelines" / "base"


def _write(folder: Path, rows: list[dict[str, Any]]) -> None:
    (folder / "pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def _config(**more: Any) -> dict[str, Any]:
    source = {"kind": "file", "path": "./pairs.jsonl"} | {k: more.pop(k) for k in ("format", "columns") if k in more}
    return {"sources": [source], "max_reject_fraction": 0.9, **more}


def _said(role: str, content: str) -> dict[str, str]:
    return {"role": role, "content": content}


def test_pairs_of_text_become_rows_with_their_other_columns(tmp_path: Path, make: Callable[..., Any]) -> None:
    rows = [
        {"prompt": "1+1=", "chosen": "2", "rejected": "3", "answer": "2", "meta": {"level": 1}},
        {"prompt": "1+1=", "chosen": "2", "rejected": "4", "answer": "2", "meta": {"level": 1}},
        {"prompt": "1+2=", "chosen": "3", "rejected": "3"},
        {"prompt": "1+3=", "chosen": "4"},
        {"prompt": "1+4=", "chosen": "5", "rejected": [_said("assistant", "6")]},
    ]
    _write(tmp_path, rows)
    made = make(_config(), base=tmp_path)
    assert made.card["sources"][0]["format"] == "preference"
    kept = sorted(made.rows("train"), key=lambda row: row["rejected"])
    assert [{k: v for k, v in row.items() if k != "id"} for row in kept] == rows[:2]
    assert len({row["id"] for row in kept}) == 1  # the id is that of prompt and answer
    assert [(item["line"], item["field"], item["code"]) for item in made.rejects] == [
        (3, "rejected", "same"),
        (4, "rejected", "missing"),
        (5, "rejected", "wrong_type"),
    ]
    assert made.card["duplicates"] == 0  # two pairs of one prompt are two rows


def test_whole_conversations_are_parted_where_they_differ(tmp_path: Path, make: Callable[..., Any]) -> None:
    begin = [_said("system", "Be brief."), _said("user", "hi"), _said("assistant", "yes?"), _said("user", "1+1?")]
    whole = {"chosen": [*begin, _said("assistant", "2")], "rejected": [*begin, _said("assistant", "3")]}
    longer = [*begin, _said("assistant", "3"), _said("user", "sure?"), _said("assistant", "no")]
    rows = [
        whole,
        {**whole, "prompt": "1+1?", "rejected": longer},
        {**whole, "prompt": "something else"},
        {"chosen": whole["chosen"], "rejected": [_said("user", "ho"), _said("assistant", "3")]},
        {"chosen": whole["chosen"], "rejected": longer[:4] + longer[4:5] + [_said("user", "so?"), _said("assistant", "3")]},
        {"chosen": whole["chosen"], "rejected": [*whole["chosen"], _said("user", "so?"), _said("assistant", "3")]},
        whole | {"rejected": whole["chosen"]},
    ]  # fmt: skip
    _write(tmp_path, rows)
    made = make(_config(), base=tmp_path)
    kept = sorted(made.rows("train"), key=lambda row: len(json.dumps(row)))
    assert [row["prompt"] for row in kept] == [begin] * 3
    assert kept[0]["chosen"] == [_said("assistant", "2")]
    assert kept[0]["rejected"] == [_said("assistant", "3")]
    assert [row["rejected"] for row in kept[1:]] != [kept[0]["rejected"]] * 2
    assert any(row["rejected"] == longer[4:] for row in kept)
    faults = {item["line"]: (item["field"], item["code"], item["reason"]) for item in made.rejects}
    assert set(faults) == {3, 4, 6, 7}
    assert "not the common beginning" in faults[3][2]
    assert "first differs from chosen in turn 0" in faults[4][2]
    assert "first differs from chosen in turn 5" in faults[6][2]
    assert faults[7][1] == "same"


def test_a_prompt_of_messages_takes_completions_of_text(tmp_path: Path, make: Callable[..., Any]) -> None:
    ask = [_said("user", "1+1?")]
    _write(tmp_path, [
        {"question": ask, "good": "2", "bad": "3"},
        {"question": ask, "good": [_said("assistant", "2")], "bad": [_said("assistant", "4")]},
    ])  # fmt: skip
    made = make(_config(columns={"prompt": "question", "chosen": "good", "rejected": "bad"}), base=tmp_path)
    assert {row["rejected"][0]["content"] for row in made.rows("train")} == {"3", "4"}
    assert all(row["chosen"] == [_said("assistant", "2")] and row["prompt"] == ask for row in made.rows("train"))


def test_text_becomes_messages_with_chat_and_cleaning_reaches_both_sides(
    tmp_path: Path, make: Callable[..., Any]
) -> None:
    _write(tmp_path, [{"prompt": "1+1?", "chosen": "2  ", "rejected": "3\u00a0!"}])
    made = make(_config(chat=True, system="Be brief.", clean=[{"kind": "whitespace"}]), base=tmp_path)
    (row,) = made.rows("train")
    assert row["prompt"] == [_said("system", "Be brief."), _said("user", "1+1?")]
    assert (row["chosen"], row["rejected"]) == ([_said("assistant", "2")], [_said("assistant", "3 !")])
    assert {"chosen", "rejected"} <= set(made.card["splits"]["train"]["characters"])


def test_columns_of_two_formats_ask_which_one(tmp_path: Path, make: Callable[..., Any]) -> None:
    ask = [_said("user", "1+1?")]
    row = {"chosen": [*ask, _said("assistant", "2")], "rejected": [*ask, _said("assistant", "3")]}
    _write(tmp_path, [{**row, "messages": row["chosen"]}])
    with pytest.raises(InputError, match="the columns fit messages and preference"):
        make(_config(), base=tmp_path)
    made = make(_config(format="preference"), base=tmp_path)
    assert made.rows("train")[0]["prompt"] == ask
    assert any("messages" in warning for warning in made.warnings)  # the column that nothing read


def test_a_pair_has_the_tokens_of_its_longer_side(tmp_path: Path) -> None:
    rows = [
        {"id": "a", "prompt": "1+1=", "chosen": "2", "rejected": "333"},
        {"id": "b", "prompt": "1+1=", "chosen": "22222", "rejected": "3"},
    ]
    write_dataset(rows, tmp_path / "set")
    assert read_dataset(tmp_path / "set") == rows
    assert RowTokens(BASE).count_many(rows) == [4 + 3 + 1, 4 + 5 + 1]
