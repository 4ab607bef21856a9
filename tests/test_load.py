"""The language: what is read, what is refused, and the exact words for it."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tracemalloc
from pathlib import Path

import pytest

from finery.errors import InputError
from finery.language.nodes import parse
from finery.load import json_schema, load

ROOT = Path(__file__).parent.parent
CASES = Path(__file__).parent / "cases"
NAME = "is not a name: a letter a-z, then up to 62 of a-z, 0-9, _ and - (^[a-z][a-z0-9_-]{0,62}$)"


def case(name: str) -> list[str]:
    with pytest.raises(InputError) as caught:
        load(CASES / name)
    return [line.split(f"{name}:", 1)[1] for line in str(caught.value).splitlines()]


def test_case_O1_every_scalar_has_the_type_expected_or_is_text():
    root, problems = parse((CASES / "O1.yaml").read_text())
    expected = json.loads((CASES / "O1.expected.json").read_text())
    assert not problems
    assert root is not None
    found = root.plain()
    assert found.keys() == expected.keys()
    assert found == {
        "learning_rate": 1e-05,
        "lr2": 5e-05,
        "lr3": 100000.0,
        "max_steps": 2000.0,
        "country": "no",
        "merge_base": "off",
        "seed": "012",
        "batch": "1_000",
        "window": "1:30",
        "python": 3.1,
        "run_date": "2026-01-02",
        "beta": pytest.approx(float("nan"), nan_ok=True),
        "flag": "false",
    }
    assert isinstance(found["max_steps"], float)
    assert found["python"].written == "3.10"


def test_case_O1_what_does_not_fit_is_refused_by_name():
    assert case("O1.finery.yaml") == [
        "4:7 seed: must be a whole number (at least 0, below 2^63); 012 is text: write 12",
        '5:24 tracking.experiment: must be text; quote it: "3.10"',
        "16:16 stages.train.max_steps: must be a whole number (at least 1); 2e3 is 2000.0: write 2000",
        "17:34 stages.train.per_device_train_batch_size: "
        "must be a whole number (at least 1); 1_000 is text: write 1000",
        "18:19 stages.train.warmup_steps: must be a whole number (at least 0); 1:30 is text",
        "19:17 stages.train.adam_beta1: must be a number (at least 0, below 1), and finite; .nan is not",
        '20:27 stages.train.completion_only_loss: must be true or false; "false" is text: write false',
    ]


def test_case_O1_the_corrected_twin_passes_with_the_right_types():
    pipeline = load(CASES / "O1.fixed.finery.yaml").pipeline
    train, note = pipeline.stages["train"], pipeline.stages["note"]
    assert pipeline.description == "no"
    assert (train.learning_rate, train.weight_decay, train.max_grad_norm) == (1e-05, 5e-05, 100000.0)
    assert note.params == {
        "country": "no", "merge_base": "off", "python": "3.10", "run_date": "2026-01-02", "zip": "012",
        "lr": 1e-05, "half": 0.5, "n": 7,
    }  # fmt: skip
    assert type(note.params["lr"]) is float


def test_case_O1_a_key_written_twice_is_refused_with_both_lines():
    assert "4:5 stages.0.learning_rate: is written twice, on lines 3 and 4; keep one" in case("O1_dup.yaml")


def test_case_O2_every_mistake_in_one_go_with_section_and_nearest_key():
    assert case("O2.finery.yaml") == [
        "3:1 learning_rate: unknown key; it belongs in a stage, for example stages.train.learning_rate",
        "11:5 stages.train.lora_ranl: unknown key; did you mean stages.train.lora.r, written lora: {r: ...}?",
        "12:5 stages.train.num-epochs: unknown key; did you mean num_train_epochs?",
        "13:5 stages.train.per_device_batch_size: unknown key; did you mean per_device_train_batch_size?",
        "21:22 stages.rl.num_generations: 8 does not divide the batch of 7 completions; num_generations can be 7",
        "29:22 stages.rl1.num_generations: must be at least 2: an advantage compares completions of one prompt",
    ]


def test_case_O2_the_original_and_the_corrected_twin():
    assert "4:3 stages: must be a map, not a list; name each stage by its key: train: {kind: sft, ...}" in case(
        "O2.yaml"
    )
    assert load(CASES / "O2.fixed.finery.yaml").pipeline.stages["rl"].num_generations == 7


def test_case_O11_a_cycle_is_named_with_its_lines():
    assert case("O11_cycle.finery.yaml") == [
        "4:48 stages.a: the stages wait for each other: a -> c -> b -> a (lines 4, 6, 5)"
    ]
    assert load(CASES / "O11_cycle.fixed.finery.yaml").order == ["a", "b", "c"]


def test_case_O11_duplicates_unknown_needs_and_self_in_one_go():
    assert case("O11_dup.finery.yaml") == [
        "5:3 stages.train: is written twice, on lines 4 and 5; keep one",
        "6:51 stages.gate.after.0: there is no stage trian; did you mean train?",
        "7:51 stages.self.after.0: self waits for itself",
    ]
    assert load(CASES / "O11_dup.fixed.finery.yaml").edges["gate"] == ["train"]


def test_case_S1_a_python_tag_is_refused_and_runs_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    refused = "the tag !!python/object/apply:builtins.open is refused; a pipeline is plain data, leave the tag out"
    assert f"1:9 stages: {refused}" in case("S1.yaml")
    assert list(tmp_path.iterdir()) == []


def test_case_S1_an_alias_bomb_is_refused_before_it_is_expanded():
    tracemalloc.start()
    try:
        told = case("S1_alias_bomb.yaml")
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert told == ["4:29 d.7: the aliases of this file expand to more than 10000 values"]
    assert peak < 20e6  # the case allows 200 MB; nothing is expanded, so that time is bounded with it


def test_case_S6_secrets_are_refused_and_never_shown():
    lines = case("S6.finery.yaml")
    assert "canary" not in "".join(lines)
    assert lines == [
        "3:1 env: unknown key; it belongs in a stage, for example stages.teacher.env",
        "4:17 tracking.uri: carries a user name or password; "
        "set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD instead",
        "9:27 stages.teacher.env.OPENAI_API_KEY: "
        "a secret is never written down here; write ${env:NAME} and set NAME where finery runs",
        "10:23 stages.teacher.params.api_key: looks like a secret, and would be stored and logged; "
        "a script's env takes it as ${env:NAME}, and the command reads it from its environment",
        "11:14 stages.teacher.retries: must be a whole number (at least 0, at most 100)",
    ]
    assert "canary" not in "".join(case("S6.yaml"))


def test_case_S6_the_corrected_twin_keeps_what_is_no_secret():
    stage = load(CASES / "S6.fixed.finery.yaml").pipeline.stages["teacher"]
    assert stage.params == {"use_cls_token": True, "num_memory_tokens": 4, "max_tokens": 128}


def test_case_S7_names_with_shell_characters_are_refused_by_the_stated_pattern(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert case("S7.finery.yaml") == [
        f"4:3 stages.prep; touch S7-CANARY: {NAME}",
        f"5:3 stages.$(touch S7-CANARY2): {NAME}",
        f"6:3 stages.../../up: {NAME}",
        f"7:3 stages.-rf: {NAME}",
    ]
    params = load(CASES / "S7.fixed.finery.yaml").pipeline.stages["touch"].params
    assert params == {"x;touch S7-CANARY3": 1, "lr": "`touch S7-CANARY4`"}
    assert list(tmp_path.iterdir()) == []


PIPELINES = sorted([*(ROOT / "pipelines").glob("*.yaml"), *(ROOT / "tests" / "lines").glob("*.yaml")])


@pytest.mark.parametrize("file", PIPELINES, ids=lambda file: f"{file.parent.name}/{file.name}")
def test_every_pipeline_that_is_shipped_loads(file, tmp_path):
    if file.name.endswith(".lock.yaml"):
        pytest.skip("a lock file")
    if file.name == "smollm2.yaml":  # its GGUF is fetched by `make smollm2`; any file of that name will do here
        gguf = tmp_path / "smollm2" / "SmolLM2-135M-Instruct.Q4_1.gguf"
        gguf.parent.mkdir()
        gguf.touch()
        file = Path(shutil.copy(file, tmp_path))
    assert load(file).order


def test_the_json_schema_takes_what_load_takes():
    jsonschema = pytest.importorskip("jsonschema")
    schema = json_schema()
    jsonschema.Draft202012Validator.check_schema(schema)
    validator = jsonschema.Draft202012Validator(schema)
    for file in (*PIPELINES, CASES / "O1.fixed.finery.yaml", CASES / "S6.fixed.finery.yaml"):
        root, _ = parse(file.read_text())
        assert root is not None
        assert list(validator.iter_errors(root.plain())) == []
    stage = {"kind": "script", "command": "true", "timeout": "2h30m", "env": {"A": "${env:B}"}}
    assert validator.is_valid({"name": "x", "stages": {"a": stage}})
    assert not validator.is_valid({"name": "x", "stages": {"a": stage | {"timeout": "soon"}}})
    assert not validator.is_valid({"name": "x", "stages": {"a": stage | {"env": {"A": "literal"}}}})
    assert not validator.is_valid({"name": "x", "stages": {"A": stage}})
    assert not validator.is_valid({"name": "x", "stages": {"a": stage | {"retrys": 1}}})
    assert schema["$defs"]["SftStage"]["properties"]["model"]["description"] == "The model to train."


def test_loading_imports_nothing_heavy():
    code = (
        "import sys, finery.load; finery.load.load(sys.argv[1]); "
        "heavy = {'torch', 'transformers', 'prefect', 'mlflow', 'rich', 'numpy', 'typer'}; "
        "print(sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(ROOT / "tests/cases/O2.fixed.finery.yaml")],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == "[]"
