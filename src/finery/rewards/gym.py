"""The `reasoning_gym` reward: the score of reasoning-gym's own verifier, given the entry the row keeps in `meta`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from finery.rewards import worker
from finery.rewards.extract import after_hash, boxed, tag
from finery.rewards.rewardset import RowError, text_of

KEY = "reasoning_gym"
"""The key of `meta` that holds {"task": name, "entry": {question, answer, metadata}}."""


class GymFunction:
    """The verifier's score in [0, 1] for each completion."""

    def __init__(self, how: str) -> None:
        self.how = how

    def __call__(
        self, completions: list[Any], meta: list[Any] | None = None, truncated: list[bool] | None = None, **_: Any
    ) -> list[float | None]:
        meta = meta if meta is not None else [None] * len(completions)
        cut = truncated or [False] * len(completions)
        return [
            self.score(text_of(completion), row, short)
            for completion, row, short in zip(completions, meta, cut, strict=True)
        ]

    column = "meta"

    def check(self, row: Mapping[str, Any]) -> str | None:
        """Why no completion can be judged by this row, or None."""
        try:
            task, entry = _task(row.get("meta"))
            _check_own_answer(task, json.dumps(entry))
        except RowError as error:
            return str(error)
        return None

    def explain(self, row: Mapping[str, Any], completion: str, completion_ids: list[int], truncated: bool) -> str:
        """The answer that was taken, and its score."""
        found = None if truncated else self.find(completion)
        if found is None:
            return "truncated" if truncated else f"no answer found ({self.how})"
        return f"{found[:80]!r} scores {self.score(completion, row.get('meta')):.4g}"

    def score(self, text: str, meta: Any, truncated: bool = False) -> float:
        """The score of one completion: 0 when it is truncated, has no answer, or breaks or hangs the verifier.

        Raises:
            RowError: the row was not made by reasoning-gym, or its verifier breaks on the row's own answer.
        """
        task, entry = _task(meta)
        found = None if truncated else self.find(text)
        if found is None:
            return 0.0
        try:
            return float(worker.SHARED.ask("gym", task=task, entry=entry, answer=found))
        except worker.TooLong:
            return 0.0
        except worker.VerifierError:
            _check_own_answer(task, json.dumps(entry))
            return 0.0

    def find(self, text: str) -> str | None:
        """The answer in a completion."""
        if self.how == "auto":
            for mark, look in (("<answer>", tag), ("####", after_hash), ("\\boxed", boxed)):
                if mark in text:
                    return look(text)
            return text.strip() or None
        whole = text.strip() or None
        return whole if self.how == "whole" else {"hash": after_hash, "boxed": boxed, "tag": tag}[self.how](text)


def _task(meta: Any) -> tuple[str, dict[str, Any]]:
    """The task's name and its entry, with an `answer` and `metadata`.

    Raises:
        RowError: `meta` does not hold them.
    """
    if isinstance(meta, str):
        try:
            meta = json.loads(meta)
        except (ValueError, RecursionError) as error:
            raise RowError("meta", _NEEDS + f"is text that is not JSON: {error}") from None
    kept = meta.get(KEY) if isinstance(meta, Mapping) else None
    if not isinstance(kept, Mapping):
        shown = f"has {', '.join(sorted(map(str, meta))) or 'nothing'}" if isinstance(meta, Mapping) else "is no object"
        raise RowError("meta", f"{_NEEDS}{shown}")
    task, entry = kept.get("task"), kept.get("entry")
    if not isinstance(task, str) or not isinstance(entry, Mapping):
        raise RowError("meta", f"{_NEEDS}has no task (text) and entry (an object) there")
    answer = entry.get("answer", ...)  # None where a task has no single right answer
    if not isinstance(answer, str | None) or not isinstance(entry.get("metadata"), Mapping):
        raise RowError("meta", f"{_NEEDS}has an entry without answer (text or null) and metadata (an object)")
    return task, dict(entry)


_NEEDS = (
    "the reward reasoning_gym needs rows made by a data source of kind reasoning_gym: their meta holds the task and "
    f"its entry under {KEY}; this row's meta "
)


@lru_cache(maxsize=4096)
def _check_own_answer(task: str, entry: str) -> None:
    """A verifier that breaks on the row's own answer is at fault itself, not the completion.

    Raises:
        RowError: it does, or there is none of that name.
    """
    kept = json.loads(entry)
    try:
        worker.SHARED.ask("gym", task=task, entry=kept, answer=kept["answer"])
    except (worker.VerifierError, worker.TooLong) as error:
        raise RowError("meta", f"reasoning-gym's verifier of {task} breaks on the row's own answer: {error}") from None
