"""From the `rewards:` list of a stage to a RewardSet."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from finery.errors import InputError
from finery.rewards.answer import AnswerFunction
from finery.rewards.form import FormatFunction
from finery.rewards.gym import GymFunction
from finery.rewards.rewardset import RewardSet, checked
from finery.rewards.user import UserFunction
from finery.schemas.rewards import (
    AnswerReward,
    CodeTestsReward,
    FormatReward,
    PythonReward,
    ReasoningGymReward,
    Reward,
    SqlReward,
)


def build(rewards: Sequence[Reward], inputs: Mapping[str, Path], *, prefix: str = "rewards") -> RewardSet:
    """The rewards of a stage.

    Args:
        rewards: as the stage's config lists them.
        inputs: the stage's inputs; `{prefix}.{i}.file` is the file of a python or json_schema reward,
            `{prefix}.{i}.database` that of a sql one.
        prefix: the config's field that holds the list: `rewards`, `suites.domain.rewards`.

    Raises:
        InputError: a pattern or a user's file cannot be used.
    """
    made = [_make(reward, inputs, f"{prefix}.{index}") for index, reward in enumerate(rewards)]
    names = _names([name for name, _, _ in made])
    judges = [function for _, function, _ in made]
    functions = [
        checked(function, name=name, where=where) for name, (_, function, where) in zip(names, made, strict=True)
    ]
    marked = [index for index, reward in enumerate(rewards) if reward.verifier]
    return RewardSet(
        names=names,
        functions=functions,
        weights=[reward.weight for reward in rewards],
        thresholds=[reward.pass_threshold for reward in rewards],
        verifier=marked[0] if marked else 0,
        judges_row=[hasattr(judge, "check") for judge in judges],
        judges=judges,
    )


def _make(reward: Reward, inputs: Mapping[str, Path], field: str) -> tuple[str, Callable[..., Any], str]:
    """Its base name, its function, and how errors call it."""
    match reward:
        case AnswerReward():
            return "answer", AnswerFunction(reward.extract, reward.compare), f"{field} (answer)"
        case FormatReward():
            return "format", _format(reward, field), f"{field} (format)"
        case ReasoningGymReward():
            return "reasoning_gym", GymFunction(reward.extract), f"{field} (reasoning_gym)"
        case CodeTestsReward():
            from finery.rewards.code import CodeTestsFunction

            return "code_tests", CodeTestsFunction(reward), f"{field} (code_tests)"
        case SqlReward():
            from finery.rewards.sql import SqlFunction

            return "sql", SqlFunction(reward, inputs.get(f"{field}.database")), f"{field} (sql)"
        case PythonReward():
            path = inputs[f"{field}.file"]
            function = UserFunction(path, reward.function).bound()
            return reward.function, function, f"{field} (python {path.name}:{reward.function})"
    raise TypeError(f"unknown reward {reward!r}")


def _format(reward: FormatReward, field: str) -> FormatFunction:
    try:
        return FormatFunction(reward.pattern, reward.tags)
    except re.error as error:
        raise InputError(f"{field}.pattern: is not a regular expression: {error}") from error


def _names(names: Sequence[str]) -> list[str]:
    """Distinct names: a second `answer` is `answer_2`."""
    seen: dict[str, int] = {}
    result = []
    for name in names:
        seen[name] = seen.get(name, 0) + 1
        result.append(name if seen[name] == 1 else f"{name}_{seen[name]}")
    return result
