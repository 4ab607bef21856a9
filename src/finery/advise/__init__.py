"""`finery advise`: what is worth the next step, by the table of docs/choosing.md, with the evidence for each answer."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from finery import runs
from finery.advise.gather import gather
from finery.advise.rules import Advice, Finding, Rule, advise, host
from finery.load import load
from finery.plan import Planner
from finery.store import Store

__all__ = ["advice_json", "advice_text"]


def advice_text(file: Path, overrides: Sequence[str]) -> str:
    """The next step, and every row of the table with its evidence.

    Raises:
        InputError: the pipeline is not valid.
    """
    _, advice = _advice(file, overrides)
    lines = [_headline(advice), f"machine: {host(advice.machine)}", ""]
    for rule, finding in advice.findings:
        lines.append(f"{rule.step}: {finding.state}, {finding.why}")
        lines += [f"    {fact.text}  ({fact.source})" for fact in finding.evidence]
        lines += [f"    unknown: {missing.what}; {missing.command}" for missing in finding.missing]
    return "\n".join([*lines, "", "The table and its reasons: docs/choosing.md."])


def advice_json(file: Path, overrides: Sequence[str]) -> str:
    """The same for scripts."""
    name, advice = _advice(file, overrides)
    described: dict[str, Any] = {
        "pipeline": name,
        "next": advice.next[0].step if advice.next else None,
        "machine": {key: getattr(advice.machine, key) for key in ("cpus", "memory", "gpus", "gpu_memory")},
        "steps": [_described(rule, finding) for rule, finding in advice.findings],
    }
    return json.dumps(described, ensure_ascii=False, indent=1)


def _advice(file: Path, overrides: Sequence[str]) -> tuple[str, Advice]:
    loaded = load(file, overrides)
    planner = Planner(loaded, Store(runs.home_of(loaded.project)))
    return loaded.pipeline.name, advise(gather(planner))


def _headline(advice: Advice) -> str:
    if advice.next is None:
        # what was forgotten is the last thing to find out: it needs a trained model
        ahead = [finding for _, finding in (*advice.findings[1:], advice.findings[0]) if finding.state == "unknown"]
        first = next((missing for finding in ahead for missing in finding.missing), None)
        return f"next: unknown; first find out {first.what}: {first.command}" if first else "next: nothing in the table"
    rule, finding = advice.next
    return f"next: {rule.step}. {finding.why[0].upper()}{finding.why[1:]}: {rule.why}."


def _described(rule: Rule, finding: Finding) -> dict[str, Any]:
    return {
        "step": rule.step,
        "worth": finding.state,
        "why": finding.why,
        "when": rule.when,
        "evidence": [{"text": fact.text, "source": fact.source} for fact in finding.evidence],
        "unknown": [{"what": missing.what, "command": missing.command} for missing in finding.missing],
    }
