"""Tokenizers from scratch: the words are the ids, BPE is the same every time, and both survive publishing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from finery.data.chains import chain_rows
from finery.data.skills import skill_rows
from finery.errors import InputError
from finery.schemas.pretrain import Architecture, BpeTokenizer, WordTokenizer
from finery.training.llama import new_llama
from finery.training.models import load_tokenizer, publish_model
from finery.training.tokenizers import bpe_tokenizer, make_tokenizer, word_tokenizer

BASE = Path(__file__).parents[2] / "pipelines" / "base"
WORDS = ["add", "sub", "rev", "srt", "cpy", "cmp", "max", "Q", "A", "####", "\n", *"0123456789+-=,:<> "]
TEXTS = [row["prompt"] + row["completion"] for row in [*chain_rows(60, seed=1), *skill_rows(60, seed=2)]]


def test_the_words_of_the_base_give_the_base_tokenizer() -> None:
    made, shipped = word_tokenizer(WORDS), load_tokenizer(BASE)
    assert made.get_vocab() == shipped.get_vocab()
    for text in [*TEXTS, "?", "addsub####", "###", "\n\n", "a+b"]:
        assert made(text)["input_ids"] == shipped(text)["input_ids"]
        assert made.decode(made(text)["input_ids"]) == shipped.decode(shipped(text)["input_ids"])
    assert (made.pad_token_id, made.eos_token_id, made.unk_token_id, made.padding_side) == (0, 1, 2, "left")


def test_longer_words_are_matched_first_whatever_they_hold() -> None:
    tokenizer = word_tokenizer(["a", "ab", "a.b", "(*", ".", "b", "\n", "\n\n", "é"])
    assert tokenizer.tokenize("a.bab.(*\n\n\né") == ["a.b", "ab", ".", "(*", "\n\n", "\n", "é"]
    assert tokenizer("x(")["input_ids"] == [2, 2]


@pytest.mark.parametrize(
    ("words", "message"),
    [(["a", ""], "a word is empty"), (["a", "b", "a"], "'a' is given twice"), (["<eos>"], "<eos> is there already")],
)
def test_words_that_are_no_vocabulary_are_refused(words: list[str], message: str) -> None:
    with pytest.raises(InputError, match=message):
        make_tokenizer(WordTokenizer(kind="words", words=words), [])


def test_bpe_learns_the_texts_and_knows_every_other() -> None:
    tokenizer = make_tokenizer(BpeTokenizer(kind="bpe", vocab_size=300), TEXTS)
    assert len(tokenizer) == 300
    assert tokenizer.convert_ids_to_tokens([0, 1]) == ["<pad>", "<eos>"]
    for text in [*TEXTS, "你好\n\tàé🦙", " add "]:
        assert tokenizer.decode(tokenizer(text)["input_ids"]) == text
    assert len(tokenizer("####")["input_ids"]) < 4


def test_bpe_is_the_same_in_another_process() -> None:
    code = (
        "import sys; from finery.training.tokenizers import bpe_tokenizer;"
        "print(bpe_tokenizer(sys.stdin.read().split('|'), 320).backend_tokenizer.to_str())"
    )
    made = subprocess.run(
        [sys.executable, "-c", code],
        input="|".join(TEXTS),
        capture_output=True,
        text=True,
        check=True,
        env={"PYTHONHASHSEED": "7"},
    )
    assert made.stdout.strip() == bpe_tokenizer(TEXTS, 320).backend_tokenizer.to_str()


@pytest.mark.parametrize("kind", ["words", "bpe"])
def test_a_new_llama_and_its_tokenizer_are_published(tmp_path: Path, kind: str) -> None:
    tokenizer = word_tokenizer(WORDS) if kind == "words" else bpe_tokenizer(TEXTS, 280)
    model = new_llama(Architecture(hidden_size=16, num_hidden_layers=1, intermediate_size=16), tokenizer, 5)
    info = publish_model(model, tokenizer, tmp_path)
    assert info["form"] == "full"
    again = load_tokenizer(tmp_path)
    assert [again(text)["input_ids"] for text in TEXTS] == [tokenizer(text)["input_ids"] for text in TEXTS]
    assert again.padding_side == "left"


def test_the_seed_decides_the_first_weights() -> None:
    tokenizer = word_tokenizer(WORDS)
    shape = Architecture(hidden_size=16, num_hidden_layers=1, intermediate_size=16)
    one, same, other = (new_llama(shape, tokenizer, seed).lm_head.weight for seed in (1, 1, 2))
    assert one.equal(same)
    assert not one.equal(other)
