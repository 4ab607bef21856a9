"""Numbers as text: fixed decimals for rates, few digits for the rest, durations, shares of a change."""

from __future__ import annotations

import math
from typing import Any

MINUS = "\N{MINUS SIGN}"


def finite(value: Any) -> float | None:
    """The number, or None for anything that is not a finite one (`true` is no number)."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if math.isfinite(value) else None


def rate(value: Any, digits: int = 3) -> str:
    """`0.871`; an en dash for what is not a finite number."""
    number = finite(value)
    return "\N{EN DASH}" if number is None else f"{number:.{digits}f}".replace("-", MINUS)


def signed(value: Any, digits: int = 3) -> str:
    """`+0.391` or `−0.045`."""
    number = finite(value)
    if number is None:
        return "\N{EN DASH}"
    text = f"{number:+.{digits}f}"
    return text.replace("-", MINUS) if float(text) else text[1:]


def compact(value: Any) -> str:
    """Few digits whatever the size: `0.002`, `3e−4`, `1.24`, `51,200`; text stays as it is."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    if isinstance(value, int) or (value.is_integer() and abs(value) < 1e15):
        return f"{int(value):,}".replace("-", MINUS)
    size = abs(value)
    if not math.isfinite(value):
        return str(value)
    if 1e-3 <= size < 1e5:
        return f"{value:.4g}".replace("-", MINUS)
    mantissa, exponent = f"{value:.2e}".split("e")
    return f"{mantissa.rstrip('0').rstrip('.')}e{int(exponent)}".replace("-", MINUS)


def axis(value: float) -> str:
    """A tick's label, short: `250k`, `1.5M`, else as `compact`."""
    for size, sign in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if abs(value) >= size:
            return compact(value / (1e3 if sign == "k" else size)) + sign
    return compact(value)


def duration(seconds: float) -> str:
    """`0.8 s`, `42 s`, `4 min 12 s`, `2 h 05 min`."""
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def clock(seconds: float) -> str:
    """The same where there is little room: `42 s`, `4:12 min`, `2:05 h`."""
    whole = round(seconds)
    if whole < 60:
        return duration(seconds)
    return f"{whole // 60}:{whole % 60:02d} min" if whole < 3600 else f"{whole // 3600}:{whole % 3600 // 60:02d} h"


def metric_label(name: str) -> str:
    """`pass@8` for `pass_at_8`, `maj@8` for `maj_at_8`; other names as they are."""
    for stem in ("pass", "maj"):
        rest = name.removeprefix(f"{stem}_at_")
        if rest != name and (rest.isdigit() or rest == "k"):
            return f"{stem}@{rest}"
    return name


def ticks(low: float, high: float, count: int = 3) -> list[float]:
    """About `count` round numbers that span [low, high]: steps of 1, 2, 2.5 or 5 times a power of ten."""
    span = high - low
    if span <= 0:
        return [low]
    raw = span / max(1, count - 1)
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= raw * 0.999)
    first = math.floor(low / step + 1e-9)
    last = math.ceil(high / step - 1e-9)
    return [round(index * step, 12) for index in range(first, last + 1)]
