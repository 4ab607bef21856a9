"""A row is counted as it would be trained on."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from transformers import PreTrainedTokenizerFast

from finery.data.chains import chain_rows
from finery.data.dataset import row_of
from finery.data.tokens import Tokens
from finery.errors import InputError
from finery.training.encode import encode
from finery.training.rendering import render_prompt
from finery.training.tokens import RowTokens

ROOT = Path(__file__).parents[2]
TEMPLATE = (
    "{% for m in messages %}{{ m.role[0] }}:{{ m.content }}\n{% endfor %}{% if add_generation_prompt %}a:{% endif %}"
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The base model's folder with a chat template that writes no EOS."""
    copy = tmp_path / "base"
    shutil.copytree(ROOT / "pipelines" / "base", copy)
    tokenizer = PreTrainedTokenizerFast.from_pretrained(copy)
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(copy)
    return copy


def named(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{"id": row_of(row), **row} for row in rows]


def talk(row: dict[str, Any]) -> dict[str, Any]:
    return {
        "prompt": [{"role": "user", "content": row["prompt"]}],
        "completion": [{"role": "assistant", "content": row["completion"]}],
    }


def test_text_and_messages_have_the_tokens_that_sft_trains_on(folder: Path) -> None:
    text = chain_rows(40, seed=3)
    pairs = [talk(row) for row in text]
    whole = [{"messages": row["prompt"] + row["completion"]} for row in pairs]
    counter: Tokens = RowTokens(folder)
    for rows in (text, pairs, whole):
        encoded = encode(
            named(rows), RowTokens(folder).tokenizer, ends=RowTokens(folder).ends, max_length=10_000, name="data"
        )
        assert not encoded.rejected
        assert counter.count_many(rows) == encoded.lengths.tolist()
        assert counter.count(rows[7]) == encoded.lengths[7]


def test_a_prompt_alone_is_counted_as_it_is_sampled_from(folder: Path) -> None:
    counter = RowTokens(folder)
    text = {"prompt": "Q:1+2\n", "answer": "3"}
    turns = {"prompt": [{"role": "user", "content": "Q:1+2\n"}], "answer": "3"}
    mixed = [turns, {"prompt": "Q:1+2\n", "completion": "A:1+2=3"}, text]
    counts = counter.count_many(mixed)
    assert counts[0] == len(render_prompt(counter.tokenizer, turns["prompt"])) > counts[2]
    assert counts[2] == len(render_prompt(counter.tokenizer, "Q:1+2\n"))
    assert counts[1] == len(render_prompt(counter.tokenizer, "Q:1+2\nA:1+2=3")) + 1


def test_a_row_that_sft_would_leave_out_is_counted_as_it_is_rendered(folder: Path) -> None:
    template = "{{ messages|length }}{% for m in messages %}{{ m.content }}{% endfor %}"
    counter = RowTokens(folder, chat_template=template)
    row = named([talk({"prompt": "1+2", "completion": "3"})])[0]
    assert counter.count(row) == len(render_prompt(counter.tokenizer, "21+23"))


def test_messages_without_a_chat_template_are_an_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no chat template"):
        RowTokens(ROOT / "pipelines" / "base").count(talk({"prompt": "1+2", "completion": "3"}))
    with pytest.raises(InputError, match="no such model folder"):
        RowTokens(tmp_path / "absent")


def test_end_tokens_of_the_generation_config_are_not_doubled(folder: Path) -> None:
    counter = RowTokens(folder)
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [1, counter.tokenizer.vocab["7"]]}))
    row = {"prompt": "Q:1+6\n", "completion": "7"}
    assert RowTokens(folder).count(row) == counter.count(row) - 1


def test_importing_it_brings_in_no_torch() -> None:
    code = "import sys, finery.training.tokens; print({'torch', 'transformers', 'trl'} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "set()\n"
