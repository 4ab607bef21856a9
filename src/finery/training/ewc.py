"""Elastic weight consolidation (Kirkpatrick et al., arXiv 1612.00796): weights that mattered are held where they were.

    L + weight / 2 * sum_i F_i (theta_i - theta*_i)^2                                              (their eq. 3)

F is the diagonal of the Fisher information at theta*: the mean over rows of the squared gradient of the row's
log-likelihood, its targets drawn from the model. That is the expectation in F's definition; squares at the targets of
the data (the empirical Fisher) are another quantity, large where the model is wrong (arXiv 1905.12558, 2502.11756).
docs/decisions/ewc.md says more.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from finery.errors import InputError
from finery.training.collate import permutation, random_numbers
from finery.training.encode import IGNORED, Encoded

FISHER_FILE = "fisher.safetensors"
_F, _START = "fisher/", "start/"


@dataclass(frozen=True)
class Fisher:
    """Where weights were, and how much they mattered there.

    Attributes:
        values: name of a parameter -> F, float32, of its shape.
        start: name -> theta*, float32.
    """

    values: Mapping[str, torch.Tensor]
    start: Mapping[str, torch.Tensor]

    def write(self, folder: Path) -> None:
        """Write FISHER_FILE whole or not at all."""
        folder.mkdir(parents=True, exist_ok=True)
        tensors = {_F + name: value.cpu().contiguous() for name, value in sorted(self.values.items())}
        tensors |= {_START + name: value.cpu().contiguous() for name, value in sorted(self.start.items())}
        aside = folder / f"{FISHER_FILE}.writing"
        save_file(tensors, aside)
        os.replace(aside, folder / FISHER_FILE)
        (folder / FISHER_FILE).chmod(0o644)

    @classmethod
    def read(cls, folder: Path) -> Fisher:
        """What `write` wrote.

        Raises:
            InputError: there is no such file, or it is no Fisher information.
        """
        path = folder / FISHER_FILE
        try:
            with safe_open(path, "pt") as file:
                found = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - no mapping
        except (OSError, SafetensorError) as error:
            raise InputError(
                f"ewc.fisher: {path} cannot be read ({error}); name the output `fisher` of an sft stage"
            ) from error
        values = {name.removeprefix(_F): value for name, value in found.items() if name.startswith(_F)}
        start = {name.removeprefix(_START): value for name, value in found.items() if name.startswith(_START)}
        if not values or values.keys() != start.keys() or len(found) != 2 * len(values):
            raise InputError(f"ewc.fisher: {path} does not hold F and theta* for each parameter; name the output "
                             "`fisher` of an sft stage")  # fmt: skip
        return cls(values, start)


class Penalty:
    """weight / 2 * sum F (theta - theta*)^2 over the parameters that are trained.

    Args:
        model: its parameters must be those of `fisher`, by name and shape.

    Raises:
        InputError: they are not; the message names the first ones that differ.
    """

    def __init__(self, model: Any, fisher: Fisher, weight: float) -> None:
        trained = {name: value for name, value in model.named_parameters() if value.requires_grad}
        odd = [
            f"{name} is {list(value.shape)} here and {_shape(fisher.values.get(name))} there"
            for name, value in trained.items()
            if name not in fisher.values or fisher.values[name].shape != value.shape
        ]
        if odd:
            raise InputError(
                f"ewc: {len(odd)} of the model's {len(trained)} trained parameters are not those that F was measured "
                f"on: {'; '.join(odd[:3])}; take the fisher of a stage that trained this architecture and vocabulary"
            )
        self.weight = weight
        self._held = {name: (fisher.values[name], fisher.start[name]) for name in trained}

    def in_words(self) -> str:
        """What it costs, in a line for the log."""
        size = sum(2 * f.numel() * f.element_size() for f, _ in self._held.values())
        return f"F and theta* of {len(self._held)} trained tensors are held ({size / 2**20:.1f} MB more)"

    def to(self, device: torch.device) -> None:
        """Move F and theta* to where the model is."""
        self._held = {name: (f.to(device), start.to(device)) for name, (f, start) in self._held.items()}

    def __call__(self, model: Any) -> torch.Tensor:
        """The penalty, a float32 scalar with gradient."""
        parameters = dict(model.named_parameters())
        parts = [(f * (parameters[name].float() - start).square()).sum() for name, (f, start) in self._held.items()]
        return self.weight / 2 * torch.stack(parts).sum()


def measure_fisher(model: Any, data: Encoded, *, rows: int, seed: int) -> Fisher:
    """F at the model as it is, over at most `rows` rows of `data`, drawn by `seed` without replacement.

    Args:
        model: a causal LM, on the device it computes on; the parameters that are trained are measured.
        data: rows whose positions of targets count; the targets themselves are drawn from the model.
    """
    named = {name: weight for name, weight in model.named_parameters() if weight.requires_grad}
    values = {name: torch.zeros_like(weight, dtype=torch.float32) for name, weight in named.items()}
    chosen = permutation(len(data), seed, "fisher", 0)[:rows].tolist()
    was_training = model.training
    model.eval()
    try:
        for row in chosen:
            score = _drawn_log_likelihood(model, data, row, seed)
            for (name, _), gradient in zip(
                named.items(), torch.autograd.grad(score, list(named.values()), allow_unused=True), strict=True
            ):
                if gradient is not None:
                    values[name] += gradient.float().square()
    finally:
        model.train(was_training)
    start = {name: weight.detach().float().clone() for name, weight in named.items()}
    return Fisher({name: value / len(chosen) for name, value in values.items()}, start)


def _drawn_log_likelihood(model: Any, data: Encoded, row: int, seed: int) -> torch.Tensor:
    """log p of one row's targets, each drawn from the model given the row's own tokens before it."""
    ids, labels = (torch.from_numpy(part.astype("int64"))[None].to(model.device) for part in data.row(row))
    target = labels[0, 1:] != IGNORED
    logits = model(input_ids=ids, use_cache=False).logits[0, :-1][target].float()
    log_p = torch.log_softmax(logits, dim=-1)
    drawn = draw(log_p.detach().exp(), int(random_numbers(1, seed, "fisher/drawn", row)[0] >> 1))
    return log_p.gather(-1, drawn[:, None]).sum()


def draw(probabilities: torch.Tensor, seed: int) -> torch.Tensor:
    """One index a row by its probability, int64 [N], of float32 probabilities [N, V]."""
    generator = torch.Generator(probabilities.device).manual_seed(seed)
    return torch.multinomial(probabilities, 1, generator=generator)[:, 0]


def _shape(value: torch.Tensor | None) -> str:
    return "absent" if value is None else str(list(value.shape))
