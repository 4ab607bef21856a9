"""The dpo stage as the engine calls it: pairs given, and pairs made of the model's own verified chains."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import ValidationError

from finery.contract import StageContext
from finery.data.chains import chain_rows
from finery.data.dataset import read_dataset, write_dataset
from finery.errors import InputError, StageError
from finery.rewards import build
from finery.schemas.dpo import DpoStage
from finery.stages import dpo
from finery.training.models import load_model

ROOT = Path(__file__).parents[2]
BASE = ROOT / "pipelines" / "base"
LOG_2 = math.log(2)


def _context(folder: Path) -> StageContext:
    folder.mkdir(parents=True, exist_ok=True)
    return StageContext(
        stage="dpo",
        seed=5,
        output_dir=folder / "out",
        checkpoint_dir=folder / "ck",
        metrics_path=folder / "metrics.jsonl",
        base_dir=folder,
        input_refs={"model": "base"},
        input_digests={"model": "a" * 64},
    )


def _config(**changes: Any) -> DpoStage:
    given: dict[str, Any] = {
        "kind": "dpo", "model": "base", "prompts": "d", "rewards": [{"kind": "answer", "extract": "last_number"}],
        "samples": 4, "pairs_per_prompt": 3, "sampling": {"max_completion_length": 20, "temperature": 2.5}, "max_steps": 2,
        "per_device_train_batch_size": 4, "learning_rate": 1e-4, "save_steps": 1, "logging_steps": 1, "batch_size": 16,
    }  # fmt: skip
    return DpoStage.model_validate({k: v for k, v in (given | changes).items() if v is not None})


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("data")
    rows = [
        {name: row[name] for name in ("prompt", "answer", "meta")}
        for row in chain_rows(14, seed=4, style="compact", levels=[1, 2, 4])
    ]
    write_dataset(rows, root / "prompts")
    return {"model": BASE, "prompts": root / "prompts"}


def _files(context: StageContext, output: str) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(context.output(output).iterdir())}


def test_right_chains_are_chosen_against_wrong_ones_of_the_same_prompt(tmp_path: Path, inputs: dict[str, Path]) -> None:
    config = _config()
    context = _context(tmp_path / "one")
    result = dpo.run(config, inputs, context)
    pairs = read_dataset(context.output("pairs"))
    verifier = build(config.rewards or [], {})
    for side, right in (("chosen", True), ("rejected", False)):
        scores = verifier.score(pairs, [row[side] for row in pairs], [[0]] * len(pairs), [False] * len(pairs))
        assert scores.solved == [right] * len(pairs), side
    assert len({(row["id"], row["chosen"], row["rejected"]) for row in pairs}) == len(pairs)
    drawn = [json.loads(line) for line in (context.output("samples") / "samples.jsonl").read_text().splitlines()]
    assert len(drawn) == 14 * 4
    whole = {(one["id"], one["completion"]) for one in drawn if not one["truncated"]}
    assert {(row["id"], row[side]) for row in pairs for side in ("chosen", "rejected")} <= whole
    by_prompt: dict[str, list[tuple[bool, bool]]] = {}
    for one in drawn:
        by_prompt.setdefault(one["id"], []).append((one["solved"], one["truncated"]))
    counts = result.summary["pairs"]
    assert counts["all_right"] == sum(all(s for s, _ in many) for many in by_prompt.values())
    assert counts["all_wrong"] == sum(not any(s for s, _ in many) for many in by_prompt.values())
    assert counts["paired"] == len({row["id"] for row in pairs})
    assert counts["paired"] + counts["all_right"] + counts["all_wrong"] + counts["unpaired"] == counts["prompts"] == 14
    assert min(counts["paired"], counts["all_wrong"]) > 0
    assert result.metrics["prompts_paired"] == counts["paired"]
    assert result.metrics["pairs"] == len(pairs)
    info = json.loads((context.output("pairs") / "dataset.json").read_text())
    assert {name: info[name] for name in counts if name != "prompts"} == {
        k: v for k, v in counts.items() if k != "prompts"
    }
    assert "accuracy" in result.summary["headline"]

    again = _context(tmp_path / "two")
    dpo.run(config, inputs, again)
    for output in ("model", "pairs", "samples"):
        assert _files(again, output) == _files(context, output), output
    given = _context(tmp_path / "three")
    only_data = {"prompts": None, "rewards": None, "sampling": None, "samples": None, "pairs_per_prompt": None}
    dpo.run(_config(**only_data, batch_size=None, data="p"), {"model": BASE, "data": context.output("pairs")}, given)
    assert _files(given, "model") == _files(context, "model")  # the pairs are the whole of what was trained on
    assert not (given.output_dir / "pairs").exists()


def test_pairs_use_every_chain_evenly_and_none_twice() -> None:
    right, wrong = ["r1", "r2"], ["w1", "w2", "w3", "w4"]
    every = dpo.pair_up(right, wrong, most=99, seed=1, name="x")
    assert len(every) == len(set(every)) == 8
    four = dpo.pair_up(right, wrong, most=4, seed=1, name="x")
    assert four == every[:4]
    assert sorted(bad for _, bad in four) == wrong
    assert [sum(good == one for good, _ in four) for one in right] == [2, 2]
    assert dpo.pair_up(right, [], most=4, seed=1, name="x") == dpo.pair_up([], wrong, most=4, seed=1, name="x") == []
    orders = {tuple(dpo.pair_up(right, wrong, most=4, seed=seed, name="x")) for seed in range(20)}
    assert len(orders) > 1
    assert dpo.pair_up(["a"], ["b"], most=4, seed=1, name="x") == [("a", "b")]


def test_an_adapter_says_what_it_sits_on_and_is_continued(tmp_path: Path, inputs: dict[str, Path]) -> None:
    first, second = _context(tmp_path / "first"), _context(tmp_path / "second")
    dpo.run(_config(lora={"r": 2}, learning_rate=1e-2), inputs, first)
    info = json.loads((first.output("model") / "model.json").read_text())
    assert (info["form"], info["base"]) == ("adapter", {"digest": "a" * 64, "ref": "base"})
    second.bases["a" * 64] = BASE
    second.input_digests["model"] = "b" * 64
    dpo.run(_config(learning_rate=1e-3), {**inputs, "model": first.output("model")}, second)
    info = json.loads((second.output("model") / "model.json").read_text())
    assert (info["form"], info["base"]) == ("adapter", {"digest": "a" * 64, "ref": "base"})
    assert not (second.output("model") / "ref").exists()
    before, after = (load_model(c.output("model"), bases=second.bases).state_dict() for c in (first, second))
    assert before.keys() == after.keys()
    assert any(not before[name].equal(after[name]) for name in before if "lora_" in name)
    assert _files(second, "model")["adapter_config.json"] == _files(first, "model")["adapter_config.json"]


def test_an_adapter_on_4_bit_weights_says_so_and_is_continued_on_them(tmp_path: Path, inputs: dict[str, Path]) -> None:
    first, second = _context(tmp_path / "first"), _context(tmp_path / "second")
    bits = {"bnb_4bit_quant_type": "nf4"}
    result = dpo.run(_config(lora={"r": 2}, quantization=bits, learning_rate=1e-2), inputs, first)
    assert "its base in 4 bits: nf4" in result.summary["method"]
    info = json.loads((first.output("model") / "model.json").read_text())
    assert info["quantization"]["bnb_4bit_quant_type"] == "nf4"
    events = [json.loads(line) for line in first.metrics_path.read_text().splitlines()]
    margins = [event["metrics"]["rewards/margins"] for event in events if event["type"] == "metrics"]
    assert margins[0] == pytest.approx(0.0, abs=1e-5)
    second.bases["a" * 64] = BASE
    dpo.run(_config(quantization=bits), {**inputs, "model": first.output("model")}, second)
    assert json.loads((second.output("model") / "model.json").read_text())["quantization"] == info["quantization"]
    before, after = (load_model(c.output("model"), bases=second.bases).state_dict() for c in (first, second))
    assert all(before[name].dtype == torch.float32 for name in before if "lora_" in name)
    assert any(not before[name].equal(after[name]) for name in before if "lora_" in name)
    with pytest.raises(InputError, match="quantization: weights in 4 bits are not trained; add lora"):
        dpo.run(_config(quantization=bits), inputs, _context(tmp_path / "whole"))


def test_prompts_that_give_no_pair_stop_with_the_counts(tmp_path: Path, inputs: dict[str, Path]) -> None:
    with pytest.raises(StageError, match=r"none of 3 prompts gives a pair: 0 were always solved, 3 never"):
        dpo.run(_config(max_prompts=3, sampling={"max_completion_length": 3}), inputs, _context(tmp_path / "cut"))
    assert (tmp_path / "cut/out/samples/samples.jsonl").exists()  # what was drawn can be looked at
    write_dataset([{"prompt": "1+1=", "completion": "2"}], tmp_path / "sft")
    config = _config(prompts=None, rewards=None, sampling=None, samples=None, pairs_per_prompt=None, batch_size=None, data="d")  # fmt: skip
    with pytest.raises(InputError, match="has no chosen; dpo needs rows of prompt, chosen and rejected"):
        dpo.run(config, {"model": BASE, "data": tmp_path / "sft"}, _context(tmp_path / "none"))


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"data": "p"}, "needs either data (pairs) or prompts"),
        ({"prompts": None}, "needs either data (pairs) or prompts"),
        ({"prompts": None, "data": "p"}, "is for pairs made from prompts; with data it would do nothing"),
        ({"rewards": None}, "needs rewards: the verifier says which chains are right"),
        ({"label_smoothing": 0.1}, "is for the losses robust, exo_pair, aot, aot_unpaired; sigmoid has no use for it"),
        ({"loss_type": "exo_pair"}, "exo_pair needs label_smoothing above 0"),
        ({"loss_type": ["sigmoid", "sigmoid"]}, "names a loss twice"),
        ({"loss_type": "sft"}, "sft alone never looks at what was rejected"),
        ({"loss_type": ["sigmoid", "sft"], "loss_weights": [1.0]}, "has 1 weights for 2 losses"),
        ({"lora": {"lora_dropout": 0.1}}, "policy and reference are compared without dropout"),
        ({"eval_steps": 2}, "needs eval_data"),
        ({"max_steps": None}, "needs max_steps or num_train_epochs"),
    ],
)
def test_what_would_do_nothing_or_cannot_work_is_refused(changes: dict[str, Any], told: str) -> None:
    with pytest.raises(ValidationError) as error:
        _config(**changes)
    assert told in str(error.value)


@pytest.mark.parametrize(
    ("loss", "begins"), [
        ("hinge", 1.0), ("ipo", 25.0), ("exo_pair", 0.5 * math.log(0.5 / 0.99) + 0.5 * math.log(0.5 / 0.01)),
        ("nca_pair", 2 * LOG_2), ("robust", LOG_2), ("bco_pair", 2 * LOG_2), ("sppo_hard", 50.0), ("aot", LOG_2),
        ("aot_unpaired", LOG_2), ("apo_zero", 1.0), ("apo_down", 1.0), ("discopop", 0.5 * LOG_2 + 0.5),
        ("sigmoid_norm", LOG_2),
    ],
)  # fmt: skip
@pytest.mark.slow
def test_every_loss_begins_where_its_formula_says_and_trains(tmp_path: Path, loss: str, begins: float) -> None:
    """At the reference all log-ratios are 0 and beta is 0.1: ipo is (1 / 2 beta)^2, sppo_hard 2 (1 / 2 beta)^2."""
    rows = [{"prompt": f"add:{a}+{a}=", "chosen": str(2 * a), "rejected": str(2 * a + 1)} for a in range(10, 18)]
    write_dataset(rows, tmp_path / "pairs")
    config = DpoStage.model_validate(
        {"kind": "dpo", "model": "m", "data": "d", "max_steps": 4, "loss_type": loss, "learning_rate": 1e-3,
         "logging_steps": 1, "lr_scheduler_type": "constant", "max_length": 32}
        | ({"label_smoothing": 0.01} if loss in ("exo_pair", "robust", "aot") else {})
    )  # fmt: skip
    context = _context(tmp_path / "run")
    result = dpo.run(config, {"model": BASE, "data": tmp_path / "pairs"}, context)
    events = [json.loads(line) for line in context.metrics_path.read_text().splitlines()]
    first = next(event["metrics"] for event in events if event["type"] == "metrics")
    assert first["loss"] == pytest.approx(begins, rel=1e-5)
    # discopop is no convex loss: at 0 its slope favours the rejected one
    assert (result.metrics["rewards/margins"] > 0) == (loss != "discopop")


@pytest.mark.slow
def test_the_line_runs_and_is_cached(project: Any) -> None:
    file = str(ROOT / "tests/lines/dpo.yaml")
    project.write("dpo.yaml", Path(file).read_text().replace("../../pipelines/base", str(BASE)))
    assert set(project.states("dpo.yaml").values()) == {"Completed"}
    assert set(project.states("dpo.yaml").values()) == {"Cached"}
    told = json.loads(project.finery("advise", "dpo.yaml", "--json").stdout)["steps"]
    facts = {fact["text"]: fact["source"] for step in told for fact in step["evidence"]}
    # the pairs that dpo made repeat prompts of corpus.rl, which are counted once
    (source,) = (source for text, source in facts.items() if "preference pairs" in text)
    assert source == "dpo.pairs"
    rows = sum(len(read_dataset(_dataset(project, name))) for name in ("rl", "train"))
    assert _verifiable(project) == (rows, "corpus.rl, corpus.train")


def _dataset(project: Any, split: str) -> Path:
    (folder,) = (project.home / "store/data").glob(f"*/outputs/{split}")
    return folder


def _verifiable(project: Any) -> tuple[int, str]:
    from finery import runs
    from finery.advise.gather import gather
    from finery.load import load
    from finery.plan import Planner
    from finery.store import Store

    loaded = load(project.folder / "dpo.yaml", [])
    count = gather(Planner(loaded, Store(runs.home_of(loaded.project)))).verifiable
    assert count is not None
    return count.value, count.source
