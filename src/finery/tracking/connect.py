"""The one way to MLflow: an explicit URI, no telemetry, a first start that several processes may make at once."""

from __future__ import annotations

import fcntl
import logging
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from finery.errors import InputError

if TYPE_CHECKING:
    from mlflow import MlflowClient

LEAKED = ("MLFLOW_RUN_ID", "MLFLOW_EXPERIMENT_ID", "MLFLOW_EXPERIMENT_NAME")
"""Variables of another program's run: finery writes to its own runs and never to these."""
_DATABASES = ("sqlite", "postgresql", "mysql", "mssql")


def check_uri(uri: str) -> str:
    """`uri` if it names a store whose metrics can be sent twice and be there once.

    Raises:
        InputError: it is a folder (`file:` stores are in maintenance and keep repeated metrics) or unknown.
    """
    scheme = uri.split(":", 1)[0].split("+", 1)[0].lower() if ":" in uri else ""
    if scheme in (*_DATABASES, "http", "https"):
        return uri
    raise InputError(
        f"tracking uri {uri!r} is not accepted; write sqlite:///path/mlflow.db, a database's URL or http(s)://host:port"
    )


def prepare_environment() -> list[str]:
    """Set what mlflow reads from the environment, before it is imported; what was found that will be ignored.

    mlflow's own retries are off: it would repeat `create_run` after a lost answer and make the run twice. The sender
    repeats instead, and looks for the run first.
    """
    os.environ["MLFLOW_DISABLE_TELEMETRY"] = "true"
    os.environ["DO_NOT_TRACK"] = "1"
    os.environ["MLFLOW_HTTP_REQUEST_MAX_RETRIES"] = "0"
    for name in ("mlflow.store.db.utils", "alembic"):
        logging.getLogger(name).setLevel(logging.CRITICAL)  # it prints tracebacks of what the sender repeats
    found = [name for name in LEAKED if os.environ.get(name)]
    return [f"{name}={os.environ[name]} comes from outside and is ignored: finery makes its own runs" for name in found]


def connect(uri: str) -> MlflowClient:
    """A client bound to `uri`; a database is migrated first, by one process at a time.

    Raises:
        InputError: the URI is not accepted.
        mlflow.exceptions.MlflowException, sqlalchemy.exc.SQLAlchemyError, OSError: it cannot be reached.
    """
    check_uri(uri)
    prepare_environment()
    with first_use(uri):
        from mlflow import MlflowClient

        client = MlflowClient(tracking_uri=uri, registry_uri=uri)
        if not uri.startswith("http"):
            client.search_experiments(max_results=1)  # opens the store, which migrates it
    return client


def experiment_id(client: MlflowClient, uri: str, name: str) -> str:
    """The experiment of that name, made if need be; one that was deleted in the UI is restored.

    On SQLite its artifacts lie in `mlartifacts` beside the database (mlflow's default is ./mlruns of whoever runs).
    """
    from mlflow.exceptions import MlflowException

    with first_use(uri):
        found = client.get_experiment_by_name(name)
        if found is None:
            database = sqlite_file(uri)
            place = (database.parent / "mlartifacts").as_uri() if database else None
            try:
                return str(client.create_experiment(name, artifact_location=place))
            except MlflowException as error:
                if error.error_code != "RESOURCE_ALREADY_EXISTS":
                    raise
            found = client.get_experiment_by_name(name)  # another host was first
        if found.lifecycle_stage == "deleted":
            client.restore_experiment(found.experiment_id)
        return str(found.experiment_id)


def sqlite_file(uri: str) -> Path | None:
    """The file of a SQLite URI, absolute; None for any other."""
    match = re.match(r"sqlite(?:\+\w+)?:///([^?]+)", uri)
    return Path(match[1]).absolute() if match else None


@contextmanager
def first_use(uri: str) -> Iterator[None]:
    """Hold, for a SQLite store, the lock beside its file: its first migration does not bear company (case O7)."""
    database = sqlite_file(uri)
    if database is None:
        yield
        return
    database.parent.mkdir(parents=True, exist_ok=True)
    with open(f"{database}.lock", "a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def local_path(location: str) -> Path | None:
    """The folder of an artifact location on this machine; None when it is elsewhere."""
    parts = urlsplit(location)
    if parts.scheme == "file":
        return Path(unquote(parts.path))
    return Path(location) if location.startswith("/") else None
