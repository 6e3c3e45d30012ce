"""One pod and everything in the input that concerns it: the fact type of the pod checks."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

import msgspec

from gpudoctor.facts.kubernetes import (
    components,
    config_maps,
    fields,
    networks,
    placement,
    pod_log,
    quotas,
    resources,
    scheduler_message,
)
from gpudoctor.facts.kubernetes.cluster import Cluster
from gpudoctor.facts.kubernetes.components import Component
from gpudoctor.facts.kubernetes.config_maps import KubeletConfig, RdmaPool
from gpudoctor.facts.kubernetes.membership import Membership
from gpudoctor.facts.kubernetes.model import Event, Node, Occupant, Pod, Scope, VolumeClaim
from gpudoctor.facts.kubernetes.networks import Attachment, NetworkDefinition
from gpudoctor.facts.kubernetes.placement import NodeFit
from gpudoctor.facts.kubernetes.pod_log import LogLine
from gpudoctor.facts.kubernetes.quotas import ResourceQuota
from gpudoctor.facts.kubernetes.scheduler_message import SchedulerMessage
from gpudoctor.facts.nccl.model import NcclLog
from gpudoctor.report import PREVIOUS, Evidence, Subject
from gpudoctor.sources import jobs

if TYPE_CHECKING:
    from gpudoctor.facts.kubernetes.refusals import Refusal

VISIBLE_DEVICES = "NVIDIA_VISIBLE_DEVICES"
_DRA = "resource.k8s.io"


class PodLogLine(msgspec.Struct, frozen=True):
    """A telling line of a pod's log, with the container and whether it is from before a restart."""

    pod: Subject
    container: str
    previous: bool
    line: LogLine

    @property
    def evidence(self) -> Evidence:
        """The line as evidence."""
        suffix = PREVIOUS if self.previous else ""
        key = f"{self.pod.namespace}/{self.pod.name}/{self.container}{suffix}"
        return Evidence.of_line(f"log {key}", self.line.number, self.line.text)


class SchedulingFailure(msgspec.Struct, frozen=True):
    """The newest refusal that still holds: parsed, with where it was read and by whom."""

    message: SchedulerMessage
    raw: str
    evidence: Evidence
    scheduler: str


class PodSituation(msgspec.Struct, frozen=True, kw_only=True):
    """A pod, its node, its events, its peers, and what decides over it.

    `fits` has every known node for a pod that is not bound, else only its own. `nodes_missing`
    is how many nodes the scheduler counted beyond those of the input. `siblings` have the same
    controller, `peers` belong to the same distributed job (the pod itself left out of both).
    `bypassing` are pods on the same node that set NVIDIA_VISIBLE_DEVICES themselves.
    `held_unhealthy` are the cluster's unhealthy devices that pods hold (empty for a bound pod).
    `nccl` is what NCCL said in the logs of the pod and its peers, None if they hold no line of it.
    `membership` counts the members of a job of a fixed size, None for any other pod.
    `by_class` are the resources that a DeviceClass offers, `sliced` the nodes that have
    ResourceSlices: those need no device plugin for them. Both are empty for a bound pod.
    """

    pod: Pod
    node: Node | None = None
    fits: tuple[NodeFit, ...] = ()
    nodes_missing: int = 0
    events: tuple[Event, ...] = ()
    failure: SchedulingFailure | None = None
    components: tuple[Component, ...] = ()
    lines: tuple[PodLogLine, ...] = ()
    component_lines: tuple[PodLogLine, ...] = ()
    has_log: bool = False
    siblings: tuple[Pod, ...] = ()
    peers: tuple[Pod, ...] = ()
    neighbours: tuple[Occupant, ...] = ()
    rdma_pools: tuple[RdmaPool, ...] = ()
    kubelet_configs: tuple[KubeletConfig, ...] = ()
    quotas: tuple[ResourceQuota, ...] = ()
    attachments: tuple[Attachment, ...] = ()
    networks: tuple[NetworkDefinition, ...] = ()
    owner_events: tuple[Event, ...] = ()
    owner_refusals: tuple[Refusal, ...] = ()
    node_events: tuple[Event, ...] = ()
    bypassing: tuple[Pod, ...] = ()
    held_unhealthy: tuple[HeldDevice, ...] = ()
    nccl: NcclLog | None = None
    membership: Membership | None = None
    volume_claims: tuple[VolumeClaim, ...] = ()
    by_class: frozenset[str] = frozenset()
    sliced: frozenset[str] = frozenset()
    scope: Scope = Scope()
    now: datetime | None = None

    @property
    def subject(self) -> Subject:
        """The pod as the subject of a finding."""
        return self.pod.subject

    def lines_of(self, *kinds: str) -> tuple[PodLogLine, ...]:
        """Return the pod's telling lines of these kinds."""
        return tuple(found for found in self.lines if found.line.kind in kinds)

    def not_provisioned(self) -> Event | None:
        """Return the newest word of an autoscaler on why it adds no node for the pod."""
        said = [
            event
            for event in self.events
            if event.reason in _NO_SCALE_UP and event.component in _PROVISIONERS
        ]
        return said[-1] if said else None

    def provisioning(self) -> Event | None:
        """Return the word of an autoscaler that it adds a node for the pod, as long as it may.

        None where its newest word is another, it has said so before, or a node would be there.
        """
        said = [event for event in self.events if event.component in _PROVISIONERS]
        newest = said[-1] if said else None
        if self.pod.node or newest is None or newest.reason not in _SCALE_UP or newest.count > 1:
            return None
        late = newest.seen and self.now and self.now - newest.seen > _TO_ADD_A_NODE
        return None if late else newest

    def events_with(self, *reasons: str) -> tuple[Event, ...]:
        """Return the pod's events of these reasons, oldest first."""
        return tuple(event for event in self.events if event.reason in reasons)


# Who adds nodes speaks of the nodes that could be, not of those that are.
_PROVISIONERS = ("karpenter", "cluster-autoscaler")
_SCALE_UP = ("TriggeredScaleUp", "Nominated")
_TO_ADD_A_NODE = timedelta(minutes=15)
_MADE = "SuccessfulCreate"
_NO_SCALE_UP = ("NotTriggerScaleUp", "FailedScaleUp", "FailedScheduling")


class HeldDevice(msgspec.Struct, frozen=True):
    """A device that the kubelet reports as unhealthy and that a pod holds; `pod` is its path."""

    node: str
    pod: str
    resource: str
    device: str


class RefusedPod(msgspec.Struct, frozen=True):
    """A pod, or a job without pods, of which what should make it was refused to."""

    subject: Subject
    refusals: tuple[Refusal, ...]
    quotas: tuple[ResourceQuota, ...] = ()


# Labels that the members of one distributed job share, most specific first: one replica of a
# LeaderWorkerSet is a group of its own.
_GROUP_LABELS = (
    "leaderworkerset.sigs.k8s.io/group-key",
    *(one.label for one in jobs.LABELS),
    "pod-group.scheduling.sigs.k8s.io",
)


def read(
    cluster: Cluster,
    pod: Pod,
    logs: dict[str, str],
    cluster_components: tuple[Component, ...] | None = None,
    job_log: NcclLog | None = None,
) -> PodSituation:
    """Gather what the input says about this pod.

    `cluster_components`, and NCCL's log of its job, save reading them anew for each pod.
    """
    events = tuple(cluster.events_of("Pod", pod.meta.name, pod.meta.namespace, pod.meta.uid))
    failure = _failure(pod, events)
    node = cluster.nodes.get(pod.node) if pod.node else None
    considered = ([node] if node else []) if pod.node else list(cluster.nodes.values())
    counted = failure.message.nodes if failure else None
    found_components = (
        components.read(cluster) if cluster_components is None else cluster_components
    )
    peers = _peers(cluster, pod)
    owner_events = _owner_events(cluster, pod)
    return PodSituation(
        pod=pod,
        node=node,
        fits=tuple(
            placement.fit(pod, candidate, _others(cluster, candidate.name, pod))
            for candidate in considered
        ),
        nodes_missing=max(0, (counted or 0) - len(cluster.nodes)),
        events=events,
        failure=failure,
        components=found_components,
        lines=log_lines(pod, logs),
        component_lines=tuple(
            line
            for part in found_components
            for owned in part.pods
            for line in log_lines(owned, logs)
        ),
        has_log=any(key.startswith(f"{pod.meta.short}/") for key in logs),
        siblings=_siblings(cluster, pod),
        peers=peers,
        neighbours=tuple(_others(cluster, pod.node, pod)) if pod.node else (),
        rdma_pools=config_maps.rdma_pools(cluster.of_kind("", "ConfigMap")),
        kubelet_configs=config_maps.kubelet_configs(cluster.of_kind("", "ConfigMap")),
        quotas=quotas.read(cluster.of_kind("", "ResourceQuota"), pod.meta.namespace),
        attachments=networks.attachments(pod.meta),
        networks=networks.definitions(
            cluster.of_kind("k8s.cni.cncf.io", "NetworkAttachmentDefinition")
        ),
        owner_events=owner_events,
        owner_refusals=_owner_refusals(cluster, pod, owner_events),
        node_events=tuple(cluster.events_of("Node", pod.node, None)) if pod.node else (),
        bypassing=_bypassing(cluster, pod),
        held_unhealthy=() if pod.node else cluster.derived(_held_unhealthy),
        nccl=_nccl_of(pod, node, job_log or read_nccl((pod, *peers), logs)),
        membership=_membership(cluster, pod, peers),
        volume_claims=_volume_claims(cluster, pod),
        by_class=frozenset() if pod.node else _by_class(cluster),
        sliced=frozenset() if pod.node else _sliced(cluster),
        scope=cluster.scope,
        now=cluster.now,
    )


def _volume_claims(cluster: Cluster, pod: Pod) -> tuple[VolumeClaim, ...]:
    if pod.node or not any(volume.claim for volume in pod.volumes):
        return ()
    from gpudoctor.facts.kubernetes import volume_claims  # imported late: few wait for a volume

    return volume_claims.read(cluster, pod)


def _by_class(cluster: Cluster) -> frozenset[str]:
    classes = cluster.of_kind(_DRA, "DeviceClass")
    names = (fields.text(one, "spec", "extendedResourceName") for one in classes)
    return frozenset(name for name in names if name)


def _sliced(cluster: Cluster) -> frozenset[str]:
    slices = cluster.of_kind(_DRA, "ResourceSlice")
    return frozenset(name for one in slices if (name := fields.text(one, "spec", "nodeName")))


def _membership(cluster: Cluster, pod: Pod, peers: tuple[Pod, ...]) -> Membership | None:
    if pod.meta.labels.keys().isdisjoint(_GROUP_LABELS):
        return None
    from gpudoctor.facts.kubernetes import members  # imported late: most pods are of no job

    return members.read(cluster, pod, peers)


def read_refused(
    cluster: Cluster, name: str, namespace: str | None, job: Subject | None = None
) -> RefusedPod | None:
    """Return what is said of a pod, or of the pods of `job`, that could not be made, if anything.

    What a job makes to make its pods, such as a JobSet's Jobs, begins with its name.
    """
    from gpudoctor.facts.kubernetes import refusals  # imported late: most pods exist

    group = jobs.OWNER_GROUPS.get(job.kind, "") if job else ""
    obj = cluster.one(group, job.kind, job.name, job.namespace) if job else None
    said = [
        *refusals.of_events(event for event in cluster.events if refusals.is_about_making(event)),
        *(refusals.lasting(obj) if obj else ()),
    ]
    said = [
        one
        for one in said
        if namespace in (None, one.about.namespace)
        and (name.startswith(one.about.name) or (job and one.about.name.startswith(f"{name}-")))
    ]
    if not said:
        return None
    where = said[-1].about.namespace
    return RefusedPod(
        subject=job or Subject("Pod", name, where),
        refusals=tuple(one for one in said if one.about.namespace == where),
        quotas=quotas.read(cluster.of_kind("", "ResourceQuota"), where),
    )


def _others(cluster: Cluster, node: str, pod: Pod) -> list[Occupant]:
    own = (pod.meta.namespace or "default", pod.meta.name)
    return [held for held in cluster.occupants(node) if (held.namespace, held.name) != own]


def _failure(pod: Pod, events: tuple[Event, ...]) -> SchedulingFailure | None:
    """Return the newest scheduling failure; none that is older than the pod's binding."""
    if pod.node:
        return None
    condition = pod.condition("PodScheduled")
    said = [
        event
        for event in events
        if event.reason in ("FailedScheduling", "Unschedulable")
        and event.component not in _PROVISIONERS
    ]
    if said:
        newest = said[-1]
        evidence = Evidence(newest.path, f"{newest.reason} (x{newest.count})", newest.message)
        scheduler = newest.component or pod.scheduler
        return SchedulingFailure(
            scheduler_message.parse(newest.message), newest.message, evidence, scheduler
        )
    if condition is not None and condition.status == "False" and condition.message:
        path = f"status.conditions[PodScheduled] {condition.reason}"
        evidence = Evidence(pod.meta.path, path, condition.message)
        return SchedulingFailure(
            scheduler_message.parse(condition.message), condition.message, evidence, pod.scheduler
        )
    return None


def _owner_events(cluster: Cluster, pod: Pod) -> tuple[Event, ...]:
    """What is said about the pod's controller, which is where refused creations are reported."""
    if pod.meta.owner is None:
        return ()
    kind, _, name = pod.meta.owner.partition("/")
    return tuple(cluster.events_of(kind, name, pod.meta.namespace))


def _owner_refusals(cluster: Cluster, pod: Pod, events: tuple[Event, ...]) -> tuple[Refusal, ...]:
    """What the pod's controller could not make, unless it has made one since."""
    if pod.meta.owner is None:
        return ()
    kind, _, name = pod.meta.owner.partition("/")
    failed = [event for event in events if "Failed" in event.reason]
    owner = cluster.one(jobs.OWNER_GROUPS.get(kind, ""), kind, name, pod.meta.namespace)
    if not failed and owner is None:
        return ()
    from gpudoctor.facts.kubernetes import refusals  # imported late: most owners are content

    made = max((e.seen for e in events if e.seen and e.reason.startswith(_MADE)), default=None)
    said = refusals.of_events(failed)
    return (
        *(one for one in said if made is None or one.seen is None or one.seen >= made),
        *(refusals.lasting(owner) if owner else ()),
    )


def _bypassing(cluster: Cluster, pod: Pod) -> tuple[Pod, ...]:
    own = (pod.meta.namespace, pod.meta.name)
    if pod.node is None:
        return ()
    others = (
        cluster.pod(entry)
        for entry in cluster.on_node(pod.node)
        if (entry.namespace, entry.name) != own and VISIBLE_DEVICES.encode() in bytes(entry.raw)
    )
    return tuple(
        other
        for other in others
        if not other.is_terminal and any(VISIBLE_DEVICES in c.env for c in other.containers)
    )


def _held_unhealthy(cluster: Cluster) -> tuple[HeldDevice, ...]:
    return tuple(
        HeldDevice(entry.node, pod.meta.path, device.resource, device.id)
        for entry in cluster.pods
        if entry.node
        and b'"Unhealthy"' in bytes(entry.raw)
        and not (pod := cluster.pod(entry)).is_terminal
        for status in pod.statuses
        for device in status.devices
        if device.health == "Unhealthy"
    )


_NCCL_MARK = "NCCL"


def read_nccl(members: Iterable[Pod], logs: dict[str, str]) -> NcclLog | None:
    """Read NCCL's lines in the logs of all members of a job, those before a restart first; None
    if there are none.
    """
    pods = list(members)
    keys = [
        f"{member.meta.short}/{container.name}{suffix}"
        for member in pods
        for container in member.containers
        for suffix in (PREVIOUS, "")
    ]
    telling = [key for key in keys if _NCCL_MARK in logs.get(key, "")]
    if not telling:
        return None
    from gpudoctor.facts.nccl.parser import Parser  # imported late: most pods have no such log

    parser = Parser()
    for key in telling:
        parser.open(f"log {key}")
        parser.feed(logs[key].encode("utf-8", "surrogateescape"))
    return msgspec.structs.replace(parser.finish(), places=tuple(map(place, pods)))


def place(pod: Pod) -> tuple[str, tuple[Subject, ...]]:
    """Return what NCCL calls the pod's host, with the pod and its node."""
    subjects = (pod.subject, *((Subject("Node", pod.node),) if pod.node else ()))
    name = (pod.node or "") if pod.host_network else (pod.hostname or pod.meta.name)
    return name.partition(".")[0], subjects


def _nccl_of(pod: Pod, node: Node | None, log: NcclLog | None) -> NcclLog | None:
    """The job's log as a fact about one of its pods."""
    if log is None:
        return None
    return msgspec.structs.replace(
        log,
        subject=pod.subject,
        related=(node.subject,) if node else (),
        rdma_expected_by=rdma_offers([node] if node else []),
        places=(),
    )


def rdma_offers(nodes: Iterable[Node]) -> tuple[str, ...]:
    """Say which RDMA resources nodes offer: then a job on them was meant to use RDMA."""
    return tuple(
        f"Node/{node.name} offers {name}: {amount.normalize():f}"
        for node in nodes
        for name, amount in node.allocatable.items()
        if resources.is_rdma(name) and amount > 0
    )


def log_lines(pod: Pod, logs: dict[str, str]) -> tuple[PodLogLine, ...]:
    """Return the telling lines of all logs of a pod, those before a restart first."""
    found: list[PodLogLine] = []
    for container in pod.containers:
        key = f"{pod.meta.short}/{container.name}"
        for suffix in (PREVIOUS, ""):
            found += [
                PodLogLine(pod.subject, container.name, bool(suffix), line)
                for line in pod_log.scan(logs.get(key + suffix, ""))
            ]
    return tuple(found)


def _siblings(cluster: Cluster, pod: Pod) -> tuple[Pod, ...]:
    if pod.meta.owner is None or pod.meta.namespace is None:
        return ()
    return tuple(
        other
        for other in cluster.owned_by(pod.meta.namespace, pod.meta.owner)
        if other.meta.name != pod.meta.name
    )


def _peers(cluster: Cluster, pod: Pod) -> tuple[Pod, ...]:
    group = next(
        ((key, pod.meta.labels[key]) for key in _GROUP_LABELS if key in pod.meta.labels), None
    )
    if group is None:
        return _named_peers(cluster, pod)
    return tuple(
        cluster.pod(entry)
        for entry in cluster.pods
        if entry.namespace == pod.meta.namespace
        and entry.name != pod.meta.name
        and entry.labels.get(group[0]) == group[1]
    )


def _named_peers(cluster: Cluster, pod: Pod) -> tuple[Pod, ...]:
    """Pods without group labels whose names differ in the ordinal alone and that run the same.

    StatefulSets and hand-made pods name their members base-0, base-1, …
    """
    base, _, ordinal = pod.meta.name.rpartition("-")
    if not base or fields.integer(ordinal) is None:
        return ()
    images = [container.image for container in pod.containers]
    found: list[Pod] = []
    for entry in cluster.named_alike(pod.meta.namespace, base):
        other_ordinal = entry.name.rpartition("-")[2]
        if entry.name != pod.meta.name and fields.integer(other_ordinal) is not None:
            other = cluster.pod(entry)
            if [container.image for container in other.containers] == images:
                found.append(other)
    return tuple(found)
