"""Tokenizers from scratch, for pretrain: one id a word of a list, or byte-level BPE trained on the data."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from finery.errors import InputError
from finery.schemas.pretrain import BpeTokenizer, WordTokenizer

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

PAD, EOS, UNK = "<pad>", "<eos>", "<unk>"


def make_tokenizer(config: WordTokenizer | BpeTokenizer, texts: Iterable[str]) -> PreTrainedTokenizerFast:
    """The tokenizer that a pretrain stage asks for; it pads on the left and adds no token by itself.

    Args:
        config: the words, or the size of the BPE vocabulary.
        texts: what BPE is trained on; equal texts in equal order give an equal tokenizer.

    Raises:
        InputError: a word is empty, given twice, or one of the special tokens.
    """
    if isinstance(config, WordTokenizer):
        return word_tokenizer(config.words)
    return bpe_tokenizer(texts, config.vocab_size)


def word_tokenizer(words: Sequence[str]) -> PreTrainedTokenizerFast:
    """Ids 0 to 2 for <pad>, <eos> and <unk>, then one a word in the order given.

    Text is split by trying longer words first; a character that starts no word is <unk>.
    """
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    _check_words(words)
    vocabulary = {word: index for index, word in enumerate([PAD, EOS, UNK, *words])}
    long = sorted((word for word in words if len(word) > 1), key=len, reverse=True)
    # the regex's dot leaves the newline out
    pattern = "|".join([*map(re.escape, long), "\n", "."])
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token=UNK))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(pattern), "isolated")
    tokenizer.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=PAD,
        eos_token=EOS,
        unk_token=UNK,
        padding_side="left",
        clean_up_tokenization_spaces=False,
    )


def bpe_tokenizer(texts: Iterable[str], vocab_size: int) -> PreTrainedTokenizerFast:
    """Byte-level BPE (Sennrich et al. 2015, arXiv 1508.07909, over bytes as GPT-2 has it); no text is unknown to it.

    The vocabulary is smaller than `vocab_size` when the texts have no more pairs to merge.
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[PAD, EOS],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=PAD,
        eos_token=EOS,
        padding_side="left",
        clean_up_tokenization_spaces=False,
    )


def _check_words(words: Sequence[str]) -> None:
    seen: set[str] = set()
    for word in words:
        if not word:
            raise InputError("tokenizer.words: a word is empty; each must have at least one character")
        if word in (PAD, EOS, UNK):
            raise InputError(f"tokenizer.words: {word} is there already; leave it out")
        if word in seen:
            raise InputError(f"tokenizer.words: {word!r} is given twice")
        seen.add(word)
