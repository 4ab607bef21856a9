"""What both of the sampler's loops are made of: a model's next logits, and a token drawn from them.

B is the sequences of a call, L their length, V the vocabulary.
"""

from __future__ import annotations

import inspect

import torch
from transformers import Cache, PreTrainedModel

from finery.errors import StageError
from finery.schemas.training import Sampling


class Forward:
    """A model's forward pass, whatever it calls its arguments.

    Attributes:
        takes_positions: whether the model can be told where its tokens stand.
        limit: how many positions it has, None if they are not limited.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        self.model = model
        self.inner: PreTrainedModel = model.get_base_model() if hasattr(model, "get_base_model") else model
        names = set(inspect.signature(self.inner.forward).parameters)
        # transformers 5.24 renamed the argument and warns of the old name
        self._cache_name = "cache" if "cache" in names else "past_key_values"
        self.takes_positions = "position_ids" in names
        self._last_only = {"logits_to_keep": 1} if "logits_to_keep" in names else {}
        self.limit = positions_of(model)

    def __call__(
        self, ids_BL: torch.Tensor, mask: torch.Tensor | None, positions_BL: torch.Tensor, cache: Cache
    ) -> torch.Tensor:
        """The logits [B, V] after the last token; the cache takes in the tokens given.

        Raises:
            StageError: they are not finite.
        """
        given = {"position_ids": positions_BL} if self.takes_positions else {}
        output = self.model(
            input_ids=ids_BL,
            attention_mask=mask,
            use_cache=True,
            **{self._cache_name: cache},
            **given,
            **self._last_only,
        )
        logits_BV: torch.Tensor = output.logits[:, -1]
        # a sum is finite only where all its terms are; it is one pass over the vocabulary, where isfinite is several
        if not torch.isfinite(logits_BV.sum(dtype=torch.float32)):
            raise StageError("the model gives logits that are not finite; its weights or its dtype are broken")
        return logits_BV


def positions_of(model: PreTrainedModel) -> int | None:
    """How many positions the model has; None if they are not limited."""
    limit: int | None = getattr(model.config.get_text_config(decoder=True), "max_position_embeddings", None)
    return limit


def left_padded(prompts: list[list[int]], pad: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """ids and mask of the prompts, both int64 [P, L]."""
    width = max(len(prompt) for prompt in prompts)
    ids_PL = torch.tensor([[pad] * (width - len(p)) + p for p in prompts], device=device)
    mask_PL = torch.tensor([[0] * (width - len(p)) + [1] * len(p) for p in prompts], device=device)
    return ids_PL, mask_PL


def pick(logits_BV: torch.Tensor, draws_B: torch.Tensor | None, sampling: Sampling) -> torch.Tensor:
    """The next tokens, int64 [B]: the likeliest, or by inverting the cumulative distribution at draws_B in [0, 1)."""
    if draws_B is None:
        return logits_BV.argmax(dim=-1)
    scaled_BV = logits_BV.to(draws_B.dtype) / sampling.temperature
    cumulative_BV = torch.softmax(narrow(scaled_BV, sampling), dim=-1).cumsum(dim=-1)
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


def wide(device: torch.device) -> torch.dtype:
    """The type probabilities are summed in: float64, or float32 on Apple's GPUs, which have no other."""
    return torch.float32 if device.type == "mps" else torch.float64
