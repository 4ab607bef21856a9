"""The `choice` reward: which of a few does the completion choose?"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from finery.errors import InputError
from finery.rewards.extract import Found, after_hash, boxed, concluded, tag
from finery.rewards.rewardset import text_of
from finery.rewards.statement import statement
from finery.rewards.symbols import fold

_DRESS = "()[]{}<>.,:;!?*`'\"$。，：；！？（）【】「」“” \n\t"
_WRAPPER = re.compile(r"\\(?:text|textbf|mathrm|mathbf|mbox)\s*\{([^{}]*)\}")
_STATED = re.compile(
    r"(?:^|\b(?:is|are|be|was|equals|choose|chose|chosen|pick|picked|select|selected|say|says|said|think|guess|mark|answer|go(?:es)?\s+with"
    r"|going\s+with|definitely|clearly|certainly|surely|probably|therefore|thus|so|hence)\b|['’]s\b|[=:：,，.。;；!\n]|选择|[选是为]|所以|因此)"
    r"(?:[\s()\[\]<>*`'\"$“”「」【】（）{,:：]|\b(?:the|an?|my|option|choice|letter|answer)\b|选项|[选是为])*$",
    re.IGNORECASE,
)
"""What stands before a choice that is stated."""
_AFTER = re.compile(
    r"(?:[\s)\]>*`'\"$”」】）}]*(?:$|[.,:;!。，：；！(（<\n])|[)\]:.]|\s+[^\sA-Za-z?+*/^=-]"
    r"|\s+(?:is\s+(?:the|right|correct)|because|since|as|for|due)\b|[的了。])"
)
"""What stands behind one: the end, punctuation, what it says (`(B) 12`), a reason."""
_VOID_BEFORE = re.compile(
    r"\b(?:not|never|no|none|neither|nor|except|excluding|exclude[sd]?|but|without|unlikely|cannot|eliminate[sd]?|wrong|incorrect|rules?\s+out"
    r"|ruled\s+out|other\s+than|instead\s+of|rather\s+than|anything|non)\b|n['’]t\b|non-|\\(?:neq?|lnot|neg|not|overline|bar|sout|cancel)(?![A-Za-z])"
    r"|[≠¬~!]=?\s*$|[不非没除]|排除",
    re.IGNORECASE,
)
_VOID_AFTER = re.compile(
    r"[\s)*\"'”）]*(?:(?:is|are|was|would\s+be|seems|looks|can)\s*)?(?:not\b|n['’]t|never\b|wrong|incorrect|false\b|impossible|out\b|also\s+wrong)"
    r"|[\s)）]*(?:也?是)?(?:错|不对|不正确|不是|不可能)|\s*\?|\s*\^",
    re.IGNORECASE,
)
_CLAUSE = re.compile(r"[.;,。；，!！\n]")


class ChoiceFunction:
    """1.0 or 0.0 for each completion; None where the row's answer is none of the choices. A truncated one has 0.0.

    Args:
        choices: what can be chosen.
        how: where the choice stands: `hash`, `boxed`, `tag`, `whole`; the `first` or `last` choice in the text; `auto`.

    Raises:
        InputError: two choices are the same.
    """

    column = "answer"

    def __init__(self, choices: Sequence[str], how: str, field: str = "choices") -> None:
        self.choices = {_even(choice): choice for choice in choices}
        if len(self.choices) != len(choices) or "" in self.choices:
            raise InputError(f"{field}: each choice is to be there once, and none empty; found {', '.join(choices)}")
        self.how = how
        longest = sorted(self.choices, key=len, reverse=True)
        self._pattern = re.compile(
            rf"(?<![A-Za-z0-9_])(?:{'|'.join(map(re.escape, longest))})(?![A-Za-z0-9_])",
            re.IGNORECASE if all(len(choice) > 1 for choice in longest) else 0,
        )
        self._folded = {choice.casefold(): choice for choice in self.choices}

    def __call__(
        self,
        completions: list[Any],
        answer: list[str | None] | None = None,
        truncated: list[bool] | None = None,
        **_: Any,
    ) -> list[float | None]:
        golds = answer if answer is not None else [None] * len(completions)
        cut = truncated or [False] * len(completions)
        return [
            self.score(text_of(completion), gold, short)
            for completion, gold, short in zip(completions, golds, cut, strict=True)
        ]

    def score(self, text: str, gold: str | None, truncated: bool = False) -> float | None:
        """The score of one completion."""
        right = self._named(gold or "")
        if right is None:
            return None
        return float(not truncated and self.choose(text)[0] == right)

    def choose(self, text: str) -> tuple[str | None, str]:
        """The choice of a completion, None where there is none or more than one, and where it was looked for."""
        if self.how in ("first", "last"):
            found = [name for name, standing in self._all(concluded(text)) if standing is not None]
            return (found[0 if self.how == "first" else -1] if found else None), f"the {self.how} choice in the text"
        for part in self._parts(concluded(text)):
            if part.text is None:
                return None, part.where
            if named := self._named(part.text):
                return named, part.where
            found_here = list(self._all(part.text))
            distinct = {name for name, _ in found_here}
            if len(distinct) == 1:
                stands = [standing for _, standing in found_here]
                if None in stands:
                    return None, f"{part.where}, where it is denied"
                if True in stands:
                    return distinct.pop(), part.where
                return None, f"{part.where}, where it neither stands alone nor is stated"
            if distinct:
                return None, f"{part.where}, where there are several: {', '.join(sorted(distinct))}"
        return None, "no choice found"

    def check(self, row: Mapping[str, Any]) -> str | None:
        """Why no completion can be judged by this row's answer, or None."""
        answer = row.get("answer")
        if answer is None:
            return "is missing"
        return None if self._named(answer) else f"{answer[:60]!r} is none of {', '.join(self.choices.values())}"

    def explain(self, row: Mapping[str, Any], completion: str, completion_ids: list[int], truncated: bool) -> str:
        """What was chosen, and where."""
        if (fault := self.check(row)) is not None:
            return f"abstains: the row's answer {fault}"
        if truncated:
            return "truncated"
        choice, where = self.choose(completion)
        if choice is None:
            return f"no choice: {where}"
        right = self._named(row["answer"])
        verdict = "right" if choice == right else f"right is {row['answer']!r}"
        return f"chose {self.choices[choice]!r} {where}; {verdict}"

    def _parts(self, text: str) -> Iterator[Found]:
        """Where the choice may stand; the first part that names one decides."""
        marks = {
            "hash": ("####", "after ####", after_hash),
            "boxed": ("\\boxed", "in \\boxed{}", boxed),
            "tag": ("</answer>", "in <answer>", tag),
        }
        for name, (mark, where, look) in marks.items():
            if self.how == name or (self.how == "auto" and mark in text):
                yield Found(look(text) if mark in text else None, where)
                return
        if self.how == "auto" and (stated := statement(text, fold(text))) is not None:
            yield Found(None if stated.asked else stated.formula or stated.sentence, stated.where)
        yield Found(text, "in the whole text")

    def _named(self, text: str) -> str | None:
        """The choice that a text is, brackets, dots and case aside; a question is none."""
        if text.rstrip().endswith(("?", "？")):
            return None
        bare = _even(text).strip(_DRESS)
        return bare if bare in self.choices else self._folded.get(bare.casefold())

    def _all(self, text: str) -> Iterator[tuple[str, bool | None]]:
        """The choices in a text, and whether each stands alone or is stated; None where it is denied."""
        text = _even(text)
        for match in self._pattern.finditer(text):
            name = match[0] if match[0] in self.choices else self._folded[match[0].casefold()]
            before, after = text[max(0, match.start() - 80) : match.start()], text[match.end() : match.end() + 40]
            if _VOID_BEFORE.search(_CLAUSE.split(before)[-1]) or _VOID_AFTER.match(after):
                yield name, None
            else:
                yield name, bool(_STATED.search(before) and _AFTER.match(after))


def _even(text: str) -> str:
    return " ".join(_WRAPPER.sub(r"\1", unicodedata.normalize("NFKC", text)).split())
