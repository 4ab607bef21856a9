"""Supervised training on TRL's SFTTrainer: own rows and replay rows in one step, each with its share of the loss.

L = (1 - w) * sum(own token losses) / own tokens + w * sum(replay token losses) / replay tokens, over the whole
step, gradient accumulation included. sft, pretrain and distill all train by this.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import torch
from datasets import Dataset
from datasets.table import InMemoryTable
from torch.utils.data import DataLoader
from transformers import PreTrainedTokenizerBase
from trl import SFTConfig, SFTTrainer
from trl.trainer.utils import add_fused_lm_head

from finery.contract import StageContext
from finery.errors import InputError, StageError
from finery.schemas.training import Lora, Replay, TrainingStage
from finery.training.adapters import check_reached, new_adapter
from finery.training.arguments import on_cpu, quietly, trainer_arguments, trainer_seed
from finery.training.callbacks import Fingerprint, Kept
from finery.training.checkpoints import Checkpoint, Checkpoints
from finery.training.collate import Feed, SubBatch, first_item, targets
from finery.training.encode import Encoded
from finery.training.quantize import is_quantized, to_device, unseen_by_trl

EVAL_BATCH = 64


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


class ReplayTrainer(Kept, SFTTrainer):  # type: ignore[misc]
    """SFTTrainer on rows that are tokens already, with a second stream of rows beside them.

    Its loss is TRL's (the fused LM head, which knows each model's scaling of logits), summed over sub-batches.
    """

    loss_is_scaled_for_ga = True

    def __init__(self, model: Any, *, feed: Feed, evaluation: Feed | None, replay_weight: float, **kwargs: Any) -> None:
        self.feed, self.evaluation, self.replay_weight = feed, evaluation, replay_weight
        inner = model.get_base_model() if hasattr(model, "get_base_model") else model
        given = inner.__dict__.get("forward")
        super().__init__(
            model,
            train_dataset=_as_dataset(feed.own),
            eval_dataset=None if evaluation is None else _as_dataset(evaluation.own),
            data_collator=first_item,
            **kwargs,
        )
        # TRL's head also computes the entropy, an eighth of a step on a small model; put on one that does not
        del inner.forward
        if given is not None:
            inner.forward = given
        add_fused_lm_head(inner, outputs=("log_probs", "is_top1"))

    def get_train_dataloader(self) -> DataLoader[Any]:
        loader = DataLoader(self.feed, batch_size=1, shuffle=False, collate_fn=first_item)
        prepared: DataLoader[Any] = self.accelerator.prepare(loader)
        return prepared

    def _get_num_items_in_batch(self, batch_samples: list[dict[str, list[SubBatch]]], device: torch.device) -> Any:
        """Own and replay tokens of the whole step, float32 [2]."""
        own = sum(targets(batch["own"]) for batch in batch_samples)
        replay = sum(targets(batch.get("replay", [])) for batch in batch_samples)
        if not own or (self.feed.replay is not None and not replay):
            raise StageError(f"step {self.state.global_step + 1}: no token of the batch is to be learned")
        return torch.tensor([own, replay], dtype=torch.float32, device=device)

    def compute_loss(
        self,
        model: Any,
        inputs: Mapping[str, Sequence[SubBatch]],
        return_outputs: bool = False,
        num_items_in_batch: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """This micro-batch's part of L, a float32 scalar."""
        if num_items_in_batch is None or return_outputs:
            raise ValueError("the loss needs the tokens of the whole step, and gives no outputs")
        own_tokens, replay_tokens = num_items_in_batch
        nll, right, count = self._sums(model, inputs["own"])
        self._metrics["train"]["mean_token_accuracy"].append(right / count)
        loss: torch.Tensor = nll / own_tokens
        seen = inputs["own"]
        if "replay" in inputs:
            replay_nll, replay_right, replay_count = self._sums(model, inputs["replay"])
            self._metrics["train"]["own_loss"].append(float(nll.detach()) / count)
            self._metrics["train"]["replay_loss"].append(float(replay_nll.detach()) / replay_count)
            self._metrics["train"]["replay_mean_token_accuracy"].append(replay_right / replay_count)
            loss = (1 - self.replay_weight) * loss + self.replay_weight * replay_nll / replay_tokens
            seen = [*seen, *inputs["replay"]]
        self.state.num_input_tokens_seen += sum(int(part["attention_mask"].sum()) for part in seen)
        self._metrics["train"]["num_tokens"] = [self.state.num_input_tokens_seen]
        return loss

    def _sums(self, model: Any, parts: Sequence[SubBatch]) -> tuple[torch.Tensor, int, int]:
        """Over sub-batches: the summed token loss (a scalar with gradient), the tokens guessed right, all tokens."""
        nll, right, count = torch.zeros((), device=self.args.device), 0, 0
        for part in parts:
            outputs = model(**part, fused_lm_head=True)
            nll = nll - outputs.log_probs.float().sum()
            right += int(outputs.is_top1.sum())
            count += int(outputs.label_mask.sum())
        return nll, right, count

    def evaluate(self, *_: Any, **__: Any) -> dict[str, float]:
        """`eval_loss`, the token mean over the evaluation data, and `eval_mean_token_accuracy`.

        The Trainer's own loop would average batch means by rows.
        """
        if self.evaluation is None:
            raise ValueError("there is no evaluation data")
        was_training = self.model.training
        self.model.eval()
        total, right, count = 0.0, 0, 0
        with torch.no_grad():
            for start in range(0, len(self.evaluation.own), EVAL_BATCH):
                rows = range(start, min(start + EVAL_BATCH, len(self.evaluation.own)))
                parts = self._prepare_input(self.evaluation.pad(self.evaluation.own, rows))
                nll, ok, tokens = self._sums(self.model, parts)
                total, right, count = total + float(nll), right + ok, count + tokens
        metrics = {"eval_loss": total / count, "eval_mean_token_accuracy": right / count}
        self.log(metrics)
        self.model.train(was_training)
        self.callback_handler.on_evaluate(self.args, self.state, self.control, metrics)
        return metrics


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
        resume: where checkpoints are, and the one to go on from, if the caller has looked already.

    Returns:
        The trained model (wrapped in a PeftModel when `lora` is given) and the last metrics.

    Raises:
        InputError: `lora` on a model that is an adapter already, or on modules that it has not.
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
    split = on_cpu(config)
    pad_id = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else tokenizer.eos_token_id
    feed = Feed(
        data,
        config.per_device_train_batch_size,
        context.seed,
        replay=replay[0] if replay else None,
        replay_batch_size=replay[1].per_device_train_batch_size if replay else 0,
        pad_id=pad_id,
        split=split,
    )
    steps = total_steps(config, len(feed))
    with unseen_by_trl(model):
        trainer = ReplayTrainer(
            model,
            feed=feed,
            evaluation=Feed(evaluation, EVAL_BATCH, 0, pad_id=pad_id, split=split) if evaluation else None,
            replay_weight=replay[1].weight if replay else 0.0,
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
    what = "the adapter" if hasattr(trainer.model, "peft_config") else "the model"
    before.check(trainer.model, what, "raise learning_rate, or max_steps beyond warmup_steps")
    if idle := check_reached(trainer.model):
        context.warn(f"no gradient reached the adapters of {len(idle)} modules: {', '.join(idle[:5])}")
    return SftRun(trainer.model, trainer.report.last, steps)


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


def _as_dataset(data: Encoded) -> Dataset:
    """The rows as TRL looks at them before training; in memory, sharing the arrays."""
    columns = {
        name: pa.LargeListArray.from_arrays(data.offsets, pa.array(values))
        for name, values in (("input_ids", data.ids), ("labels", data.labels))
    }
    return Dataset(InMemoryTable(pa.table(columns)))
