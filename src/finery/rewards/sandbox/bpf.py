"""The seccomp filter of judge and candidate: system calls by which a process reaches others, the network or the kernel.

One that starts a process, opens a socket, signals or inspects another process, changes users, mounts, namespaces or
resource limits of others fails with EPERM. A change of mode, owner or time of a file, which Landlock does not govern,
is not made, and success is reported, so that copying a file works.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Sequence

from .syscalls import AUDIT_ARCH, NUMBERS

_LOAD, _JUMP_EQUAL, _JUMP_FROM, _JUMP_SET, _RETURN, _AND = 0x20, 0x15, 0x35, 0x45, 0x06, 0x54
_ALLOW, _KILL, _ERRNO = 0x7FFF0000, 0x80000000, 0x00050000
_EPERM, _ENOSYS = 1, 38
_NR, _ARCH, _ARGS = 0, 4, 16
_X32 = 0x40000000
_PID = 0xFEEDF00D
"""Stands for the pid of the process that installs the filter; a real pid is below 2^22."""

_CLONE_THREAD, _AF_UNIX, _SOCK_STREAM = 0x10000, 1, 1
_OPEN_MODE, _OPEN_CHANGE, _O_TRUNC = 0x3, 0x3 | 0x40 | 0x200, 0x200
_FCNTL = (8, 10, 15, 1024)  # F_SETOWN, F_SETSIG, F_SETOWN_EX: signals to others; F_SETLEASE
_IOCTL = (0x8901, 0x8902, 0x5412, 0x541C, 0x40086602)  # FIOSETOWN, SIOCSPGRP, TIOCSTI, TIOCLINUX, FS_IOC_SETFLAGS
_PR_SET_PDEATHSIG = 1

ABSENT = ("clone3", "openat2", "io_uring_setup", "io_uring_enter", "io_uring_register")
"""Calls whose arguments a filter cannot read; the C library falls back to older ones on ENOSYS."""
_PRETENDED = """chmod fchmod fchmodat fchmodat2 chown fchown lchown fchownat utime utimes futimesat utimensat
setxattr lsetxattr fsetxattr setxattrat removexattr lremovexattr fremovexattr removexattrat
file_setattr"""
PRETENDED = _PRETENDED.split()
_WRITING = """truncate rename renameat renameat2 mkdir mkdirat rmdir creat link linkat unlink unlinkat symlink
symlinkat mknod mknodat"""
WRITING = _WRITING.split()
"""Calls that change the file system by path; refused only where Landlock cannot say where they may."""

_Instruction = tuple[int, int, int, int]


def _refuse(errno: int) -> _Instruction:
    return (_RETURN, 0, 0, _ERRNO | errno)


def _argument(index: int) -> _Instruction:
    return (_LOAD, 0, 0, _ARGS + 8 * index)


_OK: _Instruction = (_RETURN, 0, 0, _ALLOW)


def _only(index: int, values: Sequence[int]) -> list[_Instruction]:
    """Allowed when the argument is one of the values."""
    return [_argument(index), *((_JUMP_EQUAL, len(values) - n, 0, v) for n, v in enumerate(values)), _refuse(_EPERM)]


def _except(index: int, values: Sequence[int]) -> list[_Instruction]:
    """Allowed unless the argument is one of the values."""
    return [
        _argument(index),
        *((_JUMP_EQUAL, len(values) - n, 0, v) for n, v in enumerate(values)),
        _OK,
        _refuse(_EPERM),
    ]


def _opening(index: int, writable: bool) -> list[_Instruction]:
    """Never to cut a file that is opened for reading (Landlock before ABI 3 lets it), or never to change any."""
    if not writable:
        return [_argument(index), (_JUMP_SET, 0, 1, _OPEN_CHANGE), _refuse(_EPERM), _OK]
    return [
        _argument(index),
        (_JUMP_SET, 0, 3, _O_TRUNC),
        (_AND, 0, 0, _OPEN_MODE),
        (_JUMP_EQUAL, 0, 1, 0),
        _refuse(_EPERM),
        _OK,
    ]


def _conditional(writable: bool) -> dict[str, list[_Instruction]]:
    pair = [
        _argument(0),
        (_JUMP_EQUAL, 0, 3, _AF_UNIX),
        _argument(1),
        (_AND, 0, 0, 0xF),
        (_JUMP_EQUAL, 1, 0, _SOCK_STREAM),
        _refuse(_EPERM),
        _OK,
    ]
    return {
        "clone": [_argument(0), (_JUMP_SET, 1, 0, _CLONE_THREAD), _refuse(_EPERM), _OK],
        "socketpair": pair,
        "kill": [*_only(0, [_PID]), _OK],
        "tgkill": [*_only(0, [_PID]), _OK],
        "prlimit64": [*_only(0, [0, _PID]), _OK],
        "fcntl": _except(1, _FCNTL),
        "ioctl": _except(1, _IOCTL),
        "prctl": _except(0, [_PR_SET_PDEATHSIG]),
        "open": _opening(1, writable),
        "openat": _opening(2, writable),
    }


class Filter:
    """The filter for this machine, made once and installed by each process with its own pid.

    Args:
        machine: `platform.machine()`.
        writable: whether Landlock says where files may be written; without it nothing may be.

    Raises:
        KeyError: no table for this machine.
    """

    def __init__(self, machine: str, *, writable: bool) -> None:
        numbers = NUMBERS[machine]
        program: list[_Instruction] = [
            (_LOAD, 0, 0, _ARCH),
            (_JUMP_EQUAL, 1, 0, AUDIT_ARCH[machine]),
            (_RETURN, 0, 0, _KILL),
            (_LOAD, 0, 0, _NR),
            (_JUMP_FROM, 0, 1, _X32),
            _refuse(_ENOSYS),
        ]
        conditional = _conditional(writable)
        for name, number in numbers.items():
            if name in conditional:
                body = conditional[name]
            elif name in PRETENDED and writable:
                body = [_refuse(0)]
            elif name in WRITING and writable and name != "truncate":
                continue
            else:
                body = [_refuse(_ENOSYS if name in ABSENT else _EPERM)]
            program += [(_JUMP_EQUAL, 0, len(body), number), *body]
        program.append(_OK)
        self._code = bytearray(b"".join(struct.pack("=HBBI", *instruction) for instruction in program))
        self._count = len(program)
        self._places = [n * 8 + 4 for n, (code, _, _, k) in enumerate(program) if code == _JUMP_EQUAL and k == _PID]

    def install(self, libc: ctypes.CDLL, pid: int) -> None:
        """Bind this process, its threads to come, and nothing else can lift it; needs PR_SET_NO_NEW_PRIVS.

        Raises:
            OSError: the kernel refuses.
        """
        for place in self._places:
            struct.pack_into("=I", self._code, place, pid)
        buffer = (ctypes.c_char * len(self._code)).from_buffer(self._code)
        description = struct.pack("HxxxxxxP", self._count, ctypes.addressof(buffer))
        if libc.prctl(22, 2, description, 0, 0) != 0:  # PR_SET_SECCOMP, SECCOMP_MODE_FILTER
            error = ctypes.get_errno()
            raise OSError(error, "seccomp")
