"""Batches: which rows a step takes, as a pure function of (seed, epoch, step), and their padding.

B is rows of a sub-batch, T its padded length, N the rows of a data set.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import Dataset

from finery.training.encode import IGNORED, Encoded

SPLIT_COST = 128
"""What one more sub-batch costs beside its tokens, in tokens, on a CPU (measured on 0.3M parameters)."""

SubBatch = dict[str, torch.Tensor]
"""`input_ids`, `attention_mask` and `labels`, int64 [B, T], padded on the right."""


class Feed(Dataset):  # type: ignore[type-arg]
    """The micro-batches of an epoch; item i of epoch e depends on (seed, e, i) alone, so resuming needs no state.

    Own rows are one pass over the data for each epoch, its last micro-batch the remainder. Replay rows are taken from
    an endless stream of passes over the replay data, at the place that (e, i) has in it. A pass is a permutation, or
    what `Passes` makes of weights or an order.

    Args:
        own: the stage's data.
        batch_size: own rows of a micro-batch.
        seed: of the passes.
        replay: data shown beside it, or None.
        replay_batch_size: its rows of a micro-batch.
        pad_id: any token id; padding is masked by position.
        split: whether a micro-batch is split into sub-batches of rows of similar length (the same loss).
    """

    def __init__(
        self,
        own: Encoded,
        batch_size: int,
        seed: int,
        *,
        replay: Encoded | None = None,
        replay_batch_size: int = 0,
        pad_id: int = 0,
        split: bool = True,
    ) -> None:
        self.own, self.batch_size, self.seed = own, batch_size, seed
        self.replay, self.replay_batch_size = replay, replay_batch_size
        self.pad_id, self.split = pad_id, split
        self._epoch = 0
        self._own = Passes(own, seed, "own")
        self._replay = Passes(replay, seed, "replay") if replay is not None else None

    def __len__(self) -> int:
        return -(-len(self.own) // self.batch_size)

    def set_epoch(self, epoch: int) -> None:
        """Called by the Trainer at the start of each epoch."""
        self._epoch = epoch

    def __getitem__(self, index: int) -> dict[str, list[SubBatch]]:
        own, replay = self.rows(index)
        batch = {"own": self.pad(self.own, own)}
        if self.replay is not None:
            batch["replay"] = self.pad(self.replay, replay)
        return batch

    def rows(self, index: int) -> tuple[list[int], list[int]]:
        """The own and the replay rows of micro-batch `index` of the current epoch, as positions in their data."""
        order = self._own.rows(self._epoch)
        own = order[index * self.batch_size : (index + 1) * self.batch_size].tolist()
        if self._replay is None or self.replay is None:
            return own, []
        first = (self._epoch * len(self) + index) * self.replay_batch_size
        size = len(self.replay)
        places = range(first, first + self.replay_batch_size)
        return own, [int(self._replay.rows(place // size)[place % size]) for place in places]

    def pad(self, data: Encoded, rows: Sequence[int]) -> list[SubBatch]:
        """Those rows as sub-batches."""
        lengths = data.lengths[list(rows)].tolist()
        groups = split_by_length(lengths, SPLIT_COST) if self.split else [list(range(len(rows)))]
        return [pad([data.row(rows[place]) for place in group], self.pad_id) for group in groups]


class Passes:
    """The rows of each pass over a data set, N of them, from (seed, stream, pass) alone.

    Args:
        data: with an order, every pass is that order; with weights, a pass is N draws with replacement, each row with
            probability weight / sum of weights; else a permutation.
        seed: of the draws.
        stream: keeps apart what is drawn from one seed.
    """

    def __init__(self, data: Encoded, seed: int, stream: str) -> None:
        self._size, self._weights, self._seed, self._stream = len(data), data.weights, seed, stream
        self._order = np.arange(len(data)) if data.ordered else None
        self._last: tuple[int, NDArray[np.int64]] | None = None

    def rows(self, index: int) -> NDArray[np.int64]:
        """Positions in the data, int64 [N]."""
        if self._order is not None:
            return self._order
        if self._weights is None:
            return permutation(self._size, self._seed, self._stream, index)
        if self._last is None or self._last[0] != index:
            self._last = (index, weighted(self._weights, self._seed, self._stream, index))
        return self._last[1]


def pad(rows: Sequence[tuple[NDArray[np.int32], NDArray[np.int32]]], pad_id: int) -> SubBatch:
    """Rows of (token ids, labels) as one sub-batch; labels of padding are IGNORED whatever its token id (case T1)."""
    width = max(len(ids) for ids, _ in rows)
    input_ids = np.full((len(rows), width), pad_id, dtype=np.int64)
    labels = np.full((len(rows), width), IGNORED, dtype=np.int64)
    mask = np.zeros((len(rows), width), dtype=np.int64)
    for place, (ids, targets) in enumerate(rows):
        input_ids[place, : len(ids)] = ids
        labels[place, : len(ids)] = targets
        mask[place, : len(ids)] = 1
    return {
        "input_ids": torch.from_numpy(input_ids),
        "attention_mask": torch.from_numpy(mask),
        "labels": torch.from_numpy(labels),
    }


def split_by_length(lengths: Sequence[int], cost: int) -> list[list[int]]:
    """Positions grouped by length so that padded tokens plus `cost` a group are fewest; longest group last.

    Rows sorted by length are cut at some of the places where the length rises; the best cuts are found exactly.
    """
    order = sorted(range(len(lengths)), key=lambda place: (lengths[place], place))
    sizes = [lengths[place] for place in order]
    cuts = [end for end in range(1, len(sizes)) if sizes[end] > sizes[end - 1]] + [len(sizes)]
    best: dict[int, tuple[int, int]] = {0: (0, 0)}
    for end in cuts:
        best[end] = min((best[start][0] + (end - start) * sizes[end - 1] + cost, start) for start in best)
    groups: list[list[int]] = []
    end = len(sizes)
    while end:
        start = best[end][1]
        groups.append(order[start:end])
        end = start
    return groups[::-1]


def targets(batch: Sequence[SubBatch]) -> int:
    """Tokens to be predicted: labels that count, the first position of a row excepted."""
    return sum(int((part["labels"][:, 1:] != IGNORED).sum()) for part in batch)


def first_item(items: Sequence[Any]) -> Any:
    """A collate function for data whose items are batches already."""
    return items[0]


@lru_cache(maxsize=4)
def permutation(size: int, seed: int, stream: str, index: int) -> NDArray[np.int64]:
    """The index-th permutation of range(size) in a stream, from (seed, stream, index) alone."""
    return np.argsort(_random(size, seed, stream, index), kind="stable")


def weighted(weights: NDArray[np.float64], seed: int, stream: str, index: int) -> NDArray[np.int64]:
    """The index-th N draws with replacement from N rows by weight, int64 [N], by inversion of the cumulated weights."""
    ends = np.cumsum(weights)
    uniform = (_random(len(weights), seed, f"{stream}/weighted", index) >> np.uint64(11)) * 2.0**-53
    rows: NDArray[np.int64] = np.searchsorted(ends, uniform * ends[-1], side="right").astype(np.int64)
    return np.minimum(rows, len(weights) - 1)


def _random(size: int, seed: int, stream: str, index: int) -> NDArray[np.uint64]:
    """uint64 [size]: the raw output of Philox, which numpy keeps from version to version."""
    digest = hashlib.sha256(f"{seed}/{stream}/{index}".encode()).digest()
    return np.random.Philox(key=int.from_bytes(digest[:16], "little")).random_raw(size)
