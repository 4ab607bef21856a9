"""Rows to token ids and labels: the one place where a training row is rendered.

Prompts are rendered exactly as `finery.training.rendering.render_prompt` renders them for sampling, so a model is
trained on the very tokens it will be asked to complete. N is rows, T a row's tokens.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from finery.contract import StageContext
from finery.data.order import weights_of
from finery.errors import InputError, StageError
from finery.training.rendering import render_prompt

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

IGNORED = -100
"""The label of a position that is no target (torch's cross-entropy skips it)."""

_SHOWN = 5
_GENERATION = re.compile(r"\{%-?\s*generation\s*-?%\}")


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


@dataclass(frozen=True)
class Encoded:
    """N rows in two flat arrays: row i is `offsets[i]:offsets[i + 1]`.

    Attributes:
        ids: int32 token ids.
        labels: int32, the token id where it is a target, IGNORED elsewhere; masked by position, never by token id.
        offsets: int64 [N + 1].
        names: the rows' ids, [N].
        rejected: (row id, reason) of every row left out.
        cut: the ids of rows that lost their end to max_length and are kept.
        weights: float64 [N], how often rows are drawn relative to each other; None where all are equal.
        ordered: the rows are to be taken in their order.
    """

    ids: NDArray[np.int32]
    labels: NDArray[np.int32]
    offsets: NDArray[np.int64]
    names: list[str]
    rejected: list[tuple[str, str]] = field(default_factory=list)
    cut: list[str] = field(default_factory=list)
    weights: NDArray[np.float64] | None = None
    ordered: bool = False

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Tokens of each row, int64 [N]."""
        return np.diff(self.offsets)

    def row(self, index: int) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        """Token ids and labels of one row, int32 [T] each."""
        place = slice(self.offsets[index], self.offsets[index + 1])
        return self.ids[place], self.labels[place]


def encode(
    rows: Sequence[Mapping[str, Any]],
    tokenizer: PreTrainedTokenizerBase,
    *,
    ends: Collection[int],
    max_length: int,
    overlong: Literal["cut", "reject"] = "cut",
    completion_only: bool = True,
    assistant_only: bool = False,
    ordered: bool = False,
    name: str = "data",
) -> Encoded:
    """Render rows of prompt and completion, or of messages, to tokens and labels.

    A text row is its prompt and its completion verbatim and one final EOS. A conversation goes through the chat
    template; EOS follows when the template writes none after the answer. The final EOS is always a target.

    Args:
        ends: token ids that end a completion (`finery.training.sampling.end_ids`).
        max_length: the longest row, in tokens.
        overlong: what becomes of a longer one: `cut` at the end, or `reject`. One whose answer would be cut away
            entirely is rejected either way (case T2).
        completion_only: learn only the completion of rows of prompt and completion.
        assistant_only: learn only what the template marks with {% generation %}.
        ordered: the data set asks for its order (`finery.data.order.is_ordered`).
        name: the input's name, for messages.

    Raises:
        InputError: a row has neither completion nor messages, or messages cannot be rendered, or assistant_only
            is asked of a template without {% generation %} (case T3), or only some rows have a weight.
        StageError: no row is left; the message says why.
    """
    if tokenizer.eos_token_id is None:
        raise InputError("the tokenizer has no EOS token, so the model could not learn to stop; set eos_token")
    if assistant_only:
        _check_generation_marks(tokenizer)
    is_weighted = weights_of(rows, name) is not None
    chunks: list[Rendered] = []
    names: list[str] = []
    weights: list[float] = []
    rejected: list[tuple[str, str]] = []
    cut: list[str] = []
    for row, rendered in render(rows, tokenizer, ends, completion_only, assistant_only, name):
        reason = rendered if isinstance(rendered, str) else _unfit(rendered, max_length, overlong)
        if reason or isinstance(rendered, str):
            rejected.append((row["id"], str(reason)))
            continue
        if len(rendered.ids) > max_length:
            cut.append(row["id"])
            rendered = Rendered(rendered.ids[:max_length], rendered.target[:max_length], rendered.start)
        chunks.append(rendered)
        names.append(row["id"])
        weights.append(row.get("weight", 1.0))
    if not chunks:
        what = f"row {rejected[0][0]}: {rejected[0][1]}" if rejected else "it is empty"
        raise StageError(f"{name}: none of its {len(rows)} rows can be trained on ({what})")
    ids = np.fromiter((i for chunk in chunks for i in chunk.ids), dtype=np.int32)
    target = np.fromiter((t for chunk in chunks for t in chunk.target), dtype=bool)
    offsets = np.concatenate([[0], np.cumsum([len(chunk.ids) for chunk in chunks])]).astype(np.int64)
    drawn = np.array(weights, dtype=np.float64) if is_weighted else None
    labels = np.where(target, ids, IGNORED).astype(np.int32)
    return Encoded(ids, labels, offsets, names, rejected, cut, drawn, ordered)


def warn_of_rows(encoded: Encoded, context: StageContext, name: str, max_length: int) -> None:
    """Say which rows were left out, and which lost their end."""
    total = len(encoded) + len(encoded.rejected)
    if encoded.rejected:
        shown = "; ".join(f"{row}: {reason}" for row, reason in encoded.rejected[:_SHOWN])
        more = f"; and {len(encoded.rejected) - _SHOWN} more" if len(encoded.rejected) > _SHOWN else ""
        context.warn(f"{name}: {len(encoded.rejected)} of {total} rows are left out ({shown}{more})")
    if encoded.cut:
        shown = ", ".join(encoded.cut[:_SHOWN])
        context.warn(
            f"{name}: {len(encoded.cut)} of {total} rows are longer than max_length {max_length} and lost their end, "
            f"the final EOS with it ({shown}{', ...' if len(encoded.cut) > _SHOWN else ''})"
        )


def _unfit(rendered: Rendered, max_length: int, overlong: str) -> str | None:
    """Why a row cannot be trained on, or None."""
    length = len(rendered.ids)
    if rendered.start >= max_length:
        return f"its prompt alone has {rendered.start} tokens, so max_length {max_length} cuts its answer away entirely"
    if length > max_length and overlong == "reject":
        return f"it has {length} tokens, more than max_length {max_length}"
    # the first token has nothing before it to be predicted from
    if not any(rendered.target[1:max_length]):
        return "nothing in it is to be learned"
    return None


def render(
    rows: Sequence[Mapping[str, Any]],
    tokenizer: PreTrainedTokenizerBase,
    ends: Collection[int],
    completion_only: bool,
    assistant_only: bool,
    name: str,
) -> Iterator[tuple[Mapping[str, Any], Rendered | str]]:
    """Each row with its tokens, or with the reason for which it has none; the arguments are those of `encode`."""
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
    given = dict(tokenizer.apply_chat_template(
        whole, tokenize=True, return_dict=True, return_assistant_tokens_mask=assistant_only
    ))  # fmt: skip
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


def _check_generation_marks(tokenizer: PreTrainedTokenizerBase) -> None:
    template = tokenizer.chat_template
    if not isinstance(template, str) or not _GENERATION.search(template):
        raise InputError(
            "assistant_only_loss needs a chat template with {% generation %} ... {% endgeneration %} around what the "
            f"assistant says, and the model's has none ({str(template)[:60]!r}); give such a template as "
            "chat_template, or leave assistant_only_loss out"
        )
