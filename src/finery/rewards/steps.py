"""The `steps` reward: how many of the solution's equations does the completion show right?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from finery.errors import InputError
from finery.rewards.arithmetic import Equation, equation, equations
from finery.rewards.patterns import ask, checked
from finery.rewards.rewardset import text_of


@dataclass(frozen=True)
class Count:
    """The steps of a completion beside those of its solution, each counted once.

    Attributes:
        gold: true equations of the solution.
        right: how many of these the completion shows, true as well.
        wrong: false equations of the completion that are not the solution's own.
        shown: all equations of the completion.
    """

    gold: int
    right: int
    wrong: int
    shown: int

    @property
    def score(self) -> float | None:
        """max(0, right - wrong) / max(gold, shown); None when the solution has no step."""
        return max(0, self.right - self.wrong) / max(self.gold, self.shown) if self.gold else None


class StepsFunction:
    """From 0 to 1 for each completion; None where the row's solution has no step. A truncated one has 0.

    With the G distinct true equations of the solution, and of the completion's N distinct equations R that are among
    them and true, and W that are false, the score is max(0, R - W) / max(G, N). Equations are judged by exact
    arithmetic and are the same when the numbers on the left and the value of the right are: 8+17=25 is 17+8=25.

    Repeating a step adds nothing; a step that the solution has not (`1+0=1`, a table of sums) adds to N alone, and a
    false one to N and W, so none of them pays. For `17+8=25, 25-3=22, 22*2=44` a completion `17+8=25, 25-3=22,
    22*2=45, 1+1=2` has G 3, N 4, R 2, W 1: (2 - 1) / 4 = 0.25.

    Args:
        pattern: a regular expression with the groups left and right; by default an equation of numbers.
        field: how an error calls it.

    Raises:
        InputError: the pattern is not a regular expression, or lacks a group.
    """

    column = "completion"

    def __init__(self, pattern: str | None, field: str = "pattern") -> None:
        if pattern is not None and {"left", "right"} - set(checked(pattern, field).groupindex):
            raise InputError(f"{field}: needs the groups (?P<left>...) and (?P<right>...)")
        self.pattern = pattern

    def __call__(
        self,
        completions: list[Any],
        solution: list[Any] | None = None,
        meta: list[Any] | None = None,
        answer: list[str | None] | None = None,
        truncated: list[bool] | None = None,
        **_: Any,
    ) -> list[float | None]:
        count = len(completions)
        columns = [column if column is not None else [None] * count for column in (solution, meta, answer)]
        cut = truncated or [False] * count
        scores = []
        for completion, *row, short in zip(completions, *columns, cut, strict=True):
            counted = self.count("" if short else text_of(completion), _solution(*row))
            scores.append(counted.score)
        return scores

    def count(self, text: str, solution: str) -> Count:
        """The steps of a text and of a solution."""
        gold = self._steps(solution)
        right = {step.key for step in gold if step.true}
        shown = {(step.key, step.true) for step in self._steps(text)}
        own = {step.key for step in gold if not step.true}
        return Count(
            gold=len(right),
            right=sum(true and key in right for key, true in shown),
            wrong=sum(not true and key not in own for key, true in shown),
            shown=len(shown),
        )

    def check(self, row: Mapping[str, Any]) -> str | None:
        """Why no completion can be judged by this row's solution, or None."""
        solution = _solution(row.get("completion"), row.get("meta"), row.get("answer"))
        if self.count("", solution).gold:
            return None
        return "has no step that is right, nor has meta.steps or answer" if solution else "is missing, as is meta.steps"

    def explain(self, row: Mapping[str, Any], completion: str, completion_ids: list[int], truncated: bool) -> str:
        """The steps counted, and the first wrong one."""
        counted = self.count(completion, _solution(row.get("completion"), row.get("meta"), row.get("answer")))
        if not counted.gold:
            return "abstains: the row's solution has no step"
        if truncated:
            return "truncated"
        false = next((f" ({step.text[:60]})" for step in self._steps(completion) if not step.true), "")
        return f"{counted.right} of {counted.gold} steps right, {counted.wrong} wrong{false}, {counted.shown} shown"

    def _steps(self, text: str) -> Sequence[Equation]:
        if self.pattern is None:
            return equations(text)
        found = ask("steps", pattern=self.pattern, text=text) or []
        return [step for left, right in found if (step := equation(left, right)) is not None]


def _solution(completion: Any, meta: Any, answer: Any) -> str:
    """The row's worked solution: its completion, else `steps` of its meta (text or a list), else its answer."""
    if completion:
        return text_of(completion)
    steps = meta.get("steps") if isinstance(meta, Mapping) else None
    if isinstance(steps, list):
        return "\n".join(map(str, steps))
    return str(steps or answer or "")
