"""What advice is read from: counts, a gate's numbers, evaluations, the machine; None where nothing is measured yet."""

from __future__ import annotations

from dataclasses import dataclass, field

STILL_LEARNING = 0.05
"""A fall of the loss over the last quarter of a run, from which it was not done."""


@dataclass(frozen=True)
class Fact:
    """One number in words, and where it comes from: `pass@1 0.38 [0.31, 0.45]`, `gate (gate.verdict)`."""

    text: str
    source: str


@dataclass(frozen=True)
class Missing:
    """What is not known yet, and the command (or the addition to the pipeline) that would say it."""

    what: str
    command: str


@dataclass(frozen=True)
class Count:
    value: int
    source: str


@dataclass(frozen=True)
class Interval:
    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.2f} [{self.low:.2f}, {self.high:.2f}]"


@dataclass(frozen=True)
class Gate:
    """A gate's numbers.

    Attributes:
        sometimes: the prompts that were solved in some of their completions, not in all.
        looked: the prompts that were drawn from; a gate stops when it is sure, and may then have seen a part of them.
        rows: those of the data it draws from, None when they are not at hand.
    """

    pass_at_1: Interval
    pass_at_k: Interval
    gap: Interval
    k: int
    solved_at: float
    min_gap: float
    truncated: float
    sometimes: int
    source: str
    looked: int = 0
    rows: int | None = None
    greedy: float | None = None
    min_greedy: float = 0.0

    @property
    def passed(self) -> Fact:
        return Fact(f"pass@1 {self.pass_at_1}, solved from {self.solved_at:.2f}", self.source)

    @property
    def gaps(self) -> Fact:
        text = f"pass@{self.k} {self.pass_at_k}, gap {self.gap}, wide from {self.min_gap:.2f}"
        return Fact(text, self.source)

    @property
    def pairs(self) -> int:
        """The prompts of its data that would give DPO a pair, in the proportion of those it looked at."""
        if not self.sometimes or self.rows is None or self.rows <= self.looked:
            return self.sometimes
        return round(self.sometimes * self.rows / self.looked)

    @property
    def paired(self) -> Fact:
        if self.pairs == self.sometimes:
            text = f"{self.sometimes:,} prompts solved in some tries and not in all: a pair each"
        else:
            text = (
                f"{self.sometimes:,} of the {self.looked:,} prompts that were looked at are solved in some tries and "
                f"not in all: about {self.pairs:,} of the {self.rows:,} there are, a pair each"
            )
        return Fact(text, self.source)

    @property
    def solved(self) -> bool:
        """As the gate decides: on the interval, and by the point estimate when the mark lies within it."""
        return self.pass_at_1.value >= self.solved_at

    @property
    def is_wide(self) -> bool:
        return self.gap.value >= self.min_gap

    def sure(self, interval: Interval, mark: float) -> str:
        """`surely`, or that only the point estimate says so."""
        return "surely" if interval.low >= mark or interval.high < mark else "by the point estimate alone"


@dataclass(frozen=True)
class Supervised:
    """The last supervised training: the mean loss of the third and of the last quarter of its logged steps."""

    stage: str
    before: float | None
    after: float | None
    source: str

    @property
    def still_learning(self) -> bool:
        return self.before is not None and self.after is not None and self.after < self.before * (1 - STILL_LEARNING)

    @property
    def fact(self) -> Fact:
        if self.before is None or self.after is None:
            return Fact(f"{self.stage} was trained; its loss has too few points to say whether it is flat", self.source)
        return Fact(f"{self.stage}'s loss went {self.before:.3f} -> {self.after:.3f} in its last quarter", self.source)


@dataclass(frozen=True)
class Change:
    """How a model's score differs from the reference's on one suite."""

    model: str
    reference: str
    suite: str
    change: Interval
    source: str

    @property
    def fact(self) -> Fact:
        c = self.change
        text = f"{self.model} on {self.suite}: {c.value:+.2f} [{c.low:+.2f}, {c.high:+.2f}] against {self.reference}"
        return Fact(text, self.source)


@dataclass(frozen=True)
class Scored:
    """A model's score on a suite and its size in parameters."""

    model: str
    suite: str
    score: float
    parameters: int
    source: str


@dataclass(frozen=True)
class Machine:
    """The host; `gpu_memory` is the smallest GPU's, in bytes."""

    cpus: int
    memory: int | None
    gpus: int
    gpu_memory: int | None
    source: str = "this host"


@dataclass(frozen=True)
class Evidence:
    """All that is known; None where nothing has been measured yet.

    Attributes:
        labelled, preferences, verifiable: rows to train on, evaluation and replay sets left out.
        verifier: what can say solved or not, as the pipeline names it.
        supervised: the last supervised training that is done; None when there was none.
        changes: of the model that would be shipped, on every suite; none when it is its start.
        scored: every model on the first suite.
        parameters: of the model that would be trained.
        commands: for `data`, `gate` and `exam`: what would produce the evidence.
    """

    machine: Machine
    labelled: Count | None = None
    preferences: Count | None = None
    verifiable: Count | None = None
    verifier: Fact | None = None
    supervised: Supervised | None = None
    gate: Gate | None = None
    changes: tuple[Change, ...] | None = None
    scored: tuple[Scored, ...] | None = None
    parameters: Count | None = None
    commands: dict[str, str] = field(default_factory=dict)

    def missing(self, what: str, name: str) -> Missing:
        return Missing(what, self.commands.get(name, f"add a stage of kind {_KIND[name]}"))


_KIND = {"data": "data", "gate": "gate", "exam": "evaluate"}
