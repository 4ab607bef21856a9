"""Starting a stage in its own process, following it, and ending it.

The child dies with the engine (finery.guard); timeouts are enforced here, on the process.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from finery import guard

_FROM_OUTSIDE = (
    "MLFLOW_RUN_ID",
    "MLFLOW_EXPERIMENT_ID",
    "MLFLOW_TRACKING_TOKEN",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES",
    "PREFECT_API_AUTH_STRING",
    "PREFECT_API_KEY",
)
GRACE = 60.0
"""Seconds a stage has to checkpoint after the first Ctrl-C."""


@dataclass(frozen=True)
class Ended:
    """How an attempt ended: `result` when it is done, else `error` and the exit code it stands for."""

    result: dict[str, Any] | None
    error: str | None = None
    exit_code: int = 0
    cancelled: bool = False
    final: bool = False
    """No repeat can help: the input is bad."""


def write_spec(folder: Path, content: dict[str, Any]) -> Path:
    """The file that tells the child everything."""
    path = folder / "stage.json"
    path.write_text(json.dumps(content, ensure_ascii=False, indent=1), encoding="utf-8")
    return path


def environment(*, threads: int, gpus: list[int], network: bool, base: dict[str, str] | None = None) -> dict[str, str]:
    """The child's environment: the engine's, with its threads, its devices, and no tracking ids of anyone else."""
    given = dict(os.environ if base is None else base)
    for name in _FROM_OUTSIDE:
        given.pop(name, None)
    count = str(threads)
    given |= dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS"), count)
    visible = given.get("CUDA_VISIBLE_DEVICES")
    devices = visible.split(",") if visible else None
    given["CUDA_VISIBLE_DEVICES"] = ",".join(devices[number] if devices else str(number) for number in gpus)
    given |= {
        "PYTHONHASHSEED": "0",
        "PYTHONUNBUFFERED": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
        "DO_NOT_TRACK": "1",
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "WANDB_DISABLED": "true",
    }
    if not network:
        given |= {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"}
    return given


def command(python: str | None, shim: Path, env: dict[str, str]) -> list[str]:
    """The interpreter and module; a foreign interpreter finds this very finery by a folder that holds nothing else."""
    if python is not None:
        shim.mkdir(parents=True, exist_ok=True)
        link = shim / "finery"
        if not link.exists():
            link.unlink(missing_ok=True)
            link.symlink_to(Path(__file__).parent)
        env["PYTHONPATH"] = str(shim)
    return [python or sys.executable, "-m", "finery.stage"]


class Attempt:
    """One running attempt of a stage in `folder`, the key's working folder."""

    def __init__(self, folder: Path, argv: list[str], env: dict[str, str], header: str) -> None:
        self.folder = folder
        for name in ("result.json", "error.json"):
            (folder / name).unlink(missing_ok=True)
        self._log = (folder / "log.txt").open("ab")
        self._log.write(f"== {header}\n".encode())
        self._log.flush()
        self.process = guard.spawn(argv, env=env, cwd=folder, stdout=self._log, stderr=subprocess.STDOUT)

    def wait(self, *, timeout: float | None, follow: Callable[[], None], stopping: Callable[[], str | None]) -> Ended:
        """Follow the child to its end.

        Args:
            timeout: seconds it may take.
            follow: called often, to read what it reported.
            stopping: None, "checkpoint" (ask it to stop) or "kill".
        """
        deadline = time.monotonic() + timeout if timeout else None
        asked: float | None = None
        timed_out = False
        try:
            while self.process.poll() is None:
                follow()
                order = stopping()
                if order == "kill" or (asked and time.monotonic() > asked + GRACE):
                    guard.terminate(self.process, grace=0.0)
                elif order and not asked:
                    asked = time.monotonic()
                    os.kill(self.process.pid, signal.SIGTERM)
                elif deadline and time.monotonic() > deadline:
                    timed_out = True
                    guard.terminate(self.process, grace=2.0)
                time.sleep(0.05)
        finally:
            guard.terminate(self.process, grace=0.0)  # what the child left in its process group goes too
            follow()
            self._log.close()
        return self._ended(asked is not None or stopping() is not None, timeout if timed_out else None)

    def _ended(self, stopped: bool, timeout: float | None) -> Ended:
        code = self.process.returncode
        if timeout is not None:
            return Ended(None, f"took longer than its timeout of {timeout:g} s", 1)
        result, error = self.folder / "result.json", self.folder / "error.json"
        if code == 0 and result.exists():
            return Ended(json.loads(result.read_text(encoding="utf-8")))
        if stopped:
            return Ended(None, "stopped by the user", 130, cancelled=True)
        if error.exists():
            told = json.loads(error.read_text(encoding="utf-8"))
            return Ended(None, told["message"], told["exit_code"], final=told["exit_code"] in (2, 5))
        return Ended(None, _how(code), 1)


def _how(code: int | None) -> str:
    if code is not None and code < 0:
        hint = "; the kernel does that when memory runs out" if -code == signal.SIGKILL else ""
        return f"was killed by {signal.Signals(-code).name}{hint}"
    return f"ended with exit code {code} and no result"
