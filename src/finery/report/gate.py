"""The gate's verdict as it is shown: a sentence, intervals drawn as bars, the histogram of pass rates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from finery.report.charts import Estimate, histogram, intervals
from finery.report.numbers import compact, finite, metric_label, rate
from finery.report.svg import Markup

SPOKEN = {
    "rl": ("Train by RL", "the model can already do what it does not yet do reliably"),
    "skip_rl": ("Skip RL", "nothing is left for RL to gain"),
    "more_data": ("More data first", "sampling more does not solve more, so RL has little to amplify"),
}
_BINS = 10


@dataclass(frozen=True)
class GateCard:
    stage: str
    verdict: str
    title: str
    meaning: str
    reason: str
    conclusive: bool
    intervals: Markup | None
    facts: list[tuple[str, str]]
    rates: Markup | None
    rates_note: str


def card(stage: str, verdict: Mapping[str, Any], difficulty: Mapping[str, Any] | None) -> GateCard:
    """The card of one verdict.json, with the difficulty.json of the same stage."""
    name = str(verdict.get("verdict", ""))
    title, meaning = SPOKEN.get(name, (name, ""))
    rows = estimates(verdict)
    rates = pass_rates(difficulty) if difficulty else []
    return GateCard(
        stage=stage,
        verdict=name,
        title=title,
        meaning=meaning,
        reason=str(verdict.get("reason") or ""),
        conclusive=verdict.get("conclusive") is not False,
        intervals=intervals(rows, "The gate's estimates") if rows else None,
        facts=_facts(verdict),
        rates=histogram(rates, _BINS, "Pass rates") if rates else None,
        rates_note=rates_note(rates),
    )


def estimates(verdict: Mapping[str, Any]) -> list[Estimate]:
    """pass@k by k, the gap, greedy and maj@K, as far as the verdict has them, with the bounds it is read against."""
    most = largest_k(verdict)
    found: dict[str, Any] = {f"pass_at_{k}": value for k, value in (verdict.get("pass_at") or {}).items()}
    found.setdefault("pass_at_1", verdict.get("pass_at_1"))
    found.setdefault(f"pass_at_{most}", verdict.get("pass_at_k"))
    found |= {"gap": verdict.get("gap"), "greedy": verdict.get("greedy"), f"maj_at_{most}": verdict.get("maj_at_k")}
    marks = {
        "pass_at_1": (finite(verdict.get("solved_at")), "solved_at: from here nothing is left for RL"),
        "gap": (finite(verdict.get("min_gap")), "min_gap: what RL needs"),
        "greedy": (finite(verdict.get("min_greedy")), "min_greedy: below this RL was seen to fail"),
    }
    rows = []
    for name, value in found.items():
        made = _estimate(metric_label(name), value, *marks.get(name, (None, "")))
        if made:
            rows.append(made)
    return rows


def largest_k(verdict: Mapping[str, Any]) -> str:
    """The k of pass_at_k, as text; `k` when the verdict does not say."""
    at_k = verdict.get("pass_at_k")
    inner = at_k.get("k") if isinstance(at_k, dict) else None
    return str(inner or verdict.get("k") or "k")


def _estimate(label: str, value: Any, mark: float | None, said: str) -> Estimate | None:
    if isinstance(value, dict):
        number = finite(value.get("value"))
        return (
            None
            if number is None
            else Estimate(label, number, finite(value.get("low")), finite(value.get("high")), mark, said)
        )
    number = finite(value)
    return None if number is None else Estimate(label, number, None, None, mark, said)


def _facts(verdict: Mapping[str, Any]) -> list[tuple[str, str]]:
    spoken = {
        "prompts": "prompts",
        "samples": "most samples a prompt" if (finite(verdict.get("looks")) or 1) > 1 else "samples a prompt",
        "spent": "completions drawn",
        "excluded": "prompts excluded",
        "duplicates": "repeated rows left out",
        "confidence": "confidence",
        "solved_at": "solved at",
        "min_gap": "gap asked for",
        "completion_length": "mean length, tokens",
    }
    facts = [(said, compact(verdict[key])) for key, said in spoken.items() if finite(verdict.get(key)) is not None]
    shares = {"truncated": "truncated", "pass_at_1_ended": "pass@1 of those that ended"}
    return facts + [(said, rate(verdict[key])) for key, said in shares.items() if finite(verdict.get(key)) is not None]


def pass_rates(difficulty: Mapping[str, Any]) -> list[float]:
    """solved / n of every prompt with evidence."""
    rates = []
    for found in (difficulty.get("prompts") or {}).values():
        n, solved = finite(found.get("n")), finite(found.get("solved"))
        if n and solved is not None:
            rates.append(solved / n)
    return rates


def rates_note(rates: Sequence[float]) -> str:
    """How many prompts teach: those neither never nor always solved."""
    if not rates:
        return ""
    none, every = sum(value <= 0 for value in rates), sum(value >= 1 for value in rates)
    teach = len(rates) - none - every
    share = rate(teach / len(rates), 2)
    return f"{teach} of {len(rates)} prompts ({share}) are solved now and then; {none} never, {every} always."
