"""Which metrics of a training stage become curves, and in what order."""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase

from finery.report.charts import curve
from finery.report.numbers import compact
from finery.report.svg import Markup

TELLING = (
    "loss", "eval_loss", "loss/*", "reward", "rewards/*/mean", "reward_std", "frac_reward_zero_std", "solved",
    "kl", "entropy", "mean_token_accuracy", "completions/mean_length", "completions/clipped_ratio",
    "clip_ratio/region_mean", "difficulty/*", "grad_norm", "learning_rate",
)  # fmt: skip
"""What a look at a training run is for, by TRL's names, in the order it is shown; the rest folds away."""


@dataclass(frozen=True)
class Curve:
    name: str
    last: str
    svg: Markup


@dataclass(frozen=True)
class Curves:
    """The curves of one stage: `main` are shown, `more` fold away; `steps` is the last step."""

    steps: int
    main: list[Curve]
    more: list[Curve]


def stage_curves(series: dict[str, dict[int, float | None]]) -> Curves | None:
    """The curves of every metric that was logged at more than one step, or None if there is none."""
    moving = {name: values for name, values in series.items() if len(values) > 1}
    if not moving:
        return None
    ordered = sorted(moving, key=_order)
    drawn = {name: _draw(name, moving[name]) for name in ordered}
    main: list[str] = []
    seen: set[tuple[tuple[int, float | None], ...]] = set()
    for name in ordered:
        shape = tuple(moving[name].items())
        if _order(name)[0] < len(TELLING) and shape not in seen and len(set(moving[name].values())) > 1:
            main.append(name)  # a flat line, or the curve of a name before it, says little
            seen.add(shape)
    if not main:
        main = ordered[:8]
    steps = max(max(values) for values in moving.values())
    return Curves(steps, [drawn[name] for name in main], [drawn[name] for name in ordered if name not in main])


def _order(name: str) -> tuple[int, str]:
    return next((place for place, pattern in enumerate(TELLING) if fnmatchcase(name, pattern)), len(TELLING)), name


def _draw(name: str, values: dict[int, float | None]) -> Curve:
    last = list(values.values())[-1]
    return Curve(name, "not finite" if last is None else compact(last), curve(name, list(values.items())))
