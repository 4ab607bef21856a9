"""From the journal to MLflow: each event is sent at least once, and what is sent twice is there once.

A run is looked for by its tag `finery.id` before it is made. A metric carries its event's time, and MLflow's databases
keep (name, time, step, value) of a run once; parameters, tags, artifacts and ends are the same again. So the cursor
may lag behind what arrived, and a journal may be sent again from its beginning.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from finery.content import write_json
from finery.spool import Spool, read_journal, without_password
from finery.tracking.artifacts import artifact_files
from finery.tracking.models import external_model, link_output
from finery.tracking.names import Names, chunks, flatten, shortened
from finery.tracking.runs import Forgotten, Runs

if TYPE_CHECKING:
    from mlflow import MlflowClient

BATCH = 1000
"""Metrics in one request, MLflow's limit."""
BATCH_BYTES = 500_000
"""A request's size; MLflow refuses more than 1 MB."""
PERMANENT = ("INVALID_PARAMETER_VALUE", "INVALID_STATE")
"""MLflow's answers that the same request will get again: the event is passed over with a warning."""
GONE = "RESOURCE_DOES_NOT_EXIST"
"""MLflow's answer when the database has changed under a run."""


def read_cursor(run_dir: Path, uri: str | None = None) -> int:
    """The byte of the journal up to which `uri` (None: any) has it; 0 when it was sent elsewhere or never."""
    path = run_dir / "tracking" / "cursor.json"
    try:
        cursor = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return 0  # none, or lost with the power: sending again from the beginning changes nothing
    return int(cursor["offset"]) if uri is None or cursor["uri"] == without_password(uri) else 0


class Replay:
    """Sends one journal through one client.

    Attributes:
        sent: how many events this object sent.
        offset: the cursor, a byte of the journal.
    """

    def __init__(self, spool: Spool, uri: str, client: MlflowClient) -> None:
        self.spool, self.uri, self.client = spool, uri, client
        self.sent = 0
        self._begin(read_cursor(spool.run_dir, uri))

    def _begin(self, offset: int) -> None:
        """Stand at `offset`, knowing what the events before it told."""
        self.offset = offset
        self.runs = Runs(self.client, self.uri, self.spool.run_id)
        self._names: dict[str, Names] = {}
        self._latest: dict[str, dict[str, tuple[int, float]]] = {}
        self._refused: set[str] = set()
        self._batch: list[dict[str, Any]] = []
        for line in read_journal(self.spool.path) if offset else ():
            if line.end > offset:
                break
            event = line.event
            if event["event"] in ("open_run", "open_stage"):
                self.runs.opened[_identity(event)] = event
            elif event["event"] == "metrics":
                self._points([event])

    def send(self) -> None:
        """Send all that the journal holds beyond the cursor.

        Raises:
            mlflow.exceptions.MlflowException, sqlalchemy.exc.SQLAlchemyError, OSError: it did not go through; the
                cursor is before what was not sent, and another call goes on from there.
        """
        try:
            self._send()
        except Forgotten as error:
            self.spool.warn(f"{without_password(self.uri)} does not have {error} any more; its log is sent again whole")
            self._begin(0)
            self._send()

    def _send(self) -> None:
        self._batch = []
        read, waiting = self.offset, 0
        for line in read_journal(self.spool.path, self.offset):
            if line.event["event"] == "metrics":
                self._batch.append(line.event)
                waiting += len(line.event["values"])
                if waiting >= BATCH:
                    self._send_batch(line.end)
                    waiting = 0
            else:
                self._send_batch(read)
                waiting = 0
                self._once(line.event)
                self._advance(line.end, 1)
            read = line.end
        self._send_batch(read)

    def _advance(self, end: int, sent: int) -> None:
        cursor = self.spool.run_dir / "tracking" / "cursor.json"
        write_json(cursor, {"uri": without_password(self.uri), "offset": end})
        self.offset = end
        self.sent += sent

    # one event

    def _once(self, event: dict[str, Any]) -> None:
        """Send one event; an answer that will not change is a warning, and the event is passed over."""
        from mlflow.exceptions import MlflowException

        if event["event"] == "damaged":
            self.spool.warn(f"{self.spool.path}: a damaged line is passed over")
            return
        identity = _identity(event)
        if identity in self._refused or (not event["event"].startswith("open_") and identity not in self.runs.opened):
            self.spool.warn(f"{identity}: was not opened in MLflow; what belongs to it is passed over")
            return
        try:
            getattr(self, f"_on_{event['event']}")(event)
        except MlflowException as error:
            self._raise_if_passing(error, identity)
            if event["event"].startswith("open_"):
                self._refused.add(identity)
            self.spool.warn(f"MLflow does not take {event['event']} of {identity}: {error.message}")

    def _on_open_run(self, event: dict[str, Any]) -> None:
        self._log_params(self.runs.open(event["run_id"], event), event["run_id"], event["params"])

    def _on_open_stage(self, event: dict[str, Any]) -> None:
        self._log_params(self.runs.open(event["id"], event), event["id"], event["params"])

    def _on_artifact(self, event: dict[str, Any]) -> None:
        run = self.runs.known(event["id"])
        for file, folder in artifact_files(Path(event["path"]), event["to"], self.spool.warn):
            self.client.log_artifact(run, str(file), folder or None)

    def _on_artifact_text(self, event: dict[str, Any]) -> None:
        self.client.log_text(self.runs.known(event["id"]), event["text"], event["to"])

    def _on_model(self, event: dict[str, Any]) -> None:
        opened = self.runs.opened[event["id"]]
        tags = {
            "finery.digest": event["digest"],
            "finery.store": event["path"],
            "finery.stage": opened["stage"],
            "finery.key": opened["key"],
            "finery.run_id": self.spool.run_id,
            **({"finery.form": event["form"]} if event["form"] else {}),
        }
        run, identity = self.runs.known(event["id"]), f"{event['id']}/{event['name']}"
        model = external_model(self.client, self.runs.experiment(), run, identity, event["name"], tags)
        link_output(self.client, run, model, self._step(event["id"]))

    def _on_close_stage(self, event: dict[str, Any]) -> None:
        """Final metrics stand at the last step, but for those that were reported there with the same value."""
        identity = event["id"]
        step, latest = self._step(identity), self._latest.get(identity, {})
        points = [
            (name, value, event["time"], step)
            for name, value in self._named(identity, event["values"])
            if not _same(latest.get(name), step, value)
        ]
        self._log_points(identity, points)
        self._end(identity, event)

    def _on_close_run(self, event: dict[str, Any]) -> None:
        self._end(event["run_id"], event)

    def _end(self, identity: str, event: dict[str, Any]) -> None:
        self.client.set_terminated(self.runs.known(identity), event["status"], round(event["time"] * 1000))

    # parameters and metrics

    def _log_params(self, run: str, identity: str, params: dict[str, Any]) -> None:
        from mlflow.entities import Param

        flat, troubles = flatten(params)
        for trouble in troubles:
            self.spool.warn(f"{identity}: parameters {trouble}")
        entries = []
        for name, value in flat.items():
            short, place = shortened(name, value)
            if place:
                self.client.log_text(run, value, place)
            entries.append(Param(name, short))
        sizes = [len(json.dumps(param.key + param.value)) for param in entries]
        for piece in chunks(entries, sizes, count=100, size=BATCH_BYTES):
            self.client.log_batch(run, params=piece)

    def _send_batch(self, end: int) -> None:
        """Send the metrics gathered so far, of all attempts, and move the cursor to `end`, behind them."""
        if not self._batch:
            return
        by_attempt: dict[str, list[dict[str, Any]]] = {}
        for event in self._batch:
            by_attempt.setdefault(event["id"], []).append(event)
        for identity, events in by_attempt.items():
            if identity in self._refused or identity not in self.runs.opened:
                self.spool.warn(f"{identity}: was not opened in MLflow; what belongs to it is passed over")
            else:
                self._log_points(identity, self._points(events))
        sent, self._batch = len(self._batch), []
        self._advance(end, sent)

    def _points(self, events: list[dict[str, Any]]) -> list[tuple[str, float, float, int]]:
        """(MLflow's name, value, time, step) of each value of an attempt's events; remembers the latest of each."""
        points = []
        for event in events:
            latest = self._latest.setdefault(event["id"], {})
            for name, value in self._named(event["id"], event["values"]):
                latest[name] = (event["step"], value)
                points.append((name, value, event["time"], event["step"]))
        return points

    def _named(self, identity: str, values: dict[str, Any]) -> Iterator[tuple[str, float]]:
        names = self._names.setdefault(identity, Names())
        for name, value in values.items():
            written, trouble = names.write(name)
            if trouble:
                self.spool.warn(f"{identity}: metrics {trouble}")
            yield written, float(value)

    def _step(self, identity: str) -> int:
        return max((step for step, _ in self._latest.get(identity, {}).values()), default=0)

    def _log_points(self, identity: str, points: list[tuple[str, float, float, int]]) -> None:
        from mlflow.entities import Metric

        metrics = [Metric(name, value, max(0, round(when * 1000)), step) for name, value, when, step in points]
        sizes = [len(json.dumps(metric.key)) + 120 for metric in metrics]
        for piece in chunks(metrics, sizes, count=BATCH, size=BATCH_BYTES):
            self._log_piece(identity, piece)

    def _log_piece(self, identity: str, piece: list[Any]) -> None:
        """One request; if MLflow will never take it, its halves, so that one bad metric costs only itself."""
        from mlflow.exceptions import MlflowException

        try:
            self.client.log_batch(self.runs.known(identity), metrics=piece)
        except MlflowException as error:
            self._raise_if_passing(error, identity)
            if identity in self._refused:
                return
            if self.client.get_run(self.runs.known(identity)).info.lifecycle_stage == "deleted":
                self._refused.add(identity)
                self.spool.warn(f"{identity}: its run was deleted in MLflow; what follows is passed over")
                return
            if len(piece) == 1:
                self.spool.warn(f"MLflow does not take {piece[0].key} of {identity}: {error.message}")
                return
            for half in (piece[: len(piece) // 2], piece[len(piece) // 2 :]):
                self._log_piece(identity, half)

    def _raise_if_passing(self, error: Any, identity: str) -> None:
        """Raise an MlflowException again unless the same request would get the same answer."""
        if error.error_code == GONE:
            raise Forgotten(identity) from error
        if error.error_code not in PERMANENT:
            raise error


def _identity(event: dict[str, Any]) -> str:
    return str(event.get("id") or event["run_id"])


def _same(point: tuple[int, float] | None, step: int, value: float) -> bool:
    return point is not None and point[0] == step and (point[1] == value or (point[1] != point[1] and value != value))
