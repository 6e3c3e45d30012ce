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

import numpy as np

from gpudoctor.facts.nccl.fingerprint import MARK_BYTES, TEXT_AT, Fingerprints, Marked, word
from gpudoctor.facts.nccl.vectors import Array, Places, hold

_TABLE_BITS, _SPARE_BITS = 20, 18
_KEPT_BYTES = 1 << 24
_SLOT_SHIFT, _SPARE_SHIFT = np.uint64(63 - _TABLE_BITS), np.uint64(43 - _SPARE_BITS)
_SPARE_MASK = np.uint64((1 << _SPARE_BITS) - 1)


class Sifted:
    """The lines of a piece: where each begins and ends, its hash, 0 where it is no channel line
    of the usual form; and which of them are to be read: of those alike the first.
    """

    def __init__(self, columns: tuple[Array, ...], kept: Array) -> None:
        self._columns = columns
        self.kept = self._rows(kept)
        """Index, begin, end and hash of the lines that are to be read, in their order."""
        self._added: list[tuple[int, ...]] = []
        self._by_hash: tuple[Array, Array] | None = None

    def __len__(self) -> int:
        return len(self._columns[0])

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
            order = np.argsort(self._columns[-1])
            self._by_hash = order, self._columns[-1].take(order)
        order, ordered = self._by_hash
        begins = ordered.searchsorted(hashes).tolist()
        stops = ordered.searchsorted(hashes, "right").tolist()
        parts = [order[begin:stop] for begin, stop in zip(begins, stops, strict=True)]
        lines = np.concatenate((np.zeros(0, np.int64), *parts))
        return lines[lines > after]

    def _rows(self, lines: Array) -> list[tuple[int, ...]]:
        columns = (lines, *(column.take(lines) for column in self._columns))
        return list(zip(*(column.tolist() for column in columns), strict=True))


class Sieve:
    """Remembers the hashes of what was read; the memory is fixed, and forgets at worst.

    Takes pieces of up to `most` bytes. A line without NCCL's mark is read if it holds one of the
    `words`. `dull` are the first eight bytes of messages that carry nothing.
    """

    def __init__(self, most: int, words: Iterable[bytes], dull: Iterable[bytes]) -> None:
        self._words = tuple(words)
        self._dull = np.array(sorted(word(text) for text in dull), np.uint64)
        self._table = np.zeros(1 << _TABLE_BITS, np.uint64)
        self._spare = np.zeros(1 << _SPARE_BITS, np.uint64)
        # Freed once, a block this large makes glibc keep the smaller ones that each piece takes,
        # instead of giving them back to the kernel and having them cleared each time.
        np.empty(_KEPT_BYTES, np.uint8)
        self._places = Places(most, b"\n", b"F")
        self._forms = {prefixed: Fingerprints(prefixed=prefixed) for prefixed in (False, True)}

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

    def sift(self, data: bytes, start: int, stop: int, *, prefixed: bool) -> Sifted:
        """Choose the lines to read of a part that holds whole lines and ends with a newline;
        their places are counted from `start`.

        `prefixed`: each line begins with something of its own, such as the time, up to a space.
        """
        text = np.frombuffer(data, np.uint8, stop - start, start)
        ends, marks, lines = self._places.find(text)
        marks -= MARK_BYTES
        starts = np.empty_like(ends)
        starts[0] = 0
        np.add(ends[:-1], 1, out=starts[1:])
        marked = self._forms[prefixed].take(text, starts, ends, marks, lines)
        is_kept = np.ones(len(ends), bool)
        is_kept[marked.lines] = False
        unmarked = np.flatnonzero(is_kept)
        is_kept[unmarked] = hold(text, starts.take(unmarked), ends.take(unmarked), *self._words)
        is_kept[marked.lines[_first_of_each(marked.hashes, self._unknown(marked.hashes))]] = True
        is_kept[self._dull_lines(text, ends, marked)] = False
        hashes = np.zeros(len(ends), np.uint64)
        hashes[marked.lines] = marked.hashes
        return Sifted((starts, ends, hashes), np.flatnonzero(is_kept))

    def _unknown(self, hashes: Array) -> Array:
        """Those whose hash was not learned, those without a hash among them."""
        known = self._table.take((hashes >> _SLOT_SHIFT).view(np.int64)) == hashes
        known &= hashes != 0
        kept: Array = np.flatnonzero(~known)
        left = hashes.take(kept)
        unknown = (self._spare.take(_spare_slots(left)) != left) | (left == 0)
        return kept.compress(unknown)

    def _dull_lines(self, text: Array, ends: Array, marked: Marked) -> Array:
        """The lines that carry nothing, unless another record is glued to the message."""
        nearest = self._dull.take(self._dull.searchsorted(marked.words), mode="clip")
        rows = marked.others[nearest == marked.words]
        lines = marked.lines.take(rows)
        glued = hold(text, marked.marks.take(rows) + TEXT_AT, ends.take(lines), b"NCCL")
        telling: Array = lines[~glued]
        return telling


def _first_of_each(hashes: Array, rows: Array) -> Array:
    """Of rows with the same hash the first, and all rows without a hash."""
    found = hashes.take(rows)
    _, first = np.unique(found, return_index=True)
    return np.concatenate((rows.take(first), rows[found == 0]))


def _spare_slots(hashes: Array) -> Array:
    return ((hashes >> _SPARE_SHIFT) & _SPARE_MASK).view(np.int64)
