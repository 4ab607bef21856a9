"""`sft`: supervised fine-tuning, whole or LoRA, with replay against forgetting."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from finery.contract import StageContext, StageResult
from finery.data.dataset import read_dataset
from finery.data.order import is_ordered
from finery.errors import InputError
from finery.schemas.sft import SftStage


def run(config: SftStage, inputs: Mapping[str, Path], context: StageContext) -> StageResult:
    """Train `inputs["model"]` on `inputs["data"]`, and publish it (or its adapter) as output `model`.

    Raises:
        InputError: the model or a row cannot be used.
        StageError: no row is left, the loss was not finite, or training changed nothing.
    """
    from finery.training.encode import encode, warn_of_rows
    from finery.training.models import adapter_base, load_model, load_tokenizer, publish_model
    from finery.training.sampling import end_ids
    from finery.training.sft import start, train_sft

    checkpoints = start(context)
    tokenizer = load_tokenizer(inputs["model"])
    if config.chat_template is not None:
        tokenizer.chat_template = _template(inputs["chat_template"])
    model = load_model(inputs["model"], dtype=config.dtype, bases=context.bases, trainable=True)
    ends = end_ids(model, tokenizer)

    def read(field: str) -> Any:
        encoded = encode(
            read_dataset(inputs[field]),
            tokenizer,
            ends=ends,
            max_length=config.max_length,
            completion_only=config.completion_only_loss,
            # replay is learned as it comes: it may be text beside messages
            assistant_only=config.assistant_only_loss and field != "replay.data",
            ordered=is_ordered(inputs[field]),
            name=field,
        )
        if checkpoints[1] is None:
            warn_of_rows(encoded, context, field, config.max_length)
        return encoded

    data = read("data")
    trained = train_sft(
        model,
        tokenizer,
        config,
        context,
        data=data,
        replay=(read("replay.data"), config.replay) if config.replay else None,
        evaluation=read("eval_data") if config.eval_data else None,
        eval_steps=config.eval_steps,
        lora=config.lora,
        resume=checkpoints,
    )
    base = None
    if hasattr(trained.model, "peft_config"):
        digest, ref = context.input_digests.get("model", ""), context.input_refs.get("model", "")
        base = adapter_base(inputs["model"], digest=digest, ref=ref)
    publish_model(trained.model, tokenizer, context.output("model"), base=base)
    metrics = trained.metrics | {"steps": trained.steps, "rows": len(data), "rows_rejected": len(data.rejected)}
    return StageResult(
        metrics=metrics,
        summary={
            "headline": f"loss {metrics['loss']:.3f} after {trained.steps} steps",
            "rejected": [{"id": row, "reason": reason} for row, reason in data.rejected[:20]],
        },
    )


def _template(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"chat_template: {path} cannot be read ({error}); give a Jinja file in UTF-8") from error
