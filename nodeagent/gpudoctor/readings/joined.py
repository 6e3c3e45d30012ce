"""Kubernetes objects and the machines beneath them, read together.

A pod's objects say what it asked for and how it ends, its log what NCCL made of it, and its node
what is really there: only together do they tell why. Wherever the input has the host of a pod's
node (`hosts` of a bundle, or the machine that we run on), the pod is judged with it; what of the
machine is the pod's affair is for `stake` to say.

For the agent's round, which has its node's objects and has looked at the machine itself:

    read_node(Input(objects, {node: seen}), node) -> Reading

returns the node's reading, its Node object and its host in one, with the GPU pods on it, each read
together with the host, as `children`; `readings.judge` makes the report of it. It raises nothing
for what is missing: without the Node object the host alone is judged, with that as an unknown.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import msgspec

from gpudoctor.facts import gpu_counts
from gpudoctor.facts.gpu_counts import GpuCounts
from gpudoctor.facts.kubernetes import health, resources
from gpudoctor.facts.kubernetes.health import PodHealth
from gpudoctor.facts.kubernetes.situation import PodSituation
from gpudoctor.facts.nccl.model import NcclLog
from gpudoctor.facts.node import rails
from gpudoctor.facts.node.runtime_errors import ErrorLines
from gpudoctor.facts.pod_on_node import PodOnNode
from gpudoctor.readings import (
    Reading,
    host,
    host_facts,
    host_labels,
    kernel_time,
    kubernetes,
    on_node,
)
from gpudoctor.readings.host_facts import HostFacts, Services
from gpudoctor.readings.kubernetes import Input
from gpudoctor.readings.stake import Stake
from gpudoctor.report import ReportSubject, Subject, Unknown
from gpudoctor.sources.host.live import LiveHost
from gpudoctor.sources.host.recorder import Recorder

_GPU_TROUBLE = frozenset(
    {
        "adapter-init-failed", "cuda-unknown-error", "driver-library-mismatch", "driver-not-loaded",
        "driver-not-usable", "fabric-not-ready", "gpu-application-fault", "gpu-busy", "gpu-lost",
        "gpu-uncorrectable-ecc", "libcuda-kernel-mismatch", "no-devices", "nvlink-error",
    }
)  # fmt: skip
_OF_GPUS = re.compile(r"cuda|nccl|nvml|nvidia|gpu", re.IGNORECASE)


def look_around(source: Input, host_root: str | None = None) -> None:
    """Look at the machine that we run on, if a Node object of the input is its own.

    A node is known by the boot id that its kubelet reports: names are given twice, a boot is not.
    Inside a container nothing is looked at: it shows what it was given, not what the node has.
    """
    nodes = [node for node in source.cluster.nodes.values() if node.boot_id]
    if not nodes:
        return
    services = Services(host_root or "")
    with LiveHost(host_root, programs=host.PROGRAMS) as live:
        for node in nodes:
            if host.is_node(live, node.boot_id):
                subject = Subject("Node", node.name)
                seen = host_facts.read(Recorder(live), subject, services=services)
                source.saw(node.name, seen)


# -- a node ------------------------------------------------------------------------------------


def read_node(source: Input, name: str) -> Reading:
    """Read a node whose host is in the input, with the pods on it that ask for GPUs."""
    seen = source.host(name)
    assert seen is not None, f"the input has no host of node {name}"
    pods = [entry for entry in source.cluster.on_node(name) if kubernetes.is_current(source, entry)]
    asking = [entry for entry in pods if health.is_gpu_pod(source.cluster.pod(entry))]
    known = {source.cluster.pod(entry).meta.uid for entry in pods}
    machine = on_node.machine(seen)
    bare = host.reading(msgspec.structs.replace(seen, node=machine), source.observed_at)
    own = _node_object(source, name)
    needed = tuple(_needed(source, name, seen))
    children = [kubernetes.read_pod(source, entry) for entry in asking]
    children += [
        host.container(one, workload, source.observed_at)
        for one, workload in seen.containers
        if workload is not None and (one.pod_uid is None or one.pod_uid not in known)
    ]
    return msgspec.structs.replace(
        own,
        facts=(*own.facts, *bare.facts, *_counts(source, name, seen)),
        children=tuple(children),
        published=_with_node_labels(source, name, bare.published),
        unknown=(*own.unknown, *needed, *host.aside(seen)),
        needed_unknown=own.needed_unknown or bool(needed),
    )


def _needed(source: Input, name: str, seen: HostFacts) -> Iterator[Unknown]:
    """What a verdict on the node needs: GPUs only where there is a sign of any."""
    node = source.cluster.nodes.get(name)
    offers = node is not None and any(map(resources.is_gpu, node.capacity))
    for needed in host.needs(seen):
        none_there = needed.what == host.GPUS and seen.node.pci_whole and not offers
        if needed.what != host.MEMLOCK and not none_there:
            yield needed


def _counts(source: Input, name: str, seen: HostFacts) -> Iterator[GpuCounts]:
    node = source.cluster.nodes.get(name)
    gpus = None if isinstance(seen.gpus, Unknown) else seen.gpus
    counts = None if node is None else gpu_counts.read(node, seen.node, gpus)
    if counts is not None:
        yield counts


def _with_node_labels(source: Input, name: str, published: dict[str, Any]) -> dict[str, Any]:
    node = source.cluster.nodes.get(name)
    return published if node is None else host_labels.with_node(published, node.meta.labels)


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
    pod = msgspec.structs.replace(
        on_node.pod_on_node(found, state, log, seen),
        gpu_trouble=_shows_gpu_trouble(reading, found),
    )
    kernel_log = kernel_time.of_machine(seen, found.now)
    if kernel_log is not None:
        kernel_log, undated = kernel_time.of_pod(kernel_log, seen.booted, pod)
        pod = msgspec.structs.replace(pod, undated=undated)
    around = (
        pod,
        *pod.containers,
        pod.machine,
        seen.gpus if not isinstance(seen.gpus, Unknown) else None,
        pod.machine.topology,
        kernel_log,
    )
    stake = Stake(pod)
    return msgspec.structs.replace(
        reading,
        facts=tuple(_with_rails(fact, pod) for fact in reading.facts),
        around=tuple(fact for fact in around if fact is not None),
        concern=stake.concern,
        kept=stake.kept,
        published=reading.published | on_node.published(seen, pod),
        unknown=(*reading.unknown, *on_node.unread(seen, pod)),
    )


def _with_rails(fact: object, pod: PodOnNode) -> object:
    """Let NCCL's log know of the machine's adapters and GPUs: what was meant, what can be."""
    if not isinstance(fact, NcclLog):
        return fact
    return msgspec.structs.replace(
        fact,
        rdma_expected_by=(*fact.rdma_expected_by, *rails.told(pod.machine)),
        no_gdr_by_design=rails.no_gdr([pod.machine]),
    )


def _shows_gpu_trouble(reading: Reading, found: PodSituation) -> bool | None:
    """Whether the pod's own words name a trouble of GPU or driver, or a mistake of its own."""
    errors = [fact for fact in reading.facts if isinstance(fact, ErrorLines)]
    if any(error.name in _GPU_TROUBLE for fact in errors for error, _ in fact.errors):
        return True
    own = [line.line.text for line in found.lines_of("python-error")]
    return False if own and not any(map(_OF_GPUS.search, own)) else None
