"""From the `rewards:` list of a stage to a RewardSet."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from finery.rewards.answer import AnswerFunction
from finery.rewards.choice import ChoiceFunction
from finery.rewards.form import FormatFunction
from finery.rewards.gym import GymFunction
from finery.rewards.json_schema import JsonSchemaFunction
from finery.rewards.length import LengthFunction
from finery.rewards.regex import RegexFunction
from finery.rewards.repetition import RepetitionFunction
from finery.rewards.rewardset import RewardSet, checked
from finery.rewards.steps import StepsFunction
from finery.rewards.user import UserFunction
from finery.schemas.rewards import (
    AnswerReward,
    ChoiceReward,
    CodeTestsReward,
    FormatReward,
    JsonSchemaReward,
    LengthReward,
    PythonReward,
    ReasoningGymReward,
    RegexReward,
    RepetitionReward,
    Reward,
    SqlReward,
    StepsReward,
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
    if isinstance(reward, PythonReward):
        path = inputs[f"{field}.file"]
        return (
            reward.function,
            UserFunction(path, reward.function).bound(),
            f"{field} (python {path.name}:{reward.function})",
        )
    return reward.kind, _function(reward, inputs, field), f"{field} ({reward.kind})"


def _function(reward: Reward, inputs: Mapping[str, Path], field: str) -> Callable[..., Any]:
    match reward:
        case AnswerReward():
            return AnswerFunction(reward.extract, reward.compare, reward.workers)
        case FormatReward():
            return FormatFunction(reward.pattern, reward.tags, f"{field}.pattern")
        case LengthReward():
            return LengthFunction(reward.max_tokens, reward.cache)
        case RegexReward():
            return RegexFunction(reward.pattern, reward.group, f"{field}.pattern")
        case ChoiceReward():
            return ChoiceFunction(reward.choices, reward.extract, f"{field}.choices")
        case JsonSchemaReward():
            return JsonSchemaFunction(inputs[f"{field}.file"], reward.extract, f"{field}.file")
        case StepsReward():
            return StepsFunction(reward.pattern, f"{field}.pattern")
        case RepetitionReward():
            return RepetitionFunction(reward.ngram)
        case ReasoningGymReward():
            return GymFunction(reward.extract)
        case CodeTestsReward():
            from finery.rewards.code import CodeTestsFunction

            return CodeTestsFunction(reward)
        case SqlReward():
            from finery.rewards.sql import SqlFunction

            return SqlFunction(reward, inputs.get(f"{field}.database"))
    raise TypeError(f"unknown reward {reward!r}")


def _names(names: Sequence[str]) -> list[str]:
    """Distinct names: a second `answer` is `answer_2`."""
    seen: dict[str, int] = {}
    result = []
    for name in names:
        seen[name] = seen.get(name, 0) + 1
        result.append(name if seen[name] == 1 else f"{name}_{seen[name]}")
    return result
