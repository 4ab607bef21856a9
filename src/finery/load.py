"""Load and validate a pipeline file; the parts are in `finery.language`."""

from __future__ import annotations

from finery.language.load import Loaded, find_project, json_schema, load

__all__ = ["Loaded", "find_project", "json_schema", "load"]
