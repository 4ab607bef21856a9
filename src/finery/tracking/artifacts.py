"""Which files an artifact event names: never through a link, never out of the run's folder (case S2)."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

from finery.errors import InputError
from finery.tracking.names import check_artifact_path


def artifact_files(path: Path, to: str, warn: Callable[[str], None]) -> Iterator[tuple[Path, str]]:
    """The files of `path`, a file or a folder, each with the artifact folder it goes to ("" is the run's own).

    A link, a thing that is no plain file and a name that could lead elsewhere are passed over with a warning.
    """
    if path.is_dir() and not path.is_symlink():
        for folder, names, files in os.walk(path):
            names.sort()
            for name in [name for name in names if (Path(folder) / name).is_symlink()]:
                warn(f"artifact {Path(folder) / name}: a link is not followed")
            for name in sorted(files):
                below = (Path(folder) / name).relative_to(path).as_posix()
                yield from _one(Path(folder) / name, f"{to}/{below}" if to else below, warn)
    else:
        yield from _one(path, f"{to}/{path.name}" if to else path.name, warn)


def _one(path: Path, name: str, warn: Callable[[str], None]) -> Iterator[tuple[Path, str]]:
    try:
        check_artifact_path(name)
    except InputError as error:
        warn(str(error))
        return
    if path.is_symlink():
        warn(f"artifact {path}: a link is not followed")
    elif not path.is_file():
        warn(f"artifact {path}: {'no plain file' if path.exists() else 'no longer there'}")
    elif not os.access(path, os.R_OK):
        warn(f"artifact {path}: may not be read")
    else:
        yield path, name.rpartition("/")[0]
