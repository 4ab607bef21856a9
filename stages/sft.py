"""`sft`: supervised fine-tuning, whole or LoRA, with replay against forgetting."""

from __future__ import annotations

from collections.abc import Callable, Mapping
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
    from finery.training.adapters import sits_on
    from finery.training.added_tokens import add_tokens
    from finery.training.collate import Layout
    from finery.training.encode import encode, unused_columns, warn_of_rows
    from finery.training.models import load_tokenizer, publish_model
    from finery.training.sampling import end_ids
    from finery.training.sft import start, train_sft

    checkpoints = start(context)
    tokenizer = load_tokenizer(inputs["model"])
    if config.chat_template is not None:
        tokenizer.chat_template = _template(inputs["chat_template"])
    model = _model(config, inputs["model"], context)
    token_ids = add_tokens(model, tokenizer, config.added_tokens or (), seed=context.seed)
    _freeze(config, model)
    ends = end_ids(model, tokenizer)
    unused: dict[str, list[str]] = {}

    def read(field: str) -> Any:
        rows = read_dataset(inputs[field])
        if columns := unused_columns(rows):
            unused[field] = columns
            print(f"{field}: columns that are not trained on: {', '.join(columns)}", flush=True)
        encoded = encode(
            rows,
            tokenizer,
            ends=ends,
            max_length=config.max_length,
            completion_only=config.completion_only_loss,
            # other data is taken as it comes: it may be text beside messages
            assistant_only=config.assistant_only_loss and field not in ("replay.data", "ewc.data"),
            ordered=is_ordered(inputs[field]),
            name=field,
        )
        if checkpoints[1] is None:
            warn_of_rows(encoded, context, field, config.max_length)
        return encoded

    data = read("data")
    method = _tell_of_method(config, inputs["model"], data, token_ids, context)
    hold = _hold(config, inputs, model, read, context)
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
        hold=hold,
        layout=Layout(capacity=config.max_length if config.packing else 0, by_length=config.group_by_length),
        resume=checkpoints,
    )
    if context.rank:
        return StageResult()
    sits = sits_on(trained.model, config, inputs["model"], context)
    publish_model(trained.model, tokenizer, context.output("model"), **sits)
    metrics = trained.metrics | {"steps": trained.steps, "rows": len(data), "rows_rejected": len(data.rejected)}
    return StageResult(
        metrics=metrics,
        summary={
            "headline": f"loss {metrics['loss']:.3f} after {trained.steps} steps",
            "method": method,
            "rejected": [{"id": row, "reason": reason} for row, reason in data.rejected[:20]],
            **({"unused_columns": unused} if unused else {}),
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
    how: dict[str, Any] = {"dtype": config.dtype, "bases": context.bases, "attention": config.attn_implementation}
    if config.adapter != "stack":
        return load_model(folder, **how, quantization=config.quantization, trainable=True)
    merged = merge_adapter(folder, **how)
    return (quantize(merged, config.quantization) if config.quantization else merged).train()


def _freeze(config: SftStage, model: Any) -> None:
    """Take `freeze` and `frozen_layers` out of training, said in the log."""
    from finery.training.freeze import freeze

    if config.freeze is None and config.frozen_layers is None:
        return
    if hasattr(model, "peft_config"):
        field = "freeze" if config.freeze else "frozen_layers"
        raise InputError(f"{field}: the model is an adapter, which is trained alone; leave it out")
    ends = [module.weight for module in (model.get_input_embeddings(), model.get_output_embeddings()) if module]
    print(freeze(model, config.freeze or (), config.frozen_layers or 0, trained=ends if config.added_tokens else ()))


def _hold(
    config: SftStage, inputs: Mapping[str, Path], model: Any, read: Callable[[str], Any], context: StageContext
) -> Any:
    """What holds the model near its start. F is measured once: a resumed attempt finds it beside its checkpoints."""
    from finery.training.arguments import on_cpu
    from finery.training.ewc import FISHER_FILE, Fisher, measure_fisher
    from finery.training.sft import Hold

    ewc = config.ewc
    if ewc is None:
        return Hold(config.kl_weight)
    if hasattr(model, "peft_config"):
        raise InputError(
            "ewc: the model is an adapter, whose base does not change; take kl_weight or replay, or merge it first"
        )
    if ewc.fisher is not None:
        return Hold(config.kl_weight, Fisher.read(inputs["ewc.fisher"]), ewc.weight)
    kept = context.checkpoint_dir / (f"fisher.{context.rank}" if context.rank else "fisher")
    if not (kept / FISHER_FILE).exists():
        reference = read("ewc.data")
        print(f"ewc: F is measured on {min(ewc.rows, len(reference))} of {len(reference)} rows", flush=True)
        measured = model if on_cpu(config) else model.to("cuda")
        measure_fisher(measured, reference, rows=ewc.rows, seed=context.seed).write(kept)
    fisher = Fisher.read(kept)
    if context.rank == 0:
        fisher.write(context.output("fisher"))
    return Hold(config.kl_weight, fisher, ewc.weight)


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
    return method


def _template(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"chat_template: {path} cannot be read ({error}); give a Jinja file in UTF-8") from error
