"""The sections that come from a stage's own output files: gates, curves, exams, decisions, samples."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from finery.report import read
from finery.report.charts import changes, histogram
from finery.report.curves import stage_curves
from finery.report.exam import SuiteTable, conditions, suite_tables
from finery.report.gate import card, pass_rates, rates_note
from finery.report.numbers import compact, metric_label
from finery.report.read import Unreadable
from finery.report.samples import compared, handful, tally

if TYPE_CHECKING:
    from finery.store import Store

REACHES = (0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5, 0.6, 0.8, 1.0)
Section = list[dict[str, Any]]


def scalar(value: Any) -> str:
    """A JSON value on one line."""
    if value is None or isinstance(value, bool):
        return {None: "none", True: "yes", False: "no"}[value]
    if isinstance(value, list | tuple):
        return ", ".join(scalar(item) for item in value) or "none"
    if isinstance(value, dict):
        return ", ".join(f"{key} {scalar(item)}" for key, item in value.items()) or "none"
    return compact(value)


def gates(summary: dict[str, Any]) -> Section:
    """A card for each verdict.json, with the difficulty.json of the same stage."""
    beside = {found.stage: found.value for found in read.artifacts(summary, "difficulty")}
    cards: Section = []
    for found in read.artifacts(summary, "verdict"):
        if isinstance(found.value, Unreadable):
            cards.append(_unreadable(found))
            continue
        rates = beside.get(found.stage)
        cards.append({"card": card(found.stage, found.value, None if isinstance(rates, Unreadable) else rates)})
    return cards


def training(summary: dict[str, Any], store: Store) -> Section:
    """The curves of every stage that logged any, and the pass rates that a tracker holds at its end."""
    difficulty = {found.stage: found.value for found in read.artifacts(summary, "difficulty")}
    by_gates = {found.stage for found in read.artifacts(summary, "verdict")}
    drawn: Section = []
    for name, stage in read.stages(summary).items():
        folder = read.stage_folder(store.root, stage)
        curves = stage_curves(read.metric_events(folder)) if folder else None
        beside = difficulty.get(name)
        rates = pass_rates(beside) if isinstance(beside, dict) and name not in by_gates else []
        if curves or rates:
            drawn.append(
                {
                    "stage": name,
                    "kind": stage["kind"],
                    "state": stage["state"],
                    "curves": curves,
                    "rates": histogram(rates, 10, f"Pass rates that {name} holds at its end") if rates else None,
                    "rates_note": rates_note(rates),
                }
            )
    return drawn


def exams(summary: dict[str, Any]) -> Section:
    """For each evaluation.json a table a suite, and what every model gained and forgot."""
    return [_exam(found) for found in read.artifacts(summary, "evaluation")]


def _exam(found: read.Found) -> dict[str, Any]:
    if isinstance(found.value, Unreadable):
        return _unreadable(found)
    tables, confidence = suite_tables(found.value), found.value.get("confidence")
    return {
        "stage": found.stage,
        "reference": found.value.get("reference"),
        "confidence": f"{confidence * 100:g} %" if isinstance(confidence, float) else "",
        "tables": [{"table": table, "facts": _facts(table.facts)} for table in tables],
        "changes": _changes(tables, str(found.value.get("reference"))),
    }


def _facts(facts: dict[str, Any]) -> str:
    """`150 prompts, 8 samples each`; what the suite says beyond that as it is."""
    spoken = {"prompts": "{} prompts", "samples": "{} samples each", "duplicates": "{} repeated rows left out"}
    said = [spoken[key].format(compact(value)) for key, value in facts.items() if key in spoken and value]
    more = [f"{key} {scalar(value)}" for key, value in facts.items() if key not in (*spoken, "k", "greedy")]
    return ", ".join([*said, *more])


def _changes(tables: list[SuiteTable], reference: str) -> Section:
    """For each suite a bar a model: its change against the reference on the suite's main metric, on one scale."""
    bars: dict[str, list[tuple[str, float, float | None, float | None, str]]] = {}
    for table in tables:
        for row in table.rows:
            if (cell := row.cells.get(table.main)) and cell.change is not None:
                bar = (row.model, cell.change, cell.change_low, cell.change_high, cell.verdict)
                bars.setdefault(table.suite, []).append(bar)
    ends = [abs(value) for rows in bars.values() for _, *values, _ in rows for value in values if value is not None]
    reach = next((known for known in REACHES if known >= max(ends, default=0.0)), 1.0)
    drawn: Section = []
    for table in tables:
        if table.suite in bars:
            metric = metric_label(table.main)
            title = f"{table.suite}: change of {metric} against {reference}"
            drawn.append({"suite": table.suite, "metric": metric, "svg": changes(bars[table.suite], reach, title)})
    return drawn


def decisions(summary: dict[str, Any]) -> Section:
    """For each decision.json its conditions, by how much each holds or fails, and what the registry made of it."""
    applied = {found["stage"]: found for found in summary.get("promotions") or ()}
    drawn: Section = []
    for found in read.artifacts(summary, "decision"):
        if isinstance(found.value, Unreadable):
            drawn.append(_unreadable(found))
            continue
        drawn.append(
            {
                "stage": found.stage,
                "model": found.value.get("model"),
                "alias": found.value.get("alias"),
                "promoted": found.value.get("verdict") == "promote",
                "rows": conditions(found.value, read.exam_of(summary, found.stage)),
                "applied": applied.get(found.stage),
                "digest": str(found.value.get("model_digest") or "")[:12],
            }
        )
    return drawn


def samples(summary: dict[str, Any]) -> Section:
    """A handful of each samples.jsonl; where it holds several models, prompts on which they differ."""
    drawn: Section = []
    for stage, path in read.named_files(summary, "samples", "samples.jsonl"):
        found = read.sample_rows(path)
        if isinstance(found, Unreadable):
            drawn.append({"stage": stage, "unreadable": found.reason})
            continue
        rows, cut = found
        several = len({row.get("model") for row in rows}) > 1
        if rows:
            drawn.append(
                {
                    "stage": stage,
                    "kind": read.stages(summary)[stage]["kind"],
                    "tally": tally(rows),
                    "cut": cut,
                    "compared": compared(rows) if several else [],
                    "handful": [] if several else handful(rows),
                }
            )
    return drawn


def _unreadable(found: read.Found) -> dict[str, Any]:
    assert isinstance(found.value, Unreadable)
    return {"stage": found.stage, "unreadable": found.value.reason}
