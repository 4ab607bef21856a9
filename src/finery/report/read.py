"""What a run left, as the report reads it: `summary.json` and the files of the store, and nothing else."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SAMPLE_BYTES = 16 * 2**20
"""So much of a samples file is read to choose from; a report need not weigh gigabytes."""
LOG_BYTES = 6000


@dataclass(frozen=True)
class Unreadable:
    """A file that should be there and cannot be read; the report says so in its place."""

    reason: str


@dataclass(frozen=True)
class Found:
    """One file of one output of one stage.

    Attributes:
        value: the JSON object, of its kind's form.
    """

    stage: str
    output: str
    value: dict[str, Any] | Unreadable


def stages(summary: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The stages of a summary by name."""
    found: dict[str, dict[str, Any]] = summary.get("stages") or {}
    return found


def own_outputs(summary: dict[str, Any]) -> Iterator[tuple[str, str, str, Path]]:
    """(stage, output, artifact kind, folder) of every output a stage made itself; a skipped one hands on another's."""
    for name, stage in stages(summary).items():
        if stage["state"] == "Skipped":
            continue
        for output, artifact in (stage.get("outputs") or {}).items():
            yield name, output, artifact["kind"], Path(artifact["path"])


def artifacts(summary: dict[str, Any], kind: str) -> list[Found]:
    """The JSON file of each output of an artifact kind: verdict.json of `verdict`, model.json of `model` and so on."""
    return [
        Found(stage, output, _formed(kind, read_json(folder / f"{kind}.json")))
        for stage, output, found, folder in own_outputs(summary)
        if found == kind
    ]


def _formed(kind: str, value: dict[str, Any] | Unreadable) -> dict[str, Any] | Unreadable:
    """The value if it has the form the report reads; a user's own script may make any kind."""
    if isinstance(value, Unreadable):
        return value
    maps = {"evaluation": ("models", 2), "difficulty": ("prompts", 1)}
    if kind in maps and not _nested(value.get(maps[kind][0]), maps[kind][1]):
        return Unreadable(f"{kind}.json has no {maps[kind][0]} as an artifact of this kind has them")
    if kind == "decision" and not all(isinstance(one, dict) for one in value.get("conditions") or ()):
        return Unreadable("decision.json has no conditions as an artifact of this kind has them")
    if kind == "verdict" and not isinstance(value.get("pass_at") or {}, dict):
        return Unreadable("verdict.json has no pass_at as an artifact of this kind has it")
    return value


def _nested(value: Any, depth: int) -> bool:
    """Whether it is a map of maps, so many levels down."""
    return isinstance(value, dict) and (depth == 0 or all(_nested(item, depth - 1) for item in value.values()))


def named_files(summary: dict[str, Any], output: str, file: str) -> list[tuple[str, Path]]:
    """(stage, path) of a file in each output of kind `file` that bears a name."""
    return [
        (stage, folder / file)
        for stage, name, kind, folder in own_outputs(summary)
        if kind == "file" and name == output and (folder / file).is_file()
    ]


def read_json(path: Path) -> dict[str, Any] | Unreadable:
    """A JSON object, or why there is none."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return Unreadable(f"{path.name} is no longer in the store")
    except (OSError, ValueError) as error:
        return Unreadable(f"{path.name} cannot be read: {error}")
    return value if isinstance(value, dict) else Unreadable(f"{path.name} holds no JSON object")


def exam_of(summary: dict[str, Any], stage: str) -> dict[str, Any] | None:
    """The evaluation that a promote stage read: that of the stage it needs which made one."""
    for need in stages(summary)[stage].get("needs") or ():
        for artifact in (stages(summary).get(need, {}).get("outputs") or {}).values():
            if artifact["kind"] == "evaluation":
                found = read_json(Path(artifact["path"]) / "evaluation.json")
                return None if isinstance(found, Unreadable) else found
    return None


def stage_folder(store_root: Path, stage: dict[str, Any]) -> Path | None:
    """Where a stage's log and metrics lie: its place in the store, or its working folder when it did not end well."""
    if not stage.get("key"):
        return None
    kind, key = str(stage["kind"]), str(stage["key"])
    for folder in (store_root / kind / key, store_root / kind / f"{key}.partial"):
        if folder.is_dir():
            return folder
    return None


def metric_events(folder: Path) -> dict[str, dict[int, float | None]]:
    """Metric to step to value from metrics.jsonl, the last of a step; None where it was not finite."""
    series: dict[str, dict[int, float | None]] = {}
    for event in _lines(folder / "metrics.jsonl"):
        if event.get("type") != "metrics":
            continue
        for name, value in event["metrics"].items():
            series.setdefault(name, {})[int(event["step"])] = None if isinstance(value, str) else float(value)
    return {name: dict(sorted(values.items())) for name, values in series.items()}


def warning_events(folder: Path) -> list[str]:
    """What a stage warned of, from metrics.jsonl."""
    return [str(event["message"]) for event in _lines(folder / "metrics.jsonl") if event.get("type") == "warning"]


def log_tail(folder: Path) -> str:
    """The end of log.txt, whole lines, or an empty text."""
    path = folder / "log.txt"
    if not path.is_file():
        return ""
    with path.open("rb") as file:
        size = path.stat().st_size
        file.seek(max(0, size - LOG_BYTES))
        text = file.read().decode("utf-8", errors="replace")
    return text if size <= LOG_BYTES else text.partition("\n")[2]


def sample_rows(path: Path) -> tuple[list[dict[str, Any]], bool] | Unreadable:
    """The rows of a samples.jsonl, and whether the file goes on beyond what is read."""
    try:
        rows = list(_lines(path, SAMPLE_BYTES))
    except ValueError as error:
        return Unreadable(f"{path.name} cannot be read: {error}")
    return [row for row in rows if isinstance(row, dict)], path.stat().st_size > SAMPLE_BYTES


def _lines(path: Path, limit: int | None = None) -> Iterator[dict[str, Any]]:
    """JSON objects of a .jsonl file; a last line that was cut off in the middle is not one."""
    if not path.is_file():
        return
    taken = 0
    with path.open("rb") as file:
        for line in file:
            taken += len(line)
            if not line.endswith(b"\n") or (limit is not None and taken > limit):
                return
            if line.strip():
                yield json.loads(line)
