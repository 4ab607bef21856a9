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

from finery.digests import DigestCache
from finery.errors import FineryError, InputError
from finery.resolve import Lock
from finery.schemas.base import Model, ProcessRuntime, Stage
from finery.schemas.reference import Execution, PathRef, StageRef, Use, parse_reference, uses
from finery.store import Manifest, Store, digest_of

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
    maker: str = ""
    """`kind/key/output` in the store, or the reference as written."""


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
            return StagePlan(name, config.kind, "blocked", [f"behind {', '.join(blocked)}, which is blocked"])  # type: ignore[attr-defined]
        state: State = "conditional" if gate_stage in behind else "pending"
        why = [f"behind {', '.join(need for need in behind)}"]
        if state == "conditional":
            why = [f"the gate {gate_stage} has not decided", *([f"behind {', '.join(n for n in behind if n != gate_stage)}"] if len(behind) > 1 else [])]
        return StagePlan(name, config.kind, state, why, seconds=seconds)  # type: ignore[attr-defined]

    def stage(self, name: str, done: Mapping[str, Done]) -> StagePlan:
        """The plan of a stage all of whose needs are in `done`."""
        config = self.config(name)
        kind: str = config.kind  # type: ignore[attr-defined]
        closed = self._gate(config, done)
        if closed and closed[0] == "blocked":
            return StagePlan(name, kind, "blocked", [closed[1]])
        inputs, refs, unresolved = self._inputs(config, done)
        if closed:
            model = inputs["model"] if "model" in inputs else next(a for a in inputs.values() if a.kind == "model")
            default = config.default_output or "model"
            return StagePlan(name, kind, "skip", [closed[1]], inputs=inputs, refs=refs, done=Done({default: model}, default, None, True))
        if unresolved:
            return StagePlan(name, kind, "unresolved", unresolved)
        spec = self._spec(name, config, inputs)
        key = digest_of(spec)
        last = self.last(name)
        found = self.store.manifest(kind, key, verify=self.verify)
        known = dict(key=key, spec=spec, inputs=inputs, refs=refs, seconds=last.seconds if last else None)
        if found and name not in self.rerun:
            return StagePlan(name, kind, "cached", ["nothing changed"], done=self.done(found, config), **known)  # type: ignore[arg-type]
        if name in self.rerun:
            return StagePlan(name, kind, "run", ["asked for by --from"], **known)  # type: ignore[arg-type]
        if any((self.store.partial(kind, key) / "checkpoints").glob("*")):
            return StagePlan(name, kind, "resume", ["an earlier attempt left a checkpoint"], **known)  # type: ignore[arg-type]
        return StagePlan(name, kind, "run", self._why(kind, key, spec, refs, last), **known)  # type: ignore[arg-type]

    def config(self, name: str) -> Stage:
        return self.loaded.pipeline.stages[name]

    def done(self, manifest: Manifest, config: Stage) -> Done:
        """The outputs of a finished stage, as artifacts."""
        outputs = {
            name: Artifact(
                output["kind"],
                output["digest"],
                self.store.output(manifest.kind, manifest.key, name),
                {digest: self._locate(place) for digest, place in manifest.bases.items()},
                f"{manifest.kind}/{manifest.key}/{name}",
            )
            for name, output in manifest.outputs.items()
        }
        return Done(outputs, config.default_output, manifest)

    def _locate(self, place: str) -> str:
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
        if use.ref.local_only:
            return self._outside(use, kind, self.folder / Path(use.text).expanduser())
        reference = parse_reference(use.text)
        if isinstance(reference, StageRef):
            maker = done[reference.stage]
            name = reference.output or maker.default
            if name not in maker.outputs:
                raise FineryError(f"{use.text}: {reference.stage} was skipped and has no {name}")
            return maker.outputs[name]
        if isinstance(reference, PathRef):
            return self._outside(use, kind, self.folder / Path(reference.path).expanduser())
        return self._outside(use, kind, self.lock.folder(use.text))

    def _outside(self, use: Use, kind: str, path: Path) -> Artifact:
        try:
            return Artifact(kind, self.cache.tree(path), path, {}, use.text)
        except InputError as error:
            raise InputError(f"{self.loaded.path.name}: {use.field}: {error}") from error

    def _spec(self, name: str, config: Stage, inputs: Mapping[str, Artifact]) -> dict[str, Any]:
        outside = {use.field for use in uses(config) if use.ref.local_only or not isinstance(parse_reference(use.text), StageRef)}
        return {
            "kind": config.kind,  # type: ignore[attr-defined]
            "schema": config.schema_version,
            "config": result_config(config, outside),
            "order": mapping_orders(config),
            "inputs": {key: artifact.digest for key, artifact in inputs.items()},
            "seed": self.seed(name),
            "threads": config.resources.cpus,
            "code": self.cache.code(config.kind),  # type: ignore[attr-defined]
            "versions": self.cache.versions(config.packages, self.python(config)),
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


def execution_fields(config: Model) -> set[str]:
    """The fields, by alias, that decide how a stage is run and never what it makes."""
    return {
        info.alias or name
        for name, info in type(config).model_fields.items()
        if any(isinstance(mark, Execution) for mark in info.metadata)
    }


def result_config(config: Model, outside: Collection[str] = (), prefix: str = "") -> dict[str, Any]:
    """A stage's config as it enters the key: without defaults, execution fields, the seed, and outside references.

    An outside reference counts by its digest, so that a folder may move; a stage's name counts as it is written,
    since result tables show it.
    """
    dropped = execution_fields(config) | ({"seed"} if isinstance(config, Stage) else set())
    kept: dict[str, Any] = {}
    for name, info in type(config).model_fields.items():
        key, value = info.alias or name, getattr(config, name)
        if key in dropped or (not info.is_required() and value == info.get_default(call_default_factory=True)):
            continue
        kept[key] = _plain(value, outside, f"{prefix}{key}")
    return kept


def mapping_orders(config: Any, path: str = "") -> dict[str, list[str]]:
    """The order in which the keys of each mapping are written: splits take their intervals by it.

    Canonical JSON sorts keys, so the order enters the key by itself.
    """
    found: dict[str, list[str]] = {}
    if isinstance(config, Model):
        for name, info in type(config).model_fields.items():
            key = info.alias or name
            if key not in execution_fields(config):
                found |= mapping_orders(getattr(config, name), f"{path}.{key}" if path else key)
    elif isinstance(config, dict):
        if len(config) > 1:
            found[path] = list(config)
        for key, value in config.items():
            found |= mapping_orders(value, f"{path}.{key}")
    elif isinstance(config, list):
        for index, value in enumerate(config):
            found |= mapping_orders(value, f"{path}.{index}")
    return found


def _plain(value: Any, outside: Collection[str], path: str) -> Any:
    if path in outside:
        return None
    if isinstance(value, Model):
        return result_config(value, outside, f"{path}.")
    if isinstance(value, list):
        return [_plain(item, outside, f"{path}.{index}") for index, item in enumerate(value)]
    if isinstance(value, dict):
        return {key: _plain(item, outside, f"{path}.{key}") for key, item in value.items()}
    return value


def differences(old: Mapping[str, Any], new: Mapping[str, Any], refs: Mapping[str, str]) -> list[str]:
    """What changed between two specs, one sentence each."""
    found = [f"{key} {_show(a)} -> {_show(b)}" for key, a, b in _changes(old["config"], new["config"])]
    for path, keys in new["order"].items():
        before = old.get("order", {}).get(path, keys)
        if before != keys and set(before) == set(keys):
            found.append(f"the order of {path} changed")
    for name, digest in new["inputs"].items():
        if old["inputs"].get(name) not in (None, digest):
            found.append(f"input {refs.get(name, name)} changed")
    if old["seed"] != new["seed"]:
        found.append(f"seed {old['seed']} -> {new['seed']}")
    if old["threads"] != new["threads"]:
        found.append(f"resources.cpus {old['threads']} -> {new['threads']}")
    if old["code"] != new["code"] or old["schema"] != new["schema"]:
        found.append("the stage's code changed (finery adopt accepts the old result)")
    found += [f"{key} {_show(a)} -> {_show(b)}" for key, a, b in _changes(old["versions"], new["versions"])]
    return found


def _changes(old: Any, new: Any, prefix: str = "") -> list[tuple[str, Any, Any]]:
    if isinstance(old, dict) and isinstance(new, dict):
        keys = [*old, *(key for key in new if key not in old)]
        return [change for key in keys for change in _changes(old.get(key, "default"), new.get(key, "default"), f"{prefix}.{key}" if prefix else key)]
    return [] if old == new else [(prefix, old, new)]


def _show(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 60 else text[:57] + "..."
