"""`evaluate`: several models on several suites, on the same prompts and the same random numbers."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from finery.contract import StageContext, StageResult
from finery.data.dataset import read_dataset
from finery.rewards import RewardSet, build
from finery.schemas.evaluate import EvaluateStage, Suite
from finery.stats.forgetting import GeneralSuite, forgetting
from finery.stats.intervals import Bootstrap, Interval
from finery.stats.passk import pass_at_k

if TYPE_CHECKING:
    from finery.training.measure import Counter, Judged, Subject

_CUT = 0.1
"""From this share of truncated completions on the user is warned."""

Rates = dict[str, list[float]]
"""Metric to its value for each prompt [P], NaN where it is undefined."""


@dataclass(frozen=True)
class _Suite:
    """A suite made ready: its prompts, its rewards, its seed and its resampling weights."""

    name: str
    config: Suite
    rows: list[dict[str, Any]]
    duplicates: int
    rewards: RewardSet
    seed: int
    weights: Bootstrap

    @property
    def samples(self) -> int:
        """Completions drawn for each prompt; 0 when only greedy accuracy is measured."""
        return (self.config.samples or max(self.config.k)) if self.config.k else 0

    @property
    def draws(self) -> int:
        """Completions of one model, the greedy ones included."""
        return len(self.rows) * (self.samples + self.config.greedy)


def run(config: EvaluateStage, inputs: Mapping[str, Path], context: StageContext) -> StageResult:
    """Measure every model on every suite; write evaluation.json and samples.jsonl.

    Models with one digest are measured once and shown under each name.

    Raises:
        InputError: a suite's data has rows without a prompt.
    """
    from finery.training.measure import Counter, Subject

    context.rewind(0)
    reference = config.reference or config.models[0]
    suites = [_ready(name, suite, config, inputs, context) for name, suite in config.suites.items()]
    digests = {ref: context.input_digests[f"models.{index}"] for index, ref in enumerate(config.models)}
    first = {digest: ref for ref, digest in reversed(digests.items())}
    same = {ref: first[digest] for ref, digest in digests.items() if first[digest] != ref}
    measured = [ref for ref in config.models if ref not in same]
    counter = Counter(context, len(measured) * sum(suite.draws for suite in suites))
    rates: dict[str, dict[str, Rates]] = {}
    with (context.output("samples") / "samples.jsonl").open("w", encoding="utf-8") as file:
        for number, ref in enumerate(measured):
            subject = Subject(inputs[f"models.{config.models.index(ref)}"], context.bases, config.resources.gpus)
            rates[ref] = {}
            for suite in suites:
                lines, rates[ref][suite.name] = _examine(subject, ref, number, suite, config, context, counter)
                file.writelines(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
            context.log(number + 1, **_values(ref, rates[ref]))
    results = _results(config.models, same, reference, suites, rates)
    lost = _forgetting(config.models, same, reference, suites, rates)
    if any(suite.config.general for suite in suites) and (unknown := [ref for ref in config.models if ref not in lost]):
        context.warn(
            f"forgetting of {', '.join(unknown)} is unknown: a general suite has no prompt that could be judged of both"
            f" it and {reference}"
        )
    _warn(config, suites, results, same, context)
    evaluation = {
        "reference": reference,
        "confidence": config.confidence,
        "models": results,
        "suites": {suite.name: _described(suite) for suite in suites},
        "digests": digests,
        "same": same,
        **({"forgetting": lost} if lost else {}),
    }
    (context.output("evaluation") / "evaluation.json").write_text(
        json.dumps(evaluation, ensure_ascii=False, indent=2, allow_nan=False) + "\n", encoding="utf-8"
    )
    metrics = {
        f"{ref}.{suite}.{metric}": number["value"]
        for ref, by_suite in results.items()
        for suite, by_metric in by_suite.items()
        for metric, number in by_metric.items()
    } | {f"{ref}.forgetting": number["value"] for ref, number in lost.items()}
    return StageResult(metrics=metrics, summary=_summary(results, same, reference, suites, lost))


def suite_seed(seed: int, suite: str) -> int:
    """The seed of a suite's draws and resamples: the same for all models, another for each suite."""
    return int.from_bytes(hashlib.sha256(f"{seed}/{suite}".encode()).digest()[:8], "little")


def _ready(name: str, suite: Suite, config: EvaluateStage, inputs: Mapping[str, Path], context: StageContext) -> _Suite:
    from finery.training.measure import prompts_of

    field = f"suites.{name}"
    rows, duplicates = prompts_of(read_dataset(inputs[f"{field}.data"]), f"{field}.data", suite.max_prompts)
    seed = suite_seed(context.seed, name)
    return _Suite(
        name,
        suite,
        rows,
        duplicates,
        build(suite.rewards, inputs, prefix=f"{field}.rewards"),
        seed,
        Bootstrap(len(rows), confidence=config.confidence, seed=seed),
    )


def _examine(
    subject: Subject,
    ref: str,
    number: int,
    suite: _Suite,
    config: EvaluateStage,
    context: StageContext,
    counter: Counter,
) -> tuple[list[dict[str, Any]], Rates]:
    """One model on one suite: the lines of samples.jsonl, and each metric's value for each prompt."""
    from finery.training.measure import Draw, measure, sample_lines

    lines: list[dict[str, Any]] = []
    judged: dict[bool, list[list[Judged]]] = {}
    for greedy, n in ((False, suite.samples), (True, int(suite.config.greedy))):
        if not n:
            continue
        draw = Draw(n=n, sampling=suite.config.sampling, seed=suite.seed, batch_size=config.batch_size, greedy=greedy)
        log = context.checkpoint_dir / f"{number}.{suite.name}.{'greedy' if greedy else 'sampled'}.jsonl"
        said = f"{ref} on {suite.name}"
        judged[greedy] = measure(
            subject, suite.rows, suite.rewards, draw, log=log, context=context, counter=counter, note=said
        )
        lines += sample_lines(suite.rows, judged[greedy], model=ref, suite=suite.name, greedy=greedy)
    return lines, _rates(suite, judged)


def _rates(suite: _Suite, judged: Mapping[bool, list[list[Judged]]]) -> Rates:
    nan = float("nan")
    rates: Rates = {}
    for k in sorted(suite.config.k):
        counts = [[one.solved for one in many if one.solved is not None] for many in judged[False]]
        rates[f"pass_at_{k}"] = [pass_at_k(len(all_), sum(all_), k) if len(all_) >= k else nan for all_ in counts]
    if suite.config.greedy:
        rates["greedy"] = [nan if many[0].solved is None else float(many[0].solved) for many in judged[True]]
    cut = judged[False] if suite.config.k else judged[True]
    rates["truncated"] = [sum(one.truncated for one in many) / len(many) for many in cut]
    return rates


def _results(
    models: Sequence[str],
    same: Mapping[str, str],
    reference: str,
    suites: Sequence[_Suite],
    rates: Mapping[str, Mapping[str, Rates]],
) -> dict[str, dict[str, dict[str, dict[str, Any]]]]:
    """Model, suite and metric to `{value, low, high, n, change}`; a metric that no prompt defines is absent."""
    base = same.get(reference, reference)
    results: dict[str, dict[str, dict[str, dict[str, Any]]]] = {}
    for ref in models:
        own = same.get(ref, ref)
        results[ref] = {}
        for suite in suites:
            found: dict[str, dict[str, Any]] = {}
            for metric, values in rates[own][suite.name].items():
                interval = suite.weights.mean(values)
                if interval is None:
                    continue
                found[metric] = interval.as_dict()
                change = suite.weights.change(values, rates[base][suite.name][metric]) if own != base else None
                if change is not None:
                    found[metric]["change"] = {"value": change.value, "low": change.low, "high": change.high}
            results[ref][suite.name] = found
    return results


def _forgetting(
    models: Sequence[str],
    same: Mapping[str, str],
    reference: str,
    suites: Sequence[_Suite],
    rates: Mapping[str, Mapping[str, Rates]],
) -> dict[str, dict[str, Any]]:
    """Each model's forgetting against the reference; empty without general suites or where nothing was judged."""
    general = [
        GeneralSuite(suite.name, suite.config.main_metric, suite.config.weight, suite.weights)
        for suite in suites
        if suite.config.general
    ]
    if not general:
        return {}

    def values(ref: str) -> dict[str, list[float]]:
        return {suite.name: rates[same.get(ref, ref)][suite.name][suite.metric] for suite in general}

    base, lost = same.get(reference, reference), {}
    for ref in models:
        found = forgetting(general, values(reference), values(ref))
        if found is not None and same.get(ref, ref) == base:
            # the same model: nothing is lost, and nothing uncertain about that
            found |= {"value": 0.0, "low": 0.0, "high": 0.0}
            for row in found["suites"].values():
                row |= {"drop": 0.0, "low": 0.0, "high": 0.0}
        if found is not None:
            lost[ref] = found
    return lost


def _described(suite: _Suite) -> dict[str, Any]:
    return {
        "prompts": len(suite.rows),
        "duplicates": suite.duplicates,
        "k": sorted(suite.config.k),
        "samples": suite.samples,
        "greedy": suite.config.greedy,
        **({"general": True, "weight": suite.config.weight} if suite.config.general else {}),
    }


def _warn(
    config: EvaluateStage,
    suites: Sequence[_Suite],
    results: Mapping[str, Any],
    same: Mapping[str, str],
    context: StageContext,
) -> None:
    for suite in suites:
        if suite.duplicates:
            context.warn(f"{suite.name}: {suite.duplicates} rows repeat a prompt and its answer and were left out")
        for ref in config.models:
            if ref in same:
                continue
            found = results[ref][suite.name]
            for metric in (*(f"pass_at_{k}" for k in suite.config.k), *(["greedy"] if suite.config.greedy else [])):
                judged = found[metric]["n"] if metric in found else 0
                if judged < len(suite.rows):
                    context.warn(
                        f"{suite.name}: {ref}'s {metric} is over {judged} of {len(suite.rows)} prompts; "
                        "on the others too few completions could be judged"
                    )
        cut = {ref: results[ref][suite.name]["truncated"]["value"] for ref in config.models if ref not in same}
        if max(cut.values()) >= _CUT:
            shares = ", ".join(f"{share:.0%} of {ref}'s" for ref, share in cut.items() if share >= _CUT)
            context.warn(
                f"{suite.name}: completions were cut at {suite.config.sampling.max_completion_length} tokens and count "
                f"as unsolved: {shares}"
            )


def _values(ref: str, by_suite: Mapping[str, Rates]) -> dict[str, float]:
    """The means that are known as soon as a model is done."""
    means = {}
    for suite, rates in by_suite.items():
        for metric, values in rates.items():
            defined = [value for value in values if value == value]
            if defined:
                means[f"{ref}.{suite}.{metric}"] = sum(defined) / len(defined)
    return means


def _summary(
    results: Mapping[str, Any],
    same: Mapping[str, str],
    reference: str,
    suites: Sequence[_Suite],
    lost: Mapping[str, Mapping[str, Any]],
) -> dict[str, Any]:
    """`table`: a row a model, cells as text; `headline`: who leads in each suite."""
    table = []
    for ref, by_suite in results.items():
        row = {"model": f"{ref} (= {same[ref]})" if ref in same else ref}
        for suite in suites:
            for metric, number in by_suite[suite.name].items():
                if metric != "truncated" or any(each[suite.name][metric]["value"] > 0 for each in results.values()):
                    row[f"{suite.name} {_spoken(metric)}"] = _cell(number)
        if ref in lost:
            row["forgetting"] = "0.00" if ref == reference else _cell(lost[ref])
        table.append(row)
    leads = []
    for suite in suites:
        main = f"pass_at_{min(suite.config.k)}" if suite.config.k else "greedy"
        ranked = [ref for ref in results if main in results[ref][suite.name]]
        if not ranked:
            continue
        best = max(ranked, key=lambda ref: (results[ref][suite.name][main]["value"], ref == reference))
        number = results[best][suite.name][main]
        change = number.get("change")
        against = (
            f" ({change['value']:+.2f} [{change['low']:+.2f}, {change['high']:+.2f}] over {reference})"
            if change
            else ""
        )
        leads.append(f"{suite.name} {_spoken(main)}: {best} {number['value']:.2f}{against}")
    return {"headline": "; ".join(leads) or "nothing could be judged", "reference": reference, "table": table}


def _cell(number: Mapping[str, Any]) -> str:
    interval = Interval(number["value"], number["low"], number["high"], number["n"])
    return f"{interval} {number['change']['value']:+.2f}" if "change" in number else str(interval)


def _spoken(metric: str) -> str:
    return metric.replace("pass_at_", "pass@")
