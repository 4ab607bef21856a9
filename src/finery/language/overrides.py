"""`--set stages.sft.learning_rate=2e-4`: values that replace or add to what the file says, before it is validated."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from finery.language.nodes import Node, Written, parse
from finery.language.problems import Place, Problem, hint

_SEGMENT = re.compile(r'"([^"]*)"|([^."]+)')


def apply(root: Node, overrides: Sequence[str]) -> tuple[Node, dict[str, Any], list[Problem]]:
    """The tree with every override in it, the values set by dotted key, and what was wrong with them."""
    values: dict[str, Any] = {}
    problems: list[Problem] = []
    for text in overrides:
        key, equals, written = text.partition("=")
        key = key.strip()
        if not equals or not key:
            problems.append(Problem(Place(override=key), (), "is not KEY=VALUE, as in stages.sft.learning_rate=2e-4"))
            continue
        value, found = parse(written, override=key)
        problems += [Problem(problem.place, (*problem.path,), problem.text) for problem in found]
        if value is None and found:
            continue
        value = value or Node("scalar", Place(override=key), None)
        try:
            root = _assign(root, _segments(key), value, key, ())
        except _Refused as refused:
            problems.append(refused.problem)
            continue
        values[key] = _plain(value.plain())
    return root, values, problems


class _Refused(Exception):
    def __init__(self, key: str, text: str) -> None:
        super().__init__(text)
        self.problem = Problem(Place(override=key), (), text)


def _segments(key: str) -> list[str]:
    """`stages.promote.require."merged.domain.pass_at_1".min` in parts; quotes keep a part with dots whole."""
    parts = [match[1] if match[1] is not None else match[2] for match in _SEGMENT.finditer(key)]
    if re.sub(_SEGMENT, "", key).strip(".") or ".." in key or key.startswith(".") or key.endswith("."):
        raise _Refused(key, "is not a dotted key, as in stages.sft.learning_rate")
    return parts


def _assign(node: Node, segments: list[str], value: Node, key: str, path: tuple[str, ...]) -> Node:
    """A copy of `node` with `value` set; what it shares with other places of the file (aliases) stays as it was."""
    if not segments:
        return value
    if node.kind == "scalar" and node.value is None:
        node = Node("map", node.place, {})
    if node.kind == "list":
        return _assign_item(node, segments, value, key, path)
    if node.kind != "map":
        raise _Refused(key, f"{'.'.join(path)} is a single value, not a map; set it whole: {'.'.join(path)}={{...}}")
    name, rest = _name(node, segments)
    child = node.value.get(name)
    if child is None:
        if path == ("stages",) and rest:
            raise _Refused(key, f"there is no stage {name}{hint(name, list(node.value), listed='there are')}")
        child = Node("map", value.place, {}) if rest else value
    child = _assign(child, rest, value, key, (*path, name))
    keys = node.keys if name in node.value else {**node.keys, name: value.place}
    return replace(node, value={**node.value, name: child}, keys=keys)


def _name(node: Node, segments: list[str]) -> tuple[str, list[str]]:
    """The key meant, the longest that the map has: keys such as `merged.domain.pass_at_1` hold dots themselves."""
    for count in range(len(segments), 0, -1):
        name = ".".join(segments[:count])
        if name in node.value:
            return name, segments[count:]
    return segments[0], segments[1:]


def _assign_item(node: Node, segments: list[str], value: Node, key: str, path: tuple[str, ...]) -> Node:
    number, size = segments[0], len(node.value)
    if not number.isdigit() or int(number) > size or (int(number) == size and len(segments) > 1):
        accepted = (
            f"an item is named by its position, 0 to {size} (which adds one)" if size else "0 adds the first item"
        )
        raise _Refused(key, f"{'.'.join(path)} is a list; {accepted}")
    items = list(node.value)
    if int(number) == size:
        items.append(value)
    else:
        items[int(number)] = _assign(items[int(number)], segments[1:], value, key, (*path, number))
    return replace(node, value=items)


def _plain(value: Any) -> Any:
    """The value without `Written`."""
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return float(value) if isinstance(value, Written) else value
