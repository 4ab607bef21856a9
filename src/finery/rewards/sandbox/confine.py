"""What binds judge and candidate on Linux: namespaces, Landlock, seccomp, capabilities, resource limits."""

from __future__ import annotations

import ctypes
import os
import platform
import resource
import shutil
import signal

from . import landlock
from .bpf import Filter

FILE_BYTES = 16 << 20
"""Bytes of one file that judged code writes."""
FOLDER_BYTES = 64 << 20
"""Bytes of all its files together, where its folder can be a file system of its own."""
FILES = 256
"""Open files."""
THREADS = 64
"""Threads, where the kernel counts them (not for root)."""

_NEW = {"mount": 0x20000, "uts": 0x4000000, "ipc": 0x8000000, "user": 0x10000000, "pid": 0x20000000, "net": 0x40000000}
_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_SET_NO_NEW_PRIVS = 1, 4, 38
_MS_REC_PRIVATE, _MS_NOSUID_NODEV = 0x4000 | 0x40000, 0x2 | 0x4


class Lacking(Exception):
    """The kernel or the container lacks what confinement needs; the text names it."""


def c_library() -> ctypes.CDLL:
    """This process's C library, with errno kept."""
    return ctypes.CDLL(None, use_errno=True)


class Confinement:
    """What every check of one zygote is bound by.

    Args:
        work: the folder in which judged code may write.
        full: whether to refuse where Landlock is missing.
        namespaces: what `enter` gave.
        landlocked: whether to use Landlock where it is there.

    Raises:
        Lacking: Landlock is missing, with `full` or when there are no namespaces either; or no filter for this machine.
    """

    def __init__(self, work: str, *, full: bool, namespaces: bool, landlocked: bool) -> None:
        self._libc = c_library()
        self._namespaces = namespaces
        self._base = _address_space()
        self._rules = self._landlock(work, full, landlocked)
        machine = platform.machine()
        try:
            self._filter = Filter(machine, writable=self._rules is not None)
        except KeyError:
            raise Lacking(f"a table of system calls for the machine {machine} (x86_64 and aarch64 have one)") from None
        in_force = "user, mount, network, pid, ipc and uts namespaces"
        self.in_force = ["seccomp", "resource limits", *([in_force] if namespaces else [])]
        self.missing = [] if namespaces else ["namespaces"]
        if self._rules is None:
            self.missing.append("Landlock: judged code can read what this user can, and write nothing")
        else:
            self.in_force.append(f"Landlock (ABI {landlock.abi(self._libc)})")

    def _landlock(self, work: str, full: bool, landlocked: bool) -> landlock.Rules | None:
        if landlocked and landlock.abi(self._libc):
            return landlock.Rules(self._libc, work)
        lacking = "Landlock, which keeps judged code from the user's files (Linux 5.13, `lsm=landlock,...`)"
        if not self._namespaces:  # then it could read the environment and the memory of the user's other processes
            raise Lacking(f"{lacking}, and user namespaces as well, one of which is needed in any case")
        if full:
            raise Lacking(lacking)
        return None

    def bind(self, *, memory: int, cpu: float) -> None:
        """Bind this process for good.

        Args:
            memory: bytes of address space beyond the interpreter's own.
            cpu: seconds of CPU time; the kernel kills a second later.

        Raises:
            OSError: the kernel refuses.
        """
        os.setsid()
        limits = {
            resource.RLIMIT_AS: self._base + memory,
            resource.RLIMIT_FSIZE: FILE_BYTES,
            resource.RLIMIT_NOFILE: FILES,
            resource.RLIMIT_CORE: 0,
            resource.RLIMIT_MEMLOCK: 0,
            resource.RLIMIT_MSGQUEUE: 0,
        }
        if self._namespaces:  # outside a user namespace the user's other processes would count
            limits[resource.RLIMIT_NPROC] = THREADS
        for kind, most in limits.items():
            hard = resource.getrlimit(kind)[1]
            most = most if hard == resource.RLIM_INFINITY else min(most, hard)
            resource.setrlimit(kind, (most, most))
        whole = int(cpu) + 1
        resource.setrlimit(resource.RLIMIT_CPU, (whole, whole + 1))
        self._control(_PR_SET_PDEATHSIG, signal.SIGKILL)
        self._control(_PR_SET_DUMPABLE, 0)
        self._control(_PR_SET_NO_NEW_PRIVS, 1)
        if self._rules is not None:
            self._rules.restrict()
        header, nothing = (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)()
        if self._libc.capset(header, nothing) != 0:
            raise OSError(ctypes.get_errno(), "capset")
        self._filter.install(self._libc, os.getpid())

    def prove(self, *, memory: int, cpu: float) -> None:
        """Bind a process for trial.

        Raises:
            Lacking: the kernel or the container refuses something, which the text names.
        """
        told, tells = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                self.bind(memory=memory, cpu=cpu)
            except (OSError, ValueError) as error:
                os.write(tells, str(error).encode())
            finally:
                os._exit(0)
        os.close(tells)
        with os.fdopen(told, "rb") as pipe:
            refused = pipe.read().decode()
        os.waitpid(child, 0)
        if refused:
            raise Lacking(f"what binds a process ({refused})")

    def _control(self, option: int, value: int) -> None:
        if self._libc.prctl(option, ctypes.c_ulong(value), 0, 0, 0) != 0:
            raise OSError(ctypes.get_errno(), f"prctl {option}")


def enter(work: str) -> bool:
    """Move this process into namespaces of its own, with a small file system on `work`, where the kernel lets it.

    The network namespace has no device, not even a loopback that is up. The next fork is pid 1 of the pid namespace:
    when it ends, the kernel kills all that is in it.

    Returns:
        whether it did; a process forked beforehand tries first, so that nothing is done by halves.
    """
    child = os.fork()
    if child == 0:
        try:
            _unshare(work)
        except OSError:
            os._exit(1)
        os._exit(0)
    if os.waitpid(child, 0)[1] != 0:
        return False
    _unshare(work)
    return True


def leave(work: str) -> None:
    """Remove the folder, and the file system on it if there is one, as far as it can be."""
    os.chdir("/")
    c_library().umount2(os.fsencode(work), 2)  # MNT_DETACH
    shutil.rmtree(work, ignore_errors=True)


def _unshare(work: str) -> None:
    libc = c_library()
    user, group = os.getuid(), os.getgid()
    if libc.unshare(sum(_NEW.values())) != 0:
        raise OSError(ctypes.get_errno(), "unshare")
    for name, text in (("setgroups", "deny"), ("uid_map", f"{user} {user} 1"), ("gid_map", f"{group} {group} 1")):
        with open(f"/proc/self/{name}", "w") as file:
            file.write(text)
    options = f"size={FOLDER_BYTES},nr_inodes=4096,mode=700".encode()
    for source, place, kind, flags, data in (
        (b"none", b"/", None, _MS_REC_PRIVATE, None),
        (b"tmpfs", os.fsencode(work), b"tmpfs", _MS_NOSUID_NODEV, options),
    ):
        if libc.mount(source, place, kind, ctypes.c_ulong(flags), data) != 0:
            raise OSError(ctypes.get_errno(), "mount")


def _address_space() -> int:
    """Bytes of address space that this process has."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[0]) * resource.getpagesize()
