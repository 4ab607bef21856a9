"""Users' regular expressions on models' text, in a process with a deadline: backtracking can take for ever."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from finery.errors import InputError
from finery.rewards.worker import TooLong, VerifierError, Worker

if TYPE_CHECKING:  # named, so that the digest of a stage's code covers what runs in the process
    from finery.rewards import worker_main, worker_patterns  # noqa: F401

PROCESS = Worker(Path(__file__).with_name("worker_patterns.py"), memory=1 << 30)
"""The process all patterns and schemas of this interpreter share."""
TOO_LONG = f"takes longer than {PROCESS.deadline:g} s on this completion"


def checked(pattern: str, field: str) -> re.Pattern[str]:
    """The compiled pattern.

    Raises:
        InputError: it is not a regular expression.
    """
    try:
        return re.compile(pattern, re.DOTALL)
    except (re.error, OverflowError, RecursionError) as error:
        raise InputError(f"{field}: is not a regular expression: {error}") from error


def ask(op: str, **request: Any) -> Any:
    """One operation of worker_patterns; None where the text makes it run too long or run out of memory."""
    try:
        return PROCESS.ask(op, **request)
    except (TooLong, VerifierError):
        return None
