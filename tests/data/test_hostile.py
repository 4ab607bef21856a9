"""Files and configs as bad as they come: each is told in words, by its place, and nothing hangs."""

from __future__ import annotations

import datetime
import json
import os
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pydantic import ValidationError

from finery.data.clean.backtracking import is_quick
from finery.errors import InputError
from finery.language.files import missing
from finery.rewards.patterns import PROCESS
from finery.schemas.data import DataStage


def source(path: str, **more: Any) -> dict[str, Any]:
    return {"sources": [{"kind": "file", "path": path, **more}], "max_reject_fraction": 1.0}


def parquet(folder: Path, **columns: Any) -> dict[str, Any]:
    """A source of a Parquet file with two rows, and these columns beside prompt and completion."""
    pq.write_table(pa.table({"prompt": ["p0", "p1"], "completion": ["c0", "c1"], **columns}), folder / "a.parquet")
    return source("./a.parquet")


def refused(config: dict[str, Any]) -> str:
    with pytest.raises(ValidationError) as error:
        DataStage.model_validate({"kind": "data", **config})
    return str(error.value)


@pytest.mark.parametrize("depth", [101, 900, 5000, 200_000])
def test_a_row_that_is_nested_too_deep_is_rejected(
    make: Callable[..., Any], write: Callable[..., Path], depth: int
) -> None:
    deep = f'{{"prompt": "p", "completion": "c", "meta": {{"a": {"[" * depth}{"]" * depth}}}}}\n'
    write("a.jsonl", deep + '{"prompt": "q", "completion": "d", "meta": {"a": ' + "[" * 90 + "]" * 90 + "}}\n")
    made = make(source("./a.jsonl"))
    assert [row["prompt"] for row in made.rows("train")] == ["q"]
    (reject,) = made.rejects
    assert reject["line"] == 1
    assert "nested" in reject["reason"]
    assert "recursion" not in reject["reason"]


def _bad_text() -> pa.Array:
    return pa.StringArray.from_buffers(2, pa.py_buffer(b"\0\0\0\0\2\0\0\0\4\0\0\0"), pa.py_buffer(b"\xff\xfeok"))


BAD = {
    "text": (_bad_text(), "text that cannot be read (it is not UTF-8)"),
    "date": (pa.array([4000000, 1], pa.int32()).cast(pa.date32()), None),
    "timestamp": (pa.array([2**61, 1], pa.timestamp("us")), "timestamp that cannot be read (value out of range"),
    "zone": (pa.array([1, 1], pa.timestamp("us", tz="Nowhere/Bad")), "Nowhere/Bad"),
    "duration": (pa.array([2**62, 1], pa.duration("us")), "duration that cannot be read"),
    "struct": (pa.array([{"d": 2**61}, {"d": 1}], pa.struct([("d", pa.timestamp("us"))])), "timestamp that cannot"),
    "list": (pa.array([[2**61], None], pa.list_(pa.timestamp("us"))), "timestamp that cannot be read"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_value_that_cannot_be_read_matters_only_where_its_column_is_used(
    make: Callable[..., Any], tmp_path: Path, name: str
) -> None:
    values, reason = BAD[name]
    config = parquet(tmp_path, d=values)
    assert len(make(config).rows("train")) == 2
    config["sources"][0] |= {"columns": {"meta.when": "d"}}
    if reason is None:
        config["sources"][0] |= {"numbers_as_text": True}
        assert {row["meta"]["when"] for row in make(config).rows("train")} == {"12921-08-18", "1970-01-02"}
    elif name in ("text", "list"):
        made = make(config)
        assert len(made.rows("train")) == 1
        assert [(r["row"], r["field"], reason in r["reason"]) for r in made.rejects] == [(1, "meta.when", True)]
    else:
        with pytest.raises(InputError, match=r"a\.parquet row 1: meta\.when: found"):
            make(config)


def test_text_that_is_not_utf8_rejects_its_row_and_no_other(make: Callable[..., Any], tmp_path: Path) -> None:
    pq.write_table(pa.table({"prompt": _bad_text(), "completion": ["x", "y"]}), tmp_path / "a.parquet")
    made = make(source("./a.parquet"))
    assert [row["prompt"] for row in made.rows("train")] == ["ok"]
    assert made.rejects[0]["field"] == "prompt"


def test_two_parquet_columns_of_one_name_are_refused(make: Callable[..., Any], tmp_path: Path) -> None:
    table = pa.Table.from_arrays(
        [pa.array(["a"]), pa.array(["b"]), pa.array(["c"])], ["prompt", "completion", "prompt"]
    )
    pq.write_table(table, tmp_path / "a.parquet")
    with pytest.raises(InputError, match=r"a\.parquet: column 'prompt' stands twice"):
        make(source("./a.parquet"))


def test_what_parquet_holds_beside_text_and_numbers_is_taken_as_written(
    make: Callable[..., Any], tmp_path: Path
) -> None:
    moment = datetime.datetime(2024, 1, 2, 3, 4, 5, 250000)
    columns = {
        "date": pa.array([datetime.date(2024, 1, 2)]),
        "timestamp": pa.array([moment], pa.timestamp("us")),
        "nanos": pa.array([1234567890123456789], pa.timestamp("ns")),
        "zoned": pa.array([0], pa.timestamp("s", tz="Europe/Berlin")),
        "decimal": pa.array([Decimal("1.50")]),
        "float32": pa.array([0.1], pa.float32()),
    }
    texts = {
        "date": "2024-01-02",
        "timestamp": "2024-01-02T03:04:05.25",
        "nanos": "2009-02-13T23:31:30.123456789",
        "zoned": "1970-01-01T01:00:00+01:00",
        "decimal": "1.50",
        "float32": "0.1",
    }
    pq.write_table(pa.table({"prompt": ["p"], **columns}), tmp_path / "a.parquet")
    for name, text in texts.items():
        config = source("./a.parquet", columns={"completion": name, "meta.it": name})
        with pytest.raises(InputError, match="numbers_as_text: true on the source takes it as written"):
            make(config)
        config["sources"][0]["numbers_as_text"] = True
        (row,) = make(config).rows("train")
        assert row["completion"] == text
        assert row["meta"]["it"] == (0.1 if name == "float32" else text)
    with pytest.raises(InputError, match=r"meta\.it: found date 2024-01-02.*numbers_as_text: true"):
        make(_with_completion(tmp_path))


def _with_completion(folder: Path) -> dict[str, Any]:
    pq.write_table(
        pa.table({"prompt": ["p"], "completion": ["c"], "d": pa.array([datetime.date(2024, 1, 2)])}),
        folder / "b.parquet",
    )
    return source("./b.parquet", columns={"meta.it": "d"})


@pytest.mark.parametrize(
    "name", ["undefined", "idna", "punycode", "unicode_escape", "rot13", "base64", "a\0b", "", "ut-8"]
)
def test_an_encoding_that_is_none_is_refused_by_name(name: str) -> None:
    message = refused(source("./a.jsonl", encoding=name))
    assert f"{name!r} is not an encoding of files" in message
    assert ("did you mean utf-8?" in message) == (name == "ut-8")


def test_utf16_without_its_mark_is_told_in_words(make: Callable[..., Any], tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(b'{"prompt": "p", "completion": "c"}\n')
    with pytest.raises(InputError, match=r"a\.jsonl: is not utf-16: .*utf-16-le"):
        make(source("./a.jsonl", encoding="utf-16"))


@pytest.mark.parametrize("least", [1e-9, 5e-324])
@pytest.mark.parametrize("rows", [None, 10**9, 10**30])
def test_weights_that_repeat_a_source_absurdly_are_refused(
    make: Callable[..., Any], least: float, rows: int | None
) -> None:
    sources = [{"kind": "skills", "rows": 50, "weight": 1}, {"kind": "chains", "rows": 30, "weight": least}]
    split = {"fraction": 1.0} | ({"rows": rows} if rows else {})
    with pytest.raises(InputError, match=r"splits\.train: the \d+ rows of sources\.0 \(weight 1\) would be repeated"):
        make({"sources": sources, "splits": {"train": split}})


def test_a_cap_beyond_all_rows_costs_nothing(make: Callable[..., Any]) -> None:
    made = make({"sources": [{"kind": "skills", "rows": 20}], "splits": {"train": {"fraction": 1.0, "rows": 10**30}}})
    assert len(made.rows("train")) <= 20
    assert "less than or equal to 10000000" in refused({"sources": [{"kind": "skills", "rows": 10**12}]})


def test_a_number_of_thousands_of_digits_is_a_plain_reason(
    make: Callable[..., Any], write: Callable[..., Path]
) -> None:
    write("a.jsonl", '{"prompt": "p", "completion": "c"}\n{"prompt": "q", "completion": ' + "9" * 5000 + "}\n")
    (reject,) = make(source("./a.jsonl")).rejects
    assert reject["reason"] == "not JSON: it holds a whole number of more than 4300 digits; write it as text, in quotes"


def test_a_header_of_many_columns_is_read_at_once(make: Callable[..., Any], write: Callable[..., Path]) -> None:
    names = ["prompt", "completion", *(f"c{i}" for i in range(100_000))]
    write("a.csv", ",".join(names) + "\n" + ",".join(["x"] * len(names)) + "\n")
    assert len(make(source("./a.csv")).rows("train")) == 1
    write("a.csv", ",".join([*names, "c7"]) + "\n")
    with pytest.raises(InputError, match=r"a\.csv:1: column 'c7' stands twice"):
        make(source("./a.csv"))


SPOKEN = [{"prompt": f"p{i}", "completion": text} for i, text in enumerate(["Oh no no no, sorry", "d" * 40, "Fine."])]


@pytest.mark.parametrize(
    ("pattern", "quick"),
    [
        ("^oh (?:no ?)+, sorry", False),
        ("oh .*sorry", True),
        ("sorry|i (?:can't|cannot) help", True),
        ("(?i)(?:very ){1,3}sorry", True),
        (r"a.*b.*c.*d", False),
        ("(d|d)*X", False),
        ("a?" * 40 + "a" * 40, False),
        (r"(?:a{1,9}){1,9}", False),
        (r"(a)?(?(1)b|c)", True),
    ],
)
def test_which_patterns_need_a_guard(pattern: str, quick: bool) -> None:
    assert is_quick(pattern, 200) == quick


@pytest.mark.parametrize("pattern", ["oh (?:no ?)+, SORRY", "oh .*sorry"])
def test_a_pattern_finds_the_same_with_and_without_a_guard(
    make: Callable[..., Any], write: Callable[..., Path], pattern: str
) -> None:
    write("a.jsonl", SPOKEN)
    made = make(source("./a.jsonl") | {"clean": [{"kind": "refusal", "shipped": False, "patterns": [pattern]}]})
    assert [(r["line"], r["code"]) for r in made.rejects] == [(1, "refusal")]
    assert "Oh no no no, sorry" in made.rejects[0]["reason"]


def test_a_pattern_that_backtracks_for_ever_is_stopped_and_named(
    make: Callable[..., Any], write: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(PROCESS, "deadline", 0.5)
    write("a.jsonl", SPOKEN)
    with pytest.raises(InputError, match=r"clean: the pattern '\(d\|d\)\*X' takes longer than 0\.5 s on 'ddd"):
        make(source("./a.jsonl") | {"clean": [{"kind": "refusal", "patterns": ["(d|d)*X"]}]})


def test_what_contradicts_itself_is_refused_before_anything_runs() -> None:
    a = {"sources": [{"kind": "skills"}]}
    step = {"kind": "length", "min_characters": 9, "max_characters": 5}
    assert "9 is above max_characters (5)" in refused(a | {"clean": [step]})
    too_many = {"kind": "refusal", "patterns": ["a{99999999999999999999}"]}
    assert "is no regular expression" in refused(a | {"clean": [too_many]})
    assert "must be prompt, answer or meta.NAME; found 'promt'" in refused(a | {"group_by": "promt"})
    gym = {"kind": "reasoning_gym", "task": "chain_sum"}
    assert "must hold {answer}" in refused({"sources": [gym | {"completion": "no placeholder"}]})
    assert "seed is not given here: it comes from the stage's seed" in refused(
        {"sources": [gym | {"config": {"seed": 3}}]}
    )


LEVELS = [{"prompt": f"p{i}", "completion": f"c{i}", "meta": {"level": i, "topic": "a", "word": "x"}} for i in range(9)]


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"curriculum": {"by": "meta.levle"}}, r"^curriculum\.by: no row has meta\.levle; did you mean meta\.level\?$"),
        ({"curriculum": {"by": "meta.word"}}, r"^curriculum\.by: meta\.word is a number in no row"),
        (
            {"balance": {"by": "meta.topc"}},
            r"^balance\.by: no row of sources\.0 has meta\.topc; did you mean meta\.topic",
        ),
        (
            {"group_by": "meta.zzz"},
            r"^group_by: no row of sources\.0 has meta\.zzz; there are meta\.level, meta\.topic",
        ),
        ({"group_by": "answer"}, r"^group_by: no row of sources\.0 has answer"),
    ],
)
def test_a_field_that_no_row_has_is_told_with_the_nearest(
    make: Callable[..., Any], write: Callable[..., Path], more: dict[str, Any], message: str
) -> None:
    write("a.jsonl", LEVELS)
    with pytest.raises(InputError, match=message):
        make(source("./a.jsonl") | more)


def test_a_field_that_only_some_rows_have_is_enough(make: Callable[..., Any], write: Callable[..., Path]) -> None:
    write("a.jsonl", LEVELS)
    write("b.jsonl", [{"prompt": "b", "completion": "c"}])
    both = [{"kind": "file", "path": path} for path in ("./b.jsonl", "./a.jsonl")]
    made = make({"sources": both, "curriculum": {"by": "meta.level"}})
    assert len(made.rows("train")) == 10
    generated = [{"kind": "skills", "rows": 9}, both[1]]
    assert make({"sources": generated, "group_by": "meta.level"}).card["kept"] > 9


def test_text_and_messages_name_the_lines_that_differ(make: Callable[..., Any], write: Callable[..., Path]) -> None:
    turns = [{"role": "user", "content": "q"}]
    rows = [{"prompt": f"p{i}", "answer": "c"} for i in range(30)]
    write("a.jsonl", [*rows, {"prompt": turns, "answer": "c"}, {"prompt": "z", "answer": "d"}])
    with pytest.raises(InputError, match=r"a\.jsonl:31: prompt is messages where it was text before \(a\.jsonl:1\)"):
        make(source("./a.jsonl"))


def test_csv_cells_of_tests_and_sql_are_json_or_text(make: Callable[..., Any], write: Callable[..., Path]) -> None:
    tests, query = '{"entry_point": "f", "test": "def check(f): pass"}', '{"query": "select 1", "database": "a.db"}'
    rows = [["p", tests, query], ["q", "[f(1)] == [2]", "x"], ["r", '["assert f(1) == 1"]', "y"]]
    write(
        "a.csv",
        "\n".join(",".join('"' + c.replace('"', '""') + '"' for c in r) for r in [["prompt", "t", "sql"], *rows]),
    )
    made = {row["prompt"]: row for row in make(source("./a.csv", columns={"tests": "t"})).rows("train")}
    assert made["p"]["tests"] == json.loads(tests)
    assert made["p"]["sql"] == json.loads(query)
    assert made["q"]["tests"] == "[f(1)] == [2]"
    assert made["q"]["sql"] == "x"
    assert made["r"]["tests"] == ["assert f(1) == 1"]
    write("a.jsonl", [{"prompt": "p", "tests": tests}])
    assert make(source("./a.jsonl")).rows("train")[0]["tests"] == tests
    write("b.csv", 'prompt,tests\np,"{""a"": 1, ""a"": 2}"\nq,x\n')
    (reject,) = make(source("./b.csv")).rejects
    assert (reject["line"], reject["field"], reject["code"]) == (2, "tests", "duplicate_key")


def test_what_is_no_file_is_named_as_what_it_is(make: Callable[..., Any], tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.jsonl")
    (tmp_path / "loop.jsonl").symlink_to("loop.jsonl")
    (tmp_path / "gone.jsonl").symlink_to("nothing.jsonl")
    for path, words in {
        "./pipe.jsonl": "pipe.jsonl: is a pipe",
        "./p*.jsonl": r"p\*\.jsonl: pipe\.jsonl is a pipe",
        "./loop.jsonl": "loop.jsonl: is a symbolic link that leads back to itself",
        "./gone.jsonl": "gone.jsonl: is a symbolic link to nothing.jsonl, which is not there",
        "/dev/null": "/dev/null: is a device",
    }.items():
        with pytest.raises(InputError, match=words):
            make(source(path))
    assert "is a pipe" in str(missing("./pipe.jsonl", tmp_path))
    assert "is a device" in str(missing("/dev/null", tmp_path))
    assert "leads back to itself" in str(missing("./loop.jsonl", tmp_path))


def test_the_folder_of_the_yaml_file_can_be_a_source(make: Callable[..., Any], tmp_path: Path) -> None:
    work = tmp_path / "rows"
    work.mkdir()
    with pytest.raises(InputError, match=r"sources\.0: \.: holds no data file"):
        make(source("./"), base=work)
    (work / "a.jsonl").write_text('{"prompt": "p", "completion": "c"}\n')
    assert make(source("./"), base=work).card["sources"][0]["files"][0]["file"] == "a.jsonl"


@pytest.mark.parametrize(
    "text", ['{\n  "prompt": "p",\n  "completion": "c"\n}\n', '[\n {"prompt":\n "p"}\n]\n', '{"prompt":\n"p"}']
)
def test_rows_over_several_lines_are_told_how_to_be_written(
    make: Callable[..., Any], write: Callable[..., Path], text: str
) -> None:
    write("a.jsonl", text)
    with pytest.raises(InputError, match=r"a\.jsonl:1: not JSON: .*write the rows as one list"):
        make(source("./a.jsonl"))


def test_a_column_that_leads_nowhere_is_told(make: Callable[..., Any], write: Callable[..., Path]) -> None:
    write("a.jsonl", LEVELS)
    with pytest.raises(InputError, match=r"sources\.0\.columns\.answer: meta\.level\.x\.y leads to nothing in any row"):
        make(source("./a.jsonl", columns={"answer": "meta.level.x.y"}))
    assert make(source("./a.jsonl", columns={"answer": "meta.topic"})).rows("train")[0]["answer"] == "a"
    assert "meta. names nothing; write meta.NAME: prompt" in refused(source("./a.jsonl", columns={"meta.": "prompt"}))


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"task": "zzzzzz"}, r"has no task zzzzzz; there are .*, .* and \d+ more$"),
        ({"config": {"min_term": 3}}, r"config\.min_term: chain_sum has no parameter min_term; did you mean min_terms"),
        ({"config": {"min_terms": "x"}}, r"config\.min_terms: found text 'x'; a number is expected \(by default 2\)"),
        ({"config": {"min_terms": True}}, r"config\.min_terms: found true; a number is expected"),
    ],
)
def test_a_task_of_reasoning_gym_is_refused_in_words(
    make: Callable[..., Any], more: dict[str, Any], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        make({"sources": [{"kind": "reasoning_gym", "task": "chain_sum", "rows": 3} | more]})
