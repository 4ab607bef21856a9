"""LoggedModels: an external one names a folder in the store, a shipped one carries the weights.

Each is found by its own id (tag `finery.id`) before it is made, so that doing it twice makes one. The fluent functions
of mlflow are not used: they act on a process-wide URI.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import LoggedModel

EXTERNAL = "mlflow.model.isExternal"
"""mlflow.utils.mlflow_tags.MLFLOW_MODEL_IS_EXTERNAL, as `mlflow.create_external_model` sets it."""


def external_model(
    client: MlflowClient, experiment: str, run: str, identity: str, name: str, tags: Mapping[str, str]
) -> str:
    """The id of the LoggedModel `identity`, whose weights stay where the tags say; made READY if need be."""
    model = _found(client, experiment, identity) or client.create_logged_model(
        experiment, _plain(name), run, {**tags, "finery.id": identity, EXTERNAL: "true"}, model_type="external"
    )
    if model.status != "READY":
        _describe(client, model)
        client.finalize_logged_model(model.model_id, "READY")
    return str(model.model_id)


def shipped_model(
    client: MlflowClient,
    experiment: str,
    run: str | None,
    identity: str,
    name: str,
    folder: Path,
    tags: Mapping[str, str],
) -> LoggedModel:
    """The LoggedModel `identity` with all files of `folder` in it; an upload that was broken off is done again."""
    model = _found(client, experiment, identity) or client.create_logged_model(
        experiment, _plain(name), run, {**tags, "finery.id": identity}, model_type="transformers"
    )
    if model.status != "READY":
        client.log_model_artifacts(model.model_id, str(folder))
        model = client.finalize_logged_model(model.model_id, "READY")
    return model


def link_output(client: MlflowClient, run: str, model_id: str, step: int) -> None:
    """Show the model among the run's outputs, once (mlflow would add a second row)."""
    from mlflow.entities import LoggedModelOutput

    outputs = client.get_run(run).outputs
    if model_id not in {output.model_id for output in (outputs.model_outputs if outputs else [])}:
        client.log_outputs(run, [LoggedModelOutput(model_id, step)])


def _found(client: MlflowClient, experiment: str, identity: str) -> LoggedModel | None:
    models = client.search_logged_models([experiment], f"tags.`finery.id` = '{identity}'", max_results=1)
    return models[0] if models else None


def _describe(client: MlflowClient, model: LoggedModel) -> None:
    """The MLmodel file that lets the UI register an external model, as `mlflow.create_external_model` writes it."""
    from mlflow.models import Model

    described = Model(
        artifact_path=model.artifact_location,
        model_uuid=model.model_id,
        model_id=model.model_id,
        run_id=model.source_run_id,
        metadata={EXTERNAL: True},
    )
    with tempfile.TemporaryDirectory() as folder:
        described.save(str(Path(folder) / "MLmodel"))
        client.log_model_artifacts(model.model_id, folder)


def _plain(name: str) -> str:
    """MLflow refuses / : . % and quotes in a LoggedModel's name."""
    return "".join("-" if character in "/:.%\"'" else character for character in name)
