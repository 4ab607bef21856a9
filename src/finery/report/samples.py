"""A handful of completions: solved and unsolved ones of a stage, and prompts on which the exam's models differ."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from finery.report.numbers import compact

PER_KIND = 3
PROMPTS = 3


@dataclass(frozen=True)
class Sample:
    """One completion as it is shown; `verdict` is solved, unsolved, truncated or abstained."""

    prompt: str
    completion: str
    answer: str
    scores: list[tuple[str, str]]
    verdict: str
    notes: list[tuple[str, str]]


@dataclass(frozen=True)
class Compared:
    """One prompt of a suite and what each model made of it: (model, how many were solved, one of its completions)."""

    suite: str
    prompt: str
    answer: str
    rows: list[tuple[str, str, Sample]]


_KNOWN = ("model", "suite", "id", "prompt", "completion", "answer", "score", "solved", "truncated")


def text_of(value: Any) -> str:
    """A prompt or completion as text; messages one after the other, each under its role."""
    if isinstance(value, list):
        return "\n".join(
            f"[{m.get('role', '?')}] {m.get('content', '')}" if isinstance(m, dict) else str(m) for m in value
        )
    return "" if value is None else str(value)


def verdict_of(row: dict[str, Any]) -> str:
    """solved, truncated (which counts as unsolved), unsolved, or abstained."""
    if row.get("solved") is True:
        return "solved"
    if row.get("truncated") is True:
        return "truncated"
    return "abstained" if row.get("solved") is None else "unsolved"


def sample(row: dict[str, Any]) -> Sample:
    """A row of samples.jsonl as it is shown."""
    score = row.get("score")
    scores = [(name, _score(value)) for name, value in score.items()] if isinstance(score, dict) else []
    notes = [
        (key, "" if value is True else _score(value))
        for key, value in row.items()
        if key not in _KNOWN and _noteworthy(value)
    ]
    return Sample(
        text_of(row.get("prompt")),
        text_of(row.get("completion")),
        text_of(row.get("answer")),
        scores,
        verdict_of(row),
        notes,
    )


def _noteworthy(value: Any) -> bool:
    return value is not False and isinstance(value, str | int | float)


def _score(value: Any) -> str:
    return "abstained" if value is None else compact(value)


def handful(rows: Sequence[dict[str, Any]]) -> list[Sample]:
    """A few of each verdict, of different prompts, spread evenly over the file, so early and late ones."""
    chosen: list[Sample] = []
    for verdict in ("solved", "unsolved", "truncated", "abstained"):
        found = [row for row in rows if verdict_of(row) == verdict]
        taken: dict[Any, dict[str, Any]] = {}
        for place in _spread(list(range(len(found))), PER_KIND):
            for row in found[place:]:
                if row.get("id") not in taken:
                    taken[row.get("id")] = row
                    break
        chosen += [sample(row) for row in taken.values()]
    return chosen


def compared(rows: Sequence[dict[str, Any]]) -> list[Compared]:
    """For each suite, prompts on which models differ most in how often they solve it; models in the file's order."""
    suites: dict[str, dict[Any, dict[str, list[dict[str, Any]]]]] = {}
    for row in rows:
        suites.setdefault(str(row.get("suite", "")), {}).setdefault(row.get("id"), {}).setdefault(
            str(row.get("model", "")), []
        ).append(row)
    found = []
    for suite, prompts in suites.items():
        most = max(len(models) for models in prompts.values())
        whole = {key: models for key, models in prompts.items() if len(models) == most}
        best = sorted(whole, key=lambda key: -_difference(whole[key]))[: PROMPTS * 8]
        for key in _spread([k for k in best if _difference(whole[k]) > 0] or best, PROMPTS):
            found.append(_compare(suite, whole[key]))
    return found


def _difference(models: dict[str, list[dict[str, Any]]]) -> float:
    shares = [sum(row.get("solved") is True for row in rows) / len(rows) for rows in models.values() if rows]
    middle = sum(shares) / len(shares)
    return sum((share - middle) ** 2 for share in shares)


def _compare(suite: str, models: dict[str, list[dict[str, Any]]]) -> Compared:
    rows = []
    for model, every in models.items():
        drawn = [row for row in every if row.get("greedy") is not True] or every
        solved = sum(row.get("solved") is True for row in drawn)
        typical = next(row for row in drawn if (row.get("solved") is True) == (solved * 2 >= len(drawn)))
        greedy = [verdict_of(row) for row in every if row.get("greedy") is True]
        said = [f"{solved} of {len(drawn)} solved"] if len(greedy) < len(every) else []
        rows.append((model, "; ".join([*said, *(f"greedy {verdict}" for verdict in greedy)]), sample(typical)))
    first = next(iter(models.values()))[0]
    return Compared(suite, text_of(first.get("prompt")), text_of(first.get("answer")), rows)


def _spread(items: list[Any], count: int) -> list[Any]:
    """`count` of the items at even distances, in order."""
    if len(items) <= count:
        return items
    return [items[(2 * index + 1) * len(items) // (2 * count)] for index in range(count)]


def tally(rows: Sequence[dict[str, Any]]) -> str:
    """`2,400 completions of 150 prompts: 1,140 solved, 1,260 unsolved (12 of them truncated), 3 abstained`."""
    counts = Counter(verdict_of(row) for row in rows)
    prompts = len({(row.get("suite"), row.get("id")) for row in rows})
    said = f"{len(rows):,} completions of {prompts:,} prompts: {counts['solved']:,} solved, "
    said += f"{counts['unsolved'] + counts['truncated']:,} unsolved"
    said += f" ({counts['truncated']:,} of them truncated)" if counts["truncated"] else ""
    return said + (f", {counts['abstained']:,} abstained" if counts["abstained"] else "")
