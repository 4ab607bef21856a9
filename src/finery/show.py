"""Text for the commands that only look: plan, runs, logs, sync."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from finery import runs
from finery.content import read_json
from finery.load import load
from finery.plan import Planner, StagePlan
from finery.store import Store


def _plans(
    file: Path, overrides: Sequence[str], start: str | None, verify: bool
) -> tuple[str, dict[str, StagePlan], list[str], dict[str, list[str]]]:
    from finery.run import _rerun

    loaded = load(file, overrides)
    planner = Planner(loaded, Store(runs.home_of(loaded.project)), rerun=_rerun(loaded, start), verify=verify)
    notes = {name: stage.notes() for name, stage in loaded.pipeline.stages.items()}
    return loaded.pipeline.name, planner.all(), loaded.warnings, notes


def plan_text(file: Path, overrides: Sequence[str], start: str | None, verify: bool) -> str:
    """A line a stage: state, what it took the last time, why; below it what its config amounts to."""
    _, plans, warnings, notes = _plans(file, overrides, start, verify)
    rows = [("stage", "kind", "state", "takes", "why")]
    for stage, plan in plans.items():
        rows.append((stage, plan.kind, plan.state, _takes(plan), "; ".join(plan.why)))
    widths = [max(len(row[i]) for row in rows) for i in range(4)]
    lines = []
    for row, below in zip(rows, [[], *(notes[stage] for stage in plans)], strict=True):
        cells = (cell.ljust(width) for cell, width in zip(row[:4], widths, strict=True))
        lines += ["  ".join([*cells, row[4]]).rstrip(), *(f"    {note}" for note in below)]
    return "\n".join([*(f"warning: {warning}" for warning in warnings), *lines, "", _total(plans)])


def _takes(plan: StagePlan) -> str:
    if plan.state in ("cached", "skip", "blocked"):
        return "-"
    return f"{plan.seconds:.0f} s" if plan.seconds is not None else "?"


def _total(plans: dict[str, StagePlan]) -> str:
    ahead = [plan for plan in plans.values() if plan.state not in ("cached", "skip", "blocked")]
    if not ahead:
        return "nothing to do"
    known = [plan.seconds for plan in ahead if plan.seconds is not None]
    unknown = len(ahead) - len(known)
    text = f"{len(ahead)} of {len(plans)} stages to run"
    if known:
        text += f", about {sum(known):.0f} s by their last runs"
    return text + (f", {unknown} never timed" if unknown else "")


def plan_json(file: Path, overrides: Sequence[str], start: str | None, verify: bool) -> str:
    """The same for scripts."""
    name, plans, warnings, notes = _plans(file, overrides, start, verify)
    stages = {
        stage: {
            "kind": plan.kind,
            "state": plan.state,
            "why": plan.why,
            "key": plan.key,
            "seconds": plan.seconds,
            "spec": plan.spec,
            "notes": notes[stage],
        }
        for stage, plan in plans.items()
    }
    return json.dumps({"pipeline": name, "stages": stages, "warnings": warnings}, ensure_ascii=False, indent=1)


def project_of(folder: Path) -> Path:
    """The nearest folder above that holds flows.yaml or .finery/, else the folder itself."""
    folder = folder.resolve()
    for candidate in (folder, *folder.parents):
        if (candidate / "flows.yaml").exists() or (candidate / ".finery").is_dir():
            return candidate
    return folder


def run_summaries(home: Path) -> list[dict[str, Any]]:
    """Every run of a project, oldest first; one without a summary is still going or died."""
    found = []
    for folder in sorted((home / "runs").glob("*")):
        if not (folder / "run.json").exists():
            continue
        info = read_json(folder / "run.json")
        info["status"] = run_status(folder)
        if (folder / "summary.json").exists():
            result = read_json(folder / "summary.json")
            states = [stage["state"] for stage in result["stages"].values()]
            info |= {"exit_code": result["exit_code"], "seconds": result["seconds"]}
            info["states"] = {state: states.count(state) for state in dict.fromkeys(states)}
        found.append(info)
    return found


def run_status(folder: Path) -> str:
    """`done`, `exit N`, `running` or `died`."""
    if (folder / "summary.json").exists():
        code = read_json(folder / "summary.json")["exit_code"]
        return "done" if code == 0 else f"exit {code}"
    if not (folder / "run.json").exists():
        return "died"
    return "running" if _alive(read_json(folder / "run.json")["pid"]) else "died"


def _alive(pid: int) -> bool:
    import os

    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def runs_text(folder: Path, *, as_json: bool) -> str:
    found = run_summaries(runs.home_of(project_of(folder)))
    if as_json:
        return json.dumps(found, ensure_ascii=False, indent=1)
    if not found:
        return "no runs yet"
    lines = []
    for info in found:
        states = ", ".join(f"{count} {state}" for state, count in info.get("states", {}).items())
        seconds = f"{info['seconds']:.0f} s" if "seconds" in info else ""
        lines.append(f"{info['run']}  {info['pipeline']:<16}  {info['status']:<8}  {seconds:>7}  {states}".rstrip())
    return "\n".join(lines)


def print_log(folder: Path, run: str, stage: str, *, follow: bool) -> None:
    """Print a stage's log; with `follow`, go on until nobody works on it any more."""
    home = runs.home_of(project_of(folder))
    path = runs.log_file(home, runs.find_run(home, run), stage)
    kind, key = path.parent.parent.name, path.parent.name.removesuffix(".partial")
    store = Store(home)
    with path.open(encoding="utf-8", errors="replace") as file:
        while True:
            at_work = follow and store.is_locked(kind, key)  # asked before reading, so that the last lines are read
            text = file.read()
            sys.stdout.write(text)
            sys.stdout.flush()
            if not text and not at_work:
                return
            if not text:
                time.sleep(0.2)


def sync_text(folder: Path) -> str:
    from finery.tracking.sender import sync

    home = runs.home_of(project_of(folder))
    return str(sync([path for path in sorted((home / "runs").glob("*")) if path.is_dir()]))
