"""How a stage ends, and what is told about it on the way."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any, Literal

from finery.errors import FineryError
from finery.plan import Done

OutcomeState = Literal["Completed", "Cached", "Skipped", "Blocked", "Refused", "Failed", "Cancelled"]


class AttemptFailed(FineryError):
    """An attempt failed and another may be made."""


@dataclass(frozen=True)
class Outcome:
    """How a stage ended in this run.

    Attributes:
        digest: of its default output, or None.
        blocked_by_gate: a gate's `more_data` is what blocks it.
    """

    stage: str
    kind: str
    state: OutcomeState
    message: str
    key: str | None = None
    seconds: float = 0.0
    exit_code: int = 0
    done: Done | None = None
    metrics: dict[str, Any] = field(default_factory=dict)
    summary: dict[str, Any] = field(default_factory=dict)
    blocked_by_gate: bool = False
    warnings: tuple[str, ...] = ()

    @property
    def digest(self) -> str | None:
        if self.done and self.done.default in self.done.outputs:
            return self.done.outputs[self.done.default].digest
        return None


@dataclass(frozen=True)
class Event:
    """Something the display may show: a state, a progress, a metric, a warning."""

    stage: str
    type: Literal["state", "progress", "metrics", "warning"]
    data: dict[str, Any]


def read_decision(done: Done) -> dict[str, Any]:
    """A promote stage's decision."""
    return dict(json.loads((done.outputs["decision"].path / "decision.json").read_text(encoding="utf-8")))


def exit_code(outcomes: dict[str, Outcome]) -> int:
    """The run's: interrupted 130, unhealthy 5, bad input 2, failed 1, refused 4, blocked by a gate 3, else 0."""
    codes = {outcome.exit_code for outcome in outcomes.values()}
    for code in (130, 5, 2, 1, 4):
        if code in codes:
            return code
    if any(outcome.blocked_by_gate for outcome in outcomes.values()):
        return 3
    return next(iter(sorted(codes - {0})), 0)
