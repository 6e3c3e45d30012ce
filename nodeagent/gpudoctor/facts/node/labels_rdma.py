"""The node labels about RDMA: which kind, how many rails of which rate, how near to the GPUs.

A rail is a port that carries traffic. A node may have further ones for storage: those of the
rate that most have are the rails that jobs use.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import msgspec

from gpudoctor.facts.node.model import Hca, NodeFacts, Port
from gpudoctor.facts.node.topology import PATHS, Topology, distance
from gpudoctor.facts.node.value import Value, known, unknown

_KINDS = {"InfiniBand": "ib", "Ethernet": "roce"}


class _Rail(msgspec.Struct, frozen=True, order=True):
    kind: str
    rate: float
    device: str
    port: str


def rdma_labels(facts: NodeFacts) -> dict[str, Value]:
    """Return `rdma`, `rdma-rails`, `rdma-gbps` and `gpu-nic`."""
    names = ("rdma", "rdma-rails", "rdma-gbps", "gpu-nic")
    if facts.hcas is None:
        return dict.fromkeys(names, unknown("/sys/class/infiniband could not be read"))
    if not facts.hcas:
        return _none("no RDMA device is in /sys/class/infiniband")
    ports = list(_ports(facts.hcas))
    rails = [rail for rail in (_rail(hca, port) for hca, port in ports) if rail is not None]
    if not rails:
        if any(port.is_active is not False for _, port in ports):
            return dict.fromkeys(names, unknown("the state of the RDMA ports could not be read"))
        return _none(f"none of {len(ports)} ports of {len(facts.hcas)} RDMA devices is active")
    (kind, rate), chosen = _chosen(rails)
    where = f"{len(chosen)} of {len(ports)} ports are active {kind} at {rate:g} Gb/s"
    return {
        "rdma": known(kind, where),
        "rdma-rails": known(len(chosen), where),
        "rdma-gbps": known(int(rate), where),
        "gpu-nic": _gpu_nic(facts.topology, {rail.device for rail in chosen}),
    }


def _none(why: str) -> dict[str, Value]:
    return {
        "rdma": known("none", why),
        "rdma-rails": known(0, why),
        "rdma-gbps": unknown(why),
        "gpu-nic": unknown(why),
    }


def _ports(hcas: tuple[Hca, ...]) -> Iterator[tuple[Hca, Port]]:
    """The ports of cards; those of virtual functions beside their card are the same ports."""
    cards = {hca.pci.address for hca in hcas if hca.pci is not None}
    for hca in hcas:
        if hca.pci is None or hca.pci.physical not in cards:
            yield from ((hca, port) for port in hca.ports)


def _rail(hca: Hca, port: Port) -> _Rail | None:
    kind = "efa" if hca.is_efa else _KINDS.get(port.link_layer or "")
    if kind is None or not port.is_active or not port.rate:
        return None
    return _Rail(kind, port.rate, hca.name, port.number)


def _chosen(rails: list[_Rail]) -> tuple[tuple[str, float], list[_Rail]]:
    """The kind and rate that most rails have, the faster where two are as many."""
    counts = Counter((rail.kind, rail.rate) for rail in rails)
    best = max(counts, key=lambda key: (counts[key], key[1], key[0]))
    return best, [rail for rail in rails if (rail.kind, rail.rate) == best]


def _gpu_nic(topology: Topology | None, devices: set[str]) -> Value:
    """The path to the nearest rail of the GPU that is farthest from any."""
    if topology is None or not topology.gpus:
        return unknown("where GPUs and NICs hang could not be read")
    nearest: dict[str, str] = {}
    for gpu in topology.gpus:
        paths = [
            path
            for nic in topology.nics
            if nic.device in devices
            and (path := topology.path(gpu.label, nic.label)) in PATHS
            and path is not None
        ]
        if not paths:
            return unknown(f"the path from {gpu.label} to a NIC is not known ({topology.source})")
        nearest[gpu.label] = min(paths, key=distance)
    worst = max(nearest, key=lambda label: distance(nearest[label]))
    return known(nearest[worst].lower(), f"{worst} reaches its nearest rail over {nearest[worst]}")
