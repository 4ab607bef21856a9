"""YAML 1.2 text to a tree in which every value knows its place.

Built on ruamel.yaml's events (pure Python, safe: nothing is constructed by tag) with construction of our own, so that
tags, duplicate keys, aliases and merge keys are refused or bounded with a position.
"""

from __future__ import annotations

import io
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

from finery.language.problems import Keys, Place, Problem

MAX_BYTES = 1 << 20
MAX_DEPTH = 64
MAX_EXPANDED = 10_000
_CORE = "tag:yaml.org,2002:"
_INT = re.compile(r"[-+]?(?:0|[1-9][0-9]*)")
_BASED = re.compile(r"0o[0-7]+|0x[0-9a-fA-F]+")
_FLOAT = re.compile(r"[-+]?(?:\.[0-9]+|(?:0|[1-9][0-9]*)(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?")
_SPECIAL = re.compile(r"[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)")
_WORDS = {
    **dict.fromkeys(["null", "Null", "NULL", "~", ""], None),
    **dict.fromkeys(["true", "True", "TRUE"], True),
    **dict.fromkeys(["false", "False", "FALSE"], False),
}


class Written(float):
    """A float that remembers how it was written: `3.10`, which may be a version, or `.inf`.

    One with an exponent is surely a number, and a plain float.
    """

    written: str

    def __new__(cls, text: str) -> Written:
        number = super().__new__(cls, text.lower().replace(".inf", "inf").replace(".nan", "nan"))
        number.written = text
        return number


@dataclass
class Node:
    """A value: `value` is a scalar, a list of nodes, or a dict of nodes.

    Attributes:
        place: where it begins.
        text: a scalar as written, without its quotes.
        quoted: whether it is quoted or a block of text.
        keys: where each key of a map is written.
        size: the values it holds once aliases are expanded, itself included.
    """

    kind: Literal["scalar", "list", "map"]
    place: Place
    value: Any
    text: str = ""
    quoted: bool = False
    keys: dict[str, Place] = field(default_factory=dict)
    size: int = 1

    def child(self, key: str | int) -> Node | None:
        found: Node | None = None
        if self.kind == "map":
            found = self.value.get(key)
        elif self.kind == "list" and isinstance(key, int) and 0 <= key < len(self.value):
            found = self.value[key]
        return found

    def plain(self) -> Any:
        """The value as Python data; some floats are `Written`."""
        if self.kind == "map":
            return {key: node.plain() for key, node in self.value.items()}
        if self.kind == "list":
            return [node.plain() for node in self.value]
        return self.value


def find(root: Node, path: Keys) -> Node | None:
    """The node at a path, or None."""
    node: Node | None = root
    for key in path:
        node = node.child(key) if node else None
    return node


def key_place(root: Node, path: Keys) -> Place:
    """Where the key (or list item) at a path is written; for what is not there, where its nearest holder is."""
    place, node = root.place, root
    for key in path:
        child = node.child(key)
        if child is None:
            break
        place = node.keys[str(key)] if node.kind == "map" else child.place
        node = child
    return place


def walk(node: Node, path: Keys = ()) -> Iterator[tuple[Keys, Node]]:
    """Every value below a node, itself first."""
    yield path, node
    children = node.value.items() if node.kind == "map" else enumerate(node.value) if node.kind == "list" else ()
    for key, child in children:
        yield from walk(child, (*path, key))


class _Stop(Exception):
    """A problem after which the text cannot be read on."""


def parse(text: str, *, override: str | None = None) -> tuple[Node | None, list[Problem]]:
    """The tree of a text that holds one YAML document, and all that is wrong with it; None when it cannot be read."""
    from ruamel.yaml import YAML
    from ruamel.yaml.error import MarkedYAMLError
    from ruamel.yaml.reader import ReaderError

    from finery.language.syntax import explain_marked, explain_reader

    reader = _Reader(iter(YAML(typ="safe", pure=True).parse(io.StringIO(text))), override)
    try:
        return reader.document(), reader.problems
    except _Stop:
        pass
    except MarkedYAMLError as error:
        reader.problems.append(explain_marked(error, override))
    except ReaderError as error:
        reader.problems.append(explain_reader(error, text, override))
    return None, reader.problems


class _Reader:
    """Builds nodes from events."""

    def __init__(self, events: Iterator[Any], override: str | None) -> None:
        self.events, self.override = events, override
        self.problems: list[Problem] = []
        self.anchors: dict[str, Node | None] = {}
        self.expanded = 0

    def document(self) -> Node | None:
        next(self.events)
        start = next(self.events)
        if type(start).__name__ == "StreamEndEvent":
            return None
        if start.version not in (None, (1, 2)):
            self._stop(start, "only YAML 1.2 is read; leave the %YAML line out")
        root = self._node(next(self.events), (), 0)
        next(self.events)
        if type(more := next(self.events)).__name__ != "StreamEndEvent":
            self._stop(
                more, "a second document begins here; a file holds one pipeline: delete this `---` or split the file"
            )
        return root

    def _place(self, event: Any) -> Place:
        mark = event.start_mark
        return Place(override=self.override) if self.override else Place(mark.line + 1, mark.column + 1)

    def _problem(self, event: Any, text: str, path: Keys = ()) -> None:
        self.problems.append(Problem(self._place(event), path, text))

    def _stop(self, event: Any, text: str, path: Keys = ()) -> None:
        self._problem(event, text, path)
        raise _Stop

    def _node(self, event: Any, path: Keys, depth: int) -> Node:
        if depth > MAX_DEPTH:
            self._stop(event, f"is nested more than {MAX_DEPTH} deep", path)
        name = type(event).__name__
        if name == "AliasEvent":
            return self._alias(event, path)
        tag = self._tag(event, path, name)
        if event.anchor:
            self.anchors[event.anchor] = None
        if name == "ScalarEvent":
            node = self._scalar(event, path, tag)
        elif name == "SequenceStartEvent":
            node = Node("list", self._place(event), [])
            while type(item := next(self.events)).__name__ != "SequenceEndEvent":
                node.value.append(self._node(item, (*path, len(node.value)), depth + 1))
            node.size += sum(child.size for child in node.value)
        else:
            node = self._map(event, path, depth)
        if event.anchor:
            self.anchors[event.anchor] = node
        return node

    def _alias(self, event: Any, path: Keys) -> Node:
        if event.anchor not in self.anchors:
            self._stop(event, f"*{event.anchor} refers to no anchor; &{event.anchor} must be written above it", path)
        target = self.anchors[event.anchor]
        if target is None:
            self._stop(event, f"*{event.anchor} refers to what it stands in", path)
        assert target is not None
        self.expanded += target.size
        if self.expanded > MAX_EXPANDED:
            self._stop(event, f"the aliases of this file expand to more than {MAX_EXPANDED} values", path)
        return target

    def _tag(self, event: Any, path: Keys, name: str) -> str | None:
        """The short name of an explicit tag (`int` for !!int, "" for a lone !), or None."""
        tag = str(event.tag) if event.tag is not None else None
        if tag is None:
            return None
        short = "" if tag == "!" else tag.removeprefix(_CORE)
        takes = {"ScalarEvent": ("", "str", "int", "float", "bool", "null"), "SequenceStartEvent": ("", "seq")}
        if short not in takes.get(name, ("", "map")) or (tag != "!" and not tag.startswith(_CORE)):
            shown = f"!!{short}" if tag.startswith(_CORE) else tag
            self._problem(event, f"the tag {shown} is refused; a pipeline is plain data, leave the tag out", path)
            return None
        return short

    def _scalar(self, event: Any, path: Keys, tag: str | None) -> Node:
        text, quoted = event.value, bool(event.style)
        node = Node("scalar", self._place(event), text, text, quoted)
        try:
            value = text if tag in ("", "str") or (quoted and tag is None) else resolve(text)
        except ValueError:
            self._problem(event, "has too many digits", path)
            return node
        if tag not in (None, "", "str"):
            wanted: Any = {"int": int, "float": (int, float), "bool": bool, "null": type(None)}[tag]
            if not isinstance(value, wanted) or (isinstance(value, bool) and tag != "bool"):
                self._problem(event, f"is not what its tag !!{tag} says", path)
            elif tag == "float":
                value = Written(text)
        node.value = value
        return node

    def _map(self, event: Any, path: Keys, depth: int) -> Node:
        node = Node("map", self._place(event), {})
        merged: list[Node] = []
        while type(item := next(self.events)).__name__ != "MappingEndEvent":
            key = self._key(item, path, depth)
            value = self._node(next(self.events), (*path, key) if key is not None else path, depth + 1)
            if key == "<<" and not item.style:
                merged += self._merges(value, item, (*path, key))
            elif key is not None and key in node.value:
                lines = "" if self.override else f", on lines {node.keys[key].line} and {item.start_mark.line + 1}"
                self._problem(item, f"is written twice{lines}; keep one", (*path, key))
            elif key is not None:
                node.value[key], node.keys[key] = value, self._place(item)
        for source in merged:
            for key, value in source.value.items():
                if key not in node.value:
                    node.value[key], node.keys[key] = value, source.keys[key]
        node.size += sum(child.size for child in node.value.values())
        return node

    def _key(self, event: Any, path: Keys, depth: int) -> str | None:
        """A key is text as it is written: `1` and `no` are the keys "1" and "no"."""
        node = self._node(event, path, depth + 1)
        if node.kind != "scalar":
            self._problem(event, "a map or a list cannot be a key; text that begins with { or [ must be quoted", path)
            return None
        if node.text == "" and not node.quoted:
            self._problem(event, "a key is empty here", path)
            return None
        return node.text

    def _merges(self, value: Node, event: Any, path: Keys) -> list[Node]:
        """The maps that `<<` merges in; keys written beside it win, then the earlier map."""
        sources = value.value if value.kind == "list" else [value]
        if any(source.kind != "map" for source in sources):
            self._problem(event, "<< merges maps: write <<: *name, where &name marks a map", path)
            return []
        return list(sources)


def resolve(text: str) -> Any:
    """A plain scalar by YAML 1.2's core schema, but a number with leading zeros (`012`) stays text.

    Raises:
        ValueError: a whole number has more digits than Python takes.
    """
    if text in _WORDS:
        return _WORDS[text]
    if _INT.fullmatch(text):
        return int(text)
    if _BASED.fullmatch(text):
        return int(text, 0)
    if _FLOAT.fullmatch(text) or _SPECIAL.fullmatch(text):
        number = Written(text)
        return float(number) if "e" in text.lower() and math.isfinite(number) else number
    return text
