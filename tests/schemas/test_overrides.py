"""`--set`."""

from __future__ import annotations

import pytest


def test_overrides_are_yaml_and_are_set_before_validation(line, good):
    loaded = good(
        line, "stages.sft.learning_rate=2e-4", "stages.sft.lora={r: 8}", "stages.sft.lora.lora_alpha=4",
        "stages.exam.models.1=base", "stages.exam.models.0=sft", "stages.exam.models.3=gate.x",
        "stages.exam.models.3=./base",
        "stages.promote.require.grpo.domain.pass_at_1.min=0.25", 'stages.promote.require."sft.domain.greedy"={min: 0}',
        "description=a = b", "seed=5",
    )  # fmt: skip
    stages = loaded.pipeline.stages
    assert stages["sft"].learning_rate == 2e-4
    assert (stages["sft"].lora.r, stages["sft"].lora.lora_alpha) == (8, 4)
    assert stages["exam"].models == ["sft", "base", "grpo", "./base"]
    assert stages["promote"].require["grpo.domain.pass_at_1"].min == 0.25
    assert stages["promote"].require["sft.domain.greedy"].min == 0
    assert (loaded.pipeline.description, loaded.pipeline.seed) == ("a = b", 5)
    assert loaded.overrides["stages.sft.learning_rate"] == 2e-4
    assert type(loaded.overrides["stages.sft.learning_rate"]) is float
    assert loaded.edges["exam"] == ["sft", "base", "grpo", "corpus"]
    assert loaded.source == line
    assert "stages.sft.lora" not in loaded.positions


@pytest.mark.parametrize(
    ("override", "told"),
    [
        ("stages.sft.learning_rat=1", "--set stages.sft.learning_rat=...: unknown key; did you mean learning_rate?"),
        ("stages.sf.learning_rate=1", "--set stages.sf.learning_rate=...: there is no stage sf; did you mean sft?"),
        ("stages.sft.max_steps=2e3", "--set stages.sft.max_steps=...: must be a whole number (at least 1); "
         "2e3 is 2000.0: write 2000"),
        ("stages.sft.lora={q: 8}", "--set stages.sft.lora=... stages.sft.lora.q: unknown key; the keys here are r, "),
        ("stages.exam.models.7=x", "--set stages.exam.models.7=...: stages.exam.models is a list; an item is named by "
         "its position, 0 to 3 (which adds one)"),
        ("stages.sft.model.x=1", "--set stages.sft.model.x=...: stages.sft.model is a single value, not a map; set it "
         "whole: stages.sft.model={...}"),
        ("stages.sft.model=nowhere", "--set stages.sft.model=...: there is no stage nowhere; there are base, corpus, "),
        ("seed", "--set seed=...: is not KEY=VALUE, as in stages.sft.learning_rate=2e-4"),
        ("a..b=1", "--set a..b=...: is not a dotted key, as in stages.sft.learning_rate"),
        ("seed=[1", "--set seed=...: a comma or ] is missing in the list or map"),
        ("seed=!!python/name:os.system x", "--set seed=...: the tag !!python/name:os.system is refused"),
        ("stages.base.from=sk-abcdefgh12", "--set stages.base.from=...: looks like a secret"),
    ],
)  # fmt: skip
def test_a_wrong_override_is_named_and_its_value_is_not_shown_as_a_place(line, bad, override, told):
    lines = bad(line, override)
    assert any(line.startswith(told) for line in lines), lines
    assert "sk-abcdefgh12" not in "".join(lines)


def test_an_override_below_an_alias_changes_one_place_only(change, good):
    text = change("rewards: [{kind: answer}]}\n  grpo", "rewards: [{kind: answer}], sampling: &s {top_k: 5}}\n  grpo")
    text = text.replace("    gate: gate\n", "    gate: gate\n    sampling: *s\n")
    stages = good(text, "stages.grpo.sampling.top_k=9").pipeline.stages
    assert (stages["gate"].sampling.top_k, stages["grpo"].sampling.top_k) == (5, 9)
