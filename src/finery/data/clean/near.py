"""Near duplicates: MinHash signatures, locality-sensitive hashing in bands, candidates verified, on disk."""

from __future__ import annotations

import math
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from finery.data.clean.hashing import hash64, multipliers, ngram_hashes, word_hashes
from finery.data.clean.texts import texts
from finery.data.clean.words import plain, words
from finery.data.dataset import Row
from finery.schemas.data import NearDuplicates as Config

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Signatures = NDArray[np.uint32]

PARTITIONS = 256
"""Files that band hashes are spread over by their first 8 bits, so that each can be sorted in memory."""
RECALL = 0.99
"""The least probability with which a pair whose Jaccard index is the threshold becomes a candidate."""
_BUFFER = 1 << 20
"""Numbers of signatures that are held in memory before they are written: 4 MiB."""
_CHUNK = 4096
"""Shingles that are permuted at once, so that a long text needs no more than num_perm * 16 KiB."""
_SEED = 1


def bands(threshold: float, num_perm: int) -> tuple[int, int]:
    """(bands, rows of a band) for a threshold.

    Two sets of Jaccard index s agree in all r rows of one of b bands with probability 1 - (1 - s^r)^b (Leskovec,
    Rajaraman and Ullman, Mining of Massive Datasets, section 3.4.2). The longest bands are taken for which that is at
    least RECALL at the threshold: what they let through in error is found out by comparing signatures.
    """
    for rows in range(num_perm, 1, -1):
        count = num_perm // rows
        if 1 - (1 - threshold**rows) ** count >= RECALL:
            return count, rows
    return num_perm, 1


class NearDuplicates:
    """Finds rows that nearly repeat an earlier one.

    Two rows are near when the Jaccard index of their sets of word n-grams, as their MinHash signatures estimate it
    (Broder 1997; the share of equal entries), is at least the threshold. Groups are the connected components of
    nearness: when A is near B and B near C, the three are a group, though A and C may be further apart. The first row
    of a group is kept. A row of fewer words than an n-gram has one shingle, the whole of it; system messages do not
    count.

    Memory does not grow with the rows: signatures (4 bytes a hash), band hashes (12 bytes a band) and the groups lie in
    files below `work`, which are removed at the end. The result depends on the rows and their order only.

    Args:
        config: threshold, n-gram, hashes of a signature, what is compared.
        work: a folder for the files; made if need be, anything of an earlier try in it is removed.
    """

    def __init__(self, config: Config, work: Path) -> None:
        import numpy as np
        from datasketch import MinHash

        self._config, self._work = config, work / "near"
        shutil.rmtree(self._work, ignore_errors=True)
        self._work.mkdir(parents=True)
        self._needed = math.ceil(config.threshold * config.num_perm - 1e-9)
        self._bands, self._rows = bands(config.threshold, config.num_perm)
        self._minhash = MinHash(config.num_perm, seed=_SEED, hashfunc=int, scheme="affine32")
        self._shingle_by, self._band_by = multipliers(config.ngram, "shingle"), multipliers(self._rows, "band")
        self._band_salt = multipliers(self._bands, "bands")
        self._buffer = np.empty((max(1, _BUFFER // config.num_perm), config.num_perm), dtype=np.uint32)
        self._indices: list[int] = []
        self._count = 0

    def add(self, index: int, row: Row) -> None:
        """Take in a row under the caller's number; of near rows the one that was added first is kept."""
        self._buffer[len(self._indices)] = self._signature(row)
        self._indices.append(index)
        if len(self._indices) == len(self._buffer):
            self._flush()

    def _signature(self, row: Row) -> Signatures:
        whole = self._config.compare == "row"
        said = [text for _, role, text in texts(row) if role == "user" or (whole and role != "system")]
        self._minhash.clear()
        shingles = self._shingles(said)
        for start in range(0, len(shingles), _CHUNK):
            self._minhash.update_batch(shingles[start : start + _CHUNK])
        values: Signatures = self._minhash.hashvalues
        return values

    def _shingles(self, said: list[str]) -> list[int]:
        """The n-grams of the texts, taken as one, as 32-bit hashes."""
        found = [word for text in said for word in words(text)]
        if not found:
            return [hash64(plain("\n".join(said))) >> 32]
        by = self._shingle_by if len(found) >= self._config.ngram else self._shingle_by[: len(found)]
        hashes: list[int] = (ngram_hashes(word_hashes(found, len(found)), by) >> 32).tolist()
        return hashes

    def _flush(self) -> None:
        import numpy as np

        count = len(self._indices)
        if not count:
            return
        signatures = self._buffer[:count]
        with open(self._work / "signatures", "ab") as file:
            file.write(signatures.tobytes())
        with open(self._work / "indices", "ab") as file:
            file.write(np.array(self._indices, dtype=np.int64).tobytes())
        entries = np.empty((self._bands, count), dtype=_ENTRY)
        entries["row"] = np.arange(self._count, self._count + count, dtype=np.uint32)
        for band in range(self._bands):
            part = signatures[:, band * self._rows : (band + 1) * self._rows].astype(np.uint64)
            entries["hash"][band] = _mixed(part @ self._band_by + self._band_salt[band])
        flat = entries.ravel()
        partition = (flat["hash"] >> np.uint64(56)).astype(np.uint8)
        order = np.argsort(partition, kind="stable")
        ends = np.cumsum(np.bincount(partition, minlength=PARTITIONS))
        for number, piece in enumerate(np.split(flat[order], ends[:-1])):
            if len(piece):
                with open(self._work / f"bands-{number:03}", "ab") as file:
                    file.write(piece.tobytes())
        self._count += count
        self._indices = []

    def duplicates(self) -> Iterator[tuple[int, int]]:
        """(number of a row to drop, number of the kept row of its group), in the order of the rows; call it once."""
        try:
            self._flush()
            if self._count:
                yield from self._grouped()
        finally:
            shutil.rmtree(self._work)

    def _grouped(self) -> Iterator[tuple[int, int]]:
        import numpy as np

        groups = _Groups(self._work / "groups", self._count)
        with open(self._work / "signatures", "rb") as file:
            for number in range(PARTITIONS):
                path = self._work / f"bands-{number:03}"
                if path.exists():
                    for bucket in _buckets(np.fromfile(path, dtype=_ENTRY)):
                        self._compare(bucket, file.fileno(), groups)
                    path.unlink()
        indices = np.memmap(self._work / "indices", dtype=np.int64, mode="r")
        for row, first in groups.members():
            yield int(indices[row]), int(indices[first])

    def _compare(self, bucket: list[int], file: int, groups: _Groups) -> None:
        """Join the rows of one bucket that are near.

        Each row is compared with the bucket's leaders, which are rows that are near no leader before them; rows that
        another bucket has joined already are not compared again.
        """
        import numpy as np

        if len({groups.root(row) for row in bucket}) == 1:
            return
        leaders = np.empty((2, self._config.num_perm), dtype=np.uint32)
        led: list[int] = []
        roots: set[int] = set()
        for row in bucket:
            if roots == {groups.root(row)}:
                continue
            signature = _read(file, row, self._config.num_perm)
            equal = np.count_nonzero(leaders[: len(led)] == signature, axis=1)
            near = np.flatnonzero(equal >= self._needed).tolist()
            for place in near:
                groups.join(led[place], row)
            if near:
                roots = {groups.root(leader) for leader in led}
            if groups.root(row) not in roots:
                if len(led) == len(leaders):
                    leaders = np.concatenate([leaders, np.empty_like(leaders)])
                leaders[len(led)] = signature
                led.append(row)
                roots.add(groups.root(row))


class _Groups:
    """Union-find over rows in a file of 4 bytes a row; the root of a group is its first row."""

    def __init__(self, path: Path, count: int) -> None:
        import numpy as np

        self._parents: Any = np.memmap(path, dtype=np.uint32, mode="w+", shape=(count,))
        self._count = count
        for start in range(0, count, _BUFFER):
            end = min(count, start + _BUFFER)
            self._parents[start:end] = np.arange(start, end, dtype=np.uint32)

    def root(self, row: int) -> int:
        parents = self._parents
        while (parent := int(parents[row])) != row:
            above = int(parents[parent])
            parents[row] = above
            row = above
        return row

    def join(self, one: int, other: int) -> None:
        first, second = sorted((self.root(one), self.root(other)))
        self._parents[second] = first

    def members(self) -> Iterator[tuple[int, int]]:
        """(row, first row of its group) of every row that is not the first, in order."""
        import numpy as np

        for start in range(0, self._count, _BUFFER):
            piece = np.array(self._parents[start : start + _BUFFER])
            for place in np.flatnonzero(piece != np.arange(start, start + len(piece), dtype=np.uint32)):
                row = start + int(place)
                yield row, self.root(row)


_ENTRY = [("hash", "<u8"), ("row", "<u4")]


def _mixed(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """MurmurHash3's 64-bit finalizer, so that all bits tell: partitions go by the high ones."""
    import numpy as np

    for factor in (0xFF51AFD7ED558CCD, 0xC4CEB9FE1A85EC53):
        values = (values ^ (values >> np.uint64(33))) * np.uint64(factor)
    return values ^ (values >> np.uint64(33))


def _buckets(entries: NDArray[Any]) -> Iterator[list[int]]:
    """The rows that share a band's hash, in order, of one partition's entries; rows alone are left out."""
    import numpy as np

    entries = entries[np.argsort(entries["hash"], kind="stable")]
    same = np.flatnonzero(entries["hash"][1:] == entries["hash"][:-1])
    if not len(same):
        return
    breaks = np.flatnonzero(np.diff(same) > 1)
    starts, ends = same[np.r_[0, breaks + 1]], same[np.r_[breaks, len(same) - 1]] + 2
    for start, end in zip(starts.tolist(), ends.tolist(), strict=True):
        yield entries["row"][start:end].tolist()


def _read(file: int, row: int, num_perm: int) -> Signatures:
    import numpy as np

    return np.frombuffer(os.pread(file, 4 * num_perm, 4 * num_perm * row), dtype=np.uint32)
