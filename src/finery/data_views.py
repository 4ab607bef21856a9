"""How the stages of a pipeline see a data set: with which tokenizer, and what of it they learn."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from finery.data.dataset import Row, iter_dataset
from finery.errors import InputError
from finery.language.problems import hint
from finery.plan import Planner, StagePlan
from finery.schemas.base import Stage
from finery.schemas.distill import DistillStage, ShrunkStudent
from finery.schemas.dpo import DpoStage
from finery.schemas.grpo import GrpoStage
from finery.schemas.pretrain import PretrainStage, WordTokenizer
from finery.schemas.reference import PathRef, StageRef, parse_reference, uses
from finery.schemas.sft import SftStage

if TYPE_CHECKING:
    from finery.training.rendering import Rendered


@dataclass(frozen=True)
class Learn:
    """What a trainer learns of a row; the fields are arguments of `finery.training.encode.encode`."""

    completion_only: bool = True
    assistant_only: bool = False
    max_length: int | None = None
    overlong: Literal["cut", "reject"] = "cut"


@dataclass(frozen=True)
class View:
    """A way in which rows are seen.

    Attributes:
        stages: the fields that read the data so, `sft.data`; none for a model that the user named.
        model: what tokenizes, as it is written.
        learn: what is learned; None where the rows are prompts to complete.
        tokenizer: with its chat template; None where `missing` says why there is none.
        ends: token ids that end a completion.
    """

    stages: list[str]
    model: str
    learn: Learn | None
    tokenizer: Any = None
    ends: list[int] = field(default_factory=list)
    missing: str | None = None

    @property
    def title(self) -> str:
        """Whose view it is, in words."""
        if not self.stages:
            return f"as {self.model} would see it"
        return f"as {', '.join(self.stages)} {'trains on' if self.learn else 'asks'} it"

    @property
    def facts(self) -> dict[str, Any]:
        """What decides the view, as JSON can hold it."""
        if self.learn is None:
            return {"prompts_only": True}
        return {
            "completion_only_loss": self.learn.completion_only,
            "assistant_only_loss": self.learn.assistant_only,
            "max_length": self.learn.max_length,
        }

    @property
    def settings(self) -> str:
        """The same in words."""
        said = [f"model {self.model}"]
        if self.learn is None:
            said.append("prompts to complete, nothing in them is learned")
        else:
            said += [f"max_length {self.learn.max_length}"] if self.learn.max_length else []
            said += ["completion_only_loss: false"] if not self.learn.completion_only else []
            said += ["assistant_only_loss"] if self.learn.assistant_only else []
        return ", ".join(said)

    def tokens(self, rows: Sequence[Row]) -> Iterator[tuple[Row, str, Rendered | str, bool]]:
        """Each row with its tokens or why it is left out, and whether it lost its end; as training has them.

        A row of chosen and rejected comes twice, each time with the name of the one that is shown, else "".
        """
        from finery.training.encode import fitted
        from finery.training.rendering import Rendered, render_prompt

        for row in rows:
            if self.learn is None or not {"completion", "messages", "chosen"} & set(row):
                if self.learn is not None and self.stages:
                    raise InputError(f"{self.stages[0]}: row {row['id']} has no completion and no messages to train on")
                ids = render_prompt(self.tokenizer, row["prompt"])
                yield row, "", Rendered(ids, [False] * len(ids), len(ids)), False
                continue
            sides = ("chosen", "rejected") if "chosen" in row else ("",)
            for side in sides:
                given = {"id": row["id"], "prompt": row["prompt"], "completion": row[side]} if side else row
                for _, tokens, is_cut in fitted(
                    [given],
                    self.tokenizer,
                    ends=self.ends,
                    max_length=self.learn.max_length or sys.maxsize,
                    overlong=self.learn.overlong,
                    completion_only=self.learn.completion_only,
                    assistant_only=self.learn.assistant_only,
                    name=self.stages[0] if self.stages else "data",
                ):
                    yield row, side, tokens, is_cut


def views(planner: Planner, plans: Mapping[str, StagePlan], output: str, model: str | None) -> list[View]:
    """How a data set is seen: by the model that is named, else by each stage of the file that trains on it.

    Args:
        output: the data set, `stage.output`.
        model: a reference of the file or a folder.

    Raises:
        InputError: the model is not there, or none of the stages has one yet.
    """
    from finery.training.tokens import RowTokens

    if model is not None:
        counter = RowTokens(_named(planner, plans, model))
        return [View([], model, Learn(), counter.tokenizer, counter.ends)]
    found: list[View] = []
    for stage, place in _readers(planner, output):
        view = _view(planner, plans, stage, place)
        if view is None:
            continue
        same = next((at for at, other in enumerate(found) if _equal(view, other)), None)
        if same is None:
            found.append(view)
        else:
            found[same] = replace(found[same], stages=[*found[same].stages, *view.stages])
    if found and all(view.missing for view in found):
        told = "; ".join(f"{', '.join(view.stages)}: {view.missing}" for view in found)
        raise InputError(f"{output}: no stage that trains on it has its model yet ({told}); name one with --model")
    return found


def _equal(one: View, other: View) -> bool:
    """Whether two views show the same: one model, learned alike, with one chat template and vocabulary."""

    def parts(view: View) -> tuple[object, ...]:
        words = None if view.tokenizer is None else (view.tokenizer.chat_template, len(view.tokenizer))
        return view.model, view.learn, view.missing, words

    return parts(one) == parts(other)


def _readers(planner: Planner, output: str) -> Iterator[tuple[str, str]]:
    """(stage, field) of every reference to the data set."""
    for name in planner.loaded.order:
        for use in uses(planner.config(name)):
            if use.ref.local_only:
                continue
            reference = parse_reference(use.text)
            if isinstance(reference, StageRef):
                made = reference.output or planner.config(reference.stage).default_output
                if f"{reference.stage}.{made}" == output:
                    yield name, use.field


def _view(planner: Planner, plans: Mapping[str, StagePlan], stage: str, place: str) -> View | None:
    """A stage's view of what its field `place` names; None when it does not train on that."""
    config = planner.config(stage)
    seen = _model_and_learn(config, stage, place)
    if seen is None:
        return None
    model, learn = seen
    title = [f"{stage}.{place}"]
    if isinstance(config, PretrainStage):
        tokenizer = _made(planner, plans, config)
        if isinstance(tokenizer, str):
            return View(title, model, learn, missing=tokenizer)
        return View(title, model, learn, tokenizer, [tokenizer.eos_token_id])
    folder = _folder(planner, plans, model)
    if isinstance(folder, str):
        return View(title, model, learn, missing=folder)
    from finery.training.tokens import RowTokens

    template = None
    if isinstance(config, SftStage) and config.chat_template is not None:
        template = planner.outside_path(config.chat_template).read_text(encoding="utf-8")
    counter = RowTokens(folder, chat_template=template)
    if isinstance(config, SftStage) and config.added_tokens:
        from tokenizers import AddedToken

        added = [AddedToken(token, special=True, normalized=False) for token in config.added_tokens]
        counter.tokenizer.add_tokens(added, special_tokens=True)
    return View(title, model, learn, counter.tokenizer, counter.ends)


def _model_and_learn(config: Stage, stage: str, place: str) -> tuple[str, Learn | None] | None:
    """Whose tokenizer, and what the stage's `run` gives to `encode`: None for prompts it samples from.

    None at all when the stage does not train on what the field names.
    """
    match config:
        case SftStage() if place in ("data", "eval_data", "replay.data"):
            assistant_only = config.assistant_only_loss and place != "replay.data"
            return config.model, Learn(config.completion_only_loss, assistant_only, config.max_length)
        case PretrainStage() if place in ("data", "replay.data"):
            return stage, Learn(max_length=config.max_length, overlong="reject")
        case DpoStage() if place in ("data", "eval_data"):
            return config.model, Learn(max_length=config.max_length)
        case DpoStage() if place == "prompts":
            return config.model, None
        case DistillStage() if place == "replay.data":
            student = config.teacher if isinstance(config.student, ShrunkStudent) else config.student
            return student, Learn(max_length=config.max_length)
        case DistillStage() if place == "data":
            return config.teacher, None
        case GrpoStage() if place == "data":
            return config.model, None
    return None


def _made(planner: Planner, plans: Mapping[str, StagePlan], config: PretrainStage) -> Any:
    """The tokenizer that a pretrain stage makes, or why it cannot be told yet."""
    from finery.training.tokenizers import make_tokenizer

    if isinstance(config.tokenizer, WordTokenizer):
        return make_tokenizer(config.tokenizer, ())
    texts: list[str] = []
    for text in [config.data, *([config.replay.data] if config.replay else [])]:
        folder = _folder(planner, plans, text)
        if isinstance(folder, str):
            return folder
        texts += [row["prompt"] + row["completion"] for row in iter_dataset(folder)]
    return make_tokenizer(config.tokenizer, texts)


def _folder(planner: Planner, plans: Mapping[str, StagePlan], text: str) -> Path | str:
    """Where an artifact lies, or why it does not yet."""
    reference = parse_reference(text)
    if not isinstance(reference, StageRef):
        try:
            return planner.outside_path(text)
        except KeyError:
            return f"{text} is not in the lock file and the cache yet; finery run resolves it"
    done = plans[reference.stage].done
    output = reference.output or planner.config(reference.stage).default_output or ""
    if done is None or output not in done.outputs:
        return f"{text} is not finished"
    return done.outputs[output].path


def _named(planner: Planner, plans: Mapping[str, StagePlan], text: str) -> Path:
    """The folder of the model that the user named: a reference of the file, or a folder from here.

    Raises:
        InputError: it is neither, or not finished.
    """
    name = text.partition(".")[0]
    if name not in plans and Path(text).expanduser().is_dir():
        return Path(text).expanduser()
    try:
        reference = parse_reference(text)
    except ValueError:
        reference = None
    if reference is None or isinstance(reference, PathRef):
        raise InputError(f"--model {text}: no such folder, and no reference{hint(text, list(plans))}")
    if isinstance(reference, StageRef):
        if reference.stage not in plans:
            there = hint(reference.stage, list(plans), listed="there are")
            raise InputError(f"--model {text}: no such folder, and no such stage{there}")
        outputs = planner.config(reference.stage).outputs()
        output = reference.output or planner.config(reference.stage).default_output or ""
        if outputs.get(output) != "model":
            models = [f"{n}.{o}" for n in plans for o, kind in planner.config(n).outputs().items() if kind == "model"]
            raise InputError(f"--model {text}: is no model; there are {', '.join(models) or 'none in this file'}")
    folder = _folder(planner, plans, text)
    if isinstance(folder, str):
        raise InputError(f"--model: {folder}")
    return folder
