"""PCIe, NVLink and NUMA: who is near to whom.

Good differs by platform: full NVLink on HGX, islands of two with bridges, a mesh of one and two
links on older boards, no near NIC on Grace trays, nothing at all in a virtual machine. So a GPU
is judged against its neighbours on the same board, and only where the matrix shows NVLink or near
NICs to compare with.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import msgspec

from gpudoctor.checking import CheckSet, Result, finding
from gpudoctor.facts.node import cpulist
from gpudoctor.facts.node.topology import Gpu, Topology, distance, nvlinks
from gpudoctor.report import Certainty, Evidence, Severity, Subject, Unknown

CHECKS = CheckSet()

_FULL_LINKS = frozenset({2, 3, 4, 6, 8, 12, 18})
"""NVLinks of a GPU by product: 18 H100 and later, 12 A100, 8 A800 and H800, 6 V100, fewer on
bridged cards."""

_SEVERAL_NICS = 3

_MESH_LINKS = 3
"""Hybrid cube meshes bond one to three links a pair; whatever bonds more is a full mesh."""


def device(topology: Topology, label: str) -> Subject:
    """Return the subject of a GPU or NIC of this machine."""
    return msgspec.structs.replace(topology.subject, device=label)


def _joint(topology: Topology, labels: list[str]) -> tuple[Subject, list[Subject]]:
    """Return the subject of one finding about several devices, and what else it concerns."""
    devices = [device(topology, label) for label in labels]
    return (devices[0], []) if len(devices) == 1 else (topology.subject, devices)


def _are(gpus: list[Gpu]) -> str:
    names = ", ".join(gpu.label for gpu in gpus)
    return f"{names} {'is' if len(gpus) == 1 else 'are'}"


def _row(topology: Topology, label: str, note: str | None = None) -> Evidence:
    cells = topology.matrix.get(label, {})
    value = " ".join(f"{other}={path}" for other, path in cells.items() if other != label)
    return Evidence(topology.source, label, value, note)


def _numa(gpus: list[Gpu]) -> str:
    nodes = {node for gpu in gpus for node in gpu.numa or ()}
    return cpulist.render(nodes)


@CHECKS.check(Topology)
def unreadable(topology: Topology) -> Iterator[Result]:
    """Rows of the table that cannot be trusted."""
    for row in topology.broken:
        yield finding(
            "topology-unreadable",
            device(topology, row.label),
            f"The row of {row.label} cannot be used: {row.why}. Nothing is concluded from it.",
            Evidence(topology.source, row.label, row.line or None, row.why),
            values={"row": row.label, "why": row.why},
        )
        yield Unknown(f"topology of {row.label}", row.why)


def _same_node_apart(topology: Topology) -> list[tuple[str, str]]:
    odd = {gpu.label for gpu in _odd(topology)}
    return [
        (one.label, other.label)
        for one, other, path in topology.gpu_pairs()
        if path == "SYS"
        and one.numa is not None
        and len(one.numa) == 1
        and one.numa == other.numa
        and not {one.label, other.label} & odd
    ]


def _flat(topology: Topology) -> str | None:
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


@CHECKS.check(Topology)
def hidden(topology: Topology) -> Iterator[Result]:
    """The machine shows a PCIe tree that cannot be the real one."""
    apart = _same_node_apart(topology)
    flat = _flat(topology)
    if apart:
        one, other = apart[0]
        why = (
            f"{one} and {other} share a NUMA node, yet their path is SYS, which by definition "
            f"leaves the node ({len(apart)} such pairs)"
        )
        evidence = _row(topology, one, "SYS inside one NUMA node")
    elif flat:
        why = f"every PCIe path is {flat}, and the GPUs are not on different NUMA nodes"
        evidence = _row(topology, topology.gpus[0].label, "all the same")
    else:
        return
    yield finding(
        "pcie-topology-hidden",
        topology.subject,
        f"The PCIe tree is hidden by the hypervisor or firmware: {why}. Distances between GPUs "
        "and NICs cannot be judged from here.",
        evidence,
    )


def _odd(topology: Topology) -> list[Gpu]:
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


@CHECKS.check(Topology)
def odd_one_out(topology: Topology) -> Iterator[Result]:
    """One GPU is far from all others while those are near to each other."""
    for gpu in _odd(topology):
        others = [other.label for other in topology.gpus if other is not gpu]
        yield finding(
            "gpu-odd-one-out",
            device(topology, gpu.label),
            f"{gpu.label} reaches {', '.join(others)} only across the inter-socket link (SYS), "
            "while those are nearer to each other: a job over all of them runs at the speed of "
            "that link.",
            _row(topology, gpu.label),
            values={"gpu": gpu.label},
        )


def _links(topology: Topology, one: Gpu, other: Gpu) -> int:
    """Return the NVLinks of a pair; where the two directions differ, the lower."""
    cells = (
        topology.matrix.get(one.label, {}).get(other.label),
        topology.matrix.get(other.label, {}).get(one.label),
    )
    return min((nvlinks(cell) for cell in cells if cell is not None), default=0)


@CHECKS.check(Topology)
def nvlink_asymmetric(topology: Topology) -> Iterator[Result]:
    """The two directions of a pair show different NVLink counts."""
    for one, other, there in topology.gpu_pairs():
        back = topology.matrix.get(other.label, {}).get(one.label, there)
        if back != there and (nvlinks(there) or nvlinks(back)):
            yield finding(
                "nvlink-asymmetric",
                device(topology, one.label),
                f"{one.label} to {other.label} is {there}, back it is {back}.",
                _row(topology, one.label),
                _row(topology, other.label),
                values={"one": one.label, "other": other.label, "there": there, "back": back},
                related=[device(topology, other.label)],
            )


def _with_nvlink(topology: Topology) -> list[Gpu]:
    linked = {label for island in topology.islands() for label in island}
    return [gpu for gpu in topology.gpus if gpu.label in linked and not gpu.is_partitioned]


def _is_mesh_of_few(topology: Topology) -> bool:
    counts = [nvlinks(path) for _, _, path in topology.gpu_pairs() if nvlinks(path)]
    return bool(counts) and max(counts) <= _MESH_LINKS


@CHECKS.check(Topology)
def bridge_missing(topology: Topology) -> Iterator[Result]:
    """Some PCIe cards are bridged in twos and others are not: perhaps a bridge is missing."""
    islands = topology.islands()
    linked = {label for island in islands for label in island}
    whole = [gpu for gpu in topology.gpus if not gpu.is_partitioned]
    without = [gpu.label for gpu in whole if gpu.label not in linked]
    in_twos = len(islands) > 1 and all(len(island) == 2 for island in islands)
    if not in_twos or topology.broken or len(without) != 2:
        return
    for label in without:
        yield finding(
            "nvlink-missing",
            device(topology, label),
            f"{len(linked)} GPUs are bridged in twos, {' and '.join(without)} are not: a bridge "
            "that was never fitted or is not seen, or partners that were given to another job.",
            _row(topology, label),
            values={"gpu": label},
            certainty=Certainty.POSSIBLE,
            severity=Severity.INFO,
        )


@CHECKS.check(Topology)
def nvlink_missing(topology: Topology) -> Iterator[Result]:
    """A GPU, or a pair, has no NVLink where its neighbours have it all to all."""
    islands = topology.islands()
    if _is_mesh_of_few(topology) or not islands:
        return
    biggest = max(len(island) for island in islands)
    if biggest < 3:
        return
    known = {gpu.label for gpu in topology.gpus} - {row.label for row in topology.broken}
    linked = {label for island in islands for label in island}
    # MIG switches NVLink off.
    whole = [gpu for gpu in topology.gpus if not gpu.is_partitioned]
    without = [gpu for gpu in whole if gpu.label in known - linked]
    for gpu in without:
        sure = len(without) < biggest
        yield finding(
            "nvlink-missing",
            device(topology, gpu.label),
            f"{gpu.label} has no NVLink to any GPU, while {biggest} others of this machine are "
            "joined by it.",
            _row(topology, gpu.label),
            values={"gpu": gpu.label},
            certainty=Certainty.LIKELY if sure else Certainty.POSSIBLE,
            severity=None if sure else Severity.WARNING,
        )
    yield from _missing_pairs(topology, islands)


def _missing_pairs(topology: Topology, islands: tuple[tuple[str, ...], ...]) -> Iterator[Result]:
    island_of = {label: island for island in islands for label in island}
    for one, other, path in topology.gpu_pairs():
        inside = other.label in island_of.get(one.label, ())
        if inside and not nvlinks(path):
            yield finding(
                "nvlink-missing",
                device(topology, one.label),
                f"{one.label} and {other.label} have no NVLink between them ({path}), while the "
                "other GPUs of their group are joined all to all.",
                _row(topology, one.label),
                values={"gpu": f"{one.label} to {other.label}"},
                certainty=Certainty.LIKELY,
                related=[device(topology, other.label)],
            )


@CHECKS.check(Topology)
def nvlink_degraded(topology: Topology) -> Iterator[Result]:
    """A GPU has fewer NVLinks than its neighbours, or all have a number no product has."""
    linked = _with_nvlink(topology)
    if len(linked) < 3:
        return
    if _is_mesh_of_few(topology):
        yield from _degraded_mesh(topology)
        return
    counts = {
        (one.label, other.label): count
        for index, one in enumerate(linked)
        for other in linked[index + 1 :]
        if (count := _links(topology, one, other))
    }
    most = max(counts.values())
    low = {pair: count for pair, count in counts.items() if count < most}
    culprits: set[str] = set()
    for gpu in linked:
        own = [count for pair, count in counts.items() if gpu.label in pair]
        if own and max(own) < most and len(own) > 1:
            culprits.add(gpu.label)
            yield _degraded(topology, gpu.label, max(own), most, gpu.label)
    for (one, other), count in low.items():
        if not {one, other} & culprits:
            yield _degraded(topology, one, count, most, f"{one} to {other}", other)
    if not low:
        yield from _degraded_alike(topology, linked, most)


def _degraded(
    topology: Topology, label: str, seen: int, full: int, what: str, other: str | None = None
) -> Result:
    return finding(
        "nvlink-degraded",
        device(topology, label),
        f"{what} has {seen} NVLinks where the others have {full}.",
        _row(topology, label),
        values={"gpu": what, "links": str(seen), "expected": str(full)},
        related=[device(topology, other)] if other else (),
    )


def _degraded_mesh(topology: Topology) -> Iterator[Result]:
    """In a whole hybrid cube mesh each GPU has the same number of links, shared out unevenly."""
    if len(topology.gpus) != 8 or topology.broken:
        return
    total = {
        gpu.label: sum(_links(topology, gpu, other) for other in topology.gpus if other is not gpu)
        for gpu in topology.gpus
    }
    full = max(total.values())
    for label, links in total.items():
        if links < full:
            yield _degraded(topology, label, links, full, label)


def _degraded_alike(topology: Topology, linked: list[Gpu], each: int) -> Iterator[Result]:
    complete = all(
        _links(topology, one, other)
        for index, one in enumerate(linked)
        for other in linked[index + 1 :]
    )
    peers = len(linked) - 1
    if peers < 3 or not complete or each >= max(_FULL_LINKS):
        return
    if each not in _FULL_LINKS and each * peers not in _FULL_LINKS:
        yield finding(
            "nvlink-degraded",
            topology.subject,
            f"Every pair of GPUs shows {each} NVLinks, which no product has: some links are down "
            "on all of them.",
            _row(topology, linked[0].label),
            values={
                "gpu": "every GPU",
                "links": str(each),
                "expected": str(min(full for full in _FULL_LINKS if full > each)),
            },
            certainty=Certainty.LIKELY,
        )


@CHECKS.check(Topology)
def over_host_bridge(topology: Topology) -> Iterator[Result]:
    """GPUs without NVLink reach each other only through the CPU's host bridge."""
    paths = Counter(path for _, _, path in topology.gpu_pairs())
    crossing = paths["PHB"] + paths["NODE"]
    if not crossing or any(nvlinks(path) for path in paths):
        return
    if _flat(topology) or _same_node_apart(topology):
        return
    yield finding(
        "gpu-p2p-over-host-bridge",
        topology.subject,
        f"{crossing} of {paths.total()} pairs of GPUs meet at the host bridge (PHB, NODE): peer "
        "traffic passes the CPU. Usual for PCIe boxes without bridges; `topo -mp` also looks so.",
        _row(topology, topology.gpus[0].label),
        values={"pairs": str(crossing)},
        certainty=Certainty.LIKELY if topology.nvlink_shown else Certainty.POSSIBLE,
    )


def _relays(topology: Topology, gpu: Gpu, reach: int) -> list[str]:
    """Return the NVLink neighbours of a GPU that have a NIC within this distance (PXN)."""
    return [
        other.label
        for other in topology.gpus
        if other is not gpu
        and _links(topology, gpu, other)
        and _nearest(topology, other) is not None
        and (_nearest(topology, other) or 0) <= reach
    ]


def _nearest(topology: Topology, gpu: Gpu) -> int | None:
    return min(map(distance, topology.nic_paths(gpu).values()), default=None)


_PXB = distance("PXB")
_SYS = distance("SYS")


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
        subject, related = _joint(topology, labels)
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
            *(_row(topology, label) for label in labels),
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
    subject, related = _joint(topology, names)
    yield finding(
        "nic-far-from-gpus",
        subject,
        f"{', '.join(names)}: at PIX or PXB of no GPU shown here: front-end or storage NICs, or "
        "NICs that belong to GPUs of another job.",
        *(_row(topology, nic.label) for nic in far),
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
    if _flat(topology) or _same_node_apart(topology):
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
        subject, related = _joint(topology, labels)
        others = sorted({_relays(topology, gpu, _SYS - 1)[0] for gpu in gpus}) if joined else []
        yield finding(
            "gpu-nic-cross-numa",
            subject,
            f"{_are(gpus)} on NUMA node {_numa(gpus)}; all {len(topology.nics)} RDMA NICs are "
            "across the inter-socket link (SYS)."
            + (f" NVLink leads to {', '.join(others)}, nearer to one." if joined else ""),
            *(_row(topology, label) for label in labels),
            values={"gpu": ", ".join(labels), "node": _numa(gpus)},
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
            device(topology, nics[0]),
            f"{names} share {', '.join(nics)}"
            + (
                "; other GPUs of this machine have a larger share: a NIC may be missing here."
                if share[nics] < best
                else ": the design of this board, each GPU gets a part of its rate."
            ),
            *(_row(topology, gpu.label) for gpu in gpus),
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
        subject, related = _joint(topology, labels)
        yield finding(
            "no-local-cpus-for-gpu",
            subject,
            f"{_are(gpus)} on NUMA node {_numa(gpus)}, but none of that node's CPUs is in the "
            "cpuset of this container: its processes feed "
            f"{'it' if len(gpus) == 1 else 'them'} over the link between the sockets.",
            *(Evidence(topology.source, f"{label} CPU Affinity", "", "empty") for label in labels),
            values={"gpu": ", ".join(labels), "node": _numa(gpus)},
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
            topology.subject if everywhere else device(topology, unknown[0]),
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
