"""GPUs, PCIe devices and the kernel log."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from gpudoctor.checking import CheckSet, Draft, Result, finding
from gpudoctor.facts.node.kernel_log import (
    EventKind,
    GpuEvent,
    KernelLog,
)
from gpudoctor.facts.node.kernel_log_host_lines import KillScope
from gpudoctor.facts.node.xid import Action, XidSeverity, xid
from gpudoctor.report import Evidence, Severity, Subject, Unknown

CHECKS = CheckSet()

_RECOVERY_CHANGED = 154
_TORN_DOWN = 45
_CONTAINED = 94
_WINDOW_OF_EVIDENCE = 12
_NOT_THE_GPU = (XidSeverity.APP, XidSeverity.INFO)
_SECONDS = re.compile(r"^[0-9]{1,12}(?:\.[0-9]+)?$")

# What comes on the same GPU with the first of a pair is its consequence, not another fault.
_TAKES_IN = {
    "gpu-uncorrectable-ecc": {"gpu-memory-repair-pending"},
    "gpu-firmware-failure": {"gpu-needs-reset", "gpu-application-fault"},
    "gpu-memory-repair-failed": {"gpu-memory-repair-pending", "gpu-uncorrectable-ecc"},
}
_LOST = "gpu-lost"


@CHECKS.check(KernelLog)
def gpu_codes(log: KernelLog) -> Iterator[Result]:
    """The driver reported an Xid: one finding for each GPU and kind, follow-ups as evidence."""
    devices: dict[tuple[str | None, str], list[GpuEvent]] = {}
    for event in log.events:
        if event.kind is EventKind.XID and not event.before_boot:
            devices.setdefault((event.host, event.pci), []).append(event)
    for events in devices.values():
        yield from _of_gpu(log, events)


def _of_gpu(log: KernelLog, events: list[GpuEvent]) -> Iterator[Draft]:
    groups: dict[str, list[GpuEvent]] = {}
    present = {event.code: event for event in events}
    for event in events:
        root = present.get(event.follow_up_of or -1)
        if root is None or _asks_for_more(event, root):
            groups.setdefault(_name(event), []).append(event)
    leaders = {
        name: followers for name, followers in groups.items() if not _taken_in(name, set(groups))
    }
    for name, led in leaders.items():
        others = [event for event in events if event not in led]
        yield _draft(log, name, led, others if len(leaders) == 1 else _follow_ups(led, others))


def _asks_for_more(event: GpuEvent, root: GpuEvent) -> bool:
    """Whether the driver wants a GPU repaired after what is else the program's own affair."""
    return (
        event.code == _RECOVERY_CHANGED
        and event.action >= Action.RESET
        and root.severity in _NOT_THE_GPU
    )


def _taken_in(name: str, present: set[str]) -> bool:
    if name != _LOST and _LOST in present:
        return True
    return any(name in _TAKES_IN.get(other, ()) for other in present if other != name)


def _follow_ups(led: list[GpuEvent], others: list[GpuEvent]) -> list[GpuEvent]:
    roots = {event.code for event in led}
    return [event for event in others if event.follow_up_of in roots]


def _name(event: GpuEvent) -> str:
    """The finding that tells about a code; a recovery action alone asks for what it says.

    A code that names the one it follows, where the log does not hold that one, stands for it.
    """
    if event.code != _RECOVERY_CHANGED:
        return xid(event.follow_up_of or event.code).finding
    if event.action is Action.REBOOT:
        return "gpu-needs-reboot"
    return "gpu-xid-noted" if event.action is Action.NONE else "gpu-needs-reset"


def _draft(log: KernelLog, name: str, led: list[GpuEvent], followers: list[GpuEvent]) -> Draft:
    first = led[0]
    host = first.host or log.subject.name
    uuid = log.uuids.get(first.pci)
    detail = " ".join(_sentences(led))
    if all(event.ended for event in led):
        detail += " The driver has recovered the GPU since."
    if any(event.boots > 1 and event.severity not in _NOT_THE_GPU for event in led):
        detail += " It came before the last boot, too: a reboot did not cure it."
    return finding(
        name,
        _subject(log, first.host, first.pci),
        detail,
        *_evidence(log, [*led, *followers]),
        values={
            "device": f"{first.pci} ({uuid})" if uuid else first.pci,
            "node": host,
            "codes": ", ".join(str(event.code) for event in led),
            "process": next((event.process for event in led if event.process), "the program"),
            "link": str(first.link) if first.link is not None else "an NVLink",
        },
        severity=_severity(name, led),
    )


def _subject(log: KernelLog, host: str | None, device: str | None) -> Subject:
    return Subject(log.subject.kind, host or log.subject.name, log.subject.namespace, device=device)


def _sentences(events: list[GpuEvent]) -> Iterator[str]:
    """Say what the codes mean and what to do; codes that mean the same are said once."""
    groups: dict[str, list[GpuEvent]] = {}
    for event in events:
        known = xid(event.follow_up_of or event.code)
        if event.recovery_action is not None:
            word = event.recovery_action.replace("_", " ").lower()
            groups.setdefault(f"the driver asks for: {word}.", []).append(event)
        else:
            groups.setdefault(f"{known.meaning}. {known.advice}", []).append(event)
    for text, alike in groups.items():
        codes = dict.fromkeys(_code(event) for event in alike)
        whos = dict.fromkeys(who for event in alike if (who := _who(event)))
        by = f", from {' and '.join(whos)}" if whos else ""
        yield f"Xid {' and '.join(codes)}{by}{_followed(alike[0])}: {text}"


def _followed(event: GpuEvent) -> str:
    if event.follow_up_of is None:
        return ""
    return f", which follows Xid {event.follow_up_of} (not in this log)"


def _code(event: GpuEvent) -> str:
    part = f" ({event.unit})" if event.unit else ""
    times = f", {event.count} times{_span(event)}" if event.count > 1 else ""
    return f"{event.code}{part}{times}"


def _span(event: GpuEvent) -> str:
    """Say from when to when; bare numbers in a kernel log are seconds since boot."""
    first, last = event.first_time, event.last_time
    if first is None or last is None or first == last:
        return ""
    if _SECONDS.match(first) and _SECONDS.match(last):
        return f" between {float(first):.0f} and {float(last):.0f} s after boot"
    return f" between {first} and {last}"


def _who(event: GpuEvent) -> str | None:
    return f"{event.process} (pid {event.pid})" if event.process and event.pid else None


def _evidence(log: KernelLog, events: Iterable[GpuEvent]) -> Iterator[Evidence]:
    for event in sorted(events, key=lambda event: event.line)[:_WINDOW_OF_EVIDENCE]:
        note = None
        if event.follow_up_of is not None:
            note = f"follows Xid {event.follow_up_of}"
        elif event.count > 1:
            note = f"{event.count} times"
        yield log.evidence(event.text, event.line, note)


_MILDER_WHEN_OVER = {"gpu-uncorrectable-ecc", "gpu-needs-reset", "gpu-firmware-failure",
                     "nvlink-error", "gpu-lost", "gpu-needs-reboot"}  # fmt: skip


def _severity(name: str, led: list[GpuEvent]) -> Severity | None:
    """None for the runbook's own; milder for what is over, contained or not fatal."""
    if name in _MILDER_WHEN_OVER and all(event.ended for event in led):
        return Severity.WARNING
    if name == "nvlink-error" and all(
        event.action <= Action.CHECK_LINK_SIGNAL and event.follow_up_of is None for event in led
    ):
        return Severity.WARNING
    if name == "gpu-uncorrectable-ecc" and all(event.code == _CONTAINED for event in led):
        return Severity.WARNING
    return None


@CHECKS.check(KernelLog)
def switch_codes(log: KernelLog) -> Iterator[Result]:
    """The NVSwitch driver reported an SXid: one finding a switch, its fatal codes first."""
    switches: dict[tuple[str | None, str], list[GpuEvent]] = {}
    for event in log.events:
        if event.kind is EventKind.SXID and not event.before_boot:
            switches.setdefault((event.host, event.pci), []).append(event)
    for (host, pci), events in switches.items():
        fatal = [event for event in events if event.severity is XidSeverity.LINK]
        told = fatal or events
        rest = [event for event in events if event not in told]
        yield finding(
            "nvswitch-error",
            _subject(log, host, pci),
            " ".join(_switch_sentence(event) for event in [*told, *rest]),
            *(log.evidence(event.text, event.line) for event in [*told, *rest]),
            values={"device": pci, "code": ", ".join(str(event.code) for event in told)},
            severity=None if fatal else Severity.INFO,
        )


def _switch_sentence(event: GpuEvent) -> str:
    times = f" {event.count} times" if event.count > 1 else ""
    if event.severity is not XidSeverity.LINK:
        return f"SXid {event.code}{times}, not fatal: corrected or retried."
    cure = " Only a reboot of the host clears it." if event.action is Action.REBOOT else ""
    return f"SXid {event.code}{times}, fatal: the switch stops this link.{cure}"


@CHECKS.check(KernelLog)
def killed_programs(log: KernelLog) -> Iterator[Result]:
    """The kernel killed a program for its memory limit, and the driver tore its GPU work down.

    A program that was killed and did not use a GPU is not this tool's matter.
    """
    torn = {
        (event.host, event.pid): event
        for event in log.events
        if event.code == _TORN_DOWN and event.follow_up_of is None and not event.before_boot
    }
    for kill in log.kills:
        event = torn.get((kill.host, kill.pid))
        if event is None or kill.scope is not KillScope.CGROUP:
            continue
        yield finding(
            "oom-killed",
            _subject(log, kill.host, None),
            f"The kernel killed {kill.process} (pid {kill.pid}) because its container reached its "
            f"memory limit; the driver then tore down its work on GPU {event.pci} (Xid 45). "
            "Neither GPU nor node is at fault.",
            log.evidence(kill.text, kill.line),
            log.evidence(event.text, event.line, "its work on the GPU"),
            values={
                "container": kill.process,
                "pod": f"pod {kill.pod}" if kill.pod else "a cgroup",
            },
            severity=Severity.WARNING,
        )


@CHECKS.check(KernelLog)
def pcie_errors(log: KernelLog) -> Iterator[Result]:
    """Advanced Error Reporting told of PCIe errors that were not corrected."""
    for error in log.pcie_errors:
        corrected = error.severity == "corrected"
        yield finding(
            "pcie-error",
            _subject(log, error.host, error.device),
            f"{error.count} {error.severity} PCIe errors on {error.device}.",
            log.evidence(error.text, error.line),
            values={"device": error.device, "severity": error.severity},
            severity=Severity.INFO if corrected else None,
        )


@CHECKS.check(KernelLog)
def beyond_memory(log: KernelLog) -> Iterator[Result]:
    """More different codes and devices than are kept: the log is not an honest one."""
    if log.overflow:
        yield Unknown(f"{log.overflow} further lines of {log.source}", "too many different devices")
