"""Warnings: what will run, and is probably not what was meant."""

from __future__ import annotations

import math
from collections.abc import Iterator

from finery.language.check import Stages
from finery.language.exam import exam_of
from finery.language.nodes import key_place
from finery.language.problems import Keys, Problem
from finery.schemas.base import Stage
from finery.schemas.data import DataStage, FileSource, HubSource, HumanEvalSource, Split
from finery.schemas.distill import DistillStage
from finery.schemas.gate import GateStage
from finery.schemas.grpo import GrpoStage
from finery.schemas.merge import Member, MergeStage
from finery.schemas.promote import PromoteStage, metric_parts
from finery.schemas.reference import StageRef, parse_reference, uses
from finery.schemas.rewards import Reward

FEW_PROMPTS = 30
HUMAN_EVAL = 164
"""Problems of HumanEval."""


def warnings(stages: Stages) -> list[Problem]:
    """Every warning of a valid pipeline."""
    found: list[Problem] = []
    for name, config in stages.configs.items():
        for field, text in _of(config, stages):
            path: Keys = ("stages", name, *(int(part) if part.isdigit() else part for part in field.split(".")))
            found.append(Problem(key_place(stages.root, path), path, text))
    return found


def _of(config: Stage, stages: Stages) -> Iterator[tuple[str, str]]:
    yield from _half_known(config, stages)
    gate = _gate(config, stages)
    if gate is not None and getattr(config, "model", None) != gate.model:
        yield "gate", f"it measures {gate.model}, but this stage trains {config.model}"  # type: ignore[attr-defined]
    if isinstance(config, GrpoStage):
        if gate is not None:
            yield from _unlike(config, gate)
        yield from _band(config, stages)
    if isinstance(config, GateStage):
        yield from _few(config, stages)
    if isinstance(config, PromoteStage):
        yield from _unexamined(config, stages)
    if isinstance(config, DistillStage) and config.student == config.teacher:
        yield "student", "is the teacher itself; name a smaller model, or {shrink: {layers: [...]}}"
    if isinstance(config, MergeStage) and config.base is not None:
        for index, member in enumerate(config.models):
            if (member.model if isinstance(member, Member) else member) == config.base:
                yield f"models.{index}", f"{config.base} is the base, from which it differs in nothing: it adds nothing"


def _gate(config: Stage, stages: Stages) -> GateStage | None:
    found = _stage(getattr(config, "gate", None), stages)
    return found if isinstance(found, GateStage) else None


def _stage(text: str | None, stages: Stages) -> Stage | None:
    reference = parse_reference(text) if text else None
    return stages.configs.get(reference.stage) if isinstance(reference, StageRef) else None


def _unlike(config: GrpoStage, gate: GateStage) -> Iterator[tuple[str, str]]:
    """A gate's verdict holds for what it measured."""
    if config.sampling != gate.sampling:
        names = [
            name
            for name in type(config.sampling).model_fields
            if getattr(config.sampling, name) != getattr(gate.sampling, name)
        ]
        told = ", ".join(f"{n} {getattr(gate.sampling, n)} there, {getattr(config.sampling, n)} here" for n in names)
        yield "sampling", f"differs from its gate's ({told}); the verdict holds for the gate's"
    if _verifier(config.rewards) != _verifier(gate.rewards):
        yield "rewards", "the verifier differs from its gate's; the gate counted other completions as solved"


def _verifier(rewards: list[Reward]) -> object:
    chosen = next((reward for reward in rewards if reward.verifier), rewards[0])
    return chosen.model_copy(update={"weight": 1.0, "verifier": False})


def _band(config: GrpoStage, stages: Stages) -> Iterator[tuple[str, str]]:
    """A difficulty filter that never drops a prompt.

    A prompt's estimate is (1/2 + solved) / (1 + n) after n discounted completions (stats.difficulty), so one that is
    never, or always, solved leaves the band once n is large enough.
    """
    rule = config.difficulty
    if rule.policy != "epoch_filter" or "difficulty" not in config.model_fields_set:
        return
    low, high = rule.band
    limit = math.inf if rule.discount == 1 else config.num_generations / (1 - rule.discount)
    if not _outside(limit, low, high):
        most = "any number" if math.isinf(limit) else f"{limit:.0f}"
        yield (
            "difficulty.band" if "band" in rule.model_fields_set else "difficulty",
            f"[{low}, {high}] never drops a prompt: after {most} of completions a prompt never solved is "
            f"estimated at {0.5 / (1 + limit):.3f}; narrow the band, or write policy: none",
        )
        return
    prompts = _prompts(config.data, stages)
    if rule.start is not None or prompts is None:
        return
    visits, seen = 0, 0.0
    while not _outside(seen, low, high):
        visits, seen = visits + 1, rule.discount * seen + config.num_generations
    drawn = config.per_device_train_batch_size * config.gradient_accumulation_steps // config.num_generations
    passes = config.max_steps * drawn / config.num_iterations / prompts
    if passes <= visits:
        yield (
            "difficulty",
            f"cannot drop a prompt: one is judged after {visits} visit{'s' if visits > 1 else ''}, and "
            f"{config.max_steps} steps of {drawn} prompts make {passes:.1f} passes over about {prompts}; "
            "add start: GATE.difficulty, or write policy: none",
        )


def _half_known(config: Stage, stages: Stages) -> Iterator[tuple[str, str]]:
    """Pass rates of a gate that stops as soon as it is sure."""
    for use in uses(config):
        gate = _stage(use.text, stages)
        if use.text.endswith(".difficulty") and isinstance(gate, GateStage) and gate.samples is None:
            yield (
                use.field,
                f"{use.text} knows the prompts that the gate drew before it was sure, which may be few; for all of "
                f"them give the gate samples: {gate.samples_per_prompt}",
            )


def _outside(n: float, low: float, high: float) -> bool:
    """Whether a prompt never, or always, solved in n completions lies outside the band; unseen ones never do."""
    if n == 0:
        return False
    if math.isinf(n):
        return low > 0 or high < 1
    return 0.5 / (1 + n) < low or (0.5 + n) / (1 + n) > high


def _prompts(text: str, stages: Stages) -> int | None:
    """About how many prompts a data output holds, when its stage says so."""
    config = _stage(text, stages)
    if not isinstance(config, DataStage) or any(
        isinstance(source, (FileSource, HubSource)) for source in config.sources
    ):
        return None
    reference = parse_reference(text)
    output = (reference.output if isinstance(reference, StageRef) else None) or config.default_output
    split = config.splits.get(output or "")
    if split is None:
        return None
    rows = sum(
        HUMAN_EVAL if isinstance(source, HumanEvalSource) else source.rows
        for source in config.sources
        if not isinstance(source, (FileSource, HubSource))
    )
    share = split.fraction if isinstance(split, Split) else split
    count = max(1, round(rows * share))
    return min(count, split.rows) if isinstance(split, Split) and split.rows else count


def _few(config: GateStage, stages: Stages) -> Iterator[tuple[str, str]]:
    """Intervals over few prompts are wide."""
    prompts = min((n for n in (config.max_prompts, _prompts(config.data, stages)) if n is not None), default=None)
    if prompts is not None and prompts < FEW_PROMPTS:
        field = "max_prompts" if config.max_prompts == prompts else "data"
        yield (
            field,
            (
                f"{prompts} prompts give pass@1 within +-{1.96 * math.sqrt(0.25 / prompts):.2f} at worst; "
                f"the verdict will seldom be sure: take {FEW_PROMPTS} or more"
            ),
        )


def _unexamined(config: PromoteStage, stages: Stages) -> Iterator[tuple[str, str]]:
    """A promotion of one model under conditions on others."""
    if exam_of(config, stages) and not any(metric_parts(key)[0] == config.model for key in config.require):
        yield "require", f"no condition looks at {config.model}, the model to be promoted"
