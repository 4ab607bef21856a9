"""The sender: a thread of the engine that keeps MLflow up with the journal, however long MLflow is away."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from finery.spool import Spool, SpoolBusy, journal_of, read_journal, without_password
from finery.tracking.connect import check_uri, connect, prepare_environment
from finery.tracking.replay import Replay, read_cursor
from finery.tracking.runs import Forgotten, end_lost_runs

if TYPE_CHECKING:
    from mlflow import MlflowClient

POLL = 0.5
"""Seconds between looks at the journal; metrics that come together go in one request."""
PATIENCE = 15.0
"""The longest pause between two tries, in seconds; the first is half a second, each next one twice as long."""


class Tracker:
    """Sends a live run's journal, and first of all ends and sends what earlier runs of the project left.

    Nothing that happens in MLflow is raised into the engine: trouble becomes a warning of the spool, and what was not
    sent stays in the journal. `failed` says why the sender gave up, for a fault that trying again cannot mend; `away`
    is true while MLflow cannot be used.

    Args:
        earlier: run folders of the project, this run's among them or not; see `sync`.

    Raises:
        InputError: the URI is not accepted.
    """

    def __init__(self, spool: Spool, uri: str, *, earlier: Iterable[Path] = ()) -> None:
        self.spool, self.uri = spool, check_uri(uri)
        self.failed: str | None = None
        self.away = False
        self._tries = 0
        self._earlier = [folder for folder in earlier if folder != spool.run_dir]
        self._swept = False
        self._wake, self._stop, self._moved = threading.Event(), threading.Event(), threading.Condition()
        self._thread = threading.Thread(target=self._guarded, name="finery-tracker", daemon=True)

    @property
    def warnings(self) -> list[str]:
        """What went wrong so far, of the spool and of the sender."""
        return list(self.spool.warnings)

    def start(self) -> None:
        """Begin; mlflow is imported by the thread (2 to 4 s), not by the caller."""
        for message in prepare_environment():
            self.spool.warn(message)
        self._thread.start()

    def flush(self, timeout: float) -> int:
        """Wait until MLflow has all that was spooled; how many events are still unsent.

        It ends after `timeout` seconds, or as soon as one more try has found MLflow away.
        """
        deadline, tries = time.monotonic() + timeout, self._tries
        self._wake.set()
        while (left := self.remaining()) and self._thread.is_alive() and (wait := deadline - time.monotonic()) > 0:
            if self.away and self._tries > tries:
                return left  # it was tried once more; the next run and `finery sync` go on, the user does not wait
            with self._moved:
                self._moved.wait(min(wait, 0.2))
        return left

    def remaining(self) -> int:
        """Events that MLflow does not have yet, as the cursor on disk says."""
        return unsent(self.spool.run_dir, self.uri)

    def stop(self, timeout: float = 5.0) -> None:
        """End the thread; a request that is under way gets `timeout` seconds."""
        self._stop.set()
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join(timeout)

    # the thread

    def _guarded(self) -> None:
        try:
            self._work()
        except Exception as error:
            # the last line of defence: a fault in the sender or in mlflow ends the sender, never the run
            self.failed = without_password(f"{type(error).__name__}: {error}")
            self.spool.warn(
                f"tracking stopped: {self.failed}; the log is kept in {self.spool.path.parent}, `finery sync` sends it"
            )

    def _work(self) -> None:
        trouble = _trouble()
        client: MlflowClient | None = None
        replay: Replay | None = None
        pause = POLL
        while not self._stop.is_set():
            try:
                client = client or connect(self.uri)
                replay = replay or Replay(self.spool, self.uri, client)
                replay.send()
                self._catch_up(client)
                pause = POLL
                if self.away:
                    self.spool.warn(f"MLflow at {without_password(self.uri)} is back; what was kept has been sent")
                    self.away = False
            except trouble as error:
                if not self.away:
                    self.spool.warn(f"{_away(self.uri, error)}; the log is kept and sent later")
                self.away, pause = True, min(PATIENCE, pause * 2)
                if replay:
                    replay.runs.forget()
            self._tries += 1
            with self._moved:
                self._moved.notify_all()
            self._wake.wait(pause)
            self._wake.clear()

    def _catch_up(self, client: MlflowClient) -> None:
        """End and send what earlier runs left; stops as soon as this run has something, which never waits for them."""
        if not self._swept:
            end_lost_runs(client, socket.gethostname(), self.spool.run_dir.resolve().parent.parent)
            self._swept = True
        while self._earlier and not self._stop.is_set():
            folder = self._earlier.pop(0)
            if settled(folder) or _meant(folder) not in (None, self.uri, without_password(self.uri)):
                continue  # another MLflow's log waits for a run that goes there, or for finery sync
            try:
                _send_left(folder, self.uri, lambda uri: client, self.spool.warn)
            except _trouble():
                self._earlier.append(folder)
                raise
            if unsent(self.spool.run_dir, self.uri):
                self._wake.set()
                return


@dataclass
class SyncReport:
    """What `sync` did: events sent and runs they belong to; what is left, by run; warnings."""

    sent: int = 0
    runs: list[str] = field(default_factory=list)
    left: dict[str, int] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        lines = [f"sent {self.sent} events of {len(self.runs)} runs" if self.sent else "nothing to send"]
        lines += [f"{run}: {count} events left" for run, count in self.left.items()]
        return "\n".join([*lines, *self.warnings])


def sync(run_dirs: Iterable[Path], uri: str | None = None) -> SyncReport:
    """Send what earlier runs left unsent; runs that died are ended as KILLED, runs that are alive are left alone.

    Args:
        uri: send to this MLflow; by default each run's log goes where its run meant it to go.

    Raises:
        InputError: a URI is not accepted.
    """
    report = SyncReport(warnings=prepare_environment())
    clients: dict[str, MlflowClient] = {}

    def client(where: str) -> MlflowClient:
        if where not in clients:
            clients[where] = connect(where)
        return clients[where]

    def warn(message: str) -> None:
        if message not in report.warnings:
            report.warnings.append(message)

    for folder in run_dirs:
        where = None if settled(folder) else uri or _meant(folder)
        if where is None:
            continue
        try:
            if sent := _send_left(folder, where, client, warn):
                report.sent += sent
                report.runs.append(folder.name)
        except _trouble() as error:
            warn(_away(where, error))
        if left := unsent(folder, where):
            report.left[folder.name] = left
    return report


def _send_left(folder: Path, uri: str, client: Callable[[str], MlflowClient], warn: Callable[[str], None]) -> int:
    """End what a dead run left open and send what it left unsent; 0 for a run that is alive."""
    if settled(folder):
        return 0
    try:
        with Spool(folder, on_warning=warn) as spool:
            spool.repair()
            if not unsent(folder, uri):
                return 0
            replay = Replay(spool, uri, client(uri))
            replay.send()
            return replay.sent
    except SpoolBusy:
        return 0


def unsent(run_dir: Path, uri: str) -> int:
    """Events of a run's journal that `uri` does not have yet."""
    return sum(1 for _ in read_journal(journal_of(run_dir), read_cursor(run_dir, uri)))


def settled(run_dir: Path) -> bool:
    """Whether a run has no journal, or one that ended and was sent to its end; reads no more than its last bytes."""
    path = journal_of(run_dir)
    size = path.stat().st_size if path.exists() else 0
    if size == 0:
        return True
    with path.open("rb") as file:
        file.seek(max(0, size - 4096))
        last = file.read().rstrip(b"\n").rpartition(b"\n")[2]
    return read_cursor(run_dir) == size and last.startswith(b'{"event": "close_run"')


def _meant(folder: Path) -> str | None:
    """Where a run's log was to go; with the password that MLFLOW_TRACKING_URI has for that place."""
    opened = (line.event for line in read_journal(journal_of(folder)) if line.event["event"] == "open_run")
    uri = next(opened, {}).get("uri")
    given = os.environ.get("MLFLOW_TRACKING_URI", "")
    return given if uri and uri == without_password(given) else uri


def _trouble() -> tuple[type[Exception], ...]:
    """What is tried again: MLflow's errors, its database's, the network's and the disk's."""
    from mlflow.exceptions import MlflowException
    from sqlalchemy.exc import SQLAlchemyError

    return MlflowException, SQLAlchemyError, OSError, Forgotten


def _away(uri: str, error: Exception) -> str:
    first = (str(error).strip() or type(error).__name__).splitlines()[0]
    return without_password(f"MLflow at {uri} cannot be used now: {first[:300]}")
