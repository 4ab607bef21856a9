"""Receipts of applied promotions: what a run whose stages are all cached reads instead of opening MLflow.

`<home>/registry/<sha256 of uri, name and alias>.json` holds `{uri, name, alias, version, digest, key, run_id}`. It says
what this project did last; an alias that someone moves by hand stays where they put it until a new decision comes.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NotRequired, TypedDict

from finery.content import write_json
from finery.spool import without_password


class RunInfo(TypedDict):
    """Which run applies a decision: finery's run id, the promote stage, its key, the pipeline, its experiment."""

    run_id: str
    stage: str
    key: str
    pipeline: str
    experiment: NotRequired[str]


@dataclass(frozen=True)
class Applied:
    """What became of a decision.

    Attributes:
        version: the registered version; None when the verdict was refuse.
        moved: the alias was moved by this call.
        reused: a version with this digest was there already.
    """

    name: str
    version: str | None
    alias: str
    moved: bool
    reused: bool


def already_applied(decision: Mapping[str, Any], uri: str, home: Path) -> Applied | None:
    """What the receipt says if it is of this very decision, else None. Opens no MLflow.

    A receipt counts for nothing when the SQLite file it speaks of is gone.
    """
    if decision["verdict"] != "promote":
        return Applied(decision["name"], None, decision["alias"], moved=False, reused=False)
    path = _receipt(uri, decision["name"], decision["alias"], home)
    if not path.exists():
        return None
    receipt = json.loads(path.read_text(encoding="utf-8"))
    if receipt["digest"] != decision["model_digest"] or receipt["form"] != decision.get("form", "full"):
        return None
    database = re.match(r"sqlite(?:\+\w+)?:///([^?]+)", uri)
    if database and not Path(database[1]).exists():
        return None
    return Applied(decision["name"], receipt["version"], decision["alias"], moved=False, reused=True)


def write_receipt(decision: Mapping[str, Any], version: str, uri: str, home: Path, run_info: RunInfo) -> None:
    """Remember that `decision` is applied."""
    path = _receipt(uri, decision["name"], decision["alias"], home)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_json(
        path,
        {
            "uri": without_password(uri),
            "name": decision["name"],
            "alias": decision["alias"],
            "version": version,
            "digest": decision["model_digest"],
            "form": decision.get("form", "full"),
            "key": run_info["key"],
            "run_id": run_info["run_id"],
        },
    )


def _receipt(uri: str, name: str, alias: str, home: Path) -> Path:
    identity = "\n".join((without_password(uri), name, alias))
    return home / "registry" / f"{hashlib.sha256(identity.encode()).hexdigest()}.json"
