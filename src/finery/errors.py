"""Every error finery raises on purpose; each carries the exit code the command line ends with."""

from __future__ import annotations


class FineryError(Exception):
    """The root; its text is shown to the user as it is, without a traceback."""

    exit_code = 1


class InputError(FineryError):
    """What the user wrote or gave cannot be used; the message says where, what, and what is accepted."""

    exit_code = 2


class StageError(FineryError):
    """A stage cannot go on; raised inside stages for anything a user can mend."""


class UnhealthyError(FineryError):
    """A training run was stopped by its monitor."""

    exit_code = 5
