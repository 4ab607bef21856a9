"""The stage as a whole: what is kept, listed, ordered, weighted, counted, and what it leaves behind."""

from __future__ import annotations

import hashlib
import json
import random
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from finery.data import shuffle, spill
from finery.data.dataset import iter_dataset, write_dataset
from finery.errors import InputError

ROOT = Path(__file__).parents[2]
BASE = ROOT / "pipelines" / "base"
CHAINS = {"kind": "chains", "rows": 400, "levels": [1, 2], "noise_add": 0.12, "noise_sub": 0.42}


def lines(path: str = "a.jsonl", **more: Any) -> dict[str, Any]:
    return {"kind": "file", "path": path, **more}


def asks(count: int, **more: Any) -> list[dict[str, Any]]:
    rows = [{"prompt": f"What is {i}+1?", "completion": f"#### {i + 1}", "answer": str(i + 1)} for i in range(count)]
    return [row | more for row in rows]


def said(rows: list[dict[str, Any]]) -> list[str]:
    return [row["completion"] for row in rows]


@pytest.mark.parametrize("bucket", [None, 16])
def test_the_order_of_a_split_is_that_of_the_stage_before_it_streamed(
    make: Callable[..., Any], bucket: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every number that the quickstart shows rests on it; the hashes were taken before (commit 78e3b61)."""
    if bucket:  # many buckets, batches and row groups instead of one
        monkeypatch.setattr(shuffle, "GROUP_ROWS", 4 * bucket)
        monkeypatch.setattr(spill, "BATCH_ROWS", 7)
    config = {
        "sources": [CHAINS | {"weight": 3}, {"kind": "skills", "rows": 100, "weight": 1}],
        "splits": {
            "test": {"fraction": 0.2, "rows": 30, "unique_prompts": True},
            "train": {"fraction": 0.8, "rows": 500},
        },
    }
    made = make(config)
    found = {}
    for name in ("test", "train"):
        rows = made.rows(name)
        found[name] = hashlib.sha256("".join(row["id"] + row["completion"] for row in rows).encode()).hexdigest()
        if not bucket:
            write_dataset(rows, made.outputs / "again", info={"split": name})
            for file in ("data.parquet", "dataset.json"):
                assert (made.outputs / "again" / file).read_bytes() == (made.outputs / name / file).read_bytes()
    assert found == {
        "test": "e34644641ae231a5bccf577a2fc0260be80814034c571f89972823e4d00a30b5",
        "train": "054a8eb0d4c3b67e33ad226aea36fdc423610fd5bf8028e89880da34a5332cad",
    }


@pytest.mark.parametrize("chat", [False, True])
def test_buckets_and_batches_change_nothing(
    make: Callable[..., Any], write: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, chat: bool
) -> None:
    rng = random.Random(3)
    rows = [
        {"prompt": f"p{i} é😀" * rng.randrange(1, 4), "completion": "c" * rng.randrange(1, 9)}
        | ({"answer": "a"} if i % 3 else {})
        | ({"meta": {"n": i}, "tests": [None, {"b": 1.5}]} if i % 2 else {})
        for i in range(500)
    ]
    write("a.jsonl", rows)
    config = {"sources": [lines()], "chat": chat, "system": "s", "splits": {"a": 0.4, "b": 0.6}}
    plain = make(config)
    monkeypatch.setattr(shuffle, "GROUP_ROWS", 64)
    monkeypatch.setattr(shuffle, "MOST_BUCKETS", 9)
    monkeypatch.setattr(shuffle, "MOST_BYTES", 300)
    monkeypatch.setattr(spill, "BATCH_CHARACTERS", 100)
    pieces = make(config)
    for name in ("a", "b"):
        assert pieces.rows(name) == plain.rows(name)
        assert pieces.card["splits"][name] == plain.card["splits"][name]


def test_every_duplicate_is_listed_with_the_row_it_repeats(
    make: Callable[..., Any], write: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("finery.data.repeats.HELD", 50)
    rng, due, first = random.Random(0), [], {}
    for name in ("a.jsonl", "b.jsonl"):
        rows = [{"prompt": f"{rng.randrange(150)}", "completion": rng.choice("xy")} for _ in range(300)]
        write(name, rows)
        for number, row in enumerate(rows, 1):
            key = (row["prompt"], row["completion"])
            if key in first:
                due.append((name, number, "duplicate", f"repeats {first[key]}"))
            first.setdefault(key, f"{name}:{number}")
    made = make({"sources": [lines("a.jsonl"), lines("b.jsonl")]})
    assert [(item["file"], item["line"], item["code"], item["reason"]) for item in made.rejects] == due
    assert made.card["kept"] == len(first) == len(made.rows("train"))
    assert [source["kept"] + source["rejected"] for source in made.card["sources"]] == [300, 300]


def test_damage_fails_the_stage_and_what_it_was_asked_to_drop_does_not(
    make: Callable[..., Any], write: Callable[..., Path]
) -> None:
    rows: list[Any] = [*asks(10), *asks(3), {"prompt": "lost \ufffd", "completion": "x"}]
    write("a.jsonl", rows)
    config = {"sources": [lines()], "clean": [{"kind": "characters"}, {"kind": "unicode", "form": "NFKC"}]}
    made = make(config)
    assert Counter(item["code"] for item in made.rejects) == {"duplicate": 3, "characters": 1}
    metrics = made.result.metrics
    assert (metrics["read"], metrics["kept"], metrics["rejected"], metrics["damaged"]) == (14, 10, 4, 0)
    assert (metrics["rejected_duplicate"], metrics["rejected_characters"], metrics["changed_unicode"]) == (3, 1, 0)
    write("a.jsonl", [*rows, *[{"prompt": f"p{i}"} for i in range(25)]])
    with pytest.raises(InputError) as raised:
        make(config)
    text = str(raised.value)
    assert text.startswith("25 of 39 rows cannot be used, 64.10% where max_reject_fraction allows 0.00%")
    assert text.count("completion: is missing") == 20
    assert text.endswith("and 5 more")
    made = make({**config, "max_reject_fraction": 0.65})
    assert (made.card["damaged"], made.card["rejected"], made.card["kept"]) == (25, 29, 10)
    assert made.card["steps"] == [
        {"step": "characters", "changed": 0, "dropped": 1},
        {"step": "unicode", "changed": 0, "dropped": 0},
    ]


def test_near_duplicates_go_after_exact_ones(make: Callable[..., Any], write: Callable[..., Path]) -> None:
    text = " ".join(f"word{i}" for i in range(60))
    rows = [
        {"prompt": "p", "completion": text},
        {"prompt": "q", "completion": "something else that is quite short"},
        {"prompt": "p", "completion": text},
        {"prompt": "p", "completion": text + " more"},
    ]
    write("a.jsonl", rows)
    made = make({"sources": [lines()], "near_duplicates": {"threshold": 0.8}})
    assert [(item["line"], item["code"], item["reason"]) for item in made.rejects] == [
        (3, "duplicate", "repeats a.jsonl:1"),
        (4, "near_duplicate", "nearly repeats a.jsonl:1"),
    ]
    assert (made.card["near_duplicates"], made.card["damaged"], len(made.rows("train"))) == (1, 0, 2)


def test_a_row_that_only_nearly_repeats_a_duplicate_is_kept(
    make: Callable[..., Any], write: Callable[..., Path]
) -> None:
    text = " ".join(f"word{i}" for i in range(60))
    rows = [
        {"prompt": "p", "completion": "short"},
        {"prompt": "p", "completion": text},
        {"prompt": "p?", "completion": text},
    ]
    write("a.jsonl", rows)
    made = make({"sources": [lines()], "deduplicate": "prompt", "near_duplicates": {}})
    assert [item["line"] for item in made.rejects] == [2]


def test_evaluation_sets_are_kept_out(make: Callable[..., Any], write: Callable[..., Path], tmp_path: Path) -> None:
    question = "How many apples are left when Ann gives three of her twelve apples to Bob and eats one herself?"
    write_dataset([{"prompt": question, "answer": "8"}], tmp_path / "exam")
    write("a.jsonl", [*asks(3), {"prompt": f"Please: {question}", "completion": "8"}])
    made = make({"sources": [lines()], "decontaminate": {"against": ["./exam"]}})
    (reject,) = made.rejects
    assert (reject["line"], reject["code"]) == (4, "contaminated")
    assert "./exam" in reject["reason"]
    assert (made.card["damaged"], made.card["kept"]) == (0, 3)


def test_balance_gives_weights_of_mean_one_and_copies_nothing(
    make: Callable[..., Any], write: Callable[..., Path]
) -> None:
    rows = [row | {"meta": {"topic": "rare" if i < 2 else "common"}} for i, row in enumerate(asks(10))]
    write("a.jsonl", rows)
    for power, ratio in ((1.0, 4.0), (0.5, 2.0)):
        made = make({"sources": [lines()], "balance": {"by": "meta.topic", "power": power}})
        weights: dict[str, set[float]] = defaultdict(set)
        for row in made.rows("train"):
            weights[row["meta"]["topic"]].add(row["weight"])
        (rare,), (common,) = weights["rare"], weights["common"]
        assert rare / common == pytest.approx(ratio)
        assert 2 * rare + 8 * common == pytest.approx(10)
        info = json.loads((made.outputs / "train/dataset.json").read_text())
        assert (info["rows"], info["columns"]["weight"]) == (10, "number")
    write("b.jsonl", [*rows, {"prompt": "p", "completion": "c", "meta": {"other": 1}}])
    made = make({"sources": [lines("b.jsonl")], "balance": {"by": "meta.topic"}, "max_reject_fraction": 0.1})
    (reject,) = made.rejects
    assert (reject["line"], reject["field"], reject["code"]) == (11, "meta.topic", "missing")
    assert made.card["damaged"] == 1


def test_balance_by_source_makes_the_sources_equally_likely(make: Callable[..., Any]) -> None:
    made = make({"sources": [CHAINS, {"kind": "skills", "rows": 50}], "balance": {"by": "source"}})
    weight = {True: 0.0, False: 0.0}
    for row in made.rows("train"):
        weight[row["prompt"].startswith("Q:")] += row["weight"]
    assert weight[True] == pytest.approx(weight[False])
    again = make({"sources": [lines(str(made.outputs / "train"))]})
    assert all("weight" not in row for row in again.rows("train"))  # weights are of the split they were made for


def test_curriculum_orders_by_a_number_and_keeps_the_shuffle_within(make: Callable[..., Any]) -> None:
    config: dict[str, Any] = {"sources": [CHAINS], "splits": {"a": {"fraction": 0.5, "rows": 60}, "b": 0.5}}
    plain = make(config)
    easy = make({**config, "curriculum": {"by": "meta.level"}})
    hard = make({**config, "curriculum": {"by": "meta.level", "order": "hard_first"}})
    assert "order" not in json.loads((plain.outputs / "a/dataset.json").read_text())
    for name in ("a", "b"):
        rows = plain.rows(name)
        assert easy.rows(name) == sorted(rows, key=lambda row: row["meta"]["level"])
        assert hard.rows(name) == sorted(rows, key=lambda row: -row["meta"]["level"])
        info = json.loads((easy.outputs / name / "dataset.json").read_text())
        assert (info["order"], info["rows"]) == ("curriculum", len(rows))


def test_curriculum_puts_rows_of_unknown_difficulty_last_and_counts_them(
    make: Callable[..., Any], write: Callable[..., Path], tmp_path: Path
) -> None:
    rows = [row | {"meta": {"level": level}} for row, level in zip(asks(6), [3, "2", None, 1, True, 2.5], strict=True)]
    write("a.jsonl", rows)
    made = make({"sources": [lines()], "curriculum": {"by": "meta.level"}})
    assert [row["meta"]["level"] for row in made.rows("train")[:3]] == [1, 2.5, 3]
    assert made.card["splits"]["train"]["without_difficulty"] == 3
    assert any("no difficulty for 3 of 6 rows" in warning for warning in made.warnings)
    length = make({"sources": [lines()], "curriculum": {"by": "length", "order": "hard_first"}})
    sizes = [len(text) for text in said(length.rows("train"))]
    assert sizes == sorted(sizes, reverse=True)
    ids = {row["answer"]: row["id"] for row in made.rows("train")}
    counts = {ids["1"]: {"n": 8, "solved": 2}, ids["2"]: {"n": 4, "solved": 4}, ids["5"]: {"n": 8, "solved": 0}}
    write("difficulty.json", json.dumps({"prompts": counts}))
    rated = make({"sources": [lines()], "curriculum": {"difficulty": "./difficulty.json"}})
    assert [row["answer"] for row in rated.rows("train")[:3]] == ["2", "1", "5"]
    assert rated.card["splits"]["train"]["without_difficulty"] == 3


def test_tokens_are_counted_and_sources_may_share_them(make: Callable[..., Any], write: Callable[..., Path]) -> None:
    from finery.training.tokens import RowTokens

    write("a.jsonl", [{"prompt": f"{i}+1=", "completion": "1" * 2} for i in range(40)])
    write("b.jsonl", [{"prompt": f"{i}+2=", "completion": "1" * 40} for i in range(40)])
    sources = [lines("a.jsonl", weight=1), lines("b.jsonl", weight=1)]
    config = {"sources": sources, "tokenizer": str(BASE), "weight_by": "tokens"}
    made = make(config)
    rows, card = made.rows("train"), made.card["splits"]["train"]["tokens"]
    counts = RowTokens(BASE).count_many(rows)
    assert (card["min"], card["max"], card["total"]) == (min(counts), max(counts), sum(counts))
    assert card["mean"] == pytest.approx(np.mean(counts), abs=0.01)
    assert card["p50"] == sorted(counts)[(len(counts) + 1) // 2 - 1]
    short, long = card["by_source"]
    assert sum(card["by_source"]) == card["total"]
    assert short / long == pytest.approx(1, abs=0.02)
    assert made.card["splits"]["train"]["rows_by_source"][0] > 5 * made.card["splits"]["train"]["rows_by_source"][1]
    by_rows = make({**config, "weight_by": "rows"}).card["splits"]["train"]
    assert by_rows["rows_by_source"] == [40, 40]


def test_rows_that_the_verifier_can_never_judge_are_damage(
    make: Callable[..., Any], write: Callable[..., Path]
) -> None:
    write("a.jsonl", [*asks(400), {"prompt": "p", "completion": "#### 1", "answer": "cannot say \\frac{"}])
    config = {"sources": [lines()], "verify": [{"kind": "answer", "compare": "number"}], "max_reject_fraction": 0.01}
    made = make(config)
    (reject,) = made.rejects
    assert (reject["line"], reject["field"], reject["code"]) == (401, "answer", "unverifiable")
    assert made.card["damaged"] == 1
    with pytest.raises(InputError, match=r"(?s)1 of 401 rows cannot be used.*a\.jsonl:401: answer: "):
        make({**config, "max_reject_fraction": 0.0})


def test_completions_that_are_not_solved_are_filtered(make: Callable[..., Any], write: Callable[..., Path]) -> None:
    talk = [{"role": "user", "content": "1+1?"}, {"role": "assistant", "content": "#### 3"}]
    rows = [*asks(300), {"prompt": "2+2?", "completion": "#### 5", "answer": "4"}]
    write("a.jsonl", rows)
    verify = {"verify": [{"kind": "answer"}], "verify_completion": True}
    made = make({"sources": [lines()], **verify})
    (reject,) = made.rejects
    assert (reject["line"], reject["field"], reject["code"]) == (301, "completion", "unsolved_completion")
    assert (made.card["damaged"], made.card["kept"]) == (0, 300)
    write("b.jsonl", [{"messages": talk, "answer": "3"}, {"messages": talk, "answer": "2"}])
    (reject,) = make({"sources": [lines("b.jsonl")], **verify}).rejects
    assert (reject["line"], reject["field"], reject["code"]) == (2, "messages", "unsolved_completion")
    write("c.jsonl", [{"prompt": "2+2?", "answer": "4"}])
    assert make({"sources": [lines("c.jsonl")], **verify}).rejects == []  # no completion, nothing to judge


def test_text_and_messages_in_one_split_are_refused(make: Callable[..., Any], write: Callable[..., Path]) -> None:
    write("a.jsonl", asks(5))
    write("b.jsonl", [{"instruction": f"do {i}", "output": "done"} for i in range(5)])
    sources = [lines("a.jsonl"), lines("b.jsonl")]
    with pytest.raises(
        InputError, match=r"splits\.train: b\.jsonl:1: prompt is messages where it was text before \(a\.jsonl:1\)"
    ):
        make({"sources": sources})
    assert len(make({"sources": sources, "chat": True}).rows("train")) == 10


def test_a_killed_try_is_overwritten_and_nothing_is_left(
    make: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(shuffle._Buckets, "column", killed)
        patch.setattr("finery.stages.data.shutil.rmtree", lambda *_, **__: None)
        with pytest.raises(KeyboardInterrupt):
            make({"sources": [CHAINS]})
    left = tmp_path / ".run0/checkpoints/data"
    assert {path.name for path in left.iterdir()} >= {"rows.arrow", "facts", "buckets"}
    left.rename(tmp_path / "left")
    (tmp_path / ".run1/checkpoints").mkdir(parents=True)
    (tmp_path / "left").rename(tmp_path / ".run1/checkpoints/data")
    (tmp_path / ".run1/checkpoints/data/marks/marks-63.bin").write_bytes(b"x" * 24)
    monkeypatch.setattr(Path, "mkdir", _mkdir(Path.mkdir))
    again = make({"sources": [CHAINS]})
    fresh = make({"sources": [CHAINS]})
    assert again.rows("train") == fresh.rows("train")
    assert again.rejects == fresh.rejects
    assert list((tmp_path / ".run1/checkpoints").iterdir()) == []


def _mkdir(real: Callable[..., None]) -> Callable[..., None]:
    """The fixture makes its folders anew; here one is there already."""
    return lambda self, *given, **more: real(self, *given, **{**more, "exist_ok": True})


LIMITED = """
import resource, sys
from pathlib import Path
from finery.contract import StageContext
from finery.errors import StageError
from finery.schemas.data import DataStage
from finery.stages import data
folder = Path(sys.argv[1])
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]), int(sys.argv[2])))
context = StageContext("corpus", 7, folder / "outputs", folder / "checkpoints", folder / "metrics.jsonl", folder)
config = DataStage.model_validate({"kind": "data", "sources": [{"kind": "file", "path": "a.jsonl"}]})
try:
    data.run(config, {"sources.0.path": folder / "a.jsonl"}, context)
except StageError as error:
    print(error)
print(int(next(l for l in open("/proc/self/status") if l.startswith("VmHWM")).split()[1]) // 1024)
"""


def test_a_disk_that_is_full_is_an_error_with_the_path(write: Callable[..., Path], tmp_path: Path) -> None:
    rng = random.Random(0)
    write("a.jsonl", [{"prompt": f"{rng.random()} " * 20, "completion": f"{rng.random()}"} for _ in range(3000)])
    done = subprocess.run(
        [sys.executable, "-c", LIMITED, tmp_path, "20000"], capture_output=True, text=True, check=True
    )
    assert "too large" in done.stdout
    assert "free some, or set FINERY_HOME" in done.stdout
    assert str(tmp_path) in done.stdout
    assert list((tmp_path / "checkpoints").iterdir()) == []


@pytest.mark.slow
def test_memory_does_not_grow_with_the_rows(write: Callable[..., Path], tmp_path: Path) -> None:
    peaks = []
    for rows in (20_000, 160_000):
        with (tmp_path / "a.jsonl").open("w") as file:
            file.writelines(
                f'{{"prompt": "{i} {"word " * 60}", "completion": "{i}{"!" * 100}"}}\n' for i in range(rows)
            )
        command = [sys.executable, "-c", LIMITED, tmp_path, str(1 << 40)]
        peaks.append(int(subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()[-1]))
    # 64 MB more text; a row group of 65,536 rows and its Parquet pages are what the first run has not
    assert peaks[1] - peaks[0] < 90


def test_some_columns_are_read_batch_by_batch(make: Callable[..., Any]) -> None:
    made = make({"sources": [CHAINS]})
    read = iter_dataset(made.outputs / "train", ["id", "answer"])
    assert next(read).keys() == {"id", "answer"}
    assert len(list(read)) == len(made.rows("train")) - 1
