"""Completions from any causal LM, in left-padded batches on a key/value cache.

P is the prompts of a batch, B its completions, L a prompt's length, T the tokens drawn, V the vocabulary. Every
random number is a function of (seed, row id, sample index, position), so the batch that a completion was drawn
in acts only through rounding.
"""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from transformers import DynamicCache, PreTrainedModel, PreTrainedTokenizerBase

from finery.errors import InputError, StageError
from finery.schemas.training import Sampling
from finery.training.rendering import end_ids_of, render_prompts

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
    decoder = _Decoder(model, tokenizer, sampling)
    results: list[list[Completion]] = [[] for _ in rows]
    done = 0
    for batch in _batches([len(prompt) for prompt in prompts], n, batch_size):
        members = [(row, index) for row, indices in batch for index in indices]
        uniforms_BT = None
        if not greedy:
            uniforms_BT = np.stack(
                [uniforms(seed, rows[r]["id"], first + i, sampling.max_completion_length) for r, i in members]
            )
        drawn = decoder.run([prompts[row] for row, _ in batch], [len(indices) for _, indices in batch], uniforms_BT)
        for (row, _), ids in zip(members, drawn, strict=True):
            results[row].append(decoder.completion(ids))
        done += len(members)
        if progress is not None:
            progress(done, n * len(rows))
    return results


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
    raw = np.random.Philox(key=int.from_bytes(key, "little")).random_raw(count)
    return (raw >> np.uint64(11)) * 2.0**-53


def end_ids(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """The tokens that end a completion: those of the generation config and the tokenizer's EOS.

    Raises:
        InputError: neither names one.
    """
    named = model.generation_config.eos_token_id if model.generation_config is not None else None
    return end_ids_of(named, tokenizer)


def _checked(prompts: list[list[int]], rows: Sequence[Mapping[str, Any]], model: PreTrainedModel) -> list[list[int]]:
    positions = _positions(model)
    for ids, row in zip(prompts, rows, strict=True):
        if not ids:
            raise InputError(f"row {row['id']}: the prompt has no token; a completion needs something to start from")
        if positions is not None and len(ids) >= positions:
            raise InputError(
                f"row {row['id']}: the prompt has {len(ids)} tokens and the model {positions} positions, so nothing "
                "can be completed; leave the row out or use a model with a longer context"
            )
    return prompts


def _positions(model: PreTrainedModel) -> int | None:
    return getattr(model.config.get_text_config(decoder=True), "max_position_embeddings", None)


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


class _Decoder:
    """One model's decoding loop: prefill, draw, drop the finished, step."""

    def __init__(self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, sampling: Sampling) -> None:
        self._model, self._tokenizer, self._sampling = model, tokenizer, sampling
        self._ends = end_ids(model, tokenizer)
        self._pad = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else self._ends[0]
        inner = model.get_base_model() if hasattr(model, "get_base_model") else model
        names = set(inspect.signature(inner.forward).parameters)
        # transformers 5.24 renamed the argument and warns of the old name
        self._cache_name = "cache" if "cache" in names else "past_key_values"
        self._takes_positions = "position_ids" in names
        self._last_only = {"logits_to_keep": 1} if "logits_to_keep" in names else {}

    def completion(self, ids: list[int]) -> Completion:
        ended = bool(ids) and ids[-1] in self._ends
        text = self._tokenizer.decode(
            ids[:-1] if ended else ids, skip_special_tokens=True, clean_up_tokenization_spaces=False
        )
        return Completion(text, ids, not ended)

    @torch.inference_mode()
    def run(self, prompts: list[list[int]], repeats: list[int], uniforms_BT: np.ndarray | None) -> list[list[int]]:
        """The token ids of sum(repeats) completions: repeats[p] of prompt p, one after another."""
        was_training = self._model.training
        self._model.eval()
        try:
            return self._decode(prompts, repeats, uniforms_BT)
        finally:
            self._model.train(was_training)

    def _decode(self, prompts: list[list[int]], repeats: list[int], uniforms_BT: np.ndarray | None) -> list[list[int]]:
        device = self._model.device
        width = max(len(prompt) for prompt in prompts)
        ids_PL = torch.tensor([[self._pad] * (width - len(p)) + p for p in prompts], device=device)
        mask_PL = torch.tensor([[0] * (width - len(p)) + [1] * len(p) for p in prompts], device=device)
        cache = DynamicCache(config=self._model.config)
        logits_PV = self._forward(ids_PL, mask_PL, (mask_PL.cumsum(1) - 1).clamp(min=0), cache)
        spread_B = torch.repeat_interleave(torch.arange(len(prompts)), torch.tensor(repeats)).to(device)
        if len(spread_B) > len(prompts):
            cache.reorder_cache(spread_B)
        logits_BV, mask_BL, lengths_B = logits_PV[spread_B], mask_PL[spread_B], mask_PL.sum(1)[spread_B]
        rows_B = torch.arange(len(spread_B), device=device)
        ends = torch.tensor(self._ends, device=device)
        draws_BT = None if uniforms_BT is None else torch.from_numpy(uniforms_BT).to(device, _wide(device))
        steps = self._sampling.max_completion_length
        tokens_BT = torch.full((len(spread_B), steps), self._pad, device=device)
        counts_B = torch.zeros(len(spread_B), dtype=torch.long, device=device)
        alive_B = torch.ones(len(spread_B), dtype=torch.bool, device=device)
        limit = _positions(self._model)
        for step in range(steps):
            drawn_B = self._pick(logits_BV, None if draws_BT is None else draws_BT[rows_B, step])
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
            logits_BV = self._forward(drawn_B[:, None], mask_BL, lengths_B[:, None], cache)
            lengths_B = lengths_B + 1
        return [row[:count] for row, count in zip(tokens_BT.tolist(), counts_B.tolist(), strict=True)]

    def _forward(
        self, ids_BL: torch.Tensor, mask_BL: torch.Tensor, positions_BL: torch.Tensor, cache: DynamicCache
    ) -> torch.Tensor:
        """The logits [B, V] after the last token; the cache takes in the tokens given."""
        limit = _positions(self._model)
        if limit is not None:
            # rows that have ended stay in the batch for a while and would run past the position embeddings
            positions_BL = positions_BL.clamp(max=limit - 1)
        given = {"position_ids": positions_BL} if self._takes_positions else {}
        # a model without attention takes the mask for its inputs alone: there is no padding among drawn tokens
        past = mask_BL.shape[1] > ids_BL.shape[1]
        output = self._model(
            input_ids=ids_BL,
            attention_mask=None if past and all(cache.is_linear) else mask_BL,
            use_cache=True,
            **{self._cache_name: cache},
            **given,
            **self._last_only,
        )
        logits_BV: torch.Tensor = output.logits[:, -1]
        if not torch.isfinite(logits_BV).all():
            raise StageError("the model gives logits that are not finite; its weights or its dtype are broken")
        return logits_BV

    def _pick(self, logits_BV: torch.Tensor, draws_B: torch.Tensor | None) -> torch.Tensor:
        """The next tokens, int64 [B]: the likeliest, or by inverting the cumulative distribution at draws_B."""
        if draws_B is None:
            return logits_BV.argmax(dim=-1)
        scaled_BV = logits_BV.to(draws_B.dtype) / self._sampling.temperature
        cumulative_BV = torch.softmax(narrow(scaled_BV, self._sampling), dim=-1).cumsum(dim=-1)
        total_B1 = cumulative_BV[:, -1:]
        # a product that rounds up to the total would pick a token of probability 0
        target_B1 = torch.minimum(draws_B[:, None] * total_B1, torch.nextafter(total_B1, torch.zeros_like(total_B1)))
        return torch.searchsorted(cumulative_BV, target_B1, right=True)[:, 0]


def narrow(scaled_BV: torch.Tensor, sampling: Sampling) -> torch.Tensor:
    """Logits with -inf wherever top_k and then top_p exclude a token; the likeliest token always stays.

    As transformers' TopKLogitsWarper and TopPLogitsWarper (transformers/generation/logits_process.py); nucleus
    sampling: Holtzman et al. 2019 (arXiv 1904.09751).
    """
    if 0 < sampling.top_k < scaled_BV.shape[-1]:
        least_B1 = scaled_BV.topk(sampling.top_k, dim=-1).values[:, -1:]
        scaled_BV = scaled_BV.masked_fill(scaled_BV < least_B1, -torch.inf)
    if sampling.top_p < 1:
        sorted_BV, order_BV = scaled_BV.sort(dim=-1, descending=True, stable=True)
        chances_BV = torch.softmax(sorted_BV, dim=-1)
        # a token is out when those before it already reach top_p
        out_BV = chances_BV.cumsum(dim=-1) - chances_BV >= sampling.top_p
        scaled_BV = scaled_BV.masked_fill(torch.zeros_like(out_BV).scatter(1, order_BV, out_BV), -torch.inf)
    return scaled_BV


def _wide(device: torch.device) -> torch.dtype:
    """The type probabilities are summed in: float64, or float32 on Apple's GPUs, which have no other."""
    return torch.float32 if device.type == "mps" else torch.float64
