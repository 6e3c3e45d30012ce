"""Text that people hand in: a file or standard input, plain, gzip or zstd, of any size."""

from __future__ import annotations

import gzip
import io
import sys
from pathlib import Path
from typing import Any, BinaryIO

from gpudoctor.errors import InputError

STDIN = "-"
HEAD_BYTES = 1 << 16
_GZIP_MAGIC = b"\x1f\x8b"


class TextInput:
    """One input: its name, its first bytes, and a binary stream over the whole of it.

    Standard input is read once: `open` may then be called a single time. Close it, or use it
    in a `with` statement.
    """

    def __init__(self, name: str, stream: io.RawIOBase) -> None:
        self.name = "standard input" if name == STDIN else name
        self._plain = io.BufferedReader(stream, HEAD_BYTES)
        self._stream: io.BufferedReader[Any] = self._plain
        if self._plain.peek(2)[:2] == _GZIP_MAGIC:
            self._stream = io.BufferedReader(gzip.GzipFile(fileobj=self._plain), HEAD_BYTES)
        self.head = self._peek()

    def _peek(self) -> bytes:
        try:
            return self._stream.peek(HEAD_BYTES)[:HEAD_BYTES]
        except (OSError, EOFError) as error:
            raise InputError(f"{self.name}: cannot be read: {error}") from error

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
            return self._stream.read()
        except (OSError, EOFError) as error:
            raise InputError(f"{self.name}: cannot be read: {error}") from error


def open_input(name: str) -> TextInput:
    """Open a path, or standard input for `-`; InputError says why not."""
    if name == STDIN:
        return TextInput(name, io.FileIO(sys.stdin.fileno(), closefd=False))
    try:
        return TextInput(name, Path(name).open("rb", buffering=0))
    except OSError as error:
        raise InputError(f"{name}: cannot be read: {error.strerror}") from error
