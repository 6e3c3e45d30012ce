"""Which RDMA adapters of a machine are there for its GPUs.

Clouds show the Ethernet NIC of a virtual machine as an RDMA device, and a storage NIC is one, too:
neither means that jobs should use RDMA. An InfiniBand port that is up does, and so does a NIC
beside a GPU.
"""

from __future__ import annotations

from collections.abc import Iterable

from gpudoctor.facts.node.model import Hca, NodeFacts


def rails(machine: NodeFacts) -> tuple[Hca, ...]:
    """Return the adapters with a port that is up, on InfiniBand or at PIX or PXB of a GPU."""
    topology = machine.topology
    gpus = topology.gpus if topology is not None else ()
    near = {name for gpu in gpus for name in (topology.near_nics(gpu) if topology else ())}
    return tuple(
        hca
        for hca in machine.hcas or ()
        if any(
            port.is_active and (port.link_layer == "InfiniBand" or hca.name in near)
            for port in hca.ports
        )
    )


def told(machine: NodeFacts) -> tuple[str, ...]:
    """Say which there are, as what speaks for RDMA on this machine; nothing if there is none."""
    names = ", ".join(hca.name for hca in rails(machine))
    return (f"{machine.subject} has {names} with ports that are up",) if names else ()


_WITHOUT_GDR = ("GeForce", "GB10")


def no_gdr(machines: Iterable[NodeFacts]) -> str:
    """Say which GPUs have no GPUDirect RDMA by design; nothing unless none of the machines' has."""
    models = {name for machine in machines for name in _models(machine)}
    if not models or not all(any(kind in name for kind in _WITHOUT_GDR) for name in models):
        return ""
    return f"{', '.join(sorted(models))} has no GPUDirect RDMA by design"


def _models(machine: NodeFacts) -> Iterable[str]:
    """The models of a machine's GPUs; a name that is none where one is not known."""
    known = machine.models or {}
    return (known.get(gpu.address, "?") for gpu in machine.gpus)
