"""What a kernel log says about the node's GPUs: the facts, without the reader.

An event is one code on one device, however often it was printed. A condition is something else
that the driver or the kernel says once: a version mismatch, a GPU it does not bind.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any

import msgspec

from gpudoctor.facts.node.kernel_log_host_lines import DeviceKind, KillScope
from gpudoctor.facts.node.xid import Action, XidSeverity, sxid_action, xid
from gpudoctor.report import Evidence, Subject


class EventKind(StrEnum):
    """Who printed it: the GPU driver or the NVSwitch driver."""

    XID = "xid"
    SXID = "sxid"


class RecoveryAction(StrEnum):
    """The driver's own recommendation in Xid 154, by the suffix of NVML's constants."""

    NONE = "NONE"
    GPU_RESET = "GPU_RESET"
    NODE_REBOOT = "NODE_REBOOT"
    DRAIN_P2P = "DRAIN_P2P"
    DRAIN_AND_RESET = "DRAIN_AND_RESET"
    RECOVER_IMEX_DOMAIN = "RECOVER_IMEX_DOMAIN"
    BUS_RESET = "BUS_RESET"
    SYSTEM_REBOOT = "SYSTEM_REBOOT"


RECOVERY = {
    RecoveryAction.NONE: Action.NONE,
    RecoveryAction.GPU_RESET: Action.RESET,
    RecoveryAction.NODE_REBOOT: Action.REBOOT,
    RecoveryAction.DRAIN_P2P: Action.DRAIN_AND_RESET,
    RecoveryAction.DRAIN_AND_RESET: Action.DRAIN_AND_RESET,
    RecoveryAction.RECOVER_IMEX_DOMAIN: Action.DRAIN_AND_RESET_FABRIC,
    RecoveryAction.BUS_RESET: Action.DRAIN_AND_RESET,
    RecoveryAction.SYSTEM_REBOOT: Action.REBOOT,
}


class GpuEvent(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A code on a device. `pci` is as the driver prints it: no function for Xid, one for SXid.

    `count` is a lower bound, since the driver limits its rate. `first_time` and `last_time` are
    the log's own stamps. The fields from `pid` on are those of the first line;
    `recovery_action` is the last one. `ended` says that the driver has since recovered the GPU.
    `boots` counts the boots that it came in, `before_boot` says that the last one is not among
    them; the other fields are then those of the last boot that it came in.
    """

    kind: EventKind
    code: int
    pci: str
    severity: XidSeverity
    count: int
    host: str | None = None
    pid: int | None = None
    process: str | None = None
    gpu_instance: int | None = None
    compute_instance: int | None = None
    unit: str | None = None
    fatal: bool | None = None
    link: int | None = None
    subcode: int | None = None
    recovery_action: RecoveryAction | None = None
    follow_up_of: int | None = None
    first_time: str | None = None
    last_time: str | None = None
    text: str = ""
    line: int = 0
    first_line: int = 0
    ended: bool = False
    boots: int = 1
    before_boot: bool = False

    @property
    def action(self) -> Action:
        """What this event alone asks for; a reboot has done that."""
        if self.before_boot:
            return Action.NONE
        if self.kind is EventKind.SXID:
            return sxid_action(self.code, fatal=bool(self.fatal))
        if self.recovery_action is not None:
            return RECOVERY[self.recovery_action]
        if self.unit is not None and self.fatal is False:
            return Action.CHECK_LINK_SIGNAL if "BER" in self.unit else Action.WATCH
        return xid(self.code).action


class Condition(msgspec.Struct, frozen=True):
    """Something the kernel says that is no Xid: the name of its finding, and where it was said."""

    name: str
    text: str
    line: int
    pci: str | None = None
    host: str | None = None
    values: dict[str, str] = {}


class Kill(msgspec.Struct, frozen=True, kw_only=True):
    """A process that the kernel killed for want of memory, its cgroup's or the machine's."""

    pid: int
    process: str
    pod: str | None
    text: str
    line: int
    scope: KillScope = KillScope.CGROUP
    time: str | None = None
    host: str | None = None


class PcieError(msgspec.Struct, kw_only=True):
    """Advanced Error Reporting: errors of one severity on one device."""

    device: str
    severity: str
    count: int
    text: str
    line: int
    host: str | None = None


class IommuFault(msgspec.Struct, kw_only=True):
    """DMA of one device that the IOMMU stopped. `kind` is None where the log does not tell it."""

    device: str
    reason: str
    count: int
    text: str
    line: int
    kind: DeviceKind | None = None
    host: str | None = None


class Past(msgspec.Struct, kw_only=True):
    """Something that is no event, of a boot before the last one. `name` is that of the finding."""

    name: str
    text: str
    line: int
    device: str | None = None
    host: str | None = None


class KernelLog(msgspec.Struct, frozen=True, kw_only=True):
    """A kernel log, read whole. `source` names it in evidence, `subject` is the node.

    All but `past` and the events that are `before_boot` is of the last boot. `uuids` maps PCI
    address to GPU UUID. `overflow` counts events beyond the memory bound.
    """

    subject: Subject
    source: str
    events: tuple[GpuEvent, ...] = ()
    conditions: tuple[Condition, ...] = ()
    pcie_errors: tuple[PcieError, ...] = ()
    kills: tuple[Kill, ...] = ()
    iommu_faults: tuple[IommuFault, ...] = ()
    past: tuple[Past, ...] = ()
    uuids: dict[str, str] = {}
    overflow: int = 0

    def evidence(self, text: str, line: int, note: str | None = None) -> Evidence:
        """Return a line of this log as evidence."""
        return Evidence(f"{self.source}:{line}", value=text, note=note)


def gpu_actions(log: KernelLog) -> dict[str, Action]:
    """Return what each GPU needs, worst of its events, in the order of first appearance.

    Keyed by PCI address, with the host before it where the log is of several.
    """
    devices = dict.fromkeys(
        (event.host, event.pci) for event in log.events if event.kind is EventKind.XID
    )
    several = len({host for host, _ in devices}) > 1
    return {
        f"{host}/{pci}" if several and host else pci: _gpu_action(
            [event for event in log.events if (event.host, event.pci) == (host, pci)]
        )
        for host, pci in devices
    }


def _gpu_action(events: list[GpuEvent]) -> Action:
    """The worst code decides. Where that is a link, the driver's last word (154) decides."""
    live = [event for event in events if not event.ended and not event.before_boot]
    hardware = [event.action for event in live if event.severity is XidSeverity.HARDWARE]
    if hardware:
        return max(hardware)
    said = [event.action for event in live if event.recovery_action is not None]
    own = [
        event.action
        for event in live
        if event.recovery_action is None
        and not (said and event.severity is XidSeverity.LINK and event.fatal is not False)
    ]
    return max([*own, *said], default=Action.NONE)


def node_action(log: KernelLog) -> Action:
    """Return what the node needs: the worst of its GPUs and switches."""
    switches = [event.action for event in log.events if event.kind is EventKind.SXID]
    return max([*gpu_actions(log).values(), *switches], default=Action.NONE)


def published(log: KernelLog) -> dict[str, Any]:
    """Return the log as a report's `facts.kernel`."""
    shown = [
        {
            key: value
            for key, value in msgspec.to_builtins(event).items()
            if key not in ("text", "line", "first_line", "ended")
        }
        for event in log.events
    ]
    return {
        "events": shown,
        "gpu_actions": {pci: action.word for pci, action in gpu_actions(log).items()},
        "node_action": node_action(log).word,
    }
