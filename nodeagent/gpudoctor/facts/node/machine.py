"""Puts together what a host or container has, from any `Host`, NVML, udev and psutil."""

from __future__ import annotations

import json

import msgspec

from gpudoctor.facts.node import acs, driver_files, gpudirect, pci, process, rdma, topology_reader
from gpudoctor.facts.node.gpu import NodeGpus, NotAvailable
from gpudoctor.facts.node.model import MigDevice, NodeFacts, Process
from gpudoctor.facts.node.system import System
from gpudoctor.report import Subject
from gpudoctor.sources.host import Host, text

_IDLE = 0x1
"""The bit of NVML's clocks event reasons that says that nothing runs."""


def read(host: Host, subject: Subject, later: Host | None = None) -> NodeFacts:
    """Read all facts of a host but its topology, which `with_gpus` adds.

    `later` is a second observation, for the growth of counters.
    """
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
        numa=process.numa_nodes(host),
        cpu_policy=_cpu_policy(host),
        gpudirect=gpudirect.read(host),
        driver_files=driver_files.read(host),
        acs=acs.read_acs(host, devices),
        iommu=acs.read_iommu(host, gpus + nics),
        virtual=acs.is_virtual(host),
        driver_gpus=pci.driver_gpus(host),
        models=pci.models(host),
        hugepages=process.huge_pages(host),
        in_container=process.in_container(host),
    )


def with_system(host: Host, facts: NodeFacts, system: System) -> NodeFacts:
    """Add what udev and psutil know of our own machine: names, interfaces, limits.

    A device that udev enumerates and the listing did not show is read like the others.
    """
    devices = {device.name: device for device in system.devices or () if device.subsystem == "pci"}
    known = {device.address for device in facts.pci}
    more = [pci.read_device(host, name) for name in sorted(devices.keys() - known)]
    found = [*facts.pci, *(device for device in more if device is not None)]
    named = tuple(
        msgspec.structs.replace(
            device, model=devices[device.address].model if device.address in devices else None
        )
        for device in found
    )
    hcas = tuple(
        msgspec.structs.replace(
            hca, interfaces=system.interfaces_of(hca.pci.address) if hca.pci is not None else ()
        )
        for hca in facts.hcas or ()
    )
    return msgspec.structs.replace(
        facts,
        pci=named,
        pci_whole=facts.pci_whole or bool(devices),
        hcas=None if facts.hcas is None else hcas,
        process=_with_limits(facts.process, system),
        interfaces=system.interfaces,
    )


def _with_limits(process: Process | None, system: System) -> Process | None:
    """Fill in our own limits where /proc did not show them, as behind a masked /proc."""
    limits = (system.limits or {}).get("memlock")
    if process is None or process.pid != "self" or process.memlock_soft is not None or not limits:
        return process
    return msgspec.structs.replace(process, memlock_soft=limits[0], memlock_hard=limits[1])


def _cpu_policy(host: Host) -> str | None:
    """Return the kubelet's CPU manager policy from its state file."""
    try:
        state = json.loads(text(host, "/var/lib/kubelet/cpu_manager_state") or "null")
    except ValueError:
        return None
    policy = state.get("policyName") if isinstance(state, dict) else None
    return policy if isinstance(policy, str) else None


def with_gpus(host: Host, facts: NodeFacts, gpus: NodeGpus | None) -> NodeFacts:
    """Add what NVML alone knows, and the topology by the best source that there is."""
    found = gpus.gpus if gpus is not None else ()
    at = {gpu.pci: gpu for gpu in found if isinstance(gpu.pci, str)}
    working = {
        address: not gpu.clock_reasons & _IDLE
        for address, gpu in at.items()
        if isinstance(gpu.clock_reasons, int)
    }
    return msgspec.structs.replace(
        facts,
        busy=facts.busy | {address for address, works in working.items() if works},
        idle=facts.idle | {address for address, works in working.items() if not works},
        mig=tuple(
            MigDevice(
                uuid=instance.uuid,
                gpu=address,
                index=instance.index,
                profile=instance.profile,
                gpu_instance=instance.gpu_instance,
                compute_instance=instance.compute_instance,
            )
            for address, gpu in at.items()
            if not isinstance(gpu.mig_devices, NotAvailable)
            for instance in gpu.mig_devices
        ),
        topology=topology_reader.read(host, facts, gpus),
    )
