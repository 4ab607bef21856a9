"""GRPO's advantages. G is the group size (completions of one prompt), B = groups * G the batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray

SPREAD = 1e-6
"""A group whose standard deviation is at most SPREAD * max(1, |mean|) is constant: what is left is rounding.

Exact equality would not do: np.std([0.1] * 3) is 1.4e-17.
"""


def advantages(
    rewards: Sequence[float | None] | NDArray[np.floating],
    group_size: int,
    scale: Literal["group", "batch", "none"] = "group",
    eps: float = 1e-4,
) -> NDArray[np.float64]:
    """(r - mean) / (std + eps), group by group.

    DeepSeekMath (arXiv 2402.03300), section 4.1.2; the sample deviation (ddof 1) and eps 1e-4 as TRL has them
    (trl/trainer/grpo_trainer.py), where the paper's examples use the population one. `scale` is TRL's
    `scale_rewards`: "group" divides by the group's deviation, "batch" by the batch's, "none" not at all (Dr.
    GRPO, arXiv 2503.20783). The mean is always the group's. A constant group has advantage exactly 0.

    Args:
        rewards: [B], the groups one after another; None or NaN abstains: it does not enter mean and deviation
            and its advantage is 0. A group with fewer than two rewards has advantage 0.
        group_size: G, at least 2, dividing B.
        scale: what the difference is divided by.
        eps: added to the deviation.

    Returns:
        float64 [B], finite.

    Raises:
        ValueError: G < 2, B is not a multiple of G, a reward is infinite, or scale is another word.
    """
    if scale not in ("group", "batch", "none"):
        raise ValueError(f"scale must be group, batch or none, not {scale!r}")
    rewards_QG = _groups(rewards, group_size)
    valid_QG = ~np.isnan(rewards_QG)
    mean_Q, std_Q = _moments(rewards_QG)
    centred_QG = np.where(valid_QG, rewards_QG - mean_Q[:, None], 0.0)
    centred_QG[zero_std_groups(rewards, group_size)] = 0.0
    if scale == "group":
        centred_QG = centred_QG / (std_Q[:, None] + eps)
    elif scale == "batch":
        flat = rewards_QG[valid_QG]
        centred_QG = centred_QG / ((flat.std(ddof=1) if flat.size > 1 else 0.0) + eps)
    return centred_QG.reshape(-1)


def zero_std_groups(rewards: Sequence[float | None] | NDArray[np.floating], group_size: int) -> NDArray[np.bool_]:
    """Which groups teach nothing: bool [B / G], True where the spread is rounding only or fewer than two are valid.

    Its mean is `frac_reward_zero_std`.
    """
    rewards_QG = _groups(rewards, group_size)
    mean_Q, std_Q = _moments(rewards_QG)
    return std_Q <= SPREAD * np.maximum(1.0, np.abs(mean_Q))


def _groups(rewards: Sequence[float | None] | NDArray[np.floating], group_size: int) -> NDArray[np.float64]:
    if group_size < 2:
        raise ValueError(f"a group of {group_size} has no advantage; it compares completions of one prompt")
    flat = np.array([np.nan if reward is None else float(reward) for reward in rewards], dtype=np.float64)
    if flat.size == 0 or flat.size % group_size:
        raise ValueError(f"{flat.size} rewards do not make groups of {group_size}")
    if np.isinf(flat).any():
        raise ValueError(f"reward {int(np.flatnonzero(np.isinf(flat))[0])} is infinite")
    return flat.reshape(-1, group_size)


def _moments(rewards_QG: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Mean and sample deviation of the valid rewards of each group; 0 where there are too few."""
    valid_QG = ~np.isnan(rewards_QG)
    count_Q = valid_QG.sum(axis=1)
    filled_QG = np.where(valid_QG, rewards_QG, 0.0)
    mean_Q = filled_QG.sum(axis=1) / np.maximum(count_Q, 1)
    squares_QG = np.where(valid_QG, (filled_QG - mean_Q[:, None]) ** 2, 0.0)
    return mean_Q, np.sqrt(squares_QG.sum(axis=1) / np.maximum(count_Q - 1, 1))
