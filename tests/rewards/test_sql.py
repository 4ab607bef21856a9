"""The `sql` reward: what it reads, what it refuses, how it compares; on SQLite and on DuckDB."""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from finery.errors import InputError, StageError
from finery.rewards import build
from finery.rewards.sql import SqlFunction, extract
from finery.schemas.rewards import SqlReward

CASES = Path(__file__).parents[1] / "cases"
SCRIPT = (CASES / "R10.sql").read_text(encoding="utf-8")
ENGINES = ("sqlite", "duckdb")


def make(engine: str, script: str, path: Path) -> Path:
    """A database file made by a script."""
    if engine == "sqlite":
        with contextlib.closing(sqlite3.connect(path)) as connection:
            connection.executescript(script)
    else:
        import duckdb

        with contextlib.closing(duckdb.connect(str(path))) as connection:
            connection.execute(script)
    return path


def reward(database: Path | None, **fields: Any) -> SqlFunction:
    return SqlFunction(SqlReward(kind="sql", **fields), database)


@pytest.fixture(scope="module", params=ENGINES)
def held(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> SqlFunction:
    """A reward with R10's tables in a file."""
    file = make(request.param, SCRIPT, tmp_path_factory.mktemp(request.param) / "cases.db")
    return reward(file, engine=request.param, timeout=2)


@pytest.fixture
def score(held: SqlFunction) -> Callable[[str, str], float | None]:
    return lambda gold, query: held(["" + query], sql=[gold])[0]


@pytest.mark.parametrize("source", ["file", "schema"])
def test_case_R10_results_are_compared_as_bags(held: SqlFunction, source: str) -> None:
    pairs = json.loads((CASES / "R10.json").read_text(encoding="utf-8"))
    golds = [pair["gold"] if source == "file" else {"gold": pair["gold"], "schema": SCRIPT} for pair in pairs]
    assert held([pair["pred"] for pair in pairs], sql=golds) == [pair["expected"] for pair in pairs]
    assert len(pairs) == 15


def test_case_R10_columns_may_be_permuted_when_the_config_says_so(held: SqlFunction) -> None:
    pair = json.loads((CASES / "R10.json").read_text(encoding="utf-8"))[11]
    free = reward(held.database, engine=held.reward.engine, permute_columns=True)
    assert held([pair["pred"]], sql=[pair["gold"]]) == [0.0]
    assert free([pair["pred"]], sql=[pair["gold"]]) == [1.0]


def test_case_R11_limits_hold_and_nothing_is_written(held: SqlFunction, monkeypatch: pytest.MonkeyPatch) -> None:
    assert held.database is not None
    folder = held.database.parent
    monkeypatch.chdir(folder)
    before = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.iterdir()}
    for query in json.loads((CASES / "R11.json").read_text(encoding="utf-8")):
        gold = query["pred"] if query["expected"] else "SELECT count(*) FROM t"
        assert held([query["pred"]], sql=[gold]) == [query["expected"]], query["why"]
    assert {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.iterdir()} == before
    assert list(before) == ["cases.db"]


WRITES = [
    "INSERT INTO t VALUES (9, 'x', 1.0)",
    "UPDATE t SET id = 0",
    "DELETE FROM t RETURNING id",
    "CREATE TABLE z (a INTEGER)",
    "CREATE TEMP TABLE z AS SELECT 1",
    "BEGIN",
    "VACUUM INTO 'copy.db'",
    "PRAGMA table_info('t')",
    "SELECT load_extension('x')",
    "EXPLAIN DELETE FROM t",
]


@pytest.mark.parametrize("source", ["file", "memory"])
def test_what_is_not_a_read_is_refused(held: SqlFunction, source: str) -> None:
    gold: Any = "SELECT count(*) FROM t" if source == "file" else {"query": "SELECT count(*) FROM t", "schema": SCRIPT}
    for query in WRITES:
        assert held([query], sql=[gold]) == [0.0], query
    assert held(["SELECT 4"], sql=[gold]) == [1.0]  # nothing was deleted from the one in memory either


def test_duckdb_reaches_no_file_and_no_setting(tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text("a\n1\n", encoding="utf-8")
    judge = reward(None, engine="duckdb")
    gold = {"query": "SELECT 1", "schema": "CREATE SEQUENCE s; CREATE TABLE t (a INTEGER); INSERT INTO t VALUES (1)"}
    for query in (
        f"SELECT * FROM '{tmp_path}/x.csv'",
        f"SELECT a FROM read_csv('{tmp_path}/x.csv')",
        f"SELECT count(*) FROM glob('{tmp_path}/*')",
        f"COPY (SELECT 1) TO '{tmp_path}/y.csv'",
        "WITH x AS (DELETE FROM t RETURNING a) SELECT a FROM x",
        "SELECT nextval('s')",
        "SET threads = 2",
        "INSTALL httpfs",
    ):
        assert judge([query], sql=[gold]) == [0.0], query
    assert judge(["SELECT a FROM t"], sql=[gold]) == [1.0]
    assert [path.name for path in tmp_path.iterdir()] == ["x.csv"]


SLOW = "SELECT instr(hex(zeroblob(4000000)), hex(zeroblob(2000000)) || '1')"
"""One instruction of SQLite's machine that takes half an hour: no progress handler is called in it."""


def test_a_query_that_cannot_be_interrupted_ends_with_its_process(tmp_path: Path) -> None:
    judge = reward(make("sqlite", SCRIPT, tmp_path / "cases.db"), timeout=0.3)
    assert judge([SLOW, "SELECT id FROM t"], sql=["SELECT id FROM t"] * 2) == [0.0, 1.0]
    assert "stopped" in judge.explain({"sql": "SELECT id FROM t"}, SLOW, [], False)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_query_that_the_parser_cannot_bear_scores_0(engine: str, tmp_path: Path) -> None:
    """DuckDB's does not end on it, and cannot be interrupted."""
    judge = reward(make(engine, SCRIPT, tmp_path / "cases.db"), engine=engine, timeout=0.3)
    assert judge(["SELECT " + "(" * 90_000, "SELECT 4"], sql=["SELECT count(*) FROM t"] * 2) == [0.0, 1.0]


def test_a_query_of_duckdb_that_cannot_be_interrupted_is_run_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that it ends within its wall time, four limits and a second, whatever stands beside it in the list."""
    judge = reward(make("duckdb", SCRIPT, tmp_path / "cases.db"), engine="duckdb", timeout=0.3)
    endless = "SELECT " + "(" * 90_000
    ask, asked = judge.worker.ask, list[str]()

    def spy(op: str, **request: Any) -> Any:
        asked.append(op if request.get("given") == endless else "")
        return ask(op, **request)

    monkeypatch.setattr(judge.worker, "ask", spy)
    assert judge(["SELECT 4", endless, "SELECT 4"], sql=["SELECT count(*) FROM t"] * 3) == [1.0, 0.0, 1.0]
    assert [op for op in asked if op] == ["judge"]
    assert judge.worker.wall == 4 * 0.3 + 1


@pytest.mark.parametrize(
    ("query", "due"),
    [
        ("SELECT 4 /* x */ ;;", 1.0), ("SELECT 4 -- x\n;;", 1.0), ("SELECT 4;; -- y\n;", 1.0), ("; SELECT 4", 1.0), ("/* a */ SELECT 4 /* b", 1.0),
        ("SELECT 4 WHERE ';;' = ';;';", 1.0), ("SELECT 4;;SELECT 4", 0.0), (";; -- x", 0.0), ("-- SELECT 4", 0.0), ("SELECT '4;", 0.0), ("SELECT 4 AS \";\";", 1.0),
    ],
)  # fmt: skip
def test_semicolons_and_comments_around_a_query_are_the_same_to_both_engines(
    score: Callable[[str, str], float | None], query: str, due: float
) -> None:
    assert score("SELECT 4", query) == due
    assert score(query, "SELECT 4") == (due or None)


def test_a_query_that_takes_all_memory_scores_0(held: SqlFunction, score: Callable[[str, str], float | None]) -> None:
    blob = "repeat('x', 1000000)" if held.reward.engine == "duckdb" else "hex(zeroblob(500000))"
    hungry = f"WITH RECURSIVE r(n, s) AS (SELECT 1, {blob} UNION SELECT n + 1, s || n FROM r) SELECT count(*) FROM r"
    assert score("SELECT 1", hungry) == 0.0
    assert score("SELECT 1", "SELECT 1") == 1.0


def test_a_flood_of_rows_is_cut_one_row_after_golds(score: Callable[[str, str], float | None]) -> None:
    flood = "WITH RECURSIVE r(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM r LIMIT 100000000) SELECT n FROM r LIMIT 5"
    assert score("SELECT 1", flood) == 0.0


def test_a_gold_result_that_is_too_large_is_said(held: SqlFunction) -> None:
    many = "WITH RECURSIVE r(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM r WHERE n < 100001) SELECT n FROM r"
    assert "more than 100000 rows" in (held.check({"sql": many}) or "")
    assert held(["SELECT 1"], sql=[many]) == [None]


@pytest.mark.parametrize(
    ("gold", "query", "expected"),
    [
        ("SELECT x, id FROM t ORDER BY x IS NULL, id", "SELECT x, id FROM t ORDER BY id", 0),
        ("SELECT name FROM t WHERE id IN (1, 4) ORDER BY x", "SELECT name FROM t WHERE id IN (1, 4) ORDER BY x DESC", 1),
        ("SELECT id FROM t ORDER BY name IS NULL, id", "SELECT id FROM t ORDER BY name IS NULL, id DESC", 0),
        ("SELECT name, id FROM t ORDER BY name DESC, id", "SELECT name, id FROM t ORDER BY name DESC, id DESC", 0),
        ("SELECT name, id FROM t WHERE name <> '' ORDER BY name", "SELECT name, id FROM t WHERE name <> '' ORDER BY name, id DESC", 1),
        ("SELECT name, id FROM t WHERE name <> '' ORDER BY name", "SELECT name, id FROM t WHERE name <> '' ORDER BY id", 0),
        ("SELECT name, count(*) FROM c GROUP BY name ORDER BY count(*)", "SELECT name, count(*) FROM c GROUP BY name ORDER BY name DESC", 1),
        ("SELECT id, rank() OVER (ORDER BY id) AS r FROM t", "SELECT id, id AS r FROM t ORDER BY id DESC", 1),
        ("SELECT id FROM t /* ORDER BY id */ -- ORDER BY id", "SELECT id FROM t ORDER BY id DESC", 1),
        ('SELECT id AS "order by" FROM t', "SELECT id FROM t ORDER BY id DESC", 1),
        ("WITH q AS (SELECT id FROM t ORDER BY id) SELECT id FROM q", "SELECT id FROM t ORDER BY id DESC", 1),
        ("WITH q AS (SELECT id FROM t) SELECT id FROM q ORDER BY id", "SELECT id FROM t ORDER BY id DESC", 0),
        ("SELECT id FROM t UNION ALL SELECT 9 ORDER BY 1", "SELECT id FROM t UNION ALL SELECT 9 ORDER BY 1 DESC", 0),
        ("SELECT id FROM t\norder\n/* x */ by id", "SELECT id FROM t ORDER BY id DESC", 0),
        ("SELECT id FROM t;", "SELECT id FROM t; -- done\n", 1),
        ("SELECT id FROM t -- all of them;", "/* ; */ SELECT id FROM t;", 1),
    ],
)  # fmt: skip
def test_order_counts_where_gold_orders_at_its_top_level(
    score: Callable[[str, str], float | None], gold: str, query: str, expected: int
) -> None:
    assert score(gold, query) == expected


@pytest.mark.parametrize(
    ("gold", "query", "expected"),
    [
        ("SELECT 1000000", "SELECT 1000001", 0),  # integers are exact, whatever the tolerance
        ("SELECT 1000000.5e0", "SELECT 1000001.0e0", 1),  # floats are relative to their size
        ("SELECT 1e0", "SELECT 1.00001e0", 0),
        ("SELECT CAST(NULL AS INTEGER)", "SELECT NULL", 1),
        ("SELECT x'00ff'", "SELECT x'00ff'", 1),
        ("SELECT 1 WHERE 1 = 0", "SELECT 1 WHERE 1 = 2", 1),
        ("SELECT 1 AS a WHERE 1 = 0", "SELECT 1 AS b WHERE 1 = 0", 0),
        ("SELECT 1 AS a WHERE 1 = 0", "SELECT 1 AS A, 2 AS b WHERE 1 = 0", 0),
        ("SELECT id, name FROM t", "SELECT id FROM t", 0),
        ("SELECT id FROM t", "SELECT id FROM t UNION ALL SELECT 1", 0),
        ("SELECT id FROM t", "", 0),
        ("SELECT id FROM t", "-- nothing", 0),
        ("SELECT id FROM t", "SELECT id FROM t WHERE id = ?", 0),
        ("SELECT id FROM t", "SELECT id FROM t\0", 0),
        ("SELECT id FROM t", "SELECT id FROM t WHERE name <> '\ud800'", 0),
        ("SELECT id FROM t", "SELECT id FROM t WHERE id IN (" + "1," * 60_000 + "1)", 0),
    ],
)  # fmt: skip
def test_values_compare_by_what_they_are(
    score: Callable[[str, str], float | None], gold: str, query: str, expected: int
) -> None:
    assert score(gold, query) == expected


def test_a_boolean_of_duckdb_is_not_a_number_nor_a_date_a_text() -> None:
    judge = reward(None, engine="duckdb")
    for gold, query, expected in (
        ("SELECT true", "SELECT true", 1),
        ("SELECT true", "SELECT 1", 0),
        ("SELECT DATE '2020-01-02'", "SELECT '2020-01-02'", 0),
        ("SELECT DATE '2020-01-02'", "SELECT CAST('2020-01-02' AS DATE)", 1),
        ("SELECT 0.3", "SELECT 0.1e0 + 0.2e0", 1),
        ("SELECT 'nan'::DOUBLE, 'inf'::DOUBLE", "SELECT 'nan'::DOUBLE, 1e999::DOUBLE", 1),
        ("SELECT [1, 2]", "SELECT [1, 2]", 1),
        ("SELECT [1, 2]", "SELECT [2, 1]", 0),
        ("SELECT $$order by$$ AS a, b FROM (VALUES (1), (2)) v(b)", "SELECT 'order by', b FROM (VALUES (2), (1)) v(b)", 1),
        ("(SELECT b FROM (VALUES (1), (2)) v(b) ORDER BY b)", "SELECT b FROM (VALUES (2), (1)) v(b)", 0),
        ("SELECT b, 1 FROM (VALUES (1), (2)) v(b) ORDER BY ALL", "SELECT b, 1 FROM (VALUES (2), (1)) v(b)", 0),
    ):  # fmt: skip
        assert judge([query], sql=[{"query": gold, "schema": ""}]) == [expected], query


def test_text_that_is_not_utf8_is_compared(tmp_path: Path) -> None:
    file = make("sqlite", "CREATE TABLE t (a TEXT); INSERT INTO t VALUES (CAST(x'ff41' AS TEXT))", tmp_path / "x.db")
    judge = reward(file)
    assert judge(["SELECT a FROM t", "SELECT 'A'"], sql=["SELECT a FROM t"] * 2) == [1.0, 0.0]


def test_a_broken_gold_query_is_found_by_check_and_abstains(held: SqlFunction) -> None:
    for gold in ("SELEC 1", "SELECT * FROM absent", "DELETE FROM t", "SELECT 1; SELECT 2"):
        assert "the gold query" in (held.check({"sql": gold}) or ""), gold
        assert held(["SELECT 1", ""], sql=[gold, gold]) == [None, None]
        assert "cannot be judged" in held.explain({"sql": gold}, "SELECT 1", [], False)
    assert held.check({"sql": "SELECT id FROM t"}) is None


def test_a_slow_gold_query_abstains(tmp_path: Path) -> None:
    judge = reward(make("sqlite", SCRIPT, tmp_path / "cases.db"), timeout=0.2)
    slow = json.loads((CASES / "R11.json").read_text(encoding="utf-8"))[0]["pred"]
    for gold in (slow, SLOW):
        assert judge(["SELECT 1", slow], sql=[gold, gold]) == [None, None]
    assert judge.check({"sql": slow}) == "the gold query took longer than 0.2 s"


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (None, "missing"),
        (3, "int"),
        (["SELECT 1"], "list"),
        ({}, "no query"),
        ({"query": " "}, "no query"),
        ({"query": 1}, "not text"),
        ({"query": "SELECT 1", "gold": "SELECT 1"}, "two queries"),
        ({"query": "SELECT 1", "answer": "1"}, "answer"),
        ({"query": "SELECT 1", "db": "x"}, "names the db"),
        ({"query": "SELECT 1", "db": "x", "schema": ""}, "both"),
        ({"query": "SELECT 1", "schema": "CREATE TABLE"}, "its schema fails: .*(incomplete|syntax)"),
        ({"query": "SELECT 1", "schema": "ATTACH 'x.db' AS x"}, "attach|disabled"),
        (
            {"query": "SELECT 1", "schema": "BEGIN; CREATE TABLE t (a INTEGER)"},
            "leaves a transaction open|within a transaction",
        ),
    ],
)
def test_a_row_whose_sql_cannot_be_used_is_named(held: SqlFunction, value: Any, reason: str) -> None:
    assert re.search(reason, held.check({"sql": value}) or ""), held.check({"sql": value})
    assert held(["SELECT 1"], sql=[value]) == [None]


def test_rows_name_databases_of_a_folder(tmp_path: Path) -> None:
    """Also in the layout of Spider and BIRD: DB/DB.sqlite."""
    (tmp_path / "world").mkdir()
    make("sqlite", "CREATE TABLE t (a INTEGER); INSERT INTO t VALUES (1)", tmp_path / "world/world.sqlite")
    make("sqlite", "CREATE TABLE t (a INTEGER); INSERT INTO t VALUES (2)", tmp_path / "shop.db")
    judge = reward(tmp_path)
    rows = [{"query": "SELECT a FROM t", "db": name} for name in ("world", "shop", "shop.db", "world/world.sqlite")]
    assert judge(["SELECT 1", "SELECT 2", "SELECT 2", "SELECT 2"], sql=rows) == [1.0, 1.0, 1.0, 0.0]
    for name in ("absent", "../shop.db", str(tmp_path / "shop.db"), "world"):
        expected = None if name == "world" else "sql.db|names the db"
        reason = judge.check({"sql": {"query": "SELECT a FROM t", "db": name}})
        assert (reason is None) == (expected is None), reason
    assert "names no db" in (judge.check({"sql": "SELECT 1"}) or "")


def test_a_database_that_cannot_be_used_is_a_fault_and_never_0(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"absent\.db"):
        reward(tmp_path / "absent.db")
    for engine in ENGINES:
        broken = tmp_path / f"broken.{engine}"
        broken.write_bytes(b"not a database" * 1000)
        with pytest.raises(StageError, match="cannot be opened"):
            reward(broken, engine=engine)(["SELECT 1"], sql=["SELECT 1"])
        gone = make(engine, SCRIPT, tmp_path / f"gone.{engine}")
        judge = reward(gone, engine=engine)
        assert judge(["SELECT 1"], sql=["SELECT 1"]) == [1.0]
        gone.unlink()
        with pytest.raises(StageError, match="cannot be read"):
            judge(["SELECT 1"], sql=["SELECT 1"])
    with pytest.raises(StageError, match="`sql`"):
        reward(None)(["SELECT 1"])


def test_a_database_in_wal_mode_is_read_and_left_alone(tmp_path: Path) -> None:
    file = tmp_path / "wal.db"
    with contextlib.closing(sqlite3.connect(file)) as writer:
        writer.execute("PRAGMA journal_mode=WAL")
        writer.executescript(SCRIPT)
    judge = reward(file)
    assert judge(["SELECT count(*) FROM t"], sql=["SELECT 4"]) == [1.0]
    assert [path.name for path in tmp_path.iterdir()] == ["wal.db"]
    with contextlib.closing(sqlite3.connect(file)) as writer:
        writer.execute("INSERT INTO t VALUES (5, 'new', 0)")
        writer.commit()
        with pytest.raises(StageError, match="wal_checkpoint"):
            reward(file)(["SELECT 1"], sql=["SELECT 1"])


def test_a_database_that_changes_is_read_anew(tmp_path: Path) -> None:
    file = make("sqlite", SCRIPT, tmp_path / "x.db")
    judge = reward(file)
    assert judge(["SELECT 4"], sql=["SELECT count(*) FROM t"]) == [1.0]
    make("sqlite", "INSERT INTO t VALUES (5, 'new', 0)", file)
    assert judge(["SELECT 5"], sql=["SELECT count(*) FROM t"]) == [1.0]


@pytest.mark.parametrize(
    ("text", "how", "query"),
    [
        ("SELECT 1", "auto", "SELECT 1"),
        ("Say:\n```sql\nSELECT 1;\n```\nthen\n```sql\nSELECT 2\n```", "auto", "SELECT 2"),
        ("```\nSELECT 1\n```", "auto", "SELECT 1"),
        ("```sql\nSELECT 1\n```\n```\nnot this\n```", "auto", "SELECT 1"),
        ("```python\nx = 1\n```", "auto", None),
        ("```SQL SELECT 1```", "fence", "SELECT 1"),
        ("```sqlite\nSELECT 1", "fence", "SELECT 1"),
        ("SELECT 1", "fence", None),
        ("```sql\nSELECT 1\n```", "whole", "```sql\nSELECT 1\n```"),
        ("  ", "auto", None),
        ("```sql\n```", "auto", None),
    ],
)
def test_the_query_of_a_completion(text: str, how: str, query: str | None) -> None:
    assert extract(text, how) == query


def test_a_truncated_completion_scores_0(held: SqlFunction) -> None:
    assert held(["SELECT 1", "SELECT 1"], sql=["SELECT 1"] * 2, truncated=[True, False]) == [0.0, 1.0]
    assert held(["SELECT 1"], sql=["SELEC"], truncated=[True]) == [None]


def test_it_works_through_the_list_of_rewards(tmp_path: Path) -> None:
    file = make("sqlite", SCRIPT, tmp_path / "x.db")
    rewards = build([SqlReward(kind="sql", database="./x.db")], {"rewards.0.database": file})
    rows = [
        {"prompt": "How many?", "sql": "SELECT count(*) FROM t"},
        {"prompt": [{"role": "user", "content": "Names?"}], "sql": {"query": "SELECT nam FROM t"}},
    ]
    scores = rewards.score(rows, ["```sql\nSELECT count(id) FROM t\n```", "SELECT 1"], [[1], [1]], [False, False])
    assert scores.per_reward == {"sql": [1.0, None]} and scores.solved == [True, None]
    assert rewards.check(rows) == [None, ("sql", "the gold query fails: no such column: nam")]
    assert rewards.explain(rows[0], "SELECT id FROM t", [1], False) == {
        "sql": "SELECT id FROM t: more than 1 row where gold has 1; not in gold: (1)"
    }
