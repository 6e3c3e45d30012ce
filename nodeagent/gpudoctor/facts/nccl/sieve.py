"""Which lines of a large log are worth reading: all but channel lines that say nothing new.

Nine lines in ten are channel lines, and those of one process differ in little but the channel's
number. The sieve looks at a whole piece of the log with vector operations: it finds the line
ends, then NCCL's mark at the distances from the line's start where it stood before, and hashes
what names the process (host, pid, device; not the thread) and what follows the channel's
number. What it does not recognise is handed on; it never drops a line that was not `learn`ed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np

_TABLE_BITS = 20
_OFFSETS_LIMIT = 24
_KEPT_BYTES = 1 << 24
_ROW = 96
"""Bytes of a line looked at from ` NCCL INFO` on; longer channel lines are handed on."""
_HEAD_LIMIT = 128
"""And before it."""

_Array = np.ndarray[Any, np.dtype[Any]]


def _word(text: bytes) -> int:
    return int.from_bytes(text, "little")


_NEWLINE, _SPACE = b"\n "
_NCCL_INFO, _FO_CHANNEL = _word(b" NCCL IN"), _word(b"FO Chann")
_REST_AT = 21
"""Where the channel's number of two digits ends in ` NCCL INFO Channel 07/0 : `."""
# ` [3]` and ` [12]`, which end a header, without their digits.
_DEVICE, _DEVICE_MASK = _word(b" [\0]"), _word(b"\xff\xff\0\xff")
_DEVICES, _DEVICES_MASK = _word(b" [\0\0]"), _word(b"\xff\xff\0\0\xff")
_THREAD_AT = 12
"""The eight bytes from here before the mark hold the thread's id, and the colon before it."""
_LOW_BITS, _COLONS = _word(b"\x7f" * 8), _word(b":" * 8)


def _masks(kept: Iterable[Iterable[int]], width: int) -> _Array:
    """One row of words for each set of byte positions to keep."""
    rows = [bytes(255 if at in set(row) else 0 for at in range(width)) for row in map(tuple, kept)]
    return np.frombuffer(b"".join(rows), "<u8").reshape(len(rows), width // 8)


_TAIL_MASKS = _masks(((16, 17, 18, *range(_REST_AT, length)) for length in range(_ROW + 1)), _ROW)
# Odd and unlike multipliers, one for each eight bytes.
_FACTORS: _Array = np.array(
    [
        (0x9E3779B97F4A7C15 * (2 * n + 1) ^ 0xD1B54A32D192ED03 * n) % (1 << 64) | 1
        for n in range(1, (_ROW + _HEAD_LIMIT) // 8 + 4)
    ],
    np.uint64,
)
_BY_LENGTH, _BY_ALL = _FACTORS[-1], _FACTORS[-2]
_HALF, _ONE, _SLOT_SHIFT = np.uint64(32), np.uint64(1), np.uint64(64 - _TABLE_BITS)
_DEVICES_SHIFT = np.uint64(24)


class Sifted(NamedTuple):
    """The lines of a piece that are to be read: index, start, end, mark and hash.

    `mark` is where ` NCCL INFO ` was found, -1 if it was not looked for everywhere. `hash` is 0
    for lines that are no channel lines.
    """

    lines: list[int]
    starts: list[int]
    ends: list[int]
    marks: list[int]
    hashes: list[int]


class Sieve:
    """Remembers the hashes of what was read; the memory is fixed, and forgets at worst."""

    def __init__(self) -> None:
        self._table = np.zeros(1 << _TABLE_BITS, np.uint64)
        # Freed once, a block this large makes glibc keep the smaller ones that each piece takes,
        # instead of giving them back to the kernel and having them cleared each time.
        np.empty(_KEPT_BYTES, np.uint8)
        self._offsets: Counter[int] = Counter()
        self._width = 0
        self._head_masks = _masks((), 8)

    def learn(self, hashes: list[int]) -> None:
        """Drop such lines from now on."""
        found = np.array(hashes, np.uint64)
        self._table[found >> _SLOT_SHIFT] = found

    def forget(self) -> None:
        """Let every line through again."""
        self._table.fill(0)

    def expect(self, offset: int) -> None:
        """Look for NCCL's mark at this distance from the line's start, too."""
        self._offsets[offset] += 1

    def sift(self, piece: bytes, *, prefixed: bool) -> Sifted:
        """Choose the lines to read of a piece that holds whole lines and ends with a newline.

        `prefixed`: each line begins with something of its own, such as the time, up to a space.
        """
        data = np.frombuffer(piece, np.uint8)
        ends = np.flatnonzero(data == _NEWLINE)
        starts = np.empty_like(ends)
        starts[0] = 0
        starts[1:] = ends[:-1] + 1
        marks, is_channel = self._marks(piece, starts, ends)
        hashes = np.zeros(len(ends), np.uint64)
        lines = np.flatnonzero(is_channel)
        keep = np.ones(len(ends), bool)
        if len(lines):
            self._hash(piece, starts, ends, marks, lines, hashes, prefixed=prefixed)
            keep = self._table.take((hashes >> _SLOT_SHIFT).view(np.int64)) != hashes
            keep |= hashes == 0
        kept = np.flatnonzero(keep)
        columns = (kept, *(column.take(kept) for column in (starts, ends, marks, hashes)))
        return Sifted(*(column.tolist() for column in columns))

    def _marks(self, piece: bytes, starts: _Array, ends: _Array) -> tuple[_Array, _Array]:
        """Where ` NCCL INFO` stands in each line, -1 where it was not found; and whether it is
        followed by ` Channel` and by enough text to look at.
        """
        offsets = [offset for offset, _ in self._offsets.most_common(_OFFSETS_LIMIT)]
        marks = np.full(len(starts), -1)
        is_channel = np.zeros(len(starts), bool)
        windows = _windows(piece, 16)
        room = len(piece) - max(offsets, default=0) - _ROW
        rest = np.arange(int(np.searchsorted(starts, room)))
        for offset in offsets:
            places = starts.take(rest) + offset
            words = windows[places].view("<u8").reshape(-1, 2)
            is_found = words[:, 0] == _NCCL_INFO
            found = rest[is_found]
            marks[found] = places[is_found]
            is_channel[found] = words[is_found, 1] == _FO_CHANNEL
            self._offsets[offset] += len(found)
            rest = rest[~is_found]
        # What was found may stand in a later line.
        inside = marks + _REST_AT < ends
        marks[~inside] = -1
        is_channel &= inside
        return marks, is_channel

    def _hash(
        self,
        piece: bytes,
        starts: _Array,
        ends: _Array,
        marks: _Array,
        lines: _Array,
        hashes: _Array,
        *,
        prefixed: bool,
    ) -> None:
        """Write the hashes of these lines, as far as they are channel lines of the usual form."""
        self._widen(min(max(-(-max(self._offsets) // 8) * 8, 16), _HEAD_LIMIT))
        width = self._width
        places = marks.take(lines)
        lengths = ends.take(lines) - places
        alike = (lengths <= _ROW) & (places >= width)
        if not alike.all():
            lines, places, lengths = lines[alike], places[alike], lengths[alike]
        heads = _windows(piece, width)[places - width].view("<u8").reshape(-1, width // 8)
        last = heads[:, -1]
        thread = (heads[:, -2] >> _HALF) | (last << _HALF)
        differing = thread ^ _COLONS
        is_colon = ~(((differing & _LOW_BITS) + _LOW_BITS) | differing | _LOW_BITS)
        colon = (np.frexp(is_colon.astype(np.float64))[1] - 1) >> 3
        names = width - (places - starts.take(lines))
        if prefixed:
            is_space = heads.view(np.uint8)[:, : width - _THREAD_AT] == _SPACE
            behind = np.argmax(is_space[:, ::-1], axis=1)
            names = np.where(is_space.any(axis=1), width - _THREAD_AT - behind, names)
        alike = (last >> _HALF) & _DEVICE_MASK == _DEVICE
        alike |= (last >> _DEVICES_SHIFT) & _DEVICES_MASK == _DEVICES
        alike &= (is_colon != 0) & (names >= 0) & (names < width - _THREAD_AT + colon)
        if not alike.all():
            lines, places, lengths, heads, colon, names = (
                part[alike] for part in (lines, places, lengths, heads, colon, names)
            )
        if not len(lines):
            return
        heads &= self._head_masks.take(names * 8 + colon, axis=0)
        longest = -(-int(lengths.max()) // 8) * 8
        tails = _windows(piece, longest)[places].view("<u8").reshape(-1, longest // 8)
        tails &= _TAIL_MASKS[:, : longest // 8].take(lengths, axis=0)
        total = _sum(heads, _FACTORS) + _sum(tails, _FACTORS[_HEAD_LIMIT // 8 :])
        total += lengths.view(np.uint64) * _BY_LENGTH
        total ^= total >> _HALF
        total *= _BY_ALL
        hashes[lines] = total | _ONE

    def _widen(self, width: int) -> None:
        """Take this many bytes before the mark: what is kept of them is the name and device."""
        if width <= self._width:
            return
        self._width = width
        device = range(width - 3, width)
        self._head_masks = _masks(
            (
                (*range(name, width - _THREAD_AT + colon), *device)
                for name in range(width + 1)
                for colon in range(8)
            ),
            width,
        )


def _windows(piece: bytes, width: int) -> _Array:
    """The piece's bytes from every place on, to be picked from: as cheap as single bytes."""
    return np.ndarray((len(piece) - width + 1,), np.dtype(f"V{width}"), buffer=piece, strides=(1,))


def _sum(words: _Array, factors: _Array) -> _Array:
    """A hash of each row; the high bits come down first, for products only carry upwards."""
    total = np.zeros(len(words), np.uint64)
    for column, factor in zip(words.T, factors, strict=False):
        mixed = column >> _HALF
        mixed ^= column
        mixed *= factor
        total += mixed
    return total
