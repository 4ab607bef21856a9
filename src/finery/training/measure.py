"""Draw completions, judge them, and keep each batch as soon as it is done: what gate and evaluate share.

A batch is one line of a log; a line is whole when it ends in a newline. A killed stage goes on after the last
whole line. Batches do not depend on what was done before, so the outcome is that of an undisturbed run; the stage
cuts metrics.jsonl at its start, and what it said of kept batches is said again.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

from finery.contract import StageContext
from finery.errors import InputError, StageError
from finery.schemas.training import Sampling


@dataclass(frozen=True)
class Judged:
    """A completion and its scores.

    Attributes:
        text: the completion, without special tokens.
        tokens: how many were drawn, the end token among them.
        truncated: whether it was cut.
        score: reward name -> score, None where it abstains.
        solved: what the verifier says; None where it abstains.
    """

    text: str
    tokens: int
    truncated: bool
    score: dict[str, float | None]
    solved: bool | None


@dataclass(frozen=True)
class Draw:
    """How a pass over the prompts is drawn; the fields are those of `sampling.sample`."""

    n: int
    sampling: Sampling
    seed: int
    batch_size: int
    greedy: bool = False
    first: int = 0

    @property
    def width(self) -> int:
        """Prompts in a batch."""
        return max(1, self.batch_size // self.n)


class Scorer(Protocol):
    """The part of `finery.rewards.RewardSet` that is used here."""

    def score(
        self,
        rows: Sequence[Mapping[str, Any]],
        completions: Sequence[str],
        completion_ids: Sequence[Sequence[int]],
        truncated: Sequence[bool],
    ) -> Any: ...


class Subject:
    """The model that is measured, loaded when it is first needed."""

    def __init__(self, folder: Path, bases: Mapping[str, Path], gpus: int) -> None:
        self._folder, self._bases, self._gpus = folder, bases, gpus
        self._loaded: tuple[Any, Any] | None = None

    def load(self) -> tuple[Any, Any]:
        """(model, tokenizer), the model on the GPU when the stage was given one.

        Raises:
            StageError: it was given one, but torch sees none.
        """
        if self._loaded is None:
            import torch

            from finery.training.models import load_model, load_tokenizer

            if self._gpus and not torch.cuda.is_available():
                raise StageError(
                    f"resources.gpus is {self._gpus}, but torch sees no GPU; install a CUDA build, or set it to 0"
                )
            model = load_model(self._folder, bases=self._bases)
            self._loaded = model.to("cuda" if self._gpus else "cpu"), load_tokenizer(self._folder)
        return self._loaded


class Counter:
    """Completions done of all that the stage will draw, reported to the engine."""

    def __init__(self, context: StageContext, total: int) -> None:
        self._context, self.total, self.done = context, total, 0

    def add(self, count: int, note: str) -> None:
        self.done += count
        self._context.progress(self.done, self.total, note)


def measure(
    subject: Subject,
    rows: Sequence[Mapping[str, Any]],
    rewards: Scorer,
    draw: Draw,
    *,
    log: Path,
    context: StageContext,
    counter: Counter,
    note: str = "",
) -> list[list[Judged]]:
    """For each row its n judged completions; what the log holds already is not drawn again.

    Args:
        rows: with distinct ids.
        log: where whole batches are kept.
        counter: told of each batch.
        note: what is being done, for the terminal.
    """
    done: dict[int, list[Judged]] = {}
    for batch in _read(log, context):
        done |= {int(row): [Judged(**one) for one in judged] for row, judged in batch.items()}
    counter.add(sum(len(judged) for judged in done.values()), note)
    if len(done) < len(rows):
        model, tokenizer = subject.load()
        from finery.training.sampling import order_by_length

        ordered = order_by_length(tokenizer, rows)
        for start in range(0, len(ordered), draw.width):
            batch_rows = ordered[start : start + draw.width]
            if batch_rows[0] in done:
                continue
            fresh = _judge(model, tokenizer, [rows[row] for row in batch_rows], rewards, draw)
            done |= dict(zip(batch_rows, fresh, strict=True))
            counter.add(draw.n * len(batch_rows), note)
            _append(log, batch_rows, fresh)
    return [done[row] for row in range(len(rows))]


def _judge(
    model: Any, tokenizer: Any, rows: Sequence[Mapping[str, Any]], rewards: Scorer, draw: Draw
) -> list[list[Judged]]:
    from finery.training.sampling import sample

    drawn = sample(
        model,
        tokenizer,
        rows,
        n=draw.n,
        sampling=draw.sampling,
        seed=draw.seed,
        greedy=draw.greedy,
        first=draw.first,
        batch_size=draw.batch_size,
    )
    flat = [(row, one) for row, completions in zip(rows, drawn, strict=True) for one in completions]
    scores = rewards.score(
        [row for row, _ in flat],
        [one.text for _, one in flat],
        [one.token_ids for _, one in flat],
        [one.truncated for _, one in flat],
    )
    judged = [
        Judged(
            one.text,
            len(one.token_ids),
            one.truncated,
            {name: values[index] for name, values in scores.per_reward.items()},
            scores.solved[index],
        )
        for index, (_, one) in enumerate(flat)
    ]
    return [judged[start : start + draw.n] for start in range(0, len(judged), draw.n)]


def _append(log: Path, rows: Sequence[int], judged: Sequence[Sequence[Judged]]) -> None:
    log.parent.mkdir(parents=True, exist_ok=True)
    batch = {str(row): [asdict(one) for one in many] for row, many in zip(rows, judged, strict=True)}
    with log.open("a", encoding="utf-8") as file:
        file.write(json.dumps(batch, ensure_ascii=False) + "\n")


def _read(log: Path, context: StageContext) -> list[dict[str, Any]]:
    """The whole batches of the log; a broken end is cut off, and said so."""
    if not log.exists():
        return []
    whole, kept = 0, []
    data = log.read_bytes()
    for line in data.splitlines(keepends=True):
        try:
            batch = json.loads(line) if line.endswith(b"\n") else None
        except ValueError:
            batch = None
        if batch is None:
            break
        kept.append(batch)
        whole += len(line)
    if whole < len(data):
        context.warn(f"the last {len(data) - whole} bytes of {log.name} are not a whole batch; it is drawn again")
        with log.open("rb+") as file:
            file.truncate(whole)
    return kept


def prompts_of(rows: Sequence[Mapping[str, Any]], where: str, limit: int | None) -> tuple[list[dict[str, Any]], int]:
    """The rows to measure, each id once and at most `limit`, and how many repeats were left out before that.

    Raises:
        InputError: a row has no prompt.
    """
    distinct: dict[str, dict[str, Any]] = {}
    for row in rows:
        if "prompt" not in row:
            raise InputError(
                f"{where}: row {row['id']} has no prompt, so there is nothing to complete; give rows with a prompt and "
                "an answer, or messages split into prompt and completion"
            )
        distinct.setdefault(row["id"], dict(row))
    return list(distinct.values())[:limit], len(rows) - len(distinct)


def sample_lines(
    rows: Sequence[Mapping[str, Any]], judged: Sequence[Sequence[Judged]], **labels: Any
) -> list[dict[str, Any]]:
    """What samples.jsonl says of them: one dict a completion, `labels` first."""
    return [
        {
            **labels,
            "id": row["id"],
            "prompt": row["prompt"],
            "completion": one.text,
            "answer": row.get("answer"),
            "score": one.score,
            "solved": one.solved,
            "truncated": one.truncated,
        }
        for row, many in zip(rows, judged, strict=True)
        for one in many
    ]
