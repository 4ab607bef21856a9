"""The pipelines that the README and the language page show are pipelines."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from finery.load import load

ROOT = Path(__file__).resolve().parent.parent.parent


def shown() -> list:
    found = []
    for page in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))):
        blocks = re.findall(r"```yaml\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)
        found += [
            pytest.param(block, id=f"{page.name}-{i}")
            for i, block in enumerate(blocks)
            if re.search(r"^stages:", block, re.MULTILINE)
        ]
    return found


def test_there_are_some():
    assert len(shown()) >= 2


@pytest.mark.parametrize("block", shown())
def test_a_shown_pipeline_is_valid_where_its_files_are(block, tmp_path):
    for path in set(re.findall(r"(?:path|file|from|python|chat_template): (\.{1,2}/[\w./*-]+)", block)):
        place = tmp_path / path.replace("*", "x")
        place.parent.mkdir(parents=True, exist_ok=True)
        if place.suffix:
            place.touch()
        else:  # a model's folder
            place.mkdir(exist_ok=True)
            (place / "config.json").touch()
    (tmp_path / "pipeline.yaml").write_text(block, encoding="utf-8")
    assert load(tmp_path / "pipeline.yaml").order
