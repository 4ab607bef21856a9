"""How results are compared: properties, and the corners of a tolerance that is not transitive."""

from __future__ import annotations

import itertools
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from finery.rewards.sql_compare import Table, bags_equal, cell, difference, near
from finery.rewards.sql_text import order_columns

NUMBERS = st.integers(-3, 3) | st.sampled_from([0.5, 1.0, 1.0000005, 1.000001, 1.0000015, -2.0, 1e9, 1e9 + 1, 1e12])
CELLS = st.none() | st.sampled_from(["", "a", "1"]) | st.sampled_from([b"", b"a"]) | NUMBERS
TOLERANCE = 1e-6
STEADY = settings(max_examples=200, derandomize=True, deadline=None)


def tables(width: int = 3) -> st.SearchStrategy[list[tuple[Any, ...]]]:
    return st.lists(st.tuples(*[CELLS] * width), max_size=7)


def table(rows: list[tuple[Any, ...]], *names: str) -> Table:
    return Table(list(names) or ["a", "b", "c"], rows)


@STEADY
@given(tables(), st.randoms(use_true_random=False))
def test_shuffled_rows_are_equal(rows: list[tuple[Any, ...]], random: Any) -> None:
    shuffled = list(rows)
    random.shuffle(shuffled)
    assert difference(table(rows), table(shuffled), None, TOLERANCE) is None


@STEADY
@given(tables(), st.data())
def test_a_changed_cell_is_a_difference(rows: list[tuple[Any, ...]], data: st.DataObject) -> None:
    rows = [*rows, data.draw(st.tuples(CELLS, CELLS, CELLS))]
    i, j = data.draw(st.integers(0, len(rows) - 1)), data.draw(st.integers(0, 2))
    changed = [list(row) for row in rows]
    changed[i][j] = data.draw(st.sampled_from(["changed", b"changed", 77, 7.7e3]))
    assert difference(table(rows), table([tuple(row) for row in changed]), None, TOLERANCE)


@STEADY
@given(tables(2), tables(2))
def test_bags_are_equal_both_ways(one: list[tuple[Any, ...]], two: list[tuple[Any, ...]]) -> None:
    assert bags_equal(one, two, TOLERANCE) == bags_equal(two, one, TOLERANCE)


@STEADY
@given(
    st.integers(1, 5).flatmap(lambda n: st.tuples(*[st.lists(st.tuples(NUMBERS, NUMBERS), min_size=n, max_size=n)] * 2))
)
def test_the_matching_is_the_one_that_trying_all_finds(pair: tuple[list[Any], list[Any]]) -> None:
    one, two = pair
    every = (zip(one, order, strict=True) for order in itertools.permutations(two))
    tried = any(all(near(p, q, TOLERANCE) for x, y in pairs for p, q in zip(x, y, strict=True)) for pairs in every)
    assert bags_equal(one, two, TOLERANCE) == tried


def test_neither_rounding_nor_sorting_decides() -> None:
    # 1.0 is near 1.0000009 and that near 1.0000018, but the equal ones must not be paired with each other
    assert bags_equal([(1.0,), (1.0000009,)], [(1.0000009,), (1.0000018,)], TOLERANCE)
    assert not bags_equal([(1.0,), (1.0,)], [(1.0000009,), (1.0000018,)], TOLERANCE)
    # sorted by the first column, the rows would be paired wrongly
    one = [(1.0, 5.0), (1.0000002, 9.0)]
    assert bags_equal(one, [(1.0000001, 9.0), (1.0000003, 5.0)], TOLERANCE)


def test_integers_are_exact_and_floats_relative() -> None:
    assert not near(10**15, 10**15 + 1, TOLERANCE)
    assert near(10**15, 10.0**15 + 1, TOLERANCE)
    assert near(0.0, 9e-7, TOLERANCE) and not near(0.0, 2e-6, TOLERANCE)
    assert not bags_equal([(10**9,), (1.5,)], [(10**9 + 1,), (1.5,)], TOLERANCE)


@pytest.mark.parametrize(
    ("one", "two", "same"),
    [
        (1, 1.0, True), (1, "1", False), (None, 0, False), (None, "", False), (b"a", "a", False), (True, 1, False),
        (Decimal("0.30"), 0.3, True), (Decimal("3"), 3, True), (float("nan"), float("nan"), True),
        (float("inf"), 1e308, False), (float("inf"), float("inf"), True), ([1, "a"], [1, "a"], True),
        ({"a": 1}, {"a": 2}, False), (10**400, 10**400 + 1, False), (10**400, 1.0, False), (-0.0, 0, True),
    ],
)  # fmt: skip
def test_cells(one: Any, two: Any, same: bool) -> None:
    assert bags_equal([(cell(one),)], [(cell(two),)], TOLERANCE) is same


def test_ties_under_golds_keys_come_in_any_order() -> None:
    gold = table([(1, "a"), (1, "b"), (2, "c")], "k", "v")
    swapped, late = table([(1, "b"), (1, "a"), (2, "c")], "k", "v"), table([(1, "a"), (2, "c"), (1, "b")], "k", "v")
    assert difference(gold, swapped, [0]) is None
    assert difference(gold, late, [0]) == "the rows come in another order: row 2 is (2, 'c'), in gold (1, 'b')"
    assert difference(gold, swapped, []) and difference(gold, swapped, None) is None


def test_columns_are_permuted_as_wholes() -> None:
    gold = table([(1, 2, 2), (2, 1, 1)])
    assert difference(gold, table([(2, 1, 2), (1, 2, 1)]), None, permute=True) is None
    assert difference(gold, table([(2, 1, 2), (2, 1, 1)]), None, permute=True)
    assert difference(table([], "a", "b"), table([], "B", "A"), None, permute=True) is None
    assert difference(table([], "a", "b"), table([], "B", "A"), None)


def test_many_floats_that_are_all_close_are_matched_without_trying_all() -> None:
    rows = [(i * 1e-7, "x", (i * 37 % 5000) * 1e-7) for i in range(5000)]
    moved = [(a + 3e-7, b, c - 3e-7) for a, b, c in reversed(rows)]
    assert bags_equal(rows, moved, TOLERANCE)


@pytest.mark.parametrize(
    ("query", "names", "columns"),
    [
        ("SELECT a FROM t", "a", None),
        ("SELECT a, b FROM t ORDER BY b DESC, a", "a b", [1, 0]),
        ("SELECT a, b FROM t ORDER BY 2", "a b", [1]),
        ("SELECT a, b FROM t ORDER BY 3", "a b", []),
        ("SELECT a AS x FROM t ORDER BY a", "x", [0]),
        ("SELECT a x, count(*) n FROM t GROUP BY a ORDER BY count(*), a", "x n", [1, 0]),
        ("SELECT t.a, u.a FROM t JOIN u ORDER BY u.a", "a a", [1]),
        ("SELECT a FROM t ORDER BY t.A COLLATE NOCASE ASC NULLS LAST", "a", [0]),
        ('SELECT "A b" FROM t ORDER BY [a B]', "A b", [0]),
        ("SELECT upper(a) AS a FROM t ORDER BY t.a", "a", []),
        ("SELECT a FROM t ORDER BY b LIMIT 3", "a", []),
        ("SELECT a FROM t ORDER BY a LIMIT 3 OFFSET 1", "a", [0]),
        ("SELECT * FROM t ORDER BY a", "a b", [0]),
        ("SELECT t.*, 1 AS b FROM t ORDER BY t.b", "a b", []),
        ("SELECT * FROM t ORDER BY t.b", "a b", [1]),
        ("SELECT DISTINCT a IS DISTINCT FROM 1, b FROM t ORDER BY b", "c b", [1]),
        ("SELECT a ISNULL, b FROM t ORDER BY a", "c b", []),
        ("SELECT (SELECT a FROM u ORDER BY a) FROM t", "a", None),
        ("SELECT 'x ORDER BY y' FROM t", "a", None),
        ("SELECT a FROM t -- ORDER BY a", "a", None),
        ("SELECT a FROM t UNION SELECT b FROM u ORDER BY a", "a", [0]),
        ("SELECT group_concat(a ORDER BY a) FROM t", "a", None),
    ],
)
def test_the_keys_of_a_query(query: str, names: str, columns: list[int] | None) -> None:
    given_names = ["A b"] if names == "A b" else names.split()
    assert order_columns(query, "sqlite", given_names) == columns
