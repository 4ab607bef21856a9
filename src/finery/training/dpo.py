"""DPO on TRL's DPOTrainer: pairs that are tokens already, in the order that every trainer here takes, resumed exactly.

The reference is the model as it was
before the first step: a frozen copy, the adapter switched off, or a frozen copy of the adapter that is continued.
"""

from __future__ import annotations

import copy
import os
from collections import defaultdict
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from safetensors.numpy import load_file, save_file
from torch.utils.data import DataLoader
from transformers import PreTrainedTokenizerBase
from trl import DPOConfig, DPOTrainer

from finery.contract import StageContext
from finery.errors import InputError
from finery.schemas.dpo import DpoStage
from finery.training.adapters import check_reached, new_adapter
from finery.training.arguments import on_cpu, quietly, trainer_arguments, trainer_seed
from finery.training.callbacks import Fingerprint, Kept
from finery.training.checkpoints import Checkpoint, Checkpoints
from finery.training.collate import first_item
from finery.training.distributed import ALONE, Ranks, rounds
from finery.training.pairs import PairFeed, Pairs
from finery.training.quantize import is_quantized, to_device, unseen_by_trl
from finery.training.sft import SftRun, total_steps

EVAL_BATCH = 32
_REFERENCE = "reference.safetensors"
_PAIR_MEANS = (
    *(f"rewards/{name}" for name in ("chosen", "rejected", "accuracies", "margins")),
    *(f"logps/{name}" for name in ("chosen", "rejected")),
)
"""TRL's metrics that are means over pairs, so that their batch means can be joined by pairs."""


class PairTrainer(Kept, DPOTrainer):  # type: ignore[misc]
    """DPOTrainer whose pairs come from a PairFeed; loss, reference and metrics are TRL's."""

    def __init__(
        self,
        model: Any,
        *,
        feed: PairFeed,
        evaluation: PairFeed | None,
        folder: Path,
        ranks: Ranks = ALONE,
        **kwargs: Any,
    ) -> None:
        self.ranks = ranks
        self.feed, self.evaluation, self._folder = feed, evaluation, folder
        super().__init__(
            model,
            train_dataset=Dataset.from_dict({"pair": list(range(len(feed.pairs)))}),
            eval_dataset=Dataset.from_dict({"pair": list(range(len(evaluation.pairs)))}) if evaluation else None,
            data_collator=first_item,
            **kwargs,
        )

    def _prepare_dataset(self, dataset: Dataset, *_: Any) -> Dataset:
        """Nothing: the feed has tokens already, rendered as every trainer here renders them."""
        return dataset

    def get_train_dataloader(self) -> DataLoader[Any]:
        if self.ranks.count > 1:
            return self.ranks.loader(self.feed, self.args.device, rows=len(self.feed.pairs))
        loader = DataLoader(self.feed, batch_size=1, shuffle=False, collate_fn=first_item)
        prepared: DataLoader[Any] = self.accelerator.prepare(loader)
        return prepared

    def _precompute_ref_logps(self, dataset: Dataset, name: str, batch_size: int) -> Dataset:
        """Ask the reference for every pair. A resumed run takes what was written down: batches act by rounding."""
        feed = self.feed if name == "train" else self.evaluation
        assert feed is not None
        file = self._folder / f"{name}_{_REFERENCE}"
        if not file.exists():
            # as it is: one that accelerate has prepared to evaluate is not wrapped again to train in several processes
            model = self.ref_model or self.model
            parts = []
            for start in range(0, len(feed.pairs), batch_size):
                batch = self._prepare_inputs(feed.batch(range(start, min(start + batch_size, len(feed.pairs)))))
                parts.append(torch.stack(self.compute_ref_log_probs(model, batch), dim=1).float().cpu())
            aside = file.with_suffix(f".writing{self.args.process_index}")  # each process its own; the last one stays
            save_file({"logps": torch.cat(parts).numpy()}, aside)
            os.replace(aside, file)
        feed.reference = load_file(file)["logps"]
        return dataset

    def evaluate(self, *_: Any, **__: Any) -> dict[str, float]:
        """`eval_loss`, `eval_rewards/...` and `eval_logps/...`: means over the evaluation pairs.

        The Trainer's own loop would average batch means by batches.
        """
        if self.evaluation is None:
            raise ValueError("there is no evaluation data")
        was_training, pairs = self.model.training, len(self.evaluation.pairs)
        self.model.eval()
        sums: defaultdict[str, float] = defaultdict(float)
        with torch.no_grad():
            for start in range(0, pairs, EVAL_BATCH):
                rows = range(start, min(start + EVAL_BATCH, pairs))
                loss = self._compute_loss(self.model, self._prepare_inputs(self.evaluation.batch(rows)), False)
                sums["loss"] += float(loss) * len(rows)
                for name in _PAIR_MEANS:
                    sums[name] += self._metrics["eval"][name][-1] * len(rows)
        self._metrics["eval"].clear()
        metrics = {f"eval_{name}": total / pairs for name, total in sums.items()}
        self.log(metrics)
        self.model.train(was_training)
        self.callback_handler.on_evaluate(self.args, self.state, self.control, metrics)
        return metrics

    def extra_state(self) -> dict[str, Any]:
        return super().extra_state() | {"tokens": self._total_train_tokens}

    def load_extra_state(self, state: dict[str, Any]) -> None:
        super().load_extra_state(state)
        self._total_train_tokens = state["tokens"]


def train_dpo(
    model: Any,
    tokenizer: PreTrainedTokenizerBase,
    config: DpoStage,
    context: StageContext,
    *,
    data: Pairs,
    evaluation: Pairs | None = None,
    resume: tuple[Checkpoints, Checkpoint | None],
) -> SftRun:
    """Train `model` on pairs, from the last whole checkpoint if there is one.

    Args:
        model: a causal LM, or a PeftModel whose adapter `default` is continued; as it is now it is the reference.
        resume: where checkpoints are, and the one to go on from.

    Raises:
        InputError: `lora` on a model that is an adapter already, or on modules that it has not or that are the head.
        StageError: the loss was not finite, or training changed nothing.
        Interrupted: the user asked to stop; the next run goes on from there.
    """
    if config.lora is not None:
        if hasattr(model, "peft_config"):
            raise InputError("lora: the policy is an adapter already, and dpo continues it; leave lora out")
        model = new_adapter(model, config.lora, seed=trainer_seed(context.seed))
    _check_head(model)
    if is_quantized(model) and not on_cpu(config):
        model = to_device(model, torch.device("cuda", torch.cuda.current_device()))
    keeper, checkpoint = resume
    pad_id = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else tokenizer.eos_token_id
    feed = PairFeed(data, config.per_device_train_batch_size, context.seed, pad_id)
    ranks = Ranks.of(context, config.launch)
    steps = total_steps(config, _rounds(feed, ranks, context, resumed=checkpoint is not None))
    needs_copy = not (hasattr(model, "peft_config") or config.precompute_ref_log_probs)
    with unseen_by_trl(model):
        trainer = PairTrainer(
            model,
            feed=feed,
            evaluation=PairFeed(evaluation, EVAL_BATCH, 0, pad_id) if evaluation else None,
            folder=keeper.folder,
            ranks=ranks,
            # TRL would load it from the folder that the model's config names, whatever the weights are by now
            ref_model=copy.deepcopy(model).requires_grad_(False).eval() if needs_copy else None,
            args=dpo_arguments(config, context, model, steps, evaluated=evaluation is not None),
            # TRL gives a tokenizer without a pad token one, which the output would then carry on
            processing_class=copy.deepcopy(tokenizer),
        )
    if config.lora is not None:
        # TRL's copy of an adapter that is 0 yet: without it, the reference is the model below
        trainer.model.delete_adapter("ref")
    trainer.attach(context, keeper)
    before = Fingerprint(trainer.model)
    trainer.train_from(checkpoint)
    if ranks.rank:
        return SftRun(trainer.model, trainer.report.last, steps)
    what = "the adapter" if hasattr(trainer.model, "peft_config") else "the model"
    before.check(trainer.model, what, "raise learning_rate, or max_steps beyond warmup_steps")
    if idle := check_reached(trainer.model):
        context.warn(f"no gradient reached the adapters of {len(idle)} modules: {', '.join(idle[:5])}")
    return SftRun(trainer.model, trainer.report.last, steps)


def _rounds(feed: PairFeed, ranks: Ranks, context: StageContext, *, resumed: bool) -> int:
    """Micro-batches of each process in a pass; TRL joins what processes see pair by pair, so they are full ones."""
    if ranks.count == 1:
        return len(feed)
    found = rounds(len(feed.pairs), feed.batch_size, ranks.count)
    if (left := len(feed.pairs) - found * feed.batch_size * ranks.count) and not resumed:
        context.warn(
            f"launch: each pass leaves out its last {left} of {len(feed.pairs)} pairs, which do not fill "
            f"a batch of {feed.batch_size} in each of {ranks.count} processes"
        )
    return found


def dpo_arguments(config: DpoStage, context: StageContext, model: Any, steps: int, *, evaluated: bool = False) -> Any:
    """TRL's config: every field of the schema, no default of TRL's that matters."""
    return quietly(
        DPOConfig,
        **trainer_arguments(config, context, model, max_steps=steps),
        eval_strategy="steps" if evaluated else "no",
        eval_steps=(config.eval_steps or steps) if evaluated else None,
        per_device_eval_batch_size=EVAL_BATCH,
        max_length=None,
        beta=config.beta,
        loss_type=config.losses,
        loss_weights=config.loss_weights,
        label_smoothing=config.label_smoothing,
        precompute_ref_log_probs=config.precompute_ref_log_probs,
        precompute_ref_batch_size=config.per_device_train_batch_size,
        ld_alpha=None,
        f_divergence_type="reverse_kl",
        use_weighting=False,
        discopop_tau=0.05,
        sync_ref_model=False,
        disable_dropout=True,
    )


def _check_head(model: Any) -> None:
    """TRL multiplies by the head's own weight, so that an adapter on the head would never be trained."""
    if not hasattr(model, "peft_config"):
        return
    from peft.tuners.tuners_utils import BaseTunerLayer

    if isinstance(model.get_output_embeddings(), BaseTunerLayer):
        raise InputError(
            "model: is an adapter with a part on the output head, which dpo would not train; merge it first"
        )
