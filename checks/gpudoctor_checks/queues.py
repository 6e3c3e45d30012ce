"""Kueue: what holds a pod or job before any scheduler looks at nodes.

The order of the questions: is the queue there and open, does the request fit into its quota at
all, is the quota free, do the nodes' topology and the admission checks let it through.
"""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal
from enum import Enum, auto

from gpudoctor.checking import CheckSet, Draft, Result, finding
from gpudoctor.facts.kubernetes import fields
from gpudoctor.facts.kubernetes.kueue import Kueue, Quota, TopologyUse, Workload
from gpudoctor.facts.kubernetes.kueue_message import Hold, Refusal
from gpudoctor.facts.kubernetes.model import Condition, Node
from gpudoctor.facts.kubernetes.queues import QueueSituation
from gpudoctor.report import Blame, Certainty, Evidence, Unknown

CHECKS = CheckSet()

_PREEMPTION_SECONDS = 300
_NAMED = 3


class _Stage(Enum):
    """Where a workload stands on its way through Kueue."""

    NOT_HELD = auto()
    STOPPED = auto()
    DEACTIVATED = auto()
    MISCONFIGURED = auto()
    WITHOUT_QUOTA = auto()
    WITHOUT_ADMISSION = auto()


# Reasons of QuotaReserved=False, for messages of a form that is not known.
_HOLD_OF_REASON = {
    "WaitingForQuota": Hold.IN_USE,
    "WaitingForPreemptedWorkloads": Hold.IN_USE,
    "ExceedsMaxQuota": Hold.OVER_MAXIMUM,
    "NoMatchingFlavor": Hold.NO_FLAVOR,
    "TopologyPlacementFailed": Hold.TOPOLOGY,
}


def _stage(situation: QueueSituation) -> _Stage:
    kueue = situation.kueue
    if kueue is None or not situation.held or (situation.pod and not kueue.gates):
        return _Stage.NOT_HELD
    workload = kueue.workload
    if workload is not None and workload.has("Admitted"):
        return _Stage.NOT_HELD
    if _stop(kueue) is not None:
        return _Stage.STOPPED
    if workload is not None and not workload.active:
        return _Stage.DEACTIVATED
    if _misconfiguration(situation, kueue) is not None:
        return _Stage.MISCONFIGURED
    if workload is not None and workload.has("QuotaReserved"):
        return _Stage.WITHOUT_ADMISSION
    return _Stage.WITHOUT_QUOTA


def _hold(kueue: Kueue) -> Hold:
    """What keeps the workload from its quota: by the message, else by the condition's reason."""
    if kueue.refusals:
        return kueue.refusals[0].hold
    reserved = kueue.workload.condition("QuotaReserved") if kueue.workload else None
    if reserved is None or reserved.status != "False":
        return Hold.UNKNOWN
    return _HOLD_OF_REASON.get(reserved.reason, Hold.UNKNOWN)


def _held_by(situation: QueueSituation, *holds: Hold) -> Kueue | None:
    """Return Kueue's facts where the workload has no quota for one of these reasons."""
    kueue = situation.kueue
    if kueue is not None and _stage(situation) is _Stage.WITHOUT_QUOTA and _hold(kueue) in holds:
        return kueue
    return None


def _draft(
    name: str,
    situation: QueueSituation,
    detail: str,
    *evidence: Evidence,
    values: dict[str, str],
    certainty: Certainty = Certainty.CERTAIN,
    blame: Blame | None = None,
    leans_on: tuple[str, ...] = (),
    fix: str | None = None,
) -> Draft:
    kueue = situation.kueue
    workload = kueue.workload if kueue else None
    held = (*_gates(situation), *((_reserved(workload),) if workload else ()))
    queue = (kueue.cluster_queue_name or kueue.queue_name) if kueue else ""
    return finding(
        name,
        situation.subject,
        detail,
        *dict.fromkeys((*held, *evidence)),
        values={"pod": _name(situation), "queue": queue} | values,
        certainty=certainty,
        blame=blame,
        related=(workload.meta.subject,) if workload else (),
        leans_on=leans_on,
        fix=fix,
    )


def _name(situation: QueueSituation) -> str:
    subject = situation.subject
    return f"{subject.namespace}/{subject.name}" if subject.namespace else subject.name


def _gates(situation: QueueSituation) -> tuple[Evidence, ...]:
    kueue, pod = situation.kueue, situation.pod
    if situation.suspended is not None:
        return (situation.suspended,)
    if kueue is None or pod is None or not kueue.gates:
        return ()
    return (Evidence(pod.meta.path, "spec.schedulingGates", ", ".join(kueue.gates)),)


def _reserved(workload: Workload) -> Evidence:
    return _condition(workload.meta.path, workload.condition("QuotaReserved"), "QuotaReserved")


def _condition(path: str, condition: Condition | None, kind: str) -> Evidence:
    field = f"status.conditions[{kind}]"
    if condition is None:
        return Evidence(path, field, "absent")
    said = ": ".join(part for part in (condition.reason, condition.message) if part)
    return Evidence(path, field, f"{condition.status} {said}".strip())


# The queue itself


def _stop(kueue: Kueue) -> tuple[str, Evidence] | None:
    """Return which queue someone stopped, with the proof."""
    local, cluster = kueue.local_queue, kueue.cluster_queue
    for kind, queue in (("LocalQueue", local), ("ClusterQueue", cluster)):
        if queue is None:
            continue
        if queue.is_stopped:
            evidence = Evidence(queue.meta.path, "spec.stopPolicy", queue.stop_policy)
            return f"{kind} {queue.meta.name}", evidence
        active = queue.active
        if active is not None and active.status == "False" and active.reason == "Stopped":
            return f"{kind} {queue.meta.name}", _condition(queue.meta.path, active, "Active")
    return _stop_by_workload(kueue)


def _stop_by_workload(kueue: Kueue) -> tuple[str, Evidence] | None:
    """The Workload's word, where the queue is not in the input."""
    workload = kueue.workload
    if workload is None:
        return None
    reserved, evicted = workload.condition("QuotaReserved"), workload.condition("Evicted")
    path = workload.meta.path
    if reserved is not None and reserved.status == "False" and "is stopped" in reserved.message:
        if reserved.message.startswith("LocalQueue") and kueue.local_queue is None:
            return f"LocalQueue {kueue.queue_name}", _condition(path, reserved, "QuotaReserved")
        if reserved.message.startswith("ClusterQueue") and kueue.cluster_queue is None:
            name = reserved.message.split()[1]
            return f"ClusterQueue {name}", _condition(path, reserved, "QuotaReserved")
    if evicted is None or evicted.status != "True":
        return None
    if evicted.reason == "LocalQueueStopped" and kueue.local_queue is None:
        return f"LocalQueue {kueue.queue_name}", _condition(path, evicted, "Evicted")
    if evicted.reason == "ClusterQueueStopped" and kueue.cluster_queue is None:
        name = kueue.cluster_queue_name or ""
        return f"ClusterQueue {name}".strip(), _condition(path, evicted, "Evicted")
    return None


@CHECKS.check(QueueSituation)
def queue_stopped(situation: QueueSituation) -> Iterator[Result]:
    """The LocalQueue or ClusterQueue has a stopPolicy: nothing is admitted."""
    if situation.kueue is None or _stage(situation) is not _Stage.STOPPED:
        return
    stop = _stop(situation.kueue)
    if stop is None:
        return
    queue, evidence = stop
    yield _draft(
        "queue-stopped",
        situation,
        f"{queue} is stopped ({evidence.value}), so it admits nothing, whatever quota is free.",
        evidence,
        values={"queue": queue.rpartition(" ")[2]},
    )


def _misconfiguration(
    situation: QueueSituation, kueue: Kueue
) -> tuple[str, Evidence | None, Certainty, tuple[str, ...]] | None:
    """Return why nothing can be queued: words, proof, how sure, and what the answer leans on."""
    return (
        _inactive(kueue)
        or _refused_as_misconfigured(kueue)
        or _absent_queue(situation, kueue)
        or _incomplete_group(situation, kueue)
    )


def _inactive(kueue: Kueue) -> tuple[str, Evidence | None, Certainty, tuple[str, ...]] | None:
    cluster, local = kueue.cluster_queue, kueue.local_queue
    for kind, queue in (("ClusterQueue", cluster), ("LocalQueue", local)):
        active = queue.active if queue else None
        if queue is None or active is None or active.status != "False":
            continue
        said = active.message or active.reason
        words = f"{kind} {queue.meta.name} is not active: {said}"
        evidence = _condition(queue.meta.path, active, "Active")
        # A LocalQueue only passes on its ClusterQueue's state, which may be a stop.
        sure = kind == "ClusterQueue" or cluster is not None
        certainty = Certainty.CERTAIN if sure else Certainty.LIKELY
        return words, evidence, certainty, () if sure else ("ClusterQueue",)
    return None


# Words of Kueue for a queue that is missing, closed or does not take the workload.
_QUEUE_WORDS = (
    "doesn't exist",
    "is inactive",
    "not found",
    "terminating or missing",
    "namespace selector",
    "doesn't match ClusterQueue selector",
    "validation failed",
    "not supported",
)


def _refused_as_misconfigured(
    kueue: Kueue,
) -> tuple[str, Evidence | None, Certainty, tuple[str, ...]] | None:
    workload = kueue.workload
    reserved = workload.condition("QuotaReserved") if workload else None
    if workload is None or reserved is None or reserved.status != "False":
        return None
    evidence = _reserved(workload)
    hold = _hold(kueue)
    if hold in (Hold.NO_FLAVOR, Hold.NOT_OFFERED):
        said = "; ".join(dict.fromkeys(r.text for r in kueue.refusals)) or reserved.message
        return f"no flavor of the queue takes it: {said}", evidence, Certainty.CERTAIN, ()
    if kueue.refusals or hold is not Hold.UNKNOWN:
        return None
    if reserved.reason == "Misconfigured" or any(w in reserved.message for w in _QUEUE_WORDS):
        # An inactive queue that is not in the input may as well be stopped.
        sure = "is inactive" not in reserved.message
        certainty = Certainty.CERTAIN if sure else Certainty.LIKELY
        return reserved.message or reserved.reason, evidence, certainty, ()
    return None


def _absent_queue(
    situation: QueueSituation, kueue: Kueue
) -> tuple[str, Evidence | None, Certainty, tuple[str, ...]] | None:
    has_all = situation.scope.has_all
    if kueue.refusals or not kueue.queue_name:
        return None
    if kueue.local_queue is None and has_all("LocalQueue"):
        where = situation.subject.namespace
        words = f"there is no LocalQueue {kueue.queue_name} in namespace {where}"
        return words, None, Certainty.CERTAIN, ("LocalQueue",)
    name = kueue.cluster_queue_name
    if kueue.local_queue is not None and kueue.cluster_queue is None and has_all("ClusterQueue"):
        words = f"ClusterQueue {name} of LocalQueue {kueue.queue_name} does not exist"
        evidence = Evidence(kueue.local_queue.meta.path, "spec.clusterQueue", name)
        return words, evidence, Certainty.CERTAIN, ("ClusterQueue",)
    return None


def _incomplete_group(
    situation: QueueSituation, kueue: Kueue
) -> tuple[str, Evidence | None, Certainty, tuple[str, ...]] | None:
    """Kueue makes the Workload of a pod group only when all its pods are there."""
    size, pod = kueue.group_size, situation.pod
    if kueue.workload is not None or size is None or pod is None or kueue.group_pods >= size:
        return None
    if not situation.scope.has_all("Pod"):
        return None
    words = f"its group has {kueue.group_pods} of the {size} pods that Kueue waits for"
    path = "metadata.annotations[kueue.x-k8s.io/pod-group-total-count]"
    return words, Evidence(pod.meta.path, path, str(size)), Certainty.CERTAIN, ("Pod",)


@CHECKS.check(QueueSituation)
def queue_misconfigured(situation: QueueSituation) -> Iterator[Result]:
    """The queue is missing or inactive, no flavor takes the pods, or the workload is off."""
    kueue, stage = situation.kueue, _stage(situation)
    if kueue is None:
        return
    if stage is _Stage.DEACTIVATED and kueue.workload is not None:
        yield from _deactivated(situation, kueue.workload)
    found = _misconfiguration(situation, kueue) if stage is _Stage.MISCONFIGURED else None
    if found is None:
        return
    words, evidence, certainty, leans_on = found
    by_request = _hold(kueue) in (Hold.NO_FLAVOR, Hold.NOT_OFFERED)
    inactive = tuple(
        Evidence(check.path, "status.conditions[Active]", "False")
        for check in kueue.inactive_checks
    )
    yield _draft(
        "queue-misconfigured",
        situation,
        f"{_name(situation)} is not considered for quota: {words}.",
        *((evidence,) if evidence else ()),
        *inactive,
        *_asked_queue(situation),
        values={"reason": words},
        certainty=certainty,
        blame=Blame.REQUEST if by_request else None,
        leans_on=leans_on,
    )


def _asked_queue(situation: QueueSituation) -> tuple[Evidence, ...]:
    kueue, pod = situation.kueue, situation.pod
    if kueue is None or pod is None or not kueue.queue_name:
        return ()
    path = "metadata.labels[kueue.x-k8s.io/queue-name]"
    return (Evidence(pod.meta.path, path, kueue.queue_name),)


_TIMED_OUT = ("PodsReadyTimeout", "DeactivatedDueToRequeuingLimitExceeded")


def _deactivated(situation: QueueSituation, workload: Workload) -> Iterator[Result]:
    evicted = workload.condition("Evicted")
    if evicted is not None and evicted.reason in _TIMED_OUT:
        return
    reason = evicted.message if evicted and evicted.message else "someone set it"
    yield _draft(
        "queue-misconfigured",
        situation,
        f"Workload {workload.meta.short} is deactivated ({reason}): Kueue leaves it alone.",
        Evidence(workload.meta.path, "spec.active", "false"),
        *((_condition(workload.meta.path, evicted, "Evicted"),) if evicted else ()),
        values={"reason": f"its Workload {workload.meta.name} is deactivated (spec.active: false)"},
        fix=f"Set spec.active of Workload {workload.meta.short} back to true once the reason "
        f"is gone: {reason}.",
    )


# Quota


def _limit(kueue: Kueue, refusal: Refusal) -> tuple[str, Quota | None]:
    """The most that the queue can reach for the refused resource, and its quota."""
    queue = kueue.cluster_queue
    quota = queue.quota(refusal.flavor, refusal.resource) if queue else None
    if refusal.limit or quota is None or queue is None:
        return refusal.limit, quota
    if queue.cohort is None or quota.borrowing is not None:
        return f"{quota.nominal + (quota.borrowing or Decimal(0)):f}", quota
    return "", quota


@CHECKS.check(QueueSituation)
def queue_exceeds_max_quota(situation: QueueSituation) -> Iterator[Result]:
    """The request is above nominal quota plus what may be borrowed: it never fits."""
    kueue = _held_by(situation, Hold.OVER_MAXIMUM)
    if kueue is None or kueue.workload is None:
        return
    workload, queue = kueue.workload, kueue.cluster_queue
    refusal = next((r for r in kueue.refusals if r.hold is Hold.OVER_MAXIMUM), None)
    limit, quota = _limit(kueue, refusal) if refusal else ("", None)
    resource = refusal.resource if refusal else "quota"
    wanted = _wanted(workload, refusal)
    where = f" in flavor {refusal.flavor}" if refusal else ""
    can = f"can reach {limit} at most" if limit else "can never reach that"
    made_of = f" ({quota.written})" if quota else ""
    name = kueue.cluster_queue_name or kueue.queue_name
    evidence = []
    if queue is not None:
        quotas = [q.written for q in queue.quotas if not refusal or q.resource == resource]
        evidence.append(
            Evidence(queue.meta.path, "spec.resourceGroups", "; ".join(quotas) or "empty")
        )
    yield _draft(
        "queue-exceeds-max-quota",
        situation,
        f"Workload {workload.meta.short} asks for {wanted} {resource}{where}; queue {name} {can}"
        f"{made_of}. Time does not help, nor do idle GPUs: the whole workload has to fit at once.",
        *evidence,
        values={
            "wanted": f"{wanted} {resource}",
            "limit": limit or "its maximum",
            "queue": name,
        },
    )


def _wanted(workload: Workload, refusal: Refusal | None) -> str:
    if refusal is not None and refusal.wanted:
        parts = [fields.quantity(part.strip()) for part in refusal.wanted.split("+")]
        if len(parts) > 1 and all(part is not None for part in parts):
            return f"{sum((p for p in parts if p is not None), Decimal(0)):f}"
        return refusal.wanted
    amount = workload.requests.get(refusal.resource) if refusal else None
    return f"{amount:f}" if amount is not None else "more"


@CHECKS.check(QueueSituation)
def queue_waiting_for_quota(situation: QueueSituation) -> Iterator[Result]:
    """The request fits into the quota, but others hold it now."""
    kueue, reserved = situation.kueue, None
    if kueue is None or kueue.workload is None:
        return
    if _stage(situation) is _Stage.WITHOUT_QUOTA:
        reserved = kueue.workload.condition("QuotaReserved")
    if reserved is None:
        return
    if reserved.reason in ("WaitingForPodsReady", "Waiting"):
        yield _waits_for_others(situation, reserved)
    elif _hold(kueue) is Hold.IN_USE:
        yield _waits_for_quota(situation, kueue)


def _waits_for_others(situation: QueueSituation, reserved: Condition) -> Draft:
    return _draft(
        "queue-waiting-for-quota",
        situation,
        "Kueue admits nothing here until the pods of the workloads admitted before are Ready "
        f"(waitForPodsReady.blockAdmission): {reserved.message}",
        values={"reason": "an earlier workload is not Ready yet"},
    )


def _waits_for_quota(situation: QueueSituation, kueue: Kueue) -> Draft:
    refusal = next((r for r in kueue.refusals if r.hold is Hold.IN_USE), None)
    resource = refusal.resource if refusal else ""
    queue = kueue.cluster_queue
    evidence = []
    if queue is not None:
        quotas = [
            f"{q.written}, used {q.used:f}" if q.used is not None else q.written
            for q in queue.quotas
            if not resource or q.resource == resource
        ]
        evidence.append(Evidence(queue.meta.path, "spec.resourceGroups", "; ".join(quotas)))
    holders = [
        (holder, amount)
        for holder in kueue.holders
        if (amount := _held(holder, refusal)) or refusal is None
    ]
    holders.sort(key=lambda pair: -pair[1])
    evidence += [
        Evidence(holder.meta.path, "status.admission", f"holds {amount:f} {resource}".strip())
        for holder, amount in holders[:_NAMED]
    ]
    lacks = f"{refusal.more} {resource} are missing in flavor {refusal.flavor}" if refusal else ""
    lacks = lacks if refusal and refusal.more else "its quota is in use"
    held = ", ".join(f"{holder.meta.short} ({amount:f})" for holder, amount in holders[:_NAMED])
    by = f" Quota is held by {held}." if held else ""
    return _draft(
        "queue-waiting-for-quota",
        situation,
        f"The request fits into queue {kueue.cluster_queue_name or kueue.queue_name}, but not now: "
        f"{lacks}.{by}",
        *evidence,
        values={"reason": lacks},
    )


def _held(holder: Workload, wanted: Refusal | None) -> Decimal:
    """How much a workload holds of the resource and flavor that is lacking."""
    if wanted is None:
        return Decimal(0)
    return sum(
        (
            use.amount
            for use in holder.usage
            if use.resource == wanted.resource and use.flavor in ("", wanted.flavor)
        ),
        Decimal(0),
    )


@CHECKS.check(QueueSituation)
def queue_quota_held_by_evicted_workload(situation: QueueSituation) -> Iterator[Result]:
    """A workload was evicted, but its quota comes back only when its last pod has ended."""
    kueue = _held_by(situation, Hold.IN_USE)
    if kueue is None:
        return
    refusal = next((r for r in kueue.refusals if r.hold is Hold.IN_USE), None)
    resource = refusal.resource if refusal else ""
    missing = fields.quantity(refusal.more) if refusal else None
    evicted = [holder for holder in kueue.holders if _is_stuck(holder, situation.now)]
    held = sum((_held(holder, refusal) for holder in evicted), Decimal(0))
    if not evicted or (resource and not held):
        return
    enough = missing is None or held >= missing
    first = max(evicted, key=lambda holder: _held(holder, refusal))
    condition = first.condition("Evicted")
    yield _draft(
        "queue-quota-held-by-evicted-workload",
        situation,
        f"Workload {first.meta.short} was evicted ({condition.reason if condition else ''}) and "
        f"still has its quota of {_held(first, refusal):f} {resource}: Kueue gives it back when "
        "the last of its pods has ended.",
        *(
            Evidence(
                holder.meta.path,
                "status.conditions[Evicted] with QuotaReserved",
                f"Evicted True, QuotaReserved True, {_held(holder, refusal):f} {resource}",
            )
            for holder in evicted[:_NAMED]
        ),
        values={"name": first.meta.short},
        certainty=Certainty.CERTAIN if enough and missing is not None else Certainty.LIKELY,
    )


def _is_stuck(holder: Workload, now: float | None) -> bool:
    """Whether it was evicted long enough ago for its pods to have ended."""
    evicted = holder.condition("Evicted")
    if evicted is None or evicted.status != "True" or not holder.has("QuotaReserved"):
        return False
    if now is None or evicted.since is None:
        return True
    return now - evicted.since.timestamp() > _PREEMPTION_SECONDS


# Topology and admission checks


def _required_by(node: Node, workload: Workload) -> bool:
    return any(node.allocatable.get(r, Decimal(0)) > 0 for r in workload.requests if "/" in r)


def _unlabelled(
    kueue: Kueue, level: str | None
) -> tuple[TopologyUse | None, str, tuple[Node, ...], int]:
    """Return topology, level, the nodes that lack its label, and how many nodes were looked at."""
    for use in kueue.topologies:
        for label in (level,) if level else use.levels:
            if level and use.levels and level not in use.levels:
                continue
            if label is None or kueue.workload is None:
                continue
            nodes = [node for node in use.nodes if _required_by(node, kueue.workload)]
            lacking = tuple(node for node in nodes if label not in node.labels)
            if lacking or level:
                return use, label, lacking, len(nodes)
    return None, level or "", (), 0


@CHECKS.check(QueueSituation)
def topology_level_label_missing(situation: QueueSituation) -> Iterator[Result]:
    """Nodes of the flavor lack the label of a Topology level: Kueue does not see them."""
    kueue = _held_by(situation, Hold.TOPOLOGY_LABEL, Hold.TOPOLOGY)
    if kueue is None:
        return
    said = next((r.what for r in kueue.refusals if r.hold is Hold.TOPOLOGY_LABEL), None)
    use, level, lacking, looked_at = _unlabelled(kueue, said)
    if not lacking and (said is None or looked_at):
        return
    names = ", ".join(node.name for node in lacking[:_NAMED])
    many = f"{len(lacking)} of {looked_at} nodes of flavor {use.flavor}" if use and lacking else ""
    detail = (
        f"{many} lack the label {level} ({names}), so Kueue leaves them out of the topology."
        if lacking
        else f"Kueue sees no node with the label {level}."
    )
    evidence = [Evidence(n.meta.path, f"metadata.labels[{level}]", "absent") for n in lacking]
    if use is not None and use.topology is not None:
        path = use.topology.path
        evidence.append(Evidence(path, "spec.levels", ", ".join(use.levels)))
    sure = bool(lacking) and (said is not None or len(lacking) == looked_at)
    yield _draft(
        "topology-level-label-missing",
        situation,
        detail,
        *evidence[: _NAMED + 1],
        values={"name": level},
        certainty=Certainty.CERTAIN if sure else Certainty.LIKELY,
    )


@CHECKS.check(QueueSituation)
def topology_placement_failed(situation: QueueSituation) -> Iterator[Result]:
    """Quota is there, but no domain of the topology has room for all pods."""
    kueue = _held_by(situation, Hold.TOPOLOGY, Hold.TOPOLOGY_LABEL)
    if kueue is None or kueue.workload is None:
        return
    refusal = kueue.refusals[0] if kueue.refusals else None
    if refusal is not None and refusal.hold is Hold.TOPOLOGY_LABEL:
        _, _, lacking, looked_at = _unlabelled(kueue, refusal.what)
        if lacking or not looked_at:
            return
    workload = kueue.workload
    levels = workload.required_topology
    what = refusal.what if refusal else ""
    level = levels[0] if levels else f"topology {what}".strip()
    said = refusal.text if refusal else _reserved(workload).value or ""
    required = tuple(
        Evidence(workload.meta.path, "spec.podSets[].topologyRequest.required", level)
        for level in levels[:1]
    )
    out = [
        Evidence(node.meta.path, "status.conditions[Ready]", ready.status, ready.message or None)
        for use in kueue.topologies
        for node in use.nodes
        if (ready := node.condition("Ready")) is not None and ready.status != "True"
    ]
    lost = f" {len(out)} nodes of its flavors are not ready." if out else ""
    yield _draft(
        "topology-placement-failed",
        situation,
        f"Kueue finds no {level} domain for all {workload.pods} pods of {workload.meta.short}: "
        f"{said}.{lost}",
        *required,
        *out[:_NAMED],
        values={"name": level},
    )


@CHECKS.check(QueueSituation)
def admission_check_pending(situation: QueueSituation) -> Iterator[Result]:
    """Quota is reserved, but an admission check has not let the workload through."""
    kueue, stage = situation.kueue, _stage(situation)
    if kueue is None or kueue.workload is None:
        return
    workload = kueue.workload
    evicted = workload.condition("Evicted")
    put_out = (
        evicted is not None and evicted.status == "True" and evicted.reason == "AdmissionCheck"
    )
    if stage is not _Stage.WITHOUT_ADMISSION and not (put_out and stage is _Stage.WITHOUT_QUOTA):
        return
    waiting = [check for check in workload.checks if check.state != "Ready"]
    admitted = workload.condition("Admitted")
    if not waiting and not put_out:
        why = admitted.reason if admitted else "no condition Admitted"
        yield Unknown(f"admission of Workload {workload.meta.short}", why)
        return
    name = waiting[0].name if waiting else "(see the condition Evicted)"
    said = "; ".join(f"{c.name} {c.state}: {c.message}".rstrip(": ") for c in waiting)
    said = (said or (evicted.message if evicted else "")).rstrip(".")
    yield _draft(
        "admission-check-pending",
        situation,
        f"Workload {workload.meta.short} waits for its admission checks: {said}.",
        Evidence(workload.meta.path, "status.admissionChecks", said),
        *((_condition(workload.meta.path, evicted, "Evicted"),) if put_out else ()),
        *(
            Evidence(check.path, "status.conditions[Active]", "False")
            for check in kueue.inactive_checks
        ),
        values={"name": name},
    )


# What happened to it before


@CHECKS.check(QueueSituation)
def queue_evicted_pods_ready_timeout(situation: QueueSituation) -> Iterator[Result]:
    """Kueue took the quota back, because not all pods were Ready in time."""
    workload = situation.kueue.workload if situation.kueue else None
    evicted = workload.condition("Evicted") if workload else None
    if workload is None or evicted is None or evicted.status != "True":
        return
    if evicted.reason not in _TIMED_OUT or workload.has("Admitted"):
        return
    times = f" after {workload.requeues} tries" if workload.requeues else ""
    off = "; it is deactivated and will not be tried again" if not workload.active else ""
    yield _draft(
        "queue-evicted-pods-ready-timeout",
        situation,
        f"Workload {workload.meta.short} had quota and lost it{times}: "
        f"{evicted.message or evicted.reason}{off}.",
        _condition(workload.meta.path, evicted, "Evicted"),
        *(
            (Evidence(workload.meta.path, "status.requeueState.count", str(workload.requeues)),)
            if workload.requeues
            else ()
        ),
        values={"queue": f"Queue {workload.queue}"},
    )


@CHECKS.check(QueueSituation)
def preempted_by_kueue(situation: QueueSituation) -> Iterator[Result]:
    """Kueue took the quota back for a workload of higher priority or for the cohort."""
    workload = situation.kueue.workload if situation.kueue else None
    evicted = workload.condition("Evicted") if workload else None
    if workload is None or evicted is None or evicted.status != "True":
        return
    if evicted.reason != "Preempted" or workload.has("Admitted"):
        return
    preempted = workload.condition("Preempted")
    how = preempted.reason if preempted and preempted.reason else evicted.reason
    yield _draft(
        "preempted",
        situation,
        f"Kueue evicted Workload {workload.meta.short}: {evicted.message or how}.",
        _condition(workload.meta.path, evicted, "Evicted"),
        *((_condition(workload.meta.path, preempted, "Preempted"),) if preempted else ()),
        values={"reason": f"Kueue, {how}"},
    )


@CHECKS.check(QueueSituation)
def queue_admitted(situation: QueueSituation) -> Iterator[Result]:
    """The pod waits for a node with its quota in hand, so quota is not the question."""
    kueue = situation.kueue
    if kueue is None or kueue.workload is None or not situation.held or situation.pod is None:
        return
    workload = kueue.workload
    if kueue.gates or not workload.has("Admitted"):
        return
    yield finding(
        "queue-admitted",
        situation.subject,
        f"Workload {workload.meta.short} is admitted in {workload.cluster_queue or 'its queue'}. "
        "Kueue adds up quota and does not place pods.",
        _condition(workload.meta.path, workload.condition("Admitted"), "Admitted"),
        values={"pod": _name(situation)},
        related=(workload.meta.subject,),
    )


@CHECKS.check(QueueSituation)
def gated_without_workload(situation: QueueSituation) -> Iterator[Result]:
    """A pod with Kueue's gate whose Workload is not in the input cannot be judged."""
    kueue = situation.kueue
    if kueue is not None and kueue.workload is None and _stage(situation) is _Stage.WITHOUT_QUOTA:
        yield Unknown(f"the Kueue Workload of {_name(situation)}", "it is not in the input")
