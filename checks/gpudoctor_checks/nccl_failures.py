"""What broke: the fabric, limits, GPUs, the start, or a collective that never ended.

Causes go before consequences whatever the order of lines: that a peer closed its connection or
that a queue was flushed is never where it began.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from statistics import median

from gpudoctor.checking import Result
from gpudoctor.facts.nccl.model import Communicator, Event, NcclLog, WorkStatus
from gpudoctor.facts.nccl.versions import from_integer
from gpudoctor.report import Certainty, Severity, Unknown
from gpudoctor_checks.nccl_log import CHECKS, draft, hosts_of, lines_of, ranks, several

_RETRY, _RNR, _FLUSH, _PROTECTION = "12", "13", "5", "4"
_DOWN = ("port error", "local catastrophic error", "device fatal", "catastrophic")
_ACTIVE = "port active"
_FOLLOWERS = ("peer-closed",)
_QUIET = ("ofi-provider", "net-forced", "ib-none", "cumem")
_LATE_SECONDS, _VERY_LATE_SECONDS = 10.0, 60.0
_PROMPT_PART, _LATE_RANKS_PART = 0.1, 0.25
_FEWEST_TIMED = 3
"""Of two ranks one always waits for the other."""
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
    others = [e for e in events if e not in no_memory and e.kind == "memory-registration"]
    if others:
        yield draft(
            log,
            "rdma-registration-failed",
            f"{others[0].values['call']} fails on {several(hosts_of(others), 'host')}"
            f" ({others[0].values.get('text', 'no reason given')}): the adapter's driver refuses"
            " this memory; for GPU memory, nvidia-peermem or DMA-BUF does not work.",
            lines_of(others),
            hosts=hosts_of(others),
            values={"call": others[0].values["call"]},
        )


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


@CHECKS.check(NcclLog)
def imex(log: NcclLog) -> Iterator[Result]:
    """NVLink spans the hosts, but this container has no IMEX channel."""
    events = (*log.of_kind("imex"), *log.of_kind("imex-cuda"))
    if events:
        yield draft(
            log,
            "imex-channel-unavailable",
            f"{several(hosts_of(events), 'host')} belongs to a multi-node NVLink domain, but"
            " sharing GPU memory across it is refused: no usable /dev/nvidia-caps-imex-channels in"
            " the pod, or the IMEX daemon is not up.",
            lines_of(events),
            hosts=hosts_of(events),
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
    yield draft(
        log,
        "p2p-disabled",
        f"GPUs that {link} connects on {several(hosts_of(said), 'host')} cannot reach each other's"
        " memory, so their traffic goes through host memory: "
        + (
            "a hardware or fabric fault."
            if broken
            else "virtualisation, IOMMU or ACS, or a GPU model without P2P."
        ),
        lines_of(said),
        hosts=hosts_of(said),
        values={"link": link},
        severity=None if broken else Severity.WARNING,
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


@CHECKS.check(NcclLog)
def connect_failed(log: NcclLog) -> Iterator[Result]:
    """A TCP connection between ranks cannot be opened, however often it is tried."""
    ended = (*log.of_kind("connect-gave-up"), *log.of_kind("connect-failed"))
    retries = log.of_kind("connect-retry")
    completed = any(comm.completed for comm in log.communicators)
    if not ended and (not retries or completed):
        return
    events = (*ended, *retries)
    peers = [event.values["peer"] for event in events if "peer" in event.values]
    reason = next((e.values["text"] for e in events if "text" in e.values), "no answer")
    yield draft(
        log,
        "nccl-socket-connect-failed",
        f"{several(hosts_of(events), 'host')} cannot connect to"
        f" {several(peers, 'peer') or 'a peer'} ({reason}): "
        + (
            "nobody listens there, so the peer's process is gone or the address is wrong."
            if "refused" in reason
            else "a network policy, firewall or missing route between the pods."
        ),
        lines_of(events),
        hosts=hosts_of(events),
        values={"peers": several(peers, "peer") or "a peer"},
        certainty=Certainty.CERTAIN if ended else Certainty.LIKELY,
    )


@CHECKS.check(NcclLog)
def peer_closed(log: NcclLog) -> Iterator[Result]:
    """Another rank went away; if nothing here says why, its own log has to."""
    events = log.of_kind("peer-closed")
    if not events:
        return
    yield draft(
        log,
        "nccl-peer-connection-closed",
        f"{several(hosts_of(events), 'host')} lost its connection to another rank, which ended"
        " first. This is a consequence.",
        lines_of(events),
        hosts=hosts_of(events),
    )
    if not _causes(log) and not log.work:
        yield Unknown("what ended the first rank", "its own log is not here, only that of others")


def _causes(log: NcclLog) -> list[Event]:
    """What may have ended a rank, not counting what other ranks notice of it."""
    aside = (*_FOLLOWERS, *_QUIET, "connect-retry")
    return [event for event in log.events if event.kind not in aside]


@CHECKS.check(NcclLog)
def collective_timeout(log: NcclLog) -> Iterator[Result]:
    """PyTorch's watchdog gave a collective up: who waited, and who never came."""
    groups: dict[str, list[WorkStatus]] = defaultdict(list)
    for status in log.work:
        groups[status.group].append(status)
    for statuses in groups.values():
        gave_up = [
            status for status in statuses if status.timed_out is not None or status.operation
        ]
        if not gave_up:
            continue
        sequence = min((s.timed_out for s in gave_up if s.timed_out is not None), default=None)
        late = _late(statuses, sequence)
        waiting = [status.rank for status in gave_up if status not in late]
        operation = next((s.operation for s in gave_up if s.operation), "") or "a collective"
        number = f" {sequence}" if sequence is not None else ""
        if late:
            who = (
                f"{ranks(s.rank for s in late).capitalize()} never entered it (last enqueued"
                f" {late[0].enqueued}): look at that process, not at the ranks that report"
            )
        else:
            who = (
                "No rank heard of is behind: a rank that reports nothing is dead or stuck, or the"
                " transfer itself hangs"
            )
        yield draft(
            log,
            "nccl-collective-timeout",
            f"{ranks(waiting).capitalize()} waited in {operation}{number} until the watchdog gave"
            f" up. {who}.",
            [status.line for status in (*late, *gave_up)],
            values={
                "operation": f"{operation}{number}",
                "suspects": ranks(s.rank for s in late) if late else "no rank heard of",
            },
        )


def _late(statuses: list[WorkStatus], sequence: int | None) -> list[WorkStatus]:
    """Ranks whose last enqueued work is below the collective that timed out."""
    known = [status for status in statuses if status.enqueued is not None]
    if not known or sequence is None:
        return []
    lowest = min(status.enqueued or 0 for status in known)
    return [status for status in known if status.enqueued == lowest and lowest < sequence]


@CHECKS.check(NcclLog)
def init_incomplete(log: NcclLog) -> Iterator[Result]:
    """A communicator began and never came up, and somebody waited for it in vain."""
    if log.unfinished is None or log.deduplicated or log.failed or _causes(log) or log.work:
        return
    for comm in log.communicators:
        missing = (
            sorted(set(range(comm.nranks)) - set(comm.started)) if comm.nranks < 1 << 20 else []
        )
        stuck = sorted(set(comm.started) - set(comm.completed))
        if not comm.started or not stuck or comm.aborted or (comm.completed and missing):
            continue
        who = (
            f"{ranks(missing).capitalize()} never began"
            if missing
            else f"{ranks(stuck).capitalize()} began and did not finish"
        )
        yield draft(
            log,
            "nccl-init-incomplete",
            f"The communicator of {comm.nranks} ranks did not come up: {who}, and"
            f" {ranks(set(stuck)) if missing else 'the others'} waited until somebody gave up.",
            [comm.line, log.unfinished],
            hosts=[host for rank, host in comm.hosts if rank in stuck],
            values={"missing": ranks(missing or stuck), "nranks": str(comm.nranks)},
            certainty=Certainty.LIKELY,
        )
        return


@CHECKS.check(NcclLog)
def late_rank(log: NcclLog) -> Iterator[Result]:
    """The start waited for a rank: the one that itself hardly waited is the one that was late."""
    found = [(comm, late, waited) for comm in log.communicators for late, waited in _late_to(comm)]
    if not found:
        return
    comm, late, waited = max(found, key=lambda each: each[2])
    hosts = dict(comm.hosts)
    named = tuple(dict.fromkeys(hosts[rank] for rank in late if rank in hosts))
    where = f" on {several(named, 'host')}" if named else ""
    yield draft(
        log,
        "nccl-late-rank",
        f"The others of {comm.nranks} ranks waited {waited:.0f} s in the bootstrap, and"
        f" {ranks(late)}{where} hardly at all: it reached NCCL that much later.",
        [comm.least_waited or comm.line],
        hosts=named,
        values={"ranks": f"{ranks(late)}{where}", "seconds": f"{waited:.0f}"},
        severity=Severity.WARNING if waited >= _VERY_LATE_SECONDS else None,
    )


def _late_to(comm: Communicator) -> Iterator[tuple[list[int], float]]:
    """The ranks that hardly waited, when the others did, and how long those did (the median)."""
    if len(comm.bootstrap_seconds) < _FEWEST_TIMED:
        return
    middle = median(seconds for _, seconds in comm.bootstrap_seconds)
    late = [rank for rank, seconds in comm.bootstrap_seconds if seconds < middle * _PROMPT_PART]
    few = len(late) <= max(1, len(comm.bootstrap_seconds) * _LATE_RANKS_PART)
    if middle >= _LATE_SECONDS and late and few:
        yield late, middle


@CHECKS.check(NcclLog)
def first_error(log: NcclLog) -> Iterator[Result]:
    """NCCL failed for a reason that no other rule knows: the first warning is the cause."""
    unknown = sorted(log.of_kind("warning", "cuda", "merge-nics"), key=lambda e: (e.time, e.order))
    warned = [event for event in unknown if "warning" in event.values]
    recognised = [e for e in _causes(log) if e.kind not in ("warning", "cuda", "merge-nics")]
    if not warned or recognised:
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
