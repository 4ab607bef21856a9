"""Where a model came from, and accepting an old result under a new key."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from finery import runs
from finery.content import read_json
from finery.errors import InputError
from finery.load import load
from finery.plan import Planner
from finery.record import recorded_inputs
from finery.show import project_of
from finery.spec import differences
from finery.store import Manifest, Store


def find_manifest(home: Path, name: str) -> Manifest:
    """The manifest of `stage`, `run/stage`, a digest of an output, or a folder of the store.

    Raises:
        InputError: nothing of that name was made here.
    """
    store = Store(home)
    path = Path(name)
    if path.is_dir():
        for folder in (path.resolve(), *path.resolve().parents):
            if (folder / "manifest.json").exists() and (found := store.manifest(folder.parent.name, folder.name)):
                return found
    run, _, stage = name.rpartition("/")
    if (home / "runs").is_dir() and any((home / "runs").iterdir()):
        summary = _summary_with(home, run, stage)
        if (
            summary
            and (key := summary["stages"][stage]["key"])
            and (found := store.manifest(summary["stages"][stage]["kind"], key))
        ):
            return found
    if len(name) >= 8:
        for manifest in store.manifests():
            if any(output["digest"].startswith(name) for output in manifest.outputs.values()):
                return manifest
    raise InputError(f"{name}: no stage of the last runs, no digest and no folder of the store {store.root}")


def _summary_with(home: Path, run: str, stage: str) -> dict[str, Any] | None:
    """The newest summary that has the stage, or that of the run asked for."""
    folders = [runs.find_run(home, run)] if run else sorted((home / "runs").iterdir(), reverse=True)
    for folder in folders:
        if (folder / "summary.json").exists():
            summary: dict[str, Any] = read_json(folder / "summary.json")
            if stage in summary["stages"]:
                return summary
    return None


def tree(home: Path, manifest: Manifest, seen: frozenset[str] = frozenset()) -> dict[str, Any]:
    """A manifest with the manifests of its inputs below it."""
    store = Store(home)
    inputs = {}
    for name, given in manifest.inputs.items():
        node: dict[str, Any] = {"ref": given["ref"], "digest": given["digest"], "kind": given["kind"]}
        if given["made_by"]:
            kind, key, _ = given["made_by"].split("/")
            made = store.manifest(kind, key)
            if made is None:
                node["lost"] = f"{given['made_by']} is no longer in the store"
            elif made.key not in seen:
                node["made_by"] = tree(home, made, seen | {manifest.key})
        inputs[name] = node
    return {
        "stage": manifest.stage,
        "kind": manifest.kind,
        "key": manifest.key,
        "pipeline": manifest.pipeline,
        "config": manifest.spec["config"],
        "seed": manifest.seed,
        "code": manifest.spec["code"],
        "versions": manifest.spec["versions"],
        "outputs": {name: output["digest"] for name, output in manifest.outputs.items()},
        "adopted": [note["from"] for note in manifest.adopted],
        "inputs": inputs,
    }


def lineage_text(folder: Path, name: str, *, as_json: bool) -> str:
    """The way back from an output to data and config, as a tree."""
    home = runs.home_of(project_of(folder))
    node = tree(home, find_manifest(home, name))
    if as_json:
        return json.dumps(node, ensure_ascii=False, indent=1)
    return "\n".join(_lines(node, "", {}))


def _lines(node: dict[str, Any], indent: str, shown: dict[str, None]) -> list[str]:
    head = f"{node['stage']} ({node['kind']} {node['key'][:12]})"
    if node["key"] in shown:
        return [f"{indent}{head}, as above"]
    shown[node["key"]] = None
    config = json.dumps({k: v for k, v in node["config"].items() if k != "kind"}, ensure_ascii=False)
    lines = [f"{indent}{head}", f"{indent}    config {config if len(config) < 300 else config[:297] + '...'}"]
    lines.append(
        f"{indent}    seed {node['seed']}  code {node['code'][:12]}  "
        + "  ".join(f"{k} {v}" for k, v in node["versions"].items())
    )
    lines += [f"{indent}    adopted from {key[:12]}" for key in node["adopted"]]
    for field, given in node["inputs"].items():
        lines.append(
            f"{indent}    {field}: {given['ref']} ({given['kind']} {given['digest'][:12]})"
            + (f", {given['lost']}" if "lost" in given else "")
        )
        if "made_by" in given:
            lines += _lines(given["made_by"], indent + "        ", shown)
    return lines


def adopt_stage(file: Path, stage: str, overrides: Sequence[str]) -> str:
    """Accept the last result of a stage under the key it has now.

    Raises:
        InputError: there is no such stage or no last result, or its inputs are not done.
    """
    loaded = load(file, overrides)
    planner = Planner(loaded, Store(runs.home_of(loaded.project)))
    plans = planner.all()
    if stage not in plans:
        raise InputError(f"{file}: no stage {stage}; it has {', '.join(plans)}")
    plan, last = plans[stage], planner.last(stage)
    if plan.state == "cached":
        return f"{stage}: nothing to adopt, its result is current"
    if plan.key is None or plan.spec is None:
        raise InputError(f"{stage}: its inputs are not done ({'; '.join(plan.why)}); adopt or run those first")
    if last is None:
        raise InputError(f"{stage}: has no earlier result in the store")
    before = {name: output["kind"] for name, output in last.outputs.items()}
    if before != (now := planner.config(stage).outputs()):
        raise InputError(f"{stage}: its last result has the outputs {_named(before)}; now it has {_named(now)}")
    changes = differences(last.spec, plan.spec, plan.refs)
    planner.store.adopt(last, plan.key, plan.spec, recorded_inputs(plan))
    return f"{stage}: {last.key[:12]} now counts as {plan.key[:12]} ({'; '.join(changes) or 'no visible change'})"


def _named(outputs: Mapping[str, str]) -> str:
    return ", ".join(f"{name} ({kind})" for name, kind in outputs.items()) or "none"
