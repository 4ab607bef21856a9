"""Cleaning: steps that mend or drop rows. docs/cleaning.md tells what each does."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from finery.data.clean.characters import Characters
from finery.data.clean.contamination import contamination
from finery.data.clean.length import Length
from finery.data.clean.near import NearDuplicates
from finery.data.clean.refusal import Refusal, Search
from finery.data.clean.repetition import Repetition
from finery.data.clean.script import Script
from finery.data.clean.texts import CleanStep
from finery.data.clean.unicode import Unicode
from finery.data.clean.whitespace import Whitespace
from finery.data.tokens import Tokens
from finery.schemas.clean import (
    CharactersStep,
    LengthStep,
    RefusalStep,
    RepetitionStep,
    ScriptStep,
    Step,
    UnicodeStep,
    WhitespaceStep,
)

__all__ = ["CleanStep", "NearDuplicates", "contamination", "steps"]


def steps(config: Sequence[Step], tokens: Tokens | None = None, search: Search | None = None) -> list[CleanStep]:
    """The steps of `clean`, in order, ready to be called row by row.

    Args:
        tokens: counts the tokens of a row, for limits of length.
        search: looks for patterns that may backtrack for ever.

    Raises:
        InputError: a limit in tokens without `tokens`, or such a pattern without `search`.
    """
    seen: Counter[str] = Counter()
    made = []
    for step in config:
        seen[step.kind] += 1
        name = step.kind if seen[step.kind] == 1 else f"{step.kind}_{seen[step.kind]}"
        made.append(_step(step, name, tokens, search))
    return made


def _step(step: Step, name: str, tokens: Tokens | None, search: Search | None) -> CleanStep:
    match step:
        case UnicodeStep():
            return Unicode(name, step)
        case CharactersStep():
            return Characters(name, step)
        case WhitespaceStep():
            return Whitespace(name, step)
        case LengthStep():
            return Length(name, step, tokens)
        case RepetitionStep():
            return Repetition(name, step)
        case RefusalStep():
            return Refusal(name, step, search)
        case ScriptStep():
            return Script(name, step)
