"""NCCL logs, of one rank or a thousand, for `explain` and `nccl`."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from gpudoctor.errors import InputError
from gpudoctor.facts.nccl.model import NcclLog
from gpudoctor.facts.nccl.parser import Parser
from gpudoctor.readings import Format, Reading
from gpudoctor.report import ReportSubject, Unknown
from gpudoctor.sources.text import TextInput

_TELLING = re.compile(
    r"NCCL (?:INFO|WARN|version) |WorkNCCL\(|last enqueued (?:NCCL )?work"
    r"|Not all ranks joining collective|ProcessGroupNCCL's watchdog got stuck"
)
_CONNECTED = re.compile(rb"[^\0]", re.DOTALL)
_CHUNK = 1 << 20
_GRID_LIMIT = 64
_HOSTS_LIMIT = 4096
_FEW = 16
_SHARE = {frozenset({True}): "all", frozenset({False}): "none"}


def read(text: TextInput) -> Reading:
    """Read one log as a stream."""
    return read_all([text])


def read_all(texts: Iterable[TextInput]) -> Reading:
    """Read the logs of one job, one after the other: all ranks in one file, one file a rank, or
    anything between.
    """
    parser = Parser()
    for text in texts:
        parser.open(text.name)
        for chunk in chunks(text):
            parser.feed(chunk)
    return reading(parser.finish())


def follow(text: TextInput, wait: Callable[[], bool]) -> Iterator[Reading]:
    """Yield what a growing log says each time that it has grown.

    `wait` is called where there is no more to read for now; False ends it. A file that was
    rotated or cut is read on from the start of what has its name then.
    """
    if text.is_compressed:
        raise InputError(
            f"{text.name}: compressed, so it does not grow line by line; leave out --follow"
        )
    parser = Parser()
    parser.open(text.name)
    fresh = False
    while True:
        chunk = text.read_some(_CHUNK)
        if chunk:
            parser.feed(chunk)
            fresh = True
            if len(chunk) == _CHUNK:
                continue
        if fresh:
            fresh = False
            yield reading(parser.so_far())
        if not chunk and not _renewed(text, parser) and not wait():
            break
    yield reading(parser.finish())


def _renewed(text: TextInput, parser: Parser) -> bool:
    """Whether the file was replaced; what was written to the old one last is read first."""
    if not text.is_replaced():
        return False
    for chunk in chunks(text):
        parser.feed(chunk)
    text.renew()
    parser.open(text.name)
    return True


def chunks(text: TextInput) -> Iterator[bytes]:
    """Yield the input piece by piece; InputError when it cannot be read on."""
    while chunk := text.read_block(_CHUNK):
        yield chunk


def reading(log: NcclLog) -> Reading:
    """Turn the facts of a log into a reading, with what it does not tell."""
    unknown = _unknown(log)
    return Reading(
        subject=ReportSubject("NcclLog", log.subject.name),
        facts=(log,),
        published={"nccl": published(log)},
        unknown=unknown,
        needed_unknown=bool(unknown),
    )


def _unknown(log: NcclLog) -> tuple[Unknown, ...]:
    what = "transport between ranks"
    if log.ras_processes or log.ras_lags or log.flight:
        return ()
    if not log.hosts:
        return (Unknown(what, "no line of NCCL in it; run with NCCL_DEBUG=INFO"),)
    if log.channels_seen or log.ranks == 1:
        return ()
    if not log.complete_start:
        why = "the log begins after start-up; keep that part with NCCL_DEBUG_FILE=/path/nccl.%h.%p"
    else:
        why = "no channel was connected yet in what was logged"
    return (Unknown(what, why),)


def published(log: NcclLog) -> dict[str, Any]:
    """What the report's `facts.nccl` holds: the answers, and the data behind the pictures."""
    return {
        "network": log.network,
        "gdr": log.gdr,
        "ranks": log.ranks,
        "nodes": log.nodes,
        "versions": list(log.versions),
        "runs": log.runs,
        "lines": log.lines,
        "deduplicated": log.deduplicated,
        "communicators": len(log.communicators),
        "hosts": [
            {
                "name": host.name,
                "ranks": list(host.ranks),
                "processes": host.processes,
                "networks": list(host.networks),
                "adapters": host.adapters,
                "transports": list(host.transports),
                "gdr": host.gdr,
                "version": host.version,
                "warnings": host.errors,
            }
            for host in log.hosts[:_HOSTS_LIMIT]
        ],
        "gdr_by_adapter": gdr_by_adapter(log),
        "adapters": {found.host: list(found.devices) for found in log.adapters[:_HOSTS_LIMIT]},
        "environment": [
            {"name": setting.name, "value": setting.value, "hosts": len(setting.hosts)}
            for setting in log.settings
        ],
        "transports": grid(log),
    }


def gdr_by_adapter(log: NcclLog) -> list[dict[str, Any]]:
    """GPUDirect RDMA by adapter and direction, over all hosts: all, partial or none of them use it.

    An adapter has its name where the host printed one list, else NCCL's number (`NET/IB/3`).
    """
    lists: dict[str, set[tuple[str, ...]]] = defaultdict(set)
    for found in log.adapters:
        lists[found.host].add(found.devices)
    uses: dict[tuple[str, str], dict[str, set[bool]]] = defaultdict(lambda: defaultdict(set))
    for use in log.net:
        if use.network != "Socket":
            devices = next(iter(lists[use.host])) if len(lists[use.host]) == 1 else ()
            name = f"NET/{use.network}/{use.nic}"
            if use.nic < len(devices):
                name = devices[use.nic].partition(":")[0]
            uses[name, use.direction][use.host].add(use.gdr)
    return [
        {
            "adapter": name,
            "direction": direction or None,
            "gdr": _SHARE.get(frozenset().union(*by_host.values()), "partial"),
            "hosts": len(by_host),
            "hosts_without": sorted(host for host, seen in by_host.items() if False in seen)[:_FEW],
        }
        for (name, direction), by_host in sorted(uses.items())
    ]


def grid(log: NcclLog) -> dict[str, Any]:
    """The rank x rank transports, or those between hosts when there are too many ranks.

    `rows[i][j]` is the index in `names` of the way from row i to column j, 0 when no channel
    between them was logged; the slowest counts where several are folded into one cell.
    """
    labels, place = _places(log)
    rows = [[0] * len(labels) for _ in labels]
    for row in log.grid:
        own = place.get(row.rank)
        if own is None:
            continue
        for connected in _CONNECTED.finditer(row.codes):
            other = place.get(connected.start())
            if other is not None:
                rows[own][other] = max(rows[own][other], connected[0][0])
    return {"labels": labels, "names": list(log.transports), "rows": rows}


def _places(log: NcclLog) -> tuple[list[str], dict[int, int]]:
    """The rows' names, and in which row each rank goes."""
    ranks = sorted(
        {row.rank for row in log.grid} | {rank for host in log.hosts for rank in host.ranks}
    )
    if len(ranks) <= _GRID_LIMIT:
        return [str(rank) for rank in ranks], {rank: index for index, rank in enumerate(ranks)}
    hosts = [host for host in log.hosts if host.ranks][:_HOSTS_LIMIT]
    if len(hosts) > _GRID_LIMIT * 4:
        return [], {}
    return [host.name for host in hosts], {
        rank: index for index, host in enumerate(hosts) for rank in host.ranks
    }


FORMAT = Format(
    name="nccl",
    matches=lambda head: len(_TELLING.findall(head)),
    read=read,
)
