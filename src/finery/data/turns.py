"""Conversations: roles, their order, and nothing lost on the way."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from finery.data.dataset import Message
from finery.data.records import Reject, found

ROLES = {"system": "system", "user": "user", "assistant": "assistant", "tool": "tool"}
SHAREGPT_ROLES = {
    **ROLES,
    "human": "user",
    "gpt": "assistant",
    "chatgpt": "assistant",
    "function_call": "assistant",
    "observation": "tool",
}
"""A function call is what the assistant says, as it is written, and the observation is what a tool answers."""
_CALLS = ("tool_calls", "function_call")
_AFTER = {
    None: ("system", "user"),
    "system": ("user",),
    "user": ("assistant",),
    "assistant": ("user", "tool"),
    "tool": ("assistant", "tool"),
}


def read_turns(
    value: Any, column: str, roles: Mapping[str, str], keys: tuple[str, str], ignored: set[str]
) -> list[Message]:
    """A list of messages in finery's roles; the names of keys left out are added to `ignored`.

    Args:
        value: a list of objects.
        roles: the file's role to finery's.
        keys: the names of the role and the content in each object.

    Raises:
        Reject: it is no list of such objects, is empty, or has an unknown role or an empty or structured content.
    """
    if value is None:
        raise Reject(column, "missing", "is missing or null")
    if not isinstance(value, list):
        raise Reject(column, "wrong_type", f"found {found(value)}; a list of messages is expected")
    if not value:
        raise Reject(column, "empty", "is an empty conversation")
    return [_turn(turn, f"{column}[{number}]", roles, keys, ignored) for number, turn in enumerate(value)]


def _turn(turn: Any, at: str, roles: Mapping[str, str], keys: tuple[str, str], ignored: set[str]) -> Message:
    role_key, content_key = keys
    if not isinstance(turn, dict):
        raise Reject(at, "wrong_type", f"found {found(turn)}; an object with {role_key} and {content_key} is expected")
    role, content = turn.get(role_key), turn.get(content_key)
    if any(turn.get(key) for key in _CALLS):
        raise Reject(at, "tool_calls", "structured tool calls are not supported; write the call as the content's text")
    if not isinstance(role, str) or role not in roles:
        raise Reject(f"{at}.{role_key}", "unknown_role", f"found {found(role)}; known are {', '.join(roles)}")
    if not isinstance(content, str):
        raise Reject(f"{at}.{content_key}", "wrong_type", f"found {found(content)}; text is expected")
    if not content.strip():
        raise Reject(f"{at}.{content_key}", "empty", "is empty")
    ignored.update(f"{role_key}/{key}" for key, item in turn.items() if key not in (*keys, *_CALLS) and item)
    return {"role": roles[role], "content": content}


def check_turns(turns: Sequence[Message], column: str, *, last: str) -> None:
    """Hold a conversation to its order: a system message first if any, then user and assistant in turn.

    Args:
        last: who must have the last word; `user` admits a tool as well.

    Raises:
        Reject: with the turn that is out of order.
    """
    before: str | None = None
    for number, turn in enumerate(turns):
        if turn["role"] not in _AFTER[before]:
            due = " or ".join(_AFTER[before])
            after = f"after {before}" if before else "first"
            raise Reject(f"{column}[{number}]", "bad_turns", f"{turn['role']} stands {after}, where {due} is due")
        before = turn["role"]
    if before != last and not (last == "user" and before == "tool"):
        raise Reject(column, "bad_turns", f"ends with {before}; the last turn must be {last}'s")
