"""Checkpoints that are whole or are not used: written aside, renamed, marked last.

A checkpoint is a folder `checkpoint-STEP` with a marker `whole.json`, which lists every file and its size, the
offset of metrics.jsonl, and whatever the trainer adds. What has no marker, or differs from it, is passed over
with a warning and left where it is (case O10).
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from finery.contract import StageContext
from finery.errors import StageError

MARKER = "whole.json"
KEPT = 2
"""Whole checkpoints kept: should the newest be damaged on disk, there is one before it."""

_NAME = re.compile(r"^checkpoint-(\d+)$")
_ASIDE = ".writing"


@dataclass(frozen=True)
class Checkpoint:
    """A whole checkpoint.

    Attributes:
        path: its folder.
        step: optimizer steps done.
        extra: what the trainer stored beside the Trainer's own files.
    """

    path: Path
    step: int
    extra: dict[str, Any]


class Checkpoints:
    """The checkpoints of one stage, under `context.checkpoint_dir`."""

    def __init__(self, context: StageContext, *, name: str = "") -> None:
        self._context, self._first = context, context.rank == 0
        self.folder = context.checkpoint_dir / name
        self.folder.mkdir(parents=True, exist_ok=True)

    def last(self) -> Checkpoint | None:
        """The newest whole checkpoint, metrics.jsonl cut to where it was; None when there is none.

        Says of every newer one why it was passed over.
        """
        named = ((int(m[1]), path) for path in self.folder.iterdir() if (m := _NAME.match(path.name)))
        found = sorted(named, reverse=True)
        passed_over: list[str] = []
        for step, path in found:
            fault, marker = _examine(path)
            if marker is None:
                passed_over.append(f"{path.name} was passed over: {fault}")
                continue
            self._context.rewind(marker["metrics_offset"])
            for line in passed_over:
                self._context.warn(f"{line}; training goes on from {path.name}")
            return Checkpoint(path, step, marker["extra"])
        for line in passed_over:
            self._context.warn(f"{line}; training starts anew")
        return None

    @contextmanager
    def writing(self, step: int, extra: dict[str, Any], meet: Callable[[], None] = lambda: None) -> Iterator[Path]:
        """A folder in which to write `checkpoint-STEP`; on leaving it becomes a whole checkpoint.

        `extra` is read on leaving. Older whole checkpoints are removed afterwards, broken ones never. Of several
        processes the first makes the folder and the checkpoint of what all wrote; none goes on before it is whole.

        Args:
            meet: waits for the other processes.

        Raises:
            StageError: the disk is full or otherwise refuses; earlier checkpoints are untouched.
        """
        aside = self.folder / _ASIDE
        if self._first:
            with self._told(step):
                shutil.rmtree(aside, ignore_errors=True)
                aside.mkdir()
        meet()
        with self._told(step):
            yield aside
        meet()
        if self._first:
            with self._told(step):
                self._commit(aside / f"checkpoint-{step}", step, extra)
            shutil.rmtree(aside, ignore_errors=True)
            self._remove_old()
        meet()

    @contextmanager
    def _told(self, step: int) -> Iterator[None]:
        try:
            yield
        except (OSError, RuntimeError, SafetensorError) as error:
            # torch and safetensors report a full disk by errors of their own
            raise StageError(
                f"the checkpoint of step {step} could not be written under {self.folder} ({error}); "
                "earlier checkpoints are whole: make room and run again"
            ) from error

    def _commit(self, written: Path, step: int, extra: dict[str, Any]) -> None:
        files = {}
        for path in sorted(written.rglob("*")):
            if path.is_file():
                _sync(path)
                files[path.relative_to(written).as_posix()] = path.stat().st_size
        target = self.folder / written.name
        if target.exists() or target.is_symlink():
            # a broken one of this very step: keep it under another name
            target.rename(_free(target))
        written.rename(target)
        marker = {"step": step, "metrics_offset": self._context.metrics_offset(), "files": files, "extra": extra}
        aside = target / f"{MARKER}.tmp"
        aside.write_text(json.dumps(marker, allow_nan=False), encoding="utf-8")
        _sync(aside)
        aside.rename(target / MARKER)

    def _remove_old(self) -> None:
        whole = sorted(
            (int(m[1]), path)
            for path in self.folder.iterdir()
            if (m := _NAME.match(path.name)) and _examine(path)[1] is not None
        )
        for _, path in whole[:-KEPT]:
            shutil.rmtree(path)


def _examine(path: Path) -> tuple[str, dict[str, Any] | None]:
    """What is wrong with a checkpoint, or its marker."""
    if path.is_symlink() or not path.is_dir():
        return "it is no folder", None
    try:
        marker = json.loads((path / MARKER).read_text(encoding="utf-8"))
        files, _ = marker["files"], (marker["metrics_offset"], marker["extra"], marker["step"])
    except FileNotFoundError:
        return f"it has no {MARKER}, so it was not written to its end", None
    except (OSError, ValueError, KeyError, TypeError) as error:
        return f"its {MARKER} cannot be read ({error})", None
    for name, size in files.items():
        file = path / name
        if not file.is_file():
            return f"{name} is missing", None
        if file.stat().st_size != size:
            return f"{name} has {file.stat().st_size} bytes where {size} were written", None
    return "", marker


def _free(path: Path) -> Path:
    number = 1
    while (other := path.with_name(f"{path.name}.broken{number}")).exists():
        number += 1
    return other


def _sync(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())
