"""The tensors of a model folder, read one at a time: full weights, or an adapter's as the full weights they amount to.

Nothing is loaded until a tensor is asked for; safetensors files are mapped, not read.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Protocol

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from finery.errors import InputError
from finery.training.folders import (
    ADAPTER_CONFIG,
    ADAPTER_WEIGHTS,
    CONFIG,
    INDEX,
    WEIGHTS,
    check_folder,
    has_tokenizer,
    is_adapter,
    read_json,
    read_model_info,
    weight_files,
)
from finery.training.merging import lora_product
from finery.training.models import base_folder, load_tokenizer, merge_adapter, root_folder
from finery.training.publish import publish_model

SHARD_BYTES = 4 * 10**9
_HEAD, _EMBEDDING = "lm_head.weight", "model.embed_tokens.weight"
_PREFIX = "base_model.model."
# what a LoRA config may leave at these values; anything else changes more than W + scale * B A on linear layers
_PLAIN: dict[str, tuple[Any, ...]] = {
    "use_dora": (False, None),
    "use_qalora": (False, None),
    "use_bdlora": (None,),
    "lora_bias": (False, None),
    "bias": ("none",),
    "fan_in_fan_out": (False, None),
    "layer_replication": (None,),
    "target_parameters": (None, []),
    "trainable_token_indices": (None,),
    "alora_invocation_tokens": (None,),
    "arrow_config": (None,),
    "kasa_config": (None,),
    "velora_config": (None,),
    "monteclora_config": (None,),
}


class Weights(Protocol):
    """A model's tensors by the names they have on disk.

    Attributes:
        folder: where they lie; for an adapter the adapter's folder.
        shapes: name -> shape, tied tensors once.
        config: config.json.
        base_folder: the folder of full weights: an adapter's base, else `folder` itself.
        main_dtype: the type of most of the stored weights, for instance "bfloat16".
    """

    folder: Path
    base_folder: Path
    main_dtype: str
    shapes: dict[str, tuple[int, ...]]
    config: dict[str, Any]

    def read(self, name: str) -> Tensor:
        """One tensor: float32 for an adapted one, else of the type it is stored in."""
        ...

    def dtype(self, name: str) -> torch.dtype:
        """The type it is stored in, without reading it."""
        ...


def open_weights(folder: Path, *, bases: Mapping[str, Path], scratch: Path) -> Weights:
    """The tensors of a full model or an adapter.

    Args:
        folder: the model.
        bases: digest of a model -> its folder, where an adapter's base is looked up.
        scratch: where an adapter that is more than B A on the linear layers of a full model (DoRA, QLoRA or one on an
            adapter, say) is merged by peft, in float32.

    Raises:
        InputError: the folder is refused (`check_folder`), or an adapter's base is not at hand or of another shape.
    """
    check_folder(folder)
    if not is_adapter(folder):
        return FullWeights(folder)
    base, root = base_folder(folder, bases), root_folder(folder, bases)
    check_folder(root)
    if base == root and not read_model_info(folder).get("quantization") and is_plain_lora(folder):
        return AdaptedWeights(folder, FullWeights(base))
    tokenizer = load_tokenizer(folder if has_tokenizer(folder) else root)
    publish_model(merge_adapter(folder, dtype="float32", bases=bases), tokenizer, scratch)
    return FullWeights(scratch, types=FullWeights(root))


class FullWeights:
    """A folder of full weights.

    Args:
        folder: where they lie.
        types: whose types count as the stored ones, when the folder holds a float32 copy made on the way.
    """

    def __init__(self, folder: Path, *, types: FullWeights | None = None) -> None:
        self._stored_types = types
        self.folder = self.base_folder = folder
        self.config = read_json(folder / CONFIG)
        self._files: dict[str, Any] = {}
        self.shapes: dict[str, tuple[int, ...]] = {}
        for path in weight_files(folder):
            opened = _mapped(path)
            for name in opened.keys():  # noqa: SIM118 - not a mapping
                self._files[name] = opened
                self.shapes[name] = tuple(opened.get_slice(name).get_shape())
        self._drop_tied_copy()
        counts: Counter[torch.dtype] = Counter()
        for name, shape in self.shapes.items():
            counts[self.dtype(name)] += math.prod(shape)
        self.main_dtype = str(counts.most_common(1)[0][0]).removeprefix("torch.")

    def read(self, name: str) -> Tensor:
        tensor: Tensor = self._files[name].get_tensor(name)
        return tensor

    def dtype(self, name: str) -> torch.dtype:
        if self._stored_types is not None:
            return self._stored_types.dtype(name)
        return _TYPES.get(self._files[name].get_slice(name).get_dtype()) or self.read(name).dtype

    def _drop_tied_copy(self) -> None:
        """Some writers store a tied head a second time; one that differs from the embedding is not tied."""
        if not (self.config.get("tie_word_embeddings") and {_HEAD, _EMBEDDING} <= self.shapes.keys()):
            return
        if not torch.equal(self.read(_HEAD), self.read(_EMBEDDING)):
            raise InputError(
                f"{self.folder}: config.json ties the head to the embedding, and the weights hold two that differ; "
                "set tie_word_embeddings to false there"
            )
        del self.shapes[_HEAD]


class AdaptedWeights:
    """A LoRA adapter on its base, as the full weights W + scale * B A, computed when they are read."""

    def __init__(self, folder: Path, base: FullWeights) -> None:
        self.folder = folder
        self.base_folder = base.folder
        self.main_dtype = base.main_dtype
        self.shapes = base.shapes
        self.config = base.config
        self._base = base
        self._lora = read_json(folder / ADAPTER_CONFIG)
        self._opened = _mapped(folder / ADAPTER_WEIGHTS)
        self._pairs: dict[str, str] = {}
        self._whole: dict[str, str] = {}
        for key in self._opened.keys():  # noqa: SIM118 - not a mapping
            module = key.removeprefix(_PREFIX)
            if module.endswith(".lora_A.weight"):
                self._pairs[module.removesuffix(".lora_A.weight") + ".weight"] = key
            elif not module.endswith(".lora_B.weight"):
                self._whole[module] = key
        self._check()

    def read(self, name: str) -> Tensor:
        if name in self._whole:
            whole: Tensor = self._opened.get_tensor(self._whole[name])
            return whole
        weight = self._base.read(name)
        if name not in self._pairs:
            return weight
        a, b = self._pair(name)
        return weight.float() + lora_product(a, b, self._scale(name, a.shape[0]))

    def dtype(self, name: str) -> torch.dtype:
        return self._base.dtype(name)

    def _pair(self, name: str) -> tuple[Tensor, Tensor]:
        key = self._pairs[name]
        return self._opened.get_tensor(key), self._opened.get_tensor(key.replace(".lora_A.", ".lora_B."))

    def _scale(self, name: str, rank: int) -> float:
        """alpha / rank, by the module's own alpha where alpha_pattern has one (peft.utils.other.get_pattern_key)."""
        alpha = float(self._lora["lora_alpha"])
        module = name.removesuffix(".weight")
        for pattern, value in (self._lora.get("alpha_pattern") or {}).items():
            if re.match(rf"(.*\.)?({pattern})$", module):
                alpha = float(value)
                break
        return alpha / math.sqrt(rank) if self._lora.get("use_rslora") else alpha / rank

    def _check(self) -> None:
        wrong = []
        for name in self._pairs:
            a, b = self._pair(name)
            if self.shapes.get(name) != (b.shape[0], a.shape[1]) or a.shape[0] != b.shape[1]:
                wrong.append(f"{name} {self.shapes.get(name, 'absent')} against {tuple(b.shape)} x {tuple(a.shape)}")
        for name, key in self._whole.items():
            shape = tuple(self._opened.get_slice(key).get_shape())
            if self.shapes.get(name) != shape:
                wrong.append(f"{name} {self.shapes.get(name, 'absent')} against {shape}")
        if wrong:
            raise InputError(f"{self.folder}: does not fit its base {self._base.folder}: {'; '.join(wrong)}")


def _mapped(path: Path) -> Any:
    """An open safetensors file; it stays mapped as long as the object lives."""
    return safe_open(path, "pt")


def is_plain_lora(folder: Path) -> bool:
    """Whether an adapter is W + scale * B A on linear layers and whole modules beside it, and nothing else."""
    config = read_json(folder / ADAPTER_CONFIG)
    if config.get("peft_type") != "LORA":
        return False
    if any(key in config and config[key] not in plain for key, plain in _PLAIN.items()):
        return False
    with safe_open(folder / ADAPTER_WEIGHTS, "pt") as opened:
        names = list(opened.keys())
    return all(name.endswith((".lora_A.weight", ".lora_B.weight")) or ".lora_" not in name for name in names)


def write_weights(
    names: Iterable[str],
    shape: Callable[[str], tuple[int, ...]],
    dtype: Callable[[str], torch.dtype],
    make: Callable[[str], Tensor],
    folder: Path,
) -> None:
    """Write tensors to safetensors, one shard in memory at a time: model.safetensors, or shards and an index.

    Args:
        names: every tensor's name; they are made and written in this order.
        shape: a name's shape.
        dtype: a name's type as written.
        make: makes a tensor, of that shape and type.
        folder: where to.
    """
    sizes = {name: math.prod(shape(name)) * dtype(name).itemsize for name in names}
    shards: list[list[str]] = [[]]
    filled = 0
    for name, size in sizes.items():
        if shards[-1] and filled + size > SHARD_BYTES:
            shards.append([])
            filled = 0
        shards[-1].append(name)
        filled += size
    files = [WEIGHTS]
    if len(shards) > 1:
        files = [f"model-{i:05d}-of-{len(shards):05d}.safetensors" for i in range(1, len(shards) + 1)]
        index = {
            "metadata": {"total_size": sum(sizes.values())},
            "weight_map": {name: file for file, shard in zip(files, shards, strict=True) for name in shard},
        }
        (folder / INDEX).write_text(json.dumps(index, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    for file, shard in zip(files, shards, strict=True):
        save_file({name: make(name).contiguous() for name in shard}, folder / file, metadata={"format": "pt"})


_TYPES = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16, "F64": torch.float64}
