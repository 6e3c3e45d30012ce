"""Which boot of which machine a line of a kernel log belongs to.

A journal, a syslog or two pasted logs may span several boots, and what was before the last one is
history. A boot is known by journalctl's separators, the journal's boot id, the kernel's first
line, and stamps that start again while the clock goes on. Which boot is the last one, the clock
tells where it can: a log may be printed newest first.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any

from gpudoctor.facts.node.kernel_log import IommuFault, KernelLog, Past
from gpudoctor.facts.node.kernel_log_boot import IOMMU_FAULT, BootFacts
from gpudoctor.facts.node.kernel_log_host_lines import DeviceKind
from gpudoctor.facts.node.kernel_log_lines import Line
from gpudoctor.report import Subject

SEPARATORS = (b"-- Boot ", b"-- Reboot --")
STARTS = (b"Linux version ", b"[    0.000000]")
_FIRST_LINE = "Linux version "
_BACK = 1.0
"""Seconds by which a stamp must go back; processors' lines come less than that out of order."""
_EARLY = 600.0
"""Uptime up to which a stamp that goes back may be a boot's start."""
_MAX_BOOTS = 64
_MAX_STREAMS = 4096
_YEAR_S = 366 * 86400.0
_LEAP, _LEAP_STARTS = 1972, 63072000.0
_UPTIME = re.compile(r"\+?[0-9]{1,9}\.[0-9]+(?: <.*)?")
_UNIX = re.compile(r"[0-9]{10}\.[0-9]+\Z")
_WORDS = re.compile(
    r"(?:[A-Z][a-z]{2} )?(?P<month>[A-Z][a-z]{2}) (?P<day>[0-9]{1,2}) (?:(?P<first>[0-9]{4}) )?"
    r"(?P<time>[0-9]{2}:[0-9]{2}:[0-9]{2})(?:\.[0-9]+)?(?: (?P<last>[0-9]{4}))?\Z"
)


class _Boot:
    """One boot so far: its facts, how many of its lines were looked at, the first one's clock."""

    def __init__(self) -> None:
        self.facts = BootFacts()
        self.lines = 0
        self.clock: float | None = None


class _Machine:
    """The boots of one machine in the order of the log."""

    def __init__(self) -> None:
        self.boots = [_Boot()]
        self._id: str | None = None
        self._uptime: float | None = None
        self._clock: float | None = None
        self._steps_on = self._steps_back = 0

    @property
    def newest(self) -> _Boot:
        return self.boots[-1]

    def open(self) -> None:
        """Begin another boot; nothing said in the one so far makes it the same one still."""
        self._uptime = None
        if self.newest.facts.is_empty and self.newest.clock is None:
            facts = self.newest.facts
            self.boots[-1] = _Boot()
            self.newest.facts.kinds, self.newest.facts.uuids = facts.kinds, facts.uuids
            self.newest.facts.probed = facts.probed
            return
        self.boots.append(_Boot())
        if len(self.boots) > _MAX_BOOTS:
            self.boots[1].facts.absorb(self.boots[0].facts)
            del self.boots[0]

    def see(self, line: Line) -> None:
        """Note a line's stamps, and begin another boot where it shows one."""
        clock = _clock(line.time)
        if self._is_new(line, clock):
            self.open()
        if line.boot is not None:
            self._id = line.boot
        if line.uptime is not None:
            self._uptime = line.uptime
        if clock is not None:
            self._clock = clock
            if self.newest.clock is None:
                self.newest.clock = clock
        self.newest.lines += 1

    def _is_new(self, line: Line, clock: float | None) -> bool:
        if line.boot is not None and self._id is not None and line.boot != self._id:
            return True
        first = line.stamped and line.message.startswith(_FIRST_LINE)
        if line.uptime is None or self._uptime is None:
            return first and self.newest.lines > 0
        step = line.uptime - self._uptime
        self._steps_back += step < 0
        self._steps_on += step > 0
        if step < 0 and (first or not line.uptime):
            return True
        # Where the clock goes back as well, the log is printed newest first; where there is none,
        # it may have been put together out of order.
        goes_on = clock and self._clock and not _is_later(self._clock, clock)
        return bool(goes_on) and step < -_BACK and line.uptime < _EARLY

    def facts(self) -> BootFacts:
        """Return the facts of the last boot, with those of the others as its history."""
        last = self.newest
        if self._steps_back > 1 and not self._steps_on:
            return self._as_one()  # bare stamps, newest first
        for boot in reversed(self.boots[:-1]):
            if boot.clock and last.clock and _is_later(boot.clock, last.clock):
                last = boot
        for boot in reversed(self.boots):
            if boot is not last:
                last.facts.absorb(boot.facts)
        return last.facts

    def _as_one(self) -> BootFacts:
        whole = self.newest.facts
        for boot in reversed(self.boots[:-1]):
            whole.join(boot.facts)
        return whole


class Boots:
    """Feed it lines in the order of the log; `log` says what they told."""

    def __init__(self) -> None:
        self._machines: dict[tuple[str | None, str | None], _Machine] = {}
        self._current = _Machine()

    def separator(self) -> None:
        """Take a line of journalctl's that parts two boots."""
        for machine in self._machines.values():
            machine.open()

    def see(self, line: Line) -> BootFacts:
        """Return where a line's facts belong; a line without a prefix goes on with the last."""
        if line.stamped or not self._machines:
            key = (line.host, line.stream)
            known = self._machines.get(key)
            if known is None and len(self._machines) < _MAX_STREAMS:
                known = self._machines[key] = _Machine()
            self._current = known or self._current
        self._current.see(line)
        return self._current.newest.facts

    def log(self, subject: Subject, source: str) -> KernelLog:
        """Return what the log told of all machines; to be asked once."""
        told = [machine.facts() for machine in self._machines.values()]
        events = [event for facts in told for event in (facts.events | facts.earlier).values()]
        uuids = {pci: uuid for facts in told for pci, uuid in facts.uuids.items()}
        return KernelLog(
            subject=subject,
            source=source,
            events=tuple(sorted(events, key=lambda event: event.first_line)),
            conditions=_in_order(told, "conditions"),
            pcie_errors=_in_order(told, "pcie"),
            kills=_in_order(told, "kills"),
            iommu_faults=tuple(fault for facts in told for fault in _faults(facts)),
            past=tuple(past for facts in told for past in _past(facts)),
            uuids=uuids,
            overflow=sum(facts.overflow for facts in told),
        )


def _in_order(told: list[BootFacts], name: str) -> tuple[Any, ...]:
    found = [one for facts in told for one in getattr(facts, name).values()]
    return tuple(sorted(found, key=lambda one: int(one.line)))


def _faults(facts: BootFacts) -> Iterator[IommuFault]:
    """Return the faults of what is a GPU or an adapter, or may be one for all the log says."""
    for fault in facts.faults.values():
        kind = fault.kind or facts.kind_of(fault.device)
        if kind is not DeviceKind.OTHER:
            fault.kind = kind
            yield fault


def _past(facts: BootFacts) -> Iterator[Past]:
    """Return what earlier boots said and the last one does not say again."""
    now = {(past.name, past.device, past.host) for past in facts.history(own=True)}
    for key, past in facts.past.items():
        if key not in now and (past.name != IOMMU_FAULT or facts.is_ours(past.device)):
            yield past


def _is_later(one: float, other: float) -> bool:
    """Whether a clock is after another; stamps without a year may be of two years."""
    if max(one, other) < _YEAR_S:
        return 0 < (one - other) % _YEAR_S < _YEAR_S / 2
    return one > other


@lru_cache(maxsize=64)  # many lines of one second
def _clock(stamp: str | None) -> float | None:
    """Return a stamp as seconds, None if it is no time of day; without a year, of the first one."""
    if stamp is None or _UPTIME.fullmatch(stamp):
        return None
    text = stamp.replace(" UTC", "+00:00").replace("  ", " ")
    try:
        if _UNIX.match(text):
            return float(text)
        if text[:1].isdigit():
            at = datetime.fromisoformat(text.replace(",", "."))
            return (at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp()
        return _from_words(text)
    except (ValueError, OverflowError):
        return None


def _from_words(text: str) -> float | None:
    match = _WORDS.match(text)
    if match is None:
        return None
    year = match["first"] or match["last"]
    day = f"{year or _LEAP} {match['month']} {match['day']} {match['time']}"
    seconds = datetime.strptime(day, "%Y %b %d %H:%M:%S").replace(tzinfo=UTC).timestamp()
    return seconds if year else seconds - _LEAP_STARTS
