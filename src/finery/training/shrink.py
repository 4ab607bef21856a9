"""A smaller student cut out of its teacher: chosen layers, and in each the feed-forward units that weigh most.

Layers are dropped as in DistilBERT's initialisation (arXiv 1910.01108, section 3: every second layer). Units are ranked
by the product of the norms of their gate row, up row and down column; the score does not change when a unit is
rescaled (up by s, down by 1/s), which leaves the function as it is.
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

from finery.errors import InputError

if TYPE_CHECKING:
    import torch

_NEEDED = ("gate_proj", "up_proj", "down_proj")


def shrink_model(teacher: Any, layers: list[int], intermediate_size: int | None = None) -> Any:
    """A new model with the teacher's `layers`, in order, each with its `intermediate_size` largest feed-forward units.

    Embeddings (tied ones stay tied), norms, attention and the head are copied. The teacher is not changed.

    Args:
        teacher: a full causal LM with `model.layers[*].mlp` of gate, up and down projections (Llama, Qwen2, Qwen3,
            Mistral and their like), in any floating-point type.
        layers: indices into the teacher's layers, counted from 0, ascending, without repeats.
        intermediate_size: units kept in each feed-forward layer; all by default.

    Returns:
        A model of the teacher's class and type whose config says its own size.

    Raises:
        InputError: a layer that is not there, more units than there are, or an architecture of another shape.
    """
    import torch

    _check(teacher, layers, intermediate_size)
    config = _smaller_config(teacher.config, layers, intermediate_size)
    # building a model draws its initial weights, which are all replaced: the caller's random state stays as it is
    with torch.random.fork_rng(devices=[]):
        student = type(teacher)(config).to(teacher.dtype)
    source = teacher.state_dict()
    state = {name: source[_teacher_name(name, layers)].detach().clone() for name in student.state_dict()}
    if intermediate_size is not None:
        for new, old in enumerate(layers):
            _narrow(state, f"model.layers.{new}.mlp.", teacher.model.layers[old].mlp, intermediate_size)
    student.load_state_dict(state, strict=True)
    student.tie_weights()
    student.generation_config = copy.deepcopy(teacher.generation_config)
    return student.train(teacher.training)


def largest_units(gate: torch.Tensor, up: torch.Tensor, down: torch.Tensor, keep: int) -> torch.Tensor:
    """Which feed-forward units weigh most: ||gate_i|| * ||up_i|| * ||down_:i||, ties to the lower index.

    Args:
        gate: float (F, D), F units, D the model's width.
        up: float (F, D).
        down: float (D, F).
        keep: how many, 1 <= keep <= F.

    Returns:
        int64 (keep,), ascending.
    """
    import torch

    score = gate.float().norm(dim=1) * up.float().norm(dim=1) * down.float().norm(dim=0)
    return torch.sort(score, descending=True, stable=True).indices[:keep].sort().values


def _narrow(state: dict[str, Any], prefix: str, mlp: Any, keep: int) -> None:
    with_bias = mlp.gate_proj.bias is not None
    units = largest_units(mlp.gate_proj.weight, mlp.up_proj.weight, mlp.down_proj.weight, keep)
    for name in ("gate_proj", "up_proj"):
        state[f"{prefix}{name}.weight"] = state[f"{prefix}{name}.weight"][units].clone()
        if with_bias:
            state[f"{prefix}{name}.bias"] = state[f"{prefix}{name}.bias"][units].clone()
    state[f"{prefix}down_proj.weight"] = state[f"{prefix}down_proj.weight"][:, units].clone()


def _teacher_name(name: str, layers: list[int]) -> str:
    if not name.startswith("model.layers."):
        return name
    _, _, index, rest = name.split(".", 3)
    return f"model.layers.{layers[int(index)]}.{rest}"


def _smaller_config(config: Any, layers: list[int], intermediate_size: int | None) -> Any:
    """The teacher's config with the student's sizes; whatever it lists per layer is cut to the chosen layers."""
    written = config.to_dict()
    count = written["num_hidden_layers"]
    for key, value in written.items():
        if isinstance(value, list) and len(value) == count and key.startswith("layer"):
            written[key] = [value[index] for index in layers]
    written["num_hidden_layers"] = len(layers)
    if "max_window_layers" in written and "layer_types" not in written:
        written["max_window_layers"] = sum(index < written["max_window_layers"] for index in layers)
    if intermediate_size is not None:
        written["intermediate_size"] = intermediate_size
    smaller = type(config).from_dict(written)
    smaller._attn_implementation = config._attn_implementation
    return smaller


def _check(teacher: Any, layers: list[int], intermediate_size: int | None) -> None:
    name = type(teacher).__name__
    blocks = getattr(getattr(teacher, "model", None), "layers", None)
    if hasattr(teacher, "peft_config"):
        raise InputError("an adapter cannot be shrunk; merge it into its base first")
    if blocks is None or not all(hasattr(getattr(block, "mlp", None), part) for block in blocks for part in _NEEDED):
        raise InputError(
            f"{name} cannot be shrunk: layers with gate_proj, up_proj and down_proj are needed (Llama, Qwen2, Qwen3, "
            "Mistral and their like); name a student model of your own instead"
        )
    if absent := [index for index in layers if not 0 <= index < len(blocks)]:
        raise InputError(f"shrink.layers: {absent} are not among the teacher's layers 0 to {len(blocks) - 1}")
    if not layers or sorted(set(layers)) != layers:
        raise InputError(f"shrink.layers: {layers} must be ascending, without repeats, and at least one")
    width = min(block.mlp.gate_proj.weight.shape[0] for block in blocks)
    if intermediate_size is not None and not 1 <= intermediate_size <= width:
        raise InputError(f"shrink.intermediate_size: {intermediate_size} is not within 1 to the teacher's {width}")
