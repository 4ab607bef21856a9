"""Slots against batches: two loops that share nothing but the model and the random numbers draw the same tokens."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    BloomConfig,
    DeepseekV3Config,
    Gemma3TextConfig,
    GemmaConfig,
    GPT2Config,
    GPTNeoXConfig,
    Lfm2Config,
    LlamaConfig,
    MambaConfig,
    MistralConfig,
    MixtralConfig,
    OPTConfig,
    Phi3Config,
    Qwen2Config,
    Qwen3Config,
)

from finery.schemas.training import Sampling
from finery.training import sampling as sampler
from finery.training.drawing import Forward
from finery.training.models import load_model, load_tokenizer
from finery.training.sampling import fits

BASE = Path(__file__).parents[2] / "pipelines" / "base"
COMMON: dict[str, Any] = {"vocab_size": 32, "eos_token_id": 1, "bos_token_id": None, "pad_token_id": 0}
SIZES: dict[str, Any] = COMMON | {
    "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 24, "initializer_range": 0.5,
}  # fmt: skip
LATENT: dict[str, Any] = {
    "q_lora_rank": 8, "kv_lora_rank": 8, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 4,
    "num_key_value_heads": 4, "n_routed_experts": 4, "n_group": 1, "topk_group": 1, "num_experts_per_tok": 2,
    "first_k_dense_replace": 1, "moe_intermediate_size": 16,
}  # fmt: skip
IN_SLOTS = {
    "Llama, grouped heads": LlamaConfig(**SIZES),
    "Qwen2": Qwen2Config(**SIZES),
    "Qwen3": Qwen3Config(**SIZES, head_dim=8),
    "Gemma": GemmaConfig(**SIZES, head_dim=8),
    "Phi3": Phi3Config(**SIZES),
    "experts": MixtralConfig(**SIZES, num_local_experts=4),
    "keys and values of two sizes": DeepseekV3Config(**SIZES | LATENT),
    "learned positions": GPT2Config(**COMMON, n_positions=24, n_embd=32, n_layer=2, n_head=4, initializer_range=0.5),
    "learned positions with an offset": OPTConfig(
        **COMMON, hidden_size=32, ffn_dim=32, num_hidden_layers=2, num_attention_heads=4, max_position_embeddings=24,
        word_embed_proj_dim=32, init_std=0.5,
    ),
    "part of a head rotated": GPTNeoXConfig(
        **COMMON, hidden_size=32, intermediate_size=32, num_hidden_layers=2, num_attention_heads=4,
        max_position_embeddings=24, initializer_range=0.5,
    ),
}  # fmt: skip
IN_BATCHES = {
    "a sliding window": MistralConfig(**SIZES, sliding_window=6),
    "full and sliding layers": Gemma3TextConfig(**SIZES, head_dim=8, sliding_window=5),
    "no position ids": BloomConfig(**COMMON, hidden_size=32, n_layer=2, n_head=4),
    "attention and convolution": Lfm2Config(**SIZES, layer_types=["conv", "full_attention"]),
    "no attention": MambaConfig(**COMMON, hidden_size=32, num_hidden_layers=2, state_size=4),
}
ROWS = [{"id": f"{i}", "prompt": prompt} for i, prompt in enumerate(["12345678901", "9+9", "7", "9-2+33", "8-1"])]


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return load_tokenizer(BASE)


def _model(config: Any, dtype: torch.dtype = torch.float64) -> Any:
    torch.manual_seed(0)
    # float64: two loops that agree must not be told apart by rounding
    return AutoModelForCausalLM.from_config(config).to(dtype).eval()


def _drawn(model: Any, tokenizer: Any, **options: Any) -> list[list[list[int]]]:
    options = {"n": 3, "seed": 5, "sampling": Sampling(temperature=2.0, max_completion_length=30)} | options
    return [[one.token_ids for one in many] for many in sampler.sample(model, tokenizer, ROWS, **options)]


@pytest.mark.parametrize("kind", list(IN_SLOTS))
def test_slots_draw_what_batches_draw(kind: str, tokenizer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    # experts have no kernel in float64
    mixed = kind in ("experts", "keys and values of two sizes")
    model = _model(IN_SLOTS[kind], torch.float32 if mixed else torch.float64)
    assert fits(Forward(model))
    # 4 slots: a group is split, rows move, enter late and fill the model's 24 positions
    in_slots = {width: _drawn(model, tokenizer, batch_size=width) for width in (4, 64)}
    greedy = {"n": 1, "greedy": True, "sampling": Sampling(max_completion_length=9)}
    greedy_in_slots = _drawn(model, tokenizer, batch_size=2, **greedy)
    monkeypatch.setattr(sampler, "fits", lambda forward: False)
    in_batches = _drawn(model, tokenizer, batch_size=3)
    assert in_slots == {4: in_batches, 64: in_batches}
    assert greedy_in_slots == _drawn(model, tokenizer, batch_size=2, **greedy)
    lengths = {len(ids) for many in in_batches for ids in many}
    assert len(lengths) > 3


@pytest.mark.parametrize("kind", list(IN_BATCHES))
def test_what_slots_would_get_wrong_is_decoded_in_batches(kind: str) -> None:
    assert not fits(Forward(_model(IN_BATCHES[kind], torch.float32)))


def test_another_attention_and_code_from_elsewhere_are_decoded_in_batches() -> None:
    model = _model(IN_SLOTS["Qwen2"], torch.float32)
    assert fits(Forward(model))
    model.set_attn_implementation("eager")
    assert not fits(Forward(model))
    model.set_attn_implementation("sdpa")
    foreign = type("Foreign", (type(model),), {"__module__": "transformers_modules.repo.modeling"})
    model.__class__ = foreign
    assert not fits(Forward(model))


def test_a_group_wider_than_the_slots_is_prefilled_once(tokenizer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    model, prefilled = load_model(BASE), []
    called = Forward.__call__

    def counted(self: Forward, ids_BL: torch.Tensor, *rest: Any) -> torch.Tensor:
        if ids_BL.shape[1] > 1:
            prefilled.append(len(ids_BL))
        return called(self, ids_BL, *rest)

    monkeypatch.setattr(Forward, "__call__", counted)
    rows = [{"id": "a", "prompt": "Q:17+8-3\n"}, {"id": "b", "prompt": "Q:1+8-3+5\n"}]
    drawn = sampler.sample(
        model, tokenizer, rows, n=11, sampling=Sampling(max_completion_length=6), seed=0, batch_size=4
    )
    assert [len(many) for many in drawn] == [11, 11]
    assert sum(prefilled) == 2
