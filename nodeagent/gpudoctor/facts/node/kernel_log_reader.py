"""Reads a kernel log of any size in flat memory.

The log comes in chunks, cut anywhere. Lines are found by searching each chunk for the few words
that the lines of interest hold, so that all other lines cost no more than that search. Memory is
bounded by the number of different codes and devices, not by the size of the log.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from gpudoctor.facts.node.kernel_log import (
    Condition,
    EventKind,
    GpuEvent,
    KernelLog,
    Kill,
    PcieError,
)
from gpudoctor.facts.node.kernel_log_lines import (
    Line,
    SwitchLine,
    XidLine,
    continues,
    parse_kill,
    parse_sxid,
    parse_xid,
    pci_address,
    split_line,
)
from gpudoctor.facts.node.xid import XidSeverity, sxid_is_fatal, xid
from gpudoctor.report import Subject

CHUNK_BYTES = 1 << 20
_MAX_LINE = 1 << 14
_MAX_KEYS = 4096
_MAX_TEXT = 300
_NVRM_IN_NUMBERS = b"78,86,82,77,58"  # journald's JSON gives a message that is not text so
_TELLING = (
    b"NVRM: ", b"SXid (", b" AER: ", b"nouveau ", b" is rejected", b"unsigned module",
    b"oom-kill:", _NVRM_IN_NUMBERS,
)  # fmt: skip

_FALLEN = 79
_RECOVERY_CHANGED = 154
_CHANNEL_RESETS = (43, 45)
_UNCORRECTABLE = 48
_ECC_DETAILS = (171, 172)

_ADDRESS = r"(?P<pci>[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2})(?:\.[0-9a-fA-F])?"
_FALLEN_OFF = re.compile(rf"NVRM: .*?GPU (?:at )?(?:PCI:)?{_ADDRESS}.*fallen off the bus")
_UUID = re.compile(rf"NVRM: GPU at (?:PCI:)?{_ADDRESS}: (?P<uuid>GPU-[0-9a-fA-F-]{{36}})")
_THIS_GPU = re.compile(rf"NVRM: (?:The NVIDIA )?GPU {_ADDRESS}")
_VERSION = re.compile(r"\bversion:? (\d{3}\.\d{1,4}(?:\.\d{1,4})?)")
_MISMATCH = "NVRM: API mismatch"
_MISMATCH_LINES = 5
_GPU_LINES = 6
_PCIE = re.compile(
    r"(?P<port>\w+) (?P<device>[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-9a-f]): AER: "
    r"(?:Multiple )?(?P<severity>Corrected|Correctable|Uncorrect(?:ed|able) ?\((?:Non-)?Fatal\))"
)
_NOUVEAU = re.compile(r"nouveau (?P<pci>[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2})\.[0-9a-f]: ")

# Messages that tell a finding by themselves; the driver breaks most of them over several lines.
_CONDITIONS = (
    ("adapter-init-failed", re.compile(r"NVRM: .*(?:RmInitAdapter|rm_init_adapter) failed")),
    (
        "needs-proprietary-kernel-module",
        re.compile(r"NVRM: .*(?:not supported by open\b|does not include the required GPU\b)"),
    ),
    (
        "needs-open-kernel-module",
        re.compile(r"NVRM: .*requires use of the NVIDIA open kernel modules"),
    ),
    ("gpu-dropped-by-driver", re.compile(r"NVRM: .*\d{3}\.xx Legacy drivers")),
    (
        "gpu-newer-than-driver",
        re.compile(r"NVRM: .*installed in this system is not supported by the"),
    ),
    ("no-devices", re.compile(r"NVRM: No NVIDIA (?:GPU|graphics adapter) found")),
    ("nouveau-bound", re.compile(r"NVRM: .*already bound to nouveau|nouveau [0-9a-f:.]+: ")),
    (
        "module-signature-rejected",
        re.compile(
            r"Loading of (?:unsigned module|module with (?:un\w+|invalid) (?:key|signature|crypto))"
            r" is rejected|Lockdown: .*unsigned module loading is restricted"
        ),
    ),
)  # fmt: skip


class KernelLogReader:
    """Feed it chunks of bytes, then ask for the log; the result does not depend on the cuts."""

    def __init__(self, subject: Subject, source: str = "log") -> None:
        """`subject` is the node, `source` the log's name in evidence."""
        self._subject = subject
        self._source = source
        self._rest = b""
        self._line = 1
        self._facts = _Facts()

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
        self._rest = b""
        return self._facts.log(self._subject, self._source)

    def _read(self, data: bytes, limit: int) -> None:
        """Read the lines that start before `limit`."""
        counted = 0
        for start in _telling_lines(data, limit):
            self._line += data.count(b"\n", counted, start)
            counted = start
            end = data.find(b"\n", start)
            after = data.find(b"\n", end + 1)
            following = data[end + 1 : after if after >= 0 else len(data)][:_MAX_LINE]
            self._facts.add(data[start : min(end, start + _MAX_LINE)], following, self._line)
        self._line += data.count(b"\n", counted, limit)


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


class _Facts:
    """What the lines so far have said."""

    def __init__(self) -> None:
        self.events: dict[tuple[EventKind, int, str, str | None], GpuEvent] = {}
        self.conditions: dict[tuple[str, str | None, str | None], Condition] = {}
        self.pcie: dict[tuple[str, str, str | None], PcieError] = {}
        self.kills: dict[tuple[int, str | None], Kill] = {}
        self.uuids: dict[str, str] = {}
        self.overflow = 0
        self._roots: dict[tuple[str, str | None], int] = {}
        self._implied: set[tuple[str, str | None]] = set()
        self._mismatch: Condition | None = None
        self._mismatch_left = 0
        self._this_gpu: str | None = None
        self._this_gpu_left = 0

    def add(self, raw: bytes, following: bytes, number: int) -> None:
        """Take one line, with the one after it, which may be its continuation."""
        line = split_line(raw)
        if line is None:
            return
        message = line.message
        if message.startswith("NVRM: Xid "):
            parsed = _best(message, _continuation(line, raw, following))
            if parsed is not None:
                self._add_xid(parsed, line, number)
        elif (switch := parse_sxid(message)) is not None:
            self._add_sxid(switch, line, number)
        elif " AER: " in message:
            self._add_pcie(line, number)
        elif message.startswith("oom-kill:"):
            self._add_kill(line, number)
        elif not self._add_mismatch(line, number):
            self._add_other(line, number)

    def log(self, subject: Subject, source: str) -> KernelLog:
        return KernelLog(
            subject=subject,
            source=source,
            events=tuple(self.events.values()),
            conditions=tuple(self.conditions.values()),
            pcie_errors=tuple(self.pcie.values()),
            kills=tuple(self.kills.values()),
            uuids=self.uuids,
            overflow=self.overflow,
        )

    def _event(
        self, kind: EventKind, code: int, pci: str, line: Line, number: int, text: str
    ) -> GpuEvent | None:
        """Return the event of a code on a device, counted once more."""
        key = (kind, code, pci, line.host)
        event = self.events.get(key)
        if event is None:
            if len(self.events) >= _MAX_KEYS:
                self.overflow += 1
                return None
            severity = xid(code).severity if kind is EventKind.XID else XidSeverity.UNKNOWN
            event = self.events[key] = GpuEvent(
                kind=kind,
                code=code,
                pci=pci,
                severity=severity,
                count=0,
                host=line.host,
                first_time=line.time,
                text=text[:_MAX_TEXT],
                line=number,
            )
        event.count += 1
        event.last_time = line.time
        event.ended = False
        return event

    def _add_xid(self, found: XidLine, line: Line, number: int) -> None:
        device = (found.pci, line.host)
        implied = found.code == _FALLEN and device in self._implied
        event = self._event(EventKind.XID, found.code, found.pci, line, number, line.message)
        if event is None:
            return
        if implied:
            event.count -= 1
            self._implied.discard(device)
        if event.count <= 1:
            event.pid, event.process = found.pid, found.process
            event.gpu_instance = found.gpu_instance
            event.compute_instance = found.compute_instance
            event.unit, event.link, event.subcode = found.unit, found.link, found.subcode
        if found.fatal is not None:
            event.fatal = found.fatal or bool(event.fatal)
        self._link(event, found, device)
        if found.recovery is not None:
            event.recovery_action = found.recovery
            if not event.action:
                self._recovered(device)

    def _link(self, event: GpuEvent, found: XidLine, device: tuple[str, str | None]) -> None:
        """Note which code this one follows, else that the next ones may follow it."""
        root = self._roots.get(device)
        if found.code in _CHANNEL_RESETS:
            follows = found.caused_by if found.caused_by is not None else root
            event.follow_up_of = follows if event.follow_up_of is None else event.follow_up_of
        elif found.code == _RECOVERY_CHANGED:
            event.follow_up_of = root if root is not None else event.follow_up_of
            return
        elif found.code in _ECC_DETAILS:
            first = (EventKind.XID, _UNCORRECTABLE, *device)
            event.follow_up_of = _UNCORRECTABLE if first in self.events else event.follow_up_of
        if event.follow_up_of is None:
            self._roots[device] = found.code

    def _recovered(self, device: tuple[str, str | None]) -> None:
        """The driver takes back its recommendation: the GPU was reset since."""
        for event in self.events.values():
            if (event.pci, event.host) == device and event.severity is not XidSeverity.HARDWARE:
                event.ended = True

    def _add_sxid(self, found: SwitchLine, line: Line, number: int) -> None:
        if found.detail:
            return
        event = self._event(EventKind.SXID, found.code, found.pci, line, number, line.message)
        if event is None:
            return
        fatal = sxid_is_fatal(found.code, found.fatal)
        event.fatal = fatal or bool(event.fatal)
        event.severity = XidSeverity.LINK if event.fatal else XidSeverity.INFO
        event.link = found.link if event.link is None else event.link

    def _add_pcie(self, line: Line, number: int) -> None:
        match = _PCIE.search(line.message)
        if match is None:
            return
        severity = "corrected"
        if match["severity"].startswith("Uncorrect"):
            severity = "non-fatal" if "Non-Fatal" in match["severity"] else "fatal"
        key = (match["device"], severity, line.host)
        if key not in self.pcie and len(self.pcie) >= _MAX_KEYS:
            self.overflow += 1
            return
        error = self.pcie.setdefault(
            key,
            PcieError(
                device=match["device"],
                severity=severity,
                count=0,
                text=line.message[:_MAX_TEXT],
                line=number,
                host=line.host,
            ),
        )
        error.count += 1

    def _add_kill(self, line: Line, number: int) -> None:
        killed = parse_kill(line.message)
        if killed is not None and len(self.kills) < _MAX_KEYS:
            self.kills[killed.pid, line.host] = Kill(
                pid=killed.pid,
                process=killed.process,
                pod=killed.pod,
                text=line.message[:_MAX_TEXT],
                line=number,
                host=line.host,
            )

    def _add_mismatch(self, line: Line, number: int) -> bool:
        """Collect the versions of an API mismatch, which stand on this line or the next ones."""
        message = line.message
        if message.startswith(_MISMATCH):
            self._mismatch_left = _MISMATCH_LINES
            self._mismatch = self._condition("driver-library-mismatch", line, number)
        elif self._mismatch_left <= 0:
            return False
        self._mismatch_left -= 1
        versions = _VERSION.findall(message)
        if self._mismatch is not None:
            for version in versions:
                name = "module" if "library" in self._mismatch.values else "library"
                self._mismatch.values.setdefault(name, version)
        return bool(versions) or message.startswith(_MISMATCH)

    def _add_other(self, line: Line, number: int) -> None:
        message = line.message
        if match := _UUID.match(message):
            if len(self.uuids) < _MAX_KEYS:
                self.uuids[pci_address(match["pci"])] = match["uuid"]
            return
        pci = self._gpu_spoken_of(message)
        if match := _FALLEN_OFF.match(message):
            self._fallen(pci_address(match["pci"]), line, number)
        elif pci and "fallen off the bus" in message:
            self._fallen(pci, line, number)
        if match := _NOUVEAU.match(message):
            pci = match["pci"]
        for name, pattern in _CONDITIONS:
            if pattern.match(message):
                self._condition(name, line, number, pci)
                return

    def _gpu_spoken_of(self, message: str) -> str | None:
        """The driver names the GPU on the first of several lines."""
        if match := _THIS_GPU.match(message):
            self._this_gpu = pci_address(match["pci"])
            self._this_gpu_left = _GPU_LINES
        self._this_gpu_left -= 1
        return self._this_gpu if self._this_gpu_left >= 0 else None

    def _fallen(self, pci: str, line: Line, number: int) -> None:
        """The plain message is Xid 79 over again, or stands for it."""
        if (EventKind.XID, _FALLEN, pci, line.host) in self.events:
            return
        if self._event(EventKind.XID, _FALLEN, pci, line, number, line.message) is not None:
            self._implied.add((pci, line.host))
            self._roots[pci, line.host] = _FALLEN

    def _condition(
        self, name: str, line: Line, number: int, pci: str | None = None
    ) -> Condition | None:
        key = (name, pci, line.host)
        if key not in self.conditions and len(self.conditions) >= _MAX_KEYS:
            self.overflow += 1
            return None
        return self.conditions.setdefault(
            key,
            Condition(
                name=name,
                text=line.message[:_MAX_TEXT],
                line=number,
                pci=pci,
                host=line.host,
                values={},
            ),
        )


_PREFIX_STARTS = (b"[", b"<", b"{")


def _continuation(line: Line, raw: bytes, following: bytes) -> str | None:
    """Return the next line where it is the rest of this one; mostly a look tells it is not."""
    first = following[:1]
    if not line.stamped or (first in _PREFIX_STARTS and first == raw[:1]):
        return None
    return continues(following)


def _best(message: str, continuation: str | None) -> XidLine | None:
    """Parse an Xid, with the rest of a wrapped line where that tells more."""
    if continuation is None:
        return parse_xid(message)
    candidates = (message, message + continuation, f"{message} {continuation}")
    parsed = [found for text in candidates if (found := parse_xid(text)) is not None]
    return max(parsed, key=_told, default=None)


def _told(found: XidLine) -> int:
    parts = (
        found.pid, found.process, found.caused_by, found.recovery, found.unit, found.fatal,
        found.link, found.subcode,
    )  # fmt: skip
    return sum(part is not None for part in parts)


def read_kernel_log(chunks: Iterable[bytes], subject: Subject, source: str = "log") -> KernelLog:
    """Read a whole kernel log from chunks of any size."""
    reader = KernelLogReader(subject, source)
    for chunk in chunks:
        reader.feed(chunk)
    return reader.finish()
