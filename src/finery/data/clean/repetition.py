"""Completions that repeat themselves, by the shares of Gopher's filters (arXiv 2112.11446, table A1)."""

from __future__ import annotations

from collections import Counter

from finery.data.clean.texts import spoken
from finery.data.clean.words import words
from finery.data.dataset import Row
from finery.data.records import Reject
from finery.schemas.clean import RepetitionStep


def line_share(text: str) -> float:
    """Duplicate lines over all lines: lines that came before, over lines, both without the empty ones.

    Gopher's duplicate line fraction (arXiv 2112.11446, A.1.1), counted as datatrove's GopherRepetitionFilter counts it:
    the first of equal lines is no duplicate. Lines are compared without the spaces at their ends.
    """
    lines = [line for line in map(str.strip, text.split("\n")) if line]
    return (len(lines) - len(set(lines))) / len(lines) if lines else 0.0


def ngram_share(text: str, n: int) -> float:
    """Characters within word n-grams that occur more than once, over the characters of all words.

    Gopher's duplicate n-gram character fraction (arXiv 2112.11446, A.1.1), counted as RedPajama-V2's quality signals
    count it: every occurrence is marked, the first too, and a word in several of them counts once. Words are those of
    `words`.
    """
    found = words(text)
    grams = list(zip(*(found[start:] for start in range(n)), strict=False))
    if len(set(grams)) == len(grams):
        return 0.0
    counts = Counter(grams)
    inside, until = 0, 0
    for start, gram in enumerate(grams):
        if counts[gram] > 1:
            inside += sum(map(len, found[max(start, until) : start + n]))
            until = start + n
    return inside / sum(map(len, found))


class Repetition:
    """Drops a row when the completion, or one turn of the assistant's, repeats itself more than is asked for."""

    def __init__(self, name: str, config: RepetitionStep) -> None:
        self.name, self._config = name, config

    def __call__(self, row: Row) -> Row:
        for field, _, text in spoken(row):
            if "\n" in text and (share := line_share(text)) > self._config.line_share:
                raise Reject(
                    field,
                    self.name,
                    f"{share:.0%} of its lines are duplicates; line_share is {self._config.line_share:g}",
                )
            # an n-gram and its repetition, one word later at the least, hold n + 1 words
            if (
                len(text) > self._config.ngram
                and (share := ngram_share(text, self._config.ngram)) > self._config.ngram_share
            ):
                raise Reject(
                    field,
                    self.name,
                    f"{share:.0%} of its characters stand in repeated {self._config.ngram}-grams; "
                    f"ngram_share is {self._config.ngram_share:g}",
                )
        return row
