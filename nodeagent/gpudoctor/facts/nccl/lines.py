"""Cuts what is read of a log, in pieces of any size, into parts that hold whole lines."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from gpudoctor.facts.nccl.records import LONGEST

_PIECE = 1 << 20
LARGEST = _PIECE + LONGEST
"""The most bytes of a part: what is taken at once, and what was left before."""
_LARGE = 1 << 16


class Part(NamedTuple):
    """Whole lines, the newline of the last included: these bytes of the data."""

    data: bytes
    start: int
    stop: int


class Lines:
    """One source at a time; lines longer than the longest are cut."""

    def __init__(self) -> None:
        self._rest = b""
        self._skipping = False

    def take(self, chunk: bytes) -> Iterator[Part]:
        """Yield the parts that end in some more bytes of the source."""
        for start in range(0, len(chunk), _PIECE):
            yield from self._take(chunk[start : start + _PIECE])

    def end(self) -> bytes:
        """What stands behind the last newline of the source; another one begins."""
        rest = self._rest
        self._rest, self._skipping = b"", False
        return rest

    def _take(self, chunk: bytes) -> Iterator[Part]:
        stop = chunk.rfind(b"\n") + 1
        if not stop:
            if not self._skipping:
                self._leave(self._rest + chunk)
            return
        start = chunk.find(b"\n") if self._skipping else 0
        if self._rest:
            # Of a large piece only the line that was cut is put together.
            first = chunk.find(b"\n", start) + 1 if stop > _LARGE else stop
            whole = b"".join((self._rest, memoryview(chunk)[start:first]))
            yield Part(whole, 0, len(whole))
            start = first
        self._leave(chunk[stop:])
        if start < stop:
            yield Part(chunk, start, stop)

    def _leave(self, rest: bytes) -> None:
        self._rest = rest[:LONGEST]
        self._skipping = len(rest) > LONGEST
