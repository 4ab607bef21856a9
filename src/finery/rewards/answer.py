"""The `answer` reward: does the completion's final answer equal the row's?"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from finery.errors import StageError
from finery.rewards import latex
from finery.rewards.arithmetic import value
from finery.rewards.extract import Found, after_hash, boxed, locate
from finery.rewards.groups import parse_group, same_group
from finery.rewards.numbers import LONGEST, Number, parse_number, same_number
from finery.rewards.rewardset import text_of
from finery.rewards.symbols import plain
from finery.rewards.units import changes

_CLOCK = re.compile(r"[0-9]+(?::[0-9]+)+")
_WORDS = re.compile(
    r"\\(?:(?:text|textbf|textit|textnormal|mbox)\s*\{([^{}\\]+)|(?:mathrm|mathbf|operatorname)\s*\{([A-Za-z ]{2,}))\}"
)
_NAMED = re.compile(r"^\s*[A-Za-z]\w{0,9}\s*(?::=|等于|为)\s*(?=[^=]+$)")
_SHORT = re.compile(r"[-+]?[$€£¥]?[0-9][0-9.,]*[kKMB]")
_LISTED = re.compile(r"[,;，；、]|\b(?:or|and|not)\b|或|和|不|\\text|\\(?:ne|neq|lnot|neg|not)(?![A-Za-z])|[!<>:≠≤≥]$")
_HEDGE = re.compile(
    r"\b(?:or|but|maybe|perhaps|possibly|if|unless|not|no)\b|或|\\(?:lor|vee)(?![A-Za-z])", re.IGNORECASE
)
_SIZED = re.compile(r"\\(?:left|right|[Bb]ig[lr]?)(?![A-Za-z])")
_INNER = re.compile(r"\([^()]*\)|\{[^{}]*\}")


@dataclass(frozen=True)
class Judgement:
    """Whether the answers are equal (None: the gold one cannot be read) and by what; `ask` is left to math-verify."""

    equal: bool | None
    by: str
    ask: tuple[str, str] | None = None


class AnswerFunction:
    """1.0 or 0.0 for each completion; None where the row's `answer` cannot be read, whatever the completion.

    Args:
        how: where the final answer stands, as for `extract.locate`.
        compare: `number` (exact), `text`, `math` (math-verify), or `auto`: numbers, lists of numbers and words when
            both are, else math-verify.
        workers: processes of math-verify that may be used at once; they change no score.
    """

    column = "answer"

    def __init__(self, how: str, compare: str, workers: int = 1) -> None:
        self.how = how
        self.compare = compare
        self.workers = workers

    def __call__(
        self,
        completions: list[Any],
        answer: list[str | None] | None = None,
        truncated: list[bool] | None = None,
        **_: Any,
    ) -> list[float | None]:
        if answer is None:
            raise StageError("the reward answer needs rows with an `answer`; these have none")
        cut = truncated or [False] * len(completions)
        judged = [
            self._judge(text_of(completion), gold, short)[0]
            for completion, gold, short in zip(completions, answer, cut, strict=True)
        ]
        return [None if equal is None else float(equal) for equal in self._settled(judged)]

    def score(self, text: str, gold: str | None, truncated: bool = False) -> float | None:
        """The score of one completion; a truncated one has no final answer."""
        return self([text], [gold], [truncated])[0]

    def check(self, row: Mapping[str, Any]) -> str | None:
        """Why no completion can be judged by this row's answer, or None."""
        gold = row.get("answer")
        if gold is None:
            return "is missing"
        cleaned = clean_gold(gold)
        if cleaned is None:
            return "is empty" if not gold.strip() else "has a mark (#### or \\boxed) with no answer"
        return gold_fault(cleaned, self.compare)

    def explain(self, row: Mapping[str, Any], completion: str, completion_ids: list[int], truncated: bool) -> str:
        """What was taken for the answer, from where, and how it compares."""
        fault = self.check(row)
        if fault is not None:
            return f"abstains: the row's answer {fault}"
        judgement, found = self._judge(completion, row["answer"], truncated)
        gold = clean_gold(row["answer"])
        if truncated:
            return "truncated: a completion that was cut has no final answer"
        if found is None:
            return f"no answer found ({self.how})"
        if found.text is None:
            return f"no answer {found.where}: empty, or not closed"
        equal = self._settled([judgement])[0]
        return f"{found.text[:80]!r} {found.where} {'equals' if equal else 'is not'} {gold!r}, {judgement.by}"

    def _judge(self, text: str, gold: str | None, truncated: bool) -> tuple[Judgement, Found | None]:
        gold = clean_gold(gold) if gold is not None else None
        if gold is None:
            return Judgement(None, "no gold answer"), None
        found = None if truncated else locate(text, self.how)
        given = found.text if found else None
        if given is None:
            return Judgement(False if gold_fault(gold, self.compare) is None else None, "no answer"), found
        return judge(gold, given, self.compare), found

    def _settled(self, judged: Sequence[Judgement]) -> list[bool | None]:
        """The verdicts, those of math-verify asked for together."""
        asked = [one.ask for one in judged if one.ask is not None]
        replies = iter(latex.equal(asked, self.workers)) if asked else iter(())
        return [one.equal if one.ask is None else next(replies) for one in judged]


@lru_cache(maxsize=65536)
def clean_gold(gold: str) -> str | None:
    """The answer proper of an `answer` column: what follows `####` or stands in `\\boxed{}`, if one is there."""
    if "####" in gold:
        return after_hash(gold)
    if "\\boxed" in gold:
        return boxed(gold)
    return undelimited(gold) or None


@lru_cache(maxsize=65536)
def gold_fault(gold: str, how: str) -> str | None:
    """Why no answer can be compared with this gold one, or None."""
    if how == "text":
        return None
    if how == "number":
        return None if parse_number(gold) else "is not a number"
    if how == "auto" and _SHORT.fullmatch(plain(gold)):
        return "may be a number or a product (5k: 5000, or 5 times k); write it out, or compare: math for the product"
    if how == "auto" and (parse_number(gold) or parse_group(gold) or _WORDS.fullmatch(gold)):
        return None
    return None if how == "auto" and _CLOCK.fullmatch(plain(gold)) else latex.unreadable(gold)


def judge(gold: str, found: str, how: str) -> Judgement:
    """Compare a found answer with the gold one, which is not empty."""
    if how == "text":
        return Judgement(_even(found) == _even(gold), "as text")
    right = parse_number(gold)
    if how == "number":
        given = parse_number(found)
        equal = given is not None and same_number(right, given) if right is not None else None
        return Judgement(equal, "as exact numbers" if given else "as it is not a number")
    if how == "auto" and _SHORT.fullmatch(plain(gold)):
        return Judgement(None, "the gold answer may be a number or a product")
    if how == "auto" and _CLOCK.fullmatch(plain(gold)):
        return Judgement(plain(found) == plain(gold), "as written")
    given = one_number(found)
    if right is not None and given is None and not right.unit.letter:
        return Judgement(False, "as it is not one number, worked out")
    verdict = _exactly(gold, found, right, given) if how == "auto" else None
    if verdict is None and _hedged(gold, found):
        return Judgement(False, "as it says more than one thing")
    return verdict or Judgement(None, "by math-verify", (gold, found))


def one_number(text: str) -> Number | None:
    """The number that an answer as a whole is: `5`, `(5)`, `x = 5`, `2+3 = 5`; None for `2+3` and for `5 = 6`."""
    if len(text) > LONGEST:
        return None
    *before, last = _NAMED.sub("", undelimited(text)).split("=")
    number = parse_number(_bare(last if before else text)) or parse_number(_bare(_NAMED.sub("", last)))
    if number is None:
        return None
    for part in before:
        other = parse_number(part)
        worth = other.value if other else value(plain(part))
        listed = _LISTED.search(_INNER.sub("", part.strip())) is not None
        if (worth is not None and worth != number.value) or changes(part) or listed:
            return None
    return number


def _bare(text: str) -> str:
    """`(5)` as `5`."""
    text = _SIZED.sub("", undelimited(text)).strip()
    return text[1:-1] if text[:1] == "(" and text[-1:] == ")" and "(" not in text[1:] else text


def undelimited(text: str) -> str:
    """A formula without the dollar signs around it; `$5` keeps its own."""
    text = text.strip()
    while len(text) > 1 and text[0] == text[-1] == "$" and not text.endswith("\\$"):
        text = text[1:-1].strip()
    return text


def _hedged(gold: str, found: str) -> bool:
    """Whether an answer says `or`, `not` and the like where the gold one does not, or claims `0 = x` for `x`."""
    if _HEDGE.search(found) and not _HEDGE.search(gold):
        return True
    return "=" not in gold and "=" in found and parse_number(found.partition("=")[0]) is not None


def _exactly(gold: str, found: str, right: Number | None, given: Number | None) -> Judgement | None:
    """The verdict where both answers are exact numbers, lists of them, or words; None where math-verify must say."""
    if right is not None and given is not None and not (right.unit.letter and not given.unit.letter):
        return Judgement(same_number(right, given), "as exact numbers")
    if right is None and (many := parse_group(gold)) is not None and (others := parse_group(found)) is not None:
        same = same_group(many, others)
        if same is not None:
            return Judgement(same, "as lists of exact numbers")
    if right is None and (words := _WORDS.fullmatch(gold.strip())):
        return Judgement(_word(found) == _word(words[1] or words[2]), "as words")
    return None


def _word(text: str) -> str:
    """Words without dress and case: `\\text{(C)}` is `c`."""
    return _even(plain(text)).strip("(). ").casefold()


def _even(text: str) -> str:
    return " ".join(unicodedata.normalize("NFKC", text).split())
