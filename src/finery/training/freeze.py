"""Parameters that training leaves as they are."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from finery.errors import InputError

_SHOWN = 30


def freeze(model: Any, patterns: Sequence[str], layers: int, *, trained: Sequence[Any] = ()) -> str:
    """Take parameters of a whole model out of training.

    A weight that is tied to another is frozen under either name.

    Args:
        model: a causal LM that is trained as a whole; changed in place.
        patterns: regular expressions that match whole names of parameters.
        layers: the first layers to freeze; 0 for none.
        trained: parameters that the stage is asked to train, such as the rows of added tokens.

    Returns:
        What is frozen, in words.

    Raises:
        InputError: a pattern matches nothing or everything, there are fewer layers, nothing is left to train, or a
            parameter of `trained` would be frozen; the message has the names.
    """
    named = dict(model.named_parameters(remove_duplicate=False))
    chosen: dict[str, Any] = {}
    for pattern in patterns:
        found = {name: weight for name, weight in named.items() if re.fullmatch(pattern, name)}
        if not found:
            raise InputError(f"freeze: {pattern!r} matches no parameter's whole name{_hint(pattern, named)}")
        if len(found) == len(named):
            raise InputError(f"freeze: {pattern!r} matches every parameter: nothing would be trained; {_list(named)}")
        chosen |= found
    if layers:
        chosen |= _of_layers(model, layers, named)
    if len({id(weight) for weight in chosen.values()}) == len({id(weight) for weight in named.values()}):
        raise InputError(f"freeze: every parameter is frozen, so nothing would be trained; {_list(named)}")
    if both := sorted(n for n, weight in chosen.items() if any(weight is one for one in trained)):
        raise InputError(f"freeze: {both[0]} holds the rows of added_tokens, which are to be trained; do not freeze it")
    for weight in chosen.values():
        weight.requires_grad_(False)
    total = sum(weight.numel() for weight in model.parameters())
    held = sum(weight.numel() for weight in model.parameters() if not weight.requires_grad)
    names = sorted(chosen)
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return f"frozen: {held:,} of {total:,} weights ({', '.join(names[:3])}{more})"


def _of_layers(model: Any, count: int, named: dict[str, Any]) -> dict[str, Any]:
    """The parameters of the first `count` layers: the module list that is as long as the config says."""
    import torch

    depth = model.config.get_text_config().num_hidden_layers
    lists = {name: len(module) for name, module in model.named_modules() if isinstance(module, torch.nn.ModuleList)}
    where = next((name for name, length in lists.items() if length == depth), None)
    if where is None:
        raise InputError(f"frozen_layers: this {type(model).__name__} has no list of layers; name them in freeze")
    if count > depth:
        raise InputError(f"frozen_layers: {count} of a model with {depth} layers")
    return {n: w for n, w in named.items() if any(n.startswith(f"{where}.{layer}.") for layer in range(count))}


def _hint(pattern: str, named: dict[str, Any]) -> str:
    inside = [name for name in named if re.search(pattern, name)]
    if inside:
        return f"; it is found within {inside[0]}: to match a part of a name write '.*{pattern}.*'"
    return f"; {_list(named)}"


def _list(named: dict[str, Any]) -> str:
    """The names, those of layers once."""
    shown = list(dict.fromkeys(re.sub(r"\.\d+\.", ".N.", name) for name in named))
    more = f" and {len(shown) - _SHOWN} more" if len(shown) > _SHOWN else ""
    return f"the parameters are {', '.join(shown[:_SHOWN])}{more}"
