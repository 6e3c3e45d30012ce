"""The members of a job beside each other, before the job starts: who is missing, who is different.

Every member judges the same minutes by these rules, so each one's answer names the odd one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator

import msgspec

from gpudoctor.checking import CheckSet, Draft, Result, finding
from gpudoctor.facts.rendezvous import Member, OrderedStart, Rendezvous, Statement
from gpudoctor.report import Blame, Evidence, Severity, Subject, Unknown
from gpudoctor.sources import rendezvous as wire

CHECKS = CheckSet()

_MINUTES = "rendezvous"
_MOST_NAMED = 8


class _Trait(msgspec.Struct, frozen=True):
    """What members are compared by; `breaks` says that NCCL does not run over a difference."""

    words: str
    value: Callable[[Statement], object]
    breaks: bool
    why: str


_TRAITS = (
    _Trait("NCCL version", lambda said: said.nccl, True,
           "NCCL refuses to start between different versions"),
    _Trait("kind of RDMA", lambda said: said.network, True,
           "its traffic does not reach the others' adapters"),
    _Trait("GID type", lambda said: said.gid, True,
           "queue pairs between different GID types do not connect"),
    _Trait("number of GPUs", lambda said: said.gpus, True,
           "the launcher starts as many ranks on each pod"),
    _Trait("driver", lambda said: said.driver, False,
           "what runs on the others may not run there"),
    _Trait("GPU model", lambda said: said.gpu, False, "all wait for the slowest GPU"),
    _Trait("number of HCAs", lambda said: said.hcas, False,
           "all wait for the member with the fewest rails"),
    _Trait("HCA rate (Gb/s)", lambda said: said.rate, False,
           "all wait for the slowest rail"),
    _Trait("interface MTU", lambda said: said.mtu, False,
           "large packets are dropped where a switch does not say so"),
    _Trait("RoCE MTU", lambda said: said.rdma_mtu, False,
           "its connections use the smaller one"),
)  # fmt: skip


@CHECKS.check(OrderedStart)
def ordered_start(start: OrderedStart) -> Iterator[Result]:
    """The pods of the job are started one after the other: each would wait for the next."""
    yield finding(
        "rendezvous-start-ordered",
        start.subject,
        f"A rendezvous is asked for, and this pod is of {start.what}: the others do not exist "
        "before this one is ready, and it would wait for them.",
        *start.evidence,
        values={"pod": start.subject.name},
    )


@CHECKS.check(Rendezvous)
def no_minutes(met: Rendezvous) -> Iterator[Result]:
    """This member did not get to the meeting."""
    where = f"{met.plan.host}:{met.plan.port}"
    within = f"{met.plan.timeout:g} s"
    values = {"member": f"member {met.plan.rank}", "where": where, "address": met.plan.host}
    if met.failed == wire.NO_PORT:
        yield Unknown("rendezvous", met.why)
    elif met.failed == wire.TOKEN:
        yield finding(
            "rendezvous-token-mismatch",
            met.subject,
            f"Member 0 at {where} answers, and its token is not that of this member.",
            Evidence(where, "token", met.why),
            values=values,
        )
    elif met.failed == wire.TURNED_AWAY:
        yield _turned_away(met.subject, f"member {met.plan.rank}", met.why, where, met.plan.members)
    elif met.failed == wire.UNRESOLVED:
        yield finding(
            "master-address-unresolved",
            met.subject,
            f"{met.plan.host} did not resolve within {within} ({met.why}): member 0 cannot be "
            "found.",
            Evidence("rendezvous", "address", met.plan.host),
            values=values,
        )
    elif met.failed:
        yield finding(
            "rendezvous-not-reached",
            met.subject,
            f"Member 0 at {where} could not be met within {within}; the last try ended with "
            f"{met.why}.",
            Evidence(where, "connect", met.why),
            values=values,
        )


def _turned_away(subject: Subject, label: str, why: str, where: str, members: int) -> Draft:
    words = {
        wire.RANK_TAKEN: "another pod has its rank, or the rank cannot be",
        wire.OTHER_SIZE: f"it counts with another number of members than {members}",
    }
    return finding(
        "rendezvous-member-refused",
        subject,
        f"Member 0 did not let {label} in: {words.get(why, why)}.",
        Evidence(where, "answer", why),
        values={"member": label},
    )


def _member(met: Rendezvous, member: Member, trait: str | None = None) -> Subject:
    """A member as subject: the pod's name where it is known, for events and links."""
    name = (member.said.pod if member.said else None) or f"member-{member.rank}"
    return Subject("Member", name, met.subject.namespace, trait)


@CHECKS.check(Rendezvous)
def missing(met: Rendezvous) -> Iterator[Result]:
    """A member never came, went away again, or had failed by itself."""
    foreign = {one.claims: one for one in met.refused if one.why == wire.OTHER_TOKEN}
    total = len(met.members)
    for member in met.members:
        if member.is_here or member.rank in foreign:
            continue
        here = f"{len(met.here)} of {total} members met within {met.plan.timeout:g} s"
        yield finding(
            "rendezvous-member-missing",
            _member(met, member),
            f"{here}; {member.label} {_fate(member)}.",
            Evidence(_MINUTES, member.label, member.note or "never came"),
            values={"member": member.label},
            related=(met.subject,),
        )


def _fate(member: Member) -> str:
    if not member.note:
        return "never came"
    came = f"came after {member.came:g} s and " if member.came is not None else ""
    return f"{came}{member.note}"


@CHECKS.check(Rendezvous)
def late(met: Rendezvous) -> Iterator[Result]:
    """A member came after the time was over, and was still taken."""
    for member in met.here:
        if member.late:
            yield finding(
                "rendezvous-member-late",
                _member(met, member),
                f"{_sentence(member.label)} came {member.came or 0:.0f} s after member 0; the "
                f"time-out is {met.plan.timeout:g} s. All others held their GPUs until then.",
                Evidence(_MINUTES, member.label, f"{member.came or 0:.1f} s"),
                values={"member": member.label},
                related=(met.subject,),
            )


@CHECKS.check(Rendezvous)
def tokens(met: Rendezvous) -> Iterator[Result]:
    """A caller said that it is a member, with another token; the true member did not come.

    Where that is most of them, it is member 0 whose token is another one. A caller without the
    token can only cost its own rank, never that of a member that came.
    """
    here = {member.rank for member in met.here}
    others = {one.claims: one for one in met.refused
              if one.why == wire.OTHER_TOKEN and one.claims not in here
              and 0 < one.claims < len(met.members)}  # fmt: skip
    if len(others) > 1 and len(others) > len(met.members) // 2:
        ranks = ", ".join(str(rank) for rank in sorted(others)[:_MOST_NAMED])
        yield finding(
            "rendezvous-token-mismatch",
            _member(met, met.members[0]),
            f"Members {ranks}, {len(others)} of {len(met.members)}, have another token than "
            f"{met.members[0].label}: most likely its own is the odd one.",
            *(Evidence(one.address, "token", one.why) for one in others.values()),
            values={"member": met.members[0].label},
            related=(met.subject,),
        )
        return
    for rank, one in sorted(others.items()):
        label = f"member {rank} ({one.address})"
        yield finding(
            "rendezvous-token-mismatch",
            _member(met, met.members[rank]),
            f"A caller at {one.address} says that it is member {rank}, and its token is another "
            "one than that of member 0.",
            Evidence(one.address, "token", one.why),
            values={"member": label},
            related=(met.subject,),
        )


@CHECKS.check(Rendezvous)
def refused(met: Rendezvous) -> Iterator[Result]:
    """A caller with the right token was turned away: two pods have one rank, or count wrongly."""
    for one in met.refused:
        if one.why != wire.OTHER_TOKEN:
            label = f"a caller at {one.address} that says it is member {one.claims}"
            where = f"{met.plan.host}:{met.plan.port}"
            subject = Subject("Member", one.address, met.subject.namespace)
            yield _turned_away(subject, label, one.why, where, met.plan.members)


@CHECKS.check(Rendezvous)
def reachability(met: Rendezvous) -> Iterator[Result]:
    """Two members cannot connect; told of the one of the two that has more such pairs."""
    by_rank = {member.rank: member for member in met.here}
    failed = {
        (source.rank, target): why
        for source in met.here
        for target, why in (source.unreachable or {}).items()
        if target in by_rank
    }
    pairs = {frozenset(pair) for pair in failed}
    involved = Counter(rank for pair in pairs for rank in pair)
    blamed: dict[int, list[int]] = {}
    for pair in pairs:
        other, worst = sorted(pair, key=lambda rank: (involved[rank], rank))
        blamed.setdefault(worst, []).append(other)
    for rank, others in sorted(blamed.items()):
        yield _unreachable(met, by_rank, rank, sorted(others), failed)


def _unreachable(
    met: Rendezvous,
    by_rank: dict[int, Member],
    rank: int,
    others: list[int],
    failed: dict[tuple[int, int], str],
) -> Draft:
    member = by_rank[rank]
    tries = {
        pair: failed[pair]
        for other in others
        for pair in ((other, rank), (rank, other))
        if pair in failed
    }
    reasons = ", ".join(sorted(set(tries.values())))
    return finding(
        "rendezvous-peer-unreachable",
        _member(met, member),
        f"{_sentence(member.label)} at {member.address} and {_ranks(others)} cannot connect: "
        f"{reasons}. NCCL connects each member to each.",
        *(
            Evidence(by_rank[source].label, f"connect to {by_rank[target].address}", why)
            for (source, target), why in list(tries.items())[:_MOST_NAMED]
        ),
        values={"member": member.label, "others": _ranks(others)},
        related=(met.subject,),
    )


@CHECKS.check(Rendezvous)
def unreadable(met: Rendezvous) -> Iterator[Result]:
    """A member met the others and its statement cannot be read: it is not compared."""
    for member in met.here:
        if member.said is None:
            yield Unknown(f"what {member.label} is like", "its statement cannot be read")


@CHECKS.check(Rendezvous)
def odd_one(met: Rendezvous) -> Iterator[Result]:
    """A member differs from the others in what all should share."""
    said = [(member, member.said) for member in met.here if member.said is not None]
    for trait in _TRAITS:
        values = {member.rank: trait.value(statement) for member, statement in said}
        known = Counter(value for value in values.values() if value is not None)
        if len(known) < 2:
            continue
        yield from _differs(met, trait, {m.rank: m for m, _ in said}, values, known)


def _differs(
    met: Rendezvous,
    trait: _Trait,
    members: dict[int, Member],
    values: dict[int, object],
    known: Counter[object],
) -> Iterator[Result]:
    """Name those outside the majority; without one, name the groups once."""
    (common, count), (_, second) = known.most_common(2)
    groups = "; ".join(
        f"{value}: {_ranks([rank for rank, own in values.items() if own == value])}"
        for value, _ in known.most_common(_MOST_NAMED)
    )
    severity = Severity.ERROR if trait.breaks else Severity.WARNING
    if count == second:
        yield finding(
            "rendezvous-member-differs",
            msgspec.structs.replace(met.subject, device=trait.words),
            f"The members differ in {trait.words} ({groups}): {trait.why}.",
            *_evidence(trait, members, values),
            values={"member": "The job", "what": trait.words},
            severity=severity,
            blame=Blame.FABRIC,
        )
        return
    for rank, value in values.items():
        if value is not None and value != common:
            member = members[rank]
            yield finding(
                "rendezvous-member-differs",
                _member(met, member, trait.words),
                f"{_sentence(trait.words)} of {member.label} is {value}, that of "
                f"{count} others {common} ({groups}): {trait.why}.",
                Evidence(member.label, trait.words, str(value), f"others: {common}"),
                values={"member": _sentence(member.label), "what": trait.words},
                severity=severity,
                related=(met.subject,),
            )


def _sentence(words: str) -> str:
    return words[0].upper() + words[1:]


def _ranks(ranks: list[int]) -> str:
    named = ", ".join(map(str, ranks[:_MOST_NAMED]))
    more = f" and {len(ranks) - _MOST_NAMED} more" if len(ranks) > _MOST_NAMED else ""
    return f"member{'s' if len(ranks) > 1 else ''} {named}{more}"


def _evidence(
    trait: _Trait, members: dict[int, Member], values: dict[int, object]
) -> tuple[Evidence, ...]:
    return tuple(
        Evidence(members[rank].label, trait.words, str(value))
        for rank, value in list(values.items())[:_MOST_NAMED]
    )
