"""The documentation is held to the schemas, and every kind is whole: schema, stage, page, union."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest

from finery.language.nodes import parse
from finery.load import load
from finery.schemas.base import module_name
from finery.schemas.stage import KINDS

ROOT = Path(__file__).parent.parent.parent
SHARED = {"__init__", "base", "clean", "launch", "pipeline", "reference", "rewards", "stage", "training"}


@pytest.fixture(scope="module")
def generate() -> ModuleType:
    spec = importlib.util.spec_from_file_location("docs_generate", ROOT / "docs" / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_field_tables_are_those_of_the_schemas(generate):
    stale = [
        str(path)
        for path, kind in generate.pages().items()
        if generate.render(path.read_text(), kind) != path.read_text()
    ]
    assert stale == [], "run python docs/generate.py"


def test_a_table_names_every_field_with_what_it_takes(generate):
    page = generate.render("<!-- fields -->\n<!-- /fields -->\n", "gate")
    assert "| `min_gap` | a number (above 0, below 1) | `0.2` | The gap pass@k - pass@1 that RL needs" in page
    assert "| `model` | a reference | required | The model that would be trained. |" in page
    assert "**`rewards[]`**" not in page
    rewards = generate.render("<!-- fields -->\n<!-- /fields -->\n", "rewards")
    assert "**`rewards[]`** with `kind: answer`: 1.0 when the completion's final answer" in rewards
    assert "**`sampling`**\n\n| key |" in page
    assert page == generate.render(page, "gate")


def test_every_kind_has_a_schema_a_stage_and_a_page():
    modules = {module_name(kind) for kind in KINDS}
    assert {path.stem for path in (ROOT / "schemas").glob("*.py")} - SHARED == modules
    assert {path.stem for path in (ROOT / "stages").glob("*.py")} - {"__init__"} == modules
    assert {path.stem for path in (ROOT / "docs" / "stages").glob("*.md")} == set(KINDS)


@pytest.mark.parametrize("kind", list(KINDS))
def test_a_page_shows_an_example_that_is_yaml_and_of_its_kind(kind):
    page = (ROOT / "docs" / "stages" / f"{kind}.md").read_text()
    assert "<!-- fields -->" in page
    examples = [parse(text) for text in re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)]
    assert all(root is not None and not problems for root, problems in examples)
    assert re.search(rf"kind: {kind}\b", page)


def test_the_pipeline_of_the_language_page_is_one(tmp_path):
    page = (ROOT / "docs" / "language.md").read_text()
    found = re.search(r"```yaml\n(name: .*?)```", page, re.DOTALL)
    assert found is not None
    (tmp_path / "base").mkdir()
    (tmp_path / "base" / "config.json").write_text("{}")
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "a.jsonl").write_text("")
    (tmp_path / "x.yaml").write_text(found[1])
    assert load(tmp_path / "x.yaml").warnings == []
