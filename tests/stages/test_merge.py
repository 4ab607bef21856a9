"""The merge stage end to end on tiny random models, against values computed from their tensors."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

from finery.contract import StageContext, StageResult
from finery.errors import InputError, StageError
from finery.schemas.merge import MergeStage
from finery.schemas.reference import uses
from finery.stages.merge import run
from finery.training.merging import drop, trim
from finery.training.models import load_model, load_tokenizer, publish_model

BASE = Path(__file__).parents[2] / "pipelines" / "base"
TOKENS = torch.tensor([[10, 28, 15, 21, 24, 22]])
TEMPLATE = "{{ messages[0].content }}"
Made = dict[str, Path]


class Merge:
    """One run of the stage on models known by name; a model's digest is its name unless `same` says otherwise."""

    def __init__(self, folder: Path, models: Made) -> None:
        self.folder = folder
        self.models = models
        self.out = folder / "outputs" / "model"

    def run(self, *, seed: int = 7, same: dict[str, str] | None = None, **config: Any) -> StageResult:
        self.folder.mkdir(parents=True, exist_ok=True)
        stage = MergeStage.model_validate({"kind": "merge", **config})
        refs = {use.field: use.text for use in uses(stage)}
        context = StageContext(
            stage="merged", seed=seed, output_dir=self.folder / "outputs", checkpoint_dir=self.folder / "checkpoints",
            metrics_path=self.folder / "metrics.jsonl", base_dir=self.folder, input_refs=refs,
            input_digests={field: (same or {}).get(ref, ref) for field, ref in refs.items()}, bases=self.models,
        )  # fmt: skip
        return run(stage, {field: self.models[ref] for field, ref in refs.items()}, context)

    @property
    def weights(self) -> dict[str, Tensor]:
        return load_file(self.out / "model.safetensors")

    @property
    def warnings(self) -> str:
        events = [json.loads(line) for line in (self.folder / "metrics.jsonl").read_text().splitlines()]
        return "\n".join(event["message"] for event in events if event["type"] == "warning")


def llama(seed: int, **changes: Any) -> LlamaForCausalLM:
    """The shape of the tiny base, smaller, with random weights."""
    config = json.loads((BASE / "config.json").read_text())
    small = {
        "hidden_size": 16,
        "head_dim": 8,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "intermediate_size": 24,
    }
    torch.manual_seed(seed)
    model = LlamaForCausalLM(LlamaConfig(**{**config, **small, **changes})).eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight.copy_(torch.randn_like(weight))
    return model


@pytest.fixture
def models(tmp_path: Path) -> Made:
    made = {}
    for seed, name in enumerate(("base", "sft", "grpo", "third")):
        made[name] = tmp_path / "models" / name
        publish_model(llama(seed), load_tokenizer(BASE), made[name])
    return made


@pytest.fixture
def merge(tmp_path: Path, models: Made) -> Merge:
    return Merge(tmp_path / "stage", models)


def tensors(models: Made, *names: str) -> list[dict[str, Tensor]]:
    return [load_file(models[name] / "model.safetensors") for name in names]


def close(merged: dict[str, Tensor], expected: Callable[[str], Tensor]) -> bool:
    return all(torch.allclose(weight, expected(name), atol=1e-6) for name, weight in merged.items())


def test_linear_is_the_weighted_mean_and_a_whole_model(merge: Merge, models: Made) -> None:
    result = merge.run(method="linear", models=[{"model": "sft", "weight": 0.5}, {"model": "grpo", "weight": 1.5}])
    sft, grpo = tensors(models, "sft", "grpo")
    assert merge.weights.keys() == sft.keys()
    assert close(merge.weights, lambda name: (0.5 * sft[name] + 1.5 * grpo[name]) / 2)
    assert sorted(path.name for path in merge.out.iterdir()) == [
        "config.json", "generation_config.json", "model.json", "model.safetensors", "tokenizer.json",
        "tokenizer_config.json",
    ]  # fmt: skip
    loaded = load_model(merge.out)
    assert loaded.lm_head.weight.data_ptr() == loaded.model.embed_tokens.weight.data_ptr()  # tied stays tied
    assert load_tokenizer(merge.out)("Q:1+2")["input_ids"] == load_tokenizer(BASE)("Q:1+2")["input_ids"]
    assert json.loads((merge.out / "model.json").read_text())["form"] == "full"
    assert result.summary["headline"] == "linear of 0.5 sft, 1.5 grpo"
    assert merge.warnings == ""


def test_task_arithmetic_adds_and_negates(merge: Merge, models: Made) -> None:
    merge.run(
        method="task_arithmetic", base="base", models=["sft", {"model": "grpo", "weight": -0.5}], **{"lambda": 0.7}
    )
    base, sft, grpo = tensors(models, "base", "sft", "grpo")
    assert close(
        merge.weights, lambda name: base[name] + 0.7 * ((sft[name] - base[name]) - 0.5 * (grpo[name] - base[name]))
    )


def test_ties_by_the_papers_algorithm(merge: Merge, models: Made) -> None:
    merge.run(method="ties", base="base", density=0.3, models=["sft", "grpo", {"model": "third", "density": 0.9}])
    base, *others = tensors(models, "base", "sft", "grpo", "third")

    def expected(name: str) -> Tensor:
        vectors = torch.stack(
            [trim(other[name] - base[name], density) for other, density in zip(others, (0.3, 0.3, 0.9), strict=True)]
        )
        sign = torch.where(vectors.sum(0) >= 0, 1.0, -1.0)
        agree = (vectors.sign() == sign).float()
        return base[name] + (vectors * agree).sum(0) / agree.sum(0).clamp(min=1)

    assert close(merge.weights, expected)
    assert not close(merge.weights, lambda name: base[name])


def test_dare_masks_follow_seed_position_and_name(merge: Merge, models: Made, tmp_path: Path) -> None:
    merge.run(method="dare_linear", base="base", density=0.5, models=["sft", "grpo"], seed=11)
    base, sft, grpo = tensors(models, "base", "sft", "grpo")

    def expected(name: str) -> Tensor:
        return base[name] + sum(
            drop(model[name] - base[name], 0.5, seed=11, position=position, name=name)
            for position, model in enumerate((sft, grpo))
        )

    assert close(merge.weights, expected)
    again, other = Merge(tmp_path / "again", models), Merge(tmp_path / "other", models)
    for stage, seed in ((again, 11), (other, 12)):
        stage.run(method="dare_linear", base="base", density=0.5, models=["sft", "grpo"], seed=seed)
    first = {path.name: path.read_bytes() for path in merge.out.iterdir()}
    assert {path.name: path.read_bytes() for path in again.out.iterdir()} == first
    assert (other.out / "model.safetensors").read_bytes() != first["model.safetensors"]


def test_case_M4_shards_change_no_number(
    merge: Merge, models: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    merge.run(method="dare_ties", base="base", density=0.4, models=["sft", "grpo"])
    monkeypatch.setattr("finery.training.weights.SHARD_BYTES", 4000)
    parts = Merge(tmp_path / "parts", models)
    parts.run(method="dare_ties", base="base", density=0.4, models=["sft", "grpo"])
    index = json.loads((parts.out / "model.safetensors.index.json").read_text())
    shards = sorted(set(index["weight_map"].values()))
    assert len(shards) > 3
    assert shards[0] == f"model-00001-of-{len(shards):05d}.safetensors"
    together: dict[str, Tensor] = {}
    for shard in shards:
        together |= load_file(parts.out / shard)
    assert together.keys() == merge.weights.keys()
    assert all(torch.equal(weight, merge.weights[name]) for name, weight in together.items())
    assert index["metadata"]["total_size"] == sum(weight.numel() * 4 for weight in together.values())
    assert torch.equal(load_model(parts.out)(TOKENS).logits, load_model(merge.out)(TOKENS).logits)


def test_case_M2_result_is_rounded_once_to_the_type_of_the_base_or_the_one_asked_for(
    models: Made, tmp_path: Path
) -> None:
    low = {}
    for name in ("base", "sft", "grpo"):
        low[name] = tmp_path / "low" / name
        publish_model(load_model(models[name], dtype="bfloat16"), load_tokenizer(BASE), low[name])
    plain, asked = Merge(tmp_path / "plain", low), Merge(tmp_path / "asked", low)
    plain.run(method="ties", base="base", models=["sft", "grpo"])
    asked.run(method="ties", base="base", models=["sft", "grpo"], dtype="float32")
    assert {weight.dtype for weight in plain.weights.values()} == {torch.bfloat16}
    assert {weight.dtype for weight in asked.weights.values()} == {torch.float32}
    assert all(torch.equal(asked.weights[name].bfloat16(), weight) for name, weight in plain.weights.items())
    assert json.loads((plain.out / "config.json").read_text())["dtype"] == "bfloat16"
    assert load_model(plain.out).dtype is torch.bfloat16


def test_repeated_model_is_dropped_with_its_weight_and_said(merge: Merge, models: Made) -> None:
    parts = [{"model": "sft", "weight": 1.0}, {"model": "grpo", "weight": 3.0}, {"model": "third", "weight": 1.0}]
    result = merge.run(method="linear", models=parts, same={"grpo": "sft"})
    sft, third = tensors(models, "sft", "third")
    assert close(merge.weights, lambda name: (sft[name] + third[name]) / 2)
    assert "grpo is the same model as sft; it is left out with its weight 3" in merge.warnings
    assert result.metrics["models"] == 2


def test_dare_mask_of_a_model_stays_when_one_before_it_is_dropped(merge: Merge, models: Made) -> None:
    merge.run(
        method="dare_linear", base="base", density=0.5, models=["sft", "grpo", "third"], same={"grpo": "sft"}, seed=1
    )
    base, sft, third = tensors(models, "base", "sft", "third")
    name = "model.norm.weight"
    expected = base[name] + sum(
        drop(model[name] - base[name], 0.5, seed=1, position=position, name=name)
        for position, model in ((0, sft), (2, third))
    )
    assert torch.allclose(merge.weights[name], expected, atol=1e-6)


def test_model_that_is_the_base_adds_nothing_and_is_said(merge: Merge, models: Made) -> None:
    merge.run(method="task_arithmetic", base="base", models=["sft"], same={"sft": "base"})
    assert "sft is the base itself; its task vector is 0" in merge.warnings


def test_every_difference_is_named_at_once_and_nothing_is_written(merge: Merge, models: Made, tmp_path: Path) -> None:
    publish_model(llama(5, intermediate_size=32, tie_word_embeddings=False), load_tokenizer(BASE), models["grpo"])
    publish_model(llama(6, num_hidden_layers=2), load_tokenizer(BASE), models["third"])
    tokenizer = json.loads((models["sft"] / "tokenizer.json").read_text())
    vocabulary = tokenizer["model"]["vocab"]
    vocabulary["1"], vocabulary["2"] = vocabulary["2"], vocabulary["1"]
    (models["sft"] / "tokenizer.json").write_text(json.dumps(tokenizer))
    (models["sft"] / "model.json").unlink()
    with pytest.raises(InputError) as caught:
        merge.run(method="ties", base="base", models=["sft", "grpo", "third"])
    message = str(caught.value)
    for text in (
        "sft has another tokenizer than base",
        "grpo has tie_word_embeddings False, base has True",
        "grpo has tensors that base lacks: lm_head.weight",
        "model.layers.0.mlp.gate_proj.weight is (32, 16) in grpo and (24, 16) in base",
        "model.layers.2.mlp.down_proj.weight is (16, 32) in grpo and (16, 24) in base",
        "third lacks tensors of base: model.layers.2.input_layernorm.weight",
    ):
        assert text in message
    assert not merge.out.exists()


def test_case_M6_head_stored_twice_stays_tied_and_one_that_differs_is_refused(merge: Merge, models: Made) -> None:
    path = models["sft"] / "model.safetensors"
    weights = {name: weight.clone() for name, weight in load_file(path).items()}
    embedding = weights["model.embed_tokens.weight"]
    save_file({**weights, "lm_head.weight": embedding.clone()}, path, {"format": "pt"})
    merge.run(method="linear", models=["sft", "grpo"])
    assert "lm_head.weight" not in merge.weights
    save_file({**weights, "lm_head.weight": embedding + 1}, path, {"format": "pt"})
    with pytest.raises(InputError, match="ties the head to the embedding"):
        merge.run(method="linear", models=["sft", "grpo"])


def test_case_M6_untied_head_is_merged(tmp_path: Path) -> None:
    models = {name: tmp_path / name for name in ("sft", "grpo")}
    for seed, name in enumerate(models):
        publish_model(llama(seed, tie_word_embeddings=False), load_tokenizer(BASE), models[name])
    merge = Merge(tmp_path / "stage", models)
    merge.run(method="linear", models=["sft", "grpo"])
    sft, grpo = tensors(models, "sft", "grpo")
    assert torch.allclose(
        merge.weights["lm_head.weight"], (sft["lm_head.weight"] + grpo["lm_head.weight"]) / 2, atol=1e-6
    )
    assert not torch.equal(merge.weights["lm_head.weight"], merge.weights["model.embed_tokens.weight"])


def test_case_M6_missing_shard_is_named_before_anything_is_written(
    merge: Merge, models: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("finery.training.publish.SHARD_SIZE", "6KB")
    publish_model(llama(1), load_tokenizer(BASE), models["sft"])
    lost = sorted(models["sft"].glob("model-*.safetensors"))[1]
    lost.unlink()
    with pytest.raises(InputError, match=lost.name):
        merge.run(method="linear", models=["grpo", "sft"])
    assert not merge.out.exists()


def test_case_S3_pickled_member_is_refused(merge: Merge, models: Made) -> None:
    (models["sft"] / "model.safetensors").unlink()
    shutil.copy(Path(__file__).parents[1] / "cases" / "S3-pytorch_model.bin", models["sft"] / "pytorch_model.bin")
    with pytest.raises(InputError, match=r"pytorch_model\.bin"):
        merge.run(method="linear", models=["grpo", "sft"])


@pytest.mark.parametrize(
    ("config", "says"),
    [
        (
            {"method": "linear", "models": [{"model": "sft", "weight": 1.0}, {"model": "grpo", "weight": -1.0}]},
            "sum to 0",
        ),
        (
            {
                "method": "ties",
                "base": "base",
                "models": [{"model": "sft", "weight": 2.0}, {"model": "grpo", "weight": -1.0}],
            },
            "turn its sign",
        ),
    ],
)
def test_weights_without_a_mean_are_refused(merge: Merge, config: Any, says: str) -> None:
    with pytest.raises(InputError, match=says):
        merge.run(**config)


def test_number_beyond_the_results_type_is_an_error(merge: Merge) -> None:
    with pytest.raises(StageError, match="not finite"):
        merge.run(method="task_arithmetic", base="base", models=["sft"], dtype="float16", **{"lambda": 1e6})


def test_chat_template_comes_from_the_first_model(models: Made, tmp_path: Path) -> None:
    for name in ("sft", "grpo"):
        tokenizer = load_tokenizer(BASE)
        tokenizer.chat_template = TEMPLATE + ("!" if name == "grpo" else "")
        publish_model(load_model(models[name]), tokenizer, models[name])
    merge = Merge(tmp_path / "stage", models)
    merge.run(method="ties", base="base", models=["sft", "grpo"])
    assert load_tokenizer(merge.out).chat_template == TEMPLATE
    assert "the chat template is that of sft; it differs in grpo" in merge.warnings


def add_adapter(models: Made, name: str, seed: int, **options: Any) -> None:
    """A trained-looking adapter on `base`."""
    from peft import LoraConfig, get_peft_model

    arguments = {"r": 3, "lora_alpha": 5, "target_modules": ["q_proj", "up_proj"], "task_type": "CAUSAL_LM", **options}
    torch.manual_seed(seed)
    model = get_peft_model(load_model(models["base"]), LoraConfig(**arguments))
    with torch.no_grad():
        for key, weight in model.named_parameters():
            if "lora_" in key or "modules_to_save.default" in key:
                weight.copy_(torch.randn_like(weight) * 0.3)
    models[name] = models["base"].parent / name
    publish_model(model, load_tokenizer(BASE), models[name], base={"digest": "base", "ref": "base"})


ADAPTERS: dict[str, dict[str, Any]] = {
    "plain": {},
    "rslora": {"use_rslora": True},
    "patterns": {"rank_pattern": {"layers.1.self_attn.q_proj": 2}, "alpha_pattern": {"up_proj": 9}},
    "whole norms": {"modules_to_save": ["norm"]},
    "dora": {"use_dora": True},
}


@pytest.mark.parametrize("options", ADAPTERS.values(), ids=ADAPTERS)
def test_case_M5_adapters_merge_as_what_they_compute(merge: Merge, models: Made, options: dict[str, Any]) -> None:
    add_adapter(models, "one", 1, **options)
    add_adapter(models, "two", 2, r=2)
    merge.run(
        method="task_arithmetic", base="base", models=[{"model": "one", "weight": 1.0}, {"model": "two", "weight": 0.0}]
    )
    alone = load_model(models["one"], bases=models)
    assert torch.allclose(load_model(merge.out)(TOKENS).logits, alone(TOKENS).logits, atol=1e-3)
    assert not torch.allclose(load_model(models["base"])(TOKENS).logits, alone(TOKENS).logits, atol=0.1)
    merge.run(method="linear", models=["one", "two"])
    one, two = (load_model(models[name], bases=models).merge_and_unload().state_dict() for name in ("one", "two"))
    assert close(merge.weights, lambda name: (one[name] + two[name]) / 2)
    assert json.loads((merge.out / "model.json").read_text())["form"] == "full"
    assert not (merge.out / "adapter_config.json").exists()


def test_adapter_that_does_not_fit_its_base_is_refused_with_the_tensors(merge: Merge, models: Made) -> None:
    add_adapter(models, "one", 1)
    publish_model(llama(0, hidden_size=32, head_dim=16), load_tokenizer(BASE), models["base"])
    with pytest.raises(InputError, match=r"does not fit its base.*model\.layers\.0\.mlp\.up_proj\.weight \(24, 32\)"):
        merge.run(method="linear", models=["one"])
