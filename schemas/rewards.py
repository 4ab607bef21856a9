"""Rewards: the one list that gate, evaluate, grpo and distill all take."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from finery.schemas.base import FilePath, Free, Model, refuse


class _Reward(Model):
    weight: float = 1.0
    """Its share in the sum that grpo maximises."""
    verifier: bool = False
    """Whether this reward decides solved or not; the only reward of a list does so by itself."""
    pass_threshold: float = 1.0
    """The score from which a completion counts as solved."""


class AnswerReward(_Reward):
    kind: Literal["answer"]
    """1.0 when the completion's final answer equals the row's `answer`, else 0.0; None when `answer` cannot be read."""
    extract: Literal["auto", "hash", "boxed", "last_number", "whole"] = "auto"
    """Where the final answer stands: after `####`, in `\\boxed{}`, the last number, the whole text; `auto` tries `####`, `\\boxed{}`, what follows `answer is`, and the last number, in turn."""
    compare: Literal["auto", "number", "text", "math"] = "auto"
    """How answers are compared: as exact numbers, as text, as LaTeX by math-verify; `auto` takes numbers when both are, else math-verify."""


class FormatReward(_Reward):
    kind: Literal["format"]
    """1.0 when the completion has the form asked for, else 0.0."""
    pattern: str | None = None
    """A regular expression the whole completion must match (`.` takes newlines); by default `tags` is asked for."""
    tags: list[str] = ["think", "answer"]
    """Tags that must each stand exactly once, in this order, non-empty, with nothing outside them."""


class ReasoningGymReward(_Reward):
    kind: Literal["reasoning_gym"]
    """The score of reasoning-gym's own verifier for the row's task."""
    extract: Literal["auto", "hash", "boxed", "tag", "whole"] = "auto"
    """Where the answer stands in the completion; `auto` takes an <answer> tag, `####`, `\\boxed{}`, else the whole text."""


class PythonReward(_Reward):
    kind: Literal["python"]
    """A function of your own, with TRL's signature `(prompts, completions, completion_ids, **columns)` plus `truncated`."""
    file: FilePath
    """The Python file that holds it."""
    function: str
    """Its name."""
    files: list[FilePath] = []
    """Other files it reads or imports; these and no others are hashed."""


Reward = Annotated[AnswerReward | FormatReward | ReasoningGymReward | PythonReward, Field(discriminator="kind")]
Rewards = Annotated[list[Reward], Field(min_length=1)]


def check_rewards(rewards: list[Reward], *, field: str = "rewards") -> None:
    """Exactly one reward is the verifier: the one marked so, or the only one."""
    marked = [reward for reward in rewards if reward.verifier]
    if len(marked) > 1 or (len(rewards) > 1 and not marked):
        raise refuse(
            "with several rewards, mark exactly one with verifier: true; it decides what counts as solved", field=field
        )


__all__ = [
    "AnswerReward",
    "FormatReward",
    "Free",
    "PythonReward",
    "ReasoningGymReward",
    "Reward",
    "Rewards",
    "check_rewards",
]
