"""Adapters on adapters: the chain is followed by load, merge and the engine, and refused where it is broken."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file

from finery.errors import InputError
from finery.schemas.training import Quantization
from finery.training.folders import MODEL_INFO, read_model_info
from finery.training.models import load_model, load_tokenizer, merge_adapter, publish_model, root_folder
from finery.training.quantize import quantization_record, quantize
from finery.training.weights import open_weights

ROOT = Path(__file__).parents[2]
BASE = ROOT / "pipelines" / "base"
TOKENS = torch.tensor([[10, 28, 15, 21, 24, 22]])


def _adapt(model: Any, seed: int, **options: Any) -> Any:
    made = get_peft_model(model, LoraConfig(r=2, lora_alpha=4, task_type="CAUSAL_LM", **options))
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, weight in made.named_parameters():
            if "lora_A" in name or "lora_B" in name:
                weight.copy_(torch.randn(weight.shape, generator=generator) * 0.1)
    return made.eval()


def _logits(model: Any) -> torch.Tensor:
    with torch.no_grad():
        return model.eval()(TOKENS).logits


@pytest.fixture
def stack(tmp_path: Path) -> tuple[Path, Path, dict[str, Path], torch.Tensor]:
    """A QLoRA adapter, a DoRA adapter on it, where their bases lie, and the top one's logits as it was trained."""
    settings = Quantization()
    low = _adapt(quantize(load_model(BASE), settings), 1, target_modules=["q_proj", "down_proj"])
    record = quantization_record(settings, "float32")
    base = {"digest": "base", "ref": "base"}
    publish_model(low, load_tokenizer(BASE), tmp_path / "low", base=base, quantization=record)
    bases = {"base": BASE}
    top = _adapt(merge_adapter(tmp_path / "low", bases=bases), 2, target_modules="all-linear", use_dora=True)
    publish_model(top, load_tokenizer(BASE), tmp_path / "top", base={"digest": "low", "ref": "low"})
    return tmp_path / "low", tmp_path / "top", bases | {"low": tmp_path / "low"}, _logits(top)


def test_a_stack_is_loaded_and_merged_as_it_was_trained(
    stack: tuple[Path, Path, dict[str, Path], torch.Tensor], tmp_path: Path
) -> None:
    low, top, bases, expected = stack
    assert root_folder(top, bases) == BASE
    assert root_folder(low, bases) == BASE
    for model in (load_model(top, bases=bases), merge_adapter(top, bases=bases)):
        assert torch.allclose(_logits(model), expected, atol=2e-5, rtol=0)
    assert not torch.allclose(_logits(load_model(low, bases=bases)), expected, atol=1e-1)
    # what a merge stage reads
    weights = open_weights(top, bases=bases, scratch=tmp_path / "scratch")
    merged = merge_adapter(top, bases=bases).state_dict()
    assert all(torch.equal(weights.read(name), merged[name]) for name in weights.shapes)
    assert weights.dtype("model.layers.0.self_attn.q_proj.weight") is torch.float32


def test_a_merge_of_a_qlora_adapter_starts_from_the_weights_it_was_trained_on(
    stack: tuple[Path, Path, dict[str, Path], torch.Tensor], tmp_path: Path
) -> None:
    low, _, bases, _ = stack
    weights = open_weights(low, bases=bases, scratch=tmp_path / "scratch")
    original = load_file(BASE / "model.safetensors")
    name = "model.layers.1.self_attn.v_proj.weight"  # no adapter on it, but in 4 bits
    assert not torch.equal(weights.read(name), original[name])
    assert torch.equal(weights.read(name), merge_adapter(low, bases=bases).state_dict()[name])
    assert torch.equal(weights.read("model.norm.weight"), original["model.norm.weight"])


def test_a_link_that_is_missing_or_goes_in_a_circle_is_named(
    stack: tuple[Path, Path, dict[str, Path], torch.Tensor], tmp_path: Path
) -> None:
    low, top, _, _ = stack
    with pytest.raises(InputError, match=r"its base base .* is not at hand"):
        load_model(top, bases={"low": low})
    with pytest.raises(InputError, match=r"its base low .* is not at hand"):
        merge_adapter(top, bases={"base": BASE})
    turned = Path(shutil.copytree(low, tmp_path / "turned"))
    info = json.loads((turned / MODEL_INFO).read_text()) | {"base": {"digest": "top", "ref": "top"}}
    (turned / MODEL_INFO).write_text(json.dumps(info))
    with pytest.raises(InputError, match="in a circle"):
        load_model(top, bases={"low": turned, "top": top})


def test_a_record_of_quantization_that_is_not_known_is_refused(
    stack: tuple[Path, Path, dict[str, Path], torch.Tensor],
) -> None:
    low, _, bases, _ = stack
    info = read_model_info(low)
    for record in ({"quant_method": "gptq", "dtype": "float32"}, info["quantization"] | {"bnb_4bit_quant_type": "nf8"}):
        (low / MODEL_INFO).write_text(json.dumps(info | {"quantization": record}))
        with pytest.raises(InputError, match="says quantization"):
            load_model(low, bases=bases)


@pytest.mark.slow
def test_a_line_of_stacked_adapters(project: Any) -> None:
    """The engine mounts every base of the chain; the exam sees one model by three ways of holding it."""
    line = (ROOT / "tests" / "lines" / "stacked.yaml").read_text().replace("../../pipelines", str(ROOT / "pipelines"))
    project.write("pipeline.yaml", line)
    shown = project.finery("plan", "pipeline.yaml").stdout
    assert "LoRA of rank 4 on all-linear; its base in 4 bits: nf4, double quantization, computes in float32" in shown
    summary = project.run()
    assert {stage["state"] for stage in summary["stages"].values()} == {"Completed"}
    found = {}
    for manifest in (project.home / "store").glob("*/*/manifest.json"):
        made = json.loads(manifest.read_text())
        found[made["stage"]] = (manifest.parent / "outputs" / "model", made)
    digest = {
        name: made["outputs"]["model"]["digest"] for name, (_, made) in found.items() if "model" in made["outputs"]
    }
    info = {name: read_model_info(found[name][0]) for name in ("lower", "upper", "further", "whole")}
    assert info["lower"]["base"]["digest"] == digest["base"]
    assert info["lower"]["quantization"]["bnb_4bit_quant_type"] == "nf4"
    assert info["upper"]["base"] == info["further"]["base"] == {"digest": digest["lower"], "ref": "lower"}
    assert info["whole"]["form"] == "full"
    assert set(found["further"][1]["bases"]) == {digest["base"], digest["lower"]}
    bases = {digest[name]: found[name][0] for name in ("base", "lower")}
    one, other = load_model(found["further"][0], bases=bases), load_model(found["whole"][0])
    assert torch.allclose(_logits(one), _logits(other), atol=2e-5, rtol=0)
    scores = found["exam"][1]["metrics"]
    assert scores["further.general.greedy"] == scores["whole.general.greedy"]
