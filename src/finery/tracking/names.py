"""Names and parameters as MLflow takes them; pure, and no mlflow."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import unquote

from finery.errors import InputError

MAX_NAME = 250
"""Characters of a metric's or parameter's name; mlflow.utils.validation.MAX_ENTITY_KEY_LENGTH."""
MAX_VALUE = 6000
"""Characters of a parameter's value; mlflow.utils.validation.MAX_PARAM_VAL_LENGTH, cut without an error beyond it."""

_FOREIGN = re.compile(r"[^/\w.\- :]")
_LOOKS_ESCAPED = re.compile(r"_(?=x[0-9a-f]{2,6}_)")
_PASS_AT = re.compile(r"(?<=[A-Za-z])@(?=\d)")


def mlflow_name(name: str) -> str:
    """A metric's or parameter's name in MLflow: TRL's words stay; `pass@1` is `pass_at_1`.

    Any other character that MLflow refuses becomes `_xHH_`, its code point in hex; so does a `/` or `.` that would
    make another path of the name (`a//b`, `../a`), and the `_` before what looks like an escape already. But for the
    rule for `@`, no two names become one. Longer than 250 characters: its beginning and a hash of the whole.
    """
    name = _LOOKS_ESCAPED.sub(_hex, _PASS_AT.sub("_at_", name))
    return _fit(_one_path(_FOREIGN.sub(_hex, name)))


def spelled_out(name: str) -> str:
    """The name under which `name` goes when `mlflow_name(name)` is taken: every `_` is written `_x5f_` too."""
    return _fit(_one_path(re.sub(r"_|[^/\w.\- :]", _hex, name)))


def _one_path(name: str) -> str:
    """Escape the slashes and dots by which MLflow would take the name for another path."""
    name = re.sub(r"^/|(?<=/)/|/$", _hex, name)
    parts = [re.sub(r"\.", _hex, part) if part in (".", "..") else part for part in name.split("/")]
    return "/".join(parts) or "_x_"


def _hex(match: re.Match[str]) -> str:
    return f"_x{ord(match[0]):02x}_"


def _fit(name: str) -> str:
    if len(name) <= MAX_NAME:
        return name
    return f"{name[: MAX_NAME - 20]}_x_{hashlib.sha256(name.encode()).hexdigest()[:16]}"


class Names:
    """The names of one run: each is written the same way every time, and no two are written alike."""

    def __init__(self) -> None:
        self._written: dict[str, str] = {}
        self._taken: dict[str, str] = {}

    def write(self, name: str) -> tuple[str, str | None]:
        """MLflow's name for `name`, and what is wrong with it when another name already goes by that."""
        if name in self._written:
            return self._written[name], None
        written, trouble = mlflow_name(name), None
        if written in self._taken:
            other = self._taken[written]
            apart = spelled_out(name)
            trouble = f"{other!r} and {name!r} are both {written!r} in MLflow; {name!r} goes by {apart!r}; rename one"
            written = apart
        self._written[name] = written
        self._taken[written] = name
        return written, trouble


def flatten(params: Mapping[str, Any]) -> tuple[dict[str, str], list[str]]:
    """Nested parameters under dotted names; a list of mappings gets indices, any other list is one JSON value.

    Text stays as it is; everything else is JSON (`true`, `null`, `0.0002`). Beside the parameters: what is wrong with
    their names.
    """
    names, flat, troubles = Names(), {}, []
    for name, value in _flat("", params):
        written, trouble = names.write(name)
        if written in flat:  # {"a.b": 1, "a": {"b": 2}}
            trouble = f"{name!r} is there twice; one goes by {written + '_x_'!r}"
            written += "_x_"
        flat[written] = value
        troubles += [trouble] if trouble else []
    return flat, troubles


def _flat(prefix: str, value: Any) -> Iterator[tuple[str, str]]:
    if isinstance(value, Mapping) and value:
        for key, item in value.items():
            yield from _flat(f"{prefix}.{key}" if prefix else str(key), item)
    elif isinstance(value, list | tuple) and any(isinstance(item, Mapping) for item in value):
        for index, item in enumerate(value):
            yield from _flat(f"{prefix}.{index}" if prefix else str(index), item)
    elif isinstance(value, str):
        yield prefix, value
    elif prefix:
        yield prefix, json.dumps(value, ensure_ascii=False)


def shortened(name: str, value: str) -> tuple[str, str | None]:
    """The value as a parameter may hold it, and, when it is too long, the artifact that holds it whole."""
    if len(value) <= MAX_VALUE:
        return value, None
    place = f"params/{name}.txt"
    tail = f" ... sha256 {hashlib.sha256(value.encode()).hexdigest()}, whole in {place}"
    return value[: MAX_VALUE - len(tail)] + tail, place


def chunks(items: Sequence[Any], sizes: Sequence[int], *, count: int, size: int) -> Iterator[list[Any]]:
    """`items` in order, in pieces of at most `count` items and `size` of their `sizes` together (one item at least)."""
    piece: list[Any] = []
    weight = 0
    for item, its in zip(items, sizes, strict=True):
        if piece and (len(piece) == count or weight + its > size):
            yield piece
            piece, weight = [], 0
        piece.append(item)
        weight += its
    if piece:
        yield piece


def check_artifact_path(path: str) -> str:
    """`path` if it names a place inside a run's artifact folder however often it is unquoted.

    Raises:
        InputError: it is absolute, climbs with `..`, has an empty part, a backslash or a control character.
    """
    decoded, before = path, ""
    while decoded != before:
        parts = decoded.split("/")
        if any(part in ("", ".", "..") for part in parts) or "\\" in decoded or any(ord(c) < 32 for c in decoded):
            raise InputError(
                f"artifact {path!r}: not a name inside the run; write relative parts joined by /, without .., "
                "backslashes or control characters, quoted or not"
            )
        before, decoded = decoded, unquote(decoded)
    return path
