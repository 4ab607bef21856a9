"""A file as a stream of bytes and of text: hashed while it is read, decompressed, decoded, a piece at a time."""

from __future__ import annotations

import bz2
import codecs
import gzip
import hashlib
import io
import lzma
import zlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import IO, Any, cast

from finery.errors import InputError
from finery.schemas.data import text_codec

PIECE = 1 << 19
"""Bytes read at a time."""
PACKED: dict[str, Callable[..., Any]] = {".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open}
"""Suffix to what decompresses an open file."""
_MARK = "\ufeff"


class Hashed(io.RawIOBase):
    """A file that is read once from its beginning to its end, and its sha256 and size as far as it was read."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._file = path.open("rb", buffering=0)
        self._hash = hashlib.sha256()
        self.size = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        count = cast("int | None", self._file.readinto(buffer)) or 0
        self._hash.update(memoryview(buffer)[:count])
        self.size += count
        return count

    def drain(self) -> None:
        """Read what is left."""
        while self.read(PIECE):
            pass

    def close(self) -> None:
        self._file.close()
        super().close()

    @property
    def sha256(self) -> str:
        return self._hash.hexdigest()


def pieces(file: Hashed, path: Path, name: str) -> Iterator[bytes]:
    """The bytes of a file, decompressed if its suffix says so.

    Raises:
        InputError: it cannot be decompressed.
    """
    unpack = PACKED.get(path.suffix.lower())
    if unpack is None:
        while piece := file.read(PIECE):
            yield piece
        return
    try:
        with unpack(io.BufferedReader(file, PIECE)) as unpacked:
            while piece := unpacked.read(PIECE):
                yield piece
            file.drain()
    except (OSError, EOFError, zlib.error, lzma.LZMAError) as error:
        raise InputError(f"{name}: cannot be decompressed: {error}") from error


def unpack_to(file: Hashed, path: Path, name: str, target: IO[bytes]) -> None:
    """Write a file's decompressed bytes to `target`."""
    for piece in pieces(file, path, name):
        target.write(piece)


def decoded(stream: Iterable[bytes], encoding: str, name: str, where: str) -> Iterator[str]:
    """The text of a stream of bytes, without a byte order mark.

    Raises:
        InputError: with the file, the byte offset (in the decompressed data) and the option that mends it.
    """
    decoder = codecs.getincrementaldecoder(codec_of(encoding, where))()
    fed, begun = 0, False
    for piece, last in _marked(stream):
        try:
            text = decoder.decode(piece, last)
        except UnicodeDecodeError as error:
            # what the decoder held back of the pieces before stands first in error.object
            offset = fed + len(piece) - len(error.object) + error.start
            raise InputError(
                f"{name}: byte offset {offset} (0x{error.object[error.start]:02x}) is not {encoding}; "
                f"say what the file is encoded in with `encoding:` in {where}, for example `encoding: gbk`"
            ) from None
        except UnicodeError as error:  # utf-16 and utf-32 without the mark that says which of two they are
            raise InputError(
                f"{name}: is not {encoding}: {error}; say what the file is encoded in with `encoding:` in {where}, "
                "for example `encoding: utf-16-le`"
            ) from None
        fed += len(piece)
        if text:
            yield text if begun else text.removeprefix(_MARK)
            begun = True


def codec_of(encoding: str, where: str) -> str:
    """The codec of an encoding's name.

    Raises:
        InputError: there is no such encoding of text.
    """
    name = text_codec(encoding)
    if name is None:
        raise InputError(f"{where}.encoding: {encoding!r} is not an encoding of files; write for example utf-8, gbk")
    # utf-8-sig would give offsets that do not count the mark
    return "utf-8" if name == "utf-8-sig" else name


def _marked(stream: Iterable[bytes]) -> Iterator[tuple[bytes, bool]]:
    for piece in stream:
        yield piece, False
    yield b"", True


def lines(text: Iterable[str]) -> Iterator[str]:
    """Lines that end at `\\n` only, without it: U+2028 and the like stay inside theirs."""
    held: list[str] = []
    for piece in text:
        first, *rest = piece.split("\n")
        held.append(first)
        if rest:
            yield "".join(held)
            held = [rest.pop()]
            yield from rest
    yield "".join(held)


def ended_lines(text: Iterable[str]) -> Iterator[str]:
    """Lines with what ends them, `\\n`, `\\r\\n` or `\\r`: what csv.reader takes."""
    held: list[str] = []
    for piece in text:
        held.append(piece)
        whole = io.StringIO("".join(held), newline="").readlines()
        # the last may go on; a "\r" at its end may be half of "\r\n"
        held = [whole.pop()] if whole else []
        yield from whole
    if held:
        yield from io.StringIO("".join(held), newline="").readlines()
