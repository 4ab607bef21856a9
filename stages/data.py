"""`data`: rows from files, hubs and generators, cleaned, checked and split without leaks.

Records come one after another: each becomes a row, is mended, judged, and kept on disk with the few numbers that the
rest works on, or listed with its reason. Then duplicates go, the rows fall into splits by the hash of the group's key,
and each split is mixed, shuffled, capped and written. What falls into a split depends on the group's key and the salt
alone.
"""

from __future__ import annotations

import errno
import json
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from finery.contract import StageContext, StageResult
from finery.data.clean import NearDuplicates, contamination, steps
from finery.data.corpus import Collector, Steps
from finery.data.dataset import Row, iter_dataset
from finery.data.drawing import difficulty
from finery.data.kept import Kept
from finery.data.records import Reject
from finery.data.rejects import DUPLICATE, NEAR_DUPLICATE, UNSOLVED, Rejects
from finery.data.splits import make_split, split_of
from finery.errors import InputError, StageError
from finery.rewards import RewardSet, build
from finery.rewards.patterns import PROCESS
from finery.rewards.worker import TooLong, VerifierError
from finery.schemas.data import DataStage
from finery.stats.difficulty import read_difficulty

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

UNVERIFIABLE = "unverifiable"
"""The code of rows that the rewards of `verify` can never judge."""
_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


def run(config: DataStage, inputs: Mapping[str, Path], context: StageContext) -> StageResult:
    """Make the stage's data sets.

    Args:
        config: the stage's config.
        inputs: `sources.{i}.path` of each file source, `decontaminate.against.{i}`, `tokenizer`,
            `curriculum.difficulty`, and the files of `verify`.
        context: the outputs are one folder a split, `rejects/rejects.jsonl` and `card/card.json`.

    Raises:
        InputError: a source cannot be read, too many rows are damaged, or a split has no rows.
        StageError: a disk is full, or a reward raised.
    """
    import pyarrow as pa

    work = context.checkpoint_dir / "data"
    shutil.rmtree(work, ignore_errors=True)
    pool = pa.default_memory_pool()
    # what is freed goes back to the system: 30 to 60 MiB less at the peak (measured)
    pa.set_memory_pool(pa.system_memory_pool())
    try:
        return _run(config, inputs, context, work)
    except OSError as error:
        if error.errno not in _FULL:
            raise
        where = error.filename or f"{context.checkpoint_dir} or {context.output_dir}"
        raise StageError(
            f"{where}: cannot be written: {error.strerror or error}; a data stage needs room for about twice its rows "
            "beside its outputs; free some, or set FINERY_HOME to a larger disk"
        ) from error
    finally:
        pa.set_memory_pool(pool)
        shutil.rmtree(work, ignore_errors=True)


def _run(config: DataStage, inputs: Mapping[str, Path], context: StageContext, work: Path) -> StageResult:
    made = _steps(config, inputs)
    names = frozenset(step.name for step in made.clean)
    total = len(config.sources) + len(config.splits)
    with Rejects(context.output("rejects") / "rejects.jsonl", names) as rejects:
        collector = Collector(config, inputs, seed=context.seed, work=work, rejects=rejects, steps=made)
        for done, note in collector.collect():
            context.progress(done, total, note)
        for warning in collector.warnings:
            context.warn(warning)
        _check_damage(rejects, collector.read, config.max_reject_fraction)
        kept = collector.finish()
        if config.near_duplicates is not None:
            context.progress(len(config.sources), total, "looking for near duplicates")
            kept.drop(_near(config, kept, work), rejects, NEAR_DUPLICATE, "nearly repeats")
    card = _card(collector, kept, rejects)
    for number, (name, rows) in enumerate(_split(config, kept).items(), len(config.sources) + 1):
        split = make_split(
            config, name, rows, kept, seed=context.seed, folder=context.output(name), work=work / "buckets"
        )
        for warning in split.warnings:
            context.warn(warning)
        card["splits"][name] = split.card
        context.progress(number, total, f"{name} written")
    text = json.dumps(card, ensure_ascii=False, indent=2, allow_nan=False)
    (context.output("card") / "card.json").write_text(text + "\n", encoding="utf-8")
    return _result(card)


def _steps(config: DataStage, inputs: Mapping[str, Path]) -> Steps:
    """What is done to the rows, made of the config and the inputs."""
    counter = None
    if config.tokenizer is not None:
        from finery.training.tokens import RowTokens

        counter = RowTokens(inputs["tokenizer"])
    clean = list(steps(config.clean, counter, _search))
    if config.decontaminate is not None:
        sets = {
            reference: iter_dataset(inputs[f"decontaminate.against.{index}"])
            for index, reference in enumerate(config.decontaminate.against)
        }
        clean.append(contamination(config.decontaminate, sets))
    hard = None
    if config.curriculum is not None:
        known = read_difficulty(inputs["curriculum.difficulty"]) if config.curriculum.difficulty else {}
        hard = difficulty(config.curriculum, {i: count["solved"] / count["n"] for i, count in known.items()})
    return Steps(
        clean=clean,
        judge=_judge(build(config.verify, inputs, prefix="verify"), config) if config.verify else None,
        tokens=counter.count_many if counter else None,
        difficulty=hard,
    )


def _search(pattern: str, text: str) -> str | None:
    """The first match of a user's pattern, in a process that is killed when it backtracks for ever."""
    try:
        found: str | None = PROCESS.ask("search", pattern=pattern, text=text)
    except (TooLong, VerifierError):
        raise InputError(
            f"clean: the pattern {pattern!r} takes longer than {PROCESS.deadline:g} s on {text[:60]!r}; "
            "write it without a repeat within a repeat, or choices that begin alike within one"
        ) from None
    return found


def _judge(rewards: RewardSet, config: DataStage) -> Callable[[Sequence[Row]], list[Reject | None]]:
    """Why rows are unfit for the rewards of `verify`; with `verify_completion`, also those that are not solved."""

    def judge(rows: Sequence[Row]) -> list[Reject | None]:
        faults = [Reject(fault[0], UNVERIFIABLE, fault[1]) if fault else None for fault in rewards.check(rows)]
        if config.verify_completion:
            fit = [place for place, fault in enumerate(faults) if fault is None and _said(rows[place]) is not None]
            for place, fault in zip(fit, _unsolved(rewards, [rows[place] for place in fit]), strict=True):
                faults[place] = fault
        return faults

    return judge


def _unsolved(rewards: RewardSet, rows: Sequence[Row]) -> list[Reject | None]:
    if not rows:
        return []
    said = [_said(row) or "" for row in rows]
    scores = rewards.score(rows, said, [[] for _ in rows], [False] * len(rows))
    name, threshold = rewards.names[rewards.verifier], rewards.thresholds[rewards.verifier]
    faults: list[Reject | None] = []
    for row, solved, score in zip(rows, scores.solved, scores.per_reward[name], strict=True):
        column = "completion" if "completion" in row else "messages"
        if solved is None:
            faults.append(Reject(column, UNVERIFIABLE, f"{name} abstains from judging it"))
        elif solved:
            faults.append(None)
        else:
            faults.append(Reject(column, UNSOLVED, f"{name} scores it {score:g}; {threshold:g} is solved"))
    return faults


def _said(row: Row) -> str | None:
    """What a row would teach as the answer: its completion's text, or the last turn of its messages."""
    said = row.get("completion", row.get("messages"))
    return said if said is None or isinstance(said, str) else str(said[-1]["content"])


def _check_damage(rejects: Rejects, read: int, allowed: float) -> None:
    count = rejects.damaged
    if count <= allowed * read:
        return
    shown = "\n  ".join(rejects.shown)
    more = f"\n  and {count - len(rejects.shown)} more" if count > len(rejects.shown) else ""
    raise InputError(
        f"{count} of {read} rows cannot be used, {count / read:.2%} where max_reject_fraction allows "
        f"{allowed:.2%}; mend them, or raise it to leave them out:\n  {shown}{more}"
    )


def _near(config: DataStage, kept: Kept, work: Path) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64]]]:
    """The numbers of rows that nearly repeat others, and of those."""
    import numpy as np

    assert config.near_duplicates is not None
    near = NearDuplicates(config.near_duplicates, work)
    for number, (alive, row) in enumerate(zip(kept.alive.tolist(), kept.spill.read(), strict=True)):
        if alive:
            near.add(number, row)
    pairs = iter(near.duplicates())
    while len(some := np.array(list(islice(pairs, 65536)), dtype=np.int64)):
        yield some[:, 0], some[:, 1]


def _split(config: DataStage, kept: Kept) -> dict[str, NDArray[np.int64]]:
    """Split to the numbers of its rows."""
    import numpy as np

    split, alive = kept.facts.column("split"), kept.alive
    parts = {name: np.flatnonzero(alive & (split == index)) for index, name in enumerate(config.splits)}
    if empty := [name for name, part in parts.items() if not len(part)]:
        groups = len(np.unique(kept.facts.column("group")[alive]))
        raise InputError(
            f"splits.{empty[0]}: no row falls into it ({int(alive.sum())} rows in {groups} groups, a share of "
            f"{split_of(config, empty[0]).fraction:g}); give it a larger share, more data, or another group_by or salt"
        )
    return parts


def _card(collector: Collector, kept: Kept, rejects: Rejects) -> dict[str, Any]:
    """What the card says, the splits still to come."""
    import numpy as np

    alive = kept.alive
    by_source = np.bincount(kept.sources()[alive], minlength=len(collector.sources)).tolist()
    sources = [
        {**source, "kept": count, "rejected": source["read"] - count}
        for source, count in zip(collector.sources, by_source, strict=True)
    ]
    return {
        "read": collector.read,
        "kept": int(alive.sum()),
        "rejected": rejects.count,
        "damaged": rejects.damaged,
        "rejected_by_reason": rejects.reasons,
        "duplicates": rejects.by_code[DUPLICATE],
        "near_duplicates": rejects.by_code[NEAR_DUPLICATE],
        "steps": [
            {"step": name, "changed": changed, "dropped": rejects.by_code[name]}
            for name, changed in collector.changed.items()
        ],
        "groups": len(np.unique(kept.facts.column("group")[alive])),
        "unassigned": int((alive & (kept.facts.column("split") == len(collector.config.splits))).sum()),
        "sources": sources,
        "splits": {},
    }


def _result(card: dict[str, Any]) -> StageResult:
    splits = card["splits"]
    metrics: dict[str, float] = {f"rows_{name}": split["rows"] for name, split in splits.items()}
    counts = ("read", "kept", "rejected", "damaged", "duplicates", "near_duplicates", "unassigned")
    metrics |= {name: card[name] for name in counts}
    metrics |= {f"rejected_{code}": count for code, count in card["rejected_by_reason"].items()}
    metrics |= {f"changed_{step['step']}": step["changed"] for step in card["steps"]}
    shown = ", ".join(f"{name} {split['rows']}" for name, split in splits.items())
    filtered = card["rejected"] - card["damaged"] - card["duplicates"] - card["near_duplicates"]
    dropped = [f"{card['damaged']} damaged", f"{card['duplicates']} duplicates"]
    if card["near_duplicates"]:
        dropped.append(f"{card['near_duplicates']} near duplicates")
    if filtered:
        dropped.append(f"{filtered} by filters")
    headline = f"{shown} rows; dropped: {', '.join(dropped)}"
    return StageResult(metrics=metrics, summary={"headline": headline, "card": card})
