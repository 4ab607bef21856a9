"""Applying what promote stages decided to the registry, and saying where the registry is."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from finery.execute import Execution
from finery.load import Loaded
from finery.outcome import Outcome, read_decision
from finery.receipts import Applied, RunInfo, already_applied


def tracking_uri(loaded: Loaded, home: Path) -> str:
    """MLflow's tracking URI: the pipeline's, MLFLOW_TRACKING_URI's, else the project's own SQLite file."""
    return loaded.pipeline.tracking.uri or os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{home / 'mlflow.db'}"


def apply_promotions(execution: Execution, outcomes: Mapping[str, Outcome], home: Path) -> list[dict[str, Any]]:
    """Apply every decision to promote, idempotently; one that was applied before opens no MLflow."""
    applied = []
    for stage, outcome in outcomes.items():
        if outcome.kind != "promote" or outcome.state not in ("Completed", "Cached") or outcome.done is None:
            continue
        decision = read_decision(outcome.done)
        decision["name"] = decision["name"] or execution.name
        uri = tracking_uri(execution.loaded, home)
        result = already_applied(decision, uri, home) or _apply(execution, stage, outcome, decision, uri, home)
        applied.append(
            {
                "stage": stage,
                "name": result.name,
                "version": result.version,
                "alias": result.alias,
                "moved": result.moved,
                "reused": result.reused,
            }
        )
    return applied


def _apply(
    execution: Execution, stage: str, outcome: Outcome, decision: dict[str, Any], uri: str, home: Path
) -> Applied:
    from finery.registry import apply_decision

    assert outcome.done
    assert outcome.done.manifest
    given = outcome.done.manifest.inputs["model"]
    folder = outcome.done.outputs["decision"].path / "model"  # an adapter, merged by the stage
    if not folder.is_dir():
        planner = execution.planner
        folder = Path(planner.locate(given["made_by"])) if given["made_by"] else planner.outside_path(given["ref"])
    info = RunInfo(run_id=execution.run_id, stage=stage, key=str(outcome.key), pipeline=execution.name)
    if experiment := execution.loaded.pipeline.tracking.experiment:
        info["experiment"] = experiment
    return apply_decision(decision, folder, uri=uri, home=home, run_info=info)
