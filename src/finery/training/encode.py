"""Rows to token ids and labels, cut or left out where they do not fit. N is rows, T a row's tokens."""

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
from finery.training.rendering import Rendered, render

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

IGNORED = -100
"""The label of a position that is no target (torch's cross-entropy skips it)."""

_SHOWN = 5
_USED = {"id", "prompt", "completion", "messages", "weight"}
_GENERATION = re.compile(r"\{%-?\s*generation\s*-?%\}")


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
    is_weighted = weights_of(rows, name) is not None
    chunks: list[Rendered] = []
    names: list[str] = []
    weights: list[float] = []
    rejected: list[tuple[str, str]] = []
    cut: list[str] = []
    for row, rendered, is_cut in fitted(
        rows,
        tokenizer,
        ends=ends,
        max_length=max_length,
        overlong=overlong,
        completion_only=completion_only,
        assistant_only=assistant_only,
        name=name,
    ):
        if isinstance(rendered, str):
            rejected.append((row["id"], rendered))
            continue
        if is_cut:
            cut.append(row["id"])
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


def fitted(
    rows: Sequence[Mapping[str, Any]],
    tokenizer: PreTrainedTokenizerBase,
    *,
    ends: Collection[int],
    max_length: int,
    overlong: Literal["cut", "reject"],
    completion_only: bool,
    assistant_only: bool,
    name: str,
) -> Iterator[tuple[Mapping[str, Any], Rendered | str, bool]]:
    """Each row with its tokens, or the reason for which it is left out, and whether it lost its end to max_length.

    The arguments and the InputErrors are those of `encode`.
    """
    if tokenizer.eos_token_id is None:
        raise InputError("the tokenizer has no EOS token, so the model could not learn to stop; set eos_token")
    if assistant_only:
        _check_generation_marks(tokenizer)
    for row, rendered in render(rows, tokenizer, ends, completion_only, assistant_only, name):
        if row.get("messages") and row.get("completion") is not None:
            raise InputError(
                f"{name}: row {row['id']} has both messages and a completion, two answers; keep one of them"
            )
        reason = rendered if isinstance(rendered, str) else _unfit(rendered, max_length, overlong, tokenizer)
        if reason or isinstance(rendered, str):
            yield row, str(reason), False
            continue
        if assistant_only:
            _check_turns(row, rendered, tokenizer, ends, name)
        if len(rendered.ids) > max_length:
            yield row, Rendered(rendered.ids[:max_length], rendered.target[:max_length], rendered.start), True
        else:
            yield row, rendered, False


def unused_columns(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """The columns that hold something and that training does not look at, sorted."""
    return sorted({name for row in rows for name, value in row.items() if value is not None} - _USED)


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


def _unfit(rendered: Rendered, max_length: int, overlong: str, tokenizer: PreTrainedTokenizerBase) -> str | None:
    """Why a row cannot be trained on, or None."""
    length = len(rendered.ids)
    bos = tokenizer.bos_token_id
    if bos is not None and bos != tokenizer.eos_token_id and rendered.ids[:2] == [bos, bos]:
        return f"it begins with two {tokenizer.bos_token} tokens; its text has one beside the chat template's"
    if rendered.start >= max_length:
        return f"its prompt alone has {rendered.start} tokens, so max_length {max_length} cuts its answer away entirely"
    if length > max_length and overlong == "reject":
        return f"it has {length} tokens, more than max_length {max_length}"
    # the first token has nothing before it to be predicted from
    if not any(rendered.target[1:max_length]):
        return "nothing in it is to be learned"
    return None


def _check_turns(
    row: Mapping[str, Any], rendered: Rendered, tokenizer: PreTrainedTokenizerBase, ends: Collection[int], name: str
) -> None:
    """Every turn of the assistant's must end in a token that is learned and that ends a completion.

    Raises:
        InputError: one does not, so the model would never learn to stop there.
    """
    turns = [m for part in ("messages", "prompt", "completion") for m in _messages(row.get(part))]
    said = sum(message.get("role") == "assistant" for message in turns)
    learned = sum(t and token in ends for token, t in zip(rendered.ids, rendered.target, strict=True))
    spans = _spans(rendered.target)
    open_ended = [end for start, end in spans if not any(token in ends for token in rendered.ids[start:end])]
    if not open_ended and learned >= said:
        return
    after = rendered.ids[open_ended[0] : open_ended[0] + 1] if open_ended else []
    follows = f"; a marked turn is followed by {tokenizer.decode(after)!r}" if after else ""
    raise InputError(
        f"{name}: row {row['id']}: {learned} of {said} assistant turns end in a token that is learned and that ends a "
        f"completion ({', '.join(repr(tokenizer.decode([end])) for end in sorted(ends))}){follows}; the model would "
        "not learn to stop there. Put the token that ends a turn inside {% generation %}, mark every turn of the "
        "assistant's, and name that token as the model's eos_token"
    )


def _messages(value: Any) -> Sequence[Mapping[str, Any]]:
    return value if isinstance(value, list) else []


def _spans(target: Sequence[bool]) -> list[tuple[int, int]]:
    """The runs of True, as (start, end)."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], np.array(target, dtype=bool), [False]]).astype(np.int8)))
    return [(int(start), int(end)) for start, end in edges.reshape(-1, 2)]


def _told(template: Any) -> str:
    return f"one without ({template[:60]!r})" if isinstance(template, str) else "no chat template"


def _check_generation_marks(tokenizer: PreTrainedTokenizerBase) -> None:
    template = tokenizer.chat_template
    if not isinstance(template, str) or not _GENERATION.search(template):
        raise InputError(
            "assistant_only_loss needs a chat template with {% generation %} ... {% endgeneration %} around what the "
            f"assistant says, and the model has {_told(template)}; give such a template as chat_template, or leave "
            "assistant_only_loss out"
        )
