"""A run as the template takes it: plain values and finished drawings, section by section."""

from __future__ import annotations

import datetime
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from finery import __version__
from finery.report import read
from finery.report.charts import changes, dot, histogram
from finery.report.curves import Curves, stage_curves
from finery.report.exam import SuiteTable, conditions, suite_tables
from finery.report.gate import card, pass_rates, rates_note
from finery.report.line import GLYPHS, Node, draw, state_class
from finery.report.numbers import compact, duration, metric_label, rate, signed
from finery.report.read import Unreadable
from finery.report.samples import compared, handful, tally
from finery.words import abstract, exit_words

if TYPE_CHECKING:
    from finery.load import Loaded
    from finery.store import Store

SECTIONS = (
    ("stages", ("stages",), "stages"), ("warnings", ("warnings", "notes"), "warnings"), ("gate", ("gates",), "gate"),
    ("curves", ("curves",), "training"), ("exam", ("exams",), "exam"), ("promotion", ("decisions",), "promotion"),
    ("samples", ("samples",), "samples"), ("details", ("details",), "each stage"), ("pipeline", ("pipeline",), "pipeline"),
)  # fmt: skip
"""The id of a section, what it needs at least one of, what the contents call it."""
STATES = ("Completed", "Cached", "Skipped", "Blocked", "Refused", "Failed", "Cancelled", "not run")


def page(run_dir: Path, loaded: Loaded, store: Store) -> dict[str, Any]:
    """Everything the template names.

    Raises:
        FileNotFoundError: the run has no summary.json yet.
    """
    summary = json.loads((run_dir / "summary.json").read_text(encoding="utf-8"))
    stages = read.stages(summary)
    found: dict[str, Any] = {
        "head": _head(run_dir, loaded, summary),
        "line": _line(loaded, stages),
        "stages": [_stage_row(name, stage) for name, stage in stages.items()],
        "troubles": _troubles(stages, store),
        "warnings": [(name, text) for name, stage in stages.items() for text in stage.get("warnings") or ()],
        "notes": loaded.warnings,
        "gates": _gates(summary),
        "curves": _curves(summary, stages, store),
        "exams": [_exam(found) for found in read.artifacts(summary, "evaluation")],
        "decisions": _decisions(summary),
        "samples": _samples(summary),
        "details": [_detail(summary, store, name, stage) for name, stage in stages.items()],
        "pipeline": _text(run_dir / "pipeline.yaml") or loaded.source,
    }
    shown = [(id, title) for id, parts, title in SECTIONS if any(found[part] for part in parts)]
    return {"version": __version__, "sections": shown, **found}


def _head(run_dir: Path, loaded: Loaded, summary: dict[str, Any]) -> dict[str, Any]:
    begun = read.read_json(run_dir / "run.json")
    code = summary["exit_code"]
    return {
        "pipeline": summary["pipeline"],
        "description": loaded.pipeline.description,
        "run": summary["run"],
        "when": _when(summary["run"]),
        "exit_code": code,
        "exit": exit_words(code),
        "good": code == 0,
        "seconds": duration(summary["seconds"]),
        "overrides": {} if isinstance(begun, Unreadable) else {k: _scalar(v) for k, v in (begun.get("set") or {}).items()},
        "abstract": abstract(summary),
        "counts": [(state, count) for state in STATES if (count := sum(s["state"] == state for s in read.stages(summary).values()))],
    }


def _when(run: str) -> str:
    try:
        return datetime.datetime.strptime(run[:15], "%Y%m%d-%H%M%S").strftime("%-d %B %Y, %H:%M UTC")
    except ValueError:
        return ""


def _line(loaded: Loaded, stages: dict[str, dict[str, Any]]) -> dict[str, Any] | None:
    needs = dict(loaded.edges) | {name: list(stage["needs"]) for name, stage in stages.items()}
    nodes = []
    for name in loaded.order:
        stage = stages.get(name)
        kind = loaded.pipeline.stages[name].kind  # type: ignore[union-attr]
        state = stage["state"] if stage else "not run"
        note = duration(stage["seconds"]) if stage and stage["seconds"] else ""
        nodes.append(Node(name, kind, state, note))
    if not nodes:
        return None
    shown = [state for state in STATES if any(node.state == state for node in nodes)]
    legend = [(state, state_class(state), GLYPHS[state]) for state in shown]
    return {"level": draw(nodes, needs, upright=False), "upright": draw(nodes, needs, upright=True), "legend": legend}


def _stage_row(name: str, stage: dict[str, Any]) -> dict[str, Any]:
    metrics = ", ".join(f"{metric_label(key)} {compact(value)}" for key, value in list(stage["metrics"].items())[:4])
    headline = (stage.get("summary") or {}).get("headline")
    message = stage["message"] or ""
    said = message if message and message not in str(headline or "") else ""
    return {
        "name": name,
        "kind": stage["kind"],
        "state": stage["state"],
        "class": state_class(stage["state"]),
        "glyph": GLYPHS.get(stage["state"], "?"),
        "seconds": duration(stage["seconds"]) if stage["seconds"] else "",
        "headline": str(headline) if headline else (metrics if not message else ""),
        "message": said,
        "key": (stage["key"] or "")[:10],
        "warnings": len(stage.get("warnings") or ()),
    }


def _troubles(stages: dict[str, dict[str, Any]], store: Store) -> list[dict[str, Any]]:
    """Stages that did not end well on their own account, with the end of their logs."""
    found = []
    for name, stage in stages.items():
        if stage["state"] not in ("Failed", "Cancelled"):
            continue
        folder = read.stage_folder(store.root, stage)
        found.append({"name": name, "state": stage["state"], "class": state_class(stage["state"]), "message": stage["message"], "log": read.log_tail(folder) if folder else ""})
    return found


def _gates(summary: dict[str, Any]) -> list[Any]:
    difficulty = {found.stage: found.value for found in read.artifacts(summary, "difficulty")}
    cards = []
    for found in read.artifacts(summary, "verdict"):
        if isinstance(found.value, Unreadable):
            cards.append({"stage": found.stage, "unreadable": found.value.reason})
            continue
        beside = difficulty.get(found.stage)
        cards.append(card(found.stage, found.value, None if isinstance(beside, Unreadable) else beside))
    return cards


def _curves(summary: dict[str, Any], stages: dict[str, dict[str, Any]], store: Store) -> list[dict[str, Any]]:
    difficulty = {found.stage: found.value for found in read.artifacts(summary, "difficulty")}
    gates = {found.stage for found in read.artifacts(summary, "verdict")}
    drawn = []
    for name, stage in stages.items():
        folder = read.stage_folder(store.root, stage)
        curves: Curves | None = stage_curves(name, stage["kind"], read.metric_events(folder)) if folder else None
        beside = difficulty.get(name)
        rates = pass_rates(beside) if isinstance(beside, dict) and name not in gates else []
        if curves or rates:
            drawn.append({
                "stage": name, "kind": stage["kind"], "curves": curves, "state": stage["state"],
                "rates": histogram(rates, 10, f"Pass rates that {name} holds at its end") if rates else None,
                "rates_note": rates_note(rates),
            })  # fmt: skip
    return drawn


def _exam(found: read.Found) -> dict[str, Any]:
    if isinstance(found.value, Unreadable):
        return {"stage": found.stage, "unreadable": found.value.reason}
    tables = suite_tables(found.value)
    confidence = found.value.get("confidence")
    return {
        "stage": found.stage,
        "reference": found.value.get("reference"),
        "confidence": f"{confidence * 100:g} %" if isinstance(confidence, float) else "",
        "tables": [{"table": table, "facts": _facts(table.facts), "label": metric_label} for table in tables],
        "changes": _changes(tables, str(found.value.get("reference"))),
    }


def _facts(facts: dict[str, Any]) -> str:
    shown = {key: value for key, value in facts.items() if value not in (0, False, None, [])}
    return ", ".join(f"{key} {_scalar(value)}" for key, value in shown.items())


def _changes(tables: list[SuiteTable], reference: str) -> list[dict[str, Any]]:
    """For each suite a bar a model: what it gained or lost against the reference on the suite's main metric."""
    drawn = []
    reach = 0.05
    for table in tables:
        for row in table.rows:
            if (cell := row.cells.get(table.main)) and cell.change is not None:
                reach = max(reach, *(abs(v) for v in (cell.change, cell.change_low, cell.change_high) if v is not None))
    reach = min(1.0, reach * 1.05)
    for table in tables:
        bars = [
            (row.model, cell.change, cell.change_low, cell.change_high, cell.verdict)
            for row in table.rows
            if (cell := row.cells.get(table.main)) and cell.change is not None
        ]
        if bars:
            title = f"{table.suite}: change of {metric_label(table.main)} against {reference}"
            drawn.append({"suite": table.suite, "metric": metric_label(table.main), "svg": changes(bars, reach, title)})
    return drawn


def _decisions(summary: dict[str, Any]) -> list[dict[str, Any]]:
    applied = {found["stage"]: found for found in summary.get("promotions") or ()}
    drawn = []
    for found in read.artifacts(summary, "decision"):
        if isinstance(found.value, Unreadable):
            drawn.append({"stage": found.stage, "unreadable": found.value.reason})
            continue
        drawn.append({
            "stage": found.stage, "decision": found.value, "promoted": found.value.get("verdict") == "promote",
            "rows": conditions(found.value, read.exam_of(summary, found.stage)), "applied": applied.get(found.stage),
            "digest": str(found.value.get("model_digest") or "")[:12],
        })  # fmt: skip
    return drawn


def _samples(summary: dict[str, Any]) -> list[dict[str, Any]]:
    drawn = []
    for stage, path in read.named_files(summary, "samples", "samples.jsonl"):
        found = read.sample_rows(path)
        if isinstance(found, Unreadable):
            drawn.append({"stage": stage, "unreadable": found.reason})
            continue
        rows, cut = found
        several = len({row.get("model") for row in rows}) > 1
        if rows:
            drawn.append({
                "stage": stage, "kind": read.stages(summary)[stage]["kind"], "tally": tally(rows), "cut": cut,
                "compared": compared(rows) if several else [], "handful": [] if several else handful(rows),
            })  # fmt: skip
    return drawn


_DRAWN = ("headline", "lines", "table", "verdict", "reason", "reference")


def _detail(summary: dict[str, Any], store: Store, name: str, stage: dict[str, Any]) -> dict[str, Any]:
    """Everything else a stage left: what it uses, what it made, its numbers, its own notes."""
    folder = read.stage_folder(store.root, stage)
    manifest = read.read_json(folder / "manifest.json") if folder and (folder / "manifest.json").exists() else {}
    manifest = {} if isinstance(manifest, Unreadable) else manifest
    drawn_elsewhere = stage["kind"] in ("gate", "evaluate", "promote")
    said = {key: value for key, value in (stage.get("summary") or {}).items() if key not in (_DRAWN if drawn_elsewhere else _DRAWN[:2])}
    outputs = []
    for output, artifact in (stage.get("outputs") or {}).items():
        info = read.read_json(Path(artifact["path"]) / f"{artifact['kind']}.json") if artifact["kind"] in ("model", "dataset") else None
        if artifact["kind"] == "file" and (Path(artifact["path"]) / "card.json").is_file():
            info = read.read_json(Path(artifact["path"]) / "card.json")
        outputs.append({
            "name": output, "kind": artifact["kind"], "digest": str(artifact["digest"])[:16],
            "info": {"unreadable": info.reason} if isinstance(info, Unreadable) else info,
        })  # fmt: skip
    inputs = [(field, found["ref"], str(found["digest"])[:16], found.get("kind", "")) for field, found in (manifest.get("inputs") or {}).items()]
    return {
        "name": name, "kind": stage["kind"], "state": stage["state"], "class": state_class(stage["state"]), "key": stage["key"] or "",
        "inputs": inputs, "outputs": outputs, "metrics": [(metric_label(k), compact(v)) for k, v in stage["metrics"].items()],
        "summary": said, "seed": manifest.get("seed"), "attempts": manifest.get("attempts"), "engine": manifest.get("engine"),
        "adopted": [str(note.get("from", ""))[:16] for note in manifest.get("adopted") or ()],
    }  # fmt: skip


def _scalar(value: Any) -> str:
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_scalar(item) for item in value) + "]"
    if isinstance(value, dict):
        return json.dumps(value, ensure_ascii=False)
    return compact(value)


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8") if path.is_file() else ""


FILTERS = {"rate": rate, "signed": signed, "compact": compact, "label": metric_label, "scalar": _scalar, "dot": dot}
