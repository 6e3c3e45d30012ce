"""The members of a job, met: what this one says of itself, and the facts that come of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import msgspec

from gpudoctor.facts import rendezvous
from gpudoctor.facts.node.own_container import OwnContainer
from gpudoctor.facts.rendezvous import Rendezvous
from gpudoctor.sources.host import Host, interfaces
from gpudoctor.sources.rendezvous import Plan, meeting


def meet(
    own: OwnContainer,
    host: Host,
    environment: Mapping[str, str],
    plan: Plan,
    nccl: str | None,
    say: Callable[[str], None],
) -> Rendezvous:
    """Wait for the other members, and compare; `say` is told in words how it goes."""
    report = msgspec.to_builtins(rendezvous.statement(own, host, environment, nccl))
    # NCCL's processes connect to the interface that is named, whatever leads to member 0.
    if environment.get("NCCL_SOCKET_IFNAME"):
        named = rendezvous.interface(environment, rendezvous.interface_names(own))
        reached_at = interfaces.address(named) if named else None
        plan = msgspec.structs.replace(plan, interface=reached_at)
    met = rendezvous.read(meeting.meet(plan, report, say), plan, own.subject)
    if not met.failed:
        say(f"{len(met.here)} of {plan.members} members met")
    return met


def stay_away(
    own: OwnContainer,
    host: Host,
    environment: Mapping[str, str],
    plan: Plan,
    why: str,
    say: Callable[[str], None],
) -> None:
    """Tell the others that this member failed by itself, if they can be reached."""
    report = msgspec.to_builtins(rendezvous.statement(own, host, environment, None))
    meeting.stay_away(plan, report, f"failed its own preflight: {why}", say)
