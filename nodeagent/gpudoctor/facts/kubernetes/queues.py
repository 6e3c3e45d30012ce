"""What holds a pod or job before a scheduler looks at nodes: Kueue, gangs, preemption."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from gpudoctor.facts.kubernetes import fields, kueue, parse
from gpudoctor.facts.kubernetes.cluster import Cluster
from gpudoctor.facts.kubernetes.fields import JsonObject
from gpudoctor.facts.kubernetes.kueue import Kueue
from gpudoctor.facts.kubernetes.model import Meta, Pod, Scope
from gpudoctor.facts.kubernetes.situation import PodSituation
from gpudoctor.report import Evidence, Subject
from gpudoctor.sources import jobs

if TYPE_CHECKING:
    from gpudoctor.facts.kubernetes.gangs import Gang
    from gpudoctor.facts.kubernetes.scheduler_quota import QuotaWait

# Labels by which a pod tells what it comes from, where the owners are not in the input.
_OWNER_LABELS = {
    **{
        one.label: tuple(kind.name for kind in (*one.kinds, *one.wrapped_by)) for one in jobs.LABELS
    },
    "ray.io/originated-from-cr-name": ("RayJob", "RayService", "RayCluster"),
}
_MAX_OWNERS = 8
_YUNIKORN, _QUOTA = "yunikorn", "uota"


class Preemption(msgspec.Struct, frozen=True):
    """The pod was put out for another: `by` as the scheduler says it, with where it was read."""

    by: str
    evidence: Evidence


class QueueSituation(msgspec.Struct, frozen=True, kw_only=True):
    """A pod or job and who decides when it may start. `pod` is None for a job without pods.

    `held` says that it has no node and has not ended; `suspended` that the job itself says so.
    """

    subject: Subject
    pod: Pod | None = None
    held: bool = True
    suspended: Evidence | None = None
    kueue: Kueue | None = None
    gang: Gang | None = None
    quota: QuotaWait | None = None
    preemption: Preemption | None = None
    nodes_missing: int = 0
    said: Evidence | None = None
    scope: Scope = Scope()
    now: float | None = None


def read(cluster: Cluster, situation: PodSituation) -> QueueSituation | None:
    """Return what queues and gangs have to do with this pod, None if nothing."""
    pod = situation.pod
    failure = situation.failure
    ended_well = pod.phase == "Succeeded"
    held = not pod.node and not pod.is_terminal
    found = QueueSituation(
        subject=pod.subject,
        pod=pod,
        held=held,
        kueue=None if ended_well else kueue.read_pod(cluster, pod, ancestors(cluster, pod.meta)),
        gang=_gang(cluster, situation) if held else None,
        quota=_quota(situation) if held else None,
        preemption=None if ended_well else _preemption(situation),
        nodes_missing=situation.nodes_missing,
        said=failure.evidence if failure else None,
        scope=cluster.scope,
        now=cluster.now.timestamp() if cluster.now else None,
    )
    told = found.kueue or found.gang or found.quota or found.preemption
    return found if told else None


def _gang(cluster: Cluster, situation: PodSituation) -> Gang | None:
    from gpudoctor.facts.kubernetes import gangs  # imported late: most pods have a node

    return gangs.read(cluster, situation)


def _quota(situation: PodSituation) -> QuotaWait | None:
    said = situation.failure.raw if situation.failure else ""
    if situation.pod.scheduler != _YUNIKORN and _QUOTA not in said:
        return None
    from gpudoctor.facts.kubernetes import scheduler_quota  # imported late: few have such quotas

    return scheduler_quota.read(situation)


def find_job(cluster: Cluster, kind: str, name: str, namespace: str | None) -> JsonObject | None:
    """Return the job-like object of that kind (in any case, `vcjob` for Volcano's) and name."""
    if kind.lower() == "vcjob":
        return cluster.one("batch.volcano.sh", "Job", name, namespace)
    for known, group in jobs.OWNER_GROUPS.items():
        if known.lower() == kind.lower():
            return cluster.one(group, known, name, namespace)
    return None


def read_job(cluster: Cluster, job: JsonObject) -> QueueSituation | None:
    """Return what holds a job-like object that may have no pods at all, None if nothing does."""
    data = parse.meta(job)
    held = fields.flag(job, "spec", "suspend")
    admitted = kueue.read_job(cluster, job, ancestors(cluster, data))
    if not held and admitted is None:
        return None
    return QueueSituation(
        subject=data.subject,
        held=held,
        suspended=Evidence(data.path, "spec.suspend", "true") if held else None,
        kueue=admitted,
        scope=cluster.scope,
        now=cluster.now.timestamp() if cluster.now else None,
    )


def ancestors(cluster: Cluster, start: Meta) -> frozenset[str]:
    """Return what the object comes from and itself, as Kind/name: by owners and by labels."""
    found = {f"{start.kind}/{start.name}"}
    data: Meta | None = start
    for _ in range(_MAX_OWNERS):
        if data is None:
            break
        for label, kinds in _OWNER_LABELS.items():
            if name := data.labels.get(label):
                found.update(f"{kind}/{name}" for kind in kinds)
        if data.owner is None or (data.owner in found and data is not start):
            break
        found.add(data.owner)
        kind, _, name = data.owner.partition("/")
        obj = cluster.one(jobs.OWNER_GROUPS.get(kind, ""), kind, name, start.namespace)
        data = parse.meta(obj) if obj else None
    return frozenset(found)


def _preemption(situation: PodSituation) -> Preemption | None:
    """Read who put the pod out: kube-scheduler's condition and event, Volcano's, the kubelet's."""
    pod = situation.pod
    target = pod.condition("DisruptionTarget")
    if target is not None and target.status == "True" and target.reason == "PreemptionByScheduler":
        field = f"status.conditions[DisruptionTarget] {target.reason}"
        return Preemption(target.message, Evidence(pod.meta.path, field, target.message))
    if pod.phase == "Failed" and pod.reason == "Preempting":
        field = f"status.reason {pod.reason}"
        return Preemption(pod.message, Evidence(pod.meta.path, field, pod.message))
    for event in reversed(situation.events):
        volcano = event.reason == "Evict" and "preempt" in event.message.lower()
        if event.reason in ("Preempted", "Preempting") or volcano:
            return Preemption(event.message, Evidence(event.path, event.reason, event.message))
    return None
