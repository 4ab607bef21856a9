"""`gate`: sample a model on verifiable prompts, until it is settled whether RL is worth it."""

from __future__ import annotations

import json
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from finery.contract import StageContext, StageResult
from finery.data.dataset import read_dataset
from finery.errors import StageError
from finery.rewards import build
from finery.rewards.extract import extract
from finery.rewards.gym import GymFunction
from finery.rewards.numbers import parse_number
from finery.schemas.gate import GateStage
from finery.schemas.rewards import AnswerReward, ReasoningGymReward
from finery.stats.intervals import RESAMPLES, Bootstrap, Interval
from finery.stats.passk import maj_at_k
from finery.stats.sequential import LOOK_RESAMPLES, Look, looks, unbiased
from finery.stats.verdict import Verdict, decide

if TYPE_CHECKING:
    from finery.training.measure import Draw, Judged
    from finery.training.rounds import Drawn

_CUT = 0.1
"""From this share of truncated completions on the user is warned."""
_BINS = 10


@dataclass(frozen=True)
class _Estimates:
    """pass@k and the gap over the prompts `rows`, those with max(k) judged completions, at one level."""

    rows: list[int]
    pass_at: dict[int, Interval]
    gap: Interval


@dataclass(frozen=True)
class _Numbers:
    """What the verdict is read from and what stands beside it; K is the largest k, all over the same prompts."""

    pass_at: dict[int, Interval]
    gap: Interval
    greedy: Interval | None
    maj: Interval | None
    truncated: float
    ended: float | None
    length: float
    prompts: int
    excluded: int
    never: float
    always: float
    histogram: list[int]
    spent: int
    tokens: int


def run(config: GateStage, inputs: Mapping[str, Path], context: StageContext) -> StageResult:
    """Draw completions until the verdict is settled, and a greedy one of each prompt that was drawn from; write
    verdict.json, difficulty.json and samples.jsonl.

    Raises:
        InputError: the data has rows without a prompt.
        StageError: no prompt has enough completions that could be judged.
    """
    from finery.training.measure import Counter, Draw, Subject, measure, prompts_of, sample_lines
    from finery.training.rounds import draw_in_rounds

    context.rewind(0)
    rewards = build(config.rewards, inputs)
    rows, duplicates = prompts_of(read_dataset(inputs["data"]), config.data, config.max_prompts)
    counter = Counter(context, len(rows) * (config.samples_per_prompt + 1))
    subject = Subject(inputs["model"], context.bases, config.resources.gpus)
    draw = Draw(n=config.samples_per_prompt, sampling=config.sampling, seed=context.seed, batch_size=config.batch_size)

    def judge(chosen: Sequence[int], how: Draw, name: str) -> list[list[Judged]]:
        return measure(
            subject, [rows[row] for row in chosen], rewards, how,
            log=context.checkpoint_dir / f"{name}.jsonl", context=context, counter=counter, note=name.split(".")[0],
        )  # fmt: skip

    drawn = draw_in_rounds(
        [row["id"] for row in rows], _plan(config, len(rows)), draw, judge,
        k=max(config.k), settled=lambda so_far: _looked(config, so_far, context),
    )  # fmt: skip
    seen = [row for row, completions in enumerate(drawn.completions) if completions]
    greedy = judge(seen, replace(draw, n=1, greedy=True), "greedy")
    numbers = _numbers(config, drawn, dict(zip(seen, (one[0] for one in greedy), strict=True)), context.seed)
    verdict = _decide(config, numbers.pass_at, numbers.gap, numbers.greedy)
    reason = _reason(config, numbers, verdict)
    sampled = [drawn.completions[row] for row in seen]
    rows = [rows[row] for row in seen]
    _write_json(
        context.output("verdict") / "verdict.json",
        _verdict(config, numbers, verdict, reason) | {"duplicates": duplicates, "looks": drawn.looks},
    )
    _write_json(context.output("difficulty") / "difficulty.json", _difficulty(rows, sampled))
    with (context.output("samples") / "samples.jsonl").open("w", encoding="utf-8") as file:
        lines = sample_lines(rows, sampled, greedy=False) + sample_lines(rows, greedy, greedy=True)
        file.writelines(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
    _warn(config, numbers, verdict, duplicates, context)
    metrics = _metrics(config, numbers)
    # the last look has told its numbers at this step
    told = ("gap", *(f"pass_at_{k}" for k in numbers.pass_at))
    context.log(numbers.spent, **{name: value for name, value in metrics.items() if name not in told})
    return StageResult(metrics=metrics, summary=_summary(config, numbers, verdict, reason))


def _plan(config: GateStage, prompts: int) -> list[Look]:
    """When to look: in rounds, or once at `samples` completions of every prompt."""
    alpha = 1 - config.confidence
    if config.samples:
        return [Look(prompts, config.samples, alpha)]
    return looks(prompts, max(config.k), config.samples_per_prompt, alpha)


def _looked(config: GateStage, drawn: Drawn, context: StageContext) -> bool:
    """A look: tell what is known, and whether it settles the verdict."""
    found = _estimates(config, drawn, context.seed)
    if found is None:
        return False
    shown = {f"pass_at_{k}": interval.value for k, interval in found.pass_at.items()}
    context.log(drawn.spent, **shown, gap=found.gap.value, gap_low=found.gap.low, gap_high=found.gap.high)
    return _decide(config, found.pass_at, found.gap).conclusive


def _decide(
    config: GateStage, pass_at: Mapping[int, Interval], gap: Interval, greedy: Interval | None = None
) -> Verdict:
    most = max(config.k)
    return decide(
        pass_at[1],
        pass_at[most],
        gap,
        k=most,
        solved_at=config.solved_at,
        min_gap=config.min_gap,
        greedy=greedy.value if greedy else None,
        min_greedy=config.min_greedy,
    )


def _estimates(config: GateStage, drawn: Drawn, seed: int) -> _Estimates | None:
    """Over the prompts with max(k) judged completions, by the same resamples; None when there is none."""
    most = max(config.k)
    rows = [row for row in range(len(drawn.completions)) if drawn.counts(row)[0] >= most]
    if not rows:
        return None
    rates = {
        k: np.array([unbiased(drawn.rounds[row], drawn.counts(row)[1], k, most) for row in rows], dtype=np.float64)
        for k in sorted({1, *config.k})
    }
    weights = Bootstrap(
        len(rows), confidence=drawn.level, seed=seed, resamples=RESAMPLES if config.samples else LOOK_RESAMPLES
    )
    # the same sum in another order may fall below 0 by rounding
    gap = np.maximum(rates[most] - rates[1], 0.0)
    return _Estimates(rows, {k: _some(weights.mean(rate)) for k, rate in rates.items()}, _some(weights.mean(gap)))


def _numbers(config: GateStage, drawn: Drawn, greedy: Mapping[int, Judged], seed: int) -> _Numbers:
    """Everything that is told, over the prompts with max(k) judged completions."""
    most = max(config.k)
    found = _estimates(config, drawn, seed)
    seen = [many for many in drawn.completions if many]
    if found is None:
        raise StageError(
            f"none of {len(seen)} prompts has {most} completions that could be judged, so pass@{most} is unknown; "
            "the rewards abstained: check that the data has readable answers"
        )
    weights = Bootstrap(len(found.rows), confidence=config.confidence, seed=seed)
    completions = [each for many in seen for each in many]
    ended = [one.solved for one in completions if not one.truncated and one.solved is not None]
    shares = [solved / judged for judged, solved in map(drawn.counts, found.rows)]
    tokens = sum(each.tokens for each in completions)
    return _Numbers(
        pass_at=found.pass_at,
        gap=found.gap,
        greedy=weights.mean([_float(greedy[row].solved) for row in found.rows]),
        maj=_majority(config, [drawn.completions[row] for row in found.rows], weights),
        truncated=sum(each.truncated for each in completions) / len(completions),
        ended=sum(ended) / len(ended) if ended else None,
        length=tokens / len(completions),
        prompts=len(found.rows),
        excluded=len(seen) - len(found.rows),
        never=sum(share == 0 for share in shares) / len(shares),
        always=sum(share == 1 for share in shares) / len(shares),
        histogram=[int(count) for count in np.histogram(shares, bins=_BINS, range=(0.0, 1.0))[0]],
        spent=len(completions),
        tokens=tokens + sum(one.tokens for one in greedy.values()),
    )


def _reason(config: GateStage, numbers: _Numbers, verdict: Verdict) -> str:
    """The verdict's reason; where completions were cut, what those that ended were worth: a cap is no inability."""
    if numbers.truncated < _CUT:
        return verdict.reason
    among = "none ended" if numbers.ended is None else f"of those that ended {numbers.ended:.0%} are right"
    return (
        f"{verdict.reason}; {numbers.truncated:.0%} of the completions were cut at "
        f"{config.sampling.max_completion_length} tokens and count as unsolved, {among}"
    )


def _majority(config: GateStage, sampled: Sequence[Sequence[Judged]], weights: Bootstrap) -> Interval | None:
    """maj@K, or None when the verifier does not read an answer that completions could vote for."""
    verifier = next((reward for reward in config.rewards if reward.verifier), config.rewards[0])
    if not isinstance(verifier, AnswerReward | ReasoningGymReward):
        return None
    shares = []
    for many in sampled:
        answers = [None if one.truncated else _vote(verifier, one.text) for one in many]
        shares.append(maj_at_k(answers, [one.solved for one in many], max(config.k)))
    return weights.mean([float("nan") if share is None else share for share in shares])


def _vote(verifier: AnswerReward | ReasoningGymReward, text: str) -> Hashable | None:
    """The answer that the verifier reads in a completion, equal numbers being one answer."""
    if isinstance(verifier, ReasoningGymReward):
        found = GymFunction(verifier.extract).find(text)
    else:
        found = extract(text, verifier.extract)
    if found is None:
        return None
    number = parse_number(found) if isinstance(verifier, AnswerReward) and verifier.compare != "text" else None
    return number.value if number is not None else " ".join(found.split())


def _verdict(config: GateStage, numbers: _Numbers, verdict: Verdict, reason: str) -> dict[str, Any]:
    most = max(config.k)
    return {
        "verdict": verdict.verdict,
        "reason": reason,
        "conclusive": verdict.conclusive,
        "weak_greedy": verdict.weak_greedy,
        "k": most,
        "samples": config.samples_per_prompt,
        "confidence": config.confidence,
        "solved_at": config.solved_at,
        "min_gap": config.min_gap,
        "min_greedy": config.min_greedy,
        "pass_at_1": numbers.pass_at[1].as_dict(),
        "pass_at_k": {**numbers.pass_at[most].as_dict(), "k": most},
        "gap": numbers.gap.as_dict(),
        "pass_at": {str(k): interval.as_dict() for k, interval in numbers.pass_at.items()},
        "greedy": numbers.greedy.value if numbers.greedy else None,
        "maj_at_k": numbers.maj.value if numbers.maj else None,
        "truncated": numbers.truncated,
        "completion_length": numbers.length,
        "prompts": numbers.prompts,
        "excluded": numbers.excluded,
        "spent": numbers.spent,
        "tokens": numbers.tokens,
        "pass_at_1_ended": numbers.ended,
        "never_solved": numbers.never,
        "always_solved": numbers.always,
        "histogram": numbers.histogram,
    }


def _difficulty(rows: Sequence[Mapping[str, Any]], sampled: Sequence[Sequence[Judged]]) -> dict[str, Any]:
    prompts = {}
    for row, many in zip(rows, sampled, strict=True):
        judged = [one.solved for one in many if one.solved is not None]
        if judged:
            prompts[row["id"]] = {"n": len(judged), "solved": sum(judged)}
    return {"prompts": dict(sorted(prompts.items()))}


def _warn(config: GateStage, numbers: _Numbers, verdict: Verdict, duplicates: int, context: StageContext) -> None:
    if duplicates:
        context.warn(f"{duplicates} rows repeat a prompt and its answer and were left out")
    if numbers.excluded:
        context.warn(f"{numbers.excluded} prompts have fewer than {max(config.k)} judged completions and are excluded")
    if numbers.truncated >= _CUT:
        context.warn(
            f"{numbers.truncated:.0%} of the completions were cut at {config.sampling.max_completion_length} tokens "
            "and count as unsolved; a larger sampling.max_completion_length may change the verdict"
        )
    if verdict.weak_greedy:
        context.warn(verdict.reason)


def _metrics(config: GateStage, numbers: _Numbers) -> dict[str, float]:
    metrics = {f"pass_at_{k}": interval.value for k, interval in numbers.pass_at.items()}
    metrics["gap"] = numbers.gap.value
    if numbers.greedy:
        metrics["greedy"] = numbers.greedy.value
    if numbers.maj:
        metrics[f"maj_at_{max(config.k)}"] = numbers.maj.value
    return metrics | {
        "truncated": numbers.truncated,
        "completion_length": numbers.length,
        "prompts": numbers.prompts,
        "excluded": numbers.excluded,
        "never_solved": numbers.never,
        "always_solved": numbers.always,
        "samples": numbers.spent,
    }


def _summary(config: GateStage, numbers: _Numbers, verdict: Verdict, reason: str) -> dict[str, Any]:
    most = max(config.k)
    beside = {"greedy": numbers.greedy, f"maj@{most}": numbers.maj}
    shown = {f"pass@{k}": interval for k, interval in numbers.pass_at.items()} | {"gap": numbers.gap} | beside
    headline = f"{verdict.verdict}: pass@1 {numbers.pass_at[1]}, pass@{most} {numbers.pass_at[most]}"
    if numbers.greedy:
        headline += f", greedy {numbers.greedy.value:.2f}"
    return {
        "headline": headline,
        "verdict": verdict.verdict,
        "reason": reason,
        "table": [{"number": name, "value": str(interval)} for name, interval in shown.items() if interval],
    }


def _some(interval: Interval | None) -> Interval:
    if interval is None:
        raise AssertionError("every prompt that is kept has a rate")
    return interval


def _float(solved: bool | None) -> float:
    return float("nan") if solved is None else float(solved)


def _write_json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, ensure_ascii=False, indent=2, allow_nan=False) + "\n", encoding="utf-8")
