"""The evidence a project holds: what its finished stages left in the store, and the machine."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from finery.advise.counts import count_rows, learned_from
from finery.advise.evidence import Change, Count, Evidence, Fact, Gate, Interval, Machine, Scored, Supervised
from finery.advise.results import Results
from finery.content import read_json
from finery.load import Loaded
from finery.plan import Artifact, Planner
from finery.schemas.evaluate import EvaluateStage
from finery.schemas.promote import PromoteStage
from finery.slots import host_cpus, host_gpus

_SUPERVISED = ("sft", "distill")
_QUARTER = 2
"""Logged losses that a quarter needs, for its mean to say something."""


def gather(planner: Planner) -> Evidence:
    """All the evidence there is; reads JSON and the headers of weights, and starts nvidia-smi where it is."""
    results = Results(planner)
    learned = {stage for stage, _ in learned_from(results)}
    commands = {
        "data": results.command("data", among=learned),
        "gate": results.command("gate"),
        "exam": results.command("evaluate"),
    }
    gate_stage = _last_done(results, "gate")
    trained = getattr(results.loaded.pipeline.stages[gate_stage], "model", None) if gate_stage else None
    counts = count_rows(results)
    return Evidence(
        machine=machine(),
        labelled=counts.get("labelled"),
        preferences=counts.get("preferences"),
        verifiable=counts.get("verifiable"),
        verifier=_verifier(results.loaded),
        supervised=_supervised(results, planner),
        gate=_gate(results, gate_stage) if gate_stage else None,
        changes=_changes(results),
        scored=_scored(results),
        parameters=_trained_size(results, trained),
        commands={name: command for name, command in commands.items() if command},
    )


def _last_done(results: Results, kind: str) -> str | None:
    """The last stage of a kind, in the order of the line, that has a result."""
    found = [name for name, _ in results.configs(kind) if results.done.get(name) and not results.done[name].skipped]
    return found[-1] if found else None


def _verifier(loaded: Loaded) -> Fact | None:
    """The reward that decides what is solved, as the first stage that has one names it."""
    for name in loaded.order:
        rewards = getattr(loaded.pipeline.stages[name], "rewards", None)
        if rewards:
            chosen = next((reward for reward in rewards if reward.verifier), rewards[0])
            return Fact(f"the reward {chosen.kind} verifies completions", f"stages.{name}.rewards")
    return None


def _gate(results: Results, stage: str) -> Gate | None:
    outputs = results.done[stage].outputs
    verdict = read_json(outputs["verdict"].path / "verdict.json")
    prompts = read_json(outputs["difficulty"].path / "difficulty.json")["prompts"]
    config = results.loaded.pipeline.stages[stage]
    data = results.output(getattr(config, "data", ""))
    described = data.path / "dataset.json" if data else None
    return Gate(
        pass_at_1=_interval(verdict["pass_at_1"]),
        pass_at_k=_interval(verdict["pass_at_k"]),
        gap=_interval(verdict["gap"]),
        k=verdict["k"],
        solved_at=verdict["solved_at"],
        min_gap=verdict["min_gap"],
        truncated=verdict["truncated"],
        sometimes=sum(0 < one["solved"] < one["n"] for one in prompts.values()),
        source=f"{results.source(stage, 'verdict')}, of {getattr(config, 'model', '')}",
        looked=len(prompts),
        rows=read_json(described)["rows"] if described and described.is_file() else None,
        greedy=verdict["greedy"],
        min_greedy=verdict["min_greedy"],
    )


def _interval(found: Mapping[str, Any]) -> Interval:
    return Interval(found["value"], found["low"], found["high"])


def _supervised(results: Results, planner: Planner) -> Supervised | None:
    """The last supervised training that is done, with its loss in the last two quarters of what was logged."""
    stages = [name for kind in _SUPERVISED if (name := _last_done(results, kind))]
    if not stages:
        return None
    stage = max(stages, key=results.loaded.order.index)
    manifest = results.done[stage].manifest
    assert manifest is not None
    log = planner.store.folder(manifest.kind, manifest.key) / "metrics.jsonl"
    losses = []
    for line in log.read_text(encoding="utf-8").splitlines() if log.is_file() else ():
        event = json.loads(line)
        if event["type"] == "metrics" and isinstance(event["metrics"].get("loss"), int | float):
            losses.append(float(event["metrics"]["loss"]))
    quarter = len(losses) // 4
    if quarter < _QUARTER:
        return Supervised(stage, None, None, results.source(stage))
    before, after = losses[-2 * quarter : -quarter], losses[-quarter:]
    return Supervised(stage, sum(before) / quarter, sum(after) / quarter, f"{results.source(stage)}, metrics.jsonl")


def _exam(results: Results) -> tuple[str, EvaluateStage, dict[str, Any]] | None:
    """The last exam with a result."""
    stage = _last_done(results, "evaluate")
    if stage is None:
        return None
    config = results.loaded.pipeline.stages[stage]
    assert isinstance(config, EvaluateStage)
    return stage, config, read_json(results.done[stage].outputs["evaluation"].path / "evaluation.json")


def _changes(results: Results) -> tuple[Change, ...] | None:
    """How the model that is promoted, else the exam's last, differs from the reference on each suite."""
    if (exam := _exam(results)) is None:
        return None
    stage, _, found = exam
    promoted = [config.model for _, config in results.configs("promote") if isinstance(config, PromoteStage)]
    models = found["models"]
    model = next((name for name in reversed(promoted) if name in models), list(models)[-1])
    changes = []
    for suite, metrics in models[model].items():
        metric = _main(metrics)
        if metric and (change := metrics[metric].get("change")):
            changes.append(Change(model, found["reference"], suite, _interval(change), results.source(stage)))
    return tuple(changes)


def _scored(results: Results) -> tuple[Scored, ...] | None:
    """Each examined model's score on the first suite, with its size; one whose weights are not at hand is left out."""
    if (exam := _exam(results)) is None:
        return None
    stage, _, found = exam
    scored = []
    for model, suites in found["models"].items():
        suite, metrics = next(iter(suites.items()))
        metric, artifact = _main(metrics), results.output(model)
        if metric and artifact and (size := parameters(artifact)):
            scored.append(Scored(model, suite, metrics[metric]["value"], size, results.source(stage)))
    return tuple(scored)


def _main(metrics: Mapping[str, Any]) -> str | None:
    return next((name for name in ("pass_at_1", "greedy") if name in metrics), None)


def _trained_size(results: Results, gated: str | None) -> Count | None:
    """The size of the model that the gate measured, else of the last one that is trained."""
    trained = [str(getattr(config, "model", "")) for _, config in results.configs("sft", "dpo", "grpo")]
    for text in (*([gated] if gated else ()), *reversed(trained)):
        artifact = results.output(text)
        if artifact and (size := parameters(artifact)):
            return Count(size, f"the weights of {text}")
    return None


def parameters(artifact: Artifact) -> int | None:
    """The parameters of a model, from the headers of its safetensors; an adapter's with those it sits on."""
    folders = [artifact.path, *(Path(base) for base in artifact.bases.values())]
    files = [file for folder in folders if folder.is_dir() for file in sorted(folder.glob("*.safetensors"))]
    total = sum(_tensors(file) for file in files)
    return total or None


def _tensors(file: Path) -> int:
    """The elements of a safetensors file: 8 bytes of length, then a JSON header of shapes."""
    with file.open("rb") as opened:
        header = json.loads(opened.read(int.from_bytes(opened.read(8), "little")))
    total = 0
    for name, tensor in header.items():
        if name != "__metadata__":
            elements = 1
            for side in tensor["shape"]:
                elements *= side
            total += elements
    return total


def machine() -> Machine:
    """This host: cores, memory, GPUs and the memory of the smallest one, as nvidia-smi says."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") if hasattr(os, "sysconf") else None
    gpus = host_gpus()
    return Machine(host_cpus(), memory, gpus, _gpu_memory() if gpus else None)


def _gpu_memory() -> int | None:
    if not (tool := shutil.which("nvidia-smi")):
        return None
    asked = [tool, "--query-gpu=memory.total", "--format=csv,noheader,nounits"]
    try:
        said = subprocess.run(asked, capture_output=True, text=True, timeout=10, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return None
    found = [int(line) for line in said.splitlines() if line.strip().isdigit()]
    return min(found) * 1024 * 1024 if found else None
