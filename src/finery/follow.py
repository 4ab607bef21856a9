"""Following a stage's metrics.jsonl while it is written."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from finery.outcome import Event

if TYPE_CHECKING:
    from finery.spool import Spool


class Follower:
    """Follows a stage's metrics.jsonl: events go to the spool and the display, each once.

    A resumed attempt starts from the beginning of the file, so that its MLflow run shows the metrics before it.
    """

    def __init__(self, path: Path, stage: str, attempt_id: str, spool: Spool, listen: Callable[[Event], None]) -> None:
        self.path, self.stage = path, stage
        self.warnings: list[str] = []
        self._attempt_id, self._spool, self._listen = attempt_id, spool, listen
        self._offset = 0
        self._seen: dict[tuple[str, int], None] = {}

    def read(self) -> None:
        """Take in what was appended since the last call; a half-written line waits."""
        try:
            size = self.path.stat().st_size
        except FileNotFoundError:
            return
        if size < self._offset:
            self._offset = 0  # the stage cut the file back to its checkpoint
        if size == self._offset:
            return
        with self.path.open("rb") as file:
            file.seek(max(0, self._offset - 1))
            if self._offset and file.read(1) != b"\n":
                self._offset = 0  # cut back and grown past us meanwhile; what was seen is not taken again
                file.seek(0)
            for line in file:
                if not line.endswith(b"\n"):
                    break
                self._offset += len(line)
                try:
                    event = json.loads(line)
                except ValueError:
                    self._take({"type": "warning", "message": f"{self.path.name} has a damaged line, passed over"})
                    continue
                self._take(event)

    def _take(self, event: dict[str, Any]) -> None:
        kind = event.pop("type")
        if kind == "metrics":
            fresh = {name: value for name, value in event["metrics"].items() if (name, event["step"]) not in self._seen}
            self._seen |= dict.fromkeys((name, event["step"]) for name in fresh)
            if fresh:
                self._spool.metrics(self._attempt_id, event["step"], event["time"], fresh)
        elif kind == "warning" and event["message"] not in self.warnings:
            self.warnings.append(event["message"])
        self._listen(Event(self.stage, kind, event))
