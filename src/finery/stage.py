"""The child's side of a stage: `python -m finery.stage SPEC.json` runs one stage and nothing else.

It imports neither prefect nor mlflow, so it works in an environment of the stage's own. What it leaves beside the
spec: `result.json` when it is done, `error.json` when it is not.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import sys
import traceback
from pathlib import Path
from types import FrameType
from typing import Any

from finery.content import write_json
from finery.contract import Interrupted, StageContext, StageResult, StopSignal
from finery.errors import FineryError
from finery.guard import watch_parent
from finery.ranks import STOP_SIGNAL, Rank, run_ranks, this_rank, threads_of
from finery.schemas.base import module_name
from finery.schemas.stage import KINDS

_INTERRUPTED = 130


def main(argv: list[str] | None = None) -> int:
    """Run the stage of a spec file; the exit code is 0, the error's own, or 130 when it was told to stop."""
    watch_parent()
    spec_path = Path((argv if argv is not None else sys.argv[1:])[0]).resolve()
    spec = json.loads(spec_path.read_text(encoding="utf-8"))
    rank = this_rank(spec_path.parent)
    folder = rank.place if rank else spec_path.parent
    stop = StopSignal()

    def on_signal(number: int, frame: FrameType | None) -> None:
        stop.requested = True
        if not stop.is_deferred:
            raise Interrupted

    signal.signal(STOP_SIGNAL if rank else signal.SIGTERM, on_signal)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the engine, which decides
    try:
        result = _run(spec, stop, spec_path, rank)
    except Interrupted:
        return _INTERRUPTED
    except FineryError as error:
        write_json(
            folder / "error.json", {"message": str(error), "exit_code": error.exit_code, "kind": type(error).__name__}
        )
        if rank is None:  # a rank's errors are told by its launcher, and one of them only
            print(f"finery: {error}", file=sys.stderr)
        return error.exit_code
    except MemoryError:
        write_json(folder / "error.json", {"message": "out of memory", "exit_code": 1, "kind": "MemoryError"})
        return 1
    except Exception as error:
        told = {"message": f"{type(error).__name__}: {error}".strip(), "exit_code": 1, "kind": type(error).__name__}
        if rank is None:
            traceback.print_exc()
        else:
            told["traceback"] = traceback.format_exc()
        write_json(folder / "error.json", told | {"unexpected": True})
        return 1
    write_json(folder / "result.json", {"metrics": _finite(result.metrics), "summary": result.summary})
    return 0


def _run(spec: dict[str, Any], stop: StopSignal, spec_path: Path, rank: Rank | None) -> StageResult:
    config = KINDS[spec["kind"]].model_validate(spec["config"])
    context = StageContext(
        stage=spec["stage"],
        seed=spec["seed"],
        output_dir=Path(spec["output_dir"]),
        checkpoint_dir=Path(spec["checkpoint_dir"]),
        metrics_path=Path(spec["metrics_path"]),
        base_dir=Path(spec["base_dir"]),
        threads=threads_of(spec["threads"], rank.count if rank else 1),
        rank=rank.number if rank else 0,
        processes=rank.count if rank else 1,
        input_refs=spec["input_refs"],
        input_digests=spec["input_digests"],
        bases={digest: Path(path) for digest, path in spec["bases"].items()},
        stop=stop,
    )
    if "torch" in config.packages:
        _settle_torch(context.threads)
    launch = getattr(config, "launch", None)
    if launch is not None and rank is None:
        return run_ranks(config, launch, spec_path, stop)
    if rank is not None and config.resources.gpus:
        import torch

        torch.cuda.set_device(rank.number)
    module = importlib.import_module(f"finery.stages.{module_name(spec['kind'])}")
    inputs = {name: Path(path) for name, path in spec["inputs"].items()}
    result: StageResult = module.run(config, inputs, context)
    return result


def _settle_torch(threads: int) -> None:
    """Threads as planned, and only deterministic kernels."""
    try:
        import torch
    except ImportError as error:
        raise FineryError(
            f'this stage needs torch, which {sys.executable} lacks; pip install "finery[train]"'
        ) from error
    torch.set_num_threads(threads)
    torch.use_deterministic_algorithms(True, warn_only=True)
    # deterministic mode also fills fresh memory, for debugging: it doubled the time of a small model's step (measured)
    setattr(torch.utils.deterministic, "fill_uninitialized_memory", False)  # noqa: B010 - torch's stubs lack it


def _finite(metrics: dict[str, float]) -> dict[str, float | str]:
    import math

    return {key: value if math.isfinite(value) else str(float(value)) for key, value in metrics.items()}


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # threads of libraries must not keep a finished stage alive
