"""What the rules over a topology share: its devices as subjects, its rows as evidence."""

from __future__ import annotations

import msgspec

from gpudoctor.facts.node import cpulist
from gpudoctor.facts.node.topology import Gpu, Topology, nvlinks
from gpudoctor.report import Evidence, Subject

_SEVERAL_NICS = 3


def device(topology: Topology, label: str) -> Subject:
    """Return the subject of a GPU or NIC of this machine."""
    return msgspec.structs.replace(topology.subject, device=label)


def joint(topology: Topology, labels: list[str]) -> tuple[Subject, list[Subject]]:
    """Return the subject of one finding about several devices, and what else it concerns."""
    devices = [device(topology, label) for label in labels]
    return (devices[0], []) if len(devices) == 1 else (topology.subject, devices)


def are(gpus: list[Gpu]) -> str:
    """Return the labels of GPUs with the verb that fits their number."""
    names = ", ".join(gpu.label for gpu in gpus)
    return f"{names} {'is' if len(gpus) == 1 else 'are'}"


def row(topology: Topology, label: str, note: str | None = None) -> Evidence:
    """Return a row of the matrix."""
    cells = topology.matrix.get(label, {})
    value = " ".join(f"{other}={path}" for other, path in cells.items() if other != label)
    return Evidence(topology.source, label, value, note)


def nodes_of(gpus: list[Gpu]) -> str:
    """Return the NUMA nodes of GPUs as a list."""
    nodes = {node for gpu in gpus for node in gpu.numa or ()}
    return cpulist.render(nodes)


def same_node_apart(topology: Topology) -> list[tuple[str, str]]:
    """Return the pairs that share a NUMA node and yet are SYS, but for a GPU that is apart."""
    alone = {gpu.label for gpu in odd(topology)}
    return [
        (one.label, other.label)
        for one, other, path in topology.gpu_pairs()
        if path == "SYS"
        and one.numa is not None
        and len(one.numa) == 1
        and one.numa == other.numa
        and not {one.label, other.label} & alone
    ]


def flat(topology: Topology) -> str | None:
    """Return the one path that all PCIe cells show where that cannot be.

    That is a machine that knows no NUMA node, or one node on which several NICs are SYS from
    everything, each other too.
    """
    if not topology.numa_shown:
        return None
    paths = [path for _, _, path in topology.gpu_pairs() if not nvlinks(path)]
    paths += [path for gpu in topology.gpus for path in topology.nic_paths(gpu).values()]
    nodes = {gpu.numa for gpu in topology.gpus}
    if nodes == {None}:
        return paths[0] if len(paths) > 1 and set(paths) in ({"PHB"}, {"SYS"}) else None
    paths += [path for _, _, path in topology.nic_pairs()]
    alike = len(nodes) == 1 and len(topology.nics) >= _SEVERAL_NICS
    return "SYS" if alike and set(paths) == {"SYS"} else None


def odd(topology: Topology) -> list[Gpu]:
    """Return the GPU that is SYS from all others while those are nearer to each other."""
    if len(topology.gpus) < 3:
        return []
    far = {gpu.label: True for gpu in topology.gpus}
    pairs = list(topology.gpu_pairs())
    for one, other, path in pairs:
        if path != "SYS":
            far[one.label] = far[other.label] = False
    alone = [gpu for gpu in topology.gpus if far[gpu.label]]
    if len(alone) != 1 or not pairs:
        return []
    rest = [path for one, other, path in pairs if alone[0] not in (one, other)]
    return alone if rest and all(path != "SYS" for path in rest) else []


def links(topology: Topology, one: Gpu, other: Gpu) -> int:
    """Return the NVLinks of a pair; where the two directions differ, the lower."""
    cells = (
        topology.matrix.get(one.label, {}).get(other.label),
        topology.matrix.get(other.label, {}).get(one.label),
    )
    return min((nvlinks(cell) for cell in cells if cell is not None), default=0)
