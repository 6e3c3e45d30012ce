"""CPUs and memory of the workload against the NUMA nodes of its GPUs."""

from __future__ import annotations

from collections.abc import Iterator

from gpudoctor.checking import CheckSet, Result, finding
from gpudoctor.facts.node import cpulist
from gpudoctor.facts.node.model import NodeFacts, PciDevice, Process, WorkloadFacts
from gpudoctor.report import Evidence, Unknown
from gpudoctor_checks.pcie import on

CHECKS = CheckSet()


def _local(facts: WorkloadFacts, gpu: PciDevice) -> frozenset[int] | None:
    """Return the CPUs near to a GPU: its own list, else those of its NUMA node."""
    if gpu.cpus:
        return gpu.cpus
    return next((node.cpus for node in facts.numa if node.number == gpu.numa and node.cpus), None)


def _allowed(process: Process) -> Evidence:
    value = cpulist.render(process.cpus or ())
    return Evidence(f"/proc/{process.pid}/status", "Cpus_allowed_list", value)


def _names(gpus: list[PciDevice]) -> str:
    return ", ".join(gpu.address for gpu in gpus)


@CHECKS.check(WorkloadFacts)
def cpus(facts: WorkloadFacts) -> Iterator[Result]:
    """The process may use no CPU near to one of its GPUs."""
    process = facts.process
    if process is None or process.cpus is None:
        return
    remote = [
        gpu
        for gpu in facts.own_gpus
        if (local := _local(facts, gpu)) is not None and not local & process.cpus
    ]
    if not remote:
        return
    if facts.given is None and len(remote) < len(facts.gpus):
        yield Unknown(
            "GPUs of this container",
            f"it may use CPUs {cpulist.render(process.cpus)}, far from {_names(remote)}, but "
            "which GPUs it was given is not known",
        )
        return
    nodes = cpulist.render({gpu.numa for gpu in remote if gpu.numa is not None and gpu.numa >= 0})
    yield finding(
        "cpu-gpu-cross-numa",
        facts.subject,
        f"CPUs {cpulist.render(process.cpus)} are all on another NUMA node than {_names(remote)} "
        f"(node {nodes})."
        + (f" The kubelet's CPU manager policy is {facts.cpu_policy}." if facts.cpu_policy else ""),
        _allowed(process),
        *(
            Evidence(
                f"/sys/bus/pci/devices/{gpu.address}",
                "local_cpulist",
                cpulist.render(_local(facts, gpu) or ()),
                f"numa_node {gpu.numa}",
            )
            for gpu in remote
        ),
        values={"gpus": _names(remote), "node": nodes},
        related=[on(facts, gpu.address) for gpu in remote],
    )


@CHECKS.check(WorkloadFacts)
def memory(facts: WorkloadFacts) -> Iterator[Result]:
    """The process may not allocate memory on the NUMA node of one of its GPUs."""
    process = facts.process
    if process is None or process.memory_nodes is None:
        return
    if facts.given is None and len({gpu.numa for gpu in facts.gpus}) > 1:
        return  # which of them are its own is not known
    remote = [
        gpu
        for gpu in facts.own_gpus
        if gpu.numa is not None and gpu.numa >= 0 and gpu.numa not in process.memory_nodes
    ]
    if remote:
        nodes = cpulist.render(process.memory_nodes)
        yield finding(
            "memory-cross-numa",
            facts.subject,
            f"Memory comes from NUMA node {nodes} only; {_names(remote)} are on node "
            f"{cpulist.render({gpu.numa for gpu in remote if gpu.numa is not None})}.",
            Evidence(f"/proc/{process.pid}/status", "Mems_allowed_list", nodes),
            *(
                Evidence(f"/sys/bus/pci/devices/{gpu.address}", "numa_node", str(gpu.numa))
                for gpu in remote
            ),
            values={"gpus": _names(remote), "nodes": nodes},
        )


@CHECKS.check(WorkloadFacts)
def pinning(facts: WorkloadFacts) -> Iterator[Result]:
    """The process may use all CPUs of a machine with several nodes, or too few for its GPUs."""
    process = facts.process
    if process is None or process.cpus is None or not facts.own_gpus:
        return
    nodes = [node for node in facts.numa if node.cpus]
    everything = frozenset().union(*(node.cpus for node in nodes))
    if len(nodes) > 1 and process.cpus >= everything and facts.in_container is not False:
        yield finding(
            "cpu-not-pinned",
            facts.subject,
            f"The process may run on all {len(everything)} CPUs of {len(nodes)} NUMA nodes: "
            "nothing keeps its threads and memory near to its GPUs.",
            _allowed(process),
            values={"cpus": str(len(everything))},
        )
    if facts.given is not None and len(process.cpus) < len(facts.own_gpus):
        yield finding(
            "cpu-affinity-too-small",
            facts.subject,
            f"{len(process.cpus)} usable CPUs ({cpulist.render(process.cpus)}) for "
            f"{len(facts.own_gpus)} GPUs.",
            _allowed(process),
            values={"cpus": str(len(process.cpus)), "gpus": str(len(facts.own_gpus))},
        )


@CHECKS.check(NodeFacts)
def numa_of_gpus(facts: NodeFacts) -> Iterator[Result]:
    """A GPU without a NUMA node on a machine with several, or on a node without CPUs."""
    with_cpus = [node for node in facts.numa if node.cpus]
    without = {node.number for node in facts.numa if not node.cpus}
    for gpu in facts.own_gpus:
        evidence = Evidence(f"/sys/bus/pci/devices/{gpu.address}", "numa_node", str(gpu.numa))
        if gpu.numa == -1 and len(with_cpus) > 1 and facts.topology is None:
            yield finding(
                "numa-unknown",
                on(facts, gpu.address),
                f"The firmware names no NUMA node for GPU {gpu.address} on a machine with "
                f"{len(with_cpus)}.",
                evidence,
                values={"devices": gpu.address},
            )
        elif gpu.numa in without:
            yield finding(
                "numa-node-without-cpus",
                on(facts, gpu.address),
                f"GPU {gpu.address} is on NUMA node {gpu.numa}, which has no CPU: no process can "
                "run near to it.",
                evidence,
                values={"gpu": gpu.address, "node": str(gpu.numa)},
            )
