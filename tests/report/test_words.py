"""A run in words: the lines below the stage table, and the Markdown."""

from __future__ import annotations

import json
from typing import Any

from finery.report.exam import conditions, suite_tables
from finery.words import abstract, closing_lines, exit_words, markdown


def test_closing_lines_of_a_good_run(fake: Any) -> None:
    fake.whole_line()
    assert closing_lines(fake.finish()) == [
        "gate: rl: pass@1 0.475 [0.425, 0.525], pass@8 0.947 [0.917, 0.977], gap 0.472 [0.429, 0.515], "
        "greedy 0.953, maj@8 0.930",
        "",
        "exam: with the change against sft, * where its 95 % interval leaves out 0",
        "  model    domain pass@1  domain pass@8  domain greedy  domain truncated  general greedy",
        "  base     0.000 -0.475*  0.000 -0.947*  0.000 -0.953*  0.210             0.971 +0.034*",
        "  sft      0.475          0.947          0.953          0.000             0.937",
        "  grpo     0.871 +0.396*  0.993 +0.046*  0.967 +0.014   0.000             0.927 -0.010",
        "  student  0.850 +0.375*  0.980 +0.033*  0.927 -0.026*  0.000             0.821 -0.116*",
        "  merged   0.828 +0.353*  0.993 +0.046*  0.973 +0.020   0.000             0.936 -0.001",
        "",
        "promoted: quickstart version 3 is @champion",
    ]


def test_a_refused_promotion_says_which_condition_failed_by_how_much(fake: Any) -> None:
    fake.whole_line(promoted=False)
    assert closing_lines(fake.finish())[-2:] == [
        "promote: refused: merged does not earn @champion",
        "  merged.domain.pass_at_1 0.55 is 0.05 below min 0.60",
    ]


def test_a_promotion_that_changed_nothing_says_so(fake: Any) -> None:
    fake.whole_line()
    fake.promotions[0]["moved"] = False
    assert closing_lines(fake.finish())[-1] == "promoted: quickstart version 3 is @champion (as before)"


def test_a_verdict_other_than_rl_says_what_it_means(fake: Any) -> None:
    fake.up_to_sft()
    fake.gate(verdict="more_data", conclusive=False)
    assert closing_lines(fake.finish())[1:] == [
        "  sampling more does not solve more, so RL has little to amplify; "
        "the intervals do not settle it, so the point estimates decided"
    ]


def test_a_run_without_verdicts_has_no_closing_lines(fake: Any) -> None:
    fake.up_to_sft()
    assert closing_lines(fake.finish()) == []


def test_an_exam_too_wide_for_the_terminal_is_a_table_a_suite(fake: Any) -> None:
    cell = {"value": 0.5, "low": 0.4, "high": 0.6, "n": 9}
    suites = {f"suite{i}": {"pass_at_1": cell, "pass_at_8": cell, "greedy": cell} for i in range(4)}
    found = {"reference": "a", "models": {"a": suites, "b": suites}, "suites": {}, "same": {"b": "a"}}
    fake.done("exam", {"evaluation": {"evaluation.json": found}})
    lines = closing_lines(fake.finish())
    assert lines[0] == "exam: how each model did"
    assert [line.split()[0] for line in lines[1:]] == ["model", "a", "b"] * 4
    assert lines[3].startswith("  b (= a)  0.500")
    assert max(map(len, lines)) <= 100


def test_abstract_tells_failures_numbers_and_promotions(fake: Any) -> None:
    fake.whole_line()
    fake.failed("student", "out of memory", "")
    said = abstract(fake.finish())
    assert said[0] == "student failed: out of memory"
    assert "domain, pass@1: base 0.000, sft 0.475, grpo 0.871, student 0.850, merged 0.828" in said
    assert said[-1] == "promoted: quickstart version 3 is @champion"


def test_markdown_has_whole_tables(fake: Any) -> None:
    fake.whole_line()
    lines = markdown(fake.finish()).splitlines()
    assert lines[0] == "### quickstart: done in 4 min 12 s"
    assert "| grpo | grpo | Completed | 61.7 | reward 0.874 after 60 steps |" in lines
    assert r"| grpo | 0.871 +0.396\* | 0.993 +0.046\* | 0.967 +0.014 | 0.000 | 0.927 -0.010 |" in lines
    tables = [line for line in lines if line.startswith("|")]
    assert {line.count("|") for line in tables} == {6, 7}
    assert lines[-1] == "promoted: quickstart version 3 is @champion"


def test_markdown_shows_what_users_wrote_as_it_is(fake: Any) -> None:
    fake.failed("base", "a|b <img src=x> [x](javascript:1) `c` *d*\nnext", "")
    row = next(line for line in markdown(fake.finish()).splitlines() if line.startswith("| base"))
    assert row == r"| base | import | Failed | 12.0 | a\|b &lt;img src=x> [x]\(javascript:1) \`c\` \*d\* next |"


def test_margins_of_conditions_are_measured_against_the_exam(fake: Any) -> None:
    fake.whole_line()
    outputs = {name: fake.outcomes[name].done.outputs for name in ("exam", "promote")}
    evaluation = json.loads((outputs["exam"]["evaluation"].path / "evaluation.json").read_text())
    decision = json.loads((outputs["promote"]["decision"].path / "decision.json").read_text())
    first, second = conditions(decision, evaluation)
    assert (round(first.margin or 0, 9), first.asked) == (0.228, "at least 0.6")
    assert (round(second.margin or 0, 9), second.asked) == (0.045, "at most 0.08 below base (0.971)")
    assert conditions(decision, None)[1].margin is None, "unknown without the exam, never 0"
    decision["conditions"][0]["value"] = None
    assert conditions(decision, evaluation)[0].margin is None


def test_more_truncation_is_a_loss_and_less_is_a_gain() -> None:
    def cell(change: float) -> dict[str, Any]:
        moved = {"value": change, "low": change - 0.01, "high": change + 0.01}
        return {"value": 0.5, "low": 0.4, "high": 0.6, "n": 9, "change": moved}

    models = {
        "a": {"s": {"truncated": cell(0.1)}},
        "b": {"s": {"truncated": cell(-0.1)}},
        "c": {"s": {"truncated": cell(0.005)}},
    }
    rows = suite_tables({"reference": "x", "models": models})[0].rows
    assert [row.cells["truncated"].verdict for row in rows] == ["loss", "gain", "even"]


def test_exit_codes_have_words() -> None:
    assert [exit_words(code) for code in (0, 3, 4, 130, 77)] == [
        "done",
        "blocked by a gate",
        "promotion refused",
        "interrupted",
        "exit code 77",
    ]
