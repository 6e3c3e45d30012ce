"""A hash of a channel line, without its thread and its channel's number, for a whole piece of a
log at once.

The bytes around NCCL's mark are picked into one row a line, a mask blanks what does not count,
and the rows are hashed. How many bytes a row has follows what the lines of the log need.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from gpudoctor.facts.nccl.vectors import Array, last_in, windows

MARK_BYTES = 8
"""How far into ` NCCL INFO ` its F is."""
TEXT_AT = 11
"""Where the message begins in ` NCCL INFO Channel 07/0 : `."""
_REST_AT = 21
"""Where the channel's number of two digits ends in it."""
_THREAD_AT = 12
"""The eight bytes from here before the mark hold the thread's id, and the colon before it."""
_DEVICE_BYTES = 4
"""The bytes before the mark that name the device: ` [3]` or `[12]`."""
_HEAD, _HEAD_MOST = 32, 128
_TAIL, _TAIL_MOST = 64, 96
"""Bytes of a line looked at before and from its mark on, at first and at most."""
_RARE = 8
"""The part of the lines, as a power of two, that may be too long for what is looked at."""


def word(text: bytes) -> int:
    """Eight bytes as they are in a row."""
    return int.from_bytes(text, "little")


_MARK, _CHANNEL, _INFO = word(b" NCCL IN"), word(b"FO Chann"), word(b"FO ")
_INFO_MASK = np.uint64(word(b"\xff" * 3))
_DEVICE_ENDS = ord("]")
_ONE, _THREE, _HALF, _FIVE, _SEVEN = (np.uint64(bits) for bits in (1, 24, 32, 40, 56))
_HALF_MASK = np.uint64((1 << 32) - 1)

# Odd and unlike multipliers, one for each eight bytes.
_FACTORS: Array = np.array(
    [
        (0x9E3779B97F4A7C15 * (2 * n + 1) ^ 0xD1B54A32D192ED03 * n) % (1 << 64) | 1
        for n in range(1, (_TAIL_MOST + _HEAD_MOST) // 8 + 4)
    ],
    np.uint64,
)
_BY_LENGTH = _FACTORS[-1]


class Marked(NamedTuple):
    """The lines of a piece in which NCCL's mark was found, in their order.

    `lines` are their numbers, `marks` the places of the marks, `hashes` those of channel lines, 0
    for all others and for lines that do not have the usual form. `others` are the rows of lines
    that are no channel lines, `words` the first eight bytes of the message in each of these.
    """

    lines: Array
    marks: Array
    hashes: Array
    others: Array
    words: Array


class Fingerprints:
    """Hashes the channel lines of one form.

    `prefixed`: each line begins with something of its own, such as the time, up to a space.
    """

    def __init__(self, *, prefixed: bool) -> None:
        self._prefixed = prefixed
        self._masks = _Masks(_HEAD, _TAIL)

    def take(self, text: Array, starts: Array, ends: Array, marks: Array, lines: Array) -> Marked:
        """Look at the lines that may have a mark at these places, sorted, several in a line
        among them.
        """
        head, tail = self._masks.head, self._masks.tail
        early = int(marks.searchsorted(head))
        if early:
            # A second mark in a line would be taken for the first.
            early = int(lines.searchsorted(lines[early - 1], "right"))
        late = int(marks.searchsorted(len(text) - tail, "right"))
        marks, lines = marks[early:late], lines[early:late]
        rows = windows(text, head + tail)[marks - head].view("<u8")
        rows = rows.reshape(-1, (head + tail) // 8)
        after = rows[:, head // 8 + 1].copy()
        is_mark = (rows[:, head // 8] == _MARK) & (after & _INFO_MASK == _INFO)
        marks, lines, after, rows = _only(is_mark, marks, lines, after, rows)
        marks, lines, after, rows = _only(_first_of_line(lines), marks, lines, after, rows)
        is_channel = after == _CHANNEL
        others = np.flatnonzero(~is_channel)
        words = after.take(others) >> _THREE
        words |= rows[others, head // 8 + 2] << _FIVE
        if len(others) < len(lines) // 4:
            lengths = ends.take(lines) - marks
            # The few others are hashed for nothing.
            lengths[others] = 0
            hashes = self._hashes(rows, marks - starts.take(lines), lengths)
        else:
            hashes = np.zeros(len(lines), np.uint64)
            some, own = lines[is_channel], marks[is_channel]
            hashes[is_channel] = self._hashes(
                rows[is_channel], own - starts.take(some), ends.take(some) - own
            )
        return Marked(lines, marks, hashes, others, words)

    def _hashes(self, rows: Array, heads: Array, lengths: Array) -> Array:
        """The hashes of lines with so many bytes before the mark, and from it on."""
        masks = self._masks
        width = masks.head // 8
        last = rows[:, width - 1].copy()
        colons = last_in((rows[:, width - 2] >> _HALF) | (last << _HALF), ":")
        names = masks.head - heads
        if self._prefixed:
            _skip_prefixes(names, rows[:, :width])
        alike = (colons >= 0) & (names >= 0) & (last >> _SEVEN == _DEVICE_ENDS)
        alike &= (lengths > _REST_AT) & (lengths <= masks.tail)
        self._widen(names, heads, lengths)
        mixed = masks.rows(names, colons, lengths, alike)
        rows &= mixed
        # The high bits come down first, for products only carry upwards.
        np.right_shift(rows, _HALF, out=mixed)
        mixed ^= rows
        total: Array = np.einsum("ij,j->i", mixed, _FACTORS[: mixed.shape[1]])
        lengths *= int(_BY_LENGTH >> _ONE)
        total += lengths.view(np.uint64)
        # Of 63 bits: numpy takes greater integers from Python the slow way.
        total >>= _ONE
        total |= _ONE
        total *= alike
        return total

    def _widen(self, names: Array, heads: Array, lengths: Array) -> None:
        """Look at more of the next piece's lines where too many of these are too long."""
        masks = self._masks
        head, tail = masks.head, masks.tail
        if np.count_nonzero(lengths > tail) > len(lengths) >> _RARE:
            tail = _fitting(lengths, tail, _TAIL_MOST)
        if np.count_nonzero(names < 0) > len(names) >> _RARE:
            # Where a prefix ends cannot be seen before its space is.
            wider = heads if not self._prefixed else np.array([min(head + 16, _HEAD_MOST)])
            head = _fitting(wider, head, _HEAD_MOST)
        if (head, tail) != (masks.head, masks.tail):
            self._masks = _Masks(head, tail)


def _only(chosen: Array, *columns: Array) -> tuple[Array, ...]:
    if chosen.all():
        return columns
    return tuple(column[chosen] for column in columns)


def _first_of_line(lines: Array) -> Array:
    is_first = np.ones(len(lines), bool)
    np.not_equal(lines[1:], lines[:-1], out=is_first[1:])
    return is_first


def _fitting(sizes: Array, least: int, most: int) -> int:
    """The greatest of the sizes that are no more than `most`, in whole words."""
    return max(least, -(-int(sizes[sizes <= most].max(initial=0)) // 8) * 8)


def _skip_prefixes(names: Array, heads: Array) -> None:
    """Let the names begin behind the last space before the thread, where there is one."""
    rows = np.arange(len(names))
    last = heads.shape[1] - 2
    for at in range(last, -1, -1):
        words = heads[:, at].take(rows)
        if at == last:
            words &= _HALF_MASK
        spaces = last_in(words, " ")
        is_found = spaces >= 0
        found = np.flatnonzero(is_found)
        names[rows.take(found)] = at * 8 + spaces.take(found) + 1
        rows = rows[~is_found]
        if not len(rows):
            break


class _Masks:
    """Which bytes around the mark count, by where the name and the thread begin and the line
    ends; `head` is the number of bytes before the mark, `tail` from it on.
    """

    def __init__(self, head: int, tail: int) -> None:
        self.head, self.tail = head, tail
        self._known = np.full((head + 1) * 8 * (tail + 1), -1, np.int32)
        self._rows = np.zeros((0, (head + tail) // 8), np.uint64)

    def rows(self, names: Array, colons: Array, lengths: Array, alike: Array) -> Array:
        """One row for each line; those of lines that are not `alike` the others mean nothing."""
        keys = names * 8
        keys += colons
        keys *= self.tail + 1
        keys += lengths
        keys *= alike
        chosen = self._known.take(keys)
        is_new = chosen < 0
        if is_new.any():
            for key in np.unique(keys[is_new]).tolist():
                self._add(key)
            chosen = self._known.take(keys)
        return self._rows.take(chosen, axis=0)

    def _add(self, key: int) -> None:
        name, colon = divmod(key // (self.tail + 1), 8)
        length = key % (self.tail + 1)
        row = bytearray(self.head + self.tail)
        for begin, end in (
            (name, self.head - _THREAD_AT + colon),
            (self.head - _DEVICE_BYTES, self.head),
            (self.head + 16, self.head + 19),
            (self.head + _REST_AT, self.head + length),
        ):
            row[begin:end] = b"\xff" * max(end - begin, 0)
        self._known[key] = len(self._rows)
        self._rows = np.vstack((self._rows, np.frombuffer(bytes(row), "<u8")))
