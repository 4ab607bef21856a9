"""What a run shows in the terminal: a row a stage with state, progress and latest metrics; plain lines elsewhere."""

from __future__ import annotations

import sys
import threading
import time
from dataclasses import dataclass, field
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from rich.table import Table

    from finery.outcome import Event

COLOURS = {
    "Completed": "green", "Cached": "cyan", "Skipped": "yellow", "Blocked": "magenta",
    "Refused": "red", "Failed": "bold red", "Cancelled": "red", "Running": "bold",
}  # fmt: skip
_SHOWN = ("loss", "reward", "pass_at_1", "eval_loss", "grad_norm", "mean_token_accuracy")


class Display(Protocol):
    """Takes events of a run and shows them."""

    def __enter__(self) -> Any: ...
    def __exit__(self, *error: Any) -> None: ...
    def __call__(self, event: Event) -> None: ...
    def say(self, message: str) -> None: ...


class Silent:
    """Shows nothing but what is said to the user."""

    def __enter__(self) -> Silent:
        return self

    def __exit__(self, *error: object) -> None:
        return None

    def __call__(self, event: Event) -> None:
        return None

    def say(self, message: str) -> None:
        print(message, file=sys.stderr, flush=True)


@dataclass
class _Row:
    kind: str
    state: str = ""
    note: str = ""
    done: int = 0
    total: int = 0
    metrics: dict[str, Any] = field(default_factory=dict)
    started: float | None = None
    seconds: float = 0.0


def brief(metrics: dict[str, Any], count: int = 3) -> str:
    """The few metrics that fit a row, the telling ones first."""
    names = [name for name in _SHOWN if name in metrics] + [name for name in metrics if name not in _SHOWN]
    return "  ".join(f"{name} {_short(metrics[name])}" for name in names[:count])


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


class PlainDisplay(Silent):
    """One line a change of state, for logs and pipes."""

    def __init__(self, stages: dict[str, str]) -> None:
        self._width = max(len(name) for name in stages)
        self._lock = threading.Lock()

    def __call__(self, event: Event) -> None:
        if event.type not in ("state", "warning"):
            return
        data = event.data
        if event.type == "warning":
            text = f"! {data['message']}"
        else:
            seconds = f" {data['seconds']:.1f} s" if data.get("seconds") else ""
            message = data.get("message") or ("from its last checkpoint" if data.get("resumed") else "")
            text = f"{data['state']}{seconds}" + (f": {message}" if message else "")
        with self._lock:
            print(f"{event.stage:<{self._width}}  {text}", file=sys.stderr, flush=True)


class LiveDisplay:
    """A table that is redrawn in place."""

    def __init__(self, stages: dict[str, str]) -> None:
        from rich.console import Console
        from rich.live import Live

        self._rows = {name: _Row(kind) for name, kind in stages.items()}
        self._lock = threading.Lock()
        self._live = Live(get_renderable=self._table, console=Console(stderr=True), refresh_per_second=4)

    def __enter__(self) -> LiveDisplay:
        self._live.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.__exit__(kind, error, trace)

    def __call__(self, event: Event) -> None:
        with self._lock:
            row, data = self._rows[event.stage], event.data
            if event.type == "state":
                row.state, row.note = data["state"], data.get("message", "")
                row.metrics = data.get("metrics") or row.metrics
                row.seconds = data.get("seconds", 0.0)
                row.started = time.monotonic() if data["state"] == "Running" else None
            elif event.type == "progress":
                row.done, row.total = data["done"], data["total"]
            elif event.type == "metrics":
                row.metrics = row.metrics | data["metrics"]
            else:
                row.note = data["message"]

    def say(self, message: str) -> None:
        self._live.console.print(message, markup=False)

    def _table(self) -> Table:
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        table = Table(box=None, pad_edge=False)
        for title in ("stage", "kind", "state", "", "time", "metrics"):
            table.add_column(title, no_wrap=title != "metrics", overflow="ellipsis")
        with self._lock:
            for name, row in self._rows.items():
                running = row.state == "Running"
                bar = (
                    ProgressBar(total=row.total or None, completed=row.done, width=16, pulse=running and not row.total)
                    if running
                    else Text("")
                )
                seconds = time.monotonic() - row.started if row.started else row.seconds
                text = brief(row.metrics) if running or not row.note else row.note
                table.add_row(
                    name,
                    row.kind,
                    Text(row.state or "waiting", COLOURS.get(row.state, "dim")),
                    bar,
                    f"{seconds:.0f} s" if seconds else "",
                    Text(text),
                )
        return table


def display(stages: dict[str, str], *, quiet: bool = False) -> Display:
    """The display that fits: redrawn in a terminal, plain lines elsewhere."""
    return LiveDisplay(stages) if sys.stderr.isatty() and not quiet else PlainDisplay(stages)


def stage_table(summary: dict[str, Any]) -> str:
    """The table of stages as text, from a run's summary."""
    rows = [("stage", "kind", "state", "seconds", "")]
    for name, stage in summary["stages"].items():
        text = stage["message"] or brief(stage["metrics"])
        rows.append((name, stage["kind"], stage["state"], f"{stage['seconds']:.1f}", text))
    widths = [max(len(row[i]) for row in rows) for i in range(4)]
    return "\n".join(
        "  ".join([*(cell.ljust(width) for cell, width in zip(row[:4], widths, strict=True)), row[4]]).rstrip()
        for row in rows
    )
