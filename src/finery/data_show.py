"""`finery data show`: rows of a data set as a model would see them, with what is learned marked.

The tokens and the mask are those of `finery.training.encode`, which trains on them; nothing is rendered anew here.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from finery import runs
from finery.data.dataset import CONVERSATIONAL, INFO_FILE, Row, iter_dataset
from finery.data_views import View, views
from finery.errors import InputError
from finery.language.problems import hint, nearest
from finery.load import load
from finery.plan import Planner, StagePlan
from finery.store import Store

LEARNED = ("⟦", "⟧")
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029]")
GREEN, DIM, PLAIN = "\x1b[32m", "\x1b[2m", "\x1b[0m"


@dataclass(frozen=True)
class Piece:
    """A run of tokens of a row that are all learned, or all not, as text with special tokens in it."""

    text: str
    learned: bool


@dataclass(frozen=True)
class Shown:
    """A row as a model sees it.

    Attributes:
        row: the row as it is stored.
        pieces: its tokens as text; none when it is left out.
        tokens, learned: how many there are, and how many of them are targets of the loss.
        left_out: why training leaves it out.
        cut: whether it lost its end to max_length.
        side: `chosen` or `rejected`, the completion that is shown of a pair.
    """

    row: Row
    pieces: list[Piece]
    tokens: int
    learned: int
    left_out: str | None = None
    cut: bool = False
    side: str = ""


@dataclass(frozen=True)
class Found:
    """A finished data set: the output's name, its folder, what dataset.json says, and its first rows."""

    name: str
    folder: Path
    info: dict[str, Any]
    rows: list[Row]


def show(
    file: Path,
    stage: str,
    overrides: Sequence[str] = (),
    *,
    rows: int = 3,
    model: str | None = None,
    split: str | None = None,
    as_json: bool = False,
    colour: bool = False,
) -> str:
    """What `finery data show FILE STAGE[.OUTPUT]` prints.

    Args:
        stage: a stage, or one of its outputs.
        rows: how many, from the first.
        model: a reference of the file, or a model's folder, whose tokenizer and chat template are used; by default
            those of the stages that train on the data.
        split: the output, where `stage` names none.

    Raises:
        InputError: there is no such stage, output or model, or it is not finished.
    """
    loaded = load(file, list(overrides))
    planner = Planner(loaded, Store(runs.home_of(loaded.project)))
    plans = planner.all()
    found = _find(planner, plans, stage, split, rows, file)
    seen = views(planner, plans, found.name, model)
    made = [(view, [] if view.missing else [*_shown(found.rows, view)]) for view in seen]
    if as_json:
        return _json(found, made)
    text = _stored(found) if not made else "\n\n".join(_view_text(found, view, of, colour) for view, of in made)
    return f"{_headline(found)}\n\n{text}"


def _find(
    planner: Planner, plans: Mapping[str, StagePlan], text: str, split: str | None, count: int, file: Path
) -> Found:
    name, _, output = text.partition(".")
    if name not in plans:
        raise InputError(f"{file}: there is no stage {name}{hint(name, list(plans), listed='there are')}")
    if output and split and output != split:
        raise InputError(f"{text} names the output {output}, and --split {split} another; give one of them")
    config = planner.config(name)
    sets = [made for made, kind in config.outputs().items() if kind == "dataset"]
    if not sets:
        makers = [other for other in plans if "dataset" in planner.config(other).outputs().values()]
        raise InputError(
            f"{name} is of kind {config.kind} and makes no data set; {', '.join(makers) or 'no stage'} does"
        )
    output = output or split or (sets[0] if len(sets) == 1 else "")
    if output not in sets:
        shown = ", ".join(f"{name}.{made}" for made in sets)
        if not output:
            raise InputError(f"{name} has several data sets; write one of {shown}")
        near = nearest(output, sets)
        raise InputError(
            f"{name} has no data set {output}; " + (f"did you mean {name}.{near}?" if near else f"it has {shown}")
        )
    done = plans[name].done
    if done is None or output not in done.outputs:
        state = f"{plans[name].state}: {'; '.join(plans[name].why)}"
        alone = f" --only {name}" if plans[name].state in ("run", "resume") else ""
        raise InputError(f"{name} is not finished ({state}); make it with: finery run {file}{alone}")
    folder = done.outputs[output].path
    info = json.loads((folder / INFO_FILE).read_text(encoding="utf-8"))
    return Found(f"{name}.{output}", folder, info, list(islice(iter_dataset(folder), count)))


def _shown(rows: Sequence[Row], view: View) -> Iterator[Shown]:
    for row, side, tokens, is_cut in view.tokens(rows):
        if isinstance(tokens, str):
            yield Shown(row, [], 0, 0, left_out=tokens, side=side)
            continue
        # the first token of a row has nothing before it to be predicted from, whatever its label
        target = [False, *tokens.target[1:]]
        yield Shown(row, _pieces(view.tokenizer, tokens.ids, target), len(target), sum(target), cut=is_cut, side=side)


def _pieces(tokenizer: Any, ids: Sequence[int], target: Sequence[bool]) -> list[Piece]:
    """Runs of equal target as text: what each adds to the text of all tokens before it."""

    def decode(part: Sequence[int]) -> str:
        return str(tokenizer.decode(part, skip_special_tokens=False, clean_up_tokenization_spaces=False))

    pieces: list[Piece] = []
    start, before = 0, ""
    for end in range(1, len(ids) + 1):
        if end < len(ids) and target[end] == target[start]:
            continue
        text = decode(ids[:end])
        # a character can lie across two tokens, and then the text before is no beginning of the text with it
        pieces.append(Piece(text[len(before) :] if text.startswith(before) else decode(ids[start:end]), target[start]))
        start, before = end, text
    return pieces


def _headline(found: Found) -> str:
    order = ", in the order of a curriculum" if found.info.get("order") else ""
    weighted = ", drawn by weight" if "weight" in found.info["columns"] else ""
    return f"{found.name}: {found.info['rows']} rows{order}{weighted}; the first {len(found.rows)}"


def _view_text(found: Found, view: View, rows: Sequence[Shown], colour: bool) -> str:
    if view.missing:
        return f"{view.title}: {view.missing}"
    marks = (GREEN, PLAIN) if colour else LEARNED
    mark = (
        f"{marks[0]}what is learned{marks[1]} stands like this" if colour else f"{LEARNED[0]} {LEARNED[1]} is learned"
    )
    lines = [f"{view.title} ({view.settings}); {mark}"]
    number = 0
    for shown in rows:
        number += shown.side != "rejected"
        counts = f"{shown.tokens} tokens, {shown.learned} learned" + (", its end is cut off" if shown.cut else "")
        about = f"left out: {shown.left_out}" if shown.left_out else counts
        lines += [
            "",
            _dim(f"--- row {number}{' ' + shown.side if shown.side else ''}: {about}; {_beside(shown.row)}", colour),
        ]
        if not shown.left_out:
            lines.append("".join(_marked(piece, marks) for piece in shown.pieces))
    return "\n".join(lines)


def _marked(piece: Piece, marks: tuple[str, str]) -> str:
    text = _visible(piece.text)
    return f"{marks[0]}{text}{marks[1]}" if piece.learned else text


def _dim(text: str, colour: bool) -> str:
    return f"{DIM}{text}{PLAIN}" if colour else text


def _beside(row: Row) -> str:
    """What a row has beside what a model sees of it."""
    rest = {name: row[name] for name in ("answer", "weight", "meta", "tests", "sql") if name in row}
    told = " ".join(f"{name}={_visible(json.dumps(value, ensure_ascii=False))}" for name, value in rest.items())
    return f"id={row['id']} {told}".rstrip()


def _visible(text: str) -> str:
    """Control characters by their number, so that no row moves the cursor."""
    return _CONTROL.sub(lambda match: repr(match[0])[1:-1], text)


def _stored(found: Found) -> str:
    lines = ["as it is stored: no stage of this file trains on it; --model shows it as that model would see it"]
    for number, row in enumerate(found.rows, 1):
        lines += ["", f"--- row {number}: {_beside(row)}"]
        for name in CONVERSATIONAL:
            value = row.get(name)
            if isinstance(value, str):
                lines.append(f"{name}: {_visible(value)}")
            elif value is not None:
                lines += [f"{name} {turn['role']}: {_visible(turn['content'])}" for turn in value]
    return "\n".join(lines)


def _json(found: Found, made: Sequence[tuple[View, Sequence[Shown]]]) -> str:
    result: dict[str, Any] = {"output": found.name, "rows": found.info["rows"], "order": found.info.get("order")}
    if not made:
        result["stored"] = found.rows
    result["views"] = [
        {
            "stages": view.stages,
            "model": view.model,
            "missing": view.missing,
            **view.facts,
            "rows": [asdict(shown) for shown in rows],
        }
        for view, rows in made
    ]
    return json.dumps(result, ensure_ascii=False, indent=1)
