"""`finery reward check`: try rewards on rows of one's own, and see why each scored as it did."""

from __future__ import annotations

import json
import math
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from finery.data.records import Record, Reject, found
from finery.errors import InputError
from finery.language.problems import dotted
from finery.rewards import RewardSet, build
from finery.rewards.rewardset import RowError
from finery.schemas.rewards import Reward

BATCH = 64
"""Completions judged together."""
MOST_FAULTS = 20
"""Bad rows that are named one by one."""
_NEEDS_TOKENS = ("length", "repetition")
_TEXT = ("answer", "id")
_OTHERS = ("tests", "sql", "meta")


@dataclass(frozen=True)
class Sample:
    """One completion of a row, with where the row stands."""

    place: str
    row: dict[str, Any]
    completion: str
    completion_ids: list[int]
    truncated: bool


@dataclass(frozen=True)
class Judged:
    """One completion with its scores by reward's name, and why."""

    place: str
    scores: dict[str, float | None]
    total: float | None
    solved: bool | None
    why: dict[str, str]


@dataclass
class Totals:
    """Counts over all completions; a mean leaves out those on which its reward abstains."""

    rows: int = 0
    completions: int = 0
    solved: int = 0
    unsolved: int = 0
    abstained: int = 0
    means: dict[str, float | None] = field(default_factory=dict)
    abstentions: dict[str, int] = field(default_factory=dict)


def check(path: Path, rewards: Sequence[str], *, tokenizer: Path | None = None, as_json: bool = False) -> Iterator[str]:
    """The lines that `finery reward check` prints, as they become known.

    Args:
        path: JSON, JSONL, CSV or Parquet, compressed or not, a folder or glob of them, or a data set of finery's.
        rewards: kinds (`answer`) or entries of `rewards:` in YAML; the first is the verifier unless one is marked.
        tokenizer: a folder with tokenizer.json, for rewards that count tokens where rows have no completion_ids.

    Raises:
        InputError: a reward is not valid, or rows cannot be judged; these are named after the others were printed.
    """
    configs = [parse_reward(text) for text in rewards]
    judges = build(_marked(configs), _inputs(configs))
    encode = _encoder(tokenizer) if any(config.kind in _NEEDS_TOKENS for config in configs) else None
    totals = Totals()
    faults: list[str] = []
    judged: list[Judged] = []
    sums: dict[str, list[float]] = {name: [] for name in judges.names}
    totals.abstentions = dict.fromkeys(judges.names, 0)
    with tempfile.TemporaryDirectory(prefix="finery-") as work:
        samples = _samples(path, Path(work), encode, totals, faults)
        while batch := list(islice(samples, BATCH)):
            for one in _judge(judges, batch, totals, faults):
                _count(totals, sums, one)
                if as_json:
                    judged.append(one)
                else:
                    yield from _lines(one, judges)
    totals.means = {name: math.fsum(scores) / len(scores) if scores else None for name, scores in sums.items()}
    if as_json:
        document = {"rows": [asdict(one) for one in judged], "totals": asdict(totals), "bad_rows": faults}
        yield json.dumps(document, ensure_ascii=False, indent=1)
    else:
        yield from _summary(totals)
    if faults:
        more = [f"and {len(faults) - MOST_FAULTS} more"] if len(faults) > MOST_FAULTS else []
        raise InputError("\n".join([*faults[:MOST_FAULTS], *more, f"{path}: {len(faults)} bad rows were not judged"]))


def parse_reward(text: str) -> Reward:
    """A reward from `answer` or `{kind: answer, extract: boxed}`.

    Raises:
        InputError: it is not YAML, or not a reward; every mistake at once.
    """
    from finery.language.explain import explain
    from finery.language.fields import type_of
    from finery.language.nodes import parse

    bare = text.strip()
    root, problems = parse(bare if bare[:1] == "{" or ":" in bare else f"{{kind: {bare}}}")
    if problems or root is None:
        raise InputError(f"--reward {bare}: {problems[0].text if problems else 'is empty'}")
    try:
        reward: Reward = TypeAdapter(Reward).validate_python(root.plain())
    except ValidationError as error:
        explained = explain(type_of(Reward), root, list(error.errors(include_url=False))).problems
        lines = (f"--reward {bare}: {dotted(problem.path)}: {problem.text}" for problem in explained)
        raise InputError("\n".join(dict.fromkeys(line.replace(": : ", ": ") for line in lines))) from None
    return reward


def _marked(configs: Sequence[Reward]) -> list[Reward]:
    """The rewards, of which exactly one is the verifier."""
    if sum(config.verifier for config in configs) > 1:
        raise InputError("--reward: mark one reward with verifier: true, or none: the first is it then")
    if any(config.verifier for config in configs):
        return list(configs)
    return [configs[0].model_copy(update={"verifier": True}), *configs[1:]]


def _inputs(configs: Sequence[Reward]) -> dict[str, Path]:
    """The files that rewards name, from the working folder."""
    found: dict[str, Path] = {}
    for index, config in enumerate(configs):
        for name in ("file", "database"):
            value = getattr(config, name, None)
            if value is not None:
                found[f"rewards.{index}.{name}"] = Path(value)
                if not Path(value).exists():
                    raise InputError(f"--reward: {config.kind}: {name}: {value}: no such file or folder")
    return found


def _samples(
    path: Path, work: Path, encode: Callable[[str], list[int]] | None, totals: Totals, faults: list[str]
) -> Iterator[Sample]:
    """Every completion of every row; a row that cannot be used adds to `faults`."""
    from finery.data.sources.files import read_files
    from finery.schemas.data import FileSource

    source = FileSource(kind="file", path=str(path))
    for record in read_files(source, path, where="reward check", work=work).records:
        try:
            made = _row(record, encode)
        except Reject as reject:
            faults.append(f"{record.place}: {reject}")
            continue
        totals.rows += 1
        yield from made
    if not totals.rows and not faults:
        raise InputError(f"{path}: holds no rows")


def _row(record: Record, encode: Callable[[str], list[int]] | None) -> list[Sample]:
    from finery.data.formats import check_text

    if record.value is None:
        raise record.fault or Reject("", "unreadable", "cannot be read")
    row = dict(record.value)
    given = row.pop("completions", None)
    if given is None:
        given = [row.pop("completion", None)]
    elif not isinstance(given, list):
        raise Reject("completions", "type", f"must be a list of texts, found {found(given)}")
    elif not given:
        raise Reject("completions", "empty", "is empty; a list of texts is expected")
    for name in _TEXT:
        row[name] = _text(name, row.get(name))
    row = {**dict.fromkeys(_OTHERS), **row}  # a reward abstains on a row without its column, however its neighbours are
    check_text(row)
    ids, cut = row.pop("completion_ids", None), row.pop("truncated", False)
    if ids is not None and len(given) > 1:
        raise Reject("completion_ids", "type", "goes with one `completion`, not with `completions`")
    if not isinstance(cut, bool):
        raise Reject("truncated", "type", f"must be true or false, found {found(cut)}")
    samples = []
    for completion in given:
        text = _completion(completion)
        check_text({"completion": text})
        ids_here = encode(text) if ids is None and encode is not None else _ids(ids)
        samples.append(Sample(record.place, row, text, ids_here, cut))
    return samples


def _text(name: str, value: Any) -> str | None:
    if value is None or isinstance(value, str):
        return value
    raise Reject(name, "wrong_type", f"found {found(value)}; text is expected")


def _completion(value: Any) -> str:
    from finery.rewards.rewardset import text_of

    if isinstance(value, str):
        return value
    if isinstance(value, list) and value and all(isinstance(part, Mapping) and "content" in part for part in value):
        return text_of(value)
    raise Reject("completion", "type", f"must be text, or a list of messages, found {found(value)}")


def _ids(value: Any) -> list[int]:
    if value is None:
        return []
    if isinstance(value, list) and all(isinstance(each, int) for each in value):
        return value
    raise Reject("completion_ids", "type", f"must be a list of whole numbers, found {found(value)}")


def _encoder(folder: Path | None) -> Callable[[str], list[int]]:
    """What gives the tokens of a completion."""
    if folder is None:

        def refuse(_: str) -> list[int]:
            raise InputError("length and repetition count tokens: give --tokenizer FOLDER, or rows with completion_ids")

        return refuse
    file = folder / "tokenizer.json" if folder.is_dir() else folder
    if not file.is_file():
        raise InputError(f"--tokenizer {folder}: holds no tokenizer.json")
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(file))

    def encode(text: str) -> list[int]:
        ids: list[int] = tokenizer.encode(text, add_special_tokens=False).ids
        return ids

    return encode


def _judge(judges: RewardSet, batch: Sequence[Sample], totals: Totals, faults: list[str]) -> Iterator[Judged]:
    """The scores of some samples; one whose row a reward cannot judge adds to `faults`."""
    try:
        judged = list(_scored(judges, batch))
    except RowError as error:
        if len(batch) == 1:
            fault = f"{batch[0].place}: {error.column}: {error}"
            if fault not in faults:  # one line a row, however many completions it has
                faults.append(fault)
                totals.rows -= 1
            return
        for sample in batch:
            yield from _judge(judges, [sample], totals, faults)
        return
    yield from judged


def _scored(judges: RewardSet, batch: Sequence[Sample]) -> Iterator[Judged]:
    scores = judges.score(
        [sample.row for sample in batch],
        [sample.completion for sample in batch],
        [sample.completion_ids for sample in batch],
        [sample.truncated for sample in batch],
        [sample.place for sample in batch],
    )
    for index, sample in enumerate(batch):
        why = judges.explain(sample.row, sample.completion, sample.completion_ids, sample.truncated)
        own = {name: values[index] for name, values in scores.per_reward.items()}
        yield Judged(sample.place, own, scores.total[index], scores.solved[index], why)


def _count(totals: Totals, sums: dict[str, list[float]], one: Judged) -> None:
    totals.completions += 1
    totals.solved += one.solved is True
    totals.unsolved += one.solved is False
    totals.abstained += one.solved is None
    for name, score in one.scores.items():
        if score is None:
            totals.abstentions[name] += 1
        else:
            sums[name].append(score)


def _lines(one: Judged, judges: RewardSet) -> Iterator[str]:
    """One line a reward: place, name, score, what the verifier makes of it, and why."""
    words = {True: "solved", False: "unsolved", None: "abstains"}
    for index, (name, score) in enumerate(one.scores.items()):
        solved = words[one.solved] if index == judges.verifier else ""
        shown = "-" if score is None else f"{score:.4g}"
        why = one.why.get(name, "").replace("\n", "\\n")
        yield f"{one.place:<20} {name:<12} {shown:>7} {solved:<9} {why}".rstrip()


def _summary(totals: Totals) -> Iterator[str]:
    yield ""
    yield (
        f"{totals.rows} rows, {totals.completions} completions: {totals.solved} solved, {totals.unsolved} unsolved, "
        f"{totals.abstained} abstained"
    )
    for name, mean in totals.means.items():
        judged = totals.completions - totals.abstentions[name]
        shown = "-" if mean is None else f"{mean:.4g}"
        yield f"{name}: mean {shown} over {judged}, {totals.abstentions[name]} abstained"
