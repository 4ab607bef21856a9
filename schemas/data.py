"""`data`: rows from files, hubs and generators, cleaned, checked and split without leaks."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from finery.schemas.base import FilePath, Free, Model, Name, Stage, refuse
from finery.schemas.reference import ArtifactKind


class _Source(Model):
    weight: Annotated[float, Field(gt=0)] | None = None
    """Its share of each split's rows, mixed after the split: the source that is largest for its share is taken once, the others are repeated, evenly. By default every row is taken once."""


class FileSource(_Source):
    kind: Literal["file"]
    """JSON, JSONL, CSV or Parquet, compressed or not."""
    path: FilePath
    """A file, a folder (all data files below it) or a glob, relative to the YAML file."""
    format: Literal["auto", "prompt_completion", "messages", "alpaca", "sharegpt", "answer"] = "auto"
    """What the rows look like; `auto` recognises it from the columns."""
    columns: dict[str, str] = {}
    """Finery's column to the file's: `{prompt: question, completion: solution, meta.topic: subject}`; `a.b` reaches into an object."""
    encoding: str = "utf-8"
    """The text encoding; bytes it cannot read are an error that names the file and the offset."""
    numbers_as_text: bool = False
    """Take a number in a text column as the text it was written as; without it such a row is rejected."""


class HubSource(_Source):
    kind: Literal["hub"]
    """A data set on the Hugging Face hub."""
    name: str
    """`org/name`."""
    revision: str
    """A commit or tag; a data set is pinned."""
    config: str | None = None
    """The data set's configuration."""
    split: str = "train"
    """The split to read."""
    format: Literal["auto", "prompt_completion", "messages", "alpaca", "sharegpt", "answer"] = "auto"
    """What the rows look like; `auto` recognises it from the columns."""
    columns: dict[str, str] = {}
    """Finery's column to the data set's."""
    numbers_as_text: bool = False
    """Take a number in a text column as the text it was written as; without it such a row is rejected."""


class ReasoningGymSource(_Source):
    kind: Literal["reasoning_gym"]
    """Verifiable tasks made by the package reasoning-gym."""
    task: str
    """The task's name, for example `chain_sum`."""
    rows: Annotated[int, Field(ge=1)] = 500
    """How many to make."""
    config: dict[str, Free] = {}
    """The task's own parameters."""
    prompt_suffix: str = ""
    """Text added to each question, for example how the answer is to be written."""
    completion: str = "{answer}"
    """The completion to learn from, `{answer}` standing for the answer; a task without one answer has no completion."""


class ChainsSource(_Source):
    kind: Literal["chains"]
    """Finery's own verifiable task: chains of additions and subtractions, worked step by step."""
    rows: Annotated[int, Field(ge=1)] = 1000
    """How many to make."""
    levels: Annotated[list[Annotated[int, Field(ge=1, le=8)]], Field(min_length=1)] = [1, 2, 3, 4]
    """Numbers of operations, drawn equally often."""
    style: Literal["question", "compact"] = "question"
    """`question`: `Q:17+8-3\\n` to `A:17+8=25\\n25-3=22\\n#### 22`; `compact`: `17+8-3 ` to `17+8=25,25-3=22,22`."""
    noise_add: Annotated[float, Field(ge=0, le=1)] = 0.0
    """The share of additions whose result is written wrong (and carried on), as in scraped data. `answer` stays right."""
    noise_sub: Annotated[float, Field(ge=0, le=1)] = 0.0
    """The same for subtractions."""


class SkillsSource(_Source):
    kind: Literal["skills"]
    """Seven small general skills on numbers: add, sub, rev, srt, cpy, cmp, max."""
    rows: Annotated[int, Field(ge=1)] = 1000
    """How many to make."""
    skills: Annotated[list[Literal["add", "sub", "rev", "srt", "cpy", "cmp", "max"]], Field(min_length=1)] = [
        "add", "sub", "rev", "srt", "cpy", "cmp", "max",
    ]  # fmt: skip
    """Which of them, equally often."""


Source = Annotated[
    FileSource | HubSource | ReasoningGymSource | ChainsSource | SkillsSource, Field(discriminator="kind")
]


class Split(Model):
    fraction: Annotated[float, Field(gt=0, le=1)]
    """The share of groups that fall into it."""
    rows: Annotated[int, Field(ge=1)] | None = None
    """At most so many rows, the first after the shuffle."""
    unique_prompts: bool = False
    """Keep one row for each prompt; with weights, sources are then cut to their shares instead of repeated."""


class DataStage(Stage):
    kind: Literal["data"]
    """Makes the line's data sets."""
    packages = ("pyarrow", "datasets", "reasoning-gym")
    network = True
    sources: Annotated[list[Source], Field(min_length=1)]
    """Where the rows come from."""
    splits: Annotated[dict[Name, Annotated[float, Field(gt=0, le=1)] | Split], Field(min_length=1)] = {"train": 1.0}
    """The named outputs and their shares, which take consecutive intervals in the order written here. Whole groups fall into a split by the hash of their key, so nothing crosses, for any seed."""
    group_by: str = "prompt"
    """What makes a group: `prompt`, `answer`, or a field of `meta` as `meta.name`. Generators use the bare task."""
    salt: str = ""
    """Changes which groups fall into which split; equal salts and splits agree between pipelines."""
    deduplicate: Literal["row", "prompt", "none"] = "row"
    """Drop rows whose prompt, completion and answer (or whose prompt) came before, compared after NFKC and strip."""
    chat: bool = False
    """Write text prompts and completions as messages of user and assistant, for models with a chat template."""
    system: Annotated[str, Field(min_length=1)] | None = None
    """A system message put first in every conversation that has none."""
    max_reject_fraction: Annotated[float, Field(ge=0, le=1)] = 0.0
    """The share of rows that may be rejected before the stage fails; rejects are listed in `rejects.jsonl`."""

    def outputs(self) -> dict[str, ArtifactKind]:
        splits: dict[str, ArtifactKind] = dict.fromkeys(self.splits, "dataset")
        return {**splits, "rejects": "file", "card": "file"}

    @property
    def default_output(self) -> str | None:
        return next(iter(self.splits)) if len(self.splits) == 1 else None

    @model_validator(mode="after")
    def _check(self) -> DataStage:
        total = sum(split.fraction if isinstance(split, Split) else split for split in self.splits.values())
        if total > 1 + 1e-9:
            raise refuse(
                "the fractions sum to {total}; at most 1 can be shared out", field="splits", total=round(total, 6)
            )
        if taken := {"rejects", "card"} & set(self.splits):
            raise refuse("{name} is the name of an output every data stage has", field="splits", name=sorted(taken)[0])
        weighted = [source.weight is not None for source in self.sources]
        if any(weighted) and not all(weighted):
            raise refuse("give every source a weight, or none", field="sources")
        return self
