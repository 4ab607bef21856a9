"""A run of the quickstart as the stages leave it: real files of the documented formats in a store of its own."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from finery import runs
from finery.contract import StageContext
from finery.execute import Outcome
from finery.load import Loaded, load
from finery.plan import Artifact, Done
from finery.store import Manifest, Store, digest_of, output_digest, write_json

ROOT = Path(__file__).parents[2]
MODELS = {
    "base": (0.0, 0.0, 0.0, 0.971),
    "sft": (0.475, 0.947, 0.953, 0.937),
    "grpo": (0.871, 0.993, 0.967, 0.927),
    "student": (0.85, 0.98, 0.927, 0.821),
    "merged": (0.828, 0.993, 0.973, 0.936),
}
"""pass@1, pass@8, greedy on the domain and greedy on the general suite, as the recipe measured them."""
Files = dict[str, Any]


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
        return str(self.loaded.pipeline.stages[stage].kind)  # type: ignore[union-attr]

    def partial(self, stage: str) -> tuple[str, Path]:
        key = digest_of({"stage": stage})
        return key, self.store.open_partial(self.kind(stage), key, {"kind": self.kind(stage), "config": {}})

    def context(self, stage: str, folder: Path) -> StageContext:
        return StageContext(stage, 7, folder / "outputs", folder / "checkpoints", folder / "metrics.jsonl", self.home)

    def done(
        self,
        stage: str,
        files: dict[str, Files],
        *,
        state: str = "Completed",
        log: Callable[[StageContext], None] = lambda context: None,
        metrics: dict[str, float] | None = None,
        summary: dict[str, Any] | None = None,
        seconds: float = 3.0,
        warnings: tuple[str, ...] = (),
        message: str | None = None,
    ) -> None:
        """A stage that ended well: `files` maps an output to its files, JSON values or whole texts."""
        key, folder = self.partial(stage)
        for output, contents in files.items():
            (folder / "outputs" / output).mkdir()
            for name, value in contents.items():
                path = folder / "outputs" / output / name
                if isinstance(value, str):
                    path.write_text(value, encoding="utf-8")
                else:
                    write_json(path, value)
        log(self.context(stage, folder))
        (folder / "log.txt").write_text(f"--- {stage} attempt 1\nworking\n", encoding="utf-8")
        found, kinds = self.store.scan(folder), self.loaded.pipeline.stages[stage].outputs()
        outputs = {name: {"kind": kinds[name], "digest": output_digest(found, name)} for name in files}
        inputs = {f"needs.{i}": {"ref": n, "digest": "ab" * 32, "kind": "model", "source": f"sft/{n}/model"} for i, n in enumerate(self.loaded.edges[stage])}
        manifest = Manifest(
            stage, self.kind(stage), key, {"config": {}}, inputs, outputs, found, metrics or {}, summary or {},
            pipeline="quickstart", seed=7, engine="0.1", seconds=seconds,
        )  # fmt: skip
        self.store.publish(manifest)
        place = self.store.folder(manifest.kind, key) / "outputs"
        artifacts = {name: Artifact(output["kind"], output["digest"], place / name, f"{manifest.kind}/{key}/{name}") for name, output in outputs.items()}
        done = Done(artifacts, next(iter(artifacts), None), manifest)
        said = message if message is not None else (summary or {}).get("headline", "")
        self.outcomes[stage] = Outcome(
            stage, manifest.kind, state, said, key, seconds if state == "Completed" else 0.0, 4 if state == "Refused" else 0,
            done, manifest.metrics, manifest.summary, warnings=warnings,
        )  # type: ignore[arg-type]  # fmt: skip

    def failed(self, stage: str, message: str, log_text: str, log: Callable[[StageContext], None] = lambda context: None) -> None:
        key, folder = self.partial(stage)
        log(self.context(stage, folder))
        (folder / "log.txt").write_text(log_text, encoding="utf-8")
        self.outcomes[stage] = Outcome(stage, self.kind(stage), "Failed", message, key, 12.0, 1)

    def ended(self, stage: str, state: str, message: str, like: str | None = None) -> None:
        """Blocked, Cancelled, or Skipped: then it hands on what `like` made."""
        done = self.outcomes[like].done if like else None
        self.outcomes[stage] = Outcome(stage, self.kind(stage), state, message, done=done)  # type: ignore[arg-type]

    def finish(self) -> dict[str, Any]:
        summary = runs.summary(self.loaded, self.run_dir.name, self.outcomes, self.seconds, self.promotions)
        write_json(self.run_dir / "summary.json", summary)
        return summary


def interval(value: float, width: float = 0.05, n: int = 150) -> dict[str, Any]:
    return {"value": value, "low": max(0.0, value - width), "high": min(1.0, value + width), "n": n}


def verdict(**changed: Any) -> dict[str, Any]:
    return {
        "verdict": "rl", "conclusive": True, "weak_greedy": False, "k": 8, "samples": 16, "confidence": 0.95,
        "reason": "pass@1 0.475 [0.430, 0.521] is below 0.9 and pass@8 0.947 [0.914, 0.975] lies 0.472 [0.428, 0.514] above it, at least the 0.2 that RL can turn into pass@1",
        "solved_at": 0.9, "min_gap": 0.2, "min_greedy": 0.8, "pass_at_1": interval(0.475), "pass_at_k": {**interval(0.947, 0.03), "k": 8},
        "gap": interval(0.472, 0.043), "pass_at": {"1": interval(0.475), "8": interval(0.947, 0.03)},
        "greedy": 0.953, "maj_at_k": 0.93, "truncated": 0.004, "completion_length": 24.1, "prompts": 150, "excluded": 0, "duplicates": 0,
        **changed,
    }  # fmt: skip


def evaluation() -> dict[str, Any]:
    models: dict[str, Any] = {}
    for model, (one, eight, greedy, general) in MODELS.items():
        rows = {"domain": {"pass_at_1": one, "pass_at_8": eight, "greedy": greedy, "truncated": 0.0 if model != "base" else 0.21}, "general": {"greedy": general, "truncated": 0.0}}
        reference = dict(zip(("pass_at_1", "pass_at_8", "greedy"), MODELS["sft"], strict=False))
        models[model] = {}
        for suite, metrics in rows.items():
            models[model][suite] = {name: interval(value, 0.025 if suite == "domain" else 0.012) for name, value in metrics.items()}
            for name, value in metrics.items():
                if model != "sft" and name != "truncated":
                    moved = value - (reference[name] if suite == "domain" else MODELS["sft"][3])
                    models[model][suite][name]["change"] = {"value": moved, "low": moved - 0.02, "high": moved + 0.02}
    return {
        "reference": "sft", "confidence": 0.95, "models": models, "same": {}, "digests": {model: digest_of(model) for model in MODELS},
        "suites": {"domain": {"prompts": 150, "duplicates": 0, "k": [1, 8], "samples": 8, "greedy": True}, "general": {"prompts": 896, "duplicates": 0, "k": [], "samples": 0, "greedy": True}},
    }  # fmt: skip


def decision(*, value: float = 0.828, passed: bool = True) -> dict[str, Any]:
    first = f"merged.domain.pass_at_1 {value:.2f} " + ("keeps min 0.60 by 0.23" if passed else f"is {0.6 - value:.2f} below min 0.60")
    return {
        "verdict": "promote" if passed else "refuse", "name": None, "alias": "champion", "model": "merged", "model_digest": digest_of("merged"),
        "conditions": [
            {"metric": "merged.domain.pass_at_1", "value": value, "bound": {"min": 0.6}, "passed": passed, "reason": first},
            {"metric": "merged.general.greedy", "value": 0.936, "bound": {"max_drop": 0.08, "from": "base"}, "passed": True,
             "reason": "merged.general.greedy 0.94 lies 0.04 below base.general.greedy 0.97, within max_drop 0.08"},
        ],
    }  # fmt: skip


def chain(rng: random.Random, solved: bool) -> tuple[str, str, str]:
    """A chain as prompt, completion and answer; an unsolved one goes wrong and is carried on."""
    numbers, total, lines = [rng.randint(1, 9) for _ in range(rng.randint(2, 5))], 0, []
    task = str(numbers[0])
    shown = total = numbers[0]
    wrong = 0 if solved else rng.choice([-1, 1, 2, 10])
    for index, number in enumerate(numbers[1:]):
        task += f"+{number}"
        total += number
        lines.append(f"{shown}+{number}={shown + number + (wrong if index == 0 else 0)}")
        shown += number + (wrong if index == 0 else 0)
    return f"Q:{task}\n", "A:" + "\n".join(lines) + f"\n#### {shown}", str(total)


def sample_lines(rng: random.Random, labels: list[dict[str, Any]], shares: list[float], prompts: int = 40) -> str:
    """Rows of samples.jsonl: for each label a completion of each prompt, solved in its share."""
    rows = []
    for label, share in zip(labels, shares, strict=True):
        again = random.Random(11)
        for index in range(prompts):
            solved, cut = rng.random() < share, share == 0
            prompt, completion, answer = chain(again, solved)
            rows.append({
                **label, "id": f"{index:016x}", "prompt": prompt, "completion": completion[:20] if cut else completion, "answer": answer,
                "score": {"answer": float(solved)}, "solved": solved, "truncated": cut,
            })  # fmt: skip
    return "".join(json.dumps(row) + "\n" for row in rows)


def sft_log(context: StageContext) -> None:
    rng = random.Random(1)
    for step in range(10, 201, 10):
        context.progress(step, 200)
        lr = 2e-3 * (0.05 + 0.95 * 0.5 * (1 + math.cos(math.pi * step / 200)))
        context.log(step, loss=0.9 * math.exp(-step / 40) + 0.42 + rng.random() * 0.02, grad_norm=1.2 * math.exp(-step / 60) + rng.random() * 0.2,
                    learning_rate=lr, mean_token_accuracy=0.9 - 0.5 * math.exp(-step / 40), entropy=0.5 + math.exp(-step / 50), num_tokens=step * 4000, epoch=step / 62)  # fmt: skip


def grpo_log(context: StageContext) -> None:
    rng = random.Random(2)
    for step in range(1, 61):
        reward = 0.48 + 0.4 * (1 - math.exp(-step / 22)) + rng.gauss(0, 0.02)
        context.log(step, **{
            "loss": rng.gauss(0, 0.01), "reward": reward, "reward_std": 0.4 - reward / 4, "rewards/answer/mean": reward, "frac_reward_zero_std": 0.1 + step / 120,
            "grad_norm": float("nan") if step == 31 else 0.4 + rng.random() / 8, "learning_rate": 3e-4 * min(1, step / 5), "entropy": 0.4 * math.exp(-step / 50) + 0.05,
            "completions/mean_length": 24 + rng.random() * 2, "completions/clipped_ratio": 0.01 * rng.random(), "step_time": 0.8 + rng.random() / 10, "kl": 0.0,
        })  # fmt: skip


def difficulty(rng: random.Random, mean: float, prompts: int = 150, n: int = 16) -> dict[str, Any]:
    found = {}
    for index in range(prompts):
        p = min(1.0, max(0.0, rng.betavariate(1.5, 1.5 * (1 - mean) / mean)))
        found[f"{index:016x}"] = {"n": n, "solved": sum(rng.random() < p for _ in range(n))}
    return {"prompts": found}


def model_json(stage: str) -> dict[str, Any]:
    return {"form": "full", "base": None, "dtype": "float32", "tokenizer_sha256": digest_of("t"), "chat_template_sha256": None, "quantization": None}


def up_to_gate(run: FakeRun) -> None:
    """base, corpus, general and sft."""
    rng = random.Random(3)
    run.done("base", {"model": {"model.json": model_json("base")}}, summary={"headline": "LlamaForCausalLM, 0.34 M parameters, float32"}, seconds=4.1)
    card = {"sources": [{"kind": "chains", "rows": 9000, "noise_add": 0.12, "noise_sub": 0.42}], "duplicates": 412, "lengths": {"prompt": {"mean": 9.1, "max": 14}, "completion": {"mean": 21.4, "max": 40}}}
    columns = {"id": "text", "prompt": "text", "completion": "text", "answer": "text", "meta": "json"}
    rows = {"sft": 4000, "rl": 1500, "test": 150}
    run.done(
        "corpus", {name: {"dataset.json": {"rows": n, "prompts": n, "columns": columns}} for name, n in rows.items()} | {"rejects": {"rejects.jsonl": ""}, "card": {"card.json": card}},
        summary={"headline": "4,000 sft, 1,500 rl, 150 test rows", "splits": [{"split": k, "rows": v} for k, v in rows.items()]}, warnings=("412 rows repeat another row and were left out",), seconds=1.2,
    )  # fmt: skip
    run.done("general", {"train": {"dataset.json": {"rows": 4800, "prompts": 4800, "columns": columns}}}, state="Cached", message="from the store", summary={"headline": "4,800 train, 896 test rows"})
    run.done("sft", {"model": {"model.json": model_json("sft")}}, log=sft_log, metrics={"loss": 0.428, "steps": 200}, summary={"headline": "loss 0.428 after 200 steps", "rejected": []}, seconds=58.2)
    run.samples_rng = rng  # type: ignore[attr-defined]


def gate(run: FakeRun, **changed: Any) -> None:
    rng = random.Random(5)
    found = verdict(**changed)
    files = {
        "verdict": {"verdict.json": found},
        "difficulty": {"difficulty.json": difficulty(rng, 0.475)},
        "samples": {"samples.jsonl": sample_lines(rng, [{"greedy": False}] * 3, [0.475] * 3) + sample_lines(rng, [{"greedy": True}], [0.95])},
    }
    run.done("gate", files, metrics={"pass_at_1": 0.475, "pass_at_8": 0.947}, summary={"headline": f"{found['verdict']}: pass@1 0.475 [0.43, 0.52], pass@8 0.95 [0.91, 0.98]", "verdict": found["verdict"], "reason": found["reason"]}, seconds=9.4)


def whole_line(run: FakeRun, *, promoted: bool = True) -> None:
    """Everything, as a good quickstart leaves it."""
    up_to_gate(run)
    gate(run)
    rng = random.Random(6)
    run.done(
        "grpo", {"model": {"model.json": model_json("grpo")}, "difficulty": {"difficulty.json": difficulty(rng, 0.85, 512, 24)}, "samples": {"samples.jsonl": sample_lines(rng, [{"step": 10}, {"step": 60}], [0.5, 0.88])}},
        log=grpo_log, metrics={"reward": 0.874, "steps": 60}, summary={"headline": "reward 0.50 to 0.87 in 60 steps"}, seconds=61.7,
    )  # fmt: skip
    run.done("student", {"model": {"model.json": model_json("student")}, "chains": {"dataset.json": {"rows": 2000, "prompts": 1100, "columns": {"id": "text"}}}}, log=sft_log, summary={"headline": "2,000 of 3,000 chains verified; 0.13 M parameters"}, seconds=70.0)
    run.done("merged", {"model": {"model.json": model_json("merged")}}, summary={"headline": "ties of 1 model on sft, density 0.2"}, seconds=5.0)
    models = list(MODELS)
    lines = sample_lines(rng, [{"model": m, "suite": "domain", "greedy": False} for m in models for _ in range(3)], [MODELS[m][0] for m in models for _ in range(3)])
    lines += sample_lines(rng, [{"model": m, "suite": "domain", "greedy": True} for m in models], [MODELS[m][2] for m in models])
    lines += sample_lines(rng, [{"model": m, "suite": "general", "greedy": True} for m in models], [MODELS[m][3] for m in models])
    run.done("exam", {"evaluation": {"evaluation.json": evaluation()}, "samples": {"samples.jsonl": lines}}, summary={"headline": "domain pass@1: grpo 0.87 (+0.40 [+0.36, +0.43] over sft)"}, warnings=("domain: 21% of base's completions were cut at 52 tokens and count as unsolved",), seconds=38.0)  # fmt: skip
    made = decision() if promoted else decision(value=0.55, passed=False)
    reasons = "; ".join(c["reason"] for c in made["conditions"] if not c["passed"])
    run.done("promote", {"decision": {"decision.json": made}}, state="Completed" if promoted else "Refused", message=reasons or None, summary={"headline": f"refused: {reasons}" if reasons else "merged earns champion: all 2 conditions hold"}, seconds=0.4)  # fmt: skip
    if promoted:
        run.promotions.append({"stage": "promote", "name": "quickstart", "version": "3", "alias": "champion", "moved": True, "reused": False})


def new_run(home: Path, *overrides: str) -> FakeRun:
    return FakeRun(home, load(ROOT / "pipelines" / "quickstart.yaml", list(overrides)))


@pytest.fixture
def fake(tmp_path: Path) -> FakeRun:
    """A run of the quickstart in which no stage has ended yet."""
    return new_run(tmp_path / ".finery")


__all__ = ["FakeRun", "decision", "evaluation", "gate", "interval", "new_run", "replace", "up_to_gate", "verdict", "whole_line"]
