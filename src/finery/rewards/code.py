"""The `code_tests` reward: does the completion's Python pass the row's tests?"""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from typing import Any

from finery.errors import StageError
from finery.rewards.rewardset import text_of
from finery.rewards.sandbox import forms
from finery.rewards.sandbox.pool import Sandbox, Verdict
from finery.rewards.sandbox.testcode import Unfit
from finery.schemas.rewards import CodeTestsReward


class CodeTestsFunction:
    """1.0 or 0.0 for each completion; None where the row has no tests or they can never judge, whatever the completion.

    Args:
        reward: its limits.
        python: the interpreter that runs the code; this one by default.
        without: mechanisms of confinement to do without; for tests.
    """

    def __init__(self, reward: CodeTestsReward, python: str | None = None, without: Sequence[str] = ()) -> None:
        self.reward = reward
        self._sandbox = Sandbox(
            seconds=reward.timeout,
            memory_mb=reward.memory_mb,
            full=reward.confinement == "full",
            workers=reward.workers,
            python=python,
            without=without,
        )

    def __call__(
        self,
        completions: list[Any],
        tests: list[Any] | None = None,
        truncated: list[bool] | None = None,
        **_: Any,
    ) -> list[float | None]:
        """The scores of N completions, `workers` at a time.

        Raises:
            StageError: there is no column `tests`, or the sandbox does not work; that is never a score of 0.
        """
        if tests is None:
            raise StageError("the reward code_tests needs rows with `tests`; these have none")
        cut = truncated or [False] * len(completions)
        texts = [text_of(completion) for completion in completions]
        if self.reward.workers == 1:
            verdicts = [self.judge(*one) for one in zip(texts, tests, cut, strict=True)]
        else:
            with ThreadPoolExecutor(self.reward.workers) as threads:
                verdicts = list(threads.map(self.judge, texts, tests, cut))
        return [verdict.score for verdict in verdicts]

    def judge(self, text: str, tests: Any, truncated: bool = False) -> Verdict:
        """The verdict on one completion; a truncated one is not run, as its end is not there."""
        if tests is None:
            return Verdict(None, "the row has no tests", 0.0)
        read = _read(json.dumps(tests, sort_keys=True))
        if isinstance(read, str):
            return Verdict(None, f"tests {read}", 0.0)
        if truncated:
            return Verdict(0.0, "the completion was cut off at its length limit", 0.0)
        spent = 0.0
        for place in range(len(read.jobs)):
            left = self.reward.timeout - spent
            verdict = (
                self._sandbox.check(read.job(place, text, self.reward.extract, left))
                if left > 0
                else Verdict(0.0, f"time is up after {spent:.3g} s", 0.0)
            )
            spent += verdict.seconds
            if verdict.score != 1.0:
                label = f"case {place + 1} of {len(read.jobs)}: " if len(read.jobs) > 1 else ""
                return Verdict(verdict.score, f"{label}{verdict.why}", spent)
        return Verdict(1.0, "passed", spent)

    def close(self) -> None:
        """End the processes that wait for checks; the next check starts them again."""
        self._sandbox.close()

    def check(self, row: Mapping[str, Any]) -> str | None:
        """Why the row's tests can never judge, or None."""
        if row.get("tests") is None:
            return "is missing or null; code_tests needs it"
        read = _read(json.dumps(row["tests"], sort_keys=True))
        return read if isinstance(read, str) else None

    def explain(
        self, row: Mapping[str, Any], completion: str, completion_ids: list[int] | None = None, truncated: bool = False
    ) -> str:
        """Why the completion scores as it does: the assert that fails with its values, an exception, a limit."""
        return self.judge(completion, row.get("tests"), truncated).why


_PARSING = threading.Lock()
"""Python 3.11 miscounts its recursion when two threads parse and a collection runs between (a SystemError was seen)."""


@lru_cache(maxsize=64)
def _read(tests: str) -> forms.Tests | str:
    """The tests of a row, or why they can never judge; kept for the samples of one prompt, as inputs may be large."""
    with _PARSING:
        try:
            return forms.read(json.loads(tests))
        except Unfit as error:
            return str(error)
