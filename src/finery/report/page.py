"""A run as the template takes it: plain values and finished drawings, section by section."""

from __future__ import annotations

import datetime
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from finery import __version__
from finery.report import read, sections
from finery.report.charts import cell
from finery.report.line import GLYPHS, Node, draw, state_class
from finery.report.numbers import clock, compact, duration, metric_label, rate, signed
from finery.report.read import Unreadable
from finery.words import abstract, exit_words

if TYPE_CHECKING:
    from finery.load import Loaded
    from finery.store import Store

SECTIONS = (
    ("stages", ("stages",), "stages"),
    ("warnings", ("warnings", "notes"), "warnings"),
    ("gate", ("gates",), "gate"),
    ("training", ("training",), "training"),
    ("exam", ("exams",), "exam"),
    ("promotion", ("decisions",), "promotion"),
    ("samples", ("samples",), "samples"),
    ("details", ("details",), "each stage"),
    ("pipeline", ("pipeline",), "pipeline"),
)
"""The id of a section, what it needs at least one of, what the contents call it."""
STATES = ("Completed", "Cached", "Skipped", "Blocked", "Refused", "Failed", "Cancelled", "not run")


def page(run_dir: Path, loaded: Loaded, store: Store) -> dict[str, Any]:
    """Everything the template names.

    Raises:
        FileNotFoundError: the run has no summary.json yet.
    """
    summary = json.loads((run_dir / "summary.json").read_text(encoding="utf-8"))
    stages = {name: stage | {"warnings": _warnings(store, stage)} for name, stage in read.stages(summary).items()}
    found: dict[str, Any] = {
        "head": _head(run_dir, loaded, summary),
        "line": _line(loaded, stages),
        "stages": [_stage_row(name, stage) for name, stage in stages.items()],
        "troubles": _troubles(stages, store),
        "warnings": [(name, text) for name, stage in stages.items() for text in stage["warnings"]],
        "notes": loaded.warnings,
        "gates": sections.gates(summary),
        "training": sections.training(summary, store),
        "exams": sections.exams(summary),
        "decisions": sections.decisions(summary),
        "samples": sections.samples(summary),
        "details": [_detail(store, name, stage) for name, stage in stages.items()],
        "pipeline": _text(run_dir / "pipeline.yaml") or loaded.source,
    }
    shown = [(id, title) for id, parts, title in SECTIONS if any(found[part] for part in parts)]
    return {"version": __version__, "sections": shown, **found}


def _head(run_dir: Path, loaded: Loaded, summary: dict[str, Any]) -> dict[str, Any]:
    begun = read.read_json(run_dir / "run.json")
    overrides = {} if isinstance(begun, Unreadable) else begun.get("set") or {}
    states = [stage["state"] for stage in read.stages(summary).values()]
    return {
        "pipeline": summary["pipeline"],
        "description": loaded.pipeline.description,
        "run": summary["run"],
        "when": _when(summary["run"]),
        "exit_code": summary["exit_code"],
        "exit": exit_words(summary["exit_code"]),
        "good": summary["exit_code"] == 0,
        "seconds": duration(summary["seconds"]),
        "overrides": {key: _written(value) for key, value in overrides.items()},
        "abstract": abstract(summary),
        "counts": [(state, states.count(state)) for state in STATES if state in states],
    }


def _written(value: Any) -> str:
    """A value as `--set` takes it."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _when(run: str) -> str:
    try:
        begun = datetime.datetime.strptime(run[:15], "%Y%m%d-%H%M%S")
    except ValueError:
        return ""
    return f"{begun.day} {begun:%B %Y, %H:%M} UTC"


def _line(loaded: Loaded, stages: dict[str, dict[str, Any]]) -> dict[str, Any] | None:
    nodes = []
    for name in loaded.order:
        stage = stages.get(name)
        state = stage["state"] if stage else "not run"
        note = clock(stage["seconds"]) if stage and stage["seconds"] else ""
        nodes.append(Node(name, loaded.pipeline.stages[name].kind, state, note))
    if not nodes:
        return None
    needs = {node.name: loaded.edges[node.name] for node in nodes}
    shown = [state for state in STATES if any(node.state == state for node in nodes)]
    return {
        "level": draw(nodes, needs, upright=False),
        "upright": draw(nodes, needs, upright=True),
        "legend": [(state, state_class(state), GLYPHS[state]) for state in shown],
    }


def _stage_row(name: str, stage: dict[str, Any]) -> dict[str, Any]:
    metrics = ", ".join(f"{metric_label(key)} {compact(value)}" for key, value in list(stage["metrics"].items())[:4])
    headline, message = str((stage.get("summary") or {}).get("headline") or ""), stage["message"] or ""
    return {
        "name": name,
        "kind": stage["kind"],
        "state": stage["state"],
        "class": state_class(stage["state"]),
        "glyph": GLYPHS.get(stage["state"], "?"),
        "seconds": duration(stage["seconds"]) if stage["seconds"] else "",
        "headline": headline or ("" if message else metrics),
        "message": "" if message in headline else message,
        "quiet": stage["state"] in ("Cached", "Skipped", "Blocked"),
        "key": (stage["key"] or "")[:10],
        "warnings": len(stage["warnings"]),
    }


def _warnings(store: Store, stage: dict[str, Any]) -> list[str]:
    """What a stage warned of in this run, or when it was made if it comes from the store."""
    folder = read.stage_folder(store.root, stage)
    said = [*(stage.get("warnings") or ()), *(read.warning_events(folder) if folder else ())]
    return list(dict.fromkeys(said))


def _troubles(stages: dict[str, dict[str, Any]], store: Store) -> list[dict[str, Any]]:
    """Stages that did not end well on their own account, with the end of their logs."""
    found = []
    for name, stage in stages.items():
        if stage["state"] not in ("Failed", "Cancelled"):
            continue
        folder = read.stage_folder(store.root, stage)
        found.append(
            {
                "name": name,
                "state": stage["state"],
                "class": state_class(stage["state"]),
                "message": stage["message"],
                "log": read.log_tail(folder) if folder else "",
            }
        )
    return found


_DRAWN = ("headline", "lines", "table", "verdict", "reason", "reference")
"""What a gate's, an exam's and a decision's summary repeats of their files, which have sections of their own."""


def _detail(store: Store, name: str, stage: dict[str, Any]) -> dict[str, Any]:
    """Everything else a stage left: what it used, what it made, its numbers, its own notes."""
    folder = read.stage_folder(store.root, stage)
    manifest = read.read_json(folder / "manifest.json") if folder and (folder / "manifest.json").exists() else {}
    made = {} if isinstance(manifest, Unreadable) else manifest
    hidden = _DRAWN if stage["kind"] in ("gate", "evaluate", "promote") else _DRAWN[:2]
    return {
        "name": name,
        "kind": stage["kind"],
        "state": stage["state"],
        "class": state_class(stage["state"]),
        "key": stage["key"] or "",
        "inputs": [
            (field, found["ref"], str(found["digest"])[:16], found.get("kind", ""))
            for field, found in (made.get("inputs") or {}).items()
        ],
        "outputs": [
            {"name": output, "kind": artifact["kind"], "digest": str(artifact["digest"])[:16], "info": _info(artifact)}
            for output, artifact in (stage.get("outputs") or {}).items()
        ],
        "metrics": [(metric_label(key), compact(value)) for key, value in stage["metrics"].items()],
        "summary": {key: value for key, value in (stage.get("summary") or {}).items() if key not in hidden},
        "facts": [
            (said, made[key])
            for said, key in (("seed", "seed"), ("attempts", "attempts"), ("finery", "engine"))
            if key in made
        ],
        "adopted": [str(note.get("from", ""))[:16] for note in made.get("adopted") or ()],
    }


def _info(artifact: dict[str, Any]) -> dict[str, Any] | None:
    """What an output says of itself: model.json, dataset.json or a data set's card.json."""
    name = {"model": "model.json", "dataset": "dataset.json", "file": "card.json"}.get(artifact["kind"])
    path = Path(artifact["path"]) / name if name else None
    if path is None or (artifact["kind"] == "file" and not path.is_file()):
        return None
    found = read.read_json(path)
    return {"unreadable": found.reason} if isinstance(found, Unreadable) else found


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8") if path.is_file() else ""


def _flat(value: Any) -> bool:
    """Whether a map holds plain values only, which fit one line."""
    return isinstance(value, dict) and not any(isinstance(item, dict | list) for item in value.values())


def _columns(value: Any) -> list[str]:
    """The columns of a map of maps that reads best as a table: plain values under the same few names."""
    if not isinstance(value, dict) or len(value) < 2 or not all(_flat(item) and item for item in value.values()):
        return []
    names = list(dict.fromkeys(name for item in value.values() for name in item))
    return names if all(len(item) * 2 > len(names) for item in value.values()) else []


FILTERS = {
    "flat": _flat,
    "columns": _columns,
    "rate": rate,
    "signed": signed,
    "compact": compact,
    "label": metric_label,
    "scalar": sections.scalar,
    "drawn": cell,
}
