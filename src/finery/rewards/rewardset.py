"""A list of rewards as one thing: TRL's functions, their weights, and the verifier that says solved or not."""

from __future__ import annotations

import dis
import inspect
import math
import numbers
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from finery.errors import StageError

RewardFunction = Callable[..., list[float | None]]
"""TRL's: `(prompts, completions, completion_ids, **columns)`, here with `truncated` as well."""
PLACES = "finery_places"
"""The argument by which `score` hands its `places` to the functions that `checked` makes; no function is given it."""


class RowError(StageError):
    """A row that a reward cannot judge, whatever its completion says; it stops a stage.

    Attributes:
        column: the row's column at fault.
    """

    def __init__(self, column: str, message: str) -> None:
        super().__init__(message)
        self.column = column


@dataclass(frozen=True)
class Scores:
    """What a list of N completions is worth.

    Attributes:
        per_reward: reward name -> N scores, None where it abstains.
        total: N weighted sums over the rewards that did not abstain; None where all did.
        solved: N times whether the verifier's score reached its threshold; a truncated completion is unsolved, and
            None means that the verifier abstained.
    """

    per_reward: dict[str, list[float | None]]
    total: list[float | None]
    solved: list[bool | None]


@dataclass(frozen=True)
class RewardSet:
    """The rewards of a stage, made by `build`.

    Attributes:
        names: one a reward, distinct; TRL logs `rewards/<name>/mean`.
        functions: TRL's reward functions, `__name__` being the name.
        weights: their shares in the total.
        thresholds: the score from which a reward counts as solved.
        verifier: the index of the one that defines solved.
        judges_row: whether None from a reward means that the row cannot be judged at all (its answer is unreadable).
        judges: what the functions were made of, each perhaps with `check(row) -> str | None`, with the name of the
            column that it looks at in `column`, and `explain(row, completion, completion_ids, truncated) -> str`.
    """

    names: list[str]
    functions: list[RewardFunction]
    weights: list[float]
    thresholds: list[float]
    verifier: int
    judges_row: list[bool] = field(default_factory=list)
    judges: list[Any] = field(default_factory=list)

    def score(
        self,
        rows: Sequence[Mapping[str, Any]],
        completions: Sequence[str],
        completion_ids: Sequence[Sequence[int]],
        truncated: Sequence[bool],
        places: Sequence[str] | None = None,
    ) -> Scores:
        """Score N completions; row i is the data set row that completion i answers, its columns go to every reward.

        A row's own `completion` goes there as `solution`, since TRL's word for what is judged is `completions`.

        Args:
            places: where each row stands, `mine.jsonl:3`, by which errors name it; its id by default.

        Raises:
            RowError: a reward can never judge one of the rows, and abstaining would hide that.
            StageError: a reward raised, or gave something other than N finite numbers or None.
        """
        counts = {len(rows), len(completions), len(completion_ids), len(truncated)}
        if len(counts) != 1:
            raise ValueError(f"rows, completions, completion_ids and truncated differ in length: {sorted(counts)}")
        prompts = [row.get("prompt", row.get("messages")) for row in rows]
        columns = {name: [row.get(name) for row in rows] for name in dict.fromkeys(key for row in rows for key in row)}
        columns.pop("prompt", None)
        solutions = columns.pop("completion", None)
        if solutions is not None:
            columns["solution"] = solutions
        shaped = [conversational(prompt, text) for prompt, text in zip(prompts, completions, strict=True)]
        arguments = {
            "prompts": prompts,
            "completions": shaped,
            "completion_ids": list(completion_ids),
            "truncated": list(truncated),
            **columns,
            **({} if places is None else {PLACES: list(places)}),
        }
        given = [function(**arguments) for function in self.functions]
        return Scores(
            per_reward=dict(zip(self.names, given, strict=True)),
            total=[self._total(scores) for scores in zip(*given, strict=True)],
            solved=[self._solved(score, cut) for score, cut in zip(given[self.verifier], truncated, strict=True)],
        )

    def check(self, rows: Sequence[Mapping[str, Any]]) -> list[tuple[str, str] | None]:
        """For each row the column at fault and why no completion of it can ever be judged; None for a fit row.

        A gold answer that cannot be read, tests that cannot run, a gold query that fails: the first reward of the
        list that finds fault says so.
        """
        checks = [(judge.check, getattr(judge, "column", "")) for judge in self.judges if hasattr(judge, "check")]
        return [self._fault(row, checks) for row in rows]

    def explain(
        self, row: Mapping[str, Any], completion: str, completion_ids: Sequence[int], truncated: bool
    ) -> dict[str, str]:
        """Why one completion scored as it did: reward name -> one line, for the rewards that can say it."""
        return {
            name: judge.explain(row, completion, list(completion_ids), truncated)
            for name, judge in zip(self.names, self.judges, strict=True)
            if hasattr(judge, "explain")
        }

    @staticmethod
    def _fault(
        row: Mapping[str, Any], checks: Sequence[tuple[Callable[[Mapping[str, Any]], str | None], str]]
    ) -> tuple[str, str] | None:
        for check, column in checks:
            reason = check(row)
            if reason is not None:
                return column, reason
        return None

    def _total(self, scores: Sequence[float | None]) -> float | None:
        kept = [weight * score for weight, score in zip(self.weights, scores, strict=True) if score is not None]
        return math.fsum(kept) if kept else None

    def _solved(self, score: float | None, truncated: bool) -> bool | None:
        if score is None and (not truncated or self.judges_row[self.verifier]):
            return None
        return not truncated and score is not None and score >= self.thresholds[self.verifier]


def conversational(prompt: Any, completion: str) -> str | list[dict[str, str]]:
    """A completion as TRL hands it to a reward: text for a text prompt, one assistant message for messages."""
    return completion if isinstance(prompt, str) or prompt is None else [{"role": "assistant", "content": completion}]


def text_of(completion: str | Sequence[Mapping[str, Any]]) -> str:
    """The text of a completion: itself, or the contents of its messages."""
    if isinstance(completion, str):
        return completion
    return "\n".join(str(message.get("content") or "") for message in completion)


def checked(function: Callable[..., Any], *, name: str, where: str) -> RewardFunction:
    """`function` as a reward: it is given the arguments it can take, and what it gives back is checked.

    Args:
        function: TRL's signature; arguments it does not name are left out unless it has `**kwargs`.
        name: the reward's name.
        where: how an error calls it, `rewards.0 (python mine.py:score)`.
    """
    taken = _parameters(function)

    def reward(**arguments: Any) -> list[float | None]:
        places = arguments.pop(PLACES, None) or [f"row {each}" for each in arguments.get("id") or []]
        passed = arguments if taken is None else {key: value for key, value in arguments.items() if key in taken}
        count = len(arguments["completions"])
        try:
            values = function(**passed)
        except BaseException as error:  # sys.exit() in a reward would end the stage as if all were well
            if not its_own(error):
                raise
            raise StageError(_raised(function, passed, count, places, where, error)) from error
        return _values(values, count, places, where)

    reward.__name__ = reward.__qualname__ = name
    return reward


def _parameters(function: Callable[..., Any]) -> set[str] | None:
    parameters = inspect.signature(function).parameters.values()
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        return None
    return {parameter.name for parameter in parameters}


def its_own(error: BaseException) -> bool:
    """Whether a reward's own code raised it: no error of finery's, no Ctrl-C that fell into it."""
    if type(error).__module__.partition(".")[0] == "finery":
        return False
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    if trace is None or not isinstance(error, KeyboardInterrupt):
        return True
    # a signal's KeyboardInterrupt has no frame of its own: the innermost one stood at anything but a `raise`
    at = {step.offset: step.opname for step in dis.get_instructions(trace.tb_frame.f_code)}
    return at.get(trace.tb_lasti) in ("RAISE_VARARGS", "RERAISE")


def _raised(
    function: Callable[..., Any],
    passed: dict[str, Any],
    count: int,
    places: Sequence[str],
    where: str,
    error: BaseException,
) -> str:
    """The message for a reward that raised; the samples are tried one by one to name the one at fault."""
    raised: list[tuple[BaseException, int, dict[str, Any]]] = []
    for index in range(count):
        one = {
            key: [value[index]] if isinstance(value, list | tuple) and len(value) == count else value
            for key, value in passed.items()
        }
        try:
            function(**one)
        except BaseException as single:  # the reward's own error is what the message is about
            if not its_own(single):
                raise
            raised.append((single, index, one))
    if raised:
        first, index, one = raised[0]
        share = f"{len(raised)} of {count} samples of the batch" if count > 1 else "the only sample of the batch"
        return f"{where} raised {_describe(first)} on {_sample(index, places)}: {_excerpt(one)} ({share})"
    return f"{where} raised {_describe(error)} on a batch of {count} completions, but on none of them alone"


def _describe(error: BaseException) -> str:
    frames = []
    trace = error.__traceback__
    while trace is not None:
        frames.append((trace.tb_frame.f_code.co_filename.rsplit("/", 1)[-1], trace.tb_lineno))
        trace = trace.tb_next
    at = f" at {frames[-1][0]}:{frames[-1][1]}" if frames else ""
    try:
        text = str(error)
    except Exception:  # its own __str__ raises
        text = ""
    return f"{type(error).__name__}{': ' if text else ''}{text}{at}"


def _sample(index: int, places: Sequence[str]) -> str:
    return f"sample {index}" + (f" ({places[index]})" if index < len(places) else "")


def _excerpt(one: dict[str, Any]) -> str:
    text = text_of(one["completions"][0]) if "completions" in one else ""
    return f"completion {text[:200]!r}"


def _values(values: Any, count: int, places: Sequence[str], where: str) -> list[float | None]:
    if inspect.iscoroutine(values):
        values.close()
        raise StageError(f"{where} is asynchronous; a reward is a plain function")
    if not isinstance(values, list | tuple):
        raise StageError(
            f"{where} returned {type(values).__name__}; a list with one number or None a completion is due"
        )
    if len(values) != count:
        raise StageError(f"{where} returned {len(values)} values for {count} completions; one a completion is due")
    result: list[float | None] = []
    for index, value in enumerate(values):
        if value is not None and not isinstance(value, numbers.Real):
            raise StageError(
                f"{where} returned {type(value).__name__} {str(value)[:80]!r} for {_sample(index, places)}; "
                "a number, or None to abstain, is due"
            )
        try:
            number = None if value is None else float(value)
        except (OverflowError, ValueError, TypeError) as error:
            raise StageError(f"{where} returned no finite number for {_sample(index, places)}: {error}") from error
        if number is not None and not math.isfinite(number):
            raise StageError(f"{where} returned {number} for {_sample(index, places)}; a finite number or None is due")
        result.append(number)
    return result
