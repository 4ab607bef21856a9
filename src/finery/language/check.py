"""Cross-checks: references, outputs and kinds, gates, cycles, files; what one stage alone cannot tell."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

from finery.language import files
from finery.language.fields import leaves, type_of
from finery.language.nodes import Node, find
from finery.language.problems import Keys, Problem, cut, hint, nearest
from finery.language.secrets import looks_secret
from finery.schemas.base import Stage
from finery.schemas.reference import ArtifactKind, PathRef, Ref, StageRef, parse_reference


@dataclass
class Stages:
    """What is known of each stage, in the order of the file, even where some of them are not valid.

    Attributes:
        kinds: the class of each stage that says a known kind.
        configs: the config of each stage that is valid, or would be with its unknown keys mended.
    """

    root: Node
    folder: Path
    kinds: dict[str, type[Stage]] = field(default_factory=dict)
    configs: dict[str, Stage] = field(default_factory=dict)

    @property
    def names(self) -> list[str]:
        found = self.root.child("stages")
        return list(found.value) if found and found.kind == "map" else []

    def outputs(self, name: str) -> dict[str, ArtifactKind] | None:
        """A stage's outputs, or None when its mistakes hide them."""
        return self.configs[name].outputs() if name in self.configs else None


@dataclass(frozen=True)
class Used:
    """A reference as it stands in the file."""

    stage: str
    path: Keys
    node: Node
    ref: Ref

    @property
    def text(self) -> str:
        return str(self.node.value)

    def problem(self, text: str) -> Problem:
        return Problem(self.node.place, self.path, text)


def references(stages: Stages) -> Iterator[Used]:
    """Every reference of every stage whose kind is known, valid or not."""
    for name, cls in stages.kinds.items():
        node = find(stages.root, ("stages", name))
        if node is None:
            continue
        for path, kind, leaf in leaves(type_of(cls), node, ("stages", name)):
            if kind.ref and isinstance(leaf.value, str) and not looks_secret(leaf.value):
                yield Used(name, path, leaf, kind.ref)


def check_references(stages: Stages) -> tuple[list[Problem], dict[str, dict[str, Node]]]:
    """Problems of references and `after`, and for each stage the stages it needs with where it says so."""
    problems: list[Problem] = []
    needs: dict[str, dict[str, Node]] = {name: {} for name in stages.names}
    for used in references(stages):
        found = _check(used, stages)
        if isinstance(found, Problem):
            problems.append(found)
        elif found is not None:
            needs[used.stage].setdefault(found, used.node)
    for name in stages.names:
        after = find(stages.root, ("stages", name, "after"))
        for index, item in enumerate(after.value if after and after.kind == "list" else []):
            path: Keys = ("stages", name, "after", index)
            if item.value == name:
                problems.append(Problem(item.place, path, f"{name} waits for itself"))
            elif isinstance(item.value, str) and item.value in stages.names:
                needs[name].setdefault(item.value, item)
            elif isinstance(item.value, str):
                problems.append(Problem(item.place, path, _no_stage(item.value, stages)))
    return problems, needs


def _no_stage(name: str, stages: Stages) -> str:
    return f"there is no stage {name}{hint(name, stages.names, listed='there are')}"


def _check(used: Used, stages: Stages) -> Problem | str | None:
    """What is wrong with one reference, or the stage it needs, or None when it needs no stage."""
    text, ref = used.text, used.ref
    if ref.local_only:
        wrong = files.missing(text, stages.folder)
        if wrong and text.startswith(("hf:", "registry:")):
            wrong = f"{text} is no file; this must be a path from the YAML file's folder"
        return used.problem(wrong) if wrong else None
    try:
        reference = parse_reference(text)
    except ValueError as error:
        return used.problem(f"{cut(text)} {error}{_path_hint(text, stages)}")
    if isinstance(reference, PathRef):
        wrong = files.unfit(text, stages.folder, ref.kinds)
        return used.problem(wrong) if wrong else None
    if not isinstance(reference, StageRef):
        return None if "model" in ref.kinds else used.problem(_outside(text, ref))
    if reference.stage == used.stage:
        return used.problem(f"{used.stage} refers to itself{_path_hint(text, stages)}")
    if reference.stage not in stages.names:
        return used.problem(_no_stage(reference.stage, stages) + _path_hint(text, stages))
    wrong = _output(reference, ref, stages)
    return used.problem(wrong) if wrong else reference.stage


def _path_hint(text: str, stages: Stages) -> str:
    if files.exists(text, stages.folder):
        return f"; a path begins with ./: write ./{text}"
    return f"; a hub model is written hf:{text}" if text.count("/") == 1 else ""


def _outside(text: str, ref: Ref) -> str:
    wanted = " or ".join(ref.kinds)
    if "dataset" in ref.kinds:
        return (
            f"{text} is an outside model, and this must be a dataset; a data stage reads the hub: "
            "{kind: data, sources: [{kind: hub, name: org/name, revision: ...}]}"
        )
    return f"{text} is an outside model, and this must be the {wanted} of a stage"


def _output(reference: StageRef, ref: Ref, stages: Stages) -> str | None:
    """What is wrong with the output a reference names, or None."""
    name, outputs = reference.stage, stages.outputs(reference.stage)
    if outputs is None:
        return None
    fitting = [f"{name}.{output}" for output, kind in outputs.items() if kind in ref.kinds]
    if not outputs:
        return f"{name} has no outputs" + ("; name them under makes" if stages.configs[name].kind == "script" else "")
    if reference.output is None:
        output = stages.configs[name].default_output
        if output is None:
            return f"{name} has several outputs; write {' or '.join(fitting or [f'{name}.{o}' for o in outputs])}"
    else:
        output = reference.output
        if output not in outputs:
            return f"{name} has no output {output}{_near_output(output, name, outputs, ref)}"
    kind = outputs[output]
    if kind not in ref.kinds:
        instead = f"; write {' or '.join(fitting)}" if fitting else ""
        shown = name if reference.output is None else f"{name}.{output}"
        return f"{shown} is a {kind}, and this must be a {' or '.join(ref.kinds)}{instead}"
    if getattr(stages.configs[name], "gate", None) and (
        kind != "model" or output != stages.configs[name].default_output
    ):
        gate = str(getattr(stages.configs[name], "gate", "")).split(".")[0]
        other = stages.outputs(gate) or {}
        instead = f"; take {gate}.{output}, or" if other.get(output) == kind else ";"
        return (
            f"{name}.{output} is absent when the gate {gate} skips {name}, which then hands on its model alone"
            f"{instead} leave gate out of {name}"
        )
    return None


def _near_output(output: str, name: str, outputs: Mapping[str, str], ref: Ref) -> str:
    near = nearest(output, outputs)
    if near:
        return f"; did you mean {name}.{near}?"
    return f"; it has {', '.join(f'{name}.{other}' for other in outputs)}"


def check_cycles(needs: Mapping[str, Mapping[str, Node]]) -> list[Problem]:
    """One problem a cycle: `a -> c -> b -> a` reads a needs c, c needs b, b needs a."""
    problems: list[Problem] = []
    seen: set[str] = set()
    for start in needs:
        cycle = _cycle(start, needs, seen)
        if cycle:
            nodes = [needs[a][b] for a, b in pairwise(cycle)]
            lines = ", ".join(str(node.place.line) if node.place.override is None else "--set" for node in nodes)
            text = f"the stages wait for each other: {' -> '.join(cycle)} (lines {lines})"
            problems.append(Problem(nodes[0].place, ("stages", start), text))
        seen.add(start)
    return problems


def _cycle(start: str, needs: Mapping[str, Mapping[str, Node]], seen: set[str]) -> list[str] | None:
    """The shortest cycle through `start` that meets none of `seen`, found in width."""
    before: dict[str, str] = {}
    ahead = [start]
    for name in ahead:
        for need in needs.get(name, {}):
            if need == start:
                way = [name]
                while way[-1] != start:
                    way.append(before[way[-1]])
                return [*reversed(way), start]
            if need not in before and need not in seen and need in needs:
                before[need] = name
                ahead.append(need)
    return None
