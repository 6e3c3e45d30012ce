"""Which lines of a large log are worth reading: all but channel lines that say nothing new.

Nine lines in ten are channel lines, and those of one process differ in little but the channel's
number. The sieve finds them with vector operations over a whole piece of the log, hashes of
each what names the process (host, pid, device; not the thread) and what follows the number, and
lets only those through whose hash it has not seen. What it does not recognise passes through.
"""

from __future__ import annotations

from typing import Any

import numpy as np

_TABLE_BITS = 18
_LONGEST_PART = 128
_NEWLINE, _COLON, _SPACE, _OPEN, _CLOSE = b"\n: []"
_CHANNEL = int.from_bytes(b"Channel ", "little")
_NCCL_INFO = int.from_bytes(b" NCCL IN", "little")
_INFO_END = int.from_bytes(b"CL INFO ", "little")
_FACTOR = np.uint64(0x9E3779B97F4A7C15)
_SHIFT = np.uint64(29)

# Distances from the colon of `Channel 07/0 : `, whose number has two digits.
_AT_CHANNEL, _AT_INFO_END, _AT_NCCL, _AT_CLOSE = 13, 21, 24, 25

_Array = np.ndarray[Any, np.dtype[Any]]


class Sieve:
    """Remembers the hashes of what has passed; the memory is fixed, and forgets at worst."""

    def __init__(self) -> None:
        self._table = np.zeros(1 << _TABLE_BITS, np.uint64)

    def sift(self, piece: bytes) -> tuple[list[int], list[int], list[int]]:
        """Return the indices, starts and ends of the lines to read in a piece of whole lines.

        The piece ends with a newline.
        """
        data = np.frombuffer(piece, np.uint8)
        ends = np.flatnonzero(data == _NEWLINE)
        starts = np.empty_like(ends)
        starts[0] = 0
        starts[1:] = ends[:-1] + 1
        keep = np.ones(len(ends), bool)
        keep[self._known(piece, data, starts, ends)] = False
        lines = np.flatnonzero(keep)
        return lines.tolist(), starts[lines].tolist(), ends[lines].tolist()

    def _known(self, piece: bytes, data: _Array, starts: _Array, ends: _Array) -> _Array:
        """Indices of the channel lines that say nothing new."""
        colons = np.flatnonzero(data == _COLON)
        spaced = (data[colons - 1] == _SPACE) & (
            data[np.minimum(colons + 1, len(data) - 1)] == _SPACE
        )
        which = np.flatnonzero(spaced)
        which = which[which > 1]
        middle, last, first = colons[which], colons[which - 1], colons[which - 2]
        line = np.searchsorted(ends, middle)
        start, end = starts[line], ends[line]
        words: _Array = np.ndarray(
            (max(len(piece) - 7, 0),), np.dtype("<u8"), buffer=piece, strides=(1,)
        )
        fits = (
            (first >= start)
            & (last - start >= 8)
            & (last - start <= _LONGEST_PART)
            & (last < middle - _AT_CLOSE)
            & (end - middle >= 8)
            & (end - middle <= _LONGEST_PART)
        )
        line, middle, last, start, end = (a[fits] for a in (line, middle, last, start, end))
        alike = (
            (words[middle - _AT_CHANNEL] == _CHANNEL)
            & (words[middle - _AT_INFO_END] == _INFO_END)
            & (words[middle - _AT_NCCL] == _NCCL_INFO)
            & (data[middle - _AT_CLOSE] == _CLOSE)
            & (data[middle - _AT_CLOSE - 2] == _OPEN)
        )
        if not alike.all():
            line, middle, last, start, end = (a[alike] for a in (line, middle, last, start, end))
        if not len(line):
            return line
        device = data[middle - _AT_CLOSE - 1].astype(np.uint64)
        mixed = device + ((last - start) * 256 + (end - middle)).astype(np.uint64) * _FACTOR
        mixed = _mix(mixed, words, start, last)
        mixed = _mix(mixed, words, middle, end)
        slots = (mixed >> np.uint64(64 - _TABLE_BITS)).astype(np.int64)
        known = self._table[slots] == mixed
        fresh = ~known
        self._table[slots[fresh]] = mixed[fresh]
        found: _Array = line[known]
        return found


def _mix(mixed: _Array, words: _Array, start: _Array, end: _Array) -> _Array:
    """Fold the bytes from start to end into the hashes, eight at a time; the last eight overlap."""
    last = end - 8
    for offset in range(0, int((end - start).max()), 8):
        mixed = (mixed ^ words[np.minimum(start + offset, last)]) * _FACTOR
        mixed ^= mixed >> _SHIFT
    return mixed
