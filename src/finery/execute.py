"""One run of a pipeline: each stage planned, run, published and reported, in whatever order the flow calls.

`Execution` knows nothing of Prefect; finery.flow calls `attempt` for each stage, or `run_plain` does.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from finery import __version__
from finery.errors import FineryError
from finery.launch import Attempt, Ended, command, environment, write_spec
from finery.load import Loaded
from finery.plan import Artifact, Done, Planner, StagePlan, last_note
from finery.schemas.base import Stage
from finery.slots import slots
from finery.store import Manifest, Store, output_digest, write_json

if TYPE_CHECKING:
    from finery.spool import Spool

OutcomeState = Literal["Completed", "Cached", "Skipped", "Blocked", "Refused", "Failed", "Cancelled"]
EXIT_CODES = {"Completed": 0, "Cached": 0, "Skipped": 0, "Blocked": 0, "Refused": 4, "Failed": 1, "Cancelled": 130}


class AttemptFailed(FineryError):
    """An attempt failed and another may be made."""


@dataclass(frozen=True)
class Outcome:
    """How a stage ended in this run.

    Attributes:
        digest: of its default output, or None.
        blocked_by_gate: a gate's `more_data` is what blocks it.
    """

    stage: str
    kind: str
    state: OutcomeState
    message: str
    key: str | None = None
    seconds: float = 0.0
    exit_code: int = 0
    done: Done | None = None
    metrics: dict[str, Any] = field(default_factory=dict)
    summary: dict[str, Any] = field(default_factory=dict)
    blocked_by_gate: bool = False
    warnings: tuple[str, ...] = ()

    @property
    def digest(self) -> str | None:
        if self.done and self.done.default in self.done.outputs:
            return self.done.outputs[self.done.default].digest
        return None


@dataclass(frozen=True)
class Event:
    """Something the display may show: a state, a progress, a metric, a warning."""

    stage: str
    type: Literal["state", "progress", "metrics", "warning"]
    data: dict[str, Any]


class Execution:
    """Runs the stages of one pipeline; thread-safe, and each stage's attempt is made once however often it is asked.

    Args:
        listen: called with every Event, from any thread.
        only: run this stage alone; its inputs must be in the store.
    """

    def __init__(
        self,
        loaded: Loaded,
        planner: Planner,
        run_id: str,
        run_dir: Path,
        spool: Spool,
        *,
        listen: Callable[[Event], None] = lambda event: None,
    ) -> None:
        self.loaded, self.planner, self.store = loaded, planner, planner.store
        self.run_id, self.run_dir, self.spool, self.listen = run_id, run_dir, spool, listen
        self.name = loaded.pipeline.name
        self.order, self.edges = loaded.order, loaded.edges
        self.outcomes: dict[str, Outcome] = {}
        self._lock = threading.RLock()
        self._running: dict[tuple[str, int], threading.Event] = {}
        self._errors: dict[tuple[str, int], FineryError] = {}
        self._stop: str | None = None

    # what a flow asks

    def retries(self, stage: str) -> int:
        return self.planner.config(stage).retries

    def retry_delay(self, stage: str) -> float:
        return float(self.planner.config(stage).retry_delay or 1)

    def tags(self, stage: str) -> list[str]:
        return [self.name, self.planner.config(stage).kind]  # type: ignore[attr-defined]

    def outcome(self, stage: str) -> Outcome | None:
        return self.outcomes.get(stage)

    def interrupt(self, force: bool = False) -> None:
        """Ctrl-C: running stages checkpoint and stop, nothing new starts; with `force` they are killed."""
        self._stop = "kill" if force else self._stop or "checkpoint"

    @property
    def interrupted(self) -> bool:
        return self._stop is not None

    def attempt(self, stage: str, attempt: int = 1) -> Outcome:
        """Make one attempt of a stage whose needs have ended, or wait for the one that is running.

        Raises:
            AttemptFailed: it failed, and its retries are not used up.
        """
        with self._lock:
            if stage in self.outcomes:
                return self.outcomes[stage]
            slot = (stage, attempt)
            mine = slot not in self._running
            ended = self._running.setdefault(slot, threading.Event())
        if mine:
            try:
                self._record(self._attempt(stage, attempt))
            except AttemptFailed as error:
                self._errors[slot] = error
            except FineryError as error:
                self._record(self._failed(stage, str(error), error.exit_code))
            finally:
                ended.set()
        else:
            ended.wait()
        if slot in self._errors:
            raise self._errors[slot]
        if stage not in self.outcomes:
            raise FineryError(f"{stage}: the attempt ended without an outcome; finery logs shows why")
        return self.outcomes[stage]

    def ready(self) -> list[str]:
        """Stages whose needs have all ended well and that have not begun."""
        with self._lock:
            begun = {stage for stage, _ in self._running}
            return [s for s in self.order if s not in begun and all(self._usable(need) for need in self.edges[s])]

    def _usable(self, need: str) -> bool:
        return need in self.outcomes and self.outcomes[need].done is not None

    # one attempt

    def _record(self, outcome: Outcome) -> None:
        with self._lock:
            self.outcomes[outcome.stage] = outcome
        data = {"state": outcome.state, "message": outcome.message, "seconds": outcome.seconds, "metrics": outcome.metrics, "summary": outcome.summary}
        self.listen(Event(outcome.stage, "state", data))

    def _failed(self, stage: str, message: str, code: int = 1) -> Outcome:
        return Outcome(stage, self.planner.config(stage).kind, "Failed", message, exit_code=code)  # type: ignore[attr-defined]

    def _attempt(self, stage: str, attempt: int) -> Outcome:
        config = self.planner.config(stage)
        kind: str = config.kind  # type: ignore[attr-defined]
        if self._stop:
            return Outcome(stage, kind, "Cancelled", "stopped by the user", exit_code=130)
        bad = [need for need in self.edges[stage] if not self._usable(need)]
        if bad:
            causes = [self.outcomes[need] for need in bad if need in self.outcomes]
            by_gate = any(cause.blocked_by_gate for cause in causes)
            said = ", ".join(f"{need} ({self.outcomes[need].state})" if need in self.outcomes else need for need in bad)
            return Outcome(stage, kind, "Blocked", f"behind {said}", blocked_by_gate=by_gate)
        with self._lock:
            plan = self.planner.stage(stage, {name: o.done for name, o in self.outcomes.items() if o.done})
        if plan.state == "blocked":
            return Outcome(stage, kind, "Blocked", plan.why[0], blocked_by_gate=True)
        if plan.state == "skip":
            return Outcome(stage, kind, "Skipped", plan.why[0], done=plan.done)
        if plan.state == "unresolved":
            raise FineryError(f"{stage}: {'; '.join(plan.why)}")
        if plan.state == "cached":
            return self._cached(plan, plan.done)  # type: ignore[arg-type]
        assert plan.key and plan.spec
        with self.store.lock(kind, plan.key, waiting=lambda: self._say(stage, "waiting for another run of the same stage")):
            found = self.store.manifest(kind, plan.key)
            if found and stage not in self.planner.rerun:
                return self._cached(plan, self.planner.done(found, config))
            return self._run(plan, config, attempt)

    def _cached(self, plan: StagePlan, done: Done) -> Outcome:
        manifest = done.manifest
        assert manifest
        tags = {"finery.store": str(self.store.folder(plan.kind, manifest.key))}
        attempt_id = self.spool.open_stage(plan.stage, plan.kind, manifest.key, 0, self._params(plan.stage), cached=True, tags=tags)
        self.spool.close_stage(attempt_id, "FINISHED", manifest.metrics)
        self._note(manifest)
        return self._finished(manifest, done, "Cached", "from the store", 0.0)

    def _run(self, plan: StagePlan, config: Stage, attempt: int) -> Outcome:
        stage, kind, key = plan.stage, plan.kind, str(plan.key)
        resources = config.resources
        with slots(self.store.home, resources.cpus, resources.gpus, stopped=lambda: self.interrupted, waiting=lambda: self._say(stage, "waiting for a slot")) as gpus:
            if self._stop:
                return Outcome(stage, kind, "Cancelled", "stopped by the user", exit_code=130)
            assert plan.spec is not None
            folder = self.store.open_partial(kind, key, plan.spec)
            follower = Follower(folder / "metrics.jsonl", self, stage)
            env = environment(threads=resources.cpus, gpus=gpus, network=config.network)
            argv = command(self.planner.python(config), self.store.home / "shim", env)
            spec_path = write_spec(folder, self._stage_spec(plan, config, folder))
            attempt_id = self.spool.open_stage(stage, kind, key, attempt, self._params(stage), tags={"finery.store": str(self.store.folder(kind, key))})
            follower.attach(attempt_id)
            self.listen(Event(stage, "state", {"state": "Running", "attempt": attempt, "resumed": plan.state == "resume", "log": str(folder / "log.txt")}))
            started = time.time()
            header = f"{stage} attempt {attempt} of run {self.run_id}"
            ended = Attempt(folder, [*argv, str(spec_path)], env, header).wait(
                timeout=config.timeout, follow=follower.read, stopping=lambda: self._stop
            )
        if ended.result is None:
            self.spool.close_stage(attempt_id, "KILLED" if ended.cancelled else "FAILED", {})
            return self._not_done(stage, kind, key, ended, attempt, time.time() - started, follower)
        manifest = self._manifest(plan, config, folder, ended.result, started, attempt)
        for name in ("stage.json", "result.json"):
            (folder / name).unlink(missing_ok=True)
        became = self.store.publish(manifest)
        final = self.store.manifest(kind, key)
        assert final
        self._note(final)
        self.spool.close_stage(attempt_id, "FINISHED", final.metrics)
        self._log_artifacts(attempt_id, final)
        if became == "different":
            self._warn(follower, "its outputs differ from those it made before under the same key")
        message = "the same bytes as before" if became == "same" else ""
        done = self.planner.done(final, config)
        return replace(self._finished(final, done, "Completed", message, manifest.seconds), warnings=tuple(follower.warnings))

    def _not_done(self, stage: str, kind: str, key: str, ended: Ended, attempt: int, seconds: float, follower: Follower) -> Outcome:
        message = f"{ended.error}"
        if ended.cancelled:
            return Outcome(stage, kind, "Cancelled", message, key, seconds, 130)
        if attempt <= self.retries(stage) and not ended.final:
            self._say(stage, f"attempt {attempt} failed: {message}")
            raise AttemptFailed(f"{stage}: {message}")
        return Outcome(stage, kind, "Failed", message, key, seconds, ended.exit_code or 1, warnings=tuple(follower.warnings))

    def _finished(self, manifest: Manifest, done: Done, state: OutcomeState, message: str, seconds: float) -> Outcome:
        outcome = Outcome(
            manifest.stage, manifest.kind, state, message, manifest.key, seconds,
            done=done, metrics=manifest.metrics, summary=manifest.summary,
        )  # fmt: skip
        if manifest.kind == "promote":
            decision = read_decision(done)
            if decision["verdict"] != "promote":
                reasons = [c["reason"] for c in decision["conditions"] if not c["passed"]]
                return replace(outcome, state="Refused", message="; ".join(reasons), exit_code=4)
        headline = manifest.summary.get("headline")
        return replace(outcome, message=message or (str(headline) if headline else ""))

    # what is written

    def _stage_spec(self, plan: StagePlan, config: Stage, folder: Path) -> dict[str, Any]:
        bases: dict[str, str] = {}
        for artifact in plan.inputs.values():
            bases |= artifact.bases
        return {
            "kind": plan.kind,
            "stage": plan.stage,
            "config": config.model_dump(mode="json", exclude_unset=True),
            "seed": self.planner.seed(plan.stage),
            "threads": config.resources.cpus,
            "inputs": {name: str(artifact.path) for name, artifact in plan.inputs.items()},
            "input_refs": plan.refs,
            "input_digests": {name: artifact.digest for name, artifact in plan.inputs.items()},
            "bases": bases,
            "output_dir": str(folder / "outputs"),
            "checkpoint_dir": str(folder / "checkpoints"),
            "metrics_path": str(folder / "metrics.jsonl"),
            "base_dir": str(self.planner.folder),
        }

    def _manifest(self, plan: StagePlan, config: Stage, folder: Path, result: dict[str, Any], started: float, attempt: int) -> Manifest:
        files = self.store.scan(folder)
        outputs: dict[str, dict[str, Any]] = {}
        bases: dict[str, str] = {}
        for name, kind in config.outputs().items():
            if not any(path.startswith(f"{name}/") for path in files):
                raise FineryError(f"{plan.stage}: the stage ended well but left its output {name} empty")
            outputs[name] = {"kind": kind, "digest": output_digest(files, name)}
            if kind == "model":
                bases |= self._bases(folder / "outputs" / name, plan.inputs)
        assert plan.spec and plan.key
        return Manifest(
            stage=plan.stage,
            kind=plan.kind,
            key=plan.key,
            spec=plan.spec,
            inputs={
                name: {"ref": plan.refs[name], "digest": artifact.digest, "kind": artifact.kind, "source": artifact.maker}
                for name, artifact in plan.inputs.items()
            },
            outputs=outputs,
            files=files,
            metrics=result["metrics"],
            summary=result["summary"],
            bases=bases,
            pipeline=self.name,
            seed=self.planner.seed(plan.stage),
            engine=__version__,
            started=started,
            seconds=time.time() - started,
            attempts=attempt,
        )

    def _bases(self, model: Path, inputs: dict[str, Artifact]) -> dict[str, str]:
        """Where the base of an adapter lies, and what that one sits on."""
        info = model / "model.json"
        base = (json.loads(info.read_text(encoding="utf-8")).get("base") or {}) if info.exists() else {}
        known: dict[str, str] = {}
        for artifact in inputs.values():
            place = artifact.maker if artifact.maker.count("/") == 2 and not artifact.maker.startswith((".", "/")) else str(artifact.path)
            known |= {digest: path for digest, path in artifact.bases.items()} | {artifact.digest: place}
        digest = base.get("digest")
        if digest is None:
            return {}
        return {digest: known[digest]} | {d: p for d, p in known.items() if any(d in a.bases for a in inputs.values())}

    def _note(self, manifest: Manifest) -> None:
        path = last_note(self.store, self.name, manifest.stage)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_json(path, {"kind": manifest.kind, "key": manifest.key})

    def _params(self, stage: str) -> dict[str, Any]:
        return self.planner.config(stage).model_dump(mode="json", exclude_unset=True)

    def _log_artifacts(self, attempt_id: str, manifest: Manifest) -> None:
        folder = self.store.folder(manifest.kind, manifest.key)
        for name in ("manifest.json", "log.txt"):
            self.spool.artifact(attempt_id, folder / name, "")
        for name, output in manifest.outputs.items():
            if output["kind"] == "model":
                place = self.store.output(manifest.kind, manifest.key, name)
                self.spool.model(attempt_id, f"{manifest.stage}.{name}", place, output["digest"])
            elif output["kind"] != "dataset":
                self.spool.artifact(attempt_id, self.store.output(manifest.kind, manifest.key, name), name)

    def _say(self, stage: str, message: str) -> None:
        self.listen(Event(stage, "warning", {"message": message, "passing": True}))

    def _warn(self, follower: Follower, message: str) -> None:
        follower.warnings.append(message)
        self.listen(Event(follower.stage, "warning", {"message": message}))


class Follower:
    """Follows a stage's metrics.jsonl: events go to the spool and the display, each once.

    A resumed attempt starts from the beginning of the file, so that its MLflow run shows the metrics before it.
    """

    def __init__(self, path: Path, execution: Execution, stage: str) -> None:
        self.path, self.execution, self.stage = path, execution, stage
        self.warnings: list[str] = []
        self._attempt_id = ""
        self._offset = 0
        self._seen: dict[tuple[str, int], None] = {}

    def attach(self, attempt_id: str) -> None:
        self._attempt_id = attempt_id

    def read(self) -> None:
        """Take in what was appended since the last call; a half-written line waits."""
        try:
            size = self.path.stat().st_size
        except FileNotFoundError:
            return
        if size < self._offset:
            self._offset = 0  # the stage cut the file back to its checkpoint
        if size == self._offset:
            return
        with self.path.open("rb") as file:
            file.seek(max(0, self._offset - 1))
            if self._offset and file.read(1) != b"\n":
                self._offset = 0  # cut back and grown past us meanwhile; what was seen is not taken again
                file.seek(0)
            for line in file:
                if not line.endswith(b"\n"):
                    break
                self._offset += len(line)
                self._take(json.loads(line))

    def _take(self, event: dict[str, Any]) -> None:
        kind = event.pop("type")
        if kind == "metrics":
            fresh = {name: value for name, value in event["metrics"].items() if (name, event["step"]) not in self._seen}
            self._seen |= dict.fromkeys((name, event["step"]) for name in fresh)
            if fresh:
                self.execution.spool.metrics(self._attempt_id, event["step"], event["time"], fresh)
        elif kind == "warning" and event["message"] not in self.warnings:
            self.warnings.append(event["message"])
        self.execution.listen(Event(self.stage, kind, event))


def read_decision(done: Done) -> dict[str, Any]:
    """A promote stage's decision."""
    return dict(json.loads((done.outputs["decision"].path / "decision.json").read_text(encoding="utf-8")))


def exit_code(outcomes: dict[str, Outcome]) -> int:
    """The run's exit code: interrupted 130, unhealthy 5, bad input 2, failed 1, refused 4, blocked by a gate 3, else 0."""
    codes = {outcome.exit_code for outcome in outcomes.values()}
    for code in (130, 5, 2, 1, 4):
        if code in codes:
            return code
    if any(outcome.blocked_by_gate for outcome in outcomes.values()):
        return 3
    return next(iter(sorted(codes - {0})), 0)


__all__ = ["AttemptFailed", "Event", "Execution", "Outcome", "Store", "exit_code", "read_decision"]
