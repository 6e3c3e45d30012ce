"""Collectives that PyTorch gave up: who waited, who never came, whose process hangs.

Three voices tell of it, each of its own rank: the watchdog that waits for a collective, the
monitor of a watchdog that itself hangs, and the flight recorder, which says who did not join.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator

from gpudoctor.checking import Draft, Result
from gpudoctor.facts.nccl.model import Line, NcclLog, WorkStatus
from gpudoctor.report import Severity
from gpudoctor_checks.nccl_log import CHECKS, draft, ranks, several, silent

_GAPS_SHOWN = 3


@CHECKS.check(NcclLog)
def collective_timeout(log: NcclLog) -> Iterator[Result]:
    """PyTorch's watchdog gave a collective up: who waited, and who never came."""
    groups: dict[str, list[WorkStatus]] = defaultdict(list)
    for status in log.work:
        groups[status.group].append(status)
    told = [_given_up(log, statuses) for statuses in groups.values() if _who_gave_up(statuses)]
    yield from told or _not_joined(log)


def _who_gave_up(statuses: list[WorkStatus]) -> list[WorkStatus]:
    return [status for status in statuses if status.timed_out is not None or status.operation]


def _given_up(log: NcclLog, statuses: list[WorkStatus]) -> Draft:
    """A process group whose watchdogs gave up."""
    gave_up = _who_gave_up(statuses)
    sequence = min((s.timed_out for s in gave_up if s.timed_out is not None), default=None)
    late = _late(statuses, sequence)
    waiting = [status.rank for status in gave_up if status not in late]
    operation = next((s.operation for s in gave_up if s.operation), "") or "a collective"
    number = f" {sequence}" if sequence is not None else ""
    limits = [s.milliseconds for s in gave_up if s.milliseconds is not None]
    waited = f" for {max(limits) / 1000:.0f} s" if limits else ""
    recorded = _recorded(log)
    if late:
        suspects = f"{ranks(s.rank for s in late)} never entered it"
        who = (
            f"{ranks(s.rank for s in late).capitalize()} never entered it (last enqueued"
            f" {late[0].enqueued}): look at that process, not at the ranks that report."
        )
    elif log.flight:
        suspects = f"{_absent(log)} never joined it"
        who = "Look at those who never joined, not at the ranks that report."
    else:
        suspects = "no rank heard of is behind"
        who = (
            "No rank heard of is behind: a rank that reports nothing is dead or stuck, or the"
            " transfer itself hangs."
        )
    return draft(
        log,
        "nccl-collective-timeout",
        f"{ranks(waiting).capitalize()} waited in {operation}{number}{waited} until the"
        f" watchdog gave up. {recorded}{who}{_first_to_give_up(log)}",
        [*_lines_of_gaps(log), *(status.line for status in (*late, *gave_up))],
        hosts=_speakers(log, (status.line for status in (*gave_up, *late))),
        # A rank that says how far it got was alive: how it ended later is no cause.
        awaits=() if late else silent(log, _speakers(log, (status.line for status in statuses))),
        values={"operation": f"{operation}{number}", "suspects": suspects},
    )


def _not_joined(log: NcclLog) -> Iterator[Draft]:
    """What the flight recorders tell where no watchdog's words are there."""
    if log.flight:
        first = log.flight[0]
        yield draft(
            log,
            "nccl-collective-timeout",
            f"{_recorded(log)}Look at the processes that never joined, not at those that wait.",
            _lines_of_gaps(log),
            values={
                "operation": _operation(first.collective, first.sequence),
                "suspects": f"{_absent(log)} never joined it",
            },
        )


def _recorded(log: NcclLog) -> str:
    told = "; ".join(
        f"{ranks(gap.missing)} never joined {_operation(gap.collective, gap.sequence)}"
        f"{f' of group {gap.group}' if gap.group else ''}"
        for gap in log.flight[:_GAPS_SHOWN]
    )
    return f"By the flight recorders {told}. " if told else ""


def _operation(collective: str, sequence: int | None) -> str:
    number = f" {sequence}" if sequence is not None else ""
    return f"{collective or 'a collective'}{number}"


def _absent(log: NcclLog) -> str:
    """Who is missing in the first collective that is told of: the others follow from it."""
    return ranks(log.flight[0].missing)


def _lines_of_gaps(log: NcclLog) -> list[Line]:
    return [gap.line for gap in log.flight[:_GAPS_SHOWN]]


@CHECKS.check(NcclLog)
def hanging_process(log: NcclLog) -> Iterator[Result]:
    """A rank's own watchdog does not move: its process hangs in a call, and the others wait.

    Where that rank gave a collective up before, or still moved when another one did, it hangs in
    ending: a consequence.
    """
    victims = {status.rank for status in log.work if _who_gave_up([status])}
    stuck = [found for found in log.stuck if found.rank not in victims and not found.after_timeout]
    if not stuck:
        return
    seconds = max((found.seconds for found in stuck if found.seconds is not None), default=None)
    who = ranks(found.rank for found in stuck)
    yield draft(
        log,
        "nccl-process-unresponsive",
        f"The watchdog thread of {who} made no progress"
        f"{f' for {seconds} s' if seconds is not None else ''}: the process hangs in a CUDA or NCCL"
        " call, or another thread holds Python's GIL in one."
        + (" All others of its groups wait for it." if victims else ""),
        [found.line for found in stuck],
        hosts=_speakers(log, (found.line for found in stuck)),
        values={"processes": several((f"rank {found.rank}" for found in stuck), "rank")},
        severity=Severity.ERROR,
    )


def _speakers(log: NcclLog, lines: Iterable[Line]) -> tuple[str, ...]:
    """The hosts in whose pods' logs these lines stand."""
    sources = {line.source for line in lines}
    return tuple(
        host
        for host, subjects in log.places
        if any(
            source.startswith(f"log {pod.namespace}/{pod.name}/")
            for pod in subjects
            for source in sources
        )
    )


def _first_to_give_up(log: NcclLog) -> str:
    if log.gave_up_first is None:
        return ""
    return f" Rank {log.gave_up_first[0]} gave up first, and made the others dump their records."


def _late(statuses: list[WorkStatus], sequence: int | None) -> list[WorkStatus]:
    """Ranks whose last enqueued work is below the collective that timed out."""
    known = [status for status in statuses if status.enqueued is not None]
    if not known or sequence is None:
        return []
    lowest = min(status.enqueued or 0 for status in known)
    return [status for status in known if status.enqueued == lowest and lowest < sequence]
