"""How many members the job of a pod must have before it can work, and which of them there are.

A controller that is refused a pod says so in an event, which lives an hour; that the pod is
missing can be seen ever after: the job's object says how many it wants, and so does what its
controller writes into each pod. Counted is only what has a fixed size: an elastic job starts with
its minimum, a work queue with any number. A pod that has ended well counts as having come.
Sources: kubeflow/training-operator v1 (pkg/apis/kubeflow.org/v1, envvar.go), mpi-operator
v2beta1, jobset, lws, kuberay, volcano (batch/v1alpha1), kueue (pod groups), batch/v1.
"""

from __future__ import annotations

import re
from collections.abc import Callable

import msgspec

from gpudoctor.facts.kubernetes import engine_flags, fields, parse
from gpudoctor.facts.kubernetes.cluster import Cluster
from gpudoctor.facts.kubernetes.fields import JsonObject
from gpudoctor.facts.kubernetes.membership import Membership
from gpudoctor.facts.kubernetes.model import Condition, Pod
from gpudoctor.report import Evidence, Subject
from gpudoctor.sources import jobs
from gpudoctor.sources.bundle import MEMBERS
from gpudoctor.sources.jobs import JobLabel

_ROLES = ("training.kubeflow.org/replica-type", "training.kubeflow.org/job-role")
_JOBSET_PART = "jobset.sigs.k8s.io/replicatedjob-name"
_JOBSET_PARTS = "jobset.sigs.k8s.io/replicatedjob-replicas"
_LWS_GROUP = "leaderworkerset.sigs.k8s.io/group-index"
_LWS_SIZE = "leaderworkerset.sigs.k8s.io/size"
_KUEUE_COUNT = "kueue.x-k8s.io/pod-group-total-count"
_INDEX = "batch.kubernetes.io/job-completion-index"
_GROUP, _ANY = "PodGroup", "Job"
"""What a group of plain pods is called, and a job of which nothing tells the kind."""
_MEETING = ("MASTER_ADDR", "WORLD_SIZE", "NNODES", "PET_NNODES", "PET_RDZV_ENDPOINT")
_MEETS = re.compile(
    r"torchrun|torch\.distributed|mpirun|deepspeed|--nnodes|--rdzv|--master[_-]addr|MASTER_ADDR"
    r"|jax\.distributed|accelerate launch"
)
_ENDED = ("Succeeded", "Failed", "Complete", "Completed", "Suspended")


class _Size(msgspec.Struct, frozen=True):
    """A number of members, where it stands, and which pods are counted against it."""

    job: Subject
    wanted: int
    said: Evidence
    counts: Callable[[Pod], bool] = lambda _pod: True
    ended: int = 0
    conditions: tuple[Condition, ...] = ()
    by_object: bool = True
    later: bool = False


def read(cluster: Cluster, pod: Pod, peers: tuple[Pod, ...]) -> Membership | None:
    """Return the job of the pod, None where its size is not known; one that is over wants none."""
    size = _size(cluster, pod)
    if size is None or (size.wanted < 2 and not size.by_object):
        return None
    there = [one for one in (pod, *peers) if size.counts(one)]
    came = tuple(one for one in there if one.is_terminal or not one.meta.deleted)
    succeeded = sum(one.phase == "Succeeded" for one in came)
    return Membership(
        job=size.job,
        wanted=size.wanted,
        came=came,
        ended=max(0, size.ended - succeeded),
        said=size.said,
        by_object=size.by_object,
        later=size.later,
        whole=cluster.scope.has_all("Pod") or cluster.scope.has_all(MEMBERS),
        conditions=size.conditions,
        started=max((one.meta.created for one in there if one.meta.created), default=None),
    )


def _is_over(job: JsonObject) -> bool:
    states = ("spec", "suspend"), ("spec", "runPolicy", "suspend")
    suspended = any(fields.flag(job, *path) for path in states)
    ended = any(c.type in _ENDED and c.status == "True" for c in parse.conditions(job))
    return suspended or ended


def _of_object(
    job: JsonObject,
    wanted: int,
    path: str,
    value: str,
    counts: Callable[[Pod], bool] = lambda _pod: True,
    ended: int = 0,
) -> _Size | None:
    if _is_over(job):
        return None
    data = parse.meta(job)
    return _Size(
        job=data.subject,
        wanted=wanted,
        said=Evidence(data.path, path, value),
        counts=counts,
        ended=ended,
        conditions=parse.conditions(job),
    )


def _kubeflow(job: JsonObject, pod: Pod) -> _Size | None:
    spec = fields.mapping(job, "spec")
    key = next((name for name in spec if name.endswith("ReplicaSpecs")), "")
    roles = {role: _number(body, "replicas", 1) for role, body in fields.mapping(spec, key).items()}
    if fields.text(job, "kind") == "MPIJob" and _role(pod) != "launcher":
        # The launcher may be made when the workers are there, and none of them waits for it.
        roles.pop("Launcher", None)
    ended = sum(
        fields.integer(job, "status", "replicaStatuses", role, "succeeded") or 0 for role in roles
    )
    least = fields.integer(spec, "elasticPolicy", "minReplicas")
    if fields.mapping(spec, "elasticPolicy"):
        roles["Worker"] = least or 1
    named = {role.lower() for role in roles}
    value = ", ".join(f"{role} {count}" for role, count in roles.items())
    return _of_object(
        job,
        sum(roles.values()),
        f"spec.{key}.*.replicas",
        value,
        counts=lambda one: _role(one) in named,
        ended=ended,
    )


def _role(pod: Pod) -> str:
    return next((pod.meta.labels[one] for one in _ROLES if one in pod.meta.labels), "").lower()


def _jobset(job: JsonObject, pod: Pod) -> _Size | None:
    spec = fields.mapping(job, "spec")
    parts = fields.objects(spec, "replicatedJobs")
    ordered = fields.text(spec, "startupPolicy", "startupPolicyOrder") == "InOrder"
    if ordered or any(fields.objects(part, "dependsOn") for part in parts):
        own = pod.meta.labels.get(_JOBSET_PART)
        parts = [part for part in parts if fields.text(part, "name") == own]
    sizes = {
        fields.text(part, "name") or "": _number(part, "replicas", 1)
        * _of_template(fields.mapping(part, "template", "spec"))
        for part in parts
    }
    ended = sum(
        fields.integer(one, "succeeded") or 0
        for one in fields.objects(job, "status", "replicatedJobsStatus")
        if fields.text(one, "name") in sizes
    )
    value = ", ".join(f"{name} {count}" for name, count in sizes.items())
    return _of_object(
        job,
        sum(sizes.values()),
        "spec.replicatedJobs[*] replicas x parallelism",
        value,
        counts=lambda one: one.meta.labels.get(_JOBSET_PART) in sizes,
        ended=ended,
    )


def _of_template(spec: JsonObject) -> int:
    parallelism = _number(spec, "parallelism", 1)
    completions = fields.integer(spec, "completions")
    return parallelism if completions is None else min(parallelism, completions)


def _ray(job: JsonObject, _pod: Pod) -> _Size | None:
    spec = fields.mapping(job, "spec")
    elastic = fields.flag(spec, "enableInTreeAutoscaling")
    if fields.flag(spec, "suspend"):
        return None
    groups = {
        fields.text(group, "groupName") or "": _number(group, "minReplicas", 0)
        if elastic
        else _number(group, "replicas", 0) * _number(group, "numOfHosts", 1)
        for group in fields.objects(spec, "workerGroupSpecs")
        if not fields.flag(group, "suspend")
    }
    value = ", ".join(f"{name} {count}" for name, count in groups.items())
    path = f"spec.workerGroupSpecs[*].{'minReplicas' if elastic else 'replicas'}"
    return _of_object(job, 1 + sum(groups.values()), path, f"{value}, and the head")


def _volcano(job: JsonObject, _pod: Pod) -> _Size | None:
    state = fields.text(job, "status", "state", "phase") or ""
    if state in ("Completed", "Failed", "Aborted", "Terminated", "Completing", "Aborting"):
        return None
    tasks = fields.objects(job, "spec", "tasks")
    least = fields.integer(job, "spec", "minAvailable")
    wanted = sum(_number(task, "replicas", 1) for task in tasks) if least is None else least
    ended = fields.integer(job, "status", "succeeded") or 0
    path = "spec.tasks[*].replicas" if least is None else "spec.minAvailable"
    return _of_object(job, wanted, path, str(wanted), ended=ended)


def _batch(job: JsonObject, pod: Pod) -> _Size | None:
    """An Indexed Job's pods are numbered members, if what runs in them is told to meet.

    Else they are parts of a sweep, and any other Job's are workers of a queue: each works alone.
    """
    spec = fields.mapping(job, "spec")
    if fields.text(spec, "completionMode") != "Indexed" or not _is_told_to_meet(pod):
        return None
    completions = fields.integer(spec, "completions")
    done = fields.integer(job, "status", "succeeded") or 0
    wanted = _number(spec, "parallelism", 1)
    if completions is not None:
        wanted = min(wanted, completions - done)
    path = "spec.parallelism (Indexed)"
    return _of_object(job, wanted, path, str(wanted), counts=lambda one: one.phase != "Succeeded")


def _nobody(job: JsonObject) -> _Size:
    """The size of a job that is over, suspended, or has no fixed one."""
    data = parse.meta(job)
    return _Size(data.subject, 0, Evidence(data.path, "spec", "no fixed number of members"))


def _is_told_to_meet(pod: Pod) -> bool:
    for container in pod.containers:
        words = " ".join((*container.command, *container.args))
        if _MEETS.search(words) or any(name in container.env for name in _MEETING):
            return True
    return False


def _number(value: JsonObject, name: str, default: int) -> int:
    found = fields.integer(value, name)
    return default if found is None else max(0, found)


# -- by what is written into the pod -------------------------------------------------------------


def _by_environment(pod: Pod, job: Subject) -> _Size | None:
    """PET_NNODES or --nnodes; of the training operator's pods WORLD_SIZE, unless it counts ranks.

    Without nprocPerNode the training operator sets WORLD_SIZE to the number of pods, and no PET_*.
    """
    for container in pod.containers:
        flags = engine_flags.read(container)
        where = f"spec.containers[{container.name}]"
        if flags.nodes:
            said = Evidence(pod.meta.path, where, flags.flags.get("nodes") or str(flags.nodes))
            return _Size(job, flags.nodes, said, by_object=False)
        size = fields.integer(container.env.get("WORLD_SIZE"))
        ranks = any(name.startswith("PET_") or "NPROC" in name for name in container.env)
        if size and jobs.KUBEFLOW.label in pod.meta.labels and not ranks and flags.local is None:
            said = Evidence(pod.meta.path, f"{where}.env[WORLD_SIZE]", str(size))
            return _Size(job, size, said, by_object=False)
    return None


def _by_indexed_pod(pod: Pod, job: Subject) -> _Size | None:
    is_numbered = _INDEX in pod.meta.labels or _INDEX in pod.meta.annotations
    return _by_environment(pod, job) if is_numbered else None


def _by_jobset_label(pod: Pod, job: Subject) -> _Size | None:
    """JobSet tells each pod how many jobs its part has; pods of one job may be several."""
    parts = fields.integer(pod.meta.labels.get(_JOBSET_PARTS))
    flagged = _by_environment(pod, job)
    if flagged is not None or not parts:
        return flagged
    own = pod.meta.labels.get(_JOBSET_PART)
    said = Evidence(pod.meta.path, f"metadata.labels[{_JOBSET_PARTS}]", str(parts))
    return _Size(
        job,
        parts,
        said,
        counts=lambda one: one.meta.labels.get(_JOBSET_PART) == own,
        by_object=False,
    )


def _leader_worker_set(job: JsonObject, pod: Pod) -> _Size | None:
    size = _by_group_size(pod, parse.meta(job).subject)
    early = fields.text(job, "spec", "startupPolicy") != "LeaderReady"
    return size and msgspec.structs.replace(size, by_object=True, later=size.later and not early)


def _by_group_size(pod: Pod, job: Subject) -> _Size | None:
    """The size that LeaderWorkerSet writes into each pod; it may make workers of a ready leader."""
    size = fields.integer(pod.meta.annotations.get(_LWS_SIZE))
    group = pod.meta.labels.get(_LWS_GROUP)
    if not size:
        return None
    ready = pod.condition("Ready")
    return _Size(
        job,
        size,
        Evidence(pod.meta.path, f"metadata.annotations[{_LWS_SIZE}]", str(size)),
        counts=lambda one: one.meta.labels.get(_LWS_GROUP) == group,
        by_object=False,
        later=ready is None or ready.status != "True",
    )


def _by_count_of_group(pod: Pod, job: Subject) -> _Size | None:
    count = fields.integer(pod.meta.annotations.get(_KUEUE_COUNT))
    if not count:
        return None
    said = Evidence(pod.meta.path, f"metadata.annotations[{_KUEUE_COUNT}]", str(count))
    return _Size(job, count, said, by_object=False)


# -- which of them tells ---------------------------------------------------------------------------


class _Known(msgspec.Struct, frozen=True):
    """The two ways to know the size of a job whose pods carry the label."""

    label: JobLabel
    by_object: Callable[[JsonObject, Pod], _Size | None] = lambda _job, _pod: None
    by_pod: Callable[[Pod, Subject], _Size | None] = lambda _pod, _job: None


_KNOWN = (
    _Known(jobs.JOB_SET, _jobset, _by_jobset_label),
    _Known(jobs.KUBEFLOW, _kubeflow, _by_environment),
    _Known(jobs.VOLCANO, _volcano, _by_environment),
    _Known(jobs.LEADER_WORKER_SET, _leader_worker_set, _by_group_size),
    _Known(jobs.RAY, _ray),
    _Known(jobs.KUEUE_GROUP, by_pod=_by_count_of_group),
    _Known(jobs.BATCH, _batch, _by_indexed_pod),
    _Known(jobs.OLD_BATCH, _batch, _by_indexed_pod),
)


def _size(cluster: Cluster, pod: Pod) -> _Size | None:
    """Ask the widest group that the pod is in; a job that has ended or is suspended has no size."""
    namespace = pod.meta.namespace
    for known in _KNOWN:
        name = pod.meta.labels.get(known.label.label)
        if not name:
            continue
        found = (cluster.one(one.group, one.name, name, namespace) for one in known.label.kinds)
        job = next((one for one in found if one is not None), None)
        if job is not None:
            return known.by_object(job, pod) or _nobody(job)
        kind = known.label.kind_of(pod.meta.labels, pod.meta.owner or "")
        called = kind.name if kind else _GROUP if known.label is jobs.KUEUE_GROUP else _ANY
        return known.by_pod(pod, Subject(called, name, namespace))
    return None
