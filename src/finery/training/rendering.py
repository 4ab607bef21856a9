"""Prompts to token ids, and the tokens that end a completion: the same for sampling, training and counting."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from finery.errors import InputError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def render_prompt(tokenizer: PreTrainedTokenizerBase, prompt: str | Sequence[Mapping[str, Any]]) -> list[int]:
    """The token ids a completion starts from.

    Text is used verbatim, with no special token added. Messages go through the chat template, which writes its
    own special tokens, so nothing adds a second BOS; they end with the generation prompt, or stay open when the
    last message is the assistant's.

    Raises:
        InputError: messages, but the tokenizer has no chat template.
    """
    if isinstance(prompt, str):
        return list(tokenizer(prompt, add_special_tokens=False)["input_ids"])
    if not tokenizer.chat_template:
        raise InputError(
            "the prompt is a list of messages, but the model has no chat template; give prompts as text, or train "
            "the model with sft.chat_template first"
        )
    messages = [dict(message) for message in prompt]
    opened = bool(messages) and messages[-1].get("role") == "assistant"
    return list(
        tokenizer.apply_chat_template(
            messages, add_generation_prompt=not opened, continue_final_message=opened, return_dict=False
        )
    )


def render_prompts(
    tokenizer: PreTrainedTokenizerBase, prompts: Sequence[str | Sequence[Mapping[str, Any]]]
) -> list[list[int]]:
    """`render_prompt` of each; texts are tokenized together, which takes a fraction of the time."""
    if prompts and all(isinstance(prompt, str) for prompt in prompts):
        return [list(ids) for ids in tokenizer(list(prompts), add_special_tokens=False)["input_ids"]]
    return [render_prompt(tokenizer, prompt) for prompt in prompts]


def end_ids_of(named: int | Sequence[int] | None, tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """The tokens that end a completion: those that a generation config names, and the tokenizer's EOS.

    Raises:
        InputError: neither names one.
    """
    ids = {named} if isinstance(named, int) else set(named or ())
    if tokenizer.eos_token_id is not None:
        ids.add(tokenizer.eos_token_id)
    if not ids:
        raise InputError("the model names no end token; set eos_token_id in its generation_config or its tokenizer")
    return sorted(int(i) for i in ids)
