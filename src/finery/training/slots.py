"""Decoding in slots: a key/value cache that is written in place, whose freed rows are taken by waiting prompts.

W is the slots, B those in use (always the first B), P the prompts prefilled together, L a cache's columns, H the
key/value heads, D their size, T the most tokens drawn. A row's columns begin at 0 and have no gap, so a row may
enter at any step and the batch needs no common length; what is beyond a row's length is masked.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from transformers import DynamicCache
from transformers.cache_utils import Cache, DynamicLayer

from finery.schemas.training import Sampling
from finery.training.drawing import Forward, left_padded, pick, wide

REFILL_AT = 0.5
"""Waiting prompts are prefilled once this part of the slots is free: a prefill costs a small model what a step does."""

SPARE = 16
"""The cache has at most a part in so many more columns than are in use, but 4 at least: rows that do not lie close
together in memory are read half as fast (measured on a CPU), and growing copies them all."""

Draws = Callable[[int, int], np.ndarray]
"""(row, completion) to float64 [T] in [0, 1)."""


@dataclass
class _Waiting:
    """A prompt some of whose completions have no slot yet, and its keys, values and logits [1, V], once made."""

    row: int
    prompt: list[int]
    taken: int = 0
    prefilled: tuple[DynamicCache, torch.Tensor] | None = None


class _SlotLayer(DynamicLayer):  # type: ignore[misc]
    """The keys and values of one layer, each [W, H, L, D]."""

    keys: torch.Tensor
    values: torch.Tensor
    is_initialized: bool

    def __init__(self, slots: _SlotCache) -> None:
        super().__init__()
        self._slots = slots

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: object, **kwargs: object
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """One token a row in, at the row's own column; out comes all that the rows may look at."""
        slots, count = self._slots, len(key_states)
        # a view of [W H L, D], and where in it each head's line goes
        lines = slots.lines(self.keys.shape[1])
        for own, new in ((self.keys, key_states), (self.values, value_states)):
            own.view(-1, own.shape[3]).index_copy_(0, lines, new.reshape(-1, new.shape[3]))
        return self.keys[:count, :, : slots.length], self.values[:count, :, : slots.length]

    def get_seq_length(self) -> int:
        """The tokens before the one that is being stepped."""
        return self._slots.length - 1

    def resize(self, keys: torch.Tensor, values: torch.Tensor, width: int, columns: int) -> None:
        """Room for `width` rows of `columns` columns like those given, and in it what there was."""
        had = self.is_initialized
        self.keys = _resized(self.keys if had else None, keys, width, columns)
        self.values = _resized(self.values if had else None, values, width, columns)
        self.is_initialized = True


def _resized(own: torch.Tensor | None, like: torch.Tensor, width: int, columns: int) -> torch.Tensor:
    new = like.new_empty((width, like.shape[1], columns, like.shape[3]))
    kept = 0
    if own is not None:
        kept = min(columns, own.shape[2])
        new[:, :, :kept] = own[:, :, :kept]
    # a masked column counts for nothing only if it holds a number
    new[:, :, kept:] = 0
    return new


class _SlotCache(Cache):  # type: ignore[misc]
    """W rows of keys and values.

    Attributes:
        length: the columns that any row in use has, the token being stepped included.
    """

    layers: list[_SlotLayer]

    def __init__(self, layers: int, width: int) -> None:
        super().__init__(layers=[_SlotLayer(self) for _ in range(layers)])
        self._width, self._columns = width, 0
        self.length = 0
        self._columns_B = torch.empty(0, dtype=torch.long)
        self._lines: dict[int, torch.Tensor] = {}

    def begin(self, columns_B: torch.Tensor, length: int) -> None:
        """A step of the first B rows, whose tokens go into the columns given."""
        self.reserve(length)
        self.length, self._columns_B = length, columns_B
        self._lines = {}

    def lines(self, heads: int) -> torch.Tensor:
        """Where a step's tokens go, int64 [B * heads], in rows of `heads` heads and as many columns as there are."""
        if heads not in self._lines:
            device = self._columns_B.device
            rows_B1 = torch.arange(len(self._columns_B), device=device)[:, None]
            lines_BH = (rows_B1 * heads + torch.arange(heads, device=device)) * self._columns
            self._lines[heads] = (lines_BH + self._columns_B[:, None]).view(-1)
        return self._lines[heads]

    def reserve(self, columns: int) -> None:
        """Room for so many columns, and not for many more."""
        spare = max(4, columns // SPARE)
        if columns <= self._columns <= columns + 2 * spare:
            return
        self._columns = columns + spare - 1
        for layer in self.layers:
            if layer.is_initialized:
                layer.resize(layer.keys, layer.values, self._width, self._columns)

    def place(self, prefilled: DynamicCache, lengths_P: list[int], repeats_P: list[int], at: int) -> None:
        """The prompts' keys and values into the slots from `at` on, each prompt's repeats_P times."""
        device = prefilled.layers[0].keys.device
        width, total = max(lengths_P), sum(repeats_P)
        spread_B = torch.repeat_interleave(torch.tensor(repeats_P, device=device))
        # from left-padded rows to rows that begin at column 0; what is past a row's end is some token's, and masked
        shift_P1 = width - torch.tensor(lengths_P, device=device)[:, None]
        columns_PL = (torch.arange(width, device=device) + shift_P1).clamp(max=width - 1)
        for layer, filled in zip(self.layers, prefilled.layers, strict=True):
            if not layer.is_initialized:
                layer.resize(filled.keys, filled.values, self._width, self._columns)
            for own, other in ((layer.keys, filled.keys), (layer.values, filled.values)):
                index = columns_PL[:, None, :, None].expand(-1, other.shape[1], -1, other.shape[3])
                own[at : at + total, :, :width] = other.gather(2, index)[spread_B]

    def move(self, sources: torch.Tensor, targets: torch.Tensor, columns: int) -> None:
        """Rows of at most so many columns to where others were."""
        for layer in self.layers:
            for own in (layer.keys, layer.values):
                own[targets, :, :columns] = own[sources, :, :columns]


class Slots:
    """One model's loop: prefill what waits into free slots, step them all, let go of what has ended."""

    def __init__(
        self, forward: Forward, sampling: Sampling, *, ends: Sequence[int], pad: int, width: int, draws: Draws | None
    ) -> None:
        """`width` is W; without `draws` the likeliest tokens are taken."""
        self._forward, self._sampling, self._pad, self._width, self._draws = forward, sampling, pad, width, draws
        self._ends = np.array(ends)
        self._device = forward.model.device
        self._cache = _SlotCache(len(DynamicCache(config=forward.inner.config).layers), width)
        steps = sampling.max_completion_length
        # of each slot: whose it is, the columns it fills, the tokens drawn, and their random numbers
        self._owners_W2 = np.zeros((width, 2), dtype=np.int64)
        self._lengths_W = np.zeros(width, dtype=np.int64)
        self._counts_W = np.zeros(width, dtype=np.int64)
        self._tokens_WT = np.zeros((width, steps), dtype=np.int64)
        self._draws_WT = np.zeros((width, steps)) if draws is not None else None
        self._used = 0

    def run(self, prompts: Sequence[list[int]], n: int) -> Iterator[tuple[int, int, list[int]]]:
        """(prompt, completion, token ids) of n completions for each prompt, as they end; the longest prompts first."""
        order = sorted(range(len(prompts)), key=lambda row: (-len(prompts[row]), row))
        waiting = deque(_Waiting(row, prompts[row]) for row in order)
        enough = max(1, int(self._width * REFILL_AT))
        while waiting or self._used:
            start = 0
            if waiting and (self._used == 0 or self._width - self._used >= enough):
                start = self._used
                logits_BV = self._admit(waiting, n)
            else:
                logits_BV = self._step()
            yield from self._release(self._draw(logits_BV, start))

    def _admit(self, waiting: deque[_Waiting], n: int) -> torch.Tensor:
        """Prompts into all free slots; the logits [B, V] of the slots they got."""
        parts: list[tuple[_Waiting, int]] = []
        free = self._width - self._used
        while waiting and free:
            part = min(free, n - waiting[0].taken)
            parts.append((waiting[0], part))
            free -= part
            if waiting[0].taken + part == n:
                waiting.popleft()
            else:
                break
        fresh = [one for one in parts if one[0].prefilled is None]
        logits = [self._place(*one.prefilled, [(one, part)]) for one, part in parts if one.prefilled is not None]
        if fresh:
            cache = DynamicCache(config=self._forward.inner.config)
            ids_PL, mask_PL = left_padded([one.prompt for one, _ in fresh], self._pad, self._device)
            logits_PV = self._forward(ids_PL, mask_PL, (mask_PL.cumsum(1) - 1).clamp(min=0), cache)
            logits.append(self._place(cache, logits_PV, fresh))
            last = fresh[-1][0]
            if last.taken < n:
                last.prefilled = self._alone(cache, len(last.prompt)), logits_PV[-1:].clone()
        return torch.cat(logits)

    def _alone(self, cache: DynamicCache, length: int) -> DynamicCache:
        """The last prompt's part of a prefill, for its completions that found no slot."""
        alone = DynamicCache(config=self._forward.inner.config)
        for index, layer in enumerate(cache.layers):
            alone.update(layer.keys[-1:, :, -length:], layer.values[-1:, :, -length:], index)
        return alone

    def _place(self, cache: DynamicCache, logits_PV: torch.Tensor, parts: list[tuple[_Waiting, int]]) -> torch.Tensor:
        lengths, repeats = [len(one.prompt) for one, _ in parts], [part for _, part in parts]
        self._cache.reserve(max(lengths[0], int(self._lengths_W[: self._used].max(initial=0))) + 1)
        self._cache.place(cache, lengths, repeats, self._used)
        for one, part in parts:
            for index in range(one.taken, one.taken + part):
                slot = self._used
                self._owners_W2[slot] = one.row, index
                self._lengths_W[slot], self._counts_W[slot] = len(one.prompt), 0
                if self._draws is not None and self._draws_WT is not None:
                    self._draws_WT[slot] = self._draws(one.row, index)
                self._used += 1
            one.taken += part
        return logits_PV.repeat_interleave(torch.tensor(repeats, device=self._device), dim=0)

    def _step(self) -> torch.Tensor:
        """The logits [B, V] after each slot's last token."""
        used = self._used
        lengths_B = self._lengths_W[:used]
        length = int(lengths_B.max()) + 1
        columns_B = torch.tensor(lengths_B, device=self._device)
        self._cache.begin(columns_B, length)
        last_B = torch.tensor(self._tokens_WT[np.arange(used), self._counts_W[:used] - 1], device=self._device)
        mask_BL = torch.arange(length, device=self._device) <= columns_B[:, None]
        logits_BV = self._forward(last_B[:, None], mask_BL[:, None, None], columns_B[:, None], self._cache)
        lengths_B += 1
        return logits_BV

    def _draw(self, logits_BV: torch.Tensor, start: int) -> np.ndarray:
        """A token for each slot from `start` on; the slots, int64, that end with it."""
        slots = np.arange(start, self._used)
        counts = self._counts_W[slots]
        draws_B = None
        if self._draws_WT is not None:
            draws_B = torch.from_numpy(self._draws_WT[slots, counts]).to(self._device, wide(self._device))
        drawn = pick(logits_BV, draws_B, self._sampling).cpu().numpy()
        self._tokens_WT[slots, counts] = drawn
        self._counts_W[slots] += 1
        ended = np.isin(drawn, self._ends) | (counts + 1 == self._sampling.max_completion_length)
        if self._forward.limit is not None:
            ended |= self._lengths_W[slots] >= self._forward.limit
        ended_slots: np.ndarray = slots[ended]
        return ended_slots

    def _release(self, ended: np.ndarray) -> Iterator[tuple[int, int, list[int]]]:
        """What the ended slots hold; slots in use at the end take their places."""
        if not len(ended):
            return
        done = [
            (*self._owners_W2[slot].tolist(), self._tokens_WT[slot, : self._counts_W[slot]].tolist()) for slot in ended
        ]
        left = self._used - len(ended)
        targets = ended[ended < left]
        sources = np.setdiff1d(np.arange(left, self._used), ended, assume_unique=True)
        if len(targets):
            columns = int(self._lengths_W[sources].max())
            source, target = (torch.from_numpy(which).to(self._device) for which in (sources, targets))
            self._cache.move(source, target, columns)
            for state in (self._owners_W2, self._lengths_W, self._counts_W, self._tokens_WT, self._draws_WT):
                if state is not None:
                    state[targets] = state[sources]
        self._used = left
        yield from done
