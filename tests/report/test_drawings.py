"""The drawings and what is chosen for them, on values that can be worked out by hand."""

from __future__ import annotations

import itertools
import re
from typing import Any

import pytest

from finery.report.charts import MOST_POINTS, Estimate, curve, histogram, intervals
from finery.report.curves import stage_curves
from finery.report.line import Node, draw, layout, reduced
from finery.report.numbers import clock, compact, duration, metric_label, rate, signed, ticks
from finery.report.samples import compared, handful, tally
from finery.report.svg import tag

QUICKSTART = {
    "base": [],
    "corpus": [],
    "general": [],
    "sft": ["base", "corpus", "general"],
    "gate": ["sft", "corpus"],
    "grpo": ["sft", "corpus", "gate"],
    "student": ["grpo", "corpus", "general"],
    "merged": ["sft", "grpo"],
    "exam": ["base", "sft", "grpo", "student", "merged", "corpus", "general"],
    "promote": ["merged", "exam"],
}


def titles(svg: str) -> list[str]:
    return re.findall(r"<title>(.*?)</title>", svg)


def test_tag_escapes_text_and_attributes() -> None:
    assert (
        tag("a", "<b>&", tag("i", "x"), class_='"c"', x=1.50)
        == '<a class="&quot;c&quot;" x="1.5">&lt;b&gt;&amp;<i>x</i></a>'
    )


def test_curve_passes_through_its_points_and_stops_at_gaps() -> None:
    svg = curve("reward", [(0, 0.0), (10, 0.5), (20, None), (30, 1.0), (40, 0.5)])
    lines = re.findall(r'd="(M[^"]+)" class="curve"', svg)
    assert lines == ["M44 104L90 56", "M182 8L228 56"], "x from 44 to 228, y from 104 (0) to 8 (1); step 20 is a gap"
    assert titles(svg) == [
        "step 0: reward 0",
        "step 10: reward 0.5",
        "step 20: reward is not finite",
        "step 30: reward 1",
        "step 40: reward 0.5",
    ]


def test_a_long_curve_is_drawn_by_means_with_their_range() -> None:
    svg = curve("loss", [(step, float(step % 2)) for step in range(10_000)])
    assert len(titles(svg)) == 159 <= MOST_POINTS
    assert titles(svg)[0] == "steps 0 to 62, mean: loss 0.4921"
    assert 'class="band"' in svg


def test_every_value_not_finite_is_still_a_chart() -> None:
    assert titles(curve("loss", [(1, None), (2, None)])) == ["step 1: loss is not finite", "step 2: loss is not finite"]


def test_interval_bars_lie_where_their_numbers_say() -> None:
    svg = intervals([Estimate("pass@1", 0.5, 0.25, 0.75, 0.9, "solved_at")], "gate")
    span = re.search(r'<rect x="([\d.]+)" y="[\d.]+" width="([\d.]+)" height="10" rx="2" class="span"', svg)
    assert span
    left, width = 62, 440 - 62 - 84
    assert [float(part) for part in span.groups()] == [left + width / 4, width / 2]
    mark = re.search(r'<line x1="([\d.]+)"[^>]*class="mark"', svg)
    assert mark
    assert float(mark[1]) == pytest.approx(left + 0.9 * width)
    assert titles(svg) == ["pass@1 0.500 [0.250, 0.750]; solved_at"]


def test_histogram_sets_apart_what_teaches_nothing() -> None:
    svg = histogram([0.0, 0.0, 0.05, 0.95, 1.0], 10, "rates")
    found = [text for text in titles(svg) if not text.startswith("0 ")]
    assert found == [
        "2 prompts: rate 0",
        "1 prompts: rate 0.00 to 0.10",
        "1 prompts: rate 0.90 to 1.00",
        "1 prompts: rate 1",
    ]


def test_edges_that_a_longer_path_implies_are_not_drawn() -> None:
    kept = {(source, target) for target, sources in reduced(QUICKSTART).items() for source in sources}
    assert kept == {
        ("base", "sft"), ("corpus", "sft"), ("general", "sft"), ("sft", "gate"), ("gate", "grpo"),
        ("grpo", "student"), ("grpo", "merged"), ("student", "exam"), ("merged", "exam"), ("exam", "promote"),
    }  # fmt: skip


def test_layout_goes_forward_and_puts_no_two_things_in_one_place() -> None:
    needs = {
        "a": [],
        "b": ["a"],
        "c": ["b"],
        "d": ["c"],
        "x": ["a"],
        "end": ["d", "x"],
        "late": [],
        "last": ["end", "late"],
    }
    places, bends = layout(reduced(needs))
    taken = [*places.values(), *(place for chain in bends.values() for place in chain)]
    by_rank: dict[int, list[float]] = {}
    for rank, place in taken:
        by_rank.setdefault(rank, []).append(place)
    for row in by_rank.values():
        row.sort()
        assert all(b - a >= 1 - 1e-9 for a, b in itertools.pairwise(row))
    assert all(places[need][0] < places[name][0] for name, found in needs.items() for need in found)
    assert len(bends["x", "end"]) == 2, "its long edge has an empty place in each rank it crosses"
    assert places["late"][0] == places["last"][0] - 1, "what has no needs stands beside its consumer"


def test_line_names_each_stage_and_its_state() -> None:
    nodes = [Node("sft", "sft", "Completed", "58 s"), Node("a-very-long-stage-name", "script", "not run", "")]
    for upright in (False, True):
        svg = draw(nodes, {"sft": [], "a-very-long-stage-name": ["sft"]}, upright=upright)
        assert titles(svg) == ["sft (sft): Completed, 58 s", "a-very-long-stage-name (script): not run; uses sft"]
        assert 'href="#stage-sft"' in svg


def test_curves_lead_with_what_tells_and_fold_away_the_rest() -> None:
    steps = {1: 0.1, 2: 0.2}
    series: dict[str, dict[int, float | None]] = {
        "num_tokens": dict(steps), "learning_rate": {1: 0.3, 2: 0.4}, "reward": {1: 0.5, 2: 0.6},
        "rewards/answer/mean": {1: 0.5, 2: 0.6}, "kl": {1: 0.0, 2: 0.0}, "loss": {1: 1.0, 2: None},
        "train_runtime": {2: 9.0},
    }  # fmt: skip
    curves = stage_curves(series)
    assert curves
    assert [found.name for found in curves.main] == ["loss", "reward", "learning_rate"]
    assert [found.name for found in curves.more] == ["rewards/answer/mean", "kl", "num_tokens"], (
        "equal, flat, or not telling"
    )
    assert curves.main[0].last == "not finite"
    assert stage_curves({"train_runtime": {2: 9.0}}) is None


def row(id: int, solved: bool | None, **more: Any) -> dict[str, Any]:
    return {
        "id": id,
        "prompt": f"p{id}",
        "completion": "c",
        "answer": "a",
        "score": {"r": 1.0},
        "solved": solved,
        **more,
    }


def test_handful_takes_a_few_of_each_verdict_from_different_prompts() -> None:
    rows = [row(i // 10, i % 2 == 0) for i in range(100)] + [row(5, False, truncated=True), row(6, None)]
    found = handful(rows)
    assert [one.verdict for one in found] == ["solved"] * 3 + ["unsolved"] * 3 + ["truncated", "abstained"]
    assert [one.prompt for one in found[:3]] == ["p1", "p5", "p8"]
    late = handful([row(i % 4, True, step=i) for i in range(40)])
    assert [(one.prompt, one.notes) for one in late] == [
        ("p2", [("step", "6")]),
        ("p0", [("step", "20")]),
        ("p1", [("step", "33")]),
    ]
    assert tally(rows) == "102 completions of 10 prompts: 50 solved, 51 unsolved (1 of them truncated), 1 abstained"


def test_compared_takes_prompts_on_which_models_differ() -> None:
    rows = []
    for id in range(50):
        for name in ("a", "b"):
            rows += [row(id, id == 7 and name == "b", model=name, suite="s") for _ in range(4)]
            rows.append(row(id, False, model=name, suite="s", greedy=True))
    (found,) = compared(rows)
    assert found.prompt == "p7"
    assert [(name, said, one.verdict) for name, said, one in found.rows] == [
        ("a", "0 of 4 solved; greedy unsolved", "unsolved"),
        ("b", "4 of 4 solved; greedy unsolved", "solved"),
    ]


@pytest.mark.parametrize(
    ("made", "wanted"),
    [
        (rate(0.8714), "0.871"), (rate(float("nan")), "–"), (rate(None), "–"), (rate(True), "–"),
        (signed(0.0001), "0.000"), (signed(-0.0449), "−0.045"), (signed(0.2), "+0.200"),
        (compact(2e-5), "2e−5"), (compact(0.1234567), "0.1235"), (compact(51200.0), "51,200"), (compact("x"), "x"),
        (duration(0.84), "0.8 s"), (duration(59.7), "1 min 00 s"), (duration(252.3), "4 min 12 s"),
        (duration(7500), "2 h 05 min"),
        (clock(68), "1:08 min"), (metric_label("pass_at_8"), "pass@8"), (metric_label("pass_at_once"), "pass_at_once"),
    ],
)  # fmt: skip
def test_numbers_as_text(made: str, wanted: str) -> None:
    assert made == wanted


def test_ticks_are_round_and_span_the_values() -> None:
    assert ticks(0.42, 1.31) == [0.0, 0.5, 1.0, 1.5]
    assert ticks(-0.02, 0.03) == [-0.025, 0.0, 0.025, 0.05]
    assert ticks(3.0, 3.0) == [3.0]
