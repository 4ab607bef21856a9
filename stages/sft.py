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
from finery.schemas.training import method_in_words


def run(config: SftStage, inputs: Mapping[str, Path], context: StageContext) -> StageResult:
    """Train `inputs["model"]` on `inputs["data"]`, and publish it (or its adapter) as output `model`.

    Raises:
        InputError: the model or a row cannot be used.
        StageError: no row is left, the loss was not finite, or training changed nothing.
    """
    from finery.training.added_tokens import add_tokens
    from finery.training.encode import encode, warn_of_rows
    from finery.training.models import load_tokenizer, publish_model
    from finery.training.sampling import end_ids
    from finery.training.sft import start, train_sft

    checkpoints = start(context)
    tokenizer = load_tokenizer(inputs["model"])
    if config.chat_template is not None:
        tokenizer.chat_template = _template(inputs["chat_template"])
    model = _model(config, inputs["model"], context)
    token_ids = add_tokens(model, tokenizer, config.added_tokens or (), seed=context.seed)
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
    method = _tell_of_method(config, inputs["model"], data, token_ids, context)
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
        token_ids=token_ids if config.lora else (),
        resume=checkpoints,
    )
    sits = _sits_on(config, inputs["model"], context) if hasattr(trained.model, "peft_config") else {}
    publish_model(trained.model, tokenizer, context.output("model"), **sits)
    metrics = trained.metrics | {"steps": trained.steps, "rows": len(data), "rows_rejected": len(data.rejected)}
    return StageResult(
        metrics=metrics,
        summary={
            "headline": f"loss {metrics['loss']:.3f} after {trained.steps} steps",
            "method": method,
            "rejected": [{"id": row, "reason": reason} for row, reason in data.rejected[:20]],
        },
    )


def _model(config: SftStage, folder: Path, context: StageContext) -> Any:
    """The model in train mode: as it is, in 4 bits, or with the adapter that it is merged below the new one."""
    from finery.training.arguments import check_machine, on_cpu
    from finery.training.models import is_adapter, load_model, merge_adapter
    from finery.training.quantize import quantize

    on_cpu(config)
    check_machine(config)
    if is_adapter(folder):
        if config.lora and config.adapter != "stack":
            raise InputError(
                "lora: the model is an adapter already; leave lora out to train it further, put a new one on it with "
                "adapter: stack, or merge it into its base first"
            )
        if config.added_tokens and config.adapter != "stack":
            raise InputError(
                "added_tokens: an adapter that is trained further keeps its tokenizer; take adapter: stack"
            )
    elif config.adapter:
        raise InputError(f"adapter: {config.adapter} is for an adapter, and the model is whole; leave it out")
    elif config.quantization and not config.lora:
        raise InputError("quantization: weights in 4 bits are not trained; add lora")
    how = {"dtype": config.dtype, "bases": context.bases, "attention": config.attn_implementation}
    if config.adapter != "stack":
        return load_model(folder, **how, quantization=config.quantization, trainable=True)
    merged = merge_adapter(folder, **how)
    return (quantize(merged, config.quantization) if config.quantization else merged).train()


def _sits_on(config: SftStage, folder: Path, context: StageContext) -> dict[str, Any]:
    """What model.json says of the trained adapter: the model it sits on, and how that was quantized."""
    from finery.training.folders import adapter_base, adapter_quantization
    from finery.training.quantize import quantization_record

    given = {"digest": context.input_digests.get("model", ""), "ref": context.input_refs.get("model", "")}
    if config.lora is None:
        return {"base": adapter_base(folder, **given), "quantization": adapter_quantization(folder)}
    record = quantization_record(config.quantization, config.dtype) if config.quantization else None
    return {"base": given, "quantization": record}


def _tell_of_method(config: SftStage, folder: Path, data: Any, token_ids: list[int], context: StageContext) -> str:
    """The method in words, for the summary; the log has it too, and what of the added tokens cannot be learned."""
    from finery.training.added_tokens import unseen
    from finery.training.models import is_adapter

    method = method_in_words(config, config.lora, config.quantization, continues=is_adapter(folder))
    print(f"method: {method}", flush=True)
    if absent := unseen(config.added_tokens or (), token_ids, data.ids):
        context.warn(
            f"added_tokens: no row holds {', '.join(map(repr, absent))}, so training leaves them as they began"
        )


def _template(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"chat_template: {path} cannot be read ({error}); give a Jinja file in UTF-8") from error
