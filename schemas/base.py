"""The pieces every stage's schema is made of: strictness, names, references, the common fields.

A field's docstring is its documentation; docs pages and the JSON Schema are generated from it.
"""

from __future__ import annotations

import keyword
import re
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field
from pydantic_core import PydanticCustomError

from finery.schemas.reference import (
    FILE,
    MODEL,
    SECRET,
    ArtifactKind,
    Execution,
)

NAME = r"^[a-z][a-z0-9_-]{0,62}$"
_SECRET = re.compile(r"^\$\{env:[A-Za-z_][A-Za-z0-9_]*\}$")
_DURATION = re.compile(r"^(?=.)(?:(\d+)d)?(?:(\d+)h)?(?:(\d+)m)?(?:(\d+)s)?$")

EXECUTION = Execution()
"""Marks a field that decides how a stage is run and never what it makes: it is left out of the key."""


def refuse(message: str, *, field: str | None = None, **context: Any) -> PydanticCustomError:
    """An error for a validator to raise; `field` points `validate` at one key of the model."""
    return PydanticCustomError("finery", message, {**context, "field": field})


def _duration(value: Any) -> Any:
    """`90`, `30s`, `2h30m`, `1d` as whole seconds."""
    if isinstance(value, str):
        match = _DURATION.match(value)
        if not match:
            raise refuse("is not a duration; write seconds as a number, or for example 30s, 10m, 2h30m, 1d")
        days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
        return ((days * 24 + hours) * 60 + minutes) * 60 + seconds
    return value


def _secret(value: str) -> str:
    if not _SECRET.match(value):
        raise refuse("a secret is never written down here; write ${env:NAME} and set NAME where finery runs")
    return value


def _untyped(value: Any) -> Any:
    """In a free map a scalar keeps its written text unless it is an int or a float that round-trips."""
    if isinstance(value, dict):
        return {key: _untyped(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_untyped(item) for item in value]
    written = getattr(value, "written", None)
    if written is not None and isinstance(value, float):
        return float(value) if repr(float(value)) == written else written
    return value


Name = Annotated[str, Field(pattern=NAME)]
Duration = Annotated[int, BeforeValidator(_duration), Field(gt=0)]
Secret = Annotated[str, SECRET, AfterValidator(_secret)]
Free = Annotated[Any, BeforeValidator(_untyped)]
Fraction = Annotated[float, Field(gt=0, le=1)]
Dtype = Literal["float32", "bfloat16", "float16"]


class Model(BaseModel):
    """Strict: unknown keys, coerced types and non-finite numbers are refused."""

    model_config = ConfigDict(
        extra="forbid",
        strict=True,
        frozen=True,
        allow_inf_nan=False,
        validate_by_alias=True,
        validate_by_name=False,
        serialize_by_alias=True,
        protected_namespaces=(),
    )


class Resources(Model):
    cpus: Annotated[int, Field(ge=1)] = 1
    """CPU cores; torch and OpenMP get as many threads. It is part of the key, since threads change rounding."""
    gpus: Annotated[int, EXECUTION, Field(ge=0)] = 0
    """GPUs; the stage sees only those it was given (CUDA_VISIBLE_DEVICES)."""


class ProcessOptions(Model):
    python: str | None = None
    """The interpreter of an environment of the stage's own, for packages that do not agree with finery's; relative to the YAML file."""


class ProcessRuntime(Model):
    process: ProcessOptions
    """A process on this host."""


Runtime = Literal["process"] | ProcessRuntime


class Stage(Model):
    """The fields every stage has."""

    if TYPE_CHECKING:
        kind: str  # each kind has its own literal

    schema_version: ClassVar[int] = 1
    """Bumped when a default or a meaning changes, so that old results are not taken for new ones."""
    packages: ClassVar[tuple[str, ...]] = ()
    """Distributions whose versions decide the result; they enter the key."""
    network: ClassVar[bool] = False
    """Whether the kind may ask for the network."""

    after: Annotated[list[Name], EXECUTION] = []
    """Stages that must end first although no input of theirs is used."""
    seed: Annotated[int, Field(ge=0, lt=2**63)] | None = None
    """The stage's seed; by default it is derived from the pipeline's seed and the stage's name."""
    runtime: Annotated[Runtime | None, EXECUTION] = None
    """Where the stage runs: `process`, or `{process: {python: PATH}}` for an environment of its own."""
    timeout: Annotated[Duration | None, EXECUTION] = None
    """The longest an attempt may take, in seconds or as 30s, 10m, 2h30m; it is stopped then and counts as failed."""
    retries: Annotated[int, EXECUTION, Field(ge=0, le=100)] = 0
    """How often a failed attempt is repeated; each goes on from the last whole checkpoint."""
    retry_delay: Annotated[Duration | None, EXECUTION] = None
    """The wait before a repeat (1 s by default)."""
    resources: Resources = Resources()
    """What the stage needs of the host."""

    def outputs(self) -> dict[str, ArtifactKind]:
        """The stage's named outputs; the first is the one a bare reference means."""
        raise NotImplementedError

    def packages_in_use(self) -> tuple[str, ...]:
        """`packages`, and those that only some configs of the kind need."""
        return self.packages

    def notes(self) -> list[str]:
        """What `plan` says below the stage, one line each: choices whose parts stand far apart in the YAML."""
        return []

    @property
    def default_output(self) -> str | None:
        """The output a bare `stage` reference means, or None when one must be named."""
        return next(iter(self.outputs()), None)


def module_name(kind: str) -> str:
    """The module of a kind in `schemas/` and `stages/`: `import` lives in `import_`."""
    return f"{kind}_" if keyword.iskeyword(kind) else kind


ModelRef = Annotated[str, MODEL]
FilePath = Annotated[str, FILE]
