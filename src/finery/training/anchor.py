"""Held near the start: KL(model || start) per target token, over the whole vocabulary.

    KL_t = sum_v p_v (log p_v - log q_v),    p = softmax of the model's logits at t, q = of the start's

The start is the model as it comes into the stage. B is rows, T their padded length, N target tokens, H the hidden
size, V the vocabulary.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch.func import functional_call
from torch.nn.functional import linear, log_softmax
from torch.utils.checkpoint import checkpoint

from finery.training.collate import SubBatch
from finery.training.encode import IGNORED

LOGITS = 2**24
"""The most logits held at a time, 64 MB in float32: tokens are taken in chunks of LOGITS // V."""


@dataclass(frozen=True)
class Hidden:
    """A model's last hidden states and the head that reads them.

    Attributes:
        states: [B, T, H], in the model's type.
        weight: [V, H].
        bias: [V], or None.
    """

    states: torch.Tensor
    weight: torch.Tensor
    bias: torch.Tensor | None


class Anchor:
    """The start of a run, and how far the model is from it.

    A new adapter is 0 at the start, so the start is the model without it. Else the weights that are trained are held
    twice: as they are, and as they were.

    Args:
        model: a causal LM or PeftModel on which nothing was trained yet.
        new_adapter: its adapter was made for this run, and the model without it is the start.
    """

    def __init__(self, model: Any, *, new_adapter: bool) -> None:
        self._without = new_adapter
        self._kept: dict[str, torch.Tensor] = {}
        if not new_adapter:
            self._kept = {n: w.detach().clone() for n, w in model.named_parameters() if w.requires_grad}
        inner = model.get_base_model() if hasattr(model, "peft_config") else model
        self._logits = Logits(inner.config.get_text_config())
        # the start's own logits are not asked for: those of one position are the fewest a model gives
        named = inspect.signature(type(inner).forward).parameters
        self._fewest = {"logits_to_keep": 1} if "logits_to_keep" in named else {}

    def in_words(self) -> str:
        """What the start costs, in a line for the log."""
        if self._without:
            return "the start is the model with its adapter switched off; no second copy is held"
        size = sum(weight.numel() * weight.element_size() for weight in self._kept.values())
        return f"the start is a frozen copy of {len(self._kept)} trained tensors ({size / 2**20:.1f} MB more)"

    def to(self, device: torch.device) -> None:
        """Move the copy to where the model is."""
        self._kept = {name: weight.to(device) for name, weight in self._kept.items()}

    @torch.no_grad()
    def states(self, model: Any, part: SubBatch) -> Hidden:
        """The start's hidden states of a sub-batch, dropout off.

        Args:
            model: the trained model itself, not a wrapper that spreads it over processes.
        """
        inputs = {name: value for name, value in part.items() if name != "labels"} | self._fewest
        was_training = model.training
        model.eval()
        try:
            with hidden_states(model) as seen, model.disable_adapter() if self._without else nullcontext():
                functional_call(model, self._kept, (), {**inputs, "use_cache": False})
        finally:
            model.train(was_training)
        return seen[0]

    def divergence(self, model: Hidden, start: Hidden, labels: torch.Tensor) -> torch.Tensor:
        """The sum of KL_t over the target tokens, a float32 scalar with gradient through `model`.

        Args:
            labels: int64 [B, T]; a position is a target where its label is not IGNORED, its logits those before it.
        """
        target = labels[:, 1:] != IGNORED
        p, q = model.states[:, :-1][target], start.states[:, :-1][target]
        size = max(1, LOGITS // model.weight.shape[0])
        total = torch.zeros((), device=p.device)
        for first in range(0, len(p), size):
            chunk = slice(first, first + size)
            given = (p[chunk], model.weight, model.bias, q[chunk], start.weight, start.bias)
            # one chunk is the most that is held, in the backward pass as well
            total = total + (
                checkpoint(self._sum, *given, use_reentrant=False, preserve_rng_state=False)
                if len(p) > size
                else self._sum(*given)
            )
        return total

    def _sum(self, p: torch.Tensor, w: torch.Tensor, b: Any, q: torch.Tensor, w0: torch.Tensor, b0: Any) -> Any:
        log_p = log_softmax(self._logits(p, w, b), dim=-1)
        log_q = log_softmax(self._logits(q, w0, b0), dim=-1)
        return (log_p.exp() * (log_p - log_q)).sum()


class Logits:
    """Hidden states [N, H] to float32 logits [N, V], scaled as the model's own forward scales them.

    The table of who scales how is TRL's (trl.trainer.utils.add_fused_lm_head, 1.16), which keeps it inside a function.
    """

    def __init__(self, config: Any) -> None:
        self._cap = getattr(config, "final_logit_softcapping", None)
        scales = (getattr(config, name, None) for name in ("logit_scale", "output_multiplier", "lm_head_multiplier"))
        self._scale = next((scale for scale in scales if scale is not None), None)
        divisor = getattr(config, "logits_scaling", None)
        if self._scale is None and divisor is not None:
            self._scale = divisor if config.model_type == "hyperclovax" else 1 / divisor

    def __call__(self, hidden: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        to = hidden.dtype
        logits = linear(hidden, weight.to(to), None if bias is None else bias.to(to)).float()
        if self._scale is not None:
            logits = logits * self._scale
        return self._cap * torch.tanh(logits / self._cap) if self._cap is not None else logits


@contextmanager
def hidden_states(model: Any) -> Iterator[list[Hidden]]:
    """A list that the next forward passes of `model` fill, one Hidden each."""
    inner = model.get_base_model() if hasattr(model, "peft_config") else model
    seen: list[Hidden] = []

    def keep(module: Any, args: Any, output: Mapping[str, Any]) -> None:
        head = inner.get_output_embeddings()
        seen.append(Hidden(output["last_hidden_state"], head.weight, head.bias))

    handle = inner.base_model.register_forward_hook(keep)
    try:
        yield seen
    finally:
        handle.remove()
