"""The trainer of supervised stages: TRL's SFTTrainer on rows that are tokens already, with a second stream beside them.

    L = (1 - w) * sum(own token losses) / own tokens + w * sum(replay token losses) / replay tokens
        + kl_weight * sum(KL of the own target tokens to the start) / own tokens + the EWC penalty

over the whole step, gradient accumulation included.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import torch
from datasets import Dataset
from datasets.table import InMemoryTable
from torch.utils.data import DataLoader
from trl import SFTTrainer
from trl.trainer.utils import add_fused_lm_head

from finery.errors import StageError
from finery.training.anchor import Anchor, hidden_states
from finery.training.callbacks import Kept
from finery.training.collate import Feed, SubBatch, first_item, targets, tokens, unlabelled
from finery.training.distributed import ALONE, Ranks
from finery.training.encode import Encoded
from finery.training.ewc import Penalty
from finery.training.packing import check_apart

EVAL_BATCH = 64


@dataclass
class Sums:
    """Sums over target tokens.

    Attributes:
        nll: of the token losses, a float32 scalar with gradient.
        right: tokens that the model guesses.
        count: all of them.
        kl: of the KL to the start, with gradient; None where it was not asked for.
    """

    nll: torch.Tensor
    right: int = 0
    count: int = 0
    kl: torch.Tensor | None = None


class ReplayTrainer(Kept, SFTTrainer):  # type: ignore[misc]
    """SFTTrainer on rows that are tokens already, with a second stream of rows beside them.

    Its loss is TRL's (the fused LM head, which knows each model's scaling of logits), summed over sub-batches.
    """

    loss_is_scaled_for_ga = True

    def __init__(
        self,
        model: Any,
        *,
        feed: Feed,
        evaluation: Feed | None,
        replay_weight: float,
        kl_weight: float = 0.0,
        anchor: Anchor | None = None,
        penalty: Penalty | None = None,
        ranks: Ranks = ALONE,
        **kwargs: Any,
    ) -> None:
        self.ranks = ranks
        self.feed, self.evaluation, self.replay_weight = feed, evaluation, replay_weight
        self.kl_weight, self.anchor, self.penalty = kl_weight, anchor, penalty
        self._tried = not feed.layout.capacity
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
        for held in (anchor, penalty):
            if held is not None:
                held.to(self.args.device)

    def get_train_dataloader(self) -> DataLoader[Any]:
        if self.ranks.count > 1:
            return self.ranks.loader(self.feed, self.args.device)
        loader = DataLoader(self.feed, batch_size=1, shuffle=False, collate_fn=first_item)
        prepared: DataLoader[Any] = self.accelerator.prepare(loader)
        return prepared

    def _get_num_items_in_batch(self, batch_samples: list[dict[str, list[SubBatch]]], device: torch.device) -> Any:
        """Own and replay tokens of the whole step, of all processes, float32 [2]."""
        own = sum(targets(batch["own"]) for batch in batch_samples)
        replay = sum(targets(batch.get("replay", [])) for batch in batch_samples)
        if self.ranks.count > 1:
            own, replay = self.ranks.total(torch.tensor([own, replay], device=device)).tolist()
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
        if not self._tried:
            check_apart(model, self.feed.own.ids[:1024], bounds=self.feed.layout.bounds, device=self.args.device)
            self._tried = True
        own_tokens, replay_tokens = num_items_in_batch
        own = self._sums(model, inputs["own"], anchor=self.anchor)
        self._check_first(own)
        log = self._metrics["train"]
        if own.count:
            log["mean_token_accuracy"].append(own.right / own.count)
        loss: torch.Tensor = own.nll / own_tokens
        seen = inputs["own"]
        if own.count and ("replay" in inputs or self.anchor or self.penalty):
            log["own_loss"].append(float(own.nll.detach()) / own.count)
        if "replay" in inputs:
            replay = self._sums(model, inputs["replay"])
            if replay.count:
                log["replay_loss"].append(float(replay.nll.detach()) / replay.count)
                log["replay_mean_token_accuracy"].append(replay.right / replay.count)
            loss = (1 - self.replay_weight) * loss + self.replay_weight * replay.nll / replay_tokens
            seen = [*seen, *inputs["replay"]]
        if own.kl is not None:
            if own.count:
                log["kl"].append(float(own.kl.detach()) / own.count)
            loss = loss + self.kl_weight * own.kl / own_tokens
        # gradients are averaged over processes, and this is a process's part of a sum
        loss = loss * self.ranks.count if self.ranks.count > 1 else loss
        if self.penalty is not None:
            held = self.penalty(self.model)
            log["ewc"].append(float(held.detach()))
            loss = loss + held / self.current_gradient_accumulation_steps
        self.state.num_input_tokens_seen += self._tokens_seen(own.count, seen)
        log["num_tokens"] = [self.state.num_input_tokens_seen]
        return loss

    def _check_first(self, own: Sums) -> None:
        """A loss that is 0 before anything was learned is no success.

        Raises:
            StageError: the first step's loss is exactly 0.
        """
        if self.state.global_step == 0 and own.count and float(own.nll.detach()) == 0:
            raise StageError(
                f"step 1: the loss is 0 before anything was learned: the model is certain of all {own.count} target "
                "tokens, so there is nothing to learn; look at the rows with finery data show, and at the model"
            )

    def _sums(self, model: Any, parts: Sequence[SubBatch], *, anchor: Anchor | None = None) -> Sums:
        """Over sub-batches; with an anchor also the KL to the start."""
        sums = Sums(torch.zeros((), device=self.args.device))
        if self.ranks.sharded:
            more = self.ranks.most(len(parts), self.args.device) - len(parts)
            parts = [*parts, *[unlabelled(parts[0])] * more]
        for part in parts:
            if anchor is None:
                outputs = model(**part, fused_lm_head=True)
            else:
                start = anchor.states(self.model, part)
                with hidden_states(self.model) as seen:
                    outputs = model(**part, fused_lm_head=True)
                kl = anchor.divergence(seen[0], start, part["labels"])
                sums.kl = kl if sums.kl is None else sums.kl + kl
            sums.nll = sums.nll - outputs.log_probs.float().sum()
            sums.right += int(outputs.is_top1.sum())
            sums.count += int(outputs.label_mask.sum())
        return sums

    def _tokens_seen(self, count: int, parts: Sequence[SubBatch]) -> int:
        """Tokens of this micro-batch in all processes; one in which none counts was not seen."""
        seen = sum(tokens(part) for part in parts) if count else 0
        if self.ranks.count == 1:
            return seen
        return int(self.ranks.total(torch.tensor([seen], device=self.args.device))[0])

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """As TRL's, with the means over what all processes noted."""
        if self.ranks.count > 1 and self.model.training:
            self._metrics["train"] = defaultdict(list, self.ranks.means(self._metrics["train"]))
        super().log(logs, start_time)

    def evaluate(self, *_: Any, **__: Any) -> dict[str, float]:
        """`eval_loss`, the token mean over the evaluation data, and `eval_mean_token_accuracy`.

        The Trainer's own loop would average batch means by rows.
        """
        if self.evaluation is None:
            raise ValueError("there is no evaluation data")
        was_training = self.model.training
        self.model.eval()
        total, right, count = 0.0, 0, 0
        starts = list(range(self.ranks.rank * EVAL_BATCH, len(self.evaluation.own), self.ranks.count * EVAL_BATCH))
        spare = self.ranks.most(len(starts), self.args.device) - len(starts) if self.ranks.sharded else 0
        with torch.no_grad():
            for start in starts:
                rows = range(start, min(start + EVAL_BATCH, len(self.evaluation.own)))
                parts = self._prepare_input(self.evaluation.pad(self.evaluation.own, rows))
                sums = self._sums(self.model, parts)
                total, right, count = total + float(sums.nll), right + sums.right, count + sums.count
            for part in [self.evaluation.nothing()["own"]] * spare:
                self._sums(self.model, self._prepare_input(part))
        if self.ranks.count > 1:
            sums_of_all = torch.tensor([total, right, count], dtype=torch.float64, device=self.args.device)
            total, right, count = self.ranks.total(sums_of_all).tolist()
        metrics = {"eval_loss": total / count, "eval_mean_token_accuracy": right / count}
        self.log(metrics)
        self.model.train(was_training)
        self.callback_handler.on_evaluate(self.args, self.state, self.control, metrics)
        return metrics


def _as_dataset(data: Encoded) -> Dataset:
    """The rows as TRL looks at them before training; in memory, sharing the arrays."""
    columns = {
        name: pa.LargeListArray.from_arrays(data.offsets, pa.array(values))
        for name, values in (("input_ids", data.ids), ("labels", data.labels))
    }
    return Dataset(InMemoryTable(pa.table(columns)))
