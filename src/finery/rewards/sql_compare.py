"""Whether two results of queries are the same rows.

Numbers compare by value, text is no number, NULL equals NULL only. Two integers are equal when they are the same; where
one number is a float, they may differ by `tolerance * max(1, |a|, |b|)`. As that is not transitive, bags of rows with
floats are matched one to one, not sorted or rounded. Imports nothing of finery; `sql_main` loads it by path.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Hashable, Iterator, Sequence
from decimal import Decimal
from typing import Any, NamedTuple

Row = tuple[Hashable, ...]
Vector = tuple[float, ...]
_NUMBER = ("a number",)
_HUGE = 1 << 1000
"""From here on an integer has no float beside it to be near to."""


class Table(NamedTuple):
    """What a query gave; the cells are made by `cell`."""

    names: list[str]
    rows: list[Row]


def cell(value: Any) -> Hashable:
    """A value as it is compared.

    None, text, bytes, int and finite floats stay; a decimal becomes a float (or an int, when its type has no fraction);
    booleans, infinities, NaN (equal to itself here), dates and nested values become pairs of a kind and a value, equal
    only to the same.
    """
    if value is None or isinstance(value, str | bytes):
        return value
    if isinstance(value, bool):
        return ("boolean", value)
    if isinstance(value, int):
        return value if abs(value) < _HUGE else ("integer", hex(value))
    if isinstance(value, Decimal) and value.is_finite():
        return int(value) if value.as_tuple().exponent == 0 else float(value)
    if isinstance(value, float | Decimal):
        return float(value) if math.isfinite(value) else ("float", str(float(value)))
    if isinstance(value, list | tuple):
        return ("list", tuple(cell(item) for item in value))
    if isinstance(value, dict):
        return ("map", tuple((cell(key), cell(item)) for key, item in value.items()))
    return (type(value).__name__, str(value))


def difference(
    gold: Table, given: Table, order: Sequence[int] | None, tolerance: float = 0.0, *, permute: bool = False
) -> str | None:
    """How a result differs from the gold one, as one line, or None when it is the same.

    Args:
        order: None: rows come in any order. Indices of gold's columns: gold is ordered by these; rows that tie under
            them come in any order. Empty: gold is ordered by something else, and the order must be the same.
        tolerance: below 1.
        permute: whether the columns may come in another order.
    """
    if len(gold.names) != len(given.names):
        return f"{_count(len(given.names), 'column')} where gold has {len(gold.names)}"
    if len(gold.rows) != len(given.rows):
        return _counted(gold, given, tolerance)
    if not gold.rows:
        return _headings(gold.names, given.names, permute)
    runs = list(_runs(gold.rows, order))
    if all(bags_equal(gold.rows[i:j], given.rows[i:j], tolerance) for i, j in runs):
        return None
    if permute and _permuted(gold.rows, given.rows, runs, tolerance):
        return None
    return _shown(gold, given, runs, tolerance)


def near(a: float, b: float, tolerance: float) -> bool:
    """Whether two finite numbers are equal."""
    if a == b:
        return True
    if isinstance(a, int) and isinstance(b, int):
        return False
    return abs(a - b) <= tolerance * max(1.0, abs(a), abs(b))


def bags_equal(a: Sequence[Row], b: Sequence[Row], tolerance: float) -> bool:
    """Whether the rows of `a` can be matched one to one with equal rows of `b`."""
    if len(a) != len(b):
        return False
    if a == b or Counter(a) == Counter(b):
        return True
    floats = {j for rows in (a, b) for row in rows for j, value in enumerate(row) if isinstance(value, float)}
    if not tolerance or not floats:
        return False
    groups: dict[Row, tuple[list[Vector], list[Vector]]] = {}
    for side, rows in enumerate((a, b)):
        for row in rows:
            loose = [j in floats and isinstance(value, int | float) for j, value in enumerate(row)]
            key = tuple(_NUMBER if free else value for free, value in zip(loose, row, strict=True))
            vector = tuple(value for free, value in zip(loose, row, strict=True) if free)
            groups.setdefault(key, ([], []))[side].append(vector)  # type: ignore[arg-type]
    return all(_matched(left, right, tolerance) for left, right in groups.values())


def _matched(a: list[Vector], b: list[Vector], tolerance: float) -> bool:
    """Whether vectors of one length can be matched one to one, each number near its partner's."""
    pending = [(a, b, 0, 0)]
    while pending:
        left, right, axis, whole = pending.pop()
        if len(left) != len(right):
            return False
        width = len(left[0]) if left else 0
        if whole < width and len(left) > 1:
            parts = list(_clusters(left, right, axis, tolerance))
            whole = whole + 1 if len(parts) == 1 else 1
            pending += [(*part, (axis + 1) % width, whole) for part in parts]
        elif not _assigned(left, right, tolerance):
            return False
    return True


def _clusters(
    a: list[Vector], b: list[Vector], axis: int, tolerance: float
) -> Iterator[tuple[list[Vector], list[Vector]]]:
    """Parts between which no two vectors can match, as a gap in their numbers on one axis is wider than the tolerance.

    For a tolerance below 1 what is near a number is an interval whose ends grow with the number, so that if two numbers
    on both sides of a gap were near, the two at its edges would be.
    """
    both = sorted([(v[axis], 0, v) for v in a] + [(v[axis], 1, v) for v in b])
    part: tuple[list[Vector], list[Vector]] = ([], [])
    previous = both[0][0]
    for value, side, vector in both:
        if abs(value - previous) > tolerance * max(1.0, abs(value), abs(previous)):
            yield part
            part = ([], [])
        part[side].append(vector)
        previous = value
    yield part


def _assigned(a: list[Vector], b: list[Vector], tolerance: float) -> bool:
    """Whether a perfect matching exists: by sorting where that decides, else along augmenting paths (Kuhn)."""

    def fit(x: Vector, y: Vector) -> bool:
        return all(near(p, q, tolerance) for p, q in zip(x, y, strict=True))

    if all(fit(x, y) for x, y in zip(sorted(a), sorted(b), strict=True)):
        return True
    if len(a) == 1 or not a[0]:
        return False
    for axis in range(len(a[0])):  # a matching of the vectors is one of each coordinate, and that one sorting decides
        one, two = sorted(v[axis] for v in a), sorted(v[axis] for v in b)
        if any(abs(p - q) > tolerance * max(1.0, abs(p), abs(q)) for p, q in zip(one, two, strict=True)):
            return False
    near_to = [[k for k, y in enumerate(b) if fit(x, y)] for x in a]
    mate: dict[int, int] = {}
    partner: dict[int, int] = {}
    return all(_augment(start, near_to, mate, partner) for start in range(len(a)))


def _augment(start: int, near_to: list[list[int]], mate: dict[int, int], partner: dict[int, int]) -> bool:
    """Match one more of the left side, moving others if need be; `mate` is left to right, `partner` right to left."""
    came_from: dict[int, int] = {}
    queue = deque([start])
    while queue:
        left = queue.popleft()
        for right in near_to[left]:
            if right in came_from:
                continue
            came_from[right] = left
            if right in partner:
                queue.append(partner[right])
                continue
            free: int | None = right
            while free is not None:  # back along the path, each takes the partner found for it
                owner = came_from[free]
                partner[free], mate[owner], free = owner, free, mate.get(owner)
            return True
    return False


def _runs(rows: Sequence[Row], order: Sequence[int] | None) -> Iterator[tuple[int, int]]:
    """The stretches of gold's rows within which the order is free."""
    if order is None:
        yield 0, len(rows)
        return
    start = 0
    for index in range(1, len(rows) + 1):
        tied = order and index < len(rows) and all(rows[index][j] == rows[start][j] for j in order)
        if not tied:
            yield start, index
            start = index


def _permuted(gold: list[Row], given: list[Row], runs: list[tuple[int, int]], tolerance: float) -> bool:
    """Whether some order of the columns makes them equal; columns are placed one by one, each prefix compared."""
    width = len(gold[0])

    def fits(chosen: tuple[int, ...], first: int) -> bool:
        left = [row[first : first + len(chosen)] for row in gold]
        right = [tuple(row[j] for j in chosen) for row in given]
        return all(bags_equal(left[i:j], right[i:j], tolerance) for i, j in runs)

    candidates = [[j for j in range(width) if fits((j,), k)] for k in range(width)]
    stack: list[tuple[int, ...]] = [()]
    while stack:
        chosen = stack.pop()
        if len(chosen) == width:
            return True
        longer = [(*chosen, j) for j in candidates[len(chosen)] if j not in chosen]
        stack += [more for more in reversed(longer) if len(more) == 1 or fits(more, 0)]
    return False


def _headings(gold: list[str], given: list[str], permute: bool) -> str | None:
    """Two results without rows are the same only when their columns have the same names, white space and case apart."""
    one, two = (["".join(name.split()).casefold() for name in names] for names in (gold, given))
    if one == two or (permute and sorted(one) == sorted(two)):
        return None
    return f"no rows, as gold, but of columns {_list(given)} where gold has {_list(gold)}"


def _counted(gold: Table, given: Table, tolerance: float) -> str:
    more = len(given.rows) > len(gold.rows)
    text = f"more than {_count(len(gold.rows), 'row')}" if more else _count(len(given.rows), "row")
    extra = _only(given.rows, gold.rows, tolerance) if more else _only(gold.rows, given.rows, tolerance)
    first = f"; {'not in gold' if more else 'missing'}: {_list(extra)}" if extra is not None else ""
    return f"{text} where gold has {len(gold.rows)}{first}"


def _shown(gold: Table, given: Table, runs: list[tuple[int, int]], tolerance: float) -> str:
    """The first difference of two results of one size."""
    if len(runs) > 1 and bags_equal(gold.rows, given.rows, tolerance):
        i, j = next((i, j) for i, j in runs if not bags_equal(gold.rows[i:j], given.rows[i:j], tolerance))
        strange = [k for k in range(i, j) if _only([given.rows[k]], gold.rows[i:j], 0.0) is not None]
        at = strange[0] if strange else i
        return (
            f"the rows come in another order: row {at + 1} is {_list(given.rows[at])}, in gold {_list(gold.rows[at])}"
        )
    missing = _only(gold.rows, given.rows, tolerance)
    extra = _only(given.rows, gold.rows, tolerance)
    parts = [f"missing: {_list(missing)}"] if missing is not None else []
    parts += [f"not in gold: {_list(extra)}"] if extra is not None else []
    return f"{_count(len(gold.rows), 'row')}, but other ones: " + ("; ".join(parts) or "they match no other way")


def _only(rows: Sequence[Row], others: Sequence[Row], tolerance: float) -> Row | None:
    """A row that `others` has not, or not as often; one with no near neighbour, if there is one."""
    left = list((Counter(rows) - Counter(others)).elements())
    if not left:
        return None
    rest = (Counter(others) - Counter(rows)).elements()
    nearby = list(rest)[:100]
    return next((row for row in left[:100] if not any(bags_equal([row], [b], tolerance) for b in nearby)), left[0])


def _list(values: Sequence[Any]) -> str:
    shown = [
        "NULL" if value is None else str(value[1]) if isinstance(value, tuple) else repr(value) for value in values[:8]
    ]
    text = ", ".join(part if len(part) <= 40 else part[:37] + "..." for part in shown)
    return f"({text}{', ...' if len(values) > 8 else ''})"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
