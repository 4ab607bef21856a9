"""Merge kernels: pure functions over one tensor, in float32, without rounding to the result's type.

Shapes: `tensors` are N models' versions of one tensor, of any equal shape S; a task vector is model - base.
The rules stand in design section 6 and docs/stages/merge.md.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import ROUND_FLOOR, Decimal

import numpy as np
import torch
from torch import Tensor


@dataclass(frozen=True)
class Recipe:
    """What sets one method apart from another.

    Attributes:
        from_base: whether task vectors are merged, rather than the models themselves.
        sparsify: how a task vector is thinned out: by "magnitude" (TIES), at "random" (DARE), or not at all.
        elect: whether each entry's sign is elected, and entries of the other sign left out (TIES).
        normalize: the default of dividing by the weights' sum.
    """

    from_base: bool
    sparsify: str | None
    elect: bool
    normalize: bool


RECIPES = {
    "linear": Recipe(from_base=False, sparsify=None, elect=False, normalize=True),  # arXiv 2203.05482
    "task_arithmetic": Recipe(from_base=True, sparsify=None, elect=False, normalize=False),  # arXiv 2212.04089
    "ties": Recipe(from_base=True, sparsify="magnitude", elect=True, normalize=True),  # arXiv 2306.01708
    "dare_linear": Recipe(from_base=True, sparsify="random", elect=False, normalize=False),  # arXiv 2311.03099
    "dare_ties": Recipe(from_base=True, sparsify="random", elect=True, normalize=False),
}


@dataclass(frozen=True)
class Share:
    """One model's part in a merge.

    Attributes:
        weight: what its tensor or task vector is multiplied by.
        density: the share of its task vector that is kept, in (0, 1].
        position: its place in the stage's `models`, counted from 0; its DARE mask depends on it.
    """

    weight: float = 1.0
    density: float = 1.0
    position: int = 0


def merge_tensor(
    tensors: Sequence[Tensor],
    shares: Sequence[Share],
    *,
    method: str,
    base: Tensor | None = None,
    scale: float = 1.0,
    normalize: bool | None = None,
    seed: int = 0,
    name: str = "",
) -> Tensor:
    """One tensor of the merged model.

    Args:
        tensors: N float tensors of one shape S.
        shares: N shares, in the same order.
        method: a key of RECIPES.
        base: float (S), what task vectors are measured from; None for linear.
        scale: lambda, by which the merged task vector is multiplied.
        normalize: divide by the sum of the weights (of those that agree, under an election); the recipe's by default.
        seed: seed of DARE's masks.
        name: the tensor's name, which DARE's masks depend on too.

    Returns:
        float32 (S), to be rounded once by the caller.
    """
    recipe = RECIPES[method]
    divide = recipe.normalize if normalize is None else normalize
    if not recipe.from_base:
        return _combine([tensor.float() for tensor in tensors], shares, elect=False, normalize=divide)
    if base is None:
        raise ValueError(f"{method} needs a base")
    origin = base.float()
    vectors = []
    for tensor, share in zip(tensors, shares, strict=True):
        vector = tensor.float() - origin
        if recipe.sparsify == "magnitude":
            vector = trim(vector, share.density)
        elif recipe.sparsify == "random":
            vector = drop(vector, share.density, seed=seed, position=share.position, name=name)
        vectors.append(vector)
    return origin + scale * _combine(vectors, shares, elect=recipe.elect, normalize=divide)


def kept_count(density: float, size: int) -> int:
    """How many of `size` entries a density keeps: max(1, floor(density * size)), the product in exact decimal.

    0.29 of 100 is 29; in binary floating point the product is 28.999999999999996.
    """
    product = Decimal(repr(density)) * size
    return min(size, max(1, int(product.to_integral_value(rounding=ROUND_FLOOR))))


def trim(vector: Tensor, density: float) -> Tensor:
    """TIES, step 1 (arXiv 2306.01708, Algorithm 1): the entries largest in magnitude stay, the rest become 0.

    Args:
        vector: float32 (S).
        density: the share that stays, in (0, 1]; `kept_count` says how many. Of equal magnitudes the lower index stays.

    Returns:
        float32 (S).
    """
    size = vector.numel()
    keep = kept_count(density, size)
    if keep == size:
        return vector
    magnitude = vector.abs().flatten()
    # the k-th largest, and then as many of its equals as are needed, is cheaper than sorting 100M entries
    threshold = magnitude.kthvalue(size - keep + 1).values
    above = magnitude > threshold
    level = magnitude == threshold
    stays = above | (level & (level.cumsum(0) <= keep - int(above.sum())))
    return torch.where(stays.view_as(vector), vector, 0.0)


def drop(vector: Tensor, density: float, *, seed: int, position: int, name: str) -> Tensor:
    """DARE (arXiv 2311.03099, equation 3): entries are dropped at random and the survivors multiplied by 1 / density.

    Args:
        vector: float32 (S).
        density: 1 - p, the chance that an entry survives, in (0, 1].
        seed: together with `position` and `name` it decides the mask.
        position: the model's place among the merged ones.
        name: the tensor's name.

    Returns:
        float32 (S), whose expectation is `vector`.
    """
    if density == 1.0:
        return vector
    return torch.where(survivors(vector.shape, density, seed=seed, position=position, name=name), vector / density, 0.0)


def survivors(shape: Sequence[int], density: float, *, seed: int, position: int, name: str) -> Tensor:
    """DARE's mask, bool (S): a function of its arguments alone, whatever the order of tensors, shards or threads."""
    digest = hashlib.sha256(f"{seed}/{position}/{name}".encode()).digest()
    stream = np.random.Generator(np.random.Philox(key=int.from_bytes(digest[:16], "little")))
    drawn = stream.random(math.prod(shape), dtype=np.float32) < np.float32(density)
    return torch.from_numpy(drawn).reshape(tuple(shape))


def lora_product(a: Tensor, b: Tensor, scale: float) -> Tensor:
    """The weight change that a LoRA pair amounts to: scale * B A (arXiv 2106.09685, section 4.1).

    Args:
        a: float (R, I).
        b: float (O, R).
        scale: alpha / R, or alpha / sqrt(R) for rsLoRA (arXiv 2312.03732).

    Returns:
        float32 (O, I).
    """
    return scale * (b.float() @ a.float())


def _combine(vectors: list[Tensor], shares: Sequence[Share], *, elect: bool, normalize: bool) -> Tensor:
    """sum w_i v_i, over the entries whose sign is the elected one if `elect`, divided by the same sum of w_i if
    `normalize`. The sign is that of the weighted sum, and + for a sum of exactly 0, as mergekit has it
    (merge_methods/generalized_task_arithmetic.py)."""
    weighted = [share.weight * vector for vector, share in zip(vectors, shares, strict=True)]
    if not elect:
        total = _sum(weighted)
        return total / sum(share.weight for share in shares) if normalize else total
    positive = _sum(weighted) >= 0
    agree = [torch.where(positive, vector > 0, vector < 0) for vector in weighted]
    total = _sum([torch.where(mask, vector, 0.0) for mask, vector in zip(agree, weighted, strict=True)])
    if not normalize:
        return total
    divisor = _sum([share.weight * mask.float() for mask, share in zip(agree, shares, strict=True)])
    return total / torch.where(divisor == 0, 1.0, divisor)


def _sum(tensors: list[Tensor]) -> Tensor:
    total = tensors[0].clone()
    for tensor in tensors[1:]:
        total += tensor
    return total
