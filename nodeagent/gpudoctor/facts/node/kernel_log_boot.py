"""What a kernel log says of one boot of a machine, line by line.

Memory is bounded by the number of different codes and devices.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from gpudoctor.facts.node.kernel_log import (
    Condition,
    EventKind,
    GpuEvent,
    IommuFault,
    Kill,
    Past,
    PcieError,
)
from gpudoctor.facts.node.kernel_log_host_lines import (
    AdapterLine,
    DeviceKind,
    HungLine,
    IommuLine,
    is_in_gpu_driver,
    is_probe,
    parse_adapter,
    parse_device,
    parse_hung,
    parse_iommu,
    parse_kill,
)
from gpudoctor.facts.node.kernel_log_lines import (
    Line,
    SwitchLine,
    XidLine,
    continues,
    parse_sxid,
    parse_xid,
    pci_address,
)
from gpudoctor.facts.node.xid import XidSeverity, sxid_is_fatal, xid

_MAX_KEYS = 4096
_MAX_TEXT = 300
CORRECTED = "corrected"
IOMMU_FAULT = "iommu-fault"
ENDED = "ended"
"""Key of a condition's values: what it tells of is over."""
_WITHOUT_DOMAIN = len("3b:00.0")

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
_TRACE_LINES = 80
_PCIE = re.compile(
    r"(?P<port>\w+) (?P<device>[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-9a-f]): AER: "
    r"(?:Multiple )?(?P<severity>Corrected|Correctable|Uncorrect(?:ed|able) ?\((?:Non-)?Fatal\))"
)
_NOUVEAU = re.compile(r"nouveau (?P<pci>[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2})\.[0-9a-f]: ")

# Messages that tell a finding by themselves; the driver breaks most of them over several lines.
_CONDITIONS = (
    (
        "adapter-init-failed",
        re.compile(
            r"NVRM: .*(?:RmInitAdapter|rm_init_adapter) failed"
            # the machine's firmware gave it no address space
            r"|NVRM: This PCI I/O region assigned to your NVIDIA device is invalid"
        ),
    ),
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


class BootFacts:
    """What the lines of one boot of one machine have said so far."""

    def __init__(self) -> None:
        self.events: dict[tuple[EventKind, int, str, str | None], GpuEvent] = {}
        self.conditions: dict[tuple[str, str | None, str | None], Condition] = {}
        self.pcie: dict[tuple[str, str, str | None], PcieError] = {}
        self.kills: dict[tuple[int, str | None], Kill] = {}
        self.faults: dict[tuple[str, str | None], IommuFault] = {}
        self.kinds: dict[str, DeviceKind] = {}
        self.probed = False
        self.uuids: dict[str, str] = {}
        self.earlier: dict[tuple[EventKind, int, str, str | None], GpuEvent] = {}
        self.past: dict[tuple[str, str | None, str | None], Past] = {}
        self.overflow = 0
        self._roots: dict[tuple[str, str | None], int] = {}
        self._implied: set[tuple[str, str | None]] = set()
        self._mismatch: Condition | None = None
        self._mismatch_left = 0
        self._hung: tuple[HungLine, Line, int] | None = None
        self._this_gpu: str | None = None
        self._this_gpu_left = 0

    def add(self, line: Line, raw: bytes, following: bytes, number: int) -> None:
        """Take one line, with the one after it, which may be its continuation."""
        message = line.message
        if message.startswith("NVRM: Xid "):
            parsed = _best(message, _continuation(line, raw, following))
            if parsed is not None:
                self._add_xid(parsed, line, number)
        elif message.startswith(("oom-kill:", "Out of memory")):
            self._add_kill(line, number)
        elif (switch := parse_sxid(message)) is not None:
            self._add_sxid(switch, line, number)
        elif " AER: " in message:
            self._add_pcie(line, number)
        elif (fault := parse_iommu(message)) is not None:
            self._add_fault(fault, line, number)
        elif (complaint := parse_adapter(message)) is not None:
            self._add_complaint(complaint, line, number)
        elif (known := parse_device(message)) is not None:
            self.probed = self.probed or is_probe(message)
            if len(self.kinds) < _MAX_KEYS:
                self.kinds[known[0]] = known[1]
        elif not (self._add_hang(line, number) or self._add_mismatch(line, number)):
            self._add_other(line, number)

    @property
    def is_empty(self) -> bool:
        """Whether nothing was said that is worth keeping apart from the next boot."""
        return not (self.events or self.conditions or self.pcie or self.kills or self.faults)

    def absorb(self, older: BootFacts) -> None:
        """Take in what an earlier boot said, as what it is now: history.

        Of several earlier boots the newest is taken in first.
        """
        for key, event in (older.events | older.earlier).items():
            mine = self.events.get(key) or self.earlier.get(key)
            if mine is not None:
                mine.count += event.count
                mine.boots += event.boots
                mine.first_time, mine.first_line = event.first_time, event.first_line
            elif len(self.earlier) < _MAX_KEYS:
                event.before_boot = True
                self.earlier[key] = event
            else:
                self.overflow += 1
        for past in older.history():
            if len(self.past) < _MAX_KEYS:
                self.past.setdefault((past.name, past.device, past.host), past)
        for name in ("uuids", "kinds"):
            mine_of, theirs = getattr(self, name), getattr(older, name)
            mine_of |= {key: theirs[key] for key in theirs.keys() - mine_of.keys()}
        self.probed = self.probed or older.probed
        self.overflow += older.overflow

    def join(self, other: BootFacts) -> None:
        """Take in what turned out to be of the same boot."""
        for key, event in other.events.items():
            if key in self.events:
                event.count += self.events[key].count
        for name in ("events", "conditions", "pcie", "kills", "faults", "kinds", "uuids"):
            getattr(self, name).update(getattr(other, name))
        self.overflow += other.overflow

    def history(self, *, own: bool = False) -> Iterator[Past]:
        """Say what this boot told beside the events, as history; with `own` of itself alone."""
        for said in self.conditions.values():
            yield Past(name=said.name, text=said.text, line=said.line, device=said.pci,
                       host=said.host)  # fmt: skip
        for error in self.pcie.values():
            if error.severity != CORRECTED:
                yield Past(name="pcie-error", text=error.text, line=error.line,
                           device=error.device, host=error.host)  # fmt: skip
        for fault in self.faults.values():
            if fault.kind is not DeviceKind.OTHER:
                yield Past(name=IOMMU_FAULT, text=fault.text, line=fault.line,
                           device=fault.device, host=fault.host)  # fmt: skip
        if not own:
            yield from self.past.values()

    def kind_of(self, device: str) -> DeviceKind | None:
        """Return what the log tells of a PCI address, which may lack its domain; None if nothing.

        Where the walk over the bus is in the log, it has met all GPUs and adapters. The driver
        names its GPUs without the function, which is 0.
        """
        unknown = DeviceKind.OTHER if self.probed else None
        gpus = [key[2] for key in (self.events | self.earlier) if key[0] is EventKind.XID]
        known = {f"{pci}.0": DeviceKind.GPU for pci in (*gpus, *self.uuids)} | self.kinds
        short = device[-_WITHOUT_DOMAIN:]
        for address, kind in known.items():
            if address == device or (
                address[-_WITHOUT_DOMAIN:] == short and short in (address, device)
            ):
                return kind
        return unknown

    def is_ours(self, device: str | None) -> bool:
        """Whether a device is known to be a GPU or an RDMA adapter."""
        return device is not None and self.kind_of(device) in (DeviceKind.GPU, DeviceKind.ADAPTER)

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
                first_line=number,
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
        severity = CORRECTED
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
        if killed is None or len(self.kills) >= _MAX_KEYS:
            return
        kill = Kill(
            pid=killed.pid,
            process=killed.process,
            pod=killed.pod,
            text=line.message[:_MAX_TEXT],
            line=number,
            scope=killed.scope,
            time=line.time,
            host=line.host,
        )
        if line.message.startswith("oom-kill:"):
            self.kills[killed.pid, line.host] = kill
        else:
            self.kills.setdefault((killed.pid, line.host), kill)

    def _add_fault(self, found: IommuLine, line: Line, number: int) -> None:
        key = (found.device, line.host)
        if key not in self.faults and len(self.faults) >= _MAX_KEYS:
            self.overflow += 1
            return
        fault = self.faults.setdefault(
            key,
            IommuFault(
                device=found.device,
                reason=found.reason,
                kind=found.kind,
                count=0,
                text=line.message[:_MAX_TEXT],
                line=number,
                host=line.host,
            ),
        )
        fault.count += 1

    def _add_complaint(self, found: AdapterLine, line: Line, number: int) -> None:
        if found.name is not None:
            said = self._condition(found.name, line, number, found.device)
            if said is not None:
                said.values.pop(ENDED, None)
            return
        for (_, device, host), said in self.conditions.items():
            if (device, host) == (found.device, line.host):
                said.values[ENDED] = "yes"

    def _add_hang(self, line: Line, number: int) -> bool:
        """Take a task that hangs for the driver's affair where its trace goes through it."""
        if (hung := parse_hung(line.message)) is not None:
            self._hung = hung, line, number
            return True
        if self._hung is None or not is_in_gpu_driver(line.message):
            return False
        hung, first, began = self._hung
        self._hung = None
        if number - began > _TRACE_LINES or first.host != line.host:
            return True
        said = self._condition("driver-not-answering", first, began)
        if said is not None:
            task = f"{hung.process} (pid {hung.pid}) waits in it for {hung.seconds} s and more"
            said.values.setdefault("what", task)
        return True

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
