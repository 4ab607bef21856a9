"""What each format's columns write: the prompt, completion or messages of one row, or why there are none."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from finery.data.dataset import Row
from finery.data.records import Reject, found
from finery.data.turns import KEYS, check_turns

if TYPE_CHECKING:
    from finery.data.formats import Format

VERIFIED = ("answer", "tests", "sql")


def _prompt_completion(how: Format, value: Mapping[str, Any]) -> Row:
    prompt = _prompt(how, value)
    given = how.get(value, "completion")
    if not isinstance(given, list):
        text = how.text(value, "completion")
        return {
            "prompt": prompt,
            "completion": text if isinstance(prompt, str) else [{"role": "assistant", "content": text}],
        }
    if isinstance(prompt, str):
        raise Reject("completion", "wrong_type", "holds messages beside a prompt of text; both must be of one form")
    completion = how.turns(value, "completion", KEYS[0])
    check_turns([*prompt, *completion], "completion", last="assistant")
    return {"prompt": prompt, "completion": completion}


def _prompt(how: Format, value: Mapping[str, Any]) -> Any:
    if not isinstance(how.get(value, "prompt"), list):
        return how.text(value, "prompt")
    prompt = how.turns(value, "prompt", KEYS[0])
    check_turns(prompt, "prompt", last="user")
    return prompt


def _answer(how: Format, value: Mapping[str, Any]) -> Row:
    return {"prompt": _prompt(how, value)}


def _messages(how: Format, value: Mapping[str, Any]) -> Row:
    return _conversation(how, value, how.turns(value, "messages", KEYS[0]), "messages")


def _sharegpt(how: Format, value: Mapping[str, Any]) -> Row:
    return _conversation(how, value, how.turns(value, "conversations", KEYS[1]), "conversations")


def _conversation(how: Format, value: Mapping[str, Any], turns: list[dict[str, str]], column: str) -> Row:
    """A conversation to learn from; one that ends with the user is a prompt if something can verify its answer."""
    system = how.optional(value, "system")
    if system and turns[0]["role"] != "system":
        turns = [{"role": "system", "content": system}, *turns]
    asks = turns[-1]["role"] in ("user", "tool") and any(how.get(value, name) is not None for name in VERIFIED)
    check_turns(turns, column, last="user" if asks else "assistant")
    return {"prompt": turns} if asks else {"messages": turns}


def _alpaca(how: Format, value: Mapping[str, Any]) -> Row:
    instruction, output = how.text(value, "instruction"), how.text(value, "output")
    extra, system = how.optional(value, "input"), how.optional(value, "system")
    prompt = [{"role": "system", "content": system}] if system else []
    if (history := how.get(value, "history")) not in (None, ""):
        prompt += _history(history)
    prompt.append({"role": "user", "content": f"{instruction}\n{extra}" if extra else instruction})
    return {"prompt": prompt, "completion": [{"role": "assistant", "content": output}]}


def _history(history: Any) -> list[dict[str, str]]:
    """Earlier turns, pairs of question and answer, as messages."""
    if not isinstance(history, list):
        raise Reject("history", "wrong_type", f"found {found(history)}; a list of [question, answer] is expected")
    turns = []
    for number, pair in enumerate(history, 1):
        if not isinstance(pair, list) or len(pair) != 2 or not all(isinstance(text, str) and text for text in pair):
            raise Reject("history", "bad_turns", f"item {number} is {found(pair)}; a pair of texts is expected")
        turns += [{"role": "user", "content": pair[0]}, {"role": "assistant", "content": pair[1]}]
    return turns


READERS: dict[str, Callable[[Format, Mapping[str, Any]], Row]] = {
    "prompt_completion": _prompt_completion,
    "answer": _answer,
    "messages": _messages,
    "sharegpt": _sharegpt,
    "alpaca": _alpaca,
}
