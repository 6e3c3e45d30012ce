"""Kueue's objects around one pod or job: its Workload, the queues, who holds the quota.

Reads v1beta1 and v1beta2. Kueue only adds up quota: an admitted workload may still not fit.
Source: kueue apis/kueue/v1beta1, v1beta2 (0.19).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from decimal import Decimal
from typing import TYPE_CHECKING

import msgspec

from gpudoctor.facts.kubernetes import fields, parse
from gpudoctor.facts.kubernetes.cluster import Cluster
from gpudoctor.facts.kubernetes.fields import JsonObject
from gpudoctor.facts.kubernetes.model import Condition, Meta, Node, Pod, Resources

if TYPE_CHECKING:
    from gpudoctor.facts.kubernetes.kueue_message import Refusal

GROUP = "kueue.x-k8s.io"
ADMISSION_GATE = "kueue.x-k8s.io/admission"
TOPOLOGY_GATE = "kueue.x-k8s.io/topology"
QUEUE_LABEL = "kueue.x-k8s.io/queue-name"
GROUP_LABEL = "kueue.x-k8s.io/pod-group-name"
GROUP_COUNT = "kueue.x-k8s.io/pod-group-total-count"
_WORKLOAD_ANNOTATION = "kueue.x-k8s.io/workload"
_NOT_STOPPED = ("", "None")


class AdmissionCheckState(msgspec.Struct, frozen=True):
    """An entry of `status.admissionChecks`; `state` is Pending, Ready, Retry or Rejected."""

    name: str
    state: str
    message: str = ""


class Usage(msgspec.Struct, frozen=True):
    """Quota that a workload holds: so much of a resource in a flavor."""

    flavor: str
    resource: str
    amount: Decimal


class Workload(msgspec.Struct, frozen=True, kw_only=True):
    """A Workload. `requests` are those of all its pods; `cluster_queue` where it has quota."""

    meta: Meta
    queue: str = ""
    active: bool = True
    requests: Resources = {}
    pods: int = 0
    required_topology: tuple[str, ...] = ()
    cluster_queue: str | None = None
    usage: tuple[Usage, ...] = ()
    conditions: tuple[Condition, ...] = ()
    checks: tuple[AdmissionCheckState, ...] = ()
    requeues: int = 0

    def condition(self, kind: str) -> Condition | None:
        """Return the condition of that type."""
        return next((found for found in self.conditions if found.type == kind), None)

    def has(self, kind: str) -> bool:
        """Whether the condition of that type is True."""
        found = self.condition(kind)
        return found is not None and found.status == "True"


class LocalQueue(msgspec.Struct, frozen=True):
    """A LocalQueue."""

    meta: Meta
    cluster_queue: str
    stop_policy: str
    active: Condition | None

    @property
    def is_stopped(self) -> bool:
        """Whether someone stopped it."""
        return self.stop_policy not in _NOT_STOPPED


class Quota(msgspec.Struct, frozen=True):
    """The quota of one resource in one flavor; no `borrowing` is no limit inside the cohort."""

    flavor: str
    resource: str
    nominal: Decimal
    borrowing: Decimal | None
    used: Decimal | None
    written: str


class ClusterQueue(msgspec.Struct, frozen=True, kw_only=True):
    """A ClusterQueue. `groups` are the flavors of each resource group."""

    meta: Meta
    cohort: str | None
    stop_policy: str
    active: Condition | None
    quotas: tuple[Quota, ...]
    groups: tuple[frozenset[str], ...]
    reclaim: str

    @property
    def is_stopped(self) -> bool:
        """Whether someone stopped it."""
        return self.stop_policy not in _NOT_STOPPED

    def quota(self, flavor: str, resource: str) -> Quota | None:
        """Return the quota of that resource in that flavor."""
        return next((q for q in self.quotas if q.flavor == flavor and q.resource == resource), None)


class TopologyUse(msgspec.Struct, frozen=True):
    """A flavor with a Topology: its levels (node labels, widest first), and the flavor's nodes."""

    flavor: str
    topology: Meta | None
    levels: tuple[str, ...]
    nodes: tuple[Node, ...]


class Kueue(msgspec.Struct, frozen=True, kw_only=True):
    """What Kueue knows of one pod or job.

    `queue_name` is the wanted LocalQueue. For a workload that is not admitted, `holders` are the
    workloads that hold quota of the same ClusterQueue or cohort, and `refusals` are what decides
    in the QuotaReserved message. For a pod without a Workload, `group_pods` counts the pods of
    its group, and `group_size` is how many there must be before Kueue makes the Workload.
    """

    queue_name: str
    gates: tuple[str, ...]
    workload: Workload | None
    local_queue: LocalQueue | None
    cluster_queue: ClusterQueue | None
    cluster_queue_name: str | None
    inactive_checks: tuple[Meta, ...]
    refusals: tuple[Refusal, ...]
    holders: tuple[Workload, ...]
    topologies: tuple[TopologyUse, ...]
    group_pods: int = 0
    group_size: int | None = None


def read_pod(cluster: Cluster, pod: Pod, ancestors: frozenset[str]) -> Kueue | None:
    """Read what Kueue says about a pod; None where it has no part in it.

    `ancestors` are the objects (Kind/name) that the pod comes from, and the pod itself.
    """
    names = {pod.meta.annotations.get(_WORKLOAD_ANNOTATION), pod.meta.labels.get(GROUP_LABEL)}
    found = _find(cluster, pod.meta.namespace, ancestors, names, pod.meta.uid)
    queue = pod.meta.labels.get(QUEUE_LABEL, "")
    if found is None and not (queue or any(gate.startswith(GROUP) for gate in pod.gates)):
        return None
    group = pod.meta.labels.get(GROUP_LABEL)
    return _read(
        cluster,
        found,
        queue,
        pod.meta.namespace,
        gates=tuple(gate for gate in pod.gates if gate.startswith(GROUP)),
        group_pods=_group_pods(cluster, pod.meta.namespace, group) if group and not found else 0,
        group_size=fields.integer(pod.meta.annotations, GROUP_COUNT) if group else None,
    )


def read_job(cluster: Cluster, job: JsonObject, ancestors: frozenset[str]) -> Kueue | None:
    """Read what Kueue says about a job-like object that may have no pods; None if nothing."""
    data = parse.meta(job)
    found = _find(cluster, data.namespace, ancestors, set(), data.uid)
    queue = data.labels.get(QUEUE_LABEL, "")
    if found is None and not queue:
        return None
    return _read(cluster, found, queue, data.namespace)


def _find(
    cluster: Cluster,
    namespace: str | None,
    ancestors: frozenset[str],
    names: set[str | None],
    uid: str | None,
) -> Workload | None:
    """Return the Workload of the object; of several the one that has not finished, the newest."""
    index = cluster.derived(_workloads)
    keys = [*(f"name:{name}" for name in names if name), *ancestors, *([uid] if uid else [])]
    found = {
        workload.meta.path: workload for key in keys for workload in index.get((namespace, key), ())
    }

    def rank(workload: Workload) -> tuple[bool, float]:
        created = workload.meta.created
        return not workload.has("Finished"), created.timestamp() if created else 0.0

    return max(found.values(), key=rank, default=None)


def _workloads(cluster: Cluster) -> dict[tuple[str | None, str], list[Workload]]:
    """Index the Workloads by namespace and by name, owner uid and owner (Kind/name)."""
    index: dict[tuple[str | None, str], list[Workload]] = defaultdict(list)
    for obj in cluster.of_kind(GROUP, "Workload"):
        workload = _workload(obj)
        keys = {f"name:{workload.meta.name}"}
        for ref in fields.objects(obj, "metadata", "ownerReferences"):
            keys.add(f"{fields.text(ref, 'kind')}/{fields.text(ref, 'name')}")
            keys.add(fields.text(ref, "uid") or "")
        for key in keys:
            index[workload.meta.namespace, key].append(workload)
    return index


def _reserving(cluster: Cluster) -> dict[str | None, list[Workload]]:
    """Index the Workloads that hold quota by their ClusterQueue."""
    index: dict[str | None, list[Workload]] = defaultdict(list)
    for obj in cluster.of_kind(GROUP, "Workload"):
        workload = _workload(obj)
        if workload.has("QuotaReserved") and not workload.has("Finished"):
            index[workload.cluster_queue].append(workload)
    return index


def _group_pods(cluster: Cluster, namespace: str | None, group: str) -> int:
    return sum(
        1
        for entry in cluster.pods
        if entry.namespace == namespace and entry.labels.get(GROUP_LABEL) == group
    )


def _read(
    cluster: Cluster,
    workload: Workload | None,
    queue: str,
    namespace: str | None,
    *,
    gates: tuple[str, ...] = (),
    group_pods: int = 0,
    group_size: int | None = None,
) -> Kueue:
    queue = (workload.queue if workload else "") or queue
    local = cluster.one(GROUP, "LocalQueue", queue, namespace) if queue else None
    local_queue = _local_queue(local) if local else None
    name = (workload.cluster_queue if workload else None) or (
        local_queue.cluster_queue if local_queue else None
    )
    raw = cluster.one(GROUP, "ClusterQueue", name, None) if name else None
    cluster_queue = _cluster_queue(raw) if raw else None
    condition = workload.condition("QuotaReserved") if workload else None
    waits = workload is not None and not workload.has("Admitted")
    return Kueue(
        queue_name=queue,
        gates=gates,
        workload=workload,
        local_queue=local_queue,
        cluster_queue=cluster_queue,
        cluster_queue_name=name,
        inactive_checks=tuple(_inactive_checks(cluster, raw)) if raw else (),
        refusals=_refusals(condition.message, cluster_queue) if condition else (),
        holders=_holders(cluster, workload, cluster_queue, name) if waits else (),
        topologies=tuple(_topologies(cluster, cluster_queue)) if waits else (),
        group_pods=group_pods,
        group_size=group_size,
    )


def _refusals(message: str, queue: ClusterQueue | None) -> tuple[Refusal, ...]:
    from gpudoctor.facts.kubernetes import kueue_message  # imported late: few clusters have Kueue

    return kueue_message.decisive(kueue_message.parse(message), queue.groups if queue else ())


def _workload(obj: JsonObject) -> Workload:
    spec, status = fields.mapping(obj, "spec"), fields.mapping(obj, "status")
    pod_sets = fields.objects(spec, "podSets")
    assigned = fields.objects(status, "admission", "podSetAssignments")
    return Workload(
        meta=parse.meta(obj),
        queue=fields.text(spec, "queueName") or "",
        active=fields.at(spec, "active") is not False,
        requests=_total(
            (_pod_requests(pod_set), fields.integer(pod_set, "count") or 1) for pod_set in pod_sets
        ),
        pods=sum(fields.integer(pod_set, "count") or 1 for pod_set in pod_sets),
        required_topology=tuple(
            level for pod_set in pod_sets if (level := _required_level(pod_set))
        ),
        cluster_queue=fields.text(status, "admission", "clusterQueue"),
        usage=tuple(
            Usage(fields.text(item, "flavors", resource) or "", resource, amount)
            for item in assigned
            for resource, amount in fields.quantities(item, "resourceUsage").items()
        ),
        conditions=parse.conditions(obj),
        checks=tuple(
            AdmissionCheckState(
                fields.text(item, "name") or "",
                fields.text(item, "state") or "",
                fields.text(item, "message") or "",
            )
            for item in fields.objects(status, "admissionChecks")
        ),
        requeues=fields.integer(status, "requeueState", "count") or 0,
    )


def _pod_requests(pod_set: JsonObject) -> Resources:
    return parse.effective_requests(fields.mapping(pod_set, "template", "spec"))


def _required_level(pod_set: JsonObject) -> str | None:
    """The level that all pods of a set must share, from the request or its annotation."""
    return fields.text(pod_set, "topologyRequest", "required") or fields.text(
        pod_set, "template", "metadata", "annotations", "kueue.x-k8s.io/podset-required-topology"
    )


def _total(parts: Iterator[tuple[Resources, int]]) -> Resources:
    total: Resources = {}
    for requests, count in parts:
        for resource, amount in requests.items():
            total[resource] = total.get(resource, Decimal(0)) + amount * count
    return total


def _active(obj: JsonObject) -> Condition | None:
    return next((found for found in parse.conditions(obj) if found.type == "Active"), None)


def _local_queue(obj: JsonObject) -> LocalQueue:
    return LocalQueue(
        meta=parse.meta(obj),
        cluster_queue=fields.text(obj, "spec", "clusterQueue") or "",
        stop_policy=fields.text(obj, "spec", "stopPolicy") or "",
        active=_active(obj),
    )


def _cluster_queue(obj: JsonObject) -> ClusterQueue:
    spec = fields.mapping(obj, "spec")
    groups = fields.objects(spec, "resourceGroups")
    return ClusterQueue(
        meta=parse.meta(obj),
        # v1beta2 says cohortName, v1beta1 cohort.
        cohort=fields.text(spec, "cohortName") or fields.text(spec, "cohort") or None,
        stop_policy=fields.text(spec, "stopPolicy") or "",
        active=_active(obj),
        quotas=tuple(_quotas(obj, groups)),
        groups=tuple(
            frozenset(fields.text(f, "name") or "" for f in fields.objects(group, "flavors"))
            for group in groups
        ),
        reclaim=fields.text(spec, "preemption", "reclaimWithinCohort") or "Never",
    )


def _quotas(obj: JsonObject, groups: list[JsonObject]) -> Iterator[Quota]:
    used = _used(obj)
    for group in groups:
        for flavor in fields.objects(group, "flavors"):
            name = fields.text(flavor, "name") or ""
            for item in fields.objects(flavor, "resources"):
                resource = fields.text(item, "name") or ""
                nominal = fields.text(item, "nominalQuota") or "0"
                borrowing = fields.text(item, "borrowingLimit")
                limit = f" + borrowingLimit {borrowing}" if borrowing is not None else ""
                yield Quota(
                    flavor=name,
                    resource=resource,
                    nominal=fields.quantity(nominal) or Decimal(0),
                    borrowing=fields.quantity(borrowing),
                    used=used.get((name, resource)),
                    written=f"{resource} in flavor {name}: nominalQuota {nominal}{limit}",
                )


def _used(obj: JsonObject) -> dict[tuple[str, str], Decimal]:
    """What is reserved in each flavor; usage counts admitted workloads only and comes second."""
    found: dict[tuple[str, str], Decimal] = {}
    for listed in ("flavorsUsage", "flavorsReservation"):
        for flavor in fields.objects(obj, "status", listed):
            for item in fields.objects(flavor, "resources"):
                amount = fields.quantity(item.get("total"))
                key = (fields.text(flavor, "name") or "", fields.text(item, "name") or "")
                if amount is not None:
                    found[key] = amount
    return found


def _inactive_checks(cluster: Cluster, queue: JsonObject) -> Iterator[Meta]:
    spec = fields.mapping(queue, "spec")
    names = set(fields.texts(spec, "admissionChecks")) | {
        fields.text(item, "name") or ""
        for item in fields.objects(spec, "admissionChecksStrategy", "admissionChecks")
    }
    for obj in cluster.of_kind(GROUP, "AdmissionCheck"):
        active = _active(obj)
        if (
            fields.text(obj, "metadata", "name") in names
            and active is not None
            and active.status == "False"
        ):
            yield parse.meta(obj)


def _holders(
    cluster: Cluster, own: Workload | None, queue: ClusterQueue | None, name: str | None
) -> tuple[Workload, ...]:
    """Return the other workloads with quota of the same ClusterQueue or of its cohort."""
    queues = {name} if name else set()
    if queue is not None and queue.cohort:
        for obj in cluster.of_kind(GROUP, "ClusterQueue"):
            spec = fields.mapping(obj, "spec")
            cohort = fields.text(spec, "cohortName") or fields.text(spec, "cohort")
            if cohort == queue.cohort:
                queues.add(fields.text(obj, "metadata", "name") or "")
    index = cluster.derived(_reserving)
    return tuple(
        workload
        for held_by in sorted(queues)
        for workload in index.get(held_by, ())
        if own is None or workload.meta.path != own.meta.path
    )


def _topologies(cluster: Cluster, queue: ClusterQueue | None) -> Iterator[TopologyUse]:
    used = frozenset[str]().union(*queue.groups) if queue else frozenset[str]()
    for obj in cluster.of_kind(GROUP, "ResourceFlavor"):
        name = fields.text(obj, "metadata", "name") or ""
        topology = fields.text(obj, "spec", "topologyName")
        if name not in used or not topology:
            continue
        raw = cluster.one(GROUP, "Topology", topology, None)
        wanted = fields.text_map(obj, "spec", "nodeLabels")
        yield TopologyUse(
            flavor=name,
            topology=parse.meta(raw) if raw else None,
            levels=tuple(
                fields.text(level, "nodeLabel") or ""
                for level in fields.objects(raw, "spec", "levels")
            ),
            nodes=tuple(
                node
                for node in cluster.nodes.values()
                if all(node.labels.get(key) == value for key, value in wanted.items())
            ),
        )
