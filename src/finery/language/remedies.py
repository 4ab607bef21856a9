"""A value that does not fit: what it must be, what it is, and what to write instead."""

from __future__ import annotations

import math
import re
from typing import Union

from finery.language.fields import Type, fields, type_of, words
from finery.language.nodes import Node
from finery.language.problems import Keys, cut
from finery.language.secrets import may_be_secret

_TRUTH = {"no": "false", "off": "false", "n": "false", "yes": "true", "on": "true", "y": "true"}
_PERCENT = re.compile(r"([0-9]+(?:\.[0-9]+)?)%")


def show(node: Node, path: Keys, kind: Type | None = None) -> str | None:
    """A value as it is written, or None when it may be a secret."""
    if (kind and kind.secret) or may_be_secret(path, node.text):
        return None
    if node.kind != "scalar":
        return f"a {node.kind}"
    text = cut(node.text)
    return f'"{text}"' if node.quoted else text or "nothing"


def quote(kind: Type, node: Node, path: Keys) -> str:
    said = show(node, path, kind)
    return f"{said} " if said else ""


def mismatch(kind: Type, node: Node, path: Keys) -> str:
    """`must be X, not Y`, with the remedy when it is plain."""
    takes, said = words(kind), show(node, path, kind)
    if node.kind == "scalar" and node.value is None:
        return f"is empty; it must be {takes}"
    if kind.secret and node.kind == "scalar":
        return "a secret is never written down here; write ${env:NAME} and set NAME where finery runs"
    text = f"must be {takes}"
    if said is None:
        return text
    if node.kind != "scalar" or kind.base in (list, dict) or kind.model or kind.tag:
        return f"{text}, not {said}{_shape_remedy(kind, node, path)}"
    return f"{text}{_remedy(kind, node, said)}"


def _shape_remedy(kind: Type, node: Node, path: Keys) -> str:
    """What to write instead of a value of the wrong shape."""
    if kind.base is list and node.kind == "scalar":
        return f": write [{_tagged(type_of(kind.args[0]), node) or show(node, path)}]"
    if kind.base is dict and node.kind == "list" and path == ("stages",):
        return "; name each stage by its key: train: {kind: sft, ...}"
    if tagged := _tagged(kind, node):
        return f": write {tagged}"
    if kind.model and node.kind == "scalar" and path[:1] == ("stages",):
        return f"; it takes {', '.join(list(fields(kind.model))[:6])}"
    return ""


def _tagged(kind: Type, node: Node) -> str | None:
    """`{kind: answer}` for the bare word `answer`."""
    if kind.base is Union and kind.tag and node.kind == "scalar" and node.value in kind.tagged():
        return f"{{{kind.tag}: {node.value}}}"
    return None


def _remedy(kind: Type, node: Node, said: str) -> str:
    """What to write instead of a scalar of the wrong type."""
    value, text = node.value, node.text
    bases = [member.base for member in kind.members()]
    if int in bases or float in bases:
        return _number_remedy(node, said, whole=float not in bases)
    if bases == [str] and not kind.ref and not isinstance(value, str):
        return f'; quote it: "{text}"'
    if bases == [bool] and isinstance(value, str):
        meant = _TRUTH.get(text.lower()) or (text.lower() if text.lower() in ("true", "false") else None)
        return f"; {said} is text" + (f": write {meant}" if meant else "")
    return f", not {said}"


def _number_remedy(node: Node, said: str, *, whole: bool) -> str:
    value = node.value
    if isinstance(value, float):
        if not math.isfinite(value):
            return f", and finite; {said} is not"
        if whole and value.is_integer():
            is_so = "" if node.text == repr(float(value)) else f" {said} is {float(value)!r}:"
            return f";{is_so} write {int(value)}"
    if not isinstance(value, str):
        return f", not {said}"
    if match := _PERCENT.fullmatch(node.text):
        return f"; {said} is text: write {float(match[1]) / 100:g}"
    digits = node.text.replace("_", "").replace(",", "").strip()
    if re.fullmatch(r"[-+]?[0-9]{1,40}", digits):
        return f"; {said} is text: write {int(digits)}" + (", without quotes" if node.quoted else "")
    if node.quoted and re.fullmatch(r"[-+]?[0-9]*\.?[0-9]+([eE][-+]?[0-9]+)?", digits):
        return f"; {said} is text: write {digits}, without quotes"
    return f"; {said} is text"
