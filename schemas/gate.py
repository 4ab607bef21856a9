"""`gate`: is reinforcement learning worth it? pass@1 against pass@k, decided on intervals."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from finery.schemas.base import EXECUTION, ModelRef, Stage, refuse
from finery.schemas.reference import ArtifactKind
from finery.schemas.rewards import Rewards, check_rewards, reward_packages
from finery.schemas.training import DatasetRef, Sampling

KList = Annotated[list[Annotated[int, Field(ge=1)]], Field(min_length=1)]


class GateStage(Stage):
    kind: Literal["gate"]
    """Samples a model on verifiable prompts and gives a verdict: `rl`, `skip_rl` or `more_data`."""
    schema_version = 2
    packages = ("torch", "transformers")
    model: ModelRef
    """The model that would be trained."""
    data: DatasetRef
    """Verifiable prompts."""
    rewards: Rewards
    """How completions are judged."""
    k: KList = [1, 8]
    """The k of pass@k; the verdict compares pass@1 with the largest."""
    max_samples: Annotated[int, Field(ge=1)] | None = None
    """The most completions for a prompt, at least max(k); 2 * max(k) by default. They are drawn in rounds, until the verdict is settled."""
    samples: Annotated[int, Field(ge=1)] | None = None
    """Exactly so many for each prompt instead, and one look at the end; at least max(k)."""
    max_prompts: Annotated[int, Field(ge=1)] | None = None
    """Use the first so many prompts; all by default."""
    sampling: Sampling = Sampling()
    """How completions are drawn."""
    solved_at: Annotated[float, Field(gt=0, le=1)] = 0.9
    """From this pass@1 on there is nothing left for RL: `skip_rl`."""
    min_gap: Annotated[float, Field(gt=0, lt=1)] = 0.2
    """The gap pass@k - pass@1 that RL needs: `rl`; below it `more_data`."""
    confidence: Annotated[float, Field(gt=0.5, lt=1)] = 0.95
    """Of the intervals the verdict is read from."""
    min_greedy: Annotated[float, Field(ge=0, le=1)] = 0.8
    """Below this greedy accuracy the reason carries a warning: a wide gap with weak greedy accuracy was followed by no gain."""
    on_more_data: Annotated[Literal["stop", "train", "skip"], EXECUTION] = "stop"
    """What `more_data` does to the gated stage: block it and what follows, run it all the same, or skip it."""
    batch_size: Annotated[int, Field(ge=1)] = 64
    """Completions drawn at once; it changes speed, and results only by rounding."""

    def outputs(self) -> dict[str, ArtifactKind]:
        return {"verdict": "verdict", "difficulty": "difficulty", "samples": "file"}

    @property
    def samples_per_prompt(self) -> int:
        """The most completions that a prompt may get."""
        return self.samples or self.max_samples or 2 * max(self.k)

    @model_validator(mode="after")
    def _check(self) -> GateStage:
        check_rewards(self.rewards)
        if 1 not in self.k or max(self.k) < 2:
            raise refuse("needs 1 and a larger k; the verdict compares pass@1 with pass@max(k)", field="k")
        if self.samples is not None and self.max_samples is not None:
            raise refuse(
                "draws just so many for each prompt, max_samples until the verdict is settled; give one",
                field="samples",
            )
        if self.samples_per_prompt < max(self.k):
            raise refuse(
                "{samples} samples cannot estimate pass@{k}; give at least {k}, or a smaller k",
                field="samples" if self.samples else "max_samples", samples=self.samples_per_prompt, k=max(self.k),
            )  # fmt: skip
        return self

    def packages_in_use(self) -> tuple[str, ...]:
        return (*self.packages, *reward_packages(self.rewards))
