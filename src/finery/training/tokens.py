"""How many tokens a row has, as training would see it.

This is `finery.training.encode` without the labels, so a length limit of a data stage means what a trainer's
max_length means. transformers imports torch with itself (2 to 4 s, measured), so it comes in with the first object.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from finery.errors import InputError
from finery.training.folders import CONFIG, read_json
from finery.training.models import load_tokenizer
from finery.training.rendering import end_ids_of, render, render_prompt, render_prompts, templated

_GENERATION = "generation_config.json"


class RowTokens:
    """Counts with the tokenizer and the chat template of a model's folder (`finery.data.tokens.Tokens`).

    A row of prompt and completion, or of messages, has the tokens that sft trains on, the final EOS among them; one
    without a completion has those of its prompt, with the template's generation prompt. Where sft would leave a row
    out (a template that renders the prompt differently once the answer follows), its plain rendering is counted.

    Args:
        folder: a model's folder.
        chat_template: a Jinja template instead of the model's.

    Raises:
        InputError: the tokenizer cannot be loaded or has no EOS token, or (on counting) a row is messages and there
            is no chat template.
    """

    def __init__(self, folder: Path, *, chat_template: str | None = None) -> None:
        self.tokenizer = load_tokenizer(folder)
        if chat_template is not None:
            self.tokenizer.chat_template = chat_template
        if self.tokenizer.eos_token_id is None:
            raise InputError(f"{folder}: its tokenizer has no EOS token, which every row ends with; set eos_token")
        self.ends = end_ids_of(folder_ends(folder), self.tokenizer)

    def count(self, row: Mapping[str, Any]) -> int:
        """Tokens of one row."""
        return self.count_many([row])[0]

    def count_many(self, rows: Iterable[Mapping[str, Any]]) -> list[int]:
        """Tokens of each row; texts are tokenized together, which takes a fraction of the time."""
        rows = [row if "id" in row else {"id": "without an id", **row} for row in rows]
        if any("chosen" in row for row in rows):
            return self._count_pairs(rows)
        counts = [0] * len(rows)
        learned = [place for place, row in enumerate(rows) if row.get("completion") is not None or row.get("messages")]
        asked = sorted(set(range(len(rows))) - set(learned))
        rendered = render([rows[place] for place in learned], self.tokenizer, self.ends, False, False, "rows")
        for place, (row, tokens) in zip(learned, rendered, strict=True):
            counts[place] = self._plain(row) if isinstance(tokens, str) else len(tokens.ids)
        prompts = render_prompts(self.tokenizer, [rows[place]["prompt"] for place in asked])
        for place, ids in zip(asked, prompts, strict=True):
            counts[place] = len(ids)
        return counts

    def _count_pairs(self, rows: Sequence[Mapping[str, Any]]) -> list[int]:
        """Of a pair, the tokens of the prompt with the longer completion: dpo's max_length is held to each."""
        sides = [
            [{**row, "completion": row[side]} if side in row else row for row in rows]
            for side in ("chosen", "rejected")
        ]
        chosen, rejected = (
            [{k: v for k, v in row.items() if k not in ("chosen", "rejected")} for row in s] for s in sides
        )
        return [max(pair) for pair in zip(self.count_many(chosen), self.count_many(rejected), strict=True)]

    def _plain(self, row: Mapping[str, Any]) -> int:
        if isinstance(row.get("prompt"), str) and isinstance(row["completion"], str):
            return len(render_prompt(self.tokenizer, row["prompt"] + row["completion"])) + 1
        turns = row.get("messages") or [*row["prompt"], *row["completion"]]
        return len(templated(self.tokenizer, turns, return_dict=False))


def folder_ends(folder: Path) -> int | list[int] | None:
    """The end tokens that a model's folder names: in its generation config, else in its config."""
    for name in (_GENERATION, CONFIG):
        if (folder / name).is_file():
            config = read_json(folder / name)
            ends: int | list[int] | None = config.get("eos_token_id", config.get("text_config", {}).get("eos_token_id"))
            return ends
    return None
