"""What a container declares that it needs, against what it has: the rules of `preflight`.

Only a declared need fails. The conditions are those of a node or a pod, under the same names;
here they are tried, not inferred.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from gpudoctor.checking import CheckSet, Draft, Result, finding
from gpudoctor.facts.node.gpu import Gpu, NodeGpus, NotAvailable
from gpudoctor.facts.node.model import AMAZON, MELLANOX, Hca, WorkloadFacts
from gpudoctor.facts.node.own_container import OwnContainer
from gpudoctor.facts.node.system import Interface
from gpudoctor.report import Blame, Evidence, Severity, Unknown
from gpudoctor.sources.host import Proof
from gpudoctor_checks import limits, network, placement, workload
from gpudoctor_checks.workload import SHM

CHECKS = CheckSet()

_DEV = "/dev/infiniband"
_NVML = "NVML"
_LIBRARY_MISSING = "no libnvidia-ml.so.1"
_DECLARED = "declared need"
_CAPABILITIES = "NVIDIA_DRIVER_CAPABILITIES"


def _need(name: str, value: object = None) -> Evidence:
    return Evidence(_DECLARED, name, None if value is None else str(value))


def _gpu_count(gpus: NodeGpus) -> int:
    """Devices that a program can use: a GPU cut by MIG counts by its slices."""
    return sum(
        len(gpu.mig_devices)
        if not isinstance(gpu.mig_mode, NotAvailable)
        and gpu.mig_mode.current
        and not isinstance(gpu.mig_devices, NotAvailable)
        else 1
        for gpu in gpus.gpus
        if gpu.handle is None
    )


@CHECKS.check(OwnContainer)
def gpus(own: OwnContainer) -> Iterator[Result]:
    """Fewer GPUs than declared: the container was given fewer, or some of them do not work."""
    found = own.gpus
    if found is None or not own.needs.wants_gpus:
        return
    if isinstance(found, Unknown):
        yield from _no_nvml(own, found)
        return
    wanted = own.needs.gpus or 1
    if found.failure is not None or found.hung_in is not None or _gpu_count(found) >= wanted:
        return
    count, nodes = _gpu_count(found), own.gpu_nodes
    not_given = nodes is not None and nodes < wanted
    why = (
        f"the container was given {nodes} device nodes"
        if not_given
        else "its device nodes are there, and the driver does not offer them all"
    )
    yield finding(
        "gpu-count-wrong",
        own.subject,
        f"{wanted} GPUs are needed and {count} can be used: {why}.",
        _need("gpus", wanted),
        Evidence(_NVML, "nvmlDeviceGetCount", str(found.count)),
        Evidence("/dev", "nvidia*", None if nodes is None else f"{nodes} GPU nodes"),
        values={"seen": str(count), "expected": str(wanted)},
        blame=Blame.REQUEST if not_given else Blame.NODE,
        fix=f"Ask for {wanted} GPUs in this init container, too (resources.limits)."
        if not_given
        else None,
    )


def _no_nvml(own: OwnContainer, why: Unknown) -> Iterator[Result]:
    if not why.why.startswith(_LIBRARY_MISSING):
        yield why
        return
    hidden = _hides_nvml(own)
    yield finding(
        "driver-libs-not-injected",
        own.subject,
        "The driver's library is not in this container: "
        + (
            f"{_CAPABILITIES} does not ask for it."
            if hidden
            else "it asks for no GPU, or the container toolkit did not put it there."
        ),
        _need("gpus", own.needs.gpus or 1),
        Evidence(_NVML, "libnvidia-ml.so.1", "not found"),
        Evidence("/dev", "nvidia*", None if own.gpu_nodes is None else f"{own.gpu_nodes} nodes"),
        blame=Blame.NODE if own.gpu_nodes and not hidden else None,
        fix=f"Add utility to {_CAPABILITIES} of this container."
        if hidden
        else "Ask for the same GPUs in this init container as in the trainer (resources.limits): "
        "the pod needs no more of them for it.",
    )


def _hides_nvml(own: OwnContainer) -> bool:
    """Whether the container tells the toolkit to leave NVML out; without a word it is put in."""
    process = own.node.process
    asked = ((process.environment if process is not None else None) or {}).get(_CAPABILITIES)
    return asked is not None and not {"utility", "all", ""} & set(asked.replace(" ", "").split(","))


@CHECKS.check(OwnContainer)
def cuda(own: OwnContainer) -> Iterator[Result]:
    """A CUDA version is declared, and which one the driver offers could not be read."""
    found = own.gpus
    if own.needs.cuda is None or not isinstance(found, NodeGpus) or found.failure is not None:
        return
    if isinstance(found.driver, NotAvailable) and isinstance(found.cuda, NotAvailable):
        yield Unknown("CUDA level of the driver", found.driver.why)


@CHECKS.check(OwnContainer)
def nvlink(own: OwnContainer) -> Iterator[Result]:
    """NVLink is declared, and a GPU of this container has no active link."""
    found = own.gpus
    if not own.needs.nvlink or not isinstance(found, NodeGpus):
        return
    for gpu in found.gpus:
        links = gpu.links
        if isinstance(links, NotAvailable) and not links.normal:
            yield Unknown(f"NVLink of {gpu.label}", links.why)
        elif isinstance(links, NotAvailable) or not any(link.active for link in links):
            yield _without_nvlink(own, gpu)


def _without_nvlink(own: OwnContainer, gpu: Gpu) -> Draft:
    has_links = not isinstance(gpu.links, NotAvailable) and bool(gpu.links)
    total = len(gpu.links) if not isinstance(gpu.links, NotAvailable) else 0
    return finding(
        "nvlink-missing",
        msgspec.structs.replace(own.subject, device=gpu.label),
        f"{gpu.name} has {total} NVLinks and none is active."
        if has_links
        else f"{gpu.name} has no NVLink: the pod landed on a node with another kind of GPU.",
        _need("nvlink"),
        Evidence(_NVML, f"NVLink state of {gpu.label}", f"0 of {total} active"),
        values={"gpu": gpu.label},
        blame=Blame.NODE if has_links else Blame.PLACEMENT,
        fix=None
        if has_links
        else "Ask for nodes with NVLink by node affinity on their labels; this card has none.",
    )


@CHECKS.check(OwnContainer)
def rdma(own: OwnContainer) -> Iterator[Result]:
    """RDMA is declared: devices are there, open for reading and writing, and a port is active."""
    if not own.needs.wants_rdma:
        return
    facts = own.workload
    if facts.verbs is None:
        yield Unknown(_DEV, "it could not be listed")
        return
    nodes = {node.name: node for node in facts.verbs if node.name.startswith("uverbs")}
    if not nodes:
        yield _no_rdma(own)
    if not nodes or not facts.hcas:
        yield from network.devices(facts)
        return
    # NCCL takes the adapters that open; those that were not given are no affair of this pod.
    given = tuple(hca for hca in facts.hcas if hca.uverbs is None or hca.uverbs in nodes)
    facts = msgspec.structs.replace(facts, hcas=given)
    yield from network.foreign_verbs(facts)
    yield from network.gid_index(facts)
    yield from _closed(own, facts)
    yield from _no_active_port(own, given)


def _closed(own: OwnContainer, facts: WorkloadFacts) -> Iterator[Result]:
    """Nodes that do not open: a failure unless another one does."""
    nodes = [node for node in facts.verbs or () if node.name.startswith("uverbs")]
    found = [result for result in network.closed_nodes(facts) if isinstance(result, Draft)]
    found += [
        _open_failed(own, node.name, node.opened)
        for node in nodes
        if node.opened not in ("", None, "EPERM", "EACCES")
    ]
    severity = Severity.WARNING if any(node.opened == "" for node in nodes) else None
    for draft in found:
        yield msgspec.structs.replace(draft, severity=severity)


def _no_rdma(own: OwnContainer) -> Draft:
    nics = [d for d in own.node.pci if d.vendor in (MELLANOX, AMAZON) and d.class_ >> 16 == 2]
    seen = bool(own.node.hcas or nics)
    return finding(
        "rdma-device-absent",
        own.subject,
        "RDMA is needed, and no RDMA device can be used here. "
        + (
            "The node has adapters; the container was not given one."
            if seen
            else "The node shows no RDMA adapter on its PCI bus."
        ),
        _need("rdma"),
        Evidence(_DEV, None, "no uverbs node"),
        Evidence(
            "/sys/bus/pci/devices",
            None,
            ", ".join(nic.address for nic in nics[:4]) or "no RDMA adapter",
        ),
        values={"where": own.subject.name},
        blame=Blame.REQUEST if seen or not own.node.pci_whole else Blame.PLACEMENT,
        fix=None
        if seen
        else "Ask for the RDMA resource, or for nodes with RDMA by node affinity on their labels.",
    )


def _open_failed(own: OwnContainer, name: str, why: str | None) -> Draft:
    return finding(
        "rdma-device-open-failed",
        msgspec.structs.replace(own.subject, device=name),
        f"{_DEV}/{name} is here and opening it fails with {why}: the adapter or its driver does "
        "not answer.",
        Evidence(f"{_DEV}/{name}", "open for reading and writing", why),
        values={"devices": name, "hosts": own.subject.name},
        blame=Blame.NODE,
        fix="Start the pod on another node, and report this one.",
    )


def _no_active_port(own: OwnContainer, given: tuple[Hca, ...]) -> Iterator[Result]:
    """All ports of all adapters given are down; one of many is the node's own affair."""
    if not given or any(_may_work(hca) for hca in given):
        return
    for hca in given:
        for port in hca.ports:
            yield finding(
                "nic-port-down",
                msgspec.structs.replace(own.subject, device=hca.name),
                f"{hca.name} port {port.number} is {port.state}, and no other port of this "
                "container is active.",
                _need("rdma"),
                Evidence(
                    f"/sys/class/infiniband/{hca.name}/ports/{port.number}", "state", port.state
                ),
                values={"device": hca.name, "port": port.number, "state": str(port.state)},
                severity=Severity.ERROR,
                blame=Blame.NODE,
            )


def _may_work(hca: Hca) -> bool:
    return any(port.is_active is not False for port in hca.ports)


@CHECKS.check(OwnContainer)
def gpudirect(own: OwnContainer) -> Iterator[Result]:
    """GPUDirect RDMA is declared, and this node's driver and kernel cannot give it."""
    if not own.needs.gdr:
        return
    if own.node.gpudirect.driver is None:
        yield Unknown("GPUDirect RDMA", "/proc/driver/nvidia/version could not be read")
        return
    for result in network.gpudirect(own.node):
        if isinstance(result, Draft) and result.name == "gdr-unavailable":
            result = msgspec.structs.replace(result, severity=Severity.ERROR)
        yield result


@CHECKS.check(OwnContainer)
def memlock(own: OwnContainer) -> Iterator[Result]:
    """Locking memory was tried and refused."""
    proof, process = own.proofs.locked, own.node.process
    if proof is None or proof.ok:
        return
    if proof.errno not in ("ENOMEM", "EPERM", "EAGAIN"):
        yield Unknown("locked memory", f"the try ended with {proof.errno}: {proof.note}")
        return
    soft = process.memlock_soft if process is not None else None
    limit = "too little" if soft is None or soft < 0 else limits.amount(soft)
    capabilities = None
    if process is not None and process.effective is not None:
        capabilities = Evidence("/proc/self/status", "CapEff", f"{process.effective:016x}")
    evidence = (
        Evidence("mlock2", limits.amount(proof.wanted), proof.errno),
        Evidence("/proc/self/limits", "Max locked memory", limit),
        *([capabilities] if capabilities else []),
    )
    yield finding(
        "memlock-too-low",
        own.subject,
        f"Locking {limits.amount(proof.wanted)} was tried and failed with {proof.errno}; the "
        f"limit is {limit}. Registering RDMA buffers fails in the same way.",
        _need("memlock", limits.amount(proof.wanted)),
        *evidence,
        values={"limit": limit},
    )
    yield from _why_not_locked(own, evidence)


def _why_not_locked(own: OwnContainer, evidence: tuple[Evidence, ...]) -> Iterator[Result]:
    """Root without the capability can ask for it in the pod; others need the runtime's limit."""
    process = own.node.process
    if process is None or process.uid is None or process.ipc_lock is not False:
        return
    non_root = process.uid != 0 or process.own_user_namespace is True
    yield finding(
        "memlock-limit-nonroot" if non_root else "missing-ipc-lock",
        own.subject,
        f"The container runs as uid {process.uid}, for which capability IPC_LOCK has no effect."
        if non_root
        else "The container runs as root without capability IPC_LOCK, which lifts the limit.",
        *evidence,
        values={"pod": own.subject.name, "container": own.subject.name},
    )


@CHECKS.check(OwnContainer)
def shared_memory(own: OwnContainer) -> Iterator[Result]:
    """Allocating the declared shared memory was tried and refused."""
    proof = own.proofs.shared
    if proof is None:
        if isinstance(own.gpus, NodeGpus) and _gpu_count(own.gpus) > 1:
            yield from limits.shm(own.workload)
        return
    said = _shared_says(proof)
    if said is None:
        if not proof.ok:
            yield Unknown(SHM, f"the try ended with {proof.errno}: {proof.note}")
        return
    yield finding(
        "shm-too-small",
        own.subject,
        f"{limits.amount(proof.wanted)} of shared memory are needed: {said}.",
        _need("shm", limits.amount(proof.wanted)),
        Evidence(SHM, "to be had", limits.amount(proof.got), f"{proof.errno} {proof.note}".strip()),
        values={"pod": own.subject.name, "size": "too small"},
    )


def _shared_says(proof: Proof) -> str | None:
    if proof.errno == "ENOSPC":
        return f"{SHM} has {limits.amount(proof.got)} left"
    if proof.errno in ("ENOENT", "EACCES", "EPERM", "EROFS"):
        return f"{SHM} cannot be written ({proof.errno})"
    return None


@CHECKS.check(OwnContainer)
def huge_pages(own: OwnContainer) -> Iterator[Result]:
    """Mapping and touching the declared huge pages was tried and failed."""
    proof = own.proofs.huge
    if proof is None or proof.ok:
        return
    if proof.errno not in ("ENOMEM", "SIGBUS", "EPERM"):
        yield Unknown("huge pages", f"the try ended with {proof.errno}: {proof.note}")
        return
    free = sum(pages.free for pages in own.node.hugepages)
    limited = proof.errno == "SIGBUS" or bool(free)
    yield finding(
        "hugepages-missing",
        own.subject,
        f"Mapping {limits.amount(proof.wanted)} of huge pages was tried and failed with "
        f"{proof.errno}: "
        + (
            "the container's limit of hugepages is smaller."
            if limited
            else "the node has none free."
        ),
        _need("hugepages", limits.amount(proof.wanted)),
        Evidence("mmap MAP_HUGETLB", limits.amount(proof.wanted), proof.errno),
        Evidence("/sys/kernel/mm/hugepages", "free_hugepages", str(free)),
        values={"nodes": own.subject.name, "resource": "hugepages"},
        blame=Blame.REQUEST if limited else Blame.NODE,
    )


@CHECKS.check(OwnContainer)
def named_devices(own: OwnContainer) -> Iterator[Result]:
    """NCCL's environment names an interface or an adapter that this container does not have."""
    process = own.node.process
    settings = (process.environment if process is not None else None) or {}
    if (interface := settings.get("NCCL_SOCKET_IFNAME", "")) and own.interfaces:
        yield from _interface(own, interface, own.interfaces)
    hca, hcas = settings.get("NCCL_IB_HCA", ""), own.node.hcas
    if hca and hcas and not any(_is_selected(one, hca) for one in hcas):
        have = ", ".join(one.name for one in hcas)
        severity = Severity.ERROR if own.needs.wants_rdma else Severity.WARNING
        yield _misnamed(own, "NCCL_IB_HCA", hca, have, severity)


def _interface(
    own: OwnContainer, wanted: str, interfaces: tuple[Interface, ...]
) -> Iterator[Draft]:
    """The named interfaces are not here, or none of them can carry anything."""
    named = [one for one in interfaces if workload.names_any(wanted, frozenset({one.name}))]
    if not named:
        have = ", ".join(sorted(one.name for one in interfaces))
        yield _misnamed(own, "NCCL_SOCKET_IFNAME", wanted, have, Severity.ERROR)
    elif not any(one.up and one.addresses for one in named):
        states = ", ".join(
            f"{one.name} ({'has no address' if one.up else 'is down'})" for one in named
        )
        yield finding(
            "nccl-env-names-missing-device",
            own.subject,
            f"NCCL_SOCKET_IFNAME={wanted} names interfaces that carry nothing: {states}.",
            Evidence("environment", "NCCL_SOCKET_IFNAME", wanted),
            values={"name": "NCCL_SOCKET_IFNAME", "pod": own.subject.name, "device": wanted},
        )


def _is_selected(hca: Hca, wanted: str) -> bool:
    return any(network.selected(hca, port, wanted) is not False for port in (*hca.ports, None))


def _misnamed(own: OwnContainer, name: str, value: str, have: str, severity: Severity) -> Draft:
    return finding(
        "nccl-env-names-missing-device",
        own.subject,
        f"{name}={value} matches none of what is here: {have}.",
        Evidence("environment", name, value),
        values={"name": name, "pod": own.subject.name, "device": value},
        severity=None if severity is Severity.ERROR else severity,
    )


@CHECKS.check(OwnContainer)
def near_memory(own: OwnContainer) -> Iterator[Result]:
    """CPUs and memory near to the GPUs are declared; another container's may differ."""
    if own.needs.numa:
        facts = own.workload
        yield from placement.cpus(facts)
        yield from placement.memory(facts)
        yield from placement.pinning(facts)


@CHECKS.check(OwnContainer)
def first_address(own: OwnContainer) -> Iterator[Result]:
    """The address at which the job's processes meet is not known, or is not set."""
    if own.needs.bootstrap is None:
        return
    if own.first_address is None:
        yield Unknown("MASTER_ADDR", "it is not set in this container")
        return
    proof = own.proofs.resolved
    if proof is None or proof.ok:
        return
    if proof.errno != "ENOENT":
        yield Unknown(f"address {own.first_address}", f"{proof.errno}: {proof.note}")
        return
    yield finding(
        "master-address-unresolved",
        own.subject,
        f"{own.first_address} did not resolve within {own.needs.bootstrap} s ({proof.note}): no "
        "process can reach the first one.",
        _need("bootstrap", f"{own.needs.bootstrap} s"),
        Evidence("environment", "MASTER_ADDR", own.first_address),
        values={"address": own.first_address},
    )
