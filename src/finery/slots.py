"""CPU and GPU slots on one host: flock files in `<home>/slots`, which the kernel frees on death."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO

from finery.errors import InputError


def host_cpus() -> int:
    """CPU cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def host_gpus() -> int:
    """NVIDIA GPUs of this host, or those CUDA_VISIBLE_DEVICES leaves."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return len([one for one in visible.split(",") if one.strip() and one.strip() != "-1"])
    return len(list(Path("/proc/driver/nvidia/gpus").glob("*"))) if Path("/proc/driver/nvidia/gpus").is_dir() else 0


def check(stage: str, cpus: int, gpus: int) -> None:
    """A stage that asks for more than the host has would wait for ever.

    Raises:
        InputError: it does.
    """
    if cpus > host_cpus():
        raise InputError(f"stages.{stage}.resources.cpus: asks for {cpus}, this host has {host_cpus()}")
    if gpus > host_gpus():
        raise InputError(f"stages.{stage}.resources.gpus: asks for {gpus}, this host has {host_gpus()}")


@contextmanager
def slots(
    home: Path, cpus: int, gpus: int, *, stopped: Callable[[], bool], waiting: Callable[[], None]
) -> Iterator[list[int]]:
    """Hold `cpus` and `gpus` slots, all or none; yields the numbers of the GPUs.

    `waiting` is called once if they are not free at once; `stopped` ends the wait (the caller looks again).
    """
    folder = home / "slots"
    folder.mkdir(parents=True, exist_ok=True)
    with ExitStack() as held:
        told = False
        while True:
            with ExitStack() as attempt:
                numbers = [_take(folder, kind, count, total, attempt) for kind, count, total in _wanted(cpus, gpus)]
                if None not in numbers:
                    held.push(attempt.pop_all())
                    break
            if not told:
                waiting()
                told = True
            if stopped():
                break
            time.sleep(0.1)
        yield (numbers[1] or []) if len(numbers) > 1 else []


def _wanted(cpus: int, gpus: int) -> list[tuple[str, int, int]]:
    return [("cpu", cpus, host_cpus()), ("gpu", gpus, host_gpus())]


def _take(folder: Path, kind: str, count: int, total: int, stack: ExitStack) -> list[int] | None:
    taken: list[int] = []
    for number in range(total):
        if len(taken) == count:
            break
        file: IO[str] = (folder / f"{kind}-{number}").open("a")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.close()
            continue
        stack.enter_context(file)
        taken.append(number)
    return taken if len(taken) == count else None
