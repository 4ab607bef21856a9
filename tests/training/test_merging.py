"""Merge kernels against values computed by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, tensor

from finery.training.merging import RECIPES, Share, drop, kept_count, lora_product, merge_tensor, survivors, trim

CASES = Path(__file__).parents[1] / "cases"


def case(name: str) -> Any:
    return json.loads((CASES / f"{name}.json").read_text())


def ties(vectors: list[Any], weights: list[float], density: float = 1.0, **options: Any) -> list[float]:
    shares = [Share(weight, density, index) for index, weight in enumerate(weights)]
    tensors = [tensor(vector, dtype=torch.float32) for vector in vectors]
    return merge_tensor(tensors, shares, method="ties", base=torch.zeros_like(tensors[0]), **options).tolist()


def test_case_M1_weights_scale_task_vectors_before_the_vote() -> None:
    given = case("M1")
    merged = ties(given["deltas"], given["weights"], given["density"], scale=given["lambda"])
    assert merged == pytest.approx([given["answers"]["mergekit (sign after weights, normalize)"]])
    assert merged == pytest.approx([-2.0])
    assert ties(given["deltas"], [0.5, 0.5]) == pytest.approx([3.0])


def test_case_M2_hand_example_and_zero_sum() -> None:
    given = case("M2")
    vectors = [given["t1"], given["t2"], given["t3"]]
    assert ties(vectors, given["weights"]) == pytest.approx(given["ties_density_1.0"])
    assert ties(vectors, given["weights"], 0.5) == pytest.approx(given["ties_density_0.5_top2"])
    zero = given["zero_sum_only"]
    assert ties([zero["t1"], zero["t2"]], [1, 1]) == pytest.approx(zero["mergekit_peft"])


def test_case_M2_bfloat16_is_accumulated_in_float32_and_rounded_once() -> None:
    given = case("M2")["bf16"]
    models = [tensor([value], dtype=torch.bfloat16) for value in given["values"]]
    merged = merge_tensor(models, [Share()] * 3, method="linear")
    assert merged.dtype is torch.float32
    assert merged.bfloat16().item() == given["equal_weights_fp32_then_round"]
    base = torch.zeros(1, dtype=torch.bfloat16)
    for method in ("ties", "dare_ties"):
        merged = merge_tensor(models, [Share()] * 3, method=method, base=base, normalize=True)
        assert merged.bfloat16().item() == 86.0


def test_case_M3_trim_keeps_the_exact_decimal_count() -> None:
    vector = tensor([1.0, -2, 3, -4, 5, -6, 7, -8, 9, -10])
    kept = trim(vector, 0.2)
    assert kept[kept != 0].abs().tolist() == case("M3")["abs_1_to_10_density_0.2"]["paper_mergekit_peft_keep"]
    assert int((trim(tensor([1.0, 2, 3, 4]), 0.2) != 0).sum()) == 1
    assert int((trim(torch.arange(1.0, 101), 0.29) != 0).sum()) == 29
    assert trim(torch.ones(4), 0.5).tolist() == [1, 1, 0, 0]
    assert trim(tensor([1.0, -1, 2, 1]), 0.5).tolist() == [1, 0, 2, 0]
    counts = {(0.29, 100): 29, (0.57, 100): 57, (0.1, 3): 1, (1.0, 7): 7, (1e-9, 5): 1}
    assert {given: kept_count(*given) for given in counts} == counts


def test_trim_equals_a_stable_sort() -> None:
    generator = torch.Generator().manual_seed(0)
    for size in (1, 2, 17, 300):
        vector = torch.randint(-5, 6, (size,), generator=generator).float()
        for density in (0.01, 0.2, 0.5, 0.9, 1.0):
            order = torch.sort(vector.abs(), descending=True, stable=True).indices[: kept_count(density, size)]
            expected = torch.zeros(size)
            expected[order] = vector[order]
            assert torch.equal(trim(vector.reshape(1, size), density), expected.reshape(1, size))


@pytest.mark.slow
def test_case_M4_dare_survivors_are_rescaled_exactly_and_the_mean_is_kept() -> None:
    given = case("M4")
    delta = tensor(given["delta"], dtype=torch.float32)
    drawn = torch.stack([drop(delta, given["density"], seed=seed, position=0, name="w") for seed in range(10_000)])
    assert set(drawn.unique().tolist()) == {0.0, 1 / given["p_drop"]}
    expected = given["mean_over_10000_seeds"]
    assert drawn.mean().item() == pytest.approx(expected["expected"], abs=expected["tol"])


def test_case_M4_mask_depends_on_seed_position_and_name_alone() -> None:
    def mask(seed: int = 0, position: int = 0, name: str = "w") -> Tensor:
        return survivors((100, 100), 0.7, seed=seed, position=position, name=name)

    threads = torch.get_num_threads()
    first = mask()
    torch.manual_seed(5)
    torch.set_num_threads(2)
    assert torch.equal(mask(), first)
    torch.set_num_threads(threads)
    assert first.float().mean().item() == pytest.approx(0.7, abs=0.02)
    for other in (mask(seed=1), mask(position=1), mask(name="v")):
        # independent masks agree on d^2 + (1 - d)^2 of the entries
        assert (other == first).float().mean().item() == pytest.approx(0.7**2 + 0.3**2, abs=0.02)


def test_case_M4_merges_of_equal_seed_are_equal_bytes() -> None:
    generator = torch.Generator().manual_seed(1)
    models = [torch.randn(50, generator=generator) for _ in range(2)]
    shares = [Share(0.5, 0.5, 0), Share(0.5, 0.5, 1)]

    def merged(seed: int) -> Tensor:
        return merge_tensor(models, shares, method="dare_linear", base=torch.zeros(50), seed=seed, name="w")

    assert torch.equal(merged(3), merged(3))
    assert not torch.equal(merged(3), merged(4))


def test_case_M5_lora_products_are_merged_not_their_factors() -> None:
    given = case("M5")
    one, two = (
        lora_product(tensor([[float(given[key]["A"])]]), tensor([[float(given[key]["B"])]]), given["scaling"])
        for key in ("r1", "r2")
    )
    base = torch.zeros(1, 1)
    for weights, expected in ((given["weights"], given["true_delta"]), ([1.0, 0.0], given["weights_[1,0]"])):
        shares = [Share(weight, 1.0, index) for index, weight in enumerate(weights)]
        assert merge_tensor([one, two], shares, method="task_arithmetic", base=base).item() == expected
    ones = lora_product(torch.ones(4, 1), torch.ones(1, 4), 4 / 4**0.5)
    assert ones.item() == given["rslora_r4_all_ones_weight1"]["merged_right"]


def test_each_method_by_hand() -> None:
    base = tensor([1.0, 1.0, 1.0])
    models = [tensor([2.0, 0.0, 1.0]), tensor([4.0, 2.0, 0.0])]
    shares = [Share(0.5), Share(1.5, 1.0, 1)]
    # task vectors: [1, -1, 0] * .5 and [3, 1, -1] * 1.5
    expected = {
        ("linear", True): [(1 + 6) / 2, 3 / 2, 0.5 / 2],
        ("linear", False): [7, 3, 0.5],
        ("task_arithmetic", False): [1 + 5, 1 + 1, 1 - 1.5],
        ("task_arithmetic", True): [1 + 2.5, 1 + 0.5, 1 - 0.75],
        ("ties", True): [1 + 5 / 2, 1 + 1, 1 - 1],
        ("ties", False): [1 + 5, 1 + 1.5, 1 - 1.5],
        ("dare_linear", False): [1 + 5, 1 + 1, 1 - 1.5],
        ("dare_ties", False): [1 + 5, 1 + 1.5, 1 - 1.5],
    }
    for (method, normalize), values in expected.items():
        origin = base if RECIPES[method].from_base else None
        merged = merge_tensor(models, shares, method=method, base=origin, normalize=normalize)
        assert merged.tolist() == pytest.approx(values), method
        if normalize == RECIPES[method].normalize:
            assert torch.equal(merge_tensor(models, shares, method=method, base=origin), merged)


def test_lambda_scales_the_merged_task_vector() -> None:
    merged = merge_tensor([tensor([3.0])], [Share()], method="ties", base=tensor([1.0]), scale=0.25)
    assert merged.item() == 1.5


def test_scalar_and_empty_disagreement() -> None:
    base = torch.zeros(())
    merged = merge_tensor([tensor(2.0), tensor(-1.0)], [Share(), Share()], method="ties", base=base)
    assert merged.item() == 2.0
    assert merge_tensor([base, base], [Share(), Share()], method="ties", base=base).item() == 0.0
