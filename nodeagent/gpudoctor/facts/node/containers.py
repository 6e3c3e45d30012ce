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
from gpudoctor.facts.node.model import NodeFacts, VerbsNode, WorkloadFacts
from gpudoctor.report import Subject
from gpudoctor.sources.host import Host, Listing, Missing, names, text

_POD = re.compile(
    r"pod([0-9a-f]{8}(?:[-_][0-9a-f]{4}){3}[-_][0-9a-f]{12}|[0-9a-f]{32})(?:[./:]|\.slice|$)"
)
_CONTAINER = re.compile(r"(?:^|[/:-])([0-9a-f]{64})(?:\.scope)?(?:/|$)")
_MONITOR = re.compile(r"conmon-[0-9a-f]{64}")
_GPU_NODE = re.compile(r"^nvidia(\d+)$")
_LIBRARY = re.compile(
    r"(?P<folder>/\S*)/(?P<name>libcudart|libnccl|libcuda|libnccl-net)\.so\.(?P<version>[0-9.]+)$",
    re.MULTILINE,
)
_WHEEL = re.compile(
    r"^nvidia_(?P<name>cuda_runtime|nccl)(?:_cu\d+)?-(?P<version>[0-9.]+)\.dist-info$"
)
_OF_WHEEL = {"cuda_runtime": "libcudart", "nccl": "libnccl"}
_MOST_PROCESSES = 8
"""Of a container are looked into for libraries: a launcher's children load them, it does not."""
_SHORT = 12
_KTHREADD = "/proc/2"
_KERNELS_OWN = 0x00200000
"""PF_KTHREAD in the flags of /proc/PID/stat."""


class Container(msgspec.Struct, frozen=True, kw_only=True):
    """A container by its first process: `pid` in the host's numbering.

    `gpu_minors` and `libraries` (name -> version) are None when its files may not be read;
    libraries are looked for where there is a GPU. `allotment` is None when the kubelet was not
    asked or cannot be tied to it.
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
    processes: dict[tuple[str, str | None], list[int]] = {}
    own = _kernel_threads(host)
    pids = sorted(int(name) for name in listing.names if name.isdigit() and name not in own)
    host.expect(f"/proc/{pid}/cgroup" for pid in pids)
    for pid in pids:
        identity = identify(text(host, f"/proc/{pid}/cgroup") or "")
        if identity is not None:
            processes.setdefault((identity[1], identity[0]), []).append(pid)
    firsts = [pids[0] for pids in processes.values()]
    host.expect((), lists=(f"/proc/{pid}/root/dev" for pid in firsts))
    minors = [_gpu_minors(host, pid) for pid in firsts]
    named = (allotments.names_by_id(host) or {}) if given_out else {}
    by_names = {one.names: one for one in given_out}
    allotted = {identity: by_names.get(names) for identity, names in named.items()}
    return tuple(
        Container(
            pod_uid=pod,
            container_id=container,
            pid=str(pids[0]),
            gpu_minors=seen,
            libraries={} if seen == frozenset() else _libraries(host, pids[:_MOST_PROCESSES]),
            allotment=allotted.get(container),
        )
        for ((container, pod), pids), seen in zip(processes.items(), minors, strict=True)
    )


def _kernel_threads(host: Host) -> frozenset[str]:
    """Return the PIDs of the kernel's own threads, which are in no container.

    A machine with many CPUs has thousands. All are children of kthreadd, which is process 2 of a
    machine and of nothing else: in a container's /proc that is a process like any other. A kernel
    without CONFIG_PROC_CHILDREN does not list them: then each is looked at.
    """
    # Behind the name in parentheses: state, parent, group, session, terminal, its group, flags.
    after = (text(host, f"{_KTHREADD}/stat") or "").rpartition(")")[2].split()
    if len(after) < 7 or not after[6].isdigit() or not int(after[6]) & _KERNELS_OWN:
        return frozenset()
    return frozenset((text(host, f"{_KTHREADD}/task/2/children") or "").split())


def _gpu_minors(host: Host, pid: int) -> frozenset[str] | None:
    """Return the minor numbers of the NVIDIA device nodes in the container's /dev."""
    listing = host.listing(f"/proc/{pid}/root/dev")
    if not isinstance(listing, Listing) or not listing.complete:
        return None
    return frozenset(match[1] for name in listing.names if (match := _GPU_NODE.match(name)))


def _libraries(host: Host, pids: Sequence[int]) -> dict[str, str] | None:
    """Return the CUDA and NCCL libraries that the processes have mapped, with their versions."""
    found: dict[str, str] = {}
    seen = False
    host.expect(f"/proc/{pid}/maps" for pid in pids)
    for pid in pids:
        maps = text(host, f"/proc/{pid}/maps")
        seen = seen or maps is not None
        for match in _LIBRARY.finditer(maps or ""):
            version = match["version"]
            if "." not in version:
                version = _of_wheel(host, pid, match["folder"], match["name"]) or version
            found.setdefault(match["name"], version)
        if {"libcudart", "libnccl"} <= set(found):
            break
    return found if seen else None


def _of_wheel(host: Host, pid: int, folder: str, name: str) -> str | None:
    """Return the version of a library that a Python wheel brought: its file has the major alone."""
    packages, nvidia, _ = folder.rpartition("/nvidia/")
    if not nvidia:
        return None
    for entry in names(host, f"/proc/{pid}/root{packages}"):
        match = _WHEEL.match(entry)
        if match and _OF_WHEEL[match["name"]] == name:
            return match["version"]
    return None


def workloads(
    host: Host, containers: Sequence[Container], node: NodeFacts
) -> list[WorkloadFacts | None]:
    """Return the facts of each container that uses GPUs or RDMA; None for any other.

    Whether its devices can be opened is not known from outside: our own device cgroup counts.
    What it was given is what the kubelet says, else the device nodes that it has: a privileged
    container has those of all GPUs.
    """
    host.expect(
        (f"/proc/{one.pid}/environ" for one in containers),
        lists=(_verbs(one) for one in containers),
    )
    uses = [_uses(host, one, node) for one in containers]
    return [
        None if used is None else _workload(host, one, node, used)
        for one, used in zip(containers, uses, strict=True)
    ]


def _verbs(container: Container) -> str:
    return f"/proc/{container.pid}/root{rdma.DEV}"


class _Uses(msgspec.Struct, frozen=True):
    verbs: tuple[VerbsNode, ...] | None
    verbs_whole: bool
    given: tuple[str, ...] | None


def _uses(host: Host, container: Container, node: NodeFacts) -> _Uses | None:
    verbs, whole = rdma.read_nodes(host, _verbs(container))
    allotment = container.allotment
    given = allotments.gpus(host, allotment, node.mig) if allotment else None
    asks = _asks_for_gpus(process.variables(host, container.pid))
    if not container.gpu_minors and not verbs and not given and not asks:
        return None
    if not given:
        given = None
        if container.gpu_minors is not None:
            given = pci.with_minors(host, container.gpu_minors)
    return _Uses(verbs, whole, given)


def _workload(host: Host, container: Container, node: NodeFacts, used: _Uses) -> WorkloadFacts:
    return WorkloadFacts(
        subject=Subject("Container", container.container_id[:_SHORT]),
        pci=node.pci,
        pci_whole=node.pci_whole,
        given=used.given,
        hcas=node.hcas,
        verbs=used.verbs,
        verbs_whole=used.verbs_whole,
        rdma_shared=node.rdma_shared,
        process=process.read_process(host, container.pid),
        numa=node.numa,
        cpu_policy=node.cpu_policy,
        in_container=True,
        topology=node.topology,
    )


def _asks_for_gpus(environment: dict[str, str] | None) -> bool:
    devices = (environment or {}).get("NVIDIA_VISIBLE_DEVICES", "void")
    return devices not in ("void", "none", "")
