"""Files are read as streams: what comes out does not depend on where the pieces end."""

from __future__ import annotations

import csv
import hashlib
import io
import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from finery.data.sources import jsonfiles
from finery.data.sources.jsonfiles import json_records, jsonl_records
from finery.data.sources.streams import Hashed, decoded, ended_lines, lines, pieces
from finery.data.sources.tables import csv_records
from finery.errors import InputError

TEXT = "日本語のテキスト, café, “quotes” \u2028 line\r\nnext\rlast 😀\n"
ENCODINGS = [
    "utf-8",
    "utf-16",
    "utf-16-le",
    "utf-32",
    "gbk",
    "gb18030",
    "shift_jis",
    "euc_jp",
    "big5",
    "cp1252",
    "latin-1",
]


def cut(text: Any, size: int) -> Iterator[Any]:
    return (text[at : at + size] for at in range(0, len(text), size))


@pytest.mark.parametrize("encoding", [*ENCODINGS, "iso2022_jp", "utf-7", "hz"])
@pytest.mark.parametrize("size", [1, 2, 3, 5, 1000])
def test_text_is_decoded_as_a_whole_file_would_be(encoding: str, size: int) -> None:
    data = TEXT.encode(encoding, "ignore")
    whole = data.decode(encoding).removeprefix("\ufeff")
    assert "".join(decoded(cut(data, size), encoding, "a.txt", "sources.0")) == whole


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_damage_has_the_offset_that_a_whole_file_gives(encoding: str) -> None:
    rng, damaged = random.Random(encoding), 0
    for _ in range(60):
        data = bytearray((TEXT * 3).encode(encoding, "ignore"))
        for _ in range(2):
            data[rng.randrange(len(data))] = rng.randrange(256)
        data = data[: rng.randrange(len(data) // 2, len(data))]
        size = rng.choice([1, 2, 3, 7, 64])
        try:
            due = bytes(data).decode(encoding)
        except UnicodeDecodeError as error:
            damaged += 1
            with pytest.raises(InputError, match=rf"byte offset {error.start} \(0x{data[error.start]:02x}\) is not"):
                list(decoded(cut(bytes(data), size), encoding, "a.txt", "sources.0"))
        else:
            assert "".join(decoded(cut(bytes(data), size), encoding, "a", "b")) == due.removeprefix("\ufeff")
    assert damaged or encoding == "latin-1"


def test_what_is_no_encoding_of_text_is_refused() -> None:
    for name in ("nonsense", "base64", "rot13"):
        with pytest.raises(InputError, match=rf"sources\.0\.encoding: '{name}' is not an encoding"):
            list(decoded([b"a"], name, "a.txt", "sources.0"))


@pytest.mark.parametrize("size", [1, 2, 3, 1000])
def test_lines_end_where_they_did(size: int) -> None:
    text = "a\r\n\r\nb\rc\u2028d\n\x85e\r"
    assert list(lines(cut(text, size))) == text.split("\n")
    assert list(ended_lines(cut(text, size))) == list(io.StringIO(text, newline=""))


@pytest.mark.parametrize("size", [1, 3, 1000])
def test_csv_is_read_across_pieces(size: int) -> None:
    text = 'a,b\r\n"x\r\ny","z ""q"""\r\n\r\n1,2\n3\n'
    records = list(csv_records(cut(text, size), "a.csv", ","))
    rows = list(csv.reader(io.StringIO(text, newline="")))[1:]
    assert [record.value for record in records] == [
        *(dict(zip("ab", row, strict=True)) for row in rows if len(row) == 2),
        None,
    ]
    assert [record.at[1] for record in records] == [2, 5, 6]


def _some(rng: random.Random, depth: int = 0) -> Any:
    kinds: list[Callable[[], Any]] = [
        lambda: rng.choice([None, True, False, 0, -12, 3.25, 1e300]),
        lambda: "".join(rng.choices('ab"\\\n\t{}[],: \u2028é😀\x7f', k=rng.randrange(12))),
        lambda: [_some(rng, depth + 1) for _ in range(rng.randrange(4))],
        lambda: {rng.choice(["é", '"', "\\"]) + str(i): _some(rng, depth + 1) for i in range(rng.randrange(4))},
    ]
    return rng.choice(kinds if depth < 3 else kinds[:2])()


@pytest.mark.parametrize("seed", range(40))
def test_a_json_list_is_the_same_in_pieces(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jsonfiles, "_ENOUGH", 1)
    rng = random.Random(seed)
    rows = [{"row": number, "value": _some(rng)} for number in range(rng.randrange(12))]
    text = json.dumps(rows, indent=rng.choice([None, 0, 4]), ensure_ascii=rng.random() < 0.5)
    text = rng.choice(["", " \n\n"]) + text + rng.choice(["", "\n \n"])
    records = list(json_records(cut(text, rng.choice([1, 2, 5, 17, 10_000])), "a.json"))
    assert [record.value for record in records] == rows
    for record, row in zip(records, rows, strict=True):
        begins = text.index(f'"row": {row["row"]}')
        assert record.at == ("line", text.count("\n", 0, text.rindex("{", 0, begins)) + 1)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('[{"a": 1}\n {"a": 2}]', r"a\.json:2:2: a comma or \] is expected"),
        ('[{"a": 1}', r"a\.json:1:10: a comma or \] is expected"),
        ('[\n{"a": 1},\n\n {"a": }]', r"a\.json:4:8: not JSON"),
        ('[\n{"a": 1},\n{"a": "x}]', r"a\.json:3:7: not JSON: Unterminated"),
        ('[{"a": 1}]\n\n  xyz', r"a\.json:3:3: nothing may follow the list; found 'xyz'"),
        ('[{"a": 1},\n{"a": 2}\n,\n]', r"a\.json:4:1: a row is expected before \]; .*at the end of line 3"),
        ('[{"a": 1}, {"a": NaN}]', r"a\.json:1: .*NaN is not JSON"),
        ('[{"a": 1}, tru]', r"a\.json:1:12: not JSON"),
        ("[" * 100_000, r"a\.json:1: the row that begins here is not JSON: it is nested too deeply"),
        ("", r"a\.json:1: a list of objects is expected"),
    ],
)
@pytest.mark.parametrize("size", [1, 4, 1000])
def test_a_damaged_json_list_has_its_place_in_pieces_too(
    text: str, message: str, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jsonfiles, "_ENOUGH", 1 if len(text) < 1000 else 100_000)
    with pytest.raises(InputError, match=message):
        list(json_records(cut(text, size), "a.json"))


def test_an_early_fault_of_a_json_list_does_not_read_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jsonfiles, "_ENOUGH", 64)
    taken = 0

    def endless() -> Iterator[str]:
        nonlocal taken
        yield '[{"a": 1}, {"a": 1 "b": 2},'
        while True:
            taken += 1
            yield ' {"a": 3},' * 8

    with pytest.raises(InputError, match=r"a\.json:1:20: not JSON: Expecting ',' delimiter"):
        list(json_records(endless(), "a.json"))
    assert taken < 4


def test_a_row_of_a_json_list_is_given_before_the_file_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jsonfiles, "_ENOUGH", 64)

    def broken() -> Iterator[str]:
        yield "[" + ' {"a": 3},' * 100
        raise AssertionError("the rest was asked for")

    records = json_records(broken(), "a.json")
    assert [next(records).value for _ in range(99)] == [{"a": 3}] * 99


def test_a_jsonl_line_that_is_no_row_is_told_apart() -> None:
    text = '{"a": 1}\r\n\n[1]\n{"a": 1} x\n{"a": 1, "a": 2}\n"text"\n{"a": 01}\n' + "[" * 100_000 + "\n{}"
    found = [(record.at[1], record.fault and record.fault.code) for record in jsonl_records(cut(text, 7), "a.jsonl")]
    assert found == [
        (1, None), (3, "not_an_object"), (4, "not_json"), (5, "duplicate_key"), (6, "not_an_object"),
        (7, "not_json"), (8, "not_json"), (9, None),
    ]  # fmt: skip


def test_a_file_is_hashed_while_it_is_read(tmp_path: Path) -> None:
    import gzip

    for name, data in (("a.jsonl", b"x" * 3_000_000), ("a.jsonl.gz", gzip.compress(b"y" * 3_000_000) + bytes(100))):
        path = tmp_path / name
        path.write_bytes(data)
        with Hashed(path) as file:
            read = b"".join(pieces(file, path, name))
        assert len(read) == 3_000_000
        assert (file.sha256, file.size) == (hashlib.sha256(data).hexdigest(), len(data))


def test_columns_that_come_late_are_reported_and_may_be_mapped(
    make: Callable[..., Any], write: Callable[..., Path]
) -> None:
    rows: list[dict[str, Any]] = [{"prompt": f"p{i}", "completion": f"c{i}"} for i in range(1500)]
    rows[1200] |= {"note": "x", "topic": "late"}
    write("a.jsonl", rows)
    source = {"kind": "file", "path": "a.jsonl"}
    made = make({"sources": [source]})
    assert made.card["sources"][0]["ignored_columns"] == ["note", "topic"]
    made = make({"sources": [{**source, "columns": {"meta.topic": "topic"}}]})
    assert made.card["sources"][0]["ignored_columns"] == ["note"]
    assert [row["meta"] for row in made.rows("train") if "meta" in row] == [{"topic": "late"}]
    with pytest.raises(InputError, match=r"sources\.0\.columns\.meta\.topic: no row has a column subject"):
        make({"sources": [{**source, "columns": {"meta.topic": "subject"}}]})


def test_a_parquet_file_may_be_compressed_once_more(make: Callable[..., Any], tmp_path: Path) -> None:
    import gzip

    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.table({"prompt": ["a", "b"], "completion": ["1", "2"]}), tmp_path / "a.parquet")
    data = gzip.compress((tmp_path / "a.parquet").read_bytes())
    (tmp_path / "b.parquet.gz").write_bytes(data)
    made = make({"sources": [{"kind": "file", "path": "b.parquet.gz"}]})
    assert len(made.rows("train")) == 2
    (file,) = made.card["sources"][0]["files"]
    assert (file["sha256"], file["bytes"]) == (hashlib.sha256(data).hexdigest(), len(data))
