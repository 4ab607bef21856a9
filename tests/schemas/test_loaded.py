"""What a loaded pipeline says of its stages and of where it lies."""

from __future__ import annotations

import random

import pytest

from finery.errors import InputError
from finery.language.check import Stages, references
from finery.language.nodes import parse
from finery.load import load
from finery.schemas.reference import uses
from finery.schemas.stage import KINDS


def test_edges_order_positions_and_project(tmp_path, line, write):
    folder = tmp_path / "a" / "b"
    folder.mkdir(parents=True)
    file = write(line).rename(folder / "x.yaml")
    (tmp_path / "base").rename(folder / "base")
    loaded = load(file)
    assert loaded.order == ["base", "corpus", "sft", "gate", "grpo", "exam", "promote"]
    assert list(loaded.edges) == loaded.order
    assert loaded.edges["grpo"] == ["sft", "corpus", "gate"]
    assert loaded.edges["promote"] == ["grpo", "exam"]
    assert loaded.positions["stages.grpo.gate"] == (14, 5)
    assert loaded.positions["stages.exam.models.2"] == (19, 25)
    assert loaded.path == file
    assert loaded.project == folder
    assert loaded.warnings == []
    (tmp_path / "flows.yaml").write_text("")
    assert load(file).project == tmp_path
    (tmp_path / "a" / ".finery").mkdir()
    assert load(file).project == tmp_path / "a"


def test_of_stages_that_could_come_next_the_first_in_the_file_comes(good):
    text = "name: s\nstages:\n" + "".join(
        f'  {name}: {{kind: script, command: ["true"], after: [{after}]}}\n'
        for name, after in (("z", "m"), ("m", ""), ("a", ""), ("k", "z"))
    )
    assert good(text).order == ["m", "z", "a", "k"]


def test_references_found_in_the_text_are_those_that_become_inputs(line, good):
    more = """\
  student: {kind: distill, teacher: grpo, student: {shrink: {layers: [0]}}, data: corpus.rl, max_steps: 1,
            rewards: [{kind: answer}], replay: {data: corpus.sft}}
  merged: {kind: merge, base: sft, models: [grpo, {model: ./base, weight: 2}], method: ties}
  own: {kind: script, command: ls, files: [./x.yaml], inputs: {a: corpus.test}}
  exam:"""
    text = line.replace("  exam:", more)
    loaded = good(text)
    root, _ = parse(text)
    assert root is not None
    kinds = {name: KINDS[config.kind] for name, config in loaded.pipeline.stages.items()}
    found = {
        (used.stage, ".".join(map(str, used.path[2:])), used.text)
        for used in references(Stages(root, loaded.path.parent, kinds))
    }
    assert found == {
        (name, use.field, use.text) for name, config in loaded.pipeline.stages.items() for use in uses(config)
    }


PIECES = [
    ": ",
    "- ",
    "[",
    "]",
    "{",
    "}",
    "*a",
    "&a ",
    "!!int ",
    "'",
    '"',
    "\t",
    "\n",
    "null",
    ".nan",
    "${env:X}",
    "<<: ",
]
PIECES += ["|\n", "#", "?", "9" * 500, "\x85", "\ufeff", "corpus", "base", "-rf", "true", "\x00"]


@pytest.mark.parametrize("seed", range(4))
def test_no_damage_to_a_file_gets_past_as_anything_but_an_input_error(seed, line, write):
    draw = random.Random(seed)
    told = []
    for _ in range(40):
        text = line
        for _ in range(draw.randint(1, 3)):
            at, length = draw.randrange(len(text)), draw.randint(0, 8)
            text = text[:at] + draw.choice(PIECES) + text[at + length :]
        try:
            load(write(text))
        except InputError as error:
            told.append(str(error))
    assert len(told) > 20
    assert "pydantic" not in "".join(told)
