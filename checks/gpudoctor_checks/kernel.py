"""The kernel log beside the GPU driver's codes: earlier boots, memory that ran out, stopped DMA."""

from __future__ import annotations

from collections.abc import Iterator

from gpudoctor.checking import CheckSet, Draft, Result, finding
from gpudoctor.facts.node.kernel_log import EventKind, GpuEvent, IommuFault, KernelLog, Kill, Past
from gpudoctor.facts.node.kernel_log_host_lines import KillScope
from gpudoctor.facts.node.xid import XidSeverity
from gpudoctor.report import Certainty, Severity, Subject

CHECKS = CheckSet()

_SHOWN = 12
_TRANSIENT = (XidSeverity.APP, XidSeverity.INFO, XidSeverity.UNKNOWN)
_DEVICE_NODE = "the node"


@CHECKS.check(KernelLog)
def before_last_boot(log: KernelLog) -> Iterator[Result]:
    """What the log tells of earlier boots alone is history: one finding for each device."""
    devices: dict[tuple[str | None, str | None], list[GpuEvent | Past]] = {}
    for event in log.events:
        if event.before_boot:
            devices.setdefault((event.host, event.pci), []).append(event)
    for past in log.past:
        devices.setdefault((past.host, past.device), []).append(past)
    for (host, device), told in devices.items():
        yield _history(log, host, device, told)


def _history(
    log: KernelLog, host: str | None, device: str | None, told: list[GpuEvent | Past]
) -> Draft:
    told = sorted(told, key=lambda one: one.line)
    again = [one for one in told if _comes_back(one)]
    what = ", ".join(dict.fromkeys(map(_called, told)))
    detail = (
        f"The log spans more than one boot. Before the last one it tells of {what}; since then of"
        " nothing like it. A boot starts GPU and driver anew."
    )
    if again:
        codes = " and ".join(_called(one) for one in again)
        detail += f" {codes} came in several of those boots, so that it may come back."
    return finding(
        "gpu-trouble-before-boot",
        _subject(log, host, device),
        detail,
        *(log.evidence(one.text, one.line, "before the last boot") for one in told[:_SHOWN]),
        values={"device": device or _DEVICE_NODE, "what": what},
        severity=Severity.WARNING if again else None,
    )


def _comes_back(one: GpuEvent | Past) -> bool:
    return isinstance(one, GpuEvent) and one.boots > 1 and one.severity not in _TRANSIENT


def _called(one: GpuEvent | Past) -> str:
    if isinstance(one, Past):
        return one.name
    return f"{'Xid' if one.kind is EventKind.XID else 'SXid'} {one.code}"


@CHECKS.check(KernelLog)
def machine_out_of_memory(log: KernelLog) -> Iterator[Result]:
    """The kernel killed processes because the machine itself, not a cgroup, had no memory left."""
    hosts: dict[tuple[str | None, KillScope], list[Kill]] = {}
    for kill in log.kills:
        if kill.scope is not KillScope.CGROUP:
            hosts.setdefault((kill.host, kill.scope), []).append(kill)
    torn = {(e.host, e.pid) for e in log.events if e.pid is not None and not e.before_boot}
    for (host, scope), kills in hosts.items():
        names = dict.fromkeys(f"{kill.process} (pid {kill.pid})" for kill in kills)
        shown = ", ".join(list(names)[:_SHOWN])
        whose = "the machine" if scope is KillScope.MACHINE else "the NUMA nodes it may use"
        yield finding(
            "host-out-of-memory",
            _subject(log, host, None),
            f"The kernel found no memory left in all of {whose} and killed {shown}. That is no"
            " container's limit: whoever took the memory need not be who was killed.",
            *(log.evidence(kill.text, kill.line, _pod(kill)) for kill in kills[:_SHOWN]),
            values={"process": shown, "whose": whose},
            severity=None
            if any((kill.host, kill.pid) in torn or kill.pod for kill in kills)
            else Severity.WARNING,
        )


def _pod(kill: Kill) -> str | None:
    return f"of pod {kill.pod}" if kill.pod else None


@CHECKS.check(KernelLog)
def stopped_dma(log: KernelLog) -> Iterator[Result]:
    """The IOMMU stopped a DMA of a GPU or an RDMA adapter."""
    for fault in log.iommu_faults:
        yield _fault(log, fault)


def _fault(log: KernelLog, fault: IommuFault) -> Draft:
    times = f"{fault.count} times" if fault.count > 1 else "once"
    known = fault.kind is not None
    detail = (
        f"The IOMMU stopped DMA of {fault.kind or 'the device'} {fault.device} {times}"
        f" ({fault.reason}): it went to an address that the device may not use. What was to be"
        " transferred is lost; transfers between GPUs, or between GPU and adapter, hang or carry"
        " wrong data."
    )
    if not known:
        detail += " The log does not say what this device is: see lspci."
    return finding(
        "iommu-fault",
        _subject(log, fault.host, fault.device),
        detail,
        log.evidence(fault.text, fault.line, times if fault.count > 1 else None),
        values={"device": fault.device, "kind": fault.kind or "device"},
        certainty=Certainty.CERTAIN if known else Certainty.POSSIBLE,
        severity=None if known else Severity.INFO,
    )


def _subject(log: KernelLog, host: str | None, device: str | None) -> Subject:
    return Subject(log.subject.kind, host or log.subject.name, log.subject.namespace, device=device)
