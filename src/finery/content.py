"""Content: canonical JSON, digests, and JSON files that are whole or not there."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

from finery.errors import FineryError


def canonical(value: Any) -> bytes:
    """Canonical JSON: sorted keys, no blanks, UTF-8; equal values give equal bytes.

    Raises:
        ValueError: a number is not finite.
    """
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()


def digest_of(value: Any) -> str:
    """sha256 of the canonical JSON, in hex."""
    return hashlib.sha256(canonical(value)).hexdigest()


def hash_file(path: Path) -> str:
    """sha256 of a file's bytes, in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def output_digest(files: dict[str, dict[str, Any]], name: str) -> str:
    """The digest of one output: of its files' names, hashes and sizes."""
    prefix = f"{name}/"
    return digest_of(
        sorted([p[len(prefix) :], f["sha256"], f["size"]] for p, f in files.items() if p.startswith(prefix))
    )


def write_json(path: Path, value: Any) -> None:
    """Write JSON whole or not at all: to a temporary name, synced, then renamed."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    with temporary.open("w", encoding="utf-8") as file:
        json.dump(value, file, indent=1, ensure_ascii=False, allow_nan=False)
        file.write("\n")
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)


def read_json(path: Path) -> Any:
    """What a file of finery's own holds.

    Raises:
        FineryError: it is damaged.
    """
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise FineryError(f"{path}: is damaged ({error}); delete it, it is written anew") from error
