"""Node labels from facts: for each its value and the fact behind it, or why there is none.

Numbers are integers, so that the scheduler's `Gt` and `Lt` work. A label stands for what a pod
can use, not for what is built in: a GPU that the driver does not have, or a port that is down,
does not count. What is not known has no value; nothing is guessed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from gpudoctor.facts.node import cuda
from gpudoctor.facts.node.container_defaults import ContainerDefaults, Default
from gpudoctor.facts.node.gpu import NodeGpus, NotAvailable
from gpudoctor.facts.node.kubelet_policy import KubeletPolicy
from gpudoctor.facts.node.labels_rdma import rdma_labels
from gpudoctor.facts.node.model import GpuDirect, NodeFacts
from gpudoctor.facts.node.topology import Topology, nvlinks
from gpudoctor.facts.node.value import Value, known, unknown
from gpudoctor.facts.node.versions import CudaVersion, DriverVersion, parse_driver

_FEWER = 1000
"""Minor and patch of a driver take three digits each, or versions would not compare."""
_MIB = 1 << 20
UNLIMITED_MIB = (2**63 - 1) // _MIB
"""The label of no limit: the largest limit there is. A label value cannot start with a minus, and
with a large number `Gt` is true of what has no limit, as it should be.
"""
RACK_KEYS = (
    "topology.kubernetes.io/rack",
    "network.topology.nvidia.com/leaf",
    "fabric.topograph.run/tier-0",
)
"""Labels by which sites and NVIDIA's topograph (docs.nvidia.com/topograph) say where a node is:
its rack, or the first switch above it.
"""
_CLIQUE_KEY = "nvidia.com/gpu.clique"
"""GPU feature discovery's, also CLUSTER_UUID.CLIQUE_ID."""
_FABRIC_COMPLETED = 3


class Node(msgspec.Struct, frozen=True, kw_only=True):
    """All facts that labels come from. `policy` is a text where the kubelet's is not known."""

    facts: NodeFacts
    gpus: NodeGpus | None = None
    policy: KubeletPolicy | str = "not read"
    defaults: ContainerDefaults | None = None


def read(node: Node) -> dict[str, Value]:
    """Return label name -> its value, with the fact behind it; all labels but the verdict."""
    facts, gpus = node.facts, node.gpus
    driver = _driver(facts, gpus)
    usable, why = _usable(facts, gpus)
    found = {
        "driver": _driver_label(driver),
        "cuda": _cuda(driver, gpus),
        "gpu-count": unknown(why) if usable is None else known(len(usable), why),
        **_models(facts, gpus, usable),
        **_nvlink(facts.topology, gpus, usable),
        **rdma_labels(facts),
        "gdr": _gdr(facts.gpudirect, no_rdma=facts.hcas == ()),
        "numa-policy": _numa_policy(node.policy),
        "numa-aligned": _numa_aligned(facts, node.policy),
        **_fabric(gpus),
        **_defaults(node.defaults),
    }
    return dict(sorted(found.items()))


def published(labels: Mapping[str, Value]) -> dict[str, dict[str, str | None]]:
    """Return what a report says of labels under `facts.labels`."""
    return {name: msgspec.to_builtins(value) for name, value in labels.items()}


def _driver(facts: NodeFacts, gpus: NodeGpus | None) -> DriverVersion | None:
    """The loaded module's version; NVML's is that of the library, which is the same or broken."""
    if facts.gpudirect.driver is not None:
        return parse_driver(facts.gpudirect.driver)
    return None if gpus is None or isinstance(gpus.driver, NotAvailable) else gpus.driver


def _driver_label(driver: DriverVersion | None) -> Value:
    if driver is None:
        return unknown("no NVIDIA driver is loaded, or its version could not be read")
    if driver.minor >= _FEWER or driver.patch >= _FEWER:
        return unknown(f"driver {driver} does not fit major x 10^6 + minor x 10^3 + patch")
    number = driver.branch * 10**6 + driver.minor * 10**3 + driver.patch
    return known(number, f"NVIDIA driver {driver} is loaded")


def _cuda(driver: DriverVersion | None, gpus: NodeGpus | None) -> Value:
    if gpus is not None and not isinstance(gpus.cuda, NotAvailable):
        return known(_cuda_number(gpus.cuda), f"the driver says CUDA {gpus.cuda} (NVML)")
    if driver is None:
        return unknown("no NVIDIA driver is loaded, or its version could not be read")
    level = cuda.cuda_level(driver)
    if level is None:
        return unknown(f"the table does not know the CUDA level of driver branch {driver.branch}")
    return known(_cuda_number(level), f"driver branch {driver.branch} offers CUDA {level}")


def _cuda_number(level: CudaVersion) -> int:
    """As CUDA itself counts: major x 1000 + minor x 10."""
    return level.major * 1000 + level.minor * 10


def _usable(facts: NodeFacts, gpus: NodeGpus | None) -> tuple[frozenset[str] | None, str]:
    """Return the addresses of the GPUs that work as far as is known, None if it is not; and why."""
    on_bus = {gpu.address for gpu in facts.gpus}
    if not facts.pci_whole:
        return None, "not all PCI devices could be read"
    if not on_bus:
        return frozenset(), "no NVIDIA GPU is on the PCI bus"
    if facts.driver_gpus is None:
        return None, f"{len(on_bus)} on the PCI bus; /proc/driver/nvidia/gpus could not be read"
    usable = on_bus & set(facts.driver_gpus)
    why = f"{len(on_bus)} on the PCI bus, {len(usable)} of them with the driver"
    if gpus is None:
        return frozenset(usable), why
    if gpus.failure is not None or gpus.hung_in is not None:
        return None, f"{why}; NVML does not work: {gpus.failure or f'hung in {gpus.hung_in}'}"
    lost = {gpu.label for gpu in gpus.gpus if gpu.handle is not None and not gpu.handle.normal}
    return frozenset(usable - lost), why + (f", {len(lost)} of them lost (NVML)" if lost else "")


def _models(
    facts: NodeFacts, gpus: NodeGpus | None, usable: frozenset[str] | None
) -> dict[str, Value]:
    names = _names(facts, gpus, usable)
    if not names:
        missing = unknown("the driver names no GPU")
        return {"gpu-model": missing, "gpu-arch": missing}
    told = ", ".join(sorted(names))
    known_gpus = [cuda.resolve_gpu(name, capability) for name, capability in names.items()]
    architectures = {gpu.architecture.name.lower() if gpu else None for gpu in known_gpus}
    return {
        "gpu-model": _one(told, {cuda.short_name(name) or None for name in names}),
        "gpu-arch": _one(told, architectures),
    }


def _names(
    facts: NodeFacts, gpus: NodeGpus | None, usable: frozenset[str] | None
) -> dict[str, str | None]:
    """Return name -> compute capability of the GPUs that count, the latter where NVML says it."""
    found: dict[str, str | None] = {}
    for address, name in (facts.models or {}).items():
        if usable is None or address in usable:
            found[name] = None
    for gpu in gpus.gpus if gpus is not None else ():
        if isinstance(gpu.name, str) and (usable is None or gpu.label in usable):
            capability = gpu.capability
            found[gpu.name] = None if isinstance(capability, NotAvailable) else str(capability)
    return found


def _one(told: str, values: set[str | None]) -> Value:
    if len(values) > 1:
        return unknown(f"the GPUs differ: {told}")
    [value] = values
    return unknown(f"{told} is not in the table of GPUs") if value is None else known(value, told)


def _nvlink(
    topology: Topology | None, gpus: NodeGpus | None, usable: frozenset[str] | None
) -> dict[str, Value]:
    names = ("nvlink", "nvlink-island-size")
    if usable is not None and len(usable) < 2:
        return dict.fromkeys(names, unknown(f"{len(usable)} GPU: nothing to join"))
    if topology is not None and topology.nvlink_shown:
        return _nvlink_of(topology)
    if gpus is None or not gpus.gpus:
        return dict.fromkeys(names, unknown("sysfs does not show NVLink, and NVML was not read"))
    count, links = len(gpus.gpus), [gpu.links for gpu in gpus.gpus]
    if all(isinstance(of, tuple) and not any(link.active for link in of) for of in links):
        why = "no NVLink of any GPU is active (NVML)"
        return {"nvlink": known("none", why), "nvlink-island-size": known(1, why)}
    if _cliques(gpus) is not None:
        why = f"all {count} GPUs are registered with one NVLink fabric (NVML)"
        return {"nvlink": known("all", why), "nvlink-island-size": known(count, why)}
    return dict.fromkeys(
        names, unknown("NVML says which NVLinks are active, but not whom they join")
    )


def _nvlink_of(topology: Topology) -> dict[str, Value]:
    paths = [path for _, _, path in topology.gpu_pairs()]
    count = len(topology.gpus)
    if len(paths) < count * (count - 1) // 2 or not paths:
        missing = unknown(f"not every path between GPUs is known ({topology.source})")
        return {"nvlink": missing, "nvlink-island-size": missing}
    joined = sum(bool(nvlinks(path)) for path in paths)
    islands = topology.islands()
    alone = count - sum(map(len, islands))
    smallest = 1 if alone else min(map(len, islands))
    value = "all" if joined == len(paths) else "partial" if joined else "none"
    why = f"{joined} of {len(paths)} pairs of GPUs are joined directly"
    sizes = [*(str(len(island)) for island in islands), *(["1"] * alone)]
    return {
        "nvlink": known(value, f"{why} ({topology.source})"),
        "nvlink-island-size": known(smallest, f"islands of {', '.join(sizes)} GPUs"),
    }


def _gdr(direct: GpuDirect, *, no_rdma: bool) -> Value:
    if no_rdma:
        return known("none", "there is no RDMA device")
    if direct.driver is None:
        return unknown("no NVIDIA driver is loaded, or its version could not be read")
    if direct.dma_buf:
        return known("dmabuf", f"open kernel module {direct.driver}, kernel {direct.kernel_text}")
    if direct.peermem_loaded and direct.peermem_registered:
        return known("peermem", "nvidia_peermem is loaded and registered with the RDMA core")
    peermem = direct.peermem_loaded is False or direct.peermem_registered is False
    if direct.dma_buf is False and peermem:
        return known("none", "DMA-BUF needs the open module and kernel 5.12, and no peer memory")
    return unknown("the module's flavour, the kernel or nvidia_peermem could not be read")


def _numa_policy(policy: KubeletPolicy | str) -> Value:
    if isinstance(policy, str):
        return unknown(policy)
    return known(policy.topology, "topologyManagerPolicy of the kubelet")


def _numa_aligned(facts: NodeFacts, policy: KubeletPolicy | str) -> Value:
    nodes = [node for node in facts.numa if node.cpus]
    if len(nodes) == 1:
        return known("true", "the machine has one NUMA node")
    if not nodes:
        return unknown("the NUMA nodes could not be read")
    if isinstance(policy, str):
        return unknown(policy)
    if not policy.aligns:
        return known("false", f"topology manager {policy.topology}, CPU manager {policy.cpu}")
    if not facts.gpus:
        return unknown("no GPU whose NUMA node could be read")
    homes = {gpu.numa for gpu in facts.gpus}
    if not homes <= {node.number for node in nodes}:
        return known("false", "not every GPU says which NUMA node with CPUs it is near")
    return known("true", f"topology manager {policy.topology}, CPU manager {policy.cpu}")


def _fabric(gpus: NodeGpus | None) -> dict[str, Value]:
    clique = _cliques(gpus) if gpus is not None else None
    if clique is None:
        missing = unknown(
            "NVML was not read"
            if gpus is None
            else "no NVLink fabric that all GPUs are registered with (NVML)"
        )
        return {"fabric": missing, "clique": missing}
    cluster, number = clique
    why = "NVLink fabric that all GPUs are registered with (NVML)"
    return {"fabric": known(cluster, why), "clique": known(f"{cluster}.{number}", why)}


def _cliques(gpus: NodeGpus) -> tuple[str, int] | None:
    """Return cluster UUID and clique of the NVLink fabric, if all GPUs are in the same."""
    found: set[tuple[str, int] | None] = set()
    for gpu in gpus.gpus:
        state = gpu.fabric
        registered = (
            not isinstance(state, NotAvailable)
            and state.state == _FABRIC_COMPLETED
            and state.status == 0
        )
        found.add((state.cluster, state.clique) if registered else None)  # type: ignore[union-attr]
    [one] = found if len(found) == 1 else [None]
    return one if one is not None and one[0].strip("0-") else None


def _defaults(defaults: ContainerDefaults | None) -> dict[str, Value]:
    if defaults is None:
        missing = unknown("the containers of the node were not looked at")
        return {"memlock-mib": missing, "shm-mib": missing}
    return {
        "memlock-mib": _default(defaults.memlock, "may lock"),
        "shm-mib": _default(defaults.shm, "have as /dev/shm"),
    }


def _default(found: Default, words: str) -> Value:
    if not found.seen:
        return unknown("no container's limits and mounts could be read")
    if found.size is None:
        return unknown(f"the containers differ; no size is that of most of the {found.seen} seen")
    of = f"{found.have} of {found.seen} containers seen {words}"
    if found.size < 0:
        return known(UNLIMITED_MIB, f"{of} any size")
    return known(found.size // _MIB, f"{of} {found.size / _MIB:g} MiB")


def with_node_labels(labels: Mapping[str, Value], of_node: Mapping[str, str]) -> dict[str, Value]:
    """Return the labels with what only others' labels on the Node object tell: its rack, and the
    NVLink clique where NVML was not read.
    """
    added = {
        "rack": _first(of_node, RACK_KEYS, "no label of the node names its rack or leaf switch")
    }
    if labels.get("clique", unknown("")).value is None:
        added["clique"] = _first(of_node, (_CLIQUE_KEY,), "neither NVML nor a label tells it")
    return dict(sorted((dict(labels) | added).items()))


def _first(of_node: Mapping[str, str], keys: Iterable[str], otherwise: str) -> Value:
    for key in keys:
        if value := of_node.get(key):
            return known(value, f"label {key} of the node")
    return unknown(otherwise)
