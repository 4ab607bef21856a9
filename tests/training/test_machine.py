"""What a machine lacks is refused by name, with what to do on a CPU, and never replaced."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from pydantic import ValidationError

from finery.errors import InputError
from finery.schemas.grpo import GrpoStage
from finery.schemas.sft import SftStage
from finery.training import arguments
from finery.training.arguments import check_machine, trainer_arguments

_GPU = {"resources": {"gpus": 1}}


def _config(**changes: Any) -> SftStage:
    return SftStage.model_validate({"kind": "sft", "model": "base", "data": "d", "max_steps": 1} | changes)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"optim": "paged_adamw_8bit"}, r"paged_adamw_8bit .* needs a GPU .*on a CPU take adamw_torch_fused"),
        ({"optim": "adamw_8bit"}, r"adamw_8bit .* needs a GPU"),
        ({"bf16": True}, r"mixed precision needs a GPU .*on a CPU leave it out"),
        ({"attn_implementation": "flash_attention_2"}, r"flash_attention_2 needs a GPU .*on a CPU take sdpa or eager"),
        ({"use_liger_kernel": True}, r"need a GPU .*on a CPU leave it out"),
        (
            {"lora": {}, "quantization": {"bnb_4bit_compute_dtype": "bfloat16"}},
            r"bfloat16 needs a GPU .*on a CPU 4-bit weights compute in float32",
        ),
        ({**_GPU, "bf16": True, "lora": {}, "quantization": {}}, "is float32 and bf16 is true; set it to bfloat16"),
        (
            {**_GPU, "dtype": "float16", "lora": {}, "quantization": {"bnb_4bit_compute_dtype": "bfloat16"}},
            "is bfloat16 and dtype is float16",
        ),
        ({"optim": "sgd", "adam_beta2": 0.98}, "is AdamW's; sgd has no use for it"),
        ({"adapter": "stack"}, "add `lora`"),
        ({"adapter": "continue", "lora": {}}, "leave lora out, or say stack"),
        ({"adapter": "continue", "added_tokens": ["<a>"]}, "keeps its tokenizer"),
        ({"added_tokens": ["<a>", "<a>"]}, "names a token twice"),
        ({"lora": {"target_modules": ".*q_proj", "layers_to_transform": [0]}}, "a regular expression says the layers"),
    ],
)
def test_the_schema_refuses_by_name(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        _config(**changes)


def test_what_a_gpu_has_is_accepted_with_one() -> None:
    config = _config(
        **_GPU, optim="paged_adamw_8bit", bf16=True, attn_implementation="flash_attention_2", use_liger_kernel=True,
        lora={}, quantization={"bnb_4bit_compute_dtype": "bfloat16"},
    )  # fmt: skip
    assert config.packages_in_use() == (*SftStage.packages, "bitsandbytes")
    assert _config(lora={}).packages_in_use() == SftStage.packages
    assert "bitsandbytes" in GrpoStage.model_validate(
        {"kind": "grpo", "model": "m", "data": "d", "max_steps": 1, "rewards": [{"kind": "answer"}], "lora": {},
         "quantization": {}}
    ).packages_in_use()  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {"attn_implementation": "flash_attention_2"},
            "attn_implementation: flash_attention_2 needs the package flash-attn",
        ),
        ({"use_liger_kernel": True}, "use_liger_kernel: True needs the package liger-kernel"),
        ({"optim": "paged_adamw_8bit"}, "optim: paged_adamw_8bit needs the package bitsandbytes"),
    ],
)
def test_a_package_that_is_not_there_is_named(
    changes: dict[str, Any], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(arguments, "find_spec", lambda _: None)
    with pytest.raises(InputError, match=said):
        check_machine(_config(**_GPU, **changes))


def test_a_gpu_without_bfloat16_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation=True: False)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "Tesla T4")
    with pytest.raises(InputError, match="bf16: Tesla T4 computes no bfloat16"):
        check_machine(_config(**_GPU, bf16=True))


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_a_gpu_that_is_not_there_is_named(tmp_path: Any) -> None:
    from finery.contract import StageContext

    context = StageContext("s", 1, tmp_path, tmp_path, tmp_path / "m", tmp_path)
    with pytest.raises(InputError, match="torch sees none here"):
        trainer_arguments(_config(**_GPU, optim="paged_adamw_8bit"), context, None, max_steps=1)
