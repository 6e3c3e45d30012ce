"""What `ncclras` answers about a running job (NCCL 2.24 and later): who is gone, who is behind.

A report begins with `NCCL version 2.26.2 compiled with CUDA 12.6`; its sections name processes
(`Process 348 on node 10.0.0.1 managing GPU 5`) and ranks (`Rank 12 -- GPU 4 managed by process
323 on node 10.0.0.1`). Source: the chapter RAS of the NCCL user guide, 2.24 to 2.31.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from gpudoctor.facts.nccl.model import Line, RasLag, RasProcess

BEGIN = b" compiled with CUDA "
_LINES_LIMIT = 2000
"""After so many lines a report is over, whatever follows."""
_KEPT = 256
_SECTION = re.compile(rb"^\s*(?:#\d+-\d+ \(([0-9a-f]+)\) )?(DEAD|INCOMPLETE|MISMATCH|TIMEOUT)\b")
_PROCESS = re.compile(rb"Process (\d{1,9}) on node (\S+) managing GPUs? (\S+)")
_COUNT = re.compile(rb"(\d{1,9}) ranks have (?:launched up to operation (\d{1,18})|not launched)")
_RANK = re.compile(
    rb"Rank (\d{1,9})(?: has (?:launched up to operation (?P<own>\d{1,18})|not launched any \w+))?"
    rb" -- GPU \S+ managed by process (\d{1,9}) on node (\S+)"
)


def begins(line: bytes) -> bool:
    """Tell the line with which a report begins."""
    return BEGIN in line and b"NCCL" in line and b" NCCL INFO " not in line


class Reader:
    """Takes the lines of a log from the one that `begins` on, as long as `is_open`."""

    def __init__(self) -> None:
        self.is_open = False
        self._left = 0
        self._reports = 0
        self._section = b""
        self._comm = ""
        self._most: int | None = None
        self._group: int | None = None
        self._processes: dict[tuple[str, int], RasProcess] = {}
        self._lags: dict[tuple[str, int], RasLag] = {}

    def read(self, line: bytes, evidence: Line) -> None:
        """Read a line of a report, or the one with which it begins."""
        if begins(line):
            self.is_open, self._left = True, _LINES_LIMIT
            self._reports += 1
            self._section = b""
            return
        self._left -= 1
        self.is_open = self._left > 0 and b" NCCL INFO " not in line
        section = _SECTION.match(line)
        if section is not None:
            self._comm = (section[1] or b"").decode()
            self._section = section[2]
            self._most = self._group = None
        elif self._section in (b"DEAD", b"INCOMPLETE"):
            self._read_process(line, evidence)
        elif self._section == b"MISMATCH":
            self._read_count(line, evidence)

    def _read_process(self, line: bytes, evidence: Line) -> None:
        process = _PROCESS.search(line)
        if process is None or len(self._processes) >= _KEPT:
            return
        key = (process[2].decode("utf-8", "replace"), int(process[1]))
        is_dead = self._section == b"DEAD"
        old = self._processes.get(key)
        if old is None or (is_dead and not old.is_dead):
            gpu = process[3].decode("utf-8", "replace")
            self._processes[key] = RasProcess(*key, gpu, is_dead, evidence)

    def _read_count(self, line: bytes, evidence: Line) -> None:
        """The most frequent count comes first; ranks are listed under one that is rare."""
        count = _COUNT.search(line)
        rank = _RANK.search(line)
        if count is not None:
            self._group = int(count[2] or 0)
            self._most = self._group if self._most is None else self._most
        elif rank is not None:
            own = int(rank["own"] or 0) if b" has " in rank[0] else self._group
            if own is not None and self._most is not None and own < self._most:
                self._note(int(rank[1]), rank[4].decode("utf-8", "replace"), own, evidence)

    def _note(self, rank: int, node: str, own: int, evidence: Line) -> None:
        old = self._lags.get((self._comm, rank))
        if old is None and len(self._lags) >= _KEPT:
            return
        is_stuck = old is not None and old.operation == own
        self._lags[self._comm, rank] = RasLag(
            communicator=self._comm,
            rank=rank,
            node=node,
            operation=own,
            most=self._most or 0,
            is_stuck=is_stuck or (old is not None and old.is_stuck),
            line=old.line if old else evidence,
        )

    def processes(self) -> Iterator[RasProcess]:
        """The processes that did not answer."""
        yield from self._processes.values()

    def lags(self) -> Iterator[RasLag]:
        """The ranks that were behind the others."""
        yield from self._lags.values()
