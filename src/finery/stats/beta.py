"""Quantiles of the Beta distribution, in plain Python: stats needs nothing but numpy."""

from __future__ import annotations

import math


def beta_cdf(x: float, a: float, b: float) -> float:
    """The regularised incomplete beta function I_x(a, b), for a, b > 0.

    Numerical Recipes, section 6.4: the continued fraction, by Lentz's method; about 1e-12 accurate.
    """
    if x <= 0.0:
        return 0.0
    if x >= 1.0:
        return 1.0
    front = math.exp(math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x))
    if x < (a + 1.0) / (a + b + 2.0):
        return front * _fraction(x, a, b) / a
    return 1.0 - front * _fraction(1.0 - x, b, a) / b


def beta_quantile(q: float, a: float, b: float) -> float:
    """The x with I_x(a, b) = q, by bisection to 1e-12."""
    if not 0.0 <= q <= 1.0:
        raise ValueError(f"a quantile lies between 0 and 1, not {q}")
    low, high = 0.0, 1.0
    while high - low > 1e-12:
        middle = (low + high) / 2
        if beta_cdf(middle, a, b) < q:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def _fraction(x: float, a: float, b: float) -> float:
    tiny = 1e-300
    c, d = 1.0, 1.0 / _away(1.0 - (a + b) * x / (a + 1.0), tiny)
    result = d
    for m in range(1, 10_000):
        for numerator in (
            m * (b - m) * x / ((a + 2 * m - 1.0) * (a + 2 * m)),
            -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1.0)),
        ):
            d = 1.0 / _away(1.0 + numerator * d, tiny)
            c = _away(1.0 + numerator / c, tiny)
            result *= c * d
        if abs(c * d - 1.0) < 1e-14:
            return result
    raise ArithmeticError(f"the incomplete beta function did not converge at x={x}, a={a}, b={b}")


def _away(value: float, tiny: float) -> float:
    return value if abs(value) > tiny else tiny
