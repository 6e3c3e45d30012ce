"""Which lines of a large log are worth reading: those in which NCCL says something new.

Nine lines in ten are channel lines, and those of one process differ in little but the channel's
number. The sieve looks at a whole piece of the log with vector operations: it finds the line
ends, then NCCL's mark at the distances from the line's start where it stood before, and hashes
what names the process (host, pid, device; not the thread) and what follows the channel's
number. It drops lines whose hash was learned, lines without `NCCL` in them, and messages that
are known to carry nothing. What it does not recognise is handed on.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np

from gpudoctor.facts.nccl.vectors import Array, hold, last_in, newlines, windows

_TABLE_BITS, _SPARE_BITS = 20, 18
_OFFSETS_LIMIT = 24
_KEPT_BYTES = 1 << 24
_ROW = 96
"""Bytes of a line looked at from ` NCCL INFO` on; longer channel lines are handed on."""
_HEAD_LIMIT = 128
"""And before it."""


def _word(text: bytes) -> int:
    return int.from_bytes(text, "little")


_NCCL_INFO, _FO_CHANNEL = _word(b" NCCL IN"), _word(b"FO Chann")
_TEXT_AT = 11
"""Where the message begins in ` NCCL INFO Channel 07/0 : `."""
_REST_AT = 21
"""Where the channel's number of two digits ends in it."""
# ` [3]` and ` [12]`, which end a header, without their digits.
_DEVICE, _DEVICE_MASK = _word(b" [\0]"), _word(b"\xff\xff\0\xff")
_DEVICES, _DEVICES_MASK = _word(b" [\0\0]"), _word(b"\xff\xff\0\0\xff")
_THREAD_AT = 12
"""The eight bytes from here before the mark hold the thread's id, and the colon before it."""

# Odd and unlike multipliers, one for each eight bytes.
_FACTORS: Array = np.array(
    [
        (0x9E3779B97F4A7C15 * (2 * n + 1) ^ 0xD1B54A32D192ED03 * n) % (1 << 64) | 1
        for n in range(1, (_ROW + _HEAD_LIMIT) // 8 + 4)
    ],
    np.uint64,
)
_BY_LENGTH, _BY_ALL = _FACTORS[-1], _FACTORS[-2]
_ONE, _BYTE, _HALF, _DEVICES_SHIFT = (np.uint64(bits) for bits in (1, 8, 32, 24))
_SLOT_SHIFT, _SPARE_SHIFT = np.uint64(63 - _TABLE_BITS), np.uint64(43 - _SPARE_BITS)
_SPARE_MASK = np.uint64((1 << _SPARE_BITS) - 1)
_HALF_MASK = np.uint64((1 << 32) - 1)


class Sifted(NamedTuple):
    """The lines of a piece: start, end, mark and hash of each, and which are `kept` to be read.

    A mark is where ` NCCL INFO` was found, -1 if it was not looked for everywhere. The hash is
    0 for lines that are no channel lines.
    """

    columns: tuple[Array, ...]
    kept: Array

    def rows(self) -> Iterator[tuple[int, ...]]:
        """Index, start, end, mark and hash of the lines that are to be read."""
        return self._rows(self.kept)

    def with_hash(self, hashes: Iterable[int], after: int) -> Iterator[tuple[int, ...]]:
        """The same of the lines after this one, read or not, that have any of these hashes."""
        later = self.columns[-1][after + 1 :]
        lines = np.flatnonzero(np.isin(later, np.fromiter(hashes, np.uint64)))
        return self._rows(lines + after + 1)

    def _rows(self, lines: Array) -> Iterator[tuple[int, ...]]:
        columns = (lines, *(column.take(lines) for column in self.columns))
        return zip(*(column.tolist() for column in columns), strict=True)


class Sieve:
    """Remembers the hashes of what was read; the memory is fixed, and forgets at worst.

    `dull` are the first eight bytes of messages that carry nothing.
    """

    def __init__(self, dull: Iterable[bytes]) -> None:
        self._dull = np.array([_word(text) for text in dull], np.uint64)
        self._table = np.zeros(1 << _TABLE_BITS, np.uint64)
        self._spare = np.zeros(1 << _SPARE_BITS, np.uint64)
        # Freed once, a block this large makes glibc keep the smaller ones that each piece takes,
        # instead of giving them back to the kernel and having them cleared each time.
        np.empty(_KEPT_BYTES, np.uint8)
        self._offsets: Counter[int] = Counter()
        self._masks = {False: _Masks(16), True: _Masks(16)}

    def learn(self, hashes: list[int]) -> None:
        """Drop such lines from now on."""
        found = np.array(hashes, np.uint64)
        slots = found >> _SLOT_SHIFT
        # Two that want the same slot would push each other out for ever.
        pushed = self._table[slots]
        self._table[slots] = found
        self._spare[_spare_slots(pushed)] = pushed

    def forget(self, hashes: Iterable[int]) -> None:
        """Let such lines through again."""
        found = np.fromiter(hashes, np.uint64)
        for table, slots in (
            (self._table, (found >> _SLOT_SHIFT).view(np.int64)),
            (self._spare, _spare_slots(found)),
        ):
            table[slots[table[slots] == found]] = 0

    def expect(self, offset: int, head: int, *, prefixed: bool) -> None:
        """Look for NCCL's mark at this distance from the line's start, too; `head` of the bytes
        before it name the process.
        """
        self._offsets[offset] += 1
        width = min(max(-(-head // 8) * 8, 16), _HEAD_LIMIT)
        if width > self._masks[prefixed].width:
            self._masks[prefixed] = _Masks(width)

    def sift(self, piece: bytes, *, prefixed: bool) -> Sifted:
        """Choose the lines to read of a piece that holds whole lines and ends with a newline.

        `prefixed`: each line begins with something of its own, such as the time, up to a space.
        """
        ends = newlines(piece)
        starts = np.empty_like(ends)
        starts[0] = 0
        np.add(ends[:-1], 1, out=starts[1:])
        marks, channels = self._marks(piece, starts, ends)
        hashes = np.zeros(len(ends), np.uint64)
        if len(channels):
            masks = self._masks[prefixed]
            channels, found = _hashes(
                piece, starts, ends, marks, channels, masks, prefixed=prefixed
            )
            hashes[channels] = found
        kept = self._unknown(hashes)
        kept = self._telling(piece, kept, starts, ends, marks, hashes)
        return Sifted((starts, ends, marks, hashes), kept)

    def _marks(self, piece: bytes, starts: Array, ends: Array) -> tuple[Array, Array]:
        """Where ` NCCL INFO` stands in each line, -1 where it was not found; and the lines in
        which it is followed by ` Channel` and by enough text to look at.
        """
        marks = np.full(len(starts), -1)
        channels = [np.zeros(0, np.int64)]
        offsets = [offset for offset, _ in self._offsets.most_common(_OFFSETS_LIMIT)]
        room = int(np.searchsorted(starts, len(piece) - max(offsets, default=0) - _ROW))
        least = min(offsets, default=0) + _REST_AT
        rest = np.flatnonzero(ends[:room] - starts[:room] > least)
        for offset in offsets:
            if not len(rest):
                break
            places = starts.take(rest)
            places += offset
            words = windows(piece, 16)[places].view("<u8").reshape(-1, 2)
            # What was found may stand in a later line.
            is_found = (words[:, 0] == _NCCL_INFO) & (ends.take(rest) > places + _REST_AT)
            found = rest[is_found]
            marks[found] = places[is_found]
            channels.append(found[words[is_found, 1] == _FO_CHANNEL])
            self._offsets[offset] += len(found)
            rest = rest[~is_found]
        return marks, np.concatenate(channels)

    def _unknown(self, hashes: Array) -> Array:
        """The lines whose hash was not learned, those without a hash among them."""
        known = self._table.take((hashes >> _SLOT_SHIFT).view(np.int64)) == hashes
        known &= hashes != 0
        kept: Array = np.flatnonzero(~known)
        left = hashes.take(kept)
        unknown = (self._spare.take(_spare_slots(left)) != left) | (left == 0)
        return kept.compress(unknown)

    def _telling(
        self, piece: bytes, lines: Array, starts: Array, ends: Array, marks: Array, hashes: Array
    ) -> Array:
        """Those of the lines that may say something: not without `NCCL`, and no dull message,
        unless another record is glued to it.
        """
        marks = marks.take(lines)
        marked = np.flatnonzero((marks >= 0) & (hashes.take(lines) == 0))
        texts = marks.take(marked) + _TEXT_AT
        words = windows(piece, 8)[texts].view("<u8")
        is_dull = np.isin(words, self._dull)
        begins = starts.take(lines)
        begins[marked[is_dull]] = texts[is_dull]
        doubtful = marks < 0
        doubtful[marked[is_dull]] = True
        rows = np.flatnonzero(doubtful)
        holds = hold(piece, begins.take(rows), ends.take(lines.take(rows)), b"NCCL")
        telling = np.ones(len(lines), bool)
        telling[rows[~holds]] = False
        return lines[telling]


def _spare_slots(hashes: Array) -> Array:
    return ((hashes >> _SPARE_SHIFT) & _SPARE_MASK).view(np.int64)


def _hashes(
    piece: bytes,
    starts: Array,
    ends: Array,
    marks: Array,
    lines: Array,
    masks: _Masks,
    *,
    prefixed: bool,
) -> tuple[Array, Array]:
    """Those of the channel lines that are short enough, and their hashes: 0 for any that does
    not have the usual form.
    """
    width = masks.width
    places = marks.take(lines)
    lengths = ends.take(lines) - places
    fitting = (lengths <= _ROW) & (places >= width)
    if not fitting.all():
        lines, places, lengths = lines[fitting], places[fitting], lengths[fitting]
    room = width + (-(-int(lengths.max(initial=1)) // 8) * 8)
    text = windows(piece, room)[places - width].view("<u8").reshape(-1, room // 8)
    last = text[:, width // 8 - 1].copy()
    colons = last_in((text[:, width // 8 - 2] >> _HALF) | (last << _HALF), ":")
    names = width - (places - starts.take(lines))
    if prefixed:
        _skip_prefixes(names, text, width)
    alike = (colons >= 0) & (names >= 0) & (names < width - _THREAD_AT + colons)
    alike &= _end_in_device(last)
    if not alike.all():
        colons[~alike] = names[~alike] = 0
    text &= masks.rows(names, colons, lengths)[:, : room // 8]
    # The high bits come down first, for products only carry upwards.
    mixed = text >> _HALF
    mixed ^= text
    total = np.einsum("ij,j->i", mixed, _FACTORS[: room // 8])
    total += lengths.view(np.uint64) * _BY_LENGTH
    total ^= total >> _HALF
    total *= _BY_ALL
    # Of 63 bits: numpy takes greater integers from Python the slow way.
    total >>= _ONE
    total |= _ONE
    total *= alike
    return lines, total


def _skip_prefixes(names: Array, text: Array, width: int) -> None:
    """Let the names begin behind the last space before the thread, where there is one."""
    rows = np.arange(len(names))
    for at in range(width // 8 - 2, -1, -1):
        words = text[:, at].take(rows)
        if at == width // 8 - 2:
            words &= _HALF_MASK
        spaces = last_in(words, " ")
        found = np.flatnonzero(spaces >= 0)
        names[rows.take(found)] = at * 8 + spaces.take(found) + 1
        rows = rows[spaces < 0]


def _end_in_device(last: Array) -> Array:
    """Which of the eight bytes before a mark end in ` [3]` or ` [12]`."""
    last = last >> _DEVICES_SHIFT
    is_device: Array = last & _DEVICES_MASK == _DEVICES
    last >>= _BYTE
    is_device |= last & _DEVICE_MASK == _DEVICE
    return is_device


class _Masks:
    """Which bytes around the mark count, by where the name and the thread begin and the line
    ends; `width` is the number of bytes before the mark.
    """

    def __init__(self, width: int) -> None:
        self.width = width
        self._known = np.full((width + 1) * 8 * (_ROW + 1), -1, np.int32)
        self._rows = np.zeros((0, (width + _ROW) // 8), np.uint64)

    def rows(self, names: Array, colons: Array, lengths: Array) -> Array:
        """One row for each line."""
        keys = (names * 8 + colons) * (_ROW + 1) + lengths
        chosen = self._known.take(keys)
        is_new = chosen < 0
        if is_new.any():
            for key in np.unique(keys[is_new]).tolist():
                self._add(key)
            chosen = self._known.take(keys)
        return self._rows.take(chosen, axis=0)

    def _add(self, key: int) -> None:
        name, colon = divmod(key // (_ROW + 1), 8)
        length = key % (_ROW + 1)
        row = bytearray(self.width + _ROW)
        for begin, end in (
            (name, self.width - _THREAD_AT + colon),
            (self.width - 3, self.width),
            (self.width + 16, self.width + 19),
            (self.width + _REST_AT, self.width + length),
        ):
            row[begin:end] = b"\xff" * (end - begin)
        self._known[key] = len(self._rows)
        self._rows = np.vstack((self._rows, np.frombuffer(bytes(row), "<u8")))
