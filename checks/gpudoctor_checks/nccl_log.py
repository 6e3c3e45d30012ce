"""What the NCCL rules share: their set, and how they speak of hosts, ranks and lines."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from gpudoctor.checking import CheckSet, Draft, finding
from gpudoctor.facts.nccl.model import Event, Line, NcclLog
from gpudoctor.report import Certainty, Evidence, Severity, Subject

CHECKS = CheckSet()

_LINES_SHOWN = 6
_HOSTS_RELATED = 64
_HOSTS_NAMED = 4
_RANKS_NAMED = 8
_OFF = ("", "0")
_NO_CAUSE = (
    "peer-closed", "ofi-provider", "ofi-no-gdr", "net-forced", "ib-none", "cumem", "connect-retry",
    "plugin-load",
)  # fmt: skip
"""What ranks notice of others, and what is said of a start that succeeds."""


def draft(
    log: NcclLog,
    name: str,
    detail: str,
    lines: Iterable[Line],
    *,
    hosts: Iterable[str] = (),
    values: dict[str, str] | None = None,
    certainty: Certainty = Certainty.CERTAIN,
    severity: Severity | None = None,
    fix: str | None = None,
    awaits: Iterable[str] = (),
) -> Draft:
    """Draft a finding about the log; the hosts concerned are related to it, and the pods that are
    the hosts of `awaits` are those that it waits for.
    """
    concerned = tuple(dict.fromkeys(hosts))
    proof = list(lines)
    return finding(
        name,
        log.subject,
        detail + _in_runs(log, proof) + _where(log, concerned),
        *evidence(proof),
        values={"hosts": several(concerned, "host")} | (values or {}),
        certainty=certainty,
        severity=severity,
        related=(*log.related, *places(log, concerned[:_HOSTS_RELATED])),
        fix=fix,
        awaits=_pods(log, frozenset(awaits)),
    )


def silent(log: NcclLog, spoke: Iterable[str]) -> tuple[str, ...]:
    """The hosts of the job's pods that are none of these."""
    heard = frozenset(spoke)
    return tuple(host for host, _ in log.places if host not in heard)


def _pods(log: NcclLog, hosts: frozenset[str]) -> Iterator[Subject]:
    for host, subjects in log.places:
        if host in hosts:
            yield from (subject for subject in subjects if subject.kind == "Pod")


def places(log: NcclLog, hosts: Iterable[str]) -> Iterator[Subject]:
    """Yield the hosts, and the pods and nodes that they are."""
    for host in filter(None, hosts):
        yield Subject("Host", host)
        for name, subjects in log.places:
            if name == host:
                yield from subjects


def _where(log: NcclLog, hosts: Iterable[str]) -> str:
    """Say which pod and node the first few hosts are, where that is known."""
    known = dict(log.places)
    told = [
        f"{host} is {' on '.join(f'{each.kind}/{each.name}' for each in known[host])}"
        for host in hosts
        if host in known
    ]
    return f" {'; '.join(told[:_HOSTS_NAMED])}." if told else ""


def _in_runs(log: NcclLog, lines: Iterable[Line]) -> str:
    """Say in which run it happened, where the job began more than once."""
    if log.runs < 2:
        return ""
    found = {
        1
        + max(
            (
                run
                for run, start in log.run_starts
                if start.source == line.source and start.number <= line.number
            ),
            default=0,
        )
        for line in lines
    }
    listed = " and ".join(str(run) for run in sorted(found)[:_HOSTS_NAMED])
    return f" In run {listed} of {log.runs}." if found else ""


def causes(log: NcclLog) -> list[Event]:
    """What may have ended a rank, not counting what other ranks notice of it."""
    return [event for event in log.events if event.kind not in _NO_CAUSE]


def evidence(lines: Iterable[Line]) -> list[Evidence]:
    """Turn proving lines into evidence, the first few of them, each once."""
    unique = list(dict.fromkeys(lines))[:_LINES_SHOWN]
    return [Evidence.of_line(line.source, line.number, line.text) for line in unique]


def several(names: Iterable[str], noun: str) -> str:
    """Name up to four of them, and count the others: `node-1, node-2 and 30 more hosts`.

    A line that PyTorch quotes does not say whose it is.
    """
    found = [name or f"an unnamed {noun}" for name in dict.fromkeys(names)]
    shown = ", ".join(found[:_HOSTS_NAMED])
    more = len(found) - _HOSTS_NAMED
    return f"{shown} and {more} more {noun}s" if more > 0 else shown


def ranks(numbers: Iterable[int]) -> str:
    """Name up to eight ranks: `rank 2`, `ranks 0, 1, 3`."""
    found = sorted(set(numbers))
    more = f" and {len(found) - _RANKS_NAMED} more" if len(found) > _RANKS_NAMED else ""
    listed = ", ".join(str(number) for number in found[:_RANKS_NAMED])
    return f"rank{'s' if len(found) != 1 else ''} {listed}{more}"


def lines_of(events: Iterable[Event]) -> list[Line]:
    """The lines of events: the first of each, then the others."""
    kept = [event.lines for event in events]
    firsts = [lines[0] for lines in kept if lines]
    return firsts + [line for lines in kept for line in lines[1:]]


def hosts_of(events: Iterable[Event]) -> tuple[str, ...]:
    """The hosts that report them, each once, the first to do so first."""
    return tuple(dict.fromkeys(event.host for event in events))


def is_set(log: NcclLog, name: str, *values: str) -> bool:
    """Tell whether a process read one of these values; none given: any but empty and 0."""
    read = [setting.value for setting in log.setting(name)]
    if values:
        return any(value.upper() in values for value in read)
    return any(value not in _OFF for value in read)
