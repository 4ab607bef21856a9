"""Decisions applied to MLflow's model registry: idempotently, and never more than the decision says.

A version is tagged with the digest of the model that was decided on; one that is there is reused. The alias moves only
if it names another version. Every step may be done again after a crash, under a lock per registry and name.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from finery.content import digest_of, hash_file
from finery.errors import FineryError, InputError
from finery.receipts import Applied, RunInfo, write_receipt
from finery.spool import without_password
from finery.tracking.connect import connect, experiment_id, local_path
from finery.tracking.models import link_output, shipped_model

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities.model_registry import ModelVersion

T = TypeVar("T")
TRIES = (1.0, 3.0)
"""Seconds between tries when MLflow does not answer; every step may be repeated."""
_PICKLES = (".bin", ".pt", ".pth", ".pkl", ".ckpt")
_ABSENT = ("RESOURCE_DOES_NOT_EXIST", "INVALID_PARAMETER_VALUE")


class RegistryError(FineryError):
    """The registry did not take a decision; running the pipeline again applies it."""


class Resolved(NamedTuple):
    """What an alias names: the version, the digest of its files, and a folder on this machine that holds them."""

    version: str
    digest: str
    path: Path


def apply_decision(decision: Mapping[str, Any], model_dir: Path, *, uri: str, home: Path, run_info: RunInfo) -> Applied:
    """Apply a promote stage's decision.

    Args:
        decision: decision.json with `name` filled in; `form: adapter` in it ships an adapter as it is.
        model_dir: the folder that is shipped. A promotion ships full weights: for an adapter the caller gives the
            merged model, while `model_digest` stays the adapter's.
        home: the project's `.finery`, for the receipt.

    Raises:
        InputError: the folder or the names cannot be registered.
        RegistryError: MLflow does not take it.
    """
    if decision["verdict"] != "promote":
        return Applied(decision["name"], None, decision["alias"], moved=False, reused=False)
    _check(decision, model_dir)

    def work() -> Applied:
        with _lock(uri, decision["name"]):
            return _apply(connect(uri), decision, model_dir, uri, run_info)

    applied = _patiently(uri, work)
    assert applied.version
    write_receipt(decision, applied.version, uri, home, run_info)
    return applied


def resolve_alias(uri: str, name: str, alias: str, home: Path) -> Resolved:
    """The version that an alias names now, fetched into `<home>/registry/models/` when it lies on a server.

    Raises:
        InputError: there is no such model or alias.
        RegistryError: MLflow does not answer.
    """
    return _patiently(uri, lambda: _resolve(connect(uri), uri, name, alias, home))


def folder_digest(folder: Path) -> str:
    """The digest of a folder's files, made as the store makes that of an output: names, hashes, sizes."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    named = [[path.relative_to(folder).as_posix(), hash_file(path), path.stat().st_size] for path in files]
    return digest_of(sorted(named))


# applying


def _check(decision: Mapping[str, Any], model_dir: Path) -> None:
    if decision["alias"].lower() == "latest" or (decision["alias"][0] in "vV" and decision["alias"][1:].isdigit()):
        raise InputError(f"alias {decision['alias']!r}: MLflow keeps latest and v1, v2, ... for itself; choose another")
    if not model_dir.is_dir():
        raise InputError(f"{decision['model']}: {model_dir} is not there; what is promoted is a model's folder")
    if _form(model_dir) == "adapter" and decision.get("form", "full") != "adapter":
        raise InputError(f"{model_dir} holds an adapter; a promotion ships the merged model, or says form: adapter")
    if _form(model_dir) != decision.get("form", "full"):
        raise InputError(f"{model_dir} holds full weights; the decision says form: adapter")
    pickles = sorted(path.name for path in model_dir.iterdir() if path.suffix in _PICKLES)
    if pickles:
        raise InputError(f"{model_dir} holds {', '.join(pickles)}: pickled files are not promoted; give safetensors")


def _form(folder: Path) -> str:
    info = folder / "model.json"
    if info.is_file():
        return str(json.loads(info.read_text(encoding="utf-8"))["form"])
    return "adapter" if (folder / "adapter_config.json").is_file() else "full"


def _apply(client: MlflowClient, decision: Mapping[str, Any], model_dir: Path, uri: str, run_info: RunInfo) -> Applied:
    from mlflow.exceptions import MlflowException

    name, alias = decision["name"], decision["alias"]
    try:
        client.create_registered_model(name)
    except MlflowException as error:
        if error.error_code != "RESOURCE_ALREADY_EXISTS":
            raise
    version = _version_of(client, decision)
    reused = version is not None
    if version is None:
        version = _register(client, decision, model_dir, uri, run_info)
    moved = _named_by(client, name, alias) != version
    if moved:
        client.set_registered_model_alias(name, alias, version)
    return Applied(name, version, alias, moved=moved, reused=reused)


def _version_of(client: MlflowClient, decision: Mapping[str, Any]) -> str | None:
    """The newest version that ships this digest in this form."""
    query = f"name = '{decision['name']}' and tags.`finery.digest` = '{decision['model_digest']}'"
    form = decision.get("form", "full")
    found = [
        v for v in client.search_model_versions(query) if v.tags.get("finery.form") == form and v.status == "READY"
    ]
    return str(max(int(v.version) for v in found)) if found else None


def _register(client: MlflowClient, decision: Mapping[str, Any], model_dir: Path, uri: str, run_info: RunInfo) -> str:
    """Upload the weights as a LoggedModel and make a version of it; its tags tell its lineage."""
    form = decision.get("form", "full")
    experiment = experiment_id(client, uri, run_info.get("experiment") or run_info["pipeline"])
    run = _run_of(client, experiment, run_info)
    tags = {
        "finery.digest": decision["model_digest"],
        "finery.form": form,
        "finery.shipped_digest": folder_digest(model_dir),
        "finery.key": run_info["key"],
        "finery.run_id": run_info["run_id"],
        "finery.stage": run_info["stage"],
        "finery.pipeline": run_info["pipeline"],
        "finery.model": decision["model"],
        "finery.conditions": json.dumps({c["metric"]: c["value"] for c in decision["conditions"]})[:5000],
    }
    identity = f"promoted/{decision['name']}/{decision['model_digest']}/{form}"
    model = shipped_model(client, experiment, run, identity, decision["name"], model_dir, tags)
    if run:
        link_output(client, run, model.model_id, 0)
    # a database resolves models:/ through mlflow's process-wide URI, and a server takes no file:// (both measured)
    if uri.startswith("http"):
        made = client.create_model_version(decision["name"], model.model_uri, run, tags, model_id=model.model_id)
    else:
        made = client.create_model_version(decision["name"], model.artifact_location, run, tags)
    client.set_logged_model_tags(
        model.model_id, {"mlflow.modelVersions": json.dumps([{"name": made.name, "version": made.version}])}
    )
    return str(made.version)


def _run_of(client: MlflowClient, experiment: str, run_info: RunInfo) -> str | None:
    """The promote stage's child run, else the run's parent, else none (a run without tracking)."""
    query = f"tags.`finery.run_id` = '{run_info['run_id']}'"
    runs = client.search_runs([experiment], query, order_by=["attributes.start_time DESC"])
    mine = [run for run in runs if run.data.tags.get("finery.stage") == run_info["stage"]]
    parents = [run for run in runs if run.data.tags.get("finery.kind") == "pipeline"]
    return next((str(run.info.run_id) for run in [*mine, *parents]), None)


def _named_by(client: MlflowClient, name: str, alias: str) -> str | None:
    """The version that the alias names, None if it names none."""
    aliases = client.get_registered_model(name).aliases
    return str(aliases[alias]) if alias in aliases else None


# resolving


def _resolve(client: MlflowClient, uri: str, name: str, alias: str, home: Path) -> Resolved:
    from mlflow.exceptions import MlflowException

    try:
        version = client.get_model_version_by_alias(name, alias)
    except MlflowException as error:
        if error.error_code not in _ABSENT:
            raise
        raise InputError(f"registry:{name}@{alias}: {error.message} (at {without_password(uri)})") from error
    path = _folder_of(client, uri, version, home)
    return Resolved(str(version.version), version.tags.get("finery.shipped_digest") or folder_digest(path), path)


def _folder_of(client: MlflowClient, uri: str, version: ModelVersion, home: Path) -> Path:
    """The version's files: where MLflow keeps them if that is this machine, else a whole copy below `home`."""
    location = client.get_model_version_download_uri(version.name, version.version)
    here = local_path(location)
    if here and here.is_dir():
        return here
    identity = "\n".join((without_password(uri), version.name, str(version.version), str(version.creation_timestamp)))
    folder = home / "registry" / "models" / hashlib.sha256(identity.encode()).hexdigest()[:32]
    if not folder.is_dir():
        from mlflow.artifacts import download_artifacts

        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".fetch-") as place:
            fetched = Path(download_artifacts(artifact_uri=location, dst_path=place, tracking_uri=uri))
            if not folder.is_dir():  # another run may have been faster
                shutil.move(str(fetched), folder)
    return folder


# around both


def _patiently(uri: str, work: Callable[[], T]) -> T:
    """`work()`, again when MLflow does not answer; trouble that stays is one sentence."""
    from mlflow.exceptions import MlflowException
    from sqlalchemy.exc import SQLAlchemyError

    for pause in (*TRIES, None):
        try:
            return work()
        except (MlflowException, SQLAlchemyError, OSError) as error:
            if pause is None or getattr(error, "error_code", "") in _ABSENT:
                first = (str(error).strip() or type(error).__name__).splitlines()[0]
                message = without_password(f"the registry at {uri} does not take this: {first}")
                raise RegistryError(message) from error
            time.sleep(pause)
    raise AssertionError("unreachable")


@contextmanager
def _lock(uri: str, name: str) -> Iterator[None]:
    """One decision at a time for a registered model, among all projects of this user on this host."""
    folder = Path(tempfile.gettempdir()) / f"finery-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    if folder.lstat().st_uid != os.getuid() or folder.is_symlink():
        raise FineryError(f"{folder} belongs to someone else; set TMPDIR to a folder of your own")
    identity = hashlib.sha256(f"{without_password(uri)}\n{name}".encode()).hexdigest()
    with (folder / f"registry-{identity}.lock").open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
