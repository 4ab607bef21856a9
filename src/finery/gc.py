"""What in the store nothing reaches any more: shown first, deleted when told."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from finery import runs
from finery.content import read_json
from finery.show import project_of, run_status
from finery.store import Manifest, Store

YOUNG = 24 * 3600
"""Seconds for which a working folder is kept although no run of the last N reaches it."""


@dataclass(frozen=True)
class Garbage:
    """Folders to delete and why, with their sizes in bytes."""

    paths: dict[Path, str]
    sizes: dict[Path, int]

    @property
    def size(self) -> int:
        return sum(self.sizes.values())


def collect(folder: Path, keep: int) -> Garbage:
    """Results that neither the last `keep` runs, nor a promoted alias, nor what those were made from, reaches."""
    home = runs.home_of(project_of(folder))
    store = Store(home)
    reached = _reached(store, set(_roots(home, keep)))
    found: dict[Path, str] = {}
    for path in sorted(store.root.glob("*/*")):
        kind, name = path.parent.name, path.name
        key, _, suffix = name.partition(".")
        if not path.is_dir():
            continue
        if suffix == "partial":
            idle = time.time() - max((p.stat().st_mtime for p in path.rglob("*")), default=path.stat().st_mtime)
            if idle > YOUNG and not store.is_locked(kind, key):
                found[path] = f"a working folder untouched for {idle / 3600:.0f} hours"
        elif suffix:
            found[path] = "a replaced result"
        elif (kind, key) not in reached:
            found[path] = f"no alias and none of the last {keep} runs reaches it"
    return Garbage(found, {path: _size(path) for path in found})


def _roots(home: Path, keep: int) -> Iterator[tuple[str, str]]:
    """What the last `keep` runs and every run that is alive have begun or used, and what was promoted."""
    folders = sorted((path for path in (home / "runs").glob("*") if path.is_dir()), reverse=True)
    for folder in [*folders[:keep], *(folder for folder in folders[keep:] if run_status(folder) == "running")]:
        for name in ("summary.json", "stages.json"):
            if (folder / name).exists():
                content = read_json(folder / name)
                entries = content["stages"].values() if name == "summary.json" else content.values()
                pairs = [(e["kind"], e["key"]) if isinstance(e, dict) else tuple(e) for e in entries]
                yield from ((kind, key) for kind, key in pairs if key)
    for receipt in (home / "registry").glob("*.json"):
        if key := read_json(receipt).get("key"):
            yield "promote", key


def _reached(store: Store, ahead: set[tuple[str, str]]) -> set[tuple[str, str]]:
    """The roots and all they were made from."""
    reached: set[tuple[str, str]] = set()
    while ahead:
        one = ahead.pop()
        if one in reached:
            continue
        reached.add(one)
        manifest = store.manifest(*one)
        if manifest:
            ahead |= set(_sources(manifest)) - reached
    return reached


def _sources(manifest: Manifest) -> Iterator[tuple[str, str]]:
    for place in [*(given["made_by"] for given in manifest.inputs.values()), *manifest.bases.values()]:
        if place and not place.startswith("/"):
            kind, key, _ = place.split("/")
            yield kind, key


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def listing(garbage: Garbage) -> str:
    """What would be deleted, a line each."""
    if not garbage.paths:
        return "nothing to delete"
    lines = [f"{garbage.sizes[path] / 1e6:9.1f} MB  {path}  ({why})" for path, why in garbage.paths.items()]
    return "\n".join([*lines, f"{garbage.size / 1e6:9.1f} MB in {len(garbage.paths)} folders"])


def delete(garbage: Garbage) -> None:
    """Delete what was listed; a result is renamed first, so that no half of one is ever seen."""
    for path in garbage.paths:
        doomed = path.with_name(f"{path.name.partition('.')[0]}.deleted-{time.time_ns()}")
        path.rename(doomed)
        shutil.rmtree(doomed)
