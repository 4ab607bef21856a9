"""What pydantic found, in the words of the file: where, what stands there, what is accepted, what was meant."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal, Union

from finery.language.documentation import field_doc
from finery.language.fields import Type, choose, errors_of, type_of, words
from finery.language.keys import unknown
from finery.language.nodes import Node, find, key_place
from finery.language.problems import Keys, Place, Problem, hint, nearest
from finery.language.remedies import mismatch, quote, show
from finery.schemas.base import NAME
from finery.schemas.promote import Metric

_PATTERNS = {
    NAME: f"is not a name: a letter a-z, then up to 62 of a-z, 0-9, _ and - ({NAME})",
    type_of(Metric).marks[-1].pattern: "is not model.suite.metric, for example merged.domain.pass_at_1",
}


@dataclass
class Explained:
    """Problems, and the unknown keys among them with what each most likely means (None: nothing known)."""

    problems: list[Problem] = field(default_factory=list)
    renames: dict[Keys, str | None] = field(default_factory=dict)


def explain(kind: Type, root: Node, errors: list[Any], *, at: Keys = ()) -> Explained:
    """Every error of a validation as a problem.

    Args:
        kind: the type that was validated.
        root: the whole file's tree.
        errors: pydantic's, of the node at `at`.
    """
    explainer = _Explainer(root)
    node = find(root, at)
    assert node is not None
    explainer.all(kind, node, at, errors)
    return explainer.found


class _Explainer:
    def __init__(self, root: Node) -> None:
        self.root = root
        self.found = Explained()
        self.unions: set[Keys] = set()

    def all(self, kind: Type, node: Node, path: Keys, errors: list[Any]) -> None:
        for error in errors:
            self.one(kind, node, path, error)

    def add(self, place: Place, path: Keys, text: str) -> None:
        self.found.problems.append(Problem(place, path, text))

    def one(self, kind: Type, node: Node, path: Keys, error: Any) -> None:
        """Follow an error's location through types and data alike, then say it."""
        loc, index = error["loc"], 0
        owner = kind
        while index < len(loc):
            step = loc[index]
            if kind.base is Union:
                if not kind.tag:
                    break
                kind = kind.tagged()[str(step)]
                index += 1
                continue
            if kind.base is dict and loc[index + 1 :] == ("[key]",):
                return self.bad_key(path, str(step), error)
            owner, path, index = kind, (*path, step), index + 1
            child = kind.child(step)
            if child is None:
                return self.unknown_key(owner, path)
            below = node.child(step)
            if below is None:
                return self.missing(path, child, owner)
            kind, node = child, below
        if kind.base is Union and not kind.tag:
            return self.union(kind, node, path)
        self.value(kind, node, path, error)

    def bad_key(self, path: Keys, key: str, error: Any) -> None:
        pattern = str(error.get("ctx", {}).get("pattern", ""))
        text = _PATTERNS.get(pattern, f"does not match {pattern}" if pattern else "is not a name")
        self.add(key_place(self.root, (*path, key)), (*path, key), text)

    def unknown_key(self, owner: Type, path: Keys) -> None:
        assert owner.model is not None
        text, meant = unknown(str(path[-1]), owner.model, path, self.root)
        self.found.renames[path] = meant
        self.add(key_place(self.root, path), path, text)

    def missing(self, path: Keys, kind: Type, owner: Type) -> None:
        about = field_doc(owner.model, str(path[-1])) if owner.model else None
        text = f"is missing; it must be {words(kind)}" + (f": {about.splitlines()[0]}" if about else "")
        self.add(key_place(self.root, path[:-1]), path, text)

    def union(self, kind: Type, node: Node, path: Keys) -> None:
        """One explanation a union, by the member that was meant."""
        if path in self.unions:
            return
        self.unions.add(path)
        member = choose(kind, node)
        before = len(self.found.problems)
        if member is not None and member.base is Literal and isinstance(node.value, str):
            options = [str(arg) for arg in member.args]
            return self.add(node.place, path, mismatch(kind, node, path) + _mean(node.value, options, least=1))
        if member is not None:
            self.all(member, node, path, errors_of(member, node))
        if len(self.found.problems) == before:
            self.add(node.place, path, mismatch(kind, node, path))

    def value(self, kind: Type, node: Node, path: Keys, error: Any) -> None:
        """An error about the value itself."""
        what = error["type"]
        if what == "finery":
            return self.refused(node, path, error)
        if what in ("union_tag_not_found", "union_tag_invalid"):
            return self.tag(kind, node, path)
        if what in ("too_short", "string_too_short") and not node.value:
            return self.add(node.place, path, f"must not be empty; it must be {words(kind)}")
        if what in ("too_short", "too_long") and node.kind == "list":
            return self.add(node.place, path, f"must be {words(kind)}, not of {len(node.value)}")
        if what == "string_pattern_mismatch":
            pattern = error["ctx"]["pattern"]
            text = _PATTERNS.get(pattern, f"must match {pattern}")
            return self.add(node.place, path, f"{quote(kind, node, path)}{text}")
        if what == "literal_error" and isinstance(node.value, str):
            options = [str(arg) for arg in kind.args]
            return self.add(node.place, path, mismatch(kind, node, path) + _mean(node.value, options))
        self.add(node.place, path, mismatch(kind, node, path))

    def refused(self, node: Node, path: Keys, error: Any) -> None:
        """A validator of our own spoke; it may point at one field of the model."""
        inner = error["ctx"].get("field")
        if inner:
            parts: Keys = tuple(int(part) if part.isdigit() else part for part in inner.split("."))
            found = find(node, parts)
            place = found.place if found else key_place(self.root, path)
            return self.add(place, (*path, *parts), error["msg"])
        place = node.place if node.kind == "scalar" else key_place(self.root, path)
        self.add(place, path, error["msg"])

    def tag(self, kind: Type, node: Node, path: Keys) -> None:
        """The discriminator of a union is absent or unknown."""
        assert kind.tag is not None
        options = list(kind.tagged())
        found = node.child(kind.tag)
        if node.kind != "map":
            return self.add(node.place, path, mismatch(kind, node, path))
        if found is None:
            near = next((key for key in node.value if nearest(kind.tag, [key], cutoff=0.7)), None) or (
                "type" if "type" in node.value else None
            )
            also = f"; did you mean that by {near}?" if near else ""
            text = f"is missing; one of {', '.join(options)}{also}"
            return self.add(key_place(self.root, path), (*path, kind.tag), text)
        said = show(found, (*path, kind.tag))
        text = f"unknown kind{f' {said}' if said else ''}{hint(str(found.value), options, listed='there are')}"
        self.add(found.place, (*path, kind.tag), text)


def _mean(word: str, options: list[str], *, least: int = 2) -> str:
    near = nearest(word, options, cutoff=0.5) if len(options) >= least else None
    return f"; did you mean {near}?" if near else ""
