"""The import stage on folders, GGUF files and adapters, run as the engine runs it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import LlamaConfig, LlamaForCausalLM

from finery.contract import StageContext, StageResult
from finery.errors import InputError, StageError
from finery.schemas.import_ import ImportStage
from finery.stages.import_ import run
from finery.training.models import load_model, load_tokenizer, publish_model

ROOT = Path(__file__).parents[2]
BASE = ROOT / "pipelines" / "base"
CASES = ROOT / "tests" / "cases"
DIGEST = "cd" * 32
TOKENS = torch.tensor([[10, 28, 15, 21, 24, 22]])


class Stage:
    """One run of the stage in a folder of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.out = folder / "outputs" / "model"

    def run(
        self, source: Path, *, inputs: dict[str, Path] | None = None, bases: Any = None, **config: Any
    ) -> StageResult:
        self.folder.mkdir(parents=True, exist_ok=True)
        context = StageContext(
            stage="base", seed=7, output_dir=self.folder / "outputs", checkpoint_dir=self.folder / "checkpoints",
            metrics_path=self.folder / "metrics.jsonl", base_dir=self.folder, bases=bases or {},
            input_digests={"base": DIGEST},
        )  # fmt: skip
        stage = ImportStage.model_validate({"kind": "import", "from": "./source", **config})
        return run(stage, {"from": source, **(inputs or {})}, context)

    @property
    def warnings(self) -> str:
        events = [json.loads(line) for line in (self.folder / "metrics.jsonl").read_text().splitlines()]
        return "\n".join(event["message"] for event in events if event["type"] == "warning")


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    return Stage(tmp_path / "stage")


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return Path(shutil.copytree(BASE, tmp_path / "source"))


def edit(path: Path, **changes: Any) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def test_folder_becomes_a_model_output_with_the_same_function(stage: Stage, source: Path) -> None:
    (source / "README.md").write_text("card")
    (source / "training_args.bin").write_bytes(b"pickle")
    (source / "optimizer.pt").write_bytes(b"pickle")
    edit(source / "config.json", _name_or_path="/home/someone/model")
    template = "{{ messages[0].content }}"
    (source / "chat_template.jinja").write_text(template)
    result = stage.run(source)
    assert sorted(path.name for path in stage.out.iterdir()) == [
        "chat_template.jinja", "config.json", "generation_config.json", "model.json", "model.safetensors",
        "tokenizer.json", "tokenizer_config.json",
    ]  # fmt: skip
    assert b"someone" not in b"".join(path.read_bytes() for path in stage.out.iterdir())
    assert load_tokenizer(stage.out).chat_template == template
    assert torch.equal(load_model(stage.out)(TOKENS).logits, load_model(BASE)(TOKENS).logits)
    assert result.metrics == {"parameters": 336_672, "vocabulary": 32}
    assert result.summary["headline"] == "LlamaForCausalLM, 0.34M parameters, float32, with a chat template"
    assert stage.warnings == ""


def test_sharded_folder_is_read_whole_and_same_bytes_come_of_it(stage: Stage, source: Path, tmp_path: Path) -> None:
    weights = load_file(source / "model.safetensors")
    names = sorted(weights)
    shards = {"model-00001-of-00002.safetensors": names[::2], "model-00002-of-00002.safetensors": names[1::2]}
    for shard, some in shards.items():
        save_file({name: weights[name] for name in some}, source / shard, {"format": "pt"})
    (source / "model.safetensors").unlink()
    index = {"metadata": {}, "weight_map": {name: shard for shard, some in shards.items() for name in some}}
    (source / "model.safetensors.index.json").write_text(json.dumps(index))
    stage.run(source)
    whole = Stage(tmp_path / "whole")
    whole.run(BASE)
    assert (stage.out / "model.safetensors").read_bytes() == (whole.out / "model.safetensors").read_bytes()
    (source / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(InputError, match=r"model-00002-of-00002\.safetensors"):
        Stage(tmp_path / "third").run(source)


def test_type_is_converted_when_asked_and_never_beyond_its_range(stage: Stage, source: Path, tmp_path: Path) -> None:
    stage.run(source, dtype="bfloat16")
    assert {weight.dtype for weight in load_file(stage.out / "model.safetensors").values()} == {torch.bfloat16}
    assert json.loads((stage.out / "config.json").read_text())["dtype"] == "bfloat16"
    assert json.loads((stage.out / "model.json").read_text())["dtype"] == "bfloat16"
    weights = {name: weight.clone() for name, weight in load_file(source / "model.safetensors").items()}
    weights["model.norm.weight"][3] = 1e6
    save_file(weights, source / "model.safetensors", {"format": "pt"})
    with pytest.raises(StageError, match=r"model\.norm\.weight"):
        Stage(tmp_path / "narrow").run(source, dtype="float16")


def test_pad_token_that_is_eos_is_kept_and_said(stage: Stage, source: Path) -> None:
    edit(source / "tokenizer_config.json", pad_token="<eos>")
    stage.run(source)
    assert "the pad token is the EOS token (<eos>)" in stage.warnings
    tokenizer = load_tokenizer(stage.out)
    assert tokenizer.pad_token_id == tokenizer.eos_token_id == 1


def test_tensors_without_a_place_are_named(stage: Stage, source: Path) -> None:
    weights = load_file(source / "model.safetensors")
    save_file({**weights, "model.extra.weight": torch.ones(2)}, source / "model.safetensors", {"format": "pt"})
    stage.run(source)
    assert "1 tensors are no part of a LlamaForCausalLM and are left out: model.extra.weight" in stage.warnings


def test_generation_config_that_transformers_would_not_write_is_mended_and_said(stage: Stage, source: Path) -> None:
    edit(source / "generation_config.json", temperature=0.6, do_sample=False)
    stage.run(source)
    assert "do_sample is set to true" in stage.warnings
    assert json.loads((stage.out / "generation_config.json").read_text())["temperature"] == 0.6


def test_case_S3_unsafe_folder_is_refused_by_import(
    stage: Stage, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(source.parent)
    (source / "model.safetensors").rename(source / "kept")
    shutil.copy(CASES / "S3-pytorch_model.bin", source / "pytorch_model.bin")
    with pytest.raises(InputError, match=r"pytorch_model\.bin"):
        stage.run(source)
    (source / "kept").rename(source / "model.safetensors")
    edit(source / "config.json", auto_map=json.loads((CASES / "S3-config.json").read_text())["auto_map"])
    with pytest.raises(InputError, match="trust_remote_code"):
        stage.run(source)
    assert not list(source.parent.rglob("S3-CANARY*"))
    assert not stage.out.exists()


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda path: None, "no such file or folder"),
        (lambda path: path.write_bytes(b"GGML----"), "is not a GGUF file"),
        (lambda path: path.write_bytes(b"GGUF\x03\x00\x00\x00rubbish"), "this GGUF cannot be read"),
        (lambda path: path.mkdir(), r"has no config\.json"),
    ],
)
def test_source_that_is_no_model_is_refused(stage: Stage, tmp_path: Path, make: Any, says: str) -> None:
    make(tmp_path / "thing")
    with pytest.raises(InputError, match=says):
        stage.run(tmp_path / "thing")


def _llama_cpp_order(weight: torch.Tensor, heads: int) -> np.ndarray:
    """llama.cpp rotates pairs that lie side by side; its converter permutes the rows of q and k for that."""
    rows, width = weight.shape
    return weight.reshape(heads, 2, rows // heads // 2, width).transpose(1, 2).reshape(rows, width).numpy()


def write_gguf(path: Path, *, quantized: bool = False) -> LlamaForCausalLM:
    """A tiny Llama with a byte-level BPE tokenizer and a chat template, as llama.cpp writes one; returns the model."""
    from gguf import GGMLQuantizationType, GGUFWriter
    from gguf.quants import dequantize, quantize
    from transformers.convert_slow_tokenizer import bytes_to_unicode

    torch.manual_seed(3)
    tokens = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *bytes_to_unicode().values(), "ab"]
    config = LlamaConfig(
        vocab_size=len(tokens), hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=128, rms_norm_eps=1e-5,
    )  # fmt: skip
    model = LlamaForCausalLM(config).eval()
    writer = GGUFWriter(str(path), "llama")
    writer.add_name("tiny")
    writer.add_context_length(128)
    writer.add_embedding_length(32)
    writer.add_block_count(2)
    writer.add_feed_forward_length(64)
    writer.add_head_count(4)
    writer.add_head_count_kv(2)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10000.0)
    writer.add_vocab_size(len(tokens))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(tokens)
    writer.add_token_types([3, 3, 3, *[1] * (len(tokens) - 3)])
    writer.add_token_merges(["a b"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_pad_token_id(2)
    writer.add_chat_template("{% for m in messages %}<|im_start|>{{ m.content }}<|im_end|>{% endfor %}")
    parts = {
        "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
        "self_attn.o_proj": "attn_output", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
        "mlp.down_proj": "ffn_down", "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm",
    }  # fmt: skip
    outer = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
    with torch.no_grad():
        for name, weight in model.named_parameters():
            module = name.removesuffix(".weight")
            if module in outer:
                target = outer[module]
            else:
                _, _, layer, part = module.split(".", 3)
                target = f"blk.{layer}.{parts[part]}"
            if quantized and weight.dim() == 2 and module not in outer:
                packed = quantize(weight.numpy(), GGMLQuantizationType.Q8_0)
                weight.copy_(torch.tensor(dequantize(packed, GGMLQuantizationType.Q8_0)))
            heads = {"self_attn.q_proj": 4, "self_attn.k_proj": 2}.get(name.removesuffix(".weight").split(".", 3)[-1])
            data = _llama_cpp_order(weight, heads) if heads else weight.numpy()
            if quantized and weight.dim() == 2 and module not in outer:
                data = quantize(np.ascontiguousarray(data), GGMLQuantizationType.Q8_0)
                writer.add_tensor(f"{target}.weight", data, raw_dtype=GGMLQuantizationType.Q8_0)
            else:
                writer.add_tensor(f"{target}.weight", np.ascontiguousarray(data))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return model


@pytest.mark.parametrize("quantized", [False, True])
def test_gguf_becomes_plain_safetensors_with_its_tokenizer_and_template(
    stage: Stage, tmp_path: Path, quantized: bool
) -> None:
    path = tmp_path / "hub" / "tiny.gguf"
    path.parent.mkdir()
    model = write_gguf(path, quantized=quantized)
    result = stage.run(path.parent if quantized else path)  # a hub folder that holds one GGUF means it
    loaded = load_model(stage.out)
    tokens = torch.tensor([[5, 9, 40, 77, 120]])
    assert torch.allclose(loaded(tokens).logits, model(tokens).logits, atol=1e-5)
    assert loaded.dtype is torch.float32
    assert not hasattr(loaded.config, "quantization_config")
    tokenizer = load_tokenizer(stage.out)
    assert tokenizer.decode(tokenizer("ab\n1<|im_end|>")["input_ids"]) == "ab\n1<|im_end|>"
    assert (
        tokenizer.apply_chat_template([{"role": "user", "content": "hi"}], tokenize=False) == "<|im_start|>hi<|im_end|>"
    )
    assert "the pad token is the EOS token (<|im_end|>)" in stage.warnings
    assert result.summary["origin"] == ("GGUF of Q8_0, F32" if quantized else "GGUF of F32")
    assert b"tiny.gguf" not in (stage.out / "config.json").read_bytes()


def test_folder_of_several_ggufs_asks_for_one(stage: Stage, tmp_path: Path) -> None:
    for name in ("a.gguf", "b.gguf"):
        (tmp_path / name).write_bytes(b"GGUF")
    with pytest.raises(InputError, match=r"several GGUF files \(a\.gguf, b\.gguf\)"):
        stage.run(tmp_path)


@pytest.fixture
def adapter(tmp_path: Path) -> Path:
    """A folder as peft saves one: no model.json, no tokenizer, a path to somebody's base."""
    from peft import LoraConfig, get_peft_model

    model = get_peft_model(load_model(BASE), LoraConfig(r=2, target_modules=["q_proj"], task_type="CAUSAL_LM"))
    torch.manual_seed(1)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "lora_" in name:
                weight.copy_(torch.randn_like(weight))
    model.save_pretrained(tmp_path / "adapter")
    edit(tmp_path / "adapter" / "adapter_config.json", base_model_name_or_path="/home/someone/base")
    return tmp_path / "adapter"


def test_adapter_stays_an_adapter_on_the_base_that_is_named(stage: Stage, adapter: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="name the model it was trained on as `base`"):
        stage.run(adapter)
    result = stage.run(adapter, base="llama", inputs={"base": BASE})
    assert str(result.summary["headline"]).startswith("adapter on llama, a LlamaForCausalLM")
    info = json.loads((stage.out / "model.json").read_text())
    assert info["form"] == "adapter"
    assert info["base"] == {"digest": DIGEST, "ref": "llama"}
    assert b"someone" not in (stage.out / "adapter_config.json").read_bytes()
    assert load_tokenizer(stage.out)("Q:1")["input_ids"] == load_tokenizer(BASE)("Q:1")["input_ids"]
    loaded = load_model(stage.out, bases={DIGEST: BASE})
    assert not torch.allclose(loaded(TOKENS).logits, load_model(BASE)(TOKENS).logits)
    again = Stage(tmp_path / "again")
    again.run(stage.out, bases={DIGEST: BASE})  # its model.json says the base
    assert (again.out / "adapter_model.safetensors").read_bytes() == (
        stage.out / "adapter_model.safetensors"
    ).read_bytes()


def test_adapter_on_another_base_is_refused(stage: Stage, adapter: Path, tmp_path: Path) -> None:
    stage.run(adapter, base="llama", inputs={"base": BASE})
    edit(stage.out / "model.json", base={"digest": "ef" * 32, "ref": "qwen"})
    with pytest.raises(InputError, match="was trained on qwen"):
        Stage(tmp_path / "second").run(stage.out, base="llama", inputs={"base": BASE})
    with pytest.raises(InputError, match="not at hand"):
        Stage(tmp_path / "third").run(stage.out)
    with pytest.raises(InputError, match="`dtype` is for full weights"):
        Stage(tmp_path / "fourth").run(stage.out, dtype="bfloat16")
    with pytest.raises(InputError, match="`base` is for an adapter"):
        Stage(tmp_path / "fifth").run(BASE, base="llama", inputs={"base": BASE})


def test_adapter_of_another_shape_is_refused(stage: Stage, adapter: Path, tmp_path: Path) -> None:
    torch.manual_seed(0)
    config = json.loads((BASE / "config.json").read_text()) | {"hidden_size": 48, "head_dim": 12}
    model = LlamaForCausalLM(LlamaConfig(**config))
    publish_model(model, load_tokenizer(BASE), tmp_path / "other")
    with pytest.raises(InputError, match="cannot be put on its base"):
        stage.run(adapter, base="other", inputs={"base": tmp_path / "other"})
