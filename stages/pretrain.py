"""`pretrain`: a tiny causal language model and its tokenizer, from random weights."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from finery.contract import StageContext, StageResult
from finery.data.dataset import read_dataset
from finery.data.order import is_ordered
from finery.errors import InputError
from finery.schemas.pretrain import PretrainStage

if TYPE_CHECKING:
    from finery.training.encode import Encoded

Row = dict[str, Any]


def run(config: PretrainStage, inputs: Mapping[str, Path], context: StageContext) -> StageResult:
    """Make a tokenizer and a Llama, train it on `inputs["data"]`, and publish both as output `model`.

    Raises:
        InputError: the words are no vocabulary, or a row is not text.
        StageError: no row is left, or the loss was not finite.
    """
    from finery.training.llama import new_llama
    from finery.training.models import publish_model
    from finery.training.sft import start, train_sft
    from finery.training.tokenizers import make_tokenizer

    checkpoints = start(context)
    rows = {field: _text_rows(inputs[field], field) for field in ("data", "replay.data") if field in inputs}
    tokenizer = make_tokenizer(config.tokenizer, _texts(rows))
    model = new_llama(config.architecture, tokenizer, context.seed, config.attn_implementation)
    encoded = {
        field: _encode(config, field, of, tokenizer, ordered=is_ordered(inputs[field])) for field, of in rows.items()
    }
    if checkpoints[1] is None:
        _warn(config, context, encoded, tokenizer)
    trained = train_sft(
        model,
        tokenizer,
        config,
        context,
        data=encoded["data"],
        replay=(encoded["replay.data"], config.replay) if config.replay else None,
        resume=checkpoints,
    )
    if context.rank:
        return StageResult()
    publish_model(trained.model, tokenizer, context.output("model"))
    metrics = trained.metrics | {
        "steps": trained.steps,
        "rows": len(encoded["data"]),
        "rows_rejected": len(encoded["data"].rejected),
        "parameters": sum(weight.numel() for weight in trained.model.parameters()),
        "vocab_size": len(tokenizer),
    }
    headline = f"{metrics['parameters']:,} parameters, loss {metrics['loss']:.3f} after {trained.steps} steps"
    return StageResult(metrics=metrics, summary={"headline": headline})


def _text_rows(folder: Path, field: str) -> list[Row]:
    rows = read_dataset(folder)
    for row in rows:
        if not (isinstance(row.get("prompt"), str) and isinstance(row.get("completion"), str)):
            raise InputError(
                f"{field}: row {row['id']} is no prompt and completion of text, which is what pretrain takes"
            )
    return rows


def _texts(rows: Mapping[str, Sequence[Row]]) -> Iterator[str]:
    return (row["prompt"] + row["completion"] for of in rows.values() for row in of)


def _encode(config: PretrainStage, field: str, rows: Sequence[Row], tokenizer: Any, *, ordered: bool) -> Encoded:
    from finery.training.encode import encode

    return encode(
        rows,
        tokenizer,
        ends=[tokenizer.eos_token_id],
        max_length=config.max_length,
        overlong="reject",
        ordered=ordered,
        name=field,
    )


def _warn(config: PretrainStage, context: StageContext, encoded: Mapping[str, Encoded], tokenizer: Any) -> None:
    """Say which rows were left out, and how many tokens the vocabulary does not know."""
    from finery.training.encode import warn_of_rows

    for field, data in encoded.items():
        warn_of_rows(data, context, field, config.max_length)
        unknown = int((data.ids == tokenizer.unk_token_id).sum()) if tokenizer.unk_token_id is not None else 0
        if unknown:
            context.warn(
                f"{field}: {unknown} of {len(data.ids)} tokens are no word of tokenizer.words and were read as <unk>; "
                "add the missing characters to words"
            )
