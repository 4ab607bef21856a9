"""When a gate looks, and what counts are worth when they decided how many there are."""

from __future__ import annotations

from itertools import pairwise, product
from math import comb

import pytest

from finery.stats.passk import pass_at_k
from finery.stats.sequential import goes_on, looks, spent, unbiased


def test_error_is_spent_from_nothing_to_all_of_it() -> None:
    assert spent(0, 0.05) == 0
    assert spent(1, 0.05) == pytest.approx(0.05)
    assert spent(0.5, 0.05) == pytest.approx(0.05 * 0.6201145)  # ln(1.859141)


def test_looks_take_prompts_first_and_then_more_completions() -> None:
    made = looks(150, 8, 16, 0.05)
    assert [(look.prompts, look.samples) for look in made] == [
        (25, 8), (50, 8), (75, 8), (100, 8), (125, 8), (150, 8), (150, 12), (150, 16),
    ]  # fmt: skip
    assert sum(look.alpha for look in made) == pytest.approx(0.05)
    assert all(look.alpha > 0 for look in made)


@pytest.mark.parametrize(("prompts", "k", "most"), [(1, 1, 1), (7, 8, 8), (26, 2, 3), (1000, 8, 64)])
def test_the_last_look_has_everything(prompts: int, k: int, most: int) -> None:
    made = looks(prompts, k, most, 0.1)
    assert (made[-1].prompts, made[-1].samples) == (prompts, most)
    assert all((a.prompts, a.samples) < (b.prompts, b.samples) for a, b in pairwise(made))
    assert sum(look.alpha for look in made) == pytest.approx(0.1)


def test_one_round_is_worth_what_pass_at_k_says() -> None:
    assert unbiased([8], 3, 1, 8) == pass_at_k(8, 3, 1)
    assert unbiased([8], 3, 8, 8) == 1.0
    assert unbiased([7], 3, 1, 8) is None


def test_two_rounds_by_hand() -> None:
    """Rounds of 2 and 2, pass@2, stopped at 2 of 2: of 1 solved of 4 two orders of four began with it, ..."""
    assert [unbiased([2, 2], c, 2, 2) for c in range(4)] == pytest.approx([0, 0.5, 0.8, 1.0])
    with pytest.raises(ValueError, match="stopped before"):
        unbiased([2, 2], 4, 2, 2)


def test_completions_that_were_not_judged_make_a_longer_first_round() -> None:
    assert unbiased([1, 2], 1, 2, 2) == pass_at_k(3, 1, 2)
    assert unbiased([2, 0, 2], 1, 2, 2) == 0.5


@pytest.mark.parametrize("p", [0.05, 0.3, 0.9])
@pytest.mark.parametrize("k", [1, 2, 3])
def test_stopping_early_leaves_the_estimate_unbiased(p: float, k: int) -> None:
    mean = 0.0
    for a, b, c in product(range(4), range(3), range(3)):  # solved in rounds of 3, 2 and 2
        drawn, solved, chance = [3], a, comb(3, a) * p**a * (1 - p) ** (3 - a)
        for size, count in ((2, b), (2, c)):
            if not goes_on(sum(drawn), solved, 3):
                chance *= count == 0  # counted once: nothing was drawn
                continue
            drawn.append(size)
            solved += count
            chance *= comb(size, count) * p**count * (1 - p) ** (size - count)
        if chance:
            value = unbiased(drawn, solved, k, 3)
            assert value is not None
            mean += chance * value
    assert mean == pytest.approx(1 - (1 - p) ** k)
