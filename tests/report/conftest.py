"""A run of the quickstart as the stages leave it: real files of the documented formats in a store of its own."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from finery import runs
from finery.content import digest_of, output_digest, write_json
from finery.contract import StageContext
from finery.load import Loaded, load
from finery.outcome import Outcome
from finery.plan import Artifact, Done
from finery.store import Manifest, Store

HERE = Path(__file__).parent
MODELS = {
    "base": (0.0, 0.0, 0.0, 0.971),
    "sft": (0.475, 0.947, 0.953, 0.937),
    "grpo": (0.871, 0.993, 0.967, 0.927),
    "student": (0.85, 0.98, 0.927, 0.821),
    "merged": (0.828, 0.993, 0.973, 0.936),
}
"""pass@1, pass@8, greedy on the domain and greedy on the general suite, as the recipe measured them."""
Log = Callable[[StageContext], None]


def silent(context: StageContext) -> None:
    """A stage that logs nothing."""


@dataclass
class FakeRun:
    """Stages that ended in a store; `finish` writes summary.json as the engine does."""

    home: Path
    loaded: Loaded
    outcomes: dict[str, Outcome] = field(default_factory=dict)
    promotions: list[dict[str, Any]] = field(default_factory=list)
    seconds: float = 252.3

    def __post_init__(self) -> None:
        self.store = Store(self.home)
        _, self.run_dir = runs.new_run(self.home, self.loaded)

    def kind(self, stage: str) -> str:
        return str(self.loaded.pipeline.stages[stage].kind)

    def partial(self, stage: str, log: Log, log_text: str) -> tuple[str, Path]:
        """A working folder with its metrics.jsonl and log.txt."""
        key = digest_of({"stage": stage})
        folder = self.store.open_partial(self.kind(stage), key, {"kind": self.kind(stage), "config": {}})
        log(StageContext(stage, 7, folder / "outputs", folder / "checkpoints", folder / "metrics.jsonl", self.home))
        (folder / "log.txt").write_text(log_text, encoding="utf-8")
        return key, folder

    def done(
        self,
        stage: str,
        files: dict[str, dict[str, Any]],
        *,
        headline: str = "",
        state: str = "Completed",
        log: Log = silent,
        metrics: dict[str, float] | None = None,
        seconds: float = 3.0,
        warnings: tuple[str, ...] = (),
        message: str | None = None,
        summary: dict[str, Any] | None = None,
    ) -> None:
        """A stage that ended well: `files` maps an output to its files, JSON values or whole texts."""
        key, folder = self.partial(stage, log, f"--- {stage} attempt 1\nworking\n")
        for output, contents in files.items():
            (folder / "outputs" / output).mkdir()
            for name, value in contents.items():
                path = folder / "outputs" / output / name
                path.write_text(value if isinstance(value, str) else json.dumps(value), encoding="utf-8")
        found, kinds = self.store.scan(folder), self.loaded.pipeline.stages[stage].outputs()
        outputs = {name: {"kind": kinds[name], "digest": output_digest(found, name)} for name in files}
        inputs = {
            f"needs.{i}": {"ref": need, "digest": digest_of(need), "kind": "model", "source": f"sft/{need}/model"}
            for i, need in enumerate(self.loaded.edges[stage])
        }
        said = {"headline": headline, **(summary or {})}
        kind = self.kind(stage)
        manifest = Manifest(stage, kind, key, {"config": {}}, inputs, outputs, found, metrics or {}, said)
        manifest.seed, manifest.engine, manifest.seconds = 7, "0.1", seconds
        self.store.publish(manifest)
        artifacts = {
            name: Artifact(out["kind"], out["digest"], self.store.output(kind, key, name), f"{kind}/{key}/{name}")
            for name, out in outputs.items()
        }
        self.outcomes[stage] = Outcome(
            stage,
            kind,
            state,  # type: ignore[arg-type]
            headline if message is None else message,
            key,
            seconds if state == "Completed" else 0.0,
            4 if state == "Refused" else 0,
            Done(artifacts, next(iter(artifacts), None), manifest),
            manifest.metrics,
            manifest.summary,
            warnings=warnings,
        )

    def failed(self, stage: str, message: str, log_text: str, log: Log = silent) -> None:
        key, _ = self.partial(stage, log, log_text)
        self.outcomes[stage] = Outcome(stage, self.kind(stage), "Failed", message, key, 12.0, 1)

    def ended(self, stage: str, state: str, message: str, like: str | None = None, *, by_gate: bool = False) -> None:
        """Blocked, Cancelled, or Skipped: then it hands on what `like` made."""
        done = self.outcomes[like].done if like else None
        self.outcomes[stage] = Outcome(stage, self.kind(stage), state, message, done=done, blocked_by_gate=by_gate)  # type: ignore[arg-type]

    def finish(self) -> dict[str, Any]:
        summary = runs.summary(self.loaded, self.run_dir.name, self.outcomes, self.seconds, self.promotions)
        write_json(self.run_dir / "summary.json", summary)
        return summary

    # the quickstart's stages

    def up_to_sft(self) -> None:
        self.done("base", model("base"), headline="LlamaForCausalLM, 0.34M parameters", seconds=4.1)
        columns = {"id": "text", "prompt": "text", "completion": "text", "answer": "text"}
        rows = {"sft": 4000, "rl": 1500, "test": 150}
        sets = {name: {"dataset.json": {"rows": n, "prompts": n, "columns": columns}} for name, n in rows.items()}
        lengths = {"prompt": {"mean": 9.1, "max": 14}, "completion": {"mean": 21.4, "max": 40}}
        card = {"sources": [{"kind": "chains", "rows": 9000}], "duplicates": 412, "characters": lengths}
        files = sets | {"rejects": {"rejects.jsonl": ""}, "card": {"card.json": card}}
        self.done("corpus", files, headline="sft 4000, rl 1500, test 150 rows", warnings=("412 rows repeat another",))
        general = {"train": {"dataset.json": {"rows": 4800, "prompts": 4800, "columns": columns}}}
        self.done("general", general, headline="train 4800 rows", state="Cached", message="from the store")
        self.done("sft", model("sft"), log=sft_log, metrics={"loss": 0.428}, headline="loss 0.428 after 200 steps")

    def gate(self, **changed: Any) -> None:
        found = json.loads((HERE / "verdict.json").read_text(encoding="utf-8")) | changed
        lines = samples([{"greedy": False}] * 3, [0.475] * 3) + samples([{"greedy": True}], [0.95])
        files = {
            "verdict": {"verdict.json": found},
            "difficulty": {"difficulty.json": difficulty(0.475)},
            "samples": {"samples.jsonl": lines},
        }
        self.done("gate", files, headline=f"{found['verdict']}: pass@1 0.475 [0.43, 0.52]", seconds=9.4)

    def whole_line(self, *, promoted: bool = True) -> None:
        """Everything, as a good quickstart leaves it."""
        self.up_to_sft()
        self.gate()
        steps = samples([{"step": 10}, {"step": 60}], [0.5, 0.88])
        grpo = {"difficulty": {"difficulty.json": difficulty(0.85)}, "samples": {"samples.jsonl": steps}}
        self.done("grpo", model("grpo") | grpo, log=grpo_log, headline="reward 0.874 after 60 steps", seconds=61.7)
        chains = {"chains": {"dataset.json": {"rows": 2000, "prompts": 1100, "columns": {"id": "text"}}}}
        self.done("student", model("student") | chains, log=sft_log, headline="2000 of 3000 chains kept", seconds=70.0)
        self.done("merged", model("merged"), headline="ties of 1 grpo over sft", seconds=5.0)
        labels = [{"model": name, "suite": "domain", "greedy": False} for name in MODELS for _ in range(3)]
        lines = samples(labels, [MODELS[str(label["model"])][0] for label in labels])
        for suite, column in (("domain", 2), ("general", 3)):
            greedy = [{"model": name, "suite": suite, "greedy": True} for name in MODELS]
            lines += samples(greedy, [numbers[column] for numbers in MODELS.values()])
        exam = {"evaluation": {"evaluation.json": evaluation()}, "samples": {"samples.jsonl": lines}}
        self.done("exam", exam, headline="domain pass@1: grpo 0.87", seconds=38.0)
        self.promote(promoted)

    def promote(self, promoted: bool) -> None:
        made = json.loads((HERE / "decision.json").read_text(encoding="utf-8"))
        if promoted:
            self.done("promote", {"decision": {"decision.json": made}}, headline="merged earns champion", seconds=0.4)
            moved = {"name": "quickstart", "version": "3", "alias": "champion", "moved": True, "reused": False}
            self.promotions.append({"stage": "promote", **moved})
            return
        reason = "merged.domain.pass_at_1 0.55 is 0.05 below min 0.60"
        made["conditions"][0] |= {"value": 0.55, "passed": False, "reason": reason}
        made["verdict"] = "refuse"
        self.done("promote", {"decision": {"decision.json": made}}, state="Refused", message=reason)


def model(stage: str) -> dict[str, dict[str, Any]]:
    info = {"form": "full", "base": None, "dtype": "float32", "tokenizer_sha256": digest_of("t"), "quantization": None}
    return {"model": {"model.json": info, "config.json": {"made": stage}}}


def evaluation() -> dict[str, Any]:
    """evaluation.json of MODELS, changes against sft, intervals of +-0.02 for values, +-0.021 for changes."""
    names = (("domain", "pass_at_1"), ("domain", "pass_at_8"), ("domain", "greedy"), ("general", "greedy"))
    models: dict[str, Any] = {name: {"domain": {}, "general": {}} for name in MODELS}
    for name, numbers in MODELS.items():
        for (suite, metric), value, before in zip(names, numbers, MODELS["sft"], strict=True):
            n = 150 if suite == "domain" else 896
            cell: dict[str, Any] = {"value": value, "low": value - 0.02, "high": value + 0.02, "n": n}
            if name != "sft":
                moved = value - before
                cell["change"] = {"value": moved, "low": moved - 0.021, "high": moved + 0.021}
            models[name][suite][metric] = cell
        cut = 0.21 if name == "base" else 0.0
        models[name]["domain"]["truncated"] = {"value": cut, "low": cut, "high": cut + 0.01, "n": 150}
        models[name]["general"]["truncated"] = {"value": 0.0, "low": 0.0, "high": 0.01, "n": 896}
    suites = {
        "domain": {"prompts": 150, "duplicates": 0, "k": [1, 8], "samples": 8, "greedy": True},
        "general": {"prompts": 896, "duplicates": 0, "k": [], "samples": 0, "greedy": True},
    }
    return {
        "reference": "sft",
        "confidence": 0.95,
        "models": models,
        "suites": suites,
        "same": {},
        "digests": {name: digest_of(name) for name in MODELS},
    }


def chain(rng: random.Random, wrong: int) -> tuple[str, str, str]:
    """A chain of additions as prompt, completion and answer; a first step that is off by `wrong` is carried on."""
    numbers = [rng.randint(1, 9) for _ in range(rng.randint(2, 5))]
    shown, lines = numbers[0], []
    for index, number in enumerate(numbers[1:]):
        after = shown + number + (0 if index else wrong)
        lines.append(f"{shown}+{number}={after}")
        shown = after
    return f"Q:{'+'.join(map(str, numbers))}\n", "A:" + "\n".join(lines) + f"\n#### {shown}", str(sum(numbers))


def samples(labels: list[dict[str, Any]], shares: list[float], prompts: int = 40) -> str:
    """samples.jsonl: for each label a completion of each prompt, solved in its share; at 0 all are truncated."""
    rng, rows = random.Random(5), []
    for label, share in zip(labels, shares, strict=True):
        again = random.Random(11)
        for index in range(prompts):
            solved, cut = rng.random() < share, share == 0
            prompt, text, answer = chain(again, 0 if solved else rng.choice([-1, 1, 2, 10]))
            row = {"id": f"{index:016x}", "prompt": prompt, "completion": text[:15] if cut else text, "answer": answer}
            rows.append({**label, **row, "score": {"answer": float(solved)}, "solved": solved, "truncated": cut})
    return "".join(json.dumps(row) + "\n" for row in rows)


def difficulty(mean: float, prompts: int = 150, n: int = 16) -> dict[str, Any]:
    rng, found = random.Random(6), {}
    for index in range(prompts):
        rate = rng.betavariate(1.5, 1.5 * (1 - mean) / mean)
        found[f"{index:016x}"] = {"n": n, "solved": sum(rng.random() < rate for _ in range(n))}
    return {"prompts": found}


def sft_log(context: StageContext) -> None:
    for step in range(10, 201, 10):
        context.progress(step, 200)
        rate = 2e-3 * (0.05 + 0.95 * 0.5 * (1 + math.cos(math.pi * step / 200)))
        context.log(step, loss=0.9 * math.exp(-step / 40) + 0.42, grad_norm=math.exp(-step / 60), learning_rate=rate)
        context.log(step, mean_token_accuracy=0.9 - 0.5 * math.exp(-step / 40), num_tokens=step * 4000)


def grpo_log(context: StageContext) -> None:
    rng = random.Random(2)
    for step in range(1, 61):
        reward = 0.48 + 0.4 * (1 - math.exp(-step / 22)) + rng.gauss(0, 0.02)
        shared = {"reward": reward, "rewards/answer/mean": reward, "frac_reward_zero_std": 0.1 + step / 120, "kl": 0.0}
        lengths = {"completions/mean_length": 24 + rng.random(), "completions/clipped_ratio": 0.01 * rng.random()}
        context.log(step, loss=rng.gauss(0, 0.01), grad_norm=math.nan if step == 31 else 0.4, **shared, **lengths)


@pytest.fixture
def fake(tmp_path: Path) -> FakeRun:
    """A run of the quickstart in which no stage has ended yet."""
    return new_run(tmp_path / ".finery")


def new_run(home: Path, *overrides: str) -> FakeRun:
    return FakeRun(home, load(HERE.parents[1] / "pipelines" / "quickstart.yaml", overrides))
