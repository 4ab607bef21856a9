"""Outside models: hub ids and registry aliases become a commit or version and a local folder before a run.

What they became is recorded in `<pipeline>.lock.yaml` beside the pipeline, so that the next run, and everyone the
file is shared with, uses the same weights.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from finery.errors import FineryError, InputError
from finery.schemas.pipeline import Pipeline
from finery.schemas.reference import HubRef, RegistryRef, parse_reference, uses

WANTED = ["*.safetensors", "*.json", "*.jinja", "*.model", "*.txt"]
"""What is fetched of a repository: weights as safetensors, config and tokenizer; no code, no pickles."""


@dataclass
class Lock:
    """The lock file: reference as written -> `{commit}` or `{version, digest, source}`."""

    path: Path
    entries: dict[str, dict[str, Any]] = field(default_factory=dict)

    @classmethod
    def read(cls, pipeline: Path) -> Lock:
        path = pipeline.with_name(f"{pipeline.stem}.lock.yaml")
        if not path.exists():
            return cls(path)
        from ruamel.yaml import YAML
        from ruamel.yaml.error import YAMLError

        try:
            found = YAML(typ="safe", pure=True).load(path.read_text(encoding="utf-8")) or {}
            return cls(path, {str(key): dict(value) for key, value in found.items()})
        except (YAMLError, TypeError, ValueError, AttributeError) as error:
            raise InputError(f"{path}: is not a lock file; delete it and finery run writes it anew") from error

    def write(self) -> None:
        from ruamel.yaml import YAML

        yaml = YAML(typ="safe", pure=True)
        yaml.default_flow_style = False
        temporary = self.path.with_name(f".{self.path.name}.tmp")
        with temporary.open("w", encoding="utf-8") as file:
            file.write("# what outside references were resolved to; commit this file, delete it to resolve anew\n")
            yaml.dump(self.entries, file)
        os.replace(temporary, self.path)

    def folder(self, text: str) -> Path:
        """The local folder of a resolved reference.

        Raises:
            KeyError: it is not in the lock, or its files are no longer in the cache.
        """
        entry = self.entries[text]
        reference = parse_reference(text)
        path = _snapshot(reference.repo, entry["commit"]) if isinstance(reference, HubRef) else Path(entry["source"])
        if not path.is_dir():
            raise KeyError(text)
        return path


def _snapshot(repo: str, commit: str) -> Path:
    """Where huggingface_hub keeps a commit of a model: its documented cache layout."""
    home = Path(os.environ.get("HF_HOME", Path.home() / ".cache" / "huggingface"))
    hub = Path(os.environ.get("HF_HUB_CACHE", home / "hub"))
    return hub / f"models--{repo.replace('/', '--')}" / "snapshots" / commit


def resolve(pipeline: Pipeline, lock: Lock, *, alias: Callable[[str, str], dict[str, Any]]) -> None:
    """Resolve every outside reference of a pipeline and write the lock if it changed.

    A hub id in the lock keeps its commit; a registry alias is asked for every time, since aliases move.

    Args:
        alias: (registered name, alias) to `{version, digest, source}`; finery.registry's.
    """
    before = dict(lock.entries)
    for stage in pipeline.stages.values():
        for use in uses(stage):
            reference = None if use.ref.local_only else parse_reference(use.text)
            if isinstance(reference, HubRef):
                lock.entries[use.text] = {"commit": _fetch(reference, lock.entries.get(use.text, {}).get("commit"))}
            elif isinstance(reference, RegistryRef):
                lock.entries[use.text] = alias(reference.name, reference.alias)
    if lock.entries != before:
        lock.write()


def _fetch(reference: HubRef, commit: str | None) -> str:
    """Download a repository at a commit, resolved from its revision when none is locked yet."""
    try:
        from huggingface_hub import HfApi, snapshot_download
        from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError, OfflineModeIsEnabled
    except ImportError as error:
        raise InputError('hub models need huggingface_hub; pip install "finery[train]"') from error
    name = f"hf:{reference.repo}" + (f"@{reference.revision}" if reference.revision else "")
    if commit and _snapshot(reference.repo, commit).is_dir():
        return commit
    try:
        if commit is None:
            commit = _cached_ref(reference) or str(HfApi().model_info(reference.repo, revision=reference.revision).sha)
        snapshot_download(reference.repo, revision=commit, allow_patterns=WANTED)
    except (HfHubHTTPError, LocalEntryNotFoundError, OfflineModeIsEnabled, OSError) as error:
        raise FineryError(f"{name} cannot be fetched: {error}") from error
    return commit


def _cached_ref(reference: HubRef) -> str | None:
    """Offline, the commit that the cache knows for a revision."""
    if os.environ.get("HF_HUB_OFFLINE") not in ("1", "true", "True"):
        return None
    path = _snapshot(reference.repo, "x").parent.parent / "refs" / (reference.revision or "main")
    return path.read_text(encoding="utf-8").strip() if path.is_file() else reference.revision
