from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from finery.data.dataset import read_dataset, row_id, write_dataset
from finery.errors import InputError

ROWS = [
    {"prompt": "2+2?", "completion": "4", "answer": "4", "meta": {"b": 1, "a": [None, "ü"]}},
    {"prompt": "3+3?", "completion": "6", "tests": ["assert f(1) == 2"], "sql": {"gold": "select 1"}},
]


def test_id_is_sha256_of_the_canonical_prompt_and_answer() -> None:
    assert row_id("2+2?", "4") == hashlib.sha256(b'["2+2?","4"]').hexdigest()[:16]
    assert row_id("2+2?", None) != row_id("2+2?", "None")
    assert row_id([{"role": "user", "content": "q"}], "4") == row_id([{"content": "q", "role": "user"}], "4")


def test_rows_come_back_as_they_were_with_absent_columns_absent(tmp_path: Path) -> None:
    info = write_dataset(ROWS, tmp_path / "set", info={"split": "train"})
    assert [{k: v for k, v in row.items() if k != "id"} for row in read_dataset(tmp_path / "set")] == ROWS
    assert info == json.loads((tmp_path / "set/dataset.json").read_text())
    assert (info["rows"], info["prompts"], info["split"]) == (2, 2, "train")
    assert info["columns"] == {
        "id": "text", "prompt": "text", "completion": "text", "answer": "text",
        "tests": "json", "sql": "json", "meta": "json",
    }  # fmt: skip


def test_conversations_come_back_as_messages(tmp_path: Path) -> None:
    row = {
        "prompt": [{"role": "system", "content": "s"}, {"role": "user", "content": "q\u2028r"}],
        "completion": [{"role": "assistant", "content": "a"}],
    }
    write_dataset([row], tmp_path)
    (back,) = read_dataset(tmp_path)
    assert back == {"id": row_id(row["prompt"], None), **row}
    assert str(pq.read_schema(tmp_path / "data.parquet").field("prompt").type).startswith("list<element: struct<role")


def test_the_same_rows_give_the_same_bytes(tmp_path: Path) -> None:
    for name in ("a", "b"):
        write_dataset(ROWS * 500, tmp_path / name)
    for file in ("data.parquet", "dataset.json"):
        assert (tmp_path / "a" / file).read_bytes() == (tmp_path / "b" / file).read_bytes()


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([], "at least one row"),
        ([{"prompt": "a"}, {"prompt": [{"role": "user", "content": "a"}]}], "row 2: prompt is messages where"),
        ([{"prompt": "a", "label": "x"}], "unknown column label"),
        ([{"prompt": "a", "answer": 4}], "answer cannot hold int"),
    ],
)
def test_rows_that_do_not_agree_are_refused(tmp_path: Path, rows: list[dict[str, object]], message: str) -> None:
    with pytest.raises(InputError, match=message):
        write_dataset(rows, tmp_path)


def test_a_folder_that_is_no_data_set_is_refused_with_the_remedy(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="kind data"):
        read_dataset(tmp_path)
