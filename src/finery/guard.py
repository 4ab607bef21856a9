"""No process outlives the engine: a pipe that the engine holds, and what is done when it ends.

The engine keeps the write end of a pipe, close-on-exec, and each child gets the read end. However the engine ends,
also by `kill -9`, the kernel closes the write end and the reader sees end-of-file. Two kinds of child read it:

- a warden (the default): a tiny process of its own, `python guard.py -- COMMAND`, which runs COMMAND in a process
  group of its own, forwards signals to it and its exit code from it, and at end-of-file, or once COMMAND is done,
  kills all that descends from it. On Linux it is a child subreaper, so that also a descendant that made a session of
  its own is found.
- a program that calls `watch_parent()` at its start (`guarded_by_child=True`): a thread reads the pipe. It costs no
  process, but a C extension that holds the GIL delays it, and the children of a killed program are found only by
  their session.

This module is run as a file by the warden, so it imports the standard library only.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import resource
import selectors
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import IO, Any

GUARD_FD = "FINERY_GUARD_FD"
"""The environment variable that tells a child the number of the pipe's read end."""

LINUX = sys.platform == "linux"
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_FORWARDED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)

_held: set[int] = set()  # the write ends this process holds


def _drop_held() -> None:
    """A fork without exec must not hold the pipes open: the children would not see the engine's end."""
    for fd in _held:
        with contextlib.suppress(OSError):
            os.close(fd)
    _held.clear()


os.register_at_fork(after_in_child=_drop_held)


class Guarded(subprocess.Popen[bytes]):
    """A child that ends with this process. Keep a reference: dropping the last one ends the child too."""

    hold: weakref.finalize[..., Any]

    def poll(self) -> int | None:
        """As `Popen.poll`; what is left of an ended child's session is killed."""
        return self._ended(super().poll())

    def wait(self, timeout: float | None = None) -> int:
        """As `Popen.wait`; what is left of an ended child's session is killed."""
        code = self._ended(super().wait(timeout))
        assert code is not None
        return code

    def _ended(self, code: int | None) -> int | None:
        if code is not None and getattr(self, "hold", None) is not None and self.hold.alive:
            self.hold()
            kill_session(self.pid)
        return code


def spawn(
    argv: Sequence[str],
    *,
    env: Mapping[str, str] | None = None,
    cwd: str | os.PathLike[str] | None = None,
    stdout: int | IO[Any] | None = None,
    stderr: int | IO[Any] | None = None,
    guarded_by_child: bool = False,
) -> Guarded:
    """Start `argv` in a session of its own, with no standard input; it ends when this process does.

    Args:
        argv: the program and its arguments.
        env: its whole environment; this process's by default.
        guarded_by_child: the program calls `watch_parent()` itself; otherwise a warden is put around it.

    Raises:
        OSError: the program (with `guarded_by_child`) cannot be started. Under a warden that is exit code 127 or 126,
            as in a shell, with a line on stderr.
    """
    read, write = os.pipe()  # both close-on-exec: no other child of this process gets either
    _held.add(write)
    command = list(argv) if guarded_by_child else [sys.executable, "-I", "-S", str(Path(__file__)), "--", *argv]
    try:
        child = Guarded(
            command,
            env={**(os.environ if env is None else env), GUARD_FD: str(read)},
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=stderr,
            start_new_session=True,
            pass_fds=(read,),
        )
    except BaseException:
        _release(write)
        raise
    finally:
        os.close(read)
    child.hold = weakref.finalize(child, _release, write)
    return child


def _release(write: int) -> None:
    if write in _held:
        _held.discard(write)
        os.close(write)


def terminate(child: Guarded, grace: float) -> int:
    """End a child that `spawn` started: SIGTERM to its group, up to `grace` seconds, then SIGKILL to all that is left.

    Returns:
        Its exit code, negative for a signal, as `Popen.returncode`.
    """
    if child.poll() is None:
        _kill_group(child.pid, signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            return child.wait(grace)
        child.hold()  # end-of-file: a warden kills what descends from it, also what left its group
        with contextlib.suppress(subprocess.TimeoutExpired):
            return child.wait(2.0)
        kill_session(child.pid)
    return child.wait()


def watch_parent() -> None:
    """Called by a child at its start: a thread waits for the engine's end, then kills this process and its children.

    Does nothing when the process was not started by `spawn(..., guarded_by_child=True)`.
    """
    number = os.environ.pop(GUARD_FD, None)  # popped: a grandchild must not take it for its own
    if number is None:
        return
    fd = int(number)
    os.set_inheritable(fd, False)

    def watch() -> None:
        while os.read(fd, 1):
            pass
        own = os.getpid()
        kill_descendants(own, deadline=1.0)
        if os.getsid(0) == own:
            kill_session(own)
        os.kill(own, signal.SIGKILL)

    threading.Thread(target=watch, name="finery-guard", daemon=True).start()


def descendants(pid: int) -> list[int]:
    """The process ids of all living descendants of `pid`, zombies left out; empty where there is no /proc."""
    children: dict[int, list[int]] = {}
    for child, parent, _ in _processes():
        children.setdefault(parent, []).append(child)
    found: list[int] = []
    stack = [pid]
    while stack:
        new = children.get(stack.pop(), [])
        found += new
        stack += new
    return found


def kill_descendants(pid: int, deadline: float) -> None:
    """SIGKILL all descendants of `pid`, again and again until none is left or `deadline` seconds have passed."""
    end = time.monotonic() + deadline
    while (alive := descendants(pid)) and time.monotonic() < end:
        for each in alive:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(each, signal.SIGKILL)
        time.sleep(0.01)


def kill_session(session: int) -> None:
    """SIGKILL each process of the session of that number, its leader last; without /proc, the leader's group."""
    for pid, _, its_session in _processes():
        if its_session == session and pid != session:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
    _kill_group(session, signal.SIGKILL)


def _kill_group(group: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):  # macOS says EPERM for a group of zombies
        os.killpg(group, number)


def _processes() -> Iterator[tuple[int, int, int]]:
    """(process, parent, session) of each process that is no zombie, from /proc/PID/stat (proc(5))."""
    with contextlib.suppress(FileNotFoundError):
        for name in os.listdir("/proc"):
            if not name.isdigit():
                continue
            try:
                with open(f"/proc/{name}/stat", "rb") as file:
                    fields = file.read().rpartition(b")")[2].split()
            except OSError:  # it ended while we looked
                continue
            if fields and fields[0] not in (b"Z", b"X"):
                yield int(name), int(fields[1]), int(fields[3])


def _prctl(option: int, value: int) -> None:
    if LINUX and ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl")


class Warden:
    """Runs one command, forwards signals and the exit code, and leaves no descendant behind."""

    def __init__(self, guard: int) -> None:
        self.guard = guard
        self.wake_read, self.wake_write = os.pipe()
        for fd in (self.wake_read, self.wake_write):
            os.set_blocking(fd, False)

    def run(self, argv: Sequence[str]) -> int:
        """The exit code to end with, negative for a signal that ended the command."""
        _prctl(_PR_SET_CHILD_SUBREAPER, 1)
        for number in (signal.SIGCHLD, *_FORWARDED):
            signal.signal(number, _nothing)  # the wakeup fd tells which; a handler is reset in the command by exec
        signal.set_wakeup_fd(self.wake_write, warn_on_full_buffer=False)
        own = os.getpid()

        def in_command() -> None:
            _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)  # this process has one thread, whose end is its own
            if os.getppid() != own:
                os._exit(137)

        try:
            child = subprocess.Popen(argv, stdin=subprocess.DEVNULL, process_group=0, preexec_fn=in_command)
        except OSError as error:
            print(f"finery: {argv[0]}: {error.strerror}", file=sys.stderr)
            return 127 if error.errno == errno.ENOENT else 126
        code = self._until_end(child)
        _kill_group(child.pid, signal.SIGKILL)
        kill_descendants(own, deadline=5.0)
        return code

    def _until_end(self, child: subprocess.Popen[bytes]) -> int:
        with selectors.DefaultSelector() as selector:
            selector.register(self.guard, selectors.EVENT_READ)
            selector.register(self.wake_read, selectors.EVENT_READ)
            while (code := child.poll()) is None:
                for key, _ in selector.select():
                    if key.fd == self.guard:
                        if not os.read(self.guard, 1):
                            return -signal.SIGKILL
                        continue
                    for number in os.read(self.wake_read, 4096):
                        if number in _FORWARDED:
                            _kill_group(child.pid, number)
                self._reap(child.pid)
        return code

    @staticmethod
    def _reap(but: int) -> None:
        """Collect adopted orphans that have ended; the command itself is left to its Popen."""
        while LINUX and (ended := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)) and ended.si_pid != but:
            os.waitpid(ended.si_pid, os.WNOHANG)


def _nothing(number: int, frame: FrameType | None) -> None:
    """A handler that only interrupts: the signal's number is read from the wakeup fd."""


def main(arguments: Sequence[str]) -> int:
    """`guard.py -- COMMAND ...`, started by `spawn`."""
    number = os.environ.pop(GUARD_FD, None)
    if not arguments or arguments[0] != "--" or len(arguments) < 2 or number is None:
        print("finery.guard: started by finery only: guard.py -- COMMAND ...", file=sys.stderr)
        return 2
    code = Warden(int(number)).run(arguments[1:])
    if code < 0:  # end by the same signal, so that the engine sees what ended the command
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        if -code not in (signal.SIGKILL, signal.SIGSTOP):
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
