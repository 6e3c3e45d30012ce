"""Which lines of a large log are worth reading: all but channel lines that say nothing new.

Nine lines in ten are channel lines, and those of one process differ in little but the channel's
number. The sieve finds them with vector operations over a whole piece of the log, hashes of
each what names the process (host, pid, device; not the thread) and what follows the number, and
lets only those through whose hash it has not seen. What it does not recognise passes through.
"""

from __future__ import annotations

from typing import Any

import numpy as np

_TABLE_BITS = 20
_LONGEST_PART = 128
_NEWLINE, _COLON, _OPEN, _CLOSE = b"\n:[]"
_CHANNEL = int.from_bytes(b"Channel ", "little")
_NCCL_INFO = int.from_bytes(b" NCCL IN", "little")
_INFO_END = int.from_bytes(b"CL INFO ", "little")

# Distances from the colon of `Channel 07/0 : `, whose number has two digits.
_AT_CHANNEL, _AT_INFO_END, _AT_NCCL, _AT_CLOSE = 13, 21, 24, 25

# Odd and unlike multipliers: one for each eight bytes of a part, and for both lengths.
_FACTORS = [
    np.uint64((0x9E3779B97F4A7C15 * (2 * n + 1) ^ (0xD1B54A32D192ED03 * n)) % (1 << 64) | 1)
    for n in range(1, 2 * _LONGEST_PART // 8 + 3)
]

_Array = np.ndarray[Any, np.dtype[Any]]


class Sieve:
    """Remembers the hashes of what has passed; the memory is fixed, and forgets at worst."""

    def __init__(self) -> None:
        self._table = np.zeros(1 << _TABLE_BITS, np.uint64)

    def sift(self, piece: bytes) -> tuple[int, list[int], list[int], list[int]]:
        """Return how many lines a piece has, and index, start and end of those to read.

        The piece holds whole lines and ends with a newline.
        """
        data = np.frombuffer(piece, np.uint8)
        marks = np.flatnonzero((data == _NEWLINE) | (data == _COLON))
        is_end = data[marks] == _NEWLINE
        ends = marks[is_end]
        starts = np.empty_like(ends)
        starts[0] = 0
        starts[1:] = ends[:-1] + 1
        keep = np.ones(len(ends), bool)
        keep[self._known(piece, data, marks, is_end)] = False
        lines = np.flatnonzero(keep)
        return len(ends), lines.tolist(), starts[lines].tolist(), ends[lines].tolist()

    def _known(self, piece: bytes, data: _Array, marks: _Array, is_end: _Array) -> _Array:
        """Indices of the channel lines that say nothing new.

        They have three colons: `HOST:PID:TID [DEV] NCCL INFO Channel 07/0 : 3[3] -> …`.
        """
        candidates = is_end[:-4] & ~is_end[1:-3] & ~is_end[2:-2] & ~is_end[3:-1] & is_end[4:]
        before = np.flatnonzero(candidates)
        start, last, middle = marks[before] + 1, marks[before + 2], marks[before + 3]
        end = marks[before + 4]
        words: _Array = np.ndarray(
            (max(len(piece) - 7, 0),), np.dtype("<u8"), buffer=piece, strides=(1,)
        )
        name, said = last - start, end - middle
        alike = (
            (name >= 8)
            & (name <= _LONGEST_PART)
            & (said >= 8)
            & (said <= _LONGEST_PART)
            & (middle - last > _AT_CLOSE)
        )
        if not alike.all():
            before, start, last, middle, end = (
                part[alike] for part in (before, start, last, middle, end)
            )
        alike = (
            (words[middle - _AT_CHANNEL] == _CHANNEL)
            & (words[middle - _AT_INFO_END] == _INFO_END)
            & (words[middle - _AT_NCCL] == _NCCL_INFO)
            & (data[middle - _AT_CLOSE] == _CLOSE)
            & (data[middle - _AT_CLOSE - 2] == _OPEN)
        )
        if not alike.all():
            before, start, last, middle, end = (
                part[alike] for part in (before, start, last, middle, end)
            )
        if not len(before):
            return before
        hashes = self._hashes(words, data, start, last, middle, end)
        slots = (hashes >> np.uint64(64 - _TABLE_BITS)).astype(np.int64)
        is_known = self._table[slots] == hashes
        fresh = np.flatnonzero(~is_known)
        self._table[slots[fresh]] = hashes[fresh]
        found: _Array = np.cumsum(is_end)[before[is_known]]
        return found

    def _hashes(
        self, words: _Array, data: _Array, start: _Array, last: _Array, middle: _Array, end: _Array
    ) -> _Array:
        """One number for host, pid, device and all that follows the channel's number."""
        factors = iter(_FACTORS)
        device = data[middle - _AT_CLOSE - 1].astype(np.uint64)
        lengths = ((last - start) * 256 + (end - middle)).astype(np.uint64)
        hashes = device * next(factors)
        hashes += lengths * next(factors)
        for first, after in ((start, last), (middle, end)):
            final = after - 8
            for offset in range(0, int((after - first).max()), 8):
                # Shorter parts repeat their last eight bytes: the length tells them apart.
                hashes += words[np.minimum(first + offset, final)] * next(factors)
        mixed: _Array = (hashes ^ (hashes >> np.uint64(32))) * _FACTORS[0]
        return mixed
