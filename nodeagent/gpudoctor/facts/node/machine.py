"""Puts together what a host or container has, from any `Host`."""

from __future__ import annotations

import json

from gpudoctor.facts.node import acs, gpudirect, pci, process, rdma, topology_text
from gpudoctor.facts.node.model import Hca, NodeFacts, NumaNode, PciDevice
from gpudoctor.facts.node.topology import Gpu, Nic, Topology
from gpudoctor.report import Subject
from gpudoctor.sources.host import Host, text


def read(host: Host, subject: Subject, later: Host | None = None) -> NodeFacts:
    """Read all facts of a host. `later` is a second observation, for the growth of counters."""
    devices, whole = pci.read_devices(host)
    by_address = {device.address: device for device in devices}
    hcas = rdma.read_hcas(host, by_address, later)
    verbs, verbs_whole = rdma.read_nodes(host)
    given = pci.given_gpus(host)
    busy, idle = pci.busy_and_idle(host, given)
    gpus = tuple(
        device for device in devices if device.is_gpu and (not given or device.address in given)
    )
    nics = tuple(hca.pci for hca in hcas or () if hca.pci is not None)
    nodes = process.numa_nodes(host)
    return NodeFacts(
        subject=subject,
        pci=devices,
        pci_whole=whole,
        given=given,
        busy=busy,
        idle=idle,
        hcas=hcas,
        verbs=verbs,
        verbs_whole=verbs_whole,
        rdma_shared=rdma.netns_shared(host),
        process=process.read_process(host, process.workload_pid(host)),
        numa=nodes,
        cpu_policy=_cpu_policy(host),
        gpudirect=gpudirect.read(host),
        acs=acs.read_acs(host, devices),
        iommu=acs.read_iommu(host, gpus + nics),
        virtual=acs.is_virtual(host),
        driver_gpus=pci.driver_gpus(host),
        models=pci.models(host),
        hugepages=process.huge_pages(host),
        in_container=process.in_container(host),
        topology=_topology(host, subject, gpus, hcas or (), by_address, nodes, listed=whole),
    )


def _cpu_policy(host: Host) -> str | None:
    """Return the kubelet's CPU manager policy from its state file."""
    try:
        state = json.loads(text(host, "/var/lib/kubelet/cpu_manager_state") or "null")
    except ValueError:
        return None
    policy = state.get("policyName") if isinstance(state, dict) else None
    return policy if isinstance(policy, str) else None


def _topology(
    host: Host,
    subject: Subject,
    gpus: tuple[PciDevice, ...],
    hcas: tuple[Hca, ...],
    devices: dict[str, PciDevice],
    nodes: tuple[NumaNode, ...],
    *,
    listed: bool,
) -> Topology | None:
    """Return the topology by `nvidia-smi topo -m`, else by sysfs; no GPU, no program started."""
    printed = host.run(["nvidia-smi", "topo", "-m"]) if gpus or not listed else None
    if isinstance(printed, str):
        parsed = topology_text.parse(printed, subject)
        if parsed is not None:
            return parsed
    placed = [gpu for gpu in gpus if gpu.root is not None]
    return from_sysfs(subject, tuple(placed), hcas, devices, nodes) if placed else None


def from_sysfs(
    subject: Subject,
    gpus: tuple[PciDevice, ...],
    hcas: tuple[Hca, ...],
    devices: dict[str, PciDevice],
    nodes: tuple[NumaNode, ...],
    source: str = pci.DEVICES,
) -> Topology:
    """Build the topology from where PCI devices hang; NVLink cannot be seen there.

    GPUs are numbered by address, as the driver does without CUDA_DEVICE_ORDER.
    """
    labels = {gpu.address: f"GPU{index}" for index, gpu in enumerate(gpus)}
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
            path = "X" if one == other else pci.path_between(here, there, with_cpus)
            if path is not None:
                matrix[one][other] = path
    return Topology(
        subject=subject,
        source=source,
        gpus=tuple(_place(labels[gpu.address], gpu) for gpu in gpus),
        nics=tuple(names),
        matrix=matrix,
        nvlink_shown=False,
        numa_shown=any(gpu.numa is not None for gpu in gpus),
    )


def _place(label: str, gpu: PciDevice) -> Gpu:
    known = gpu.numa is not None and gpu.numa >= 0
    return Gpu(label=label, numa=(gpu.numa,) if known and gpu.numa is not None else None)
