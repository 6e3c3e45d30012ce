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

    Standard input is read once: `open` may then be called a single time.
    """

    def __init__(self, name: str, stream: io.RawIOBase) -> None:
        self.name = "standard input" if name == STDIN else name
        plain = io.BufferedReader(stream, HEAD_BYTES)
        self._stream: io.BufferedReader[Any] = plain
        if plain.peek(2)[:2] == _GZIP_MAGIC:
            self._stream = io.BufferedReader(gzip.GzipFile(fileobj=plain), HEAD_BYTES)
        self.head = self._peek()

    def _peek(self) -> bytes:
        try:
            return self._stream.peek(HEAD_BYTES)[:HEAD_BYTES]
        except (OSError, EOFError) as error:
            raise InputError(f"{self.name}: cannot be read: {error}") from error

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
