"""What stages say of each other must fit; secrets stay out; what is doubtful is warned of."""

from __future__ import annotations

import pytest


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("data: corpus.sft", "data: corpus", "8:39 stages.sft.data: corpus has several outputs; write corpus.sft or "
         "corpus.rl or corpus.test"),
        ("data: corpus.sft", "data: corpus.card", "8:39 stages.sft.data: corpus.card is a file, and this must be a "
         "dataset; write corpus.sft or corpus.rl or corpus.test"),
        ("model: base, data", "model: gate, data", "8:27 stages.sft.model: gate is a verdict, and this must be a "
         "model"),
        ("model: base, data", "model: sft, data", "8:27 stages.sft.model: sft refers to itself"),
        ("model: base, data", "model: 'My Model', data", "8:27 stages.sft.model: My Model is not a reference; write "
         "stage, stage.output, ./path, hf:org/name@revision or registry:name@alias"),
        ("model: base, data", "model: org/name, data", "8:27 stages.sft.model: org/name is not a reference; write "
         "stage, stage.output, ./path, hf:org/name@revision or registry:name@alias; a hub model is written "
         "hf:org/name"),
        ("data: corpus.sft", "data: hf:org/name@main", "8:39 stages.sft.data: hf:org/name@main is an outside model, "
         "and this must be a dataset; a data stage reads the hub: {kind: data, sources: [{kind: hub, name: org/name, "
         "revision: ...}]}"),
        ("data: corpus.sft", "data: ./base", "8:39 stages.sft.data: ./base is not a data set that finery made; read "
         "it in a stage: corpus: {kind: data, sources: [{kind: file, path: ./base}]}, and write corpus here"),
        ("from: ./base", "from: ./bose", "3:30 stages.base.from: ./bose: no such file or folder; did you mean ./base?"),
        ("from: ./base", "from: base", "3:30 stages.base.from: base refers to itself; a path begins with ./: "
         "write ./base"),
        ("from: ./base", "from: ./x.yaml", "3:30 stages.base.from: ./x.yaml is not a model; name a folder that holds "
         "config.json and safetensors, or a .gguf file"),
        ("from: ./base", "from: ./base, after: [sfft]", "3:46 stages.base.after.0: there is no stage sfft; did you "
         "mean sft?"),
        ("{kind: chains, rows: 400}", "{kind: file, path: ./data/*.jsonl}", "6:34 stages.corpus.sources.0.path: "
         "./data/*.jsonl matches no file"),
        ("{kind: chains, rows: 400}", "{kind: file, path: hf:org/set}", "6:34 stages.corpus.sources.0.path: hf:org/set "
         "is no file; this must be a path from the YAML file's folder"),
        ("gate: gate", "gate: gate.difficulty", "14:11 stages.grpo.gate: gate.difficulty is a difficulty, and this "
         "must be a verdict; write gate.verdict"),
        ("    rewards: [{kind: answer}]\n  exam", "    rewards: [{kind: python, file: ./r.py, function: f}]\n  exam",
         "16:36 stages.grpo.rewards.0.file: ./r.py: no such file or folder"),
        ("grpo.domain.pass_at_1", "grp.domain.pass_at_1", "25:15 stages.promote.require.grp.domain.pass_at_1: grp is "
         "not in the exam; did you mean grpo?"),
        ("grpo.domain.pass_at_1", "grpo.domains.pass_at_1", "25:15 stages.promote.require.grpo.domains.pass_at_1: the "
         "exam has no suite domains; did you mean domain?"),
        ("grpo.domain.pass_at_1", "grpo.domain.pass_at_4", "25:15 stages.promote.require.grpo.domain.pass_at_4: the "
         "suite domain has no pass_at_4; did you mean pass_at_8? It has pass_at_1, pass_at_8, greedy, truncated"),
        ("{min: 0.5}", "{max_drop: 0.1, from: bse}", "25:60 stages.promote.require.grpo.domain.pass_at_1.from: bse is "
         "not in the exam; did you mean base?"),
        ("{min: 0.5}", "{min: 70}", "25:44 stages.promote.require.grpo.domain.pass_at_1.min: 70 is never reached: the "
         "exam's numbers lie between 0 and 1"),
        ("grpo.domain.pass_at_1: {min: 0.5}", "grpo.forgetting: {max: 0.05}", "25:15 stages.promote.require."
         "grpo.forgetting: the exam has no general suite"),
    ],
)  # fmt: skip
def test_what_stages_say_of_each_other_must_fit(change, bad, old, new, told):
    lines = bad(change(old, new))
    assert any(line.startswith(told) for line in lines), lines


def test_an_output_that_a_closed_gate_leaves_absent_cannot_be_needed(line, good, bad):
    text = line.replace("  exam:", "  again: {kind: grpo, model: grpo, data: corpus.rl, max_steps: 9, "
                        "rewards: [{kind: answer}], difficulty: {start: grpo.difficulty}}\n  exam:")  # fmt: skip
    assert bad(text) == [
        "17:114 stages.again.difficulty.start: grpo.difficulty is absent when the gate gate skips grpo, which then "
        "hands on its model alone; take gate.difficulty, or leave gate out of grpo"
    ]
    assert good(text.replace("start: grpo.difficulty", "start: gate.difficulty")).order[-3:] == [
        "again", "exam", "promote",
    ]  # fmt: skip


def test_references_are_checked_even_in_stages_with_other_mistakes(change, bad):
    lines = bad(change("{kind: sft, model: base,", "{kind: sft, model: bse, learning_rate: fast,"))
    assert [line.split()[1] for line in lines] == ["stages.sft.model:", "stages.sft.learning_rate:"]


def test_two_cycles_are_told_once_each(bad):
    text = "name: s\nstages:\n" + "".join(
        f'  {a}: {{kind: script, command: ["true"], after: [{b}]}}\n' for a, b in ("ab", "bc", "ca", "de", "ed", "fa")
    )
    assert [line.split(": ", 1)[1] for line in bad(text)] == [
        "the stages wait for each other: a -> b -> c -> a (lines 3, 4, 5)",
        "the stages wait for each other: d -> e -> d (lines 6, 7)",
    ]


def test_the_environment_enters_only_where_a_secret_is_asked_for(change, script, good, bad):
    told = "takes no ${env:NAME}; only a secret does, as env of a script stage"
    assert bad(script('params: {a: {b: ["x ${env:HOME}"]}}')) == [f"6:22 stages.a.params.a.b.0: {told}"]
    assert f"1:7 name: {told}" in bad(change("name: line", 'name: "${env:NAME}"'))
    assert good(script('env: {A: "${env:B}"}')).pipeline.stages["a"].env == {"A": "${env:B}"}


@pytest.mark.parametrize("text", ["retries: hf_abcdefgh1234", "timeout: {TOKEN: x9x9}", "env: {TOKEN: x9x9}",
                                  "params: {password: x9x9}", "params: {url: 'https://u:x9x9@h/'}"])  # fmt: skip
def test_what_may_be_a_secret_is_refused_without_being_shown(script, bad, text):
    told = "\n".join(bad(script(text)))
    assert "x9x9" not in told
    assert "abcdefgh" not in told


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("    gate: gate\n", "    gate: gate\n    sampling: {temperature: 0.7}\n", "15:5 stages.grpo.sampling: differs "
         "from its gate's (temperature 1.0 there, 0.7 here); the verdict holds for the gate's"),
        ("    rewards: [{kind: answer}]\n  exam", "    rewards: [{kind: answer, extract: boxed}]\n  exam",
         "16:5 stages.grpo.rewards: the verifier differs from its gate's; the gate counted other completions as "
         "solved"),
        ("model: sft, data: corpus.rl, rew", "model: base, data: corpus.rl, rew", "14:5 stages.grpo.gate: it measures "
         "base, but this stage trains sft"),
        ("model: sft, data: corpus.rl, rew", "max_prompts: 9, model: sft, data: corpus.rl, rew",
         "9:22 stages.gate.max_prompts: 9 prompts give pass@1 within +-0.33 at worst"),
        ("    gate: gate\n", "    gate: gate\n    difficulty: {discount: 0.9}\n", "15:5 stages.grpo.difficulty: cannot "
         "drop a prompt: one is judged after 2 visits, and 10 steps of 1 prompts make 0.1 passes over about 120; "
         "add start: GATE.difficulty, or write policy: none"),
        ("    gate: gate\n", "    gate: gate\n    difficulty: {band: [0.001, 0.999]}\n",
         "15:18 stages.grpo.difficulty.band: [0.001, 0.999] never drops a prompt"),
        ("    gate: gate\n", "    gate: gate\n    difficulty: {start: gate.difficulty}\n",
         "15:18 stages.grpo.difficulty.start: gate.difficulty knows the prompts that the gate drew before it was sure"),
        ("model: grpo\n    evaluation", "model: sft\n    evaluation", "25:5 stages.promote.require: no condition "
         "looks at sft, the model to be promoted"),
    ],
)  # fmt: skip
def test_what_is_probably_not_meant_is_warned_of(change, good, old, new, told):
    loaded = good(change(old, new))
    assert [line.removeprefix(f"{loaded.path}:")[: len(told)] for line in loaded.warnings] == [told]


def test_a_student_that_is_its_teacher_and_a_base_merged_into_itself_are_warned_of(line, good):
    more = """\
  student: {kind: distill, teacher: grpo, student: grpo, data: corpus.rl, max_steps: 1, rewards: [{kind: answer}]}
  merged: {kind: merge, base: sft, models: [grpo, {model: sft}], method: ties}
  exam:"""
    warnings = good(line.replace("  exam:", more)).warnings
    assert [warning.split("x.yaml:")[1] for warning in warnings] == [
        "17:43 stages.student.student: is the teacher itself; name a smaller model, or {shrink: {layers: [...]}}",
        "18:51 stages.merged.models.1: sft is the base, from which it differs in nothing: it adds nothing",
    ]


def test_a_format_reward_beside_the_gates_verifier_is_no_difference(change, good):
    text = change("    rewards: [{kind: answer}]\n  exam",
                  "    rewards: [{kind: answer, verifier: true, weight: 2}, {kind: format}]\n  exam")  # fmt: skip
    assert good(text).warnings == []


def test_the_problems_of_human_eval_are_counted(change, good):
    text = change("{kind: chains, rows: 400}", "{kind: human_eval}").replace("rl: 0.3", "rl: 0.1")
    (told,) = [told for told in good(text).warnings if "prompts give pass@1" in told]
    assert "stages.gate.data: 16 prompts" in told
