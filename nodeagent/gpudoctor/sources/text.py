"""Text that people hand in: a file or standard input, plain, gzip or zstd, of any size."""

from __future__ import annotations

import codecs
import io
import os
import sys
from functools import cached_property
from pathlib import Path
from typing import Any, BinaryIO

from gpudoctor.errors import InputError

STDIN = "-"
HEAD_BYTES = 1 << 16
_GZIP_MAGIC = b"\x1f\x8b"
_ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
_UNREADABLE = (OSError, EOFError)
_CHUNK_BYTES = 1 << 20
_BOMS = (
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)


class _Replayed(io.RawIOBase):
    """A stream whose head was read already, from its start."""

    def __init__(self, head: bytes, rest: io.BufferedIOBase) -> None:
        self._head = memoryview(head)
        self._rest = rest

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        if not self._head:
            return self._rest.readinto(buffer)
        count = min(len(buffer), len(self._head))
        buffer[:count] = self._head[:count]
        self._head = self._head[count:]
        return count


class _Unpacked(io.RawIOBase):
    """What comes out of a compressed stream. One that is cut short ends where it was cut, if
    anything could be read at all, and `is_cut` says so: the start of a log is worth reading.
    """

    def __init__(self, packed: Any, broken: type[Exception]) -> None:
        self._packed = packed
        self._broken = broken
        self._is_empty = True
        self.is_cut = False

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        try:
            data = self._packed.read1(len(buffer))
        except EOFError:
            if self._is_empty:
                raise
            self.is_cut = True
            return 0
        except self._broken as error:
            raise OSError(str(error)) from error
        self._is_empty = self._is_empty and not data
        buffer[: len(data)] = data
        return len(data)


class TextInput:
    """One input: its name, its first bytes, and a binary stream over the whole of it.

    Standard input is read once: `open` may then be called a single time. Close it, or use it
    in a `with` statement.
    """

    def __init__(self, name: str, stream: io.RawIOBase) -> None:
        self.name = "standard input" if name == STDIN else name
        self._path = None if name == STDIN else Path(name)
        self._plain: io.BufferedReader[Any] = io.BufferedReader(stream, HEAD_BYTES)
        try:
            self._packed = _unpacked(self._plain)
        except _UNREADABLE as error:
            self._plain.close()
            raise self._unreadable(error) from error
        self._stream: io.BufferedReader[Any] = (
            self._plain if self._packed is None else io.BufferedReader(self._packed, HEAD_BYTES)
        )

    @property
    def is_compressed(self) -> bool:
        """Whether what is read was unpacked from gzip or zstd."""
        return self._packed is not None

    @cached_property
    def head(self) -> bytes:
        """The first 64 KiB, or what there is; waits for them on a pipe."""
        try:
            # Read, not peeked: the first piece that comes out of a pipe may be a single line.
            head = self._stream.read(HEAD_BYTES)
        except _UNREADABLE as error:
            self._plain.close()
            raise self._unreadable(error) from error
        self._stream = io.BufferedReader(_Replayed(head, self._stream), _CHUNK_BYTES)
        return head

    def _unreadable(self, error: Exception) -> InputError:
        return InputError(f"{self.name}: cannot be read: {error}")

    def __enter__(self) -> TextInput:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the stream and the file below it."""
        self._stream.close()
        self._plain.close()

    def open(self) -> BinaryIO:
        """Return the stream, positioned at the start."""
        return self._stream

    def read(self) -> bytes:
        """Read the whole input; InputError says why it cannot be read."""
        try:
            whole = self._stream.read()
            if self._packed is not None and self._packed.is_cut:
                raise EOFError("the compressed data ends before its end")
        except _UNREADABLE as error:
            raise self._unreadable(error) from error
        return whole

    def read_some(self, size: int) -> bytes:
        """Read up to `size` bytes as soon as there are any, b"" at the end.

        A compressed input that is cut short ends where it was cut.
        """
        try:
            return self._stream.read1(size)
        except _UNREADABLE as error:
            raise self._unreadable(error) from error

    def read_block(self, size: int) -> bytes:
        """Read `size` bytes, fewer only at the end, b"" there; waits for them on a pipe.

        A compressed input that is cut short ends where it was cut.
        """
        try:
            return self._stream.read(size)
        except _UNREADABLE as error:
            raise self._unreadable(error) from error

    def is_replaced(self) -> bool:
        """Tell whether its path leads to another file now, or the file was cut below what was
        read: a log that was rotated. False while there is none, and for what is no file.
        """
        if self._path is None:
            return False
        try:
            now, mine = self._path.stat(), os.fstat(self._plain.fileno())
            is_same = (now.st_dev, now.st_ino) == (mine.st_dev, mine.st_ino)
            return not is_same or now.st_size < self._plain.tell()
        except OSError:
            return False

    def renew(self) -> None:
        """Read the file that its path leads to now, from its start; InputError if it is gone."""
        successor = open_input(str(self._path))
        self.close()
        self._plain, self._packed = successor._plain, successor._packed
        self._stream = successor._stream

    def text(self) -> str:
        """Read the whole input as text; what is not UTF-8, or what its mark says, is U+FFFD."""
        return as_utf8(self.read()).decode()


def _unpacked(plain: io.BufferedReader[Any]) -> _Unpacked | None:
    """The decompressed stream of gzip or zstd, None for plain text."""
    magic = plain.peek(len(_ZSTD_MAGIC))
    if magic.startswith(_GZIP_MAGIC):
        import gzip  # imported late: as few are packed
        import zlib

        return _Unpacked(gzip.GzipFile(fileobj=plain), zlib.error)
    if magic.startswith(_ZSTD_MAGIC):
        from backports.zstd import ZstdError, ZstdFile  # imported late: few inputs need it

        return _Unpacked(ZstdFile(plain), ZstdError)
    return None


def open_input(name: str) -> TextInput:
    """Open a path, or standard input for `-`; InputError says why not."""
    if name == STDIN:
        if sys.stdin is None:
            raise InputError("standard input is closed; name a file")
        return TextInput(name, io.FileIO(sys.stdin.fileno(), closefd=False))
    try:
        return TextInput(name, Path(name).open("rb", buffering=0))
    except OSError as error:
        raise InputError(f"{name}: cannot be read: {error.strerror}") from error


def as_utf8(raw: bytes) -> bytes:
    """Return the text as UTF-8 without a byte order mark; what is not UTF-8 becomes U+FFFD."""
    for bom, encoding in _BOMS:
        if raw.startswith(bom):
            return raw.decode(encoding, "replace").encode()
    if raw.isascii():
        return raw
    # In pieces, because the decoded text of a large dump takes four times its bytes.
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    pieces = [
        decoder.decode(raw[start : start + _CHUNK_BYTES]).encode()
        for start in range(0, len(raw), _CHUNK_BYTES)
    ]
    return b"".join([*pieces, decoder.decode(b"", final=True).encode()])
