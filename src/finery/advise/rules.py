"""The table of docs/choosing.md as rules: pure functions of the evidence, each answer with its numbers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from finery.advise.evidence import Evidence, Fact, Machine, Missing

MIN_LABELLED = 100
"""Labelled rows from which SFT is worth a run. LIMA's 1,000 (arXiv 2305.11206) teach a form well; fewer still do."""
MIN_PREFERENCES = 100
"""Preference pairs from which DPO is worth a run."""
CUT = 0.1
"""Completions that never end, from which the form is what is missing (the gate warns at the same share)."""
LEAD = 0.1
"""How much better a teacher must be."""
SMALLER = 0.5
"""How much smaller a student must be: at most this share of the teacher's parameters."""
CPU_PARAMETERS = 50_000_000
"""What a CPU can draw completions from at every step."""
TRAINED_BYTES = 4
"""Bytes a parameter that GRPO with LoRA holds at the least: the weights in float32, as `dtype` has them by default."""

State = Literal["yes", "no", "unknown"]
_COMPUTE = Missing("the model's size, or the GPU's memory", "finery run FILE, on the machine that will train")


@dataclass(frozen=True)
class Finding:
    """A rule's answer: whether its step is worth it, the evidence, and what is missing."""

    state: State
    why: str
    evidence: tuple[Fact, ...] = ()
    missing: tuple[Missing, ...] = ()


@dataclass(frozen=True)
class Rule:
    """A row of the table: `when` the evidence is so, `step` is worth it, and `why`."""

    step: str
    when: str
    why: str
    judge: Callable[[Evidence], Finding]


@dataclass(frozen=True)
class Advice:
    """The answers in the order of the table; `next` is the first that says yes, None when none does."""

    findings: tuple[tuple[Rule, Finding], ...]
    machine: Machine

    @property
    def next(self) -> tuple[Rule, Finding] | None:
        return next((pair for pair in self.findings if pair[1].state == "yes"), None)


def advise(evidence: Evidence) -> Advice:
    """Every rule of the table on the evidence."""
    return Advice(tuple((rule, rule.judge(evidence)) for rule in RULES), evidence.machine)


def _forgetting(e: Evidence) -> Finding:
    if e.changes is None:
        missing = e.missing("what was forgotten", "exam")
        return Finding("unknown", "no exam compares a trained model with its start", missing=(missing,))
    if not e.changes:
        return Finding("no", "the model that was examined is its start, or nothing of it could be judged")
    lost = tuple(change.fact for change in e.changes if change.change.high < 0)
    if lost:
        return Finding("yes", "the trained model is surely worse than its start", lost)
    return Finding("no", "no suite is surely worse than before", tuple(change.fact for change in e.changes))


def _stop(e: Evidence) -> Finding:
    if e.gate is None:
        return Finding("unknown", "pass@1 is not measured", missing=(e.missing("pass@1 and pass@k", "gate"),))
    if e.gate.solved:
        sure = e.gate.sure(e.gate.pass_at_1, e.gate.solved_at)
        return Finding("yes", f"pass@1 is above the mark, {sure}", (e.gate.passed,))
    return Finding("no", "pass@1 is below the mark", (e.gate.passed,))


def _sft(e: Evidence) -> Finding:
    if e.labelled is None:
        return Finding("unknown", "the labelled rows are not counted", missing=(e.missing("labelled rows", "data"),))
    rows = Fact(f"{e.labelled.value:,} labelled rows, enough from {MIN_LABELLED}", e.labelled.source)
    if e.labelled.value < MIN_LABELLED:
        return Finding("no", "there are too few labelled rows", (rows,))
    if e.gate is not None and e.gate.solved:
        return Finding("no", "the task is solved", (rows, e.gate.passed))
    if e.supervised is None:
        return Finding("yes", "there are labelled rows, and no supervised training has used them", (rows,))
    if e.supervised.still_learning:
        return Finding("yes", "supervised training was not done when it ended: train longer", (rows, e.supervised.fact))
    if e.gate is None:
        missing = (e.missing("how many completions end, by pass@k's samples", "gate"),)
        return Finding("unknown", "whether the form is learned is not measured", (rows, e.supervised.fact), missing)
    cut = Fact(f"{e.gate.truncated:.0%} of the completions never ended, many from {CUT:.0%}", e.gate.source)
    if e.gate.truncated >= CUT:
        return Finding("yes", "the model does not keep the form the task needs", (rows, cut))
    return Finding("no", "supervised training has had what it can get", (rows, e.supervised.fact, cut))


def _data(e: Evidence) -> Finding:
    if e.gate is None:
        return Finding("unknown", "the gap is not measured", missing=(e.missing("pass@1 and pass@k", "gate"),))
    facts = (e.gate.passed, e.gate.gaps)
    if e.gate.solved:
        return Finding("no", "the task is solved", facts)
    sure = e.gate.sure(e.gate.gap, e.gate.min_gap)
    if not e.gate.is_wide:
        return Finding("yes", f"the gap is small, {sure}: k tries find little that one try misses", facts)
    return Finding("no", f"the gap is wide, {sure}", facts)


def _dpo(e: Evidence) -> Finding:
    if e.gate is not None and e.gate.solved:
        return Finding("no", "the task is solved", (e.gate.passed,))
    given, made = e.preferences, e.gate.pairs if e.gate else 0
    facts: list[Fact] = []
    if given is not None:
        facts.append(Fact(f"{given.value:,} preference pairs, enough from {MIN_PREFERENCES}", given.source))
    if e.gate is not None:
        facts.append(e.gate.paired)
    if max(given.value if given else 0, made) < MIN_PREFERENCES:
        missing = [] if given is not None else [e.missing("preference pairs", "data")]
        missing += [] if e.gate is not None else [e.missing("pairs that the model's own samples give", "gate")]
        state: State = "unknown" if missing else "no"
        return Finding(state, "there are not enough pairs", tuple(facts), tuple(missing))
    if e.verifier is None:
        return Finding("yes", "there are pairs, and no verifier that GRPO would need", tuple(facts))
    little, compute = _little_compute(e)
    facts.append(compute)
    if little is None:
        return Finding("unknown", "there are pairs, but the compute is not known", tuple(facts), (_COMPUTE,))
    if little:
        return Finding("yes", "there are pairs, and too little compute to draw completions at every step", tuple(facts))
    return Finding("no", "there is compute for GRPO, which learns from fresh completions", tuple(facts))


def _grpo(e: Evidence) -> Finding:
    if e.verifier is None:
        missing = Missing("a verifier", "add a stage of kind gate with rewards (docs/rewards.md)")
        return Finding("no", "the pipeline names no reward that could verify a completion", missing=(missing,))
    if e.gate is None:
        return Finding("unknown", "the gap is not measured", (e.verifier,), (e.missing("pass@1 and pass@k", "gate"),))
    facts = [e.verifier, e.gate.passed, e.gate.gaps]
    if e.verifiable is not None:
        facts.append(Fact(f"{e.verifiable.value:,} verifiable prompts", e.verifiable.source))
    if e.gate.solved:
        return Finding("no", "the task is solved", tuple(facts))
    sure = e.gate.sure(e.gate.gap, e.gate.min_gap)
    if not e.gate.is_wide:
        return Finding("no", f"the gap is small, {sure}: there is nothing to choose from", tuple(facts))
    if e.supervised is not None:
        facts.append(e.supervised.fact)
        if e.supervised.still_learning:
            return Finding("no", "supervised training has not come to its plateau, and is cheaper", tuple(facts))
    little, compute = _little_compute(e)
    facts.append(compute)
    if e.gate.greedy is not None and e.gate.greedy < e.gate.min_greedy:
        mark = f"greedy accuracy {e.gate.greedy:.2f} is below {e.gate.min_greedy:.2f}"
        facts.append(Fact(f"{mark}: wide gaps beside it were followed by no gain", e.gate.source))
    if little is None:
        return Finding("unknown", "a reward and a wide gap, but the compute is not known", tuple(facts), (_COMPUTE,))
    if little:
        why = "too little compute to draw completions at every step; a larger machine has it"
        return Finding("no", why, tuple(facts))
    return Finding("yes", f"a reward that verifies and a wide gap, {sure}", tuple(facts))


def _distill(e: Evidence) -> Finding:
    if e.scored is None:
        missing = e.missing("a teacher's and a student's score", "exam")
        return Finding("unknown", "no exam compares models", missing=(missing,))
    if not e.scored:
        missing = Missing("the models' sizes", "finery run FILE, so that they lie in the store")
        return Finding("unknown", "the sizes of the examined models are not known", missing=(missing,))
    teacher = max(e.scored, key=lambda one: one.score)
    students = [one for one in e.scored if one.parameters <= SMALLER * teacher.parameters]
    first = Fact(f"{teacher.model} {teacher.score:.2f} on {teacher.suite}, {_size(teacher.parameters)}", teacher.source)
    if not students:
        missing = Missing("a smaller model's score", "name a model of half the size or less in the exam's models")
        return Finding("unknown", "no examined model is so much smaller that it costs less", (first,), (missing,))
    student = max(students, key=lambda one: one.score)
    second = Fact(f"{student.model} {student.score:.2f}, {_size(student.parameters)}", student.source)
    if teacher.score - student.score >= LEAD:
        return Finding("yes", f"the teacher is better by {LEAD} or more, and the student costs less", (first, second))
    return Finding("no", f"the smaller model is within {LEAD} of the larger one already", (first, second))


def _little_compute(e: Evidence) -> tuple[bool | None, Fact]:
    """Whether completions cannot be drawn at every step here; None when it is not known."""
    machine = e.machine
    if e.parameters is None:
        return None, Fact(f"{host(machine)}; the model's size is not known", machine.source)
    size = _size(e.parameters.value)
    where = f"{machine.source}; {e.parameters.source}"
    if not machine.gpus:
        little = e.parameters.value > CPU_PARAMETERS
        limit = f"a CPU can draw from {_size(CPU_PARAMETERS)}"
        return little, Fact(f"{host(machine)}, a model of {size}; {limit}", where)
    if machine.gpu_memory is None:
        return None, Fact(f"{host(machine)}, its memory not known (no nvidia-smi); a model of {size}", where)
    needs = e.parameters.value * TRAINED_BYTES
    text = f"{host(machine)}, a model of {size}: weights in float32 take {needs / 1e9:.1f} GB"
    return needs > 0.8 * machine.gpu_memory, Fact(text, where)


def host(machine: Machine) -> str:
    if not machine.gpus:
        return f"no GPU, {machine.cpus} CPU cores"
    memory = f" of {machine.gpu_memory / 1e9:.0f} GB" if machine.gpu_memory else ""
    return f"{machine.gpus} GPU{'s' if machine.gpus > 1 else ''}{memory}"


def _size(parameters: int) -> str:
    for unit, name in ((1e9, "B"), (1e6, "M"), (1e3, "k")):
        if parameters >= unit:
            return f"{parameters / unit:.3g}{name} parameters"
    return f"{parameters} parameters"


RULES = (
    Rule(
        "merge or replay",
        "the trained model is surely worse than its start on a suite",
        "merging with the start, or a replay share in training, gives back what was forgotten (arXiv 2109.01903)",
        _forgetting,
    ),
    Rule(
        "stop",
        "pass@1 at or above 0.9",
        "there is nothing left to win; promote, or take a harder task",
        _stop,
    ),
    Rule(
        "sft",
        "100 or more labelled pairs, and no training on them yet, a loss that still falls, or a form the model breaks",
        "imitation is the cheapest teacher of knowledge and form",
        _sft,
    ),
    Rule(
        "data or another model",
        "pass@1 below 0.9, and a gap pass@k - pass@1 below 0.2",
        "RL sharpens what a model can do in k tries and adds little to it (arXiv 2504.13837)",
        _data,
    ),
    Rule(
        "dpo",
        "100 or more preference pairs, given or made of the model's own samples, and little compute or no verifier",
        "one pass over pairs, without drawing completions while it trains (arXiv 2305.18290)",
        _dpo,
    ),
    Rule(
        "grpo",
        "a verifiable reward, a plateau of supervised training, a gap of 0.2 or more, and compute for rollouts",
        "the right answers are among k tries already; a reward makes them the first (arXiv 2402.03300)",
        _grpo,
    ),
    Rule(
        "distill",
        "a teacher better by 0.1 or more than a model of at most half its size, and a limit on cost",
        "a small model learns a larger one's verified chains better than from labels alone (arXiv 1606.07947)",
        _distill,
    ),
)
"""The table of docs/choosing.md, in its order."""


def table() -> str:
    """RULES as docs/choosing.md shows them."""
    rows = [f"| {rule.when} | **{rule.step}** | {rule.why} |" for rule in RULES]
    return "\n".join(["| when | next step | why |", "|---|---|---|", *rows])
