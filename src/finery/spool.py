"""The journal of a run: what MLflow shall be told, kept on disk first, so that nothing is lost while it is away.

The engine appends to `<run_dir>/tracking/events.jsonl`, one JSON object a line; `finery.tracking` sends the lines in
order and writes how far it got to `cursor.json` beside it. Every event carries its own time, ids and values, so that
sending the journal twice leaves MLflow as sending it once does. No mlflow here.
"""

from __future__ import annotations

import fcntl
import json
import math
import os
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

from finery.errors import FineryError, InputError
from finery.tracking.names import check_artifact_path

Status = Literal["FINISHED", "FAILED", "KILLED"]
_ID = re.compile(r"[\w./:@+-]{1,250}")


class SpoolBusy(FineryError):
    """Another process, or another Spool of this one, writes this run's journal: the run is alive."""


@dataclass(frozen=True)
class Line:
    """One line of the journal: the event, and the byte where the next line begins."""

    event: dict[str, Any]
    end: int


def journal_of(run_dir: Path) -> Path:
    """Where a run's journal lies, whether or not there is one."""
    return run_dir / "tracking" / "events.jsonl"


def read_journal(path: Path, offset: int = 0) -> Iterator[Line]:
    """The whole lines of a journal from byte `offset` on; a line being written is left for later.

    A line that is no JSON object (a disk that lost power) comes as the event `damaged`.
    """
    if not path.exists():
        return
    with path.open("rb") as file:
        file.seek(offset)
        for raw in file:
            if not raw.endswith(b"\n"):
                return
            offset += len(raw)
            try:
                event = json.loads(raw)
            except ValueError:
                event = None
            yield Line(event if isinstance(event, dict) and "event" in event else {"event": "damaged"}, offset)


def number(value: float | str) -> float | str:
    """A metric's value as the journal writes it: a number, or NaN, Infinity, -Infinity as text."""
    if isinstance(value, int):
        return int(value)
    value = float(value)
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else ("Infinity" if value > 0 else "-Infinity")


class Spool:
    """The journal of one live run; thread-safe. The kernel frees its lock when the process ends, however it ends.

    Args:
        run_dir: the run's folder; its name is the run's id.
        on_warning: told of each new warning, of the spool's and of the sender's, from any thread.

    Raises:
        SpoolBusy: the run is alive elsewhere.
    """

    def __init__(self, run_dir: Path, *, on_warning: Callable[[str], None] | None = None) -> None:
        self.run_dir = run_dir
        self.run_id = run_dir.name
        self.path = journal_of(run_dir)
        self.warnings: list[str] = []
        self._on_warning = on_warning
        self._lock = threading.Lock()
        self._buffer = bytearray()
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._owner = os.open(self.path.parent / "owner.lock", os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(self._owner, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            os.close(self._owner)
            raise SpoolBusy(f"run {self.run_id} is in use by another process") from error
        self._file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        self._drop_torn_line()

    def __enter__(self) -> Spool:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the journal; what is unsent is sent by the next start or by `finery sync`."""
        with self._lock:
            if self._owner >= 0:
                os.close(self._file)
                os.close(self._owner)
                self._owner = -1

    def warn(self, message: str) -> None:
        """Keep a warning for the user; the same one is kept once."""
        message = without_password(message)
        with self._lock:
            if message in self.warnings:
                return
            self.warnings.append(message)
        if self._on_warning:
            self._on_warning(message)

    # the events

    def open_run(
        self,
        pipeline: str,
        *,
        experiment: str | None = None,
        uri: str | None = None,
        tags: Mapping[str, str] | None = None,
        params: Mapping[str, Any] | None = None,
    ) -> str:
        """The pipeline begins: MLflow's parent run. Its id, which artifacts of the whole run are given to.

        Args:
            experiment: MLflow's experiment; the pipeline's name by default.
            uri: where it is sent, for `finery sync` later; a user name and password in it are not written.
            params: nested mappings and lists, logged under dotted names.
        """
        self._append(
            {
                "event": "open_run",
                "run_id": self.run_id,
                "pipeline": pipeline,
                "experiment": experiment or pipeline,
                "uri": without_password(uri) if uri else None,
                "host": socket.gethostname(),
                "home": str(self.run_dir.resolve().parent.parent),
                "tags": dict(tags or {}),
                "params": dict(params or {}),
            }
        )
        return self.run_id

    def open_stage(
        self,
        stage: str,
        kind: str,
        key: str,
        attempt: int,
        params: Mapping[str, Any],
        *,
        cached: bool = False,
        tags: Mapping[str, str] | None = None,
    ) -> str:
        """An attempt of a stage begins: a child run. Its id, `<run>/<stage>/<attempt>`.

        Args:
            cached: nothing ran; the child links to the run that made `key`.
            tags: more tags; `finery.store`, the folder of the result, for one.
        """
        attempt_id = _identifier(f"{self.run_id}/{stage}/{attempt}")
        self._append(
            {
                "event": "open_stage",
                "id": attempt_id,
                "stage": stage,
                "kind": kind,
                "key": key,
                "attempt": attempt,
                "cached": cached,
                "tags": dict(tags or {}),
                "params": dict(params),
            }
        )
        return attempt_id

    def metrics(self, attempt_id: str, step: int, time: float, values: Mapping[str, float | str]) -> None:
        """Metrics of a step; `time` in seconds since 1970. Non-finite values may be the texts of the contract."""
        written = {name: number(value) for name, value in values.items()}
        self._append({"event": "metrics", "id": attempt_id, "step": int(step), "values": written}, time)

    def artifact(self, attempt_id: str, path: Path, artifact_path: str = "") -> bool:
        """A file, or a folder with all below it, shown under the folder `artifact_path` of the child's artifacts.

        It is read when it is sent, so it must stay where it is. Links are never followed. False, with a warning,
        when the place is refused.
        """
        return self._inside(artifact_path) and self._append(
            {"event": "artifact", "id": attempt_id, "path": str(path.absolute()), "to": artifact_path}
        )

    def artifact_text(self, attempt_id: str, text: str, artifact_path: str) -> bool:
        """A text kept in the journal and shown as the file `artifact_path`."""
        return self._inside(artifact_path) and self._append(
            {"event": "artifact_text", "id": attempt_id, "text": text, "to": artifact_path}
        )

    def model(self, attempt_id: str, name: str, path: Path, digest: str, *, form: str | None = None) -> None:
        """A model that a stage made: an external LoggedModel that names its folder in the store and its digest.

        Weights go to MLflow with a promotion only; see finery.registry.
        """
        place = str(path.absolute())
        self._append({"event": "model", "id": attempt_id, "name": name, "path": place, "digest": digest, "form": form})

    def close_stage(
        self, attempt_id: str, status: Status, final_metrics: Mapping[str, float | str] | None = None
    ) -> None:
        """An attempt ends; final metrics that were reported at the last step are not logged again."""
        values = {name: number(value) for name, value in (final_metrics or {}).items()}
        self._append({"event": "close_stage", "id": attempt_id, "status": status, "values": values})

    def close_run(self, status: Status) -> None:
        """The pipeline ends."""
        self._append({"event": "close_run", "run_id": self.run_id, "status": status})

    # what a dead process left open

    def repair(self) -> int:
        """End, as KILLED, what a process that died left open; how many ends were written. For a run found dead."""
        opened: dict[str, None] = {}
        running, last = False, time.time()
        for line in read_journal(self.path):
            event = line.event
            last = event.get("time", last)
            if event["event"] == "open_run":
                running = True
            elif event["event"] == "open_stage":
                opened[event["id"]] = None
            elif event["event"] == "close_stage":
                opened.pop(event["id"], None)
            elif event["event"] == "close_run":
                running = False
        for attempt_id in opened:
            self._append({"event": "close_stage", "id": attempt_id, "status": "KILLED", "values": {}}, last)
        if running:
            self._append({"event": "close_run", "run_id": self.run_id, "status": "KILLED"}, last)
        return len(opened) + running

    # writing

    def _inside(self, artifact_path: str) -> bool:
        try:
            if artifact_path:
                check_artifact_path(artifact_path)
        except InputError as error:
            self.warn(str(error))
            return False
        return True

    def _append(self, event: dict[str, Any], when: float | None = None) -> bool:
        line = json.dumps({**event, "time": time.time() if when is None else when}, ensure_ascii=False, allow_nan=False)
        problem = None
        with self._lock:
            if self._owner < 0:
                raise FineryError(f"the journal of run {self.run_id} is closed")
            self._buffer += line.encode("utf-8", errors="backslashreplace") + b"\n"
            try:
                while self._buffer:
                    del self._buffer[: os.write(self._file, self._buffer)]
            except OSError as error:
                problem = error  # a full disk: the rest stays in the buffer and goes before the next event
        if problem:
            self.warn(f"{self.path}: {problem.strerror}; the tracking log waits in memory")
        return True

    def _drop_torn_line(self) -> None:
        """Cut what a process that died was writing: half a line was never an event."""
        content = self.path.read_bytes()
        if content and not content.endswith(b"\n"):
            os.ftruncate(self._file, content.rfind(b"\n") + 1)


class NullSpool(Spool):
    """Takes everything and keeps nothing: a run without tracking."""

    def __init__(self) -> None:
        self.run_dir, self.run_id, self.path = Path(os.devnull), "", Path(os.devnull)
        self.warnings, self._on_warning = [], None
        self._lock, self._buffer, self._owner = threading.Lock(), bytearray(), -1

    def _append(self, event: dict[str, Any], when: float | None = None) -> bool:
        return True


def without_password(text: str) -> str:
    """A URI, or a text that quotes some, without the user names and passwords in them: nothing secret is written."""
    return re.sub(r"([a-z][a-z0-9+.-]*://)[^/@\s'\"]*@", r"\1", text, flags=re.IGNORECASE)


def _identifier(text: str) -> str:
    if not _ID.fullmatch(text):
        raise InputError(f"{text!r} cannot be an id; letters, digits and ._/:@+- are accepted")
    return text
