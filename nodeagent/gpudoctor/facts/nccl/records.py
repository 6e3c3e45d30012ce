"""Where a record begins and ends inside a line, whatever stands around it.

NCCL writes `HOST:PID:TID [DEV] NCCL INFO text`, a warning with its place in the source before
`NCCL WARN`. Launchers, container runtimes and log shippers put anything before that, colour it,
wrap it in JSON, or glue two records into one line; so the record is searched for, never
anchored at the line's start.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import msgspec

LONGEST = 1 << 16
"""Longer lines are cut: NCCL's own buffer holds 1,024 bytes."""

_ANSI = re.compile(rb"\x1b\[[0-9;?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|\x1b.")
_LEVEL = re.compile(rb" ?NCCL (INFO|WARN|ABORT) ")
# A name is tried from its beginning alone, for a line may hold 64 KiB that look like one.
_NAME = rb"(?<![\w.-])[.-]*+([A-Za-z0-9_][\w.-]*+)"
_HEADER = re.compile(_NAME + rb":(\d{1,9}):(\d{1,9}) \[(-?\d{1,4})\]")
_OLD_HEADER = re.compile(_NAME + rb":(\d{1,9}):(\d{1,9})(?= |$)")
_INFO = b" NCCL INFO "
_TIME = re.compile(rb"(\d{4}-\d\d-\d\d)[T ](\d\d:\d\d:\d\d(?:[.,]\d+)?)")
_REPEATED = re.compile(rb"\[repeated \d+x across cluster\].*$")
_FRAME = "│".encode()


class Record(msgspec.Struct, frozen=True):
    """One record: who wrote it, `warning` for WARN, its text; `time` is sortable or empty."""

    host: str
    pid: int
    device: int
    core: bytes
    """`HOST:PID:TID [DEV]` as it stands in the line."""
    warning: bool
    text: bytes
    time: str
    repeated: bool
    where: bytes = b""
    """The place in the source that a warning names, as it stands in the line."""


def plain(line: bytes) -> bytes:
    """Return the line without colours, carriage returns, frames, and JSON around it."""
    if b"\x1b" in line:
        line = _ANSI.sub(b"", line)
    line = line.strip(b" \t\r\n")
    if line.startswith(b'{"'):
        line = _unwrap(line)
    if b"&gt;" in line or b"&lt;" in line:
        # Pasted from a page or a mail.
        line = line.replace(b"&gt;", b">").replace(b"&lt;", b"<").replace(b"&amp;", b"&")
    return line.removeprefix(_FRAME).removesuffix(_FRAME).strip(b" \t\r")


def without_prefix(line: bytes) -> bytes:
    """The record of a line that has something in front of it, such as the time, up to a space."""
    return line[line.rfind(b" ", 0, line.find(_INFO) - 5) + 1 :]


def is_wrapped(line: bytes) -> bool:
    """Tell a JSON line of a container runtime or log shipper."""
    return line.lstrip(b" \t")[:2] == b'{"'


def _unwrap(line: bytes) -> bytes:
    """The text inside a JSON log line, after its time; the line itself if there is none."""
    try:
        document = msgspec.json.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return line
    if not isinstance(document, dict):
        return line
    for key in ("log", "message", "msg", "line", "textPayload"):
        text = document.get(key)
        if isinstance(text, str):
            stamp = document.get("time") or document.get("timestamp") or ""
            return f"{stamp} {text}".encode("utf-8", "replace").strip()
    return line


def records(line: bytes, known: Iterable[bytes] = ()) -> Iterator[Record]:
    """Yield the records of one plain line; text that belongs to none is passed over.

    `known` are host names seen before: where a record is glued to the end of another, they
    tell where its host name begins.
    """
    levels = list(_LEVEL.finditer(line))
    stamp = _TIME.search(line, 0, levels[0].start()) if levels else None
    time = (stamp[1] + b" " + stamp[2]).decode() if stamp else ""
    start = 0
    heads: list[_Header | None] = []
    for level in levels:
        heads.append(_header(line, start, level.start(), known if start else ()))
        start = level.end()
    for index, (level, head) in enumerate(zip(levels, heads, strict=True)):
        if head is None:
            continue
        following = heads[index + 1] if index + 1 < len(heads) else None
        end = following.start if following else len(line)
        text, folded = _REPEATED.subn(b"", line[level.end() : end])
        yield Record(
            host=head.host.decode("ascii", "replace"),
            pid=head.pid,
            device=head.device,
            core=line[head.start : head.end],
            warning=level[1] != b"INFO",
            text=text.strip(b" \t\r"),
            time=time,
            repeated=bool(folded),
            where=line[head.end : level.start()].strip(),
        )


class _Header(NamedTuple):
    start: int
    end: int
    host: bytes
    pid: int
    device: int


def _header(line: bytes, start: int, end: int, known: Iterable[bytes]) -> _Header | None:
    """The last header between two places: a time of day before it looks much the same."""
    for pattern in (_HEADER, _OLD_HEADER):
        matches = list(pattern.finditer(line, start, end))
        if not matches:
            continue
        match = matches[-1]
        ends = [host for host in known if match[1].endswith(host)]
        host = max(ends, key=len, default=match[1])
        device = int(match[4]) if pattern is _HEADER else -1
        return _Header(match.end(1) - len(host), match.end(), host, int(match[2]), device)
    return None
