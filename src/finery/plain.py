"""Running a pipeline's stages in threads, and what stops them: all that needs no Prefect.

finery.flow gives the same `Execution` to Prefect, and comes back here for what Prefect did not start.
"""

from __future__ import annotations

import contextlib
import queue
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any, Protocol

from finery.outcome import AttemptFailed


class Outcome(Protocol):
    """How a stage ended; `state` is one of Completed, Cached, Skipped, Blocked, Refused, Failed, Cancelled."""

    @property
    def state(self) -> str: ...
    @property
    def message(self) -> str: ...


class Execution(Protocol):
    """What does the work; finery.execute has the real one."""

    name: str
    run_id: str
    order: list[str]
    """The stages, each after those it needs."""
    edges: dict[str, list[str]]
    """Stage -> the stages it needs."""

    def retries(self, stage: str) -> int: ...
    def retry_delay(self, stage: str) -> float: ...
    def tags(self, stage: str) -> list[str]: ...
    def attempt(self, stage: str, attempt: int) -> Any:
        """Make attempt number `attempt` (from 1), or wait for it if it was begun elsewhere; its Outcome.

        Blocking and thread-safe; every need of the stage has an outcome. Raises AttemptFailed when another may be made.
        """

    def outcome(self, stage: str) -> Any | None: ...
    def interrupt(self, force: bool) -> None:
        """Checkpoint and stop; with `force`, kill. What has not begun ends Cancelled. Safe from any thread."""


Tell = Callable[[str], None]


def to_stderr(message: str) -> None:
    print(message, file=sys.stderr, flush=True)


def run_plain(execution: Execution, *, tell: Tell = to_stderr, board: Board | None = None) -> dict[str, Any]:
    """Run what has no outcome yet without Prefect: branches side by side, retries, Ctrl-C as in `run_flow`.

    Returns:
        Every stage's outcome, in the line's order.
    """
    if board is None:
        board = Board(execution)
        with interruptible(execution, board.interrupted, tell):
            return run_plain(execution, board=board)
    ended = {stage: threading.Event() for stage in execution.order}

    def work(stage: str) -> None:
        try:
            for need in execution.edges[stage]:
                ended[need].wait()
            if execution.outcome(stage) is None:
                board.run(stage)
        finally:
            ended[stage].set()

    for stage in execution.order:
        threading.Thread(target=work, args=(stage,), name=stage, daemon=True).start()
    for event in ended.values():
        event.wait()
    board.raise_error()
    return {stage: execution.outcome(stage) for stage in execution.order}


class Board:
    """What the threads of one run share: the interruption, and the first error that is nobody's expected failure."""

    def __init__(self, execution: Execution) -> None:
        self.execution = execution
        self.interrupted = threading.Event()
        self.error: BaseException | None = None

    def attempt(self, stage: str, number: int, waited: float = 0.0) -> Any:
        """One attempt, a repeat after its delay, of which `waited` seconds have passed."""
        if number > 1:
            self.interrupted.wait(max(0.0, self.execution.retry_delay(stage) - waited))
        try:
            return self.execution.attempt(stage, number)
        except AttemptFailed:
            raise
        except BaseException as error:
            if self.error is None:
                self.error = error
                self.interrupted.set()
                self.execution.interrupt(force=False)
            raise

    def run(self, stage: str) -> None:
        """All attempts of a stage."""
        for number in range(1, self.execution.retries(stage) + 2):
            try:
                self.attempt(stage, number)
                return
            except AttemptFailed as failed:
                last = failed
            except BaseException:
                return  # kept on the board
        if self.error is None:
            self.error = RuntimeError(f"{stage}: failed after its last retry, and the execution says no more ({last})")

    def all_ended(self) -> bool:
        return all(self.execution.outcome(stage) is not None for stage in self.execution.order)

    def raise_error(self) -> None:
        if self.error is not None:
            raise self.error


@contextlib.contextmanager
def interruptible(execution: Execution, interrupted: threading.Event, tell: Tell) -> Iterator[None]:
    """Ctrl-C and SIGTERM interrupt the execution while the body runs; they raise nothing anywhere."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    pressed: queue.SimpleQueue[bool] = queue.SimpleQueue()  # its put is safe inside a signal handler

    def on_signal(number: int, frame: FrameType | None) -> None:
        pressed.put(True)

    def relay() -> None:
        force = False
        while pressed.get():
            tell(
                "killing the running stages" if force else "stopping: stages checkpoint first; Ctrl-C again kills them"
            )
            interrupted.set()
            execution.interrupt(force=force)
            force = True

    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    caught = [number for number, handler in before.items() if handler not in (signal.SIG_IGN, None)]
    relaying = threading.Thread(target=relay, name="interrupts", daemon=True)
    relaying.start()
    for number in caught:
        signal.signal(number, on_signal)
    try:
        yield
    finally:
        for number in caught:
            signal.signal(number, before[number])
        pressed.put(False)
        relaying.join()
