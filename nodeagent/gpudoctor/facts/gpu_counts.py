"""How many GPUs a node advertises, and how many its machine has: only together do they tell.

They can be compared where one device of `nvidia.com/gpu` is one whole card: not with MIG, with
time-slicing, MPS or HAMi replicas, nor with GPUs that are handed to virtual machines.
Source: k8s-device-plugin (one device a card unless `sharing` or `migStrategy` say otherwise).
"""

from __future__ import annotations

import msgspec

from gpudoctor.facts.kubernetes import vgpu
from gpudoctor.facts.kubernetes.model import Node
from gpudoctor.facts.kubernetes.sharing import PRODUCT
from gpudoctor.facts.node.gpu import Gpu, Modes, NodeGpus
from gpudoctor.facts.node.model import NodeFacts
from gpudoctor.report import Evidence

RESOURCE = "nvidia.com/gpu"
_MIG, _REPLICAS, _SHARING = "nvidia.com/mig-", "nvidia.com/gpu.replicas", "-SHARED"
_STRATEGY = "nvidia.com/gpu.sharing-strategy"
_PASSED_ON = "vfio-pci"


class GpuCounts(msgspec.Struct, frozen=True, kw_only=True):
    """The node's counts of whole cards, healthy (`allocatable`) and in all, and its machine's.

    `cards` are the addresses on the PCI bus, `usable` how many of them whoever knows least of
    them has, and `told_by` where that stands.
    """

    node: Node
    allocatable: int
    capacity: int
    cards: tuple[str, ...]
    usable: int
    told_by: Evidence


def read(node: Node, machine: NodeFacts, gpus: NodeGpus | None) -> GpuCounts | None:
    """Return the counts, None where they cannot be known or compared."""
    capacity = node.capacity.get(RESOURCE)
    if capacity is None or not machine.pci_whole or not _is_whole_cards(node, gpus):
        return None
    cards = tuple(gpu.address for gpu in machine.gpus if gpu.driver != _PASSED_ON)
    if len(cards) != len(machine.gpus):
        return None
    told = [Evidence("/sys/bus/pci/devices", None, str(len(cards)), "NVIDIA GPUs on the bus")]
    if machine.driver_gpus is not None:
        count = str(len(machine.driver_gpus))
        told.append(Evidence("/proc/driver/nvidia/gpus", None, count, "GPUs that the driver has"))
    if gpus is not None and isinstance(gpus.count, int):
        told.append(Evidence("NVML", "device count", str(gpus.count), "GPUs that NVML counts"))
    least = min(told, key=lambda evidence: int(evidence.value or 0))
    return GpuCounts(
        node=node,
        allocatable=int(node.allocatable.get(RESOURCE, 0)),
        capacity=int(capacity),
        cards=cards,
        usable=int(least.value or 0),
        told_by=least,
    )


def _is_whole_cards(node: Node, gpus: NodeGpus | None) -> bool:
    labels = node.labels
    shared = (
        labels.get(_REPLICAS, "1") not in ("", "0", "1")
        or labels.get(_STRATEGY, "none") not in ("", "none")
        or labels.get(PRODUCT, "").endswith(_SHARING)
        or vgpu.register(node) is not None
    )
    mig = (
        any(name.startswith(_MIG) for name in node.capacity)
        or "-MIG-" in labels.get(PRODUCT, "")
        or any(isinstance(gpu.mig_mode, Modes) and gpu.mig_mode.current for gpu in _each(gpus))
    )
    return not shared and not mig


def _each(gpus: NodeGpus | None) -> tuple[Gpu, ...]:
    return gpus.gpus if gpus is not None else ()
