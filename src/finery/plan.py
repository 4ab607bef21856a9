"""What will run, why, and what it will cost.

Planning is pure: no network, no model; its only write is a cache of file digests. A stage's key is known once its
inputs are, so a plan is made forwards, stage by stage, and the engine goes on with it as stages end.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from finery.content import digest_of
from finery.digests import DigestCache
from finery.errors import FineryError, InputError
from finery.resolve import Lock
from finery.schemas.base import ProcessRuntime, Stage
from finery.schemas.reference import StageRef, Use, parse_reference, uses
from finery.spec import differences, execution_fields, mapping_orders, result_config
from finery.store import Manifest, Store

if TYPE_CHECKING:
    from finery.load import Loaded

State = Literal["run", "resume", "cached", "skip", "blocked", "pending", "conditional", "unresolved"]


@dataclass(frozen=True)
class Artifact:
    """One output: what it is, its digest, where it lies, and where the bases of an adapter lie (digest to folder)."""

    kind: str
    digest: str
    path: Path
    bases: dict[str, str] = field(default_factory=dict)
    made_by: str | None = None
    """`kind/key/output` of the store; None for what lies outside it."""

    @property
    def place(self) -> str:
        """Where it lies, for a manifest: by its key in the store, by its path outside."""
        return self.made_by or str(self.path.absolute())


@dataclass(frozen=True)
class Done:
    """A stage whose outputs can be used: finished in the store, or skipped with its input handed on."""

    outputs: dict[str, Artifact]
    default: str | None
    manifest: Manifest | None
    skipped: bool = False


@dataclass(frozen=True)
class StagePlan:
    """What is to be done with one stage.

    Attributes:
        spec: all that the key is made of; None while an input is unknown.
        why: one sentence a reason.
        seconds: what it took the last time, or None.
    """

    stage: str
    kind: str
    state: State
    why: list[str]
    key: str | None = None
    spec: dict[str, Any] | None = None
    inputs: dict[str, Artifact] = field(default_factory=dict)
    refs: dict[str, str] = field(default_factory=dict)
    done: Done | None = None
    seconds: float | None = None


class Planner:
    """Plans the stages of one loaded pipeline against one store.

    Args:
        rerun: stages to run again although the store has them (`--from`).
        verify: check hashes of finished outputs, not only sizes.
    """

    def __init__(self, loaded: Loaded, store: Store, *, rerun: Collection[str] = (), verify: bool = False) -> None:
        self.loaded, self.store = loaded, store
        self.folder = loaded.path.parent
        self.cache = DigestCache(store.home)
        self.lock = Lock.read(loaded.path)
        self.rerun, self.verify = set(rerun), verify

    def all(self) -> dict[str, StagePlan]:
        """Every stage's plan, in the order of the line."""
        plans: dict[str, StagePlan] = {}
        done: dict[str, Done] = {}
        for name in self.loaded.order:
            plans[name] = self._after_plans(name, plans) or self.stage(name, done)
            if found := plans[name].done:
                done[name] = found
        self.cache.save()
        return plans

    def _after_plans(self, name: str, plans: Mapping[str, StagePlan]) -> StagePlan | None:
        """The plan of a stage that waits for another one's, or None when all it needs is there."""
        config = self.config(name)
        behind = [need for need in self.loaded.edges[name] if plans[need].done is None]
        if not behind:
            return None
        gate = getattr(config, "gate", None)
        gate_stage = gate.split(".")[0] if gate else None
        last, seconds = self.last(name), None
        if last:
            seconds = last.seconds
        blocked = [need for need in behind if plans[need].state == "blocked"]
        if blocked:
            return StagePlan(name, config.kind, "blocked", [f"behind {', '.join(blocked)}, which is blocked"])
        state: State = "conditional" if gate_stage in behind else "pending"
        why = [f"behind {', '.join(need for need in behind)}"]
        if state == "conditional":
            why = [
                f"the gate {gate_stage} has not decided",
                *([f"behind {', '.join(n for n in behind if n != gate_stage)}"] if len(behind) > 1 else []),
            ]
        return StagePlan(name, config.kind, state, why, seconds=seconds)

    def stage(self, name: str, done: Mapping[str, Done]) -> StagePlan:
        """The plan of a stage all of whose needs are in `done`."""
        config = self.config(name)
        kind: str = config.kind
        closed = self._gate(config, done)
        if closed and closed[0] == "blocked":
            return StagePlan(name, kind, "blocked", [closed[1]])
        inputs, refs, unresolved = self._inputs(config, done)
        if closed:
            model = inputs["model"] if "model" in inputs else next(a for a in inputs.values() if a.kind == "model")
            default = config.default_output or "model"
            return StagePlan(
                name,
                kind,
                "skip",
                [closed[1]],
                inputs=inputs,
                refs=refs,
                done=Done({default: model}, default, None, True),
            )
        if unresolved:
            return StagePlan(name, kind, "unresolved", unresolved)
        spec = self._spec(name, config, inputs)
        key = digest_of(spec)
        last = self.last(name)
        found = self.store.manifest(kind, key, verify=self.verify)
        seconds = last.seconds if last else None

        def planned(state: State, why: list[str], done: Done | None = None) -> StagePlan:
            return StagePlan(name, kind, state, why, key, spec, inputs, refs, done, seconds)

        if found and name not in self.rerun:
            return planned("cached", ["nothing changed"], self.done(found, config))
        if name in self.rerun:
            return planned("run", ["asked for by --from"])
        if self.store.has_checkpoint(kind, key):
            return planned("resume", ["an earlier attempt left a checkpoint"])
        return planned("run", self._why(kind, key, spec, refs, last))

    def config(self, name: str) -> Stage:
        return self.loaded.pipeline.stages[name]

    def done(self, manifest: Manifest, config: Stage) -> Done:
        """The outputs of a finished stage, as artifacts."""
        outputs = {
            name: Artifact(
                output["kind"],
                output["digest"],
                self.store.output(manifest.kind, manifest.key, name),
                {digest: self.locate(place) for digest, place in manifest.bases.items()},
                f"{manifest.kind}/{manifest.key}/{name}",
            )
            for name, output in manifest.outputs.items()
        }
        return Done(outputs, config.default_output, manifest)

    def locate(self, place: str) -> str:
        """The folder of an artifact's `place`."""
        if place.startswith("/"):
            return place
        kind, key, name = place.split("/")
        return str(self.store.output(kind, key, name))

    def python(self, config: Stage) -> str | None:
        """The interpreter of a stage that names its own, else None."""
        runtime = config.runtime or self.loaded.pipeline.defaults.runtime
        if isinstance(runtime, ProcessRuntime) and runtime.process.python:
            path = Path(runtime.process.python).expanduser()
            # not resolved: a virtual environment's python is a link that must be run by its own name
            return str(path if path.is_absolute() else self.folder / path)
        return None

    def seed(self, name: str) -> int:
        """The stage's own seed, else one derived from the pipeline's and the stage's name."""
        config = self.config(name)
        if config.seed is not None:
            return config.seed
        text = f"{self.loaded.pipeline.seed}/{name}".encode()
        return int.from_bytes(hashlib.sha256(text).digest()[:8], "big") >> 1

    def _gate(self, config: Stage, done: Mapping[str, Done]) -> tuple[Literal["skip", "blocked"], str] | None:
        gate = getattr(config, "gate", None)
        if gate is None:
            return None
        name, _, output = gate.partition(".")
        verdict = read_verdict(done[name].outputs[output or done[name].default or ""].path)
        policy = getattr(self.config(name), "on_more_data", "stop")
        if verdict["verdict"] == "skip_rl":
            return "skip", f"{name} says skip_rl: {verdict['reason']}"
        if verdict["verdict"] == "more_data" and policy == "stop":
            return "blocked", f"{name} says more_data: {verdict['reason']}"
        if verdict["verdict"] == "more_data" and policy == "skip":
            return "skip", f"{name} says more_data, and on_more_data is skip: {verdict['reason']}"
        return None

    def _inputs(self, config: Stage, done: Mapping[str, Done]) -> tuple[dict[str, Artifact], dict[str, str], list[str]]:
        inputs: dict[str, Artifact] = {}
        refs: dict[str, str] = {}
        unresolved: list[str] = []
        for use in uses(config):
            if use.field.split(".")[0] in execution_fields(config):
                continue
            refs[use.field] = use.text
            try:
                inputs[use.field] = self._input(use, done)
            except KeyError:
                unresolved.append(f"{use.text} is not in the lock file and the cache yet; finery run resolves it")
        return inputs, refs, unresolved

    def _input(self, use: Use, done: Mapping[str, Done]) -> Artifact:
        kind = use.ref.kinds[0]
        reference = None if use.ref.local_only else parse_reference(use.text)
        if isinstance(reference, StageRef):
            maker = done[reference.stage]
            name = reference.output or maker.default
            if name not in maker.outputs:
                raise FineryError(f"{use.text}: {reference.stage} was skipped and has no {name}")
            return maker.outputs[name]
        return self._outside(use, kind, self.outside_path(use.text))

    def outside_path(self, text: str) -> Path:
        """Where a path, a hub id or a registry alias lies.

        Raises:
            KeyError: it is not in the lock or not in the cache.
        """
        if text.startswith(("hf:", "registry:")):
            return self.lock.folder(text)
        return self.folder / Path(text).expanduser()

    def _outside(self, use: Use, kind: str, path: Path) -> Artifact:
        try:
            return Artifact(kind, self.cache.tree(path), path)
        except InputError as error:
            raise InputError(f"{self.loaded.path.name}: {use.field}: {error}") from error

    def _spec(self, name: str, config: Stage, inputs: Mapping[str, Artifact]) -> dict[str, Any]:
        outside = {
            use.field
            for use in uses(config)
            if use.ref.local_only or not isinstance(parse_reference(use.text), StageRef)
        }
        return {
            "kind": config.kind,
            "schema": config.schema_version,
            "config": result_config(config, outside),
            "order": mapping_orders(config),
            "inputs": {key: artifact.digest for key, artifact in inputs.items()},
            "seed": self.seed(name),
            "threads": config.resources.cpus,
            "code": self.cache.code(config.kind),
            "versions": self.cache.versions(config.packages_in_use(), self.python(config)),
        }

    def last(self, name: str) -> Manifest | None:
        """What this stage of this pipeline made last."""
        try:
            note = json.loads(last_note(self.store, self.loaded.pipeline.name, name).read_text(encoding="utf-8"))
        except (FileNotFoundError, ValueError):
            return None
        return self.store.manifest(note["kind"], note["key"])

    def _why(self, kind: str, key: str, spec: dict[str, Any], refs: dict[str, str], last: Manifest | None) -> list[str]:
        if self.store.folder(kind, key).exists():
            return ["its result in the store is damaged and is made again"]
        if last is None:
            return ["never run"]
        return differences(last.spec, spec, refs) or ["its result is no longer in the store"]


def last_note(store: Store, pipeline: str, stage: str) -> Path:
    """The file that remembers the key a stage had last."""
    return store.home / "stages" / pipeline / f"{stage}.json"


def read_verdict(folder: Path) -> dict[str, Any]:
    """A gate's verdict."""
    return dict(json.loads((folder / "verdict.json").read_text(encoding="utf-8")))
