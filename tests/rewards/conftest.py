from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pydantic import TypeAdapter

from finery.rewards import RewardSet, Scores, build
from finery.schemas.rewards import Rewards


@pytest.fixture
def cases() -> Path:
    return Path(__file__).parents[1] / "cases"


@pytest.fixture
def rewards(tmp_path: Path) -> Callable[..., RewardSet]:
    """A RewardSet from the list a YAML would hold; files are taken from tmp_path."""

    def rewards_(*items: dict[str, Any]) -> RewardSet:
        parsed = TypeAdapter(Rewards).validate_python(list(items))
        inputs = {f"rewards.{i}.file": tmp_path / item["file"] for i, item in enumerate(items) if "file" in item}
        return build(parsed, inputs)

    return rewards_


@pytest.fixture
def score(rewards: Callable[..., RewardSet]) -> Callable[..., Scores]:
    """Score completions of (answer, completion) pairs with one reward."""

    def score_(reward: dict[str, Any], pairs: list[tuple[str | None, str]], truncated: bool = False) -> Scores:
        rows = [{"id": f"r{i}", "prompt": "p", "answer": gold} for i, (gold, _) in enumerate(pairs)]
        texts = [text for _, text in pairs]
        return rewards(reward).score(rows, texts, [[1]] * len(pairs), [truncated] * len(pairs))

    return score_
