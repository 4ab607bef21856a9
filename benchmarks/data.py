"""Rows per second and peak memory of the data stage, beside `datasets.load_dataset` plus a map that does the same.

    python benchmarks/data.py [--rows 10000,100000,1000000] [--runs 1] [--near 100000] [--json]

Both sides read the same alpaca JSONL file, each time in a fresh process and one after the other, in turn:

- finery: `run()` of a data stage with the cleaning steps unicode, characters and whitespace, exact duplicates dropped,
  one split. It also hashes the file, checks for duplicate keys, shuffles, and writes a card and every reject.
- datasets: `load_dataset("json")`, one batched map with `unicodedata.normalize`, `ftfy.fix_text` with the same fixes,
  the same newlines and spaces, the same messages and ids, and a set for exact duplicates, then `to_parquet`. It does
  not shuffle. One process, an empty cache.

Seconds include the imports of each side's libraries. Memory is VmHWM, the most that was resident at once, so a mapped
file counts as far as it was touched. Both must keep the same number of rows, and rows of the same ids.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

COMMON = (
    "the of and to in is that it was for on are as with they be at one have this from by hot word but what some "
    "we can out other were all there when up use your how said an each she which do their time if will way about "
    "many then them write would like so these her long make thing see him two has look more day could go come did "
    "number sound no most people my over know water than call first who may down side been now find any new work "
    "part take get place made live where after back little only round man year came show every good me give our "
    "under name very through just form sentence great think say help low line differ turn cause much mean before "
    "move right boy old too same"
)
WORDS = COMMON.split()
CHINESE = (
    "请用一句话总结下面这段文字的主要内容。",
    "人工智能正在改变我们的工作方式，但它不能代替思考。",
    "首先，把面粉和水混合；然后，静置三十分钟。",
    "这个问题没有唯一的答案，取决于具体情况。",
)
WIDE = ("ＡＢＣ　１２３", "（１）Ｆｉｒｓｔ", "価格：５００円")
MOJIBAKE = ("cafÃ© au lait", "itâ€™s fine", "naÃ¯ve rÃ©sumÃ©", "â€œquotedâ€\x9d")
TYPOGRAPHIC = ("It’s a “good” idea – really…", "café, naïve, Zürich", "5 × 3 = 15 €", "a — b")
CONTROLS = ("\x00", "\x07", "\x1b[0m", "\x7f", "\u200b")


def make(path: Path, rows: int) -> None:
    """An alpaca file, the same for the same number of rows: 300 to 700 bytes a row, 3 % of them exact duplicates."""
    rng = random.Random(f"finery {rows}")
    sentences = [" ".join(rng.choices(WORDS, k=rng.randint(6, 14))).capitalize() + "." for _ in range(4000)]
    recent: list[str] = []
    with path.open("w", encoding="utf-8", newline="") as file:
        for number in range(rows):
            if recent and rng.random() < 0.03:
                file.write(rng.choice(recent))
                continue
            row = {
                "instruction": f"{rng.choice(sentences)} ({number})",
                "input": " ".join(rng.choices(sentences, k=rng.randint(1, 2))) if rng.random() < 0.4 else "",
                "output": "\n".join(rng.choices(sentences, k=rng.randint(4, 8))),
            }
            _spoil(row, rng)
            line = json.dumps(row, ensure_ascii=False) + ("\r\n" if rng.random() < 0.05 else "\n")
            file.write(line)
            if len(recent) < 1000:
                recent.append(line)
            else:
                recent[number % 1000] = line


def _spoil(row: dict[str, str], rng: random.Random) -> None:
    """Of a hundred rows some 28 hold more than ASCII, or what has to be mended."""
    draw = rng.random()
    if draw < 0.10:
        row["output"] += " " + rng.choice(TYPOGRAPHIC)
    elif draw < 0.15:
        row["instruction"] = rng.choice(CHINESE) + row["instruction"]
        row["output"] = "".join(rng.choices(CHINESE, k=4))
    elif draw < 0.17:
        row["output"] += " " + rng.choice(WIDE)
    elif draw < 0.20:
        row["output"] = rng.choice(MOJIBAKE) + " " + row["output"]
    elif draw < 0.22:
        row["output"] = row["output"].replace(" ", rng.choice(CONTROLS) + " ", 2)
    elif draw < 0.27:
        row["output"] = row["output"].replace("\n", "\r\n")
    elif draw < 0.28:
        row["output"] += " \u2028next\xa0line  "


def finery(path: Path, work: Path, near: bool) -> int:
    """The stage; the number of rows it kept."""
    from finery.contract import StageContext
    from finery.schemas.data import DataStage
    from finery.stages import data

    config: dict[str, Any] = {
        "kind": "data",
        "sources": [{"kind": "file", "path": path.name}],
        "clean": [{"kind": "unicode"}, {"kind": "characters"}, {"kind": "whitespace"}],
    }
    if near:
        config["near_duplicates"] = {}
    context = StageContext(
        stage="corpus",
        seed=7,
        output_dir=work / "outputs",
        checkpoint_dir=work / "checkpoints",
        metrics_path=work / "metrics.jsonl",
        base_dir=path.parent,
    )
    result = data.run(DataStage.model_validate(config), {"sources.0.path": path}, context)
    (work / "outputs/train/data.parquet").rename(work / "data.parquet")
    return int(result.metrics["kept"])


def baseline(path: Path, work: Path) -> int:
    """The same with datasets, in the plain way; the number of rows it kept."""
    import re
    import unicodedata

    import ftfy
    from datasets import disable_progress_bars, load_dataset

    disable_progress_bars()
    options = ftfy.TextFixerConfig(
        unescape_html=False,
        replace_lossy_sequences=False,
        fix_latin_ligatures=False,
        fix_character_width=False,
        uncurl_quotes=False,
        fix_line_breaks=False,
        normalization=None,
        explain=False,
    )
    newlines = re.compile("\r\n|[\r\x85\u2028\u2029]")
    spaces = re.compile("[\xa0\u1680\u2000-\u200a\u202f\u205f\u3000]")
    nothing = re.compile("[\u200b\u2060\ufeff]")
    trailing = re.compile("[ \t]+(?=\n)")

    def clean(text: str) -> str:
        text = ftfy.fix_text(unicodedata.normalize("NFC", text), options)
        text = nothing.sub("", spaces.sub(" ", newlines.sub("\n", text)))
        return trailing.sub("", text).lstrip("\n").rstrip(" \t\n")

    seen: set[bytes] = set()

    def convert(batch: dict[str, list[str]]) -> dict[str, list[Any]]:
        made: dict[str, list[Any]] = {"id": [], "prompt": [], "completion": []}
        for instruction, extra, output in zip(batch["instruction"], batch["input"], batch["output"], strict=True):
            question, answer = clean(f"{instruction}\n{extra}" if extra else instruction), clean(output)
            if "\ufffd" in question or "\ufffd" in answer:
                continue
            prompt = [{"role": "user", "content": question}]
            mark = hashlib.sha256(json.dumps([question, answer]).encode()).digest()
            if mark in seen:
                continue
            seen.add(mark)
            text = json.dumps([prompt, None], ensure_ascii=False, sort_keys=True, separators=(",", ":"))
            made["id"].append(hashlib.sha256(text.encode()).hexdigest()[:16])
            made["prompt"].append(prompt)
            made["completion"].append([{"role": "assistant", "content": answer}])
        return made

    rows = load_dataset("json", data_files=str(path), split="train", cache_dir=str(work / "cache"))
    rows = rows.map(convert, batched=True, remove_columns=rows.column_names, load_from_cache_file=False)
    rows.to_parquet(str(work / "data.parquet"))
    return len(rows)


def child(side: str, path: Path, work: Path) -> None:
    """Run one side and print what it took as one line of JSON."""
    begun = time.perf_counter()
    kept = baseline(path, work) if side == "datasets" else finery(path, work, near=side == "near")
    seconds = time.perf_counter() - begun
    status = Path("/proc/self/status").read_text()
    peak = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM:"))
    print(json.dumps({"kept": kept, "seconds": seconds, "peak_mib": peak / 1024}))


def measure(side: str, path: Path, folder: Path) -> dict[str, Any]:
    """One side in a fresh process, with an empty work folder; what it took, and a hash of the ids it wrote."""
    import pyarrow.parquet as pq

    work = folder / f"work-{side}"
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir()
    given = {**os.environ, "HF_HOME": str(work / "hf"), "TMPDIR": str(work), "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, __file__, "--child", side, str(path), str(work)]
    done = subprocess.run(command, env=given, check=True, stdout=subprocess.PIPE, text=True)
    took: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    ids = sorted(pq.read_table(work / "data.parquet", columns=["id"]).column(0).to_pylist())
    took["ids"] = hashlib.sha256("".join(ids).encode()).hexdigest()
    shutil.rmtree(work)
    return took


def compare(rows: int, runs: int, folder: Path, shown: Any) -> dict[str, float]:
    """Both sides on a file of so many rows, in turn; the best time and the least peak of each."""
    path = folder / f"alpaca-{rows}.jsonl"
    make(path, rows)
    took: dict[str, list[dict[str, Any]]] = {"finery": [], "datasets": []}
    for run in range(runs):
        for side in ("finery", "datasets") if run % 2 == 0 else ("datasets", "finery"):
            took[side].append(measure(side, path, folder))
    for key in ("kept", "ids"):
        found = {str(one[key]) for many in took.values() for one in many}
        if len(found) > 1:
            raise SystemExit(f"the two sides differ in {key} at {rows} rows: {', '.join(sorted(found))}")
    result: dict[str, float] = {"kept": took["finery"][0]["kept"], "bytes": path.stat().st_size}
    for side, many in took.items():
        seconds, peak = min(one["seconds"] for one in many), min(one["peak_mib"] for one in many)
        result |= {f"{side}_seconds": seconds, f"{side}_rows_per_second": rows / seconds, f"{side}_peak_mib": peak}
        print(f"{rows:>9}  {side:<9}  {rows / seconds:>9,.0f}  {seconds:>8.2f}  {peak:>9.0f}", file=shown, flush=True)
    path.unlink()
    return result


def main() -> None:
    """Measure and print."""
    if sys.argv[1:2] == ["--child"]:
        child(sys.argv[2], Path(sys.argv[3]), Path(sys.argv[4]))
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", default="10000,100000,1000000", help="sizes, separated by commas")
    parser.add_argument("--runs", type=int, default=1, help="runs of each side at each size; the best counts")
    parser.add_argument("--near", type=int, default=100_000, help="rows for near duplicates, timed apart; 0 for none")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    asked = parser.parse_args()
    sizes = [int(size) for size in asked.rows.split(",")]
    shown = sys.stderr if asked.json else sys.stdout
    print(f"{'rows':>9}  {'side':<9}  {'rows/s':>9}  {'seconds':>8}  {'VmHWM MiB':>9}", file=shown, flush=True)
    result: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for size in sizes:
            result |= {f"{key}_{size}": value for key, value in compare(size, asked.runs, folder, shown).items()}
        if asked.near:
            result |= _near(asked.near, folder, shown)
    largest = max(sizes)
    result["rows_ratio"] = result[f"datasets_seconds_{largest}"] / result[f"finery_seconds_{largest}"]
    result["memory_ratio"] = result[f"finery_peak_mib_{largest}"] / result[f"datasets_peak_mib_{largest}"]
    if asked.json:
        print(json.dumps(result))
    else:
        print(f"rows_ratio {result['rows_ratio']:.3f}  memory_ratio {result['memory_ratio']:.3f}  at {largest} rows")


def _near(rows: int, folder: Path, shown: Any) -> dict[str, float]:
    """What near-duplicate removal adds to finery's stage."""
    path = folder / f"alpaca-{rows}.jsonl"
    make(path, rows)
    without, with_it = measure("finery", path, folder), measure("near", path, folder)
    seconds = with_it["seconds"] - without["seconds"]
    print(
        f"{rows:>9}  {'near only':<9}  {rows / seconds:>9,.0f}  {seconds:>8.2f}  {with_it['peak_mib']:>9.0f}",
        file=shown,
        flush=True,
    )
    return {
        f"near_seconds_{rows}": seconds,
        f"near_rows_per_second_{rows}": rows / seconds,
        f"near_peak_mib_{rows}": with_it["peak_mib"],
    }


if __name__ == "__main__":
    main()
