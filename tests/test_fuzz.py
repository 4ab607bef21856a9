"""5,000 mutated rows and completions: nothing crashes, nothing hangs, every row is accounted for, no process stays.

Rows go to the data stage in files of 25, completions to the rewards in batches of 25: 100 files and 100 batches.
"""

from __future__ import annotations

import csv
import ctypes
import gc
import io
import json
import math
import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter

from finery.contract import StageContext
from finery.data.dataset import read_dataset
from finery.errors import InputError
from finery.rewards import RewardSet, build
from finery.schemas.data import DataStage
from finery.schemas.reference import uses
from finery.schemas.rewards import Rewards
from finery.stages import data

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
BATCH = 25


def steady(examples: int) -> settings:
    return settings(
        max_examples=examples,
        derandomize=True,
        deadline=None,
        database=None,
        phases=[Phase.generate],  # a failure is shown as it was found: to shrink 25 rows takes minutes
        suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.data_too_large],
    )


# ---- rows

ROWS: dict[str, list[dict[str, Any]]] = {
    "alpaca": [
        {"instruction": "Add", "input": "1, 2", "output": "3", "history": [["Hi", "Hello"]]},
        {"instruction": "说出三种颜色", "input": "", "output": "红、黄、蓝"},
    ],
    "sharegpt": [{"conversations": [{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Hello"}]}],
    "messages": [{"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}]}],
    "prompt_completion": [{"prompt": "2+2?", "completion": "4", "answer": "4"}],
    "answer": [{"prompt": "2+2?", "answer": "4", "meta": {"level": 1}, "sql": {"query": "SELECT 1"}}],
}
JUNK = st.sampled_from([
    "null", "true", "0", "-0", "1e999", "9" * 400, "3.10", "NaN", "-Infinity", '""', '" "', "[]", "{}", "[null]", "[[]]",
    '"\\ud800"', '"\\udc00\\ud800"', '"\\u0000"', '"\\u2028"', '"\u2028\u0085"', '"' + "x" * 20_000 + '"', "[" * 300 + "]" * 300,
    '{"a":' * 100 + "1" + "}" * 100, '[{"role":"user"}]', '[{"role":null,"content":1}]', '[{"from":"gpt","value":[]}]',
    '[["a"],["b","c","d"]]', '[["q", null]]', '{"role":"user","content":"x"}', "tru", '"open', "'single'", "", "1 2",
]) | st.text(max_size=20).map(json.dumps)  # fmt: skip
KEYS = st.sampled_from(["prompt", "completion", "messages", "conversations", "instruction", "output", "answer", "meta",
                        "id", "", "weight", "tests", "role", "\\ud800", "system", "history", "a.b"])  # fmt: skip


@st.composite
def written_rows(draw: st.DrawFn, name: str) -> bytes:
    """A row as JSON text with some of its parts broken; now and then it is left whole."""
    row = draw(st.sampled_from(ROWS[name]))
    parts = [(key, json.dumps(value, ensure_ascii=draw(st.booleans()))) for key, value in row.items()]
    for what in draw(st.lists(st.sampled_from(["value", "value", "drop", "twice", "extra"]), max_size=3)):
        at = draw(st.integers(0, max(0, len(parts) - 1)))
        if what == "extra" or not parts:
            parts.insert(at, (draw(KEYS), draw(JUNK)))
        elif what == "value":
            parts[at] = (parts[at][0], draw(JUNK))
        elif what == "drop":
            del parts[at]
        else:
            parts.append((parts[at][0], draw(JUNK)))
    text = "{" + ", ".join(f'"{key}": {value}' for key, value in parts) + "}"
    return draw(damaged(text.encode("utf-8"))) if draw(st.integers(0, 3)) == 0 else text.encode("utf-8")


@st.composite
def damaged(draw: st.DrawFn, raw: bytes) -> bytes:
    """Bytes with a cut, a flipped or an inserted byte."""
    at = draw(st.integers(0, max(0, len(raw) - 1)))
    match draw(st.sampled_from(["cut", "ascii", "insert", "any", "double"])):
        case "cut":
            return raw[:at]
        case "ascii":
            return raw[:at] + bytes([draw(st.integers(0, 127))]) + raw[at + 1 :]
        case "insert":
            return (
                raw[:at] + draw(st.sampled_from([b"\x00", b"\r", b"\n", b",", b'"', b"\xe2\x80\xa8", b"}"])) + raw[at:]
            )
        case "any":  # a byte that is no UTF-8 condemns the file, and so is rare
            most = 255 if draw(st.integers(0, 9)) == 7 else 127
            return raw[:at] + bytes([draw(st.integers(0, most))]) + raw[at + 1 :]
        case _:
            return raw + raw


@st.composite
def files(draw: st.DrawFn) -> tuple[str, str, bytes, int]:
    """A file's name, its format, its bytes, and how many rows were written into it."""
    name = draw(st.sampled_from(sorted(ROWS)))
    kind = draw(st.sampled_from(["jsonl", "jsonl", "jsonl", "jsonl", "csv", "json"]))
    rows = draw(st.lists(written_rows(name), min_size=BATCH, max_size=BATCH))
    if kind == "jsonl":
        end = draw(st.sampled_from([b"\n", b"\r\n", b"\n\n"]))
        body = end.join(rows) + draw(st.sampled_from([b"", end]))
    elif kind == "json":
        body = b"[" + draw(st.sampled_from([b",", b",\n"])).join(rows) + b"]"
        readable = [json.dumps(row) for row in ROWS[name] * BATCH][:BATCH]
        if draw(st.booleans()):  # one damaged row condemns the file; so half of them are damaged in their values only
            body = ("[" + ",\n".join(readable) + "]").encode()
            body = body.replace(b'"Hi"', draw(st.sampled_from([b"null", b"7", b'"\\ud800"', b"[]", b'""'])))
    else:
        body = _csv(name, rows)
    mark = draw(st.sampled_from([b"", b"", b"\xef\xbb\xbf"]))
    return f"rows.{kind}", draw(st.sampled_from(["auto", name, name])), mark + body, len(rows)


def _csv(name: str, rows: list[bytes]) -> bytes:
    """The same rows as a table; what cannot be read as JSON stands in the first cell as it is."""
    out = io.StringIO()
    columns = list(dict.fromkeys(key for row in ROWS[name] for key in row))
    table = csv.writer(out)
    table.writerow(columns)
    for raw in rows:
        text = raw.decode("utf-8", "replace").replace("\x00", "")
        try:
            value = json.loads(text)
        except (ValueError, RecursionError):
            value = text
        if isinstance(value, dict):
            cells = [json.dumps(value[key]) if key in value else "" for key in columns]
            table.writerow([cell.encode("utf-8", "replace").decode() for cell in cells])
        else:
            table.writerow([text])
    return out.getvalue().encode("utf-8")


def read(folder: Path, name: str, form: str, dedupe: str) -> tuple[dict[str, float], int, int]:
    """Run the stage: its metrics, and the rows and rejects that it wrote."""
    source = {"kind": "file", "path": f"./{name}", "format": form}
    stage = DataStage.model_validate(
        {"kind": "data", "sources": [source], "max_reject_fraction": 1.0, "deduplicate": dedupe}
    )
    (folder / "checkpoints").mkdir()
    context = StageContext(
        stage="corpus",
        seed=7,
        output_dir=folder / "outputs",
        checkpoint_dir=folder / "checkpoints",
        metrics_path=folder / "metrics.jsonl",
        base_dir=folder,
    )
    result = data.run(stage, {use.field: folder / use.text for use in uses(stage)}, context)
    rejects = (folder / "outputs/rejects/rejects.jsonl").read_text(encoding="utf-8").splitlines()
    assert all({"reason", "code"} <= set(json.loads(line)) for line in rejects)
    return result.metrics, len(read_dataset(folder / "outputs/train")), len(rejects)


def test_every_mutated_row_is_kept_or_rejected(tmp_path_factory: pytest.TempPathFactory) -> None:
    seen: Counter[str] = Counter()
    messages: list[str] = []

    @steady(100)
    @given(files())
    def fuzz(case: tuple[str, str, bytes, int]) -> None:
        name, form, body, rows = case
        folder = tmp_path_factory.mktemp("fuzz")
        (folder / name).write_bytes(body)
        seen["rows"] += rows
        try:
            metrics, kept, rejected = read(folder, name, form, "row" if len(body) % 2 else "none")
        except InputError as error:
            messages.append(str(error))
            seen["refused"] += rows
            return
        assert metrics["read"] == metrics["kept"] + metrics["rejected"]
        assert (kept, rejected) == (metrics["kept"], metrics["rejected"])
        if name.endswith("jsonl"):
            lines = body.removeprefix(b"\xef\xbb\xbf").decode("utf-8").split("\n")
            assert metrics["read"] == sum(1 for line in lines if line.strip(" \t\r"))
        seen["kept"] += kept
        seen["rejected"] += rejected

    fuzz()
    assert seen["rows"] >= 2500
    assert messages and all(message.startswith("sources.0") or "rows." in message for message in messages), messages
    assert min(seen["kept"], seen["rejected"]) >= 200 and seen["refused"] < 1250, (
        seen
    )  # the mutations are neither too tame nor too wild


# ---- completions

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
RIGHT: dict[str, list[tuple[dict[str, Any], str]]] = {
    "answer": [
        ({"answer": "1/2"}, "So the answer is $\\boxed{\\frac{1}{2}}$."),
        ({"answer": "#### 1,234"}, "1,000 + 234\n#### 1,234"),
        ({"answer": "x^2+1"}, "答案是 $1+x^{2}$"),
        ({"answer": "50%"}, "<answer>50 %</answer>"),
    ],
    "choice": [({"answer": "B"}, "The answer is (B)."), ({"answer": "A"}, "\\boxed{A}")],
    "json_schema": [({}, '```json\n{"a": 1}\n```'), ({}, '{"a": 2}')],
    "format": [({}, "<think>x</think><answer>1</answer>")],
    "regex": [({"answer": "42"}, "Result: 42")],
    "sql": [
        ({"sql": {"query": "SELECT a, b FROM t ORDER BY a", "schema": "CREATE TABLE t (a, b); INSERT INTO t VALUES (1, 0.5), (2, NULL)"}}, "```sql\nSELECT a, b FROM t ORDER BY a;\n```"),
        ({"sql": {"query": "SELECT count(*) FROM t", "schema": "CREATE TABLE t (a)"}}, "SELECT count(*) FROM t -- all"),
    ],
    "code_tests": [
        ({"tests": {"prefix": "def f(x):\n", "entry_point": "f", "test": "def check(candidate):\n    assert candidate(2) == 3\n"}}, "    return x + 1\n"),
        ({"tests": {"prefix": "", "entry_point": "f", "test": "def check(candidate):\n    assert candidate(2) == 3\n"}}, "```python\ndef f(x):\n    return x + 1\n```"),
    ],
}  # fmt: skip
COMMON = [
    "", " ", "\x00", "\ud800", "\u2028", "９", "−", "$", "\\boxed{", "{", "}", "####", "```", "```\n", "<answer>", "%", "1e999",
    "9^9^9^9", "\\frac", "1/0", ";", "'", '"', "--", "/*", "(" * 200, "a" * 5000, "[" * 3000, "null", "B", "\\sqrt{-1}",
]  # fmt: skip
OWN: dict[str, list[str]] = {
    "sql": [
        "; DROP TABLE t", " UNION ALL SELECT * FROM t", " LIMIT 0", " ORDER BY b DESC", "ATTACH 'x.db' AS x;", "PRAGMA writable_schema=1",
        "WITH RECURSIVE r(n) AS (SELECT 1 UNION ALL SELECT n+1 FROM r) SELECT count(*) FROM r", "randomblob(100000000)",
        "DELETE FROM t", "load_extension('x')", "CASE WHEN", "EXPLAIN ", "x'00'", "VALUES (1, 2)", "[a]", "?1",
    ],
    "code_tests": [
        "while True: pass\n", "import os; os.fork()\n", "raise SystemExit(0)\n", "import os; os._exit(0)\n",
        "import os; os.kill(os.getppid(), 9)\n", "print('x' * 10**7)\n", "import subprocess; subprocess.Popen(['sleep', '60'])\n",
        "import threading; threading.Thread(target=lambda: [0 for _ in iter(int, 1)], daemon=True).start()\n", "x = 'a' * 10**9\n",
        "import sys; sys.setrecursionlimit(10**9)\ndef g(): g()\ng()\n", "open('/tmp/finery-fuzz', 'w')\n", "    return 1\n", "\t",
    ],
}  # fmt: skip


@st.composite
def completions(draw: st.DrawFn, kind: str) -> tuple[dict[str, Any], str]:
    """A row, and a right completion of it with parts cut, doubled or put in."""
    row, text = draw(st.sampled_from(RIGHT[kind]))
    pieces = st.sampled_from(COMMON + OWN.get(kind, [])) | st.text(max_size=8)
    for what in draw(st.lists(st.sampled_from(["put", "put", "cut", "double", "swap"]), max_size=3)):
        i, j = sorted((draw(st.integers(0, len(text))), draw(st.integers(0, len(text)))))
        match what:
            case "put":
                text = text[:i] + draw(pieces) + text[i:]
            case "cut":
                text = text[:i] + text[min(j, i + 12) :]
            case "double":
                text = text + "\n" + text
            case _:
                text = text[:i] + text[i:j][::-1] + text[j:]
    return row, text


def reward_set(kind: str, folder: Path) -> RewardSet:
    fields: dict[str, Any] = {
        "answer": {},
        "choice": {},
        "format": {},
        "regex": {"pattern": r"(\d+)", "group": 1},
        "json_schema": {"file": "./schema.json"},
        "sql": {"timeout": 0.5},
        "code_tests": {"timeout": 1.0, "workers": 2},
    }[kind]
    (folder / "schema.json").write_text(json.dumps(SCHEMA), encoding="utf-8")
    rewards = TypeAdapter(Rewards).validate_python([{"kind": kind, **fields}])
    return build(rewards, {"rewards.0.file": folder / "schema.json"})


@pytest.fixture
def left_behind() -> Iterator[Callable[[], list[str]]]:
    """What processes there are below this one that were not there before; orphans come to it, not to init."""
    adopt = ctypes.CDLL(None, use_errno=True).prctl
    assert adopt(36, 1, 0, 0, 0) == 0  # PR_SET_CHILD_SUBREAPER
    before = set(_descendants())
    yield lambda: [command for pid, command in _descendants().items() if pid not in before]
    adopt(36, 0, 0, 0, 0)


def _descendants() -> dict[int, str]:
    """Process id to command, of what lives below this process; what has ended and waits to be collected, is collected."""
    parents: dict[int, int] = {}
    commands: dict[int, str] = {}
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        try:
            stat = (folder / "stat").read_text()
            commands[int(folder.name)] = (folder / "cmdline").read_text().replace("\0", " ")[:200]
        except OSError:  # it has just ended
            continue
        state, parent = stat.rpartition(")")[2].split()[:2]
        if state != "Z":
            parents[int(folder.name)] = int(parent)
    below = {os.getpid()}
    grown = True
    while grown:
        more = {pid for pid, parent in parents.items() if parent in below} - below
        below |= more
        grown = bool(more)
    return {pid: commands.get(pid, "") for pid in below - {os.getpid()}}


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize(
    ("kind", "batches"),
    [
        ("answer", 26),
        ("choice", 15),
        ("json_schema", 15),
        ("format", 10),
        ("regex", 10),
        ("sql", 12),
        ("code_tests", 12),
    ],
)
def test_every_mutated_completion_is_scored(
    kind: str, batches: int, tmp_path: Path, left_behind: Callable[[], list[str]]
) -> None:
    seen: Counter[float | None] = Counter()
    held = [reward_set(kind, tmp_path)]

    @steady(batches)
    @given(st.lists(completions(kind), min_size=BATCH, max_size=BATCH))
    def fuzz(pairs: list[tuple[dict[str, Any], str]]) -> None:
        rows = [{"id": f"r{i}", "prompt": "p", **row} for i, (row, _) in enumerate(pairs)]
        began = time.monotonic()
        scores = held[0].score(rows, [text for _, text in pairs], [[1]] * BATCH, [False] * BATCH)
        assert time.monotonic() - began < 25 * BATCH, "a limit did not hold"
        for score in scores.per_reward[kind]:
            assert score is None or (math.isfinite(score) and score in (0.0, 1.0))
        seen.update(scores.per_reward[kind])

    fuzz()
    assert seen.total() >= batches * BATCH and seen[1.0] and seen[0.0], seen
    assert seen[None] == 0, seen  # the rows are all fit; only a row can be abstained on
    _close_shared()
    held.clear()
    del fuzz
    gc.collect()
    until = time.monotonic() + 10
    while (left := left_behind()) and time.monotonic() < until:
        time.sleep(0.1)
    assert left == []


def _close_shared() -> None:
    """End the processes that rewards share for the life of the interpreter."""
    from finery.rewards import patterns, worker

    patterns.PROCESS.close()
    worker.pool(1).close()
    worker.SHARED.close()
