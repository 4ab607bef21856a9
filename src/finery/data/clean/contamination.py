"""Rows that share text with evaluation sets."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import repeat
from typing import TYPE_CHECKING

from finery.data.clean.hashing import Lookup, hash64, multipliers, ngram_hashes
from finery.data.clean.texts import Text, texts
from finery.data.clean.words import plain, words
from finery.data.dataset import Row
from finery.data.records import Reject
from finery.schemas.data import Decontaminate

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from finery.data.clean.hashing import Hashes

WHOLE = 5
"""Words from which a short question is looked for inside rows; a shorter one must be the row's whole prompt."""


def contamination(config: Decontaminate, sets: Mapping[str, Iterable[Row]]) -> Contamination:
    """The step that drops rows which share text with evaluation sets.

    Args:
        config: n-gram length and share.
        sets: the evaluation sets by name; each is read once and kept as hashes, 8 bytes for an n-gram, and its words.
    """
    step = Contamination(config)
    for name, rows in sets.items():
        step.read(name, rows)
    step.close()
    return step


@dataclass
class _Found:
    """What was found in one row.

    Attributes:
        windows: its n-grams.
        hits: those that stand in an evaluation set, and whole short questions.
        first: where the first stands: field, set, words.
    """

    windows: int = 0
    hits: int = 0
    first: tuple[str, str, str] | None = None


@dataclass
class _Index:
    """What is known of the evaluation sets.

    Attributes:
        names: of the sets.
        vocabulary: word to its number, from 1; 0 stands for words that no set has.
        grams: hashes of n-grams, sorted, with the set (its number) that each was seen in first.
        short: hash of a short question's first words to (its words' numbers, set) of those that begin so.
        prompts: hash of a whole prompt to its set.
    """

    names: list[str] = field(default_factory=list)
    vocabulary: dict[str, int] = field(default_factory=dict)
    grams: list[tuple[Hashes, int]] = field(default_factory=list)
    short: dict[int, list[tuple[tuple[int, ...], int]]] = field(default_factory=dict)
    prompts: dict[int, int] = field(default_factory=dict)


class Contamination:
    """Drops rows that overlap evaluation sets (n-gram decontamination: GPT-3, arXiv 2005.14165, appendix C).

    Words are those of `words`. Of an evaluation row its prompt or turns, its completion and its answer count; system
    messages do not, on either side: they are instructions that many rows share.
    - A text of n words or more gives its n-grams; a row's overlap is the share of the n-grams of its own texts that are
      among them, and the row is dropped when that is more than `overlap`.
    - A question (what the user says before the first reply) of fewer than n but at least 5 words is looked for whole,
      as words in a row, inside the row's texts; one hit counts like one n-gram.
    - A row whose whole prompt equals an evaluation prompt (NFKC, lower case, white space unified, punctuation kept) is
      dropped whatever its length and overlap.
    - An answer of fewer than n words proves nothing by itself (`42`, `yes`, `the mitochondria`) and is not looked for.
    """

    name = "contaminated"

    def __init__(self, config: Decontaminate) -> None:
        self._n, self._overlap = config.ngram, config.overlap
        self._by, self._short_by = multipliers(config.ngram, "ngram"), multipliers(WHOLE, "short")
        self._index = _Index()
        self._hashes: list[int] = [0]

    def read(self, name: str, rows: Iterable[Row]) -> None:
        """Take in an evaluation set."""
        index = self._index
        index.names.append(name)
        number = len(index.names) - 1
        for row in rows:
            for item in _compared(row):
                self._take(words(item.text), number)
            opening = words(_said(row, opening=True))
            if WHOLE <= len(opening) < self._n:
                numbers = tuple(self._number(word) for word in opening)
                key = int(ngram_hashes(self._table(numbers[:WHOLE]), self._short_by)[0])
                entry = (numbers, number)
                if all(known != numbers for known, _ in index.short.setdefault(key, [])):
                    index.short[key].append(entry)
            if prompt := plain(_said(row)):
                index.prompts.setdefault(hash64(prompt), number)

    def _take(self, found: tuple[str, ...], number: int) -> None:
        if len(found) >= self._n:
            hashes = self._table([self._number(word) for word in found])
            self._index.grams.append((ngram_hashes(hashes, self._by), number))

    def _number(self, word: str) -> int:
        number = self._index.vocabulary.setdefault(word, len(self._hashes))
        if number == len(self._hashes):
            self._hashes.append(hash64(word))
        return number

    def _table(self, numbers: Iterable[int]) -> Hashes:
        import numpy as np

        return np.array([self._hashes[number] for number in numbers], dtype=np.uint64)

    def close(self) -> None:
        """All sets are read: sort what is looked up."""
        import numpy as np

        index = self._index
        grams = [grams for grams, _ in index.grams]
        owners = [np.full(len(grams), number, dtype=np.uint16) for grams, number in index.grams]
        index.grams = []
        # np.unique gives each value's first place, so the first set that has an n-gram is the one that is named
        values, places = np.unique(np.concatenate([np.zeros(0, np.uint64), *grams]), return_index=True)
        self._grams = Lookup(values)
        self._owners = np.concatenate([np.zeros(0, np.uint16), *owners])[places]
        self._short = Lookup(np.array(sorted(index.short), dtype=np.uint64))
        self._word_hashes = np.array(self._hashes, dtype=np.uint64)
        self._least = min([self._n] if len(self._grams) else [], default=1 << 62)
        if len(self._short):
            self._least = min(self._least, WHOLE)

    def __call__(self, row: Row) -> Row:
        if (prompt := plain(_said(row))) and (number := self._index.prompts.get(hash64(prompt))) is not None:
            raise Reject("prompt" if "prompt" in row else "messages", self.name,
                         f"its prompt is one of {self._index.names[number]}: {prompt[:100]!r}")  # fmt: skip
        found = _Found()
        for item in _compared(row):
            self._look(item, found)
        if found.first is None or found.hits / max(1, found.windows) <= self._overlap:
            return row
        where, name, shown = found.first
        share = min(1.0, found.hits / max(1, found.windows))
        much = f"; {share:.0%} of its {self._n}-grams do, overlap is {self._overlap:g}" if self._overlap else ""
        raise Reject(where, self.name, f"{shown!r} stands in {name}{much}")

    def _look(self, item: Text, found: _Found) -> None:
        import numpy as np

        said = words(item.text)
        found.windows += max(0, len(said) - self._n + 1)
        if len(said) < self._least:
            return
        numbers = np.fromiter(map(self._index.vocabulary.get, said, repeat(0)), dtype=np.int64, count=len(said))
        if np.count_nonzero(numbers) < self._least:
            return
        hashes = self._word_hashes[numbers]
        if len(said) >= self._n and len(self._grams) and (hits := self._grams.find(ngram_hashes(hashes, self._by))):
            start, place = hits[0]
            owner = self._index.names[int(self._owners[place])]
            self._note(found, len(hits), item.field, owner, said[start : start + self._n])
        if len(self._short):
            self._look_short(item.field, said, numbers, hashes, found)

    def _look_short(
        self, where: str, said: tuple[str, ...], numbers: NDArray[np.int64], hashes: Hashes, found: _Found
    ) -> None:
        for start, place in self._short.find(ngram_hashes(hashes, self._short_by)):
            for short, number in self._index.short[int(self._short.values[place])]:
                if tuple(map(int, numbers[start : start + len(short)])) == short:
                    self._note(found, 1, where, self._index.names[number], said[start : start + len(short)])
                    break

    def _note(self, found: _Found, hits: int, where: str, name: str, shown: tuple[str, ...]) -> None:
        found.hits += hits
        found.first = found.first or (where, name, " ".join(shown))


def _compared(row: Row) -> Iterator[Text]:
    """The texts that count: all but system messages, and the answer."""
    for item in texts(row):
        if item.role != "system":
            yield item
    if "answer" in row:
        yield Text("answer", "assistant", row["answer"])


def _said(row: Row, *, opening: bool = False) -> str:
    """What the user says, all of it, or before the first reply."""
    said = []
    for item in texts(row):
        if item.role == "user":
            said.append(item.text)
        elif opening and item.role == "assistant":
            break
    return "\n".join(said)
