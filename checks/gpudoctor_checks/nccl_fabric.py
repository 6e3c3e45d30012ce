"""What broke on the fabric: ports, links, queue pairs and memory registration over RDMA.

Causes go before consequences whatever the order of lines: that a queue was flushed is never
where it began.
"""

from __future__ import annotations

from collections.abc import Iterator

from gpudoctor.checking import Result
from gpudoctor.facts.nccl.model import Event, NcclLog
from gpudoctor.report import Severity
from gpudoctor_checks.nccl_log import CHECKS, draft, hosts_of, lines_of, several

_RETRY, _RNR, _FLUSH, _PROTECTION = "12", "13", "5", "4"
_DOWN = ("port error", "local catastrophic error", "device fatal", "catastrophic")
_ACTIVE = "port active"
_NO_MEMORY = ("Cannot allocate memory", "ENOMEM")


def _completions(log: NcclLog, *statuses: str) -> tuple[Event, ...]:
    return tuple(e for e in log.of_kind("completion") if e.values.get("status") in statuses)


def _async(log: NcclLog, *words: str) -> tuple[Event, ...]:
    return tuple(
        event
        for event in log.of_kind("async")
        if any(word in event.values.get("event", "") for word in words)
    )


@CHECKS.check(NcclLog)
def port_error(log: NcclLog) -> Iterator[Result]:
    """An adapter reported that its port or itself failed: the host that logs it has the fault."""
    events = _async(log, *_DOWN)
    if not events:
        return
    devices = [event.values["device"] for event in events if "device" in event.values]
    where = several(hosts_of(events), "host")
    what = f" ({several(devices, 'port')})" if devices else ""
    yield draft(
        log,
        "ib-port-error",
        f"{where}{what} reported '{events[0].values['event'].strip()}'. The host that logs it has"
        " the fault; hosts that log failed completions after it are its victims.",
        lines_of(events),
        hosts=hosts_of(events),
        severity=None if _broke(log) else Severity.WARNING,
    )


@CHECKS.check(NcclLog)
def link_flap(log: NcclLog) -> Iterator[Result]:
    """A port went down and came back, and nothing died of it, or it did so more than once."""
    down, up = _async(log, "port error"), _async(log, _ACTIVE)
    hosts = [host for host in hosts_of(down) if host in hosts_of(up)]
    cycles = {
        host: max((e.count for e in down if e.host == host), default=0)
        for host in hosts
        if any(e.count > 1 for e in up if e.host == host)
    }
    flapping = [host for host in hosts if cycles.get(host, 0) > 1 or not _broke(log)]
    if not flapping:
        return
    seen = [event for event in (*down, *up) if event.host in flapping]
    devices = [event.values["device"] for event in seen if "device" in event.values]
    yield draft(
        log,
        "nic-link-flap",
        f"A port of {several(flapping, 'host')} went down and came back.",
        lines_of(seen),
        hosts=flapping,
        values={"device": several(devices, "port") or f"a port of {several(flapping, 'host')}"},
    )


def _broke(log: NcclLog) -> bool:
    """Whether something died: a failed completion, or an error that NCCL returned."""
    return bool(_completions(log, _RETRY, _RNR, _FLUSH) or log.failed)


@CHECKS.check(NcclLog)
def retry_exceeded(log: NcclLog) -> Iterator[Result]:
    """A peer did not answer over RDMA: unreachable from the start, or lost on the way."""
    events = _completions(log, _RETRY, _RNR)
    if not events:
        return
    peers = [event.values["peer"] for event in events if "peer" in event.values]
    roce = any("RoCE" in found.links for found in log.adapters)
    towards = f" towards {several(peers, 'peer')}" if peers else ""
    hint = (
        " On RoCE at the first transfer it is mostly the GID index (0 by default before NCCL 2.21),"
        " the route between rails, or a switch filter."
        if roce
        else " On InfiniBand it is a link or the peer's host."
    )
    yield draft(
        log,
        "ib-retry-exceeded",
        f"{several(hosts_of(events), 'host')} got no answer{towards} (status"
        f" {events[0].values['status']}, retries exceeded). The host that logs it is the victim."
        f"{hint}",
        lines_of(events),
        hosts=hosts_of(events),
        values={"peers": several(peers, "peer") or "a peer"},
    )


@CHECKS.check(NcclLog)
def local_protection(log: NcclLog) -> Iterator[Result]:
    """The local adapter may not touch the memory it was given: ACS or IOMMU in GDR's way."""
    events = _completions(log, _PROTECTION)
    if events:
        with_gdr = any(use.gdr for use in log.net)
        yield draft(
            log,
            "ib-local-protection-error",
            f"The adapter of {several(hosts_of(events), 'host')} refused its own memory access"
            " (status 4)"
            + (
                ", with GPUDirect RDMA in use: PCIe ACS or the IOMMU redirects peer traffic."
                if with_gdr
                else ": a bad registration, or PCIe ACS or the IOMMU."
            ),
            lines_of(events),
            hosts=hosts_of(events),
        )


@CHECKS.check(NcclLog)
def other_completion(log: NcclLog) -> Iterator[Result]:
    """Any other failed completion: the remote side refused, or the request was malformed."""
    known = (_RETRY, _RNR, _FLUSH, _PROTECTION, "0")
    events = [e for e in log.of_kind("completion") if e.values.get("status") not in known]
    if events:
        yield draft(
            log,
            "ib-completion-error",
            f"{several(hosts_of(events), 'host')}: a work request ended with status"
            f" {events[0].values.get('status')}.",
            lines_of(events),
            hosts=hosts_of(events),
            values={"status": events[0].values.get("status", "?")},
        )


@CHECKS.check(NcclLog)
def flushed(log: NcclLog) -> Iterator[Result]:
    """Work requests flushed after a queue pair had failed already."""
    events = _completions(log, _FLUSH)
    if events:
        yield draft(
            log,
            "ib-flush-error",
            f"{several(hosts_of(events), 'host')}: requests were flushed (status 5) because their"
            " queue pair had already failed, here or at the peer.",
            lines_of(events),
            hosts=hosts_of(events),
        )


def _modify(log: NcclLog, *needles: str) -> tuple[Event, ...]:
    return tuple(
        event
        for event in log.of_kind("modify-qp")
        if event.values.get("errno") in needles
        or any(needle in event.values.get("text", "") for needle in needles)
    )


@CHECKS.check(NcclLog)
def modify_qp(log: NcclLog) -> Iterator[Result]:
    """A queue pair could not be connected; the error number says which side is wrong."""
    rules = (
        (("110", "Connection timed out", "timed out"), "ib-modify-qp-timeout",
         "the fabric does not resolve or reach the peer (rails that do not meet, wrong GID, ARP)"),
        (("19", "No such device"), "ib-modify-qp-no-device",
         "the adapter does not belong to this pod's network namespace"),
        (("22", "Invalid argument"), "gid-index-invalid",
         "the GID at the index in use is empty or of another kind"),
        (("101", "Network is unreachable", "113", "No route to host"), "ib-modify-qp-unreachable",
         "there is no route to the peer from the RoCE interface"),
    )  # fmt: skip
    for needles, name, why in rules:
        events = _modify(log, *needles)
        if not events:
            continue
        named = log.setting("NCCL_IB_GID_INDEX")
        index = events[0].values.get("index") or (named[0].value if named else "in use")
        devices = [event.values["device"] for event in events if "device" in event.values]
        yield draft(
            log,
            name,
            f"ibv_modify_qp fails on {several(hosts_of(events), 'host')}"
            f"{' for ' + several(devices, 'port') if devices else ''}"
            f" ({events[0].values['text']}): {why}.",
            [*lines_of(events), *(setting.line for setting in named)],
            hosts=hosts_of(events),
            values={"index": index, "devices": several(devices, "port") or "the adapter"},
        )


@CHECKS.check(NcclLog)
def registration(log: NcclLog) -> Iterator[Result]:
    """Memory cannot be registered with the adapter: no locked memory, or GPU memory refused."""
    events = log.of_kind("memory-registration", "ib-create")
    no_memory = [
        event
        for event in events
        if event.values.get("errno") == "12"
        or any(word in event.values.get("text", "") for word in _NO_MEMORY)
    ]
    if no_memory:
        call = no_memory[0].values["call"]
        yield draft(
            log,
            "rdma-registration-enomem",
            f"{call} fails with ENOMEM on {several(hosts_of(no_memory), 'host')}: the process may"
            " not lock that much memory (RLIMIT_MEMLOCK); neither GPU nor host memory is full.",
            lines_of(no_memory),
            hosts=hosts_of(no_memory),
            values={"call": call},
        )
    others = [event for event in events if event not in no_memory]
    if others:
        memory = others[0].kind == "memory-registration"
        yield draft(
            log,
            "rdma-registration-failed",
            f"{others[0].values['call']} fails on {several(hosts_of(others), 'host')}"
            f" ({others[0].values.get('text', 'no reason given')}): "
            + (
                "the adapter's driver refuses this memory; for GPU memory, nvidia-peermem or"
                " DMA-BUF does not work."
                if memory
                else "the limit of locked memory, or the adapter has no queue left."
            ),
            lines_of(others),
            hosts=hosts_of(others),
            values={"call": others[0].values["call"]},
        )
