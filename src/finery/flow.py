"""One generic Prefect flow that runs any pipeline: each stage is a task run named after it.

Prefect schedules, retries and shows; how a stage ends is decided by the `Execution` alone. So a Prefect server that is
lost in the middle costs the picture, never the run: what it did not start is started here, and the user is told.

This is the only module that imports prefect, and it does so inside functions.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from finery.errors import FineryError
from finery.outcome import AttemptFailed
from finery.plain import Board, Execution, Outcome, Tell, interruptible, run_plain, to_stderr
from finery.servers import PrefectServer

SETTLE = 30.0
"""Seconds Prefect has, once every stage has ended, to write down how."""
PREFECT_DELAY = 2.0
"""Prefect sleeps a retry's delay where Ctrl-C cannot wake it, so it gets at most this much; the rest is waited here."""
_GREEN = ("Completed", "Cached", "Skipped")


Summary = Callable[[Mapping[str, Any]], str]


def run_flow(
    execution: Execution, server: PrefectServer, *, summary: Summary | None = None, tell: Tell = to_stderr
) -> dict[str, Any]:
    """Run a pipeline as a Prefect flow run; Ctrl-C or SIGTERM once: checkpoint, then stop; twice: kill.

    Args:
        server: started; this waits until it is ready.
        summary: makes the Markdown of the run's artifact, given every stage's outcome.
        tell: shows the user a warning.

    Returns:
        Every stage's outcome, in the line's order.

    Raises:
        Exception: what an attempt raised that is no AttemptFailed; the rest is stopped first.
    """
    board = Board(execution)
    flow = _FlowThread(board, server, summary)
    with interruptible(execution, board.interrupted, tell):
        flow.start()
        lost = _watch(flow, board, server)
        board.raise_error()
        if lost:
            tell(f"warning: Prefect lost track of this run: {lost}. The run goes on without it")
        return run_plain(execution, board=board)


def _watch(flow: _FlowThread, board: Board, server: PrefectServer) -> str | None:
    """Wait until the flow has ended, or until Prefect is lost: why it is, or None."""
    all_ended: float | None = None
    while not flow.ended.wait(0.2):
        if gone := server.failure():
            return gone
        if board.interrupted.is_set() and not flow.began.is_set():
            return None  # stopped before Prefect was up: nothing there to keep right
        if all_ended is None and board.all_ended():
            all_ended = time.monotonic()
        if all_ended is not None and time.monotonic() > all_ended + SETTLE:
            return f"its server took longer than {SETTLE:g} s to note the end"
    return flow.lost


class _FlowThread(threading.Thread):
    """Prefect works in a thread of its own: Ctrl-C never lands inside it, and a stuck server is left behind."""

    def __init__(self, board: Board, server: PrefectServer, summary: Summary | None) -> None:
        super().__init__(name="prefect-flow", daemon=True)
        self._board, self._server, self._summary = board, server, summary
        self.lost: str | None = None
        self.began, self.ended = threading.Event(), threading.Event()

    def run(self) -> None:
        try:
            self.lost = self._run()
        except Exception as error:  # whatever Prefect raises: the caller tells the user and ends the run without it
            self.lost = str(error) if isinstance(error, FineryError) else f"{type(error).__name__}: {error}"
        finally:
            self.ended.set()

    def _run(self) -> str | None:
        _import_prefect(self._server)
        self._server.ready()
        from prefect.settings import temporary_settings

        with temporary_settings(_settings(self._server)):
            self.began.set()
            if self._server.own:
                _bury(self._server.folder / "live")
            _give_up_early(self._server)
            flow_run_id = _run_in_prefect(self._board, self._server.folder / "live", self._summary)
            return _settle(flow_run_id, self._board.execution)


def _import_prefect(server: PrefectServer) -> None:
    """Import prefect so that it writes neither to the terminal nor to telemetry, but to client.log."""
    os.environ.setdefault("DO_NOT_TRACK", "1")
    if "prefect.main" not in sys.modules:
        root = logging.getLogger()
        handlers, level = list(root.handlers), root.level
        home = os.environ.get("PREFECT_HOME")
        if server.own:  # no profile of the user's changes what an own server is asked
            os.environ["PREFECT_HOME"] = str(server.folder.resolve())
        try:
            import prefect.main  # noqa: F401  (sets up logging, the root logger's too)
        finally:
            if server.own:
                os.environ.pop("PREFECT_HOME")
            if home is not None:
                os.environ["PREFECT_HOME"] = home
        root.handlers[:] = handlers
        root.setLevel(level)
    logging.raiseExceptions = False  # else each line that a lost server does not take is written to stderr
    server.folder.mkdir(parents=True, exist_ok=True)
    to_file = logging.FileHandler(server.folder / "client.log", delay=True)
    to_file.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s %(message)s"))
    for name in ("prefect", "prefect._internal", "EventsWorker", "APILogWorker"):
        logger = logging.getLogger(name)
        logger.handlers, logger.propagate = [to_file], False


def _settings(server: PrefectServer) -> dict[Any, Any]:
    from prefect import settings

    wanted: dict[str, Any] = dict(server.client_settings())
    if server.own:
        wanted |= {
            "PREFECT_FLOWS_HEARTBEAT_FREQUENCY": None,  # nobody listens, and its thread costs each run a second
            "PREFECT_CLIENT_MAX_RETRIES": 2,
            "PREFECT_API_REQUEST_TIMEOUT": 20.0,
            "PREFECT_CLIENT_SERVER_VERSION_CHECK_ENABLED": False,
        }
    wanted |= {"PREFECT_RESULTS_PERSIST_BY_DEFAULT": False, "PREFECT_LOGGING_TO_API_WHEN_MISSING_FLOW": "ignore"}
    return {getattr(settings, name): value for name, value in wanted.items()}


def _give_up_early(server: PrefectServer) -> None:
    """Prefect tries to send each task state eleven times, 8 s in all: with a lost server, the end took minutes."""
    from prefect.events.clients import PrefectEventsClient
    from prefect.events.worker import EventsWorker, emit_events_to_cloud

    if not emit_events_to_cloud():
        tries = 1 if server.own else 4
        EventsWorker.set_client_override(PrefectEventsClient, api_url=server.api_url, reconnection_attempts=tries)


def _run_in_prefect(board: Board, live: Path, summary: Summary | None) -> Any:
    """Run the flow to its end; the id of its run."""
    from prefect import allow_failure, flow, runtime, task
    from prefect.cache_policies import NO_CACHE
    from prefect.task_runners import ThreadPoolTaskRunner

    execution, ids = board.execution, []

    def may_repeat(_task: Any, _run: Any, state: Any) -> bool:
        return isinstance(state.data, AttemptFailed)

    @task(cache_policy=NO_CACHE, persist_result=False, retry_condition_fn=may_repeat)  # type: ignore[untyped-decorator]
    def run_stage(stage: str) -> Any:
        waited = min(PREFECT_DELAY, execution.retry_delay(stage))
        return _task_state(board.attempt(stage, runtime.task_run.run_count, waited))

    @flow(  # type: ignore[untyped-decorator]
        name="finery",
        flow_run_name=f"{execution.name}-{execution.run_id}",
        task_runner=ThreadPoolTaskRunner(),
        persist_result=False,
        validate_parameters=False,
    )
    def finery(pipeline: str, run: str) -> Any:
        ids.append(runtime.flow_run.id)
        with _alive(live / ids[0]):
            futures: dict[str, Any] = {}
            for stage in execution.order:
                futures[stage] = run_stage.with_options(
                    name=stage,
                    task_run_name=stage,
                    tags=execution.tags(stage),
                    retries=execution.retries(stage),
                    retry_delay_seconds=min(PREFECT_DELAY, execution.retry_delay(stage)),
                ).submit(stage, wait_for=[allow_failure(futures[need]) for need in execution.edges[stage]])
            for future in futures.values():
                future.wait()
        outcomes = {stage: execution.outcome(stage) for stage in execution.order}
        if missing := [stage for stage, outcome in outcomes.items() if outcome is None]:
            raise FineryError(f"it did not start {', '.join(missing)}")
        if summary is not None:
            _publish(execution, summary(outcomes))
        return _flow_state(outcomes)

    finery(pipeline=execution.name, run=execution.run_id, return_state=True)
    return ids[0]


def _task_state(outcome: Outcome) -> Any:
    """A state that is green only for what is good. What is not must be of the type FAILED: `allow_failure` lets the

    stages behind it be asked only then, and it is the execution that says what becomes of them.
    """
    from prefect.client.schemas.objects import State, StateType

    kind = StateType.COMPLETED if outcome.state in _GREEN else StateType.FAILED
    return State(type=kind, name=outcome.state, message=outcome.message or None)


def _flow_state(outcomes: Mapping[str, Any]) -> Any:
    from prefect.client.schemas.objects import State, StateType

    for name in ("Failed", "Cancelled", "Refused", "Blocked"):
        said = [f"{stage}: {outcome.message}" for stage, outcome in outcomes.items() if outcome.state == name]
        if said:
            kind = StateType.CANCELLED if name == "Cancelled" else StateType.FAILED
            return State(type=kind, name=name, message="; ".join(said))
    return State(type=StateType.COMPLETED, name="Completed", message=f"{len(outcomes)} stages")


def _publish(execution: Execution, markdown: str) -> None:
    from prefect.artifacts import create_markdown_artifact

    key = re.sub(r"[^a-z0-9]+", "-", f"finery-{execution.name}".lower()).strip("-")
    create_markdown_artifact(key=key, markdown=markdown, description=f"{execution.name}, run {execution.run_id}")


def _settle(flow_run_id: Any, execution: Execution) -> str | None:
    """Task states travel to the server in the background: wait until it has written them; what is amiss, or None."""
    from prefect.client.orchestration import get_client
    from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterId
    from prefect.events.worker import EventsWorker
    from prefect.logging.handlers import APILogWorker

    for worker in (EventsWorker, APILogWorker):
        worker.drain_all(timeout=SETTLE / 3)
    chosen = FlowRunFilter(id=FlowRunFilterId(any_=[flow_run_id]))
    end = time.monotonic() + SETTLE / 3
    with get_client(sync_client=True) as client:
        while True:
            runs = client.read_task_runs(flow_run_filter=chosen)
            open_ones = len(execution.order) - sum(run.state is not None and run.state.is_final() for run in runs)
            if open_ones <= 0 or time.monotonic() > end:
                return f"{open_ones} of its task runs are not written down" if open_ones > 0 else None
            time.sleep(0.1)


@contextlib.contextmanager
def _alive(mark: Path) -> Iterator[None]:
    """Hold the file `mark` locked for as long as this process lives, and remove it in the end."""
    mark.parent.mkdir(parents=True, exist_ok=True)
    fresh = mark.parent / f".{mark.name}"
    with fresh.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        fresh.rename(mark)  # so that it is never seen unlocked
        yield
        mark.unlink()


def _bury(live: Path) -> None:
    """A killed engine leaves its flow run Running for ever in the project's own database: mark it Crashed."""
    from prefect.client.orchestration import get_client
    from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterId
    from prefect.states import Crashed

    for mark in live.glob("[!.]*"):
        with mark.open() as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                continue  # its engine lives
            state = Crashed(message="finery was killed")
            with get_client(sync_client=True) as client:
                for run in client.read_task_runs(flow_run_filter=FlowRunFilter(id=FlowRunFilterId(any_=[mark.name]))):
                    if run.state is None or not run.state.is_final():
                        client.set_task_run_state(run.id, state, force=True)
                client.set_flow_run_state(mark.name, state, force=True)
            mark.unlink(missing_ok=True)
