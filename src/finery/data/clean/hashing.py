"""Hashes of n-grams: 64 bits, the same on every machine and in every process."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import TYPE_CHECKING
from zlib import crc32

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Hashes = NDArray[np.uint64]


def hash64(text: str, salt: str = "") -> int:
    """BLAKE2b of a text, 64 bits."""
    digest = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8, person=salt.encode()).digest()
    return int.from_bytes(digest, "little")


def multipliers(count: int, salt: str) -> Hashes:
    """`count` odd 64-bit numbers, drawn by hashing their place; salts make independent ones."""
    import numpy as np

    return np.array([hash64(str(place), salt) | 1 for place in range(count)], dtype=np.uint64)


def word_hashes(words: Iterable[str], count: int) -> Hashes:
    """CRC-32 of each of `count` words: cheap, and multiplied by 64-bit numbers before anything is told by it."""
    import numpy as np

    return np.fromiter(map(crc32, map(str.encode, words)), dtype=np.uint64, count=count)


def ngram_hashes(hashes: Hashes, by: Hashes) -> Hashes:
    """Hashes of all n-grams of a sequence: h_i = sum over j of hashes[i + j] * by[j] mod 2^64.

    Multilinear hashing (Lemire and Kaser, arXiv 1202.4961, section 3); the high bits are the good ones.

    Args:
        hashes: uint64, [length]; at least as many as `by`.
        by: uint64, [n].

    Returns:
        uint64, [length - n + 1].
    """
    import numpy as np

    return np.correlate(hashes, by, "valid")


class Lookup:
    """A set of 64-bit hashes, 8 bytes each, that is asked about whole rows at once.

    Args:
        values: uint64, sorted, without repeats.
    """

    def __init__(self, values: Hashes) -> None:
        import numpy as np

        self.values = values
        bits = min(24, max(10, (64 * len(values)).bit_length()))
        self._shift = np.uint64(64 - bits)
        self._filter = np.zeros(1 << bits, dtype=np.bool_)
        self._filter[values >> self._shift] = True

    def __len__(self) -> int:
        return len(self.values)

    def find(self, hashes: Hashes) -> list[tuple[int, int]]:
        """(place in `hashes`, place in `values`) of those in the set; most rows end at a filter of high bits."""
        import numpy as np

        maybe = self._filter[hashes >> self._shift]
        if not maybe.any():
            return []
        asked = np.flatnonzero(maybe)
        at = np.minimum(np.searchsorted(self.values, hashes[asked]), len(self.values) - 1)
        hit = self.values[at] == hashes[asked]
        return list(zip(asked[hit].tolist(), at[hit].tolist(), strict=True))
