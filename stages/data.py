"""`data`: rows from files, hubs and generators, cleaned, checked and split without leaks.

Read, make rows (each kept or rejected by name), drop duplicates, split by the hash of the group's key, then mix,
shuffle and cap within each split. What falls into a split depends on the group's key and the salt alone.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from finery.contract import StageContext, StageResult
from finery.data.card import lengths
from finery.data.corpus import Collector, Corpus, Kept
from finery.data.dataset import Row, write_dataset
from finery.data.groups import Intervals
from finery.data.mix import Mixed, mix
from finery.errors import InputError
from finery.schemas.data import DataStage, Split

MANY_REPEATS = 10
"""A source repeated more often than this in a split is worth a warning."""


def run(config: DataStage, inputs: Mapping[str, Path], context: StageContext) -> StageResult:
    """Make the stage's data sets.

    Args:
        config: the stage's config.
        inputs: `sources.{i}.path` of each file source.
        context: the outputs are one folder a split, `rejects/rejects.jsonl` and `card/card.json`.

    Raises:
        InputError: a source cannot be read, too many rows are rejected, or a split has no rows.
    """
    collector = Collector(config, inputs, seed=context.seed, work=context.checkpoint_dir)
    total = len(config.sources) + len(config.splits)
    for done in collector.collect():
        context.progress(done, total, f"source {done} read")
    corpus = collector.corpus
    for warning in corpus.warnings:
        context.warn(warning)
    _write_rejects(corpus, context.output("rejects") / "rejects.jsonl")
    _check_rejects(corpus, config.max_reject_fraction)
    parts, unassigned = _split(config, corpus.kept)
    card: dict[str, Any] = {
        "read": corpus.read,
        "kept": len(corpus.kept),
        "rejected": len(corpus.rejected),
        "rejected_by_reason": corpus.reasons,
        "duplicates": corpus.duplicates,
        "groups": len({item.key for item in corpus.kept}),
        "unassigned": unassigned,
        "sources": corpus.sources,
        "splits": {},
    }
    for number, (name, part) in enumerate(parts.items(), len(config.sources) + 1):
        card["splits"][name] = _make_split(config, name, part, context)
        context.progress(number, total, f"{name} written")
    text = json.dumps(card, ensure_ascii=False, indent=2, allow_nan=False)
    (context.output("card") / "card.json").write_text(text + "\n", encoding="utf-8")
    return _result(card)


def _write_rejects(corpus: Corpus, path: Path) -> None:
    with path.open("w", encoding="utf-8") as file:
        for item in corpus.rejected:
            file.write(json.dumps(item.to_json(), ensure_ascii=False) + "\n")


def _check_rejects(corpus: Corpus, allowed: float) -> None:
    count = len(corpus.rejected)
    if count <= allowed * corpus.read:
        return
    shown = "\n  ".join(str(item) for item in corpus.rejected[:20])
    more = f"\n  and {count - 20} more" if count > 20 else ""
    raise InputError(
        f"{count} of {corpus.read} rows cannot be used, {count / corpus.read:.2%} where max_reject_fraction allows "
        f"{allowed:.2%}; mend them, or raise it to leave them out:\n  {shown}{more}"
    )


def _split(config: DataStage, kept: Sequence[Kept]) -> tuple[dict[str, list[Kept]], int]:
    """Split to its rows, and how many rows lie beyond the last split."""
    fractions = {name: _split_of(config, name).fraction for name in config.splits}
    intervals = Intervals(fractions)
    parts: dict[str, list[Kept]] = {name: [] for name in config.splits}
    unassigned = 0
    for item in kept:
        name = intervals.split(item.key, config.salt)
        if name is None:
            unassigned += 1
        else:
            parts[name].append(item)
    if empty := [name for name, part in parts.items() if not part]:
        groups = len({item.key for item in kept})
        raise InputError(
            f"splits.{empty[0]}: no row falls into it ({len(kept)} rows in {groups} groups, a share of "
            f"{fractions[empty[0]]:g}); give it a larger share, more data, or another group_by or salt"
        )
    return parts, unassigned


def _split_of(config: DataStage, name: str) -> Split:
    split = config.splits[name]
    return split if isinstance(split, Split) else Split(fraction=split)


def _make_split(config: DataStage, name: str, part: Sequence[Kept], context: StageContext) -> dict[str, Any]:
    """Mix and write one split; what the card says of it."""
    split = _split_of(config, name)
    weights = [source.weight for source in config.sources if source.weight is not None]
    by_source: list[list[Row]] = [[] for _ in config.sources]
    for item in part:
        by_source[item.source].append(item.row)
    mixed = mix(
        by_source,
        weights or None,
        seed=context.seed,
        split=name,
        cap=split.rows,
        unique_prompts=split.unique_prompts,
    )
    _warn(mixed, by_source, weights, name, context)
    try:
        info = write_dataset(mixed.rows, context.output(name), info={"split": name})
    except InputError as error:
        raise InputError(
            f"splits.{name}: {error}. `chat: true` writes text as messages; conversations to learn whole "
            "(messages, sharegpt) and prompts with completions need a data stage each"
        ) from error
    return {
        "rows": len(mixed.rows),
        "prompts": info["prompts"],
        "groups": len({item.key for item in part}),
        "rows_before_mixing": len(part),
        "rows_by_source": mixed.taken,
        "repeated_by_source": mixed.repeated,
        "same_prompt": mixed.same_prompt,
        "capped": mixed.capped,
        "characters": lengths(mixed.rows),
    }


def _warn(mixed: Mixed, by_source: list[list[Row]], weights: list[float], name: str, context: StageContext) -> None:
    for index, (taken, rows) in enumerate(zip(mixed.taken, by_source, strict=True)):
        if weights and not rows:
            context.warn(f"splits.{name}: source {index} has no row in it; its weight goes to the others")
        if rows and taken > MANY_REPEATS * len(rows):
            context.warn(
                f"splits.{name}: the {len(rows)} rows of source {index} are repeated to {taken} to meet its weight; "
                "give the split `rows`, or the source a smaller weight"
            )


def _result(card: dict[str, Any]) -> StageResult:
    splits = card["splits"]
    metrics: dict[str, float] = {f"rows_{name}": split["rows"] for name, split in splits.items()}
    metrics |= {name: card[name] for name in ("read", "kept", "rejected", "duplicates", "unassigned")}
    metrics |= {f"rejected_{code}": count for code, count in card["rejected_by_reason"].items()}
    shown = ", ".join(f"{name} {split['rows']}" for name, split in splits.items())
    headline = f"{shown} rows; {card['rejected']} rejected, {card['duplicates']} duplicates dropped"
    return StageResult(metrics=metrics, summary={"headline": headline, "card": card})
