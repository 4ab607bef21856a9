"""The exam and the decision as tables: what the report, the terminal and Markdown all show."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from finery.report.numbers import finite

LOWER_IS_BETTER = ("truncated",)
Verdict = Literal["gain", "loss", "even", "none"]


@dataclass(frozen=True)
class Cell:
    """One metric of one model on one suite; `verdict` says whether its change is a gain that its interval confirms."""

    value: float
    low: float | None = None
    high: float | None = None
    n: int | None = None
    change: float | None = None
    change_low: float | None = None
    change_high: float | None = None
    verdict: Verdict = "none"


@dataclass(frozen=True)
class ModelRow:
    """One model: its cells by metric; `same_as` names the model with the same digest that was measured for it."""

    model: str
    cells: dict[str, Cell]
    same_as: str | None = None
    is_reference: bool = False


@dataclass(frozen=True)
class SuiteTable:
    suite: str
    metrics: list[str]
    rows: list[ModelRow]
    facts: dict[str, Any] = field(default_factory=dict)

    @property
    def main(self) -> str:
        """The metric a chart shows: pass@1 where it was sampled, else greedy, else the first."""
        return next((name for name in ("pass_at_1", "greedy") if name in self.metrics), self.metrics[0])


def suite_tables(evaluation: Mapping[str, Any]) -> list[SuiteTable]:
    """A table a suite, models in the order they were given, from an evaluation.json."""
    models: dict[str, Any] = evaluation.get("models") or {}
    same, reference = evaluation.get("same") or {}, evaluation.get("reference")
    described = evaluation.get("suites") or {}
    suites = list(dict.fromkeys([*described, *(suite for found in models.values() for suite in found)]))
    tables = []
    for suite in suites:
        measured = {model: found[suite] for model, found in models.items() if isinstance(found.get(suite), dict)}
        metrics = sorted(
            {name for found in measured.values() for name in found if _shown(name, measured)}, key=metric_order
        )
        rows = [
            ModelRow(
                model,
                {name: cell for name in metrics if (cell := _cell(name, found.get(name)))},
                same.get(model),
                model == reference,
            )
            for model, found in measured.items()
        ]
        facts = described.get(suite)
        if metrics:
            tables.append(SuiteTable(suite, metrics, rows, facts if isinstance(facts, dict) else {}))
    return tables


def _shown(name: str, measured: Mapping[str, Any]) -> bool:
    """`truncated` only where a completion was."""
    return name != "truncated" or any(finite((found.get(name) or {}).get("value")) for found in measured.values())


def metric_order(name: str) -> tuple[int, int, str]:
    """pass@k by k, then greedy, maj@k, truncated, and the rest by name."""
    for place, stem in ((0, "pass_at_"), (2, "maj_at_")):
        if match := re.fullmatch(stem + r"(\d+)", name):
            return place, int(match[1]), name
    return {"greedy": 1, "truncated": 3}.get(name, 4), 0, name


def _cell(name: str, found: Any) -> Cell | None:
    if not isinstance(found, dict) or (value := finite(found.get("value"))) is None:
        return None
    change = found.get("change") or {}
    moved, low, high = finite(change.get("value")), finite(change.get("low")), finite(change.get("high"))
    verdict: Verdict = "none" if moved is None else "even"
    if moved is not None and low is not None and high is not None and (low > 0 or high < 0):
        verdict = "gain" if (moved > 0) != (name in LOWER_IS_BETTER) else "loss"
    n = found.get("n")
    return Cell(
        value,
        finite(found.get("low")),
        finite(found.get("high")),
        n if isinstance(n, int) else None,
        moved,
        low,
        high,
        verdict,
    )


@dataclass(frozen=True)
class ConditionRow:
    """One condition: `margin` is how far on the good side its number lies, negative when it failed, None if unknown."""

    metric: str
    asked: str
    value: float | None
    margin: float | None
    passed: bool
    reason: str


def conditions(decision: Mapping[str, Any], evaluation: Mapping[str, Any] | None) -> list[ConditionRow]:
    """The conditions of a decision.json, a row a bound; the evaluation gives the number that max_drop compares with."""
    rows = []
    for found in decision.get("conditions") or []:
        metric, value, bound = str(found.get("metric", "")), finite(found.get("value")), found.get("bound") or {}
        asked, margins = [], []
        if (low := finite(bound.get("min"))) is not None:
            asked.append(f"at least {low:g}")
            margins.append(None if value is None else value - low)
        if (high := finite(bound.get("max"))) is not None:
            asked.append(f"at most {high:g}")
            margins.append(None if value is None else high - value)
        if (drop := finite(bound.get("max_drop"))) is not None:
            other = _of_model(metric, bound.get("from"), evaluation)
            asked.append(
                f"at most {drop:g} below {bound.get('from')}" + (f" ({other:.3f})" if other is not None else "")
            )
            margins.append(None if value is None or other is None else value - (other - drop))
        known = [margin for margin in margins if margin is not None]
        margin = min(known) if known and len(known) == len(margins) else None
        rows.append(
            ConditionRow(
                metric, " and ".join(asked), value, margin, bool(found.get("passed")), str(found.get("reason") or "")
            )
        )
    return rows


def _of_model(metric: str, model: Any, evaluation: Mapping[str, Any] | None) -> float | None:
    parts = metric.rsplit(".", 2)
    if evaluation is None or len(parts) != 3:
        return None
    try:
        return finite(evaluation["models"][model][parts[1]][parts[2]]["value"])
    except (KeyError, TypeError):
        return None
