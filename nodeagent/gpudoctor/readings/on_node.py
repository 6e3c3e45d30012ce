"""A pod on its machine: which containers and devices of the machine are the pod's.

Containers are known by the pod's UID in their cgroup, else by the kubelet's names; GPUs by the
kubelet's list, by the pod's own status, by device nodes, or by the pod's asking for all there are.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from gpudoctor.facts.kubernetes import health, resources
from gpudoctor.facts.kubernetes.health import PodHealth
from gpudoctor.facts.kubernetes.pod_cuda import SeenCuda
from gpudoctor.facts.kubernetes.situation import PodSituation
from gpudoctor.facts.nccl.model import NcclLog
from gpudoctor.facts.node import image_cuda
from gpudoctor.facts.node.containers import Container
from gpudoctor.facts.node.gpu import NodeGpus
from gpudoctor.facts.node.gpu_offer import either, offer_of_gpus, offer_of_module
from gpudoctor.facts.node.model import Hca, NodeFacts, WorkloadFacts
from gpudoctor.facts.pod_on_node import PodOnNode
from gpudoctor.readings.host import process_facts
from gpudoctor.readings.host_facts import HostFacts
from gpudoctor.report import Evidence, Unknown
from gpudoctor_checks.network import selected

_MODULE = "/proc/driver/nvidia/version"
_WHOLE_GPUS = "nvidia.com/gpu"


def machine(seen: HostFacts) -> NodeFacts:
    """Return the node without the process that looked: an agent's limits are no workload's."""
    return msgspec.structs.replace(seen.node, process=None)


def pod_on_node(
    found: PodSituation, state: PodHealth, log: NcclLog | None, seen: HostFacts
) -> PodOnNode:
    """Find a pod's containers and devices on its machine."""
    pairs = [pair for pair in containers_of(found, seen) if pair[1] is not None]
    workloads = tuple(
        msgspec.structs.replace(workload, subject=found.subject)
        for _, workload in pairs
        if workload is not None
    )
    return PodOnNode(
        situation=found,
        state=state.state,
        machine=machine(seen),
        containers=workloads,
        gpus=_gpus(found, workloads, seen),
        adapters=_adapters(workloads),
        log=log,
    )


def containers_of(
    found: PodSituation, seen: HostFacts
) -> Iterator[tuple[Container, WorkloadFacts | None]]:
    """Yield the pod's containers: by its UID in the cgroup path, else by the kubelet's names."""
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
        for container, workload in containers_of(found, seen)
        if workload is not None and workload.process is not None
    )
    image = next((image for image in images if image is not None), None)
    if image is not None:
        place = f"{seen.node.subject.name}:{image.evidence.object}"
        image = msgspec.structs.replace(
            image, evidence=msgspec.structs.replace(image.evidence, object=place)
        )
    return SeenCuda(offer=offer, driver=evidence, image=image)


def unread(seen: HostFacts, pod: PodOnNode) -> Iterator[Unknown]:
    """Yield what of the machine would tell more about a pod with GPUs, and could not be read."""
    if not pod.uses_gpus:
        return
    if pod.gpus is None:
        why = "neither the kubelet's list, the pod's status nor its device nodes tell"
        yield Unknown("GPUs of the pod", why)
    hidden = [
        container.pid
        for container, workload in containers_of(pod.situation, seen)
        if workload is None or workload.process is None or workload.process.environment is None
    ]
    if hidden:
        why = f"/proc/{hidden[0]}/environ and root need CAP_SYS_PTRACE"
        yield Unknown("environment and files of the pod's processes", why)
    for part in (seen.gpus, seen.kernel_log, seen.given_out):
        if isinstance(part, Unknown):
            yield part


def published(seen: HostFacts, pod: PodOnNode) -> dict[str, Any]:
    """Return what a report says of a pod on its machine."""
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
                    **(process_facts(workload) if workload is not None else {}),
                }
                for container, workload in containers_of(pod.situation, seen)
            ],
        }
    }
