"""The rows there are to learn from."""

from __future__ import annotations

from finery.advise.evidence import Count
from finery.advise.results import Results
from finery.content import read_json
from finery.schemas.reference import StageRef, parse_reference, uses

_LABELS = {"completion", "messages"}
_VERIFIED = {"answer", "tests", "sql"}
_KINDS = {"labelled": _LABELS, "verifiable": _VERIFIED, "preferences": {"chosen"}}
_HELD_OUT = {"test", "validation", "valid", "dev", "eval"}
"""Splits of these names are for examining, whether or not a stage examines with them."""
_LEARNERS = ("sft", "dpo", "grpo", "distill")

Set = tuple[str, str]
"""A stage and its output."""


def learned_from(results: Results) -> set[Set]:
    """The outputs of data stages that sft, dpo, grpo or distill train on, made or not."""
    stages = results.loaded.pipeline.stages
    return {
        found
        for config in stages.values()
        if config.kind in _LEARNERS
        for use in uses(config)
        if use.field in ("data", "prompts") and (found := _set(results, use.text)) and stages[found[0]].kind == "data"
    }


def count_rows(results: Results) -> dict[str, Count]:
    """Rows to learn from: of what is trained on, and of data sets that no stage puts aside (`_aside`).

    Returns:
        `labelled`, `verifiable` and `preferences`; {} while a data set is not made that a stage trains on.
    """
    learned = learned_from(results)
    if any(stage not in results.done for stage, _ in learned):
        return {}
    aside = _aside(results) - learned
    pairs = {name for name, _ in results.configs("dpo")}
    totals: dict[str, tuple[int, list[str]]] = {}
    seen = False
    for name, _ in results.configs("data", "dpo"):
        for output, artifact in results.done[name].outputs.items() if name in results.done else ():
            if artifact.kind != "dataset" or not (artifact.path / "dataset.json").is_file():
                continue
            seen = True
            if (name, output) in aside or (output in _HELD_OUT and (name, output) not in learned):
                continue
            info = read_json(artifact.path / "dataset.json")
            for kind, wanted in _KINDS.items():
                # the prompts of the pairs that dpo makes are those of another data set
                if not wanted & set(info["columns"]) or (name in pairs and kind != "preferences"):
                    continue
                number, sources = totals.get(kind, (0, []))
                totals[kind] = number + info["rows"], [*sources, results.source(name, output)]
    if not seen:
        return {}
    empty = "no data set to learn from has any"
    return {
        kind: Count(totals[kind][0], ", ".join(totals[kind][1])) if kind in totals else Count(0, empty)
        for kind in _KINDS
    }


def _aside(results: Results) -> set[Set]:
    """What is examined with, evaluated on, replayed or held to."""
    return {
        found
        for config in results.loaded.pipeline.stages.values()
        for use in uses(config)
        if (config.kind == "evaluate" or use.field in ("replay.data", "ewc.data", "eval_data"))
        and (found := _set(results, use.text))
    }


def _set(results: Results, text: str) -> Set | None:
    reference = parse_reference(text)
    if not isinstance(reference, StageRef):
        return None
    output = reference.output or results.loaded.pipeline.stages[reference.stage].default_output
    return (reference.stage, output) if output else None
