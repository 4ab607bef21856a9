"""Model folders: what is refused, what is loaded, and that publishing writes exactly what the contract says."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    AutoTokenizer,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen2ForCausalLM,
)

from finery.errors import InputError, StageError
from finery.training.models import (
    adapter_base,
    check_folder,
    load_model,
    load_tokenizer,
    merge_adapter,
    publish_model,
    read_model_info,
)

ROOT = Path(__file__).parents[2]
BASE = ROOT / "pipelines" / "base"
CASES = ROOT / "tests" / "cases"
DIGEST = "ab" * 32
TOKENS = torch.tensor([[10, 28, 15, 21, 24, 22]])
TEMPLATE = "{% for m in messages %}<{{ m.role }}>{{ m.content }}\n{% endfor %}"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A copy of the tiny base, to be spoilt."""
    return Path(shutil.copytree(BASE, tmp_path / "model"))


def small(model_class: Any = LlamaForCausalLM, config_class: Any = LlamaConfig, **extra: Any) -> Any:
    torch.manual_seed(0)
    sizes = {"vocab_size": 32, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1, "max_position_embeddings": 64}
    return model_class(config_class(**sizes, **heads, pad_token_id=0, eos_token_id=1, **extra))


def adapter(**options: Any) -> Any:
    """The tiny base with a LoRA adapter that does something."""
    from peft import LoraConfig, get_peft_model

    arguments = {
        "r": 2,
        "lora_alpha": 6,
        "target_modules": ["q_proj", "down_proj"],
        "task_type": "CAUSAL_LM",
        **options,
    }
    model = get_peft_model(load_model(BASE), LoraConfig(**arguments))
    torch.manual_seed(1)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "lora_" in name:
                weight.copy_(torch.randn_like(weight) * 0.1)
    return model.eval()


def own_tokenizer() -> PreTrainedTokenizerFast:
    """As the one in the notes: a word-level vocabulary whose pre-tokenizer keeps newlines and digits apart."""
    words = ["<pad>", "<eos>", "<unk>", *"0123456789+-=:#AQ ", "\n", "####", "max"]
    tokenizer = Tokenizer(models.WordLevel({word: index for index, word in enumerate(words)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex("####|max|\n|."), "isolated")
    tokenizer.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>", padding_side="left"
    )


def names(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


def test_published_model_holds_exactly_the_contracts_files_and_same_bytes_from_another_place(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(BASE)
    tokenizer.chat_template = TEMPLATE
    tokenizer(["Q:1", "Q:1+2"], padding=True, truncation=True, max_length=4)
    info = publish_model(load_model(BASE), tokenizer, tmp_path / "first")
    assert names(tmp_path / "first") == {
        "config.json", "generation_config.json", "model.safetensors", "model.json", "tokenizer.json",
        "tokenizer_config.json", "chat_template.jinja",
    }  # fmt: skip
    again = Path(shutil.copytree(tmp_path / "first", tmp_path / "else" / "where"))
    assert publish_model(load_model(again), load_tokenizer(again), tmp_path / "second") == info
    for name in names(tmp_path / "first"):
        data = (tmp_path / "first" / name).read_bytes()
        assert data == (tmp_path / "second" / name).read_bytes(), name
        assert str(tmp_path).encode() not in data, name
        assert str(ROOT).encode() not in data, name
    assert info == json.loads((tmp_path / "first" / "model.json").read_text())
    assert info == {
        "form": "full", "base": None, "dtype": "float32", "quantization": None,
        "tokenizer_sha256": info["tokenizer_sha256"], "chat_template_sha256": info["chat_template_sha256"],
    }  # fmt: skip
    assert len(info["tokenizer_sha256"]) == len(info["chat_template_sha256"]) == 64
    assert read_model_info(BASE)["tokenizer_sha256"] == info["tokenizer_sha256"]
    reloaded = load_model(tmp_path / "second")
    assert torch.equal(reloaded(TOKENS).logits, load_model(BASE)(TOKENS).logits)


def test_large_model_is_written_in_shards_with_an_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("finery.training.publish.SHARD_SIZE", "500KB")
    publish_model(load_model(BASE), load_tokenizer(BASE), tmp_path / "out")
    index = json.loads((tmp_path / "out" / "model.safetensors.index.json").read_text())
    shards = sorted(set(index["weight_map"].values()))
    assert len(shards) == 3
    assert index["metadata"]["total_size"] == sum(
        weight.numel() * 4 for shard in shards for weight in load_file(tmp_path / "out" / shard).values()
    )
    assert torch.equal(load_model(tmp_path / "out")(TOKENS).logits, load_model(BASE)(TOKENS).logits)


def test_publishing_again_replaces_an_earlier_attempt_and_nothing_else(tmp_path: Path) -> None:
    out = tmp_path / "out"
    publish_model(load_model(BASE), load_tokenizer(BASE), out)
    (out / "model-00001-of-00002.safetensors").write_bytes(b"half")
    publish_model(load_model(BASE), load_tokenizer(BASE), out)
    assert "model-00001-of-00002.safetensors" not in names(out)
    (out / "thesis.tex").write_text("years of work")
    with pytest.raises(StageError, match=r"thesis\.tex"):
        publish_model(load_model(BASE), load_tokenizer(BASE), out)
    assert (out / "thesis.tex").exists()
    assert (out / "model.safetensors").exists()


def test_diverged_weight_is_never_published(tmp_path: Path) -> None:
    model = load_model(BASE)
    model.model.layers[1].mlp.up_proj.weight[3, 4] = float("nan")
    with pytest.raises(StageError, match=r"model\.layers\.1\.mlp\.up_proj\.weight"):
        publish_model(model, load_tokenizer(BASE), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_load_gives_type_mode_and_gradients_asked_for() -> None:
    frozen = load_model(BASE)
    assert not frozen.training
    assert not any(weight.requires_grad for weight in frozen.parameters())
    trainable = load_model(BASE, dtype="bfloat16", trainable=True)
    assert trainable.training
    assert {weight.dtype for weight in trainable.parameters()} == {torch.bfloat16}
    assert all(weight.requires_grad for weight in trainable.parameters())


def test_adapter_round_trip_needs_only_the_bases_digest(tmp_path: Path) -> None:
    model = adapter()
    info = publish_model(model, load_tokenizer(BASE), tmp_path / "out", base={"digest": DIGEST, "ref": "base"})
    assert names(tmp_path / "out") == {
        "adapter_config.json", "adapter_model.safetensors", "config.json", "generation_config.json", "model.json",
        "tokenizer.json", "tokenizer_config.json",
    }  # fmt: skip
    assert info["form"] == "adapter"
    assert info["base"] == {"digest": DIGEST, "ref": "base"}
    config = json.loads((tmp_path / "out" / "adapter_config.json").read_text())
    assert config["base_model_name_or_path"] == ""
    assert config["target_modules"] == ["down_proj", "q_proj"]
    assert not any(str(ROOT).encode() in path.read_bytes() for path in (tmp_path / "out").iterdir())
    loaded = load_model(tmp_path / "out", bases={DIGEST: BASE})
    assert torch.equal(loaded(TOKENS).logits, model(TOKENS).logits)
    assert adapter_base(tmp_path / "out", digest="other", ref="sft") == {"digest": DIGEST, "ref": "base"}
    assert adapter_base(BASE, digest="other", ref="base") == {"digest": "other", "ref": "base"}


def test_adapter_loaded_for_training_goes_on_under_the_name_default(tmp_path: Path) -> None:
    publish_model(adapter(), load_tokenizer(BASE), tmp_path / "out", base={"digest": DIGEST, "ref": "base"})
    model = load_model(tmp_path / "out", bases={DIGEST: BASE}, trainable=True)
    assert model.active_adapter == "default"
    learning = {name for name, weight in model.named_parameters() if weight.requires_grad}
    assert learning
    assert all("lora_" in name for name in learning)
    before = model(TOKENS, labels=TOKENS).loss
    before.backward()
    with torch.no_grad():
        for weight in model.parameters():
            if weight.grad is not None:
                weight -= 0.1 * weight.grad
    publish_model(model, load_tokenizer(BASE), tmp_path / "next", base={"digest": DIGEST, "ref": "base"})
    after = load_model(tmp_path / "next", bases={DIGEST: BASE})
    assert after(TOKENS, labels=TOKENS).loss < before


@pytest.mark.parametrize("options", [{}, {"use_rslora": True}, {"use_dora": True}])
def test_merged_adapter_computes_what_the_adapter_does(tmp_path: Path, options: dict[str, Any]) -> None:
    model = adapter(**options)
    publish_model(model, load_tokenizer(BASE), tmp_path / "out", base={"digest": DIGEST, "ref": "base"})
    merged = merge_adapter(tmp_path / "out", bases={DIGEST: BASE})
    assert type(merged).__name__ == "LlamaForCausalLM"
    assert torch.allclose(merged(TOKENS).logits, model(TOKENS).logits, atol=1e-4)
    assert not torch.allclose(merged(TOKENS).logits, load_model(BASE)(TOKENS).logits, atol=1e-2)
    assert merge_adapter(tmp_path / "out", bases={DIGEST: BASE}, dtype="bfloat16").dtype is torch.bfloat16


def test_adapter_without_its_base_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StageError, match="without the digest"):
        publish_model(adapter(), load_tokenizer(BASE), tmp_path / "out")
    publish_model(adapter(), load_tokenizer(BASE), tmp_path / "out", base={"digest": DIGEST, "ref": "base"})
    with pytest.raises(InputError, match=r"its base base \(abababababab\) is not at hand"):
        load_model(tmp_path / "out")
    (tmp_path / "out" / "model.json").unlink()
    with pytest.raises(InputError, match="does not say which model it sits on"):
        load_model(tmp_path / "out", bases={DIGEST: BASE})


def test_adapter_with_a_weight_missing_is_refused_not_left_at_its_initial_value(tmp_path: Path) -> None:
    out = tmp_path / "out"
    publish_model(adapter(), load_tokenizer(BASE), out, base={"digest": DIGEST, "ref": "base"})
    weights = {name: weight.clone() for name, weight in load_file(out / "adapter_model.safetensors").items()}
    lost = next(name for name in weights if "layers.1.self_attn.q_proj.lora_B" in name)
    del weights[lost]
    save_file(weights, out / "adapter_model.safetensors", metadata={"format": "pt"})
    with pytest.raises(InputError, match=lost.replace(".", r"\.")):
        load_model(out, bases={DIGEST: BASE})


def test_case_S3_pickle_and_remote_code_are_refused_and_never_run(
    folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    (folder / "model.safetensors").unlink()
    shutil.copy(CASES / "S3-pytorch_model.bin", folder / "pytorch_model.bin")
    shutil.copy(CASES / "S3-modeling_canary.py", folder / "modeling_canary.py")
    for load in (check_folder, load_model, load_tokenizer):
        with pytest.raises(InputError, match=r"pytorch_model\.bin.*safetensors only"):
            load(folder)
    shutil.copy(BASE / "model.safetensors", folder)
    assert torch.equal(
        load_model(folder)(TOKENS).logits, load_model(BASE)(TOKENS).logits
    )  # the pickle is not looked at
    shutil.copy(CASES / "S3-config.json", folder / "config.json")
    for load in (check_folder, load_model, load_tokenizer):
        with pytest.raises(InputError, match="trust_remote_code"):
            load(folder)
    assert not list(tmp_path.rglob("S3-CANARY*"))
    assert not list(tmp_path.rglob("S3-REMOTE-CODE*"))


def test_case_S3_tokenizer_code_is_refused(folder: Path) -> None:
    path = folder / "tokenizer_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"auto_map": {"AutoTokenizer": ["canary.T", None]}}))
    with pytest.raises(InputError, match=r"tokenizer_config\.json: auto_map"):
        load_tokenizer(folder)


@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer_config.json", "config.json"])
def test_broken_json_is_an_error_that_names_the_folder(folder: Path, name: str) -> None:
    for text in ("{not json", "[1]", '{"model": {"type": "BPE"}}' if name == "tokenizer.json" else "null"):
        (folder / name).write_text(text)
        with pytest.raises(InputError, match=str(folder)):
            load_tokenizer(folder)


def test_missing_or_cut_weights_are_named(folder: Path) -> None:
    weights = {name: weight.clone() for name, weight in load_file(folder / "model.safetensors").items()}
    data = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(data[: len(data) // 2])
    with pytest.raises(InputError, match="not a whole safetensors file"):
        load_model(folder)
    lost = "model.layers.2.mlp.up_proj.weight"
    save_file(
        {name: weight for name, weight in weights.items() if name != lost},
        folder / "model.safetensors",
        {"format": "pt"},
    )
    with pytest.raises(InputError, match=r"model\.layers\.2\.mlp\.up_proj\.weight"):
        load_model(folder)
    (folder / "model.safetensors").unlink()
    with pytest.raises(InputError, match="has no weights"):
        load_model(folder)


def test_index_that_names_an_absent_shard_is_refused(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "model-00001-of-00002.safetensors")
    index = {"weight_map": {"model.norm.weight": "model-00002-of-00002.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(InputError, match=r"not there: model-00002-of-00002\.safetensors"):
        check_folder(folder)
    index["weight_map"]["model.norm.weight"] = "../model.safetensors"
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(InputError, match="outside the folder"):
        check_folder(folder)


def test_quantized_weights_are_refused_by_their_method(folder: Path) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"quantization_config": {"quant_method": "awq"}}))
    with pytest.raises(InputError, match=r"quantized \(awq\)"):
        load_model(folder)


def test_case_T7_own_tokenizer_beside_qwen2_is_loaded_right_and_never_published(tmp_path: Path) -> None:
    tokenizer = own_tokenizer()
    model = small(Qwen2ForCausalLM, Qwen2Config)
    model.save_pretrained(tmp_path / "own")
    tokenizer.save_pretrained(tmp_path / "own")
    text = "Q:17+8\nA:17+8=25\n#### 25"
    ids = tokenizer(text)["input_ids"]
    assert AutoTokenizer.from_pretrained(tmp_path / "own")(text)["input_ids"] != ids  # the trap
    assert load_tokenizer(tmp_path / "own")(text)["input_ids"] == ids
    with pytest.raises(InputError, match=r"TokenizersBackend.*Qwen2Tokenizer"):
        publish_model(model, load_tokenizer(tmp_path / "own"), tmp_path / "out")
    assert not (tmp_path / "out" / "model.json").exists()


def test_case_T7_llama_keeps_its_tokenizer(tmp_path: Path) -> None:
    tokenizer = own_tokenizer()
    tokenizer.chat_template = TEMPLATE
    publish_model(small(), tokenizer, tmp_path / "out")
    text = "Q:17+8\nA:17+8=25\n#### 25"
    for reload in (AutoTokenizer.from_pretrained, load_tokenizer):
        reloaded = reload(tmp_path / "out")
        assert reloaded(text)["input_ids"] == tokenizer(text)["input_ids"]
        assert reloaded.chat_template == TEMPLATE


@pytest.mark.slow
def test_gate_and_evaluate_load_full_models_without_trl_or_peft() -> None:
    code = (
        "import sys; from pathlib import Path; from finery.training.models import load_model, load_tokenizer;"
        f"load_model(Path({str(BASE)!r})); load_tokenizer(Path({str(BASE)!r}));"
        "print(sorted({'trl', 'peft', 'datasets'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
