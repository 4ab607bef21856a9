"""Exact arithmetic in text: equations of numbers, and what each side is worth."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

from finery.rewards.symbols import fold

LONGEST = 400
"""Characters of one side."""
MOST = 1000
"""Equations read in one text; what stands after them is not looked at."""

_NUMBER = r"[0-9]{1,30}(?:,[0-9]{3}){0,10}(?:\.[0-9]{1,30})?|\.[0-9]{1,30}"
_TERM = rf"[({{ ]{{0,8}}-?\\?[$€£¥]?(?:{_NUMBER})[)}} ]{{0,8}}"
_SIDE = rf"{_TERM}(?:[-+*/]{_TERM}){{0,24}}"
_EQUATION = re.compile(rf"(?P<left>{_SIDE})=(?=(?P<right>{_SIDE}))")
_TIMES = re.compile(r"\\times(?![A-Za-z])|\\cdot(?![A-Za-z])|[×·∙]|(?<=[0-9)]) {0,3}[xX] {0,3}(?=[0-9(])")
_DIVIDED = re.compile(r"\\div(?![A-Za-z])|÷")
_DELIMITER = re.compile(r"\\[()\[\]]|\$\$")
_BEFORE = re.compile(r"[A-Za-z0-9_.]\Z|[-+*/^(] *\Z")
_BULLET = re.compile(r"\n *[-+*] +\Z")
_AFTER = re.compile(r"[A-Za-z0-9_^(]|\.[0-9]")
_GOES_ON = re.compile(r"[+*/^]|- {0,3}[A-Za-z0-9(]")
_TOKEN = re.compile(rf"{_NUMBER}|[-+*/()]")


@dataclass(frozen=True)
class Equation:
    """One step: what was written, and whether it is true.

    Attributes:
        key: the numbers of the left side in order of size, and the value of the right: `8+17=25` is `17+8=25`.
    """

    text: str
    key: tuple[tuple[Fraction, ...], Fraction]
    true: bool


def equations(text: str) -> list[Equation]:
    """The equations of numbers in a text, in order; one side at least has an operation. `a=b=c` is `a=b` and `b=c`."""
    text = _DIVIDED.sub("/", _TIMES.sub("*", _DELIMITER.sub(" ", fold(text))))
    found = []
    for match in _EQUATION.finditer(text):
        if _is_part(text, match):
            continue
        one = equation(*_balanced(match["left"], match["right"]))
        if one is not None and re.search("[-+*/]", one.text.replace("=-", "=").lstrip("-")):
            found.append(one)
        if len(found) == MOST:
            break
    return found


def _is_part(text: str, match: re.Match[str]) -> bool:
    """Whether a match is cut out of something longer: `x+1=2`, `3=2y`, `1=2^3`."""
    start = match.start("left") + len(match["left"]) - len(match["left"].lstrip(" "))
    before = text[max(0, start - 8) : start]
    after = text[match.end("right") : match.end("right") + 8]
    glued = not match["right"].endswith(" ") and _AFTER.match(after) is not None
    cut = _BEFORE.search(before) is not None and _BULLET.search("\n" + before if start <= 8 else before) is None
    return glued or cut or _GOES_ON.match(after) is not None


def _balanced(left: str, right: str) -> tuple[str, str]:
    """Both sides without the bracket around the whole equation: `(2+3=5)`."""
    left, right = left.strip(), right.strip()
    while left.startswith("(") and left.count("(") > left.count(")"):
        left = left[1:].lstrip()
    while right.endswith(")") and right.count(")") > right.count("("):
        right = right[:-1].rstrip()
    return left, right


def equation(left: str, right: str) -> Equation | None:
    """Two sides as a step; None when one of them is not arithmetic, or divides by zero."""
    sides = [value(side) for side in (left, right)]
    if sides[0] is None or sides[1] is None:
        return None
    operands = tuple(sorted(Fraction(part.replace(",", "")) for part in re.findall(_NUMBER, left)))
    return Equation(f"{left.strip()}={right.strip()}", (operands, sides[1]), sides[0] == sides[1])


@lru_cache(maxsize=65536)
def value(text: str) -> Fraction | None:
    """What an expression of numbers, + - * / and brackets is worth, exactly; None when it is something else."""
    text = (
        re.sub(r"\\?[$€£¥]|\s", "", _DIVIDED.sub("/", _TIMES.sub("*", fold(text)))).replace("{", "(").replace("}", ")")
    )
    tokens = _TOKEN.findall(text)
    if not tokens or len(text) > LONGEST or "".join(tokens) != text:
        return None
    reader = _Reader(iter(tokens))
    try:
        result = reader.sum()
    except (ValueError, ZeroDivisionError):
        return None
    return result if reader.ahead is None else None


class _Reader:
    """Recursive descent over the tokens of an expression; its depth is bounded by LONGEST."""

    def __init__(self, tokens: Iterator[str]) -> None:
        self._tokens = tokens
        self.ahead: str | None = next(tokens, None)

    def _take(self) -> str | None:
        token, self.ahead = self.ahead, next(self._tokens, None)
        return token

    def sum(self) -> Fraction:
        result = self._product()
        while self.ahead in ("+", "-"):
            result = result + self._product() if self._take() == "+" else result - self._product()
        return result

    def _product(self) -> Fraction:
        result = self._atom()
        while self.ahead in ("*", "/"):
            result = result * self._atom() if self._take() == "*" else result / self._atom()
        return result

    def _atom(self) -> Fraction:
        token = self._take()
        if token in ("+", "-"):
            return -self._atom() if token == "-" else self._atom()
        if token == "(":
            result = self.sum()
            if self._take() != ")":
                raise ValueError("a bracket is not closed")
            return result
        if token is None or token in "*/)":
            raise ValueError("a number is due")
        return Fraction(token.replace(",", ""))
