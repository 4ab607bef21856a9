"""Supervised training: what sft, pretrain and distill all train by; the loss is `finery.training.trainer`'s."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from transformers import PreTrainedTokenizerBase
from trl import SFTConfig

from finery.contract import StageContext
from finery.errors import InputError
from finery.schemas.training import Lora, Replay, TrainingStage
from finery.training.adapters import check_reached, new_adapter
from finery.training.anchor import Anchor
from finery.training.arguments import on_cpu, quietly, trainer_arguments, trainer_seed
from finery.training.callbacks import Fingerprint
from finery.training.checkpoints import Checkpoint, Checkpoints
from finery.training.collate import PADDED, Feed, Layout
from finery.training.distributed import Ranks, whole_model
from finery.training.encode import Encoded
from finery.training.ewc import Fisher, Penalty
from finery.training.packing import uses_bounds
from finery.training.quantize import is_quantized, to_device, unseen_by_trl
from finery.training.trainer import EVAL_BATCH, ReplayTrainer


@dataclass(frozen=True)
class SftRun:
    """What a training run left behind.

    Attributes:
        model: the trained model, a PeftModel when an adapter was trained.
        metrics: the last value of each metric.
        steps: optimizer steps.
    """

    model: Any
    metrics: dict[str, float] = field(default_factory=dict)
    steps: int = 0


@dataclass(frozen=True)
class Hold:
    """What holds a model near its start, beside replay.

    Attributes:
        kl_weight: of the mean KL to the start over the own target tokens; 0 for none.
        fisher: with `ewc_weight`, where weights were and how much they mattered there.
        ewc_weight: of the EWC penalty.
    """

    kl_weight: float = 0.0
    fisher: Fisher | None = None
    ewc_weight: float = 0.0


FREE = Hold()


def train_sft(
    model: Any,
    tokenizer: PreTrainedTokenizerBase,
    config: TrainingStage,
    context: StageContext,
    *,
    data: Encoded,
    replay: tuple[Encoded, Replay] | None = None,
    evaluation: Encoded | None = None,
    eval_steps: int | None = None,
    lora: Lora | None = None,
    token_ids: Sequence[int] = (),
    hold: Hold = FREE,
    layout: Layout = PADDED,
    resume: tuple[Checkpoints, Checkpoint | None] | None = None,
) -> SftRun:
    """Train `model` on `data`, from the last whole checkpoint if there is one.

    Args:
        model: a causal LM, of 4-bit weights if an adapter goes on them, or a PeftModel whose adapter is continued.
        data: the stage's own rows; `config.per_device_train_batch_size` of them a micro-batch.
        replay: rows shown beside them, and how many with what weight.
        evaluation: rows whose loss is logged every `eval_steps` and at the end.
        lora: put a new adapter on the model and train that alone.
        token_ids: with `lora`, rows of the embedding and the head that are trained beside it.
        hold: what holds the model near its start.
        layout: how rows become batches; `split` and `bounds` are settled here.
        resume: where checkpoints are, and the one to go on from, if the caller has looked already.

    Returns:
        The trained model (wrapped in a PeftModel when `lora` is given) and the last metrics.

    Raises:
        InputError: `lora` on a model that is an adapter already, or on modules that it has not; `hold.fisher` of
            another model; rows with weights that are to be packed, or a model that does not keep packed rows apart.
        StageError: the loss was not finite, or training changed nothing.
        Interrupted: the user asked to stop; the next run goes on from there.
    """
    if lora is not None and hasattr(model, "peft_config"):
        raise InputError(
            "lora: the model is an adapter already; leave lora out to train it further, put a new one on it with "
            "adapter: stack, or merge it into its base first"
        )
    if lora is not None:
        model = new_adapter(model, lora, seed=trainer_seed(context.seed), token_ids=token_ids)
    if is_quantized(model) and not on_cpu(config):
        model = to_device(model, torch.device("cuda", torch.cuda.current_device()))
    keeper, checkpoint = resume or start(context)
    layout = _settled(layout, model, data, split=on_cpu(config))
    pad_id = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else tokenizer.eos_token_id
    feed = Feed(
        data,
        config.per_device_train_batch_size,
        context.seed,
        replay=replay[0] if replay else None,
        replay_batch_size=replay[1].per_device_train_batch_size if replay else 0,
        pad_id=pad_id,
        layout=layout,
    )
    ranks = Ranks.of(context, getattr(config, "launch", None))
    padded = Layout(split=layout.split)
    anchor, penalty = _held(hold, model, new_adapter=lora is not None)
    steps = total_steps(config, -(-len(feed) // ranks.count))
    with unseen_by_trl(model):
        trainer = ReplayTrainer(
            model,
            feed=feed,
            evaluation=Feed(evaluation, EVAL_BATCH, 0, pad_id=pad_id, layout=padded) if evaluation else None,
            replay_weight=replay[1].weight if replay else 0.0,
            kl_weight=hold.kl_weight,
            anchor=anchor,
            penalty=penalty,
            ranks=ranks,
            args=quietly(
                SFTConfig,
                **trainer_arguments(config, context, model, max_steps=steps),
                eval_strategy="steps" if evaluation else "no",
                eval_steps=(eval_steps or steps) if evaluation else None,
                max_length=None,
                packing=False,
                completion_only_loss=False,
                loss_type="nll",
                dataset_kwargs={"skip_prepare_dataset": True},
            ),
            processing_class=tokenizer,
        )
    trainer.attach(context, keeper)
    before = Fingerprint(trainer.model)
    trainer.train_from(checkpoint)
    trained = whole_model(trainer.model, ranks)
    if ranks.rank:
        return SftRun(trained, trainer.report.last, steps)
    what = "the adapter" if hasattr(trainer.model, "peft_config") else "the model"
    before.check(trained, what, "raise learning_rate, or max_steps beyond warmup_steps")
    if idle := check_reached(trained):
        context.warn(f"no gradient reached the adapters of {len(idle)} modules: {', '.join(idle[:5])}")
    return SftRun(trained, trainer.report.last, steps)


def _settled(layout: Layout, model: Any, data: Encoded, *, split: bool) -> Layout:
    """The layout on this model and machine."""
    if layout.capacity and data.weights is not None:
        raise InputError(
            "packing: the rows have weights, by which each pass draws them anew, and what shares a sequence is settled "
            "once; leave packing out, or balance out of the data stage"
        )
    if layout.by_length and data.ordered:
        raise InputError(
            "group_by_length: the data asks for its order (a curriculum), which sorting by length would undo; leave "
            "one of the two out"
        )
    return replace(layout, split=split, bounds=bool(layout.capacity) and uses_bounds(model))


def _held(hold: Hold, model: Any, *, new_adapter: bool) -> tuple[Anchor | None, Penalty | None]:
    """What the loss holds the model by, said in the log."""
    anchor = Anchor(model, new_adapter=new_adapter) if hold.kl_weight else None
    penalty = Penalty(model, hold.fisher, hold.ewc_weight) if hold.fisher else None
    if anchor is not None:
        print(f"kl_weight {hold.kl_weight:g}: {anchor.in_words()}", flush=True)
    if penalty is not None:
        print(f"ewc.weight {hold.ewc_weight:g}: {penalty.in_words()}", flush=True)
    return anchor, penalty


def start(context: StageContext) -> tuple[Checkpoints, Checkpoint | None]:
    """The stage's checkpoints and the last whole one; without one, metrics.jsonl starts anew."""
    keeper = Checkpoints(context)
    checkpoint = keeper.last()
    if checkpoint is None:
        context.rewind(0)
    return keeper, checkpoint


def total_steps(config: TrainingStage, micro_batches: int) -> int:
    """Optimizer steps: max_steps, else the epochs' micro-batches in steps of gradient_accumulation_steps."""
    if config.max_steps is not None:
        return config.max_steps
    per_epoch = -(-micro_batches // config.gradient_accumulation_steps)
    return max(1, round((config.num_train_epochs or 0) * per_epoch))
