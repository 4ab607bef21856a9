"""A whole pipeline that tests break in one place at a time, and what loading it says."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from finery.errors import InputError
from finery.load import Loaded, load


@pytest.fixture
def line() -> str:
    """A pipeline with a stage of most kinds; it needs a model's folder at ./base."""
    return (Path(__file__).parent / "line.finery.yaml").read_text()


@pytest.fixture
def change(line: str) -> Callable[[str, str], str]:
    """The line with one piece of text replaced."""

    def _change(old: str, new: str) -> str:
        assert line.count(old) == 1, old
        return line.replace(old, new)

    return _change


@pytest.fixture
def script() -> Callable[[str], str]:
    """A pipeline of one script stage, with a line of its own at 6:5."""
    return lambda extra: f'name: s\nstages:\n  a:\n    kind: script\n    command: ["true"]\n    {extra}\n'


@pytest.fixture
def write(tmp_path: Path) -> Callable[[str], Path]:
    """Write x.yaml beside a model's folder ./base."""

    def _write(text: str) -> Path:
        (tmp_path / "base").mkdir(exist_ok=True)
        (tmp_path / "base" / "config.json").write_text("{}")
        file = tmp_path / "x.yaml"
        file.write_bytes(text.encode())
        return file

    return _write


@pytest.fixture
def good(write: Callable[[str], Path]) -> Callable[..., Loaded]:
    """Load a text that is a pipeline."""
    return lambda text, *sets: load(write(text), sets)


@pytest.fixture
def bad(write: Callable[[str], Path]) -> Callable[..., list[str]]:
    """The errors of a text that is none, each without its file: `line:column path: text`."""

    def _bad(text: str, *sets: str) -> list[str]:
        file = write(text)
        with pytest.raises(InputError) as caught:
            load(file, sets)
        assert caught.value.exit_code == 2
        return [told.removeprefix(f"{file}:") for told in str(caught.value).splitlines()]

    return _bad
