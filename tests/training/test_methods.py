"""Every way to train on the real tiny base: what was trained is what is stored, loaded and merged.

Logits are compared within 2e-5 of values up to about 20: W x + B A x and (W + B A) x are the same sum in another order.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from finery.contract import StageContext
from finery.data.chains import chain_rows
from finery.data.dataset import row_of, write_dataset
from finery.errors import InputError, StageError
from finery.schemas.sft import SftStage
from finery.schemas.training import Lora
from finery.stages import sft
from finery.training import models
from finery.training.added_tokens import add_tokens
from finery.training.encode import Encoded, encode
from finery.training.folders import read_model_info
from finery.training.llama import new_llama
from finery.training.models import load_model, load_tokenizer, merge_adapter, publish_model
from finery.training.quantize import quantize, quantized_layers
from finery.training.sft import train_sft
from finery.training.tokenizers import word_tokenizer

BASE = Path(__file__).parents[2] / "pipelines" / "base"
TOKENS = torch.tensor([[10, 28, 15, 21, 24, 22]])
TOLERANCE = 2e-5
NF4 = {"bnb_4bit_quant_type": "nf4", "bnb_4bit_use_double_quant": True}
FP4 = {"bnb_4bit_quant_type": "fp4", "bnb_4bit_use_double_quant": False}
METHODS: dict[str, dict[str, Any]] = {
    "full": {},
    "lora": {"lora": {"r": 4}},
    "rslora": {"lora": {"r": 4, "use_rslora": True}},
    "dora": {"lora": {"r": 4, "use_dora": True}},
    "qlora-nf4-double": {"lora": {"r": 4}, "quantization": NF4},
    "qlora-fp4": {"lora": {"r": 4}, "quantization": FP4},
    "qdora": {"lora": {"r": 4, "use_dora": True}, "quantization": NF4},
    "some-layers": {"lora": {"r": 4, "target_modules": ["q_proj", "down_proj"], "layers_to_transform": [0, 2]}},
    "some-layers-of-all": {"lora": {"r": 4, "layers_to_transform": [0, 2]}},
    "pattern": {"lora": {"r": 4, "target_modules": r".*layers\.1\..*(q|v)_proj"}, "quantization": NF4},
    "saved-module": {"lora": {"r": 4, "modules_to_save": ["norm"]}},
    "adafactor": {"optim": "adafactor", "lora": {"r": 4}},
    "sgd": {"optim": "sgd"},
    "eager": {"attn_implementation": "eager", "lora": {"r": 4}},
}


def _context(folder: Path, bases: dict[str, Path] | None = None, digest: str = "base") -> StageContext:
    folder.mkdir(parents=True, exist_ok=True)
    return StageContext(
        stage="sft",
        seed=11,
        output_dir=folder / "out",
        checkpoint_dir=folder / "ck",
        metrics_path=folder / "metrics.jsonl",
        base_dir=folder,
        input_refs={"model": digest},
        input_digests={"model": digest},
        bases=bases or {},
    )


def _config(**changes: Any) -> SftStage:
    given = {
        "kind": "sft", "model": "base", "data": "d", "max_steps": 3, "per_device_train_batch_size": 4,
        "learning_rate": 1e-2, "save_steps": 50, "logging_steps": 1, "max_length": 64,
    }  # fmt: skip
    return SftStage.model_validate(given | changes)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    write_dataset(chain_rows(12, seed=1), folder)
    return folder


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The models that stages publish, as they were in memory."""
    seen: list[Any] = []

    def publish(model: Any, *args: Any, **kwargs: Any) -> Any:
        seen.append(model)
        return publish_model(model, *args, **kwargs)

    monkeypatch.setattr(models, "publish_model", publish)
    return seen


def _run(folder: Path, data: Path, model: Path = BASE, **changes: Any) -> tuple[StageContext, Any]:
    more = {name: changes.pop(name) for name in ("bases", "digest") if name in changes}
    context = _context(folder, **more)
    return context, sft.run(_config(**changes), {"model": model, "data": data}, context)


def _logits(model: Any, tokens: torch.Tensor = TOKENS) -> torch.Tensor:
    with torch.no_grad():
        return model.eval()(tokens).logits


def _far(one: torch.Tensor, other: torch.Tensor) -> float:
    return float((one - other).abs().max())


@pytest.mark.parametrize("method", METHODS)
def test_what_was_trained_is_what_is_loaded_and_merged(
    method: str, tmp_path: Path, data: Path, trained: list[Any]
) -> None:
    context, result = _run(tmp_path, data, **METHODS[method])
    folder, bases = context.output("model"), {"base": BASE}
    expected = _logits(trained[0])
    assert _far(expected, _logits(load_model(BASE))) > 1e-2  # it learned something
    loaded = _logits(load_model(folder, bases=bases))
    assert _far(loaded, expected) <= TOLERANCE
    merged = merge_adapter(folder, bases=bases)
    assert not hasattr(merged, "peft_config")
    assert _far(_logits(merged), expected) <= TOLERANCE
    publish_model(merged, load_tokenizer(folder), tmp_path / "merged")
    assert torch.equal(_logits(load_model(tmp_path / "merged")), _logits(merged))
    recorded = read_model_info(folder)["quantization"]
    if "quantization" in METHODS[method]:
        wanted = {**METHODS[method]["quantization"], "bnb_4bit_compute_dtype": "float32", "dtype": "float32"}
        assert recorded == wanted | {"quant_method": "bitsandbytes", "load_in_4bit": True}
        assert quantized_layers(trained[0].get_base_model())
        assert "4 bits" in result.summary["method"]
    else:
        assert recorded is None
    assert "quantization_config" not in json.loads((folder / "config.json").read_text())
    if layers := METHODS[method].get("lora", {}).get("layers_to_transform"):
        adapted = [name for name, _ in trained[0].named_parameters() if ".lora_A." in name]
        assert {int(name.split(".layers.")[1].split(".")[0]) for name in adapted} == set(layers)


@pytest.mark.parametrize("kind", [NF4, FP4])
def test_four_bit_weights_are_used_and_differ_from_the_bases(kind: dict[str, Any]) -> None:
    quantized = quantize(load_model(BASE), _config(lora={}, quantization=kind).quantization)
    layers = quantized_layers(quantized)
    assert len(layers) == 21
    assert all(layer.weight.dtype is torch.uint8 for layer in layers.values())
    assert not any("lm_head" in name for name in layers)
    assert _far(_logits(quantized), _logits(load_model(BASE))) > 1e-2


def test_a_4bit_layer_computes_what_its_dequantized_weights_do() -> None:
    from finery.training.quantize import dequantize

    settings = _config(lora={}, quantization=NF4).quantization
    quantized = quantize(load_model(BASE), settings)
    expected = _logits(quantized)
    plain = dequantize(quantized)
    assert not quantized_layers(plain)
    assert torch.equal(_logits(plain), expected)


@pytest.mark.parametrize("changes", [{"lora": {"r": 4}}, {"lora": {"r": 4}, "quantization": NF4}])
def test_gradient_checkpointing_trains_the_adapter_the_same(
    changes: dict[str, Any], tmp_path: Path, data: Path, trained: list[Any]
) -> None:
    _run(tmp_path / "plain", data, **changes)
    _run(tmp_path / "less", data, gradient_checkpointing=True, **changes)
    assert _far(_logits(trained[0]), _logits(trained[1])) <= TOLERANCE


def test_evaluation_leaves_4bit_training_alone(tmp_path: Path, data: Path, trained: list[Any]) -> None:
    changes = {"lora": {"r": 4}, "quantization": NF4, "max_steps": 4}
    _run(tmp_path / "plain", data, **changes)
    context = _context(tmp_path / "seen")
    inputs = {"model": BASE, "data": data, "eval_data": data}
    result = sft.run(_config(eval_data="d", eval_steps=1, **changes), inputs, context)
    assert result.metrics["eval_loss"] > 0
    assert torch.equal(_logits(trained[0]), _logits(trained[1]))


def test_an_adapter_of_a_4bit_model_stays_in_float32(tmp_path: Path, data: Path, trained: list[Any]) -> None:
    _run(tmp_path, data, lora={"r": 4}, quantization=NF4)
    assert {weight.dtype for weight in trained[0].parameters() if weight.requires_grad} == {torch.float32}
    assert any(
        not torch.equal(weight.float(), weight.bfloat16().float())
        for weight in trained[0].parameters()
        if weight.requires_grad
    )


class Killed(BaseException):
    """As good as kill -9."""


@pytest.mark.parametrize(
    "changes",
    [
        {"lora": {"r": 4, "lora_dropout": 0.1}, "quantization": NF4},
        {"lora": {"r": 4, "modules_to_save": ["norm"]}, "added_tokens": ["<a>"]},
        {"lora": {"r": 4}, "quantization": FP4, "added_tokens": ["<a>"], "optim": "adafactor"},
        {"added_tokens": ["<a>"]},
    ],
)
def test_a_killed_run_goes_on_to_the_same_bytes(
    changes: dict[str, Any], tmp_path: Path, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    changes = changes | {"max_steps": 6, "save_steps": 2}
    whole, _ = _run(tmp_path / "whole", data, **changes)
    said = StageContext.progress

    def progress(self: StageContext, done: int, total: int, note: str = "") -> None:
        said(self, done, total, note)
        if done == 5:
            raise Killed

    with monkeypatch.context() as patched:
        patched.setattr(StageContext, "progress", progress)
        with pytest.raises(Killed):
            _run(tmp_path / "killed", data, **changes)
    again, _ = _run(tmp_path / "killed", data, **changes)
    assert (tmp_path / "killed" / "ck" / "checkpoint-4").is_dir()
    written = [
        {path.name: path.read_bytes() for path in sorted(context.output("model").iterdir())}
        for context in (whole, again)
    ]
    assert written[0] == written[1]


def test_an_untouched_adapter_stops_the_stage_with_the_reason(tmp_path: Path, data: Path) -> None:
    from finery.training.adapters import check_reached, new_adapter

    with pytest.raises(StageError, match="left the adapter"):
        _run(tmp_path, data, lora={"r": 4}, max_steps=1, warmup_steps=1)
    made = new_adapter(load_model(BASE), Lora(r=2), seed=1)
    with pytest.raises(StageError, match=r"left the adapter at 0.*learning_rate"):
        check_reached(made)  # though weight decay may have moved every lora_A
    layers = made.get_base_model().model.layers
    with torch.no_grad():
        layers[1].self_attn.q_proj.lora_B["default"].weight[0] = 1.0
    idle = check_reached(made)
    assert "model.layers.0.self_attn.q_proj" in idle
    assert "model.layers.1.self_attn.q_proj" not in idle


@pytest.mark.parametrize(
    ("lora", "said"),
    [
        ({"target_modules": "q_proj"}, r"matches no module.*\[q_proj\].*linear layers are q_proj, k_proj"),
        ({"target_modules": r".*\.w1"}, r"matches no module.*model\.layers\.0\.self_attn\.q_proj"),
        ({"target_modules": "q_proj("}, "no regular expression"),
        ({"target_modules": ["q_proj", "query"]}, "nothing is named query; .*q_proj, k_proj, v_proj"),
        ({"target_modules": ["self_attn"]}, r"model\.layers\.0\.self_attn is a LlamaAttention"),
        ({"target_modules": ["embed_tokens"]}, "is a Embedding, and adapters go on linear layers"),
        ({"target_modules": ["lm_head"]}, "is the head.*leave lora out"),
        ({"layers_to_transform": [1, 3]}, r"\[3\] of a model with layers 0 to 2"),
        ({"modules_to_save": ["head"]}, "nothing is named head"),
        ({"modules_to_save": ["lm_head"]}, "is tied to the model's other end"),
        ({"target_modules": ["q_proj"], "modules_to_save": ["q_proj"]}, "name it once"),
    ],
)
def test_lora_on_modules_that_are_not_there_is_refused_with_those_that_are(
    lora: dict[str, Any], said: str, tmp_path: Path, data: Path
) -> None:
    with pytest.raises(InputError, match=said):
        _run(tmp_path, data, lora=lora)


def test_a_trained_head_is_saved_whole_where_it_is_not_tied(tmp_path: Path) -> None:
    model, tokenizer = _tiny(tied=False)
    before = model.lm_head.weight.detach().clone()
    run = _train(tmp_path, model, tokenizer, lora={"r": 2, "modules_to_save": ["lm_head"]})
    publish_model(run.model, tokenizer, tmp_path / "out", base={"digest": "tiny", "ref": "tiny"})
    model, _ = _tiny(tied=False)
    publish_model(model, word_tokenizer(WORDS), tmp_path / "tiny")
    merged = merge_adapter(tmp_path / "out", bases={"tiny": tmp_path / "tiny"})
    assert _far(merged.lm_head.weight, before) > 1e-3
    assert _far(_logits(merged, _PROBE), _logits(run.model, _PROBE)) <= 1e-6


WORDS = ["0", "1", "2", "3", "4", "+", "="]
_PROBE = torch.tensor([[3, 8, 4, 9, 4, 1]])
_NEW = ["<think>", "</think>"]


def _tiny(*, tied: bool) -> tuple[Any, Any]:
    """V=10, as case T6 has it."""
    config = SftStageArchitecture
    tokenizer = word_tokenizer(WORDS)
    model = new_llama(config, tokenizer, seed=1)
    if not tied:
        from transformers import LlamaForCausalLM

        settings = model.config
        settings.tie_word_embeddings = False
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(3)
            model = LlamaForCausalLM(settings)
    assert model.get_input_embeddings().weight.shape[0] == len(tokenizer) == 10
    return model, tokenizer


def _rows(tokenizer: Any, marks: list[str]) -> Encoded:
    rows = [{"prompt": f"{a}+{b}=", "completion": f"{''.join(marks)}{a + b}"} for a in range(3) for b in range(3 - a)]
    return encode([{"id": row_of(row), **row} for row in rows], tokenizer, ends=[1], max_length=32)


def _train(folder: Path, model: Any, tokenizer: Any, marks: list[str] | None = None, **changes: Any) -> Any:
    config = _config(**changes)
    ids = add_tokens(model, tokenizer, marks or [], seed=5)
    return train_sft(
        model.train(),
        tokenizer,
        config,
        _context(folder / "run"),
        data=_rows(tokenizer, marks or []),
        lora=config.lora,
        token_ids=ids if config.lora else (),
    )


@pytest.mark.parametrize("method", ["full", "lora", "qlora"])
@pytest.mark.parametrize("tied", [True, False])
def test_case_T6_added_tokens_are_trained_saved_and_merged(tmp_path: Path, method: str, tied: bool) -> None:
    model, tokenizer = _tiny(tied=tied)
    publish_model(model, tokenizer, tmp_path / "tiny")
    if method == "qlora":
        model = quantize(model, _config(lora={}, quantization=NF4).quantization)
    lora = {} if method == "full" else {"lora": {"r": 2}}
    run = _train(tmp_path, model, tokenizer, _NEW, **lora)
    record = None
    if method == "qlora":
        from finery.training.quantize import quantization_record

        record = quantization_record(_config(lora={}, quantization=NF4).quantization, "float32")
    adapted = method != "full"
    base = {"digest": "tiny", "ref": "tiny"} if adapted else None
    publish_model(run.model, tokenizer, tmp_path / "out", base=base, quantization=record)
    expected = _logits(run.model, _PROBE)
    assert expected.shape[-1] == 12

    bases = {"tiny": tmp_path / "tiny"}
    reloaded = load_model(tmp_path / "out", bases=bases)
    merged = merge_adapter(tmp_path / "out", bases=bases)
    publish_model(merged, load_tokenizer(tmp_path / "out"), tmp_path / "merged")
    again = load_model(tmp_path / "merged")
    for other in (reloaded, merged, again):
        assert _far(_logits(other, _PROBE), expected) <= 1e-6
    for folder in ("out", "merged"):
        assert json.loads((tmp_path / folder / "config.json").read_text())["vocab_size"] == 12
        assert len(load_tokenizer(tmp_path / folder)) == 12
    assert again.get_input_embeddings().weight.shape[0] == again.get_output_embeddings().weight.shape[0] == 12
    assert (again.get_input_embeddings().weight is again.get_output_embeddings().weight) == tied

    fresh, fresh_tokenizer = _tiny(tied=tied)
    ids = add_tokens(fresh, fresh_tokenizer, _NEW, seed=5)
    assert ids == [10, 11]
    for end in ("get_input_embeddings", "get_output_embeddings"):
        start, now = getattr(fresh, end)().weight, getattr(again, end)().weight
        assert all(_far(start[row], now[row]) > 1e-3 for row in ids)
        if adapted:
            assert torch.equal(start[:10], now[:10])  # the rest of the vocabulary is the base's


def test_an_added_token_that_is_there_already_or_never_seen_is_told(tmp_path: Path, data: Path) -> None:
    with pytest.raises(InputError, match=r"in the vocabulary already: '<eos>' \(id 1\)"):
        _run(tmp_path / "there", data, added_tokens=["<new>", "<eos>"])
    context, _ = _run(tmp_path / "unseen", data, added_tokens=["<new>"], lora={"r": 2})
    assert "no row holds '<new>'" in context.metrics_path.read_text()


class SftStageArchitecture:
    """The fields of `architecture`, smaller than the schema allows."""

    hidden_size, num_hidden_layers, num_attention_heads = 16, 2, 2
    intermediate_size, max_position_embeddings = 64, 64
    rope_theta, initializer_range = 10000.0, 0.05


@pytest.mark.slow
def test_grpo_in_4_bits_sits_on_the_dequantized_base(tmp_path: Path, data: Path, trained: list[Any]) -> None:
    from finery.schemas.grpo import GrpoStage
    from finery.stages import grpo

    (tmp_path / "r.py").write_text(
        "def r(completions, **columns):\n    return [sum(map(ord, text)) % 7 / 7 for text in completions]\n"
    )
    config = GrpoStage.model_validate(
        {
            "kind": "grpo", "model": "base", "data": "d", "max_steps": 2, "learning_rate": 1e-2, "logging_steps": 1,
            "per_device_train_batch_size": 8, "num_generations": 4, "beta": 0.1, "lora": {"r": 4}, "quantization": FP4,
            "sampling": {"max_completion_length": 8, "temperature": 2.0},
            "rewards": [{"kind": "python", "file": "./r.py", "function": "r"}],
        }
    )  # fmt: skip
    context = _context(tmp_path / "run")
    grpo.run(config, {"model": BASE, "data": data, "rewards.0.file": tmp_path / "r.py"}, context)
    folder = context.output("model")
    assert read_model_info(folder)["quantization"]["bnb_4bit_quant_type"] == "fp4"
    expected = _logits(trained[0])
    for model in (load_model(folder, bases={"base": BASE}), merge_adapter(folder, bases={"base": BASE})):
        assert _far(_logits(model), expected) <= TOLERANCE
    assert _far(expected, _logits(quantize(load_model(BASE), config.quantization))) > 1e-3
