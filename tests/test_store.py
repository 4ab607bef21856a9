"""The store and the plan, through script stages: what is done is not done again, and why something is."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

MAKE = """
import json, os, sys
spec = json.load(open(os.environ["FINERY_SPEC"]))
with open("log", "a") as log: log.write(spec["stage"] + "\\n")
for name, folder in spec["outputs"].items():
    text = "".join(sorted(open(os.path.join(d, f)).read() for d in spec["inputs"].values() for f in os.listdir(d)))
    open(os.path.join(folder, "out.txt"), "w").write(name + str(spec["params"].get(name, "")) + text + "\\n")
open(spec["metrics"], "a").write(json.dumps({"step": 1, "size": 2.0}) + "\\n")
"""

PIPELINE = """
    name: line
    stages:
      first:
        kind: script
        command: [python3, make.py]
        files: [./make.py]
        params: {a: 1, b: 2}
        makes: {a: file, b: file}
      second:
        kind: script
        command: [python3, make.py]
        files: [./make.py]
        inputs: {x: first.a}
        makes: {out: file}
      third:
        kind: script
        command: [python3, make.py]
        files: [./make.py]
        inputs: {x: first.b, y: second}
        makes: {out: file}
    """


@pytest.fixture
def line(project):
    project.write("make.py", MAKE)
    project.write("pipeline.yaml", PIPELINE)
    return project


def done(line) -> list[str]:
    return (line.folder / "log").read_text().split()


def test_a_second_run_does_nothing_again(line):
    assert line.states() == dict.fromkeys(["first", "second", "third"], "Completed")
    assert line.states() == dict.fromkeys(["first", "second", "third"], "Cached")
    assert done(line) == ["first", "second", "third"]


def test_an_input_is_the_output_it_names(line):
    line.run()
    assert line.states("pipeline.yaml", "--set", "stages.first.params.b=9") == {
        "first": "Completed",
        "second": "Cached",
        "third": "Completed",
    }
    plan = line.plan("pipeline.yaml", "--set", "stages.first.params.b=10")
    assert plan["first"]["why"] == ["params.b 9 -> 10"]
    assert plan["second"]["state"] == "pending"
    assert plan["third"]["why"] == ["behind first, second"]


def test_execution_fields_change_no_key(line):
    line.run()
    assert set(
        line.states("pipeline.yaml", "--set", "stages.first.timeout=99", "--set", "stages.second.retries=3").values()
    ) == {"Cached"}


def test_another_seed_runs_again(line):
    line.run()
    assert line.plan("pipeline.yaml", "--set", "seed=5")["first"]["why"][0].startswith("seed ")


def test_the_order_of_splits_is_part_of_the_key(project):
    data = "name: d\nstages:\n  d: {kind: data, sources: [{kind: skills, rows: 40}], splits: {%s}}\n"
    project.write("pipeline.yaml", data % "a: 0.5, b: 0.5")
    project.run()
    project.write("pipeline.yaml", data % "b: 0.5, a: 0.5")
    assert project.plan()["d"]["why"] == ["the order of splits changed"]


def test_a_file_moved_with_its_pipeline_changes_no_key(line):
    first = line.run()
    (line.folder / "sub").mkdir()
    for name in ("make.py", "pipeline.yaml"):
        shutil.copy(line.folder / name, line.folder / "sub" / name)
    assert {s["key"] for s in line.run("sub/pipeline.yaml")["stages"].values()} == {
        s["key"] for s in first["stages"].values()
    }


def test_a_changed_file_runs_again_and_the_plan_says_why(line):
    line.run()
    path = line.folder / "make.py"
    path.write_text(path.read_text() + "# changed\n")
    assert line.plan()["first"] | {"key": 0, "spec": 0, "seconds": 0} == {
        "kind": "script", "state": "run", "why": ["input ./make.py changed"], "key": 0, "seconds": 0, "spec": 0,
        "notes": [],
    }  # fmt: skip


def test_damage_is_found_and_made_again(line):
    summary = line.run()
    out = Path(summary["stages"]["second"]["outputs"]["out"]["path"]) / "out.txt"
    out.write_text("short")
    assert line.plan()["second"]["why"] == ["its result in the store is damaged and is made again"]
    assert line.states()["second"] == "Completed"


def test_verify_finds_damage_of_equal_size(line):
    out = Path(line.run()["stages"]["second"]["outputs"]["out"]["path"]) / "out.txt"
    text = out.read_text()
    out.write_text(text.replace("o", "0"))
    assert line.plan()["second"]["state"] == "cached"
    assert line.plan("pipeline.yaml", "--verify")["second"]["state"] == "run"


def test_from_reruns_what_follows_and_says_when_bytes_are_the_same(line):
    line.run()
    stages = line.run("pipeline.yaml", "--from", "second")["stages"]
    assert {name: stage["state"] for name, stage in stages.items()} == {
        "first": "Cached",
        "second": "Completed",
        "third": "Completed",
    }
    assert stages["second"]["message"] == "the same bytes as before"
    assert done(line) == ["first", "second", "third", "second", "third"]


def test_from_reports_bytes_that_differ(line):
    path = line.folder / "make.py"
    path.write_text(path.read_text().replace('+ "\\n")\nopen', '+ str(os.path.getsize("log")) + "\\n")\nopen'))
    line.run()
    assert any(
        "differ" in warning for warning in line.run("pipeline.yaml", "--from", "second")["stages"]["second"]["warnings"]
    )


def test_only_needs_its_inputs_in_the_store(line):
    refused = line.finery("run", "pipeline.yaml", "--only", "second", "--plain", code=2)
    assert "needs first, which the store does not have" in refused.stderr
    line.run()
    assert line.states("pipeline.yaml", "--only", "second", "--set", "stages.second.params.out=1") == {
        "first": "Cached",
        "second": "Completed",
    }


def test_unknown_stage_in_an_option_names_the_nearest(line):
    assert "did you mean second?" in line.finery("run", "pipeline.yaml", "--from", "secnd", "--plain", code=2).stderr


def test_adopt_accepts_an_old_result_and_lineage_says_so(line):
    line.run()
    path = line.folder / "make.py"
    path.write_text(path.read_text() + "# changed\n")
    said = line.finery("adopt", "pipeline.yaml", "first").stdout
    assert "now counts as" in said and "input ./make.py changed" in said
    assert line.plan()["first"]["state"] == "cached"
    line.finery("adopt", "pipeline.yaml", "second")
    line.finery("adopt", "pipeline.yaml", "third")
    assert set(line.states().values()) == {"Cached"}
    assert "adopted from" in line.finery("lineage", "third").stdout


def test_lineage_walks_back_to_files(line):
    line.run()
    tree = json.loads(line.finery("lineage", "third", "--json").stdout)
    assert tree["inputs"]["inputs.y"]["made_by"]["inputs"]["inputs.x"]["made_by"]["stage"] == "first"
    assert tree["inputs"]["files.0"]["ref"] == "./make.py"


def test_gc_keeps_what_the_last_runs_reach_and_asks(line):
    line.run()
    line.run("pipeline.yaml", "--set", "stages.second.params.out=1")
    shown = line.finery("gc", "--keep", "1", code=1).stdout  # no answer on standard input: nothing is deleted
    assert "none of the last 1 runs" in shown
    assert len(list((line.home / "store" / "script").iterdir())) == 5
    line.finery("gc", "--keep", "1", "--yes")
    assert len(list((line.home / "store" / "script").iterdir())) == 3
    assert set(line.states("pipeline.yaml", "--set", "stages.second.params.out=1").values()) == {"Cached"}


def test_a_link_in_an_output_is_refused(project):
    project.write(
        "pipeline.yaml",
        """
        name: link
        stages:
          bad:
            kind: script
            command: 'ln -s /etc/passwd "$(dirname "$FINERY_SPEC")/../outputs/o/x"'
            makes: {o: file}
        """,
    )
    assert "is a link" in project.run(code=1)["stages"]["bad"]["message"]


def test_a_read_only_store_is_a_clear_error(line):
    if os.geteuid() == 0:
        line.home.write_text("a file where the store's folder should be")
    else:
        line.home.mkdir(mode=0o500)
    done = line.finery("run", "pipeline.yaml", "--plain", code=1)
    assert "FINERY_HOME" in done.stderr and "Traceback" not in done.stderr


def test_finery_home_moves_the_store(line, tmp_path):
    line.run("pipeline.yaml", FINERY_HOME=str(tmp_path / "elsewhere"))
    assert (tmp_path / "elsewhere" / "store" / "script").is_dir()
    assert not (line.folder / ".finery").exists()


def test_a_result_whose_publication_was_killed_is_published_by_the_next_run(line):
    """The manifest is written, the folder not yet renamed: all is there, nothing is done again."""
    summary = line.run()
    done_one = line.home / "store" / "script" / summary["stages"]["second"]["key"]
    done_one.rename(done_one.with_name(done_one.name + ".partial"))
    before = done(line)
    assert line.states() == dict.fromkeys(["first", "second", "third"], "Cached")
    assert done(line) == before


def test_gc_spares_what_a_living_run_uses(line):
    line.run()
    run = max((line.home / "runs").iterdir())
    (run / "summary.json").unlink()
    info = json.loads((run / "run.json").read_text())
    (run / "run.json").write_text(json.dumps(info | {"pid": os.getpid()}))
    assert "nothing to delete" in line.finery("gc", "--keep", "0", "--yes").stdout
    (run / "run.json").write_text(json.dumps(info | {"pid": 2**22 - 1}))
    assert "3 folders" in line.finery("gc", "--keep", "0", "--yes").stdout


def test_adopt_takes_no_result_of_another_kind_of_output(line):
    line.run()
    said = line.finery("adopt", "pipeline.yaml", "second", "--set", "stages.second.makes={out: model}", code=2).stderr
    assert "out (file); now it has out (model)" in said


@pytest.mark.parametrize("make", ["os.mkfifo('x')", "open(b'\\xff', 'w').close()"])
def test_what_is_no_regular_file_of_a_plain_name_is_refused(project, make):
    project.write(
        "odd.py", f"import json, os\nos.chdir(json.load(open(os.environ['FINERY_SPEC']))['outputs']['o'])\n{make}\n"
    )
    project.write(
        "pipeline.yaml",
        """
        name: odd
        stages:
          bad: {kind: script, command: [python3, odd.py], files: [./odd.py], makes: {o: file}}
        """,
    )
    message = project.run(code=1)["stages"]["bad"]["message"]
    assert "no regular file" in message or "not UTF-8" in message


def test_damaged_files_of_finerys_own_are_named(line):
    line.run()
    run = max((line.home / "runs").iterdir())
    (run / "summary.json").write_text("")
    said = line.finery("runs", code=1).stderr
    assert "summary.json: is damaged" in said and "Traceback" not in said
