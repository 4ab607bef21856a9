"""The command line. Nothing heavy is imported until a command needs it."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from finery.errors import FineryError, InputError

app = typer.Typer(
    name="finery",
    help="One YAML file from a base language model to a promoted one.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)

File = Annotated[Path, typer.Argument(metavar="FILE", help="The pipeline's YAML file.", show_default=False)]
Set = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="PATH=VALUE", help="Override a value: --set stages.sft.learning_rate=2e-4. May be repeated."
    ),
]
Verify = Annotated[bool, typer.Option("--verify", help="Check the hashes of finished outputs, not only their sizes.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
From = Annotated[
    str | None,
    typer.Option(
        "--from", metavar="STAGE", help="Run STAGE and all that follows again; bytes that differ are reported."
    ),
]


@app.command()
def validate(file: File, set_: Set = None) -> None:
    """Check a pipeline: every error at once, with its place and a remedy."""
    from finery.load import load

    loaded = load(file, set_ or [])
    for warning in loaded.warnings:
        print(f"warning: {warning}", file=sys.stderr)
    print(f"{file}: {loaded.pipeline.name} is valid: {len(loaded.order)} stages, {' -> '.join(loaded.order)}")


@app.command()
def schema() -> None:
    """Print the JSON Schema of a pipeline, for editors."""
    from finery.load import json_schema

    print(json.dumps(json_schema(), indent=1, ensure_ascii=False))


@app.command()
def init(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Where to write; made if need be.")] = Path("."),
) -> None:
    """Write a commented starter pipeline with its data, reward file and flows.yaml."""
    from finery.init import init_project

    for path in init_project(folder):
        print(path)
    print(f"next: finery plan {folder / 'pipeline.yaml'}, then finery run {folder / 'pipeline.yaml'}")


@app.command()
def plan(file: File, set_: Set = None, from_: From = None, verify: Verify = False, as_json: AsJson = False) -> None:
    """Show what will run, why, and what it took the last time. Nothing is started and no network is used."""
    from finery.show import plan_json, plan_text

    print((plan_json if as_json else plan_text)(file, set_ or [], from_, verify))


@app.command(name="advise")
def advise_(file: File, set_: Set = None, as_json: AsJson = False) -> None:
    """Say which of SFT, DPO, GRPO, distillation and merging is worth the next step, with the evidence for each."""
    from finery.advise import advice_json, advice_text

    print((advice_json if as_json else advice_text)(file, set_ or []))


@app.command()
def run(
    file: File,
    set_: Set = None,
    from_: From = None,
    only: Annotated[
        str | None, typer.Option("--only", metavar="STAGE", help="Run STAGE alone; its inputs must be in the store.")
    ] = None,
    verify: Verify = False,
    plain: Annotated[
        bool, typer.Option("--plain", help="Without Prefect and MLflow; a promotion still goes to the registry.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Run a pipeline: what is done is not done again.

    Exit codes: 0 done, 1 failed, 2 bad input, 3 blocked by a gate, 4 promotion refused, 5 stopped unhealthy,
    130 interrupted.
    """
    from finery.run import Options, main

    if from_ and only:
        raise InputError("--from and --only exclude each other")
    options = Options(tuple(set_ or ()), from_, only, verify, plain, show=not as_json)
    raise typer.Exit(main(file, options, as_json=as_json))


@app.command()
def runs(
    folder: Annotated[Path, typer.Option("--project", help="The project's folder.")] = Path("."),
    as_json: AsJson = False,
) -> None:
    """List the project's runs, the last one last."""
    from finery.show import runs_text

    print(runs_text(folder, as_json=as_json))


@app.command()
def logs(
    run: Annotated[str, typer.Argument(metavar="RUN", help="A run's id, the beginning of one, or `last`.")],
    stage: Annotated[str, typer.Argument(metavar="STAGE", help="The stage.")],
    follow: Annotated[bool, typer.Option("-f", "--follow", help="Go on as the stage writes.")] = False,
    folder: Annotated[Path, typer.Option("--project", help="The project's folder.")] = Path("."),
) -> None:
    """Print what a stage wrote."""
    from finery.show import print_log

    print_log(folder, run, stage, follow=follow)


@app.command()
def lineage(
    model: Annotated[
        str,
        typer.Argument(metavar="MODEL", help="A stage of the last run, RUN/STAGE, a digest, or a folder in the store."),
    ],
    folder: Annotated[Path, typer.Option("--project", help="The project's folder.")] = Path("."),
    as_json: AsJson = False,
) -> None:
    """Walk from a model back to its data and config."""
    from finery.lineage import lineage_text

    print(lineage_text(folder, model, as_json=as_json))


@app.command()
def adopt(
    file: File,
    stage: Annotated[str, typer.Argument(metavar="STAGE", help="The stage whose last result is to count.")],
    set_: Set = None,
) -> None:
    """Accept a stage's last result although its code or config changed; the lineage says so."""
    from finery.lineage import adopt_stage

    print(adopt_stage(file, stage, set_ or []))


@app.command()
def gc(
    folder: Annotated[Path, typer.Option("--project", help="The project's folder.")] = Path("."),
    keep: Annotated[int, typer.Option("--keep", min=0, help="Keep what the last N runs reach.")] = 5,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> None:
    """Show what no recent run, alias or young working folder reaches, ask, and delete it."""
    from finery.gc import collect, delete, listing

    found = collect(folder, keep)
    print(listing(found))
    if found.paths and (yes or typer.confirm("delete?")):
        delete(found)
        print(f"freed {found.size / 1e6:.1f} MB")


@app.command()
def sync(folder: Annotated[Path, typer.Option("--project", help="The project's folder.")] = Path(".")) -> None:
    """Send to MLflow what earlier runs could not."""
    from finery.show import sync_text

    print(sync_text(folder))


data_app = typer.Typer(help="Look at data sets.", no_args_is_help=True, rich_markup_mode=None)
app.add_typer(data_app, name="data")


@data_app.command("show")
def data_show(
    file: File,
    stage: Annotated[
        str, typer.Argument(metavar="STAGE[.OUTPUT]", help="A finished stage that makes data, or one of its outputs.")
    ],
    rows: Annotated[int, typer.Option("--rows", min=1, help="How many rows, from the first.")] = 3,
    model: Annotated[
        str | None,
        typer.Option(
            "--model", metavar="REF|FOLDER", help="Show them as this model sees them, not as the file's trainers do."
        ),
    ] = None,
    split: Annotated[str | None, typer.Option("--split", metavar="OUTPUT", help="The same as STAGE.OUTPUT.")] = None,
    set_: Set = None,
    as_json: AsJson = False,
) -> None:
    """Print rows as a model sees them: chat template applied, special tokens visible, what is learned marked."""
    from finery.data_show import show

    colour = sys.stdout.isatty() and not os.environ.get("NO_COLOR")
    print(show(file, stage, set_ or [], rows=rows, model=model, split=split, as_json=as_json, colour=colour))


reward_app = typer.Typer(help="Try rewards.", no_args_is_help=True, rich_markup_mode=None)
app.add_typer(reward_app, name="reward")


@reward_app.command("check")
def reward_check(
    path: Annotated[
        Path,
        typer.Argument(
            metavar="PATH",
            help="Rows with prompt, answer (or tests, sql, meta) and completion or completions: "
            "JSONL, JSON, CSV, Parquet, a folder, or a data set of finery's.",
            show_default=False,
        ),
    ],
    rewards: Annotated[
        list[str],
        typer.Option(
            "--reward",
            metavar="REWARD",
            help="A kind, or an entry of `rewards:`: --reward '{kind: answer, extract: boxed}'. May be repeated.",
        ),
    ],
    tokenizer: Annotated[
        Path | None,
        typer.Option("--tokenizer", metavar="FOLDER", help="Counts the tokens for length and repetition."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Score completions and print why each scored as it did; bad rows are named, with exit code 2."""
    from finery.reward_check import check

    for line in check(path, rewards, tokenizer=tokenizer, as_json=as_json):
        print(line)


@app.command(hidden=True)
def stage(spec: Annotated[Path, typer.Argument(metavar="SPEC")]) -> None:
    """Run one stage from its spec; the engine does this."""
    from finery.stage import main as run_stage

    raise typer.Exit(run_stage([str(spec)]))


def main() -> None:
    """The entry point: a user's mistake ends in one message and an exit code, never in a traceback."""
    if sys.platform == "win32":
        print("finery runs on Linux and macOS; on Windows use WSL2", file=sys.stderr)
        raise SystemExit(2)
    try:
        app(standalone_mode=True)
    except FineryError as error:
        print(error if error.exit_code == 2 else f"finery: {error}", file=sys.stderr)
        raise SystemExit(error.exit_code) from None
    except BrokenPipeError:
        raise SystemExit(0) from None
    except OSError as error:  # a disk that is full, a folder that is gone: the system's own words say it
        print(f"finery: {error.filename or 'the system'}: {error.strerror}", file=sys.stderr)
        raise SystemExit(1) from None
    except KeyboardInterrupt:
        raise SystemExit(130) from None
