"""Runs of a project: `.finery/runs/<id>/` with the pipeline as it was run, `summary.json` and `report.html`.

`summary.json` is rendered once and shown in the terminal, the report, MLflow and Prefect.
"""

from __future__ import annotations

import datetime
import difflib
import os
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from finery.content import read_json, write_json
from finery.errors import InputError
from finery.load import Loaded
from finery.outcome import Outcome, exit_code


def home_of(project: Path) -> Path:
    """The project's `.finery`, or where FINERY_HOME puts it."""
    moved = os.environ.get("FINERY_HOME")
    return Path(moved).expanduser().resolve() if moved else project / ".finery"


def new_run(home: Path, loaded: Loaded) -> tuple[str, Path]:
    """A fresh run id and its folder, with the pipeline's text in it."""
    stamp = datetime.datetime.now(datetime.UTC).strftime("%Y%m%d-%H%M%S")
    run_id = f"{stamp}-{secrets.token_hex(2)}"
    folder = home / "runs" / run_id
    folder.mkdir(parents=True)
    (folder / "pipeline.yaml").write_text(loaded.source, encoding="utf-8")
    write_json(
        folder / "run.json",
        {
            "run": run_id,
            "pipeline": loaded.pipeline.name,
            "file": str(loaded.path),
            "set": loaded.overrides,
            "pid": os.getpid(),
        },
    )
    return run_id, folder


def summary(
    loaded: Loaded, run_id: str, outcomes: Mapping[str, Outcome], seconds: float, promotions: list[dict[str, Any]]
) -> dict[str, Any]:
    """What a run came to, as scripts and CI read it."""
    stages = {}
    for name in loaded.order:
        if (outcome := outcomes.get(name)) is None:
            continue
        stages[name] = {
            "kind": outcome.kind,
            "state": outcome.state,
            "message": outcome.message,
            "key": outcome.key,
            "metrics": outcome.metrics,
            "outputs": {
                output: {"kind": artifact.kind, "digest": artifact.digest, "path": str(artifact.path)}
                for output, artifact in (outcome.done.outputs if outcome.done else {}).items()
            },
            "seconds": round(outcome.seconds, 3),
            "summary": outcome.summary,
            "warnings": list(outcome.warnings),
            "needs": loaded.edges[name],
        }
    return {
        "run": run_id,
        "pipeline": loaded.pipeline.name,
        "exit_code": exit_code(dict(outcomes)),
        "seconds": round(seconds, 3),
        "stages": stages,
        "promotions": promotions,
    }


def find_run(home: Path, run: str) -> Path:
    """The folder of a run by its id, a unique beginning of it, or `last`.

    Raises:
        InputError: there is none, or several.
    """
    known = sorted(path.name for path in (home / "runs").glob("*") if path.is_dir())
    if not known:
        raise InputError(f"{home}: holds no runs yet")
    if run == "last":
        return home / "runs" / known[-1]
    matches = [name for name in known if name.startswith(run)]
    if len(matches) == 1:
        return home / "runs" / matches[0]
    if matches:
        raise InputError(f"{run}: begins {len(matches)} runs: {', '.join(matches[:5])}")
    close = difflib.get_close_matches(run, known, 1)
    raise InputError(f"{run}: no such run" + (f"; did you mean {close[0]}?" if close else f"; the last is {known[-1]}"))


def log_file(home: Path, run_dir: Path, stage: str) -> Path:
    """The log of a stage as a run last wrote it: in the store when it is done, in the working folder before.

    Raises:
        InputError: the run has no such stage, or it has not begun.
    """
    journal = run_dir / "stages.json"
    begun: dict[str, list[str]] = read_json(journal) if journal.exists() else {}
    if stage not in begun:
        close = difflib.get_close_matches(stage, begun, 1)
        raise InputError(
            f"{run_dir.name} has run no stage {stage}"
            + (f"; did you mean {close[0]}?" if close else f"; it has {', '.join(begun) or 'none'}")
        )
    kind, key = begun[stage]
    for folder in (home / "store" / kind / f"{key}.partial", home / "store" / kind / key):
        if (folder / "log.txt").exists():
            return folder / "log.txt"
    raise InputError(f"{stage}: its log is no longer in the store")
