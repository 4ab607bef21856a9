"""Fill the field tables of the documentation from the schemas: `python docs/generate.py`.

Between `<!-- fields -->` and `<!-- /fields -->` of docs/stages/<kind>.md stand the fields of that kind, of
docs/rewards.md those of every reward; between `<!-- fields NAME -->` and `<!-- /fields -->` of any page those of the
model NAME (Pipeline, Stage). A test holds them equal.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from finery.language.documentation import field_doc
from finery.language.fields import Type, fields, type_of, words
from finery.schemas.base import Stage
from finery.schemas.gate import GateStage
from finery.schemas.pipeline import Pipeline
from finery.schemas.stage import KINDS

DOCS = Path(__file__).parent
_BLOCK = re.compile(r"(<!-- fields(?: (\w+))? -->\n).*?(<!-- /fields -->)", re.DOTALL)
_NAMED: dict[str, type[BaseModel]] = {"Pipeline": Pipeline, "Stage": Stage}


def render(text: str, kind: str) -> str:
    """A page with its tables made anew; `kind` is what a bare `<!-- fields -->` means."""

    def block(match: re.Match[str]) -> str:
        if kind == "rewards" and not match[2]:
            made = "\n".join(_tables({"rewards": fields(GateStage)["rewards"]}, everywhere=True))
        else:
            made = table(_NAMED[match[2]] if match[2] else KINDS[kind])
        return f"{match[1]}\n{made}\n{match[3]}"

    return _BLOCK.sub(block, text)


def table(model: type[BaseModel]) -> str:
    """The fields of a model, then those of the maps it holds, each once."""
    own = {name: info for name, info in fields(model).items() if name != "kind" and not _common(model, name)}
    parts = [_rows(model, own)]
    if issubclass(model, Stage) and model is not Stage:
        names = ", ".join(f"`{name}`" for name in fields(Stage))
        if "rewards" in own:
            parts.append("The entries of `rewards` are described in [rewards](../rewards.md).\n")
        parts.append(f"Every stage also takes {names}: see [the language](../language.md#every-stage).\n")
    return "\n".join([*parts, *_tables(own)])


def _tables(own: dict[str, FieldInfo], *, everywhere: bool = False) -> Iterator[str]:
    """A table for each map below some fields; rewards have a page of their own."""
    for title, nested in _nested(own):
        if "rewards[]`" in title and not everywhere:
            continue
        inner = {name: info for name, info in fields(nested).items() if name != "kind"}
        yield f"{title}\n\n{_rows(nested, inner)}" if inner else f"{title}\n"


def _common(model: type[BaseModel], name: str) -> bool:
    return model is not Stage and issubclass(model, Stage) and name in fields(Stage)


def _nested(own: dict[str, FieldInfo], prefix: str = "") -> Iterator[tuple[str, type[BaseModel]]]:
    """Each map that stands below fields, with a line that says which it is."""
    for name, info in own.items():
        kind = type_of(info.annotation, tuple(info.metadata), info.discriminator)
        path, kind = _element(kind, f"{prefix}{name}")
        if path == "stages.NAME":
            continue
        for member in kind.members():
            if member.model is None:
                continue
            inner = fields(member.model)
            about = (field_doc(member.model, "kind") or "").strip() if kind.tag else ""
            tag = f" with `kind: {_tag(member.model)}`" if kind.tag else ""
            yield f"**`{path}`**{tag}{': ' + _line(about) if about else ''}", member.model
            yield from _nested({key: value for key, value in inner.items() if key != "kind"}, f"{path}.")


def _element(kind: Type, path: str) -> tuple[str, Type]:
    """What a list or a map of names holds."""
    if kind.base is list:
        return f"{path}[]", type_of(kind.args[0])
    if kind.base is dict:
        return f"{path}.NAME", type_of(kind.args[1])
    return path, kind


def _tag(model: type[BaseModel]) -> str:
    return str(type_of(fields(model)["kind"].annotation).args[0])


def _rows(model: type[BaseModel], own: dict[str, FieldInfo]) -> str:
    lines = ["| key | takes | default | meaning |", "|---|---|---|---|"]
    for name, info in own.items():
        kind = type_of(info.annotation, tuple(info.metadata), info.discriminator)
        takes = _line(words(kind)).replace("{", "`{").replace("}", "}`")
        lines.append(f"| `{name}` | {takes} | {_default(info)} | {_line(field_doc(model, name) or '')} |")
    return "\n".join(lines) + "\n"


def _default(info: FieldInfo) -> str:
    if info.is_required():
        return "required"
    value: Any = info.get_default(call_default_factory=True)
    if value is None or isinstance(value, BaseModel):
        return ""
    text = value if isinstance(value, str) and value else json.dumps(value, ensure_ascii=False)
    return f"`{text}`"


def _line(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def pages() -> dict[Path, str]:
    """Every page that may hold tables, with what it is about."""
    kinds: dict[Path, str] = {path: path.stem for path in sorted((DOCS / "stages").glob("*.md")) if path.stem in KINDS}
    return kinds | {path: path.stem for path in sorted(DOCS.glob("*.md"))}


def main() -> None:
    for path, kind in pages().items():
        before = path.read_text(encoding="utf-8")
        after = render(before, kind)
        if after != before:
            path.write_text(after, encoding="utf-8")
            sys.stdout.write(f"{path}\n")


if __name__ == "__main__":
    main()
