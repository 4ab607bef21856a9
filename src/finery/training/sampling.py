"""Completions from any causal LM, in left-padded batches on a key/value cache.

P is the prompts of a batch, B its completions, L a prompt's length, T the tokens drawn, V the vocabulary. Every
random number is a function of (seed, row id, sample index, position), so the batch that a completion was drawn
in acts only through rounding.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from transformers import DynamicCache, PreTrainedModel, PreTrainedTokenizerBase
from transformers.cache_utils import DynamicLayer

from finery.errors import InputError
from finery.schemas.training import Sampling
from finery.training.drawing import Forward, left_padded, pick, positions_of, wide
from finery.training.rendering import end_ids_of, render_prompts
from finery.training.slots import Draws, Slots

COMPACT_AT = 0.25
"""Finished rows leave the batch once they are this part of it: the cache is copied then, as at every step."""


@dataclass(frozen=True)
class Completion:
    """One completion.

    Attributes:
        text: decoded without special tokens, not stripped.
        token_ids: as drawn, with the end token if one came.
        truncated: whether it was cut before an end token came.
    """

    text: str
    token_ids: list[int]
    truncated: bool


_stream = threading.local()


def sample(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    rows: Sequence[Mapping[str, Any]],
    *,
    n: int,
    sampling: Sampling,
    seed: int,
    greedy: bool = False,
    first: int = 0,
    batch_size: int = 64,
    progress: Callable[[int, int], None] | None = None,
) -> list[list[Completion]]:
    """n completions for each row.

    Args:
        rows: each with `id` and `prompt`.
        n: completions a row; 1 when greedy.
        sampling: temperature, then top_k, then top_p, in the order in which transformers applies them.
        seed: of the random numbers; rows with one id get the same ones.
        greedy: take the likeliest token instead of drawing.
        first: the index of the first sample, to draw more for rows that have some.
        batch_size: completions drawn at once.
        progress: called with (completions done, completions in all).

    Returns:
        For each row, in the order given, its n completions in the order of their sample index. A completion
        also ends, truncated, where it fills the model's positions.

    Raises:
        InputError: a prompt is empty, cannot be rendered, or fills the model's positions by itself.
        StageError: the model gives logits that are not finite.
    """
    if greedy and n != 1:
        raise ValueError("greedy decoding has one completion a row")
    if n < 1 or batch_size < 1:
        raise ValueError("n and batch_size must be at least 1")
    prompts = _checked(render_prompts(tokenizer, [row["prompt"] for row in rows]), rows, model)
    ends, length = end_ids(model, tokenizer), sampling.max_completion_length

    def draws(row: int, index: int) -> np.ndarray:
        return uniforms(seed, rows[row]["id"], first + index, length)

    forward = Forward(model)
    loop = (Slots if fits(forward) else _Batches)(
        forward,
        sampling,
        ends=ends,
        pad=tokenizer.pad_token_id if tokenizer.pad_token_id is not None else ends[0],
        width=min(batch_size, max(1, n * len(rows))),
        draws=None if greedy else draws,
    )
    results: list[list[Completion]] = [[Completion("", [], True)] * n for _ in rows]
    told = 0
    with _evaluating(model), torch.inference_mode():
        for done, (row, index, ids) in enumerate(loop.run(prompts, n), start=1):
            results[row][index] = _completion(tokenizer, ids, ends)
            if progress is not None and (done == n * len(rows) or done - told == batch_size):
                told = done
                progress(done, n * len(rows))
    return results


@contextmanager
def _evaluating(model: PreTrainedModel) -> Iterator[None]:
    was_training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(was_training)


def _completion(tokenizer: PreTrainedTokenizerBase, ids: list[int], ends: list[int]) -> Completion:
    ended = bool(ids) and ids[-1] in ends
    text = tokenizer.decode(ids[:-1] if ended else ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
    return Completion(text, ids, not ended)


def order_by_length(tokenizer: PreTrainedTokenizerBase, rows: Sequence[Mapping[str, Any]]) -> list[int]:
    """The rows' positions from the shortest prompt to the longest: in this order little of a batch is padding."""
    lengths = [len(ids) for ids in render_prompts(tokenizer, [row["prompt"] for row in rows])]
    return sorted(range(len(rows)), key=lambda row: (lengths[row], row))


def uniforms(seed: int, row_id: str, index: int, count: int) -> np.ndarray:
    """float64 [count] in [0, 1) for one completion, the same on every machine.

    Philox-4x64 (Salmon et al. 2011) keyed by sha256 of (seed, row id, sample index); its raw output is used,
    which numpy keeps from version to version, where it may change how a Generator makes numbers of it.
    """
    key = hashlib.sha256(f"{seed}/{index}/{row_id}".encode()).digest()[:16]
    # setting a generator's state takes 2 us where making one takes 30: it asks the system for entropy it does not use
    if not hasattr(_stream, "philox"):
        _stream.philox = np.random.Philox(key=0)
        _stream.state = _stream.philox.state
    _stream.state["state"]["key"] = np.frombuffer(key, dtype="<u8")
    _stream.philox.state = _stream.state
    raw: np.ndarray = _stream.philox.random_raw(count)
    drawn: np.ndarray = (raw >> np.uint64(11)) * 2.0**-53
    return drawn


def end_ids(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """The tokens that end a completion: those of the generation config and the tokenizer's EOS.

    Raises:
        InputError: neither names one.
    """
    named = model.generation_config.eos_token_id if model.generation_config is not None else None
    return end_ids_of(named, tokenizer)


def _checked(prompts: list[list[int]], rows: Sequence[Mapping[str, Any]], model: PreTrainedModel) -> list[list[int]]:
    positions = positions_of(model)
    for ids, row in zip(prompts, rows, strict=True):
        if not ids:
            raise InputError(f"row {row['id']}: the prompt has no token; a completion needs something to start from")
        if positions is not None and len(ids) >= positions:
            raise InputError(
                f"row {row['id']}: the prompt has {len(ids)} tokens and the model {positions} positions, so nothing "
                "can be completed; leave the row out or use a model with a longer context"
            )
    return prompts


def _batches(lengths: Sequence[int], n: int, batch_size: int) -> Iterator[list[tuple[int, range]]]:
    """Batches of (row, sample indices), from the shortest prompt to the longest; a row's samples share its prefill."""
    ordered = sorted(range(len(lengths)), key=lambda row: (lengths[row], row))
    if n > batch_size:
        for row in ordered:
            for start in range(0, n, batch_size):
                yield [(row, range(start, min(n, start + batch_size)))]
        return
    width = batch_size // n
    for start in range(0, len(ordered), width):
        yield [(row, range(n)) for row in ordered[start : start + width]]


def fits(forward: Forward) -> bool:
    """Whether the model can be decoded in slots: plain attention over all of a row, by transformers' own code.

    It must take positions, for those of a step differ from row to row, and a mask of four dimensions made by its
    caller: models that transformers lets use any attention function take one, and torch's attention obeys it.
    Windows, recurrent states, ALiBi, learned prompts, several devices and code from elsewhere are decoded in batches.
    """
    inner, config = forward.inner, forward.inner.config
    adapter = getattr(forward.model, "active_peft_config", None)
    return (
        type(inner).__module__.startswith("transformers.")
        and inner.is_backend_compatible()
        and config.get_text_config(decoder=True)._attn_implementation == "sdpa"
        and not config.is_encoder_decoder
        and not getattr(adapter, "is_prompt_learning", False)
        and len(set(getattr(inner, "hf_device_map", {}).values())) <= 1
        and forward.takes_positions
        and _plain(DynamicCache(config=config))
    )


def _plain(cache: DynamicCache) -> bool:
    return bool(cache.layers) and all(type(layer) is DynamicLayer for layer in cache.layers)


class _Batches:
    """The loop of models that do not fit slots: prefill, draw, drop the finished, step, a batch at a time."""

    def __init__(
        self, forward: Forward, sampling: Sampling, *, ends: Sequence[int], pad: int, width: int, draws: Draws | None
    ) -> None:
        """`width` is the completions of a batch; without `draws` the likeliest tokens are taken."""
        self._forward, self._sampling, self._pad, self._width, self._draws = forward, sampling, pad, width, draws
        self._ends = ends

    def run(self, prompts: Sequence[list[int]], n: int) -> Iterator[tuple[int, int, list[int]]]:
        """(prompt, completion, token ids) of n completions for each prompt, as batches end; the shortest first."""
        for batch in _batches([len(prompt) for prompt in prompts], n, self._width):
            members = [(row, index) for row, indices in batch for index in indices]
            draws_BT = None if self._draws is None else np.stack([self._draws(*member) for member in members])
            drawn = self._decode([prompts[row] for row, _ in batch], [len(indices) for _, indices in batch], draws_BT)
            for (row, index), ids in zip(members, drawn, strict=True):
                yield row, index, ids

    def _decode(self, prompts: list[list[int]], repeats: list[int], uniforms_BT: np.ndarray | None) -> list[list[int]]:
        """The token ids of sum(repeats) completions: repeats[p] of prompt p, one after another."""
        device = self._forward.model.device
        ids_PL, mask_PL = left_padded(prompts, self._pad, device)
        cache = DynamicCache(config=self._forward.model.config)
        logits_PV = self._forward(ids_PL, mask_PL, (mask_PL.cumsum(1) - 1).clamp(min=0), cache)
        spread_B = torch.repeat_interleave(torch.arange(len(prompts)), torch.tensor(repeats)).to(device)
        if len(spread_B) > len(prompts):
            cache.reorder_cache(spread_B)
        logits_BV, mask_BL, lengths_B = logits_PV[spread_B], mask_PL[spread_B], mask_PL.sum(1)[spread_B]
        rows_B = torch.arange(len(spread_B), device=device)
        ends = torch.tensor(self._ends, device=device)
        draws_BT = None if uniforms_BT is None else torch.from_numpy(uniforms_BT).to(device, wide(device))
        steps = self._sampling.max_completion_length
        tokens_BT = torch.full((len(spread_B), steps), self._pad, device=device)
        counts_B = torch.zeros(len(spread_B), dtype=torch.long, device=device)
        alive_B = torch.ones(len(spread_B), dtype=torch.bool, device=device)
        limit = self._forward.limit
        for step in range(steps):
            drawn_B = pick(logits_BV, None if draws_BT is None else draws_BT[rows_B, step], self._sampling)
            tokens_BT[rows_B, step] = drawn_B
            counts_B[rows_B] += alive_B
            alive_B = alive_B & ~torch.isin(drawn_B, ends)
            if limit is not None:
                alive_B = alive_B & (lengths_B < limit)
            living = int(alive_B.sum())
            if living == 0 or step + 1 == steps:
                break
            if living <= (1 - COMPACT_AT) * len(alive_B):
                keep_B = alive_B.nonzero()[:, 0]
                cache.reorder_cache(keep_B)
                rows_B, mask_BL, lengths_B = rows_B[keep_B], mask_BL[keep_B], lengths_B[keep_B]
                drawn_B, alive_B = drawn_B[keep_B], alive_B[keep_B]
            mask_BL = torch.cat([mask_BL, torch.ones_like(mask_BL[:, :1])], dim=1)
            # rows that have ended stay in the batch for a while and would run past the position embeddings
            positions_B1 = lengths_B[:, None] if limit is None else lengths_B[:, None].clamp(max=limit - 1)
            # a model without attention takes the mask for its inputs alone: there is no padding among drawn tokens
            logits_BV = self._forward(drawn_B[:, None], None if all(cache.is_linear) else mask_BL, positions_B1, cache)
            lengths_B = lengths_B + 1
        return [row[:count] for row, count in zip(tokens_BT.tolist(), counts_B.tolist(), strict=True)]
