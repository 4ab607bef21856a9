"""What the training kinds share: the optimizer's arguments by TRL's names, LoRA and QLoRA, replay, sampling."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field, model_validator

from finery.schemas.base import Dtype, Model, Stage, refuse
from finery.schemas.reference import DATASET

if TYPE_CHECKING:
    from finery.schemas.launch import Launch

DatasetRef = Annotated[str, DATASET]


class Sampling(Model):
    """How completions are drawn; gate, evaluate, grpo and distill share it."""

    temperature: Annotated[float, Field(gt=0)] = 1.0
    """Softmax temperature."""
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Nucleus: the smallest set of tokens whose probability reaches it."""
    top_k: Annotated[int, Field(ge=0)] = 0
    """Only the k most likely tokens; 0 takes all."""
    max_completion_length: Annotated[int, Field(ge=1)] = 256
    """The most tokens of a completion; one that has not ended by then is truncated and counts as unsolved."""


class Replay(Model):
    data: DatasetRef
    """General data, shown beside the stage's own so that the model does not forget it."""
    per_device_train_batch_size: Annotated[int, Field(ge=1)] = 8
    """Replay rows in each step, beside the stage's own batch."""
    weight: Annotated[float, Field(gt=0, lt=1)] = 0.3
    """The replay batch's share of the loss: L = (1 - weight) * own token mean + weight * replay token mean."""


class Lora(Model):
    r: Annotated[int, Field(ge=1)] = 16
    """Rank."""
    lora_alpha: Annotated[int, Field(ge=1)] = 32
    """Scale: the update is multiplied by lora_alpha / r."""
    lora_dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Dropout before the adapter."""
    target_modules: str | list[str] = "all-linear"
    """The modules that get an adapter: `all-linear`, a list of names, or one regular expression."""
    use_rslora: bool = False
    """Scale by lora_alpha / sqrt(r) instead (rsLoRA, arXiv 2312.03732)."""
    use_dora: bool = False
    """Weight-decomposed LoRA (arXiv 2402.09353)."""
    layers_to_transform: Annotated[list[Annotated[int, Field(ge=0)]], Field(min_length=1)] | None = None
    """Only these layers get an adapter, counted from 0; all by default. Not with a regular expression, which can say so itself."""
    modules_to_save: Annotated[list[str], Field(min_length=1)] | None = None
    """Modules trained whole and saved with the adapter, by name: `lm_head`, say."""

    @model_validator(mode="after")
    def _check_layers(self) -> Lora:
        if not self.target_modules:
            raise refuse("names nothing; leave it out for all-linear", field="target_modules")
        pattern = isinstance(self.target_modules, str) and self.target_modules != "all-linear"
        if pattern and self.layers_to_transform is not None:
            raise refuse(
                "is for all-linear or a list of names; a regular expression says the layers itself: "
                r".*layers\.(0|1)\..*q_proj",
                field="layers_to_transform",
            )
        return self


class Quantization(Model):
    """QLoRA (arXiv 2305.14314): the frozen base in 4 bits, by bitsandbytes; names are BitsAndBytesConfig's."""

    bnb_4bit_quant_type: Literal["nf4", "fp4"] = "nf4"
    """The sixteen values a weight may take: nf4 are the quantiles of a normal distribution, fp4 a 4-bit float."""
    bnb_4bit_use_double_quant: bool = True
    """Quantize the blocks' scales too: 0.37 bits less a weight."""
    bnb_4bit_compute_dtype: Dtype = "float32"
    """The type weights are dequantized to and multiplied in. A CPU computes in float32; on a GPU bfloat16 is the usual one."""

    def in_words(self) -> str:
        """`nf4, double quantization, computes in float32`."""
        double = "double quantization" if self.bnb_4bit_use_double_quant else "no double quantization"
        return f"{self.bnb_4bit_quant_type}, {double}, computes in {self.bnb_4bit_compute_dtype}"


_BITSANDBYTES = ("adamw_8bit", "paged_adamw_8bit", "paged_adamw_32bit")
Optim = Literal[
    "adamw_torch_fused", "adamw_torch", "adafactor", "sgd", "adamw_8bit", "paged_adamw_8bit", "paged_adamw_32bit"
]


class TrainingStage(Stage):
    """The arguments of a Trainer run, by their names in transformers and TRL."""

    max_steps: Annotated[int, Field(ge=1)] | None = None
    """Optimizer steps; wins over num_train_epochs. One of the two must be given."""
    num_train_epochs: Annotated[float, Field(gt=0)] | None = None
    """Passes over the data."""
    per_device_train_batch_size: Annotated[int, Field(ge=1)] = 8
    """Rows in a step, per process."""
    gradient_accumulation_steps: Annotated[int, Field(ge=1)] = 1
    """Batches summed into one step."""
    learning_rate: Annotated[float, Field(gt=0)] = 2e-5
    """Peak learning rate of AdamW."""
    lr_scheduler_type: Literal["linear", "cosine", "cosine_with_min_lr", "constant", "constant_with_warmup"] = "cosine"
    """The schedule after the warm-up."""
    min_lr_rate: Annotated[float, Field(ge=0, lt=1)] | None = None
    """For cosine_with_min_lr: the share of the peak at which it ends."""
    warmup_steps: Annotated[int, Field(ge=0)] = 0
    """Steps over which the learning rate rises from 0."""
    weight_decay: Annotated[float, Field(ge=0)] = 0.0
    """AdamW's decoupled weight decay."""
    adam_beta1: Annotated[float, Field(ge=0, lt=1)] = 0.9
    """AdamW's first-moment decay."""
    adam_beta2: Annotated[float, Field(ge=0, lt=1)] = 0.999
    """AdamW's second-moment decay."""
    max_grad_norm: Annotated[float, Field(gt=0)] = 1.0
    """Gradients are clipped to this norm."""
    save_steps: Annotated[int, Field(ge=1)] = 50
    """Steps between checkpoints, from which a killed stage goes on."""
    logging_steps: Annotated[int, Field(ge=1)] = 10
    """Steps between logged metrics."""
    gradient_checkpointing: bool = False
    """Recompute activations in the backward pass: less memory, about a third more time."""
    optim: Optim = "adamw_torch_fused"
    """The optimizer, by transformers' name. adamw_8bit keeps its state in 8 bits and paged_* move it to the host when a GPU's memory is short (bitsandbytes); those need a GPU."""
    bf16: bool = False
    """Mixed precision: matrix products in bfloat16, weights as `dtype` has them. Needs a GPU."""
    attn_implementation: Literal["sdpa", "eager", "flash_attention_2", "flash_attention_3"] | None = None
    """How attention is computed; by default sdpa where the model has it, else eager. FlashAttention needs a GPU and its package."""
    use_liger_kernel: bool = False
    """Fused Triton kernels for norms, rotary embedding and feed-forward layers (liger-kernel). Needs a GPU."""

    @model_validator(mode="after")
    def _check_schedule(self) -> TrainingStage:
        has_floor = self.lr_scheduler_type == "cosine_with_min_lr"
        if has_floor and self.min_lr_rate is None:
            raise refuse("needs min_lr_rate, the share of the peak at which it ends", field="lr_scheduler_type")
        if self.min_lr_rate is not None and not has_floor:
            raise refuse(
                "is for lr_scheduler_type: cosine_with_min_lr; {kind} has no use for it",
                field="min_lr_rate", kind=self.lr_scheduler_type,
            )  # fmt: skip
        return self

    def notes(self) -> list[str]:
        lora, quantization = getattr(self, "lora", None), getattr(self, "quantization", None)
        launch: Launch | None = getattr(self, "launch", None)
        crowded = self._crowded(launch) if launch else []
        if lora or quantization:
            return [method_in_words(self, lora, quantization), *crowded]
        return [f"launch: {launch.in_words()}", *crowded] if launch else []

    def _crowded(self, launch: Launch) -> list[str]:
        """The engine holds `resources.cpus` cores for all processes."""
        cpus, gpus = self.resources.cpus, self.resources.gpus
        if gpus or cpus >= launch.processes:
            return []
        cores = f"{cpus} core{'s' if cpus > 1 else ''}"
        return [f"{launch.processes} processes on {cores}; resources.cpus: {launch.processes} holds one for each"]

    @model_validator(mode="after")
    def _check_machine(self) -> TrainingStage:
        """What needs a GPU is refused where none is given, and never replaced."""
        gpus = self.resources.gpus
        if gpus > 1 and getattr(self, "launch", None) is None:
            given = "launch" in type(self).model_fields
            raise refuse(
                "{gpus} GPUs need as many processes; add launch: {processes: {gpus}}, or give 1"
                if given
                else "{kind} trains on one GPU; give 1, not {gpus}",
                field="resources.gpus", gpus=gpus, kind=self.kind,
            )  # fmt: skip
        if gpus:
            return self
        if self.optim in _BITSANDBYTES:
            raise refuse(
                "{optim} is bitsandbytes' and needs a GPU (resources.gpus: 1); on a CPU take adamw_torch_fused, or "
                "adafactor, which keeps less state",
                field="optim", optim=self.optim,
            )  # fmt: skip
        if self.bf16:
            raise refuse(
                "mixed precision needs a GPU (resources.gpus: 1); on a CPU leave it out: training computes in `dtype`",
                field="bf16",
            )
        if (self.attn_implementation or "").startswith("flash"):
            raise refuse(
                "{attention} needs a GPU (resources.gpus: 1); on a CPU take sdpa or eager",
                field="attn_implementation", attention=self.attn_implementation,
            )  # fmt: skip
        if self.use_liger_kernel:
            raise refuse(
                "Liger's kernels are Triton's and need a GPU (resources.gpus: 1); on a CPU leave it out",
                field="use_liger_kernel",
            )
        return self

    @model_validator(mode="after")
    def _check_optimizer(self) -> TrainingStage:
        given = sorted({"adam_beta1", "adam_beta2"} & self.model_fields_set)
        if self.optim in ("adafactor", "sgd") and given:
            raise refuse("is AdamW's; {optim} has no use for it", field=given[0], optim=self.optim)
        return self


def check_quantization(
    stage: TrainingStage, quantization: Quantization | None, lora: Lora | None, *, dtype: str, continues: bool = False
) -> None:
    """4-bit weights are frozen, and the types agree with each other and with the machine.

    Args:
        dtype: the stage's `dtype`, which the layers that are not quantized keep.
        continues: the stage may train on an adapter, which is then its input rather than `lora`.
    """
    if quantization is None:
        return
    compute = quantization.bnb_4bit_compute_dtype
    field = "quantization.bnb_4bit_compute_dtype"
    if lora is None and not continues:
        raise refuse("weights in 4 bits are not trained; add `lora`", field="quantization")
    if not stage.resources.gpus and compute != "float32":
        raise refuse(
            "{compute} needs a GPU (resources.gpus: 1); on a CPU 4-bit weights compute in float32",
            field=field, compute=compute,
        )  # fmt: skip
    if stage.bf16 and compute != "bfloat16":
        raise refuse("is {compute} and bf16 is true; set it to bfloat16", field=field, compute=compute)
    if {dtype, compute} == {"float16", "bfloat16"}:
        raise refuse(
            "is {compute} and dtype is {dtype}: each holds numbers the other cannot; give both the same, or float32",
            field=field, compute=compute, dtype=dtype,
        )  # fmt: skip


def method_in_words(
    stage: TrainingStage, lora: Lora | None, quantization: Quantization | None, *, continues: bool = False
) -> str:
    """What is trained and how, in one line: for plans, logs and summaries.

    Args:
        continues: the model is an adapter that is trained further.
    """
    # 4-bit weights without a new adapter are those of one that goes on
    parts = ["the adapter that the model is" if continues or quantization else "all weights"]
    if lora:
        names = [name for name, used in (("rsLoRA", lora.use_rslora), ("DoRA", lora.use_dora)) if used]
        where = lora.target_modules if isinstance(lora.target_modules, str) else ", ".join(lora.target_modules)
        parts = [f"{' and '.join(names) or 'LoRA'} of rank {lora.r} on {where}"]
    if quantization:
        parts.append(f"its base in 4 bits: {quantization.in_words()}")
    parts.append(f"optimizer {stage.optim}")
    if launch := getattr(stage, "launch", None):
        parts.append(launch.in_words())
    return "; ".join(parts)


def check_length(stage: TrainingStage) -> None:
    """One of max_steps and num_train_epochs is given."""
    if stage.max_steps is None and stage.num_train_epochs is None:
        raise refuse("needs max_steps or num_train_epochs")


__all__ = [
    "DatasetRef", "Lora", "Quantization", "Replay", "Sampling", "TrainingStage", "check_length", "check_quantization",
    "method_in_words",
]  # fmt: skip
