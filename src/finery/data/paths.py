"""What stands at a path that is neither a file nor a folder."""

from __future__ import annotations

import errno
import os
import stat

_KINDS = (
    (stat.S_ISFIFO, "is a pipe (FIFO), which can be read but once; write it to a file"),
    (stat.S_ISSOCK, "is a socket, no file"),
    (stat.S_ISCHR, "is a device, no file"),
    (stat.S_ISBLK, "is a device, no file"),
)


def strange(path: str | os.PathLike[str]) -> str | None:
    """Why a path that is there can be neither read as a file nor as a folder, or None."""
    try:
        mode = os.stat(path).st_mode
    except ValueError:
        return "holds NUL, which no path can"
    except OSError as error:
        if error.errno == errno.ELOOP:
            return "is a symbolic link that leads back to itself"
        if error.errno == errno.ENOENT and os.path.islink(path):
            return f"is a symbolic link to {os.readlink(path)}, which is not there"
        return f"cannot be read: {error.strerror}" if error.errno == errno.EACCES else None
    return next((words for is_kind, words in _KINDS if is_kind(mode)), None)
