from __future__ import annotations

import hashlib
import json
import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from finery.data.groups import Intervals, normal, position
from finery.data.mix import Mixed, mix, shuffled
from finery.errors import InputError
from finery.schemas.data import DataStage


def chains(rows: int = 600, **more: Any) -> dict[str, Any]:
    return {"kind": "chains", "rows": rows, **more}


def tasks(rows: list[dict[str, Any]]) -> set[str]:
    return {row["meta"]["task"] for row in rows}


@pytest.mark.parametrize("seed", range(20))
def test_case_D5_no_duplicate_crosses_the_split_whatever_is_oversampled(
    make: Callable[..., Any], cases: Path, seed: int
) -> None:
    due = json.loads((cases / "D5.expected.json").read_text())
    config = {
        "sources": [
            {"kind": "file", "path": "./D5_a.jsonl", "weight": 1},
            {"kind": "file", "path": "./D5_b.jsonl", "weight": 1},
        ],
        "splits": {"eval": 0.1, "train": 0.9},
    }
    made = make(config, seed=seed, base=cases)
    prompts = {name: {normal(row["prompt"][0]["content"]) for row in made.rows(name)} for name in ("eval", "train")}
    assert prompts["eval"]
    assert len(prompts["train"] & prompts["eval"]) == due["train_eval_overlap_after_NFKC_strip"] == 0
    assert made.card["duplicates"] == made.result.metrics["duplicates"] == 2
    everything = prompts["train"] | prompts["eval"]
    assert len([p for p in everything if p.startswith("B")]) == due["b_unique_after_normalising"]
    train = made.card["splits"]["train"]
    assert train["rows_by_source"][0] == train["rows_by_source"][1] > 2
    assert train["repeated_by_source"][1] > 0


def test_case_D5_duplicates_that_are_kept_still_do_not_cross(make: Callable[..., Any], cases: Path) -> None:
    config = {
        "sources": [{"kind": "file", "path": "./D5_b.jsonl"}, {"kind": "file", "path": "./D5_a.jsonl"}],
        "splits": {"one": 0.5, "two": 0.5},
        "deduplicate": "none",
    }
    for salt in map(str, range(10)):
        made = make({**config, "salt": salt}, base=cases)
        one, two = ({normal(row["prompt"][0]["content"]) for row in made.rows(name)} for name in ("one", "two"))
        assert not one & two
        assert made.card["duplicates"] == 0
        assert made.card["kept"] == 24


def test_a_group_falls_where_sha256_of_salt_and_key_says() -> None:
    u = position("17+8-3", "s")
    assert float(u) == pytest.approx(int(hashlib.sha256(b"s17+8-3").hexdigest()[:15], 16) / 16**15)
    names = [Intervals({"a": 0.3, "b": 0.7}).split(str(i), "") for i in range(5000)]
    assert names == ["a" if position(str(i), "") < 3 / 10 else "b" for i in range(5000)]
    assert Counter(names)["a"] / 5000 == pytest.approx(0.3, abs=0.03)


def test_intervals_follow_the_order_of_the_yaml_and_reach_one() -> None:
    forward, backward = Intervals({"a": 0.5, "b": 0.5}), Intervals({"b": 0.5, "a": 0.5})
    keys = list(map(str, range(50)))
    assert [forward.split(k, "") for k in keys] == [{"a": "b", "b": "a"}[backward.split(k, "") or ""] for k in keys]
    thirds = Intervals({"a": 0.3333333333, "b": 0.3333333333, "c": 0.3333333334})
    assert thirds.ends[-1] == 1
    assert {Intervals({"a": 0.1}).split(k, "") for k in keys} == {"a", None}


def test_the_same_task_falls_in_the_same_split_for_any_seed_style_and_source(make: Callable[..., Any]) -> None:
    splits = {"test": 0.2, "train": 0.8}
    one = make({"sources": [chains(), {"kind": "skills", "rows": 300}], "splits": splits}, seed=1)
    two = make({"sources": [chains(style="compact", noise_add=0.5)], "splits": splits}, seed=2)
    for name, other in (("test", "train"), ("train", "test")):
        assert tasks(one.rows(name)) & tasks(two.rows(name))
        assert not tasks(one.rows(name)) & tasks(two.rows(other))
    salted = make({"sources": [chains()], "splits": splits, "salt": "x"}, seed=1)
    assert tasks(one.rows("train")) & tasks(salted.rows("test"))


def test_the_same_config_and_seed_give_the_same_bytes(make: Callable[..., Any]) -> None:
    config = {"sources": [chains(noise_add=0.3), {"kind": "skills"}], "splits": {"test": 0.2, "train": 0.8}}
    one, two, other = make(config), make(config), make(config, seed=8)
    files = sorted(path.relative_to(one.outputs) for path in one.outputs.rglob("*") if path.is_file())
    assert len(files) == 6
    assert all((one.outputs / f).read_bytes() == (two.outputs / f).read_bytes() for f in files)
    assert (one.outputs / "train/data.parquet").read_bytes() != (other.outputs / "train/data.parquet").read_bytes()


def test_every_row_is_accounted_for(make: Callable[..., Any]) -> None:
    made = make({"sources": [chains(2000, levels=[1, 2])], "splits": {"a": 0.2, "b": 0.5}})
    card = made.card
    assert card["read"] == 2000 == card["kept"] + card["rejected"]
    assert card["rejected"] == card["duplicates"] == len(made.rejects) > 300  # 441 chains of one operation
    assert {reject["code"] for reject in made.rejects} == {"duplicate"}
    assert card["damaged"] == made.result.metrics["damaged"] == 0
    assert card["kept"] == card["unassigned"] + sum(split["rows"] for split in card["splits"].values())
    assert made.result.metrics["rows_a"] == card["splits"]["a"]["rows"] == len(made.rows("a"))
    assert card["splits"]["a"]["characters"]["prompt"]["min"] >= len("Q:1+1\n")


def test_rows_caps_a_split_and_unique_prompts_keeps_one_row_each(make: Callable[..., Any]) -> None:
    noisy = [chains(3000, levels=[1], noise_sub=0.5, noise_add=0.5)]
    made = make(
        {
            "sources": noisy,
            "splits": {"a": {"fraction": 0.5, "rows": 40}, "b": {"fraction": 0.5, "unique_prompts": True}},
        }
    )
    assert len(made.rows("a")) == 40
    assert made.card["splits"]["a"]["capped"] > 0
    prompts = [row["prompt"] for row in made.rows("b")]
    assert len(prompts) == len(set(prompts)) == made.card["splits"]["b"]["prompts"]
    assert made.card["splits"]["b"]["same_prompt"] > 0


def test_deduplicate_by_prompt_keeps_the_first_row(make: Callable[..., Any], write: Callable[..., Path]) -> None:
    rows = [{"prompt": "p", "completion": "one"}, {"prompt": " p", "completion": "two"}]
    write("a.jsonl", rows)
    config = {"sources": [{"kind": "file", "path": "a.jsonl"}]}
    assert len(make(config).rows("train")) == 2
    (row,) = make({**config, "deduplicate": "prompt"}).rows("train")
    assert row["completion"] == "one"


def test_group_by_answer_and_meta(make: Callable[..., Any], write: Callable[..., Path]) -> None:
    rows = [{"prompt": f"p{i}", "answer": str(i % 7), "meta": {"topic": f"t{i % 5}"}} for i in range(70)]
    write("a.jsonl", rows)
    for group_by, of in (("answer", lambda row: row["answer"]), ("meta.topic", lambda row: row["meta"]["topic"])):
        made = make(
            {
                "sources": [{"kind": "file", "path": "a.jsonl"}],
                "splits": {"a": 0.5, "b": 0.5},
                "group_by": group_by,
            }
        )
        assert not set(map(of, made.rows("a"))) & set(map(of, made.rows("b")))
    write("b.jsonl", [*rows, {"prompt": "lost", "answer": "1"}])
    config = {"sources": [{"kind": "file", "path": "b.jsonl"}], "group_by": "meta.topic", "max_reject_fraction": 0.1}
    (reject,) = make(config).rejects
    assert (reject["line"], reject["field"], reject["code"]) == (71, "meta.topic", "missing")


def test_an_empty_split_is_an_error(make: Callable[..., Any], write: Callable[..., Path]) -> None:
    write("a.jsonl", [{"prompt": "p", "completion": "c"}])
    with pytest.raises(InputError, match=r"splits\.(a|b): no row falls into it \(1 rows in 1 groups"):
        make({"sources": [{"kind": "file", "path": "a.jsonl"}], "splits": {"a": 0.5, "b": 0.5}})


def pool(name: str, count: int) -> list[dict[str, Any]]:
    return [{"prompt": f"{name}{i}", "completion": "c"} for i in range(count)]


MARKS = (np.arange(23, dtype=np.uint64) % 20, np.zeros(23, dtype=np.uint64))
"""Marks of the prompts of 23 rows: the last three ask what the first three ask."""


def mixed(weights: list[float] | None, *, cap: int | None = None, unique: bool = False, seed: int = 0) -> Mixed:
    pools = [np.arange(20), np.arange(20, 23)]
    return mix(pools, weights, seed=seed, split="train", cap=cap, prompts=MARKS if unique else None)


def test_weights_repeat_the_small_source_evenly_and_leave_no_row_out() -> None:
    made = mixed([1, 1])
    counts = Counter(made.rows.tolist())
    assert made.taken == [20, 20]
    assert made.repeated == [0, 17]
    assert {counts[row] for row in range(20, 23)} == {6, 7}
    assert all(counts[row] == 1 for row in range(20))


def test_weights_meet_a_cap() -> None:
    assert mixed([3, 1], cap=8).taken == [6, 2]
    assert mixed([3, 1], cap=8).capped == 0
    assert mixed(None).taken == [20, 3]
    assert (mixed(None, cap=8).capped, len(mixed(None, cap=8).rows)) == (15, 8)
    assert mixed([1, 1]).rows.tolist() == mixed([1, 1]).rows.tolist() != mixed([1, 1], seed=1).rows.tolist()


def test_unique_prompts_keep_the_first_sources_row_and_repeat_none() -> None:
    made = mixed(None, unique=True)
    assert sorted(made.rows.tolist()) == list(range(20))
    assert made.same_prompt == 3
    pools = [np.arange(20), np.arange(17, 23)]
    made = mix(pools, [1, 1], seed=0, split="train", cap=None, prompts=MARKS)
    assert made.taken == [0, 0] or made.repeated == [0, 0]


@pytest.mark.parametrize("count", [0, 1, 2, 3, 4, 7, 8, 9, 31, 32, 33, 1000])
def test_the_shuffle_is_fisher_yates_over_randrange(count: int) -> None:
    due, rng = list(range(count)), random.Random(count)
    for index in range(count - 1, 0, -1):
        other = rng.randrange(index + 1)
        due[index], due[other] = due[other], due[index]
    mine = random.Random(count)
    assert shuffled(np.arange(count), mine).tolist() == due
    assert mine.random() == rng.random()


def test_shares_of_tokens_are_met_by_sources_of_unlike_lengths() -> None:
    tokens = np.array([10] * 200 + [40] * 200)
    made = mix([np.arange(200), np.arange(200, 400)], [3, 1], seed=0, split="train", cap=None, tokens=tokens)
    first, second = (int(tokens[made.rows[source]].sum()) for source in (made.rows < 200, made.rows >= 200))
    assert first == 3 * second
    assert made.taken == [2400, 200]


def test_a_much_repeated_source_is_warned_of(make: Callable[..., Any], write: Callable[..., Path]) -> None:
    write("a.jsonl", pool("a", 50))
    write("b.jsonl", pool("b", 1))
    sources = [{"kind": "file", "path": "a.jsonl", "weight": 1}, {"kind": "file", "path": "b.jsonl", "weight": 1}]
    made = make({"sources": sources})
    assert any("the 1 rows of source 1 are repeated to 50" in warning for warning in made.warnings)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"splits": {"a": 0.6, "b": 0.6}}, "sum to 1.2"),
        ({"splits": {"card": 1.0}}, "card is the name of an output"),
        ({"sources": [chains(weight=1), chains()]}, "give every source a weight"),
    ],
)
def test_the_schema_refuses_what_cannot_be_meant(config: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        DataStage.model_validate({"kind": "data", "sources": [chains()], **config})
