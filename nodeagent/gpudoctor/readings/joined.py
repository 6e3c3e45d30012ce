"""Kubernetes objects and the machines beneath them, read together.

A pod's objects say what it asked for and how it ends, its log what NCCL made of it, and its node
what is really there: only together do they tell why. Wherever the input has the host of a pod's
node (`hosts` of a bundle, or the machine that we run on), the pod is judged with it; what of the
machine is the pod's affair is for `stake` to say.

For the agent's round, which has its node's objects and the live machine:

    read_node_here(objects: Bundle, node: str, host_root: str | None = None) -> Reading

returns the node's reading, its Node object and its host in one, with the GPU pods on it, each read
together with the host, as `children`; `readings.judge` makes the report of it. It raises nothing
for what is missing: without the Node object the host alone is judged, with that as an unknown.
`read_node(source, name)` does the same for what an `Input` holds.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any

import msgspec

from gpudoctor.facts.kubernetes import fields, health, resources
from gpudoctor.facts.kubernetes.health import PodHealth
from gpudoctor.facts.kubernetes.pod_cuda import SeenCuda
from gpudoctor.facts.kubernetes.situation import PodSituation
from gpudoctor.facts.nccl.model import NcclLog
from gpudoctor.facts.node import image_cuda, rails
from gpudoctor.facts.node.containers import Container
from gpudoctor.facts.node.gpu import NodeGpus
from gpudoctor.facts.node.gpu_offer import either, offer_of_gpus, offer_of_module
from gpudoctor.facts.node.kernel_log import GpuEvent, KernelLog
from gpudoctor.facts.node.model import Hca, NodeFacts, WorkloadFacts
from gpudoctor.facts.pod_on_node import PodOnNode
from gpudoctor.readings import Reading, host, host_facts, host_labels, kubernetes
from gpudoctor.readings.host_facts import HostFacts, Services
from gpudoctor.readings.kubernetes import Input
from gpudoctor.readings.stake import Stake
from gpudoctor.report import Evidence, ReportSubject, Subject, Unknown
from gpudoctor.sources.bundle import Bundle
from gpudoctor.sources.host.live import LiveHost
from gpudoctor.sources.host.recorder import Recorder
from gpudoctor_checks.network import selected

_MODULE = "/proc/driver/nvidia/version"
_WHOLE_GPUS = "nvidia.com/gpu"
_SLACK = timedelta(minutes=5)
"""How far the kernel's clock and the cluster's may differ."""


def read_node_here(objects: Bundle, node: str, host_root: str | None = None) -> Reading:
    """Read this machine as the node of that name, with its objects and the GPU pods on it."""
    source = Input(objects)
    with _here(host_root) as live:
        source.saw(node, _look(live, node, host_root))
    return read_node(source, node)


def look_around(source: Input, host_root: str | None = None) -> None:
    """Look at the machine that we run on, if a Node object of the input is its own.

    A node is known by the boot id that its kubelet reports: names are given twice, a boot is not.
    Inside a container nothing is looked at: it shows what it was given, not what the node has.
    """
    nodes = [node for node in source.cluster.nodes.values() if node.boot_id]
    if not nodes:
        return
    with _here(host_root) as live:
        for node in nodes:
            if host.is_node(live, node.boot_id):
                source.saw(node.name, _look(live, node.name, host_root))


def _here(host_root: str | None) -> LiveHost:
    return LiveHost(host_root, programs=host.PROGRAMS)


def _look(live: LiveHost, node: str, host_root: str | None) -> HostFacts:
    services = Services(host_root or "")
    return host_facts.read(Recorder(live), Subject("Node", node), services=services)


# -- a node ------------------------------------------------------------------------------------


def read_node(source: Input, name: str) -> Reading:
    """Read a node whose host is in the input, with the pods on it that ask for GPUs."""
    seen = source.host(name)
    assert seen is not None, f"the input has no host of node {name}"
    pods = [entry for entry in source.cluster.on_node(name) if kubernetes.is_current(source, entry)]
    asking = [entry for entry in pods if health.is_gpu_pod(source.cluster.pod(entry))]
    known = {source.cluster.pod(entry).meta.uid for entry in pods}
    machine = _machine(seen)
    bare = host.reading(msgspec.structs.replace(seen, node=machine), source.observed_at)
    own = _node_object(source, name)
    needed = tuple(needed for needed in host.needs(seen) if needed.what != host.MEMLOCK)
    children = [kubernetes.read_pod(source, entry) for entry in asking]
    children += [
        host.container(one, workload, source.observed_at)
        for one, workload in seen.containers
        if workload is not None and (one.pod_uid is None or one.pod_uid not in known)
    ]
    return msgspec.structs.replace(
        own,
        facts=(*own.facts, *bare.facts),
        children=tuple(children),
        published=_with_node_labels(source, name, bare.published),
        unknown=(*own.unknown, *needed, *host.aside(seen)),
        needed_unknown=own.needed_unknown or bool(needed),
    )


def _with_node_labels(source: Input, name: str, published: dict[str, Any]) -> dict[str, Any]:
    node = source.cluster.nodes.get(name)
    return published if node is None else host_labels.with_node(published, node.meta.labels)


def _machine(seen: HostFacts) -> NodeFacts:
    """The node without the process that looked at it: an agent's limits are no workload's."""
    return msgspec.structs.replace(seen.node, process=None)


def _node_object(source: Input, name: str) -> Reading:
    if name in source.cluster.nodes:
        return kubernetes.read_node_object(source, name)
    missing = Unknown(f"Node/{name}", "it is not in the input: only its host was read")
    return Reading(
        subject=ReportSubject("Node", name),
        facts=(),
        observed_at=source.observed_at,
        unknown=(missing,),
        is_complete=source.cluster.scope.has_all,
    )


# -- a pod -------------------------------------------------------------------------------------


def with_host(
    reading: Reading,
    found: PodSituation,
    state: PodHealth,
    log: NcclLog | None,
    seen: HostFacts,
) -> Reading:
    """Return the reading of a pod together with the machine that it runs on."""
    on_node = pod_on_node(found, state, log, seen)
    own = {fact.subject for fact in on_node.containers}
    assert own <= {found.subject}
    kernel_log = _kernel_log(seen, on_node) if isinstance(seen.kernel_log, KernelLog) else None
    around = (
        on_node,
        *on_node.containers,
        on_node.machine,
        seen.gpus if not isinstance(seen.gpus, Unknown) else None,
        on_node.machine.topology,
        kernel_log,
    )
    stake = Stake(on_node)
    return msgspec.structs.replace(
        reading,
        facts=tuple(_with_rails(fact, on_node) for fact in reading.facts),
        around=tuple(fact for fact in around if fact is not None),
        concern=stake.concern,
        kept=stake.kept,
        published=reading.published | _published(seen, on_node),
    )


def _with_rails(fact: object, pod: PodOnNode) -> object:
    """Let NCCL's log know of the machine's adapters: then TCP was not meant to be used."""
    if not isinstance(fact, NcclLog):
        return fact
    return msgspec.structs.replace(
        fact, rdma_expected_by=(*fact.rdma_expected_by, *rails.told(pod.machine))
    )


def pod_on_node(
    found: PodSituation, state: PodHealth, log: NcclLog | None, seen: HostFacts
) -> PodOnNode:
    """Find a pod's containers and devices on its machine."""
    pairs = [pair for pair in _containers(found, seen) if pair[1] is not None]
    workloads = tuple(
        msgspec.structs.replace(workload, subject=found.subject)
        for _, workload in pairs
        if workload is not None
    )
    return PodOnNode(
        situation=found,
        state=state.state,
        machine=_machine(seen),
        containers=workloads,
        gpus=_gpus(found, workloads, seen),
        adapters=_adapters(workloads),
        log=log,
    )


def _containers(
    found: PodSituation, seen: HostFacts
) -> Iterator[tuple[Container, WorkloadFacts | None]]:
    """The pod's containers: by its UID in the cgroup path, else by the kubelet's names."""
    meta = found.pod.meta
    for container, workload in seen.containers:
        names = container.allotment.names if container.allotment else None
        by_name = names is not None and (names.namespace, names.pod) == (meta.namespace, meta.name)
        if (container.pod_uid == meta.uid) if meta.uid and container.pod_uid else by_name:
            yield container, workload


def _gpus(
    found: PodSituation, workloads: tuple[WorkloadFacts, ...], seen: HostFacts
) -> frozenset[str] | None:
    """The addresses of the GPUs that the pod was given, by whoever tells; None if nobody does."""
    if not health.is_gpu_pod(found.pod) and not workloads:
        return frozenset()
    for told in (_by_kubelet(found, seen), _by_status(found, seen), _by_nodes(found, workloads)):
        if told:
            return told
    every = frozenset(gpu.address for gpu in seen.node.gpus)
    asked = found.pod.requests.get(_WHOLE_GPUS, 0)
    return every if every and asked == len(every) else None


def _by_kubelet(found: PodSituation, seen: HostFacts) -> frozenset[str] | None:
    meta = found.pod.meta
    told = [
        given
        for names, given in seen.gpus_given.items()
        if (names.namespace, names.pod) == (meta.namespace, meta.name)
    ]
    known = [given for given in told if given is not None]
    return frozenset(one for given in known for one in given) if len(known) == len(told) else None


def _by_status(found: PodSituation, seen: HostFacts) -> frozenset[str] | None:
    ids = [
        device.id
        for status in found.pod.statuses
        for device in status.devices
        if resources.is_gpu(device.resource)
    ]
    known = [seen.uuids[one.lower()] for one in ids if one.lower() in seen.uuids]
    return frozenset(known) if ids and len(known) == len(ids) else None


def _by_nodes(found: PodSituation, workloads: tuple[WorkloadFacts, ...]) -> frozenset[str] | None:
    """By the device nodes in its containers; a privileged one has those of all GPUs."""
    if any(container.privileged for container in found.pod.containers):
        return None
    told = [workload.given for workload in workloads]
    known = [given for given in told if given is not None]
    return frozenset(one for given in known for one in given) if len(known) == len(told) else None


def _adapters(workloads: tuple[WorkloadFacts, ...]) -> frozenset[str] | None:
    """The RDMA devices whose nodes its containers have and that NCCL_IB_HCA lets NCCL use."""
    if not workloads or any(one.verbs is None or one.hcas is None for one in workloads):
        return None
    return frozenset(hca.name for workload in workloads for hca in _usable(workload))


def _usable(workload: WorkloadFacts) -> Iterator[Hca]:
    environment = (workload.process.environment if workload.process else None) or {}
    nodes = {node.name for node in workload.verbs or ()}
    for hca in workload.hcas or ():
        if hca.uverbs in nodes and selected(hca, None, environment.get("NCCL_IB_HCA")) is not False:
            yield hca


def seen_cuda(found: PodSituation, seen: HostFacts) -> SeenCuda:
    """Return the machine's side of the compatibility rules, and the CUDA of the pod's image."""
    offer = offer_of_module(seen.module or "")
    where = Evidence(f"{seen.node.subject.name}:{_MODULE}", None, seen.module)
    evidence = (where,) if offer.driver else ()
    if isinstance(seen.gpus, NodeGpus):
        offer = either(offer_of_gpus(seen.gpus), offer)
        if not evidence and offer.driver:
            evidence = (Evidence(f"{seen.node.subject.name}:NVML", "driver", str(offer.driver)),)
    images = (
        image_cuda.read(container.pid, container.libraries, workload.process.environment)
        for container, workload in _containers(found, seen)
        if workload is not None and workload.process is not None
    )
    image = next((image for image in images if image is not None), None)
    if image is not None:
        place = f"{seen.node.subject.name}:{image.evidence.object}"
        image = msgspec.structs.replace(
            image, evidence=msgspec.structs.replace(image.evidence, object=place)
        )
    return SeenCuda(offer=offer, driver=evidence, image=image)


# -- the kernel log within the pod's time ------------------------------------------------------


def _kernel_log(seen: HostFacts, pod: PodOnNode) -> KernelLog:
    """The kernel log as far as it is about the pod's time on the machine.

    What happened before the pod came is history, unless the pod itself shows that a GPU fails.
    """
    log = seen.kernel_log
    assert isinstance(log, KernelLog)
    since, until = _time_of(pod.situation)

    def is_in_time(event: GpuEvent) -> bool:
        last = _moment(event.last_time, seen.booted)
        first = _moment(event.first_time, seen.booted)
        if last is None or first is None or since is None:
            return not pod.is_well
        return last >= since - _SLACK and (until is None or first <= until + _SLACK)

    return msgspec.structs.replace(
        log,
        events=tuple(event for event in log.events if is_in_time(event)),
        conditions=() if pod.is_well else log.conditions,
        pcie_errors=() if pod.is_well else log.pcie_errors,
    )


def _time_of(found: PodSituation) -> tuple[datetime | None, datetime | None]:
    """When the pod came to its node, and when its last container ended if it is over."""
    scheduled = found.pod.condition("PodScheduled")
    came = scheduled.since if scheduled and scheduled.status == "True" else None
    ends = [end.finished for status in found.pod.statuses if (end := status.latest_end)]
    known = [end for end in ends if end is not None]
    return came or found.pod.meta.created, max(known, default=None) if (
        found.pod.is_terminal
    ) else None


def _moment(stamp: str | None, booted: datetime | None) -> datetime | None:
    """The time of a line: seconds since boot, or a date that names its offset."""
    if stamp is None:
        return None
    try:
        return booted + timedelta(seconds=float(stamp)) if booted else None
    except (ValueError, OverflowError):
        return fields.moment(stamp.replace(",", "."))


# -- what is told ------------------------------------------------------------------------------


def _published(seen: HostFacts, pod: PodOnNode) -> dict[str, object]:
    meta = pod.situation.pod.meta
    given = [
        {"container": names.container, "gpus": None if told is None else list(told)}
        for names, told in seen.gpus_given.items()
        if (names.namespace, names.pod) == (meta.namespace, meta.name)
    ]
    return {
        "on_node": {
            "node": pod.node.name,
            "gpus": None if pod.gpus is None else sorted(pod.gpus),
            "rdma_devices": None if pod.adapters is None else sorted(pod.adapters),
            "kubelet": given,
            "containers": [
                {
                    "id": container.container_id,
                    "pid": int(container.pid),
                    "libraries": container.libraries,
                    **(host.process_facts(workload) if workload is not None else {}),
                }
                for container, workload in _containers(pod.situation, seen)
            ],
        }
    }
