"""Groups of pods that are placed together or not at all: Volcano, coscheduling, native, KAI.

The same word PodGroup is four kinds; they are told apart by API group:
scheduling.volcano.sh, scheduling.x-k8s.io (coscheduling), scheduling.k8s.io (native; v1alpha1
has it as an entry of Workload), scheduling.run.ai (KAI).
Source: volcano pkg/scheduler (gang, capacity, overcommit), scheduler-plugins coscheduling,
koordinator pkg/scheduler/plugins/coscheduling, kubernetes api/scheduling, KAI-scheduler.
"""

from __future__ import annotations

import re
from decimal import Decimal

import msgspec

from gpudoctor.facts.kubernetes import fields, parse, scheduler_message
from gpudoctor.facts.kubernetes.cluster import Cluster
from gpudoctor.facts.kubernetes.fields import JsonObject
from gpudoctor.facts.kubernetes.model import Condition, Event, Meta, Pod, Resources
from gpudoctor.facts.kubernetes.placement import NodeFit
from gpudoctor.facts.kubernetes.scheduler_message import SchedulerMessage
from gpudoctor.facts.kubernetes.situation import PodSituation

VOLCANO = "scheduling.volcano.sh"
COSCHEDULING = "scheduling.x-k8s.io"
NATIVE = "scheduling.k8s.io"
KAI = "scheduling.run.ai"
_VOLCANO_ANNOTATIONS = ("scheduling.k8s.io/group-name", "scheduling.volcano.sh/group-name")
_COSCHEDULING_LABELS = ("scheduling.x-k8s.io/pod-group", "pod-group.scheduling.sigs.k8s.io")
_KAI_ANNOTATION = "pod-group-name"
_ORIGIN = re.compile(r"Origin reason is:? (?:(?P<task>[a-z0-9][a-z0-9.-]*): )?(?P<text>.+)", re.S)
_SIBLINGS = re.compile(
    r"(?:cannot find enough sibling pods|Not enough valid tasks for gang-scheduling)[^\d]*"
    r"(?P<have>\d+),[^\d]*(?P<need>\d+)"
)
# Koordinator's gangs need no object: name and size are the pods' annotations.
_KOORDINATOR = "gang.scheduling.koordinator.sh/"
_KOORDINATOR_TOO_FEW = "gang child pod not collect enough"


class Member(msgspec.Struct, frozen=True):
    """A pod of the group: where it is, and what the scheduler last said of it."""

    meta: Meta
    node: str | None
    reason: str
    message: SchedulerMessage | None
    requests: Resources


class VolcanoQueue(msgspec.Struct, frozen=True):
    """A Volcano Queue; `capability` is its hard limit, `allocated` what its jobs hold."""

    meta: Meta
    state: str
    capability: Resources
    allocated: Resources


class Gang(msgspec.Struct, frozen=True, kw_only=True):
    """The group of a pod. `group` is the API group of the kind that speaks for it.

    `meta` is the object, None if the input does not have it; `reference` is how the pod names it.
    `minimum` is how many members must fit at once, `phase` the PodGroup's. `condition` is the
    one that holds it back, `events` are those on the PodGroup. `origin` is the reason that the
    scheduler gives for the member that does not fit, `culprit` that member's name.
    `nodes` are those of the input where cordon, taints and selectors let the pod go.
    """

    group: str
    reference: str
    meta: Meta | None
    minimum: int | None = None
    needs: Resources = {}
    phase: str = ""
    queue_name: str = ""
    queue: VolcanoQueue | None = None
    condition: Condition | None = None
    disruption: Condition | None = None
    events: tuple[Event, ...] = ()
    members: tuple[Member, ...] = ()
    origin: SchedulerMessage | None = None
    culprit: str | None = None
    siblings: tuple[int, int] | None = None
    nodes: tuple[NodeFit, ...] = ()

    def room(self, requests: Resources) -> int:
        """How many members with these requests the nodes have room for at once."""
        asked = {resource: amount for resource, amount in requests.items() if amount > 0}
        return sum(
            int(min(max(fit.free.get(r, Decimal(0)), Decimal(0)) // a for r, a in asked.items()))
            for fit in self.nodes
            if asked
        )


def read(cluster: Cluster, situation: PodSituation) -> Gang | None:
    """Return the group of a pod that has no node yet, None if it has none."""
    pod = situation.pod
    said = situation.failure.raw if situation.failure else ""
    named = _reference(pod)
    if named is None:
        return None
    group, name = named
    obj = _object(cluster, group, name, pod.meta.namespace)
    data = parse.meta(obj) if obj else None
    members = _members(situation, group, name)
    minimum, needs = _wanted(obj, group)
    if minimum is None:
        minimum = fields.integer(pod.meta.annotations.get(f"{_KOORDINATOR}min-available"))
    condition = _holding(obj)
    events = tuple(
        cluster.events_of("PodGroup", name, pod.meta.namespace, data.uid if data else None)
    )
    texts = [condition.message if condition else "", said, *(e.message for e in reversed(events))]
    culprit, origin = _origin(texts)
    queue_name = fields.text(obj, "spec", "queue") or ""
    return Gang(
        group=group,
        reference=name,
        meta=data,
        minimum=minimum,
        needs=needs or _sum_of(members, minimum),
        phase=fields.text(obj, "status", "phase") or "",
        queue_name=queue_name,
        queue=_queue(cluster, queue_name) if group == VOLCANO and queue_name else None,
        condition=condition,
        disruption=_disruption(obj),
        events=events,
        members=members,
        origin=origin,
        culprit=culprit,
        siblings=_siblings(texts) or _too_few(said, members, minimum),
        nodes=tuple(fit for fit in situation.fits if fit.is_admitted),
    )


def _reference(pod: Pod) -> tuple[str, str] | None:
    if pod.scheduling_group:
        return NATIVE, pod.scheduling_group
    for key in _COSCHEDULING_LABELS:
        if name := pod.meta.labels.get(key):
            return COSCHEDULING, name
    if name := pod.meta.annotations.get(f"{_KOORDINATOR}name"):
        return COSCHEDULING, name
    for key in _VOLCANO_ANNOTATIONS:
        if name := pod.meta.annotations.get(key):
            return VOLCANO, name
    if name := pod.meta.annotations.get(_KAI_ANNOTATION):
        return KAI, name
    return None


def _object(cluster: Cluster, group: str, name: str, namespace: str | None) -> JsonObject | None:
    found = cluster.one(group, "PodGroup", name, namespace)
    if found is None and group == NATIVE:
        found = cluster.one(group, "Workload", name, namespace)
    return found


def _wanted(obj: JsonObject | None, group: str) -> tuple[int | None, Resources]:
    spec = fields.mapping(obj, "spec")
    needs = fields.quantities(spec, "minResources")
    if group != NATIVE:
        return fields.integer(spec, "minMember"), needs
    policies = [fields.mapping(spec, "schedulingPolicy"), fields.mapping(spec, "policy")]
    # v1alpha1: the groups are entries of the Workload; without their name the first one counts.
    policies += [fields.mapping(item, "policy") for item in fields.objects(spec, "podGroups")]
    counts = [fields.integer(policy, "gang", "minCount") for policy in policies]
    return next((count for count in counts if count is not None), None), needs


def _holding(obj: JsonObject | None) -> Condition | None:
    """Return the condition that says why the group does not run."""
    listed = parse.conditions(obj or {})
    for found in reversed(listed):
        if found.type == "Unschedulable" and found.status == "True":
            return found
        if found.type in ("PodGroupInitiallyScheduled", "PodGroupScheduled"):
            return found if found.status == "False" else None
    for item in reversed(fields.objects(obj, "status", "schedulingConditions")):
        return Condition(
            type=fields.text(item, "type") or "",
            status=fields.text(item, "status") or "True",
            reason=fields.text(item, "reason") or "",
            message=fields.text(item, "message") or "",
        )
    return None


def _disruption(obj: JsonObject | None) -> Condition | None:
    return next(
        (
            found
            for found in parse.conditions(obj or {})
            if found.type == "DisruptionTarget" and found.status == "True"
        ),
        None,
    )


def _members(situation: PodSituation, group: str, name: str) -> tuple[Member, ...]:
    """The pod and those of its job that name the same group."""
    others = {pod.meta.name: pod for pod in (*situation.siblings, *situation.peers)}
    same = [
        pod for pod in others.values() if not pod.is_terminal and _reference(pod) == (group, name)
    ]
    return tuple(_member(each) for each in (situation.pod, *same))


def _member(pod: Pod) -> Member:
    scheduled = pod.condition("PodScheduled")
    refused = scheduled is not None and scheduled.status == "False" and not pod.node
    return Member(
        meta=pod.meta,
        node=pod.node,
        reason=scheduled.reason if scheduled else "",
        message=scheduler_message.parse(scheduled.message) if scheduled and refused else None,
        requests=pod.requests,
    )


def _origin(texts: list[str]) -> tuple[str | None, SchedulerMessage | None]:
    for text in texts:
        match = _ORIGIN.search(text)
        if match:
            return match["task"], scheduler_message.parse(match["text"])
    return None, None


def _siblings(texts: list[str]) -> tuple[int, int] | None:
    for text in texts:
        match = _SIBLINGS.search(text)
        if match and len(match["have"]) < 10 and len(match["need"]) < 10:
            return int(match["have"]), int(match["need"])
    return None


def _too_few(said: str, members: tuple[Member, ...], minimum: int | None) -> tuple[int, int] | None:
    return (len(members), minimum) if minimum and _KOORDINATOR_TOO_FEW in said else None


def _sum_of(members: tuple[Member, ...], minimum: int | None) -> Resources:
    """What `minimum` members ask for together: members of a gang are alike unless it says."""
    if minimum is None or not members:
        return {}
    total: Resources = {}
    for member in members[:minimum]:
        for resource, amount in member.requests.items():
            total[resource] = total.get(resource, Decimal(0)) + amount
    missing = minimum - len(members)
    if missing > 0:
        for resource, amount in members[0].requests.items():
            total[resource] += amount * missing
    return total


def _queue(cluster: Cluster, name: str) -> VolcanoQueue | None:
    obj = cluster.one(VOLCANO, "Queue", name, None)
    if obj is None:
        return None
    return VolcanoQueue(
        meta=parse.meta(obj),
        state=fields.text(obj, "status", "state") or "",
        capability=fields.quantities(obj, "spec", "capability"),
        allocated=fields.quantities(obj, "status", "allocated"),
    )
