"""How hard each prompt is for the policy as it is now: a Beta posterior a prompt, with fading evidence."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from finery.errors import InputError
from finery.stats.beta import beta_quantile


class DifficultyTracker:
    """The pass rate of every prompt, as Beta(1/2 + solved, 1/2 + failed) with discounted counts.

    After MoPPS (arXiv 2507.04632), which holds a Beta posterior a prompt and lets old evidence fade as the policy
    moves. Here the posterior mean is judged instead of a draw, and the prior is Jeffreys', so that 16 wrong
    completions of 16 give an estimate of 0.03, below a band that begins at 0.05, and 8 of 8 wrong give 0.056,
    which stays in it.

    Args:
        start: prompt id to `{"n", "solved"}`, as difficulty.json's "prompts" holds it.
        discount: what remains of a prompt's old evidence at each new visit; 0 < discount <= 1.
        prior: the two parameters of the prior.
    """

    def __init__(
        self,
        start: Mapping[str, Mapping[str, float]] | None = None,
        *,
        discount: float = 0.9,
        prior: tuple[float, float] = (0.5, 0.5),
    ) -> None:
        if not 0 < discount <= 1:
            raise ValueError(f"discount must lie in (0, 1], not {discount}")
        if min(prior) <= 0:
            raise ValueError(f"both parameters of the prior must be positive, not {prior}")
        self.discount = discount
        self.prior = (float(prior[0]), float(prior[1]))
        self._counts: dict[str, tuple[float, float]] = {}
        for prompt, count in (start or {}).items():
            n, solved = float(count["n"]), float(count["solved"])
            if not (math.isfinite(n) and 0 <= solved <= n):
                raise ValueError(f"prompt {prompt}: {solved:g} solved of {n:g} is impossible")
            self._counts[prompt] = (n, solved)

    def update(self, ids: Sequence[str], solved: Sequence[bool | None]) -> None:
        """Take in one visit: a prompt's id once for each completion, and whether that was solved (None abstained).

        The old evidence of each prompt visited is discounted once, however many completions it has here.
        """
        new: dict[str, tuple[int, int]] = {}
        for prompt, hit in zip(ids, solved, strict=True):
            if hit is not None:
                n, right = new.get(prompt, (0, 0))
                new[prompt] = (n + 1, right + bool(hit))
        for prompt, (n, right) in new.items():
            old_n, old_right = self._counts.get(prompt, (0.0, 0.0))
            self._counts[prompt] = (self.discount * old_n + n, self.discount * old_right + right)

    def seen(self, prompt: str) -> bool:
        """Whether there is any evidence on the prompt."""
        return self._counts.get(prompt, (0.0, 0.0))[0] > 0

    def estimate(self, prompt: str) -> float:
        """The posterior mean of its pass rate; the prior's mean when it is unseen."""
        a, b = self._posterior(prompt)
        return a / (a + b)

    def interval(self, prompt: str, confidence: float = 0.95) -> tuple[float, float]:
        """The equal-tailed credible interval of its pass rate."""
        a, b = self._posterior(prompt)
        tail = (1.0 - confidence) / 2
        return beta_quantile(tail, a, b), beta_quantile(1.0 - tail, a, b)

    def in_band(self, ids: Sequence[str], band: Sequence[float]) -> list[bool]:
        """Which prompts teach: the estimate lies in [low, high]. An unseen prompt always does."""
        low, high = band
        return [not self.seen(prompt) or low <= self.estimate(prompt) <= high for prompt in ids]

    def can_bite(self, band: Sequence[float], group_size: int) -> bool:
        """Whether the band can ever drop a prompt that is visited with groups of G and solved always or never.

        Rates of a group are multiples of 1/G, but the band is judged on the estimate, whose evidence grows
        towards G / (1 - discount) completions (without end when nothing is discounted).
        """
        low, high = band
        a, b = self.prior
        visits = math.inf if self.discount == 1 else group_size / (1.0 - self.discount)
        most = max([visits, *(n for n, _ in self._counts.values())])
        if math.isinf(most):
            return low > 0 or high < 1
        return a / (a + b + most) < low or (a + most) / (a + b + most) > high

    def as_difficulty(self) -> dict[str, Any]:
        """What difficulty.json holds: `{"prompts": {id: {"n", "solved"}}}`, by id in order."""
        return {"prompts": {p: {"n": _tidy(n), "solved": _tidy(s)} for p, (n, s) in sorted(self._counts.items())}}

    def state_dict(self) -> dict[str, Any]:
        """Everything, as JSON can hold it; floats round-trip exactly."""
        counts = {prompt: list(count) for prompt, count in self._counts.items()}
        return {"discount": self.discount, "prior": list(self.prior), "counts": counts}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Become the tracker that `state_dict` described."""
        self.discount = float(state["discount"])
        self.prior = (float(state["prior"][0]), float(state["prior"][1]))
        self._counts = {prompt: (float(n), float(s)) for prompt, (n, s) in state["counts"].items()}

    def _posterior(self, prompt: str) -> tuple[float, float]:
        n, solved = self._counts.get(prompt, (0.0, 0.0))
        return self.prior[0] + solved, self.prior[1] + n - solved


def read_difficulty(path: Path) -> dict[str, dict[str, float]]:
    """The prompts of a difficulty.json (or of the folder that holds it), for `DifficultyTracker(start)`.

    Raises:
        InputError: the file is absent or not of that form.
    """
    file = path / "difficulty.json" if path.is_dir() else path
    try:
        prompts = json.loads(file.read_text(encoding="utf-8"))["prompts"]
        return {str(p): {"n": float(c["n"]), "solved": float(c["solved"])} for p, c in prompts.items()}
    except FileNotFoundError:
        raise InputError(f"{file}: not found; a difficulty is an output of gate or grpo") from None
    except (json.JSONDecodeError, KeyError, TypeError, ValueError, AttributeError) as error:
        raise InputError(
            f'{file}: is not a difficulty ({error}); it holds {{"prompts": {{id: {{"n", "solved"}}}}}}'
        ) from None


def _tidy(value: float) -> int | float:
    """Counts that are whole are written as such."""
    return int(value) if value == int(value) else value
