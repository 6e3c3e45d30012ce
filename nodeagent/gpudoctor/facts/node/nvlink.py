"""How many NVLinks join two GPUs, from where NVML says that each link leads.

Behind NVSwitch a link's other end is a switch, so the GPUs reach each other with all their active
links; with bridges and in meshes it is the other GPU. A virtual machine may hide the switches:
then NVML knows no other end, and only a switch explains links to nowhere.
"""

from __future__ import annotations

from collections.abc import Sequence

from gpudoctor.facts.node.gpu import (
    REMOTE_SWITCH,
    REMOTE_UNKNOWN,
    Gpu,
    NotAvailable,
    NvLink,
)

_REGISTERED = 3


def between(one: Gpu, other: Gpu, gpus: Sequence[Gpu]) -> int:
    """Return the number of bonded NVLinks between two GPUs of a machine with these GPUs."""
    direct = sum(link.remote_pci == other.pci for link in _active(one))
    if direct:
        return direct
    if not _one_fabric(one, other):
        return 0
    return min(_to_switches(one, gpus), _to_switches(other, gpus))


def _active(gpu: Gpu) -> list[NvLink]:
    links = () if isinstance(gpu.links, NotAvailable) else gpu.links
    return [link for link in links if link.active]


def _to_switches(gpu: Gpu, gpus: Sequence[Gpu]) -> int:
    addresses = {other.pci for other in gpus}
    return sum(
        link.remote_type in (REMOTE_SWITCH, REMOTE_UNKNOWN) and link.remote_pci not in addresses
        for link in _active(gpu)
    )


def _one_fabric(one: Gpu, other: Gpu) -> bool:
    """Whether two GPUs are not known to belong to different cliques of the fabric."""
    known = [
        (gpu.fabric.cluster, gpu.fabric.clique)
        for gpu in (one, other)
        if not isinstance(gpu.fabric, NotAvailable) and gpu.fabric.state == _REGISTERED
    ]
    return len(known) < 2 or known[0] == known[1]
