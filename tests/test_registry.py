"""Decisions applied to a real model registry."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from finery.errors import InputError
from finery.receipts import Applied, RunInfo, already_applied
from finery.registry import RegistryError, apply_decision, folder_digest, resolve_alias
from finery.spool import Spool
from finery.tracking.connect import connect
from finery.tracking.replay import Replay

BASE = Path(__file__).parent.parent / "pipelines" / "base"
INFO: RunInfo = {"run_id": "run-1", "stage": "promote", "key": "k" * 64, "pipeline": "line"}


@pytest.fixture(scope="session")
def migrated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("mlflow") / "mlflow.db"
    connect(f"sqlite:///{path}")
    return path


@pytest.fixture
def home(tmp_path: Path, migrated: Path) -> Path:
    home = tmp_path / ".finery"
    home.mkdir()
    shutil.copy(migrated, home / "mlflow.db")
    return home


@pytest.fixture
def uri(home: Path) -> str:
    return f"sqlite:///{home / 'mlflow.db'}"


def decided(digest: str = "a" * 64, **changes: Any) -> dict[str, Any]:
    condition = {"metric": "merged.domain.pass_at_1", "value": 0.8, "bound": {"min": 0.7}, "passed": True, "reason": ""}
    return {
        "verdict": "promote", "name": "my-line", "alias": "champion", "model": "merged", "model_digest": digest,
        "conditions": [condition], **changes,
    }  # fmt: skip


def versions(uri: str, name: str = "my-line") -> list[str]:
    return sorted(str(version.version) for version in connect(uri).search_model_versions(f"name = '{name}'"))


def test_a_promotion_is_applied_once(home: Path, uri: str) -> None:
    first = apply_decision(decided(), BASE, uri=uri, home=home, run_info=INFO)
    assert first == Applied("my-line", "1", "champion", moved=True, reused=False)
    again = apply_decision(decided(), BASE, uri=uri, home=home, run_info=INFO)
    assert again == Applied("my-line", "1", "champion", moved=False, reused=True)
    assert versions(uri) == ["1"]
    version = connect(uri).get_model_version_by_alias("my-line", "champion")
    tags = {
        key: version.tags[f"finery.{key}"] for key in ("digest", "key", "run_id", "stage", "pipeline", "form", "model")
    }
    assert tags == {
        "digest": "a" * 64, "key": "k" * 64, "run_id": "run-1", "stage": "promote", "pipeline": "line", "form": "full",
        "model": "merged",
    }  # fmt: skip
    assert json.loads(version.tags["finery.conditions"]) == {"merged.domain.pass_at_1": 0.8}


def test_a_better_model_moves_the_alias_and_an_old_one_moves_it_back(home: Path, uri: str) -> None:
    apply_decision(decided("a" * 64), BASE, uri=uri, home=home, run_info=INFO)
    second = apply_decision(decided("b" * 64), BASE, uri=uri, home=home, run_info=INFO)
    assert second == Applied("my-line", "2", "champion", moved=True, reused=False)
    back = apply_decision(decided("a" * 64), BASE, uri=uri, home=home, run_info=INFO)
    assert back == Applied("my-line", "1", "champion", moved=True, reused=True)
    other = apply_decision(decided("a" * 64, alias="staging"), BASE, uri=uri, home=home, run_info=INFO)
    assert other == Applied("my-line", "1", "staging", moved=True, reused=True)
    assert versions(uri) == ["1", "2"]


def test_a_refusal_moves_nothing_and_opens_nothing(home: Path, uri: str) -> None:
    apply_decision(decided("a" * 64), BASE, uri=uri, home=home, run_info=INFO)
    refused = decided("b" * 64, verdict="refuse")
    result = apply_decision(refused, home / "absent", uri="http://127.0.0.1:1", home=home, run_info=INFO)
    assert result == Applied("my-line", None, "champion", moved=False, reused=False)
    assert versions(uri) == ["1"]
    assert str(connect(uri).get_model_version_by_alias("my-line", "champion").version) == "1"


def test_the_receipt_tells_what_is_applied(home: Path, uri: str) -> None:
    assert already_applied(decided(), uri, home) is None
    apply_decision(decided(), BASE, uri=uri, home=home, run_info=INFO)
    assert already_applied(decided(), uri, home) == Applied("my-line", "1", "champion", moved=False, reused=True)
    assert already_applied(decided("b" * 64), uri, home) is None
    assert already_applied(decided(alias="staging"), uri, home) is None
    assert already_applied(decided(form="adapter"), uri, home) is None
    assert already_applied(decided(), "http://127.0.0.1:5000", home) is None
    apply_decision(decided("b" * 64), BASE, uri=uri, home=home, run_info=INFO)
    assert already_applied(decided(), uri, home) is None  # another pipeline's decision came between
    (home / "mlflow.db").unlink()
    assert already_applied(decided("b" * 64), uri, home) is None


@pytest.mark.parametrize(
    "step", ["log_model_artifacts", "finalize_logged_model", "create_model_version", "set_registered_model_alias"]
)
def test_a_crash_between_steps_leaves_one_model_and_one_version(
    home: Path, uri: str, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mlflow import MlflowClient

    def crash(*args: Any, **kwargs: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(MlflowClient, step, crash)
        with pytest.raises(KeyboardInterrupt):
            apply_decision(decided(), BASE, uri=uri, home=home, run_info=INFO)
    assert already_applied(decided(), uri, home) is None
    result = apply_decision(decided(), BASE, uri=uri, home=home, run_info=INFO)
    assert (result.version, result.moved) == ("1", True)
    assert versions(uri) == ["1"]
    client = connect(uri)
    models = client.search_logged_models([client.get_experiment_by_name("line").experiment_id])
    assert [model.status for model in models] == ["READY"]


def test_decisions_at_once_make_one_version(home: Path, uri: str) -> None:
    def work(number: int) -> Applied:
        return apply_decision(decided(), BASE, uri=uri, home=home, run_info=INFO)

    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(work, range(4)))
    assert versions(uri) == ["1"]
    assert sum(result.moved for result in results) == 1
    assert sum(not result.reused for result in results) == 1


def test_the_version_belongs_to_the_promote_stages_run(home: Path, uri: str) -> None:
    with Spool(home / "runs" / "run-1") as spool:
        spool.open_run("line", experiment="my experiments")
        attempt = spool.open_stage("promote", "promote", "k" * 64, 1, {})
        Replay(spool, uri, connect(uri)).send()
    apply_decision(decided(), BASE, uri=uri, home=home, run_info={**INFO, "experiment": "my experiments"})
    client = connect(uri)
    version = client.get_model_version_by_alias("my-line", "champion")
    run = client.get_run(version.run_id)
    assert run.data.tags["finery.id"] == attempt
    [output] = run.outputs.model_outputs
    model = client.get_logged_model(output.model_id)
    assert json.loads(model.tags["mlflow.modelVersions"]) == [{"name": "my-line", "version": version.version}]


def test_an_adapter_ships_merged_or_says_so(home: Path, uri: str, tmp_path: Path) -> None:
    adapter = tmp_path / "adapter"
    adapter.mkdir()
    (adapter / "adapter_config.json").write_text("{}")
    with pytest.raises(InputError, match="ships the merged model"):
        apply_decision(decided(), adapter, uri=uri, home=home, run_info=INFO)
    with pytest.raises(InputError, match="holds full weights"):
        apply_decision(decided(form="adapter"), BASE, uri=uri, home=home, run_info=INFO)
    merged = apply_decision(decided(), BASE, uri=uri, home=home, run_info=INFO)
    alone = apply_decision(decided(form="adapter"), adapter, uri=uri, home=home, run_info=INFO)
    assert (merged.version, alone.version) == ("1", "2")


def test_what_cannot_be_promoted_is_refused_by_name(home: Path, uri: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="latest"):
        apply_decision(decided(alias="Latest"), BASE, uri=uri, home=home, run_info=INFO)
    with pytest.raises(InputError, match="v12"):
        apply_decision(decided(alias="v12"), BASE, uri=uri, home=home, run_info=INFO)
    with pytest.raises(InputError, match="is not there"):
        apply_decision(decided(), tmp_path / "absent", uri=uri, home=home, run_info=INFO)
    shutil.copytree(BASE, tmp_path / "model")
    (tmp_path / "model" / "pytorch_model.bin").write_bytes(b"pickle")
    with pytest.raises(InputError, match=r"pytorch_model\.bin"):
        apply_decision(decided(), tmp_path / "model", uri=uri, home=home, run_info=INFO)
    with pytest.raises(RegistryError, match="does not take this"):
        apply_decision(decided(name="a/b"), BASE, uri=uri, home=home, run_info=INFO)


def test_a_registry_that_does_not_answer_is_one_sentence(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("finery.registry.TRIES", (0.01,))
    with pytest.raises(RegistryError, match=r"the registry at http://127\.0\.0\.1:1 does not take this") as caught:
        apply_decision(decided(), BASE, uri="http://me:canary@127.0.0.1:1", home=home, run_info=INFO)
    assert "canary" not in str(caught.value)
    assert not (home / "registry").exists()


def test_an_alias_resolves_to_version_digest_and_folder(home: Path, uri: str) -> None:
    apply_decision(decided(), BASE, uri=uri, home=home, run_info=INFO)
    version, digest, path = resolve_alias(uri, "my-line", "champion", home)
    assert (version, digest) == ("1", folder_digest(BASE))
    assert {p.name: p.read_bytes() for p in path.iterdir()} == {p.name: p.read_bytes() for p in BASE.iterdir()}
    with pytest.raises(InputError, match=r"registry:my-line@nobody"):
        resolve_alias(uri, "my-line", "nobody", home)
    with pytest.raises(InputError, match=r"registry:stranger@champion"):
        resolve_alias(uri, "stranger", "champion", home)


def test_the_digest_of_a_folder_is_the_stores(tmp_path: Path) -> None:
    from finery.content import hash_file, output_digest

    files = {f"model/{p.name}": {"sha256": hash_file(p), "size": p.stat().st_size} for p in BASE.iterdir()}
    assert folder_digest(BASE) == output_digest(files, "model")


LOADS = """
import mlflow, sys, torch
from transformers import AutoModelForCausalLM, AutoTokenizer
folder = mlflow.artifacts.download_artifacts("models:/my-line@champion", dst_path=sys.argv[1])
mine, base = (AutoModelForCausalLM.from_pretrained(path).state_dict() for path in (folder, sys.argv[2]))
assert mine.keys() == base.keys() and all(torch.equal(mine[name], base[name]) for name in base)
mine, base = (AutoTokenizer.from_pretrained(path)("12 + 7")["input_ids"] for path in (folder, sys.argv[2]))
assert mine == base
"""


@pytest.mark.slow
def test_the_champion_is_downloaded_by_mlflow_and_loaded_by_transformers(home: Path, uri: str, tmp_path: Path) -> None:
    apply_decision(decided(), BASE, uri=uri, home=home, run_info=INFO)
    (tmp_path / "fetched").mkdir()
    env = {**os.environ, "MLFLOW_TRACKING_URI": uri, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    argv = [sys.executable, "-c", LOADS, str(tmp_path / "fetched"), str(BASE)]
    done = subprocess.run(argv, env=env, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
