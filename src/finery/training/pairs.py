"""Pairs of completions as tokens, and their micro-batches: what dpo trains on.

B is the pairs of a micro-batch, N those of a data set, T a padded length.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import Dataset

from finery.contract import StageContext
from finery.data.order import weights_of
from finery.errors import InputError, StageError
from finery.training.collate import Passes, pad
from finery.training.encode import IGNORED, Encoded
from finery.training.rendering import Rendered, render

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_SHOWN = 5


@dataclass(frozen=True)
class Pairs:
    """N prompts with two completions each; row i of both begins with the same prompt.

    Attributes:
        chosen: prompt and chosen completion, the completion's tokens being the targets.
        rejected: prompt and rejected completion.
        left_out: (row id, reason) of every row left out.
        cut: the ids of rows of which a completion lost its end to max_length.
    """

    chosen: Encoded
    rejected: Encoded
    left_out: list[tuple[str, str]] = field(default_factory=list)
    cut: list[str] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.chosen)


def encode_pairs(
    rows: Sequence[Mapping[str, Any]],
    tokenizer: PreTrainedTokenizerBase,
    *,
    ends: Collection[int],
    max_length: int,
    ordered: bool = False,
    name: str = "data",
) -> Pairs:
    """Render rows of prompt, chosen and rejected, each completion exactly as sft would render it after its prompt.

    Args:
        ends: token ids that end a completion.
        max_length: the longest prompt with a completion; a longer one is cut at its end.
        ordered: the data set asks for its order.
        name: the input's name, for messages.

    Raises:
        InputError: a row lacks a column, or messages cannot be rendered, or only some rows have a weight.
        StageError: no pair is left; the message says why.
    """
    if tokenizer.eos_token_id is None:
        raise InputError("the tokenizer has no EOS token, so the model could not learn to stop; set eos_token")
    for row in rows:
        if missing := [column for column in ("prompt", "chosen", "rejected") if row.get(column) is None]:
            raise InputError(
                f"{name}: row {row['id']} has no {missing[0]}; dpo needs rows of prompt, chosen and rejected (a data "
                "stage makes them with format: preference), or prompts from which it makes pairs itself"
            )
    is_weighted = weights_of(rows, name) is not None
    left_out: list[tuple[str, str]] = []
    cut: list[str] = []
    kept: list[tuple[Mapping[str, Any], Rendered, Rendered]] = []
    for row, chosen, rejected in _rendered(rows, tokenizer, ends, name):
        reason = _unfit(chosen, rejected, max_length)
        if reason or isinstance(chosen, str) or isinstance(rejected, str):
            left_out.append((row["id"], str(reason)))
            continue
        if max(len(chosen.ids), len(rejected.ids)) > max_length:
            cut.append(row["id"])
        kept.append((row, chosen, rejected))
    if not kept:
        what = f"row {left_out[0][0]}: {left_out[0][1]}" if left_out else "it is empty"
        raise StageError(f"{name}: none of its {len(rows)} pairs can be trained on ({what})")
    names = [row["id"] for row, _, _ in kept]
    weights = np.array([row["weight"] for row, _, _ in kept], dtype=np.float64) if is_weighted else None

    def packed(column: Sequence[Rendered]) -> Encoded:
        ids = [one.ids[:max_length] for one in column]
        flat = np.fromiter((i for one in ids for i in one), dtype=np.int32)
        target = np.fromiter((t for one in column for t in one.target[:max_length]), dtype=bool)
        offsets = np.concatenate([[0], np.cumsum([len(one) for one in ids])]).astype(np.int64)
        labels = np.where(target, flat, IGNORED).astype(np.int32)
        return Encoded(flat, labels, offsets, names, weights=weights, ordered=ordered)

    return Pairs(packed([one for _, one, _ in kept]), packed([one for _, _, one in kept]), left_out, cut)


def _rendered(
    rows: Sequence[Mapping[str, Any]], tokenizer: PreTrainedTokenizerBase, ends: Collection[int], name: str
) -> Iterator[tuple[Mapping[str, Any], Rendered | str, Rendered | str]]:
    sides = [
        # only what makes the tokens: `render` would take messages of another column for the row
        [{"id": row["id"], "prompt": row["prompt"], "completion": row[side]} for row in rows]
        for side in ("chosen", "rejected")
    ]
    both = (render(side, tokenizer, ends, True, False, name) for side in sides)
    for row, (_, chosen), (_, rejected) in zip(rows, *both, strict=True):
        yield row, chosen, rejected


def _unfit(chosen: Rendered | str, rejected: Rendered | str, max_length: int) -> str | None:
    """Why a pair cannot be trained on, or None."""
    for side, one in (("chosen", chosen), ("rejected", rejected)):
        if isinstance(one, str):
            return f"{side}: {one}"
        if one.start >= max_length:
            return f"its prompt alone has {one.start} tokens, so max_length {max_length} cuts both completions away"
    assert isinstance(chosen, Rendered) and isinstance(rejected, Rendered)
    if chosen.start == 0:
        return "its prompt has no token"
    if chosen.ids == rejected.ids:
        return "chosen and rejected are the same"
    if chosen.ids[:max_length] == rejected.ids[:max_length]:
        return f"chosen and rejected are the same in their first {max_length} tokens (max_length)"
    return None


def warn_of_pairs(pairs: Pairs, context: StageContext, name: str, max_length: int) -> None:
    """Say which pairs were left out, and which lost an end."""
    total = len(pairs) + len(pairs.left_out)
    if pairs.left_out:
        shown = "; ".join(f"{row}: {reason}" for row, reason in pairs.left_out[:_SHOWN])
        more = f"; and {len(pairs.left_out) - _SHOWN} more" if len(pairs.left_out) > _SHOWN else ""
        context.warn(f"{name}: {len(pairs.left_out)} of {total} pairs are left out ({shown}{more})")
    if pairs.cut:
        shown = ", ".join(pairs.cut[:_SHOWN])
        context.warn(
            f"{name}: {len(pairs.cut)} of {total} pairs have a completion beyond max_length {max_length}; it lost its "
            f"end, the final EOS with it ({shown}{', ...' if len(pairs.cut) > _SHOWN else ''})"
        )


class PairFeed(Dataset):  # type: ignore[type-arg]
    """The micro-batches of an epoch; item i of epoch e depends on (seed, e, i) alone, so resuming needs no state.

    Attributes:
        reference: the reference's log-probabilities of chosen and rejected, float32 [N, 2], once they are known.
    """

    def __init__(self, pairs: Pairs, batch_size: int, seed: int, pad_id: int) -> None:
        self.pairs, self.batch_size, self.pad_id = pairs, batch_size, pad_id
        self.reference: NDArray[np.float32] | None = None
        self._passes, self._epoch = Passes(pairs.chosen, seed, "own"), 0

    def __len__(self) -> int:
        return -(-len(self.pairs) // self.batch_size)

    def set_epoch(self, epoch: int) -> None:
        """Called by the Trainer at the start of each epoch."""
        self._epoch = epoch

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        order = self._passes.rows(self._epoch)
        return self.batch(order[index * self.batch_size : (index + 1) * self.batch_size].tolist())

    def batch(self, rows: Sequence[int]) -> dict[str, torch.Tensor]:
        """Those B pairs as TRL's collator gives them: `input_ids`, `attention_mask` and `completion_mask`, int64
        [2B, T], the chosen first; and `ref_chosen_logps`, `ref_rejected_logps`, float32 [B], once known."""
        padded = pad([side.row(row) for side in (self.pairs.chosen, self.pairs.rejected) for row in rows], self.pad_id)
        labels = padded.pop("labels")
        batch = {**padded, "completion_mask": (labels != IGNORED).long()}
        if self.reference is not None:
            chosen, rejected = torch.from_numpy(self.reference[list(rows)].T.copy())
            batch |= {"ref_chosen_logps": chosen, "ref_rejected_logps": rejected}
        return batch
