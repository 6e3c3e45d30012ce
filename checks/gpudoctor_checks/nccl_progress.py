"""Ranks that did not come, stopped first, lag behind or do not answer.

Who reports is mostly who waited: that a peer closed its connection, or that a collective timed
out, is said by those to whom it was done.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from gpudoctor.checking import Result
from gpudoctor.facts.nccl.model import Communicator, Event, NcclLog
from gpudoctor.report import Certainty, Severity, Unknown
from gpudoctor_checks.nccl_log import (
    CHECKS,
    causes,
    draft,
    hosts_of,
    lines_of,
    ranks,
    several,
    silent,
)

_LATE_SECONDS, _VERY_LATE_SECONDS = 10.0, 60.0
_PROMPT_PART, _LATE_RANKS_PART = 0.1, 0.25
_LAGS_SHOWN = 4
_OF_ONE_HOST = ("169.254.", "172.17.", "127.", "192.168.122.", "fe80:", "::1")
"""Link-local addresses, loopback, and the default bridges of Docker and libvirt."""
_NAME_INTERFACE = (
    "Set NCCL_SOCKET_IFNAME in all pods to the interface by which the nodes reach each other, such"
    " as =eth0, or exclude the local ones with ^."
)
_FEWEST_TIMED = 3
"""Of two ranks one always waits for the other."""


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
        f" {several(peers, 'peer') or 'a peer'} ({reason}): " + _why_unreachable(peers, reason),
        lines_of(events),
        hosts=hosts_of(events),
        values={"peers": several(peers, "peer") or "a peer"},
        certainty=Certainty.CERTAIN if ended else Certainty.LIKELY,
        fix=_NAME_INTERFACE if any(peer.startswith(_OF_ONE_HOST) for peer in peers) else None,
        awaits=_named_and_silent(log, events) or silent(log, hosts_of(events)),
    )


def _why_unreachable(peers: list[str], reason: str) -> str:
    local = [peer for peer in peers if peer.startswith(_OF_ONE_HOST)]
    if local:
        return (
            f"{local[0]} is an address that means something on its own host alone: NCCL took an"
            " interface that does not leave it. Name the right one in NCCL_SOCKET_IFNAME."
        )
    if "refused" in reason:
        return "nobody listens there, so the peer's process is gone or the address is wrong."
    return "a network policy, firewall or missing route between the pods."


@CHECKS.check(NcclLog)
def peer_closed(log: NcclLog) -> Iterator[Result]:
    """Another rank went away; if nothing here says why, its own log has to."""
    events = log.of_kind("peer-closed")
    if not events:
        return
    first = _named_and_silent(log, events)
    who = (
        f" Named as the peer, and silent about any itself: {several(first, 'host')}; look there"
        " for what ended first."
        if first
        else ""
    )
    yield draft(
        log,
        "nccl-peer-connection-closed",
        f"{several(hosts_of(events), 'host')} lost the connection to another rank, which ended"
        f" first. This is a consequence.{who}",
        lines_of(events),
        hosts=hosts_of(events),
        awaits=first or silent(log, hosts_of(events)),
    )
    # A job's pods are looked at themselves; that tells more than the log that is missing.
    if not (causes(log) or log.work or log.ras_processes or log.places):
        yield Unknown("what ended the first rank", "its own log is not here, only that of others")


def _named_and_silent(log: NcclLog, events: Iterable[Event]) -> list[str]:
    """Hosts that others lost, and that lost nobody themselves: by name where it is known."""
    hosts = dict(log.addresses)
    complaining = set(hosts_of(events))
    named = [event.values["peer"] for event in events if "peer" in event.values]
    known = [
        hosts.get(peer, peer.partition(".")[0] if peer[:1].isalpha() else peer) for peer in named
    ]
    return [host for host in dict.fromkeys(known) if host not in complaining]


@CHECKS.check(NcclLog)
def init_incomplete(log: NcclLog) -> Iterator[Result]:
    """A communicator began and never came up, and somebody waited for it in vain."""
    if log.unfinished is None or log.deduplicated or log.failed or causes(log) or log.work:
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
            awaits=_absent(log, comm, missing, stuck),
        )
        return


def _absent(
    log: NcclLog, comm: Communicator, missing: list[int], stuck: list[int]
) -> tuple[str, ...]:
    """The hosts of those who never began, else of the few who did not finish what others did."""
    if missing:
        return silent(log, (host for _, host in comm.hosts))
    return tuple(host for rank, host in comm.hosts if rank in stuck) if comm.completed else ()


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
    from statistics import median  # imported late: every check of a pod loads this module

    middle = median(seconds for _, seconds in comm.bootstrap_seconds)
    late = [rank for rank, seconds in comm.bootstrap_seconds if seconds < middle * _PROMPT_PART]
    few = len(late) <= max(1, len(comm.bootstrap_seconds) * _LATE_RANKS_PART)
    if middle >= _LATE_SECONDS and late and few:
        yield late, middle


def _hosts_at(log: NcclLog, nodes: Iterable[str]) -> list[str]:
    """The hosts that have these addresses; the address itself where none is known to."""
    known = dict(log.addresses)
    return [known.get(node, node) for node in nodes]


@CHECKS.check(NcclLog)
def unresponsive(log: NcclLog) -> Iterator[Result]:
    """RAS got no answer from a process: it ended, or it is stopped."""
    found = sorted(log.ras_processes, key=lambda process: not process.is_dead)
    if not found:
        return
    dead = [process for process in found if process.is_dead]
    told = several((f"process {p.pid} on {p.node} (GPU {p.gpu})" for p in dead or found), "process")
    yield draft(
        log,
        "nccl-process-unresponsive",
        f"ncclras got no answer from {told}: "
        + (
            "after 60 seconds of trying it is considered dead."
            if dead
            else "it has ended or is stopped; after 60 seconds RAS will call it dead."
        )
        + " All others of its communicators wait for it.",
        [process.line for process in found],
        hosts=_hosts_at(log, (process.node for process in dead or found)),
        awaits=_hosts_at(log, (process.node for process in dead or found)),
        values={"processes": told},
        severity=None if dead else Severity.ERROR,
        certainty=Certainty.CERTAIN if dead else Certainty.LIKELY,
    )


@CHECKS.check(NcclLog)
def behind(log: NcclLog) -> Iterator[Result]:
    """RAS counted fewer launched operations for a rank, in two reports the same."""
    stuck = [lag for lag in log.ras_lags if lag.is_stuck]
    if not stuck:
        return
    told = "; ".join(
        f"rank {lag.rank} on {lag.node} stands at operation {lag.operation}, most at {lag.most}"
        for lag in stuck[:_LAGS_SHOWN]
    )
    yield draft(
        log,
        "nccl-rank-behind",
        f"In more than one ncclras report {told}. Its process answers, but launches nothing: look"
        " at what it does (data loader, checkpoint, an exception that is being handled).",
        [lag.line for lag in stuck],
        hosts=_hosts_at(log, (lag.node for lag in stuck)),
        awaits=_hosts_at(log, (lag.node for lag in stuck)),
        values={"ranks": ranks(lag.rank for lag in stuck)},
    )
