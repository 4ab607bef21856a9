"""Conversations: roles, their order, and nothing lost on the way."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from finery.data.dataset import Message
from finery.data.records import Reject, found

ROLES = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "human": "user",
    "assistant": "assistant",
    "gpt": "assistant",
    "chatgpt": "assistant",
    "model": "assistant",
    "bot": "assistant",
    "function_call": "assistant",
    "tool_call": "assistant",
    "tool": "tool",
    "function": "tool",
    "observation": "tool",
    "function_response": "tool",
    "tool_response": "tool",
    "ipython": "tool",
}
"""The role words in use (OpenAI, ShareGPT, LLaMA-Factory's data/converter.py, Axolotl, Gemma, Llama) to the four roles.

A function call is what the assistant says, as it is written, and the observation is what a tool answers. Products'
names (bing, bard) say nothing of who speaks: a source maps them with `roles` (case D3).
"""
KEYS = (("role", "content"), ("from", "value"))
"""The names of role and content in a message: OpenAI's and ShareGPT's."""
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
        keys: the names of the role and the content in each object; when they are those of one of KEYS and the
            first object has the other's, the other's.

    Raises:
        Reject: it is no list of such objects, is empty, or has an unknown role or an empty or structured content.
    """
    if value is None:
        raise Reject(column, "missing", "is missing or null")
    if not isinstance(value, list):
        raise Reject(column, "wrong_type", f"found {found(value)}; a list of messages is expected")
    if not value:
        raise Reject(column, "empty", "is an empty conversation")
    first = value[0]
    if isinstance(first, dict) and keys[0] not in first and keys in KEYS:
        keys = next((other for other in KEYS if other[0] in first), keys)
    return [_turn(turn, column, number, roles, keys, ignored) for number, turn in enumerate(value)]


def _turn(
    turn: Any, column: str, number: int, roles: Mapping[str, str], keys: tuple[str, str], ignored: set[str]
) -> Message:
    role_key, content_key = keys
    if not isinstance(turn, dict):
        reason = f"found {found(turn)}; an object with {role_key} and {content_key} is expected"
        raise Reject(f"{column}[{number}]", "wrong_type", reason)
    role, content = turn.get(role_key), turn.get(content_key)
    if len(turn) > 2 or content is None:
        _check_rest(turn, f"{column}[{number}]", keys, ignored)
    if not isinstance(role, str) or role not in roles:
        reason = f"found {found(role)}; known are {', '.join(roles)}"
        if isinstance(role, str):
            reason += f"; another word is given its meaning on the source: roles: {{{role}: assistant}}"
        raise Reject(f"{column}[{number}].{role_key}", "unknown_role", reason)
    if not isinstance(content, str):
        content = _parts(content, f"{column}[{number}].{content_key}")
    if not content or content.isspace():
        raise Reject(f"{column}[{number}].{content_key}", "empty", "is empty")
    return {"role": roles[role], "content": content}


def _check_rest(turn: Mapping[str, Any], at: str, keys: tuple[str, str], ignored: set[str]) -> None:
    """What a message holds beside role and content: calls are refused, the rest is noted."""
    if any(turn.get(key) for key in _CALLS):
        raise Reject(at, "tool_calls", "structured tool calls are not supported; write the call as the content's text")
    ignored.update(f"{keys[0]}/{key}" for key, item in turn.items() if key not in keys and key not in _CALLS and item)


def _parts(content: Any, at: str) -> str:
    """The text of a content that is a list of parts, `{"type": "text", "text": ...}`; other parts cannot be learned."""
    if not isinstance(content, list) or not content or not all(isinstance(part, dict) for part in content):
        raise Reject(at, "wrong_type", f"found {found(content)}; text, or a list of parts of text, is expected")
    texts = []
    for number, part in enumerate(content):
        text = part.get("text")
        if part.get("type", "text") not in ("text", "input_text", "output_text") or not isinstance(text, str):
            kind = part.get("type")
            reason = (
                f"part {number} is of type {kind}; only parts of text can be trained on"
                if kind != "text"
                else (f"part {number} has the text {found(text)}; text is expected")
            )
            raise Reject(at, "not_text", reason)
        texts.append(text)
    return "".join(texts)


def check_turns(turns: Sequence[Message], column: str, *, last: str) -> None:
    """Hold a conversation to its order: a system message first if any, then user and assistant in turn.

    Args:
        last: who must have the last word; `user` admits a tool as well.

    Raises:
        Reject: with the turn that is out of order.
    """
    before: str | None = None
    for number, turn in enumerate(turns):
        role = turn["role"]
        if role not in _AFTER[before]:
            due = " or ".join(_AFTER[before])
            after = f"after {before}" if before else "first"
            raise Reject(f"{column}[{number}]", "bad_turns", f"{role} stands {after}, where {due} is due")
        before = role
    if before != last and not (last == "user" and before == "tool"):
        raise Reject(column, "bad_turns", f"ends with {before}; the last turn must be {last}'s")
