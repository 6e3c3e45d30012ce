"""What the pod asks for, and how its containers end: limits, probes, environment, engine flags.

A setting whose harm shows nowhere (status, events, log) is information; with the harm it is the
cause. A field that the API server filled in by itself is never held against the pod.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from decimal import Decimal

from gpudoctor.checking import CheckSet, Draft, Result, finding
from gpudoctor.facts.kubernetes import engine_flags, networks, resources
from gpudoctor.facts.kubernetes.components import troubles
from gpudoctor.facts.kubernetes.model import Container, ContainerStatus, Pod
from gpudoctor.facts.kubernetes.model import State as ContainerState
from gpudoctor.facts.kubernetes.situation import VISIBLE_DEVICES, PodLogLine, PodSituation
from gpudoctor.facts.nccl.model import Line
from gpudoctor.report import Certainty, Evidence, Severity, Unknown
from gpudoctor_checks import supply

CHECKS = CheckSet()

SHM = "/dev/shm"  # noqa: S108 - the path inside a container, not a file of ours
_DEFAULT_SHM = "64 MiB"
_INFINIBAND = "/dev/infiniband"
_SHOWN = 3


def _gpu_containers(situation: PodSituation) -> list[Container]:
    """The containers that compute on GPUs; one that only prepares, as preflight, does not."""
    return [
        container
        for container in situation.pod.containers
        if (not container.is_init or container.is_sidecar)
        and (
            any(resources.is_gpu(name) for name in container.limits | container.requests)
            or container.claims
        )
    ]


def shm_limit(pod: Pod, container: Container) -> Decimal | None:
    """Return the size of the container's /dev/shm in bytes, None where memory is the only limit."""
    if pod.host_ipc:
        return None
    for mount in container.mounts:
        if mount.path.rstrip("/") == SHM:
            volume = next((v for v in pod.volumes if v.name == mount.volume), None)
            if volume is None or not volume.empty_dir or volume.medium != "Memory":
                return None
            return volume.size_limit
    return Decimal(64 * 2**20)


@CHECKS.check(PodSituation)
def shm_too_small(situation: PodSituation) -> Iterator[Result]:
    """The log shows that /dev/shm ran out; or several GPUs share the runtime's default size."""
    pod = situation.pod
    lines = situation.lines_of("shm")
    if lines:
        container = pod.container(lines[-1].container)
        limit = shm_limit(pod, container) if container else None
        size = f"{limit / 2**20:.0f} MiB" if limit is not None else "as large as memory allows"
        mounted = any(m.path.rstrip("/") == SHM for m in (container.mounts if container else ()))
        shown = "emptyDir with medium Memory" if mounted else f"not mounted: default {_DEFAULT_SHM}"
        yield finding(
            "shm-too-small",
            pod.subject,
            f"Container {lines[-1].container} cannot get the shared memory it wants; its {SHM} is "
            f"{size}.",
            *(line.evidence for line in lines[-_SHOWN:]),
            Evidence(pod.meta.path, f"spec.volumes, volumeMounts [{SHM}]", shown),
            *_parallel_evidence(pod, container),
            values={"pod": pod.meta.short, "size": f"too small ({size})"},
            fix=_SHM_PATCH,
        )
        return
    if pod.phase == "Pending" and pod.node is None:
        # Advice on how it will run does not belong beside the reason why it does not start.
        return
    for container in _gpu_containers(situation):
        gpus = _gpus_of(container)
        if gpus > 1 and shm_limit(pod, container) == Decimal(64 * 2**20):
            yield finding(
                "shm-too-small",
                pod.subject,
                f"Container {container.name} has {gpus} GPUs and the default {SHM} of "
                f"{_DEFAULT_SHM}."
                + (" Nothing in its log shows that it ran out." if situation.has_log else ""),
                Evidence(pod.meta.path, f"spec.volumes, volumeMounts [{SHM}]", "not mounted"),
                values={"pod": pod.meta.short, "size": f"the default {_DEFAULT_SHM}"},
                severity=Severity.INFO,
                certainty=Certainty.POSSIBLE,
                fix=_SHM_PATCH,
            )
            return


_SHM_PATCH = (
    "Add to the pod: volumes: [{name: dshm, emptyDir: {medium: Memory, sizeLimit: 16Gi}}] and to "
    "the container: volumeMounts: [{name: dshm, mountPath: /dev/shm}]"
)


def _gpus_of(container: Container) -> int:
    asked = container.requests | container.limits
    return sum(int(amount) for name, amount in asked.items() if resources.is_gpu(name))


def _parallel_evidence(pod: Pod, container: Container | None) -> Iterator[Evidence]:
    if container is None:
        return
    flags = engine_flags.read(container)
    for written in flags.flags.values():
        yield Evidence(pod.meta.path, f"spec.containers[{container.name}].args", written)


def ended(situation: PodSituation) -> Iterator[tuple[ContainerStatus, ContainerState, str]]:
    """Yield containers that have ended badly, with the end and the status field that says so."""
    for status in situation.pod.statuses:
        end = status.latest_end
        if end is None or end.exit_code in (0, None):
            continue
        list_name = "initContainerStatuses" if status.is_init else "containerStatuses"
        which = "state" if status.state.kind == "terminated" else "lastState"
        yield status, end, f"status.{list_name}[{status.name}].{which}.terminated"


def end_text(status: ContainerStatus, end: ContainerState) -> str:
    """Write how a container ended, as evidence shows it."""
    lived = ""
    if end.started and end.finished and end.finished > end.started:
        lived = f", lived {(end.finished - end.started).total_seconds():.0f} s"
    return f"exitCode {end.exit_code}, reason {end.reason}{lived}, {status.restarts} restarts"


@CHECKS.check(PodSituation)
def oom_killed(situation: PodSituation) -> Iterator[Result]:
    """The kernel ended a container for passing its memory limit."""
    pod = situation.pod
    for status, end, field in ended(situation):
        if end.reason != "OOMKilled":
            continue
        container = pod.container(status.name)
        limit = container.limits.get("memory") if container else None
        shown = f"{limit / 2**30:.1f} GiB" if limit else "none set: the node's own memory"
        allowed = f"its limit ({shown})" if limit else "the node had left (it has no limit)"
        shm = container and shm_limit(pod, container) != Decimal(64 * 2**20)
        counted = f" What it writes to {SHM} counts, too." if shm else ""
        yield finding(
            "oom-killed",
            pod.subject,
            f"Container {status.name} was killed by the kernel for using more host memory than "
            f"{allowed}. This is memory of the host, not of the GPU.{counted}",
            Evidence(pod.meta.path, field, end_text(status, end)),
            Evidence(
                pod.meta.path, f"spec.containers[{status.name}].resources.limits.memory", shown
            ),
            values={"container": status.name, "pod": pod.meta.short, "limit": shown},
            severity=if_recovered(situation, status),
            fix=None if limit else OWN_LIMIT,
        )
        return


OWN_LIMIT = (
    "Give the container a memory request and limit of its real need: without one it takes what the "
    "node has, and the kernel ends whom it finds first when that is used up."
)


def if_recovered(situation: PodSituation, status: ContainerStatus) -> Severity | None:
    """A container that has been ready again for an hour keeps its old end as a warning, for a day
    as information.
    """
    last = status.last.finished
    if not status.ready or status.state.kind != "running" or last is None or situation.now is None:
        return None
    ago = situation.now - last
    if ago > timedelta(days=1):
        return Severity.INFO
    return Severity.WARNING if ago > timedelta(hours=1) else None


@CHECKS.check(PodSituation)
def tensor_parallel(situation: PodSituation) -> Iterator[Result]:
    """The engine is told to use more GPUs than the pod (and its group) has."""
    pod = situation.pod
    for container in pod.containers:
        flags = engine_flags.read(container)
        have = _gpus_of(container) or sum(_gpus_of(other) for other in pod.containers)
        if not have or not (flags.is_engine or flags.gpus):
            continue
        wanted, group = flags.gpus or 0, _group_size(situation, flags)
        local = flags.local or 0
        if local <= have and (wanted <= have * group or _is_open_ended(situation, flags)):
            continue
        lines = situation.lines_of("tensor-parallel")
        fails = any(t.kind in ("crash", "exit") for t in troubles(pod))
        asked = max(wanted, local)
        sizes = [written for name, written in flags.flags.items() if name != "memory"]
        yield finding(
            "tensor-parallel-exceeds-gpus",
            pod.subject,
            f"Container {container.name} is told to use {asked} GPUs ("
            f"{', '.join(sizes)}) and the pod has {have}"
            + (f" in a group of {group}." if group > 1 else "."),
            *(
                Evidence(pod.meta.path, f"spec.containers[{container.name}]", written)
                for written in sizes
            ),
            *(supply.request_evidence(situation, name) for name in supply.gpu_requests(situation)),
            *(line.evidence for line in lines[-1:]),
            values={"pod": pod.meta.short, "wanted": str(asked), "offered": str(have * group)},
            severity=None if lines or fails else Severity.INFO,
            certainty=Certainty.CERTAIN if lines else Certainty.LIKELY,
            leans_on=("Pod",),
        )
        return


_LWS_SIZE = "leaderworkerset.sigs.k8s.io/size"


def _group_size(situation: PodSituation, flags: engine_flags.EngineFlags) -> int:
    annotated = situation.pod.meta.annotations.get(_LWS_SIZE, "")
    if annotated.isdecimal():
        return max(1, int(annotated))
    return max(1 + len(situation.peers), flags.nodes or 1)


def _is_open_ended(situation: PodSituation, flags: engine_flags.EngineFlags) -> bool:
    """A Ray cluster's size is not in the pod: workers may come from elsewhere."""
    labels = situation.pod.meta.labels
    return flags.uses_ray or "ray.io/cluster" in labels


@CHECKS.check(PodSituation)
def gpu_memory(situation: PodSituation) -> Iterator[Result]:
    """The GPU's memory ran out: by the process itself, or before it had taken any."""
    pod = situation.pod
    lines = situation.lines_of("gpu-oom")
    failed = any(t.kind in ("crash", "exit") for t in troubles(pod)) or pod.phase == "Failed"
    if not lines or not failed:
        return
    taken = [line for line in situation.lines_of("gpu-memory-taken") if _is_mostly_taken(line)]
    yield finding(
        "gpu-out-of-memory",
        pod.subject,
        f"Container {lines[-1].container} ended when the memory of its GPU was used up.",
        *(line.evidence for line in lines[-2:]),
        *_parallel_evidence(pod, pod.container(lines[-1].container)),
        related=(situation.node.subject,) if situation.node else (),
        values={"pod": pod.meta.short, "container": lines[-1].container},
    )
    by_claim = any(neighbour.has_claims for neighbour in situation.neighbours)
    if taken and _has_whole_gpus(situation) and not (situation.bypassing or by_claim):
        groups = taken[-1].line.groups
        yield finding(
            "gpu-memory-leak",
            (situation.node or pod).subject,
            f"Only {groups['free']} of {groups['total']} GiB were free on the GPU before the "
            "process took any, although the pod has it to itself: a process that ended has not "
            "given its memory back, or one outside Kubernetes holds it.",
            taken[-1].evidence,
            *(supply.request_evidence(situation, name) for name in supply.gpu_requests(situation)),
            values={"device": f"a GPU of {pod.node or 'the node'}"},
            related=(pod.subject,),
            certainty=Certainty.LIKELY,
        )


def _is_mostly_taken(line: PodLogLine) -> bool:
    try:
        free, total = float(line.line.groups["free"]), float(line.line.groups["total"])
    except (KeyError, ValueError):
        return False
    return total > 0 and free < 0.8 * total


def _has_whole_gpus(situation: PodSituation) -> bool:
    """Whether the pod's GPUs are cards of its own: no sharing, no slices."""
    node = situation.node
    labels = node.labels if node else {}
    shared = labels.get("nvidia.com/gpu.sharing-strategy", "none") != "none"
    names = situation.pod.requests
    sliced = any(resources.is_accounting(n) or "mig-" in n or n.endswith(".shared") for n in names)
    return bool(supply.gpu_requests(situation)) and not shared and not sliced


@CHECKS.check(PodSituation)
def bypass(situation: PodSituation) -> Iterator[Result]:
    """NVIDIA_VISIBLE_DEVICES set by hand: GPUs past the scheduler's accounting, or none at all."""
    yield from _bypass_of(situation, situation.pod)
    if situation.lines_of("gpu-oom", "gpu-memory-taken"):
        for other in situation.bypassing:
            yield from _bypass_of(situation, other)


def _bypass_of(situation: PodSituation, pod: Pod) -> Iterator[Result]:
    for container in pod.containers:
        value = container.env.get(VISIBLE_DEVICES)
        if value is None:
            continue
        asked = _gpus_of(container)
        hides = value.strip().lower() in ("", "void", "none")
        if hides and not asked:
            continue
        if hides:
            said = f"asks for {asked} GPUs and hides them from itself"
        elif asked:
            said = f"asks for {asked} GPUs and sees what {VISIBLE_DEVICES} says instead"
        else:
            said = "asks for no GPU and takes them past the scheduler, which counts them as free"
        yield finding(
            "device-plugin-bypass-env",
            pod.subject,
            f"Container {container.name} {said}.",
            Evidence(
                pod.meta.path, f"spec.containers[{container.name}].env[{VISIBLE_DEVICES}]", value
            ),
            Evidence(
                pod.meta.path,
                f"spec.containers[{container.name}].resources.limits",
                f"{asked} GPUs",
            ),
            *_whole_node_evidence(situation, pod, asked),
            values={"container": container.name, "pod": pod.meta.short},
            severity=_bypass_severity(situation, pod, asked, hides),
            related=(situation.subject,),
        )
        return


def _bypass_severity(situation: PodSituation, pod: Pod, asked: int, hides: bool) -> Severity | None:
    """Harmless where the pod has asked for every GPU of its node anyway, or only watches them."""
    if hides:
        return Severity.ERROR if any(troubles(pod)) else None
    per_node = (pod.meta.owner or "").startswith("DaemonSet/")
    if per_node and not asked and pod is situation.pod and not any(troubles(pod)):
        # An exporter runs once on each node and reads every GPU of it.
        return Severity.INFO
    node = situation.node
    if node is None or not asked:
        return None
    total = max(
        (int(a) for name, a in node.allocatable.items() if resources.is_gpu(name)), default=0
    )
    return Severity.INFO if asked >= total > 0 else None


def _whole_node_evidence(situation: PodSituation, pod: Pod, asked: int) -> Iterator[Evidence]:
    if situation.node is not None and pod.node == situation.node.name and not asked:
        for name in situation.node.allocatable:
            if resources.is_gpu(name):
                given = [n for n in situation.neighbours if n.requests.get(name)]
                note = "given to others" if given else "counted as free for others"
                yield from supply.allocatable_evidence([situation.node], name, note)
                for holder in given[:_SHOWN]:
                    path = f"Pod/{holder.namespace}/{holder.name}"
                    amount = supply.number(holder.requests[name])
                    yield Evidence(path, f"requests[{name}]", f"{amount} on {holder.node}")


def _is_multi_pod(situation: PodSituation) -> bool:
    return any(_asks_gpus(peer) for peer in situation.peers)


def _asks_gpus(pod: Pod) -> bool:
    return any(resources.is_gpu(name) and amount > 0 for name, amount in pod.requests.items())


def _asks_rdma(pod: Pod) -> bool:
    return any(resources.is_rdma(name) and amount > 0 for name, amount in pod.requests.items())


def may_have_rdma(pod: Pod) -> bool:
    """Whether the pod gets RDMA devices by resource, host path or privilege, or may by claim."""
    if _asks_rdma(pod):
        return True
    if any(claim.name != "extended resources" for claim in pod.claims):
        return True
    host = any((v.host_path or "").rstrip("/") in (_INFINIBAND, "/dev") for v in pod.volumes)
    return host or any(container.privileged for container in pod.containers)


@CHECKS.check(PodSituation)
def rdma_not_requested(situation: PodSituation) -> Iterator[Result]:
    """One pod of several with GPUs runs on a node that offers RDMA, and asks for none."""
    pod, node = situation.pod, situation.node
    if not _asks_gpus(pod) or may_have_rdma(pod) or pod.is_terminal:
        return
    used = _networks_used(situation)
    on_sockets = bool(used) and all(network == "Socket" for _, network, _ in used)
    no_device = _no_device_lines(situation)
    if node is None:
        if on_sockets and no_device:
            yield Unknown(
                f"Node/{pod.node}",
                "it is not in the input: NCCL goes over sockets, and whether the node offers RDMA "
                "decides if that is a fault",
            )
        return
    offered = {
        name: amount
        for name, amount in node.allocatable.items()
        if resources.is_rdma(name) and amount > 0
    }
    if not offered or not (_is_multi_pod(situation) or on_sockets):
        return
    if used and not on_sockets:
        return
    harmed = on_sockets and (no_device or _is_multi_pod(situation))
    resource = max(offered, key=lambda name: offered[name])
    said = (
        "NCCL finds no RDMA device in the container and goes over TCP sockets"
        if harmed
        else "Nothing read so far shows which network NCCL uses"
    )
    yield finding(
        "rdma-not-requested",
        pod.subject,
        f"{node.name} offers {', '.join(sorted(offered))}, and no container of the pod asks for "
        f"it, so {_INFINIBAND} is not in its containers. {said}.",
        *(_nccl_evidence(line) for line in (*no_device[:1], *(line for _, _, line in used[:1]))),
        Evidence(pod.meta.path, "spec.containers[*].resources", f"no {resource}"),
        *supply.allocatable_evidence([node], resource, "offered, and not asked for"),
        *(Evidence(peer.meta.path, "spec.nodeName", peer.node) for peer in situation.peers[:1]),
        values={"pod": pod.meta.short, "resource": resource, "reason": "its node offers"},
        severity=None if harmed else Severity.INFO,
        certainty=Certainty.CERTAIN if harmed else Certainty.POSSIBLE,
        related=(node.subject,),
        fix=f"Add {resource}: 1 to resources.limits (and requests) of the container.",
    )


def _networks_used(situation: PodSituation) -> tuple[tuple[str, str, Line], ...]:
    """Host, network and line of what NCCL chose in this pod; of all hosts if it is not named."""
    if situation.nccl is None:
        return ()
    name = situation.pod.meta.name
    own = tuple(chosen for chosen in situation.nccl.chosen if chosen[0] == name)
    return own or situation.nccl.chosen


def _no_device_lines(situation: PodSituation) -> tuple[Line, ...]:
    if situation.nccl is None:
        return ()
    events = situation.nccl.of_kind("ib-none", "ibv-open", "ib-open")
    return tuple(event.lines[0] for event in events if event.lines)


def _nccl_evidence(line: Line) -> Evidence:
    """As the rules on the log itself show their lines."""
    return Evidence.of_line(line.source, line.number, line.text)


@CHECKS.check(PodSituation)
def memlock(situation: PodSituation) -> Iterator[Result]:
    """RDMA needs locked memory: capability IPC_LOCK, which counts for root alone."""
    pod = situation.pod
    lines = situation.lines_of("memlock")
    if not _asks_rdma(pod) and not lines:
        return
    for container in _gpu_containers(situation) or list(pod.containers):
        if container.privileged or not container.security_known:
            continue
        uid = container.run_as_user if container.run_as_user is not None else pod.run_as_user
        non_root = uid not in (0, None) or container.run_as_non_root or pod.run_as_non_root
        has_lock = any(c in ("IPC_LOCK", "CAP_IPC_LOCK", "ALL") for c in container.capabilities)
        if has_lock and not non_root and pod.host_users:
            continue
        yield _memlock_finding(situation, container, lines, non_root, has_lock)
        return


def _memlock_finding(
    situation: PodSituation,
    container: Container,
    lines: tuple[PodLogLine, ...],
    non_root: bool,
    has_lock: bool,
) -> Draft:
    pod = situation.pod
    where = f"spec.containers[{container.name}].securityContext"
    capabilities = ", ".join(container.capabilities) or "none added"
    if non_root:
        name, said = "memlock-limit-nonroot", "runs as a user other than root"
    elif not pod.host_users:
        name, said = "memlock-limit-nonroot", "runs in a user namespace of its own"
    else:
        name, said = "missing-ipc-lock", "runs as root without capability IPC_LOCK"
    effect = " (it has the capability, which does not take effect for it)" if has_lock else ""
    harm = " No failure is in its log." if situation.has_log else ""
    if lines:
        harm = " RDMA memory registration failed."
    return finding(
        name,
        pod.subject,
        f"Container {container.name} uses RDMA and {said}{effect}: the runtime's limit on locked "
        f"memory applies.{harm}",
        *(line.evidence for line in lines[-1:]),
        Evidence(pod.meta.path, f"{where}.capabilities.add", capabilities),
        Evidence(
            pod.meta.path,
            f"{where}.runAsUser",
            str(container.run_as_user if container.run_as_user is not None else pod.run_as_user),
        ),
        values={"pod": pod.meta.short, "container": container.name},
        severity=None if lines else Severity.INFO,
        certainty=Certainty.LIKELY if lines else Certainty.POSSIBLE,
    )


_IFNAME_VARIABLES = ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME", "UCX_NET_DEVICES")


@CHECKS.check(PodSituation)
def nccl_interface(situation: PodSituation) -> Iterator[Result]:
    """NCCL is told to use an interface that the pod does not have."""
    pod = situation.pod
    known = networks.interfaces(pod.meta)
    if pod.host_network or (not known and situation.attachments):
        return
    have = known | {"lo"} if known else frozenset({"lo", "eth0"})
    said = situation.nccl.of_kind("ifname", "ifname-family") if situation.nccl else ()
    harm = [event.lines[0] for event in said if event.lines]
    fails = any(t.kind in ("crash", "exit") for t in troubles(pod))
    for container in pod.containers:
        for variable in _IFNAME_VARIABLES:
            value = container.env.get(variable, "")
            if not value or names_any(value, have):
                continue
            yield finding(
                "nccl-env-names-missing-device",
                pod.subject,
                f"{variable}={value} of container {container.name} matches none of the pod's "
                f"interfaces ({', '.join(sorted(have))}).",
                Evidence(
                    pod.meta.path, f"spec.containers[{container.name}].env[{variable}]", value
                ),
                Evidence(
                    pod.meta.path,
                    "metadata.annotations[k8s.v1.cni.cncf.io/network-status]",
                    ", ".join(sorted(known)) or "not set: eth0 alone",
                ),
                *(_nccl_evidence(line) for line in harm[-1:]),
                values={"name": variable, "pod": pod.meta.short, "device": value},
                severity=None if harm or fails else Severity.INFO,
                certainty=Certainty.CERTAIN if harm else Certainty.LIKELY,
            )
            return


def names_any(value: str, interfaces: frozenset[str]) -> bool:
    """NCCL's rule: a list of prefixes; `=` before it wants exact names, `^` excludes them."""
    excludes = value.startswith("^")
    exact = value.lstrip("^").startswith("=")
    listed = [part.strip() for part in value.lstrip("^=").split(",") if part.strip()]

    def hit(interface: str) -> bool:
        return any(
            interface == name.partition(":")[0] if exact else interface.startswith(name)
            for name in listed
        )

    usable = [name for name in interfaces if name != "lo"]
    if excludes:
        return any(not hit(interface) for interface in usable)
    return any(hit(interface) for interface in interfaces)
