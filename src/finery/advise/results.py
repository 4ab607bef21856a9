"""The results that a pipeline's stages left in the store, by stage."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Iterator
from pathlib import Path

from finery.plan import Artifact, Done, Planner, StagePlan
from finery.schemas.base import Stage
from finery.schemas.reference import StageRef, parse_reference


class Results:
    """What is finished of a pipeline, by stage: the result of its present config, else the last one it had.

    Args:
        planner: of the loaded pipeline.
    """

    def __init__(self, planner: Planner) -> None:
        self._planner, self.loaded = planner, planner.loaded
        self.plans: dict[str, StagePlan] = planner.all()
        self.done: dict[str, Done] = {}
        self.old: set[str] = set()
        for name, plan in self.plans.items():
            if plan.done is not None:
                self.done[name] = plan.done
            elif manifest := planner.last(name):
                self.done[name] = planner.done(manifest, planner.config(name))
                self.old.add(name)

    def configs(self, *kinds: str) -> Iterator[tuple[str, Stage]]:
        """Stages of some kinds in the order of the line."""
        for name in self.loaded.order:
            config = self.loaded.pipeline.stages[name]
            if config.kind in kinds:
                yield name, config

    def source(self, stage: str, output: str = "") -> str:
        """Where a number comes from, in words; one from before the pipeline or the code changed says so."""
        said = f"{stage}.{output}" if output else stage
        return f"{said}, from before a change" if stage in self.old else said

    def output(self, text: str) -> Artifact | None:
        """The artifact that a reference in the pipeline means, or None when it is not made yet."""
        reference = parse_reference(text)
        if isinstance(reference, StageRef):
            found = self.done.get(reference.stage)
            return found.outputs.get(reference.output or found.default or "") if found else None
        try:
            path = self._planner.outside_path(text)
        except KeyError:
            return None
        return Artifact("model", "", path) if path.exists() else None

    def command(self, *kinds: str, among: Collection[str] = ()) -> str | None:
        """What would make the results of the stages of some kinds (of those `among` them), or None without one."""
        names = [name for name, _ in self.configs(*kinds) if not among or name in among]
        if not names:
            return None
        ready = [name for name in names if self.plans[name].state in ("run", "resume")]
        path, here = self.loaded.path.resolve(), Path.cwd()
        shown = path.relative_to(here) if path.is_relative_to(here) else path
        return f"finery run {shlex.quote(str(shown))}" + (f" --only {ready[0]}" if ready else "")
