"""Case S4: a chat template is code from outside; it runs in transformers' sandbox and under the stage's clock."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from transformers import PreTrainedTokenizerFast

from finery.errors import InputError
from finery.training.encode import encode
from finery.training.models import load_tokenizer
from finery.training.rendering import render_prompt

ROOT = Path(__file__).parents[2]
CASE = json.loads((ROOT / "tests" / "cases" / "S4.json").read_text(encoding="utf-8"))
ASKED = [{"role": "user", "content": "17+8="}]


@pytest.fixture
def tokenizer() -> PreTrainedTokenizerFast:
    return load_tokenizer(ROOT / "pipelines" / "base")


@pytest.mark.parametrize("template", [CASE["chat_template"], CASE["loop"], "{% if %}", "{{ raise_exception('no') }}"])
def test_case_S4_a_template_that_cannot_be_rendered_is_an_error_of_the_users(
    tokenizer: PreTrainedTokenizerFast, template: str
) -> None:
    tokenizer.chat_template = template
    with pytest.raises(InputError, match="the chat template cannot render a conversation of user"):
        render_prompt(tokenizer, ASKED)


def test_case_S4_code_is_refused_by_the_sandbox_and_messages_stay(tokenizer: PreTrainedTokenizerFast) -> None:
    tokenizer.chat_template = CASE["chat_template"]
    with pytest.raises(InputError, match="SecurityError"):
        render_prompt(tokenizer, ASKED)
    tokenizer.chat_template = CASE["mutating"] + "{% for m in messages %}{{ m.content }}{% endfor %}"
    row: dict[str, Any] = {"id": "a", "messages": [*ASKED, {"role": "assistant", "content": "25"}]}
    with pytest.raises(InputError, match="SecurityError"):
        encode([row], tokenizer, ends=[1], max_length=64, name="data")
    assert row["messages"] == [*ASKED, {"role": "assistant", "content": "25"}]


@pytest.mark.slow
def test_case_S4_a_template_without_an_end_is_stopped_by_the_stages_timeout(project: Any) -> None:
    loop = "{% for i in range(99999) %}{% for j in range(99999) %}{% for k in range(99999) %}{% endfor %}{% endfor %}{% endfor %}"
    project.write("loop.jinja", loop)
    rows = [{"prompt": f"1+{n}=", "completion": str(1 + n)} for n in range(4)]
    project.write("rows.jsonl", "\n".join(map(json.dumps, rows)))
    project.write(
        "pipeline.yaml",
        f"""\
        name: s4
        stages:
          base: {{kind: import, from: {ROOT / "pipelines" / "base"}}}
          rows: {{kind: data, sources: [{{kind: file, path: ./rows.jsonl}}], chat: true}}
          sft:
            kind: sft
            model: base
            data: rows
            chat_template: ./loop.jinja
            max_steps: 1
            timeout: 25s
        """,
    )
    ended = project.run(code=1)["stages"]["sft"]
    assert (ended["state"], ended["message"]) == ("Failed", "took longer than its timeout of 25 s")
