"""`finery data show`: what is shown is what is trained."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from finery.data.dataset import read_dataset
from finery.data_show import show
from finery.errors import InputError
from finery.training.encode import IGNORED, encode
from finery.training.models import load_tokenizer

pytestmark = pytest.mark.slow
BASE = Path(__file__).parent.parent / "pipelines" / "base"
LINE = f"""
name: show
stages:
  base: {{kind: import, from: {BASE}}}
  corpus:
    kind: data
    sources: [{{kind: chains, rows: 60}}]
    splits: {{test: 0.2, train: 0.5, rl: 0.3}}
  talk:
    kind: data
    sources: [{{kind: file, path: ./talk.jsonl}}]
    max_reject_fraction: 0.5
  sft: {{kind: sft, model: base, data: corpus.train, eval_data: corpus.train, max_steps: 2, max_length: 48}}
  whole: {{kind: sft, model: base, data: corpus.train, max_steps: 2, max_length: 20, completion_only_loss: false}}
  chat:
    kind: sft
    model: base
    data: talk
    chat_template: ./chat.jinja
    assistant_only_loss: true
    max_steps: 2
  pairs: {{kind: data, sources: [{{kind: file, path: ./pairs.jsonl}}]}}
  dpo: {{kind: dpo, model: base, data: pairs, max_steps: 2, max_length: 64}}
  tags:
    kind: sft
    model: base
    data: corpus.train
    added_tokens: ["11-1", "Q:"]
    max_steps: 2
    max_length: 48
  tiny:
    kind: pretrain
    data: corpus.train
    tokenizer: {{kind: bpe, vocab_size: 270}}
    max_steps: 2
    max_length: 20
  grpo: {{kind: grpo, model: base, data: corpus.rl, rewards: [{{kind: answer}}], max_steps: 2}}
  late: {{kind: grpo, model: sft, data: corpus.rl, rewards: [{{kind: answer}}], max_steps: 2}}
"""
TALK = {"messages": [{"role": "user", "content": "1+2"}, {"role": "assistant", "content": "3"}]}
PAIR = {"prompt": "Q:1+2\n", "chosen": "A:3", "rejected": "A:4"}
TEMPLATE = (
    "{% for m in messages %}{{ m.role[0] }}:{% if m.role == 'assistant' %}{% generation %}{{ m.content }}"
    "{{ eos_token }}{% endgeneration %}{% else %}{{ m.content }}{% endif %}\n{% endfor %}"
    "{% if add_generation_prompt %}a:{% endif %}"
)


@pytest.fixture(scope="module")
def line(tmp_path_factory: pytest.TempPathFactory, project_class: Any) -> Any:
    """A project in which the model and the data are finished, and nothing is trained."""
    folder = tmp_path_factory.mktemp("show")
    project = project_class(folder)
    project.write("flows.yaml", "deployments: {}\n")
    project.write("talk.jsonl", json.dumps(TALK) + "\n")
    project.write("pairs.jsonl", json.dumps(PAIR) + "\n")
    project.write("chat.jinja", TEMPLATE)
    project.write("pipeline.yaml", LINE)
    for stage in ("base", "corpus", "talk", "pairs"):
        project.finery("run", "pipeline.yaml", "--plain", "--only", stage)
    return project


@pytest.fixture
def seen(line: Any) -> Callable[..., dict[str, Any]]:
    def seen_(stage: str, **more: Any) -> dict[str, Any]:
        return json.loads(show(line.folder / "pipeline.yaml", stage, as_json=True, **more))

    return seen_


def rows_of(line: Any, split: str) -> list[dict[str, Any]]:
    """The rows of a split of `corpus`, the only stage with a split rl."""
    (folder,) = (line.home / "store" / "data").glob("*/outputs/rl")
    return read_dataset(folder.parent / split)


def test_the_tokens_and_the_mask_are_those_that_sft_trains_on(line: Any, seen: Callable[..., dict[str, Any]]) -> None:
    made = seen("corpus.train", rows=5)
    first, whole, tags, tiny = made["views"]
    assert tags["rows"][0]["tokens"] == first["rows"][0]["tokens"] - 1  # Q: is one token there
    assert first["stages"] == ["sft.data", "sft.eval_data"]
    assert (first["max_length"], whole["completion_only_loss"], tiny["model"]) == (48, False, "tiny")
    rows = rows_of(line, "train")[:5]
    encoded = encode(rows, load_tokenizer(BASE), ends=[1], max_length=48)
    shown = [row for row in first["rows"] if row["left_out"] is None]
    assert [row["row"]["id"] for row in shown] == encoded.names
    for place, row in enumerate(shown):
        ids, labels = encoded.row(place)
        assert (row["tokens"], row["learned"]) == (len(ids), int((labels[1:] != IGNORED).sum()))
        text = row["row"]["prompt"], row["row"]["completion"] + "<eos>"
        assert [(piece["text"], piece["learned"]) for piece in row["pieces"]] == [(text[0], False), (text[1], True)]


def test_a_row_that_loses_its_end_or_is_left_out_says_so(line: Any, seen: Callable[..., dict[str, Any]]) -> None:
    _, whole, _, tiny = seen("corpus.train", rows=20)["views"]
    cut = next(row for row in whole["rows"] if row["cut"])
    assert (cut["tokens"], cut["learned"]) == (20, 19)
    assert not cut["pieces"][-1]["text"].endswith("<eos>")
    assert any("more than max_length 20" in (row["left_out"] or "") for row in tiny["rows"])
    text = show(line.folder / "pipeline.yaml", "corpus.train", rows=20)
    assert "20 tokens, 19 learned, its end is cut off" in text
    assert "left out: it has " in text


def test_text_marks_what_is_learned_by_brackets_or_by_colour(line: Any) -> None:
    row = rows_of(line, "train")[0]
    plain = show(line.folder / "pipeline.yaml", "corpus", split="train", rows=1)
    assert f"{row['prompt']}⟦{row['completion']}<eos>⟧" in plain
    assert f"id={row['id']}" in plain
    assert '"level": ' in plain
    coloured = show(line.folder / "pipeline.yaml", "corpus.train", rows=1, colour=True)
    assert f"{row['prompt']}\x1b[32m{row['completion']}<eos>\x1b[0m" in coloured
    assert "⟦" not in coloured


def test_a_chat_template_of_the_stage_is_applied_and_its_marks_are_the_mask(
    line: Any, seen: Callable[..., dict[str, Any]]
) -> None:
    (view,) = seen("talk")["views"]
    assert (view["stages"], view["assistant_only_loss"]) == (["chat.data"], True)
    (row,) = view["rows"]
    # the tokenizer knows no letters but its words
    assert [(piece["text"], piece["learned"]) for piece in row["pieces"]][1] == ("3<eos>", True)
    assert row["pieces"][0]["text"].endswith(":")
    with pytest.raises(InputError, match="no chat template"):
        seen("talk", model="base")


def test_pairs_are_shown_one_completion_after_the_other(line: Any, seen: Callable[..., dict[str, Any]]) -> None:
    (view,) = seen("pairs")["views"]
    assert view["stages"] == ["dpo.data"]
    shown = [(row["side"], [(piece["text"], piece["learned"]) for piece in row["pieces"]]) for row in view["rows"]]
    assert shown == [(side, [("Q:1+2\n", False), (f"{PAIR[side]}<eos>", True)]) for side in ("chosen", "rejected")]
    text = show(line.folder / "pipeline.yaml", "pairs", model="base")
    assert "--- row 1 chosen: " in text
    assert "--- row 1 rejected: " in text


def test_prompts_are_shown_as_they_are_asked(line: Any, seen: Callable[..., dict[str, Any]]) -> None:
    asked, late = seen("corpus.rl", rows=1)["views"]
    assert (asked["stages"], asked["prompts_only"]) == (["grpo.data"], True)
    assert asked["rows"][0]["learned"] == 0
    assert asked["rows"][0]["pieces"] == [{"text": asked["rows"][0]["row"]["prompt"], "learned": False}]
    assert (late["missing"], late["rows"]) == ("sft is not finished", [])
    assert "as late.data asks it: sft is not finished" in show(line.folder / "pipeline.yaml", "corpus.rl")


def test_data_that_nothing_trains_on_is_shown_as_stored_or_as_a_model_sees_it(
    line: Any, seen: Callable[..., dict[str, Any]]
) -> None:
    made = seen("corpus.test", rows=2)
    assert made["views"] == []
    assert made["stored"] == rows_of(line, "test")[:2]
    assert f"prompt: {made['stored'][0]['prompt']}" in show(line.folder / "pipeline.yaml", "corpus.test")
    for model in ("base", "base.model", str(BASE)):
        (view,) = seen("corpus.test", rows=2, model=model)["views"]
        assert view["rows"][0]["pieces"][1]["text"] == made["stored"][0]["completion"] + "<eos>"


@pytest.mark.parametrize(
    ("stage", "more", "message"),
    [
        ("copus", {}, "there is no stage copus; did you mean corpus"),
        ("corpus", {}, "several data sets; write one of corpus.test, corpus.train, corpus.rl"),
        ("corpus.trian", {}, "no data set trian; did you mean corpus.train"),
        ("corpus.card", {}, "no data set card; it has corpus.test, corpus.train, corpus.rl"),
        ("corpus.rl", {"split": "test"}, "give one of them"),
        ("sft", {}, "makes no data set; corpus, talk, pairs does"),
        ("corpus.rl", {"model": "bsae"}, "no such folder, and no such stage; did you mean base"),
        ("corpus.rl", {"model": "corpus.rl"}, "is no model; there are base.model"),
        ("corpus.rl", {"model": "./nowhere"}, "no such folder"),
        ("corpus.rl", {"model": "sft"}, "sft is not finished"),
    ],
)
def test_names_that_are_not_there_are_answered_with_those_that_are(
    seen: Callable[..., dict[str, Any]], stage: str, more: dict[str, Any], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        seen(stage, **more)


def test_what_is_not_finished_is_answered_with_the_command_to_run(line: Any) -> None:
    done = line.finery(
        "data", "show", "pipeline.yaml", "corpus.train", "--set", "stages.corpus.sources.0.rows=61", code=2
    )
    assert "corpus is not finished (run: " in done.stderr
    assert "make it with: finery run pipeline.yaml --only corpus" in done.stderr
    shown = line.finery("data", "show", "pipeline.yaml", "corpus.test", "--rows", "1")
    assert shown.stdout.startswith("corpus.test: ")
    assert "\x1b" not in shown.stdout


def test_control_characters_are_written_out(line: Any) -> None:
    evil = {**TALK, "messages": [TALK["messages"][0], {"role": "assistant", "content": "\x1b[2J3"}]}
    line.write("evil.jsonl", json.dumps(evil) + "\n")
    line.write("evil.yaml", "name: evil\nstages:\n  talk: {kind: data, sources: [{kind: file, path: ./evil.jsonl}]}\n")
    line.finery("run", "evil.yaml", "--plain")
    text = show(line.folder / "evil.yaml", "talk")
    assert "messages assistant: \\x1b[2J3" in text
    assert "\x1b" not in text
