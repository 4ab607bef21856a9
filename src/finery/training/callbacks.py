"""What a Trainer tells the engine, and the two things both trainers share: whole checkpoints and finite losses."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from transformers import PrinterCallback, TrainerCallback
from transformers.utils import logging

from finery.contract import Interrupted, StageContext
from finery.errors import StageError
from finery.training.accelerating import check_shared, check_strategy, settle_strategy
from finery.training.checkpoints import Checkpoint, Checkpoints
from finery.training.distributed import ALONE, Ranks

if TYPE_CHECKING:
    from transformers import TrainerControl, TrainerState, TrainingArguments

_SPEED = ("train_", "total_flos", "eval_runtime", "eval_samples_per_second", "eval_steps_per_second")
"""The Trainer's closing line of speeds: the engine takes its own times."""


class Report(TrainerCallback):  # type: ignore[misc]
    """Passes steps and metrics on to the stage's context, under the names TRL gives them.

    Attributes:
        last: the last value of each metric.
    """

    def __init__(self, context: StageContext, hidden: Sequence[str] = (), ranks: Ranks = ALONE) -> None:
        self._context, self._hidden, self._ranks = context, set(hidden), ranks
        self.last: dict[str, float] = {}

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> TrainerControl:
        self._context.progress(state.global_step, state.max_steps)
        if self._ranks.any(self._context.stop.requested, args.device):
            self._context.stop.requested = True  # a stop reaches the processes at different steps
            control.should_save = control.should_training_stop = True
        if control.should_save:
            # a logging window that ended in mid-air would be averaged over other steps after a resume
            control.should_log = True
        return control

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, Any] | None = None,
        **_: Any,
    ) -> None:
        numbers = {
            name: value
            for name, value in (logs or {}).items()
            if isinstance(value, int | float) and not name.startswith(_SPEED) and name not in self._hidden
        }
        if set(numbers) - {"epoch"}:
            self._context.log(state.global_step, **numbers)
            self.last |= {name: float(value) for name, value in numbers.items() if math.isfinite(value)}


class Kept:
    """Mixed into a TRL trainer, before it: whole checkpoints, no model card, no telemetry, a stop at a loss of NaN."""

    hidden: tuple[str, ...] = ()
    """Metrics of the Trainer's that mean nothing here."""

    keeper: Checkpoints
    report: Report
    ranks: Ranks = ALONE
    _context: StageContext
    _aside: Path | None = None

    def attach(self, context: StageContext, keeper: Checkpoints) -> None:
        """Take the place checkpoints go to; without the Trainer's own printing."""
        self.keeper, self._context, self.report = keeper, context, Report(context, self.hidden, self.ranks)
        self.add_callback(self.report)  # type: ignore[attr-defined]
        self.remove_callback(PrinterCallback)  # type: ignore[attr-defined]
        logging.disable_progress_bar()

    def create_accelerator_and_postprocess(self) -> None:
        """As the Trainer's, held to what `launch` says."""
        settle_strategy(self.ranks, self.args.device)  # type: ignore[attr-defined]
        super().create_accelerator_and_postprocess()  # type: ignore[misc]
        check_strategy(self.ranks, self)

    def extra_state(self) -> dict[str, Any]:
        """JSON to keep in a checkpoint's marker."""
        return {"metrics": self.report.last}

    def load_extra_state(self, state: dict[str, Any]) -> None:
        """Take back what `extra_state` gave."""
        self.report.last = dict(state["metrics"])

    def write_extra(self, folder: Path) -> None:
        """Write further files into a checkpoint."""

    def train_from(self, checkpoint: Checkpoint | None) -> None:
        """Train to the end, from a checkpoint or from the start.

        Raises:
            Interrupted: the user asked to stop; a checkpoint of the last step is there.
            StageError: a loss was not finite, or a checkpoint could not be written.
        """
        if checkpoint is not None:
            self.load_extra_state(checkpoint.extra)
        if checkpoint is not None and checkpoint.step >= self.args.max_steps:  # type: ignore[attr-defined]
            # the Trainer would take one step more before it noticed
            if self.ranks.sharded:
                loader = self.get_train_dataloader()  # type: ignore[attr-defined]
                self._prepare_for_training(checkpoint.step, loader, str(checkpoint.path))  # type: ignore[attr-defined]
            else:
                self._load_from_checkpoint(str(checkpoint.path))  # type: ignore[attr-defined]
            return
        with self._context.stop.deferred() as stop, _unfilled_memory():
            self.train(resume_from_checkpoint=str(checkpoint.path) if checkpoint else None)  # type: ignore[attr-defined]
            if stop.requested:
                raise Interrupted

    def training_step(self, model: Any, *args: Any, **kwargs: Any) -> torch.Tensor:
        check_shared(self.ranks, model)
        loss: torch.Tensor = super().training_step(model, *args, **kwargs)  # type: ignore[misc]
        if not torch.isfinite(loss):
            step = self.state.global_step + 1  # type: ignore[attr-defined]
            raise StageError(
                f"step {step}: the loss is {loss.item()}, so training was stopped before the weights took it in; "
                "lower learning_rate, lengthen warmup_steps, or train in float32"
            )
        return loss

    def create_model_card(self, *_: Any, **__: Any) -> None:
        """None: it would name paths of this host."""

    def _send_telemetry(self) -> None:
        """None: a training stage has no business on the network."""

    def _get_output_dir(self, trial: Any) -> str:
        return str(self._aside) if self._aside else super()._get_output_dir(trial)  # type: ignore[misc]

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        step = self.state.global_step  # type: ignore[attr-defined]
        extra: dict[str, Any] = {}
        with self.keeper.writing(step, extra, self.ranks.meet) as aside:
            self._aside = aside
            try:
                super()._save_checkpoint(model, trial)  # type: ignore[misc]
                if self.ranks.rank == 0:
                    self.write_extra(aside / f"checkpoint-{step}")
                extra.update(self.extra_state())
            finally:
                self._aside = None


@contextmanager
def _unfilled_memory() -> Iterator[None]:
    """Deterministic kernels without filling every new tensor: TRL's LM head allocates 32768 columns and uses V.

    Filled, they take more time than a small model's whole step. No kernel of TRL reads what it has not written.
    """
    before = torch.utils.deterministic.fill_uninitialized_memory  # type: ignore[attr-defined]
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    try:
        yield
    finally:
        torch.utils.deterministic.fill_uninitialized_memory = before  # type: ignore[attr-defined]


class Fingerprint:
    """Remembers the trainable weights, to tell at the end whether training touched them."""

    def __init__(self, model: torch.nn.Module) -> None:
        self._before = _sums(model)

    def check(self, model: torch.nn.Module, what: str, remedy: str) -> None:
        """Raise unless some trainable weight changed and all are finite.

        Args:
            what: what was trained, as the message calls it.
            remedy: what to do when nothing changed.

        Raises:
            StageError: training changed nothing, or left a weight that is not finite.
        """
        after = _sums(model)
        if not self._before:
            raise StageError(f"{what} has no trainable weight")
        if broken := [name for name, value in after.items() if not math.isfinite(value[1])]:
            raise StageError(f"after training {broken[0]} holds values that are not finite; lower learning_rate")
        if after == self._before:
            raise StageError(f"training left {what} exactly as it was; {remedy}")


def _sums(model: torch.nn.Module) -> dict[str, tuple[float, float]]:
    return {
        name: (float(weight.detach().double().sum()), float(weight.detach().double().square().sum()))
        for name, weight in model.named_parameters()
        if weight.requires_grad
    }
