"""Plain sentences for what ruamel.yaml says about text that is not YAML."""

from __future__ import annotations

import re
from typing import Any

from finery.language.problems import Place, Problem

_TAB = "a tab stands where YAML wants spaces; indent with spaces"
_SENTENCES: list[tuple[str, str]] = [
    (r"character '\\t'", _TAB),
    (r"found a tab character", _TAB),
    (
        r"character '([@`%])' that cannot start",
        "text cannot begin with {0}; put it in quotes",
    ),
    (
        r"mapping values are not allowed",
        "a colon is not expected here; the line above may lack one, the indentation may be wrong, "
        "or text with a colon needs quotes",
    ),
    (r"unexpected end of stream", "the quote opened on line {context} is never closed"),
    (r"expected ',' or '([\]}])'", "a comma or {0} is missing in the list or map opened on line {context}"),
    (r"found unknown escape character '(.)'", "\\{0} is no escape; write \\\\ or use single quotes"),
    (r"could not find expected ':'", "a colon is missing after the key of line {context}"),
    (
        r"expected <block end>",
        "the indentation does not fit the list or map that begins on line {context}; "
        "keys of one map stand in one column",
    ),
    (r"sequence entries are not allowed here", "a list item is not expected here; put `- ` on a line of its own"),
    (r"expected the node content", "a value is missing here, or a comma is too many"),
    (r"found undefined tag handle", "tags are refused; a pipeline is plain data"),
    (r"found incompatible YAML document", "only YAML 1.2 is read; leave the %YAML line out"),
    (r"duplicate|found duplicate", "a directive is written twice"),
]


def explain_marked(error: Any, override: str | None) -> Problem:
    """The problem of a syntax error: where the scanner or parser stood, and a sentence."""
    mark = error.problem_mark or error.context_mark
    context = error.context_mark.line + 1 if error.context_mark else (mark.line + 1 if mark else 1)
    place = Place(override=override) if override or not mark else Place(mark.line + 1, mark.column + 1)
    said = str(error.problem or error.context or "this cannot be read")
    for pattern, sentence in _SENTENCES:
        if match := re.search(pattern, said):
            return Problem(place, (), _fill(sentence, context, match.groups(), override))
    return Problem(place, (), f"is not YAML: {said}")


def _fill(sentence: str, context: int, groups: tuple[str, ...], override: str | None) -> str:
    for index, group in enumerate(groups):
        sentence = sentence.replace(f"{{{index}}}", group)
    if override:
        return re.sub(r" (?:on|of|opened on|that begins on) line \{context\}", "", sentence)
    return sentence.replace("{context}", str(context))


def explain_reader(error: Any, text: str, override: str | None) -> Problem:
    """The problem of a character that YAML forbids."""
    before = text[: error.position]
    place = (
        Place(override=override)
        if override
        else Place(before.count("\n") + 1, len(before) - (before.rfind("\n") + 1) + 1)
    )
    code = ord(error.character) if isinstance(error.character, str) else int(error.character)
    return Problem(place, (), f"the control character U+{code:04X} is not allowed; delete it")
