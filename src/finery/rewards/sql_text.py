"""What the text of a query says: whether its rows are ordered, and by which of its columns.

Read by a tokenizer that knows literals, quoted names, comments and brackets, so that `ORDER BY` in a literal, a
comment, a subquery or a window does not count. It is not a parser: the engine has already accepted the query. Imports
nothing of finery; `sql_main` loads it by path.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

_PLAIN = re.compile(
    r"""(?P<space>\s+|--[^\n]*)
      | (?P<string>'(?:[^']|'')*'?)
      | (?P<quoted>"(?:[^"]|"")*"?|`(?:[^`]|``)*`?)
      | (?P<number>\d+(?:\.\d*)?(?:[eE][+-]?\d+)?|\.\d+(?:[eE][+-]?\d+)?)
      | (?P<name>[^\W\d][\w$]*)
      | (?P<symbol>.)""",
    re.VERBOSE | re.DOTALL,
)
_BRACKETED = re.compile(r"\[[^\]]*\]?")
_DOLLAR = re.compile(r"(\$(?:[^\W\d]\w*)?\$).*?(?:\1|\Z)", re.DOTALL)
_ESCAPED = re.compile(r"[eE]'(?:[^'\\]|\\.|'')*'?", re.DOTALL)
_AFTER_ORDER = frozenset({"limit", "offset", "fetch", "for", "using"})
_AFTER_ITEMS = frozenset(
    {
        "from",
        "where",
        "group",
        "having",
        "order",
        "limit",
        "offset",
        "union",
        "intersect",
        "except",
        "window",
        "qualify",
    }
    | {"using", "sample"}
)
_POSTFIX = frozenset({"isnull", "notnull", "end"})


class Token(NamedTuple):
    """A word, literal or symbol; names compare without case and quotes, as the engines do."""

    kind: str
    """`name`, `quoted` (a name too), `string`, `number` or `symbol`."""
    text: str
    depth: int
    """How many brackets are open around it."""


def tokens(text: str, engine: str) -> list[Token]:
    """The tokens of a query; comments and white space are dropped.

    Args:
        engine: `sqlite` ([x] is a name) or `duckdb` ([x] is a list; $$ strings, E'' strings, nested comments).
    """
    found: list[Token] = []
    at = depth = 0
    opening, closing = ("(", ")") if engine == "sqlite" else ("([{", ")]}")
    while at < len(text):
        if text.startswith("/*", at):
            at = _comment_end(text, at, nested=engine == "duckdb")
            continue
        kind, raw = _next(text, at, engine)
        at += len(raw)
        if kind == "space":
            continue
        if kind == "symbol" and raw in closing:
            depth -= 1
        found.append(Token(kind, _normal(kind, raw), depth))
        if kind == "symbol" and raw in opening:
            depth += 1
    return found


def trimmed(text: str, engine: str) -> str:
    """A query without the semicolons, comments and white space before and after it, which engines read differently."""
    at, start, end = 0, len(text), 0
    while at < len(text):
        if text.startswith("/*", at):
            at = _comment_end(text, at, nested=engine == "duckdb")
            continue
        kind, raw = _next(text, at, engine)
        if kind != "space" and raw != ";":
            start, end = min(start, at), at + len(raw)
        at += len(raw)
    return text[start:end]


def order_columns(text: str, engine: str, names: Sequence[str]) -> list[int] | None:
    """By which columns the rows are ordered: None when they are not, at the top level; empty when by something else.

    Args:
        text: a query that the engine accepts.
        names: the names of the columns that it gives.

    Returns:
        The indices of the output columns that are its sort keys. An empty list means that it is ordered by something
        that is not among its columns (or not surely), so that ties cannot be told.
    """
    read = _unwrapped([token for token in tokens(text, engine) if token.text != ";"])
    starts = [i for i, pair in enumerate(pairwise(read)) if _is_order(*pair)]
    if not starts:
        return None
    terms = _terms(read[starts[-1] + 2 :], _AFTER_ORDER)
    if [term[0].text for term in terms if len(term) == 1 and term[0].kind == "name"] == ["all"] and engine == "duckdb":
        return list(range(len(names)))
    items = _items(read[: starts[-1]])
    columns = [_column(_bare(term), items, [name.casefold() for name in names], engine) for term in terms]
    return [] if None in columns else [column for column in columns if column is not None]


def _next(text: str, at: int, engine: str) -> tuple[str, str]:
    special = [("quoted", _BRACKETED)] if engine == "sqlite" else [("string", _DOLLAR), ("string", _ESCAPED)]
    for kind, pattern in special:
        if match := pattern.match(text, at):
            return kind, match[0]
    match = _PLAIN.match(text, at)
    assert match is not None and match.lastgroup is not None  # `symbol` takes any character
    return match.lastgroup, match[0]


def _comment_end(text: str, at: int, *, nested: bool) -> int:
    depth, at = 1, at + 2
    while depth and at < len(text):
        if text.startswith("*/", at):
            depth, at = depth - 1, at + 2
        elif nested and text.startswith("/*", at):
            depth, at = depth + 1, at + 2
        else:
            at += 1
    return at


def _normal(kind: str, raw: str) -> str:
    if kind == "quoted":
        return raw[1:-1].replace(raw[0] * 2, raw[0]).casefold()
    return raw.casefold() if kind == "name" else raw


def _unwrapped(read: list[Token]) -> list[Token]:
    """Without the brackets around the whole of it, which DuckDB allows."""
    while len(read) > 2 and read[0].text == "(" and read[-1].text == ")" and read[0].kind == read[-1].kind == "symbol":
        if any(token.depth == read[0].depth for token in read[1:-1]):
            break
        read = [token._replace(depth=token.depth - 1) for token in read[1:-1]]
    return read


def _is_order(first: Token, second: Token) -> bool:
    return first.depth == 0 and [(t.kind, t.text) for t in (first, second)] == [("name", "order"), ("name", "by")]


def _terms(read: Sequence[Token], ends: frozenset[str]) -> list[list[Token]]:
    """Split at the commas that stand in no brackets, up to a word that ends the clause."""
    terms: list[list[Token]] = [[]]
    previous = ""
    for token in read:
        if token.depth == 0 and token.kind == "name" and token.text in ends and previous != "distinct":
            break
        if token.depth == 0 and token.kind == "symbol" and token.text == ",":
            terms.append([])
        else:
            terms[-1].append(token)
        previous = token.text if token.kind == "name" else ""
    return [term for term in terms if term]


def _items(read: Sequence[Token]) -> list[list[Token]]:
    """The select list of the first SELECT at the top level, aliases still on."""
    start = next((i for i, t in enumerate(read) if t.depth == 0 and (t.kind, t.text) == ("name", "select")), None)
    if start is None:
        return []
    rest = list(read[start + 1 :])
    if rest and (rest[0].kind, rest[0].text) in {("name", "distinct"), ("name", "all")}:
        rest = rest[1:]
        if rest and (rest[0].kind, rest[0].text) == ("name", "on"):
            close = next((i for i, t in enumerate(rest) if t.depth == 0 and t.text == ")"), len(rest))
            rest = rest[close + 1 :]
    return _terms(rest, _AFTER_ITEMS)


def _bare(term: list[Token]) -> list[Token]:
    """A term without NULLS FIRST, ASC or COLLATE; rows equal under a collation but not in fact count as no tie."""
    words = [token.text if token.kind == "name" else "" for token in term]
    if len(term) > 2 and words[-2] == "nulls":
        term, words = term[:-2], words[:-2]
    if len(term) > 1 and words[-1] in {"asc", "desc"}:
        term, words = term[:-1], words[:-1]
    if len(term) > 2 and words[-2] == "collate":
        term = term[:-2]
    return term


def _column(term: list[Token], items: list[list[Token]], names: list[str], engine: str) -> int | None:
    """Which output column a term of ORDER BY is, or None."""
    if len(term) == 1:
        if term[0].kind == "number":
            position = int(term[0].text) if term[0].text.isdigit() else 0
            return position - 1 if 1 <= position <= len(names) else None
        if term[0].kind in {"name", "quoted"} and names.count(term[0].text) == 1:
            return names.index(term[0].text)
    starred = [item for item in items if item[-1].text == "*" and (len(item) == 1 or item[-2].text == ".")]
    if starred:
        plain = len(starred) == len(items) and _is_column(term) and names.count(term[-1].text) == 1
        return names.index(term[-1].text) if plain else None
    same = [i for i, item in enumerate(items) if any(_same(term, form) for form in _forms(item, engine))]
    return same[0] if same and len(items) == len(names) else None


def _forms(item: list[Token], engine: str) -> list[list[Token]]:
    """An item of the select list with and without what may be its alias."""
    if len(item) > 2 and (item[-2].kind, item[-2].text) == ("name", "as"):
        return [item[:-2]]
    last = item[-1]
    alias = last.kind in {"name", "quoted"} or (last.kind == "string" and engine == "sqlite")
    return [item, item[:-1]] if len(item) > 1 and alias and last.text not in _POSTFIX else [item]


def _same(term: list[Token], item: list[Token]) -> bool:
    """Whether they are one expression; `t.name` is `name`, as a name that stands alone can mean one column only."""
    if _is_column(term) and _is_column(item) and min(len(term), len(item)) == 1:
        return term[-1].text == item[-1].text
    return [_key(token) for token in term] == [_key(token) for token in item]


def _is_column(term: list[Token]) -> bool:
    return all(
        token.kind in {"name", "quoted"} if index % 2 == 0 else (token.kind, token.text) == ("symbol", ".")
        for index, token in enumerate(term)
    ) and bool(len(term) % 2)


def _key(token: Token) -> tuple[str, str]:
    return ("name" if token.kind == "quoted" else token.kind), token.text
