"""Rows laid end to end, each attending to itself alone.

A packed sub-batch has no padding and no attention mask: positions start at 0 with each row, and transformers makes of
that the block mask of sdpa and eager attention (masking_utils.find_packed_sequence_indices); FlashAttention is given
the rows' bounds. A model that does neither would mix rows without a word, so it is tried out before the first step.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from finery.errors import InputError
from finery.training.encode import IGNORED

Row = tuple[NDArray[np.int32], NDArray[np.int32]]
"""Token ids and labels of one row, int32 [T] each."""
Packed = dict[str, Any]
"""`input_ids`, `labels` and `position_ids`, int64 [1, T]; and for FlashAttention the rows' bounds, as TRL's."""

PROBE = 16


def bins(lengths: Sequence[int], capacity: int, *, in_order: bool = False) -> list[list[int]]:
    """Rows put into sequences of at most `capacity` tokens.

    By best-fit decreasing: longest rows first, each into the fullest sequence that takes it. In order: each row into
    the last sequence if it fits, else into a new one.

    Args:
        lengths: tokens of each row, none above `capacity`.

    Returns:
        Positions in `lengths`, a list a sequence.
    """
    if in_order:
        return _next_fit(lengths, capacity)
    made: list[list[int]] = []
    room: list[tuple[int, int]] = []  # (tokens left, sequence), sorted
    for row in sorted(range(len(lengths)), key=lambda row: (-lengths[row], row)):
        place = bisect_left(room, (lengths[row], 0))
        left, number = room.pop(place) if place < len(room) else (capacity, len(made))
        if number == len(made):
            made.append([])
        made[number].append(row)
        if left > lengths[row]:
            insort(room, (left - lengths[row], number))
    return made


def _next_fit(lengths: Sequence[int], capacity: int) -> list[list[int]]:
    made: list[list[int]] = []
    left = 0
    for row, length in enumerate(lengths):
        if not made or length > left:
            made.append([])
            left = capacity
        made[-1].append(row)
        left -= length
    return made


def lay(rows: Sequence[Row], *, bounds: bool) -> Packed:
    """Rows as one sequence. The first token of a row is no target: what stands before it is another row.

    Args:
        bounds: add what FlashAttention reads in place of positions.
    """
    lengths = [len(ids) for ids, _ in rows]
    labels = np.concatenate([labels for _, labels in rows]).astype(np.int64)
    starts = np.concatenate([[0], np.cumsum(lengths)])
    labels[starts[:-1]] = IGNORED
    packed: Packed = {
        "input_ids": torch.from_numpy(np.concatenate([ids for ids, _ in rows]).astype(np.int64))[None],
        "labels": torch.from_numpy(labels)[None],
        "position_ids": torch.from_numpy(np.concatenate([np.arange(length) for length in lengths]))[None],
    }
    if bounds:
        ends = torch.from_numpy(starts.astype(np.int32))
        packed |= {"cu_seq_lens_q": ends, "cu_seq_lens_k": ends}
        packed |= {"max_length_q": max(lengths), "max_length_k": max(lengths)}
    return packed


def uses_bounds(model: Any) -> bool:
    """Whether the model's attention is FlashAttention, which takes rows of different lengths end to end."""
    inner = model.get_base_model() if hasattr(model, "peft_config") else model
    return "flash" in str(inner.config._attn_implementation)


@torch.no_grad()
def check_apart(model: Any, ids: NDArray[np.int32], *, bounds: bool, device: torch.device) -> None:
    """Try out on two short rows whether the model keeps packed rows apart.

    The second row's log-probabilities must not change with the first row's tokens, and must be those of the row alone.

    Args:
        model: with TRL's fused head, as it is called in training.
        ids: at least one token id of the data, int32.

    Raises:
        InputError: it does not; the message says what it mixes.
    """
    many = np.resize(ids, 2 * PROBE)
    one, other, changed = many[:PROBE], many[PROBE:], np.roll(many[:PROBE][::-1], 1)
    if (changed == one).all():
        changed = np.full(PROBE, (one[0] + 1) % max(2, _vocabulary(model)), dtype=np.int32)

    def second(*rows: NDArray[np.int32]) -> torch.Tensor:
        packed = lay([(row, row) for row in rows], bounds=bounds)
        part = {name: value.to(device) if torch.is_tensor(value) else value for name, value in packed.items()}
        log_probs: torch.Tensor = model(**part, fused_lm_head=True).log_probs[0, 1 - PROBE :].float()
        return log_probs

    was_training = model.training
    model.eval()
    try:
        together, beside, alone = second(one, other), second(changed, other), second(other)
    except TypeError as error:
        raise InputError(f"packing: the model takes no positions ({error}); leave packing out") from error
    finally:
        model.train(was_training)
    exact = together.dtype == torch.float32 and next(model.parameters()).dtype == torch.float32
    near = 1e-4 if exact and not torch.is_autocast_enabled(device.type) and device.type == "cpu" else 5e-2
    if not torch.allclose(together, beside, atol=near / 10, rtol=0):
        raise InputError(_mixes(model, "a row attends to the rows before it"))
    if not torch.allclose(together, alone, atol=near, rtol=near):
        raise InputError(_mixes(model, "a row's positions go on where the row before it ended"))


def _mixes(model: Any, how: str) -> str:
    inner = model.get_base_model() if hasattr(model, "get_base_model") else model
    return (
        f"packing: in a {type(inner).__name__} packed rows are not apart ({how}), so training would learn what no row "
        "says; leave packing out (group_by_length saves padding as well)"
    )


def _vocabulary(model: Any) -> int:
    inner = model.get_base_model() if hasattr(model, "get_base_model") else model
    return int(inner.get_input_embeddings().weight.shape[0])
