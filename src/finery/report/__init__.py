"""The report of a run: one HTML file that holds all it shows and asks nothing of the network."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from finery.load import Loaded
    from finery.store import Store

_HERE = Path(__file__).parent


def write_report(run_dir: Path, loaded: Loaded, store: Store) -> Path:
    """Write `report.html` into the run's folder, whole or not at all, from its summary.json and the store.

    Raises:
        FileNotFoundError: the run has no summary.json yet.
    """
    target = run_dir / "report.html"
    temporary = run_dir / f".report.{os.getpid()}.tmp"
    temporary.write_text(render(run_dir, loaded, store), encoding="utf-8")
    os.replace(temporary, target)
    return target


def render(run_dir: Path, loaded: Loaded, store: Store) -> str:
    """The report as HTML text; every value from outside is escaped."""
    import jinja2

    from finery.report.page import FILTERS, page
    from finery.report.svg import Markup

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_HERE),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(FILTERS)
    style = Markup((_HERE / "report.css").read_text(encoding="utf-8"))
    return environment.get_template("report.html").render(style=style, **page(run_dir, loaded, store))


__all__ = ["render", "write_report"]
