"""Whether GPUDirect RDMA is in use between GPU and adapter, and which of NCCL's steps refused it.

The order of proof: the variables, the distance line, the per-adapter line, then what differs:
between hosts, between directions, between adapters. Release builds print *that* GDR is off, not
why; a reason is named only where a line gives it.
"""

from __future__ import annotations

from collections.abc import Iterator

from gpudoctor.checking import Result
from gpudoctor.facts.nccl.model import GdrDistance, Line, NcclLog, NetUse
from gpudoctor.report import Severity
from gpudoctor_checks.nccl_log import CHECKS, draft, is_set, lines_of, several
from gpudoctor_checks.nccl_network import SOCKET, TCP_PLUGINS

_LOST = "Without it each byte is copied through host memory: up to a third or a half of the rail"
_ACROSS = {
    "SYS": " (they sit on different NUMA nodes, or sockets)",
    "PHB": " (the way leads through the CPU)",
}
_NEVER = (SOCKET, *TCP_PLUGINS)
_NO_GDR_THERE = (
    "The plugin says that it is not supported here. Of EC2's instance types only those of the P"
    " series from p4d on have it, and on these the plugin stops instead"
)
_FATAL = (
    "completion", "async", "modify-qp", "memory-registration", "duplicate-gpu", "version-mismatch",
    "imex", "gpu-memory", "shm-full",
)  # fmt: skip


class _Picture:
    """The log's channels over networks that can do GDR, by host."""

    def __init__(self, log: NcclLog) -> None:
        self.uses = [use for use in log.net if use.network not in _NEVER]
        self.without = [use for use in self.uses if not use.gdr]
        self.hosts = {use.host for use in self.without}
        self.by_read = {host for host in self.hosts if self._only_reads_lack(host)}
        disabled = [fact for fact in log.hca_gdr if not fact.enabled and _can(fact.network)]
        judged = self.hosts if self.uses else {fact.host for fact in disabled}
        enabled = {(fact.host, fact.device) for fact in log.hca_gdr if fact.enabled}
        self.no_support = [
            fact
            for fact in disabled
            if fact.host in judged and (fact.host, fact.device) not in enabled
        ]
        self.too_far = [
            fact
            for fact in log.distances
            if not fact.enabled
            and fact.host in (self.hosts if self.uses else _hosts_without_any(log))
        ]
        self.explained = (
            {fact.host for fact in self.no_support}
            | {fact.host for fact in self.too_far}
            | self.by_read
        )

    def _only_reads_lack(self, host: str) -> bool:
        """All receives of the host have GDR and all its sends lack it."""
        mine = [use for use in self.uses if use.host == host and use.direction]
        sends = {use.gdr for use in mine if use.direction == "send"}
        receives = {use.gdr for use in mine if use.direction == "receive"}
        return sends == {False} and receives == {True}


def _can(network: str) -> bool:
    return network not in _NEVER


def _hosts_without_any(log: NcclLog) -> set[str]:
    """Before any channel is seen: hosts with a GPU that no adapter is near enough to."""
    near = {(fact.host, fact.gpu) for fact in log.distances if fact.enabled}
    return {fact.host for fact in log.distances if (fact.host, fact.gpu) not in near}


@CHECKS.check(NcclLog)
def tcp_plugin(log: NcclLog) -> Iterator[Result]:
    """A plugin that speaks TCP carries the data: it has no GDR by design."""
    names = {use.network for use in log.net if use.network in TCP_PLUGINS}
    if not names and log.multi_node and log.network in TCP_PLUGINS:
        names = {log.network}
    if names:
        lines = [use.line for use in log.net if use.network in names]
        lines += [line for _, name, line in log.chosen if name in names]
        lines += [fact.line for fact in log.hca_gdr if fact.network in names]
        yield draft(
            log,
            "nccl-tcp-plugin-without-gdr",
            f"{', '.join(sorted(names))} is a plugin over TCP: each byte passes through host"
            " memory. The Disabled lines are its own property, no driver fault.",
            lines,
            hosts=[use.host for use in log.net if use.network in names],
            values={"plugin": ", ".join(sorted(names))},
        )


@CHECKS.check(NcclLog)
def no_support(log: NcclLog) -> Iterator[Result]:
    """The adapter offers neither a peer-memory client nor DMA-BUF."""
    facts = _Picture(log).no_support
    if not facts or log.multi_node is False:
        return
    hosts = [fact.host for fact in facts]
    devices = several([fact.device for fact in facts], "adapter")
    yield draft(
        log,
        "gdr-disabled-no-peermem",
        f"{devices} on {several(hosts, 'host')} cannot do GPUDirect RDMA: no peer-memory client is"
        f" registered and DMA-BUF registration does not work. {_LOST} rate is lost.",
        _spread([fact.line for fact in facts], _Picture(log).without),
        hosts=hosts,
        values={"devices": devices},
    )


def _spread(reasons: list[Line], uses: list[NetUse]) -> list[Line]:
    """A few of the reasons, then a few of the channels."""
    return [*reasons[:4], *(use.line for use in uses[:2])]


@CHECKS.check(NcclLog)
def too_far(log: NcclLog) -> Iterator[Result]:
    """GPU and adapter are further apart than NCCL_NET_GDR_LEVEL allows."""
    picture = _Picture(log)
    facts = [fact for fact in picture.too_far if fact.host not in picture.by_read]
    if not facts or log.multi_node is False:
        return
    worst = facts[0]
    hosts = [fact.host for fact in facts]
    yield draft(
        log,
        "gdr-disabled-distance",
        f"GPU {worst.gpu} and adapter {worst.hca} of {several(hosts, 'host')} are {worst.distance}"
        f" apart{_ACROSS.get(worst.distance, '')}, the limit is {worst.limit}{_by_env(log)}."
        f" {_LOST} rate is lost.",
        _spread([fact.line for fact in facts], picture.without),
        hosts=hosts,
        values={"distance": worst.distance, "limit": worst.limit, "pairs": _pairs(facts)},
    )


def _by_env(log: NcclLog) -> str:
    levels = log.setting("NCCL_NET_GDR_LEVEL")
    return f" (NCCL_NET_GDR_LEVEL={levels[0].value})" if levels else ""


def _pairs(facts: list[GdrDistance]) -> str:
    return several([f"GPU {fact.gpu} - {fact.hca}" for fact in facts], "pair")


@CHECKS.check(NcclLog)
def by_env(log: NcclLog) -> Iterator[Result]:
    """NCCL_NET_GDR_LEVEL forbids GDR altogether."""
    picture = _Picture(log)
    if picture.without and not picture.too_far and is_set(log, "NCCL_NET_GDR_LEVEL", "LOC", "0"):
        yield draft(
            log,
            "gdr-disabled-by-env",
            f"NCCL_NET_GDR_LEVEL={log.setting('NCCL_NET_GDR_LEVEL')[0].value} allows no distance,"
            f" so no channel uses GPUDirect RDMA. {_LOST} rate is lost.",
            [s.line for s in log.setting("NCCL_NET_GDR_LEVEL")]
            + [use.line for use in picture.without],
            hosts=sorted(picture.hosts),
        )


@CHECKS.check(NcclLog)
def reads_disabled(log: NcclLog) -> Iterator[Result]:
    """Receives use GDR and sends do not: NCCL_NET_GDR_READ, or an old GPU's default."""
    picture = _Picture(log)
    forced = is_set(log, "NCCL_NET_GDR_READ", "0")
    if not picture.by_read:
        return
    hosts = sorted(picture.by_read)
    why = (
        "NCCL_NET_GDR_READ=0 says so"
        if forced
        else "the default before compute capability 8.0 for GPUs without NVLink"
    )
    sends = [use for use in picture.without if use.direction == "send"]
    yield draft(
        log,
        "gdr-read-disabled",
        f"On {several(hosts, 'host')} receives use GPUDirect RDMA and sends do not: {why}.",
        [s.line for s in log.setting("NCCL_NET_GDR_READ")] + [use.line for use in sends],
        hosts=hosts,
        severity=Severity.WARNING if forced else None,
    )


@CHECKS.check(NcclLog)
def unexplained(log: NcclLog) -> Iterator[Result]:
    """GDR is off for some or for all, and no line says why."""
    picture = _Picture(log)
    hosts = sorted(picture.hosts - picture.explained)
    if not hosts or is_set(log, "NCCL_NET_GDR_LEVEL", "LOC", "0") or log.single_host_net:
        return
    lines = [use.line for use in picture.without if use.host in hosts]
    with_gdr = sorted({use.host for use in picture.uses if use.gdr} - set(hosts))
    bare = {use.host for use in picture.uses} == set(hosts) and log.gdr == "none"
    if bare:
        broken = bool(log.of_kind(*_FATAL))
        told = [event for event in log.of_kind("ofi-no-gdr") if event.host in ("", *hosts)]
        by_design = log.no_gdr_by_design or (_NO_GDR_THERE if told else "")
        why = (
            f"{by_design}: nothing is to be repaired"
            if by_design
            else "The log does not say why: run again with NCCL_DEBUG=INFO"
            " NCCL_DEBUG_SUBSYS=INIT,NET,GRAPH"
        )
        yield draft(
            log,
            "gdr-not-used",
            f"No channel of {several(hosts, 'host')} uses GPUDirect RDMA. {why}. {_LOST} rate is"
            " lost.",
            [*lines_of(told), *lines],
            hosts=hosts,
            values={"reason": "it is not there" if by_design else "the log does not say why"},
            severity=Severity.INFO if broken or by_design else None,
        )
        return
    nics = sorted({use.nic for use in picture.without if use.host in hosts})
    if with_gdr:
        others = several(with_gdr, "host")
        said = f"GPUDirect RDMA is not used on {several(hosts, 'host')}, and is on {others}"
        why = "the host that prints the lines lacks it, not its peer"
    else:
        said = f"On {several(hosts, 'host')} some channels use GPUDirect RDMA and some do not"
        why = f"without it are those over NCCL's adapters {', '.join(map(str, nics))}"
    yield draft(
        log,
        "gdr-partial",
        f"{said}: {why}. The log does not say the reason; compare nvidia-peermem, driver and"
        f" placement. {_LOST} rate is lost there, and a ring is as fast as its slowest host.",
        lines[:4] + [use.line for use in picture.uses if use.gdr][:2],
        hosts=hosts,
    )
