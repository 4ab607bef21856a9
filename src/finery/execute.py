"""One run of a pipeline: each stage planned, run, published and reported, in whatever order the flow calls.

`Execution` knows nothing of Prefect; finery.flow calls `attempt` for each stage, or `run_plain` does.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from finery.content import write_json
from finery.errors import FineryError
from finery.follow import Follower
from finery.launch import Attempt, Ended, command, environment, write_spec
from finery.load import Loaded
from finery.outcome import AttemptFailed, Event, Outcome, OutcomeState, read_decision
from finery.plan import Done, Planner, StagePlan, last_note
from finery.record import child_spec, manifest_of
from finery.schemas.base import Stage
from finery.slots import slots
from finery.store import Manifest

if TYPE_CHECKING:
    from finery.spool import Spool


class Execution:
    """Runs the stages of one pipeline; thread-safe, and each stage's attempt is made once however often it is asked.

    Args:
        listen: called with every Event, from any thread.
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
        return [self.name, self.planner.config(stage).kind]

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
            except OSError as error:
                self._record(self._failed(stage, self._trouble(error)))
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
        data = {
            "state": outcome.state,
            "message": outcome.message,
            "seconds": outcome.seconds,
            "metrics": outcome.metrics,
            "summary": outcome.summary,
        }
        self.listen(Event(outcome.stage, "state", data))

    def _failed(self, stage: str, message: str, code: int = 1) -> Outcome:
        return Outcome(stage, self.planner.config(stage).kind, "Failed", message, exit_code=code)

    def _attempt(self, stage: str, attempt: int) -> Outcome:
        config = self.planner.config(stage)
        kind: str = config.kind
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
        waiting = partial(self._say, stage, "waiting for another run of the same stage")
        with self.store.lock(kind, plan.key, waiting=waiting, stopped=lambda: self.interrupted) as held:
            if not held:
                return Outcome(stage, kind, "Cancelled", "stopped by the user", exit_code=130)
            self.store.finish(kind, plan.key)
            found = self.store.manifest(kind, plan.key)
            if found and stage not in self.planner.rerun:
                return self._cached(plan, self.planner.done(found, config))
            return self._run(plan, config, attempt)

    def _cached(self, plan: StagePlan, done: Done) -> Outcome:
        manifest = done.manifest
        assert manifest
        tags = {"finery.store": str(self.store.folder(plan.kind, manifest.key))}
        attempt_id = self.spool.open_stage(
            plan.stage, plan.kind, manifest.key, 0, self._params(plan.stage), cached=True, tags=tags
        )
        self.spool.close_stage(attempt_id, "FINISHED", manifest.metrics)
        self._note(manifest)
        return self._finished(manifest, done, "Cached", "from the store", 0.0)

    def _run(self, plan: StagePlan, config: Stage, attempt: int) -> Outcome:
        stage, kind, key = plan.stage, plan.kind, str(plan.key)
        resources = config.resources
        with slots(
            self.store.home,
            resources.cpus,
            resources.gpus,
            stopped=lambda: self.interrupted,
            waiting=lambda: self._say(stage, "waiting for a slot"),
        ) as gpus:
            if self._stop:
                return Outcome(stage, kind, "Cancelled", "stopped by the user", exit_code=130)
            assert plan.spec is not None
            folder = self.store.open_partial(kind, key, plan.spec)
            env = environment(threads=resources.cpus, gpus=gpus, network=config.network)
            argv = command(self.planner.python(config), self.store.home / "shim", env)
            spec_path = write_spec(folder, child_spec(self.planner, plan, folder))
            attempt_id = self.spool.open_stage(
                stage, kind, key, attempt, self._params(stage), tags={"finery.store": str(self.store.folder(kind, key))}
            )
            follower = Follower(folder / "metrics.jsonl", stage, attempt_id, self.spool, self.listen)
            told = {
                "state": "Running",
                "attempt": attempt,
                "resumed": plan.state == "resume",
                "log": str(folder / "log.txt"),
            }
            self.listen(Event(stage, "state", told))
            started = time.time()
            header = f"{stage} attempt {attempt} of run {self.run_id}"
            ended = Attempt(folder, [*argv, str(spec_path)], env, header).wait(
                timeout=config.timeout, follow=follower.read, stopping=lambda: self._stop
            )
        if ended.result is None:
            self.spool.close_stage(attempt_id, "KILLED" if ended.cancelled else "FAILED", {})
            return self._not_done(stage, kind, key, ended, attempt, time.time() - started, follower)
        try:
            manifest = manifest_of(self.planner, plan, folder, ended.result, started, attempt)
            for name in ("stage.json", "result.json"):
                (folder / name).unlink(missing_ok=True)
            became = self.store.publish(manifest)
        except (FineryError, OSError) as error:
            self.spool.close_stage(attempt_id, "FAILED", {})
            message = str(error) if isinstance(error, FineryError) else self._trouble(error)
            return Outcome(
                stage, kind, "Failed", message, key, time.time() - started, 1, warnings=tuple(follower.warnings)
            )
        final = self.store.manifest(kind, key)
        assert final
        self._note(final)
        self.spool.close_stage(attempt_id, "FINISHED", final.metrics)
        self._log_artifacts(attempt_id, final)
        if became == "different":
            self._warn(follower, "its outputs differ from those it made before under the same key")
        message = "the same bytes as before" if became == "same" else ""
        done = self.planner.done(final, config)
        return replace(
            self._finished(final, done, "Completed", message, manifest.seconds), warnings=tuple(follower.warnings)
        )

    def _not_done(
        self, stage: str, kind: str, key: str, ended: Ended, attempt: int, seconds: float, follower: Follower
    ) -> Outcome:
        message = f"{ended.error}"
        if ended.cancelled:
            return Outcome(stage, kind, "Cancelled", message, key, seconds, 130)
        if attempt <= self.retries(stage) and not ended.final:
            self._say(stage, f"attempt {attempt} failed: {message}")
            raise AttemptFailed(f"{stage}: {message}")
        return Outcome(
            stage, kind, "Failed", message, key, seconds, ended.exit_code or 1, warnings=tuple(follower.warnings)
        )

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

    def _trouble(self, error: OSError) -> str:
        return f"{error.filename or self.store.root}: {error.strerror}; free space, or set FINERY_HOME to another place"

    def _say(self, stage: str, message: str) -> None:
        self.listen(Event(stage, "warning", {"message": message}))

    def _warn(self, follower: Follower, message: str) -> None:
        follower.warnings.append(message)
        self.listen(Event(follower.stage, "warning", {"message": message}))
