"""Which NICs, CPUs and NUMA nodes are near to which GPU.

Only where other GPUs of the box have something near is a GPU without it worth a word: no near NIC
is by design on Grace trays, and nothing is near in a virtual machine.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from gpudoctor.checking import CheckSet, Result, finding
from gpudoctor.facts.node import cpulist
from gpudoctor.facts.node.topology import Gpu, Topology, distance
from gpudoctor.report import Evidence, Severity
from gpudoctor_checks import matrix

CHECKS = CheckSet()

_PXB = distance("PXB")
_SYS = distance("SYS")


def _relays(topology: Topology, gpu: Gpu, reach: int) -> list[str]:
    """Return the NVLink neighbours of a GPU that have a NIC within this distance (PXN)."""
    return [
        other.label
        for other in topology.gpus
        if other is not gpu
        and matrix.links(topology, gpu, other)
        and _nearest(topology, other) is not None
        and (_nearest(topology, other) or 0) <= reach
    ]


def _nearest(topology: Topology, gpu: Gpu) -> int | None:
    return min(map(distance, topology.nic_paths(gpu).values()), default=None)


@CHECKS.check(Topology)
def without_near_nic(topology: Topology) -> Iterator[Result]:
    """GPUs have no NIC at PIX or PXB although other GPUs of the box have one."""
    served = sum(bool(topology.near_nics(gpu)) for gpu in topology.gpus)
    if not served:
        return
    without = [
        gpu for gpu in topology.gpus if topology.nic_paths(gpu) and not topology.near_nics(gpu)
    ]
    relayed = {gpu.label: _relays(topology, gpu, _PXB) for gpu in without}
    for joined in (True, False):
        gpus = [gpu for gpu in without if bool(relayed[gpu.label]) is joined]
        if not gpus:
            continue
        labels = [gpu.label for gpu in gpus]
        subject, related = matrix.joint(topology, labels)
        others = sorted({relayed[label][0] for label in labels if relayed[label]})
        way = (
            f"NVLink leads to {', '.join(others)}, which have one (PXN)."
            if joined
            else "Network traffic crosses the host bridge, without GPUDirect RDMA."
        )
        yield finding(
            "gpu-without-near-nic",
            subject,
            f"{served} of {len(topology.gpus)} GPUs have a NIC at PIX or PXB; "
            f"{', '.join(labels)} {'has' if len(labels) == 1 else 'have'} none. {way}",
            *(matrix.row(topology, label) for label in labels),
            values={"gpu": ", ".join(labels)},
            related=related,
            severity=Severity.INFO if joined or served * 2 < len(topology.gpus) else None,
        )


@CHECKS.check(Topology)
def far_nics(topology: Topology) -> Iterator[Result]:
    """NICs are near to no GPU where others are: storage, management, or another job's."""
    near = {name for gpu in topology.gpus for name in topology.near_nics(gpu)}
    far = [nic for nic in topology.nics if nic.device not in near] if near else []
    if not far:
        return
    names = [nic.device for nic in far]
    subject, related = matrix.joint(topology, names)
    yield finding(
        "nic-far-from-gpus",
        subject,
        f"{', '.join(names)}: at PIX or PXB of no GPU shown here: front-end or storage NICs, or "
        "NICs that belong to GPUs of another job.",
        *(matrix.row(topology, nic.label) for nic in far),
        values={"nic": ", ".join(names)},
        related=related,
    )


def _nodes_with_nics(topology: Topology) -> set[int]:
    """Return the NUMA nodes of the NICs, as far as a GPU on the same node shows them."""
    return {
        node
        for gpu in topology.gpus
        for path in topology.nic_paths(gpu).values()
        if path != "SYS"
        for node in gpu.numa or ()
    }


@CHECKS.check(Topology)
def nic_across_sockets(topology: Topology) -> Iterator[Result]:
    """Every NIC is on another NUMA node than some GPUs."""
    if matrix.flat(topology) or matrix.same_node_apart(topology):
        return
    groups: dict[tuple[tuple[int, ...], bool], list[Gpu]] = {}
    for gpu in topology.gpus:
        if gpu.numa is None or _nearest(topology, gpu) != _SYS:
            continue
        if set(gpu.numa) & _nodes_with_nics(topology):
            continue  # SYS inside one node: a host bridge domain for each GPU
        joined = bool(_relays(topology, gpu, _SYS - 1))
        groups.setdefault((gpu.numa, joined), []).append(gpu)
    for (_, joined), gpus in groups.items():
        labels = [gpu.label for gpu in gpus]
        subject, related = matrix.joint(topology, labels)
        others = sorted({_relays(topology, gpu, _SYS - 1)[0] for gpu in gpus}) if joined else []
        yield finding(
            "gpu-nic-cross-numa",
            subject,
            f"{matrix.are(gpus)} on NUMA node {matrix.nodes_of(gpus)}; all {len(topology.nics)} "
            "RDMA NICs are across the inter-socket link (SYS)."
            + (f" NVLink leads to {', '.join(others)}, nearer to one." if joined else ""),
            *(matrix.row(topology, label) for label in labels),
            values={"gpu": ", ".join(labels), "node": matrix.nodes_of(gpus)},
            related=related,
            severity=Severity.INFO if joined else None,
        )


@CHECKS.check(Topology)
def shared_nics(topology: Topology) -> Iterator[Result]:
    """More GPUs than NICs on one switch, while other GPUs of the box have their own."""
    groups: dict[tuple[str, ...], list[Gpu]] = {}
    for gpu in topology.gpus:
        if near := topology.near_nics(gpu):
            groups.setdefault(near, []).append(gpu)
    share = {nics: len(nics) / len(gpus) for nics, gpus in groups.items()}
    best = max(share.values(), default=0.0)
    for nics, gpus in groups.items():
        if share[nics] >= 1:
            continue
        names = ", ".join(gpu.label for gpu in gpus)
        yield finding(
            "nic-shared-by-gpus",
            matrix.device(topology, nics[0]),
            f"{names} share {', '.join(nics)}"
            + (
                "; other GPUs of this machine have a larger share: a NIC may be missing here."
                if share[nics] < best
                else ": the design of this board, each GPU gets a part of its rate."
            ),
            *(matrix.row(topology, gpu.label) for gpu in gpus),
            values={"gpus": names, "nics": ", ".join(nics)},
            severity=None if share[nics] < best else Severity.INFO,
        )


@CHECKS.check(Topology)
def local_cpus(topology: Topology) -> Iterator[Result]:
    """The caller may use no CPU near to some GPUs."""
    groups: dict[tuple[int, ...], list[Gpu]] = {}
    for gpu in topology.gpus:
        if gpu.cpus is not None and not gpu.cpus_cut and not gpu.cpus and gpu.numa is not None:
            groups.setdefault(gpu.numa, []).append(gpu)
    for gpus in groups.values():
        labels = [gpu.label for gpu in gpus]
        subject, related = matrix.joint(topology, labels)
        yield finding(
            "no-local-cpus-for-gpu",
            subject,
            f"{matrix.are(gpus)} on NUMA node {matrix.nodes_of(gpus)}, but none of that node's "
            "CPUs is in the cpuset of this container: its processes feed "
            f"{'it' if len(gpus) == 1 else 'them'} over the link between the sockets.",
            *(Evidence(topology.source, f"{label} CPU Affinity", "", "empty") for label in labels),
            values={"gpu": ", ".join(labels), "node": matrix.nodes_of(gpus)},
            related=related,
        )


@CHECKS.check(Topology)
def few_local_cpus(topology: Topology) -> Iterator[Result]:
    """The caller may use fewer CPUs near to its GPUs than it has GPUs there."""
    groups: dict[frozenset[int], list[Gpu]] = {}
    for gpu in topology.gpus:
        if gpu.cpus and not gpu.cpus_cut:
            groups.setdefault(gpu.cpus, []).append(gpu)
    for cpus, gpus in groups.items():
        if len(cpus) < len(gpus):
            names = ", ".join(gpu.label for gpu in gpus)
            yield finding(
                "cpu-affinity-too-small",
                topology.subject,
                f"{len(cpus)} usable CPUs ({cpulist.render(cpus)}) for {len(gpus)} GPUs: {names}.",
                *(Evidence(topology.source, f"{g.label} CPU Affinity", g.cpus_text) for g in gpus),
                values={"cpus": str(len(cpus)), "gpus": str(len(gpus))},
            )


@CHECKS.check(Topology)
def numa(topology: Topology) -> Iterator[Result]:
    """GPUs without a known NUMA node, or unevenly spread over the nodes."""
    unknown = [gpu.label for gpu in topology.gpus if gpu.numa is None]
    readable = {row.label for row in topology.broken}.isdisjoint(unknown)
    if topology.numa_shown and unknown and readable:
        everywhere = len(unknown) == len(topology.gpus)
        yield finding(
            "numa-unknown",
            topology.subject if everywhere else matrix.device(topology, unknown[0]),
            f"The machine names no NUMA node for {', '.join(unknown)}: single-node machines and "
            "virtual machines do so.",
            Evidence(topology.source, "NUMA Affinity", "N/A"),
            values={"devices": ", ".join(unknown)},
        )
    spread = Counter(gpu.numa for gpu in topology.gpus if gpu.numa is not None)
    if len(spread) > 1 and len(set(spread.values())) > 1 and not unknown:
        counts = ", ".join(
            f"{count} on {cpulist.render(nodes)}" for nodes, count in sorted(spread.items())
        )
        yield finding(
            "numa-uneven",
            topology.subject,
            f"GPUs by NUMA node: {counts}. Pods that want all GPUs of one node find fewer places "
            "on the smaller one.",
            Evidence(topology.source, "NUMA Affinity", counts),
            values={"counts": counts},
        )
