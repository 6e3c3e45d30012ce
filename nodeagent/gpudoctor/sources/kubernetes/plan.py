"""Which requests a diagnosis needs: steps decided from facts of the pod, its node and its events.

Each step is worth one request of the budget; the first steps are worth most. A step that would
show nothing for this pod's state is not made: no log of a container that never ran, no claims
for a pod without claims, no volumes unless an event speaks of them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

import msgspec

from gpudoctor.publish import names
from gpudoctor.sources import jobs
from gpudoctor.sources.bundle import MEMBERS
from gpudoctor.sources.kubernetes import kinds
from gpudoctor.sources.kubernetes.client import LOG_PERMISSION, permission
from gpudoctor.sources.kubernetes.kinds import Kind
from gpudoctor.sources.kubernetes.views import (
    ContainerStatus,
    EventView,
    MetadataView,
    NodeView,
    ObjectView,
    PodView,
)


class Get(msgspec.Struct, frozen=True):
    """Read one object. `settles`: with it, every object of its kind that matters was read.

    `optional`: that it may not be read is not worth a word.
    """

    kind: Kind
    name: str
    namespace: str | None = None
    settles: bool = True
    optional: bool = False

    def __str__(self) -> str:
        return permission("get", self.kind, self.namespace)


class List(msgspec.Struct, frozen=True):
    """Read a list; `max_pages` bounds it. `settles` as for Get, if the list was read whole.

    `settles_as`: what is settled by it instead of the kind, which it does not hold completely.
    `numbered` keeps only objects of that name followed by a number, which no selector can say.
    """

    kind: Kind
    namespace: str | None = None
    fields: str = ""
    labels: str = ""
    max_pages: int = 1
    settles: bool = True
    settles_as: str = ""
    numbered: str = ""
    optional: bool = False

    def keeps(self, name: str) -> bool:
        """Whether an object of that name is one that is meant."""
        return not self.numbered or (
            name.startswith(self.numbered) and name[len(self.numbered) :].isdigit()
        )

    def __str__(self) -> str:
        return permission("list", self.kind, self.namespace)


class Log(msgspec.Struct, frozen=True):
    """Read a container's log."""

    namespace: str
    pod: str
    container: str
    previous: bool = False

    def __str__(self) -> str:
        return LOG_PERMISSION.format(self.namespace)


Step = Get | List | Log

ALL_PAGES = 10_000

# Labels that the pods of one job share, the widest group first.
_JOB_LABELS = tuple(one.label for one in jobs.LABELS)
_SHARED_LABELS = (*_JOB_LABELS, "pod-template-hash", "controller-revision-hash")
_MAKES_MEMBERS = (
    "Job",
    "StatefulSet",
    "LeaderWorkerSet",
    *(kind.name for kind in jobs.KUBEFLOW.kinds),
)
_KUEUE_GATES = ("kueue.x-k8s.io/admission", "kueue.x-k8s.io/topology")
_KUEUE_QUEUE = "kueue.x-k8s.io/queue-name"
_KUEUE_WORKLOAD = "kueue.x-k8s.io/workload"
_VOLCANO_GROUP = "scheduling.k8s.io/group-name"
_VOLCANO_QUEUE = ("volcano.sh/queue-name", "scheduling.volcano.sh/queue-name")
_NETWORKS = "k8s.v1.cni.cncf.io/networks"
_NUMBERED = re.compile(r"(.+-)\d+")
_VOLUME_WORDS = re.compile(
    r"persistentvolume|volume node affinity|volume zone|FailedMount|FailedAttachVolume|MountVolume",
    re.I,
)
_RUNTIME_CLASS_WORDS = re.compile(r"RuntimeClass|no runtime for", re.I)
_TOPOLOGY_WORDS = re.compile(r"Topology ?Affinity ?Error|NUMA|Topology locality", re.I)
_DEVICE_WORDS = re.compile(
    r"Allocate failed|healthy devices|unregistered device|PrepareResources|DRA driver"
)
_QUOTA_WORDS = re.compile(r"quota", re.I)
_CLAIM_WORDS = re.compile(
    r"cannot allocate all claims|resource ?claim|resource pools|device class|DynamicResources", re.I
)
_DEVICE_SOFTWARE = re.compile(
    r"nvidia|gpu|\bamd\b|rocm|habana|gaudi|neuron|\btpu|ascend|\bnpu|device-?plugin|rdma|sriov"
    r"|mofed|\bdoca|\bdra\b|hami|\befa\b|node-feature|\bnfd\b",
    re.I,
)
_DEVICE_PLUGIN = re.compile(r"plugin|shared-dp|sriov|kubelet", re.I)
_MAX_SOFTWARE_LOGS = 4


# -- a pod that has a node ---------------------------------------------------------------------


def of_bound_pod(
    pod: PodView, node: NodeView | None, neighbours: list[PodView], events: list[EventView]
) -> Iterator[Step]:
    """What follows pod, events, node and the node's pods, most useful first."""
    told = _told(pod, events)
    telling = telling_containers(pod)
    yield from logs(pod, telling[:1])
    yield from node_out_of_memory(pod)
    yield from claims(pod, node=pod.spec.node_name)
    yield from claims_beside(pod, neighbours)
    yield from _admission(told)
    yield from volumes(pod, told)
    if not pod.has_run or "network" in told.lower():
        yield from networks(pod)
    if _RUNTIME_CLASS_WORDS.search(told) and pod.spec.runtime_class_name:
        yield Get(kinds.RUNTIME_CLASS, pod.spec.runtime_class_name)
    refused = _DEVICE_WORDS.search(told) is not None
    yield from software_logs(pod, [node] if node else [], neighbours, refused=refused)


def node_out_of_memory(pod: PodView) -> Iterator[Step]:
    """What the node says of its own memory, where a container was killed and nothing says why."""
    if pod.was_killed:
        fields = f"involvedObject.kind=Node,involvedObject.name={pod.spec.node_name}"
        # Events about what has no namespace lie in this one.
        yield List(kinds.EVENT, "default", fields=f"{fields},reason=SystemOOM", settles=False)


def of_bound_pods_job(pod: PodView, members: list[PodView]) -> Iterator[Step]:
    """What follows the job's other pods: who failed first or does not start, then what is left."""
    others = [m for m in members if m.metadata.name != pod.metadata.name]
    failed = [m for m in others if m.first_failure]
    for member in sorted(failed, key=lambda m: m.first_failure or "")[:1]:
        yield from logs(member, telling_containers(member)[:1])
    for member in [m for m in others if not m.is_ready and not m.has_run][:1]:
        yield events_of(member)
    yield from job_of(pod)
    yield from logs(pod, telling_containers(pod)[1:2])
    yield from groups(pod)
    yield from networks(pod)


def logs(pod: PodView, statuses: Iterable[ContainerStatus]) -> Iterator[Log]:
    """The logs of these containers, with the one before a restart."""
    for status in statuses:
        log = Log(pod.metadata.namespace or "", pod.metadata.name, status.name)
        yield log
        # Of a container that waits for its restart the API gives the last run's log anyway.
        if status.restart_count and not status.is_waiting:
            yield msgspec.structs.replace(log, previous=True)


def telling_containers(pod: PodView) -> list[ContainerStatus]:
    """Containers that have run: the failing ones first, then those with devices, then the rest."""
    with_devices = pod.containers_with_devices()
    inits = [status for status in pod.status.init_statuses if status.is_failing]
    mains = [status for status in pod.status.container_statuses or () if status.has_run]
    failing = [status for status in mains if status.is_failing]
    telling = inits + failing
    telling += [s for s in mains if s.name in with_devices and s not in telling]
    return telling or mains[:1]


def claims(pod: PodView, node: str | None = None) -> Iterator[Step]:
    """The pod's resource claims, and the slices that its node (or any) offers."""
    names = pod.claim_names()
    if not names and not pod.spec.resource_claims:
        return
    namespace = pod.metadata.namespace
    if len(names) == 1 and len(pod.spec.resource_claims or ()) <= 1:
        yield Get(kinds.RESOURCE_CLAIM, names[0], namespace)
    else:
        yield List(kinds.RESOURCE_CLAIM, namespace)
    if node is None:
        yield List(kinds.RESOURCE_SLICE, max_pages=ALL_PAGES)
        yield List(kinds.DEVICE_CLASS)
    else:
        yield List(kinds.RESOURCE_SLICE, fields=f"spec.nodeName={node}", settles=False)
    if any("compute-domain" in name or name.endswith("-cd") for name in pod.claim_words()):
        yield List(kinds.COMPUTE_DOMAIN, namespace)


def claims_beside(pod: PodView, neighbours: Iterable[PodView]) -> Iterator[Step]:
    """The claims of the node's other pods, with its slices, where the pod has devices by plugin.

    Plugin and DRA driver do not know of each other, and may have given out the same device.
    """
    claiming = [other for other in neighbours if other.claim_names()]
    if pod.is_well or not claiming or not pod.devices() or pod.spec.resource_claims:
        return
    named = [(other.metadata.namespace, name) for other in claiming for name in other.claim_names()]
    if len(named) == 1:
        namespace, name = named[0]
        yield Get(kinds.RESOURCE_CLAIM, name, namespace, settles=False)
    else:
        yield List(kinds.RESOURCE_CLAIM, settles=False)
    yield List(kinds.RESOURCE_SLICE, fields=f"spec.nodeName={pod.spec.node_name}", settles=False)


def volumes(pod: PodView, told: str) -> Iterator[Step]:
    """The volume claims, if an event or condition speaks of volumes."""
    names = [name for volume in pod.spec.volumes or () if (name := volume.claim_name)]
    if not names or not _VOLUME_WORDS.search(told):
        return
    if len(names) == 1:
        yield Get(kinds.VOLUME_CLAIM, names[0], pod.metadata.namespace)
    else:
        yield List(kinds.VOLUME_CLAIM, pod.metadata.namespace)
    if "node affinity" in told:
        yield List(kinds.VOLUME)


def networks(pod: PodView) -> Iterator[Step]:
    """The network attachments that the pod's annotation names."""
    wanted = pod.metadata.annotation(_NETWORKS)
    if not wanted:
        return
    named = list(dict.fromkeys(_network_names(wanted, pod.metadata.namespace or "")))
    if len(named) == 1:
        namespace, name = named[0]
        yield Get(kinds.NETWORK_ATTACHMENT, name, namespace)
        return
    for namespace in dict.fromkeys(namespace for namespace, _ in named):
        yield List(kinds.NETWORK_ATTACHMENT, namespace)


class _Network(msgspec.Struct):
    name: str
    namespace: str | None = None


def _network_names(wanted: str, default: str) -> Iterator[tuple[str, str]]:
    """(namespace, name) of each entry: `name`, `ns/name@interface`, or a JSON list."""
    if wanted.lstrip().startswith("["):
        try:
            entries = msgspec.json.decode(wanted, type=list[_Network])
        except msgspec.MsgspecError:
            return
        yield from ((entry.namespace or default, entry.name) for entry in entries)
        return
    for entry in wanted.split(","):
        namespace, _, name = entry.strip().partition("@")[0].rpartition("/")
        if name:
            yield namespace or default, name


def peers(pod: PodView) -> Iterator[Step]:
    """The other pods of the same job: by its label, else by namespace for a numbered name."""
    labels = pod.metadata.labels or {}
    for label in _SHARED_LABELS:
        if label in labels:
            # A pending pod of a group is judged by those that are not bound as well.
            yield List(
                kinds.POD,
                pod.metadata.namespace,
                labels=f"{label}={labels[label]}",
                settles_as=MEMBERS if pod.is_bound else "",
            )
            return
    numbered = _NUMBERED.fullmatch(pod.metadata.name)
    if numbered:
        yield List(kinds.POD, pod.metadata.namespace, settles=False, numbered=numbered[1])


def job_of(pod: PodView) -> Iterator[Step]:
    """The job's own object, which says how many members it wants, and what may forbid more of them.

    Read for a pod that runs: of one that does not, what is wrong with it comes first.
    """
    if not pod.has_run:
        return
    labels, namespace = pod.metadata.labels or {}, pod.metadata.namespace
    for known in jobs.LABELS:
        kind = known.kind_of(labels, pod.metadata.owner or "")
        if known.label in labels and kind is not None:
            yield Get(kinds.of_job(kind), labels[known.label], namespace, settles=False)
            yield List(kinds.RESOURCE_QUOTA, namespace)
            return


def is_of_job(pod: PodView, name: str) -> bool:
    """Whether the pod belongs to a job of that name, whatever its kind."""
    labels = pod.metadata.labels or {}
    owner = pod.metadata.owner or ""
    return name in (owner.partition("/")[2], *(labels.get(label) for label in _SHARED_LABELS))


def groups(pod: PodView) -> Iterator[Step]:
    """The gang or workload object that the pod is a member of."""
    labels, namespace = pod.metadata.labels or {}, pod.metadata.namespace
    workload = pod.metadata.annotation(_KUEUE_WORKLOAD)
    if workload:
        yield Get(kinds.WORKLOAD, workload, namespace)
    elif pod.is_queued or _KUEUE_QUEUE in labels:
        yield List(kinds.WORKLOAD, namespace)
    volcano = pod.metadata.annotation(_VOLCANO_GROUP)
    if volcano:
        yield Get(kinds.VOLCANO_POD_GROUP, volcano, namespace)
        fields = f"involvedObject.kind=PodGroup,involvedObject.name={volcano}"
        yield List(kinds.EVENT, namespace, fields=fields, settles=False)
        named = (labels.get(name) or pod.metadata.annotation(name) for name in _VOLCANO_QUEUE)
        queue = next((queue for queue in named if queue), None)
        # The PodGroup alone may name it: then all are read, which are few.
        yield Get(kinds.VOLCANO_QUEUE, queue) if queue else List(kinds.VOLCANO_QUEUE)
    if pod.spec.scheduling_group and pod.spec.scheduling_group.pod_group_name:
        yield Get(kinds.NATIVE_POD_GROUP, pod.spec.scheduling_group.pod_group_name, namespace)
    if pod.spec.workload_ref and pod.spec.workload_ref.name:
        yield Get(kinds.NATIVE_WORKLOAD, pod.spec.workload_ref.name, namespace)
    kai = pod.metadata.annotation("pod-group-name")
    if kai:
        yield Get(kinds.KAI_POD_GROUP, kai, namespace)
    coscheduling = labels.get("scheduling.x-k8s.io/pod-group")
    if coscheduling:
        yield Get(kinds.COSCHEDULING_POD_GROUP, coscheduling, namespace)


def published_of_pod(pod: PodView, node: NodeView | None) -> Iterator[Step]:
    """What the agent of its node published about a pod; tenants may not see whether it has one."""
    if pod.uses_devices and (node is None or node.has_agent):
        name = names.pod_diagnosis(pod.metadata.name)
        yield Get(
            kinds.DIAGNOSIS, name, pod.metadata.namespace, settles=False, optional=node is None
        )


def published_of_node(node: str, namespace: str) -> Iterator[Step]:
    """What the agent of a node published about it, and whether it still looks."""
    name, lease = names.node_diagnosis(node), names.agent_lease(node)
    yield Get(kinds.DIAGNOSIS, name, namespace, settles=False, optional=True)
    yield Get(kinds.LEASE, lease, namespace, settles=False, optional=True)


def _admission(told: str) -> Iterator[Step]:
    if _TOPOLOGY_WORDS.search(told):
        # Where kubeadm keeps the kubelet's settings; the node itself would need nodes/proxy.
        yield Get(kinds.CONFIG_MAP, "kubelet-config", "kube-system", settles=False)


# -- a pod without a node ----------------------------------------------------------------------

NODES = List(kinds.NODE, max_pages=ALL_PAGES)
BOUND_PODS = List(
    kinds.POD,
    fields="spec.nodeName!=,status.phase!=Succeeded,status.phase!=Failed",
    max_pages=ALL_PAGES,
)
DAEMON_SETS = List(kinds.DAEMON_SET, max_pages=ALL_PAGES)


def before_nodes(pod: PodView) -> Iterator[Step]:
    """For a pod that a queue holds back: what decides about it, which nodes do not."""
    if not pod.is_queued:
        return
    yield from peers(pod)
    yield from groups(pod)
    yield from _queues(pod.metadata)


def queue_of(job: ObjectView) -> Iterator[Step]:
    """For a job without pods: the queue that it waits in."""
    if _KUEUE_QUEUE in (job.metadata.labels or {}):
        yield from _queues(job.metadata)


def _queues(waiting: MetadataView) -> Iterator[Step]:
    queue = (waiting.labels or {}).get(_KUEUE_QUEUE)
    if queue:
        yield Get(kinds.LOCAL_QUEUE, queue, waiting.namespace)
    yield List(kinds.CLUSTER_QUEUE)
    yield List(kinds.RESOURCE_FLAVOR)


def of_pending_pod(
    pod: PodView, nodes: list[NodeView], bound: list[PodView], events: list[EventView]
) -> Iterator[Step]:
    """What follows pod, events, nodes and the bound pods, most useful first."""
    told = _told(pod, events)
    missing = {k for k in pod.devices() if not any(node.offers(k) for node in nodes)}
    yield from volumes(pod, told)
    yield from claims(pod)
    if _CLAIM_WORDS.search(told):
        if pod.devices():  # a class offers them by DRA; the claim is made once it is allocated
            yield List(kinds.DEVICE_CLASS)
            yield List(kinds.RESOURCE_SLICE, max_pages=ALL_PAGES)
        # What other namespaces hold is as little free as what this one holds.
        yield List(kinds.RESOURCE_CLAIM, max_pages=ALL_PAGES)
    if _QUOTA_WORDS.search(told):
        yield List(kinds.RESOURCE_QUOTA, pod.metadata.namespace)
    yield from groups(pod)
    yield from peers(pod)
    if pod.devices():
        yield DAEMON_SETS
        yield from software_logs(pod, nodes, bound)
        if missing:
            yield from plugin_settings(missing, bound)
    if not pod.is_queued and any(label in (pod.metadata.labels or {}) for label in _JOB_LABELS):
        yield List(kinds.WORKLOAD, pod.metadata.namespace)
    if missing:  # a class may offer by DRA what no device plugin does
        yield List(kinds.DEVICE_CLASS)


def software_logs(
    pod: PodView, nodes: list[NodeView], candidates: Iterable[PodView], *, refused: bool = False
) -> Iterator[Step]:
    """Logs of drivers and device plugins that are unwell or whose node lacks devices.

    `refused`: the node did not give the pod its devices, whatever its numbers say now.
    """
    keys = pod.devices()
    poor = {node.metadata.name for node in nodes if refused or any(map(node.lacks, keys))}
    here = {node.metadata.name for node in nodes}
    software = [
        other for other in candidates if other.spec.node_name in here and is_device_software(other)
    ]
    unwell = [other for other in software if not other.is_ready]
    plugins = [
        other
        for other in software
        if other.spec.node_name in poor and _DEVICE_PLUGIN.search(other.metadata.name)
    ]
    yield from one_log_each(unwell + [other for other in plugins if other not in unwell])


def one_log_each(pods: Iterable[PodView]) -> Iterator[Log]:
    """One log of the telling container of each set of alike pods: they fail alike."""
    seen: set[tuple[str | None, str]] = set()
    for pod in pods:
        telling = telling_software_containers(pod)
        alike = (pod.metadata.namespace, pod.metadata.owner or pod.metadata.name)
        if not telling or alike in seen:
            continue
        seen.add(alike)
        yield Log(pod.metadata.namespace or "", pod.metadata.name, telling[0].name)
        if len(seen) == _MAX_SOFTWARE_LOGS:
            return


def telling_software_containers(pod: PodView) -> list[ContainerStatus]:
    """The init container that does not end, else as for any pod."""
    stuck = [status for status in pod.status.init_statuses if status.is_running]
    sidecars = {c.name for c in pod.spec.init_containers or () if c.restart_policy == "Always"}
    return [s for s in stuck if s.name not in sidecars] or telling_containers(pod)


def plugin_settings(missing: set[str], bound: Iterable[PodView]) -> Iterator[Step]:
    """The configuration of the device plugins that could offer what no node offers."""
    words = {re.split(r"[/._-]", key)[0] for key in missing}
    for other in bound:
        name = other.metadata.name
        if is_device_software(other) and any(word in name for word in words):
            for volume in other.spec.volumes or ():
                if volume.config_map and volume.config_map.name:
                    settings = Get(
                        kinds.CONFIG_MAP,
                        volume.config_map.name,
                        other.metadata.namespace,
                        settles=False,
                    )
                    yield settings
                    return


def is_device_software(pod: PodView) -> bool:
    """Whether the pod is a DaemonSet's and looks like a driver, plugin or operand for devices."""
    images = [container.image or "" for container in pod.spec.containers or ()]
    words = " ".join([pod.metadata.name, *images])
    return not pod.devices() and _DEVICE_SOFTWARE.search(words) is not None and (
        pod.metadata.owner is None or pod.metadata.owner.startswith("DaemonSet/")
    )  # fmt: skip


# -- events ------------------------------------------------------------------------------------


def events_of(pod: PodView) -> List:
    """The pod's events. By name, not uid: those of a mirror pod carry another uid."""
    fields = f"involvedObject.kind=Pod,involvedObject.name={pod.metadata.name}"
    return List(kinds.EVENT, pod.metadata.namespace, fields=fields, settles=False)


def events_of_owner(pod: PodView) -> Iterator[List]:
    """The events of the Job or the like that made a pod: of pods that it could not make.

    A pod that runs and is not ready may wait for such a one.
    """
    kind, _, name = (pod.metadata.owner or "").partition("/")
    if pod.is_ready or not pod.has_run or kind not in _MAKES_MEMBERS:
        return
    fields = f"involvedObject.kind={kind},involvedObject.name={name}"
    yield List(kinds.EVENT, pod.metadata.namespace, fields=fields, settles=False)


def of_owner(pod: PodView, events: Iterable[EventView]) -> Iterator[Step]:
    """What the events of a pod's controller turn on."""
    if any(_QUOTA_WORDS.search(event.message or "") for event in events):
        yield List(kinds.RESOURCE_QUOTA, pod.metadata.namespace)


def pods_on(node: str) -> List:
    """The pods on one node, of all namespaces."""
    return List(kinds.POD, fields=f"spec.nodeName={node}", settles=False)


def _told(pod: PodView, events: Iterable[EventView]) -> str:
    """All words that events, conditions and status say about the pod."""
    words = [pod.status.reason, pod.status.message]
    words += [text for c in pod.status.conditions or () for text in (c.reason, c.message)]
    words += [text for event in events for text in (event.reason, event.message)]
    return "\n".join(word for word in words if word)
