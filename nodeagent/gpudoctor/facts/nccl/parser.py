"""Reads NCCL logs as a stream, at close to the price of splitting them into lines.

Nine lines in ten of a large log are channel lines, and all that differs between those of one
process is the channel's number. So a channel line is cut in two: what stands before
`NCCL INFO Channel ` names the process, and what follows the number is looked up among what
this process has already said. Only what is new goes the slow way, and only lines that name
NCCL at all are looked at.
"""

from __future__ import annotations

import os
from functools import cached_property
from itertools import repeat
from typing import TYPE_CHECKING

from gpudoctor.facts.nccl import messages, ras, watchdog
from gpudoctor.facts.nccl.communicators import Said, usual, usual_lines
from gpudoctor.facts.nccl.model import Line, NcclLog
from gpudoctor.facts.nccl.records import LONGEST, Record, is_wrapped, plain, records
from gpudoctor.facts.nccl.speakers import Speakers
from gpudoctor.facts.nccl.state import Process
from gpudoctor.facts.nccl.summary import summarise

if TYPE_CHECKING:
    from gpudoctor.facts.nccl import flight
    from gpudoctor.facts.nccl.sieve import Sieve

_BLAS_THREADS = "OPENBLAS_NUM_THREADS"
_CHANNEL = b" NCCL INFO Channel "
_INFO = b" NCCL INFO "
_PIECE = 1 << 20
_TAIL_BYTES = 1 << 14
_SIEVED = 1 << 16
"""Smaller pieces are not worth the sieve."""
_SEEN_LIMIT = 1 << 11
_FLIGHT = b"Not all ranks joining collective"
"""With what the tool that reads flight records begins."""

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
        text[-1:].isalnum() and b"NCCL " not in text and b"\x1b" not in text and b"&gt;" not in text
    )


def _begins_report(line: bytes) -> bool:
    """Tell the line with which a report begins that is read line by line."""
    return ras.begins(line) or (_FLIGHT in line and b" NCCL INFO " not in line)


class Parser:
    """Takes pieces of one or more logs of one job and sums them up.

    Call `open` for each source, `feed` for its bytes, `so_far` at any time, `finish` at the end.
    """

    def __init__(self) -> None:
        self.book = messages.Book()
        self.work = watchdog.Watchdog()
        self.ras = ras.Reader()
        self.flight: flight.Reader | None = None
        self.sources: list[str] = []
        self.lines = 0
        self.unfinished: Line | None = None
        self._speakers = Speakers(self.book.add)
        self._at, self._line = self.book.place.at, self.book.place.line
        self._prefixed = False
        self._wrapped = False
        self._again: set[int] = set()
        """Hashes of what the sieve has to let through again."""
        self._reports_are_read = False
        self._rest = b""
        self._skipping = False
        self._number = 0
        self._tail = b""
        self._source = ""

    def open(self, source: str) -> None:
        """Begin with another source; its lines count from 1."""
        self._close()
        self._source = source
        if source not in self.sources[-1:]:
            self.sources.append(source)
        self.book.lines_before = self.lines
        self._number = 0
        self._prefixed = self._wrapped = False
        self._speakers.forget_heads()

    def feed(self, chunk: bytes) -> None:
        """Read some more bytes of the source."""
        for start in range(0, len(chunk), _PIECE):
            self._feed(chunk[start : start + _PIECE])

    def so_far(self) -> NcclLog:
        """Return what the whole lines read so far say; reading goes on after it."""
        return summarise(self)

    def finish(self) -> NcclLog:
        """Return what all the sources say so far; the open one ends here."""
        self._close()
        return summarise(self)

    def _close(self) -> None:
        rest, self._rest, self._skipping = self._rest, b"", False
        if rest and not (self._number and _CHANNEL in rest):
            # What is cut off may look like a channel without GDR.
            self._read(rest + b"\n", 0, len(rest) + 1)
        self._look_at_tail()
        self._tail = b""

    def _feed(self, chunk: bytes) -> None:
        stop = chunk.rfind(b"\n") + 1
        if not stop:
            if not self._skipping:
                self._rest += chunk
            if len(self._rest) > LONGEST:
                self._rest, self._skipping = self._rest[:LONGEST], True
            return
        start = chunk.find(b"\n") if self._skipping else 0
        if self._rest:
            # Of a large piece only the line that was cut is put together.
            first = chunk.find(b"\n", start) + 1 if stop > _SIEVED else stop
            whole = b"".join((self._rest, memoryview(chunk)[start:first]))
            self._read(whole, 0, len(whole))
            start = first
        self._skipping = False
        self._rest = chunk[stop:]
        if start < stop:
            self._read(chunk, start, stop)

    @cached_property
    def _sieve(self) -> Sieve | None:
        """The sieve needs numpy (extra `fast`); without it all lines are looked at one by one."""
        # Imported when the first large piece comes: numpy costs more than a short log. Its linear
        # algebra, which is not used, would start a thread for each core.
        os.environ.setdefault(_BLAS_THREADS, "1")
        try:
            from gpudoctor.facts.nccl.sieve import Sieve
        except ImportError:
            return None
        return Sieve(_PIECE, (b"NCCL", _FLIGHT), _DULL)

    def _read(self, data: bytes, start: int, stop: int) -> None:
        """Read the whole lines between these places, the newline of the last included."""
        self._reports_are_read = False
        if self._is_in_report():
            self._read_reports(data[start:stop])
        if data.find(b"NCCL", start, stop) < 0:
            if data.find(_FLIGHT, start, stop) >= 0:
                self._read_reports(data[start:stop])
            count = data.count(b"\n", start, stop)
        elif stop - start > _SIEVED and not self._wrapped and self._sieve is not None:
            count = self._read_sieved(self._sieve, data, start, stop)
        else:
            count = self._read_lines(data[start:stop])
        self.lines += count
        self._number += count
        tail = data[max(start, stop - _TAIL_BYTES) : stop]
        self._tail = (self._tail + tail)[-_TAIL_BYTES:]

    def _is_in_report(self) -> bool:
        return self.ras.is_open or (self.flight is not None and self.flight.is_open)

    def _read_reports(self, piece: bytes) -> None:
        """Read the parts of a piece that are reports of `ncclras` or of the tool that reads flight
        records: few of their lines name NCCL.
        """
        if self._reports_are_read:
            return
        self._reports_are_read = True
        for number, line in enumerate(piece.split(b"\n")[:-1], self._number + 1):
            if self._is_in_report() or _begins_report(line):
                text = plain(line)
                self._at(self._source, number, text)
                if self.ras.is_open or ras.begins(line):
                    self.ras.read(text, self._line())
                if self.flight is None and _FLIGHT in line:
                    from gpudoctor.facts.nccl.flight import (
                        Reader,
                    )  # imported late: few logs have it

                    self.flight = Reader()
                if self.flight is not None:
                    self.flight.read(text, self._line())

    def _read_sieved(self, sieve: Sieve, data: bytes, start: int, stop: int) -> int:
        """Read what the sieve lets through of a part; return how many lines that has."""
        first = self._number + 1
        sifted = sieve.sift(data, start, stop, prefixed=self._prefixed)
        lines = [
            data[start + begin : start + end]
            for _, begin, end, its_hash in sifted.kept
            if not its_hash
        ]
        others = zip(lines, self._told(lines), strict=True)
        learned: dict[int, None] = {}
        unlike: set[int] = set()
        for line, begin, end, its_hash in sifted.rows():
            if not its_hash:
                text, said = next(others)
                if not (said[0] and self._is_read(first + line, text, said)):
                    if _begins_report(text):
                        self._read_reports(data[start:stop])
                    self._take(first + line, text)
            else:
                process = self._take(first + line, data[start + begin : start + end])
                if process is None:
                    if its_hash not in unlike:
                        # Those alike differ in what the hash leaves out, and may be read.
                        unlike.add(its_hash)
                        sifted.add((its_hash,), line)
                elif len(process.hashes) < _SEEN_LIMIT:
                    process.hashes.add(its_hash)
                    learned[its_hash] = None
            if self._again:
                # Twice the same channel line does no harm.
                sifted.add(self._again, line)
                for each in self._again:
                    learned.pop(each, None)
                self._forget()
        sieve.learn(list(learned))
        return len(sifted)

    def _told(self, lines: list[bytes]) -> list[Said]:
        """What lines say of communicators, for all together."""
        if self._prefixed:
            lines = [line[line.rfind(b" ", 0, line.find(_INFO) - 5) + 1 :] for line in lines]
        return usual_lines(lines)

    def _is_read(self, number: int, line: bytes, said: Said) -> bool:
        """Read a line by what it says of a communicator, if it does."""
        process = self._speakers.called(said[0], said[1])
        if process is None:
            return False
        if said[-1]:
            self._at(self._source, number, line)
        if not self.book.communicators.read_usual(process, said):
            return False
        if process.is_remapped:
            self._hear_again(process)
        return True

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
        core = head[head.rfind(b" ", 0, -5) + 1 :] if self._prefixed else head
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
        said = usual(text)
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
        if ras.BEGIN in piece or _FLIGHT in piece:
            self._read_reports(piece)
        lines = piece.split(b"\n")[:-1]
        if self._wrapped:
            lines = [plain(line) for line in lines]
        if self._prefixed:
            self._read_prefixed(lines, self._number + 1)
        else:
            self._read_plain(lines, self._number + 1)
        self._forget()
        return len(lines)

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
        if not self._wrapped and is_wrapped(raw) and text != raw:
            self._wrapped = True
        self._at(self._source, number, text)
        found = list(records(text, self._speakers.hosts))
        if not found:
            if not self.book.read_bare(text):
                self.work.read(text, self._line())
            return None
        for record in found:
            process = self._read_record(record)
        core = record.core
        self._prefixed = self._prefixed or (head != core and self._speakers.knows(core))
        self._speakers.introduce(core, process)
        if len(found) > 1:
            return None
        if head != core and text.startswith(head):
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
        if self.unfinished is None and watchdog.may_have_given_up(self._tail):
            lines = self._tail.split(b"\n")[:-1]
            for number, line in enumerate(lines, self._number - len(lines) + 1):
                if watchdog.gave_up(line):
                    self._at(self._source, number, plain(line))
                    self.unfinished = self._line()
                    return
