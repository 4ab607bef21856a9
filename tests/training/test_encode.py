"""Rows become tokens once, the same way for training as for sampling; EOS is always learned."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from finery.data.chains import chain_rows
from finery.data.dataset import row_of
from finery.errors import InputError, StageError
from finery.training.collate import pad
from finery.training.encode import IGNORED, encode, unused_columns
from finery.training.models import load_tokenizer
from finery.training.rendering import render_prompt

ROOT = Path(__file__).parents[2]
CASES = ROOT / "tests" / "cases"
MARKED = (
    "{% for m in messages %}{{ m.role }} {% if m.role == 'assistant' %}{% generation %}{{ m.content }}"
    "{% endgeneration %}{% else %}{{ m.content }}{% endif %} {{ eos_token }} {% endfor %}"
    "{% if add_generation_prompt %}assistant {% endif %}"
)


def _tiny(template: str | None = None) -> PreTrainedTokenizerFast:
    """The word-level tokenizer of the T cases; it puts a BOS before text by itself."""
    case = json.loads((CASES / "T_tiny_tokenizer.json").read_text())
    inner = Tokenizer(models.WordLevel(case["vocab"], unk_token="<unk>"))
    inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    inner.post_processor = processors.TemplateProcessing(
        single=f"{case['bos']} $A", special_tokens=[(case["bos"], case["vocab"][case["bos"]])]
    )
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=inner, unk_token="<unk>", bos_token=case["bos"], eos_token=case["eos"], pad_token=case["eos"]
    )
    tokenizer.chat_template = template or case["template_with_bos"] + (
        "{% if add_generation_prompt %}assistant {% endif %}"
    )
    return tokenizer


def _base() -> Any:
    return load_tokenizer(ROOT / "pipelines" / "base")


def _rows(path: Path) -> list[dict[str, Any]]:
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    return [{"id": row_of(row), **row} for row in rows]


def test_case_T1_labels_are_masked_by_place_and_not_by_token() -> None:
    case = json.loads((CASES / "T1.json").read_text())
    tokenizer = _tiny()
    assert tokenizer.pad_token_id == tokenizer.eos_token_id == 2
    rows = [{"id": "a", "prompt": "", "completion": "hi yo"}, {"id": "b", "prompt": "", "completion": "hi"}]
    got = encode(rows, tokenizer, ends=[2], max_length=8)
    # the case's ids begin with a BOS that text rows do not get
    batch = pad([got.row(index) for index in range(2)], pad_id=2)
    assert batch["labels"].tolist() == [ids[1:] for ids in case["expected_labels"]]
    assert batch["input_ids"].tolist() == [[3, 4, 2], [3, 2, 2]]
    assert batch["attention_mask"].tolist() == [[1, 1, 1], [1, 1, 0]]


def test_case_T2_a_row_whose_answer_is_cut_away_is_left_out_by_name() -> None:
    rows = _rows(CASES / "T2.jsonl")
    got = encode(rows, _tiny(), ends=[2], max_length=32)
    assert got.names == [rows[1]["id"]]
    ((name, reason),) = got.rejected
    assert name == rows[0]["id"]
    assert "max_length 32 cuts its answer away entirely" in reason
    with pytest.raises(StageError, match=rf"none of its 1 rows can be trained on \(row {rows[0]['id']}"):
        encode(rows[:1], _tiny(), ends=[2], max_length=32)


def test_case_T3_assistant_only_needs_generation_marks() -> None:
    rows = [{"id": "a", "messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "yo"}]}]
    with pytest.raises(InputError, match="generation"):
        encode(rows, _tiny(), ends=[2], max_length=32, assistant_only=True)
    got = encode(rows, _tiny(MARKED), ends=[2], max_length=32, assistant_only=True)
    ids, labels = got.row(0)
    assert ids.tolist() == [5, 3, 2, 6, 4, 2]
    # the end token stands after the mark and is learned all the same
    assert labels.tolist() == [IGNORED, IGNORED, IGNORED, IGNORED, 4, 2]


def test_case_T4_no_second_bos_and_training_starts_where_sampling_does() -> None:
    case = json.loads((CASES / "T4.json").read_text())
    tokenizer = _tiny()
    ids, _ = encode([{"id": "a", "messages": case["messages"]}], tokenizer, ends=[2], max_length=32).row(0)
    assert ids.tolist() == case["expected_ids"]
    prompt = render_prompt(tokenizer, case["messages"][:-1])
    assert ids[: len(prompt)].tolist() == prompt
    split = {"id": "b", "prompt": case["messages"][:-1], "completion": case["messages"][-1:]}
    both, labels = encode([split], tokenizer, ends=[2], max_length=32).row(0)
    assert both.tolist() == ids.tolist()
    assert labels.tolist() == [IGNORED] * len(prompt) + ids[len(prompt) :].tolist()


def test_text_is_the_prompt_as_sampled_then_the_completion_then_one_eos() -> None:
    tokenizer = _base()
    rows = [{"id": row_of(row), **row} for row in chain_rows(40, seed=1)]
    rows.append({"id": "closed", "prompt": "add:1+1=", "completion": "2<eos>"})
    got = encode(rows, tokenizer, ends=[1], max_length=128)
    assert not got.rejected
    assert not got.cut
    for index, row in enumerate(rows):
        ids, labels = got.row(index)
        prompt = render_prompt(tokenizer, row["prompt"])
        assert ids[: len(prompt)].tolist() == prompt
        assert labels[: len(prompt)].tolist() == [IGNORED] * len(prompt)
        assert labels[len(prompt) :].tolist() == ids[len(prompt) :].tolist()
        assert ids.tolist().count(1) == 1
        assert ids[-1] == 1
    everything = encode(rows, tokenizer, ends=[1], max_length=128, completion_only=False)
    assert (everything.labels == everything.ids).all()


def test_tokens_that_merge_over_the_prompts_end_are_taken_apart() -> None:
    bpe = Tokenizer(models.BPE(vocab={"<eos>": 0, "a": 1, "b": 2, "ab": 3}, merges=[("a", "b")]))
    bpe.decoder = decoders.Fuse()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=bpe, eos_token="<eos>")
    assert tokenizer("ab")["input_ids"] == [3]
    got = encode([{"id": "x", "prompt": "a", "completion": "b"}], tokenizer, ends=[0], max_length=8)
    ids, labels = got.row(0)
    assert ids.tolist() == [1, 2, 0]
    assert labels.tolist() == [IGNORED, 2, 0]


def test_a_longer_row_is_cut_and_named_or_rejected_when_asked() -> None:
    tokenizer = _base()
    rows = [
        {"id": "long", "prompt": "rev:12=", "completion": "123456"},
        {"id": "short", "prompt": "", "completion": "1"},
    ]
    got = encode(rows, tokenizer, ends=[1], max_length=8)
    assert got.cut == ["long"]
    assert got.lengths.tolist() == [8, 2]
    strict = encode(rows, tokenizer, ends=[1], max_length=8, overlong="reject")
    assert strict.rejected == [("long", "it has 12 tokens, more than max_length 8")]


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({"prompt": "hi", "completion": ""}, "its completion is empty"),
        ({"messages": [{"role": "user", "content": "hi"}]}, "last message is not the assistant's"),
    ],
)
def test_rows_without_an_answer_are_left_out(row: dict[str, Any], reason: str) -> None:
    good = {"id": "good", "prompt": "hi", "completion": " yo"}
    got = encode([{"id": "bad", **row}, good], _tiny(), ends=[2], max_length=8)
    assert got.names == ["good"]
    assert got.rejected[0][0] == "bad"
    assert reason in got.rejected[0][1]


def test_messages_without_a_template_and_prompts_without_completions_are_errors() -> None:
    messages = [{"role": "user", "content": "1"}, {"role": "assistant", "content": "2"}]
    with pytest.raises(InputError, match="no chat template"):
        encode([{"id": "a", "messages": messages}], _base(), ends=[1], max_length=8)
    with pytest.raises(InputError, match="row a has no completion"):
        encode([{"id": "a", "prompt": "1", "answer": "2"}], _base(), ends=[1], max_length=8, name="data")


def test_weights_and_the_order_come_with_the_rows_that_are_kept() -> None:
    rows = [
        {"id": str(n), "prompt": "hi", "completion": text, "weight": n + 1.0}
        for n, text in enumerate([" yo", "", " yo"])
    ]
    got = encode(rows, _tiny(), ends=[2], max_length=8, ordered=True)
    assert got.weights is not None
    assert (got.weights.tolist(), got.names, got.ordered) == ([1.0, 3.0], ["0", "2"], True)
    plain = encode([{n: v for n, v in row.items() if n != "weight"} for row in rows], _tiny(), ends=[2], max_length=8)
    assert (plain.weights, plain.ordered) == (None, False)
    with pytest.raises(InputError, match="row 1 has weight None"):
        encode([rows[0], {**rows[1], "weight": None}], _tiny(), ends=[2], max_length=8)


@pytest.mark.parametrize("weight", [0, -1.0, float("nan"), float("inf"), "1"])
def test_a_weight_that_nothing_can_be_drawn_by_is_an_error(weight: Any) -> None:
    rows = [{"id": "a", "prompt": "hi", "completion": "yo", "weight": weight}]
    with pytest.raises(InputError, match=r"data: row a has weight"):
        encode(rows, _tiny(), ends=[2], max_length=8)


def _chat(*turns: tuple[str, str]) -> dict[str, Any]:
    return {"id": "chat", "messages": [{"role": role, "content": text} for role, text in turns]}


@pytest.mark.parametrize(
    ("template", "ends", "said"),
    [
        # the end of a turn stands outside the mark and ends no completion
        (MARKED.replace("{{ eos_token }}", "user"), [2], r"0 of 2 assistant turns.*followed by 'user'"),
        # another token ends completions than the one that the template writes
        (MARKED, [6], r"0 of 2 assistant turns"),
        # only the last turn is marked
        (
            MARKED.replace("m.role == 'assistant'", "m.role == 'assistant' and loop.last"),
            [2],
            r"1 of 2 assistant turns",
        ),
    ],
)
def test_every_turn_of_the_assistants_must_end_in_a_token_that_is_learned(
    template: str, ends: list[int], said: str
) -> None:
    row = _chat(("user", "hi"), ("assistant", "yo"), ("user", "hi"), ("assistant", "yo"))
    with pytest.raises(InputError, match=rf"row chat: {said}"):
        encode([row], _tiny(template), ends=ends, max_length=32, assistant_only=True)


def test_several_turns_and_an_end_inside_the_mark_are_learned() -> None:
    row = _chat(("user", "hi"), ("assistant", "yo"), ("user", "hi"), ("assistant", "yo"))
    _, labels = encode([row], _tiny(MARKED), ends=[2], max_length=32, assistant_only=True).row(0)
    assert labels.tolist() == [IGNORED] * 4 + [4, 2] + [IGNORED] * 4 + [4, 2]
    inside = MARKED.replace("{{ m.content }}{% endgeneration %}", "{{ m.content }} {{ eos_token }}{% endgeneration %}")
    _, labels = encode([row], _tiny(inside), ends=[2], max_length=32, assistant_only=True).row(0)
    assert labels.tolist().count(4) == 2
    assert labels.tolist().count(2) >= 2


def test_a_row_with_two_bos_tokens_is_left_out_by_name() -> None:
    case = json.loads((CASES / "T_tiny_tokenizer.json").read_text())
    tokenizer = _tiny()
    good = _chat(("user", "hi"), ("assistant", "yo"))
    twice = {**good, "id": "twice", "messages": [{"role": "user", "content": "hi"}, good["messages"][1]]}
    tokenizer.chat_template = f"{{% if messages[0].content == 'hi' %}}{case['bos']} {{% endif %}}" + str(
        tokenizer.chat_template
    )
    fine = {**good, "messages": [{"role": "user", "content": "yo"}, good["messages"][1]]}
    got = encode([twice, fine], tokenizer, ends=[2], max_length=32)
    assert got.names == ["chat"]
    ((name, reason),) = got.rejected
    assert name == "twice"
    assert "begins with two <s> tokens" in reason


def test_columns_that_training_does_not_look_at_are_listed() -> None:
    rows = [
        {"id": "a", "prompt": "hi", "completion": " yo", "answer": "4", "tests": None},
        {"id": "b", "prompt": "hi", "completion": " yo", "answer": None, "tests": None, "meta": {"level": 1}},
    ]
    assert unused_columns(rows) == ["answer", "meta"]


def test_a_row_of_messages_and_a_completion_is_an_error() -> None:
    row = _chat(("user", "hi"), ("assistant", "yo")) | {"prompt": "hi", "completion": " yo"}
    with pytest.raises(InputError, match="row chat has both messages and a completion"):
        encode([row], _tiny(), ends=[2], max_length=32)
    both = {**row, "prompt": None, "completion": None}
    assert len(encode([both], _tiny(), ends=[2], max_length=32)) == 1
