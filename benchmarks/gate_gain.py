"""What GRPO gains on models of different strength, beside what the gate said of them.

    python benchmarks/gate_gain.py [--steps 60] [--quick] [--json] [--keep FOLDER] [--figure FILE]

Twenty models: the quickstart's base (0.34M parameters) after 10, 25, 50, 100 or 200 steps of SFT on four sets of
chains: as the quickstart has them (12 % of the additions and 42 % of the subtractions wrong), clean, worse (30 % and
60 %), and 300 rows of the first. Each is judged by `gate` as the quickstart has it, then trained by `grpo` with the
quickstart's settings for `--steps` steps, whatever the gate says, and both are examined on 150 prompts that neither
has seen. `gain` is the paired difference in pass@1, with its 95 % interval over prompts.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
BASE = ROOT / "pipelines" / "base"
STEPS = (10, 25, 50, 100, 200)
DATA: dict[str, dict[str, Any]] = {
    "noisy": {"rows": 9000, "noise_add": 0.12, "noise_sub": 0.42},
    "clean": {"rows": 9000, "noise_add": 0.0, "noise_sub": 0.0},
    "worse": {"rows": 9000, "noise_add": 0.3, "noise_sub": 0.6},
    "few": {"rows": 600, "noise_add": 0.12, "noise_sub": 0.42},
}
REWARDS = [{"kind": "answer", "extract": "hash", "compare": "number"}]
SAMPLING = {"max_completion_length": 52}
GAINED = 0.05
"""What counts as a gain in pass@1."""


def pipeline(steps: int, prompts: int, sft_steps: tuple[int, ...], data: tuple[str, ...]) -> dict[str, Any]:
    """The line of all models, as YAML holds it (JSON is YAML)."""
    stages: dict[str, Any] = {
        "base": {"kind": "import", "from": str(BASE)},
        "tasks": {
            "kind": "data",
            "sources": [{"kind": "chains", "rows": 9000, "levels": [1, 2, 3, 4]}],
            "splits": {
                "test": {"fraction": 0.2, "rows": prompts, "unique_prompts": True},
                "rl": {"fraction": 0.3, "rows": 1500, "unique_prompts": True},
                "rest": 0.5,
            },
        },
    }
    for name in data:
        # the same splits by hash as `tasks`, so no test or rl prompt is in sft
        stages[name] = {
            "kind": "data",
            "sources": [{"kind": "chains", "levels": [1, 2, 3, 4], **DATA[name]}],
            "splits": {"test": 0.2, "rl": 0.3, "sft": 0.5},
        }
        for count in sft_steps:
            stages |= model(f"{name}_{count}", f"{name}.sft", count, steps, prompts)
    return {"name": "gate-gain", "seed": 7, "stages": stages}


def model(name: str, data: str, sft_steps: int, steps: int, prompts: int) -> dict[str, Any]:
    """SFT, gate, GRPO and exam of one model."""
    judged = {"data": "tasks.rl", "rewards": REWARDS, "sampling": SAMPLING, "batch_size": 256}
    return {
        f"{name}_sft": {
            "kind": "sft", "model": "base", "data": data, "max_steps": sft_steps, "per_device_train_batch_size": 64,
            "learning_rate": 2e-3, "lr_scheduler_type": "cosine_with_min_lr", "min_lr_rate": 0.05,
            "warmup_steps": min(10, sft_steps // 2), "weight_decay": 0.01, "adam_beta2": 0.98, "max_length": 128,
            "save_steps": 1000,
        },
        f"{name}_gate": {
            "kind": "gate", "model": f"{name}_sft", "k": [1, 8], "samples": 16, "max_prompts": prompts, **judged,
        },
        f"{name}_grpo": {
            "kind": "grpo", "model": f"{name}_sft", "data": "tasks.rl", "rewards": REWARDS, "sampling": SAMPLING,
            "difficulty": {"policy": "none"}, "max_steps": steps, "per_device_train_batch_size": 128,
            "num_generations": 8, "learning_rate": 3e-4, "warmup_steps": 5, "adam_beta2": 0.99, "epsilon_high": 0.28,
            "save_steps": 1000,
        },
        f"{name}_exam": {
            "kind": "evaluate", "models": [f"{name}_sft", f"{name}_grpo"], "batch_size": 256,
            "suites": {
                "domain": {
                    "data": "tasks.test", "rewards": REWARDS, "sampling": SAMPLING, "k": [1, 8], "samples": 8,
                },
            },
        },
    }  # fmt: skip


def rows(stages: dict[str, Any]) -> list[dict[str, Any]]:
    """One row a model, weakest first: what the gate measured and said, and what GRPO gained."""
    found = []
    for name in (stage.removesuffix("_gate") for stage in stages if stage.endswith("_gate")):
        verdict = read(stages[f"{name}_gate"], "verdict")
        change = examined(stages, name)
        found.append(
            {
                "model": name.replace("_", " "),
                "pass_at_1": verdict["pass_at_1"]["value"],
                "gap": verdict["gap"]["value"],
                "greedy": verdict["greedy"],
                "verdict": verdict["verdict"],
                **change,
            }
        )
    return sorted(found, key=lambda row: (row["pass_at_1"], row["model"]))


def examined(stages: dict[str, Any], name: str) -> dict[str, float | None]:
    """pass@1 before and after GRPO and the gain; a policy that no group taught anything stayed as it was: gain 0."""
    if stages[f"{name}_grpo"]["state"] == "Failed":
        return {"before": None, "after": None, "gain": 0.0, "low": 0.0, "high": 0.0}
    models = read(stages[f"{name}_exam"], "evaluation")["models"]
    before, after = (models[f"{name}_{which}"]["domain"]["pass_at_1"] for which in ("sft", "grpo"))
    change = after.get("change", {"value": 0.0, "low": 0.0, "high": 0.0})
    return {
        "before": before["value"], "after": after["value"],
        "gain": change["value"], "low": change["low"], "high": change["high"],
    }  # fmt: skip


def read(stage: dict[str, Any], output: str) -> dict[str, Any]:
    """The JSON that an output of that name holds."""
    value: dict[str, Any] = json.loads((Path(stage["outputs"][output]["path"]) / f"{output}.json").read_text())
    return value


def figures(found: list[dict[str, Any]]) -> dict[str, float]:
    """How often each verdict was followed by a gain of at least 0.05."""
    result: dict[str, float] = {"models": len(found)}
    for verdict in ("rl", "more_data", "skip_rl"):
        gains = [row["gain"] for row in found if row["verdict"] == verdict]
        result[f"{verdict}_models"] = len(gains)
        result[f"{verdict}_gained"] = sum(gain >= GAINED for gain in gains)
        if gains:
            result[f"{verdict}_mean_gain"] = sum(gains) / len(gains)
    return result


def table(found: list[dict[str, Any]]) -> list[str]:
    """The Markdown table of all models and a line for each verdict."""
    lines = [
        "| data, SFT steps | gate: pass@1 | gap to pass@8 | greedy | verdict | exam before | after | gain |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in found:
        gate = f"{row['pass_at_1']:.3f} | {row['gap']:.3f} | {row['greedy']:.2f} | {row['verdict']}"
        if row["before"] is None:
            lines.append(f"| {row['model']} | {gate} | no group taught it anything | | 0 |")
            continue
        gain = f"{row['gain']:+.3f} [{row['low']:+.3f}, {row['high']:+.3f}]"
        lines.append(f"| {row['model']} | {gate} | {row['before']:.3f} | {row['after']:.3f} | {gain} |")
    counts = figures(found)
    lines.append("")
    for verdict in ("rl", "more_data", "skip_rl"):
        if counts[f"{verdict}_models"]:
            lines.append(
                f"{verdict}: {counts[f'{verdict}_models']:.0f} models, a gain of at least {GAINED} in "
                f"{counts[f'{verdict}_gained']:.0f}, {counts[f'{verdict}_mean_gain']:+.3f} on average"
            )
    return lines


def figure(found: list[dict[str, Any]], min_gap: float = 0.2) -> str:
    """The gain over the gap as SVG, a mark a model in its verdict's shape."""
    from finery.report.svg import drawing, path, tag

    width, height, left, top = 640.0, 360.0, 64.0, 16.0
    bottom, right = height - 48, width - 16
    widest = max(0.1, *(row["gap"] for row in found)) * 1.05
    lowest = min(-0.05, *(row["low"] for row in found)) - 0.02
    highest = max(0.1, *(row["high"] for row in found)) + 0.02

    def x(gap: float) -> float:
        return left + (right - left) * gap / widest

    def y(gain: float) -> float:
        return bottom - (bottom - top) * (gain - lowest) / (highest - lowest)

    ink, colours = "#555", {"rl": "#1f6f54", "more_data": "#b3541e", "skip_rl": "#3b5b92"}
    parts: list[str] = [tag("rect", x=0, y=0, width=width, height=height, fill="#fff")]
    for gain, dashes in ((0.0, None), (GAINED, "4 3")):
        parts.append(tag("path", d=path([(left, y(gain)), (right, y(gain))]), stroke=ink, stroke_dasharray=dashes))
        parts.append(tag("text", f"{gain:+.2f}", x=left - 8, y=y(gain) + 4, text_anchor="end", fill=ink))
    parts.append(tag("path", d=path([(x(min_gap), top), (x(min_gap), bottom)]), stroke=ink, stroke_dasharray="4 3"))
    parts.append(tag("text", f"min_gap {min_gap:g}", x=x(min_gap) + 6, y=top + 12, fill=ink))
    for row in found:
        said = f"{row['model']}: gap {row['gap']:.3f}, gain {row['gain']:+.3f}, {row['verdict']}"
        colour = colours[row["verdict"]]
        line = path([(x(row["gap"]), y(row["low"])), (x(row["gap"]), y(row["high"]))])
        parts.append(tag("path", d=line, stroke=colour, stroke_opacity=0.45))
        parts.append(tag("circle", tag("title", said), cx=x(row["gap"]), cy=y(row["gain"]), r=5, fill=colour))
    for place, (verdict, colour) in enumerate(colours.items()):
        parts.append(tag("circle", cx=left + 8 + 110 * place, cy=height - 14, r=5, fill=colour))
        parts.append(tag("text", verdict, x=left + 20 + 110 * place, y=height - 10, fill=ink))
    parts.append(tag("text", "gap: pass@8 - pass@1 at the gate", x=right, y=height - 10, text_anchor="end", fill=ink))
    parts.append(tag("text", "gain in pass@1 by GRPO", x=left, y=top + 12, fill=ink))
    drawn = drawing(width, height, "What GRPO gained over the gap that the gate measured", *parts)
    return drawn.replace("<svg ", '<svg xmlns="http://www.w3.org/2000/svg" font-family="sans-serif" font-size="12" ', 1)


def measure(folder: Path, made: dict[str, Any]) -> dict[str, Any]:
    """Stage name -> its entry in the run's summary."""
    (folder / "flows.yaml").write_text("deployments: {}\n")
    file = folder / "gate-gain.yaml"
    file.write_text(json.dumps(made, indent=1))
    threads = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
    done = subprocess.run(
        [sys.executable, "-m", "finery", "run", file.name, "--plain", "--json"],
        cwd=folder, env={**os.environ, **threads, "HF_HUB_OFFLINE": "1", "DO_NOT_TRACK": "1"},
        stdout=subprocess.PIPE, text=True, check=False,
    )  # fmt: skip
    stages: dict[str, Any] = json.loads(done.stdout)["stages"]
    for name, stage in stages.items():
        # GRPO fails when no group of any step held both a right and a wrong completion
        taught_nothing = name.endswith("_grpo") and "left the policy exactly as it was" in (stage.get("message") or "")
        if stage["state"] == "Failed" and not taught_nothing:
            sys.exit(f"{name} failed: {stage.get('message')}")
    return stages


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=60, help="GRPO's budget")
    parser.add_argument("--quick", action="store_true", help="few models, steps and prompts: whether it works")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    parser.add_argument("--keep", type=Path, help="where to work, so that what is done stays done")
    parser.add_argument("--figure", type=Path, help="write the figure there, as SVG")
    asked = parser.parse_args()
    began = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="finery-gain-") as name:
        folder = asked.keep or Path(name)
        folder.mkdir(parents=True, exist_ok=True)
        found = rows(
            measure(
                folder,
                pipeline(*((3, 20, (50,), ("noisy",)) if asked.quick else (asked.steps, 150, STEPS, tuple(DATA)))),
            )
        )
    if asked.figure:
        asked.figure.write_text(figure(found) + "\n")
    if asked.json:
        print(json.dumps(figures(found) | {"seconds": time.perf_counter() - began}))
    else:
        print("\n".join(table(found)))


if __name__ == "__main__":
    main()
