"""`finery advise`: one test a row of the table in docs/choosing.md, and the evidence of real runs."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from finery.advise.evidence import Change, Count, Evidence, Fact, Gate, Interval, Machine, Scored, Supervised
from finery.advise.gather import parameters
from finery.advise.rules import RULES, Advice, Finding, advise, table
from finery.plan import Artifact

ROOT = Path(__file__).parents[1]
CPU = Machine(cpus=8, memory=64 * 10**9, gpus=0, gpu_memory=None)
GPU = Machine(cpus=16, memory=128 * 10**9, gpus=1, gpu_memory=80 * 10**9)


def _around(value: float, half: float = 0.03) -> Interval:
    return Interval(value, value - half, value + half)


def _gate(one: float, many: float, *, half: float = 0.03, **changes: Any) -> Gate:
    gate = Gate(
        pass_at_1=_around(one, half), pass_at_k=_around(many, half), gap=_around(many - one, half), k=8, solved_at=0.9,
        min_gap=0.2, truncated=0.0, sometimes=10, source="gate.verdict, of sft", greedy=0.85, min_greedy=0.8,
    )  # fmt: skip
    return replace(gate, **changes)


FLAT = Supervised("sft", 0.41, 0.405, "sft, metrics.jsonl")
READY = Evidence(
    machine=GPU,
    labelled=Count(4000, "corpus.sft"),
    preferences=Count(0, "no data set of the pipeline has any"),
    verifiable=Count(600, "corpus.rl"),
    verifier=Fact("the reward answer verifies completions", "stages.gate.rewards"),
    supervised=FLAT,
    gate=_gate(0.4, 0.8),
    changes=(Change("sft", "base", "general", Interval(0.01, -0.02, 0.04), "exam"),),
    scored=(Scored("sft", "domain", 0.4, 1_500_000_000, "exam"),),
    parameters=Count(1_500_000_000, "the weights of sft"),
)
"""A trained model at a plateau, with a verifier, a wide gap and a GPU."""


def _of(advice: Advice, step: str) -> Finding:
    return next(finding for rule, finding in advice.findings if rule.step == step)


def _states(evidence: Evidence) -> dict[str, str]:
    return {rule.step: finding.state for rule, finding in advise(evidence).findings}


def _next(evidence: Evidence) -> str | None:
    found = advise(evidence).next
    return found[0].step if found else None


def test_a_wide_gap_with_a_reward_a_plateau_and_compute_is_for_grpo() -> None:
    assert _next(READY) == "grpo"
    assert _states(READY) == {
        "merge or replay": "no", "stop": "no", "sft": "no", "data or another model": "no", "dpo": "no", "grpo": "yes",
        "distill": "unknown",
    }  # fmt: skip
    told = " ".join(fact.text for fact in _of(advise(READY), "grpo").evidence)
    for number in ("pass@1 0.40 [0.37, 0.43]", "pass@8 0.80", "gap 0.40", "600 verifiable prompts", "1.5B parameters"):
        assert number in told, number


def test_grpo_waits_for_a_reward_a_plateau_a_gap_and_compute() -> None:
    for changed in (
        {"verifier": None},
        {"gate": _gate(0.4, 0.45)},
        {"gate": _gate(0.93, 0.97)},
        {"supervised": Supervised("sft", 0.5, 0.4, "sft")},
        {"machine": CPU},
        {"machine": replace(GPU, gpu_memory=6 * 10**9)},
    ):
        assert _states(replace(READY, **changed))["grpo"] == "no", changed
    for unknown in ({"gate": None}, {"parameters": None}, {"machine": replace(GPU, gpu_memory=None)}):
        finding = _of(advise(replace(READY, **unknown)), "grpo")
        assert finding.state == "unknown", unknown
        assert finding.missing[0].command
    assert _next(replace(READY, machine=CPU, parameters=Count(340_000, "w"))) == "grpo"  # a CPU draws from a tiny model
    weak = _of(advise(replace(READY, gate=_gate(0.4, 0.8, greedy=0.3))), "grpo")
    assert weak.state == "yes"
    assert any("greedy accuracy 0.30 is below 0.80" in fact.text for fact in weak.evidence)


def test_a_solved_task_is_a_stop() -> None:
    solved = replace(READY, gate=_gate(0.95, 0.99), supervised=None)
    assert _next(solved) == "stop"
    assert {state for step, state in _states(solved).items() if step in ("sft", "dpo", "grpo")} == {"no"}
    assert _next(replace(READY, gate=_gate(0.89, 0.99, half=0.005))) != "stop"
    unsure = _of(advise(replace(READY, gate=_gate(0.91, 0.99, half=0.05))), "stop")
    assert (unsure.state, "by the point estimate alone" in unsure.why) == ("yes", True)


def test_a_small_gap_is_for_data_or_another_model() -> None:
    small = replace(READY, gate=_gate(0.4, 0.45))
    assert _next(small) == "data or another model"
    assert "surely" in _of(advise(small), "data or another model").why
    unsure = _of(advise(replace(READY, gate=_gate(0.4, 0.58, half=0.05))), "data or another model")
    assert (unsure.state, "by the point estimate alone" in unsure.why) == ("yes", True)
    assert _states(replace(READY, gate=_gate(0.93, 0.95)))["data or another model"] == "no"


def test_labelled_pairs_and_a_form_to_learn_are_for_sft() -> None:
    assert _next(replace(READY, supervised=None)) == "sft"
    assert _next(replace(READY, supervised=None, gate=None)) == "sft"
    falling = advise(replace(READY, supervised=Supervised("sft", 0.5, 0.4, "sft")))
    assert falling.next is not None
    assert (falling.next[0].step, "train longer" in falling.next[1].why) == ("sft", True)
    breaks = advise(replace(READY, gate=_gate(0.4, 0.8, truncated=0.2)))
    assert breaks.next is not None
    assert (breaks.next[0].step, "form" in breaks.next[1].why) == ("sft", True)
    few = _of(advise(replace(READY, supervised=None, labelled=Count(99, "corpus.sft"))), "sft")
    assert (few.state, few.why) == ("no", "there are too few labelled rows")
    assert _states(replace(READY, gate=None))["sft"] == "unknown"
    assert _states(replace(READY, labelled=None))["sft"] == "unknown"


def test_pairs_and_little_compute_are_for_dpo() -> None:
    given = replace(READY, machine=CPU, preferences=Count(500, "preferences.train"))
    made = replace(READY, machine=CPU, gate=_gate(0.4, 0.8, sometimes=300))
    assert _next(given) == _next(made) == "dpo"
    assert any("300 prompts solved in some tries" in fact.text for fact in _of(advise(made), "dpo").evidence)
    assert _states(replace(given, machine=GPU))["dpo"] == "no"  # GRPO can be paid for
    assert _states(replace(given, machine=GPU, verifier=None))["dpo"] == "yes"
    assert _states(replace(given, preferences=Count(99, "p")))["dpo"] == "no"
    assert _states(replace(given, preferences=None))["dpo"] == "unknown"
    assert _states(replace(given, gate=None, preferences=Count(9, "p")))["dpo"] == "unknown"
    assert _states(replace(given, parameters=None))["dpo"] == "unknown"


def test_a_gate_that_stopped_early_counts_pairs_in_proportion() -> None:
    """30 of 40 prompts it looked at, of 600: it need not see all to be sure of the verdict."""
    early = replace(READY, machine=CPU, gate=_gate(0.4, 0.8, sometimes=30, looked=40, rows=600))
    assert _next(early) == "dpo"
    told = [fact.text for fact in _of(advise(early), "dpo").evidence]
    assert (
        "30 of the 40 prompts that were looked at are solved in some tries and not in all: about 450 of the 600 there "
        "are, a pair each"
    ) in told
    assert _gate(0.4, 0.8, sometimes=30, looked=40, rows=40).pairs == 30
    assert _gate(0.4, 0.8, sometimes=30, looked=40).pairs == 30
    assert _gate(0.4, 0.8, sometimes=0, looked=0, rows=600).pairs == 0


def test_a_strong_teacher_and_a_limit_on_cost_are_for_distillation() -> None:
    large, small = Scored("grpo", "domain", 0.8, 7 * 10**9, "exam"), Scored("small", "domain", 0.5, 5 * 10**8, "exam")
    taught = replace(READY, gate=_gate(0.4, 0.45), scored=(large, small))
    assert _states(taught)["distill"] == "yes"
    told = [fact.text for fact in _of(advise(taught), "distill").evidence]
    assert told == ["grpo 0.80 on domain, 7B parameters", "small 0.50, 500M parameters"]
    assert _states(replace(taught, scored=(large, replace(small, score=0.75))))["distill"] == "no"
    assert _states(replace(taught, scored=(large, replace(small, parameters=4 * 10**9))))["distill"] == "unknown"
    assert _states(replace(taught, scored=None))["distill"] == "unknown"
    assert _states(replace(taught, scored=()))["distill"] == "unknown"


def test_what_was_forgotten_is_for_replay_or_a_merge() -> None:
    lost = Change("grpo", "base", "general", Interval(-0.12, -0.18, -0.06), "exam")
    kept = Change("grpo", "base", "domain", Interval(0.3, 0.2, 0.4), "exam")
    forgot = advise(replace(READY, changes=(kept, lost)))
    assert forgot.next is not None
    assert forgot.next[0].step == "merge or replay"
    assert [fact.text for fact in forgot.next[1].evidence] == ["grpo on general: -0.12 [-0.18, -0.06] against base"]
    unsure = replace(lost, change=Interval(-0.05, -0.11, 0.01))
    assert _states(replace(READY, changes=(unsure,)))["merge or replay"] == "no"
    assert _states(replace(READY, changes=None))["merge or replay"] == "unknown"
    assert _states(replace(READY, changes=()))["merge or replay"] == "no"


def test_every_answer_has_its_evidence_or_says_what_is_missing() -> None:
    nothing = advise(Evidence(machine=CPU))
    assert nothing.next is None
    for rule, finding in nothing.findings:
        assert finding.state in ("unknown", "no"), rule.step
        assert all("add a stage of kind" in missing.command for missing in finding.missing), rule.step
        assert finding.missing, rule.step
    for evidence in (READY, replace(READY, machine=CPU), replace(READY, gate=_gate(0.95, 0.99))):
        for rule, finding in advise(evidence).findings:
            assert finding.evidence, rule.step
            assert all(fact.source for fact in finding.evidence)


def test_the_table_of_the_documentation_is_that_of_the_rules() -> None:
    page = (ROOT / "docs/choosing.md").read_text(encoding="utf-8")
    assert table() in page
    assert len({rule.step for rule in RULES}) == len(RULES) == 7


def test_parameters_are_read_from_headers_and_an_adapters_with_its_bases(tmp_path: Path) -> None:
    import torch
    from safetensors.torch import save_file

    (tmp_path / "base").mkdir()
    (tmp_path / "adapter").mkdir()
    save_file({"a": torch.zeros(3, 4), "b": torch.zeros(5)}, tmp_path / "base/model.safetensors", {"format": "pt"})
    save_file({"c": torch.zeros(2, 2)}, tmp_path / "adapter/adapter_model.safetensors")
    assert parameters(Artifact("model", "x", tmp_path / "base")) == 17
    assert parameters(Artifact("model", "y", tmp_path / "adapter", {"x": str(tmp_path / "base")})) == 21
    assert parameters(Artifact("model", "z", tmp_path)) is None


def test_a_pipeline_that_never_ran_says_which_command_would_tell(project: Any) -> None:
    text = (ROOT / "tests/lines/gated.yaml").read_text().replace("../../pipelines/base", str(ROOT / "pipelines/base"))
    project.write("pipeline.yaml", text)
    told = json.loads(project.finery("advise", "pipeline.yaml", "--json").stdout)
    assert told["next"] is None
    by_step = {step["step"]: step for step in told["steps"]}
    assert by_step["sft"]["worth"] == "unknown"
    assert by_step["sft"]["unknown"] == [
        {"what": "labelled rows", "command": "finery run pipeline.yaml --only general"}
    ]
    shown = project.finery("advise", "pipeline.yaml").stdout
    assert shown.startswith("next: unknown; first find out pass@1 and pass@k: finery run pipeline.yaml")
    project.write("broken.yaml", "name: x\nstages: {a: {kind: dpoo}}\n")
    project.finery("advise", "broken.yaml", code=2)
    bare = "name: bare\nstages:\n  base: {kind: import, from: BASE}\n".replace("BASE", str(ROOT / "pipelines/base"))
    project.write("bare.yaml", bare)
    assert "add a stage of kind gate" in project.finery("advise", "bare.yaml").stdout


SETS = """
name: p
stages:
  base: {kind: import, from: BASE}
  d: {kind: data, sources: [{kind: skills, rows: 60}], splits: {test: 0.5, train: 0.5}}
  held: {kind: data, sources: [{kind: skills, rows: 20}]}
  late: {kind: data, sources: [{kind: skills, rows: 40}]}
  sft: {kind: sft, model: base, data: DATA, eval_data: d.train, max_steps: 1, ewc: {weight: 1, data: held}}
"""


def test_rows_to_learn_from_are_those_that_are_trained_on_or_not_put_aside(project: Any) -> None:
    text = SETS.replace("BASE", str(ROOT / "pipelines/base"))
    (project.folder / "of").mkdir()

    def counted(data: str) -> Any:
        project.write("of/p.yaml", text.replace("DATA", data))
        told = json.loads(project.finery("advise", "of/p.yaml", "--json").stdout)
        (sft,) = (step for step in told["steps"] if step["step"] == "sft")
        return [fact["source"] for fact in sft["evidence"]], [missing["command"] for missing in sft["unknown"]]

    assert counted("d.train") == ([], ["finery run of/p.yaml --only d"])  # the file as it was named
    for stage in ("d", "held"):
        project.finery("run", "of/p.yaml", "--only", stage)
    assert counted("d.train") == (["d.train"], [])  # trained on and evaluated on; no exam names d.test
    assert counted("late") == ([], ["finery run of/p.yaml --only late"])  # a count without it would be too small
    project.finery("run", "of/p.yaml", "--only", "late")
    assert counted("late") == (["late.train"], [])


def test_it_imports_nothing_heavy(project: Any) -> None:
    project.write("p.yaml", f"name: p\nstages:\n  base: {{kind: import, from: {ROOT / 'pipelines/base'}}}\n")
    code = (
        "import sys; from pathlib import Path; from finery.advise import advice_text; advice_text(Path('p.yaml'), []);"
        "print({'torch', 'transformers', 'trl', 'peft', 'prefect', 'mlflow', 'pyarrow', 'numpy'} & set(sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=project.folder, env=project.environment(), capture_output=True, text=True,
        check=True,
    )  # fmt: skip
    assert done.stdout.strip() == "set()"


@pytest.mark.slow
def test_the_evidence_of_a_run_is_that_of_its_outputs(project: Any) -> None:
    text = (ROOT / "tests/lines/gated.yaml").read_text().replace("../../pipelines/base", str(ROOT / "pipelines/base"))
    project.write("pipeline.yaml", text)
    run = project.run("pipeline.yaml")
    told = json.loads(project.finery("advise", "pipeline.yaml", "--json").stdout)
    by_step = {step["step"]: step for step in told["steps"]}
    gate = project.home / "store/gate" / run["stages"]["gate"]["key"] / "outputs"
    verdict = json.loads((gate / "verdict/verdict.json").read_text())
    one = verdict["pass_at_1"]
    shown = f"pass@1 {one['value']:.2f} [{one['low']:.2f}, {one['high']:.2f}], solved from 0.30"
    assert {"text": shown, "source": "gate.verdict, of base"} in by_step["stop"]["evidence"]
    assert by_step["stop"]["worth"] == ("yes" if one["value"] >= 0.3 else "no")
    data = project.home / "store/data" / run["stages"]["general"]["key"] / "outputs/train/dataset.json"
    rows = json.loads(data.read_text())["rows"]
    facts = [fact for fact in by_step["sft"]["evidence"] if "labelled rows" in fact["text"]]
    assert facts == [{"text": f"{rows:,} labelled rows, enough from 100", "source": "general.train"}]  # not the exam's
    assert run["stages"]["grpo"]["state"] == "Skipped"
    assert by_step["merge or replay"]["worth"] == "no"  # what was examined is the base itself
    assert by_step["distill"]["evidence"][0]["text"].endswith(", 337k parameters")
    project.write("pipeline.yaml", text.replace("max_prompts: 40", "max_prompts: 39"))
    shown = project.finery("advise", "pipeline.yaml").stdout
    assert "gate.verdict, from before a change, of base" in shown
