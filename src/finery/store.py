"""The store: the truth about what has been done.

`<home>/store/<kind>/<key>/` holds `spec.json`, `outputs/<name>/`, `metrics.jsonl`, `log.txt` and, written last,
`manifest.json`, whose presence means done. Work goes on in `<key>.partial/` under a lock per key and is renamed
into place.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO, Any

from finery.content import hash_file, write_json
from finery.errors import FineryError

MANIFEST = "manifest.json"


@dataclass
class Manifest:
    """What a finished stage left; see design section 4.

    `inputs` maps a field to `{ref, digest, kind, source}`; `outputs` a name to `{kind, digest, base?}`;
    `files` a path below outputs/ to `{sha256, size}`; `bases` a digest to where that model lies.
    """

    stage: str
    kind: str
    key: str
    spec: dict[str, Any]
    inputs: dict[str, dict[str, Any]]
    outputs: dict[str, dict[str, Any]]
    files: dict[str, dict[str, Any]]
    metrics: dict[str, float] = field(default_factory=dict)
    summary: dict[str, Any] = field(default_factory=dict)
    bases: dict[str, str] = field(default_factory=dict)
    pipeline: str = ""
    seed: int = 0
    engine: str = ""
    started: float = 0.0
    seconds: float = 0.0
    attempts: int = 1
    adopted: list[dict[str, Any]] = field(default_factory=list)


class Store:
    """The local store below `home`, the project's `.finery` folder."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.root = home / "store"

    def make(self) -> None:
        """Make the store's folders.

        Raises:
            FineryError: it cannot be written.
        """
        try:
            self.root.mkdir(parents=True, exist_ok=True)
            (self.home / "runs").mkdir(exist_ok=True)
        except OSError as error:
            raise self._unwritable(error) from error
        if not os.access(self.home, os.W_OK):
            raise self._unwritable(PermissionError(13, "Permission denied"))

    def _unwritable(self, error: OSError) -> FineryError:
        return FineryError(
            f"the store {self.root} cannot be written: {error.strerror}; "
            "free space, or set FINERY_HOME to another place"
        )

    def folder(self, kind: str, key: str) -> Path:
        return self.root / kind / key

    def partial(self, kind: str, key: str) -> Path:
        return self.root / kind / f"{key}.partial"

    def output(self, kind: str, key: str, name: str) -> Path:
        return self.folder(kind, key) / "outputs" / name

    def manifest(self, kind: str, key: str, *, verify: bool = False) -> Manifest | None:
        """The manifest, if the stage is done and its files are there: sizes always, hashes with `verify`."""
        path = self.folder(kind, key) / MANIFEST
        try:
            found = Manifest(**json.loads(path.read_text(encoding="utf-8")))
        except FileNotFoundError:
            return None
        except (ValueError, TypeError, OSError):
            return None
        return None if self.damage(found, verify=verify) else found

    def damage(self, manifest: Manifest, *, verify: bool = False) -> list[str]:
        """What is wrong with a finished stage's files: missing, of another size or, with `verify`, of another hash."""
        outputs = self.folder(manifest.kind, manifest.key) / "outputs"
        wrong = []
        for name, expected in manifest.files.items():
            path = outputs / name
            if not path.is_file():
                wrong.append(f"{name} is missing")
            elif path.stat().st_size != expected.get("size"):
                wrong.append(f"{name} has {path.stat().st_size} bytes instead of {expected.get('size')}")
            elif verify and hash_file(path) != expected.get("sha256"):
                wrong.append(f"{name} has other bytes than when it was made")
        return wrong

    @contextmanager
    def lock(
        self,
        kind: str,
        key: str,
        *,
        waiting: Callable[[], None] = lambda: None,
        stopped: Callable[[], bool] = lambda: False,
    ) -> Iterator[bool]:
        """Hold the key's lock, which the kernel frees on death.

        Args:
            waiting: called once if another has it.
            stopped: ends the wait; then False is yielded, and the lock is not held.
        """
        folder = self.home / "locks"
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / f"{kind}-{key}").open("a") as file:
            told = False
            while not _try_lock(file):
                if not told:
                    waiting()
                    told = True
                if stopped():
                    yield False
                    return
                time.sleep(0.1)
            yield True

    def is_locked(self, kind: str, key: str) -> bool:
        """Whether somebody works on the key now."""
        path = self.home / "locks" / f"{kind}-{key}"
        if not path.exists():
            return False
        with path.open("a") as file:
            return not _try_lock(file)

    def has_checkpoint(self, kind: str, key: str) -> bool:
        """Whether an earlier attempt left something to go on from; hidden files are finery's own."""
        folder = self.partial(kind, key) / "checkpoints"
        return folder.is_dir() and any(not path.name.startswith(".") for path in folder.iterdir())

    def open_partial(self, kind: str, key: str, spec: dict[str, Any]) -> Path:
        """The working folder of a key: what an earlier attempt kept in checkpoints/ stays, its outputs do not."""
        folder = self.partial(kind, key)
        try:
            (folder / "checkpoints").mkdir(parents=True, exist_ok=True)
            shutil.rmtree(folder / "outputs", ignore_errors=True)
            (folder / "outputs").mkdir()
            if not self.has_checkpoint(kind, key):
                (folder / "metrics.jsonl").unlink(missing_ok=True)  # nothing to go on from: all is said anew
            write_json(folder / "spec.json", spec)
        except OSError as error:
            raise self._unwritable(error) from error
        return folder

    def scan(self, partial: Path) -> dict[str, dict[str, Any]]:
        """Hash and size of every file below a working folder's outputs/.

        Raises:
            FineryError: an output holds a link, which would lead out of the store, or something else that is no file.
        """
        outputs, files = partial / "outputs", {}
        for path in sorted(outputs.rglob("*")):
            name = path.relative_to(outputs).as_posix()
            if path.is_symlink():
                raise FineryError(f"the output {name} is a link; an output holds files and folders only")
            try:
                name.encode()
            except UnicodeEncodeError:
                raise FineryError(f"the output {name!r} has a name that is not UTF-8; rename it") from None
            if not path.is_file() and not path.is_dir():
                raise FineryError(f"the output {name} is no regular file; an output holds files and folders only")
            if path.is_file():
                files[name] = {"sha256": hash_file(path), "size": path.stat().st_size}
        return files

    def publish(self, manifest: Manifest) -> str | None:
        """Move a finished working folder into place; its manifest is written last.

        Returns:
            What became of an older result under the same key: None if there was none, "same" if its outputs were
            equal (it stays), "different" if they were not (it is replaced).
        """
        partial, final = self.partial(manifest.kind, manifest.key), self.folder(manifest.kind, manifest.key)
        earlier = self._read(final)
        if earlier and earlier.files == manifest.files and not self.damage(earlier):
            _discard(partial)
            return "same"
        write_json(partial / MANIFEST, asdict(manifest))
        self.finish(manifest.kind, manifest.key)
        return "different" if earlier else None

    def finish(self, kind: str, key: str) -> None:
        """Move a working folder that has its manifest into place: the end of `publish`, also of one that was killed.

        The caller holds the key's lock.
        """
        partial, final = self.partial(kind, key), self.folder(kind, key)
        if not (partial / MANIFEST).exists():
            return
        if final.exists():
            aside = _aside(final)
            os.rename(final, aside)
            os.rename(partial, final)
            shutil.rmtree(aside)
        else:
            os.rename(partial, final)
        _sync_folder(final.parent)
        _discard(final / "checkpoints")

    def adopt(self, manifest: Manifest, key: str, spec: dict[str, Any], inputs: dict[str, dict[str, Any]]) -> Manifest:
        """Accept a finished result under a new key; the lineage records from which one."""
        source, final = self.folder(manifest.kind, manifest.key), self.folder(manifest.kind, key)
        partial = self.partial(manifest.kind, key)
        shutil.rmtree(partial, ignore_errors=True)
        shutil.copytree(source, partial)
        (partial / MANIFEST).unlink()
        note = {"from": manifest.key, "spec": manifest.spec, "time": time.time()}
        fields = asdict(manifest) | {"key": key, "spec": spec, "inputs": inputs, "adopted": [*manifest.adopted, note]}
        write_json(partial / "spec.json", spec)
        write_json(partial / MANIFEST, fields)
        os.rename(partial, final)
        return Manifest(**fields)

    def manifests(self) -> Iterator[Manifest]:
        """Every finished stage."""
        for path in sorted(self.root.glob(f"*/*/{MANIFEST}")):
            if "." not in path.parent.name and (found := self._read(path.parent)):
                yield found

    def _read(self, folder: Path) -> Manifest | None:
        try:
            return Manifest(**json.loads((folder / MANIFEST).read_text(encoding="utf-8")))
        except (ValueError, TypeError, OSError):
            return None


def _try_lock(file: IO[str]) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _aside(folder: Path) -> Path:
    """A name beside a folder that nothing has: gc knows it as a replaced result."""
    return folder.with_name(f"{folder.name.partition('.')[0]}.old-{time.time_ns()}")


def _discard(folder: Path) -> None:
    """Delete a folder; it is renamed first, so that no half of it is ever taken for whole."""
    if folder.exists():
        aside = folder.with_name(f".{folder.name}.{time.time_ns()}")
        os.rename(folder, aside)
        shutil.rmtree(aside)


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
