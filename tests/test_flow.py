"""Prefect: a real server, real flow runs, real processes as stages."""

from __future__ import annotations

import contextlib
import http.server
import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from finery import guard
from finery.errors import InputError
from finery.flow import run_flow, run_plain
from finery.outcome import AttemptFailed
from finery.servers import PrefectServer, ServerError

CASES = Path(__file__).parent / "cases"
GOOD = ("Completed", "Cached", "Skipped")
BY_CODE = {0: "Completed", 10: "Cached", 11: "Skipped", 12: "Refused"}


@dataclass(frozen=True)
class Outcome:
    state: str
    message: str = ""


@dataclass
class Line:
    """A small execution: each stage is a shell command; its exit code says how it ended (BY_CODE, else it failed)."""

    commands: dict[str, str]
    edges: dict[str, list[str]]
    cwd: Path
    repeats: dict[str, int] = field(default_factory=dict)
    delay: float = 0.1
    labels: list[str] = field(default_factory=list)
    name: str = "a_line"
    run_id: str = field(default_factory=lambda: f"run{time.time_ns()}")

    def __post_init__(self) -> None:
        self.order = list(self.commands)
        self.outcomes: dict[str, Outcome] = {}
        self.attempts: list[tuple[str, int]] = []
        self._lock = threading.Lock()
        self._begun: dict[tuple[str, int], threading.Event] = {}
        self._failed: dict[tuple[str, int], AttemptFailed] = {}
        self._stop: str | None = None

    def retries(self, stage: str) -> int:
        return self.repeats.get(stage, 0)

    def retry_delay(self, stage: str) -> float:
        return self.delay

    def tags(self, stage: str) -> list[str]:
        return self.labels

    def outcome(self, stage: str) -> Outcome | None:
        return self.outcomes.get(stage)

    def interrupt(self, force: bool) -> None:
        self._stop = "kill" if force else "checkpoint"

    def attempt(self, stage: str, attempt: int) -> Outcome:
        with self._lock:
            if stage in self.outcomes:
                return self.outcomes[stage]
            slot = (stage, attempt)
            mine = slot not in self._begun
            ended = self._begun.setdefault(slot, threading.Event())
        if not mine:
            ended.wait()
        else:
            try:
                self.outcomes[stage] = self._run(stage, attempt)
            except AttemptFailed as error:
                self._failed[slot] = error
            finally:
                ended.set()
        if slot in self._failed:
            raise self._failed[slot]
        return self.outcomes[stage]

    def _run(self, stage: str, attempt: int) -> Outcome:
        if self._stop:
            return Outcome("Cancelled", "stopped")
        if bad := [need for need in self.edges[stage] if self.outcomes[need].state not in GOOD]:
            return Outcome("Blocked", f"behind {', '.join(bad)}")
        self.attempts.append((stage, attempt))
        if self.commands[stage] == "a bug":
            raise ZeroDivisionError("a bug")
        quiet = subprocess.DEVNULL
        child = guard.spawn(["bash", "-c", self.commands[stage]], cwd=self.cwd, stdout=quiet, stderr=quiet)
        asked = False
        while child.poll() is None:
            if self._stop == "kill":
                guard.terminate(child, grace=0.0)
            elif self._stop and not asked:
                asked = True
                os.kill(child.pid, signal.SIGTERM)
            time.sleep(0.02)
        if self._stop:
            return Outcome("Cancelled", "stopped")
        if child.returncode in BY_CODE:
            return Outcome(BY_CODE[child.returncode], f"{stage} is {BY_CODE[child.returncode]}")
        if attempt <= self.retries(stage):
            raise AttemptFailed(f"{stage}: exit code {child.returncode}")
        return Outcome("Failed", f"exit code {child.returncode}")


def chain(commands: dict[str, str], cwd: Path, **more: Any) -> Line:
    """A line whose stages each need the one before."""
    names = list(commands)
    return Line(commands, {n: names[max(0, i - 1) : i] for i, n in enumerate(names)}, cwd, **more)


def states(outcomes: dict[str, Any]) -> dict[str, str]:
    return {stage: outcome.state for stage, outcome in outcomes.items()}


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Prefect's migrated database is kept between servers, but not in the home of whoever runs the tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        for name in [name for name in os.environ if name.startswith("PREFECT")]:
            patch.delenv(name)
        yield


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, cache: None) -> Iterator[PrefectServer]:
    with PrefectServer(tmp_path_factory.mktemp("project") / ".finery") as started:
        started.ready()
        yield started


@contextlib.contextmanager
def client_of(server: PrefectServer) -> Iterator[Any]:
    """Prefect's own client, to look at what its server knows."""
    from prefect import settings
    from prefect.client.orchestration import get_client

    wanted = {getattr(settings, name): value for name, value in server.client_settings().items()}
    with settings.temporary_settings(wanted), get_client(sync_client=True) as client:
        yield client


@dataclass
class Seen:
    flow: Any
    tasks: dict[str, Any]

    def shown(self) -> dict[str, tuple[str, str]]:
        return {name: (run.state.type.value, run.state.name) for name, run in self.tasks.items()}


def look(server: PrefectServer, line: Line) -> Seen:
    from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterName

    with client_of(server) as client:
        chosen = FlowRunFilter(name=FlowRunFilterName(any_=[f"{line.name}-{line.run_id}"]))
        (flow,) = client.read_flow_runs(flow_run_filter=chosen)
        tasks = client.read_task_runs(flow_run_filter=chosen)
    return Seen(flow, {run.name: run for run in tasks})


# what needs no server


def test_importing_the_flow_does_not_import_prefect():
    code = "import sys, finery.flow, finery.servers; print([m for m in sys.modules if m.startswith('prefect')])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "[]\n"


def test_plain_runs_branches_side_by_side_and_retries(tmp_path: Path):
    meet = "touch {0}; for i in $(seq 600); do test -e {1} && exit 0; sleep 0.1; done; exit 1"
    line = Line(
        {
            "a": "exit 0",
            "b": meet.format("b", "c"),
            "c": meet.format("c", "b"),
            "d": "test -e d || { touch d; exit 1; }",
        },
        {"a": [], "b": ["a"], "c": ["a"], "d": ["b", "c"]},
        tmp_path,
        repeats={"d": 2},
    )
    assert states(run_plain(line)) == dict.fromkeys("abcd", "Completed")
    assert line.attempts.count(("d", 1)) == line.attempts.count(("d", 2)) == 1


def test_plain_runs_an_independent_branch_to_its_end_when_another_fails(tmp_path: Path):
    line = Line({"a": "exit 1", "b": "exit 0", "c": "exit 0"}, {"a": [], "b": ["a"], "c": []}, tmp_path)
    assert states(run_plain(line)) == {"a": "Failed", "b": "Blocked", "c": "Completed"}


def test_an_error_that_is_no_failed_attempt_stops_the_rest_and_is_raised(tmp_path: Path):
    line = Line({"a": "a bug", "b": "sleep 600"}, {"a": [], "b": []}, tmp_path)
    with pytest.raises(ZeroDivisionError):
        run_plain(line)
    assert line.outcomes["b"].state == "Cancelled"


# Ctrl-C

ENGINE = """
import sys
sys.path.insert(0, {tests!r})
from pathlib import Path
import test_flow as t
line = t.chain({commands!r}, Path({cwd!r}), **{more!r})
if {plain}:
    print(t.states(t.run_plain(line)))
else:
    with t.PrefectServer(Path({cwd!r}) / ".finery") as server:
        print(t.states(t.run_flow(line, server)))
"""


class Engine(subprocess.Popen[str]):
    """A process that runs a line, as `finery run` does."""

    def __init__(self, commands: dict[str, str], cwd: Path, plain: bool = False, home: Path | None = None, **more: Any):
        tests = str(Path(__file__).parent)
        code = ENGINE.format(commands=commands, cwd=str(cwd), plain=plain, tests=tests, more=more)
        env = {**os.environ, **({"HOME": str(home)} if home else {})}
        pipe = subprocess.PIPE
        super().__init__([sys.executable, "-c", code], stdout=pipe, stderr=pipe, text=True, env=env)
        self.cwd = cwd

    def begun(self) -> bool:
        """Its flow run is under way."""
        return any((self.cwd / ".finery" / "prefect" / "live").glob("[!.]*"))

    def server(self) -> int:
        """The process id of its Prefect server."""
        (pid,) = [
            p
            for p in guard.descendants(self.pid)
            if b"uvicorn" in command_line(p) and b"guard.py" not in command_line(p)
        ]
        return pid


def command_line(pid: int) -> bytes:
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    return b""


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Callable[..., Engine]]:
    """Starts an Engine in `tmp_path`."""
    started: list[Engine] = []

    def start(commands: dict[str, str], **more: Any) -> Engine:
        started.append(Engine(commands, tmp_path, **more))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.communicate()


def wait_for(condition: Callable[[], Any], seconds: float = 120.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.05)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_one_interrupt_lets_a_stage_checkpoint(engine: Callable[..., Engine], tmp_path: Path, number: int):
    process = engine(
        {"a": "trap 'touch kept; exit 0' TERM; touch up; while :; do sleep 0.05; done", "b": "touch no"}, plain=True
    )
    wait_for((tmp_path / "up").exists)
    process.send_signal(number)
    out, err = process.communicate(timeout=60)
    assert out == "{'a': 'Cancelled', 'b': 'Cancelled'}\n"
    assert err == "stopping: stages checkpoint first; Ctrl-C again kills them\n"
    assert (tmp_path / "kept").exists()
    assert not (tmp_path / "no").exists()


def test_a_second_interrupt_kills_a_stage_that_does_not_stop(engine: Callable[..., Engine], tmp_path: Path):
    process = engine(
        {"a": "trap 'touch heard' TERM; touch up; while :; do sleep 0.05; done", "b": "touch no"}, plain=True
    )
    wait_for((tmp_path / "up").exists)
    children = guard.descendants(process.pid)
    process.send_signal(signal.SIGINT)
    wait_for((tmp_path / "heard").exists)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert out == "{'a': 'Cancelled', 'b': 'Cancelled'}\n"
    assert err.endswith("killing the running stages\n")
    wait_for(lambda: not set(children) & {pid for pid, *_ in guard._processes()})


def test_an_interrupt_ends_the_wait_for_a_retry(engine: Callable[..., Engine], tmp_path: Path):
    process = engine({"a": "touch up; exit 1"}, plain=True, repeats={"a": 1}, delay=3600)
    wait_for((tmp_path / "up").exists)
    time.sleep(1)  # the attempt has failed by now, and the hour's wait begun
    process.send_signal(signal.SIGINT)
    assert process.communicate(timeout=60)[0] == "{'a': 'Cancelled'}\n"


# the user's own server


@contextlib.contextmanager
def answering(code: int, body: bytes) -> Iterator[str]:
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(code)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *arguments: Any) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as listener:
        threading.Thread(target=listener.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{listener.server_port}"
        listener.shutdown()


def test_an_address_where_nobody_answers_is_refused_with_the_remedy(tmp_path: Path):
    given = PrefectServer(tmp_path, {"PREFECT_API_URL": "http://127.0.0.1:9/api"})
    with pytest.raises(InputError, match=r"PREFECT_API_URL=http://127.0.0.1:9/api: no Prefect server .*unset it"):
        given.start()


def test_an_address_without_api_is_answered_with_the_right_one(tmp_path: Path):
    with answering(200, b"<html>") as url, pytest.raises(InputError, match=f"did you mean {url}/api"):
        PrefectServer(tmp_path, {"PREFECT_API_URL": url}).start()


def test_a_refused_login_names_the_setting(tmp_path: Path):
    with answering(401, b"{}") as url, pytest.raises(InputError, match="PREFECT_API_AUTH_STRING"):
        PrefectServer(tmp_path, {"PREFECT_API_URL": f"{url}/api", "PREFECT_API_AUTH_STRING": "a:b"}).start()


# through a real server


@pytest.mark.slow
def test_every_state_name_and_edge_is_shown(server: PrefectServer, tmp_path: Path):
    line = Line(
        {"old": "exit 10", "closed": "exit 11", "new": "exit 0", "bad": "exit 1", "behind": "exit 0", "no": "exit 12"},
        {"old": [], "closed": ["old"], "new": ["closed", "old"], "bad": ["new"], "behind": ["bad"], "no": ["new"]},
        tmp_path,
        labels=["some-tag"],
    )
    outcomes = run_flow(line, server, summary=lambda ended: f"| {len(ended)} stages |\n|---|\n")
    expected = {
        "old": "Cached",
        "closed": "Skipped",
        "new": "Completed",
        "bad": "Failed",
        "behind": "Blocked",
        "no": "Refused",
    }
    assert states(outcomes) == expected
    seen = look(server, line)
    assert seen.shown() == {
        stage: ("COMPLETED" if state in GOOD else "FAILED", state) for stage, state in expected.items()
    }
    assert seen.tasks["behind"].state.message == "behind bad"
    assert {stage: set(run.tags) for stage, run in seen.tasks.items()} == {stage: {"some-tag"} for stage in expected}
    names = {run.id: name for name, run in seen.tasks.items()}
    edges = {
        name: sorted(names[e.id] for e in run.task_inputs["wait_for"])
        for name, run in seen.tasks.items()
        if "wait_for" in run.task_inputs
    }
    assert edges == {name: sorted(needs) for name, needs in line.edges.items() if needs}
    assert (seen.flow.state.type.value, seen.flow.state.name) == ("FAILED", "Failed")
    assert seen.flow.state.message == "bad: exit code 1"
    assert seen.flow.parameters == {"pipeline": "a_line", "run": line.run_id}
    with client_of(server) as client:
        (artifact,) = [a for a in client.read_artifacts() if a.flow_run_id == seen.flow.id]
    assert (artifact.key, artifact.data) == ("finery-a-line", "| 6 stages |\n|---|\n")


@pytest.mark.slow
def test_case_O8_a_retry_repeats_the_failed_stage_only(server: PrefectServer, tmp_path: Path):
    case = YAML(typ="safe").load((CASES / "O8.yaml").read_text())["stages"]
    line = Line(
        {stage["name"]: stage["run"] for stage in case},
        {stage["name"]: stage.get("needs", []) for stage in case},
        tmp_path,
        repeats={stage["name"]: stage.get("retries", 0) for stage in case},
    )
    assert states(run_flow(line, server)) == {"prepare": "Completed", "train": "Completed"}
    assert (tmp_path / "O8.log").read_text().split() == ["prepare", "train", "train"]
    seen = look(server, line)
    assert seen.flow.state.name == "Completed"
    assert {name: run.run_count for name, run in seen.tasks.items()} == {"prepare": 1, "train": 2}
    assert seen.shown() == dict.fromkeys(seen.tasks, ("COMPLETED", "Completed"))


@pytest.mark.slow
def test_retries_end_and_a_final_failure_is_not_repeated(server: PrefectServer, tmp_path: Path):
    line = Line({"a": "exit 1", "b": "exit 12"}, {"a": [], "b": []}, tmp_path, repeats={"a": 2, "b": 2})
    assert states(run_flow(line, server)) == {"a": "Failed", "b": "Refused"}
    assert sorted(line.attempts) == [("a", 1), ("a", 2), ("a", 3), ("b", 1)]
    assert {name: run.run_count for name, run in look(server, line).tasks.items()} == {"a": 3, "b": 1}


@pytest.mark.slow
def test_branches_overlap(server: PrefectServer, tmp_path: Path):
    meet = "touch {0}; for i in $(seq 600); do test -e {1} && exit 0; sleep 0.1; done; exit 1"
    line = Line({"b": meet.format("b", "c"), "c": meet.format("c", "b")}, {"b": [], "c": []}, tmp_path)
    assert states(run_flow(line, server)) == {"b": "Completed", "c": "Completed"}


@pytest.mark.slow
def test_an_attempt_begun_before_prefect_is_joined_not_repeated(server: PrefectServer, tmp_path: Path):
    line = chain({"a": "echo a >> log; sleep 1; test -e once || { touch once; exit 1; }"}, tmp_path, repeats={"a": 1})

    def ahead() -> None:
        with contextlib.suppress(AttemptFailed):
            line.attempt("a", 1)

    early = threading.Thread(target=ahead)
    early.start()
    assert states(run_flow(line, server)) == {"a": "Completed"}
    early.join()
    assert (tmp_path / "log").read_text() == "a\na\n"


@pytest.mark.slow
def test_an_error_of_the_engine_is_raised_through_prefect(server: PrefectServer, tmp_path: Path):
    said: list[str] = []
    line = Line({"a": "a bug", "b": "sleep 600"}, {"a": [], "b": []}, tmp_path, repeats={"a": 3})
    with pytest.raises(ZeroDivisionError):
        run_flow(line, server, tell=said.append)
    assert line.attempts.count(("a", 1)) == 1
    assert not said


@pytest.mark.slow
def test_a_server_of_the_users_is_used(server: PrefectServer, tmp_path: Path):
    environ = {"PREFECT_API_URL": server.api_url, "PREFECT_API_AUTH_STRING": str(server.login)}
    line = chain({"a": "exit 0", "b": "exit 10"}, tmp_path)
    with PrefectServer(tmp_path / ".finery", environ) as given:
        assert not given.own
        assert states(run_flow(line, given)) == {"a": "Completed", "b": "Cached"}
    assert look(server, line).shown() == {"a": ("COMPLETED", "Completed"), "b": ("COMPLETED", "Cached")}
    assert server.failure() is None


@pytest.mark.slow
def test_an_empty_migrated_database_is_kept_for_the_next_project(server: PrefectServer):
    (kept,) = Path(os.environ["XDG_CACHE_HOME"], "finery").iterdir()
    assert kept.name == f"prefect-{version('prefect')}.db"
    with contextlib.closing(sqlite3.connect(kept)) as connection:
        assert connection.execute("SELECT count(*) FROM alembic_version").fetchone() == (1,)
        assert connection.execute("SELECT count(*) FROM flow_run").fetchone() == (0,)


@pytest.mark.slow
def test_nobody_without_the_login_and_no_foreign_page_is_let_in(server: PrefectServer):
    def status(request: urllib.request.Request) -> int:
        try:
            with urllib.request.urlopen(request, timeout=30) as response:
                return int(response.status)
        except urllib.error.HTTPError as error:
            return error.code

    url = f"{server.api_url}/flow_runs/filter"
    assert status(urllib.request.Request(url, data=b"{}", headers={"Content-Type": "application/json"})) == 401
    assert status(urllib.request.Request(url, data=b"{}", headers={"Content-Type": "text/plain"})) == 401
    asked = {"Origin": "https://evil.example", "Access-Control-Request-Method": "POST"}
    assert status(urllib.request.Request(url, headers=asked, method="OPTIONS")) == 400
    asked["Origin"] = server.ui_url
    assert status(urllib.request.Request(url, headers=asked, method="OPTIONS")) == 200
    with urllib.request.urlopen(server.ui_url, timeout=30) as page:
        assert b"<html" in page.read().lower()


@pytest.mark.slow
def test_the_line_ends_when_the_server_dies_in_the_middle(engine: Callable[..., Engine], tmp_path: Path):
    wait = "touch up; while ! test -e on; do sleep 0.05; done"
    process = engine({"a": f"echo a >> log; {wait}", "b": "echo b >> log"}, labels=["a-tag"])
    wait_for(lambda: (tmp_path / "up").exists() and process.begun())
    os.kill(process.server(), signal.SIGKILL)
    (tmp_path / "on").touch()
    out, err = process.communicate(timeout=120)
    assert out == "{'a': 'Completed', 'b': 'Completed'}\n"
    assert (tmp_path / "log").read_text() == "a\nb\n"
    log = tmp_path / ".finery" / "prefect" / "server.log"
    assert err == (
        "warning: Prefect lost track of this run: Prefect's server ended (signal 9); "
        f"its log is {log}. The run goes on without it\n"
    )


@pytest.mark.slow
def test_a_server_that_does_not_start_is_told_and_the_line_runs(tmp_path: Path):
    said: list[str] = []
    line = chain({"a": "exit 0"}, tmp_path)
    (tmp_path / ".finery" / "prefect" / "prefect.db").mkdir(parents=True)
    with PrefectServer(tmp_path / ".finery") as broken:
        with pytest.raises(ServerError, match="does not start"):
            broken.ready()
        assert states(run_flow(line, broken, tell=said.append)) == {"a": "Completed"}
    assert "server.log" in said[0]


def states_in_database(project: Path) -> dict[str, str]:
    """Task run -> its state, as Prefect's database has it."""
    database = project / ".finery" / "prefect" / "prefect.db"
    with contextlib.closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True)) as connection:
        return dict(connection.execute("SELECT name, state_name FROM task_run"))


@pytest.mark.slow
def test_two_engines_share_a_project_and_the_first_may_end(engine: Callable[..., Engine], tmp_path: Path):
    """Each has a server of its own on the one database; the second goes on when the first has gone."""
    first = engine({f"a{n}": "sleep 0.1" for n in range(4)}, name="first")
    wait = "touch up; while ! test -e on; do sleep 0.05; done"
    second = engine({"b0": wait, **{f"b{n}": "sleep 0.1" for n in range(1, 4)}}, name="second")
    wait_for(lambda: (tmp_path / "up").exists() and second.begun())
    assert first.wait(timeout=120) == 0
    (tmp_path / "on").touch()
    assert second.wait(timeout=120) == 0
    for name, process in (("a", first), ("b", second)):
        assert process.communicate() == (f"{ {f'{name}{n}': 'Completed' for n in range(4)} }\n", "")
    assert states_in_database(tmp_path) == {f"{name}{n}": "Completed" for name in "ab" for n in range(4)}
    assert "locked" not in (tmp_path / ".finery" / "prefect" / "server.log").read_text()


@pytest.mark.slow
def test_an_interrupted_flow_leaves_nothing_running_and_a_quiet_terminal(engine: Callable[..., Engine], tmp_path: Path):
    home = tmp_path / "home"
    home.mkdir()
    process = engine({"a": "touch up; sleep 600", "b": "touch no"}, home=home)
    wait_for(lambda: (tmp_path / "up").exists() and process.begun())
    children = guard.descendants(process.pid)
    assert len(children) >= 4  # two wardens, the server, the stage
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=120)
    assert out == "{'a': 'Cancelled', 'b': 'Cancelled'}\n"
    assert err == "stopping: stages checkpoint first; Ctrl-C again kills them\n"
    wait_for(lambda: not set(children) & {pid for pid, *_ in guard._processes()})
    assert not (home / ".prefect").exists()
    assert states_in_database(tmp_path) == {"a": "Cancelled", "b": "Cancelled"}


@pytest.mark.slow
def test_kill_9_leaves_no_process_and_the_next_run_marks_it_crashed(engine: Callable[..., Engine], tmp_path: Path):
    process = engine({"a": "touch up; sleep 600", "b": "touch no"})
    wait_for(process.begun)
    wait_for(lambda: states_in_database(tmp_path).get("a") == "Running")
    wait_for((tmp_path / "up").exists)
    children = guard.descendants(process.pid)
    process.kill()
    wait_for(lambda: not set(children) & {pid for pid, *_ in guard._processes()})
    line = chain({"c": "exit 0"}, tmp_path)
    with PrefectServer(tmp_path / ".finery") as again:
        run_flow(line, again)
        with client_of(again) as client:
            flows = sorted(run.state.name for run in client.read_flow_runs())
            runs = {run.name: run.state.name for run in client.read_task_runs()}
    assert flows == ["Completed", "Crashed"]
    assert runs.pop("a") == "Crashed"
    assert runs.pop("c") == "Completed"
    assert list(runs.values()) == ["Crashed"]  # b, which had no name yet
