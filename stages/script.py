"""`script`: a user's own command, with its spec in a JSON file named by FINERY_SPEC."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import IO

from finery.contract import Interrupted, StageContext, StageResult
from finery.errors import StageError
from finery.schemas.script import ScriptStage

_PASSED_ON = (
    *("PATH", "HOME", "USER", "SHELL", "LANG", "LC_ALL", "TZ", "TMPDIR", "VIRTUAL_ENV", "SSL_CERT_FILE"),
    *("CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "OPENBLAS_CORETYPE"),
)


def run(config: ScriptStage, inputs: Mapping[str, Path], context: StageContext) -> StageResult:
    """Run the command in the YAML file's folder; its exit code decides.

    The spec: `inputs` (name to folder), `outputs` (name to folder), `params`, `seed`, `stage`, `checkpoint_dir`
    and `metrics`, the file it may append `{"step": 1, "loss": 0.5}` lines to.

    Raises:
        StageError: the command failed, a secret is not set, or an output was left empty.
    """
    outputs = {name: str(context.output(name)) for name in config.makes}
    context.checkpoint_dir.mkdir(parents=True, exist_ok=True)
    metrics = context.checkpoint_dir / ".metrics.jsonl"
    metrics.unlink(missing_ok=True)
    context.rewind(0)  # an earlier attempt's metrics: this one says its own
    spec = context.checkpoint_dir / ".script.json"
    spec.write_text(
        json.dumps(
            {
                "stage": context.stage,
                "seed": context.seed,
                "inputs": {name: str(inputs[f"inputs.{name}"]) for name in config.inputs},
                "outputs": outputs,
                "params": config.params,
                "checkpoint_dir": str(context.checkpoint_dir),
                "metrics": str(metrics),
            },
            ensure_ascii=False,
            indent=1,
        ),
        encoding="utf-8",
    )
    environment = {name: os.environ[name] for name in _PASSED_ON if name in os.environ}
    secrets = {name: _secret(name, value) for name, value in config.env.items()}
    environment |= {"FINERY_SPEC": str(spec)} | secrets
    command = ["/bin/sh", "-c", config.command] if isinstance(config.command, str) else config.command
    final = _follow(command, environment, [value for value in secrets.values() if value], metrics, context)
    for name, folder in outputs.items():
        if not any(Path(folder).iterdir()):
            raise StageError(
                f"the command ended well but wrote nothing for its output {name}; "
                f"it writes below {folder}, outputs.{name} of FINERY_SPEC"
            )
    return StageResult(metrics=final)


def _follow(
    command: list[str], environment: dict[str, str], secrets: list[str], metrics: Path, context: StageContext
) -> dict[str, float]:
    """Run the command to its end; on Ctrl-C it has got the signal itself, and is waited for."""
    try:
        process = subprocess.Popen(
            command,
            cwd=context.base_dir,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE if secrets else None,
            stderr=subprocess.STDOUT if secrets else None,
        )
    except OSError as error:
        raise StageError(f"the command {command[0]!r} does not start: {error.strerror}") from error
    echo = threading.Thread(target=_echo, args=(process.stdout, secrets), daemon=True) if secrets else None
    if echo:
        echo.start()
    final: dict[str, float] = {}
    offset = 0
    with context.stop.deferred() as stop:
        while (code := process.poll()) is None:
            offset = _relay(metrics, offset, final, context)
            time.sleep(0.05)
        if echo:
            echo.join(timeout=5)  # what it left running may hold the pipe; the engine ends that
        if stop.requested:
            raise Interrupted
    _relay(metrics, offset, final, context, ended=True)
    if code:
        how = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
        raise StageError(f"the command {how}; finery logs shows what it wrote")
    return final


def _echo(pipe: IO[bytes], secrets: list[str]) -> None:
    """Copy what the command writes to the log, with the secrets it was given masked."""
    for line in pipe:
        for secret in secrets:
            line = line.replace(secret.encode(), b"***")
        sys.stdout.buffer.write(line)
        sys.stdout.buffer.flush()


def _relay(metrics: Path, offset: int, final: dict[str, float], context: StageContext, *, ended: bool = False) -> int:
    """Pass on whole lines of the command's metrics; the last value of each is final.

    A line without its end waits, until the command has ended.
    """
    if not metrics.exists():
        return offset
    with metrics.open("rb") as file:
        file.seek(offset)
        for line in file:
            if not line.endswith(b"\n") and not ended:
                break
            offset += len(line)
            if not line.strip():
                continue
            try:
                values = json.loads(line)
                step = int(values.pop("step", 0))
                numbers = {str(key): float(value) for key, value in values.items()}
            except (ValueError, AttributeError, TypeError, OverflowError) as error:
                raise StageError(
                    f'metrics.jsonl of the command has a line that is not {{"step": 1, "name": number}}: {line[:120]!r}'
                ) from error
            context.log(step, **numbers)
            final |= numbers
    return offset


def _secret(name: str, reference: str) -> str:
    match = re.fullmatch(r"\$\{env:(\w+)\}", reference)
    if not match or match[1] not in os.environ:
        raise StageError(f"env.{name}: {reference} is not set where finery runs")
    return os.environ[match[1]]
