"""A machine's topology by the best source that is there: NVML, `nvidia-smi topo -m`, or sysfs.

NVML knows NVLink and the paths between GPUs, sysfs the NICs; together they tell what the tool
prints, and no program has to be started. The tool is asked where NVML did not answer.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from gpudoctor.facts.node import cpulist, nvlink, pci, topology_text
from gpudoctor.facts.node.gpu import Gpu as NvmlGpu
from gpudoctor.facts.node.gpu import NodeGpus, NotAvailable
from gpudoctor.facts.node.model import Hca, NodeFacts, NumaNode, PciDevice
from gpudoctor.facts.node.topology import SELF, Gpu, MigPlace, Nic, Topology
from gpudoctor.report import Subject
from gpudoctor.sources.host import Host

SYSFS = pci.DEVICES
_SOURCE = f"NVML and {SYSFS}"
_TOOL = ("nvidia-smi", "topo", "-m")
_ANCESTORS = {0: "PIX", 10: "PIX", 20: "PXB", 30: "PHB", 40: "NODE", 50: "SYS"}
"""NVML's levels of a common ancestor; 0 is a switch on the board of both."""


def read(host: Host, facts: NodeFacts, gpus: NodeGpus | None) -> Topology | None:
    """Return the topology; None where no GPU is known. No GPU, no program started."""
    if gpus is not None and (reached := _with_links(gpus)):
        return _with_nvml(facts, reached)
    if facts.own_gpus or not facts.pci_whole:
        printed = host.run(_TOOL)
        parsed = topology_text.parse(printed, facts.subject) if isinstance(printed, str) else None
        if parsed is not None:
            return parsed
    placed = tuple(gpu for gpu in facts.own_gpus if gpu.root is not None)
    if not placed:
        return None
    devices = {device.address: device for device in facts.pci}
    return from_sysfs(
        facts.subject, placed, facts.hcas or (), devices, facts.numa, allowed=_allowed(facts)
    )


def _with_links(gpus: NodeGpus) -> tuple[NvmlGpu, ...]:
    """Return the GPUs that NVML lets us at, none if it did not tell where each is and leads to.

    A part without NVLink is no gap; a lost GPU leaves the others.
    """
    reached = tuple(gpu for gpu in gpus.gpus if gpu.handle is None)
    told = gpus.hung_in is None and all(
        isinstance(gpu.pci, str) and (not isinstance(gpu.links, NotAvailable) or gpu.links.normal)
        for gpu in reached
    )
    return reached if told else ()


def _allowed(facts: NodeFacts) -> frozenset[int] | None:
    """Return the CPUs that bound what is near: those of the container, not of a host's shell."""
    return facts.process.cpus if facts.in_container and facts.process is not None else None


def _with_nvml(facts: NodeFacts, gpus: Sequence[NvmlGpu]) -> Topology:
    devices = {device.address: device for device in facts.pci}
    addresses = [str(gpu.pci) for gpu in gpus]
    base = from_sysfs(
        facts.subject,
        tuple(devices.get(at) or PciDevice(address=at, vendor=0, class_=0) for at in addresses),
        facts.hcas or (),
        devices,
        facts.numa,
        _SOURCE,
        allowed=_allowed(facts),
        numbers=[gpu.index for gpu in gpus],
    )
    matrix = {label: dict(row) for label, row in base.matrix.items()}
    for one in gpus:
        for other in gpus:
            if one is not other and (path := _between(one, other, gpus)) is not None:
                matrix[f"GPU{one.index}"][f"GPU{other.index}"] = path
    placed = tuple(
        _by_nvml(place, gpu, _allowed(facts)) for place, gpu in zip(base.gpus, gpus, strict=True)
    )
    return msgspec.structs.replace(
        base,
        gpus=placed,
        matrix=matrix,
        nvlink_shown=True,
        numa_shown=base.numa_shown or any(gpu.numa is not None for gpu in placed),
        mig=tuple(_mig(gpus)),
    )


def _between(one: NvmlGpu, other: NvmlGpu, gpus: Sequence[NvmlGpu]) -> str | None:
    """Return the path as the tool has it: NVLink where there is one, else the PCIe ancestor."""
    if count := nvlink.between(one, other, gpus):
        return f"NV{count}"
    if isinstance(one.ancestors, NotAvailable) or other.index >= len(one.ancestors):
        return None
    level = one.ancestors[other.index]
    return None if level is None else _ANCESTORS.get(level)


def _by_nvml(place: Gpu, gpu: NvmlGpu, allowed: frozenset[int] | None) -> Gpu:
    """Fill in what sysfs does not say: a container may be without it, Grace has memory nodes."""
    numa, cpus = place.numa, place.cpus
    if numa is None and not isinstance(gpu.numa, NotAvailable) and gpu.numa:
        numa = tuple(sorted(gpu.numa))
    if cpus is None and not isinstance(gpu.cpus, NotAvailable) and gpu.cpus:
        cpus = gpu.cpus if allowed is None else gpu.cpus & allowed
    return msgspec.structs.replace(
        place,
        numa=numa,
        cpus=cpus,
        cpus_text=cpulist.render(cpus) if cpus else "",
        memory_node=None if isinstance(gpu.memory_node, NotAvailable) else gpu.memory_node,
        is_partitioned=not isinstance(gpu.mig_mode, NotAvailable) and gpu.mig_mode.current,
    )


def _mig(gpus: Sequence[NvmlGpu]) -> list[MigPlace]:
    return [
        MigPlace(
            uuid=device.uuid,
            gpu=f"GPU{gpu.index}",
            profile=device.profile,
            gpu_instance=device.gpu_instance,
            compute_instance=device.compute_instance,
        )
        for gpu in gpus
        if not isinstance(gpu.mig_devices, NotAvailable)
        for device in gpu.mig_devices
    ]


def from_sysfs(
    subject: Subject,
    gpus: tuple[PciDevice, ...],
    hcas: tuple[Hca, ...],
    devices: dict[str, PciDevice],
    nodes: tuple[NumaNode, ...],
    source: str = SYSFS,
    allowed: frozenset[int] | None = None,
    numbers: Sequence[int] | None = None,
) -> Topology:
    """Build the topology from where PCI devices hang; NVLink cannot be seen there.

    `numbers` are the driver's numbers of the GPUs; without them they are numbered in the order
    given, by address as the driver does. `allowed` bounds the CPUs that are shown, as a
    container's cpuset does.
    """
    order = numbers if numbers is not None else range(len(gpus))
    labels = {gpu.address: f"GPU{number}" for number, gpu in zip(order, gpus, strict=True)}
    placed = {labels[gpu.address]: gpu for gpu in gpus}
    names: list[Nic] = []
    for hca in hcas:
        if hca.pci is not None and hca.pci.root is not None:
            label = f"NIC{len(names)}"
            placed[label] = pci.physical_function(hca.pci, devices)
            names.append(Nic(label, hca.name))
    with_cpus = sum(1 for node in nodes if node.cpus)
    matrix: dict[str, dict[str, str]] = {}
    for one, here in placed.items():
        matrix[one] = {}
        for other, there in placed.items():
            path = SELF if one == other else pci.path_between(here, there, with_cpus)
            if path is not None:
                matrix[one][other] = path
    return Topology(
        subject=subject,
        source=source,
        gpus=tuple(_place(labels[gpu.address], gpu, allowed) for gpu in gpus),
        nics=tuple(names),
        matrix=matrix,
        nvlink_shown=False,
        numa_shown=any(gpu.numa is not None for gpu in gpus),
    )


def _place(label: str, gpu: PciDevice, allowed: frozenset[int] | None) -> Gpu:
    known = gpu.numa is not None and gpu.numa >= 0
    cpus = gpu.cpus if gpu.cpus is None or allowed is None else gpu.cpus & allowed
    return Gpu(
        label=label,
        cpus=cpus,
        cpus_text=cpulist.render(cpus) if cpus else "",
        numa=(gpu.numa,) if known and gpu.numa is not None else None,
    )
