"""Probes that tell two tokenizers apart (case T7).

transformers 5.24 builds some tokenizers from the class that `model_type` names and ignores the pre-tokenizer in
tokenizer.json: a Qwen2 folder with a tokenizer of its own reloads as another one, with other ids and no error.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

_TEXTS = (
    "\n",
    "a\nb\n\nc\r\n",
    "0123456789 42 3.14 -7 1,000",
    "Q:17+8-3\nA:17+8=25\n25-3=22\n#### 22",
    "  two  spaces\tand a tab ",
    "The quick brown fox; it's JUMPED_over!",
    "def f(x):\n    return {x: [1, 2]}\n",
    "Ünïcödé 数学 🙂 e\u0301",
    "\\boxed{\\frac{1}{2}} <think>x</think>",
)
_MESSAGES = [{"role": "user", "content": "What is 2+3?\n"}]


def first_difference(one: Any, other: Any) -> str | None:
    """Where two tokenizers differ on the probes: newlines, digits, spaces, Unicode, every special token, the chat
    template, and the special tokens' ids. None when they agree on all.

    Args:
        one: a tokenizer of transformers.
        other: another.
    """
    for label, a, b in _facts(one, other):
        if a != b:
            return f"{label}: {_short(a)} against {_short(b)}"
    return None


def _facts(one: Any, other: Any) -> Iterator[tuple[str, Any, Any]]:
    specials = sorted({*one.all_special_tokens, *other.all_special_tokens})
    texts = [*_TEXTS, *(text for token in specials for text in (token, f"a{token}b\n"))]
    for special in (False, True):
        for text in texts:
            yield (
                f"ids of {text!r}" + (" with special tokens" if special else ""),
                one(text, add_special_tokens=special)["input_ids"],
                other(text, add_special_tokens=special)["input_ids"],
            )
    ids = one(_TEXTS[3], add_special_tokens=False)["input_ids"]
    yield f"text of {_short(ids)}", one.decode(ids), other.decode(ids)
    for name in ("bos_token_id", "eos_token_id", "pad_token_id", "unk_token_id"):
        yield name, getattr(one, name), getattr(other, name)
    yield "number of tokens", len(one), len(other)
    yield "chat template", one.chat_template, other.chat_template
    yield "a message through the chat template", _rendered(one), _rendered(other)


def _rendered(tokenizer: Any) -> str | None:
    if not tokenizer.chat_template:
        return None
    from jinja2 import TemplateError

    try:
        return str(tokenizer.apply_chat_template(_MESSAGES, tokenize=False, add_generation_prompt=True))
    except (TemplateError, ArithmeticError, LookupError, TypeError, ValueError) as error:
        # a template may refuse the probe (no system turn, say); what counts is that both do the same
        return f"refused: {error}"


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 120 else text[:117] + "..."
