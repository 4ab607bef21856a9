"""One split of a data stage: its rows mixed, ordered, weighted and written, and what the card says of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from finery.data.arrays import number_array
from finery.data.card import Histogram, Lengths
from finery.data.dataset import COLUMNS, JSON_COLUMNS, DatasetWriter
from finery.data.drawing import by_difficulty, weights
from finery.data.kept import Kept
from finery.data.mix import Mixed, mix
from finery.data.order import CURRICULUM
from finery.data.shuffle import ordered
from finery.data.spill import BITS, TURNS
from finery.errors import InputError
from finery.schemas.data import DataStage, Split

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
    from numpy.typing import NDArray

MANY_REPEATS = 10
"""A source repeated more often than this in a split is worth a warning."""


@dataclass(frozen=True)
class Made:
    """A split that was written: what the card says of it, and what the user should know."""

    card: dict[str, Any]
    warnings: list[str]


def split_of(config: DataStage, name: str) -> Split:
    """A split as it is written at length."""
    split = config.splits[name]
    return split if isinstance(split, Split) else Split(fraction=split)


def make_split(
    config: DataStage, name: str, rows: NDArray[np.int64], kept: Kept, *, seed: int, folder: Path, work: Path
) -> Made:
    """Mix, order, weigh and write one split.

    Args:
        config: the stage's.
        name: the split's name.
        rows: the numbers of its rows.
        kept: all rows.
        seed: the stage's.
        folder: where the data set is written.
        work: for what is kept only meanwhile.

    Raises:
        InputError: a column is text in some rows and messages in others.
    """
    import numpy as np

    mixed, per_source = _mix(config, name, rows, kept, seed)
    warnings = _warnings(config, name, mixed, per_source)
    order, info, card = mixed.rows, {"split": name}, dict[str, Any]()
    if config.curriculum is not None:
        order, unknown = by_difficulty(order, kept.facts.column("difficulty"), config.curriculum)
        info["order"], card["without_difficulty"] = CURRICULUM, unknown
        if unknown:
            warnings.append(
                f"splits.{name}: curriculum knows no difficulty for {unknown} of {len(order)} rows; they come last"
            )
    if (tokens := _tokens(config, kept, order)) is not None:
        card["tokens"] = tokens
    ids = kept.facts.column("id")[order]
    described, lengths = _write(config, kept, order, ids, folder, work, info)
    groups = kept.facts.column("group")[rows]
    return Made(
        {
            "rows": len(order),
            "prompts": described["prompts"],
            "groups": len(np.unique(groups)),
            "rows_before_mixing": len(rows),
            "rows_by_source": mixed.taken,
            "repeated_by_source": mixed.repeated,
            "same_prompt": mixed.same_prompt,
            "capped": mixed.capped,
            "characters": lengths,
            **card,
        },
        warnings,
    )


def _mix(config: DataStage, name: str, rows: NDArray[np.int64], kept: Kept, seed: int) -> tuple[Mixed, list[int]]:
    """The split's rows, mixed, and how many of them each source has."""
    import numpy as np

    facts, split = kept.facts, split_of(config, name)
    given = [source.weight for source in config.sources if source.weight is not None]
    source = kept.sources()[rows]
    pools = [rows[source == index] for index in range(len(config.sources))]
    mixed = mix(
        pools,
        given or None,
        seed=seed,
        split=name,
        cap=split.rows,
        prompts=(facts.column("prompt_high"), facts.column("prompt_low")) if split.unique_prompts else None,
        tokens=facts.column("tokens").astype(np.int64) if config.weight_by == "tokens" else None,
    )
    return mixed, [len(pool) for pool in pools]


def _warnings(config: DataStage, name: str, mixed: Mixed, per_source: list[int]) -> list[str]:
    found = []
    for index, (taken, rows) in enumerate(zip(mixed.taken, per_source, strict=True)):
        if config.sources[index].weight is not None and not rows:
            found.append(f"splits.{name}: source {index} has no row in it; its weight goes to the others")
        if rows and taken > MANY_REPEATS * rows:
            found.append(
                f"splits.{name}: the {rows} rows of source {index} are repeated to {taken} to meet its weight; "
                "give the split `rows`, or the source a smaller weight"
            )
    return found


def _tokens(config: DataStage, kept: Kept, order: NDArray[np.int64]) -> dict[str, Any] | None:
    """Tokens of the split's rows, if they were counted: their lengths, their total, and how many each source gave."""
    if config.tokenizer is None:
        return None
    tokens, sources = kept.facts.column("tokens")[order], kept.sources()[order]
    histogram = Histogram()
    histogram.add(tokens)
    by_source = [int(tokens[sources == index].sum(dtype="int64")) for index in range(len(config.sources))]
    return {**histogram.summary(), "total": histogram.total, "by_source": by_source}


def _write(
    config: DataStage,
    kept: Kept,
    order: NDArray[np.int64],
    ids: NDArray[np.uint64],
    folder: Path,
    work: Path,
    info: Mapping[str, Any],
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Write the rows; what dataset.json says, and the lengths of the columns."""
    import numpy as np
    import pyarrow as pa

    types = _types(kept, order, f"splits.{info['split']}")
    content = {column: kind for column, kind in types.items() if column != "id"}
    drawn: NDArray[np.float64] | None = None
    if config.balance is not None:
        values = kept.sources() if config.balance.by == "source" else kept.facts.column("balance")
        drawn, types = weights(values[order], config.balance.power), {**types, "weight": "number"}
    lengths = Lengths()
    with DatasetWriter(folder, types) as writer:
        for columns in ordered(kept.spill, order, content, work):
            lengths.add(columns)
            part = slice(writer.rows, writer.rows + len(next(iter(columns.values()))))
            arrays = {
                "id": _hex(ids[part]),
                **columns,
                **({} if drawn is None else {"weight": number_array(drawn[part])}),
            }
            writer.write(pa.Table.from_arrays([arrays[name] for name in types], schema=writer.schema))
            del columns, arrays  # or they would stand beside the next group while it is made
    return writer.describe(prompts=len(np.unique(ids)), info=info), lengths.summary()


def _types(kept: Kept, order: NDArray[np.int64], where: str) -> dict[str, str]:
    """Column to type of the rows of a split, in the order of COLUMNS.

    Raises:
        InputError: a column is text in some rows and messages in others.
    """
    import numpy as np

    bits = kept.facts.column("bits")[order]
    present = int(np.bitwise_or.reduce(bits))
    types = {"id": "text"}
    for name in COLUMNS:
        text, turns = BITS.get(name, 0), BITS.get(name + TURNS, 0)
        if present & text and present & turns:
            is_text = bits & text != 0
            # in the order they were read, which is the one the user knows
            first, other = sorted((int(order[is_text].min()), int(order[bits & turns != 0].min())))
            text_first = bool(kept.facts.column("bits")[first] & text)
            kinds = ("text", "messages") if text_first else ("messages", "text")
            raise InputError(
                f"{where}: {kept.place(other)}: {name} is {kinds[1]} where it was {kinds[0]} before "
                f"({kept.place(first)}); a data set holds one "
                "or the other, so give them a data stage each. `chat: true` writes text as messages; conversations to "
                "learn whole (messages, sharegpt) and prompts with completions need a data stage each"
            )
        if present & (text | turns):
            json_column = name in JSON_COLUMNS
            types[name] = "messages" if present & turns else "json" if json_column else "text"
    return types


def _hex(ids: NDArray[np.uint64]) -> pa.Array:
    """Ids as text: 16 hex digits each."""
    import numpy as np
    import pyarrow as pa

    digits = ids.astype(">u8").tobytes().hex().encode()
    offsets = np.arange(0, len(digits) + 1, 16, dtype=np.int32)
    return pa.StringArray.from_buffers(len(ids), pa.py_buffer(offsets), pa.py_buffer(digits))
