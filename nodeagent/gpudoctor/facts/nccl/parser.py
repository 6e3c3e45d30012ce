"""Reads NCCL logs as a stream, at close to the price of splitting them into lines.

Nine lines in ten of a large log are channel lines, and all that differs between those of one
process is the channel's number. So a channel line is cut in two: what stands before
`NCCL INFO Channel ` names the process, and what follows the number is looked up among what
this process has already said. Only what is new goes the slow way, and only lines that name
NCCL at all are looked at.
"""

from __future__ import annotations

from functools import cached_property
from itertools import repeat
from typing import TYPE_CHECKING, NamedTuple

from gpudoctor.facts.nccl import messages, watchdog
from gpudoctor.facts.nccl.model import Line, NcclLog
from gpudoctor.facts.nccl.records import LONGEST, Record, is_wrapped, plain, records
from gpudoctor.facts.nccl.state import Process
from gpudoctor.facts.nccl.summary import summarise

if TYPE_CHECKING:
    from gpudoctor.facts.nccl.sieve import Sieve, Sifted

_CHANNEL = b" NCCL INFO Channel "
_INFO = b" NCCL INFO "
_PIECE = 1 << 20
_NOTHING: frozenset[bytes] = frozenset()
_TAIL_BYTES = 1 << 14
_SIEVED = 1 << 16
"""Smaller pieces are not worth the sieve."""
_HEADS_LIMIT = 1 << 12
_SEEN_LIMIT = 1 << 11

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
    # A fold mark of Ray, a frame, a colour or a carriage return would stand at the end.
    return text[-1:].isalnum() and b"NCCL " not in text and b"\x1b" not in text


class _Name(NamedTuple):
    host: str
    pid: int
    device: int


class Parser:
    """Takes pieces of one or more logs of one job and sums them up.

    Call `open` for each source, `feed` for its bytes, `so_far` at any time, `finish` at the end.
    """

    def __init__(self) -> None:
        self.book = messages.Book()
        self.work = watchdog.Watchdog()
        self.sources: list[str] = []
        self.lines = 0
        self.unfinished: Line | None = None
        self._processes: dict[_Name, Process] = {}
        self._hosts: dict[bytes, None] = {}
        self._heads: dict[bytes, set[bytes]] = {}
        self._speakers: dict[bytes, Process] = {}
        self._callers: dict[tuple[bytes, bytes], Process] = {}
        self._prefixed = False
        self._wrapped = False
        self._must_hear_again = False
        self._rest = b""
        self._skipping = False
        self._number = 0
        self._tail = b""
        self._source = ""

    def open(self, source: str) -> None:
        """Begin with another source; its lines count from 1."""
        self._close()
        self._source = source
        self.sources.append(source)
        self.book.lines_before = self.lines
        self._number = 0
        self._prefixed = self._wrapped = False
        self._heads.clear()
        self._speakers.clear()
        self._callers.clear()

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
            self._read(rest + b"\n")
        self._look_at_tail()
        self._tail = b""

    def _feed(self, chunk: bytes) -> None:
        end = chunk.rfind(b"\n")
        if end < 0:
            if not self._skipping:
                self._rest += chunk
            if len(self._rest) > LONGEST:
                self._rest, self._skipping = self._rest[:LONGEST], True
            return
        whole = chunk[:end]
        start = chunk.find(b"\n") if self._skipping else 0
        whole = b"".join((self._rest, memoryview(chunk)[start : end + 1]))
        self._skipping = False
        self._rest = chunk[end + 1 :]
        self._read(whole)

    @cached_property
    def _sieve(self) -> Sieve | None:
        """The sieve needs numpy (extra `fast`); without it all lines are looked at one by one."""
        # Imported when the first large piece comes: numpy costs more than a short log.
        try:
            from gpudoctor.facts.nccl.sieve import Sieve
        except ImportError:
            return None
        return Sieve()

    def _read(self, piece: bytes) -> None:
        """Read whole lines, the newline of the last included."""
        if len(piece) > _SIEVED and not self._wrapped and self._sieve is not None:
            lines = self._read_sieved(self._sieve, piece)
        else:
            lines = self._read_lines(piece.split(b"\n")[:-1])
        self.lines += lines
        self._number += lines
        self._tail = (self._tail + piece[-_TAIL_BYTES:])[-_TAIL_BYTES:]

    def _read_sieved(self, sieve: Sieve, piece: bytes) -> int:
        first = number = self._number + 1
        while piece:
            if self._must_hear_again:
                sieve.forget()
                self._must_hear_again = False
            sifted = sieve.sift(piece, prefixed=self._prefixed)
            end = self._read_sifted(sieve, sifted, number, piece)
            number += piece.count(b"\n", 0, end)
            piece = piece[end:]
        return number - first

    def _read_sifted(self, sieve: Sieve, sifted: Sifted, number: int, piece: bytes) -> int:
        """Read what the sieve let through, up to a line after which it must forget; return where
        the reading ended.
        """
        learned = []
        for line, start, end, mark, its_hash in zip(*sifted, strict=True):
            if mark < 0:
                if piece.find(b"NCCL", start, end) < 0:
                    continue
                mark = piece.find(_INFO, start, end)
                if mark >= 0:
                    sieve.expect(mark - start)
            elif (
                not its_hash
                and piece[mark + 11 : mark + 19] in _DULL
                and piece.find(b" NCCL ", mark + 11, end) < 0
            ):
                continue
            if self._take(number + line, piece[start:end]) and its_hash:
                learned.append(its_hash)
            if self._must_hear_again:
                return end + 1
        sieve.learn(learned)
        return len(piece)

    def _take(self, number: int, line: bytes) -> bool:
        """Read a line; True when the like of it need not be read again."""
        head, mark, text = line.partition(_INFO)
        tail = text[8:] if text[:8] == b"Channel " else b""
        core = head[head.rfind(b" ", 0, -5) + 1 :] if self._prefixed else head
        if tail:
            if tail[2:] in self._heads.get(core, _NOTHING):
                return True
        elif text[:8] in _DULL and b" NCCL " not in text:
            return False
        # What may be a symptom is read with the time that stands in front.
        is_timeless = core == head or tail or text.find(b"comm 0x", 0, 64) >= 0
        if mark and is_timeless and _is_clean(text):
            process = self._speakers.get(core) or self._speaker(core)
            if process is not None:
                return self._read_text(number, line, core, text, tail, process)
        return self._slow(number, line, head, tail)

    def _read_text(
        self, number: int, line: bytes, core: bytes, text: bytes, tail: bytes, process: Process
    ) -> bool:
        """Read a record with nothing around it, of a process heard before."""
        if self.book.is_told(process, text):
            return False
        self.book.at(self._source, number, line)
        record = Record(process.host, process.pid, process.device, b"", False, text, "", False)
        if self.book.read(process, record):
            return self._slow(number, line, line.partition(_INFO)[0], tail)
        if tail:
            self._remember(core, tail, process)
        elif process.is_remapped:
            self._hear_again(process)
        return bool(tail)

    def _read_lines(self, lines: list[bytes]) -> int:
        if self._wrapped:
            lines = [plain(line) for line in lines]
        if self._prefixed:
            self._read_prefixed(lines)
        else:
            self._read_plain(lines)
        return len(lines)

    def _read_plain(self, lines: list[bytes]) -> None:
        heads = self._heads
        take = self._take
        parts = map(bytes.partition, lines, repeat(_CHANNEL))
        for number, (head, mark, tail) in enumerate(parts, self._number + 1):
            if mark:
                try:
                    if tail[2:] in heads[head]:
                        continue
                except KeyError:
                    pass
                take(number, head + mark + tail)
            elif b"NCCL" in head:
                take(number, head)

    def _read_prefixed(self, lines: list[bytes]) -> None:
        """As `_read_plain`, for lines whose beginning differs each time, such as by a time."""
        heads = self._heads
        take = self._take
        parts = map(bytes.partition, lines, repeat(_CHANNEL))
        for number, (head, mark, tail) in enumerate(parts, self._number + 1):
            if mark:
                try:
                    if tail[2:] in heads[head[head.rfind(b" ", 0, -5) + 1 :]]:
                        continue
                except KeyError:
                    pass
                take(number, head + mark + tail)
            elif b"NCCL" in head:
                take(number, head)

    def _speaker(self, head: bytes) -> Process | None:
        """The process of a head that differs from one heard before in the thread alone."""
        name, _, thread = head.rpartition(b":")
        process = self._callers.get((name, thread.partition(b" ")[2]))
        if process is not None:
            self._introduce(head, process)
        return process

    def _introduce(self, head: bytes, process: Process) -> None:
        if len(self._speakers) > _HEADS_LIMIT:
            self._speakers.clear()
            self._heads.clear()
        self._speakers[head] = process

    def _slow(self, number: int, raw: bytes, head: bytes, tail: bytes) -> bool:
        """Read a line that has something around its record, or a speaker not heard before."""
        if b" NCCL CALL " in raw or b" NCCL TRACE " in raw:
            return False
        text = plain(raw[:LONGEST])
        if not self._wrapped and is_wrapped(raw) and text != raw:
            self._wrapped = True
        self.book.at(self._source, number, text)
        found = list(records(text, self._hosts))
        if not found:
            if not self.book.read_bare(text):
                self.work.read(text, self.book.line())
            return False
        for record in found:
            process = self._read_record(record)
        core = record.core
        if head != core and core in self._speakers:
            self._prefixed = True
        self._introduce(core, process)
        if head == core:
            name, _, thread = head.rpartition(b":")
            self._callers[name, thread.partition(b" ")[2]] = process
        elif text.startswith(head):
            self._introduce(head, process)
        if tail and len(found) == 1:
            self._remember(head, tail, process)
            self._heads[core] = process.heard
            return True
        return False

    def _read_record(self, record: Record) -> Process:
        process = self._process(record.host, record.pid, record.device)
        if self.book.read(process, record):
            process = self._restart(process)
            self.book.read(process, record)
        if process.is_remapped:
            self._hear_again(process)
        return process

    def _hear_again(self, process: Process) -> None:
        """What a process said of its channels counts anew when it says it again."""
        process.is_remapped = False
        process.heard.clear()
        self._must_hear_again = True

    def _remember(self, head: bytes, tail: bytes, process: Process) -> None:
        """Let the quick way pass over what was just read, whatever its channel number."""
        if len(process.heard) > _SEEN_LIMIT:
            process.heard.clear()
        process.heard.add(tail[2:])
        self._heads[head] = process.heard

    def _process(self, host: str, pid: int, device: int) -> Process:
        name = _Name(host, pid, device)
        process = self._processes.get(name)
        if process is None:
            process = self._processes[name] = self.book.add(Process(host, pid, device))
            self._hosts[host.encode()] = None
        return process

    def _restart(self, process: Process) -> Process:
        """The same host, pid and device begins anew: a container restarted."""
        name = _Name(process.host, process.pid, process.device)
        fresh = self._processes[name] = self.book.add(Process(*name))
        self._must_hear_again = True
        for known in (self._heads, self._speakers, self._callers):
            known.clear()
        return fresh

    def _look_at_tail(self) -> None:
        if self.unfinished is None:
            lines = self._tail.split(b"\n")[:-1]
            for number, line in enumerate(lines, self._number - len(lines) + 1):
                if watchdog.gave_up(line):
                    self.book.at(self._source, number, plain(line))
                    self.unfinished = self.book.line()
                    return
