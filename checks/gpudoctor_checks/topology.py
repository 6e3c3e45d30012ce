"""PCIe between GPUs: a tree that cannot be the real one, a GPU apart, rows that cannot be read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from gpudoctor.checking import CheckSet, Result, finding
from gpudoctor.facts.node.topology import Topology, nvlinks
from gpudoctor.report import Certainty, Evidence, Unknown
from gpudoctor_checks import matrix

CHECKS = CheckSet()


@CHECKS.check(Topology)
def unreadable(topology: Topology) -> Iterator[Result]:
    """Rows of the table that cannot be trusted."""
    for row in topology.broken:
        yield finding(
            "topology-unreadable",
            matrix.device(topology, row.label),
            f"The row of {row.label} cannot be used: {row.why}. Nothing is concluded from it.",
            Evidence(topology.source, row.label, row.line or None, row.why),
            values={"row": row.label, "why": row.why},
        )
        yield Unknown(f"topology of {row.label}", row.why)


@CHECKS.check(Topology)
def hidden(topology: Topology) -> Iterator[Result]:
    """The machine shows a PCIe tree that cannot be the real one."""
    apart = matrix.same_node_apart(topology)
    flat = matrix.flat(topology)
    if apart:
        one, other = apart[0]
        why = (
            f"{one} and {other} share a NUMA node, yet their path is SYS, which by definition "
            f"leaves the node ({len(apart)} such pairs)"
        )
        evidence = matrix.row(topology, one, "SYS inside one NUMA node")
    elif flat:
        why = f"every PCIe path is {flat}, and the GPUs are not on different NUMA nodes"
        evidence = matrix.row(topology, topology.gpus[0].label, "all the same")
    else:
        return
    yield finding(
        "pcie-topology-hidden",
        topology.subject,
        f"The PCIe tree is hidden by the hypervisor or firmware: {why}. Distances between GPUs "
        "and NICs cannot be judged from here.",
        evidence,
    )


@CHECKS.check(Topology)
def odd_one_out(topology: Topology) -> Iterator[Result]:
    """One GPU is far from all others while those are near to each other."""
    for gpu in matrix.odd(topology):
        others = [other.label for other in topology.gpus if other is not gpu]
        yield finding(
            "gpu-odd-one-out",
            matrix.device(topology, gpu.label),
            f"{gpu.label} reaches {', '.join(others)} only across the inter-socket link (SYS), "
            "while those are nearer to each other: a job over all of them runs at the speed of "
            "that link.",
            matrix.row(topology, gpu.label),
            values={"gpu": gpu.label},
        )


@CHECKS.check(Topology)
def over_host_bridge(topology: Topology) -> Iterator[Result]:
    """GPUs without NVLink reach each other only through the CPU's host bridge."""
    paths = Counter(path for _, _, path in topology.gpu_pairs())
    crossing = paths["PHB"] + paths["NODE"]
    if not crossing or any(nvlinks(path) for path in paths):
        return
    if matrix.flat(topology) or matrix.same_node_apart(topology):
        return
    yield finding(
        "gpu-p2p-over-host-bridge",
        topology.subject,
        f"{crossing} of {paths.total()} pairs of GPUs meet at the host bridge (PHB, NODE): peer "
        "traffic passes the CPU. Usual for PCIe boxes without bridges; `topo -mp` also looks so.",
        matrix.row(topology, topology.gpus[0].label),
        values={"pairs": str(crossing)},
        certainty=Certainty.LIKELY if topology.nvlink_shown else Certainty.POSSIBLE,
    )
