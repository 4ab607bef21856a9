"""Special tokens added to a model: to the tokenizer, the embedding and the head; an adapter carries its own rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from finery.errors import InputError


def add_tokens(model: Any, tokenizer: Any, tokens: Sequence[str], *, seed: int) -> list[int]:
    """Add special tokens to the tokenizer and make room for them in the model.

    New rows start near the mean of the old ones (transformers' `mean_resizing`), drawn from `seed`; rows that a padded
    vocabulary has already are used as they are.

    Args:
        model: a causal LM of full or 4-bit weights, changed in place.
        tokenizer: its tokenizer, changed in place.

    Returns:
        The tokens' ids, in order.

    Raises:
        InputError: a token is in the vocabulary already.
    """
    import torch
    from tokenizers import AddedToken

    from finery.training.arguments import trainer_seed

    known = tokenizer.get_vocab()
    if present := [token for token in tokens if token in known]:
        named = ", ".join(f"{token!r} (id {known[token]})" for token in present)
        raise InputError(f"added_tokens: in the vocabulary already: {named}; leave them out")
    tokenizer.add_tokens([AddedToken(token, special=True, normalized=False) for token in tokens], special_tokens=True)
    if len(tokenizer) > rows_of(model):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(trainer_seed(seed))
            model.resize_token_embeddings(len(tokenizer), mean_resizing=True)
    ids: list[int] = tokenizer.convert_tokens_to_ids(list(tokens))
    return ids


def grow(model: Any, size: int) -> None:
    """Give a base the rows that its adapter was trained with; they are 0 until the adapter's own come in."""
    import torch

    before = rows_of(model)
    if size <= before:
        return
    with torch.random.fork_rng(devices=[]):
        model.resize_token_embeddings(size, mean_resizing=False)
    with torch.no_grad():
        for module in (model.get_input_embeddings(), model.get_output_embeddings()):
            if module is not None:
                module.weight[before:] = 0


def rows_of(model: Any) -> int:
    """Rows of the embedding: the vocabulary, padding included."""
    return int(model.get_input_embeddings().weight.shape[0])


def trained_rows(model: Any, ids: Sequence[int]) -> dict[str, list[int]]:
    """peft's `trainable_token_indices`: the rows of the embedding, and of the head where it has weights of its own."""
    names = {module: name for name, module in model.named_modules()}
    embedding, head = model.get_input_embeddings(), model.get_output_embeddings()
    found = {names[embedding]: list(ids)}
    if getattr(head, "bias", None) is not None:
        raise InputError(
            "added_tokens: the model's head has a bias, which peft's token rows would drop; leave lora out"
        )
    if head is not None and head.weight is not embedding.weight:
        found[names[head]] = list(ids)
    return found


def complete_head(model: Any) -> None:
    """peft's wrapper of a head with token rows has no `bias`, which TRL's fused loss asks for; there is none."""
    head = model.get_base_model().get_output_embeddings()
    if head is not None and not hasattr(head, "bias"):
        head.bias = None


def unseen(tokens: Sequence[str], ids: Sequence[int], data: Any) -> list[str]:
    """The tokens that no row of the training data holds (int32 ids): their rows are left as they began."""
    import numpy as np

    present = set(np.unique(data).tolist())
    return [token for token, number in zip(tokens, ids, strict=True) if number not in present]
