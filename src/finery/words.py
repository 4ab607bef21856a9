"""A run in words, from its summary: the lines below the stage table, the abstract, and the Markdown others show."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from finery.report import read
from finery.report.charts import Estimate
from finery.report.exam import Cell, SuiteTable, conditions, suite_tables
from finery.report.gate import SPOKEN, estimates
from finery.report.numbers import duration, finite, metric_label
from finery.report.read import Found, Unreadable

WIDTH = 100
"""An exam wider than this is printed as a table a suite."""
_ENDS = ("value", "low", "high")
EXITS = {
    0: "done",
    1: "failed",
    2: "bad input",
    3: "blocked by a gate",
    4: "promotion refused",
    5: "stopped: unhealthy",
    130: "interrupted",
}
"""What an exit code of `finery run` means."""


def closing_lines(summary: dict[str, Any]) -> list[str]:
    """What is printed at the end of a run below the stage table: verdicts, exams, promotions refused and applied."""
    lines: list[str] = []
    promoted = [[_promoted(promotion)] for promotion in summary.get("promotions") or ()]
    for block in (*_gate_blocks(summary), *_exam_blocks(summary), *_refusal_blocks(summary), *promoted):
        lines += [*block, ""]
    return lines[:-1]


def markdown(summary: dict[str, Any]) -> str:
    """The same in Markdown, with the table of stages, for Prefect's artifact and MLflow's description."""
    lines = [
        f"### {_escaped(summary['pipeline'])}: {exit_words(summary['exit_code'])} in {duration(summary['seconds'])}",
        "",
    ]
    rows = [("stage", "kind", "state", "seconds", "what it came to")]
    for name, stage in read.stages(summary).items():
        rows.append((name, stage["kind"], stage["state"], f"{stage['seconds']:.1f}", _headline(stage)))
    lines += [*_markdown_table(rows), ""]
    for block in _gate_blocks(summary):
        lines += [*(_escaped(line) + "  " for line in block), ""]
    for found, tables in _exams(summary):
        lines += [
            f"**{found.stage}**, {_escaped(_exam_note(found, tables))}",
            "",
            *_markdown_table(_exam_rows(tables)),
            "",
        ]
    for block in _refusal_blocks(summary):
        lines += [*(_escaped(line.strip()) + "  " for line in block), ""]
    lines += [_promoted(promotion) for promotion in summary.get("promotions") or ()]
    return "\n".join(lines).rstrip() + "\n"


def abstract(summary: dict[str, Any]) -> list[str]:
    """The run in a few sentences: what failed, what the gates said, how the models did, what was promoted."""
    said = [
        f"{name} failed: {stage['message']}"
        for name, stage in read.stages(summary).items()
        if stage["state"] == "Failed"
    ]
    said += ["; ".join(line.strip() for line in block) for block in _gate_blocks(summary)]
    for _, tables in _exams(summary):
        for table in tables:
            cells = [(row.model, row.cells.get(table.main)) for row in table.rows]
            measured = ", ".join(f"{model} {cell.value:.3f}" for model, cell in cells if cell)
            said.append(f"{table.suite}, {metric_label(table.main)}: {measured}")
    said += [": ".join((block[0], "; ".join(line.strip() for line in block[1:]))) for block in _refusal_blocks(summary)]
    return said + [_promoted(promotion) for promotion in summary.get("promotions") or ()]


def exit_words(code: int) -> str:
    """`promotion refused` for 4, and so on."""
    return EXITS.get(code, f"exit code {code}")


# the gate


def _gate_blocks(summary: dict[str, Any]) -> Iterator[list[str]]:
    for found in read.artifacts(summary, "verdict"):
        if isinstance(found.value, Unreadable):
            yield [f"{found.stage}: {found.value.reason}"]
            continue
        verdict = found.value
        block = [f"{found.stage}: {verdict.get('verdict')}: " + ", ".join(_estimate(row) for row in estimates(verdict))]
        if notes := _gate_notes(verdict):
            block.append("  " + "; ".join(notes))
        yield block


def _gate_notes(verdict: Mapping[str, Any]) -> list[str]:
    """What a verdict means beyond its numbers: why not RL, what did not settle it, what speaks against it."""
    said = [SPOKEN[verdict["verdict"]][1]] if verdict.get("verdict") in ("skip_rl", "more_data") else []
    if verdict.get("conclusive") is False:
        said.append("the intervals do not settle it, so the point estimates decided")
    if verdict.get("weak_greedy") is True:
        said.append("greedy accuracy is weak, and a wide gap with weak greedy accuracy was followed by no gain")
    return said


def _estimate(row: Estimate) -> str:
    span = f" [{row.low:.3f}, {row.high:.3f}]" if row.low is not None and row.high is not None else ""
    return f"{row.label} {row.value:.3f}{span}"


# the exam


def _exams(summary: dict[str, Any]) -> Iterator[tuple[Found, list[SuiteTable]]]:
    for found in read.artifacts(summary, "evaluation"):
        if isinstance(found.value, Unreadable):
            continue
        if tables := suite_tables(found.value):
            yield found, tables


def _exam_blocks(summary: dict[str, Any]) -> Iterator[list[str]]:
    for found in read.artifacts(summary, "evaluation"):
        if isinstance(found.value, Unreadable):
            yield [f"{found.stage}: {found.value.reason}"]
    for found, tables in _exams(summary):
        whole = _text_table(_exam_rows(tables))
        block = [f"{found.stage}: {_exam_note(found, tables)}"]
        if max(map(len, whole)) > WIDTH:
            whole = [line for table in tables for line in _text_table(_exam_rows([table]))]
        yield block + whole + _forgotten(found.value)


def _forgotten(evaluation: Any) -> list[str]:
    """What each model lost of the general suites, in a line; none where the exam has no such suites."""
    lost = evaluation.get("forgetting") if isinstance(evaluation, dict) else None
    if not isinstance(lost, dict):
        return []
    shown = [
        f"{model} {one['value']:+.3f} [{one['low']:+.3f}, {one['high']:+.3f}]"
        for model, one in lost.items()
        if model != evaluation.get("reference") and all(finite(one.get(end)) is not None for end in _ENDS)
    ]
    return [f"  forgetting against {evaluation.get('reference')}: {', '.join(shown)}"] if shown else []


def _exam_note(found: Found, tables: Sequence[SuiteTable]) -> str:
    assert not isinstance(found.value, Unreadable)
    if not any(cell.change is not None for table in tables for row in table.rows for cell in row.cells.values()):
        return "how each model did"
    confidence = found.value.get("confidence")
    share = f"{confidence * 100:g} % " if isinstance(confidence, float) else ""
    return f"with the change against {found.value.get('reference')}, * where its {share}interval leaves out 0"


def _exam_rows(tables: Sequence[SuiteTable]) -> list[tuple[str, ...]]:
    """Models by suites and metrics."""
    columns = [(table, name) for table in tables for name in table.metrics]
    models = list(dict.fromkeys(row.model for table in tables for row in table.rows))
    rows = [("model", *(f"{table.suite} {metric_label(name)}" for table, name in columns))]
    for model in models:
        of = {table.suite: row for table in tables for row in table.rows if row.model == model}
        same = next((row.same_as for row in of.values() if row.same_as), None)
        cells = [_cell(of[table.suite].cells.get(name)) if table.suite in of else "" for table, name in columns]
        rows.append((f"{model} (= {same})" if same else model, *cells))
    return rows


def _cell(cell: Cell | None) -> str:
    if cell is None:
        return "-"
    if cell.change is None:
        return f"{cell.value:.3f}"
    return f"{cell.value:.3f} {cell.change:+.3f}{'*' if cell.verdict in ('gain', 'loss') else ''}"


# promotions


def _refusal_blocks(summary: dict[str, Any]) -> Iterator[list[str]]:
    for found in read.artifacts(summary, "decision"):
        if isinstance(found.value, Unreadable):
            yield [f"{found.stage}: {found.value.reason}"]
        elif found.value.get("verdict") != "promote":
            failed = [row for row in conditions(found.value, read.exam_of(summary, found.stage)) if not row.passed]
            reasons = [row.reason or f"{row.metric} must be {row.asked}" for row in failed]
            yield [
                f"{found.stage}: refused: {found.value.get('model')} does not earn @{found.value.get('alias')}",
                *(f"  {reason}" for reason in reasons),
            ]


def _promoted(promotion: dict[str, Any]) -> str:
    before = "" if promotion["moved"] else " (as before)"
    return f"promoted: {promotion['name']} version {promotion['version']} is @{promotion['alias']}{before}"


# tables


def _text_table(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return [
        "  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    ]


def _markdown_table(rows: Sequence[Sequence[str]]) -> list[str]:
    head, *body = rows
    return [_markdown_row(head), "|" + " --- |" * len(head), *(_markdown_row(row) for row in body)]


def _markdown_row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(_escaped(cell).replace("|", "\\|") for cell in cells) + " |"


def _headline(stage: dict[str, Any]) -> str:
    return str(stage["message"] or (stage.get("summary") or {}).get("headline") or "")


def _escaped(text: Any) -> str:
    """Text that Markdown shows as it is: no emphasis, link, code or HTML comes out of it."""
    said = " ".join(str(text).split())
    for sign in ("\\", "`", "*", "_"):
        said = said.replace(sign, "\\" + sign)
    return said.replace("](", "]\\(").replace("&", "&amp;").replace("<", "&lt;")
