from __future__ import annotations

import bz2
import gzip
import json
import lzma
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from finery.data.records import Record
from finery.data.sources.files import read_files
from finery.errors import InputError
from finery.schemas.data import FileSource

GOOD = [{"prompt": f"p{i}", "completion": f"c{i}"} for i in range(20)]


def source(path: str, **more: Any) -> dict[str, Any]:
    return {"sources": [{"kind": "file", "path": path, **more}]}


def records(folder: Path, path: str, **more: Any) -> list[Record]:
    source = FileSource.model_validate({"kind": "file", "path": path, **more})
    return list(read_files(source, folder / path, where="sources.0", work=folder / ".work").records)


def test_case_D4_byte_order_mark_is_no_part_of_the_first_key(make: Callable[..., Any], cases: Path) -> None:
    (row,) = make(source("./D4_bom.jsonl"), base=cases).rows("train")
    assert (row["prompt"][0]["content"], row["completion"][0]["content"]) == ("a", "b")
    assert list(records(cases, "./D4_bom.jsonl")[0].value) == ["instruction", "input", "output"]


def test_case_D4_bytes_of_another_encoding_name_file_offset_and_option(make: Callable[..., Any], cases: Path) -> None:
    with pytest.raises(InputError, match=r"D4_gbk\.jsonl: byte offset 17 .*`encoding: gbk`"):
        make(source("./D4_gbk.jsonl"), base=cases)
    (row,) = make(source("./D4_gbk.jsonl", encoding="gbk"), base=cases).rows("train")
    assert (row["prompt"][0]["content"], row["completion"][0]["content"]) == ("你好", "世界")


def test_case_D4_duplicate_key_is_an_error_with_line_and_key(make: Callable[..., Any], cases: Path) -> None:
    with pytest.raises(InputError, match=r"D4_dupkey\.jsonl:1: .*'output' stands twice"):
        make(source("./D4_dupkey.jsonl"), base=cases)


def test_case_D4_trailing_comma_is_an_error_with_its_line(make: Callable[..., Any], cases: Path) -> None:
    with pytest.raises(InputError, match=r"D4_trailing\.json:3:1: .*trailing comma at the end of line 2"):
        make(source("./D4_trailing.json"), base=cases)


def test_case_D4_unicode_line_separators_stay_inside_a_row(make: Callable[..., Any], cases: Path) -> None:
    made = make(source("./D4_u2028.jsonl"), base=cases)
    outputs = {row["completion"][0]["content"] for row in made.rows("train")}
    assert outputs == {"x\u2028y\u0085z", "w"}
    assert made.card["read"] == 2


def test_a_json_list_gives_each_row_the_line_it_begins_on(tmp_path: Path, write: Callable[..., Path]) -> None:
    write("a.json", '[\n {"prompt": "a",\n  "completion": "b"},\n\n {"prompt": "c",\n "prompt": "d"}, 5\n]\n')
    first, second, third = records(tmp_path, "a.json")
    assert (first.at, first.value) == (("line", 2), {"prompt": "a", "completion": "b"})
    assert second.at == ("line", 5)
    assert "again on line 6" in str(second.fault)
    assert (third.at, third.fault.code) == (("line", 6), "not_an_object")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('[{"a": 1}\n {"a": 2}]', r"a\.json:2:2: a comma or \] is expected"),
        ('[{"a": 1}', r"a\.json:1:10: a comma or \] is expected"),
        ('[{"a": }]', r"a\.json:1:8: not JSON"),
        ('[{"a": 1}]\nx', r"a\.json:2:1: nothing may follow"),
        ('"text"', r"a\.json:1: a list of objects"),
        ('[{"a": NaN}]', r"a\.json:1: .*NaN is not JSON"),
    ],
)
def test_a_damaged_json_file_is_an_error_with_its_place(
    tmp_path: Path, write: Callable[..., Path], text: str, message: str
) -> None:
    write("a.json", text)
    with pytest.raises(InputError, match=message):
        records(tmp_path, "a.json")


def test_a_damaged_line_is_a_rejected_row_and_its_neighbours_are_kept(
    make: Callable[..., Any], write: Callable[..., Path]
) -> None:
    write("a.jsonl", '{"prompt": "a", "completion": "b"}\n{"prompt": \n[1]\n{"prompt": "c", "completion": "d"}')
    made = make({**source("a.jsonl"), "max_reject_fraction": 0.5})
    assert [(item["file"], item["line"], item["code"]) for item in made.rejects] == [
        ("a.jsonl", 2, "not_json"),
        ("a.jsonl", 3, "not_an_object"),
    ]
    assert len(made.rows("train")) == 2


def test_csv_cells_stay_text(make: Callable[..., Any], write: Callable[..., Path]) -> None:
    write("a.csv", 'prompt,completion,answer\r\n007,"1,5\r\nsecond ""line""",1e5\r\n\r\nNA,true,\u2028null\r\n')
    rows = {row["prompt"]: row for row in make(source("a.csv")).rows("train")}
    assert rows["007"]["completion"] == '1,5\r\nsecond "line"'
    assert rows["007"]["answer"] == "1e5"
    assert (rows["NA"]["completion"], rows["NA"]["answer"]) == ("true", "\u2028null")


def test_csv_faults_have_their_line(tmp_path: Path, write: Callable[..., Path]) -> None:
    write("a.csv", 'prompt,completion\n"two\nlines",b\nonly one\n')
    first, second = records(tmp_path, "a.csv")
    assert (first.at, second.at, second.fault.code) == (("line", 2), ("line", 4), "cell_count")
    write("b.csv", "prompt,prompt\na,b\n")
    with pytest.raises(InputError, match=r"b\.csv:1: column 'prompt' stands twice"):
        records(tmp_path, "b.csv")
    write("c.csv", 'prompt,completion\n"a" b,c\n')
    with pytest.raises(InputError, match=r"c\.csv:2: is not CSV"):
        records(tmp_path, "c.csv")


def test_parquet_keeps_its_types_and_numbers_are_rejected_unless_asked_for(
    make: Callable[..., Any], tmp_path: Path
) -> None:
    table = pa.table({"prompt": ["a", "b"], "answer": pa.array([4, 5], pa.int64())})
    pq.write_table(table, tmp_path / "a.parquet")
    with pytest.raises(InputError, match=r"a\.parquet row 1: answer: found number 4; text is expected"):
        make(source("a.parquet"))
    rows = make(source("a.parquet", numbers_as_text=True)).rows("train")
    assert sorted(row["answer"] for row in rows) == ["4", "5"]


def test_numbers_as_text_keeps_a_number_as_it_was_written(make: Callable[..., Any], write: Callable[..., Path]) -> None:
    write("a.jsonl", '{"prompt": "p", "answer": 3.10}\n{"prompt": "q", "answer": 1e-5}\n{"prompt": "r", "answer": 7}')
    rows = make(source("a.jsonl", numbers_as_text=True)).rows("train")
    assert {row["prompt"]: row["answer"] for row in rows} == {"p": "3.10", "q": "1e-5", "r": "7"}


@pytest.mark.parametrize(("suffix", "pack"), [(".gz", gzip.compress), (".bz2", bz2.compress), (".xz", lzma.compress)])
def test_compressed_files_are_read(
    make: Callable[..., Any], write: Callable[..., Path], suffix: str, pack: Callable[[bytes], bytes]
) -> None:
    write(f"a.jsonl{suffix}", pack(b'{"prompt": "a", "completion": "b"}\n'))
    assert make(source(f"a.jsonl{suffix}")).rows("train")[0]["completion"] == "b"
    write(f"b.jsonl{suffix}", b"not packed")
    with pytest.raises(InputError, match="cannot be decompressed"):
        make(source(f"b.jsonl{suffix}"))


def test_folders_and_globs_are_read_in_order_and_other_files_are_named(
    make: Callable[..., Any], write: Callable[..., Path], tmp_path: Path
) -> None:
    write("set/b.jsonl", GOOD[:2])
    write("set/deep/a.jsonl", GOOD[2:3])
    write("set/README.md", "about")
    write("set/.hidden.jsonl", GOOD[5:6])
    made = make(source("./set"))
    assert [file["file"] for file in made.card["sources"][0]["files"]] == ["set/b.jsonl", "set/deep/a.jsonl"]
    assert made.card["read"] == 3
    assert any("set/README.md" in warning for warning in made.warnings)
    globbed = make(source("./set/**/*.jsonl"))
    assert [file["file"] for file in globbed.card["sources"][0]["files"]] == ["set/b.jsonl", "set/deep/a.jsonl"]
    with pytest.raises(InputError, match="no such file, folder or match"):
        make(source("./set/*.csv"))
    with pytest.raises(InputError, match=r"README\.md, no data file"):
        make(source("./set/*"))


def test_a_folder_with_a_data_set_script_is_refused(make: Callable[..., Any], write: Callable[..., Path]) -> None:
    write("set/set.py", "raise SystemExit('ran')")
    write("set/a.jsonl", GOOD)
    with pytest.raises(InputError, match=r"set/set\.py, and finery runs no data set scripts"):
        make(source("./set"))


def test_a_data_set_that_finery_made_can_be_read_back(make: Callable[..., Any], tmp_path: Path) -> None:
    first = make({"sources": [{"kind": "chains", "rows": 40}], "splits": {"train": 1.0}})
    (first.outputs / "train").rename(tmp_path / "kept")
    again = make(source("./kept"))
    key = lambda row: (row["id"], row["completion"])  # noqa: E731
    assert sorted(again.rows("train"), key=key) == sorted(_rows(tmp_path / "kept"), key=key)


def _rows(folder: Path) -> list[dict[str, Any]]:
    from finery.data.dataset import read_dataset

    return read_dataset(folder)


def test_the_card_has_each_files_sha256_and_no_absolute_path(
    make: Callable[..., Any], write: Callable[..., Path], tmp_path: Path
) -> None:
    import hashlib

    path = write("a.jsonl", GOOD)
    write("set/b.jsonl", GOOD)
    for text in ("a.jsonl", "set", "set/*.jsonl"):
        absolute = make(source(str(tmp_path / text)))
        assert str(tmp_path) not in json.dumps(absolute.card)
    made = make(source("./a.jsonl"))
    (file,) = made.card["sources"][0]["files"]
    assert file == {
        "file": "a.jsonl",
        "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
        "bytes": path.stat().st_size,
        "rows": 20,
    }
    for output in made.outputs.rglob("*"):
        assert output.is_dir() or str(tmp_path).encode() not in output.read_bytes()
