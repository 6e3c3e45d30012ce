"""Reads a kernel log of any size in flat memory.

The log comes in chunks, cut anywhere. Lines are found by searching each chunk for the few words
that the lines of interest hold, so that all other lines cost no more than that search. Memory is
bounded by the number of different codes and devices, not by the size of the log.
"""

from __future__ import annotations

from collections.abc import Iterable

from gpudoctor.facts.node.kernel_log import KernelLog
from gpudoctor.facts.node.kernel_log_boots import SEPARATORS, STARTS, Boots
from gpudoctor.facts.node.kernel_log_host_lines import ADAPTER_WORDS, HUNG_WORDS
from gpudoctor.facts.node.kernel_log_lines import split_line
from gpudoctor.report import Subject

CHUNK_BYTES = 1 << 20
_MAX_LINE = 1 << 14
_NVRM_IN_NUMBERS = b"78,86,82,77,58"  # journald's JSON gives a message that is not text so
_TELLING = (
    b"NVRM: ", b"SXid (", b" AER: ", b"nouveau ", b" is rejected", b"unsigned module",
    b"oom-kill:", b"Out of memory", b"fault addr ", b"AMD-Vi: Event", b"event: F_",
    # which device is what
    b": [10de:", b": [15b3:", b": [1d0f:", b"nvidia 0", b": firmware version: ",
    *ADAPTER_WORDS, *HUNG_WORDS, *SEPARATORS, *STARTS, _NVRM_IN_NUMBERS,
)  # fmt: skip


class KernelLogReader:
    """Feed it chunks of bytes, then ask for the log; the result does not depend on the cuts."""

    def __init__(self, subject: Subject, source: str = "log") -> None:
        """`subject` is the node, `source` the log's name in evidence."""
        self._subject = subject
        self._source = source
        self._rest = b""
        self._line = 1
        self._boots = Boots()

    def feed(self, chunk: bytes) -> None:
        """Take the next piece of the log."""
        data = self._rest + chunk
        # The last whole line waits, since the one after it may be its continuation.
        end = data.rfind(b"\n")
        start = data.rfind(b"\n", 0, max(end, 0)) + 1 if end >= 0 else 0
        self._read(data, start)
        self._rest = _shortened(data[start:])

    def finish(self) -> KernelLog:
        """Return what was read."""
        data = self._rest + b"\n"
        self._read(data, len(data))
        last = split_line(self._rest.rstrip(b"\r\n").rpartition(b"\n")[2])
        if last is not None:
            self._boots.see(last)
        self._rest = b""
        return self._boots.log(self._subject, self._source)

    def _read(self, data: bytes, limit: int) -> None:
        """Read the lines that start before `limit`."""
        counted = 0
        for start in _telling_lines(data, limit):
            self._line += data.count(b"\n", counted, start)
            counted = start
            end = data.find(b"\n", start)
            after = data.find(b"\n", end + 1)
            following = data[end + 1 : after if after >= 0 else len(data)][:_MAX_LINE]
            self._add(data[start : min(end, start + _MAX_LINE)], following)
        self._line += data.count(b"\n", counted, limit)

    def _add(self, raw: bytes, following: bytes) -> None:
        if raw.startswith(SEPARATORS):
            self._boots.separator()
            if (first := split_line(following)) is not None:
                self._boots.see(first)
        elif (line := split_line(raw)) is not None:
            self._boots.see(line).add(line, raw, following, self._line)


def _telling_lines(data: bytes, limit: int) -> list[int]:
    """Return where the lines start that hold a telling word, in order."""
    starts: set[int] = set()
    for word in _TELLING:
        found = data.find(word, 0, limit)
        while found >= 0:
            start = data.rfind(b"\n", 0, found) + 1
            if found - start < _MAX_LINE:
                starts.add(start)
            line_end = data.find(b"\n", found)
            found = data.find(word, line_end, limit) if line_end >= 0 else -1
    return sorted(starts)


def _shortened(rest: bytes) -> bytes:
    """Keep no more of an endless line than is looked at."""
    first, newline, second = rest.partition(b"\n")
    return first[:_MAX_LINE] + newline + second[:_MAX_LINE]


def read_kernel_log(chunks: Iterable[bytes], subject: Subject, source: str = "log") -> KernelLog:
    """Read a whole kernel log from chunks of any size."""
    reader = KernelLogReader(subject, source)
    for chunk in chunks:
        reader.feed(chunk)
    return reader.finish()
