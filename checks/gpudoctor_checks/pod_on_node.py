"""Why NCCL does without RDMA or GPUDirect in a pod, where its log says only that it does.

NCCL asks in a fixed order (facts of its source: `src/transport/net_ib`, `src/graph/paths.cc`), and
release builds print the outcome, not the question that decided. With the machine at hand the
questions are asked again, in that order: variables, adapters, peer memory, distance. The first
that fails is the reason; what cannot be answered gives none.
"""

from __future__ import annotations

from collections.abc import Iterator

from gpudoctor.checking import CheckSet, Result, finding
from gpudoctor.facts.node.model import GpuDirect, Hca, WorkloadFacts
from gpudoctor.facts.node.pci import path_between
from gpudoctor.facts.node.topology import NEAR
from gpudoctor.facts.pod_on_node import PodOnNode
from gpudoctor.report import Certainty, Evidence
from gpudoctor_checks.nccl_log import is_set
from gpudoctor_checks.network import selected

CHECKS = CheckSet()

_OFF = ("", "0")
_NOWHERE = ("LOC", "0")
_SHOWN = 4


def _variable(pod: PodOnNode, name: str) -> tuple[str, WorkloadFacts] | None:
    """Return what a process of the pod has in its environment, with its container."""
    for workload in pod.containers:
        environment = (workload.process.environment if workload.process else None) or {}
        if name in environment:
            return environment[name].strip(), workload
    return None


def _evidence(name: str, value: str, workload: WorkloadFacts) -> Evidence:
    assert workload.process is not None
    return Evidence(f"/proc/{workload.process.pid}/environ", name, value)


@CHECKS.check(PodOnNode)
def ib_disabled(pod: PodOnNode) -> Iterator[Result]:
    """NCCL_IB_DISABLE stands in the environment of a process, whoever put it there."""
    found = _variable(pod, "NCCL_IB_DISABLE")
    if found is None or found[0] in _OFF or not pod.over_tcp:
        return
    yield finding(
        "nccl-ib-disabled-by-env",
        pod.subject,
        f"The process has NCCL_IB_DISABLE={found[0]}: NCCL does not look for RDMA adapters at all.",
        _evidence("NCCL_IB_DISABLE", *found),
        values={"hosts": pod.situation.pod.meta.name},
    )


@CHECKS.check(PodOnNode)
def filtered(pod: PodOnNode) -> Iterator[Result]:
    """NCCL_IB_HCA lets none of the adapters through that the container has."""
    found = _variable(pod, "NCCL_IB_HCA")
    if found is None or not pod.over_tcp:
        return
    value, workload = found
    nodes = {node.name for node in workload.verbs or ()}
    given = [hca.name for hca in workload.hcas or () if hca.uverbs in nodes]
    if not given or any(_passes(hca, value) for hca in workload.hcas or () if hca.name in given):
        return
    shown = ", ".join(given)
    yield finding(
        "nccl-env-names-missing-device",
        pod.subject,
        f"NCCL_IB_HCA={value} matches none of the adapters that the container has ({shown}).",
        _evidence("NCCL_IB_HCA", *found),
        Evidence("/sys/class/infiniband", None, shown),
        values={
            "name": "NCCL_IB_HCA",
            "pod": pod.situation.pod.meta.short,
            "device": value,
        },
    )


def _passes(hca: Hca, value: str) -> bool:
    return any(selected(hca, port, value) for port in hca.ports) or bool(selected(hca, None, value))


def _without_gdr(pod: PodOnNode) -> bool:
    """Whether NCCL's log shows channels without GPUDirect RDMA and no reason for it."""
    log = pod.log
    return (
        log is not None
        and pod.rdma_suffers
        and any(use.network != "Socket" and not use.gdr for use in pod.uses)
        and all(fact.enabled for fact in log.hca_gdr)
        and all(fact.enabled for fact in log.distances)
        and not log.single_host_net
    )


@CHECKS.check(PodOnNode)
def gdr_reason(pod: PodOnNode) -> Iterator[Result]:
    """The first of NCCL's questions about GPUDirect RDMA that this pod fails on this machine."""
    if not _without_gdr(pod):
        return
    level = _variable(pod, "NCCL_NET_GDR_LEVEL")
    if level is not None and level[0].upper() in _NOWHERE:
        yield finding(
            "gdr-disabled-by-env",
            pod.subject,
            f"The process has NCCL_NET_GDR_LEVEL={level[0]}, which allows no distance between GPU "
            "and adapter.",
            _evidence("NCCL_NET_GDR_LEVEL", *level),
            values={"hosts": pod.situation.pod.meta.name},
        )
    elif level is None and _reaches_memory(pod.machine.gpudirect):
        # Without a way into GPU memory the machine's own finding is the reason, not the distance.
        yield from _too_far(pod)


def _reaches_memory(state: GpuDirect) -> bool:
    return state.dma_buf is True or (state.peermem_registered is True)


def _too_far(pod: PodOnNode) -> Iterator[Result]:
    """GPUs of the pod that none of its adapters is near to, on a machine where some would be."""
    log, machine = pod.log, pod.machine
    assert log is not None
    gpus, adapters = pod.own_gpus(), [hca for hca in pod.own_adapters() if hca.pci is not None]
    if machine.virtual or not adapters or is_set(log, "NCCL_NET_GDR_LEVEL"):
        return
    nodes = sum(1 for node in machine.numa if node.cpus)
    paths = {
        (gpu.address, hca.name): path
        for gpu in machine.gpus
        for hca in machine.hcas or ()
        if hca.pci is not None and (path := path_between(gpu, hca.pci, nodes)) is not None
    }
    far = [
        gpu
        for gpu in gpus
        if all(paths.get((gpu.address, hca.name), NEAR[0]) not in NEAR for hca in adapters)
        and any(paths.get((gpu.address, hca.name)) in NEAR for hca in machine.hcas or ())
    ]
    if not far:
        return
    pairs = [
        (gpu.address, hca.name, paths[gpu.address, hca.name])
        for gpu in far
        for hca in adapters
        if (gpu.address, hca.name) in paths
    ]
    worst = pairs[0][2]
    better = {
        hca.name for gpu in far for hca in machine.hcas or ()
        if paths.get((gpu.address, hca.name)) in NEAR
    }  # fmt: skip
    told = "; ".join(f"{gpu} - {name} {path}" for gpu, name, path in pairs[:_SHOWN])
    yield finding(
        "gdr-disabled-distance",
        pod.subject,
        f"No adapter of the pod is within NCCL's limit (PXB) of {far[0].address}: {told}. Near to "
        f"{'it' if len(far) == 1 else 'them'} would be {', '.join(sorted(better)[:_SHOWN])}, which "
        "the pod was not given.",
        *(
            Evidence(f"/sys/bus/pci/devices/{gpu}", name, path, "path between GPU and adapter")
            for gpu, name, path in pairs[:_SHOWN]
        ),
        values={
            "hosts": pod.situation.pod.meta.name,
            "distance": worst,
            "limit": "PXB",
            "pairs": told,
        },
        certainty=Certainty.LIKELY,
    )
