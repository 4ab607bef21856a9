"""Which prompts GRPO draws: passes over the data, each leaving out what is too easy or too hard by now."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from finery.stats.difficulty import DifficultyTracker

Warn = Callable[[str], None]


class PromptPlan:
    """Passes over prompts, in an order that depends on (seed, pass) and on the tracker's state at its start.

    A pass is a permutation of its prompts; with `weights`, as many draws with replacement as it has prompts; `ordered`,
    its prompts in the order of the data.

    With the policy `epoch_filter`, prompts whose estimated pass rate lies outside the band sit a pass out; one that
    was never sampled is always in. When fewer than a batch are left, those nearest to the band fill it, and that is
    said once.

    Args:
        ids: the prompts' ids; a prompt is drawn as a position in this list.
        tracker: the estimates; the trainer updates them.
        policy: `none` takes every prompt in every pass.
        band: [low, high] of the estimate.
        batch: prompts drawn at once.
        seed: of the order.
        weights: how often prompts are drawn relative to each other; None where all are equal.
        ordered: keep the order of `ids`.
        warn: takes a sentence for the user.
    """

    def __init__(
        self,
        ids: Sequence[str],
        tracker: DifficultyTracker,
        *,
        policy: Literal["none", "epoch_filter"],
        band: Sequence[float],
        batch: int,
        seed: int,
        warn: Warn,
        weights: Sequence[float] | None = None,
        ordered: bool = False,
    ) -> None:
        self.tracker = tracker
        self.passes = 0
        self.candidates = 0
        self._ids, self._policy, self._band = list(ids), policy, (band[0], band[1])
        self._batch, self._seed, self._warn = batch, seed, warn
        self._weights, self._ordered = weights, ordered
        self._waiting: list[int] = []
        self._has_warned = False

    def draw(self, count: int) -> list[int]:
        """The next `count` prompts, distinct as long as there are so many; a new pass begins where one ends.

        Weighted draws are not held to be distinct: that would bend the weights.
        """
        drawn: list[int] = []
        if self._weights is not None:
            while len(self._waiting) < count:
                self._waiting += self._begin_pass()
            drawn, self._waiting = self._waiting[:count], self._waiting[count:]
            return drawn
        while len(drawn) < count:
            fresh = [position for position in self._waiting if position not in drawn]
            if not fresh:
                # what is drawn already may come again only when the data has fewer prompts than a batch
                self._waiting += self._begin_pass()
                fresh = [p for p in self._waiting if p not in drawn] or list(self._waiting)
            taken = fresh[: count - len(drawn)]
            drawn += taken
            for position in taken:
                self._waiting.remove(position)
        return drawn

    def state_dict(self) -> dict[str, Any]:
        """Everything but the prompts themselves, as JSON can hold it."""
        return {
            "tracker": self.tracker.state_dict(),
            "waiting": self._waiting,
            "passes": self.passes,
            "candidates": self.candidates,
            "has_warned": self._has_warned,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state_dict` described."""
        self.tracker.load_state_dict(state["tracker"])
        self._waiting = list(state["waiting"])
        self.passes, self.candidates = int(state["passes"]), int(state["candidates"])
        self._has_warned = bool(state["has_warned"])

    def _begin_pass(self) -> list[int]:
        chosen = self._filtered() if self._policy == "epoch_filter" else list(range(len(self._ids)))
        rng = random.Random(f"{self._seed}/{self.passes}")
        if self._weights is not None:
            chosen = rng.choices(chosen, [self._weights[position] for position in chosen], k=len(chosen))
        elif not self._ordered:
            rng.shuffle(chosen)
        self.passes += 1
        self.candidates = len(chosen)
        return chosen

    def _filtered(self) -> list[int]:
        inside = self.tracker.in_band(self._ids, self._band)
        chosen = [position for position, teaches in enumerate(inside) if teaches]
        wanted = min(self._batch, len(self._ids))
        if len(chosen) >= wanted:
            return chosen
        low, high = self._band
        estimates = [self.tracker.estimate(name) for name in self._ids]
        outside = [position for position, teaches in enumerate(inside) if not teaches]
        nearest = sorted(outside, key=lambda p: (max(low - estimates[p], estimates[p] - high), p))
        if not self._has_warned:
            self._has_warned = True
            self._warn(
                f"only {len(chosen)} of {len(self._ids)} prompts are still within difficulty.band {list(self._band)}, "
                f"and a step needs {wanted}: the nearest outside it are drawn as well; harder or easier data, or a "
                "wider band, would teach more"
            )
        return sorted(chosen + nearest[: wanted - len(chosen)])
