"""What an sft stage costs beside the same training as a bare TRL script.

    python benchmarks/sft.py [--pairs 5] [--quick] [--json]

One side is `python -m finery.stage SPEC.json`, the process in which finery trains: checks, checkpoints, metrics and the
published model included. The other is a script as TRL's documentation has it: load_dataset, SFTConfig, SFTTrainer,
train, save_model. Same model (pipelines/base, 0.34M parameters), same rows, same arguments, whole epochs, so that both
train the same tokens; that they did is checked. Both begin with the interpreter: imports count. They alternate, each
with one thread and caches of its own.

`wall_ratio` is the median over pairs of finery's wall time over the script's, `cpu_ratio` the same of CPU time, which
other work on the machine disturbs less. `run_ratio` is a whole `finery run --plain` (import, data and sft stages, each
a process) over the script's median, measured once.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from finery.data.chains import chain_rows
from finery.data.dataset import write_dataset

ROOT = Path(__file__).resolve().parent.parent
BASE = ROOT / "pipelines" / "base"
ARGUMENTS = {
    "per_device_train_batch_size": 64,
    "learning_rate": 2e-3,
    "lr_scheduler_type": "cosine_with_min_lr",
    "warmup_steps": 10,
    "weight_decay": 0.01,
    "adam_beta2": 0.98,
    "max_length": 128,
    "save_steps": 50,
    "logging_steps": 10,
}
BARE = """
import json, sys
from datasets import load_dataset
from trl import SFTConfig, SFTTrainer

model, data, output, arguments = sys.argv[1:]
dataset = load_dataset("parquet", data_files=data, split="train").select_columns(["prompt", "completion"])
trainer = SFTTrainer(
    model=model,
    args=SFTConfig(
        output_dir=output,
        lr_scheduler_kwargs={"min_lr_rate": 0.05},
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
        report_to="none",
        seed=7,
        **json.loads(arguments),
    ),
    train_dataset=dataset,
)
trainer.train()
trainer.save_model(output)
json.dump(trainer.state.log_history, open(output + "/log_history.json", "w"))
"""
PIPELINE = """
name: sft-benchmark
seed: 7
stages:
  base: {{kind: import, from: {base}}}
  corpus:
    kind: data
    sources: [{{kind: file, path: {rows}}}]
    deduplicate: none
    splits: {{train: 1.0}}
  sft: {sft}
"""


@dataclass
class Cost:
    """Seconds of one process and its children, and the tokens it trained."""

    wall: float
    cpu: float
    tokens: int


def timed(argv: list[str], folder: Path) -> tuple[float, float]:
    """Wall and CPU seconds of a command; its output goes to a file."""
    environment = {
        **os.environ,
        **dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1"),
        "HF_HUB_OFFLINE": "1",
        "DO_NOT_TRACK": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "HF_DATASETS_CACHE": str(folder / "cache"),
    }
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    began = time.perf_counter()
    with (folder / "log.txt").open("w") as log:
        done = subprocess.run(argv, cwd=folder, env=environment, stdout=log, stderr=subprocess.STDOUT, check=False)
    wall = time.perf_counter() - began
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode:
        sys.exit(f"{' '.join(argv)} ended with {done.returncode}:\n{(folder / 'log.txt').read_text()[-3000:]}")
    return wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def fresh(folder: Path) -> Path:
    """The folder, empty."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder


def bare(work: Path, epochs: float) -> Cost:
    """The script, from its start to its saved model."""
    folder = fresh(work / "bare")
    (folder / "train.py").write_text(BARE)
    arguments = json.dumps(ARGUMENTS | {"num_train_epochs": epochs})
    output = folder / "out"
    wall, cpu = timed(
        [sys.executable, "train.py", str(BASE), str(work / "rows" / "data.parquet"), str(output), arguments], folder
    )
    history = json.loads((output / "log_history.json").read_text())
    return Cost(wall, cpu, int(max(entry.get("num_tokens", 0) for entry in history)))


def stage(work: Path, epochs: float) -> Cost:
    """The stage, from the interpreter's start to its result."""
    folder = fresh(work / "stage")
    spec = {
        "kind": "sft",
        "stage": "sft",
        "config": config(epochs) | {"model": "base", "data": "corpus"},
        "seed": 7,
        "threads": 1,
        "output_dir": str(folder / "outputs"),
        "checkpoint_dir": str(folder / "checkpoints"),
        "metrics_path": str(folder / "metrics.jsonl"),
        "base_dir": str(folder),
        "inputs": {"model": str(BASE), "data": str(work / "rows")},
        "input_refs": {"model": "base", "data": "corpus"},
        "input_digests": {"model": "0" * 64, "data": "0" * 64},
        "bases": {},
    }
    (folder / "spec.json").write_text(json.dumps(spec))
    wall, cpu = timed([sys.executable, "-m", "finery.stage", "spec.json"], folder)
    metrics = json.loads((folder / "result.json").read_text())["metrics"]
    return Cost(wall, cpu, int(metrics["num_tokens"]))


def whole_run(work: Path, epochs: float) -> Cost:
    """`finery run --plain` of import, data and sft, from an empty store."""
    folder = fresh(work / "run")
    (folder / "flows.yaml").write_text("deployments: {}\n")
    shutil.copy(work / "rows.jsonl", folder)
    sft = json.dumps(config(epochs) | {"model": "base", "data": "corpus.train"})
    (folder / "pipeline.yaml").write_text(PIPELINE.format(base=BASE, rows="./rows.jsonl", sft=sft))
    wall, cpu = timed([sys.executable, "-m", "finery", "run", "pipeline.yaml", "--plain"], folder)
    (manifest,) = (folder / ".finery" / "store" / "sft").glob("*/manifest.json")
    return Cost(wall, cpu, int(json.loads(manifest.read_text())["metrics"]["num_tokens"]))


def config(epochs: float) -> dict[str, Any]:
    """The stage's YAML."""
    return {"kind": "sft", "num_train_epochs": epochs, "min_lr_rate": 0.05, **ARGUMENTS}


def run(pairs: int, rows: int, epochs: float, shown: Any) -> dict[str, float]:
    """Alternate, and print each pair."""
    with tempfile.TemporaryDirectory(prefix="finery-sft-") as name:
        work = Path(name)
        made = chain_rows(rows, seed=1)
        write_dataset(made, work / "rows")
        (work / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in made))
        costs: list[tuple[Cost, Cost]] = []
        print(f"{'pair':<6}{'finery s':>10}{'TRL s':>10}{'wall':>8}{'cpu':>8}{'load':>8}", file=shown)
        for number in range(pairs):
            found: dict[str, Cost] = {}
            for side in (stage, bare) if number % 2 == 0 else (bare, stage):
                found[side.__name__] = side(work, epochs)
            mine, other = found["stage"], found["bare"]
            if mine.tokens != other.tokens:
                sys.exit(f"the sides trained {mine.tokens} and {other.tokens} tokens")
            costs.append((mine, other))
            print(
                f"{number + 1:<6}{mine.wall:>10.1f}{other.wall:>10.1f}{mine.wall / other.wall:>8.3f}"
                f"{mine.cpu / other.cpu:>8.3f}{os.getloadavg()[0]:>8.2f}",
                file=shown,
                flush=True,
            )
        walls = [mine.wall / other.wall for mine, other in costs]
        cpus = [mine.cpu / other.cpu for mine, other in costs]
        script = statistics.median(other.wall for _, other in costs)
        whole = whole_run(work, epochs)
    result = {
        "wall_ratio": statistics.median(walls),
        "wall_ratio_min": min(walls),
        "wall_ratio_max": max(walls),
        "cpu_ratio": statistics.median(cpus),
        "cpu_ratio_min": min(cpus),
        "cpu_ratio_max": max(cpus),
        "run_ratio": whole.wall / script,
        "run_tokens": whole.tokens,
        "stage_wall_s": statistics.median(mine.wall for mine, _ in costs),
        "script_wall_s": script,
        "run_wall_s": whole.wall,
        "tokens": costs[0][0].tokens,
        "pairs": pairs,
    }
    print(
        f"median  wall {result['wall_ratio']:.3f} ({min(walls):.3f} to {max(walls):.3f}), "
        f"cpu {result['cpu_ratio']:.3f} ({min(cpus):.3f} to {max(cpus):.3f}); {result['tokens']:,} tokens a side\n"
        f"finery run  {whole.wall:.1f} s, {result['run_ratio']:.3f} of the script's {script:.1f} s "
        f"({whole.tokens:,} tokens)",
        file=shown,
    )
    return result


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=5, help="runs of each side; the median counts")
    parser.add_argument(
        "--quick", action="store_true", help="one pair of few rows: whether it works, not what it costs"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    asked = parser.parse_args()
    shown = sys.stderr if asked.json else sys.stdout
    size = (
        {"pairs": 1, "rows": 256, "epochs": 1.0} if asked.quick else {"pairs": asked.pairs, "rows": 4096, "epochs": 3.0}
    )
    result = run(**size, shown=shown)  # type: ignore[arg-type]
    if asked.json:
        print(json.dumps(result))


if __name__ == "__main__":
    main()
