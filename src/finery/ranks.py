"""A stage with `launch:` as several processes: the stage's own process starts them by `accelerate launch`.

That process (the launcher) runs accelerate's launcher within itself, so that it learns which rank failed and how. A
rank is `python -m finery.stage SPEC` again, told by LAUNCHER that it is one. What it leaves, result.json or
error.json, lies in `ranks/RANK` beside the spec; the launcher takes the first error or rank 0's result from there.
Ranks are in sessions of their own (torch's elastic agent makes them), so a stop reaches them as a file, and the
launcher's end by their parent's change; on Linux the warden of `finery.guard` finds and ends them too.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from finery.contract import Interrupted, StageResult, StopSignal
from finery.errors import FineryError

if TYPE_CHECKING:
    from finery.schemas.launch import Launch

LAUNCHER = "FINERY_LAUNCHER"
"""The environment variable that tells a rank its launcher's process id."""
CONFIG_FILE = "accelerate.json"
FOLDER = "ranks"
STOP_SIGNAL = signal.SIGUSR1
"""How a rank asks itself to checkpoint and stop; SIGTERM, by which the elastic agent ends ranks, ends it at once."""
_STOP = "stop"
_LOOK_EVERY = 0.1


class RankError(FineryError):
    """What the rank that failed said of it."""

    def __init__(self, message: str, exit_code: int = 1) -> None:
        super().__init__(message)
        self.exit_code = exit_code


@dataclass(frozen=True)
class Rank:
    """Which of the processes this one is."""

    number: int
    count: int
    folder: Path

    @property
    def place(self) -> Path:
        """Where it leaves result.json or error.json."""
        return self.folder / FOLDER / str(self.number)


def this_rank(folder: Path) -> Rank | None:
    """The rank that this process is, or None in a launcher or a stage without `launch`."""
    if LAUNCHER not in os.environ:
        return None
    rank = Rank(int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), folder)
    rank.place.mkdir(parents=True, exist_ok=True)
    if rank.number:
        # what a stage prints is the same in every rank; errors are told by error.json and standard error
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 - for the whole life of the process
    threading.Thread(target=_watch, args=(rank,), name="finery-rank", daemon=True).start()
    return rank


def _watch(rank: Rank) -> None:
    """End this process when its launcher has ended, and pass a stop on to it once."""
    launcher, told = int(os.environ[LAUNCHER]), False
    while True:
        if os.getppid() != launcher:
            os.kill(os.getpid(), signal.SIGKILL)
        if not told and (rank.folder / FOLDER / _STOP).exists():
            told = True
            os.kill(os.getpid(), STOP_SIGNAL)
        time.sleep(_LOOK_EVERY)


def threads_of(cpus: int, processes: int) -> int:
    """Each rank's share of the stage's CPU threads."""
    return max(1, cpus // processes)


def run_ranks(config: Any, launch: Launch, spec_path: Path, stop: StopSignal) -> StageResult:
    """Run the stage of a spec file in `launch.processes` ranks, to the end of all.

    Args:
        config: the stage's TrainingStage.

    Returns:
        What rank 0 gave back, and the accelerate config in the summary.

    Raises:
        InputError: a package or the accelerate config's own check says that it cannot be.
        RankError: a rank failed; the message is its own.
        Interrupted: the stage was told to stop, and the ranks have.
    """
    from finery.training.accelerating import accelerate_config, check_packages, write_config

    check_packages(launch)
    folder = spec_path.parent
    place = folder / FOLDER
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir()
    settings = accelerate_config(launch, config)
    write_config(settings, folder / CONFIG_FILE)

    def on_signal(number: int, frame: FrameType | None) -> None:
        stop.requested = True
        with contextlib.suppress(FileNotFoundError):  # the ranks have ended, and their folder is gone
            (place / _STOP).touch()

    signal.signal(signal.SIGTERM, on_signal)
    os.environ.update(_environment(threads_of(config.resources.cpus, launch.processes)))
    print(f"launch: {launch.in_words()}; settings in {CONFIG_FILE}", flush=True)
    failures = _launch(folder / CONFIG_FILE, spec_path)
    if failures is None:
        told = json.loads((place / "0" / "result.json").read_text(encoding="utf-8"))
        shutil.rmtree(place)
        return StageResult(told["metrics"], told["summary"] | {"launch": settings})
    if stop.requested:
        raise Interrupted
    raise _first_error(place, failures, launch.processes)


def _environment(threads: int) -> dict[str, str]:
    """What ranks are told beside what the stage is: their threads, and to talk over the loopback device alone."""
    loopback = "lo" if sys.platform == "linux" else "lo0"
    return {
        LAUNCHER: str(os.getpid()),
        **dict.fromkeys(
            ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS"), str(threads)
        ),
        "GLOO_SOCKET_IFNAME": loopback,
        "NCCL_SOCKET_IFNAME": loopback,
    }


def _launch(settings: Path, spec_path: Path) -> dict[int, Any] | None:
    """`accelerate launch --config_file SETTINGS -m finery.stage SPEC`; the ranks that failed, or None."""
    from accelerate.commands.launch import launch_command, launch_command_parser
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

    arguments = launch_command_parser().parse_args(
        ["--config_file", str(settings), "--module", "finery.stage", str(spec_path)]
    )
    # a stop is passed on by file and waits for a checkpoint; the agent would end the ranks at once
    arguments.signals_to_handle = "SIGHUP,SIGQUIT"
    arguments.log_dir = str(spec_path.parent / FOLDER / "agent")  # else a folder under /tmp that nobody removes
    try:
        launch_command(arguments)
    except ChildFailedError as error:
        return dict(error.failures)
    return None


def _said(place: Path, rank: int) -> bool:
    return (place / str(rank) / "error.json").exists()


def _first_error(place: Path, failures: dict[int, Any], processes: int) -> RankError:
    """What ended the ranks: one killed from outside, else the first that gave a reason of its own, else the first.

    The others see a connection that closed, which is no reason.
    """
    told: list[tuple[bool, float, dict[str, Any]]] = []
    for path in place.glob("*/error.json"):
        error = json.loads(path.read_text(encoding="utf-8"))
        told.append((bool(error.get("unexpected")), path.stat().st_mtime, error))
    killed = {
        rank: -failure.exitcode
        for rank, failure in failures.items()
        if failure.exitcode < 0 and failure.exitcode != -signal.SIGTERM and not _said(place, rank)
    }
    # a library that loses its peers may abort, which is no reason either
    if killed and not (told and set(killed.values()) == {signal.SIGABRT}):
        rank, number = min(killed.items())
        hint = "; the kernel does that when memory runs out" if number == signal.SIGKILL else ""
        return RankError(f"process {rank + 1} of {processes} was killed by {signal.Signals(number).name}{hint}")
    if told:
        _, _, error = min(told, key=lambda one: one[:2])
        print(error.get("traceback", ""), file=sys.stderr, end="")
        return RankError(error["message"], error["exit_code"])
    rank, failure = min(failures.items(), key=lambda item: item[1].timestamp)
    return RankError(f"process {rank + 1} of {processes} ended with exit code {failure.exitcode} and no result")
