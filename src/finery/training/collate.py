"""Batches: which rows a step takes, as a pure function of (seed, epoch, step), and their padding.

B is rows of a sub-batch, T its padded length, N the rows of a data set.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import Dataset

from finery.training.encode import IGNORED, Encoded
from finery.training.packing import bins, lay

SPLIT_COST = 128
"""What one more sub-batch costs beside its tokens, in tokens, on a CPU (measured on 0.3M parameters)."""

GROUP = 50
"""Batches among which rows are sorted by length, as many as transformers' LengthGroupedSampler takes."""

SubBatch = dict[str, Any]
"""`input_ids`, `attention_mask` and `labels`, int64 [B, T], padded on the right; or a packed one (packing.lay)."""


@dataclass(frozen=True)
class Layout:
    """How rows become batches.

    Attributes:
        capacity: rows are packed into sequences of at most so many tokens; 0 pads them.
        bounds: packed rows all stand in one sequence, with the bounds that FlashAttention reads.
        by_length: rows of similar length share a batch.
        split: a padded batch is split into sub-batches of rows of similar length (the same loss).
    """

    capacity: int = 0
    bounds: bool = False
    by_length: bool = False
    split: bool = True


PADDED = Layout()


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
        layout: how rows become batches. With a capacity, `batch_size` counts the sequences that own rows are packed
            into; which rows share one is settled once, so every epoch has as many.
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
        layout: Layout = PADDED,
    ) -> None:
        self.own, self.batch_size, self.seed = own, batch_size, seed
        self.replay, self.replay_batch_size = replay, replay_batch_size
        self.pad_id, self.layout = pad_id, layout
        self._epoch = 0
        self._bins = bins(own.lengths.tolist(), layout.capacity, in_order=own.ordered) if layout.capacity else None
        self._own = Passes(own, seed, "own", units=len(self._bins) if self._bins else None)
        self._grouped: tuple[int, NDArray[np.int64]] | None = None
        self._replay = Passes(replay, seed, "replay") if replay is not None else None

    def __len__(self) -> int:
        return -(-len(self._bins or self.own) // self.batch_size)

    def set_epoch(self, epoch: int) -> None:
        """Called by the Trainer at the start of each epoch."""
        self._epoch = epoch

    def __getitem__(self, index: int) -> dict[str, list[SubBatch]]:
        own, replay = self.rows(index)
        batch = {"own": self.pad(self.own, own)}
        if self.replay is not None:
            batch["replay"] = self.pad(self.replay, replay)
        return batch

    def nothing(self) -> dict[str, list[SubBatch]]:
        """A micro-batch in which no token counts, for a process that has none while others have one."""
        streams = {"own": self.own} | ({"replay": self.replay} if self.replay is not None else {})
        return {name: [unlabelled(part) for part in self.pad(data, [0])] for name, data in streams.items()}

    def rows(self, index: int) -> tuple[list[int], list[int]]:
        """The own and the replay rows of micro-batch `index` of the current epoch, as positions in their data."""
        own = self._order()[index * self.batch_size : (index + 1) * self.batch_size].tolist()
        if self._bins:
            own = [row for unit in own for row in self._bins[unit]]
        if self._replay is None or self.replay is None:
            return own, []
        first = (self._epoch * len(self) + index) * self.replay_batch_size
        size = len(self.replay)
        places = range(first, first + self.replay_batch_size)
        return own, [int(self._replay.rows(place // size)[place % size]) for place in places]

    def _order(self) -> NDArray[np.int64]:
        """The rows of the current epoch, or the sequences they are packed into, as positions."""
        order = self._own.rows(self._epoch)
        if not self.layout.by_length:
            return order
        if self._grouped is None or self._grouped[0] != self._epoch:
            batches = by_length(order, self.own.lengths, self.batch_size, self.seed, self._epoch)
            self._grouped = (self._epoch, batches)
        return self._grouped[1]

    def pad(self, data: Encoded, rows: Sequence[int]) -> list[SubBatch]:
        """Those rows as sub-batches, packed or padded."""
        lengths = data.lengths[list(rows)].tolist()
        if self.layout.capacity:
            groups = [list(range(len(rows)))] if self.layout.bounds else bins(lengths, self.layout.capacity)
            return [lay([data.row(rows[n]) for n in group], bounds=self.layout.bounds) for group in groups]
        groups = split_by_length(lengths, SPLIT_COST) if self.layout.split else [list(range(len(rows)))]
        return [pad([data.row(rows[place]) for place in group], self.pad_id) for group in groups]


class Passes:
    """The rows of each pass over a data set, N of them, from (seed, stream, pass) alone.

    Args:
        data: with an order, every pass is that order; with weights, a pass is N draws with replacement, each row with
            probability weight / sum of weights; else a permutation.
        seed: of the draws.
        stream: keeps apart what is drawn from one seed.
        units: what a pass is over in place of rows, when rows are packed; those have no weights.
    """

    def __init__(self, data: Encoded, seed: int, stream: str, units: int | None = None) -> None:
        self._size = len(data) if units is None else units
        self._weights, self._seed, self._stream = data.weights, seed, stream
        self._order = np.arange(self._size) if data.ordered else None
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


def by_length(
    order: NDArray[np.int64], lengths: NDArray[np.int64], batch_size: int, seed: int, index: int
) -> NDArray[np.int64]:
    """A pass rearranged so that rows of similar length share a batch, int64 [N].

    Among every GROUP batches rows are sorted by length; the batches are then shuffled. The one with the longest row of
    all comes first, so that a shortage of memory shows at the first step.

    Args:
        order: positions of rows, as the pass has them.
        lengths: tokens of each row.
    """
    span = batch_size * GROUP
    parts = [order[start : start + span] for start in range(0, len(order), span)]
    ordered = np.concatenate([part[np.argsort(-lengths[part], kind="stable")] for part in parts])
    batches = [ordered[start : start + batch_size] for start in range(0, len(ordered), batch_size)]
    last = [batches.pop()] if len(batches[-1]) < batch_size and len(batches) > 1 else []  # whole batches first
    shuffled = [batches[place] for place in permutation(len(batches), seed, "by_length", index)]
    longest = max(range(len(shuffled)), key=lambda place: int(lengths[shuffled[place]].max()))
    shuffled.insert(0, shuffled.pop(longest))
    return np.concatenate([*shuffled, *last])


def unlabelled(part: SubBatch) -> SubBatch:
    """The same sub-batch with no token to be predicted."""
    return {**part, "labels": torch.full_like(part["labels"], IGNORED)}


def tokens(part: SubBatch) -> int:
    """Tokens of a sub-batch, padding left out; a packed one has none."""
    mask = part.get("attention_mask")
    return int(mask.sum()) if mask is not None else part["input_ids"].numel()


def targets(batch: Sequence[SubBatch]) -> int:
    """Tokens to be predicted: labels that count, the first position of a row excepted."""
    return sum(int((part["labels"][:, 1:] != IGNORED).sum()) for part in batch)


def first_item(items: Sequence[Any]) -> Any:
    """A collate function for data whose items are batches already."""
    return items[0]


@lru_cache(maxsize=4)
def permutation(size: int, seed: int, stream: str, index: int) -> NDArray[np.int64]:
    """The index-th permutation of range(size) in a stream, from (seed, stream, index) alone."""
    return np.argsort(random_numbers(size, seed, stream, index), kind="stable")


def weighted(weights: NDArray[np.float64], seed: int, stream: str, index: int) -> NDArray[np.int64]:
    """The index-th N draws with replacement from N rows by weight, int64 [N], by inversion of the cumulated weights."""
    ends = np.cumsum(weights)
    uniform = (random_numbers(len(weights), seed, f"{stream}/weighted", index) >> np.uint64(11)) * 2.0**-53
    rows: NDArray[np.int64] = np.searchsorted(ends, uniform * ends[-1], side="right").astype(np.int64)
    return np.minimum(rows, len(weights) - 1)


def random_numbers(size: int, seed: int, stream: str, index: int) -> NDArray[np.uint64]:
    """uint64 [size]: the raw output of Philox, which numpy keeps from version to version."""
    digest = hashlib.sha256(f"{seed}/{stream}/{index}".encode()).digest()
    return np.random.Philox(key=int.from_bytes(digest[:16], "little")).random_raw(size)
