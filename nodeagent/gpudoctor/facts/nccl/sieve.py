"""Which lines of a large log are worth reading: those in which NCCL says something new.

Nine lines in ten are channel lines, and those of one process differ in little but the channel's
number. The sieve looks at a whole piece of the log with vector operations: it finds the line
ends and NCCL's marks, and hashes what names the process (host, pid, device; not the thread) and
what follows the channel's number. It drops lines whose hash was learned, lines without `NCCL`
in them, and messages that are known to carry nothing. What it does not recognise is handed on.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator
from mmap import mmap
from typing import NamedTuple

import numpy as np

from gpudoctor.facts.nccl.fingerprint import MARK_BYTES, TEXT_AT, Fingerprints, Marked, word
from gpudoctor.facts.nccl.vectors import Array, Places, hold

_TABLE_BITS, _SPARE_BITS = 20, 18
_KEPT_BYTES = 1 << 24
_SLOT_SHIFT, _SPARE_SHIFT = np.uint64(63 - _TABLE_BITS), np.uint64(43 - _SPARE_BITS)
_SPARE_MASK = np.uint64((1 << _SPARE_BITS) - 1)


class Marks(NamedTuple):
    """What is seen of a part of a log at once, whatever was read before.

    `ends`: of each line the place of its newline; `hashes`: its hash, 0 where it is no channel
    line of the usual form; `others`: the lines without a hash that are worth reading, in order.
    """

    ends: Array
    hashes: Array
    others: Array


class Marker:
    """Finds the lines, hashes the channel lines, and chooses among the others.

    Takes parts of up to `most` bytes. A line without NCCL's mark is chosen if it holds one of the
    `words`. `dull` are the first eight bytes of messages that carry nothing.
    """

    def __init__(self, most: int, words: Iterable[bytes], dull: Iterable[bytes]) -> None:
        self._words = tuple(words)
        self._dull = np.array(sorted(word(text) for text in dull), np.uint64)
        # Freed once, a block this large makes glibc keep the smaller ones that each part takes,
        # instead of giving them back to the kernel and having them cleared each time.
        np.empty(_KEPT_BYTES, np.uint8)
        self._places = Places(most, b"\n", b"F")
        self._forms = {prefixed: Fingerprints(prefixed=prefixed) for prefixed in (False, True)}

    def mark(self, data: bytes | mmap, start: int, stop: int, *, prefixed: bool) -> Marks:
        """Mark a part that holds whole lines and ends with a newline; places are counted from
        `start`.

        `prefixed`: each line begins with something of its own, such as the time, up to a space.
        """
        text = np.frombuffer(data, np.uint8, stop - start, start)
        ends, marks, lines = self._places.find(text)
        marks -= MARK_BYTES
        starts = np.empty_like(ends)
        starts[0] = 0
        np.add(ends[:-1], 1, out=starts[1:])
        marked = self._forms[prefixed].take(text, starts, ends, marks, lines)
        is_unmarked = np.ones(len(ends), bool)
        is_unmarked[marked.lines] = False
        unmarked = np.flatnonzero(is_unmarked)
        hashes = np.zeros(len(ends), np.uint64)
        hashes[marked.lines] = marked.hashes
        is_other = hashes == 0
        is_other[unmarked] = hold(text, starts.take(unmarked), ends.take(unmarked), *self._words)
        is_other[self._dull_lines(text, ends, marked)] = False
        return Marks(ends, hashes, np.flatnonzero(is_other))

    def _dull_lines(self, text: Array, ends: Array, marked: Marked) -> Array:
        """The lines that carry nothing, unless another record is glued to the message."""
        nearest = self._dull.take(self._dull.searchsorted(marked.words), mode="clip")
        rows = marked.others[nearest == marked.words]
        lines = marked.lines.take(rows)
        glued = hold(text, marked.marks.take(rows) + TEXT_AT, ends.take(lines), b"NCCL")
        telling: Array = lines[~glued]
        return telling


class Sifted:
    """The lines of a part that are to be read: the first of those alike, and what is added."""

    def __init__(self, marks: Marks, kept: Array) -> None:
        self._marks = marks
        self.kept = self._rows(kept)
        """Index, begin, end and hash of the lines that are to be read, in their order."""
        self._added: list[tuple[int, ...]] = []
        self._by_hash: tuple[Array, Array] | None = None

    def rows(self) -> Iterator[tuple[int, ...]]:
        """What is `kept`, and what is added on the way."""
        added = self._added
        for row in self.kept:
            while added and added[0] < row:
                yield heapq.heappop(added)
            yield row
        while added:
            yield heapq.heappop(added)

    def add(self, hashes: Iterable[int], after: int) -> None:
        """Let the lines after this one be read, too, that have any of these hashes; one that is
        to be read anyway comes twice.
        """
        for row in self._rows(self._with_hash(np.fromiter(hashes, np.uint64), after)):
            heapq.heappush(self._added, row)

    def _with_hash(self, hashes: Array, after: int) -> Array:
        if self._by_hash is None:
            order = np.argsort(self._marks.hashes)
            self._by_hash = order, self._marks.hashes.take(order)
        order, ordered = self._by_hash
        begins = ordered.searchsorted(hashes).tolist()
        stops = ordered.searchsorted(hashes, "right").tolist()
        parts = [order[begin:stop] for begin, stop in zip(begins, stops, strict=True)]
        lines = np.concatenate((np.zeros(0, np.int64), *parts))
        return lines[lines > after]

    def _rows(self, lines: Array) -> list[tuple[int, ...]]:
        ends = self._marks.ends
        begins = ends.take(lines - 1) + 1
        begins[lines == 0] = 0
        columns = (lines, begins, ends.take(lines), self._marks.hashes.take(lines))
        return list(zip(*(column.tolist() for column in columns), strict=True))


class Sieve:
    """Remembers the hashes of what was read; the memory is fixed, and forgets at worst."""

    def __init__(self) -> None:
        self._table = np.zeros(1 << _TABLE_BITS, np.uint64)
        self._spare = np.zeros(1 << _SPARE_BITS, np.uint64)

    def learn(self, hashes: list[int]) -> None:
        """Drop such lines from now on."""
        found = np.array(hashes, np.uint64)
        slots = found >> _SLOT_SHIFT
        # Two that want the same slot would push each other out for ever.
        pushed = self._table[slots]
        self._table[slots] = found
        self._spare[_spare_slots(pushed)] = pushed
        # Here all lines without a hash are looked up.
        self._table[0] = 0

    def forget(self, hashes: Iterable[int]) -> None:
        """Let such lines through again."""
        found = np.fromiter(hashes, np.uint64)
        for table, slots in (
            (self._table, (found >> _SLOT_SHIFT).view(np.int64)),
            (self._spare, _spare_slots(found)),
        ):
            table[slots[table[slots] == found]] = 0

    def sift(self, marks: Marks) -> Sifted:
        """Choose what is to be read: of the lines whose hash was not learned the first of each,
        and those without a hash.
        """
        unknown = self._unknown(marks.hashes)
        _, first = np.unique(marks.hashes.take(unknown), return_index=True)
        return Sifted(marks, np.sort(np.concatenate((marks.others, unknown.take(first)))))

    def _unknown(self, hashes: Array) -> Array:
        """The lines that have a hash which was not learned."""
        learned = self._table.take((hashes >> _SLOT_SHIFT).view(np.int64))
        left: Array = np.flatnonzero(learned != hashes)
        found = hashes.take(left)
        return left.compress(self._spare.take(_spare_slots(found)) != found)


def _spare_slots(hashes: Array) -> Array:
    return ((hashes >> _SPARE_SHIFT) & _SPARE_MASK).view(np.int64)
