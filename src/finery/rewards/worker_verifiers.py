"""The operations of math-verify and reasoning-gym, run by worker_main in a process of their own.

math_gold(gold) -> bool      can math-verify read the gold answer?
math(gold, answer) -> bool   are they equal?
gym(task, entry, answer) -> float
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from decimal import Decimal
from fractions import Fraction
from typing import Any


@functools.lru_cache(maxsize=4096)
def _parsed(text: str) -> list[Any]:
    from math_verify import parse

    read: list[Any] = parse(f"\\boxed{{{text}}}", parsing_timeout=None)
    return read


def math_gold(gold: str) -> str | None:
    """Why math-verify cannot judge by a gold answer, or None; 1/0 has no value, and text alone is not mathematics."""
    from sympy import nan, zoo
    from sympy.core.basic import Basic

    read = [item for item in _parsed(gold) if not isinstance(item, str)]
    if not read:
        return "cannot be read as mathematics"
    undefined = any(isinstance(item, Basic) and item.has(zoo, nan) for item in read)
    return "has no value (a division by zero)" if undefined else None


def math(gold: str, answer: str) -> bool:
    """Whether math-verify finds the two equal, and no two rationals in them differ.

    Its defaults compare at 6 decimals and 15 significant digits, so that 0.3333331 would equal 1/3.
    """
    from math_verify import verify

    right, given = _parsed(gold), _parsed(answer)
    if not verify(right, given, timeout_seconds=None):
        return False
    percent = any("%" in text or "percent" in text or "pct" in text for text in (gold, answer))
    return not (right and given and _differ(right[0], given[0], percent))


def _differ(a: Any, b: Any, percent: bool) -> bool:
    """Whether both are rationals, or sets, tuples, intervals or matrices in one shape, and a member differs."""
    import sympy

    a, b = (x.rhs if isinstance(x, sympy.Equality) and isinstance(x.lhs, sympy.Symbol) else x for x in (a, b))
    if isinstance(a, sympy.Interval) and isinstance(b, sympy.Interval):
        return _differ(a.start, b.start, percent) or _differ(a.end, b.end, percent)
    if isinstance(a, sympy.MatrixBase) and isinstance(b, sympy.MatrixBase) and a.shape == b.shape:
        return any(_differ(x, y, percent) for x, y in zip(a, b, strict=True))
    if isinstance(a, sympy.Tuple) and isinstance(b, sympy.Tuple) and len(a.args) == len(b.args):
        return any(_differ(x, y, percent) for x, y in zip(a.args, b.args, strict=True))
    if isinstance(a, sympy.FiniteSet) and isinstance(b, sympy.FiniteSet) and len(a.args) == len(b.args):
        return not _paired(a.args, b.args, percent)
    x, y = _rational(a), _rational(b)
    if x is not None and y is not None:
        return not _same(x, y, percent)
    return _no_rounding(x, b) or _no_rounding(y, a)


def _paired(a: Sequence[Any], b: Sequence[Any], percent: bool) -> bool:
    """Whether the members can be paired so that no pair differs (augmenting paths)."""
    partner: dict[int, int] = {}

    def seek(i: int, seen: set[int]) -> bool:
        for j in range(len(b)):
            if j not in seen and not _differ(a[i], b[j], percent):
                seen.add(j)
                if j not in partner or seek(partner[j], seen):
                    partner[j] = i
                    return True
        return False

    return all(seek(i, set()) for i in range(len(a)))


def _no_rounding(rational: tuple[Fraction, int | None] | None, value: Any) -> bool:
    """Whether a rational stands beside an irrational number and is not its rounding to 6 decimals or more."""
    import sympy

    if rational is None or not isinstance(value, sympy.Expr) or not value.is_number or not value.is_real:
        return False
    exact, places = rational
    if places is None or places < 6:
        return True
    away = abs(value.evalf(places + 20) - sympy.Rational(exact.numerator, exact.denominator))
    return bool(away > sympy.Rational(1, 2 * 10**places))


def _same(a: tuple[Fraction, int | None], b: tuple[Fraction, int | None], percent: bool) -> bool:
    """Equal; or one is a fraction without an end and the other its rounding to 6 decimals or more."""
    if a[0] == b[0] or (percent and (a[0] == 100 * b[0] or b[0] == 100 * a[0])):
        return True
    for exact, written in ((a, b), (b, a)):
        endless = exact[1] is None and not _divides_a_power_of_ten(exact[0].denominator)
        if endless and written[1] is not None and written[1] >= 6 and round(exact[0], written[1]) == written[0]:
            return True
    return False


def _divides_a_power_of_ten(number: int) -> bool:
    return pow(10, number.bit_length(), number) == 0


def _rational(value: Any) -> tuple[Fraction, int | None] | None:
    """An exact rational and its written decimals (None for a fraction or an expression); None for anything else."""
    import sympy

    if not isinstance(value, sympy.Expr) or value.free_symbols:
        return None
    if isinstance(value, sympy.Float):
        written = Decimal(str(value)).normalize()
        exponent = written.as_tuple().exponent
        return (Fraction(written), max(0, -exponent)) if isinstance(exponent, int) else None
    exact = value.xreplace({part: sympy.Rational(str(part)) for part in value.atoms(sympy.Float)})
    exact = exact if exact.is_Rational else exact.doit()
    if not exact.is_Rational and exact.is_rational is not False:  # unknown: 0.1 + sqrt(4) still has to be worked out
        exact = sympy.simplify(exact)
    return (Fraction(int(exact.p), int(exact.q)), None) if exact.is_Rational else None


def gym(task: str, entry: dict[str, Any], answer: str) -> float:
    """reasoning-gym's own score of an answer to one of its entries."""
    import reasoning_gym

    return float(reasoning_gym.get_score_answer_fn(task)(answer, _revived(entry)))


def _revived(value: Any) -> Any:
    """An entry as reasoning-gym made it: `data` keeps tuples as {"__tuple__": [...]}."""
    if isinstance(value, list):
        return [_revived(item) for item in value]
    if isinstance(value, dict):
        if set(value) == {"__tuple__"}:
            return tuple(_revived(item) for item in value["__tuple__"])
        return {key: _revived(item) for key, item in value.items()}
    return value


OPERATIONS: dict[str, Callable[..., Any]] = {"math_gold": math_gold, "math": math, "gym": gym}


def prepare(op: str) -> None:
    """Import what an operation needs, and use it once: sympy finishes its imports at the first expression."""
    if op == "gym":
        gym("chain_sum", {"answer": "1", "metadata": {}}, "1")
    else:
        math("x", "x")
