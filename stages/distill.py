"""`distill`: a student learns from chains of a teacher's that the verifier passed."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from finery.contract import StageContext, StageResult
from finery.data.dataset import read_dataset, write_dataset
from finery.data.order import CURRICULUM, is_ordered, weights_of
from finery.errors import StageError
from finery.rewards import build
from finery.rewards.rewardset import conversational
from finery.schemas.distill import DistillStage, ShrunkStudent

if TYPE_CHECKING:
    from finery.training.measure import Judged

Row = dict[str, Any]


@dataclass(frozen=True)
class _Chains:
    """What the teacher gave.

    Attributes:
        rows: the chains to learn, as rows of prompt and completion.
        counts: drawn, truncated, abstained, failed, repeated, kept.
        by_level: meta.level -> [solved, judged], where the data has levels.
    """

    rows: list[Row]
    counts: dict[str, int]
    by_level: dict[str, list[int]]

    @property
    def accuracy(self) -> float:
        """The share of judged chains that the verifier passed."""
        return self.counts["solved"] / max(1, self.counts["judged"])


def run(config: DistillStage, inputs: Mapping[str, Path], context: StageContext) -> StageResult:
    """Sample `inputs["teacher"]`, write the chains that passed, and train the student on them.

    Raises:
        InputError: a model, a prompt or a reward cannot be used.
        StageError: no chain passed, the loss was not finite, or training changed nothing.
    """
    from finery.training.encode import encode, warn_of_rows
    from finery.training.folders import adapter_base, adapter_quantization
    from finery.training.models import publish_model
    from finery.training.sampling import end_ids
    from finery.training.sft import start, train_sft

    checkpoints = start(context)
    chains = _draw(config, inputs, context)
    ordered = is_ordered(inputs["data"])
    info: dict[str, Any] = {"teacher_accuracy": round(chains.accuracy, 6), "verified": config.verified, **chains.counts}
    info |= {"order": CURRICULUM} if ordered else {}
    write_dataset(chains.rows, context.output("chains"), info=info)
    model, tokenizer = _student(config, inputs, context)
    ends = end_ids(model, tokenizer)

    def tokens(name: str, rows: list[Row], *, ordered: bool) -> Any:
        encoded = encode(rows, tokenizer, ends=ends, max_length=config.max_length, ordered=ordered, name=name)
        if checkpoints[1] is None:
            warn_of_rows(encoded, context, name, config.max_length)
        return encoded

    data = tokens("chains", chains.rows, ordered=ordered)
    replay = None
    if config.replay:
        folder = inputs["replay.data"]
        replay = tokens("replay.data", read_dataset(folder), ordered=is_ordered(folder)), config.replay
    trained = train_sft(
        model, tokenizer, config, context, data=data, replay=replay, lora=config.lora, resume=checkpoints
    )
    sits: dict[str, Any] = {}
    if hasattr(trained.model, "peft_config"):
        digest, ref = context.input_digests.get("student", ""), context.input_refs.get("student", "")
        base = adapter_base(inputs["student"], digest=digest, ref=ref)
        sits = {"base": base, "quantization": adapter_quantization(inputs["student"])}
    publish_model(trained.model, tokenizer, context.output("model"), **sits)
    metrics = trained.metrics | {
        "steps": trained.steps,
        "teacher_accuracy": chains.accuracy,
        "chains_drawn": chains.counts["drawn"],
        "chains_kept": len(chains.rows),
        "parameters": sum(weight.numel() for weight in trained.model.parameters()),
    }
    return StageResult(metrics=metrics, summary=_summary(config, chains, metrics))


def _draw(config: DistillStage, inputs: Mapping[str, Path], context: StageContext) -> _Chains:
    """The teacher's chains; those that an earlier attempt drew are taken from its log."""
    from finery.training.measure import Counter, Draw, Subject, measure, prompts_of

    rows, _ = prompts_of(read_dataset(inputs["data"]), "data", config.max_prompts)
    if not rows:
        raise StageError("data: there are no prompts")
    weights_of(rows, "data")  # one that cannot be used is found before anything is drawn
    judged = measure(
        Subject(inputs["teacher"], context.bases, config.resources.gpus),
        rows,
        build(config.rewards, inputs),
        Draw(n=config.samples_per_prompt, sampling=config.sampling, seed=context.seed, batch_size=config.batch_size),
        log=context.checkpoint_dir / "chains.jsonl",
        context=context,
        counter=Counter(context, len(rows) * config.samples_per_prompt),
        note="teacher",
    )
    return _choose(config, rows, judged, context.seed, ordered=is_ordered(inputs["data"]))


def _choose(
    config: DistillStage, rows: Sequence[Row], judged: Sequence[Sequence[Judged]], seed: int, *, ordered: bool
) -> _Chains:
    """Which chains are learned. One that was cut is not: its end would be learned in the wrong place.

    They are shuffled, or stay in the order of the prompts where the data asks for its order; a chain has its
    prompt's weight.

    Raises:
        StageError: none is left.
    """
    counts = dict.fromkeys(("drawn", "judged", "solved", "truncated", "repeated"), 0)
    by_level: dict[str, list[int]] = {}
    seen: set[tuple[str, str]] = set()
    chosen: list[Row] = []
    for row, many in zip(rows, judged, strict=True):
        level = (row.get("meta") or {}).get("level")
        for one in many:
            counts["drawn"] += 1
            counts["truncated"] += one.truncated
            if one.solved is not None:
                counts["judged"] += 1
                counts["solved"] += one.solved
                if level is not None:
                    tally = by_level.setdefault(str(level), [0, 0])
                    tally[0] += one.solved
                    tally[1] += 1
            if one.truncated or not one.text or (config.verified and not one.solved):
                continue
            if (row["id"], one.text) in seen:
                counts["repeated"] += 1
                continue
            seen.add((row["id"], one.text))
            kept = {name: row[name] for name in ("id", "prompt", "answer", "meta", "weight") if name in row}
            chosen.append(kept | {"completion": conversational(row["prompt"], one.text)})
    if not chosen:
        raise StageError(
            f"none of the teacher's {counts['drawn']} chains can be learned: {counts['solved']} passed the verifier, "
            f"{counts['truncated']} were cut at {config.sampling.max_completion_length} tokens; try a better teacher, "
            "more samples_per_prompt, or a larger sampling.max_completion_length"
        )
    places = list(range(len(chosen)))
    random.Random(seed).shuffle(places)
    places = sorted(places[: config.max_rows]) if ordered else places[: config.max_rows]
    return _Chains([chosen[place] for place in places], counts, dict(sorted(by_level.items())))


def _student(config: DistillStage, inputs: Mapping[str, Path], context: StageContext) -> tuple[Any, Any]:
    """The student and its tokenizer: a model of its own, or a copy cut out of the teacher with the teacher's."""
    from finery.training.models import load_model, load_tokenizer, merge_adapter
    from finery.training.shrink import shrink_model

    how: dict[str, Any] = {"dtype": config.dtype, "bases": context.bases, "attention": config.attn_implementation}
    if not isinstance(config.student, ShrunkStudent):
        model = load_model(inputs["student"], **how, trainable=True)
        return model, load_tokenizer(inputs["student"])
    teacher = merge_adapter(inputs["teacher"], **how)
    shrink = config.student.shrink
    student = shrink_model(teacher, shrink.layers, shrink.intermediate_size)
    return student.requires_grad_(True).train(), load_tokenizer(inputs["teacher"])


def _summary(config: DistillStage, chains: _Chains, metrics: Mapping[str, float]) -> dict[str, Any]:
    kept, drawn = len(chains.rows), chains.counts["drawn"]
    table = [
        {"level": level, "passed": solved, "of": judged, "share": round(solved / judged, 3)}
        for level, (solved, judged) in chains.by_level.items()
    ]
    return {
        "headline": f"teacher {chains.accuracy:.3f}, {kept} of {drawn} chains kept, loss {metrics['loss']:.3f}",
        "chains": chains.counts | {"kept": kept, "verified": config.verified},
        **({"acceptance": table} if table else {}),
    }
