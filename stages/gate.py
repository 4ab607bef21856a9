"""`gate`: sample a model on verifiable prompts and say whether RL is worth it."""

from __future__ import annotations

import json
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from finery.contract import StageContext, StageResult
from finery.data.dataset import read_dataset
from finery.errors import StageError
from finery.rewards import build
from finery.rewards.extract import extract
from finery.rewards.gym import GymFunction
from finery.rewards.numbers import parse_number
from finery.schemas.gate import GateStage
from finery.schemas.rewards import AnswerReward, ReasoningGymReward
from finery.stats.intervals import Bootstrap, Interval
from finery.stats.passk import maj_at_k, pass_at_k
from finery.stats.verdict import Verdict, decide

if TYPE_CHECKING:
    from finery.training.measure import Judged

_CUT = 0.1
"""From this share of truncated completions on the user is warned."""


@dataclass(frozen=True)
class _Numbers:
    """What the verdict is read from; K is the largest k, all over the same prompts."""

    pass_at: dict[int, Interval]
    gap: Interval
    greedy: Interval | None
    maj: Interval | None
    truncated: float
    length: float
    prompts: int
    excluded: int


def run(config: GateStage, inputs: Mapping[str, Path], context: StageContext) -> StageResult:
    """Draw n completions and a greedy one for each prompt; write verdict.json, difficulty.json and samples.jsonl.

    Raises:
        InputError: the data has rows without a prompt.
        StageError: no prompt has enough completions that could be judged.
    """
    from finery.training.measure import Counter, Draw, Subject, measure, prompts_of, sample_lines

    context.rewind(0)
    rewards = build(config.rewards, inputs)
    rows, duplicates = prompts_of(read_dataset(inputs["data"]), config.data, config.max_prompts)
    n = config.samples_per_prompt
    counter = Counter(context, len(rows) * (n + 1))
    subject = Subject(inputs["model"], context.bases, config.resources.gpus)
    draw = Draw(n=n, sampling=config.sampling, seed=context.seed, batch_size=config.batch_size)
    sampled, greedy = (
        measure(
            subject, rows, rewards, each,
            log=context.checkpoint_dir / f"{name}.jsonl", context=context, counter=counter, note=name,
        )
        for name, each in (("sampled", draw), ("greedy", replace(draw, n=1, greedy=True)))
    )  # fmt: skip
    numbers = _numbers(config, sampled, [one[0] for one in greedy], context.seed)
    verdict = decide(
        numbers.pass_at[1],
        numbers.pass_at[max(config.k)],
        numbers.gap,
        k=max(config.k),
        solved_at=config.solved_at,
        min_gap=config.min_gap,
        greedy=numbers.greedy.value if numbers.greedy else None,
        min_greedy=config.min_greedy,
    )
    _write_json(context.output("verdict") / "verdict.json", _verdict(config, numbers, verdict, duplicates))
    _write_json(context.output("difficulty") / "difficulty.json", _difficulty(rows, sampled))
    with (context.output("samples") / "samples.jsonl").open("w", encoding="utf-8") as file:
        lines = sample_lines(rows, sampled, greedy=False) + sample_lines(rows, greedy, greedy=True)
        file.writelines(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
    _warn(config, numbers, verdict, duplicates, context)
    metrics = _metrics(config, numbers)
    context.log(n, **metrics)
    return StageResult(metrics=metrics, summary=_summary(config, numbers, verdict))


def _numbers(config: GateStage, sampled: Sequence[Sequence[Judged]], greedy: Sequence[Judged], seed: int) -> _Numbers:
    """Estimates over the prompts with max(k) judged completions, with intervals by the same resamples."""
    most = max(config.k)
    kept = [
        (many, one)
        for many, one in zip(sampled, greedy, strict=True)
        if sum(each.solved is not None for each in many) >= most
    ]
    if not kept:
        raise StageError(
            f"none of {len(sampled)} prompts has {most} completions that could be judged, so pass@{most} is unknown; "
            "the rewards abstained: check that the data has readable answers"
        )
    valid = [sum(each.solved is not None for each in many) for many, _ in kept]
    solved = [sum(each.solved is True for each in many) for many, _ in kept]
    rates = {k: pass_at_k(valid, solved, k) for k in sorted({1, *config.k})}
    weights = Bootstrap(len(kept), confidence=config.confidence, seed=seed)
    completions = [each for many in sampled for each in many]
    return _Numbers(
        pass_at={k: _some(weights.mean(rate)) for k, rate in rates.items()},
        gap=_some(weights.mean(rates[most] - rates[1])),
        greedy=weights.mean([_float(one.solved) for _, one in kept]),
        maj=_majority(config, [many for many, _ in kept], weights),
        truncated=sum(each.truncated for each in completions) / len(completions),
        length=sum(each.tokens for each in completions) / len(completions),
        prompts=len(kept),
        excluded=len(sampled) - len(kept),
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


def _verdict(config: GateStage, numbers: _Numbers, verdict: Verdict, duplicates: int) -> dict[str, Any]:
    most = max(config.k)
    return {
        "verdict": verdict.verdict,
        "reason": verdict.reason,
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
        "duplicates": duplicates,
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
    }


def _summary(config: GateStage, numbers: _Numbers, verdict: Verdict) -> dict[str, Any]:
    most = max(config.k)
    beside = {"greedy": numbers.greedy, f"maj@{most}": numbers.maj}
    shown = {f"pass@{k}": interval for k, interval in numbers.pass_at.items()} | {"gap": numbers.gap} | beside
    headline = f"{verdict.verdict}: pass@1 {numbers.pass_at[1]}, pass@{most} {numbers.pass_at[most]}"
    if numbers.greedy:
        headline += f", greedy {numbers.greedy.value:.2f}"
    return {
        "headline": headline,
        "verdict": verdict.verdict,
        "reason": verdict.reason,
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
