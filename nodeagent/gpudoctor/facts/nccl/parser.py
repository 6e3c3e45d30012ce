"""Reads NCCL logs as a stream, at close to the price of splitting them into lines.

Nine lines in ten of a large log are channel lines, and all that differs between those of one
process is the channel's number. So a channel line is cut in two: what stands before
`NCCL INFO Channel ` names the process, and what follows the number is looked up among what
this process has already said. Only what is new goes the slow way, and only lines that name
NCCL at all are looked at.
"""

from __future__ import annotations

from typing import NamedTuple

from gpudoctor.facts.nccl import messages, watchdog
from gpudoctor.facts.nccl.model import Line, NcclLog
from gpudoctor.facts.nccl.records import LONGEST, is_wrapped, plain, records
from gpudoctor.facts.nccl.state import Process
from gpudoctor.facts.nccl.summary import summarise

_CHANNEL = b" NCCL INFO Channel "
_INFO = b" NCCL INFO "
_PIECE = 1 << 19
_TAIL_LINES = 200
_HEADS_LIMIT = 1 << 15
_SEEN_LIMIT = 1 << 11
_TEXT_LIMIT = 400

# The first eight bytes of messages that carry nothing for us and are printed often.
_DULL = frozenset(
    (
        b"Trees [0", b"threadTh", b"P2P Chun", b"Setting ", b"[Proxy S", b"NVLS Hea", b"Tree 0 :",
        b"Tree 1 :", b"=== Syst", b"========", b"Pattern ", b"CPU/0 (1",
    )
)  # fmt: skip


class _Name(NamedTuple):
    host: str
    pid: int
    device: int


class Parser:
    """Takes pieces of one or more logs of one job and sums them up.

    Call `open` for each source, `feed` for its bytes, and `finish` at any time: it returns
    what is known so far, and reading may go on after it.
    """

    def __init__(self) -> None:
        self.book = messages.Book()
        self.work = watchdog.Watchdog()
        self.sources: list[str] = []
        self.lines = 0
        self.unfinished: Line | None = None
        self._processes: dict[_Name, Process] = {}
        self._heads: dict[bytes, set[bytes]] = {}
        self._prefixed = False
        self._wrapped = False
        self._rest = b""
        self._skipping = False
        self._number = 0
        self._tail: list[bytes] = []
        self._source = ""

    def open(self, source: str) -> None:
        """Begin with another source; its lines count from 1."""
        self._close()
        self._source = source
        self.sources.append(source)
        self._number = 0
        self._prefixed = self._wrapped = False
        self._heads.clear()

    def feed(self, chunk: bytes) -> None:
        """Read some more bytes of the source."""
        for start in range(0, len(chunk), _PIECE):
            self._feed(chunk[start : start + _PIECE])

    def finish(self) -> NcclLog:
        """Return what all the sources say so far; the open one ends here."""
        self._close()
        return summarise(self)

    def _close(self) -> None:
        rest, self._rest, self._skipping = self._rest, b"", False
        if rest:
            self._read([rest])
        self._look_at_tail()
        self._tail = []

    def _feed(self, chunk: bytes) -> None:
        end = chunk.rfind(b"\n")
        if end < 0:
            if not self._skipping:
                self._rest += chunk
            if len(self._rest) > LONGEST:
                self._rest, self._skipping = self._rest[:LONGEST], True
            return
        whole = chunk[:end]
        if self._skipping:
            whole = self._rest + whole[whole.find(b"\n") :] if b"\n" in whole else self._rest
        elif self._rest:
            whole = self._rest + whole
        self._skipping = False
        self._rest = chunk[end + 1 :]
        self._read(whole.split(b"\n"))

    def _read(self, lines: list[bytes]) -> None:
        if self._wrapped:
            lines = [plain(line) for line in lines]
        if self._prefixed:
            self._read_prefixed(lines)
        else:
            self._read_plain(lines)
        self.lines += len(lines)
        self._number += len(lines)
        self._tail = (self._tail + lines[-_TAIL_LINES:])[-_TAIL_LINES:]

    def _read_plain(self, lines: list[bytes]) -> None:
        heads = self._heads
        nothing: frozenset[bytes] = frozenset()
        slow = self._slow
        for number, line in enumerate(lines, self._number + 1):
            head, mark, tail = line.partition(_CHANNEL)
            if mark:
                if tail[2:] not in heads.get(head, nothing):
                    slow(number, line, head, tail)
            elif b"NCCL" in line:
                head, mark, tail = line.partition(_INFO)
                if tail[:8] not in _DULL:
                    slow(number, line)

    def _read_prefixed(self, lines: list[bytes]) -> None:
        """As `_read_plain`, for lines whose beginning differs each time, such as by a time."""
        heads = self._heads
        nothing: frozenset[bytes] = frozenset()
        slow = self._slow
        for number, line in enumerate(lines, self._number + 1):
            head, mark, tail = line.partition(_CHANNEL)
            if mark:
                head = head[head.rfind(b" ", 0, -5) + 1 :]
                if tail[2:] not in heads.get(head, nothing):
                    slow(number, line, head, tail)
            elif b"NCCL" in line:
                head, mark, tail = line.partition(_INFO)
                if tail[:8] not in _DULL:
                    slow(number, line)

    def _slow(self, number: int, raw: bytes, head: bytes = b"", tail: bytes = b"") -> None:
        if len(raw) > LONGEST:
            raw = raw[:LONGEST]
        if b" NCCL CALL " in raw or b" NCCL TRACE " in raw:
            return
        text = plain(raw)
        if not self._wrapped and is_wrapped(raw) and text != raw:
            self._wrapped = True
        line = self._line(number, text)
        last: tuple[Process, bytes] | None = None
        for record in records(text):
            process = self._process(record.host, record.pid, record.device)
            if self.book.read(process, record, line):
                process = self._restart(process)
                self.book.read(process, record, line)
            last = process, record.core
        if last is None:
            if not self.book.read_bare(text, line):
                self.work.read(text, line)
        elif head:
            self._remember(head, tail, *last)

    def _remember(self, head: bytes, tail: bytes, process: Process, core: bytes) -> None:
        """Let the quick way pass over what was just read, whatever its channel number."""
        seen = process.heard.setdefault(core, set())
        if len(seen) > _SEEN_LIMIT:
            seen.clear()
        seen.add(tail[2:])
        if head not in self._heads and head != core and core in self._heads:
            self._prefixed = True
        if len(self._heads) > _HEADS_LIMIT:
            self._heads.clear()
        self._heads[head] = seen
        self._heads[core] = seen

    def _process(self, host: str, pid: int, device: int) -> Process:
        name = _Name(host, pid, device)
        process = self._processes.get(name)
        if process is None:
            process = self._processes[name] = self.book.add(Process(host, pid, device))
        return process

    def _restart(self, process: Process) -> Process:
        """The same host, pid and device begins anew: a container restarted."""
        name = _Name(process.host, process.pid, process.device)
        fresh = self._processes[name] = self.book.add(Process(*name))
        return fresh

    def _line(self, number: int, line: bytes) -> Line:
        text = line[:_TEXT_LIMIT].decode("utf-8", "replace")
        return Line(self._source, number, text)

    def _look_at_tail(self) -> None:
        if self.unfinished is None:
            first = self._number - len(self._tail)
            for offset, line in enumerate(self._tail, 1):
                if watchdog.gave_up(line):
                    self.unfinished = self._line(first + offset, plain(line[:LONGEST]))
                    return
