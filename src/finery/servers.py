"""The Prefect server a run talks to: the user's own (`PREFECT_API_URL`), else one that lives as long as the run.

Prefect is not imported here: starting its server takes seconds of another process, while the first stages already work.
"""

from __future__ import annotations

import base64
import contextlib
import fcntl
import http.client
import json
import os
import secrets
import socket
import sqlite3
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from importlib.metadata import version
from pathlib import Path
from types import TracebackType
from typing import IO

from finery import guard
from finery.errors import FineryError, InputError

_OWN_SETTINGS = {
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "DO_NOT_TRACK": "1",
    "PREFECT_SERVER_UI_SHOW_PROMOTIONAL_CONTENT": "false",
    "PREFECT_SERVER_REGISTER_BLOCKS_ON_START": "false",
    # what serves deployments, workers and automations, of which this server has none
    "PREFECT_SERVER_SERVICES_SCHEDULER_ENABLED": "false",
    "PREFECT_SERVER_SERVICES_LATE_RUNS_ENABLED": "false",
    "PREFECT_SERVER_SERVICES_FOREMAN_ENABLED": "false",
    "PREFECT_SERVER_SERVICES_TRIGGERS_ENABLED": "false",
    "PREFECT_SERVER_SERVICES_CANCELLATION_CLEANUP_ENABLED": "false",
    "PREFECT_SERVER_SERVICES_CLEANUP_RECONCILER_ENABLED": "false",
    "PREFECT_SERVER_SERVICES_PAUSE_EXPIRATIONS_ENABLED": "false",
}
_LOGINS = ("PREFECT_API_KEY", "PREFECT_API_AUTH_STRING")
_STOPPED = "Prefect's server was stopped before it was up"
_SERVER = "prefect.server.api.server:create_app"


class ServerError(FineryError):
    """Prefect's server did not start, or ended before its time."""


class PrefectServer:
    """A context manager around the server of one run.

    Args:
        home: the project's `.finery` folder; the server's state lies in `home/prefect`.
        environ: the environment, in which PREFECT_API_URL names a server of the user's.

    Attributes:
        own: whether it is started here, and ends here.
        api_url: where its API is; of an own one once `ready()` has returned.
        log: what an own server wrote.
    """

    def __init__(self, home: Path, environ: Mapping[str, str] | None = None) -> None:
        self._environ = dict(os.environ if environ is None else environ)
        self.folder = home / "prefect"
        self.log = self.folder / "server.log"
        self.api_url = self._environ.get("PREFECT_API_URL", "").rstrip("/")
        self.own = not self.api_url
        self.login = f"finery:{secrets.token_urlsafe(18)}" if self.own else None
        self._child: guard.Guarded | None = None
        self._settled = threading.Event()
        self._stopping = threading.Event()
        self._error: FineryError | None = None
        self._thread: threading.Thread | None = None

    def __enter__(self) -> PrefectServer:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def ui_url(self) -> str:
        """Where its pages are."""
        return self._environ.get("PREFECT_UI_URL") or self.api_url.removesuffix("/api")

    def start(self) -> None:
        """Start an own server in the background and return at once; look whether the user's answers.

        Raises:
            InputError: PREFECT_API_URL names no Prefect API, or one that lets us not in.
        """
        if not self.own:
            _look(self.api_url, self._environ)
            self._settled.set()
            return
        self._thread = threading.Thread(target=self._bring_up, name="prefect-server", daemon=True)
        self._thread.start()

    def ready(self, timeout: float = 300.0) -> None:
        """Wait until the server answers.

        Raises:
            ServerError: it ended, or does not answer within `timeout` seconds.
        """
        if not self._settled.wait(timeout):
            raise ServerError(f"Prefect's server does not answer after {timeout:g} s; its log is {self.log}")
        if self._error is not None:
            raise self._error

    @property
    def settled(self) -> bool:
        """Whether it is known that the server answers, or that it will not."""
        return self._settled.is_set()

    def failure(self) -> str | None:
        """Why an own server that was up is there no more; None while all is well."""
        if not self._settled.is_set() or self._stopping.is_set() or self._child is None:
            return None
        code = self._child.poll()
        return None if code is None else f"Prefect's server ended ({_ending(code)}); its log is {self.log}"

    def stop(self) -> None:
        """End an own server; what was sent to it is written by then."""
        self._stopping.set()
        if self._thread is not None:
            self._thread.join()
        if self._child is not None:
            guard.terminate(self._child, grace=10.0)

    def client_settings(self) -> dict[str, str | None]:
        """What a Prefect client needs to talk to it, by the names of Prefect's settings."""
        if not self.own:
            given = {name: self._environ.get(name) for name in _LOGINS}
            return {"PREFECT_API_URL": self.api_url, **{name: value for name, value in given.items() if value}}
        return {"PREFECT_API_URL": self.api_url, "PREFECT_API_AUTH_STRING": self.login, "PREFECT_API_KEY": None}

    def _bring_up(self) -> None:
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with _migrating(self.folder, self._stopping) as migrate:
                self._launch(migrate)
        except FineryError as error:
            self._error = error
        except OSError as error:
            self._error = ServerError(f"Prefect's server cannot be started: {error}")
        finally:
            self._settled.set()

    def _launch(self, migrate: bool) -> None:
        for _ in range(3):  # another program may take the free port before the server does
            port = _free_port()
            begin = self.log.stat().st_size if self.log.exists() else 0
            with self.log.open("ab") as log:
                command = [sys.executable, "-m", "uvicorn", "--factory", _SERVER, "--host", "127.0.0.1"]
                command += ["--port", str(port), "--lifespan", "on", "--log-level", "warning", "--no-access-log"]
                command += ["--timeout-graceful-shutdown", "5"]
                env = self._server_environment(port, migrate)
                self._child = guard.spawn(command, env=env, stdout=log, stderr=subprocess.STDOUT)
            self.api_url = f"http://127.0.0.1:{port}/api"
            if self._answers():
                return
            if self._stopping.is_set():
                raise ServerError(_STOPPED)
            with self.log.open("rb") as file:
                file.seek(begin)
                said = file.read().decode(errors="replace").strip()
            if "address already in use" not in said.lower():
                last = said.splitlines()[-1] if said else _ending(self._child.wait())
                raise ServerError(f"Prefect's server does not start: {last}; its log is {self.log}")
        raise ServerError(f"Prefect's server finds no free port on 127.0.0.1; its log is {self.log}")

    def _answers(self) -> bool:
        """Wait for an answer that only a server with our login gives; False once ours has ended."""
        assert self._child
        while self._child.poll() is None and not self._stopping.is_set():
            with contextlib.suppress(OSError, http.client.HTTPException):
                _get(f"{self.api_url}/admin/version", _basic(self.login), timeout=5.0)
                return True
            self._stopping.wait(0.1)
        return False

    def _server_environment(self, port: int, migrate: bool) -> dict[str, str]:
        kept = {name: value for name, value in self._environ.items() if not name.startswith("PREFECT")}
        address = f"http://127.0.0.1:{port}"
        return {
            **kept,
            **_OWN_SETTINGS,
            "PREFECT_HOME": str(self.folder.resolve()),
            "PREFECT_SERVER_DATABASE_MIGRATE_ON_START": str(migrate).lower(),
            # a web page open in the user's browser must not drive it: no login, no answer; no foreign origin reads it
            "PREFECT_SERVER_API_AUTH_STRING": str(self.login),
            "PREFECT_SERVER_CORS_ALLOWED_ORIGINS": address,
            "PREFECT_SERVER_API_HOST": "127.0.0.1",
            "PREFECT_SERVER_API_PORT": str(port),
            "PREFECT_UI_API_URL": f"{address}/api",
        }


@contextlib.contextmanager
def _migrating(folder: Path, stopping: threading.Event) -> Iterator[bool]:
    """Whether the server must bring the database to this version of Prefect; if so, one server at a time does.

    A new database costs Prefect seconds of migrations, so an empty one is kept for the next project of this user.
    """
    database, mark, release = folder / "prefect.db", folder / "version", version("prefect")

    def current() -> bool:
        return database.exists() and mark.exists() and mark.read_text(encoding="utf-8") == release

    if current():
        yield False
        return
    with (folder / "migrate.lock").open("w") as lock:
        while not _locked(lock):
            if stopping.wait(0.1):
                raise ServerError(_STOPPED)
        if current():
            yield False
            return
        template = _cache() / f"prefect-{release}.db"
        new = not database.exists()
        if new and template.exists():
            _copy_database(template, database)
        yield True
        mark.write_text(release, encoding="utf-8")
        if new and not template.exists():
            with contextlib.suppress(OSError, sqlite3.Error):  # a home that cannot be written costs the time only
                template.parent.mkdir(parents=True, exist_ok=True)
                _copy_database(database, template)


def _locked(file: IO[str]) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _copy_database(source: Path, target: Path) -> None:
    """Copy a SQLite file that may be in use; the target appears whole or not at all."""
    fresh = target.with_name(f"{target.name}.{os.getpid()}.new")
    with (
        contextlib.closing(sqlite3.connect(f"file:{source}?mode=ro", uri=True)) as read,
        contextlib.closing(sqlite3.connect(fresh)) as write,
    ):
        read.backup(write)
        write.execute("PRAGMA journal_mode=DELETE")  # one file; the server goes back to WAL
    fresh.rename(target)


def _cache() -> Path:
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "finery"


def _look(url: str, environ: Mapping[str, str]) -> None:
    where = f"PREFECT_API_URL={url}"
    login, key = environ.get("PREFECT_API_AUTH_STRING"), environ.get("PREFECT_API_KEY")
    header = _basic(login) if login else {"Authorization": f"Bearer {key}"} if key else {}
    remedy = "start it, correct the address, or unset it and finery starts a server of its own"
    try:
        said = _get(f"{url}/health", header, timeout=10.0)
        _get(f"{url}/admin/version", header, timeout=10.0)
    except urllib.error.HTTPError as error:
        if error.code in (401, 403):
            raise InputError(
                f"{where}: the server refuses our login ({error.code}); set PREFECT_API_KEY or PREFECT_API_AUTH_STRING"
            ) from error
        if error.code != 404:  # Prefect Cloud has neither page
            why = f"the server answers with an error ({error.code} {error.reason})"
            raise InputError(f"{where}: {why}; {remedy}") from error
        return
    except (OSError, http.client.HTTPException, ValueError) as error:
        reason = getattr(error, "reason", error)
        raise InputError(f"{where}: no Prefect server answers there ({reason}); {remedy}") from error
    try:
        json.loads(said)
    except ValueError as error:
        hint = "" if url.endswith("/api") else f"; did you mean {url}/api?"
        raise InputError(f"{where}: what answers there is not Prefect's API{hint}") from error


def _get(url: str, headers: Mapping[str, str], timeout: float) -> bytes:
    # a proxy of the user's does not reach this host
    local = urllib.request.ProxyHandler({} if url.startswith("http://127.0.0.1:") else None)
    with urllib.request.build_opener(local).open(
        urllib.request.Request(url, headers=dict(headers)), timeout=timeout
    ) as response:
        body: bytes = response.read()
    return body


def _basic(login: str | None) -> dict[str, str]:
    return {"Authorization": "Basic " + base64.b64encode((login or "").encode()).decode()}


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def _ending(code: int) -> str:
    return f"signal {-code}" if code < 0 else f"exit code {code}"
