"""A Llama of any size with random weights."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from finery.schemas.pretrain import Architecture

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def new_llama(
    architecture: Architecture, tokenizer: PreTrainedTokenizerBase, seed: int, attention: str | None = None
) -> Any:
    """A LlamaForCausalLM in float32 and training mode, embedding and head tied.

    Args:
        architecture: LlamaConfig's fields.
        tokenizer: its vocabulary and special tokens.
        seed: of the weights; the caller's random state is left as it is.
        attention: transformers' `attn_implementation`; its own choice by default.
    """
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    from finery.training.arguments import trainer_seed

    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=architecture.hidden_size,
        num_hidden_layers=architecture.num_hidden_layers,
        num_attention_heads=architecture.num_attention_heads,
        num_key_value_heads=architecture.num_attention_heads,
        intermediate_size=architecture.intermediate_size,
        max_position_embeddings=architecture.max_position_embeddings,
        rope_parameters={"rope_type": "default", "rope_theta": architecture.rope_theta},
        initializer_range=architecture.initializer_range,
        tie_word_embeddings=True,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        attn_implementation=attention,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(trainer_seed(seed))
        model = LlamaForCausalLM(config)
    return model.train()
