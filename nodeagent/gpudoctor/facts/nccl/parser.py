"""Reads NCCL logs as a stream, at close to the price of splitting them into lines.

Nine lines in ten of a large log are channel lines, and all that differs between those of one
process is the channel's number. So a channel line is cut in two: what stands before
`NCCL INFO Channel ` names the process, and what follows the number is looked up among what
this process has already said. Only what is new goes the slow way, and only lines that name
NCCL at all are looked at.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from itertools import repeat
from typing import TYPE_CHECKING

from gpudoctor.facts.nccl import (
    channels,
    communicators,
    messages,
    quotes,
    ras,
    reports,
    watchdog,
)
from gpudoctor.facts.nccl.lines import Lines, Part
from gpudoctor.facts.nccl.model import Line, NcclLog
from gpudoctor.facts.nccl.records import (
    LONGEST,
    Record,
    is_wrapped,
    plain,
    records,
    without_prefix,
)
from gpudoctor.facts.nccl.reports import Reports
from gpudoctor.facts.nccl.sieve import Sifted, sieve
from gpudoctor.facts.nccl.speakers import Speakers
from gpudoctor.facts.nccl.state import Process
from gpudoctor.facts.nccl.summary import summarise

if TYPE_CHECKING:
    from gpudoctor.facts.nccl._sieve import Sieve

_CHANNEL = b" NCCL INFO Channel "
_INFO = b" NCCL INFO "
_ADDRESS_END = b"<0>"
_LAST_BYTES = 1 << 14
_SIEVED = 1 << 16
"""Smaller pieces are not worth the sieve."""
_SEEN_LIMIT = 1 << 11

_WORDS = (b"NCCL", reports.FLIGHT, *messages.BARE_WORDS)
"""One of these stands in each line that is worth reading."""

# The first eight bytes of messages that carry nothing for us and are printed often.
_DULL = frozenset(
    (
        b"Trees [0", b"threadTh", b"P2P Chun", b"Setting ", b"[Proxy S", b"NVLS Hea", b"Tree 0 :",
        b"Connecte", b"DMA-BUF ", b"cudaDriv", b"RAS clie",
        b"Tree 1 :", b"=== Syst", b"========", b"Pattern ", b"CPU/0 (1",
    )
)  # fmt: skip


def _is_clean(text: bytes) -> bool:
    """Whether a message stands alone in its line, without anything around it."""
    # A fold mark of Ray, a frame, a colour or a carriage return would stand at the end, an entity
    # of a web page for the arrow.
    return (
        (text[-1:].isalnum() or text.endswith(_ADDRESS_END))
        and b"NCCL " not in text
        and b"\x1b" not in text
        and b"&gt;" not in text
    )


class Parser:
    """Takes pieces of one or more logs of one job and sums them up.

    Call `open` for each source, `feed` for its bytes, `so_far` at any time, `finish` at the end.
    """

    def __init__(self) -> None:
        self.book = messages.Book()
        self.work = watchdog.Watchdog()
        self.reports = Reports(self.book.place)
        self.sources: list[str] = []
        self.lines = 0
        self.unfinished: Line | None = None
        self._speakers = Speakers(self.book.add)
        self._at, self._line = self.book.place.at, self.book.place.line
        self._cut = Lines()
        self._is_prefixed = False
        """Whether each line begins with something of its own, such as the time."""
        self._is_wrapped = False
        """Whether the lines are JSON documents."""
        self._again: set[int] = set()
        """Hashes of what the sieve has to let through again."""
        self._number = 0
        self._tail = b""
        self._source = ""

    def open(self, source: str) -> None:
        """Begin with another source; its lines count from 1."""
        self._close(self._cut.end())
        self._source = source
        if source not in self.sources[-1:]:
            self.sources.append(source)
        self.book.lines_before = self.lines
        self._number = 0
        self._is_prefixed = self._is_wrapped = False
        self.reports.open()
        self._speakers.forget_heads()

    def feed(self, chunk: bytes) -> None:
        """Read some more bytes of the source."""
        for part in self._cut.take(chunk):
            self._read(part)

    def so_far(self) -> NcclLog:
        """Return what the whole lines read so far say; reading goes on after it."""
        return summarise(self)

    def finish(self) -> NcclLog:
        """Return what all the sources say so far; the open one ends here."""
        self._close(self._cut.end())
        return summarise(self)

    def _close(self, rest: bytes) -> None:
        """End the source; the rest of it is what stands behind its last newline."""
        if rest and not (self._number and _CHANNEL in rest):
            # What is cut off may look like a channel without GDR.
            whole = rest + b"\n"
            self._read(Part(whole, 0, len(whole)))
        quotes.read(self, self._tail)
        self._look_at_tail()
        self._tail = b""

    @cached_property
    def _sieve(self) -> Sieve | None:
        return sieve(_WORDS, _DULL)

    def _read(self, part: Part) -> None:
        data, start, stop = part
        if self.reports.is_open:
            self._read_reports(data[start:stop])
        is_large = stop - start > _SIEVED and not self._is_wrapped
        if not any(data.find(word, start, stop) >= 0 for word in _WORDS):
            count = data.count(b"\n", start, stop)
        elif is_large and self._sieve is not None:
            count = self._read_sifted(self._sieve, part)
        else:
            count = self._read_lines(data[start:stop])
        self.lines += count
        self._number += count
        tail = data[max(start, stop - quotes.TAIL_BYTES) : stop]
        self._tail = (self._tail + tail)[-quotes.TAIL_BYTES :]

    def _read_reports(self, part: bytes) -> None:
        self.reports.read(self._source, self._number + 1, part)

    def _read_sifted(self, through: Sieve, part: Part) -> int:
        """Read what the sieve lets through of a part; return how many lines it has."""
        sifted = Sifted(through, part, prefixed=self._is_prefixed)
        first = self._number + 1
        source, at, usual = self._source, self._at, self.book.communicators.read_usual
        called = self._speakers.called
        connected, told = self._told(sifted)
        learned: dict[int, None] = {}
        unlearned: set[int] = set()
        for line, text, its_hash in sifted.rows():
            if its_hash:
                process = self._connected(first + line, text, connected.get(line))
                if process is None:
                    # Those alike differ in what the hash leaves out, and may be read.
                    sifted.add((its_hash,), line)
                elif len(process.hashes) < _SEEN_LIMIT:
                    process.hashes.add(its_hash)
                    learned[its_hash] = None
                else:
                    unlearned.add(its_hash)
            else:
                said = next(told)
                process = called(said[0], said[1]) if said[0] else None
                if process is not None and said[-1]:
                    at(source, first + line, text)
                if process is not None and usual(process, said):
                    if not process.is_remapped:
                        continue
                    self._hear_again(process)
                else:
                    if reports.begins(text):
                        self._read_reports(part.data[part.start : part.stop])
                    self._take(first + line, text)
            if self._again:
                # Twice the same channel line does no harm.
                sifted.add(self._again | unlearned, line)
                for each in self._again:
                    learned.pop(each, None)
                self._forget()
        through.learn(learned)
        return sifted.count

    def _told(
        self, sifted: Sifted
    ) -> tuple[dict[int, channels.Said], Iterator[communicators.Said]]:
        """What the lines to be read say that have a usual form, for all together: of channels by
        the line's index, of communicators for one line without a hash after the other.
        """
        hashed = [text for _, text, its_hash in sifted.kept if its_hash]
        others = [text for _, text, its_hash in sifted.kept if not its_hash]
        if self._is_prefixed:
            hashed, others = list(map(without_prefix, hashed)), list(map(without_prefix, others))
        indexes = (row[0] for row in sifted.kept if row[-1])
        said = zip(indexes, channels.usual_lines(hashed), strict=True)
        connected = {index: of_channel for index, of_channel in said if of_channel[0]}
        return connected, iter(communicators.usual_lines(others))

    def _connected(self, number: int, line: bytes, said: channels.Said | None) -> Process | None:
        """Read a channel line, by what it says if it has the usual form; return as `_take`."""
        process = self._speakers.called(said[0], said[1]) if said else None
        if said is None or process is None or b"NCCL " in said[-1]:
            return self._take(number, line)
        if said[2] not in process.heard:
            self._at(self._source, number, line)
            self.book.channels.connect(process, *said[3:])
            self._remember(said[2], process)
        return process

    def _forget(self) -> None:
        """Let through again what has to be heard again."""
        if self._again and self._sieve is not None:
            self._sieve.forget(self._again)
        self._again = set()

    def _take(self, number: int, line: bytes) -> Process | None:
        """Read a line; return whose channel it is, if the like of it need not be read again."""
        head, mark, text = line.partition(_INFO)
        if not mark:
            return self._slow(number, line, head, b"")
        if text[:8] in _DULL and b" NCCL " not in text:
            return None
        tail = text[8:] if text[:8] == b"Channel " else b""
        core = head[head.rfind(b" ", 0, -5) + 1 :] if self._is_prefixed else head
        process = self._speakers.of(core)
        if process is None:
            return self._slow(number, line, head, tail)
        self._at(self._source, number, line)
        if tail:
            if not _is_clean(text):
                return self._slow(number, line, head, tail)
            if tail[2:] not in process.heard:
                self.book.channels.read(process, text)
                self._remember(tail[2:], process)
            self._speakers.listen(core, process)
            return process
        said = communicators.usual(text)
        if said is None or not self.book.communicators.read_usual(process, said):
            # What may be a symptom is read with the time that stands in front.
            if core != head or not _is_clean(text):
                return self._slow(number, line, head, b"")
            record = Record(process.host, process.pid, process.device, b"", False, text, "", False)
            if self.book.read(process, record):
                return self._slow(number, line, head, b"")
        if process.is_remapped:
            self._hear_again(process)
        return None

    def _read_lines(self, piece: bytes) -> int:
        """Read all lines of a piece one by one; return how many."""
        if ras.BEGIN in piece or reports.FLIGHT in piece:
            self._read_reports(piece)
        lines = piece.split(b"\n")[:-1]
        if self._is_wrapped:
            lines = [plain(line) for line in lines]
        if self._is_prefixed:
            self._read_prefixed(lines, self._number + 1)
        else:
            self._read_plain(lines, self._number + 1)
        if any(words in piece for words in messages.BARE_WORDS):
            self._read_bare(lines)
        self._forget()
        return len(lines)

    def _read_bare(self, lines: list[bytes]) -> None:
        """Read those lines of a piece that do not name NCCL and are worth it."""
        for number, line in enumerate(lines, self._number + 1):
            if b"NCCL" not in line and any(words in line for words in messages.BARE_WORDS):
                self._slow(number, line, line, b"")

    def _read_plain(self, lines: list[bytes], first: int) -> None:
        heads = self._speakers.heads
        take = self._take
        parts = map(bytes.partition, lines, repeat(_CHANNEL))
        for number, (head, mark, tail) in enumerate(parts, first):
            if mark:
                try:
                    if tail[2:] in heads[head]:
                        continue
                except KeyError:
                    pass
                take(number, head + mark + tail)
            elif b"NCCL" in head:
                take(number, head)

    def _read_prefixed(self, lines: list[bytes], first: int) -> None:
        """As `_read_plain`, for lines whose beginning differs each time, such as by a time."""
        heads = self._speakers.heads
        take = self._take
        parts = map(bytes.partition, lines, repeat(_CHANNEL))
        for number, (head, mark, tail) in enumerate(parts, first):
            if mark:
                try:
                    if tail[2:] in heads[head[head.rfind(b" ", 0, -5) + 1 :]]:
                        continue
                except KeyError:
                    pass
                take(number, head + mark + tail)
            elif b"NCCL" in head:
                take(number, head)

    def _slow(self, number: int, raw: bytes, head: bytes, tail: bytes) -> Process | None:
        """Read a line that has something around its record, or a speaker not heard before."""
        if b" NCCL CALL " in raw or b" NCCL TRACE " in raw:
            return None
        text = plain(raw[:LONGEST])
        if not self._is_wrapped and is_wrapped(raw) and text != raw:
            self._is_wrapped = True
        self._at(self._source, number, text)
        found = list(records(text, self._speakers.hosts))
        if not found:
            if not self.book.read_bare(text):
                self.work.read(text, self._line())
            return None
        for record in found:
            process = self._read_record(record)
        core = record.core
        self._is_prefixed = self._is_prefixed or (head != core and self._speakers.knows(core))
        self._speakers.introduce(core, process)
        if len(found) > 1:
            return None
        if head != core and head.endswith(core) and text.startswith(head):
            self._speakers.introduce(head, process)
        if not tail:
            return None
        self._remember(tail[2:], process)
        self._speakers.listen(core, process)
        self._speakers.listen(head, process)
        return process

    def _read_record(self, record: Record) -> Process:
        process = self._speakers.named(record.host, record.pid, record.device)
        if self.book.read(process, record):
            self._hear_again(process)
            fresh = self._speakers.begin_anew(process)
            self.book.retire(process)
            process = fresh
            self.book.read(process, record)
        if process.is_remapped:
            self._hear_again(process)
        return process

    def _hear_again(self, process: Process) -> None:
        """What a process said of its channels counts anew when it says it again."""
        process.is_remapped = False
        process.heard.clear()
        self._again |= process.hashes
        process.hashes = set()

    def _remember(self, said: bytes, process: Process) -> None:
        """Let the quick way pass over what was just read, whatever its channel number."""
        if len(process.heard) > _SEEN_LIMIT:
            process.heard.clear()
        process.heard.add(said)

    def _look_at_tail(self) -> None:
        last = self._tail[-_LAST_BYTES:]
        if self.unfinished is None and watchdog.may_have_given_up(last):
            lines = last.split(b"\n")[:-1]
            for number, line in enumerate(lines, self._number - len(lines) + 1):
                if watchdog.gave_up(line):
                    self._at(self._source, number, plain(line))
                    self.unfinished = self._line()
                    return
