"""From what was heard to the facts: which network, how much GDR, which ranks, which hosts."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable
from typing import TYPE_CHECKING, TypeVar

from gpudoctor.facts.nccl.model import (
    Communicator,
    Event,
    GdrDistance,
    Host,
    Line,
    NcclLog,
    NetUse,
    Rail,
    Setting,
    TransportRow,
)
from gpudoctor.facts.nccl.state import Comm, Occurrence, Process
from gpudoctor.facts.nccl.versions import path_type
from gpudoctor.report import Subject

if TYPE_CHECKING:
    from gpudoctor.facts.nccl.messages import Book
    from gpudoctor.facts.nccl.parser import Parser

_DIGITS = re.compile(r"(\d+)")
_Member = TypeVar("_Member", int, tuple[int, str])

_RANKS_KEPT = 64
_KEPT = 256
NO_GDR_AT_ALL = frozenset({"Socket"})
"""Networks over which GPUDirect RDMA is not a question."""


def summarise(parser: Parser) -> NcclLog:
    """Sum up a parser's book; nothing in the result depends on how the input was cut."""
    book = parser.book
    multi_node = _multi_node(book)
    largest = book.communicators.largest
    net = _net(book.processes)
    name = " ".join(parser.sources[:1]) + (" …" if len(parser.sources) > 1 else "")
    return NcclLog(
        subject=Subject("NcclLog", name or "log"),
        sources=tuple(parser.sources),
        lines=parser.lines,
        network=_network(book.processes, multi_node, any(c.mnnvl for c in book.comms.values())),
        gdr=_gdr(net),
        ranks=largest.nranks if largest else len(book.processes),
        nodes=len({process.host for process in book.processes}),
        multi_node=multi_node,
        versions=tuple(sorted(book.versions)),
        version_of_host=_versions_of_hosts(book),
        runs=_runs(book.processes),
        channels_seen=any(process.net or process.local for process in book.processes),
        single_host_net=bool(net) and multi_node is False,
        deduplicated=book.deduplicated,
        complete_start=book.starts_seen,
        unfinished=parser.unfinished,
        hosts=_hosts(book),
        communicators=_communicators(book.comms.values()),
        settings=tuple(
            Setting(name, value, tuple(sorted(hosts)), line)
            for (name, value), (line, hosts) in book.settings.items()
        ),
        adapters=tuple(sorted(book.adapters.values(), key=lambda found: found.host)),
        chosen=_chosen(book.processes),
        net=net,
        rails=_rails(book.processes, largest),
        hca_gdr=tuple(book.hca_gdr.values()),
        distances=tuple(
            _distance(fact, process, book) for fact, process in book.distances.values()
        ),
        events=tuple(_event(occurrence, largest) for occurrence in book.occurrences),
        failed=tuple((p.host, p.failed) for p in book.processes if p.failed is not None)[:_KEPT],
        work=parser.work.found(),
        gave_up_first=parser.work.gave_up_first,
        stuck=parser.work.stuck(),
        flight=parser.reports.gaps(),
        ras_processes=tuple(parser.reports.ras.processes()),
        ras_lags=tuple(parser.reports.ras.lags()),
        run_starts=tuple((run, line) for (_, run), line in book.communicators.run_starts.items()),
        addresses=tuple(sorted(book.addresses.items())),
        transports=book.transports.names(),
        grid=_grid(book.processes, largest),
    )


def _multi_node(book: Book) -> bool | None:
    """Whether one communicator spans hosts; None when the log does not tell."""
    comms = book.comms.values()
    if any((comm.nnodes or 0) > 1 or len(set(comm.started.values())) > 1 for comm in comms):
        return True
    if any(comm.nnodes == 1 or _all_on_one_host(comm) for comm in comms):
        return False
    if any(process.net for process in book.processes):
        return not _local_paths_disabled(book)
    return None


def _all_on_one_host(comm: Comm) -> bool:
    return len(comm.started) == comm.nranks and len(set(comm.started.values())) == 1


def _local_paths_disabled(book: Book) -> bool:
    hosts = {process.host for process in book.processes}
    return len(hosts) == 1 and ("NCCL_P2P_LEVEL", "LOC") in book.settings


def _net(processes: Iterable[Process]) -> tuple[NetUse, ...]:
    found: dict[tuple[str, str, int, str, bool], NetUse] = {}
    for process in processes:
        for (network, nic, direction, gdr), line in process.net.items():
            key = (process.host, network, nic, direction, gdr)
            found.setdefault(key, NetUse(process.host, network, nic, direction, gdr, line))
    return tuple(sorted(found.values()))


def _rails(processes: Iterable[Process], largest: Comm | None) -> tuple[Rail, ...]:
    """The adapters of each rank, where it is known which rank of its host it is."""
    by_host: dict[str, dict[int, Process]] = defaultdict(dict)
    for process in processes:
        rank = process.ranks.get(largest.key) if largest else None
        if rank is not None and process.net:
            by_host[process.host][rank] = process
    return tuple(
        Rail(
            host,
            local,
            rank,
            tuple(sorted({nic for _, nic, _, _ in p.net})),
            next(iter(p.net.values())),
            own=tuple(sorted(p.own_nics)),
            bare=tuple(sorted({nic for _, nic, _, gdr in p.net if not gdr} & p.own_nics)),
            bus=p.bus,
        )
        for host, members in sorted(by_host.items())
        for local, (rank, p) in enumerate(sorted(members.items()))
    )


def _network(processes: Iterable[Process], multi_node: bool | None, mnnvl: bool) -> str:
    """The network in use, or chosen where nothing is connected yet and NVLink joins no hosts."""
    names: set[str] = set()
    for process in processes:
        if process.net:
            names |= {network for network, _, _, _ in process.net}
        elif multi_node and process.networks and not process.local and not mnnvl:
            names.add(list(process.networks)[-1])
    if not names:
        return "none"
    return names.pop() if len(names) == 1 else "mixed"


def _gdr(net: tuple[NetUse, ...]) -> str:
    uses = {use.gdr for use in net if use.network not in NO_GDR_AT_ALL}
    if not uses:
        return "n/a"
    if uses == {True}:
        return "all"
    return "none" if uses == {False} else "partial"


def _versions_of_hosts(book: Book) -> tuple[tuple[str, str, Line], ...]:
    found: dict[tuple[str, str], Line] = {}
    for process in book.processes:
        if process.version is not None:
            found.setdefault((process.host, process.version[0]), process.version[1])
    return tuple((host, version, line) for (host, version), line in sorted(found.items()))


def _runs(processes: Iterable[Process]) -> int:
    """How often the job began."""
    return 1 + max((process.run for process in processes), default=0)


def _hosts(book: Book) -> tuple[Host, ...]:
    by_name: dict[str, list[Process]] = defaultdict(list)
    for process in book.processes:
        by_name[process.host].append(process)
    largest = book.communicators.largest
    errors: dict[str, int] = defaultdict(int)
    for occurrence in book.events.values():
        if "warning" in occurrence.values:
            errors[occurrence.host] += occurrence.count
    adapters = {found.host: len(found.devices) for found in book.adapters.values()}
    hosts = (
        Host(
            name=name,
            processes=sum(process.lives for process in processes),
            ranks=tuple(
                sorted({p.ranks[largest.key] for p in processes if largest.key in p.ranks})
                if largest
                else ()
            ),
            networks=tuple(
                sorted({list(process.networks)[-1] for process in processes if process.networks})
            ),
            adapters=adapters.get(name),
            transports=tuple(sorted({local for process in processes for local in process.local})),
            gdr=_gdr(_net(processes)),
            version=next((p.version[0] for p in processes if p.version), None),
            errors=errors[name],
        )
        for name, processes in by_name.items()
    )
    return tuple(sorted(hosts, key=_place_in_job))


def _place_in_job(host: Host) -> tuple[bool, tuple[int, ...], list[tuple[int, str]]]:
    """By the first rank, as rings go round; then by name, node-9 before node-10."""
    parts = enumerate(_DIGITS.split(host.name))
    # A number is as large as it is long, then as its digits.
    name = [(len(part.lstrip("0")) if n % 2 else 0, part) for n, part in parts]
    return not host.ranks, host.ranks[:1], name


def _communicators(comms: Iterable[Comm]) -> tuple[Communicator, ...]:
    """Members that several have in common are listed once."""
    hosts: dict[int, tuple[tuple[int, str], ...]] = {}
    ranks: dict[int, tuple[int, ...]] = {}
    return tuple(
        Communicator(
            id=comm.key,
            nranks=comm.nranks,
            nnodes=comm.nnodes,
            started=_once(ranks, comm.started, comm.started),
            completed=_once(ranks, comm.completed, comm.completed),
            aborted=comm.aborted,
            hosts=_once(hosts, comm.started, comm.started.items()),
            line=comm.line,
            bootstrap_seconds=tuple(sorted(comm.waited.items())),
            least_waited=comm.least_waited[1] if comm.least_waited else None,
            mnnvl=comm.mnnvl,
        )
        for comm in comms
    )


def _once(
    known: dict[int, tuple[_Member, ...]], members: object, values: Iterable[_Member]
) -> tuple[_Member, ...]:
    key = id(members)
    if key not in known:
        known[key] = tuple(sorted(values))
    return known[key]


def _chosen(processes: Iterable[Process]) -> tuple[tuple[str, str, Line], ...]:
    found: dict[tuple[str, str], Line] = {}
    for process in processes:
        for network, line in process.networks.items():
            found.setdefault((process.host, network), line)
    return tuple((host, network, line) for (host, network), line in sorted(found.items()))


def _distance(fact: GdrDistance, process: Process, book: Book) -> GdrDistance:
    version = process.version[0] if process.version else None
    if version is None and len(book.versions) == 1:
        (version,) = book.versions
    return GdrDistance(
        host=fact.host,
        gpu=fact.gpu,
        hca=fact.hca,
        enabled=fact.enabled,
        distance=path_type(int(fact.distance[:4]), version),
        limit=path_type(int(fact.limit[:4]), version),
        read=fact.read,
        line=fact.line,
    )


def _event(occurrence: Occurrence, largest: Comm | None) -> Event:
    ranks = (
        {p.ranks[largest.key] for p in occurrence.processes if largest.key in p.ranks}
        if largest
        else set()
    )
    return Event(
        kind=occurrence.kind,
        host=occurrence.host,
        ranks=tuple(sorted(ranks)[:_RANKS_KEPT]),
        count=occurrence.count,
        lines=tuple(occurrence.lines),
        values=dict(occurrence.values),
        order=occurrence.order,
        time=occurrence.time,
    )


def _grid(processes: Iterable[Process], largest: Comm | None) -> tuple[TransportRow, ...]:
    rows: dict[int, bytes] = {}
    for process in processes:
        rank = process.ranks.get(largest.key) if largest else None
        for own, row in process.rows.items():
            if rank is None or own == rank:
                rows[own] = bytes(row)
    return tuple(TransportRow(rank, codes) for rank, codes in sorted(rows.items()))
