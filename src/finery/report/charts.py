"""The report's charts: curves, intervals, histograms, changes. Values show on hover, by <title>."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from finery.report.numbers import axis, compact, rate, signed, ticks
from finery.report.svg import Markup, drawing, path, tag

MOST_POINTS = 160
_SHARES = ("frac_", "ratio", "accuracy", "reward", "pass_at", "solved", "pass_rate")


@dataclass(frozen=True)
class Estimate:
    """A value with its interval, if it has one, on a named row."""

    label: str
    value: float
    low: float | None = None
    high: float | None = None
    mark: float | None = None
    mark_label: str = ""


def curve(name: str, points: Sequence[tuple[int, float | None]]) -> Markup:
    """One small multiple: a metric over steps; None (not finite) is a mark on the floor.

    Beyond MOST_POINTS points, each drawn point is the mean of a run of steps and a band shows their range.
    """
    width, height, left, right, top, bottom = 236, 122, 44, 8, 8, 18
    finite = [value for _, value in points if value is not None]
    first, last = points[0][0], points[-1][0]
    scale = _domain(name, finite)

    def x(step: float) -> float:
        return left + (step - first) / max(1, last - first) * (width - left - right)

    def y(value: float) -> float:
        return height - bottom - (value - scale[0]) / (scale[-1] - scale[0]) * (height - top - bottom)

    parts = [_rule(left, width - right, y(tick), axis(tick)) for tick in scale]
    for step, anchor in ((first, "start"), (last, "end")):
        parts.append(tag("text", f"{step:,}", x=x(step), y=height - 4, text_anchor=anchor, class_="tick"))
    groups = _grouped(points)
    if len(points) > len(groups):
        parts.append(_band(groups, x, y))
    parts += [tag("path", d=path([(x(s), y(v)) for s, v, *_ in run]), class_="curve") for run in _runs(groups)]
    parts += [
        _point(group, name, x, y, (width - left - right) / max(1, len(groups)), top, height - bottom)
        for group in groups
    ]
    return drawing(width, height, _curve_label(name, points), *parts, class_="small")


_Group = tuple[float, float | None, float, float, str]


def _grouped(points: Sequence[tuple[int, float | None]]) -> list[_Group]:
    """(step, mean, low, high, what the title says) of runs of neighbouring points."""
    size = math.ceil(len(points) / MOST_POINTS)
    groups: list[_Group] = []
    for start in range(0, len(points), size):
        run = points[start : start + size]
        values = [value for _, value in run if value is not None]
        steps = f"step {run[0][0]:,}" if len(run) == 1 else f"steps {run[0][0]:,} to {run[-1][0]:,}, mean"
        middle = sum(step for step, _ in run) / len(run)
        if values:
            groups.append((middle, sum(values) / len(values), min(values), max(values), steps))
        else:
            groups.append((middle, None, 0.0, 0.0, steps))
    return groups


def _runs(groups: Sequence[_Group]) -> list[list[tuple[float, float]]]:
    runs: list[list[tuple[float, float]]] = [[]]
    for step, mean, *_ in groups:
        if mean is None:
            runs.append([])
        else:
            runs[-1].append((step, mean))
    return [run for run in runs if len(run) > 1]


def _band(groups: Sequence[_Group], x, y) -> Markup:  # type: ignore[no-untyped-def]
    known = [group for group in groups if group[1] is not None]
    upper = [(x(group[0]), y(group[3])) for group in known]
    lower = [(x(group[0]), y(group[2])) for group in reversed(known)]
    return tag("path", d=path(upper + lower) + "Z", class_="band")


def _point(group: _Group, name: str, x, y, width: float, top: float, floor: float) -> Markup:  # type: ignore[no-untyped-def]
    step, mean, _, _, said = group
    area = tag("rect", x=x(step) - width / 2, y=top, width=width, height=floor - top)
    if mean is None:
        cross = tag("text", "\N{MULTIPLICATION SIGN}", x=x(step), y=floor, text_anchor="middle", class_="bad")
        return tag("g", tag("title", f"{said}: {name} is not finite"), area, cross, class_="pt")
    dot = tag("circle", cx=x(step), cy=y(mean), r=2.6)
    return tag("g", tag("title", f"{said}: {name} {compact(mean)}"), area, dot, class_="pt")


def _domain(name: str, values: Sequence[float]) -> list[float]:
    """The ticks of the value axis: from 0 to 1 for what is a share, else what the values need."""
    if not values:
        return [0.0, 1.0]
    low, high = min(values), max(values)
    if low >= 0 and high <= 1 and any(word in name for word in _SHARES):
        return [0.0, 0.5, 1.0] if high > 0.25 else ticks(0, max(high, 0.01))
    if low == high:
        return [0.0, low * 2] if low > 0 else [low - 1.0, low, low + 1.0]
    if 0 < low < 0.5 * high:
        low = 0.0
    return ticks(low, high)


def _curve_label(name: str, points: Sequence[tuple[int, float | None]]) -> str:
    known = [value for _, value in points if value is not None]
    ends = f", from {compact(known[0])} to {compact(known[-1])}" if known else ""
    return f"{name} over steps {points[0][0]} to {points[-1][0]}{ends}"


def _rule(left: float, right: float, y: float, text: str) -> Markup:
    line = tag("line", x1=left, x2=right, y1=y, y2=y, class_="grid")
    return tag("g", line, tag("text", text, x=left - 5, y=y + 3, text_anchor="end", class_="tick"))


def intervals(rows: Sequence[Estimate], title: str) -> Markup:
    """A row a value on the axis from 0 to 1: its interval as a bar, a tick at the value, a dashed mark at a bound."""
    width, step, left, right = 440, 30, 62, 84
    height = step * len(rows) + 26

    def x(value: float) -> float:
        return left + min(1.0, max(0.0, value)) * (width - left - right)

    floor = step * len(rows) + 6
    parts: list[Markup] = []
    for tick in (0.0, 0.25, 0.5, 0.75, 1.0):
        parts.append(tag("line", x1=x(tick), x2=x(tick), y1=4, y2=floor, class_="grid"))
        parts.append(tag("text", f"{tick:g}", x=x(tick), y=floor + 14, text_anchor="middle", class_="tick"))
    for index, row in enumerate(rows):
        parts.append(_interval(row, x, 4 + step * index + step / 2, left, width - right))
    return drawing(width, height, f"{title}: " + "; ".join(_said(row) for row in rows), *parts)


def _interval(row: Estimate, x, y: float, left: float, right: float) -> Markup:  # type: ignore[no-untyped-def]
    parts = [tag("title", _said(row) + (f"; {row.mark_label}" if row.mark_label else ""))]
    parts.append(tag("rect", x=left, y=y - 15, width=right - left, height=30, class_="area"))
    parts.append(tag("text", row.label, x=left - 10, y=y + 4, text_anchor="end", class_="name"))
    if row.mark is not None:
        parts.append(tag("line", x1=x(row.mark), x2=x(row.mark), y1=y - 13, y2=y + 13, class_="mark"))
    if row.low is not None and row.high is not None:
        parts.append(
            tag("rect", x=x(row.low), y=y - 5, width=max(1.5, x(row.high) - x(row.low)), height=10, rx=2, class_="span")
        )
        parts.append(tag("line", x1=x(row.value), x2=x(row.value), y1=y - 9, y2=y + 9, class_="value"))
        parts.append(tag("text", f"{rate(row.low, 2)} to {rate(row.high, 2)}", x=right + 12, y=y + 12, class_="tick"))
    else:
        parts.append(tag("circle", cx=x(row.value), cy=y, r=4, class_="dot"))
    offset = 0 if row.low is not None else 4
    parts.append(tag("text", rate(row.value), x=right + 12, y=y + offset, class_="figure"))
    return tag("g", *parts)


def _said(row: Estimate) -> str:
    span = f" [{rate(row.low)}, {rate(row.high)}]" if row.low is not None else ""
    return f"{row.label} {rate(row.value)}{span}"


def histogram(rates: Sequence[float], bins: int, title: str) -> Markup:
    """How many prompts have which pass rate; those at 0 and at 1, which teach nothing, stand apart."""
    counts = [0] * bins
    dead = sum(1 for value in rates if value <= 0), sum(1 for value in rates if value >= 1)
    for value in rates:
        if 0 < value < 1:
            counts[min(bins - 1, int(value * bins))] += 1
    columns = [
        (dead[0], "none", "rate 0"),
        *((count, "", f"rate {index / bins:.2f} to {(index + 1) / bins:.2f}") for index, count in enumerate(counts)),
        (dead[1], "all", "rate 1"),
    ]
    width, height, left, bottom, top = 440, 150, 32, 22, 8
    scale = ticks(0, max(1, *(count for count, *_ in columns)), 4)
    step = (width - left - 8 - 16) / len(columns)
    floor = height - bottom
    parts = [
        _rule(left, width - 8, floor - tick / scale[-1] * (floor - top), axis(tick))
        for tick in scale
        if tick == int(tick)
    ]
    for index, (count, side, said) in enumerate(columns):
        x = left + step * index + (8 if index else 0) + (8 if index == len(columns) - 1 else 0)
        tall = count / scale[-1] * (floor - top)
        bar = tag("rect", x=x + 1, y=floor - tall, width=step - 2, height=tall, class_="bar dead" if side else "bar")
        area = tag("rect", x=x, y=top, width=step, height=floor - top, class_="area")
        parts.append(tag("g", tag("title", f"{count} prompts: {said}"), area, bar))
    inner = left + step + 8
    for value in (0.25, 0.5, 0.75):
        parts.append(
            tag("text", f"{value:g}", x=inner + value * step * bins, y=height - 6, text_anchor="middle", class_="tick")
        )
    parts.append(tag("text", "0", x=left + step / 2, y=height - 6, text_anchor="middle", class_="tick"))
    parts.append(tag("text", "1", x=width - 8 - step / 2, y=height - 6, text_anchor="middle", class_="tick"))
    return drawing(width, height, f"{title}: {len(rates)} prompts, {dead[0]} never solved, {dead[1]} always", *parts)


def cell(value: float, low: float | None, high: float | None) -> Markup:
    """A value on 0 to 1 in a table cell: its interval as a bar, a tick at the value."""
    width, height, pad = 100, 12, 2

    def x(at: float) -> float:
        return pad + min(1.0, max(0.0, at)) * (width - 2 * pad)

    parts = [tag("line", x1=pad, x2=width - pad, y1=6, y2=6, class_="rail")]
    if low is not None and high is not None:
        parts.append(tag("rect", x=x(low), y=3, width=max(1.0, x(high) - x(low)), height=6, rx=1, class_="span"))
    parts.append(tag("line", x1=x(value), x2=x(value), y1=1, y2=11, class_="value"))
    return tag("svg", *parts, viewBox=f"0 0 {width} {height}", width=width, height=height, aria_hidden="true")


def changes(rows: Sequence[tuple[str, float, float | None, float | None, str]], reach: float, title: str) -> Markup:
    """Bars from a middle line: (label, change, low, high, `gain`, `loss` or `even`); the axis reaches +-reach."""
    width, step, left, right = 470, 24, 118, 60
    height, floor = step * len(rows) + 24, step * len(rows) + 4

    def x(value: float) -> float:
        return left + (min(reach, max(-reach, value)) + reach) / (2 * reach) * (width - left - right)

    parts: list[Markup] = []
    for tick in (-reach, 0.0, reach):
        parts.append(tag("line", x1=x(tick), x2=x(tick), y1=2, y2=floor, class_="grid" if tick else "axis"))
        parts.append(tag("text", signed(tick, 2), x=x(tick), y=floor + 14, text_anchor="middle", class_="tick"))
    for index, (label, change, low, high, kind) in enumerate(rows):
        y = 2 + step * index + step / 2
        span = f" [{signed(low)}, {signed(high)}]" if low is not None and high is not None else ""
        group = [
            tag("title", f"{label} {signed(change)}{span}"),
            tag("rect", x=0, y=y - 12, width=width, height=24, class_="area"),
        ]
        group.append(tag("text", _short(label), x=left - 8, y=y + 4, text_anchor="end", class_="name"))
        group.append(
            tag(
                "rect",
                x=min(x(0), x(change)),
                y=y - 6,
                width=max(0.8, abs(x(change) - x(0))),
                height=12,
                class_=f"change {kind}",
            )
        )
        if low is not None and high is not None:
            group.append(tag("line", x1=x(low), x2=x(high), y1=y, y2=y, class_="whisker"))
        group.append(tag("text", signed(change), x=width - right + 10, y=y + 4, class_=f"figure {kind}"))
        parts.append(tag("g", *group))
    return drawing(width, height, title, *parts)


def _short(label: str, most: int = 16) -> str:
    return label if len(label) <= most else label[: most - 1] + "\N{HORIZONTAL ELLIPSIS}"
