"""Rows to tokens: the one place where a prompt or a training row is rendered.

Sampling, training and counting share it, so a model is trained on the very tokens it will be asked to complete.
T is a row's tokens.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from finery.errors import InputError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


@dataclass(frozen=True)
class Rendered:
    """One row as tokens.

    Attributes:
        ids: token ids [T].
        target: whether the token at each position is learned, [T].
        start: the position at which the answer begins.
    """

    ids: list[int]
    target: list[bool]
    start: int


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
        templated(
            tokenizer, messages, add_generation_prompt=not opened, continue_final_message=opened, return_dict=False
        )
    )


def templated(tokenizer: PreTrainedTokenizerBase, messages: Sequence[Mapping[str, Any]], **asked: Any) -> Any:
    """`apply_chat_template`, in transformers' sandbox; the template is handed a copy of the messages.

    Raises:
        InputError: the template cannot be rendered: it reaches for Python's internals, changes the messages, counts
            beyond the sandbox's ranges, is no Jinja, or refuses this conversation by raise_exception.
    """
    from jinja2 import TemplateError

    try:
        return tokenizer.apply_chat_template([dict(message) for message in messages], **asked)
    except (TemplateError, ArithmeticError, LookupError, TypeError, ValueError) as error:
        lines = str(error).strip().splitlines() or [""]
        turns = ", ".join(str(message.get("role")) for message in messages)
        raise InputError(
            f"the chat template cannot render a conversation of {turns}: {type(error).__name__}: {lines[0][:200]}"
        ) from error


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


def render(
    rows: Sequence[Mapping[str, Any]],
    tokenizer: PreTrainedTokenizerBase,
    ends: Collection[int],
    completion_only: bool,
    assistant_only: bool,
    name: str,
) -> Iterator[tuple[Mapping[str, Any], Rendered | str]]:
    """Each row with its tokens, or with the reason for which it has none; for the arguments see `encode`."""
    texts = [row for row in rows if _is_text(row)]
    if texts and assistant_only:
        raise InputError(f"{name}: assistant_only_loss is for rows of messages; row {texts[0]['id']} is text")
    rendered_texts = iter(_render_texts(texts, tokenizer, ends, completion_only))
    for row in rows:
        if _is_text(row):
            yield row, next(rendered_texts)
        else:
            yield row, _render_messages(row, tokenizer, ends, completion_only, assistant_only, name)


def _is_text(row: Mapping[str, Any]) -> bool:
    return isinstance(row.get("prompt"), str) and isinstance(row.get("completion"), str)


def _render_texts(
    rows: Sequence[Mapping[str, Any]],
    tokenizer: PreTrainedTokenizerBase,
    ends: Collection[int],
    completion_only: bool,
) -> Iterator[Rendered | str]:
    if not rows:
        return
    prompts = tokenizer([row["prompt"] for row in rows], add_special_tokens=False)["input_ids"]
    wholes = tokenizer([row["prompt"] + row["completion"] for row in rows], add_special_tokens=False)["input_ids"]
    for row, prompt, whole in zip(rows, prompts, wholes, strict=True):
        if not row["completion"]:
            yield "its completion is empty"
            continue
        ids = whole if whole[: len(prompt)] == prompt else _apart(tokenizer, prompt, whole, row["completion"])
        if ids is None:
            yield "its prompt and completion share a token, and the completion alone has another text"
            continue
        ids = ids if ids[-1] in ends else [*ids, int(tokenizer.eos_token_id)]
        yield _learn_from(ids, len(prompt), len(prompt) if completion_only else 0)


def _apart(
    tokenizer: PreTrainedTokenizerBase, prompt: list[int], whole: list[int], completion: str
) -> list[int] | None:
    """Prompt and completion tokenized alone, as generation after this prompt would; None if the text changes."""
    ids = prompt + tokenizer(completion, add_special_tokens=False)["input_ids"]
    same = tokenizer.decode(ids, clean_up_tokenization_spaces=False) == tokenizer.decode(
        whole, clean_up_tokenization_spaces=False
    )
    return ids if same else None


def _render_messages(
    row: Mapping[str, Any],
    tokenizer: PreTrainedTokenizerBase,
    ends: Collection[int],
    completion_only: bool,
    assistant_only: bool,
    name: str,
) -> Rendered | str:
    before, whole = _conversation(row, name)
    if not whole or whole[-1].get("role") != "assistant":
        return "its last message is not the assistant's, so there is no answer to learn"
    prompt = render_prompt(tokenizer, before) if before else []
    if not before and not tokenizer.chat_template:
        render_prompt(tokenizer, whole)  # raises: no template
    given = dict(
        templated(tokenizer, whole, tokenize=True, return_dict=True, return_assistant_tokens_mask=assistant_only)
    )
    ids = list(given["input_ids"])
    if ids[: len(prompt)] != prompt:
        return "the chat template renders its prompt differently once the answer follows"
    if assistant_only:
        marked = [bool(m) for m in given["assistant_masks"]]
        # templates often leave the end token after the marked span; unlearned, the model would never stop
        target = [m or (i > 0 and marked[i - 1] and ids[i] in ends) for i, m in enumerate(marked)]
        return Rendered(ids, target, len(prompt))
    if not any(token in ends for token in ids[len(prompt) :]):
        ids.append(int(tokenizer.eos_token_id))
    return _learn_from(ids, len(prompt), len(prompt) if "messages" not in row and completion_only else 0)


def _conversation(row: Mapping[str, Any], name: str) -> tuple[list[dict[str, str]], list[dict[str, str]]]:
    """The messages before the answer, and all of them."""
    if row.get("messages"):
        messages = [dict(message) for message in row["messages"]]
        return messages[:-1], messages
    prompt, completion = row.get("prompt"), row.get("completion")
    if completion is None:
        raise InputError(f"{name}: row {row['id']} has no completion and no messages; training needs one of them")
    if not isinstance(prompt, list):
        raise InputError(f"{name}: row {row['id']} has a prompt of text and a completion of messages; give both as one")
    before = [dict(message) for message in prompt]
    answer = [{"role": "assistant", "content": completion}] if isinstance(completion, str) else completion
    return before, before + [dict(message) for message in answer]


def _learn_from(ids: list[int], start: int, first: int) -> Rendered:
    return Rendered(ids, [False] * first + [True] * (len(ids) - first), start)
