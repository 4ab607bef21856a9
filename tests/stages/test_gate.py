"""The gate, on the real tiny base: its three verdicts, its outputs, its resume."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from finery.contract import StageContext, StageResult
from finery.data.dataset import row_id, write_dataset
from finery.errors import InputError, StageError
from finery.schemas.gate import GateStage
from finery.stages import gate
from finery.stats.difficulty import DifficultyTracker, read_difficulty

BASE = Path(__file__).parents[2] / "pipelines" / "base"
CHAINS = {
    "17+8-3 ": "22", "4-3 ": "1", "9+9+9-8-7 ": "12", "2+2 ": "4", "8-1+5+5-9 ": "8", "3+4+5+6 ": "18",
    "9-2-3 ": "4", "6+7-1 ": "12",
}  # fmt: skip
"""The base's own format, which it completes as `17+8=25,25-3=22,22`."""


def _rows(style: str = "{} ", answers: dict[str, str] | None = None) -> list[dict[str, Any]]:
    rows = []
    for task, answer in (answers or CHAINS).items():
        prompt = style.format(task.strip())
        rows.append({"id": row_id(prompt, answer), "prompt": prompt, "answer": answer})
    return rows


def _context(folder: Path, seed: int = 5) -> StageContext:
    folder.mkdir(parents=True, exist_ok=True)
    return StageContext(
        stage="gate",
        seed=seed,
        output_dir=folder / "outputs",
        checkpoint_dir=folder / "checkpoints",
        metrics_path=folder / "metrics.jsonl",
        base_dir=folder,
        input_refs={"model": "sft", "data": "corpus.rl"},
        input_digests={"model": "m" * 64, "data": "d" * 64},
    )


def _config(**fields: Any) -> GateStage:
    given: dict[str, Any] = {
        "kind": "gate",
        "model": "sft",
        "data": "corpus.rl",
        "rewards": [{"kind": "answer", "extract": "last_number", "compare": "number"}],
        "k": [1, 4],
        "samples": 8,
        "sampling": {"max_completion_length": 40},
    }
    return GateStage.model_validate(given | fields)


def _run(folder: Path, rows: list[dict[str, Any]], **fields: Any) -> tuple[StageResult, dict[str, Any]]:
    data = folder / "data"
    if not data.exists():
        write_dataset(rows, data)
    result = gate.run(_config(**fields), {"model": BASE, "data": data}, _context(folder))
    return result, json.loads((folder / "outputs" / "verdict" / "verdict.json").read_text())


def _events(folder: Path, kind: str) -> list[dict[str, Any]]:
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    return [event for event in map(json.loads, lines) if event["type"] == kind]


def test_a_model_that_solves_its_prompts_needs_no_rl(tmp_path: Path) -> None:
    result, verdict = _run(tmp_path, _rows(), solved_at=0.75)
    assert verdict["verdict"] == "skip_rl"
    assert verdict["pass_at_1"]["value"] > 0.95
    assert verdict["pass_at_1"]["low"] < verdict["pass_at_1"]["value"] <= verdict["pass_at_1"]["high"]
    assert verdict["greedy"] == 1.0
    assert verdict["maj_at_k"] == result.metrics["maj_at_4"] > 0.95
    assert str(result.summary["headline"]).startswith("skip_rl: pass@1 ")


def test_a_model_that_never_solves_one_needs_other_data(tmp_path: Path) -> None:
    result, verdict = _run(tmp_path, _rows("Q:{}\n"))
    assert verdict["verdict"] == "more_data"
    assert verdict["pass_at_1"]["value"] == 0.0
    assert 0 < verdict["pass_at_1"]["high"] < 0.35
    assert result.metrics["gap"] == 0.0


def test_a_model_that_solves_prompts_now_and_then_is_worth_training(tmp_path: Path) -> None:
    """The base at a high temperature: right now and then, and always when greedy."""
    sampling = {"max_completion_length": 40, "temperature": 2.0}
    result, verdict = _run(tmp_path, _rows(), sampling=sampling, samples=16, k=[1, 2, 8], min_gap=0.1)
    assert verdict["verdict"] == "rl"
    assert verdict["gap"]["value"] == pytest.approx(verdict["pass_at_k"]["value"] - verdict["pass_at_1"]["value"])
    assert 0.1 < result.metrics["pass_at_1"] < result.metrics["pass_at_2"] < result.metrics["pass_at_8"]
    assert not verdict["weak_greedy"]
    assert f"{verdict['pass_at_1']['value']:.3f}" in verdict["reason"]
    tracker = DifficultyTracker(read_difficulty(tmp_path / "outputs" / "difficulty"))
    rates = [tracker.estimate(row["id"]) for row in _rows()]
    assert len(set(rates)) > 2
    solved = sum(count["solved"] for count in read_difficulty(tmp_path / "outputs" / "difficulty").values())
    assert solved / (16 * len(CHAINS)) == pytest.approx(verdict["pass_at_1"]["value"])


def test_every_completion_is_kept_with_its_scores(tmp_path: Path) -> None:
    rewards = [
        {"kind": "answer", "extract": "last_number", "compare": "number", "verifier": True},
        {"kind": "format", "pattern": r"[\d+\-=,]*", "weight": 0.1},
    ]
    _run(tmp_path, _rows(), rewards=rewards)
    lines = [json.loads(line) for line in (tmp_path / "outputs" / "samples" / "samples.jsonl").read_text().splitlines()]
    assert len(lines) == len(CHAINS) * 9
    assert sum(line["greedy"] for line in lines) == len(CHAINS)
    for line in lines:
        assert line["prompt"] in CHAINS
        assert line["answer"] == CHAINS[line["prompt"]]
        assert line["solved"] == (line["score"]["answer"] == 1.0 and not line["truncated"])
        assert set(line["score"]) == {"answer", "format"}


def test_repeated_prompts_count_once_and_only_so_many_are_used(tmp_path: Path) -> None:
    rows = _rows()
    _, verdict = _run(tmp_path, [*rows[:3], *rows[:2], *rows[3:]], max_prompts=5)
    assert (verdict["prompts"], verdict["duplicates"]) == (5, 2)
    assert any("2 rows repeat a prompt" in event["message"] for event in _events(tmp_path, "warning"))
    assert list(read_difficulty(tmp_path / "outputs" / "difficulty")) == sorted(row["id"] for row in rows[:5])


def test_truncated_completions_are_unsolved_counted_and_warned_of(tmp_path: Path) -> None:
    _, verdict = _run(tmp_path, _rows(), sampling={"max_completion_length": 3})
    assert verdict["truncated"] == 1.0
    assert verdict["pass_at_1"]["value"] == 0.0
    assert any("100% of the completions were cut at 3" in event["message"] for event in _events(tmp_path, "warning"))


def test_prompts_whose_answer_cannot_be_read_are_excluded_and_counted(tmp_path: Path) -> None:
    rows = _rows(answers={**CHAINS, "5+5 ": "see figure"})
    _, verdict = _run(tmp_path, rows)
    assert (verdict["prompts"], verdict["excluded"]) == (len(CHAINS), 1)
    assert verdict["pass_at_1"]["n"] == len(CHAINS)
    assert rows[-1]["id"] not in read_difficulty(tmp_path / "outputs" / "difficulty")
    assert any("1 prompts have fewer than 4" in event["message"] for event in _events(tmp_path, "warning"))


def test_data_that_nothing_can_be_judged_on_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(StageError, match="none of 1 prompts has 4 completions that could be judged"):
        _run(tmp_path, _rows(answers={"5+5 ": "see figure"}))


def test_rows_without_a_prompt_are_an_error_that_names_the_row(tmp_path: Path) -> None:
    messages = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "yo"}]
    with pytest.raises(InputError, match=r"corpus\.rl: row [0-9a-f]{16} has no prompt"):
        _run(tmp_path, [{"messages": messages, "answer": "1"}])


def test_a_verifier_that_reads_no_answer_has_no_majority(tmp_path: Path) -> None:
    result, verdict = _run(tmp_path, _rows(), rewards=[{"kind": "format", "pattern": ".*22"}])
    assert verdict["maj_at_k"] is None
    assert not any(name.startswith("maj") for name in result.metrics)


def test_a_gpu_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    import torch

    if torch.cuda.is_available():
        pytest.skip("this machine has one")
    with pytest.raises(StageError, match="torch sees no GPU"):
        _run(tmp_path, _rows(), resources={"gpus": 1})


def test_case_P2_one_sample_a_prompt_cannot_estimate_pass_at_100() -> None:
    with pytest.raises(ValidationError, match="1 samples cannot estimate pass@100"):
        _config(k=[1, 10, 100], samples=1)


def test_case_P3_a_low_score_is_not_a_solved_completion(tmp_path: Path) -> None:
    """Each completion scores 0.005, which is true to Python and unsolved to a gate."""
    expected = json.loads((BASE.parents[1] / "tests" / "cases" / "P3.json").read_text())["pass@1"]
    code = f"def low(prompts, completions, **columns):\n    return [{expected}] * len(completions)\n"
    (tmp_path / "mine.py").write_text(code)
    write_dataset(_rows(), tmp_path / "data")
    config = _config(rewards=[{"kind": "python", "file": "./mine.py", "function": "low"}], solved_at=0.5)
    inputs = {"model": BASE, "data": tmp_path / "data", "rewards.0.file": tmp_path / "mine.py"}
    result = gate.run(config, inputs, _context(tmp_path))
    assert result.metrics["pass_at_1"] == 0.0
    assert result.summary["verdict"] == "more_data"


def test_the_same_gate_again_makes_the_same_bytes(tmp_path: Path) -> None:
    for name in ("one", "two"):
        _run(tmp_path / name, _rows(), samples=4)
    files = [path for path in sorted((tmp_path / "one" / "outputs").rglob("*")) if path.is_file()]
    assert [path.name for path in files] == ["difficulty.json", "samples.jsonl", "verdict.json"]
    for path in files:
        assert (tmp_path / "two" / path.relative_to(tmp_path / "one")).read_bytes() == path.read_bytes()


@pytest.mark.parametrize("broken", [b"", b'{"3": [{"text": "4'])
def test_a_killed_gate_goes_on_after_its_last_whole_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broken: bytes
) -> None:
    options: dict[str, Any] = {"samples": 4, "batch_size": 8}
    _run(tmp_path / "whole", _rows(), **options)
    import finery.training.sampling as sampling

    real, calls = sampling.sample, []

    def dying(*args: Any, **kwargs: Any) -> Any:
        calls.append(len(args[2]))
        if len(calls) == 4:
            raise KeyboardInterrupt
        return real(*args, **kwargs)

    monkeypatch.setattr(sampling, "sample", dying)
    with pytest.raises(KeyboardInterrupt):
        _run(tmp_path / "killed", _rows(), **options)
    log = tmp_path / "killed" / "checkpoints" / "sampled.0.jsonl"
    assert len(log.read_bytes().splitlines()) == 3
    with log.open("ab") as file:
        file.write(broken)
    calls.clear()
    calls.extend([0] * 4)
    _run(tmp_path / "killed", _rows(), **options)
    assert calls[4:] == [2, 8]  # the fourth batch of four, and the greedy pass
    for path in (tmp_path / "whole" / "outputs").rglob("*.json*"):
        other = tmp_path / "killed" / "outputs" / path.relative_to(tmp_path / "whole" / "outputs")
        assert other.read_bytes() == path.read_bytes()
    done = [event["done"] for event in _events(tmp_path / "killed", "progress")]
    assert done == sorted(done)
    assert done[-1] == len(CHAINS) * 5
    assert len(_events(tmp_path / "killed", "metrics")) == 2  # the look's, and the rest
    warned = [event["message"] for event in _events(tmp_path / "killed", "warning")]
    assert any("not a whole batch" in message for message in warned) == bool(broken)


SUMS = {f"{a}+{b} ": str(a + b) for a in range(1, 10) for b in range(1, 8)}
ROUNDS: dict[str, Any] = {
    "samples": None,
    "max_samples": 8,
    "batch_size": 40,
    "sampling": {"max_completion_length": 16},
}


def test_samples_are_drawn_until_the_verdict_is_settled(tmp_path: Path) -> None:
    result, verdict = _run(tmp_path, _rows(answers=SUMS), **ROUNDS)
    assert (verdict["verdict"], verdict["conclusive"]) == ("skip_rl", True)
    difficulty = json.loads((tmp_path / "outputs" / "difficulty" / "difficulty.json").read_text())["prompts"]
    assert verdict["prompts"] == len(difficulty) < len(SUMS)
    assert verdict["spent"] == sum(found["n"] for found in difficulty.values()) == result.metrics["samples"]
    assert verdict["spent"] < 4 * len(SUMS)
    assert verdict["pass_at_1"]["low"] >= 0.9
    looked = _events(tmp_path, "metrics")
    assert len(looked) == verdict["looks"] + 1
    assert looked[0]["metrics"]["gap_high"] > verdict["gap"]["value"]


def test_prompts_that_are_always_solved_get_no_more_and_the_rest_get_all(tmp_path: Path) -> None:
    """25 prompts, 13 of which have a wrong answer: nothing settles a gap of about 0 against a min_gap of 0.01."""
    answers = {
        prompt: answer if place % 2 else "99" for place, (prompt, answer) in enumerate(SUMS.items()) if place < 25
    }
    _, verdict = _run(tmp_path, _rows(answers=answers), **ROUNDS, min_gap=0.01)
    assert (verdict["verdict"], verdict["conclusive"]) == ("more_data", False)
    difficulty = json.loads((tmp_path / "outputs" / "difficulty" / "difficulty.json").read_text())["prompts"]
    counts = {(found["n"], found["solved"]) for found in difficulty.values()}
    assert counts == {(8, 0), (4, 4)}
    assert verdict["spent"] == 13 * 8 + 12 * 4
    assert verdict["histogram"] == [13, *[0] * 8, 12]
    assert (verdict["never_solved"], verdict["always_solved"]) == (0.52, 0.48)


def test_a_gate_killed_between_rounds_draws_nothing_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, verdict = _run(tmp_path / "whole", _rows(answers=SUMS), **ROUNDS)
    import finery.training.sampling as sampling

    real, drawn, limit = sampling.sample, [], 4

    def dying(*args: Any, **kwargs: Any) -> Any:
        if len(drawn) == limit:
            raise KeyboardInterrupt
        drawn.append(0 if kwargs["greedy"] else len(args[2]) * kwargs["n"])
        return real(*args, **kwargs)

    monkeypatch.setattr(sampling, "sample", dying)
    with pytest.raises(KeyboardInterrupt):
        _run(tmp_path / "killed", _rows(answers=SUMS), **ROUNDS)
    limit = 1000
    _run(tmp_path / "killed", _rows(answers=SUMS), **ROUNDS)
    assert sum(drawn) == verdict["spent"]
    for path in (tmp_path / "whole" / "outputs").rglob("*.json*"):
        other = tmp_path / "killed" / "outputs" / path.relative_to(tmp_path / "whole" / "outputs")
        assert other.read_bytes() == path.read_bytes()
    assert (tmp_path / "killed" / "metrics.jsonl").read_text().count('"metrics"') > verdict["looks"]


def test_a_fixed_number_of_samples_and_a_most_of_them_are_refused_together() -> None:
    with pytest.raises(ValidationError, match="give one"):
        _config(samples=8, max_samples=8)
    with pytest.raises(ValidationError, match=r"3 samples cannot estimate pass@4"):
        _config(samples=None, max_samples=3)


def test_a_cap_that_cuts_answers_is_told_apart_from_inability(tmp_path: Path) -> None:
    _, verdict = _run(tmp_path, _rows(), sampling={"max_completion_length": 8})
    assert verdict["truncated"] > 0.5
    assert "were cut at 8 tokens and count as unsolved" in verdict["reason"]
    assert verdict["pass_at_1_ended"] is None or verdict["pass_at_1_ended"] > verdict["pass_at_1"]["value"]
