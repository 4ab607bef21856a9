"""Secrets: where `${env:NAME}` may stand, what may not be written down, and what an error must not show."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from finery.language.fields import leaves, type_of
from finery.language.nodes import Node, find, walk
from finery.language.problems import Keys, Place, Problem
from finery.schemas.base import Stage

_HIDDEN_KEY = re.compile(r"token(?!iz)|key|secret|passw|credential|auth", re.IGNORECASE)
_HIDDEN_VALUE = re.compile(r"://[^/\s]*@|\$\{|^(hf_|sk-|gh[a-z]_|github_pat_|glpat-|xox|AKIA|AIza|eyJ)")
_KEY = re.compile(
    r"^token$|(^|[_-])(api[_-]?key|passw(or)?d|passphrase|secret([_-]key)?|access[_-](key|token)|"
    r"(auth|bearer|hf|github)[_-]token|private[_-]key|credentials?)$",
    re.IGNORECASE,
)
_VALUE = re.compile(
    r"://[^/\s:@]+:[^/\s@]+@|\b(sk-[\w-]{8,}|hf_\w{8,}|gh[pousr]_\w{16,}|github_pat_\w{16,}|glpat-[\w-]{16,}|"
    r"xox[abprs]-[\w-]{8,}|AKIA[0-9A-Z]{16}|AIza[\w-]{30,})"
)
_REMEDY = "a script's env takes it as ${env:NAME}, and the command reads it from its environment"


def may_be_secret(path: Keys, text: str = "") -> bool:
    """Whether an error must not show a value: its key or its form may be a secret's."""
    return any(_HIDDEN_KEY.search(str(key)) for key in path) or bool(_HIDDEN_VALUE.search(text))


def looks_secret(text: str) -> bool:
    """Whether text has the form of a secret, or asks for one from the environment."""
    return "${env:" in text or bool(_VALUE.search(text))


def check_secrets(root: Node, kinds: Mapping[str, type[Stage]]) -> list[Problem]:
    """`${env:NAME}` where no secret is asked for, and secrets written where they would be stored and logged."""
    found = list(_leaves(root, kinds))
    secret = {path for path, kind, _ in found if kind.secret}
    text = "takes no ${env:NAME}; only a secret does, as env of a script stage"
    problems = [
        Problem(node.place, path, text)
        for path, node in walk(root)
        if node.kind == "scalar" and "${env:" in node.text and path not in secret
    ]
    for path, kind, node in found:
        if not kind.secret and node.kind == "scalar" and "${env:" not in node.text and _written(path, kind, node):
            problems.append(
                Problem(node.place, path, f"looks like a secret, and would be stored and logged; {_REMEDY}")
            )
    return problems


def check_text(source: str, known: list[Problem]) -> list[Problem]:
    """Forms of secrets anywhere else in the file, in comments and keys: it is kept with each run, as it is."""
    lines = {problem.place.line for problem in known if problem.place.override is None}
    found = []
    for number, line in enumerate(source.splitlines(), 1):
        if number not in lines and (match := _VALUE.search(line)):
            text = "looks like a secret, and the file is kept with each run and in MLflow; take it out"
            found.append(Problem(Place(number, match.start() + 1), (), text))
    return found


def _leaves(root: Node, kinds: Mapping[str, type[Stage]]) -> Iterator[tuple[Keys, Any, Node]]:
    for name, cls in kinds.items():
        node = find(root, ("stages", name))
        if node is not None:
            yield from leaves(type_of(cls), node, ("stages", name))
    for name in ("name", "description"):
        if (node := find(root, (name,))) is not None:
            yield (name,), type_of(str), node


def _written(path: Keys, kind: Any, node: Node) -> bool:
    """Known forms of secrets in any text; by its key only in a free map, where nothing says what it is."""
    if _VALUE.search(node.text):
        return kind.base in (str, Any)
    if isinstance(node.value, bool) or node.value is None:
        return False
    return kind.base is Any and bool(node.text) and isinstance(path[-1], str) and bool(_KEY.search(path[-1]))
