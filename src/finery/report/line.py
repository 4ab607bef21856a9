"""The line as a drawing: stages in ranks from left to right (or top to bottom), edges that say something new.

A layered drawing after Sugiyama, Tagawa and Toda (1981): ranks by longest path, long edges through empty places,
order by barycentres.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from finery.report.svg import Markup, drawing, tag

GLYPHS = {
    "Completed": "\N{CHECK MARK}",
    "Cached": "\N{DOWNWARDS ARROW TO BAR}",
    "Skipped": "\N{RIGHTWARDS ARROW}",
    "Blocked": "\N{DOUBLE VERTICAL LINE}",
    "Refused": "\N{MULTIPLICATION SIGN}",
    "Failed": "!",
    "Cancelled": "\N{WHITE SQUARE}",
    "not run": "\N{MIDDLE DOT}",
}
"""A sign a state, so that colour is not all that tells them apart."""

_BOX = (118.0, 42.0)


@dataclass(frozen=True)
class Node:
    """One stage as it is drawn."""

    name: str
    kind: str
    state: str
    note: str


def draw(nodes: Sequence[Node], needs: Mapping[str, Sequence[str]], *, upright: bool) -> Markup:
    """The drawing; `needs` maps a stage to those it uses, `upright` lays the ranks from top to bottom."""
    edges = reduced(
        {node.name: [n for n in needs.get(node.name, ()) if any(n == m.name for m in nodes)] for node in nodes}
    )
    places, bends = layout(edges)
    across, along = (130.0, 66.0) if upright else (58.0, 142.0)
    ranks = 1 + max(rank for rank, _ in places.values())
    low = min(place for _, place in [*places.values(), *(b for chain in bends.values() for b in chain)])
    high = max(place for _, place in [*places.values(), *(b for chain in bends.values() for b in chain)])

    def centre(rank: float, place: float) -> tuple[float, float]:
        first, second = (place - low) * across, rank * along
        return (
            (first + _BOX[0] / 2 + 2, second + _BOX[1] / 2 + 2)
            if upright
            else (second + _BOX[0] / 2 + 2, first + _BOX[1] / 2 + 2)
        )

    parts: list[Markup] = []
    for target, sources in edges.items():
        for source in sources:
            chain = [places[source], *bends.get((source, target), []), places[target]]
            parts.append(tag("path", d=_wire([centre(*point) for point in chain], upright), class_="edge"))
    parts += [_box(node, centre(*places[node.name]), needs.get(node.name, ())) for node in nodes]
    spread, length = (high - low) * across, (ranks - 1) * along
    width, height = (
        (spread + _BOX[0] + 4, length + _BOX[1] + 4) if upright else (length + _BOX[0] + 4, spread + _BOX[1] + 4)
    )
    label = "The line: " + ", ".join(f"{node.name} {node.state}" for node in nodes)
    return drawing(width, height, label, *parts, class_="upright" if upright else "level")


def _box(node: Node, centre: tuple[float, float], needs: Sequence[str]) -> Markup:
    width, height = _BOX
    x, y = centre[0] - width / 2, centre[1] - height / 2
    title = (
        f"{node.name} ({node.kind}): {node.state}"
        + (f", {node.note}" if node.note else "")
        + (f"; uses {', '.join(needs)}" if needs else "")
    )
    name = node.name if len(node.name) <= 14 else node.name[:13] + "\N{HORIZONTAL ELLIPSIS}"
    note = " \N{MIDDLE DOT} ".join(part for part in (node.kind, node.note) if part)
    group = tag(
        "g",
        tag("title", title),
        tag("rect", x=x, y=y, width=width, height=height, rx=3, class_="box"),
        tag("rect", x=x, y=y, width=4, height=height, class_="edge-of-state"),
        tag("text", name, x=x + 12, y=y + 18, class_="name"),
        tag("text", note, x=x + 12, y=y + 33, class_="tick"),
        tag("text", GLYPHS.get(node.state, "?"), x=x + width - 8, y=y + 18, text_anchor="end", class_="glyph"),
        class_=f"node {state_class(node.state)}",
    )
    return tag("a", group, href=f"#stage-{node.name}")


def state_class(state: str) -> str:
    """The CSS class of a state."""
    return "s-" + state.lower().replace(" ", "-")


def _wire(points: Sequence[tuple[float, float]], upright: bool) -> str:
    """Curves that leave a box at its end and meet the next at its beginning."""
    half = (_BOX[1] if upright else _BOX[0]) / 2
    first, last = points[0], points[-1]
    start = (first[0], first[1] + half) if upright else (first[0] + half, first[1])
    end = (last[0], last[1] - half) if upright else (last[0] - half, last[1])
    route = [start]
    for x, y in points[1:-1]:  # straight through the rank, so that a long edge clears the boxes beside it
        route += [(x, y - half), (x, y + half)] if upright else [(x - half, y), (x + half, y)]
    route.append(end)
    said = f"M{route[0][0]:.1f} {route[0][1]:.1f}"
    for (ax, ay), (bx, by) in itertools.pairwise(route):
        if upright:
            middle = (ay + by) / 2
            said += f"C{ax:.1f} {middle:.1f} {bx:.1f} {middle:.1f} {bx:.1f} {by:.1f}"
        else:
            middle = (ax + bx) / 2
            said += f"C{middle:.1f} {ay:.1f} {middle:.1f} {by:.1f} {bx:.1f} {by:.1f}"
    return said


def reduced(needs: Mapping[str, Sequence[str]]) -> dict[str, list[str]]:
    """The same order with the fewest edges: one that a longer path implies is left out. Keys in topological order."""
    above: dict[str, set[str]] = {}
    ordered: list[str] = []

    def visit(name: str) -> set[str]:
        if name not in above:
            found: set[str] = set()
            for need in needs[name]:
                found |= visit(need) | {need}
            above[name] = found
            ordered.append(name)
        return above[name]

    for name in needs:
        visit(name)
    return {
        n: [need for need in dict.fromkeys(needs[n]) if not any(need in above[other] for other in needs[n])]
        for n in ordered
    }


_Place = tuple[int, float]


def layout(edges: Mapping[str, Sequence[str]]) -> tuple[dict[str, _Place], dict[tuple[str, str], list[_Place]]]:
    """(rank, place across) of every stage, and the places a long edge passes through."""
    rank = _ranks(edges)
    neighbours: dict[str, list[str]] = {name: [] for name in edges}
    chains: dict[tuple[str, str], list[str]] = {}
    for target, sources in edges.items():
        for source in sources:
            chain = [f"{source}>{target}>{r}" for r in range(rank[source] + 1, rank[target])]
            chains[source, target] = chain
            for r, between in enumerate(chain, rank[source] + 1):
                rank[between] = r
                neighbours[between] = []
            for a, b in zip([source, *chain], [*chain, target], strict=True):
                neighbours[a].append(b)
                neighbours[b].append(a)
    layers: list[list[str]] = [[] for _ in range(1 + max(rank.values()))]
    for name, r in rank.items():
        layers[r].append(name)
    place = {name: i - (len(layer) - 1) / 2 for layer in layers for i, name in enumerate(layer)}
    for sweep in range(24):
        for layer in layers if sweep % 2 == 0 else reversed(layers):
            wish = {
                name: sum(place[n] for n in neighbours[name]) / len(neighbours[name])
                if neighbours[name]
                else place[name]
                for name in layer
            }
            layer.sort(key=lambda name: wish[name])
            place |= _spaced([(name, wish[name]) for name in layer])
    return {name: (rank[name], place[name]) for name in edges}, {
        edge: [(rank[between], place[between]) for between in chain] for edge, chain in chains.items()
    }


def _ranks(edges: Mapping[str, Sequence[str]]) -> dict[str, int]:
    """Longest path from the beginning; what has no needs moves up to just before its first consumer."""
    rank: dict[str, int] = {}
    for name, needs in edges.items():
        rank[name] = 1 + max((rank[need] for need in needs), default=-1)
    for name, needs in edges.items():
        users = [rank[other] for other, uses in edges.items() if name in uses]
        if not needs and users:
            rank[name] = min(users) - 1
    return rank


def _spaced(wishes: Sequence[tuple[str, float]]) -> dict[str, float]:
    """Places at least 1 apart, in order, their mean where the wishes' mean is."""
    places: list[float] = []
    for _, wish in wishes:
        places.append(wish if not places else max(wish, places[-1] + 1))
    shift = sum(wish for _, wish in wishes) / len(wishes) - sum(places) / len(places)
    return {name: value + shift for (name, _), value in zip(wishes, places, strict=True)}
