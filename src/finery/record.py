"""The two papers of an attempt: what the child is told, and the manifest of what it made."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from finery import __version__
from finery.content import output_digest
from finery.errors import FineryError
from finery.plan import Artifact, Planner, StagePlan
from finery.store import Manifest


def child_spec(planner: Planner, plan: StagePlan, folder: Path) -> dict[str, Any]:
    """All that `python -m finery.stage` needs, for a key's working folder."""
    config = planner.config(plan.stage)
    bases: dict[str, str] = {}
    for artifact in plan.inputs.values():
        bases |= artifact.bases
    return {
        "kind": plan.kind,
        "stage": plan.stage,
        "config": config.model_dump(mode="json", exclude_unset=True),
        "seed": planner.seed(plan.stage),
        "threads": config.resources.cpus,
        "inputs": {name: str(artifact.path) for name, artifact in plan.inputs.items()},
        "input_refs": plan.refs,
        "input_digests": {name: artifact.digest for name, artifact in plan.inputs.items()},
        "bases": bases,
        "output_dir": str(folder / "outputs"),
        "checkpoint_dir": str(folder / "checkpoints"),
        "metrics_path": str(folder / "metrics.jsonl"),
        "base_dir": str(planner.folder),
    }


def recorded_inputs(plan: StagePlan) -> dict[str, dict[str, Any]]:
    """A manifest's `inputs`: field to `{ref, digest, kind, made_by}`."""
    return {
        name: {"ref": plan.refs[name], "digest": artifact.digest, "kind": artifact.kind, "made_by": artifact.made_by}
        for name, artifact in plan.inputs.items()
    }


def manifest_of(
    planner: Planner, plan: StagePlan, folder: Path, result: dict[str, Any], started: float, attempt: int
) -> Manifest:
    """The manifest of a finished working folder.

    Raises:
        FineryError: an output is empty, or holds a link.
    """
    files = planner.store.scan(folder)
    outputs: dict[str, dict[str, Any]] = {}
    bases: dict[str, str] = {}
    for name, kind in planner.config(plan.stage).outputs().items():
        if not any(path.startswith(f"{name}/") for path in files):
            raise FineryError(f"the stage ended well but left its output {name} empty")
        outputs[name] = {"kind": kind, "digest": output_digest(files, name)}
        if kind == "model":
            bases |= _bases(folder / "outputs" / name, plan.inputs)
    assert plan.spec
    assert plan.key
    return Manifest(
        stage=plan.stage,
        kind=plan.kind,
        key=plan.key,
        spec=plan.spec,
        inputs=recorded_inputs(plan),
        outputs=outputs,
        files=files,
        metrics=result["metrics"],
        summary=result["summary"],
        bases=bases,
        pipeline=planner.loaded.pipeline.name,
        seed=planner.seed(plan.stage),
        engine=__version__,
        started=started,
        seconds=time.time() - started,
        attempts=attempt,
    )


def _bases(model: Path, inputs: dict[str, Artifact]) -> dict[str, str]:
    """Where the base of an adapter lies, and what that one sits on; empty for a full model."""
    info = model / "model.json"
    base = (json.loads(info.read_text(encoding="utf-8")).get("base") or {}) if info.exists() else {}
    if "digest" not in base:
        return {}
    below: dict[str, str] = {}
    for artifact in inputs.values():
        below |= artifact.bases
    places = below | {artifact.digest: artifact.place for artifact in inputs.values()}
    if base["digest"] not in places:
        raise FineryError(f"the adapter sits on {base['digest'][:12]}, which is none of the stage's inputs")
    return below | {base["digest"]: places[base["digest"]]}
