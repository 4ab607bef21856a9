"""A stage in two processes by `accelerate launch`, started as the engine starts it: same weights, whole ends.

Two processes sum the gradients of a step in another order than one does. With SGD a weight then differs by rounding
only: within 2e-6 of the tensor's norm after five steps (measured 5e-7, by FSDP 6e-7). AdamW divides by the gradient's
size, which raises rounding of tiny gradients: within 1e-4 (measured 1.1e-5, by FSDP 1.5e-5, at a learning rate of 1e-2).
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from finery import guard
from finery.data.chains import chain_rows
from finery.data.dataset import row_of, write_dataset
from finery.data.skills import skill_rows
from finery.launch import environment, write_spec
from finery.ranks import CONFIG_FILE
from finery.schemas.launch import Launch
from finery.schemas.sft import SftStage
from finery.training.accelerating import accelerate_config

BASE = Path(__file__).parents[2] / "pipelines" / "base"
SGD, ADAMW = 2e-6, 1e-4
TWO = {"processes": 2}
FSDP = {"processes": 2, "strategy": "fsdp"}
SFT: dict[str, Any] = {
    "kind": "sft", "model": "base", "data": "d", "max_steps": 5, "per_device_train_batch_size": 4,
    "gradient_accumulation_steps": 2, "learning_rate": 1e-2, "optim": "sgd", "save_steps": 2, "logging_steps": 1,
    "max_length": 64, "eval_data": "d",
    "replay": {"data": "r", "per_device_train_batch_size": 2, "weight": 0.3},
}  # fmt: skip
DPO: dict[str, Any] = {
    "kind": "dpo", "model": "base", "data": "p", "max_steps": 4, "per_device_train_batch_size": 2,
    "learning_rate": 1e-3, "optim": "sgd", "save_steps": 50, "logging_steps": 1, "max_length": 64,
}  # fmt: skip


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """26 rows of 13 to 60 tokens: 7 micro-batches of 4, so that a pass ends with one process short of a batch."""
    folder = tmp_path_factory.mktemp("inputs")
    write_dataset(chain_rows(26, seed=1), folder / "data")
    write_dataset(chain_rows(9, seed=2), folder / "replay")
    pairs = [
        {"id": row_of(row), "prompt": row["prompt"], "chosen": row["completion"], "rejected": row["completion"][::-1]}
        for row in skill_rows(40, seed=4)
        if row["completion"] != row["completion"][::-1]
    ]
    write_dataset(pairs, folder / "pairs")
    data, replay, pairs_at = (folder / name for name in ("data", "replay", "pairs"))
    return {"sft": data, "replay": replay, "dpo": pairs_at}


class Stage:
    """A stage in a folder of its own, as `Execution` starts it."""

    def __init__(self, folder: Path, inputs: dict[str, Path], **config: Any) -> None:
        self.folder = folder
        folder.mkdir()
        given = {"model": BASE, "data": inputs[config["kind"]]}
        if config["kind"] == "sft":
            given |= {"eval_data": inputs["sft"], "replay.data": inputs["replay"]}
        spec = {
            "kind": config["kind"], "stage": "it", "config": {k: v for k, v in config.items() if v is not None},
            "seed": 11, "threads": 1, "inputs": {name: str(path) for name, path in given.items()},
            "input_refs": {"model": "base"}, "input_digests": {"model": "base"}, "bases": {"base": str(BASE)},
            "output_dir": str(folder / "outputs"), "checkpoint_dir": str(folder / "checkpoints"),
            "metrics_path": str(folder / "metrics.jsonl"), "base_dir": str(folder),
        }  # fmt: skip
        self.spec = write_spec(folder, spec)

    def start(self) -> guard.Guarded:
        (self.folder / "error.json").unlink(missing_ok=True)
        with (self.folder / "log.txt").open("ab") as log:
            return guard.spawn(
                [sys.executable, "-m", "finery.stage", str(self.spec)],
                env=environment(threads=1, gpus=[], network=False),
                cwd=self.folder, stdout=log, stderr=subprocess.STDOUT,
            )  # fmt: skip

    def run(self, code: int = 0) -> Stage:
        assert self.start().wait() == code, self.log()
        return self

    def log(self) -> str:
        return (self.folder / "log.txt").read_text()

    def weights(self) -> dict[str, np.ndarray]:
        (file,) = (self.folder / "outputs" / "model").glob("*.safetensors")
        return load_file(file)

    def logged(self, name: str) -> dict[int, float]:
        events = [json.loads(line) for line in (self.folder / "metrics.jsonl").read_text().splitlines()]
        return {e["step"]: e["metrics"][name] for e in events if e["type"] == "metrics" and name in e["metrics"]}

    def until(self, found: Callable[[], Any], child: guard.Guarded) -> Any:
        end = time.monotonic() + 120
        while not (value := found()):
            assert time.monotonic() < end and child.poll() is None, self.log()
            time.sleep(0.02)
        return value

    def steps(self) -> int:
        lines = (
            (self.folder / "metrics.jsonl").read_text().splitlines() if (self.folder / "metrics.jsonl").exists() else []
        )
        return sum('"progress"' in line for line in lines)


def far(one: Stage, other: Stage) -> float:
    """The largest distance of a tensor from its counterpart, as a share of its norm."""
    a, b = one.weights(), other.weights()
    assert a.keys() == b.keys()
    return max(float(np.linalg.norm(a[name] - b[name]) / max(np.linalg.norm(a[name]), 1e-9)) for name in a)


def same_files(one: Stage, other: Stage) -> bool:
    """Whether all files of the model are equal but the weights."""
    a, b = (stage.folder / "outputs" / "model" for stage in (one, other))
    names = {path.name for path in a.iterdir()}
    return names == {path.name for path in b.iterdir()} and all(
        (a / name).read_bytes() == (b / name).read_bytes() for name in names if not name.endswith(".safetensors")
    )


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory, inputs: dict[str, Path]) -> Stage:
    return Stage(tmp_path_factory.mktemp("one") / "it", inputs, **SFT | {"gradient_accumulation_steps": 4}).run()


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory, inputs: dict[str, Path]) -> Stage:
    return Stage(tmp_path_factory.mktemp("two") / "it", inputs, **SFT, launch=TWO).run()


@pytest.mark.slow
def test_two_processes_end_in_the_weights_of_one(alone: Stage, pair: Stage) -> None:
    assert 0 < far(alone, pair) < SGD
    assert same_files(alone, pair)
    for name in ("loss", "eval_loss", "replay_loss", "mean_token_accuracy", "num_tokens", "grad_norm"):
        one, two = alone.logged(name), pair.logged(name)
        assert one.keys() == two.keys()
        assert all(two[step] == pytest.approx(one[step], rel=1e-5) for step in one), name


@pytest.mark.slow
def test_the_settings_are_stored_and_name_no_place(pair: Stage) -> None:
    settings = json.loads((pair.folder / CONFIG_FILE).read_text())
    summary = json.loads((pair.folder / "result.json").read_text())["summary"]
    assert (
        summary["launch"]
        == settings
        == accelerate_config(Launch(processes=2), SftStage.model_validate(SFT | {"launch": TWO}))
    )
    assert not (pair.folder / "ranks").exists()
    assert not [value for value in settings.values() if isinstance(value, str) and "/" in value]


@pytest.mark.slow
def test_ranks_say_things_once(pair: Stage) -> None:
    assert pair.log().count("\ndata: columns that are not trained on") == 1
    assert pair.log().count("step 3  loss") == 1


@pytest.mark.slow
def test_adamw_ends_close_by(tmp_path: Path, inputs: dict[str, Path]) -> None:
    more = {"optim": "adamw_torch_fused", "lora": {"r": 4}, "max_steps": 4, "replay": None, "eval_data": None}
    one = Stage(tmp_path / "one", inputs, **SFT | more | {"gradient_accumulation_steps": 4}).run()
    two = Stage(tmp_path / "two", inputs, **SFT | more, launch=TWO).run()
    assert 0 < far(one, two) < ADAMW


@pytest.mark.slow
def test_fsdp_over_gloo_ends_in_the_weights_of_one(tmp_path: Path, inputs: dict[str, Path], alone: Stage) -> None:
    two = Stage(tmp_path / "two", inputs, **SFT, launch=FSDP).run()
    assert 0 < far(alone, two) < SGD
    assert same_files(alone, two)
    assert two.logged("eval_loss")[5] == pytest.approx(alone.logged("eval_loss")[5], rel=1e-5)
    shards = sorted(
        path.name for path in (two.folder / "checkpoints" / "checkpoint-4" / "pytorch_model_fsdp_0").iterdir()
    )
    assert [name for name in shards if name.endswith(".distcp")] == ["__0_0.distcp", "__1_0.distcp"]


@pytest.mark.slow
@pytest.mark.parametrize("launch", [TWO, FSDP], ids=["ddp", "fsdp"])
def test_a_killed_run_goes_on_to_the_same_bytes(
    launch: dict[str, Any], tmp_path: Path, inputs: dict[str, Path], pair: Stage
) -> None:
    config = SFT if launch == TWO else SFT | {"max_steps": 4, "lora": {"r": 4}, "eval_data": None}
    whole = pair if launch == TWO else Stage(tmp_path / "whole", inputs, **config, launch=launch).run()
    stage = Stage(tmp_path / "it", inputs, **config, launch=launch)
    child = stage.start()
    stage.until(lambda: stage.steps() >= 3, child)
    guard.terminate(child, grace=0.0)
    assert (stage.folder / "checkpoints" / "checkpoint-2" / "whole.json").exists()
    stage.run()
    assert far(whole, stage) == 0
    assert stage.logged("loss") == whole.logged("loss")


@pytest.mark.slow
def test_all_ranks_end_with_the_engine(tmp_path: Path, inputs: dict[str, Path]) -> None:
    stage = Stage(tmp_path / "it", inputs, **SFT | {"max_steps": 5000}, launch=TWO)
    script = (
        "import sys, time\nfrom finery import guard\nfrom finery.launch import environment\n"
        "child = guard.spawn([sys.executable, '-m', 'finery.stage', sys.argv[1]], cwd=sys.argv[2],\n"
        "    env=environment(threads=1, gpus=[], network=False), stdout=open(sys.argv[2] + '/log.txt', 'wb'))\n"
        "print(child.pid, flush=True)\ntime.sleep(600)\n"
    )
    engine = subprocess.Popen(
        [sys.executable, "-c", script, str(stage.spec), str(stage.folder)], stdout=subprocess.PIPE, text=True
    )
    assert engine.stdout is not None
    warden = int(engine.stdout.readline())
    try:
        end = time.monotonic() + 120
        while stage.steps() < 2 and time.monotonic() < end:
            time.sleep(0.05)
        ranks = [pid for pid in guard.descendants(warden) if b"FINERY_LAUNCHER" in _environ(pid)]
        assert len(ranks) == 2
    finally:
        engine.kill()
        engine.wait()
    end = time.monotonic() + 2
    while any(_alive(pid) for pid in (warden, *ranks)) and time.monotonic() < end:
        time.sleep(0.02)
    assert not [pid for pid in (warden, *ranks) if _alive(pid)]


@pytest.mark.slow
def test_a_stop_is_a_checkpoint_of_all_and_no_error(tmp_path: Path, inputs: dict[str, Path], pair: Stage) -> None:
    stage = Stage(tmp_path / "it", inputs, **SFT | {"save_steps": 50}, launch=TWO)
    child = stage.start()
    stage.until(lambda: stage.steps() >= 1, child)
    os.kill(child.pid, signal.SIGTERM)
    assert child.wait() == 130, stage.log()
    assert not (stage.folder / "error.json").exists()
    (checkpoint,) = (stage.folder / "checkpoints").glob("checkpoint-*")
    assert (checkpoint / "rng_state_1.pth").exists() and (checkpoint / "whole.json").exists()
    stage.run()
    assert far(pair, stage) == 0


@pytest.mark.slow
def test_an_error_ends_all_and_is_told_once(tmp_path: Path, inputs: dict[str, Path]) -> None:
    stage = Stage(tmp_path / "it", inputs, **SFT | {"learning_rate": 1e30, "max_grad_norm": 1e30}, launch=TWO).run(1)
    told = json.loads((stage.folder / "error.json").read_text())
    assert "the loss is" in told["message"] and "lower learning_rate" in told["message"]
    assert stage.log().count("lower learning_rate") == 1
    assert "Traceback" not in stage.log()


@pytest.mark.slow
def test_a_rank_that_is_killed_is_named_and_ends_the_others(tmp_path: Path, inputs: dict[str, Path]) -> None:
    stage = Stage(tmp_path / "it", inputs, **SFT | {"max_steps": 5000}, launch=TWO)
    child = stage.start()
    stage.until(lambda: stage.steps() >= 2, child)
    (second,) = (pid for pid in guard.descendants(child.pid) if b"LOCAL_RANK=1" in _environ(pid).split(b"\0"))
    os.kill(second, signal.SIGKILL)
    assert child.wait() == 1
    told = json.loads((stage.folder / "error.json").read_text())
    assert told["message"].startswith("process 2 of 2 was killed by SIGKILL")


@pytest.mark.slow
def test_dpo_in_two_processes(tmp_path: Path, inputs: dict[str, Path]) -> None:
    one = Stage(tmp_path / "one", inputs, **DPO | {"gradient_accumulation_steps": 2}).run()
    for name, changes in (("live", {}), ("before", {"precompute_ref_log_probs": True})):
        two = Stage(tmp_path / name, inputs, **DPO | changes, launch=TWO).run()
        assert far(one, two) < SGD, name
        for metric in ("loss", "rewards/margins", "rewards/accuracies", "grad_norm"):
            assert two.logged(metric)[4] == pytest.approx(one.logged(metric)[4], rel=1e-4), (name, metric)


def _environ(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return b""


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False
