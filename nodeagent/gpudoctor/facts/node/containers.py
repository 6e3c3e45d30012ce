"""Every container on the node, from the host's /proc: no exec, no shell in its image.

A process's cgroup path names the pod and the container, for all runtimes and cgroup drivers:
    /kubepods.slice/kubepods-burstable.slice/kubepods-burstable-podUID.slice/cri-containerd-ID.scope
    /kubepods/burstable/podUID/ID          (cgroupfs driver)
    …/kubepods-podUID.slice:cri-containerd:ID          (nested systemd)
It may be relative to the reader's cgroup namespace (`/../..`), and static pods have a UID of 32
hexadecimal digits.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import msgspec

from gpudoctor.facts.node import allotments, pci, process, rdma
from gpudoctor.facts.node.allotments import Allotment
from gpudoctor.facts.node.model import NodeFacts, WorkloadFacts
from gpudoctor.report import Subject
from gpudoctor.sources.host import Host, Listing, Missing, text

_POD = re.compile(
    r"pod([0-9a-f]{8}(?:[-_][0-9a-f]{4}){3}[-_][0-9a-f]{12}|[0-9a-f]{32})(?:[./:]|\.slice|$)"
)
_CONTAINER = re.compile(r"(?:^|[/:-])([0-9a-f]{64})(?:\.scope)?(?:/|$)")
_MONITOR = re.compile(r"conmon-[0-9a-f]{64}")
_GPU_NODE = re.compile(r"^nvidia(\d+)$")
_LIBRARY = re.compile(r"/(libcudart|libnccl|libcuda|libnccl-net)\.so\.([0-9.]+)$", re.MULTILINE)
_SHORT = 12


class Container(msgspec.Struct, frozen=True, kw_only=True):
    """A container by its first process: `pid` in the host's numbering.

    `gpu_minors` and `libraries` (name -> version) are None when its files may not be read,
    `allotment` when the kubelet was not asked or cannot be tied to it.
    """

    pod_uid: str | None
    container_id: str
    pid: str
    gpu_minors: frozenset[str] | None
    libraries: dict[str, str] | None
    allotment: Allotment | None


def identify(cgroup: str) -> tuple[str | None, str] | None:
    """Return (pod UID, container id) of a /proc/PID/cgroup, None for what is no container.

    The UID is None for a container outside Kubernetes.
    """
    for line in cgroup.splitlines():
        path = line.split(":", 2)[-1]
        found = _CONTAINER.findall(path)
        if not found or _MONITOR.search(path):
            continue
        pod = _POD.search(path)
        return (pod[1].replace("_", "-") if pod else None), found[-1]
    return None


def find(host: Host, given_out: Sequence[Allotment] = ()) -> tuple[Container, ...]:
    """Return the containers whose processes this /proc shows, each by its lowest PID.

    `given_out` is what the kubelet says of all containers, also of some that have ended.
    """
    listing = host.listing("/proc")
    if isinstance(listing, Missing):
        return ()
    first: dict[str, tuple[str | None, int]] = {}
    for pid in sorted(int(name) for name in listing.names if name.isdigit()):
        identity = identify(text(host, f"/proc/{pid}/cgroup") or "")
        if identity is not None:
            first.setdefault(identity[1], (identity[0], pid))
    named = (allotments.names_by_id(host) or {}) if given_out else {}
    by_names = {one.names: one for one in given_out}
    return tuple(
        Container(
            pod_uid=pod,
            container_id=container,
            pid=str(pid),
            gpu_minors=_gpu_minors(host, pid),
            libraries=_libraries(host, pid),
            allotment=by_names.get(named[container]) if container in named else None,
        )
        for container, (pod, pid) in first.items()
    )


def _gpu_minors(host: Host, pid: int) -> frozenset[str] | None:
    """Return the minor numbers of the NVIDIA device nodes in the container's /dev."""
    listing = host.listing(f"/proc/{pid}/root/dev")
    if not isinstance(listing, Listing) or not listing.complete:
        return None
    return frozenset(match[1] for name in listing.names if (match := _GPU_NODE.match(name)))


def _libraries(host: Host, pid: int) -> dict[str, str] | None:
    maps = text(host, f"/proc/{pid}/maps")
    return None if maps is None else dict(_LIBRARY.findall(maps))


def workload(host: Host, container: Container, node: NodeFacts) -> WorkloadFacts | None:
    """Return the facts of a container that uses GPUs or RDMA; None for any other.

    Whether its devices can be opened is not known from outside: our own device cgroup counts.
    What it was given is what the kubelet says, else the device nodes that it has: a privileged
    container has those of all GPUs.
    """
    found = process.read_process(host, container.pid)
    verbs, whole = rdma.read_nodes(host, f"/proc/{container.pid}/root/dev/infiniband")
    allotment = container.allotment
    given = allotments.gpus(host, allotment, node.mig) if allotment else None
    asks = _asks_for_gpus(found.environment)
    if not container.gpu_minors and not verbs and not given and not asks:
        return None
    if not given:
        given = None
        if container.gpu_minors is not None:
            given = pci.with_minors(host, container.gpu_minors)
    return WorkloadFacts(
        subject=Subject("Container", container.container_id[:_SHORT]),
        pci=node.pci,
        pci_whole=node.pci_whole,
        given=given,
        hcas=node.hcas,
        verbs=verbs,
        verbs_whole=whole,
        rdma_shared=node.rdma_shared,
        process=found,
        numa=node.numa,
        cpu_policy=node.cpu_policy,
        in_container=True,
        topology=node.topology,
    )


def _asks_for_gpus(environment: dict[str, str] | None) -> bool:
    devices = (environment or {}).get("NVIDIA_VISIBLE_DEVICES", "void")
    return devices not in ("void", "none", "")
