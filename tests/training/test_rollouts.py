"""GRPO on vLLM, as far as a machine without a GPU can tell: what is refused, what is handed over, what is asked for.

vLLM itself is not here, so one class stands in for TRL's VLLMGeneration: it takes the same arguments and draws from
the weights that it was handed.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import ValidationError
from transformers import AutoModelForCausalLM, Qwen2Config

from finery.errors import InputError
from finery.rewards.rewardset import RewardSet
from finery.schemas.grpo import GrpoStage
from finery.schemas.training import Lora
from finery.training import arguments, rollouts
from finery.training.adapters import new_adapter
from finery.training.grpo import PlannedTrainer, grpo_arguments
from finery.training.models import load_model, load_tokenizer
from finery.training.rollouts import require_vllm, start_from, vllm_arguments, whole_weights
from finery.training.sft import start
from tests.training.test_grpo import BASE, ROWS, _config, _context, _plan

GPU: dict[str, Any] = {
    "use_vllm": True, "resources": {"gpus": 1}, "sampling": {"max_completion_length": 20, "temperature": 2.0},
}  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"use_vllm": True}, r"vLLM needs a GPU \(resources.gpus: 1\); on a CPU leave it out"),
        ({"vllm_max_model_length": 64}, "is for use_vllm: true"),
        ({**GPU, "lora": {}, "quantization": {}}, "not with use_vllm: TRL would round the adapter into the 4 bits"),
        ({**GPU, "sampling": {"top_p": 0.9}}, "those of the tokens that are left"),
        ({**GPU, "sampling": {"top_k": 20}}, "vllm_importance_sampling_correction: false"),
        # vLLM would draw at 0.01 and the loss would not know; above 2 it would end the stage at the first completion
        ({**GPU, "sampling": {"temperature": 0.001}}, "0.001 is outside what vLLM draws at, 0.01 to 2.0"),
        ({**GPU, "sampling": {"temperature": 2.5}}, "2.5 is outside what vLLM draws at"),
        ({**GPU, "resources": {"gpus": 2}}, "grpo trains on one GPU; give 1, not 2"),
        ({**GPU, "vllm_mode": "server"}, "colocate"),
        ({**GPU, "vllm_gpu_memory_utilization": 1.0}, "less than 1"),
    ],
)
def test_the_schema_refuses_by_name(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        _config(**changes)


def test_an_interpreter_without_vllm_is_named_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rollouts, "find_spec", lambda name: None)
    with pytest.raises(
        InputError, match=r"use_vllm: .*python.* has no vLLM.*pip install.*runtime: \{process: \{python"
    ):
        require_vllm()


def test_every_argument_is_written_out_and_room_is_made_for_the_longest_prompt() -> None:
    given = vllm_arguments(_config(**GPU, vllm_gpu_memory_utilization=0.4), [5, 11])
    assert given["vllm_max_model_length"] == 11 + 20
    assert given["vllm_gpu_memory_utilization"] == 0.4
    assert given["vllm_mode"] == "colocate" and given["use_vllm"] is True
    assert given["vllm_importance_sampling_mode"] == "sequence_mask"
    assert given["vllm_importance_sampling_clip_max"] == 3.0
    # every knob of TRL's engine but those of a server, and the deprecated one, is set here
    from trl import GRPOConfig

    others = ("vllm_server_", "vllm_group_port", "vllm_importance_sampling_cap")
    theirs = {name for name in GRPOConfig.__dataclass_fields__ if "vllm" in name and not name.startswith(others)}
    assert theirs == set(given)
    assert vllm_arguments(_config(), [5]) == {"use_vllm": False}
    with pytest.raises(InputError, match=r"vllm_max_model_length: 30 is less .* 11 tokens.* give 31 or more"):
        vllm_arguments(_config(**GPU, vllm_max_model_length=30), [5, 11])
    assert "vllm" in _config(**GPU).packages_in_use()
    assert "vllm" not in _config().packages_in_use()


def _qwen(dtype: torch.dtype, tied: bool) -> Any:
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=64, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=64, tie_word_embeddings=tied,
    )  # fmt: skip
    return AutoModelForCausalLM.from_config(config, dtype=dtype)


def _shake(model: Any) -> None:
    """As if the adapter had learned something."""
    torch.manual_seed(1)
    for name, parameter in model.named_parameters():
        if "lora_" in name or "modules_to_save.default" in name:
            parameter.data.add_(torch.randn_like(parameter) * 0.1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    "lora",
    [{}, {"use_rslora": True}, {"use_dora": True}, {"target_modules": ["q_proj"], "modules_to_save": ["lm_head"]}],
)
def test_an_adapter_is_handed_over_as_the_model_it_amounts_to(lora: dict[str, Any], dtype: torch.dtype) -> None:
    model = new_adapter(_qwen(dtype, tied=False), Lora.model_validate({"r": 4} | lora), seed=0)
    _shake(model)
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    handed = {name: weight.clone() for name, weight in whole_weights(model)}
    after = model.state_dict()
    assert before.keys() == after.keys()
    assert all(torch.equal(weight, after[name]) for name, weight in before.items())
    assert not any(getattr(module, "merged_adapters", None) for module in model.modules())

    whole = _qwen(dtype, tied=False)
    assert handed.keys() == dict(whole.named_parameters()).keys()
    assert all(weight.dtype is dtype for weight in handed.values())
    ids = torch.arange(20)[None]
    with torch.no_grad():
        wanted = model(input_ids=ids).logits
        start = whole(input_ids=ids).logits
        whole.load_state_dict(handed)
        seen = whole(input_ids=ids).logits
    assert (start - wanted).abs().max() > 0.01
    tolerance = 1e-5 if dtype is torch.float32 else 0.05
    assert (seen - wanted).abs().max() < tolerance

    merged = model.float().merge_and_unload().to(dtype).state_dict()
    assert all(torch.equal(merged[name], weight) for name, weight in handed.items())


def test_trl_would_move_the_frozen_weights_on_each_step() -> None:
    """Why `whole_weights` is not TRL's walk: the day this fails, it can go."""
    model = new_adapter(_qwen(torch.bfloat16, tied=True), Lora(r=4), seed=0)
    _shake(model)
    before = model.get_base_model().model.layers[0].mlp.up_proj.base_layer.weight.clone()
    model.merge_adapter()
    model.unmerge_adapter()
    assert not torch.equal(before, model.get_base_model().model.layers[0].mlp.up_proj.base_layer.weight)


def test_a_whole_model_is_handed_over_as_it_is() -> None:
    model = _qwen(torch.float32, tied=True)
    handed = dict(whole_weights(model))
    assert handed.keys() == dict(model.named_parameters()).keys()
    assert "lm_head.weight" not in handed  # vLLM ties it too
    assert all(handed[name].data_ptr() == parameter.data_ptr() for name, parameter in model.named_parameters())


def test_tokens_that_the_folder_lacks_are_refused() -> None:
    model = load_model(BASE, trainable=True)
    start_from(model, BASE)
    assert model.name_or_path == str(BASE)
    model.resize_token_embeddings(model.config.vocab_size + 3)
    with pytest.raises(InputError, match="an adapter with tokens of its own, and base, from which vLLM starts"):
        start_from(model, BASE)


class Engine:
    """Stands in for TRL's VLLMGeneration: draws from a copy of the folder that it starts from, as it was last synced."""

    made: Engine

    def __init__(self, model: Any, **given: Any) -> None:
        self.given, self.generation_kwargs = given, given["generation_kwargs"] or {}
        self.model = model
        self.own = load_model(Path(model.name_or_path))
        self.asked: list[list[list[int]]] = []
        self.synced: list[dict[str, torch.Tensor]] = []
        torch.manual_seed(0)  # as vLLM does, whatever the seed
        Engine.made = self

    def _iter_named_params(self) -> Any:
        raise AssertionError("TRL's walk, which merges in place")

    def sync_weights(self) -> None:
        self.synced.append({name: weight.clone() for name, weight in self._iter_named_params()})
        self.own.load_state_dict(self.synced[-1], strict=False)

    def generate(self, prompts: list[list[int]], images: None, num_generations: int, profiler: Any) -> Any:
        self.asked.append(prompts)
        stops, completions, logprobs = self.generation_kwargs["stop_token_ids"], [], []
        with torch.no_grad():
            for prompt in prompts:
                ids, logs = list(prompt), []
                while len(ids) - len(prompt) < self.given["max_completion_length"] and ids[-1] not in stops:
                    logits = self.own(input_ids=torch.tensor([ids])).logits[0, -1] / self.given["temperature"]
                    ids.append(int(torch.multinomial(logits.softmax(-1), 1)))
                    logs.append([float(logits.log_softmax(-1)[ids[-1]])])
                completions.append(ids[len(prompt) :])
                logprobs.append(logs)
        return prompts, completions, logprobs, None


def _even(completion_ids: list[list[int]], **_: Any) -> list[float]:
    """A reward that differs within every group."""
    return [float(sum(ids) % 2 == 0) for ids in completion_ids]


def _trained(folder: Path, monkeypatch: pytest.MonkeyPatch, *, seed: int = 3, lora: Lora | None = None) -> Any:
    """A run of three steps on the stand-in; the arguments of a GPU, on the CPU."""
    monkeypatch.setattr("trl.trainer.grpo_trainer.VLLMGeneration", Engine)
    monkeypatch.setattr(arguments, "on_cpu", lambda config: True)
    config = _config(**GPU, max_steps=3, learning_rate=1e-2)
    context = _context(folder)
    object.__setattr__(context, "seed", seed)
    model, tokenizer = load_model(BASE, trainable=True), load_tokenizer(BASE)
    start_from(model, BASE)
    if lora:
        model = new_adapter(model, lora, seed=seed)
    trainer = PlannedTrainer(
        model, rows=ROWS, rewards=RewardSet(["even"], [_even], [1.0], [1.0], 0, [False]), plan=_plan(config, context, ROWS),
        args=grpo_arguments(config, context, model, [1.0], [len(tokenizer(row["prompt"])["input_ids"]) for row in ROWS]),
        processing_class=tokenizer,
    )  # fmt: skip
    keeper, _ = start(context)
    trainer.attach(context, keeper)
    trainer.train_from(None)
    return trainer


@pytest.mark.parametrize("lora", [None, Lora(r=4)])
def test_the_policy_that_draws_is_the_one_that_trains(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lora: Lora | None
) -> None:
    trainer = _trained(tmp_path, monkeypatch, lora=lora)
    engine, tokenizer = Engine.made, load_tokenizer(BASE)
    known = [tokenizer(row["prompt"], add_special_tokens=False)["input_ids"] for row in ROWS]
    assert len(engine.asked) == 3
    assert all(prompt in known for prompts in engine.asked for prompt in prompts)
    # one sync a step, of the weights as they are by then
    assert len(engine.synced) == 3
    assert any(
        not torch.equal(a, b) for a, b in zip(engine.synced[0].values(), engine.synced[-1].values(), strict=True)
    )
    logged = [entry for entry in trainer.state.log_history if "sampling/sampling_logp_difference/max" in entry]
    assert len(logged) == 3
    assert all(entry["sampling/sampling_logp_difference/max"] < 1e-3 for entry in logged)
    assert {name: engine.given[name] for name in ("temperature", "top_p", "top_k", "repetition_penalty")} == {
        "temperature": 2.0, "top_p": 1.0, "top_k": 0, "repetition_penalty": 1.0,
    }  # fmt: skip
    assert engine.generation_kwargs == {"stop_token_ids": [tokenizer.eos_token_id], "ignore_eos": True}
    ended = [sample for sample in trainer.samples if not sample["truncated"]]
    assert ended and all(tokenizer.eos_token not in sample["completion"] for sample in ended)


def test_draws_follow_the_stages_seed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Although the engine seeds the process with 0 when it starts."""
    drawn = [
        [
            (sample["prompt"], sample["completion"])
            for sample in _trained(tmp_path / name, monkeypatch, seed=seed).samples
        ]
        for name, seed in (("a", 3), ("b", 3), ("c", 4))
    ]
    assert drawn[0] == drawn[1]
    assert drawn[0] != drawn[2]


def test_trl_still_has_what_is_steered() -> None:
    import inspect

    from trl.generation.vllm_generation import VLLMGeneration

    assert inspect.isgeneratorfunction(VLLMGeneration._iter_named_params)
    assert "self._iter_named_params()" in inspect.getsource(VLLMGeneration.sync_weights)
    assert "generation_kwargs.update(self.generation_kwargs)" in inspect.getsource(VLLMGeneration.generate)
    assert isinstance(_config(**GPU), GrpoStage) and sys.modules.get("vllm") is None
