"""What PyTorch's watchdog and launchers print when a collective or the start does not finish."""

from __future__ import annotations

import re

from gpudoctor.facts.nccl.model import Line, StuckWatchdog, WorkStatus

_TIMEOUT = re.compile(
    rb"Rank (?P<rank>\d+)\].*?collective operation timeout: WorkNCCL\("
    rb"(?:SeqNum=(?P<seq>\d+), )?(?:OpType=(?P<op>\w+))?(?:.*?Timeout\(ms\)=(?P<ms>\d+))?"
)
_STATUS = re.compile(
    rb"[Ll]ast enqueued (?:NCCL )?work: (?P<enqueued>-?\d+), "
    rb"last completed (?:NCCL )?work: (?P<completed>-?\d+)"
)
_AT_WORK = re.compile(rb"(?:at work(?: sequence id)?|Timeout at NCCL work): (?P<seq>\d+)")
_RANK = re.compile(rb"\bRank (?P<rank>\d+)\]")
_GROUP = re.compile(rb"PG (?:ID )?(?P<id>\d+)(?: PG GUID (?P<guid>\S+))?")
_SIGNAL = re.compile(rb"dump signal due to a collective timeout from +rank (?P<rank>\d{1,9})")
_PREFIX_RANK = re.compile(rb"\[rank(?P<rank>\d+)\]")
_STUCK = re.compile(rb"watchdog got stuck for (?P<seconds>\d{1,9}) seconds")
_CLOCK = re.compile(rb"\[[A-Z](?P<day>\d{3,4}) (?P<h>\d\d):(?P<m>\d\d):(?P<s>\d\d)\.")
_DAY_S, _HALF_DAY_S = 86400, 43200
_HEARTBEAT = b"Heartbeat monitor timed out"
_GAVE_UP = re.compile(
    rb"(?i)timed ?out|wait timeout|timeout after|DistStoreError|SIGTERM|Terminated|exitcode"
)
_GAVE_UP_WORDS = (b"timed", b"timeout", b"diststoreerror", b"sigterm", b"terminated", b"exitcode")
_GROUPS_LIMIT = 1 << 14
_DIGITS = 9


def gave_up(line: bytes) -> bool:
    """Tell a line in which somebody says that waiting was in vain."""
    return _GAVE_UP.search(line) is not None


def may_have_given_up(text: bytes) -> bool:
    """Whether any line of a text can be such a line: to be asked first, because it is cheap."""
    text = text.lower()
    return any(word in text for word in _GAVE_UP_WORDS)


class Watchdog:
    """Per process group and rank, how far each got."""

    def __init__(self) -> None:
        self._found: dict[tuple[str, int], WorkStatus] = {}
        self._stuck: dict[int, StuckWatchdog] = {}
        self._first_timeout: int | None = None
        self.gave_up_first: tuple[int, Line] | None = None
        """The rank whose timeout made the others dump their flight recorders."""

    def read(self, line: bytes, evidence: Line) -> None:
        """Read a line that is no NCCL record."""
        if b"WorkNCCL(" in line and (timeout := _TIMEOUT.search(line)):
            if self._first_timeout is None:
                self._first_timeout = _clock(line)
            self._note(
                _group(line),
                int(timeout["rank"]),
                evidence,
                timed_out=_number(timeout["seq"]),
                operation=(timeout["op"] or b"").decode("ascii", "replace"),
                milliseconds=_number(timeout["ms"]),
            )
        elif b"ast enqueued" in line and (status := _STATUS.search(line)):
            rank = _RANK.search(line) or _PREFIX_RANK.search(line)
            at_work = _AT_WORK.search(line)
            signal = _SIGNAL.search(line)
            if signal is not None and self.gave_up_first is None:
                self.gave_up_first = int(signal["rank"]), evidence
            if rank is not None:
                self._note(
                    _group(line),
                    int(rank["rank"]),
                    evidence,
                    enqueued=int(status["enqueued"]),
                    completed=int(status["completed"]),
                    at_work=int(at_work["seq"]) if at_work else None,
                )
        elif b"watchdog got stuck" in line or _HEARTBEAT in line:
            self._note_stuck(line, evidence)

    def _note_stuck(self, line: bytes, evidence: Line) -> None:
        """A process whose watchdog thread does not move: by its rank in the job, where told."""
        rank = _PREFIX_RANK.search(line) or _RANK.search(line)
        stuck = _STUCK.search(line)
        if rank is None or len(rank["rank"]) > _DIGITS or len(self._stuck) >= _GROUPS_LIMIT:
            return
        number = int(rank["rank"])
        old = self._stuck.get(number)
        if old is None or (stuck is not None and old.seconds is None):
            seconds = int(stuck["seconds"]) if stuck else None
            after = self._moved_at_timeout(_clock(line), seconds)
            self._stuck[number] = StuckWatchdog(number, seconds, evidence, after)

    def _moved_at_timeout(self, now: int | None, seconds: int | None) -> bool:
        """Whether a watchdog that has been stuck so long moved when the first timeout was told."""
        if now is None or seconds is None or self._first_timeout is None:
            return False
        # Of the time alone, without the day: a job that waits longer than half a day is no matter.
        since = (now - seconds - self._first_timeout) % _DAY_S
        return since < _HALF_DAY_S

    def stuck(self) -> tuple[StuckWatchdog, ...]:
        """The ranks whose own watchdog hangs."""
        return tuple(found for _, found in sorted(self._stuck.items()))

    def _note(
        self,
        group: str,
        rank: int,
        line: Line,
        *,
        enqueued: int | None = None,
        completed: int | None = None,
        timed_out: int | None = None,
        at_work: int | None = None,
        operation: str = "",
        milliseconds: int | None = None,
    ) -> None:
        key = (group, rank)
        if at_work is not None and enqueued is not None and enqueued >= at_work:
            timed_out = at_work
        old = self._found.get(key)
        if old is None:
            if len(self._found) >= _GROUPS_LIMIT:
                return
            old = WorkStatus(group, rank, None, None, None, "", None, line)
        self._found[key] = WorkStatus(
            group=group,
            rank=rank,
            enqueued=_first(enqueued, old.enqueued),
            completed=_first(completed, old.completed),
            timed_out=_first(old.timed_out, timed_out),
            operation=old.operation or operation,
            milliseconds=_first(old.milliseconds, milliseconds),
            line=old.line,
        )

    def found(self) -> tuple[WorkStatus, ...]:
        """Return every rank heard of; lines that name no group belong to the one that is named."""
        groups = {status.group for status in self._found.values()} - {""}
        if len(groups) != 1:
            return tuple(self._found.values())
        (only,) = groups
        for (group, rank), status in list(self._found.items()):
            if group == "":
                del self._found[group, rank]
                self._note(
                    only,
                    rank,
                    status.line,
                    timed_out=status.timed_out,
                    operation=status.operation,
                    milliseconds=status.milliseconds,
                    enqueued=status.enqueued,
                    completed=status.completed,
                )
        return tuple(self._found.values())


def _group(line: bytes) -> str:
    match = _GROUP.search(line)
    return (
        b":".join(part for part in match.groups() if part).decode("utf-8", "replace")
        if match
        else ""
    )


def _clock(line: bytes) -> int | None:
    """Return the time of day of a line of PyTorch's log, in seconds."""
    match = _CLOCK.search(line)
    return (
        None if match is None else int(match["h"]) * 3600 + int(match["m"]) * 60 + int(match["s"])
    )


def _number(value: bytes | None) -> int | None:
    return int(value) if value is not None and len(value) < 20 else None


def _first(*values: int | None) -> int | None:
    return next((value for value in values if value is not None), None)
