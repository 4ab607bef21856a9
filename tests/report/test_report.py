"""The report: what it shows of a run, that it stands alone, and that nothing a user wrote becomes markup."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from html.parser import HTMLParser
from typing import Any

from finery.contract import StageContext
from finery.report import render, write_report

VOID = {"meta", "br"}
EVIL = "<script>alert('x')</script><img src=x onerror=alert(1)>\"'&"


class Page(HTMLParser):
    """Elements with their attributes and text; fails when a tag is not closed where it should be."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: dict[int, list[str]] = {}
        self._open: list[tuple[str, int]] = []
        self.feed(html)
        self.close()
        assert not self._open, f"never closed: {self._open}"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        self.texts[len(self.elements) - 1] = []
        if tag not in VOID:
            self._open.append((tag, len(self.elements) - 1))

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        self.texts[len(self.elements) - 1] = []

    def handle_endtag(self, tag: str) -> None:
        assert [name for name, _ in self._open[-1:]] == [tag], f"</{tag}> at {self.getpos()} closes {self._open[-1:]}"
        self._open.pop()

    def handle_data(self, data: str) -> None:
        for _, index in self._open:
            self.texts[index].append(data)

    def all(self, tag: str, **attributes: str) -> list[str]:
        """The text of every such element, blanks folded; an attribute matches when it holds the word."""
        wanted = {name.rstrip("_"): value for name, value in attributes.items()}
        return [
            " ".join("".join(self.texts[index]).split())
            for index, (name, found) in enumerate(self.elements)
            if name == tag and all(value in (found.get(key) or "").split() for key, value in wanted.items())
        ]


def page_of(fake: Any) -> Page:
    fake.finish()
    return Page(write_report(fake.run_dir, fake.loaded, fake.store).read_text(encoding="utf-8"))


def test_report_of_a_whole_line_shows_every_part(fake: Any) -> None:
    fake.whole_line()
    page = page_of(fake)
    ids = {found.get("id") for _, found in page.elements}
    assert {"line", "stages", "warnings", "gate", "training", "exam", "promotion", "samples", "details"} <= ids
    rows = page.all("tr")
    assert (
        next(row for row in rows if row.startswith("grpo"))
        == "grpo ✓Completed 1 min 02 s reward 0.874 after 60 steps " + fake.outcomes["grpo"].key[:10]
    )
    assert next(row for row in rows if row.startswith("general data")).split()[2] == "⤓Cached"
    assert page.all("p", class_="verdict") == ["Train by RL gate: rl", "Promoted promote"]
    assert any("is quickstart version 3, alias @champion" in text for text in page.all("p"))
    assert [text for text in page.all("title") if text.startswith("step 31: grad_norm")] == [
        "step 31: grad_norm is not finite"
    ]
    assert "chains of additions and subtractions" in page.all("pre", class_="block")[-1]
    assert "corpus: 412 rows repeat another" in page.all("li")


def test_report_shows_the_exam_with_changes_by_their_verdict(fake: Any) -> None:
    fake.whole_line()
    page = page_of(fake)
    rows = [row for row in page.all("tr") if re.match(r"(base|sft|grpo|student|merged) (reference )?\d", row)]
    zero = "−0.02 to 0.02"
    assert rows[0] == f"base 0.000 −0.475 {zero} 0.000 −0.947 {zero} 0.000 −0.953 {zero} 0.210 0.21 to 0.22"
    assert rows[1].startswith("sft reference 0.475 0.45 to 0.49 0.947")
    assert rows[2].startswith("grpo 0.871 +0.396 0.85 to 0.89")
    assert len(rows) == 10
    assert page.all("span", class_="loss")[1:] == ["−0.475", "−0.947", "−0.953", "−0.026", "−0.116"]
    assert "+0.014" in page.all("span", class_="even"), "its interval holds 0, so it is neither gain nor loss"
    bars = [text for text in page.all("title") if text.startswith(("student +", "student −"))]
    assert bars == ["student +0.375 [+0.354, +0.396]", "student −0.116 [−0.137, −0.095]"]


def test_report_asks_nothing_of_the_network(fake: Any) -> None:
    fake.whole_line()
    fake.finish()
    html = write_report(fake.run_dir, fake.loaded, fake.store).read_text(encoding="utf-8")
    page = Page(html)
    names = {name for name, _ in page.elements}
    assert not names & {"link", "img", "iframe", "object", "image", "use", "base", "form"}
    for _, attributes in page.elements:
        assert "src" not in attributes
        assert (attributes.get("href") or "#").startswith("#")
    style = "".join(page.all("style"))
    assert "url(" not in style
    assert "@import" not in style
    assert str(fake.home) not in html, "it can be handed on: no path of this host"


def test_links_lead_to_an_element_of_the_page(fake: Any) -> None:
    fake.whole_line()
    page = page_of(fake)
    ids = [found["id"] for _, found in page.elements if found.get("id")]
    assert len(ids) == len(set(ids))
    assert {found["href"] for _, found in page.elements if found.get("href")} <= {f"#{id}" for id in ids}


def evil_log(context: StageContext) -> None:
    for step in (1, 2):
        context.log(step, **{EVIL: float(step)})
    context.warn(EVIL)


def test_what_users_wrote_is_never_markup(fake: Any) -> None:
    fake.up_to_sft()
    fake.gate(reason=EVIL, verdict=EVIL)
    row = {"id": EVIL, "prompt": [{"role": EVIL, "content": EVIL}], "completion": EVIL, "answer": EVIL}
    lines = "".join(
        json.dumps({**row, "model": f"{EVIL}{i}", "suite": EVIL, EVIL: EVIL, "score": {EVIL: 1.0}, "solved": bool(i)})
        + "\n"
        for i in (0, 1)
    )
    cell = {"value": 0.5, "low": 0.4, "high": 0.6, "n": 3, "change": {"value": 0.1, "low": 0.05, "high": 0.2}}
    exam = {
        "reference": EVIL,
        "models": {EVIL: {EVIL: {EVIL: cell}}},
        "suites": {EVIL: {EVIL: EVIL}},
        "same": {EVIL: EVIL},
    }
    fake.done("exam", {"evaluation": {"evaluation.json": exam}, "samples": {"samples.jsonl": lines}}, headline=EVIL)
    bound = {"max_drop": 0.1, "from": EVIL}
    condition = {"metric": EVIL, "value": 0.1, "bound": bound, "passed": False, "reason": EVIL}
    decision = {"verdict": "refuse", "alias": EVIL, "model": EVIL, "model_digest": EVIL, "conditions": [condition]}
    fake.done(
        "promote",
        {"decision": {"decision.json": decision}},
        state="Refused",
        message=EVIL,
        summary={EVIL: [EVIL, {EVIL: EVIL}]},
    )
    fake.failed("grpo", EVIL, f"{EVIL}\n", evil_log)
    fake.done(
        "student", {"model": {"model.json": {EVIL: {EVIL: EVIL}}}}, log=evil_log, metrics={EVIL: 1.0}, warnings=(EVIL,)
    )
    (fake.run_dir / "pipeline.yaml").write_text(f"name: x # {EVIL}\n", encoding="utf-8")
    (fake.run_dir / "run.json").write_text(json.dumps({"set": {EVIL: EVIL}}), encoding="utf-8")
    fake.promotions.append(
        {"stage": "promote", "name": EVIL, "version": EVIL, "alias": EVIL, "moved": True, "reused": False}
    )
    page = page_of(fake)
    assert len(page.all("script")) == 1
    assert "img" not in {name for name, _ in page.elements}
    assert not [key for _, found in page.elements for key in found if key.startswith("on")]
    assert sum(EVIL in text for text in page.all("pre")) >= 5, "and yet it is shown, whole"
    assert EVIL in "".join(page.all("title"))


def test_report_of_a_run_that_went_wrong(fake: Any) -> None:
    fake.up_to_sft()
    fake.gate(verdict="skip_rl", reason="nothing is left")
    fake.ended("grpo", "Skipped", "gate says skip_rl", like="sft")
    fake.failed("student", "killed by signal 9", "old line\n" * 2000 + "MemoryError: the last line\n", evil_log)
    fake.ended("merged", "Cancelled", "stopped by the user")
    fake.ended("exam", "Blocked", "behind student (Failed)")
    page = page_of(fake)
    assert page.all("span", class_="exit") == ["failed (exit code 1)"]
    assert page.all("p", class_="verdict") == ["Skip RL gate: skip_rl"]
    log = page.all("pre", class_="block")[0]
    assert log.endswith("MemoryError: the last line")
    assert len(log) < 6100
    nodes = dict(
        text.split(": ", 1) for text in page.all("title") if ": " in text and text.split(" (")[0] in fake.loaded.order
    )
    assert nodes["grpo (grpo)"].startswith("Skipped")
    assert nodes["promote (promote)"].startswith("not run"), "a stage without an outcome is drawn all the same"
    assert len([text for text in page.all("h3") if text.startswith("student distill, 2 steps, failed")]) == 1, (
        "curves so far"
    )


def test_report_of_a_run_in_which_nothing_ran(fake: Any) -> None:
    page = page_of(fake)
    assert "Nothing ran." in page.all("p")
    assert "no stage ran" in page.all("span", class_="soft")


def test_what_is_no_longer_there_or_broken_is_said(fake: Any) -> None:
    fake.whole_line()
    summary = fake.finish()
    outputs = summary["stages"]["exam"]["outputs"]
    for file in ("evaluation/evaluation.json", "samples/samples.jsonl"):
        (fake.store.output("evaluate", fake.outcomes["exam"].key, file)).unlink()
    broken = fake.store.output("gate", fake.outcomes["gate"].key, "samples") / "samples.jsonl"
    broken.write_text('{"id": 1}\nnot json\n', encoding="utf-8")
    verdict = fake.store.output("gate", fake.outcomes["gate"].key, "verdict") / "verdict.json"
    verdict.write_text("[]", encoding="utf-8")
    assert outputs["evaluation"]["kind"] == "evaluation"
    page = Page(render(fake.run_dir, fake.loaded, fake.store))
    said = page.all("p", class_="no")
    assert "evaluation.json is no longer in the store" in said
    assert "verdict.json holds no JSON object" in said
    assert any(text.startswith("samples.jsonl cannot be read: ") for text in said)


def test_a_script_that_makes_another_form_does_not_end_the_report(fake: Any) -> None:
    fake.gate(pass_at=[1, 8])
    fake.done("exam", {"evaluation": {"evaluation.json": {"models": {"a": 1}}}})
    fake.done("promote", {"decision": {"decision.json": {"conditions": ["x"]}}}, state="Refused", message="")
    said = page_of(fake).all("p", class_="no")
    assert said == [
        "verdict.json has no pass_at as an artifact of this kind has it",
        "evaluation.json has no models as an artifact of this kind has them",
        "decision.json has no conditions as an artifact of this kind has them",
    ]


def test_a_cached_stage_shows_the_warnings_it_was_made_with(fake: Any) -> None:
    fake.done(
        "base", {"model": {"model.json": {}}}, log=lambda context: context.warn("no chat template"), state="Cached"
    )
    page = page_of(fake)
    assert "base: no chat template" in page.all("li")


def test_equal_runs_give_equal_reports_and_no_leftovers(fake: Any) -> None:
    fake.whole_line()
    fake.finish()
    first = write_report(fake.run_dir, fake.loaded, fake.store).read_bytes()
    assert write_report(fake.run_dir, fake.loaded, fake.store).read_bytes() == first
    assert {path.name for path in fake.run_dir.iterdir()} == {
        "pipeline.yaml",
        "run.json",
        "summary.json",
        "report.html",
    }


def test_importing_report_and_words_brings_in_nothing_heavy() -> None:
    code = (
        "import sys, finery.report, finery.words, finery.report.page;"
        "print([m for m in ('jinja2', 'torch', 'prefect', 'mlflow', 'pandas', 'pyarrow') if m in sys.modules])"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"
