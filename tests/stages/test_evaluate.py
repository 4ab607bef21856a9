"""The exam, on the real tiny base and a damaged copy of it: one table, paired changes, equal models once."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from finery.contract import StageContext, StageResult
from finery.data.dataset import row_id, write_dataset
from finery.errors import InputError
from finery.schemas.evaluate import EvaluateStage
from finery.stages import evaluate
from finery.training.models import load_model, load_tokenizer

BASE = Path(__file__).parents[2] / "pipelines" / "base"
CHAINS = {
    "17+8-3 ": "22", "4-3 ": "1", "9+9+9-8-7 ": "12", "2+2 ": "4", "8-1+5+5-9 ": "8", "3+4+5+6 ": "18",
    "9-2-3 ": "4", "6+7-1 ": "12",
}  # fmt: skip
SKILLS = {"rev:1234=": "4321", "add:47+8=": "55", "max:13,92=": "92", "cpy:5731=": "5731"}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The base, a copy whose weights are noisy, and two suites."""
    root = tmp_path_factory.mktemp("exam")
    model, tokenizer = load_model(BASE), load_tokenizer(BASE)
    generator = torch.Generator().manual_seed(0)
    for weight in model.parameters():
        weight.data += 0.05 * torch.randn(weight.shape, generator=generator)
    model.save_pretrained(root / "noisy")
    tokenizer.save_pretrained(root / "noisy")
    for name, rows in (("domain", CHAINS), ("general", SKILLS)):
        write_dataset(
            [{"id": row_id(p, a), "prompt": p, "answer": a} for p, a in [*rows.items(), next(iter(rows.items()))]],
            root / name,
        )
    return {"base": BASE, "noisy": root / "noisy", "domain": root / "domain", "general": root / "general"}


def _config(models: list[str], **fields: Any) -> EvaluateStage:
    suites = {
        "domain": {
            "data": "corpus.test",
            "rewards": [{"kind": "answer", "extract": "last_number", "compare": "number"}],
            "k": [1, 4],
            "samples": 6,
            "sampling": {"max_completion_length": 40, "temperature": 1.3},
        },
        "general": {
            "data": "general.test",
            "rewards": [{"kind": "answer", "extract": "whole", "compare": "text"}],
            "sampling": {"max_completion_length": 8},
        },
    }
    return EvaluateStage.model_validate({"kind": "evaluate", "models": models, "suites": suites} | fields)


def _run(
    folder: Path, folders: dict[str, Path], models: dict[str, str], **fields: Any
) -> tuple[StageResult, dict[str, Any]]:
    """`models` maps references to the folders above; a folder's name stands in for its digest."""
    folder.mkdir(parents=True, exist_ok=True)
    context = StageContext(
        stage="exam",
        seed=9,
        output_dir=folder / "outputs",
        checkpoint_dir=folder / "checkpoints",
        metrics_path=folder / "metrics.jsonl",
        base_dir=folder,
        input_refs={f"models.{index}": ref for index, ref in enumerate(models)},
        input_digests={f"models.{index}": name * 8 for index, name in enumerate(models.values())},
    )
    inputs = {f"models.{index}": folders[name] for index, name in enumerate(models.values())}
    inputs |= {f"suites.{name}.data": folders[name] for name in ("domain", "general")}
    result = evaluate.run(_config(list(models), **fields), inputs, context)
    return result, json.loads((folder / "outputs" / "evaluation" / "evaluation.json").read_text())


def _events(folder: Path, kind: str) -> list[dict[str, Any]]:
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    return [event for event in map(json.loads, lines) if event["type"] == kind]


@pytest.fixture(scope="module")
def exam(
    folders: dict[str, Path], tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, StageResult, dict[str, Any]]:
    folder = tmp_path_factory.mktemp("run")
    models = {"base": "base", "./runs/v1.2": "noisy", "grpo": "base"}
    return folder, *_run(folder, folders, models, reference="base")


def test_every_model_has_every_number_with_its_interval(exam: tuple[Path, StageResult, dict[str, Any]]) -> None:
    _, result, evaluation = exam
    assert evaluation["reference"] == "base"
    assert list(evaluation["models"]) == ["base", "./runs/v1.2", "grpo"]
    for by_suite in evaluation["models"].values():
        assert list(by_suite["domain"]) == ["pass_at_1", "pass_at_4", "greedy", "truncated"]
        assert list(by_suite["general"]) == ["greedy", "truncated"]
        for metrics in by_suite.values():
            for number in metrics.values():
                assert 0 <= number["low"] <= number["value"] <= number["high"] <= 1
                assert number["low"] < number["high"]
    assert evaluation["models"]["base"]["general"]["greedy"]["value"] == 1.0
    assert evaluation["suites"]["domain"]["prompts"] == len(CHAINS)
    assert evaluation["suites"]["domain"]["duplicates"] == 1
    values = evaluation["models"]["./runs/v1.2"]["domain"]["pass_at_4"]["value"]
    assert result.metrics["./runs/v1.2.domain.pass_at_4"] == values


def test_changes_are_paired_against_the_reference(exam: tuple[Path, StageResult, dict[str, Any]]) -> None:
    _, result, evaluation = exam
    base, noisy = (evaluation["models"][ref]["domain"]["pass_at_1"] for ref in ("base", "./runs/v1.2"))
    assert "change" not in base
    assert noisy["change"]["value"] == pytest.approx(noisy["value"] - base["value"])
    assert noisy["change"]["high"] < 0
    assert "over base" not in str(result.summary["headline"])  # the reference leads
    assert "domain pass@1: base" in str(result.summary["headline"])


def test_equal_digests_are_measured_once_and_shown_under_both_names(
    exam: tuple[Path, StageResult, dict[str, Any]],
) -> None:
    folder, result, evaluation = exam
    assert evaluation["same"] == {"grpo": "base"}
    assert evaluation["models"]["grpo"] == evaluation["models"]["base"]
    assert evaluation["digests"]["grpo"] == evaluation["digests"]["base"]
    lines = [json.loads(line) for line in (folder / "outputs/samples/samples.jsonl").read_text().splitlines()]
    assert {line["model"] for line in lines} == {"base", "./runs/v1.2"}
    assert len(lines) == 2 * (len(CHAINS) * 7 + len(SKILLS))
    assert _events(folder, "progress")[-1]["total"] == len(lines)
    table = result.summary["table"]
    assert [row["model"] for row in table] == ["base", "./runs/v1.2", "grpo (= base)"]
    assert all(row["domain pass@1"].startswith(("0.", "1.")) for row in table)


def test_all_models_see_the_same_random_numbers(folders: dict[str, Path], tmp_path: Path) -> None:
    """A model measured alone, or in another place of the list, has the numbers it has beside others."""
    result, _ = _run(tmp_path / "one", folders, {"noisy": "noisy", "base": "base"})
    alone, _ = _run(tmp_path / "two", folders, {"base": "base"})
    shared = {name: value for name, value in result.metrics.items() if name.startswith("base.")}
    assert shared == alone.metrics
    assert evaluate.suite_seed(9, "domain") != evaluate.suite_seed(9, "general")


def test_a_reference_that_is_skipped_and_has_another_name_is_still_the_reference(
    folders: dict[str, Path], tmp_path: Path
) -> None:
    models = {"sft": "base", "grpo": "base", "noisy": "noisy"}
    _, evaluation = _run(tmp_path, folders, models, reference="grpo")
    assert evaluation["same"] == {"grpo": "sft"}
    assert "change" not in evaluation["models"]["sft"]["general"]["greedy"]
    assert "change" not in evaluation["models"]["grpo"]["general"]["greedy"]
    assert "change" in evaluation["models"]["noisy"]["general"]["greedy"]


def test_a_killed_exam_goes_on_with_the_model_it_was_at(
    exam: tuple[Path, StageResult, dict[str, Any]],
    folders: dict[str, Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import finery.training.models as models_module
    import finery.training.sampling as sampling

    models = {"base": "base", "./runs/v1.2": "noisy", "grpo": "base"}
    real, calls, loaded = sampling.sample, [0], []

    def dying(*args: Any, **kwargs: Any) -> Any:
        calls[0] += 1
        if calls[0] == 4:  # the second model's first pass
            raise KeyboardInterrupt
        return real(*args, **kwargs)

    monkeypatch.setattr(sampling, "sample", dying)
    with pytest.raises(KeyboardInterrupt):
        _run(tmp_path, folders, models, reference="base")
    load = models_module.load_model
    monkeypatch.setattr(models_module, "load_model", lambda path, **kw: loaded.append(path) or load(path, **kw))
    _run(tmp_path, folders, models, reference="base")
    assert loaded == [folders["noisy"]]
    for name in ("evaluation/evaluation.json", "samples/samples.jsonl"):
        assert (tmp_path / "outputs" / name).read_bytes() == (exam[0] / "outputs" / name).read_bytes()
    assert len(_events(tmp_path, "metrics")) == 2


def test_prompts_that_cannot_be_judged_are_left_out_of_a_number_and_said_so(
    folders: dict[str, Path], tmp_path: Path
) -> None:
    rows = [{"id": row_id(p, a), "prompt": p, "answer": a} for p, a in {**SKILLS, "add:1+1=": "..."}.items()]
    write_dataset(rows, tmp_path / "data")
    suites = {
        "general": {
            "data": "general.test",
            "rewards": [{"kind": "answer", "extract": "whole", "compare": "number"}],
            "sampling": {"max_completion_length": 8},
        }
    }
    _, evaluation = _run(tmp_path, {**folders, "general": tmp_path / "data"}, {"base": "base"}, suites=suites)
    assert evaluation["models"]["base"]["general"]["greedy"]["n"] == len(SKILLS)
    messages = [event["message"] for event in _events(tmp_path, "warning")]
    assert any("base's greedy is over 4 of 5 prompts" in message for message in messages)


def test_cut_completions_are_warned_of_once_a_suite_with_every_model(folders: dict[str, Path], tmp_path: Path) -> None:
    suites = {
        "general": {
            "data": "general.test",
            "rewards": [{"kind": "answer", "extract": "whole", "compare": "text"}],
            "sampling": {"max_completion_length": 1},
        }
    }
    _, evaluation = _run(tmp_path, folders, {"a": "base", "b": "noisy", "c": "base"}, suites=suites)
    assert evaluation["models"]["a"]["general"]["truncated"]["value"] == 1.0
    warned = [event["message"] for event in _events(tmp_path, "warning") if "were cut" in event["message"]]
    assert len(warned) == 1
    assert "cut at 1 tokens" in warned[0]
    assert warned[0].endswith("100% of a's, 100% of b's")


def test_a_suite_without_prompts_names_the_suite(folders: dict[str, Path], tmp_path: Path) -> None:
    write_dataset([{"messages": [{"role": "user", "content": "hi"}]}], tmp_path / "data")
    with pytest.raises(InputError, match=r"suites\.general\.data: row [0-9a-f]{16} has no prompt"):
        _run(tmp_path, {**folders, "general": tmp_path / "data"}, {"base": "base"})


def test_what_general_suites_lost_is_a_table_and_a_number(folders: dict[str, Path], tmp_path: Path) -> None:
    suites = {name: suite.model_dump(exclude_defaults=True) for name, suite in _config(["base"]).suites.items()}
    suites["general"] |= {"general": True, "weight": 2.0}
    models = {"sft": "base", "bad": "noisy", "sft.model": "base"}
    result, evaluation = _run(tmp_path, folders, models, suites=suites)
    general = {model: evaluation["models"][model]["general"]["greedy"] for model in models}
    lost = evaluation["forgetting"]
    assert lost["bad"]["value"] == pytest.approx(general["sft"]["value"] - general["bad"]["value"])
    assert lost["bad"]["value"] == pytest.approx(-general["bad"]["change"]["value"])
    row = lost["bad"]["suites"]["general"]
    assert (row["metric"], row["before"], row["after"]) == (
        "greedy", general["sft"]["value"], general["bad"]["value"],
    )  # fmt: skip
    assert [lost[same][end] for same in ("sft", "sft.model") for end in ("value", "low", "high")] == [0.0] * 6
    assert result.metrics["bad.forgetting"] == lost["bad"]["value"]
    assert evaluation["suites"]["general"]["weight"] == 2.0
    assert "general" not in evaluation["suites"]["domain"]
    assert next(row["forgetting"] for row in result.summary["table"]) == "0.00"


def test_an_exam_without_general_suites_says_nothing_of_forgetting(
    exam: tuple[Path, StageResult, dict[str, Any]],
) -> None:
    _, result, evaluation = exam
    assert "forgetting" not in evaluation
    assert not any(name.endswith(".forgetting") for name in result.metrics)
