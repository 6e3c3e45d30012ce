"""Which lines of a large log are worth reading: those in which NCCL says something new.

Nine lines in ten are channel lines, and those of one process differ in little but the channel's
number. So a channel line of the usual form has a hash of what names its process (host, pid,
device; not the thread) and of what follows the channel's number. The sieve drops lines whose
hash was learned, lines without any of some words in them, and messages that are known to carry
nothing. What it does not recognise is handed on.

It is the one part that is compiled, for it looks at every byte. Where it could not be built, all
lines are read one by one, to the same end, in some four times the time.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gpudoctor.facts.nccl._sieve import Row, Sieve
    from gpudoctor.facts.nccl.lines import Part


def sieve(words: Iterable[bytes], dull: Iterable[bytes]) -> Sieve | None:
    """A sieve that has learned nothing yet, None where it could not be built.

    A line without NCCL's mark is kept if it holds one of the `words`. `dull` are the first eight
    bytes of messages that carry nothing. What it remembers takes 10 MiB at most; of more lines
    than it has room for it forgets some, which are read again then.
    """
    try:
        from gpudoctor.facts.nccl._sieve import Sieve
    except ImportError:
        return None
    return Sieve(tuple(words), tuple(dull))


class Sifted:
    """The lines of a part that are to be read: those without a hash, of the others the first of
    those alike, and what is added. It serves until the next part is sifted.

    `prefixed`: each line begins with something of its own, such as the time, up to a space.
    """

    def __init__(self, through: Sieve, part: Part, *, prefixed: bool) -> None:
        self._sieve = through
        self.count, self.kept = through.sift(part.data, part.start, part.stop, prefixed)
        """How many lines the part has; and index, text and hash (0 if it has none) of those that
        are to be read, in their order.
        """
        self._added: list[Row] = []
        self._whole: set[int] = set()
        """Hashes of which every line is let through, from some line on."""

    def rows(self) -> Iterator[Row]:
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
        to be read anyway may come twice.
        """
        for each in hashes:
            if each not in self._whole:
                self._whole.add(each)
                for row in self._sieve.alike(each, after):
                    heapq.heappush(self._added, row)
