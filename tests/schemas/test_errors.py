"""What the schema refuses is told in the words of the file."""

from __future__ import annotations

import pytest

from finery.errors import InputError
from finery.load import load

NAME = "is not a name: a letter a-z, then up to 62 of a-z, 0-9, _ and - (^[a-z][a-z0-9_-]{0,62}$)"


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("kind: import", "kind: imprt", "3:16 stages.base.kind: unknown kind imprt; did you mean import?"),
        ("kind: import, ", "", "3:3 stages.base.kind: is missing; one of import, data, pretrain, sft, dpo, gate, grpo, "
         "distill, merge, evaluate, promote, script"),
        ("kind: import", "type: import", "3:3 stages.base.kind: is missing; one of import, data, pretrain, sft, dpo, "
         "gate, grpo, distill, merge, evaluate, promote, script; did you mean that by type?"),
        ("model: base, data", "data", "8:3 stages.sft.model: is missing; it must be a reference: The model to train."),
        ("model: base, data", "modle: base, data", "8:20 stages.sft.modle: unknown key; did you mean model?"),
        ("max_steps: 10}", "max_steps: 0}",
         "8:62 stages.sft.max_steps: must be a whole number (at least 1), not 0"),
        ("max_steps: 10}", "max_steps: 2.5}",
         "8:62 stages.sft.max_steps: must be a whole number (at least 1), not 2.5"),
        ("max_steps: 10}", "save_steps: }", "8:62 stages.sft.save_steps: is empty; it must be a whole number "
         "(at least 1)"),
        ("max_steps: 10}", 'max_steps: "10"}', "8:62 stages.sft.max_steps: must be a whole number (at least 1); "
         '"10" is text: write 10, without quotes'),
        ("max_steps: 10}", "max_steps: 10, dtype: fp16}", "8:73 stages.sft.dtype: must be one of float32, bfloat16, "
         "float16, not fp16; did you mean float16?"),
        ("max_steps: 10}", "max_steps: 10, timeout: soon}", "8:75 stages.sft.timeout: is not a duration; write "
         "seconds as a number, or for example 30s, 10m, 2h30m, 1d"),
        ("max_steps: 10}", "max_steps: 10, runtime: proces}", "8:75 stages.sft.runtime: must be process or a map "
         "{process: ...}, not proces; did you mean process?"),
        ("max_steps: 10}", "max_steps: 10, runtime: {process: {pyton: x}}}",
         "8:86 stages.sft.runtime.process.pyton: unknown key; did you mean python?"),
        ("max_steps: 10}", "max_steps: 10, lora: {target_modules: []}}", "8:89 stages.sft.lora.target_modules: names "
         "nothing; leave it out for all-linear"),
        ("max_steps: 10}", "max_steps: 10, lora: {target_modules: 3}}",
         "8:89 stages.sft.lora.target_modules: must be text or a list, not 3"),
        ("max_steps: 10}", "max_steps: 10, completion_only_loss: off}", "8:88 stages.sft.completion_only_loss: must be "
         "true or false; off is text: write false"),
        ("max_steps: 10}", "max_steps: 10, after: base}", "8:73 stages.sft.after: must be a list, not base: "
         "write [base]"),
        ("max_steps: 10}", "max_steps: 10, r: 8}", "8:66 stages.sft.r: unknown key; it belongs in lora: "
         "stages.sft.lora.r"),
        ("max_steps: 10}", "max_steps: 10, lora: {learning_rate: 1}}", "8:73 stages.sft.lora.learning_rate: unknown "
         "key; it belongs in the stage: stages.sft.learning_rate"),
        ("max_steps: 10}", "max_steps: 10, tracking: {}}", "8:66 stages.sft.tracking: unknown key; it belongs at the "
         "top of the file: tracking"),
        ("max_steps: 10}", "max_steps: 10, num_generations: 8}", "8:66 stages.sft.num_generations: unknown key; it is "
         "a key of grpo, not of sft"),
        ("max_steps: 10}", "data_: x}", "8:3 stages.sft: needs max_steps or num_train_epochs"),
        ("name: line", "name: Line", f"1:7 name: Line {NAME}"),
        ("name: line\n", "", "1:1 name: is missing; it must be text: The pipeline's name: Prefect's flow run, MLflow's "
         "experiment and the registered model bear it."),
        ("rl: 0.3", "rl: {rows: 3}", "7:24 stages.corpus.splits.rl.fraction: is missing; it must be a number "
         "(above 0, at most 1): The share of groups that fall into it."),
        ("rl: 0.3", "rl: 0.8", "7:13 stages.corpus.splits: the fractions sum to 1.5; at most 1 can be shared out"),
        ("rl: 0.3", 'rl: "0.3"', "7:28 stages.corpus.splits.rl: must be a number (above 0, at most 1) or a map "
         '{fraction: ...}; "0.3" is text: write 0.3, without quotes'),
        ("[{kind: chains, rows: 400}]", "[]", "6:14 stages.corpus.sources: must not be empty; it must be a list of at "
         "least 1 item"),
        ("{min: 0.5}", "{}", "25:15 stages.promote.require.grpo.domain.pass_at_1: asks for nothing; give min, max or "
         "max_drop"),
        ("grpo.domain.pass_at_1", "pass_at_1", "25:15 stages.promote.require.pass_at_1: is not model.suite.metric, "
         "for example merged.domain.pass_at_1"),
        ("max_steps: 10}", "max_steps: 10.0}", "8:62 stages.sft.max_steps: must be a whole number (at least 1); "
         "write 10"),
        ("rl: 0.3", "rl: 30%", "7:28 stages.corpus.splits.rl: must be a number (above 0, at most 1) or a map "
         "{fraction: ...}; 30% is text: write 0.3"),
        ("    rewards: [{kind: answer}]\n  exam", "    rewards: answer\n  exam", "16:14 stages.grpo.rewards: must be a "
         "list of at least 1 item, not answer: write [{kind: answer}]"),
        ("    rewards: [{kind: answer}]\n  exam", "    rewards: [answer]\n  exam", "16:15 stages.grpo.rewards.0: must "
         "be a map whose kind is one of answer, format, length, regex, choice, json_schema, steps, repetition, "
         "code_tests, sql, reasoning_gym, python, not answer: write {kind: answer}"),
        ("k: [1, 8]", "k: 8", "20:72 stages.exam.suites.domain.k: must be a list, not 8: write [8]"),
    ],
)  # fmt: skip
def test_a_mistake_is_told_where_it_is_in_the_words_of_the_field(change, bad, old, new, told):
    assert told in bad(change(old, new))


def test_no_error_speaks_pydantic(bad):
    text = """\
name: 3
defaults: process
stages:
  a: 1
  b: {kind: merge, models: [1, {weight: x}], method: ties, base: []}
  c: {kind: distill, teacher: [x], student: {layers: [0]}, data: {}, rewards: {}}
  d: {kind: grpo, difficulty: {band: [0.1]}}
  e: {kind: pretrain, tokenizer: {kind: wrds}}
  f: ~
  g: {kind: script, command: "", makes: {x: modl}, env: {"A-B": "${env:X}"}, inputs: {a: 3}}
"""
    lines = bad(text)
    for word in ("pydantic", "http", "Input", "type=", "ModelRef", "valid", "literal", "dictionary", "None"):
        assert word not in "\n".join(lines)
    kinds = "import, data, pretrain, sft, dpo, gate, grpo, distill, merge, evaluate, promote, script"
    assert [line for line in lines if " is missing" not in line] == [
        '1:7 name: must be text; quote it: "3"',
        "2:11 defaults: must be a map, not process",
        f"4:6 stages.a: must be a map whose kind is one of {kinds}, not 1",
        "5:29 stages.b.models.0: must be a reference or a map {model: ...}, not 1",
        "5:41 stages.b.models.1.weight: must be a number; x is text",
        "5:66 stages.b.base: must be a reference, not a list",
        "6:31 stages.c.teacher: must be a reference, not a list",
        "6:46 stages.c.student.layers: unknown key; it belongs in shrink: stages.c.student.shrink.layers",
        "6:66 stages.c.data: must be a reference, not a map",
        "6:79 stages.c.rewards: must be a list of at least 1 item, not a map",
        "7:38 stages.d.difficulty.band: must be a list of 2 items, not of 1",
        "8:41 stages.e.tokenizer.kind: unknown kind wrds; did you mean words?",
        f"9:6 stages.f: is empty; it must be a map whose kind is one of {kinds}",
        "10:30 stages.g.command: must not be empty; it must be text",
        "10:45 stages.g.makes.x: must be one of model, dataset, verdict, difficulty, evaluation, decision, fisher, "
        "file, not modl; did you mean model?",
        "10:58 stages.g.env.A-B: does not match ^[A-Za-z_][A-Za-z0-9_]*$",
        "10:90 stages.g.inputs.a: must be a reference, not 3",
    ]


def test_errors_come_in_the_order_of_the_file_and_name_it_from_the_working_directory(
    tmp_path, change, write, monkeypatch
):
    file = write(change("model: base, data: corpus.sft", "model: bas, data: corpus.sf"))
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError) as caught:
        load(file)
    assert str(caught.value).splitlines() == [
        "x.yaml:8:27 stages.sft.model: there is no stage bas; did you mean base?",
        "x.yaml:8:38 stages.sft.data: corpus has no output sf; did you mean corpus.sft?",
    ]
