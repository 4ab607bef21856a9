"""Several processes that take one step together: what each takes of it, and what they tell each other.

A step of P processes is the step of one process with P times as many micro-batches: process r takes micro-batches
r, r + P, r + 2P, ... of the pass. Gradients are averaged over processes (DDP, FSDP and ZeRO all do), so what is a sum
over the step is multiplied by P before.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset

from finery.contract import StageContext
from finery.errors import InputError
from finery.schemas.launch import SHARDED, Launch
from finery.schemas.training import TrainingStage
from finery.training.collate import first_item

_COLLECTIVES_WITHIN = 24 * 3600
"""Seconds that a process waits for the others; one that has died is noticed by whoever started them."""


@dataclass(frozen=True)
class Ranks:
    """The processes of a stage.

    Attributes:
        rank: which one this is, from 0.
        count: how many there are.
        strategy: of `launch`, "" without one.
    """

    rank: int = 0
    count: int = 1
    strategy: str = ""

    @classmethod
    def of(cls, context: StageContext, launch: Launch | None) -> Ranks:
        """Those of a stage that is running."""
        return cls(context.rank, context.processes, launch.strategy if launch else "")

    @property
    def sharded(self) -> bool:
        """No process has all the weights, so each must run the model as often as every other."""
        return self.strategy in SHARDED

    def total(self, values: torch.Tensor) -> torch.Tensor:
        """The sum of each process's `values`, of the same shape and type."""
        if self.count > 1:
            values = values.clone()
            dist.all_reduce(values)
        return values

    def any(self, flag: bool, device: torch.device) -> bool:
        """Whether it is true in one of them."""
        return flag if self.count == 1 else bool(self.total(torch.tensor([int(flag)], device=device))[0])

    def most(self, number: int, device: torch.device) -> int:
        """The largest of their numbers."""
        if self.count == 1:
            return number
        largest = torch.tensor([number], device=device)
        dist.all_reduce(largest, op=dist.ReduceOp.MAX)
        return int(largest[0])

    def meet(self) -> None:
        """Go on when all have come here."""
        if self.count > 1:
            dist.barrier()

    def means(self, metrics: Mapping[str, Sequence[float]]) -> dict[str, list[float]]:
        """The mean of each metric over what all processes noted of it, as a list of one."""
        if self.count == 1:
            return {name: list(values) for name, values in metrics.items()}
        noted: list[Any] = [None] * self.count
        dist.all_gather_object(noted, {name: (sum(values), len(values)) for name, values in metrics.items()})
        names = dict.fromkeys(name for one in noted for name in one)
        parts = {name: [one[name] for one in noted if name in one] for name in names}
        return {
            name: [sum(total for total, _ in of) / max(1, sum(count for _, count in of))] for name, of in parts.items()
        }

    def loader(self, batches: Any, device: torch.device, *, rows: int | None = None) -> DataLoader[Any]:
        """This process's micro-batches, on `device`; with `rows`, those of a pass over so many that are full ones.

        accelerate would share them out too, but fills the last round up with rows of the first.
        """
        from accelerate.data_loader import prepare_data_loader

        loader = DataLoader(Share(batches, self, rows), batch_size=1, shuffle=False, collate_fn=first_item)
        prepared: DataLoader[Any] = prepare_data_loader(
            loader, device=device, num_processes=1, process_index=0, put_on_device=True
        )
        return prepared


ALONE = Ranks()


class Share(Dataset):  # type: ignore[type-arg]
    """One process's part of a pass: item i is micro-batch i * P + r.

    Args:
        rows: with this number, the end of a pass over so many that does not give every process a full micro-batch is
            left out. Otherwise a process with no micro-batch in the last round gets `batches.nothing()`, in which no
            token counts.
    """

    def __init__(self, batches: Any, ranks: Ranks, rows: int | None = None) -> None:
        self.batches, self.ranks = batches, ranks
        self._rounds = -(-len(batches) // ranks.count)
        if rows is not None:
            self._rounds = rounds(rows, batches.batch_size, ranks.count)

    def __len__(self) -> int:
        return self._rounds

    def set_epoch(self, epoch: int) -> None:
        """Called by the Trainer at the start of each epoch."""
        self.batches.set_epoch(epoch)

    def __getitem__(self, index: int) -> Any:
        place = index * self.ranks.count + self.ranks.rank
        return self.batches[place] if place < len(self.batches) else self.batches.nothing()


def rounds(rows: int, batch_size: int, processes: int) -> int:
    """Full micro-batches for each process in one pass over `rows`.

    Raises:
        InputError: there is none.
    """
    found = rows // (batch_size * processes)
    if not found:
        raise InputError(
            f"launch.processes: {processes} processes of {batch_size} rows need {batch_size * processes}, and there "
            f"are {rows}; give fewer processes, or a smaller per_device_train_batch_size"
        )
    return found


def launched_arguments(config: TrainingStage) -> dict[str, Any]:
    """The Trainer's arguments that only a stage with `launch` has."""
    if getattr(config, "launch", None) is None:
        return {}
    return {
        # no parameter is unused, and none is used by some processes only
        "ddp_find_unused_parameters": False,
        # buffers are constants of the model's shape
        "ddp_broadcast_buffers": False,
        "ddp_timeout": _COLLECTIVES_WITHIN,
    }


def whole_model(model: Any, ranks: Ranks) -> Any:
    """A trained model with all its weights in process 0, on the CPU; the others keep empty ones.

    FSDP2 turns modules into FSDP modules and weights into DTensors, which is undone. All processes must call it.
    """
    from torch.distributed.fsdp import FSDPModule
    from torch.distributed.tensor import DTensor

    if not ranks.sharded:
        return model
    if not any(isinstance(weight, DTensor) for weight in model.parameters()):
        return _gathered_by_deepspeed(model, ranks)
    done: dict[int, torch.nn.Parameter] = {}  # tied weights stay tied
    for module in model.modules():
        for name, weight in list(module._parameters.items()):
            if weight is None:
                continue
            if id(weight) not in done:
                full = weight.full_tensor() if isinstance(weight, DTensor) else weight.detach()
                kept = full.detach().cpu() if ranks.rank == 0 else torch.empty(0)
                done[id(weight)] = torch.nn.Parameter(kept, requires_grad=weight.requires_grad)
            module._parameters[name] = done[id(weight)]
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.__class__ = type(module).__mro__[2]
    return model


def _gathered_by_deepspeed(model: Any, ranks: Ranks) -> Any:
    """ZeRO-3's weights, one after the other, so that a GPU holds one whole weight at most.

    https://deepspeed.readthedocs.io/en/stable/zero3.html#deepspeed.zero.GatheredParameters
    """
    import deepspeed

    whole: dict[str, torch.Tensor] = {}
    for name, weight in model.named_parameters():
        with deepspeed.zero.GatheredParameters([weight]):
            if ranks.rank == 0:
                whole[name] = weight.detach().cpu().clone()
    for name, weight in model.named_parameters():
        if ranks.rank == 0:
            weight.data = whole[name]
    return model
