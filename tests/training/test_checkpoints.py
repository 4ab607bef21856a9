"""Only whole checkpoints count, and a broken one is neither used nor deleted."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from finery.contract import StageContext
from finery.errors import StageError
from finery.training.checkpoints import KEPT, MARKER, Checkpoints

ROOT = Path(__file__).parents[2]


def _context(folder: Path) -> StageContext:
    folder.mkdir(parents=True, exist_ok=True)
    return StageContext(
        stage="sft",
        seed=0,
        output_dir=folder / "outputs",
        checkpoint_dir=folder / "checkpoints",
        metrics_path=folder / "metrics.jsonl",
        base_dir=folder,
    )


def _warnings(context: StageContext) -> list[str]:
    events = [json.loads(line) for line in context.metrics_path.read_text().splitlines()]
    return [event["message"] for event in events if event["type"] == "warning"]


def _write(keeper: Checkpoints, step: int) -> None:
    with keeper.writing(step, {"note": step}) as aside:
        folder = aside / f"checkpoint-{step}"
        (folder / "ref").mkdir(parents=True)
        (folder / "model.safetensors").write_text(f"weights {step}")
        (folder / "ref" / "adapter").write_text("deep")


def test_case_O10_the_last_whole_checkpoint_is_taken_and_broken_ones_are_left(tmp_path: Path) -> None:
    context = _context(tmp_path)
    keeper = Checkpoints(context)
    context.log(10, loss=1.0)
    _write(keeper, 10)
    whole = (keeper.folder / "checkpoint-10" / MARKER).read_bytes()
    subprocess.run(["sh", str(ROOT / "tests/cases/O10_make.sh"), str(keeper.folder)], check=True)
    # the case's checkpoint-10 stands for a real one: it is the one written above
    for name in ("model.safetensors", "optimizer.pt", "trainer_state.json"):
        (keeper.folder / "checkpoint-10" / name).unlink()
    (keeper.folder / "checkpoint-10" / "model.safetensors").write_text("weights 10")
    (keeper.folder / "checkpoint-10" / MARKER).write_bytes(whole)
    (keeper.folder / "checkpoint-30" / MARKER).write_text(
        json.dumps({"step": 30, "metrics_offset": 0, "files": {"model.safetensors": 1349440}, "extra": {}})
    )
    before = sorted(path.name for path in keeper.folder.iterdir())
    context.log(20, loss=0.5)

    last = Checkpoints(context).last()

    assert last is not None
    assert (last.path.name, last.step, last.extra) == ("checkpoint-10", 10, {"note": 10})
    said = _warnings(context)
    assert [line.split(";")[0] for line in said] == [
        f"checkpoint-40 was passed over: it has no {MARKER}, so it was not written to its end",
        "checkpoint-30 was passed over: model.safetensors has 0 bytes where 1349440 were written",
        f"checkpoint-20 was passed over: it has no {MARKER}, so it was not written to its end",
    ]
    assert all("goes on from checkpoint-10" in line for line in said)
    assert sorted(path.name for path in keeper.folder.iterdir()) == before
    # what was logged after the checkpoint is cut off
    assert '"step": 20' not in context.metrics_path.read_text()


def test_the_marker_names_every_file_and_missing_ones_are_noticed(tmp_path: Path) -> None:
    context = _context(tmp_path)
    keeper = Checkpoints(context)
    _write(keeper, 5)
    marker = json.loads((keeper.folder / "checkpoint-5" / MARKER).read_text())
    assert marker["files"] == {"model.safetensors": 9, "ref/adapter": 4}
    (keeper.folder / "checkpoint-5" / "ref" / "adapter").unlink()
    assert keeper.last() is None
    assert "ref/adapter is missing; training starts anew" in _warnings(context)[0]


def test_old_whole_ones_are_removed_and_broken_ones_kept(tmp_path: Path) -> None:
    keeper = Checkpoints(_context(tmp_path))
    (keeper.folder / "checkpoint-1").mkdir()
    for step in (2, 4, 6, 8):
        _write(keeper, step)
    assert KEPT == 2
    assert sorted(path.name for path in keeper.folder.iterdir()) == ["checkpoint-1", "checkpoint-6", "checkpoint-8"]


def test_a_broken_checkpoint_of_the_same_step_is_put_aside(tmp_path: Path) -> None:
    keeper = Checkpoints(_context(tmp_path))
    (keeper.folder / "checkpoint-4").mkdir()
    (keeper.folder / "checkpoint-4" / "half").write_text("half")
    _write(keeper, 4)
    assert (keeper.folder / "checkpoint-4.broken1" / "half").read_text() == "half"
    last = keeper.last()
    assert last is not None
    assert last.step == 4


def test_a_full_disk_is_said_and_leaves_the_last_one_whole(tmp_path: Path) -> None:
    keeper = Checkpoints(_context(tmp_path))
    _write(keeper, 2)
    with (
        pytest.raises(StageError, match=r"checkpoint of step 4 could not be written.*No space left"),
        keeper.writing(4, {}),
    ):
        raise OSError(28, "No space left on device")
    last = keeper.last()
    assert last is not None
    assert last.step == 2
    _write(keeper, 4)
    last = keeper.last()
    assert last is not None
    assert last.step == 4
