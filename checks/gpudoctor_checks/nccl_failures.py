"""What broke inside a host or between two: limits, memory, GPUs, versions, topology.

The fabric's own failures stand in `nccl_fabric.py`, ranks that hang in `nccl_progress.py`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

import msgspec

from gpudoctor.checking import Draft, Result
from gpudoctor.facts.nccl.model import Event, NcclLog
from gpudoctor.facts.nccl.versions import from_integer
from gpudoctor.facts.node.runtime_errors import ErrorLines, RecognisedError
from gpudoctor.report import Certainty, Severity
from gpudoctor_checks.nccl_log import (
    CHECKS,
    causes,
    draft,
    evidence,
    hosts_of,
    lines_of,
    places,
    ranks,
    several,
)

_NAMELESS = ("warning", "cuda", "merge-nics", "fastrak-env", "tcpx-timeout", "shm-peer")
"""Kinds of events that no rule names by themselves."""
_P2P = "transport/p2p.cc"
_NO_PEER = "peer access is not supported"
_BAD_ORDINAL = "device-ordinal-invalid"


@CHECKS.check(NcclLog)
def shared_memory(log: NcclLog) -> Iterator[Result]:
    """NCCL's segments do not fit into /dev/shm."""
    full = log.of_kind("shm-full")
    created = log.of_kind("shm-create")
    other_reason = any(
        word in event.values.get("text", "") + event.values.get("message", "")
        for event in created
        for word in ("Permission denied", "Too many open files", "No such file")
    )
    alone = created and not full and not other_reason and not log.of_kind("shm-peer", "open-files")
    if not full and not alone:
        return
    events = full or created
    sized = [e.values["bytes"] for e in (*created, *full) if "bytes" in e.values]
    size = f" of {int(sized[0][:15]) / 1e6:.1f} MB" if sized else ""
    yield draft(
        log,
        "shm-too-small",
        f"NCCL cannot create a shared memory segment{size} in /dev/shm on"
        f" {several(hosts_of(events), 'host')}: the container's default is 64 MiB.",
        lines_of((*events, *created)),
        hosts=hosts_of(events),
        values={"pod": several(hosts_of(events), "host"), "size": "too small"},
        certainty=Certainty.CERTAIN if full else Certainty.LIKELY,
    )


@CHECKS.check(NcclLog)
def duplicate_gpu(log: NcclLog) -> Iterator[Result]:
    """Two ranks were given the same GPU."""
    events = log.of_kind("duplicate-gpu")
    if not events:
        return
    bus = several([e.values["bus"] for e in events if "bus" in e.values], "GPU")
    named = {int(e.values[key][:9]) for e in events for key in ("rank", "other") if key in e.values}
    sharing = named | {rank for event in events for rank in event.ranks}
    yield draft(
        log,
        "nccl-duplicate-gpu",
        f"{ranks(sharing).capitalize()} on {several(hosts_of(events), 'host')} use the same GPU"
        f" ({bus}), {sum(e.count for e in events)} ranks complain: the mapping of local rank to"
        " device, or CUDA_VISIBLE_DEVICES, is wrong.",
        lines_of(events),
        hosts=hosts_of(events),
        values={"bus": bus},
    )


@CHECKS.check(NcclLog)
def version_mismatch(log: NcclLog) -> Iterator[Result]:
    """The ranks of one job load different NCCL versions."""
    events = log.of_kind("version-mismatch")
    by_version: dict[str, list[str]] = defaultdict(list)
    for host, version, _ in log.version_of_host:
        by_version[version.partition("+")[0]].append(host)
    one_job = len(log.communicators) > 0 and log.multi_node is not False
    if not events and not (len(by_version) > 1 and one_job):
        return
    told = "; ".join(f"{version} on {several(h, 'host')}" for version, h in by_version.items())
    if not told and "version" in events[0].values:
        first = events[0].values
        told = " and ".join(from_integer(int(first[key][:9])) for key in ("version", "second"))
    yield draft(
        log,
        "nccl-version-mismatch",
        f"The ranks do not load the same NCCL: {told or 'see the lines'}.",
        [*lines_of(events), *(line for _, _, line in log.version_of_host)],
        hosts=hosts_of(events) or [host for host, _, _ in log.version_of_host],
        values={"versions": told or "different versions"},
        severity=None if events or log.failed else Severity.WARNING,
    )


def _not_imported(log: NcclLog) -> tuple[Event, ...]:
    """CUDA's failures in taking over a peer's memory, where NVLink joins the hosts."""
    if not any(comm.mnnvl for comm in log.communicators):
        return ()
    return tuple(e for e in log.of_kind("cuda") if any(_P2P in line.text for line in e.lines))


@CHECKS.check(NcclLog)
def imex(log: NcclLog) -> Iterator[Result]:
    """NVLink spans the hosts, but this container has no IMEX channel."""
    events = (*log.of_kind("imex"), *log.of_kind("imex-cuda"), *_not_imported(log))
    if events:
        yield draft(
            log,
            "imex-channel-unavailable",
            f"A multi-node NVLink domain spans {several(hosts_of(events), 'host')}, but"
            " sharing GPU memory across it is refused: no usable /dev/nvidia-caps-imex-channels in"
            " the pod, or the IMEX daemon is not up.",
            lines_of(events),
            hosts=hosts_of(events),
            certainty=Certainty.CERTAIN if log.of_kind("imex", "imex-cuda") else Certainty.LIKELY,
        )


@CHECKS.check(NcclLog)
def nvls(log: NcclLog) -> Iterator[Result]:
    """NVLink SHARP multicast memory cannot be bound."""
    events = log.of_kind("nvls")
    if not events:
        return
    fatal = any("warning" in event.values for event in events) or bool(log.failed)
    yield draft(
        log,
        "nvls-bind-failed",
        f"{several(hosts_of(events), 'host')}: binding NVLink SHARP multicast memory fails: Fabric"
        " Manager or the NVSwitches are not in order."
        + ("" if fatal else " NCCL goes on without NVLS, slower."),
        lines_of(events),
        hosts=hosts_of(events),
        severity=None if fatal else Severity.WARNING,
    )


@CHECKS.check(NcclLog)
def p2p(log: NcclLog) -> Iterator[Result]:
    """The driver says that GPUs of one host cannot reach each other's memory."""
    broken, events = log.of_kind("p2p-nvlink"), log.of_kind("p2p")
    if not broken and not events:
        return
    said = broken or events
    link = "NVLink" if broken else "PCIe"
    fatal = bool(log.failed) and any(_NO_PEER in event.values.get("message", "") for event in said)
    outcome = "NCCL failed" if fatal else "their traffic goes through host memory"
    yield draft(
        log,
        "p2p-disabled",
        f"GPUs that {link} connects on {several(hosts_of(said), 'host')} cannot reach each other's"
        f" memory, so {outcome}: "
        + (
            "a hardware or fabric fault."
            if broken
            else "virtualisation, IOMMU or ACS, or a GPU model without P2P."
        ),
        lines_of(said),
        hosts=hosts_of(said),
        values={"link": link},
        severity=None if broken or fatal else Severity.WARNING,
    )


@CHECKS.check(NcclLog)
def gpu_memory(log: NcclLog) -> Iterator[Result]:
    """CUDA has no memory left for NCCL's buffers."""
    events = log.of_kind("gpu-memory")
    if events:
        yield draft(
            log,
            "gpu-out-of-memory",
            f"CUDA has no memory left for NCCL's buffers on {several(hosts_of(events), 'host')}.",
            lines_of(events),
            hosts=hosts_of(events),
        )


@CHECKS.check(NcclLog)
def open_files(log: NcclLog) -> Iterator[Result]:
    """The limit of open files is reached: NCCL needs several sockets a peer and channel."""
    events = log.of_kind("open-files")
    if events:
        yield draft(
            log,
            "nccl-open-files-limit",
            f"{several(hosts_of(events), 'host')}: the process has no file descriptors left.",
            lines_of(events),
            hosts=hosts_of(events),
        )


@CHECKS.check(NcclLog)
def crosstalk(log: NcclLog) -> Iterator[Result]:
    """The other end of a connection does not speak of the same job, version or network."""
    events = log.of_kind("crosstalk")
    if events:
        yield draft(
            log,
            "nccl-bootstrap-crosstalk",
            f"{several(hosts_of(events), 'host')} received what it did not expect: ranks with"
            " different settings or versions, two jobs on one port, or a scanner or sidecar.",
            lines_of(events),
            hosts=hosts_of(events),
        )


@CHECKS.check(NcclLog)
def topology_file(log: NcclLog) -> Iterator[Result]:
    """The topology that a plugin hands to NCCL lacks what NCCL needs."""
    events = log.of_kind("topology-file")
    if events:
        yield draft(
            log,
            "nccl-topology-file-invalid",
            f"{several(hosts_of(events), 'host')}: the topology XML of the plugin or of"
            " NCCL_TOPO_FILE is not what this NCCL version reads.",
            lines_of(events),
            hosts=hosts_of(events),
        )


def _cuda_error(event: Event) -> RecognisedError | None:
    """What CUDA's message means, where it has a name of its own."""
    from gpudoctor.facts.node.runtime_error_lines import recognise  # late: compiles many patterns

    error = recognise(event.values.get("message", ""))
    of_memory = any(_P2P in line.text for line in event.lines)
    return None if error is None or (of_memory and error.name == _BAD_ORDINAL) else error


@CHECKS.check(NcclLog)
def cuda_failure(log: NcclLog) -> Iterator[Result]:
    """CUDA names a trouble of GPU, driver or program: the same as when a program prints it."""
    for event in log.of_kind("cuda"):
        error = _cuda_error(event)
        if error is None:
            continue
        from gpudoctor_checks.runtime_errors import named_by_its_error  # late, as `recognise`

        values = {"device": f"of {event.host}"} | error.values
        told = ErrorLines(
            subject=log.subject,
            errors=((msgspec.structs.replace(error, values=values), evidence(event.lines)[0]),),
            related=(*log.related, *places(log, [event.host])),
        )
        for found in named_by_its_error(told):
            if isinstance(found, Draft):
                found = msgspec.structs.replace(found, detail=f"{found.detail} On {event.host}.")
            yield found


@CHECKS.check(NcclLog)
def first_error(log: NcclLog) -> Iterator[Result]:
    """NCCL failed for a reason that no other rule knows: the first warning is the cause."""
    told = [event for event in causes(log) if event.kind not in _NAMELESS or _is_told(log, event)]
    unknown = sorted(log.of_kind(*_NAMELESS), key=lambda e: (e.time, e.order))
    warned = [event for event in unknown if "warning" in event.values]
    if not warned or told:
        return
    first = warned[0]
    failed = bool(log.failed)
    yield draft(
        log,
        "nccl-error",
        f"The first warning, on {first.host}: {first.values.get('message', '')}"
        + ("" if failed else " (NCCL went on)"),
        [*first.lines, *lines_of(warned[1:]), *(line for _, line in log.failed[:1])],
        hosts=[first.host],
        values={"message": first.values.get("message", "")[:80]},
        severity=None if failed else Severity.INFO,
    )


def _is_told(log: NcclLog, event: Event) -> bool:
    """Whether another rule names what CUDA said."""
    return event.kind == "cuda" and (_cuda_error(event) is not None or event in _not_imported(log))
