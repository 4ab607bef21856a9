"""`finery run`: resolve, plan, execute under Prefect, promote, report."""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from finery import runs
from finery.content import write_json
from finery.errors import InputError
from finery.execute import Execution
from finery.load import Loaded, load
from finery.outcome import AttemptFailed, Event, Outcome
from finery.plan import Planner, StagePlan
from finery.progress import Silent, display, stage_table
from finery.promotions import apply_promotions, tracking_uri
from finery.schemas.reference import HubRef, RegistryRef, parse_reference, uses
from finery.slots import check
from finery.spool import NullSpool, Spool, without_password
from finery.store import Store

if TYPE_CHECKING:
    from finery.servers import PrefectServer
    from finery.tracking.sender import Tracker

FLUSH = 60.0
"""Seconds that MLflow gets at the end of a run to take what is unsent."""
STATUSES: dict[int, Literal["FINISHED", "FAILED", "KILLED"]] = {
    0: "FINISHED",
    3: "FINISHED",
    4: "FINISHED",
    130: "KILLED",
}
"""MLflow's status of a run by its exit code: a gate that blocks and a refused promotion are findings, not failures."""
SETTLED = ("cached", "skip", "blocked")


@dataclass(frozen=True)
class Options:
    """What the command line says.

    Attributes:
        from_stage: rerun this stage and what follows.
        only: run this stage alone; its inputs must be in the store.
        verify: check hashes of what the store has, not only sizes.
        plain: without Prefect and MLflow.
        show: False keeps the terminal still (`--json`).
    """

    overrides: tuple[str, ...] = ()
    from_stage: str | None = None
    only: str | None = None
    verify: bool = False
    plain: bool = False
    show: bool = True


def run(path: Path, options: Options) -> dict[str, Any]:
    """Run a pipeline and return its summary.

    Raises:
        InputError: what the user wrote or asked for cannot be used.
    """
    started = time.time()
    loaded = load(path, options.overrides)
    home = runs.home_of(loaded.project)
    for name, stage in loaded.pipeline.stages.items():
        check(name, stage.resources.cpus, stage.resources.gpus)
    store = Store(home)
    store.make()
    _resolve(loaded, home)
    planner = Planner(loaded, store, rerun=_rerun(loaded, options.from_stage), verify=options.verify)
    plans = planner.all()
    if options.only:
        loaded = planner.loaded = _only(loaded, options.only, plans)
    _explain_unresolved(plans, loaded)
    settled = all(plans[name].state in SETTLED for name in loaded.order)
    run_id, run_dir = runs.new_run(home, loaded)
    spool = NullSpool() if settled or options.plain else Spool(run_dir)
    journal = _Journal(run_dir)
    screen = display({name: planner.config(name).kind for name in loaded.order}) if options.show else Silent()

    def listen(event: Event) -> None:
        journal(event, execution)
        screen(event)

    execution = Execution(loaded, planner, run_id, run_dir, spool, listen=listen)
    tracker = None if settled or options.plain else _start_tracking(execution, home)
    with screen:
        outcomes = _execute(execution, home, screen.say, plain=settled or options.plain)
    planner.cache.save()
    if tracker and any(outcome.kind == "promote" and outcome.state == "Completed" for outcome in outcomes.values()):
        tracker.flush(FLUSH)  # a promoted version links to its stage's run, which must be there
    promotions = apply_promotions(execution, outcomes, home)
    result = runs.summary(loaded, run_id, outcomes, time.time() - started, promotions)
    write_json(run_dir / "summary.json", result)
    from finery.report import write_report

    result["report"] = str(write_report(run_dir, loaded, store))
    if tracker:
        _finish_tracking(execution, tracker, result)
    if (uri := tracking_uri(loaded, home)) and (tracker or (home / "mlflow.db").exists()):
        result["ui"] = ui_commands(home, without_password(uri))
    return result


def _rerun(loaded: Loaded, start: str | None) -> set[str]:
    """`start` and all that follows from it."""
    if start is None:
        return set()
    _known(loaded, start, "--from")
    found = {start}
    for name in loaded.order:
        if found & set(loaded.edges[name]):
            found.add(name)
    return found


def _known(loaded: Loaded, stage: str, option: str) -> None:
    if stage not in loaded.edges:
        import difflib

        close = difflib.get_close_matches(stage, loaded.order, 1)
        raise InputError(
            f"{option} {stage}: no such stage"
            + (f"; did you mean {close[0]}?" if close else f"; there are {', '.join(loaded.order)}")
        )


def _only(loaded: Loaded, stage: str, plans: dict[str, StagePlan]) -> Loaded:
    """The part of the line that one stage needs, all of which but itself must be done."""
    _known(loaded, stage, "--only")
    needed, ahead = {stage}, [stage]
    while ahead:
        for need in loaded.edges[ahead.pop()]:
            if need not in needed:
                needed.add(need)
                ahead.append(need)
    missing = [name for name in loaded.order if name in needed - {stage} and plans[name].done is None]
    if missing:
        raise InputError(
            f"--only {stage} needs {', '.join(missing)}, which the store does not have; run without --only first"
        )
    order = [name for name in loaded.order if name in needed]
    return replace(loaded, order=order, edges={name: loaded.edges[name] for name in order})


def _resolve(loaded: Loaded, home: Path) -> None:
    from finery.resolve import Lock, resolve

    outside = [
        parse_reference(use.text)
        for stage in loaded.pipeline.stages.values()
        for use in uses(stage)
        if not use.ref.local_only
    ]
    if not any(isinstance(reference, HubRef | RegistryRef) for reference in outside):
        return

    def alias(name: str, alias: str) -> dict[str, Any]:
        from finery.registry import resolve_alias

        version, digest, source = resolve_alias(tracking_uri(loaded, home), name, alias, home)
        return {"version": str(version), "digest": digest, "source": str(source)}

    resolve(loaded.pipeline, Lock.read(loaded.path), alias=alias)


def _explain_unresolved(plans: dict[str, StagePlan], loaded: Loaded) -> None:
    for name in loaded.order:
        if plans[name].state == "unresolved":
            raise InputError(f"stages.{name}: {'; '.join(plans[name].why)}")


class _Journal:
    """Remembers, in the run's folder, where each stage's log lies as soon as it begins."""

    def __init__(self, run_dir: Path) -> None:
        self._path = run_dir / "stages.json"
        self._lock = threading.Lock()
        self._known: dict[str, list[str]] = {}

    def __call__(self, event: Event, execution: Execution) -> None:
        if event.type != "state":
            return
        outcome = execution.outcome(event.stage)
        if log := event.data.get("log"):
            folder = Path(log).parent
            entry = [folder.parent.name, folder.name.removesuffix(".partial")]
        elif outcome and outcome.key:
            entry = [outcome.kind, outcome.key]
        else:
            return
        with self._lock:
            if self._known.get(event.stage) != entry:
                self._known[event.stage] = entry
                write_json(self._path, self._known)


def _execute(execution: Execution, home: Path, tell: Callable[[str], None], *, plain: bool) -> dict[str, Outcome]:
    from finery.flow import run_flow
    from finery.plain import run_plain

    if plain:
        return run_plain(execution, tell=tell)
    from finery.servers import PrefectServer

    with PrefectServer(home) as server:
        Forerunner(execution, server).start()
        return run_flow(execution, server, summary=lambda outcomes: _markdown(execution, outcomes), tell=tell)


def _markdown(execution: Execution, outcomes: Mapping[str, Outcome]) -> str:
    from finery.words import markdown

    return markdown(runs.summary(execution.loaded, execution.run_id, outcomes, 0.0, []))


class Forerunner(threading.Thread):
    """Starts stages that are ready while the Prefect server is still coming up; the flow then joins them."""

    def __init__(self, execution: Execution, server: PrefectServer) -> None:
        super().__init__(name="forerunner", daemon=True)
        self._execution, self._server = execution, server

    def run(self) -> None:
        while not self._server.settled and not self._execution.interrupted:
            for stage in self._execution.ready():
                threading.Thread(target=self._attempt, args=(stage,), name=stage, daemon=True).start()
            time.sleep(0.05)

    def _attempt(self, stage: str) -> None:
        try:
            self._execution.attempt(stage, 1)
        except AttemptFailed:
            return  # the flow is told the same and makes the next attempt


def _start_tracking(execution: Execution, home: Path) -> Tracker:
    from finery.tracking.sender import Tracker

    loaded, uri = execution.loaded, tracking_uri(execution.loaded, home)
    tracker = Tracker(execution.spool, uri, earlier=[path for path in (home / "runs").iterdir() if path.is_dir()])
    execution.spool.open_run(
        loaded.pipeline.name,
        experiment=loaded.pipeline.tracking.experiment,
        uri=uri,
        tags={"finery.pipeline_file": loaded.path.name},
        params={"seed": loaded.pipeline.seed, "set": loaded.overrides},
    )
    execution.spool.artifact(execution.run_id, execution.run_dir / "pipeline.yaml")
    tracker.start()
    return tracker


def _finish_tracking(execution: Execution, tracker: Tracker, result: dict[str, Any]) -> None:
    """Give MLflow the summary and the report, and wait a while; what it does not take is kept and sent later."""
    from finery.words import markdown

    spool = execution.spool
    spool.artifact(execution.run_id, execution.run_dir / "summary.json")
    spool.artifact(execution.run_id, Path(result["report"]))
    spool.artifact_text(execution.run_id, markdown(result), "summary.md")
    spool.close_run(STATUSES.get(int(result["exit_code"]), "FAILED"))
    left = tracker.flush(FLUSH)
    tracker.stop()
    spool.close()
    warnings = list(tracker.warnings)
    if left:
        warnings.append(
            f"{left} events are not in MLflow yet; they are kept, and the next run or finery sync sends them"
        )
    result["tracking"] = {"uri": without_password(tracker.uri), "unsent": left, "warnings": warnings}


def ui_commands(home: Path, uri: str) -> list[str]:
    """How to look at a run in MLflow's and Prefect's own pages: each server ends with the run that started it."""
    bin_dir = Path(sys.executable).parent
    commands = (
        [f"  {bin_dir}/mlflow server --host 127.0.0.1 --backend-store-uri {uri}"] if uri.startswith("sqlite:") else []
    )
    if "PREFECT_API_URL" not in os.environ:
        database = f"sqlite+aiosqlite:///{home / 'prefect' / 'prefect.db'}"
        commands.append(f"  PREFECT_API_DATABASE_CONNECTION_URL={database} {bin_dir}/prefect server start")
    return ["to look at it in their UIs:", *commands] if commands else []


def main(path: Path, options: Options, *, as_json: bool) -> int:
    """Run and print; the exit code of the command."""
    result = run(path, options)
    if as_json:
        print(json.dumps(result, ensure_ascii=False, indent=1))
    else:
        print(final_words(result))
    return int(result["exit_code"])


def final_words(result: dict[str, Any]) -> str:
    """What is printed at the end of a run."""
    from finery.words import closing_lines

    lines = ["", stage_table(result), "", *closing_lines(result)]
    tracking = result.get("tracking", {})
    lines += [f"warning: {warning}" for warning in tracking.get("warnings", [])]
    lines.append(f"report: {result['report']}")
    if tracking:
        lines.append(f"tracking: {tracking['uri']}")
    lines += result.get("ui", [])
    return "\n".join(lines)
