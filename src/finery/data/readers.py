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


def _preference(how: Format, value: Mapping[str, Any]) -> Row:
    """A prompt and two completions; whole conversations are parted where they differ first."""
    given = {side: how.get(value, side) for side in ("chosen", "rejected")}
    if all(isinstance(side, list) for side in given.values()):
        chosen, rejected = (how.turns(value, side, KEYS[0]) for side in given)
        if chosen[0]["role"] != "assistant":
            return _parted(how, value, chosen, rejected)
        prompt: Any = _prompt(how, value)
        if isinstance(prompt, str):
            raise Reject("chosen", "wrong_type", "holds messages beside a prompt of text; both must be of one form")
    else:
        prompt = _prompt(how, value)
        texts = [how.text(value, side) for side in given]
        if isinstance(prompt, str):
            return {"prompt": prompt} | _unlike(*texts)
        chosen, rejected = ([{"role": "assistant", "content": text}] for text in texts)
    for side, turns in (("chosen", chosen), ("rejected", rejected)):
        check_turns([*prompt, *turns], side, last="assistant")
    return {"prompt": prompt} | _unlike(chosen, rejected)


def _parted(how: Format, value: Mapping[str, Any], chosen: list[Any], rejected: list[Any]) -> Row:
    """The row of two whole conversations: their common beginning is the prompt."""
    for side, turns in (("chosen", chosen), ("rejected", rejected)):
        check_turns(turns, side, last="assistant")
    _unlike(chosen, rejected)
    shorter = min(len(chosen), len(rejected))
    common = next((at for at in range(shorter) if chosen[at] != rejected[at]), shorter)
    if common in (0, shorter) or {chosen[common]["role"], rejected[common]["role"]} != {"assistant"}:
        reason = f"first differs from chosen in turn {common}, which is not the assistant's in both"
        raise Reject("rejected", "bad_turns", reason)
    prompt = chosen[:common]
    asked = how.get(value, "prompt")
    if isinstance(asked, list):
        asked = how.turns(value, "prompt", KEYS[0])
    if asked is not None and asked not in (prompt, prompt[-1]["content"]):
        raise Reject("prompt", "bad_turns", "is not the common beginning of chosen and rejected, nor its last turn")
    return {"prompt": prompt, "chosen": chosen[common:], "rejected": rejected[common:]}


def _unlike(chosen: Any, rejected: Any) -> Row:
    if chosen == rejected:
        raise Reject("rejected", "same", "is the same as chosen")
    return {"chosen": chosen, "rejected": rejected}


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
    "preference": _preference,
    "messages": _messages,
    "sharegpt": _sharegpt,
    "alpaca": _alpaca,
}
