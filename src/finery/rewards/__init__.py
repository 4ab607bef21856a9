"""Rewards and the one verifier that gate, evaluate, grpo and distill share; importing it brings in no torch."""

from __future__ import annotations

from finery.rewards.builder import build
from finery.rewards.rewardset import RewardSet, Scores

__all__ = ["RewardSet", "Scores", "build"]
