"""`dpo`: a model learns to prefer the chosen of two completions, given in data or made of its own verified chains."""

from __future__ import annotations

import hashlib
import json
import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from finery.contract import StageContext, StageResult
from finery.data.dataset import read_dataset, write_dataset
from finery.data.order import CURRICULUM, is_ordered, weights_of
from finery.errors import InputError, StageError
from finery.rewards import build
from finery.rewards.rewardset import conversational
from finery.schemas.dpo import DpoStage
from finery.schemas.training import method_in_words

if TYPE_CHECKING:
    from finery.training.measure import Judged

Row = dict[str, Any]
_KEPT = ("id", "prompt", "answer", "meta", "weight")


@dataclass(frozen=True)
class _Made:
    """Pairs made of a model's own chains.

    Attributes:
        rows: rows of prompt, chosen and rejected, in the order of the prompts.
        counts: prompts, paired, all_right, all_wrong, unpaired; drawn, judged, solved, truncated.
    """

    rows: list[Row]
    counts: dict[str, int]


def run(config: DpoStage, inputs: Mapping[str, Path], context: StageContext) -> StageResult:
    """Train `inputs["model"]` on pairs, and publish it (or its adapter) as output `model`.

    With `prompts`, the pairs are made first and written as output `pairs`, every chain as output `samples`.

    Raises:
        InputError: the model, a row, a prompt or a reward cannot be used.
        StageError: no pair is left, the loss was not finite, or training changed nothing.
    """
    from finery.training.adapters import sits_on
    from finery.training.dpo import train_dpo
    from finery.training.models import is_adapter, load_tokenizer, publish_model
    from finery.training.pairs import encode_pairs, warn_of_pairs
    from finery.training.sampling import end_ids
    from finery.training.sft import start

    _check(config, inputs["model"])
    checkpoints = start(context)
    source = "data" if config.data else "prompts"
    made = _make(config, inputs, context) if config.prompts else None
    tokenizer = load_tokenizer(inputs["model"])
    model = _model(config, inputs["model"], context)
    method = method_in_words(config, config.lora, config.quantization, continues=is_adapter(inputs["model"]))
    print(f"method: {method}", flush=True)
    ends = end_ids(model, tokenizer)

    def tokens(name: str, rows: Sequence[Row], *, ordered: bool) -> Any:
        pairs = encode_pairs(rows, tokenizer, ends=ends, max_length=config.max_length, ordered=ordered, name=name)
        if checkpoints[1] is None:
            warn_of_pairs(pairs, context, name, config.max_length)
        return pairs

    rows = made.rows if made else read_dataset(inputs["data"])
    data = tokens("pairs" if made else "data", rows, ordered=is_ordered(inputs[source]))
    evaluation = tokens("eval_data", read_dataset(inputs["eval_data"]), ordered=False) if config.eval_data else None
    trained = train_dpo(model, tokenizer, config, context, data=data, evaluation=evaluation, resume=checkpoints)
    if context.rank:
        return StageResult()
    sits = sits_on(trained.model, config, inputs["model"], context)
    publish_model(trained.model, tokenizer, context.output("model"), **sits)
    metrics = trained.metrics | {"steps": trained.steps, "pairs": len(data), "pairs_left_out": len(data.left_out)}
    if made:
        metrics |= {f"prompts_{name}": made.counts[name] for name in ("paired", "all_right", "all_wrong", "unpaired")}
    return StageResult(metrics=metrics, summary=_summary(made, metrics, data.left_out) | {"method": method})


def _check(config: DpoStage, folder: Path) -> None:
    """What the schema cannot know, before anything is drawn."""
    from finery.training.arguments import check_machine, on_cpu
    from finery.training.models import check_folder, is_adapter

    on_cpu(config)
    check_machine(config)
    check_folder(folder)
    if is_adapter(folder) and config.lora:
        raise InputError(
            "lora: the policy is an adapter already, and dpo continues it; leave lora out, or merge the adapter first"
        )
    if config.quantization and not config.lora and not is_adapter(folder):
        raise InputError("quantization: weights in 4 bits are not trained; add lora")


def _model(config: DpoStage, folder: Path, context: StageContext) -> Any:
    from finery.training.models import load_model

    return load_model(
        folder,
        dtype=config.dtype,
        bases=context.bases,
        attention=config.attn_implementation,
        quantization=config.quantization,
        trainable=True,
    )


def _make(config: DpoStage, inputs: Mapping[str, Path], context: StageContext) -> _Made:
    """Draw and judge chains, pair them, and write both down; what an earlier attempt drew is taken from its log."""
    from finery.training.measure import Counter, Draw, Subject, measure, prompts_of, sample_lines

    assert config.rewards is not None
    rows, duplicates = prompts_of(read_dataset(inputs["prompts"]), "prompts", config.max_prompts)
    if not rows:
        raise StageError("prompts: there are none")
    if duplicates:
        context.warn(f"prompts: {duplicates} rows repeat a prompt and answer and were dropped")
    weights_of(rows, "prompts")  # one that cannot be used is found before anything is drawn
    judged = measure(
        Subject(inputs["model"], context.bases, config.resources.gpus),
        rows,
        build(config.rewards, inputs),
        Draw(n=config.samples, sampling=config.sampling, seed=context.seed, batch_size=config.batch_size),
        log=context.checkpoint_dir / "samples.jsonl",
        context=context,
        counter=Counter(context, len(rows) * config.samples),
        note="samples",
    )
    with (context.output("samples") / "samples.jsonl").open("w", encoding="utf-8") as file:
        file.writelines(json.dumps(line, ensure_ascii=False) + "\n" for line in sample_lines(rows, judged))
    made = _pair(config, rows, judged, context.seed)
    info = dict(made.counts) | ({"order": CURRICULUM} if is_ordered(inputs["prompts"]) else {})
    write_dataset(made.rows, context.output("pairs"), info=info)
    return made


def _pair(config: DpoStage, rows: Sequence[Row], judged: Sequence[Sequence[Judged]], seed: int) -> _Made:
    """Right chains against wrong ones of the same prompt.

    A chain that was cut is on neither side: it would be given an end it never wrote. One on which the verifier
    abstained is on neither side. Equal chains of a prompt count once.

    Raises:
        StageError: no prompt has both.
    """
    names = ("prompts", "paired", "all_right", "all_wrong", "unpaired", "drawn", "judged", "solved", "truncated")
    counts = dict.fromkeys(names, 0)
    made: list[Row] = []
    for row, many in zip(rows, judged, strict=True):
        verdicts = [one.solved for one in many if one.solved is not None]
        counts["prompts"] += 1
        counts["drawn"] += len(many)
        counts["judged"] += len(verdicts)
        counts["solved"] += sum(verdicts)
        counts["truncated"] += sum(one.truncated for one in many)
        whole = [one for one in many if one.text and not one.truncated]
        right = list(dict.fromkeys(one.text for one in whole if one.solved is True))
        wrong = list(dict.fromkeys(one.text for one in whole if one.solved is False))
        pairs = pair_up(right, wrong, most=config.pairs_per_prompt, seed=seed, name=row["id"])
        if pairs:
            counts["paired"] += 1
        elif verdicts and all(verdicts):
            counts["all_right"] += 1
        elif verdicts and not any(verdicts):
            counts["all_wrong"] += 1
        else:
            counts["unpaired"] += 1
        kept = {name: row[name] for name in _KEPT if name in row}
        made += [
            {**kept, "chosen": conversational(row["prompt"], good), "rejected": conversational(row["prompt"], bad)}
            for good, bad in pairs
        ]
    if not made:
        raise StageError(
            f"none of {counts['prompts']} prompts gives a pair: {counts['all_right']} were always solved, "
            f"{counts['all_wrong']} never, {counts['unpaired']} have no whole right chain beside a whole wrong one "
            f"({counts['truncated']} of {counts['drawn']} chains were cut at {config.sampling.max_completion_length} "
            "tokens); take more samples, a higher sampling.temperature, or prompts of another difficulty"
        )
    return _Made(made, counts)


def pair_up(right: Sequence[str], wrong: Sequence[str], *, most: int, seed: int, name: str) -> list[tuple[str, str]]:
    """At most `most` distinct (right, wrong) pairs, both sides used as evenly as they can be.

    Both are shuffled by (seed, name). Pair i takes right chain i mod R and wrong chain (i + i // lcm(R, W)) mod W,
    which runs through all R * W pairs before one comes again.
    """
    if not right or not wrong:
        return []
    shuffled: list[list[str]] = []
    for side in (right, wrong):
        digest = hashlib.sha256(f"{seed}/{len(shuffled)}/{name}".encode()).digest()
        shuffled.append(random.Random(int.from_bytes(digest[:8], "big")).sample(list(side), len(side)))
    r, w = len(right), len(wrong)
    round_trip = math.lcm(r, w)
    return [(shuffled[0][i % r], shuffled[1][(i + i // round_trip) % w]) for i in range(min(most, r * w))]


def _summary(made: _Made | None, metrics: Mapping[str, float], left_out: Sequence[tuple[str, str]]) -> dict[str, Any]:
    headline = (
        f"loss {metrics['loss']:.3f}, margin {metrics['rewards/margins']:.3f}, "
        f"accuracy {metrics['rewards/accuracies']:.2f} on {metrics['pairs']} pairs"
    )
    shown = {"rejected": [{"id": row, "reason": reason} for row, reason in left_out[:20]]}
    return {"headline": headline, **shown, **({"pairs": made.counts} if made else {})}
