"""The documentation of a field: the docstring under it, read from the schema's source only when it is shown.

pydantic can take these docstrings itself (`use_attribute_docstrings`), at import, for a third of the time that the
schemas take to load; `validate` and `plan` need none of them.
"""

from __future__ import annotations

import ast
import inspect
import sys
from functools import cache

from pydantic import BaseModel


def field_doc(model: type[BaseModel], field: str) -> str | None:
    """The documentation of a field, by its name or its alias; None for one that has none."""
    names = {info.alias or name: name for name, info in model.model_fields.items()}
    for owner in model.__mro__:
        found = _docs(owner.__module__).get(owner.__name__, {}) if owner.__module__.startswith("finery.") else {}
        if text := found.get(names.get(field, field)):
            return text
    return None


@cache
def _docs(module: str) -> dict[str, dict[str, str]]:
    """Class to field to docstring, for one module."""
    found: dict[str, dict[str, str]] = {}
    for node in ast.parse(inspect.getsource(sys.modules[module])).body:
        if isinstance(node, ast.ClassDef):
            own = found[node.name] = {}
            for line, after in zip(node.body, node.body[1:], strict=False):
                if (
                    isinstance(line, ast.AnnAssign)
                    and isinstance(line.target, ast.Name)
                    and isinstance(after, ast.Expr)
                    and isinstance(after.value, ast.Constant)
                    and isinstance(after.value.value, str)
                ):
                    own[line.target.id] = inspect.cleandoc(after.value.value)
    return found
