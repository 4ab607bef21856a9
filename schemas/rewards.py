"""Rewards: the one list that gate, evaluate, grpo and distill all take."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, model_validator

from finery.schemas.base import EXECUTION, FilePath, Free, Model, refuse

_TAG = re.compile(r"[A-Za-z0-9_-]+")


class _Reward(Model):
    packages: ClassVar[tuple[str, ...]] = ()
    """Distributions whose versions decide the score; they enter the key of a stage that uses it."""
    highest: ClassVar[float | None] = 1.0
    """The most that a completion can score; None where the kind sets no end."""

    weight: float = 1.0
    """Its share in the sum that grpo maximises."""
    verifier: bool = False
    """Whether this reward decides solved or not; the only reward of a list does so by itself."""
    pass_threshold: float = 1.0
    """The score from which a completion counts as solved."""

    @model_validator(mode="after")
    def _can_be_passed(self) -> Self:
        set_by_user = "pass_threshold" in self.model_fields_set
        if set_by_user and self.highest is not None and self.pass_threshold > self.highest:
            raise refuse(
                "{threshold} is more than {highest}, the highest score of this kind; nothing would ever pass",
                field="pass_threshold",
                threshold=self.pass_threshold,
                highest=self.highest,
            )
        return self

    def packages_in_use(self) -> tuple[str, ...]:
        return self.packages


class AnswerReward(_Reward):
    kind: Literal["answer"]
    """1.0 when the completion's final answer equals the row's `answer`, else 0.0; None when `answer` cannot be read."""
    packages = ("math-verify",)
    extract: Literal["auto", "hash", "boxed", "tag", "last_number", "whole"] = "auto"
    """Where the final answer stands: after `####`, in `\\boxed{}`, in an <answer> tag, the last number, the whole text; `auto` tries `####`, `\\boxed{}`, <answer>, what follows `answer is` or `答案是`, and the last number, in turn."""
    compare: Literal["auto", "number", "text", "math"] = "auto"
    """How answers are compared: as exact numbers, as text, as LaTeX by math-verify; `auto` takes numbers, lists of numbers and words when both are, else math-verify."""
    workers: Annotated[int, EXECUTION, Field(ge=1, le=64)] = 1
    """Processes of math-verify that work side by side."""


class FormatReward(_Reward):
    kind: Literal["format"]
    """1.0 when the completion has the form asked for, else 0.0."""
    pattern: str | None = None
    """A regular expression the whole completion must match (`.` takes newlines); by default `tags` is asked for."""
    tags: Annotated[list[str], Field(min_length=1)] = ["think", "answer"]
    """Tags that must each stand exactly once, in this order, non-empty, with nothing outside them."""

    @model_validator(mode="after")
    def _check(self) -> FormatReward:
        odd = next((name for name in self.tags if not _TAG.fullmatch(name)), None)
        if odd is not None:
            raise refuse("{name} is no name of a tag: letters, digits, _ and - only", field="tags", name=repr(odd))
        twice = next((name for name in self.tags if self.tags.count(name) > 1), None)
        if twice is not None:
            raise refuse("{name} is there twice; each tag stands exactly once", field="tags", name=twice)
        return self


class ReasoningGymReward(_Reward):
    kind: Literal["reasoning_gym"]
    """The score of reasoning-gym's own verifier for the row's task."""
    packages = ("reasoning-gym",)
    highest = None
    extract: Literal["auto", "hash", "boxed", "tag", "whole"] = "auto"
    """Where the answer stands in the completion; `auto` takes an <answer> tag, `####`, `\\boxed{}`, else the whole text."""


class LengthReward(_Reward):
    kind: Literal["length"]
    """A soft penalty over a budget: 0 up to max_tokens - cache, falling to -1 at max_tokens and beyond (DAPO, arXiv 2503.14476, equation 13)."""
    highest = 0.0
    max_tokens: Annotated[int, Field(ge=1)]
    """The tokens of a completion from which the penalty is whole."""
    cache: Annotated[int, Field(ge=1)]
    """The tokens before that over which it grows."""

    @model_validator(mode="after")
    def _check(self) -> LengthReward:
        if self.cache > self.max_tokens:
            raise refuse(
                "{cache} is more than max_tokens {most}", field="cache", cache=self.cache, most=self.max_tokens
            )
        return self


class RegexReward(_Reward):
    kind: Literal["regex"]
    """1.0 when the pattern is found, else 0.0; with `group`, when what the group matched is the row's answer."""
    pattern: str
    """A regular expression; `.` takes newlines, and the last match counts."""
    group: str | int | None = None
    """The group whose text is compared with the row's `answer`, after NFKC and with white space made even."""


class ChoiceReward(_Reward):
    kind: Literal["choice"]
    """1.0 when the completion chooses the row's `answer` from a few, else 0.0."""
    choices: Annotated[list[str], Field(min_length=2)] = ["A", "B", "C", "D"]
    """What can be chosen; the row's `answer` is one of them, else the reward abstains."""
    extract: Literal["auto", "hash", "boxed", "tag", "first", "last", "whole"] = "auto"
    """Where the choice stands; `auto` tries `####`, `\\boxed{}`, <answer>, what follows `answer is` or `答案是`, and the whole text, in turn, and never guesses between two."""


class JsonSchemaReward(_Reward):
    kind: Literal["json_schema"]
    """1.0 when the completion is JSON that fits a JSON Schema (draft 2020-12), else 0.0."""
    packages = ("jsonschema",)
    file: FilePath
    """The schema's file."""
    extract: Literal["auto", "fence", "whole"] = "auto"
    """Where the JSON stands: the last ``` block, the whole text; `auto` takes a block if there is one."""


class StepsReward(_Reward):
    kind: Literal["steps"]
    """Partial credit, from 0 to 1: the share of the solution's steps that the completion shows right, less those it shows wrong."""
    pattern: str | None = None
    """A regular expression with the groups `left` and `right`, one match a step; by default an equation of numbers, `17+8=25`."""


class RepetitionReward(_Reward):
    kind: Literal["repetition"]
    """A penalty from -1 to 0: minus the share of the completion's n-grams that repeat an earlier one (arXiv 2502.03373)."""
    highest = 0.0
    ngram: Annotated[int, Field(ge=1)] = 8
    """Tokens in an n-gram."""


class CodeTestsReward(_Reward):
    kind: Literal["code_tests"]
    """1.0 when the completion's Python passes the row's `tests`, else 0.0; run confined, in a fresh process for each completion."""
    extract: Literal["auto", "fence", "whole"] = "auto"
    """Where the code stands: the last ```python block, the whole text; `auto` takes a block if there is one."""
    timeout: Annotated[float, Field(gt=0, le=600)] = 5.0
    """Seconds of wall time for one completion; CPU time is limited to the same."""
    memory_mb: Annotated[int, Field(ge=64)] = 512
    """MiB of address space beyond the interpreter's own."""
    workers: Annotated[int, Field(ge=1)] = 1
    """Completions run side by side."""
    confinement: Literal["full", "limits"] = "full"
    """`limits` accepts a Linux kernel without Landlock: judged code can then read what this user can, and write nothing; see docs/confinement.md."""


class SqlReward(_Reward):
    kind: Literal["sql"]
    """1.0 when the completion's query gives the rows that the gold query of the row's `sql` gives, else 0.0."""
    database: FilePath | None = None
    """A database file for rows whose `sql` names none, or a folder that holds those they name; opened read-only, never changed."""
    engine: Literal["sqlite", "duckdb"] = "sqlite"
    """What runs the queries."""
    extract: Literal["auto", "fence", "whole"] = "auto"
    """Where the query stands: the last ```sql block, the whole text; `auto` takes a block if there is one."""
    timeout: Annotated[float, Field(gt=0, le=600)] = 5.0
    """Seconds of CPU time for one query; wall time is limited to four times as much."""
    tolerance: Annotated[float, Field(ge=0, lt=1)] = 1e-6
    """The most by which two numbers may differ, relative to the larger of 1 and their size."""
    permute_columns: bool = False
    """Accept columns in another order."""

    def packages_in_use(self) -> tuple[str, ...]:
        return ("duckdb",) if self.engine == "duckdb" else ()


class PythonReward(_Reward):
    kind: Literal["python"]
    """A function of your own, with TRL's signature `(prompts, completions, completion_ids, **columns)` plus `truncated`."""
    highest = None
    file: FilePath
    """The Python file that holds it."""
    function: str
    """Its name."""
    files: list[FilePath] = []
    """Other files it reads or imports; these and no others are hashed."""


Reward = Annotated[
    AnswerReward
    | FormatReward
    | LengthReward
    | RegexReward
    | ChoiceReward
    | JsonSchemaReward
    | StepsReward
    | RepetitionReward
    | CodeTestsReward
    | SqlReward
    | ReasoningGymReward
    | PythonReward,
    Field(discriminator="kind"),
]
Rewards = Annotated[list[Reward], Field(min_length=1)]


def reward_packages(rewards: Iterable[Reward]) -> tuple[str, ...]:
    """The distributions that decide these rewards' scores, each once."""
    return tuple(dict.fromkeys(name for reward in rewards for name in reward.packages_in_use()))


def check_rewards(rewards: list[Reward], *, field: str = "rewards") -> None:
    """Exactly one reward is the verifier: the one marked so, or the only one."""
    marked = [reward for reward in rewards if reward.verifier]
    if len(marked) > 1 or (len(rewards) > 1 and not marked):
        raise refuse(
            "with several rewards, mark exactly one with verifier: true; it decides what counts as solved", field=field
        )


__all__ = [
    "AnswerReward",
    "ChoiceReward",
    "CodeTestsReward",
    "FormatReward",
    "Free",
    "JsonSchemaReward",
    "LengthReward",
    "PythonReward",
    "ReasoningGymReward",
    "RegexReward",
    "RepetitionReward",
    "Reward",
    "Rewards",
    "SqlReward",
    "StepsReward",
    "check_rewards",
    "reward_packages",
]
