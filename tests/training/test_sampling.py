"""The sampler, on the real tiny base: its tokens are the model's, and no batch changes them."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    BloomConfig,
    Gemma3TextConfig,
    GPT2Config,
    GPT2LMHeadModel,
    Lfm2Config,
    MambaConfig,
    MistralConfig,
    PreTrainedTokenizerFast,
)
from transformers.generation.logits_process import TopKLogitsWarper, TopPLogitsWarper

from finery.errors import InputError, StageError
from finery.schemas.training import Sampling
from finery.training.models import load_model, load_tokenizer
from finery.training.rendering import render_prompt
from finery.training.sampling import Completion, end_ids, narrow, order_by_length, sample, uniforms

ROOT = Path(__file__).parents[2]
BASE = ROOT / "pipelines" / "base"
PROMPTS = ["17+8-3 ", "4-3 ", "9+9+9-8-7 ", "add:47+8=", "rev:1234=", "Q:17+8-3\n", "2+2 ", "8-1+5+5-9 "]
PINNED = [0.6043702729110803, 0.3222942749303702]
ROWS = [{"id": f"{index:016x}", "prompt": prompt} for index, prompt in enumerate(PROMPTS)]


@pytest.fixture(scope="module")
def model() -> Any:
    return load_model(BASE)


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return load_tokenizer(BASE)


def _ids(completions: list[list[Completion]]) -> list[list[list[int]]]:
    return [[one.token_ids for one in many] for many in completions]


def _generate(model: Any, tokenizer: Any, prompt: list[int], steps: int) -> list[int]:
    """transformers' own greedy decoding of one prompt, nothing padded."""
    ids = torch.tensor([prompt])
    made = model.generate(
        ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=steps, pad_token_id=0
    )
    return made[0, len(prompt) :].tolist()


def test_greedy_is_what_transformers_generates(model: Any, tokenizer: Any) -> None:
    got = sample(model, tokenizer, ROWS, n=1, sampling=Sampling(max_completion_length=40), seed=0, greedy=True)
    for row, (one,) in zip(ROWS, got, strict=True):
        assert one.token_ids == _generate(model, tokenizer, render_prompt(tokenizer, row["prompt"]), 40)
    assert got[0][0].text == "17+8=25,25-3=22,22"
    assert not got[0][0].truncated


def test_a_batch_acts_on_nothing(model: Any, tokenizer: Any) -> None:
    options: dict[str, Any] = {"n": 3, "sampling": Sampling(temperature=1.5, max_completion_length=16), "seed": 11}
    whole = _ids(sample(model, tokenizer, ROWS, batch_size=64, **options))
    for batch_size in (2, 3, 7, 10):
        assert _ids(sample(model, tokenizer, ROWS, batch_size=batch_size, **options)) == whole
    assert _ids(sample(model, tokenizer, ROWS[::-1], batch_size=10, **options)) == whole[::-1]
    assert any(len({tuple(ids) for ids in many}) > 1 for many in whole)


def test_samples_are_numbered_so_that_more_can_be_drawn_later(model: Any, tokenizer: Any) -> None:
    options: dict[str, Any] = {"sampling": Sampling(temperature=1.5, max_completion_length=12), "seed": 4}
    whole = _ids(sample(model, tokenizer, ROWS, n=6, **options))
    head = _ids(sample(model, tokenizer, ROWS, n=2, **options))
    tail = _ids(sample(model, tokenizer, ROWS, n=4, first=2, **options))
    assert [a + b for a, b in zip(head, tail, strict=True)] == whole
    other = _ids(sample(model, tokenizer, ROWS, n=6, **{**options, "seed": 5}))
    assert other != whole


def test_tokens_are_drawn_as_often_as_the_model_says(model: Any, tokenizer: Any) -> None:
    count, temperature = 4000, 2.0
    rows = [{"id": "x", "prompt": "Q:"}]
    got = sample(
        model, tokenizer, rows, n=count, batch_size=1000, seed=3,
        sampling=Sampling(temperature=temperature, max_completion_length=1),
    )  # fmt: skip
    first = np.bincount([one.token_ids[0] for one in got[0]], minlength=32) / count
    with torch.inference_mode():
        logits = model(torch.tensor([render_prompt(tokenizer, "Q:")])).logits[0, -1]
    chances = torch.softmax(logits.double() / temperature, -1).numpy()
    assert (chances > 0.01).sum() > 5
    assert np.all(np.abs(first - chances) < 4.5 * np.sqrt(chances * (1 - chances) / count) + 1e-3)


def test_the_random_numbers_are_the_same_everywhere() -> None:
    assert uniforms(7, "00ff", 3, 2).tolist() == PINNED
    assert uniforms(7, "00ff", 3, 5)[:2].tolist() == PINNED
    many = np.concatenate([uniforms(0, f"{row}", index, 50) for row in range(40) for index in range(5)])
    assert len(set(many.tolist())) == len(many)
    assert many.min() >= 0
    assert many.max() < 1
    assert abs(many.mean() - 0.5) < 0.01


@pytest.mark.parametrize(("top_k", "top_p"), [(3, 1.0), (0, 0.8), (5, 0.6), (0, 1e-6), (1, 1.0), (100, 0.999)])
def test_top_k_and_top_p_exclude_what_transformers_excludes(top_k: int, top_p: float) -> None:
    logits = torch.randn(16, 32, generator=torch.Generator().manual_seed(0), dtype=torch.float64) * 2
    expected = logits
    if top_k:
        expected = TopKLogitsWarper(top_k)(None, expected)
    if top_p < 1:
        expected = TopPLogitsWarper(top_p)(None, expected)
    assert torch.equal(narrow(logits, Sampling(top_k=top_k, top_p=top_p)), expected)


def test_one_allowed_token_is_greedy(model: Any, tokenizer: Any) -> None:
    greedy = _ids(sample(model, tokenizer, ROWS, n=1, sampling=Sampling(max_completion_length=20), seed=0, greedy=True))
    for narrowed in ({"top_k": 1}, {"top_p": 1e-9}):
        sampling = Sampling(max_completion_length=20, **narrowed)
        assert _ids(sample(model, tokenizer, ROWS, n=1, sampling=sampling, seed=0)) == greedy


def test_a_completion_that_is_cut_says_so_and_one_that_ends_on_its_last_token_does_not(
    model: Any, tokenizer: Any
) -> None:
    row = [{"id": "a", "prompt": "4-3 "}]
    whole = sample(model, tokenizer, row, n=1, sampling=Sampling(max_completion_length=30), seed=0, greedy=True)[0][0]
    length = len(whole.token_ids)
    same = sample(model, tokenizer, row, n=1, sampling=Sampling(max_completion_length=length), seed=0, greedy=True)
    assert same[0][0] == whole
    cut = sample(model, tokenizer, row, n=1, sampling=Sampling(max_completion_length=length - 1), seed=0, greedy=True)
    assert cut[0][0] == Completion(whole.text, whole.token_ids[:-1], True)


def test_end_tokens_come_from_the_generation_config_and_the_tokenizer(tokenizer: Any) -> None:
    model = load_model(BASE)
    assert end_ids(model, tokenizer) == [1]
    comma = tokenizer.convert_tokens_to_ids(",")
    model.generation_config.eos_token_id = [comma]
    assert end_ids(model, tokenizer) == [1, comma]
    (one,) = sample(model, tokenizer, ROWS[:1], n=1, sampling=Sampling(max_completion_length=30), seed=0, greedy=True)[
        0
    ]
    assert (one.text, one.token_ids[-1], one.truncated) == ("17+8=25", comma, False)


def test_text_is_neither_stripped_nor_shows_special_tokens(model: Any, tokenizer: Any) -> None:
    rows = [{"id": "a", "prompt": "cpy:  "}]
    sampling = Sampling(temperature=50.0, max_completion_length=40)
    texts = [one.text for one in sample(model, tokenizer, rows, n=60, sampling=sampling, seed=1)[0]]
    assert any(text.startswith((" ", "\n")) for text in texts)
    assert any(text.endswith((" ", "\n")) for text in texts)
    assert not any("<pad>" in text or "<eos>" in text or "<unk>" in text for text in texts)


def test_nothing_is_warned_of(model: Any, tokenizer: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        sample(model, tokenizer, ROWS, n=2, sampling=Sampling(max_completion_length=4), seed=0)


def test_the_models_mode_is_left_as_it_was(model: Any, tokenizer: Any) -> None:
    sampling = Sampling(max_completion_length=2)
    model.train()
    try:
        sample(model, tokenizer, ROWS[:1], n=1, sampling=sampling, seed=0)
        assert model.training
    finally:
        model.eval()
    sample(model, tokenizer, ROWS[:1], n=1, sampling=sampling, seed=0)
    assert not model.training


def test_progress_counts_completions(model: Any, tokenizer: Any) -> None:
    told: list[tuple[int, int]] = []
    sample(
        model, tokenizer, ROWS[:5], n=2, sampling=Sampling(max_completion_length=2), seed=0, batch_size=4,
        progress=lambda done, total: told.append((done, total)),
    )  # fmt: skip
    assert told == [(4, 10), (8, 10), (10, 10)]


def test_prompts_nothing_can_follow_are_refused_by_name(model: Any, tokenizer: Any) -> None:
    sampling = Sampling(max_completion_length=2)
    with pytest.raises(InputError, match="row abc: the prompt has no token"):
        sample(model, tokenizer, [{"id": "abc", "prompt": ""}], n=1, sampling=sampling, seed=0)
    with pytest.raises(InputError, match="row abc: the prompt has 300 tokens and the model 256 positions"):
        sample(model, tokenizer, [{"id": "abc", "prompt": "1" * 300}], n=1, sampling=sampling, seed=0)
    with pytest.raises(InputError, match="no chat template"):
        render_prompt(tokenizer, [{"role": "user", "content": "1"}])
    with pytest.raises(ValueError, match="greedy"):
        sample(model, tokenizer, ROWS, n=2, sampling=sampling, seed=0, greedy=True)


def test_a_model_of_broken_weights_is_an_error(tokenizer: Any) -> None:
    model = load_model(BASE)
    model.model.norm.weight.data[0] = float("nan")
    with pytest.raises(StageError, match="not finite"):
        sample(model, tokenizer, ROWS, n=1, sampling=Sampling(max_completion_length=2), seed=0)


def test_shortest_prompts_come_first(tokenizer: Any) -> None:
    order = order_by_length(tokenizer, ROWS)
    lengths = [len(render_prompt(tokenizer, ROWS[row]["prompt"])) for row in order]
    assert lengths == sorted(lengths)
    assert sorted(order) == list(range(len(ROWS)))


def test_learned_positions_are_filled_and_not_overrun(tokenizer: Any) -> None:
    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=32, n_positions=16, n_embd=16, n_layer=2, n_head=2, eos_token_id=1, bos_token_id=None
    )
    model = GPT2LMHeadModel(config).eval()
    rows = [{"id": f"{i}", "prompt": "1" * length} for i, length in enumerate((3, 9, 15, 5))]
    got = sample(model, tokenizer, rows, n=3, sampling=Sampling(temperature=3.0, max_completion_length=40), seed=0)
    for row, many in zip(rows, got, strict=True):
        for one in many:
            room = 17 - len(row["prompt"])  # the last position's logits give one token more
            assert len(one.token_ids) == room if one.truncated else one.token_ids[-1] == 1
            assert len(one.token_ids) <= room
    assert any(one.truncated for many in got for one in many)


SMALL: dict[str, Any] = {
    "vocab_size": 32,
    "hidden_size": 32,
    "eos_token_id": 1,
    "bos_token_id": None,
    "pad_token_id": 0,
}
LLAMALIKE = SMALL | {
    "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    "max_position_embeddings": 128, "initializer_range": 0.5,
}  # fmt: skip
ARCHITECTURES = {
    "a sliding window": MistralConfig(**LLAMALIKE, sliding_window=6),
    "full and sliding layers": Gemma3TextConfig(**LLAMALIKE, head_dim=8, sliding_window=5),
    "no position ids": BloomConfig(**SMALL, n_layer=2, n_head=4, initializer_range=0.5),
    "attention and convolution": Lfm2Config(**LLAMALIKE, layer_types=["conv", "full_attention"]),
    "no attention": MambaConfig(**SMALL, num_hidden_layers=2, state_size=4, initializer_range=0.5),
}


@pytest.mark.parametrize("kind", list(ARCHITECTURES))
def test_other_architectures_are_decoded_as_transformers_does(kind: str, tokenizer: Any) -> None:
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(ARCHITECTURES[kind]).eval()
    rows = [{"id": "a", "prompt": "12345678901"}, {"id": "b", "prompt": "9+9"}, {"id": "c", "prompt": "7"}]
    got = sample(model, tokenizer, rows, n=1, sampling=Sampling(max_completion_length=20), seed=0, greedy=True)
    for row, (one,) in zip(rows, got, strict=True):
        assert one.token_ids == _generate(model, tokenizer, render_prompt(tokenizer, row["prompt"]), 20)
    options: dict[str, Any] = {"n": 3, "sampling": Sampling(max_completion_length=8), "seed": 0}
    whole = _ids(sample(model, tokenizer, rows, **options))
    assert _ids(sample(model, tokenizer, rows, batch_size=3, **options)) == whole


def _case_tokenizer() -> PreTrainedTokenizerFast:
    """The word-level tokenizer of case T4, whose post-processor adds a BOS as its template does."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors

    case = json.loads((ROOT / "tests" / "cases" / "T_tiny_tokenizer.json").read_text())
    inner = Tokenizer(models.WordLevel(case["vocab"], unk_token="<unk>"))
    inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    inner.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=inner, bos_token=case["bos"], eos_token=case["eos"], unk_token="<unk>"
    )
    tokenizer.chat_template = case["template_with_bos"]
    return tokenizer


def test_case_T4_a_prompt_has_one_bos_and_text_has_none() -> None:
    tokenizer = _case_tokenizer()
    case = json.loads((ROOT / "tests" / "cases" / "T4.json").read_text())
    assert tokenizer("hi")["input_ids"] == [1, 3]
    assert render_prompt(tokenizer, "hi") == [3]
    prompt = render_prompt(tokenizer, case["messages"][:1])
    assert prompt == case["expected_ids"][: len(prompt)]
    assert prompt.count(1) == 1


def test_an_open_answer_is_continued() -> None:
    tokenizer = _case_tokenizer()
    open_answer = render_prompt(tokenizer, [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "yo"}])
    assert open_answer == [1, 5, 3, 2, 6, 4]


@pytest.mark.slow
def test_an_adapter_is_sampled_as_its_merged_model(tokenizer: Any) -> None:
    from peft import LoraConfig, get_peft_model

    torch.manual_seed(0)
    adapted = get_peft_model(load_model(BASE), LoraConfig(r=4, target_modules="all-linear", init_lora_weights=False))
    options: dict[str, Any] = {"n": 2, "sampling": Sampling(max_completion_length=16), "seed": 2}
    got = _ids(sample(adapted.eval(), tokenizer, ROWS, **options))
    merged = adapted.merge_and_unload()
    assert got == _ids(sample(merged, tokenizer, ROWS, **options))
    assert got != _ids(sample(load_model(BASE), tokenizer, ROWS, **options))
