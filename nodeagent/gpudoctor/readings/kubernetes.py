"""Kubernetes objects read for a diagnosis: one pod, several pods, a node, or a whole dump."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any

import msgspec

from gpudoctor.errors import InputError
from gpudoctor.facts.kubernetes import (
    components,
    dra,
    fields,
    health,
    parse,
    placement,
    pod_adapters,
    pod_cuda,
    pod_errors,
    queues,
    resources,
    sharing,
    situation,
)
from gpudoctor.facts.kubernetes.cluster import Cluster, PodEntry
from gpudoctor.facts.kubernetes.components import Component
from gpudoctor.facts.kubernetes.health import PodHealth, State, Unexplained
from gpudoctor.facts.kubernetes.model import Pod, Scope
from gpudoctor.facts.kubernetes.pod_cuda import SeenCuda
from gpudoctor.facts.kubernetes.situation import PodSituation
from gpudoctor.facts.nccl.model import NcclLog
from gpudoctor.facts.node.cuda_stack import CudaStack
from gpudoctor.publish.names import DIAGNOSIS, GROUP, is_ours
from gpudoctor.readings import Reading
from gpudoctor.report import ALL_GPU_PODS, Certainty, ReportSubject, Subject, Unknown
from gpudoctor.sources import jobs, recorded
from gpudoctor.sources.bundle import Bundle

if TYPE_CHECKING:
    from gpudoctor.readings.host_facts import HostFacts

_NEAR_NAMES = 5


class Input:
    """The Kubernetes half of a bundle, ready for questions, and the hosts of its nodes."""

    def __init__(self, recorded: Bundle, seen: Mapping[str, HostFacts] | None = None) -> None:
        """`seen` are hosts that were looked at, by the names of their nodes."""
        self.recorded = recorded
        self._seen: dict[str, HostFacts | None] = dict(seen or {})
        scope = Scope(
            complete=recorded.scope.objects == "complete",
            complete_kinds=frozenset(recorded.scope.complete_kinds),
            denied=tuple(recorded.scope.denied),
        )
        self.cluster = Cluster(recorded.objects, scope, fields.moment(recorded.now))

    @cached_property
    def components(self) -> tuple[Component, ...]:
        """The cluster's own GPU and RDMA components, read once for all pods."""
        return components.read(self.cluster)

    def host(self, node: str | None) -> HostFacts | None:
        """What was seen of a node's machine, None where the input does not have it."""
        if node is None or not (self._seen or self.recorded.hosts):
            return None
        if node not in self._seen:
            from gpudoctor.readings import host  # imported late: few inputs have a host

            known = self.cluster.nodes.get(node)
            boot_id = known.boot_id if known else ""
            self._seen[node] = host.facts_of_node(self.recorded, node, boot_id)
        return self._seen[node]

    def saw(self, node: str, seen: HostFacts) -> None:
        """Take in what was seen of a node's machine."""
        self._seen[node] = seen

    @property
    def observed_at(self) -> str | None:
        """When the objects were read, as far as they tell."""
        return self.cluster.now.isoformat() if self.cluster.now else None


def find_pod(cluster: Cluster, name: str, namespace: str | None) -> PodEntry:
    """Return the pod of that name; InputError names the near ones, or those of the same name."""
    found = [
        entry
        for entry in cluster.pods
        if entry.name == name and namespace in (None, entry.namespace)
    ]
    if len({entry.namespace for entry in found}) > 1:
        where = ", ".join(sorted(f"{entry.namespace}/{name}" for entry in found))
        raise InputError(f"pod {name} is there more than once: {where}; say --pod NAMESPACE/NAME")
    if found:
        return found[-1]
    known = {f"{entry.namespace}/{entry.name}": entry.name for entry in cluster.pods}
    from difflib import get_close_matches  # imported late: most names are right

    alike = get_close_matches(name, set(known.values()), _NEAR_NAMES)
    near = [short for short, bare in known.items() if bare in alike]
    wanted = f"{namespace}/{name}" if namespace else name
    hint = f"near it: {', '.join(near[:_NEAR_NAMES])}" if near else f"it holds {len(known)} pods"
    raise InputError(f"pod {wanted} is not in the input; {hint}")


def read_pod_named(source: Input, name: str, namespace: str | None) -> Reading:
    """Read the pod of that name, or what is said about pods that could not be made."""
    try:
        entry = find_pod(source.cluster, name, namespace)
    except InputError:
        refused = read_refused(source, "Pod", name, namespace)
        if refused is None:
            raise
        return refused

    def member(subject: Subject) -> Reading | None:
        try:
            found = find_pod(source.cluster, subject.name, subject.namespace)
        except InputError:
            return None
        return read_pod(source, found)

    return msgspec.structs.replace(read_pod(source, entry), member=member)


def read_refused(source: Input, kind: str, name: str, namespace: str | None) -> Reading | None:
    """Read what is said about a pod, or the pods of a job, that could not be made, if anything."""
    about = None
    if kind != "Pod":
        from gpudoctor.facts.kubernetes import job_end  # imported late: most jobs have pods

        job = queues.find_job(source.cluster, kind, name, namespace)
        if job is not None and (end := job_end.read(job)) is not None and end.well:
            return None  # what it was refused, it was given since
        about = parse.meta(job).subject if job else Subject(kind, name, namespace)
    refused = situation.read_refused(source.cluster, name, namespace, about)
    if refused is None:
        return None
    return Reading(
        subject=ReportSubject(kind, name, refused.subject.namespace),
        facts=(refused,),
        observed_at=source.observed_at,
        unknown=tuple(_unknowns(source.cluster)),
        is_complete=source.cluster.scope.has_all,
    )


def read_pod(source: Input, entry: PodEntry, job_log: NcclLog | None = None) -> Reading:
    """Read one pod and what concerns it; what `job_log` says is judged for the whole job."""
    cluster, pod = source.cluster, source.cluster.pod(entry)
    logs = recorded.with_log_of(source.recorded, _main_log(pod)).logs
    found = situation.read(cluster, pod, logs, source.components, job_log)
    state = health.assess(found)
    queue = queues.read(cluster, found)
    errors = pod_errors.read(found, logs)
    stack = pod_cuda.read(found, errors, _seen_cuda(source, found))
    proved = stack is not None and stack.certainty is Certainty.CERTAIN
    if stack is not None and not stack.requirements and state.state is State.WELL:
        # What runs well contradicts any table: its image may bring what the driver lacks.
        stack, proved = None, False
    parts = (
        found,
        found.nccl if job_log is None else None,
        errors,
        stack if proved else None,
        pod_adapters.read(pod, logs),
        queue,
        sharing.read(cluster, found),
        dra.read(cluster, found),
    )
    unread = [Unknown(pod.meta.path, state.why)] if state.state is State.UNKNOWN else []
    reading = Reading(
        subject=ReportSubject("Pod", pod.meta.name, pod.meta.namespace, pod.node),
        facts=tuple(part for part in parts if part is not None),
        otherwise=_otherwise(found, state, stack),
        observed_at=source.observed_at,
        unknown=(*unread, *_unknowns(cluster)),
        needed_unknown=state.state is State.UNKNOWN,
        starting=state.state is State.STARTING,
        is_complete=cluster.scope.has_all,
    )
    seen = source.host(pod.node)
    if seen is None:
        if not _has_agent(cluster, pod.node):
            return reading
        from gpudoctor.readings import published  # imported late: many clusters have no agent

        return published.with_pod(reading, cluster, pod, is_well=state.state is State.WELL)
    from gpudoctor.readings import joined  # imported late: few inputs have a host

    return joined.with_host(reading, found, state, found.nccl, seen)


def _has_agent(cluster: Cluster, node: str | None) -> bool:
    """Whether an agent of ours has published something about that node or a pod on it."""
    if node is None:
        return False
    found = cluster.nodes.get(node)
    said = found is not None and any(is_ours(one.type) for one in found.conditions)
    return said or bool(cluster.of_kind(GROUP, DIAGNOSIS))


def _seen_cuda(source: Input, found: PodSituation) -> SeenCuda | None:
    seen = source.host(found.pod.node)
    if seen is None:
        return None
    from gpudoctor.readings import on_node  # imported late: few inputs have a host

    return on_node.seen_cuda(found, seen)


def is_current(source: Input, entry: PodEntry) -> bool:
    """Whether a pod has not ended."""
    return not source.cluster.pod(entry).is_terminal


def _otherwise(
    found: PodSituation, state: PodHealth, stack: CudaStack | None
) -> tuple[object, ...]:
    """What is judged where nothing else explains a pod that is not well.

    A version guessed from a tag counts only there, and only where the rules say that it fails.
    """
    if state.state is not State.NOT_WELL:
        return ()
    return (Unexplained(found, state), *((stack,) if stack and _fails(stack) else ()))


def _fails(stack: CudaStack) -> bool:
    from gpudoctor_checks import compatibility  # imported late: few pods tell of a CUDA version

    return compatibility.judge(stack).outcome is compatibility.Outcome.FAILS


def _main_log(pod: Pod) -> str:
    """The key of the log of the container that a log file without a name most likely is from."""
    plain = [container for container in pod.containers if not container.is_init]
    gpu = [c for c in plain if any(map(resources.is_gpu, c.limits | c.requests))]
    names = [container.name for container in (*gpu, *plain)]
    return f"{pod.meta.short}/{names[0] if names else ''}"


def read_pods(
    source: Input, subject: ReportSubject, entries: Iterable[PodEntry], *, only_unwell: bool = False
) -> Reading:
    """Read pods as the children of one reading; with `only_unwell`, those that are well apart
    and without the failed attempts of a Job that has completed.
    """
    children: list[Reading] = []
    well: list[Reading] = []
    past = 0
    for entry in entries:
        if only_unwell and health.is_made_good(source.cluster, source.cluster.pod(entry)):
            past += 1
            continue
        child = read_pod(source, entry)
        is_unwell = child.otherwise or child.starting or child.needed_unknown
        (children if is_unwell or not only_unwell else well).append(child)
    return Reading(
        subject=subject,
        facts=(),
        children=tuple(children),
        well=tuple(well),
        published={"pods": {"seen": len(children) + len(well) + past}},
        observed_at=source.observed_at,
        unknown=tuple(_unknowns(source.cluster)),
        is_complete=source.cluster.scope.has_all,
    )


def read_gpu_pods(
    source: Input, namespace: str | None = None, *, only_unwell: bool = False
) -> Reading:
    """Read all pods that ask for GPUs; that there is none is known only of a whole list of pods."""
    subject = ReportSubject("Pods", ALL_GPU_PODS, namespace)
    entries = gpu_pods(source, namespace)
    reading = read_pods(source, subject, entries, only_unwell=only_unwell)
    if entries or source.cluster.scope.has_all("Pod"):
        return reading
    missing = Unknown("GPU pods", "none is in the input, and the input may not be all there is")
    return msgspec.structs.replace(
        reading, unknown=(*reading.unknown, missing), needed_unknown=True
    )


def read_job(
    source: Input, kind: str, name: str, namespace: str | None, entries: list[PodEntry]
) -> Reading:
    """Read a job: its pods as children, and what NCCL says in all their logs together.

    Without the failed attempts of one that has completed. InputError when neither the job nor a
    pod of it is in the input.
    """
    cluster = source.cluster
    entries = [one for one in entries if not health.is_made_good(cluster, cluster.pod(one))]
    if not entries:
        return _read_job_without_pods(source, kind, name, namespace)
    subject = ReportSubject(kind, name, namespace)
    pods = [source.cluster.pod(entry) for entry in entries]
    logs = recorded.with_log_of(source.recorded, _main_log(pods[0])).logs
    log = situation.read_nccl(pods, logs)
    if log is None:
        return read_pods(source, subject, entries)
    from gpudoctor.readings import nccl_log  # imported late: most jobs have no such log

    log = msgspec.structs.replace(
        log,
        subject=Subject(kind, name, namespace or entries[0].namespace),
        **_told_by_nodes(source, pods),
    )
    whole = nccl_log.reading(log)
    children = tuple(read_pod(source, entry, log) for entry in entries)
    return msgspec.structs.replace(
        whole,
        subject=subject,
        children=children,
        published=whole.published | {"pods": {"seen": len(children), "shown": len(children)}},
        observed_at=source.observed_at,
        unknown=(*whole.unknown, *_unknowns(source.cluster)),
        is_complete=source.cluster.scope.has_all,
        linked=True,
    )


def _told_by_nodes(source: Input, pods: list[Pod]) -> dict[str, Any]:
    """What the nodes of a job and their machines tell of its NCCL log: whether RDMA was meant,
    whether GPUDirect can be.
    """
    names = dict.fromkeys(pod.node for pod in pods if pod.node)
    nodes = [found for name in names if (found := source.cluster.nodes.get(name))]
    machines = [seen.node for name in names if (seen := source.host(name))]
    offered = situation.rdma_offers(nodes)
    if not machines:
        return {"rdma_expected_by": offered}
    from gpudoctor.facts.node import rails  # imported late: few inputs have a host

    told = (said for machine in machines for said in rails.told(machine))
    return {
        "rdma_expected_by": (*offered, *told),
        "no_gdr_by_design": rails.no_gdr(machines) if len(machines) == len(names) else "",
    }


def _read_job_without_pods(source: Input, kind: str, name: str, namespace: str | None) -> Reading:
    """Read what holds a job that has no pods, such as a queue that has not let it in."""
    cluster = source.cluster
    job = queues.find_job(cluster, kind, name, namespace)
    if job is None and not cluster.scope.denied:
        raise InputError(f"no pod of {kind} {name} is in the input")
    from gpudoctor.facts.kubernetes import job_end  # imported late: most jobs have pods

    ended = job_end.read(job) if job else None
    held = queues.read_job(cluster, job) if job and ended is None else None
    unread = []
    if job is None:
        unread.append(Unknown(f"{kind}/{name}", "it was not read, and no pod of it is there"))
    elif ended is not None:
        if not ended.well and not ended.by_deadline:
            unread.append(Unknown("its pods", f"they are gone, and it says {ended.evidence.value}"))
    elif held is None:
        unread.append(Unknown("its pods", "none is in the input, and nothing holds the job"))
    elif held.kueue is None:
        unread.append(Unknown("its pods", "the job is suspended, and no queue holds it"))
    return Reading(
        subject=ReportSubject(kind, name, namespace),
        facts=tuple(fact for fact in (held, ended) if fact),
        observed_at=source.observed_at,
        unknown=(*unread, *_unknowns(cluster)),
        needed_unknown=bool(unread),
        is_complete=cluster.scope.has_all,
    )


def read_node(source: Input, name: str) -> Reading:
    """Read one node, with its host where the input has it; InputError names the near ones."""
    if source.host(name) is not None:
        from gpudoctor.readings import joined  # imported late: few inputs have a host

        return joined.read_node(source, name)
    reading = read_node_object(source, name)
    if not _has_agent(source.cluster, name):
        return reading
    from gpudoctor.readings import published  # imported late: many clusters have no agent

    return published.with_node(reading, source.cluster, source.cluster.nodes[name])


def read_node_object(source: Input, name: str) -> Reading:
    """Read one node by its objects alone; InputError names the near ones."""
    cluster = source.cluster
    node = cluster.nodes.get(name)
    if node is None:
        from difflib import get_close_matches  # imported late: most names are right

        near = get_close_matches(name, cluster.nodes, _NEAR_NAMES)
        hint = f"near it: {', '.join(near)}" if near else f"it holds {len(cluster.nodes)} nodes"
        raise InputError(f"node {name} is not in the input; {hint}")
    from gpudoctor.facts.kubernetes import node_situation  # imported late: for nodes alone

    found = node_situation.read(cluster, node, source.components, source.recorded.logs)
    unread = [] if node.has_status else [Unknown(node.meta.path, "its status is not in the input")]
    return Reading(
        subject=ReportSubject("Node", name),
        facts=(found,),
        observed_at=source.observed_at,
        unknown=(*unread, *_unknowns(cluster)),
        needed_unknown=bool(unread),
        is_complete=cluster.scope.has_all,
    )


def pods_with_labels(source: Input, selector: str, namespace: str | None) -> list[PodEntry]:
    """Return the pods that a label selector (`a=b,c!=d,e in (f,g),!h`) picks."""
    from gpudoctor.facts.kubernetes import labels  # imported late: few ask by labels

    requirements = labels.parse(selector)
    return [
        entry
        for entry in source.cluster.pods
        if namespace in (None, entry.namespace)
        and all(placement.matches(r, entry.labels) for r in requirements)
    ]


def gpu_pods(source: Input, namespace: str | None) -> list[PodEntry]:
    """Return the pods that ask for GPUs."""
    return [
        entry
        for entry in source.cluster.pods
        if namespace in (None, entry.namespace) and health.is_gpu_pod(source.cluster.pod(entry))
    ]


def pods_of_job(source: Input, kind: str, name: str, namespace: str | None) -> list[PodEntry]:
    """Return the pods of a job of any kind, by the labels its controller sets or by owner."""
    wanted = jobs.labels_of(kind)
    return [
        entry
        for entry in source.cluster.pods
        if namespace in (None, entry.namespace)
        and (
            any(entry.labels.get(label) == name for label in wanted)
            or (entry.owner or "").lower() == f"{kind}/{name}".lower()
        )
    ]


def _unknowns(cluster: Cluster) -> Iterable[Unknown]:
    for denied in cluster.scope.denied:
        # What was refused for lack of a right stands alone; what failed says how.
        what, _, why = denied.partition(": ")
        yield Unknown(what, why or "denied")
    if cluster.unreadable:
        yield Unknown(f"{cluster.unreadable} objects", "they are not JSON objects")
