"""Which program a completion is: the code in it, and whether it goes on from the prompt or stands by itself."""

from __future__ import annotations

import itertools
import re
import textwrap
import warnings
from collections.abc import Iterator

_FENCE = re.compile(r"^[ \t]*```+[ \t]*([\w+.-]*)[^\n]*\n(.*?)(^[ \t]*```|\Z)", re.DOTALL | re.MULTILINE)
_PYTHON = frozenset({"python", "py", "python3", "py3"})
_STARTS = re.compile(r"^(?:(?:def|class|import|from|async def)\b|@)", re.MULTILINE)
_TRIES = 40
"""Ends that are tried when text follows the code."""


class NoCode(Exception):
    """There is no code where `extract` looks for it."""


def program(text: str, *, extract: str, prefix: str, entry: str | None, imports: str) -> str:
    """The source to run.

    Args:
        text: a completion.
        extract: `fence`, `whole` or `auto` (a ``` block if there is one).
        prefix: the prompt's code, which the completion goes on from; empty when there is none.
        entry: the name the tests call, if it is known.
        imports: import statements that the tests make, which the code may count on.

    Returns:
        `prefix` and the code joined, or, when the code defines `entry` by itself, the prefix's imports and helpers and
        then the code. Source that does not parse is returned as it stands, for the interpreter to say what is wrong.

    Raises:
        NoCode: as it says.
    """
    code = find(text, extract, entry)
    if code is None:
        raise NoCode("no ``` block of Python in the completion")
    if not code.strip() and not prefix:
        raise NoCode("the completion is empty")
    candidates = list(_candidates(code, prefix, entry))
    chosen = next((source for source in candidates if _compiles(source)), candidates[0])
    return f"{imports}\n{chosen}" if imports else chosen


def find(text: str, extract: str, entry: str | None) -> str | None:
    """Of the completion's ```python blocks (or unnamed ones) the last that defines `entry`, or the last.

    A block whose closing fence was cut off counts.
    """
    if extract == "whole":
        return text
    blocks = list(_FENCE.finditer(text.replace("\r\n", "\n")))
    code = [block[2] for block in blocks if block[1].lower() in _PYTHON]
    code = code or [block[2] for block in blocks if not block[1] and (block[3] or not text[: block.start()].strip())]
    if not code:
        return None if extract == "fence" else _before_fence(text)
    defining = [content for content in code if entry and _mentions(content, entry)]
    return (defining or code)[-1]


def _before_fence(text: str) -> str:
    """A continuation that a model closed with a fence it never opened."""
    return re.split(r"^[ \t]*```", text, maxsplit=1, flags=re.MULTILINE)[0]


def _mentions(code: str, entry: str) -> bool:
    return re.search(rf"^[ \t]*(?:async[ \t]+def|def|class)[ \t]+{re.escape(entry)}\b", code, re.MULTILINE) is not None


def _candidates(code: str, prefix: str, entry: str | None) -> Iterator[str]:
    """Programs the completion may mean, the likeliest first."""
    alone = [code]
    starts = itertools.islice(_STARTS.finditer(code), 5)
    alone += [code[start.start() :] for start in starts if start.start()]  # words before the code
    if not prefix:
        wholes = [textwrap.dedent(alone[0]), *alone[1:]]
    elif entry and _top_level(code, entry):
        stub = f"{prefix.rstrip()}\n    pass\n"
        wholes = [f"{head}\n{body}" for body in alone for head in (stub, prefix)] + alone
    else:
        first = code.lstrip("\n")
        joined = prefix if not first.startswith((" ", "\t")) or prefix.endswith("\n") else f"{prefix}\n"
        indented = textwrap.indent(textwrap.dedent(first), "    ")
        wholes = [
            prefix + code,
            joined + first,
            f"{prefix.rstrip()}\n    {first.lstrip()}",
            f"{prefix.rstrip()}\n{indented}",
        ]
    yield from wholes
    for whole in wholes:
        yield from _shorter(whole, len(prefix))


def _top_level(code: str, entry: str) -> bool:
    return (
        re.search(rf"^(?:async def|def|class) +{re.escape(entry)}\b|^{re.escape(entry)} *=", code, re.MULTILINE)
        is not None
    )


def _shorter(source: str, least: int) -> Iterator[str]:
    """The source cut before a line at the left edge, the last first: words that follow the code."""
    edges = [match.start() for match in re.finditer(r"^\S", source, re.MULTILINE) if match.start() > least]
    for edge in reversed(edges[-_TRIES:]):
        yield source[:edge]


def _compiles(source: str) -> bool:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            compile(source, "<completion>", "exec", dont_inherit=True)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return True
