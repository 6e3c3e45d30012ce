"""Gangs and Volcano's queues, and pods that were put out for others.

A gang waits until all its members fit at once. A member that fits is told so by Volcano (reason
`Schedulable`) and still waits, so what blocks it stands on the PodGroup and on another member.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from decimal import Decimal

from gpudoctor.checking import CheckSet, Draft, Result, finding
from gpudoctor.facts.kubernetes.gangs import KAI, VOLCANO, Gang, Member
from gpudoctor.facts.kubernetes.model import Event, Resources
from gpudoctor.facts.kubernetes.queues import QueueSituation
from gpudoctor.facts.kubernetes.resources import is_gpu
from gpudoctor.facts.kubernetes.scheduler_message import SchedulerMessage
from gpudoctor.report import Certainty, Evidence, Severity, Subject

CHECKS = CheckSet()

_NAMED = 4
_GANG_WORDS = re.compile(r"\bgang\b|pod ?group|sibling pods|min(?:Member|Available|Count)\b", re.I)
_QUEUE_FULL = re.compile(r"\bqueue resource quota insufficient", re.I)
_OVERUSED = re.compile(r"resource in cluster is overused(?:: overused (?P<resource>[^\s,]+))?")
_NAMESPACE_FULL = re.compile(
    r"(?<!queue )resource quota insufficient, requested: (?P<requested>.+), used: (?P<used>.+), "
    r"limited: (?P<limited>.+)",
    re.S,
)
_RESOURCE_IN_MAP = re.compile(r"map\[(?P<resource>[\w./-]+):")
_KAI_QUOTA = re.compile(r"over ?(?:quota|limit)|quota has reached|quota is \d", re.I)
_KAI_LIMIT = r"(?i)(?:limit|quota) is (?P<gpus>\d{1,6}(?:\.\d{1,6})?) GPUs"
_KAI_REQUESTED = r"(?i)requested (?P<gpus>\d{1,6}(?:\.\d{1,6})?) GPUs"
# KAI, when some members fit and not all; it calls GPUs by that word, others by their key.
_KAI_GANG = (
    r"(?s)Resources were found for \d+ pods while \d+ are required for gang scheduling"
    r".*didn't have enough (?:resources|of mig profile): (?P<resource>[^\s,]+)"
)
_TOO_FEW = ("NotEnoughTasks", "NotEnoughPods", "NotEnoughPodsOfTask")
_CLOSED = ("Closed", "Closing")


def _gang(situation: QueueSituation) -> Gang | None:
    return situation.gang if situation.held else None


def _path(gang: Gang, situation: QueueSituation) -> str:
    """How evidence names the group, also where the object itself is not in the input."""
    if gang.meta is not None:
        return gang.meta.path
    return f"PodGroup/{situation.subject.namespace}/{gang.reference}"


def _said(gang: Gang, situation: QueueSituation) -> Iterator[Evidence]:
    """What the scheduler says of the group and of this pod."""
    condition = gang.condition
    if condition is not None:
        yield Evidence(
            _path(gang, situation),
            f"status.conditions[{condition.type}]",
            f"{condition.status} {condition.reason}: {condition.message}",
        )
    pod = situation.pod
    scheduled = pod.condition("PodScheduled") if pod else None
    if pod is not None and scheduled is not None:
        yield Evidence(
            pod.meta.path,
            "status.conditions[PodScheduled]",
            f"{scheduled.status} {scheduled.reason}: {scheduled.message}",
        )
    if situation.said is not None and condition is None:
        yield situation.said


def _draft(
    name: str,
    situation: QueueSituation,
    gang: Gang,
    detail: str,
    evidence: Iterable[Evidence],
    values: dict[str, str],
    certainty: Certainty = Certainty.CERTAIN,
    leans_on: tuple[str, ...] = (),
) -> Draft:
    subject = situation.subject
    related = [Subject("PodGroup", gang.reference, subject.namespace)]
    pod = f"{subject.namespace}/{subject.name}"
    return finding(
        name,
        subject,
        detail,
        *dict.fromkeys(evidence),
        values={"pod": pod, "name": gang.reference, "queue": gang.queue_name} | values,
        certainty=certainty,
        related=related,
        leans_on=leans_on,
    )


# Volcano: let in by the queue or not


def _not_let_in(situation: QueueSituation) -> Gang | None:
    gang = _gang(situation)
    if gang is None or gang.group != VOLCANO or gang.phase not in ("", "Pending"):
        return None
    return gang


def _newest(events: Iterable[Event], pattern: re.Pattern[str]) -> Event | None:
    return next((e for e in reversed(tuple(events)) if pattern.search(e.message)), None)


def _event(event: Event) -> Evidence:
    return Evidence(event.path, f"{event.reason} (x{event.count})", event.message)


@CHECKS.check(QueueSituation)
def volcano_queue_stopped(situation: QueueSituation) -> Iterator[Result]:
    """The Volcano queue is closed: it lets no group in."""
    gang = _not_let_in(situation)
    if gang is None or gang.queue is None or gang.queue.state not in _CLOSED:
        return
    evidence = Evidence(gang.queue.meta.path, "status.state", gang.queue.state)
    yield _draft(
        "queue-stopped",
        situation,
        gang,
        f"Volcano queue {gang.queue_name} is {gang.queue.state}: PodGroup {gang.reference} stays "
        "Pending.",
        [evidence, *_phase(gang, situation)],
        {"queue": gang.queue_name},
    )


@CHECKS.check(QueueSituation)
def volcano_queue_missing(situation: QueueSituation) -> Iterator[Result]:
    """The group names a Volcano queue that does not exist."""
    gang = _not_let_in(situation)
    if gang is None or gang.meta is None or not gang.queue_name or gang.queue is not None:
        return
    if not situation.scope.has_all("Queue"):
        return
    words = f"there is no Volcano Queue {gang.queue_name}"
    yield _draft(
        "queue-misconfigured",
        situation,
        gang,
        f"PodGroup {gang.reference} cannot be let in: {words}.",
        [Evidence(gang.meta.path, "spec.queue", gang.queue_name), *_phase(gang, situation)],
        {"reason": words},
        leans_on=("Queue",),
    )


def _phase(gang: Gang, situation: QueueSituation) -> Iterator[Evidence]:
    if gang.phase:
        yield Evidence(_path(gang, situation), "status.phase", gang.phase)


def _over_capability(gang: Gang) -> list[str]:
    """Return the resources of which the queue's limit leaves less than the group needs."""
    queue = gang.queue
    if queue is None:
        return []
    over = []
    for resource, wanted in gang.needs.items():
        limit = queue.capability.get(resource)
        used = queue.allocated.get(resource, Decimal(0))
        if limit is not None and wanted > 0 and used + wanted > limit:
            over.append(f"{resource}: {used:f} allocated + {wanted:f} asked > {limit:f}")
    return over


@CHECKS.check(QueueSituation)
def volcano_queue_capability_exceeded(situation: QueueSituation) -> Iterator[Result]:
    """The group does not fit into what the Volcano queue may still hand out."""
    gang = _not_let_in(situation)
    if gang is None or (gang.queue is not None and gang.queue.state in _CLOSED):
        return
    event = _newest(gang.events, _QUEUE_FULL)
    over = _over_capability(gang)
    if event is None and not over:
        return
    evidence = [*_phase(gang, situation)]
    if event is not None:
        evidence.append(_event(event))
    if gang.queue is not None:
        path, limit = gang.queue.meta.path, _written(gang.queue.capability)
        evidence.append(Evidence(path, "spec.capability", limit or "none"))
        evidence.append(Evidence(path, "status.allocated", _written(gang.queue.allocated)))
    if gang.meta is not None and gang.needs:
        evidence.append(Evidence(gang.meta.path, "spec.minResources", _written(gang.needs)))
    said = "; ".join(over) or (event.message if event else "")
    yield _draft(
        "volcano-queue-capability-exceeded",
        situation,
        gang,
        f"PodGroup {gang.reference} is not let into queue {gang.queue_name or 'default'}: {said}. "
        "Free nodes do not matter before that.",
        evidence,
        {"queue": gang.queue_name or "default"},
        leans_on=() if event is not None else ("PodGroup", "Queue"),
    )


@CHECKS.check(QueueSituation)
def volcano_namespace_quota(situation: QueueSituation) -> Iterator[Result]:
    """Volcano does not let the group in, because the namespace's ResourceQuota is used up."""
    gang = _not_let_in(situation)
    event = _newest(gang.events, _NAMESPACE_FULL) if gang else None
    if gang is None or event is None:
        return
    named = _RESOURCE_IN_MAP.search(event.message)
    yield _draft(
        "resourcequota-exceeded",
        situation,
        gang,
        f"PodGroup {gang.reference} is not let in: {event.message}",
        [*_phase(gang, situation), _event(event)],
        {
            "name": "(not named)",
            "resource": named["resource"] if named else "what it asks for",
        },
    )


def _written(resources: Resources) -> str:
    return ", ".join(f"{resource} {amount:f}" for resource, amount in resources.items())


# Not enough at once


@CHECKS.check(QueueSituation)
def gang_has_too_few_members(situation: QueueSituation) -> Iterator[Result]:
    """Fewer pods of the group exist than must start together."""
    gang = _gang(situation)
    if gang is None:
        return
    condition = gang.condition
    too_few = condition is not None and condition.reason in _TOO_FEW
    if not too_few and gang.siblings is None:
        return
    have, need = gang.siblings or (len(gang.members), gang.minimum or 0)
    if have >= need > 0:
        return
    yield _draft(
        "gang-not-enough-resources",
        situation,
        gang,
        f"Gang {gang.reference} starts when {need or 'all'} members exist; {have} do.",
        _said(gang, situation),
        {"wanted": str(need or "all"), "resource": "members", "offered": str(have)},
    )


@CHECKS.check(QueueSituation)
def gang_not_enough_resources(situation: QueueSituation) -> Iterator[Result]:
    """The members do not all fit at once; this one alone might."""
    gang = _gang(situation)
    if gang is None or gang.siblings is not None or _blocked_before(gang):
        return
    if gang.condition is not None and gang.condition.reason in _TOO_FEW:
        return
    overused = _newest(gang.events, _OVERUSED) if gang.phase in ("", "Pending") else None
    resource, certainty = _lacking(gang, situation, overused)
    if resource is None:
        return
    per_member = gang.members[0].requests.get(resource, Decimal(0)) if gang.members else Decimal(0)
    wanted = gang.needs.get(resource)
    room = gang.room(gang.members[0].requests) if gang.members else 0
    placed = sum(m.requests.get(resource, Decimal(0)) for m in gang.members if m.node)
    offered = room * per_member + placed
    known = (
        per_member > 0
        and bool(gang.nodes)
        and not situation.nodes_missing
        and offered < (wanted or offered + 1)
    )
    evidence = [*_said(gang, situation), *_culprits(gang), *_free_by_node(gang, resource)]
    if overused is not None:
        evidence.append(_event(overused))
    if gang.meta is not None and gang.needs:
        evidence.append(Evidence(gang.meta.path, "spec.minResources", _written(gang.needs)))
    have = f"the nodes can give {offered:f} to whole members" if known else "not all can be had"
    needs = f"{wanted:f} {resource}" if wanted else resource
    minimum = f" for {gang.minimum} members" if gang.minimum else ""
    culprit = f" The member that does not fit is {gang.culprit}." if gang.culprit else ""
    yield _draft(
        "gang-not-enough-resources",
        situation,
        gang,
        f"Gang {gang.reference} is placed as a whole or not at all: it needs {needs}{minimum} at "
        f"once, {have}.{culprit}",
        evidence,
        {
            "wanted": f"{wanted:f}" if wanted else "more",
            "resource": resource,
            "offered": f"{offered:f}" if known else "less",
        },
        certainty=certainty,
    )


def _blocked_before(gang: Gang) -> bool:
    """Whether the queue holds the group, so that nodes are not the question yet."""
    if gang.group == KAI:
        return gang.condition is not None and bool(_KAI_QUOTA.search(gang.condition.message))
    if gang.group != VOLCANO or gang.phase not in ("", "Pending"):
        return False
    closed = gang.queue is not None and gang.queue.state in _CLOSED
    return closed or bool(_newest(gang.events, _QUEUE_FULL)) or bool(_over_capability(gang))


def _lacking(
    gang: Gang, situation: QueueSituation, overused: Event | None
) -> tuple[str | None, Certainty]:
    """Return the resource that the gang lacks and how sure that is; None if it lacks none."""
    if overused is not None:
        match = _OVERUSED.search(overused.message)
        named = match["resource"] if match else None
        return named or _main_resource(gang), Certainty.CERTAIN
    messages = [gang.origin] if gang.origin else [m.message for m in gang.members if m.message]
    lacking = _insufficient(messages)
    said = situation.said.value if situation.said else ""
    told = gang.condition is not None or bool(_GANG_WORDS.search(said or ""))
    if lacking is not None:
        own = situation.pod.condition("PodScheduled") if situation.pod else None
        waits = own is not None and own.reason == "Schedulable"
        if told or waits:
            return lacking, Certainty.CERTAIN
        return None, Certainty.LIKELY
    kai = re.search(_KAI_GANG, said or "") or re.search(
        _KAI_GANG, gang.condition.message if gang.condition else ""
    )
    if kai is not None:
        named = kai["resource"].rstrip(".,")
        return (named if "/" in named else _main_resource(gang)), Certainty.CERTAIN
    if gang.condition is not None and gang.condition.reason == "NotEnoughResources":
        other = gang.origin is not None and bool(gang.origin.reasons)
        return (None if other else _main_resource(gang)), Certainty.LIKELY
    return None, Certainty.LIKELY


def _insufficient(messages: Iterable[SchedulerMessage | None]) -> str | None:
    found = [resource for message in messages if message for resource in message.insufficient()]
    return next((resource for resource in found if is_gpu(resource)), next(iter(found), None))


def _main_resource(gang: Gang) -> str:
    asked = [*gang.needs, *(r for member in gang.members for r in member.requests)]
    return next((r for r in asked if is_gpu(r)), next(iter(asked), "resources"))


def _culprits(gang: Gang) -> Iterator[Evidence]:
    """The members that do not fit, in the scheduler's words."""
    blocked = [m for m in gang.members if m.message and m.message.insufficient()]
    for member in blocked[:_NAMED]:
        yield Evidence(
            member.meta.path, "status.conditions[PodScheduled]", f"{member.reason}: {_text(member)}"
        )


def _text(member: Member) -> str:
    reasons = member.message.reasons if member.message else ()
    return ", ".join(f"{r.count or ''} {r.text}".strip() for r in reasons)


def _free_by_node(gang: Gang, resource: str) -> Iterator[Evidence]:
    having = [fit for fit in gang.nodes if fit.node.allocatable.get(resource, Decimal(0)) > 0]
    for fit in having[:_NAMED]:
        total = fit.node.allocatable[resource]
        free = max(fit.free.get(resource, Decimal(0)), Decimal(0))
        value = f"{resource} {total:f}, {free:f} free"
        yield Evidence(fit.node.meta.path, "status.allocatable minus bound pods", value)


@CHECKS.check(QueueSituation)
def gang_member_does_not_match(situation: QueueSituation) -> Iterator[Result]:
    """The member that holds the gang back is kept off the nodes by labels or taints."""
    gang = _gang(situation)
    origin = gang.origin if gang else None
    if gang is None or origin is None or origin.insufficient():
        return
    if gang.culprit is None or gang.culprit == situation.subject.name:
        return
    namespace = situation.subject.namespace
    member = Subject("Pod", gang.culprit, namespace)
    said = ", ".join(f"{r.count or ''} {r.text}".strip() for r in origin.reasons)
    for name, phrases in (
        ("node-selector-mismatch", ("node affinity/selector", "node selector")),
        ("missing-toleration", ("untolerated taint", "had taint")),
    ):
        if any(origin.count(phrase) for phrase in phrases):
            yield finding(
                name,
                member,
                f"Gang {gang.reference} waits for member {gang.culprit}: {said}.",
                *_said(gang, situation),
                values={"pod": f"{namespace}/{gang.culprit}", "nodes": "the nodes", "name": said},
                certainty=Certainty.LIKELY,
                related=(situation.subject,),
            )


@CHECKS.check(QueueSituation)
def kai_queue_over_quota(situation: QueueSituation) -> Iterator[Result]:
    """KAI holds the group back, because its queue is over its quota or limit."""
    gang = _gang(situation)
    message = _kai_message(situation)
    if gang is None or gang.group != KAI or not _KAI_QUOTA.search(message):
        return
    limit, wanted = _kai_numbers(gang, message)
    never = limit is not None and wanted > limit
    said = f"KAI holds PodGroup {gang.reference} back: {message}"
    values = {"reason": "its quota is in use"}
    if never:
        said += f" The group asks for {wanted.normalize():f} at once, which is more than all of it."
        values = {
            "pod": gang.reference,
            "queue": gang.queue_name or "its queue",
            "wanted": f"{wanted.normalize():f} GPUs",
            "limit": f"{limit:f}",
        }
    yield _draft(
        "queue-exceeds-max-quota" if never else "queue-waiting-for-quota",
        situation,
        gang,
        said,
        [*_said(gang, situation), *([situation.said] if situation.said else [])],
        values,
        certainty=Certainty.LIKELY,
    )


def _kai_message(situation: QueueSituation) -> str:
    """What KAI says on the PodGroup, or where that is not in the input on the pod."""
    gang, said = situation.gang, situation.said
    if gang is not None and gang.condition is not None:
        return gang.condition.message
    return (said.value or "") if said else ""


def _kai_numbers(gang: Gang, message: str) -> tuple[Decimal | None, Decimal]:
    """The GPUs that the queue may have, as KAI's message says, and what the group asks for."""
    limit = re.search(_KAI_LIMIT, message)
    asked = re.search(_KAI_REQUESTED, message)
    whole = sum((n for name, n in gang.needs.items() if is_gpu(name)), Decimal(0))
    own = Decimal(asked["gpus"]) if asked else Decimal(0)
    return Decimal(limit["gpus"]) if limit else None, max(whole, own)


# Put out for others


@CHECKS.check(QueueSituation)
def preempted(situation: QueueSituation) -> Iterator[Result]:
    """A scheduler or the kubelet put the pod out for one of higher priority."""
    found = situation.preemption
    gang = situation.gang
    disruption = gang.disruption if gang else None
    subject = situation.subject
    if found is not None:
        evidence, by = found.evidence, found.by
    elif gang is not None and disruption is not None and "Preempt" in disruption.reason:
        field = f"status.conditions[DisruptionTarget] {disruption.reason}"
        evidence, by = Evidence(_path(gang, situation), field, disruption.message), ""
        by = disruption.message
    else:
        return
    pod = situation.pod
    well = pod is not None and pod.phase == "Running" and pod.meta.deleted is None
    yield finding(
        "preempted",
        subject,
        f"{subject.namespace}/{subject.name} was ended to make room for others: "
        f"{by or evidence.value}",
        evidence,
        values={"pod": f"{subject.namespace}/{subject.name}", "reason": by or "by the scheduler"},
        severity=Severity.WARNING if well else None,
    )
