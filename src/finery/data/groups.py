"""Which split a row falls into: by the hash of its group's key, never by the seed or its place in a file."""

from __future__ import annotations

import hashlib
import unicodedata
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from fractions import Fraction
from json.encoder import encode_basestring
from math import ceil
from typing import Any

from finery.data.dataset import Message, Row, canonical
from finery.data.records import Reject

_WHOLE = 1 << 256


def normal(text: str) -> str:
    """Text as it is compared: NFKC, without white space at its ends."""
    return (text if text.isascii() else unicodedata.normalize("NFKC", text)).strip()


def group_key(row: Row, group_by: str, task: str | None) -> str:
    """The key of a row's group; rows of one key fall into one split.

    Args:
        row: the row.
        group_by: `prompt` (of a conversation: what the user says before the first reply), `answer` or `meta.NAME`.
        task: the bare task of a generated row, which is its key whatever `group_by` says.

    Raises:
        Reject: the row has no such field.
    """
    if task is not None:
        return normal(task)
    if group_by == "prompt":
        return normal(_opening(row["prompt"] if "prompt" in row else row["messages"]))
    value: Any = row.get("meta", {}).get(group_by.removeprefix("meta.")) if "." in group_by else row.get(group_by)
    if value is None:
        raise Reject(group_by, "missing", "is missing, and group_by needs it")
    return normal(value if isinstance(value, str) else canonical(value))


def _opening(prompt: str | Sequence[Message]) -> str:
    if isinstance(prompt, str):
        return prompt
    said = []
    for turn in prompt:
        if turn["role"] == "assistant":
            break
        if turn["role"] == "user":
            said.append(turn["content"])
    return "\n".join(said)


def position(key: str, salt: str) -> Fraction:
    """u in [0, 1): sha256 of salt and key, its 256 bits as a fraction."""
    return Fraction(int.from_bytes(digest(key, salt), "big"), _WHOLE)


def digest(key: str, salt: str) -> bytes:
    """sha256 of salt and key."""
    return hashlib.sha256((salt + key).encode()).digest()


class Intervals:
    """Consecutive intervals of [0, 1) in the order of the splits.

    Args:
        fractions: split to its share, whose sum is at most 1; a sum within 1e-9 of 1 reaches 1.
    """

    def __init__(self, fractions: Mapping[str, float]) -> None:
        self.names = list(fractions)
        self.ends: list[Fraction] = []
        total = Fraction(0)
        for share in fractions.values():
            total += Fraction(str(share))
            self.ends.append(total)
        if abs(total - 1) <= Fraction(1, 10**9):
            self.ends[-1] = Fraction(1)
        # u < end as whole numbers: a Fraction a row would cost more than the hash
        self._ends = [ceil(end * _WHOLE) for end in self.ends]

    def split(self, key: str, salt: str) -> str | None:
        """The split of a group, or None when it lies beyond the last interval."""
        index = self.index(digest(key, salt))
        return self.names[index] if index < len(self.names) else None

    def index(self, hashed: bytes) -> int:
        """The number of the split of a group's `digest`; the number of splits when it lies beyond the last interval."""
        return bisect_right(self._ends, int.from_bytes(hashed, "big"))


def fingerprint(row: Row, *, prompt_only: bool) -> bytes:
    """What two rows that are the same have in common: 16 bytes of a hash of their texts after NFKC and strip."""
    prompt = row.get("prompt", row.get("messages"))
    if prompt_only and "messages" in row:
        prompt = prompt[:-1] if prompt else prompt
    parts = [_normal_text(prompt)]
    if not prompt_only:
        parts += [_normal_text(row[name]) if name in row else "null" for name in ("completion", "answer")]
        parts += [canonical(_normal(row[name])) if name in row else "null" for name in ("tests", "sql")]
        parts += [_normal_text(row[name]) for name in ("chosen", "rejected") if name in row]
    return hashlib.sha256(",".join(parts).encode()).digest()[:16]


def _normal_text(value: Any) -> str:
    """Text or messages as they are compared, written so that others are written otherwise."""
    if isinstance(value, str):
        return encode_basestring(normal(value))
    if not isinstance(value, list):
        return canonical(value)
    turns = [encode_basestring(turn["role"]) + encode_basestring(normal(turn["content"])) for turn in value]
    return f"[{','.join(turns)}]"


def _normal(value: Any) -> Any:
    if isinstance(value, str):
        return normal(value)
    if isinstance(value, list):
        return [_normal(item) for item in value]
    return {key: _normal(item) for key, item in value.items()} if isinstance(value, dict) else value
