"""Which MLflow run is whose: the pipeline's parent and the attempts' children, found by tag before they are made."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from finery.tracking.connect import experiment_id

if TYPE_CHECKING:
    from mlflow import MlflowClient


class Forgotten(Exception):
    """MLflow has no run that the cursor says was made: another database, or one made anew."""


class Runs:
    """MLflow's ids of one journal's parent and children.

    `finery.id` is the run's id on the parent and `<run>/<stage>/<attempt>` on a child.
    """

    def __init__(self, client: MlflowClient, uri: str, parent: str) -> None:
        self.client, self.uri, self.parent = client, uri, parent
        self.opened: dict[str, dict[str, Any]] = {}
        self._ids: dict[str, str] = {}
        self._experiment: str | None = None

    def experiment(self) -> str:
        """The id of the experiment that the journal names."""
        if self._experiment is None:
            if self.parent not in self.opened:
                raise Forgotten(self.parent)
            self._experiment = experiment_id(self.client, self.uri, self.opened[self.parent]["experiment"])
        return self._experiment

    def known(self, identity: str) -> str:
        """MLflow's id of a run that was opened before.

        Raises:
            Forgotten: MLflow has none.
        """
        if identity not in self._ids:
            found = self._find(identity)
            if found is None:
                raise Forgotten(identity)
            self._ids[identity] = found
        return self._ids[identity]

    def open(self, identity: str, event: dict[str, Any]) -> str:
        """MLflow's id of the run that `event` opens: the one that is there, running again, or a new one."""
        self.opened[identity] = event
        if found := self._find(identity):
            if self.client.get_run(found).info.status != "RUNNING":
                self.client.update_run(found, status="RUNNING")
            self._ids[identity] = found
        else:
            self._ids[identity] = self._create(identity, event)
        return self._ids[identity]

    def forget(self) -> None:
        """Look for every run again: the server went away and may have come back as another."""
        self._ids.clear()
        self._experiment = None

    def _find(self, identity: str) -> str | None:
        from mlflow.entities import ViewType

        query = f"tags.`finery.id` = '{identity}'"  # a deleted one too: what the user threw away is not made again
        found = self.client.search_runs([self.experiment()], query, ViewType.ALL, 1, ["attributes.start_time ASC"])
        return found[0].info.run_id if found else None

    def _create(self, identity: str, event: dict[str, Any]) -> str:
        tags = {
            "finery.id": identity,
            "finery.run_id": self.parent,
            "mlflow.source.name": "finery",
            "mlflow.user": os.environ.get("USER") or str(os.getuid()),
        }
        if event["event"] == "open_run":
            name = self.parent
            tags |= {
                "finery.kind": "pipeline",
                "finery.pipeline": event["pipeline"],
                "finery.home": home_tag(event["host"], event["home"]),
            }
        else:
            name = event["stage"]
            tags |= {
                "mlflow.parentRunId": self.known(self.parent),
                "finery.stage": event["stage"],
                "finery.kind": event["kind"],
                "finery.key": event["key"],
                "finery.attempt": str(event["attempt"]),
                "finery.cached": str(event["cached"]).lower(),
                **(self._link(event) if event["cached"] else {}),
            }
        when = round(event["time"] * 1000)
        run = self.client.create_run(self.experiment(), when, {**event["tags"], **tags}, name)
        return str(run.info.run_id)

    def _link(self, event: dict[str, Any]) -> dict[str, str]:
        """Tags of a cached child: the attempt that made the result and, when this MLflow has it, a link to it."""
        experiments = [experiment.experiment_id for experiment in self.client.search_experiments()]
        query = f"tags.`finery.key` = '{event['key']}' and tags.`finery.cached` = 'false' and status = 'FINISHED'"
        found = self.client.search_runs(experiments, query, max_results=1, order_by=["attributes.start_time DESC"])
        if not found:
            return {"finery.cached_from": event["tags"].get("finery.store", event["key"])}
        info, made = found[0].info, found[0].data.tags["finery.id"]
        note = f"Cached: made by [{made}](#/experiments/{info.experiment_id}/runs/{info.run_id})"
        return {"finery.cached_from": made, "finery.cached_run": info.run_id, "mlflow.note.content": note}


def home_tag(host: str, home: str) -> str:
    """The tag by which runs of one project's folder on one host are found again; tells neither."""
    return hashlib.sha256(f"{host}\n{home}".encode()).hexdigest()[:16]


def end_lost_runs(client: MlflowClient, host: str, home: Path) -> int:
    """End, as KILLED, running runs of this project whose folders (and so whose journals) are gone; how many.

    A run whose folder is there is ended through its journal; see `finery.spool.Spool.repair`.
    """
    experiments = [experiment.experiment_id for experiment in client.search_experiments()]
    query = f"tags.`finery.home` = '{home_tag(host, str(home))}' and attributes.status = 'RUNNING'"
    ended = 0
    for parent in client.search_runs(experiments, query) if experiments else []:
        run = parent.data.tags["finery.run_id"]
        if (home / "runs" / run).exists():
            continue
        left = f"tags.`finery.run_id` = '{run}' and attributes.status = 'RUNNING'"
        for lost in client.search_runs([parent.info.experiment_id], left):
            client.set_terminated(lost.info.run_id, "KILLED")
            ended += 1
    return ended
