"""Running a line of script stages: retries, timeouts, branches, secrets, interruption, death."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest


def script(command: str, **fields: object) -> str:
    more = "".join(f", {key}: {json.dumps(value)}" for key, value in fields.items())
    return f"{{kind: script, command: {json.dumps(command)}{more}}}"


def pipeline(project, **stages: str):
    body = "".join(f"  {name}: {text}\n" for name, text in stages.items())
    (project.folder / "pipeline.yaml").write_text(f"name: line\nstages:\n{body}")
    return project


def alive(pid: int | str) -> bool:
    """Whether a process runs; one that has ended and that nobody has collected does not."""
    try:
        return Path(f"/proc/{int(pid)}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except FileNotFoundError:
        return False


def test_case_O8_a_retry_repeats_no_finished_stage(project):
    case = Path(__file__).parent / "cases" / "O8.yaml"
    assert "echo prepare >> O8.log" in case.read_text()
    pipeline(
        project,
        prepare=script("echo prepare >> O8.log"),
        train=script(
            "echo train >> O8.log; test -f O8.once || { touch O8.once; exit 1; }", retries=1, after=["prepare"]
        ),
    )
    assert project.states() == {"prepare": "Completed", "train": "Completed"}
    assert (project.folder / "O8.log").read_text().split() == ["prepare", "train", "train"]
    assert project.states() == {"prepare": "Cached", "train": "Cached"}
    assert (project.folder / "O8.log").read_text().split() == ["prepare", "train", "train"]


def test_a_failed_stage_blocks_what_follows_and_nothing_else(project):
    pipeline(project, bad=script("exit 7"), after_bad=script("true", after=["bad"]), free=script("true"))
    summary = project.run(code=1)
    assert {name: stage["state"] for name, stage in summary["stages"].items()} == {
        "bad": "Failed",
        "after_bad": "Blocked",
        "free": "Completed",
    }
    assert "exit code 7" in summary["stages"]["bad"]["message"]
    assert project.states(code=1)["free"] == "Cached"


def test_a_timeout_ends_the_process(project):
    pipeline(project, slow=script("echo $$ > pid; sleep 600", timeout=8))
    assert "timeout of 8 s" in project.run(code=1)["stages"]["slow"]["message"]
    assert not alive((project.folder / "pid").read_text())


def test_branches_run_side_by_side(project):
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("needs two cores")
    meet = "touch {me}; for i in $(seq 600); do test -f {other} && exit 0; sleep 0.1; done; exit 1"
    pipeline(project, left=script(meet.format(me="l", other="r")), right=script(meet.format(me="r", other="l")))
    assert set(project.states().values()) == {"Completed"}


def test_a_stage_that_asks_for_more_than_the_host_has_is_refused(project):
    pipeline(project, big=script("true", resources={"cpus": 4096}))
    assert (
        "stages.big.resources.cpus: asks for 4096" in project.finery("run", "pipeline.yaml", "--plain", code=2).stderr
    )


def test_a_secret_reaches_the_command_and_nothing_else(project):
    pipeline(project, use=script('printf %s "$TOKEN" > ../seen; test -z "$OTHER"', env={"TOKEN": "${env:MY_TOKEN}"}))
    project.run(plain=True, MY_TOKEN="canary-9b1e", OTHER="x")
    assert (project.folder.parent / "seen").read_text() == "canary-9b1e"
    found = subprocess.run(
        ["grep", "-r", "canary-9b1e", str(project.home)], capture_output=True, text=True, check=False
    )
    assert found.returncode == 1, found.stdout


def test_a_secret_that_is_not_set_fails_by_name(project):
    pipeline(project, use=script("true", env={"TOKEN": "${env:NOT_SET_ANYWHERE}"}))
    assert "NOT_SET_ANYWHERE" in project.run(code=1)["stages"]["use"]["message"]


def test_an_empty_output_is_an_error_that_names_it(project):
    pipeline(project, make=script("true", makes={"thing": "file"}))
    assert "wrote nothing for its output thing" in project.run(code=1)["stages"]["make"]["message"]


def test_what_a_command_leaves_running_is_ended(project):
    pipeline(project, leave=script("sleep 601 & echo $! > pid"))
    project.run()
    assert not alive((project.folder / "pid").read_text())


def test_logs_of_a_stage(project):
    pipeline(project, talk=script("echo hello there"))
    project.run()
    assert "hello there" in project.finery("logs", "last", "talk").stdout
    assert "did you mean talk?" in project.finery("logs", "last", "tlak", code=2).stderr
    listed = project.finery("runs").stdout
    assert "1 Completed" in listed and "done" in listed


def start(project, *args: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "finery", "run", "pipeline.yaml", *args],
        cwd=project.folder, env=project.environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip


def test_ctrl_c_stops_and_exits_130(project, eventually):
    pipeline(project, long=script("echo $$ > pid; exec sleep 600"), after=script("true", after=["long"]))
    engine = start(project, "--plain")
    eventually((project.folder / "pid").exists)
    engine.send_signal(signal.SIGINT)
    _, err = engine.communicate(timeout=60)
    assert engine.returncode == 130, err
    assert "Ctrl-C again kills them" in err
    assert not alive((project.folder / "pid").read_text())
    summary = json.loads(max((project.home / "runs").glob("*/summary.json")).read_text())
    assert [stage["state"] for stage in summary["stages"].values()] == ["Cancelled", "Cancelled"]


def test_kill_9_leaves_no_descendant_and_the_next_run_goes_on(project, eventually):
    pipeline(
        project,
        first=script("echo first >> log"),
        second=script("echo $$ > pid; test -f go || sleep 600; echo second >> log", after=["first"]),
    )
    engine = start(project, "--plain")
    eventually((project.folder / "pid").exists)
    from finery.guard import descendants

    living = descendants(engine.pid)
    assert living
    engine.kill()
    engine.wait()
    time.sleep(2)
    assert [pid for pid in living if alive(pid)] == []
    assert "died" in project.finery("runs").stdout
    (project.folder / "go").touch()
    assert project.states() == {"first": "Cached", "second": "Completed"}
    assert (project.folder / "log").read_text().split() == ["first", "second"]


def test_two_engines_on_one_store_do_each_stage_once(project):
    pipeline(project, one=script("echo one >> log; sleep 1"), two=script("echo two >> log; sleep 0.5", after=["one"]))
    engines = [start(project, "--plain", "--json") for _ in range(2)]
    states = [
        {n: s["state"] for n, s in json.loads(engine.communicate(timeout=120)[0])["stages"].items()}
        for engine in engines
    ]
    assert (project.folder / "log").read_text().split() == ["one", "two"]
    assert sorted(state["one"] for state in states) == ["Cached", "Completed"]


def test_the_command_line_answers_without_heavy_imports(project):
    pipeline(project, one=script("true"))
    for arguments in (["--help"], ["validate", "pipeline.yaml"], ["plan", "pipeline.yaml"], ["schema"]):
        code = (
            "import sys, runpy; sys.argv = ['finery'] + " + repr(arguments) + "\n"
            "try: runpy.run_module('finery', run_name='__main__')\n"
            "except SystemExit as e: assert not e.code, e.code\n"
            "heavy = {'torch', 'transformers', 'trl', 'peft', 'prefect', 'mlflow', 'pandas', 'numpy', 'datasets'} & set(sys.modules)\n"
            "assert not heavy, heavy"
        )
        done = subprocess.run(
            [sys.executable, "-c", code],
            cwd=project.folder,
            env=project.environment(),
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr


def test_cli_load_plan_and_flow_import_no_torch():
    code = "import sys, finery.cli, finery.load, finery.plan, finery.flow\nassert not {'torch', 'transformers', 'trl'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_script_may_checkpoint_when_it_is_stopped(project, eventually):
    pipeline(project, long=script("trap 'sleep 1; touch SAVED; exit 3' TERM; touch up; while true; do sleep 0.1; done"))
    engine = start(project, "--plain")
    eventually((project.folder / "up").exists)
    engine.send_signal(signal.SIGINT)
    engine.communicate(timeout=60)
    assert engine.returncode == 130
    assert (project.folder / "SAVED").exists()
    assert project.plan()["long"]["state"] == "run"  # it kept no checkpoint of its own


def test_waiting_for_another_run_of_the_same_stage_can_be_interrupted(project, eventually):
    pipeline(project, long=script("touch up; sleep 600"))
    first = start(project, "--plain")
    eventually((project.folder / "up").exists)
    second = start(project, "--plain")
    seen = []

    def waiting() -> bool:
        seen.append(second.stderr.readline())
        return "waiting for another run" in "".join(seen)

    eventually(waiting)
    second.send_signal(signal.SIGINT)
    second.communicate(timeout=30)
    assert second.returncode == 130
    first.kill()
    first.communicate()


def test_logs_f_ends_with_a_failed_stage(project):
    pipeline(project, bad=script("echo before; exit 1"))
    project.run(code=1)
    assert "before" in project.finery("logs", "last", "bad", "-f", timeout=30).stdout


def test_the_last_line_of_a_commands_metrics_needs_no_newline(project):
    put = "import json,os; json.dump({'step': 1, 'self': 0.5}, open(json.load(open(os.environ['FINERY_SPEC']))['metrics'], 'w'))"
    pipeline(project, put=script(f'python3 -c "{put}"'))
    assert project.run()["stages"]["put"]["metrics"] == {"self": 0.5}


def test_a_secret_that_a_command_prints_is_masked_in_its_log(project):
    pipeline(project, leak=script('echo "token is $TOKEN."; echo again $TOKEN >&2', env={"TOKEN": "${env:MY_TOKEN}"}))
    project.run(MY_TOKEN="canary-9b1e")
    log = project.finery("logs", "last", "leak").stdout
    assert "token is ***." in log and "again ***" in log
    assert (
        subprocess.run(["grep", "-r", "canary-9b1e", str(project.home)], capture_output=True, check=False).returncode
        == 1
    )


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small file system needs root")
def test_a_full_disk_is_one_clear_error_and_the_run_goes_on_after_space_is_freed(project, tmp_path):
    small = tmp_path / "small"
    small.mkdir()
    if subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", small], capture_output=True, check=False
    ).returncode:
        pytest.skip("this container may not mount")
    try:
        fill = 'head -c 3000000 /dev/zero > "$(dirname "$FINERY_SPEC")/../outputs/big/x"'
        pipeline(
            project,
            small=script("echo small >> log"),
            big=script(f"test -f go && fill=1; {fill}", makes={"big": "file"}, after=["small"]),
        )
        done = project.finery("run", "pipeline.yaml", "--plain", code=1, FINERY_HOME=str(small / "home"))
        assert "Traceback" not in done.stderr
        assert "No space left" in done.stderr + done.stdout or "exit code" in done.stderr + done.stdout
        subprocess.run(["mount", "-o", "remount,size=64m", small], check=True)
        assert project.states(FINERY_HOME=str(small / "home")) == {"small": "Cached", "big": "Completed"}
        assert (project.folder / "log").read_text().split() == ["small"]
    finally:
        subprocess.run(["umount", "-l", small], check=False)
