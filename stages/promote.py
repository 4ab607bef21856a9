"""`promote`: read an exam and decide; the engine applies the decision to the registry."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from finery.contract import StageContext, StageResult
from finery.errors import InputError
from finery.schemas.promote import Condition, PromoteStage, metric_parts

_ROUNDING = 1e-12


def run(config: PromoteStage, inputs: Mapping[str, Path], context: StageContext) -> StageResult:
    """Write decision.json: `promote` when every condition holds, else `refuse` with what failed by how much.

    Raises:
        InputError: the evaluation cannot be read.
    """
    evaluation = _read(inputs["evaluation"])
    digest = context.input_digests["model"]
    conditions = _about_another(config, evaluation, digest)
    conditions += [judge(metric, condition, evaluation) for metric, condition in config.require.items()]
    failed = [condition for condition in conditions if not condition["passed"]]
    decision = {
        "verdict": "refuse" if failed else "promote",
        "name": config.name,
        "alias": config.alias,
        "model": config.model,
        "model_digest": digest,
        "form": _form(config, inputs["model"], context, promoted=not failed),
        "conditions": conditions,
    }
    (context.output("decision") / "decision.json").write_text(
        json.dumps(decision, ensure_ascii=False, indent=2, allow_nan=False) + "\n", encoding="utf-8"
    )
    if failed:
        headline = f"refused: {'; '.join(condition['reason'] for condition in failed)}"
    else:
        headline = f"{config.model} earns {config.alias}: all {len(config.require)} conditions hold"
    return StageResult(
        metrics={"conditions": len(conditions), "failed": len(failed)},
        summary={
            "headline": headline,
            "verdict": decision["verdict"],
            "table": [
                {"condition": c["metric"], "holds": "yes" if c["passed"] else "no", "reason": c["reason"]}
                for c in conditions
            ],
        },
    )


def _form(config: PromoteStage, model: Path, context: StageContext, *, promoted: bool) -> str:
    """The form that ships; an adapter that is promoted as whole weights is merged here, beside the decision."""
    info = model / "model.json"
    adapter = info.exists() and json.loads(info.read_text(encoding="utf-8"))["form"] == "adapter"
    if config.form == "adapter":
        if not adapter:
            raise InputError(f"form: adapter, but {config.model} holds whole weights; leave form out")
        return "adapter"
    if adapter and promoted:
        from finery.training.models import load_tokenizer, merge_adapter, publish_model

        publish_model(
            merge_adapter(model, bases=context.bases), load_tokenizer(model), context.output("decision") / "model"
        )
    return "full"


def judge(metric: str, condition: Condition, evaluation: Mapping[str, Any]) -> dict[str, Any]:
    """One condition as decision.json holds it: `{metric, value, bound, passed, reason}`.

    A number that is missing, null or not finite never passes.
    """
    bound = condition.model_dump(by_alias=True, exclude_defaults=True)
    value, problem = _number(metric, evaluation)
    if value is None:
        return _condition(metric, None, bound, False, problem)
    held, _ = _number(metric, evaluation, condition.on)
    if held is None:
        return _condition(metric, value, bound, False, f"{metric} has no limit {condition.on} to hold it to")
    said = metric if condition.on == "value" else f"{metric} ({condition.on})"
    checks = []
    if condition.min is not None:
        checks.append(_compared(said, held, condition.min, "min", held - condition.min))
    if condition.max is not None:
        checks.append(_compared(said, held, condition.max, "max", condition.max - held))
    if condition.max_drop is not None:
        _, suite, name = metric_parts(metric)
        other = f"{condition.from_}.{suite}.{name}"
        start, problem = _number(other, evaluation)
        if start is None:
            checks.append((False, problem))
        else:
            checks.append(_dropped(metric, value, other, start, condition.max_drop))
    shown = [reason for passed, reason in checks if not passed] or [reason for _, reason in checks]
    return _condition(metric, value, bound, all(passed for passed, _ in checks), "; ".join(shown))


def _number(metric: str, evaluation: Mapping[str, Any], end: str = "value") -> tuple[float | None, str]:
    """The exam's number of that name, or None and why there is none.

    A model's reference may hold dots (`corpus.x`, `./models/a.b`), so the name is read from its end.
    """
    ref, suite, name = metric_parts(metric)
    place: Any = evaluation["models"] if suite else evaluation.get("forgetting")
    if place is None:
        return None, f"{metric} is missing: the exam has no general suite"
    for part, kind in ((ref, "model"), (suite, "suite"), (name, "metric")) if suite else ((ref, "model"),):
        if not isinstance(place, Mapping) or part not in place:
            there = ", ".join(place) if isinstance(place, Mapping) else ""
            return None, f"{metric} is missing: the exam has no {kind} {part}, only {there or 'none'}"
        place = place[part]
    value = place.get(end) if isinstance(place, Mapping) else place if end == "value" else None
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None, f"{metric} is {json.dumps(value)}, which is not a finite number"
    for judged, asked in _coverage(suite, place, evaluation):
        if judged * 2 < asked:
            return None, f"{metric} was judged on {judged} of {asked} prompts only; the verifier abstained on the rest"
    return float(value), ""


def _coverage(suite: str | None, number: Any, evaluation: Mapping[str, Any]) -> list[tuple[int, int]]:
    """Prompts a number was judged on and prompts of its suite, of each suite for forgetting; none where unsaid."""
    described = evaluation.get("suites")
    if not isinstance(number, Mapping) or not isinstance(described, Mapping):
        return []
    parts = {suite: number} if suite else number.get("suites", {})
    counts = [(part.get("n"), (described.get(name) or {}).get("prompts")) for name, part in parts.items()]
    return [(judged, asked) for judged, asked in counts if isinstance(judged, int) and isinstance(asked, int)]


def _compared(metric: str, value: float, limit: float, word: str, room: float) -> tuple[bool, str]:
    if room >= -_ROUNDING:
        return True, f"{metric} {_shown(value)} keeps {word} {_written(limit)} by {_shown(abs(room))}"
    side = "below" if word == "min" else "above"
    return False, f"{metric} {_shown(value)} is {_shown(-room)} {side} {word} {_written(limit)}"


def _dropped(metric: str, value: float, other: str, start: float, budget: float) -> tuple[bool, str]:
    drop = start - value
    lies = f"{_shown(drop)} below" if drop > 0 else f"{_shown(-drop)} above"
    said = f"{metric} {_shown(value)} lies {lies} {other} {_shown(start)}"
    if drop <= budget + _ROUNDING:
        return True, f"{said}, within max_drop {_written(budget)}"
    return False, f"{said}, {_shown(drop - budget)} more than max_drop {_written(budget)}"


def _about_another(config: PromoteStage, evaluation: Mapping[str, Any], digest: str) -> list[dict[str, Any]]:
    """A failed condition when none of the numbers asked for was measured on the model that would be promoted."""
    asked = {metric_parts(metric)[0] for metric in config.require}
    digests = evaluation.get("digests")
    if isinstance(digests, Mapping):
        if any(digests.get(ref) == digest for ref in asked):
            return []
        known = digests.get(config.model)
        if config.model in asked and known is not None:
            reason = f"the exam measured another {config.model} (digest {known[:12]}) than this one ({digest[:12]})"
            return [_condition(config.model, None, {}, False, reason)]
    elif config.model in asked:
        return []
    reason = f"no condition is about {config.model} itself; require speaks of {', '.join(sorted(asked))} only"
    return [_condition(config.model, None, {}, False, reason)]


def _condition(metric: str, value: float | None, bound: dict[str, Any], passed: bool, reason: str) -> dict[str, Any]:
    return {"metric": metric, "value": value, "bound": bound, "passed": passed, "reason": reason}


def _shown(value: float) -> str:
    """Two decimals, or as many as it takes for a small number not to read 0.00."""
    for places in (2, 4, 6):
        text = f"{value:.{places}f}"
        if value == 0 or (abs(float(text) - value) < 5e-5 and float(text) != 0):
            return text
    return f"{value:.1e}"


def _written(bound: float) -> str:
    """A bound as the user wrote it, with two decimals at least."""
    return f"{bound:.2f}" if float(f"{bound:.2f}") == bound else repr(bound)


def _read(folder: Path) -> dict[str, Any]:
    path = folder / "evaluation.json" if folder.is_dir() else folder
    try:
        evaluation = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError(f"{path}: not found; an evaluation is the output of a stage of kind evaluate") from None
    except ValueError as error:
        raise InputError(f"{path}: is not JSON ({error})") from None
    if not isinstance(evaluation, dict) or not isinstance(evaluation.get("models"), dict):
        raise InputError(f'{path}: is not an evaluation; it holds {{"models": {{model: {{suite: {{metric: ...}}}}}}}}')
    return evaluation
