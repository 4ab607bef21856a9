"""Hub data sets through a hub cache on disk, as huggingface_hub lays it out; no network."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from finery.errors import InputError
from finery.schemas.data import HubSource

pytest.importorskip("datasets")
COMMIT = "0123456789abcdef0123456789abcdef01234567"
ROWS = [{"prompt": f"00{i}", "completion": "2024-01-02", "extra": "x"} for i in range(3)]
LINES = "".join(json.dumps(row) + "\n" for row in ROWS)
CARD = """---
configs:
- config_name: main
  data_files:
  - split: train
    path: main/train.csv
- config_name: other
  data_files:
  - split: test
    path: other/*.jsonl
---
About it.
"""


@pytest.fixture
def hub(tmp_path: Path) -> Callable[..., Path]:
    """Lay files of `org/name` into a hub cache under a commit that the tag v1 names."""

    def hub_(files: dict[str, str]) -> Path:
        repo = tmp_path / "hub/datasets--org--name"
        (repo / "refs").mkdir(parents=True)
        (repo / "refs/v1").write_text(COMMIT)
        for name, text in files.items():
            path = repo / "snapshots" / COMMIT / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return tmp_path / "hub"

    return hub_


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub.constants

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)


def read(cache: Path, **more: Any) -> Any:
    from finery.data.sources.hub import read_hub

    source = HubSource.model_validate({"kind": "hub", "name": "org/name", "revision": "v1", **more})
    return read_hub(source, where="sources.0", work=cache.parent / "work", cache=cache)


def test_a_split_is_read_at_its_revision_and_text_stays_text(hub: Callable[..., Path]) -> None:
    reading = read(hub({"train.csv": "prompt,completion\n007,2024-01-02\n", "test.csv": "prompt,completion\nc,d\n"}))
    (record,) = reading.records
    assert record.value == {"prompt": "007", "completion": "2024-01-02"}
    assert record.place == "org/name/train.csv:2"
    assert (reading.facts["commit"], reading.facts["revision"]) == (COMMIT, "v1")
    assert reading.facts["files"][0]["file"] == "org/name/train.csv"


def test_configurations_and_splits_are_those_of_the_card(hub: Callable[..., Path]) -> None:
    cache = hub({"README.md": CARD, "main/train.csv": "prompt,completion\na,b\n", "other/one.jsonl": LINES})
    assert len(list(read(cache, config="main").records)) == 1
    assert [record.value for record in read(cache, config="other", split="test").records] == ROWS
    with pytest.raises(InputError, match=r"sources\.0\.split: org/name has no split train; it has test"):
        read(cache, config="other")
    with pytest.raises(InputError, match="BuilderConfig 'third' not found"):
        read(cache, config="third")


def test_a_script_is_refused_and_never_run(hub: Callable[..., Path], tmp_path: Path) -> None:
    canary = tmp_path / "canary"
    cache = hub({"name.py": f"open({str(canary)!r}, 'w')", "train.csv": "prompt,completion\na,b\n"})
    with pytest.raises(InputError, match=r"made by a script, name\.py, and finery runs none"):
        read(cache)
    assert not canary.exists()


def test_what_is_not_in_the_cache_is_an_error_not_another_revision(hub: Callable[..., Path]) -> None:
    cache = hub({"train.csv": "prompt,completion\na,b\n"})
    with pytest.raises(InputError, match="org/name at v2 cannot be had"):
        read(cache, revision="v2")
    with pytest.raises(InputError, match="name is not a hub data set; write org/name"):
        read(cache, name="name")
