"""`kind: python` rewards must name a function that their file holds; the file is read, never run."""

from __future__ import annotations

import ast
import os
from collections.abc import Iterator
from typing import Any

from pydantic import BaseModel

from finery.language.check import Stages
from finery.language.nodes import find
from finery.language.problems import Keys, Problem, cut, hint
from finery.schemas.rewards import PythonReward

_DYNAMIC = {"globals", "exec", "setattr", "__getattr__"}
"""What can make a name that the text of a file does not show."""


def check_functions(stages: Stages) -> list[Problem]:
    """A problem for each python reward whose file is not Python or does not hold its function."""
    problems = []
    for name, config in stages.configs.items():
        for path, reward in _rewards(config, ("stages", name)):
            wrong = _wrong(reward, os.path.join(stages.folder, os.path.expanduser(reward.file)))
            if wrong is not None:
                key, text = wrong
                node = find(stages.root, (*path, key))
                if node is not None:
                    problems.append(Problem(node.place, (*path, key), text))
    return problems


def _rewards(value: Any, path: Keys) -> Iterator[tuple[Keys, PythonReward]]:
    if isinstance(value, PythonReward):
        yield path, value
    elif isinstance(value, BaseModel):
        for name, info in type(value).model_fields.items():
            yield from _rewards(getattr(value, name), (*path, info.alias or name))
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from _rewards(item, (*path, key))
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _rewards(item, (*path, index))


def _wrong(reward: PythonReward, file: str) -> tuple[str, str] | None:
    """The key at fault and what is wrong with it; a file that is not there is told elsewhere."""
    if not os.path.isfile(file):
        return None
    try:
        with open(file, "rb") as opened:
            tree = ast.parse(opened.read())
    except (SyntaxError, ValueError) as error:
        line = f" at line {error.lineno}" if isinstance(error, SyntaxError) and error.lineno else ""
        return "file", f"{cut(reward.file)} is not Python{line}: {getattr(error, 'msg', error)}"
    except OSError as error:
        return "file", f"{cut(reward.file)} cannot be read: {error.strerror}"
    names = _names(tree)
    if names is None or reward.function in names:
        return None
    public = [name for name, callable_ in names.items() if callable_ and not name.startswith("_")]
    there = hint(reward.function, public, listed="it has") or "; it has none"
    return "function", f"{cut(reward.file)} has no function {cut(reward.function)}{there}"


def _names(tree: ast.Module) -> dict[str, bool] | None:
    """What a module binds at its top, and whether it is a function or class there; None when its text cannot tell."""
    names: dict[str, bool] = {}
    ahead: list[ast.AST] = list(tree.body)
    for node in ahead:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names[node.name] = True
            continue
        if isinstance(node, ast.Lambda):
            continue
        if isinstance(node, ast.Import | ast.ImportFrom):
            bound = [(alias.asname or alias.name).split(".")[0] for alias in node.names]
            if "*" in bound:
                return None
            names |= {name: names.get(name, False) for name in bound}
        elif isinstance(node, ast.Name):
            if node.id in _DYNAMIC:
                return None
            if isinstance(node.ctx, ast.Store):
                names.setdefault(node.id, False)
        ahead.extend(ast.iter_child_nodes(node))
    return None if "__getattr__" in names else names
