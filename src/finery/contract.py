"""The contract between the engine and a stage: what `run(config, inputs, context)` is given and gives back.

A stage knows nothing of Prefect, MLflow or the store. It writes each output under
`context.output(name)`, keeps what it needs to continue under `context.checkpoint_dir`, and reports by
`context.log` and `context.progress`, which append to `metrics.jsonl`, one JSON object a line, flushed.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class StageResult:
    """What a stage hands back when it is done.

    Attributes:
        metrics: final numbers by name, finite floats or ints; TRL's words, `pass_at_1` for pass@1.
        summary: JSON the report shows (verdicts, tables, sentences); a string under "headline" is shown in the table.
    """

    metrics: dict[str, float] = field(default_factory=dict)
    summary: dict[str, Any] = field(default_factory=dict)


class Interrupted(Exception):
    """The stage was asked to stop and has kept what it needs to go on."""


class StopSignal:
    """Ctrl-C, as a stage sees it.

    By itself a stage ends at once. One that can checkpoint works `with stop.deferred():`, looks at `requested`
    now and then, and when it is true checkpoints and raises Interrupted.
    """

    def __init__(self) -> None:
        self.requested = False
        self.is_deferred = False

    @contextmanager
    def deferred(self) -> Iterator[StopSignal]:
        self.is_deferred = True
        try:
            yield self
        finally:
            self.is_deferred = False


@dataclass(frozen=True)
class StageContext:
    """Where a stage works and how it reports.

    Attributes:
        stage: its name in the pipeline.
        seed: the stage's seed, 0 <= seed < 2**63.
        output_dir: the only place it writes results to; `output(name)` is the folder of one output.
        checkpoint_dir: what is kept between attempts of this key, and thrown away once it is done.
        metrics_path: metrics.jsonl.
        base_dir: the YAML file's folder, for a user's own files.
        threads: CPU threads it may use.
        rank: which of the stage's processes this is (`launch`); only 0 reports, and writes results.
        processes: how many there are.
        input_refs: input field -> the reference as written in YAML (`models.0` -> `sft`).
        input_digests: input field -> the digest of what it names.
        stop: whether the user asked it to stop.
        bases: digest of a model -> its folder, for every base that an input adapter sits on.
    """

    stage: str
    seed: int
    output_dir: Path
    checkpoint_dir: Path
    metrics_path: Path
    base_dir: Path
    threads: int = 1
    rank: int = 0
    processes: int = 1
    input_refs: dict[str, str] = field(default_factory=dict)
    input_digests: dict[str, str] = field(default_factory=dict)
    bases: dict[str, Path] = field(default_factory=dict)
    stop: StopSignal = field(default_factory=StopSignal)

    def output(self, name: str) -> Path:
        """The folder of output `name`, made if need be."""
        path = self.output_dir / name
        path.mkdir(parents=True, exist_ok=True)
        return path

    def log(self, step: int, /, **metrics: float) -> None:
        """Report metrics of a step: numbers; non-finite ones are written as the strings NaN, Infinity, -Infinity.

        They also go to standard output, which is the stage's log.
        """
        written = {name: _number(value) for name, value in metrics.items()}
        self._append({"type": "metrics", "step": step, "time": time.time(), "metrics": written})
        shown = "  ".join(f"{k} {v:.6g}" if isinstance(v, float) else f"{k} {v}" for k, v in written.items())
        print(f"step {step}  {shown}", flush=True)

    def progress(self, done: int, total: int, note: str = "") -> None:
        """Report that `done` of `total` units of work are done."""
        self._append({"type": "progress", "done": done, "total": total, "note": note, "time": time.time()})

    def warn(self, message: str) -> None:
        """Report something the user should know; it is shown in the terminal and the report."""
        self._append({"type": "warning", "message": message, "time": time.time()})
        print(f"warning: {message}", flush=True)

    def metrics_offset(self) -> int:
        """The size of metrics.jsonl in bytes: a checkpoint stores it, and `rewind` cuts the file there on resume."""
        return self.metrics_path.stat().st_size if self.metrics_path.exists() else 0

    def rewind(self, offset: int) -> None:
        """Cut metrics.jsonl to `offset` bytes: what was logged after the checkpoint is logged again."""
        if not self.rank and self.metrics_path.exists() and self.metrics_path.stat().st_size > offset:
            with self.metrics_path.open("rb+") as file:
                file.truncate(offset)

    def _append(self, event: dict[str, Any]) -> None:
        if self.rank:
            return
        with self.metrics_path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(event, ensure_ascii=False, allow_nan=False) + "\n")


def _number(value: float) -> float | str:
    value = value if isinstance(value, int) else float(value)
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else ("Infinity" if value > 0 else "-Infinity")
