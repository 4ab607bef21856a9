"""The sft stage as the engine calls it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from finery.contract import StageContext
from finery.data.chains import chain_rows
from finery.data.dataset import write_dataset
from finery.data.skills import skill_rows
from finery.errors import InputError, StageError
from finery.schemas.sft import SftStage
from finery.stages import sft
from finery.training.models import load_model, load_tokenizer, read_model_info

BASE = Path(__file__).parents[2] / "pipelines" / "base"
TEMPLATE = (
    "{% for m in messages %}{{ m.role[0] | replace('u', 'Q') | replace('a', 'A') }}:{{ m.content }}"
    "{% if m.role == 'assistant' %}{{ eos_token }}{% endif %}\n{% endfor %}"
    "{% if add_generation_prompt %}A:{% endif %}"
)


def _context(folder: Path) -> StageContext:
    folder.mkdir(parents=True, exist_ok=True)
    return StageContext(
        stage="sft",
        seed=2**40 + 1,
        output_dir=folder / "out",
        checkpoint_dir=folder / "ck",
        metrics_path=folder / "metrics.jsonl",
        base_dir=folder,
        input_refs={"model": "base"},
        input_digests={"model": "d" * 64},
    )


def _config(**changes: Any) -> SftStage:
    given = {
        "kind": "sft", "model": "base", "data": "d", "max_steps": 3, "per_device_train_batch_size": 4,
        "learning_rate": 1e-3, "save_steps": 2, "logging_steps": 1, "max_length": 64,
    }  # fmt: skip
    return SftStage.model_validate(given | changes)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("data")
    write_dataset(chain_rows(12, seed=1), root / "data")
    write_dataset(skill_rows(12, seed=2), root / "replay")
    return {"model": BASE, "data": root / "data", "replay.data": root / "replay"}


def _warnings(context: StageContext) -> list[str]:
    events = [json.loads(line) for line in context.metrics_path.read_text().splitlines()]
    return [event["message"] for event in events if event["type"] == "warning"]


def test_a_full_model_is_trained_and_published_the_same_each_time(tmp_path: Path, folders: dict[str, Path]) -> None:
    config = _config(replay={"data": "g", "per_device_train_batch_size": 2, "weight": 0.3})
    written = []
    for place in ("a", "b"):
        context = _context(tmp_path / place)
        result = sft.run(config, folders, context)
        folder = context.output("model")
        written.append({path.name: path.read_bytes() for path in sorted(folder.iterdir())})
        assert result.metrics["steps"] == 3
        assert {"loss", "own_loss", "replay_loss", "mean_token_accuracy", "num_tokens", "grad_norm"} <= set(
            result.metrics
        )
    assert written[0] == written[1]
    assert "model.safetensors" in written[0]
    assert str(tmp_path).encode() not in b"".join(written[0].values())
    before, after = load_model(BASE).state_dict(), load_model(folder).state_dict()
    assert before.keys() == after.keys()
    assert any(not before[name].equal(after[name]) for name in before)


def test_an_adapter_is_published_with_its_base_and_can_be_trained_on(tmp_path: Path, folders: dict[str, Path]) -> None:
    context = _context(tmp_path / "first")
    sft.run(_config(lora={"r": 2}), folders, context)
    folder = context.output("model")
    info = read_model_info(folder)
    assert (info["form"], info["base"]) == ("adapter", {"digest": "d" * 64, "ref": "base"})
    assert not (folder / "model.safetensors").exists()

    second = _context(tmp_path / "second")
    object.__setattr__(second, "bases", {"d" * 64: BASE})
    object.__setattr__(second, "input_refs", {"model": "first"})
    object.__setattr__(second, "input_digests", {"model": "e" * 64})
    sft.run(_config(), folders | {"model": folder}, second)
    # it is continued, so it still sits on the first base
    assert read_model_info(second.output("model"))["base"] == {"digest": "d" * 64, "ref": "base"}
    one, two = (load_model(where, bases=second.bases).state_dict() for where in (folder, second.output("model")))
    assert any(not one[name].equal(two[name]) for name in one if "lora_B" in name)


def test_rows_that_cannot_be_learned_are_named_and_none_left_is_an_error(
    tmp_path: Path, folders: dict[str, Path]
) -> None:
    rows = [*chain_rows(4, seed=1, levels=[1]), {"prompt": "1" * 70, "completion": "2", "answer": "2"}]
    write_dataset(rows, tmp_path / "long")
    context = _context(tmp_path / "run")
    result = sft.run(_config(), {"model": BASE, "data": tmp_path / "long"}, context)
    assert result.metrics["rows"] == 4
    assert result.metrics["rows_rejected"] == 1
    (said,) = _warnings(context)
    (named,) = result.summary["rejected"]
    assert named["id"] in said
    assert "prompt alone has 70 tokens" in said
    write_dataset(rows[-1:], tmp_path / "only")
    with pytest.raises(StageError, match="none of its 1 rows can be trained on"):
        sft.run(_config(), {"model": BASE, "data": tmp_path / "only"}, _context(tmp_path / "none"))


def test_a_chat_template_is_used_and_saved_with_the_model(tmp_path: Path) -> None:
    messages = [
        {"messages": [{"role": "user", "content": row["answer"]}, {"role": "assistant", "content": row["answer"]}]}
        for row in chain_rows(6, seed=1)
    ]
    write_dataset(messages, tmp_path / "chat")
    inputs = {"model": BASE, "data": tmp_path / "chat"}
    with pytest.raises(InputError, match="no chat template"):
        sft.run(_config(), inputs, _context(tmp_path / "bare"))
    (tmp_path / "template.jinja").write_text(TEMPLATE)
    context = _context(tmp_path / "run")
    config = _config(chat_template="./template.jinja")
    sft.run(config, inputs | {"chat_template": tmp_path / "template.jinja"}, context)
    tokenizer = load_tokenizer(context.output("model"))
    assert tokenizer.chat_template == TEMPLATE
    assert tokenizer.apply_chat_template(messages[0]["messages"], tokenize=False).startswith("Q:")
    with pytest.raises(InputError, match="generation"):
        sft.run(
            _config(chat_template="./template.jinja", assistant_only_loss=True),
            inputs | {"chat_template": tmp_path / "template.jinja"},
            _context(tmp_path / "marked"),
        )
