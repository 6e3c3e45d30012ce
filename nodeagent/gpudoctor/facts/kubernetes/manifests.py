"""Pod templates of manifests: what would become pods once a file is applied.

Where the template lies in Job, CronJob, Deployment, StatefulSet, DaemonSet, JobSet, the training
operator's jobs, TrainJob, RayCluster, RayJob, RayService, LeaderWorkerSet and Volcano's Job; any
other kind with `spec.template.spec.containers` is read in the same way.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import msgspec

from gpudoctor.facts.kubernetes import fields, parse
from gpudoctor.facts.kubernetes.fields import JsonObject
from gpudoctor.facts.kubernetes.model import Pod
from gpudoctor.facts.kubernetes.situation import PodSituation
from gpudoctor.facts.node.needs import ANNOTATION, VARIABLE
from gpudoctor.facts.rendezvous_plan import VARIABLE as RENDEZVOUS
from gpudoctor.report import Evidence

_MOST_MEMBERS = 4096
_RAY_SHM = {"name": "shared-mem", "emptyDir": {"medium": "Memory"}}
_TOPOLOGY_ANNOTATION = re.compile(
    r"kueue\.x-k8s\.io/podset-(required|preferred|unconstrained)-topology"
    r"|(alpha\.jobset|leaderworkerset)\.sigs\.k8s\.io/exclusive-topology"
)
_TOPOLOGY_LABEL = re.compile(r"topology|fabric|clique|rack|block|zone|spine|leaf", re.I)
_LWS_SIZE = "leaderworkerset.sigs.k8s.io/size"


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """One pod template. `members` is how many pods of it and its like work together as one job.

    `declared` are the needs as annotation or variable of it say. `whole` is False where the rest
    of the template comes from elsewhere, as a TrainJob's from its runtime. `meets` says that its
    preflight waits for the other members, `ordered` why they may not be there before it is ready.
    `is_near` says that something tells how near to each other the pods must run.
    """

    situation: PodSituation
    members: int = 1
    declared: str | None = None
    whole: bool = True
    meets: bool = False
    ordered: Evidence | None = None
    is_near: bool = False

    @property
    def pod(self) -> Pod:
        """The pod that the template makes, under the name of the object that holds it."""
        return self.situation.pod


class _Template(msgspec.Struct, frozen=True, kw_only=True):
    role: str
    template: JsonObject
    members: int
    whole: bool = True


def read(obj: JsonObject) -> tuple[Manifest, ...]:
    """Return the pod templates of an object; none if it has none."""
    found = list(_templates(obj))
    return tuple(_manifest(obj, one, len(found) > 1) for one in found)


def _manifest(obj: JsonObject, found: _Template, several: bool) -> Manifest:
    own, theirs = fields.mapping(obj, "metadata"), fields.mapping(found.template, "metadata")
    name = fields.text(own, "name") or fields.text(own, "generateName") or "unnamed"
    annotations = fields.text_map(own, "annotations") | fields.text_map(theirs, "annotations")
    if fields.text(obj, "kind") == "LeaderWorkerSet":
        annotations.setdefault(_LWS_SIZE, str(found.members))
    labels = fields.text_map(own, "labels") | fields.text_map(theirs, "labels")
    pod = parse.pod(
        {
            "kind": fields.text(obj, "kind"),
            "metadata": {
                "name": f"{name}/{found.role}" if several else name,
                "namespace": fields.text(own, "namespace"),
                "annotations": annotations,
                "labels": labels,
            },
            "spec": fields.mapping(found.template, "spec"),
        }
    )
    return Manifest(
        situation=PodSituation(pod=pod, peers=(pod,) * (found.members - 1)),
        members=found.members,
        declared=annotations.get(ANNOTATION) or _variable(found.template),
        whole=found.whole,
        meets=_meets(found.template),
        ordered=_ordered(obj),
        is_near=any(map(_TOPOLOGY_ANNOTATION.fullmatch, annotations)) or _is_near(found.template),
    )


def _is_near(template: JsonObject) -> bool:
    """Whether affinity, spread or a selector by a topology's label places the pods together."""
    spec = fields.mapping(template, "spec")
    affinity = fields.mapping(spec, "affinity")
    terms = fields.objects(
        affinity, "nodeAffinity", "requiredDuringSchedulingIgnoredDuringExecution",
        "nodeSelectorTerms",
    )  # fmt: skip
    keys = [*fields.text_map(spec, "nodeSelector")]
    keys += [
        fields.text(one, "key") or ""
        for term in terms
        for one in fields.objects(term, "matchExpressions")
    ]
    return (
        bool(fields.objects(spec, "topologySpreadConstraints"))
        or "podAffinity" in affinity
        or any(map(_TOPOLOGY_LABEL.search, keys))
    )


def _meets(template: JsonObject) -> bool:
    """Whether a container of gpudoctor's asks for the rendezvous, by option or by variable."""
    containers = fields.objects(fields.mapping(template, "spec"), "initContainers")
    return any(
        str(word).startswith("--rendezvous")
        for container in containers
        for word in (*_words(container, "args"), *_words(container, "command"))
    ) or any(
        fields.text(entry, "name") == RENDEZVOUS
        for container in containers
        for entry in fields.objects(container, "env")
    )


def _words(container: JsonObject, name: str) -> list[object]:
    found = container.get(name)
    return found if isinstance(found, list) else []


def _ordered(obj: JsonObject) -> Evidence | None:
    """Return the field by which the pods are made one after the other, None if they are not."""
    kind = fields.text(obj, "kind") or ""
    path = f"{kind}/{fields.text(obj, 'metadata', 'name') or 'unnamed'}"
    if kind == "StatefulSet":
        policy = fields.text(obj, "spec", "podManagementPolicy") or "OrderedReady"
        return None if policy == "Parallel" else Evidence(path, "spec.podManagementPolicy", policy)
    if kind == "LeaderWorkerSet":
        policy = fields.text(obj, "spec", "startupPolicy") or "LeaderCreated"
        return Evidence(path, "spec.startupPolicy", policy) if policy == "LeaderReady" else None
    if kind == "JobSet":
        order = fields.text(obj, "spec", "startupPolicy", "startupPolicyOrder")
        field = "spec.startupPolicy.startupPolicyOrder"
        return Evidence(path, field, order) if order == "InOrder" else None
    if kind in ("MPIJob", "PyTorchJob"):
        return Evidence(path, "kind", kind, "its pods wait for each other in the operator's way")
    return None


def _variable(template: JsonObject) -> str | None:
    spec = fields.mapping(template, "spec")
    for name in ("initContainers", "containers"):
        for container in fields.objects(spec, name):
            for entry in fields.objects(container, "env"):
                if fields.text(entry, "name") == VARIABLE:
                    return fields.text(entry, "value")
    return None


def _count(value: int | None) -> int:
    return 1 if value is None else max(1, min(value, _MOST_MEMBERS))


def _one(obj: JsonObject, *path: str, members: int = 1, role: str = "") -> Iterator[_Template]:
    """Yield the template at a path, if pods could be made of it."""
    template = fields.mapping(obj, *path)
    if fields.objects(template, "spec", "containers"):
        yield _Template(role=role, template=template, members=_count(members))


def _templates(obj: JsonObject) -> Iterator[_Template]:
    kind = fields.text(obj, "kind")
    group = (fields.text(obj, "apiVersion") or "").partition("/")[0]
    if kind == "Pod":
        yield from _one({"pod": obj}, "pod")
    elif kind == "Job" and "volcano" in group:
        yield from _roles(fields.objects(obj, "spec", "tasks"), ("template",), "replicas")
    elif kind == "Job":
        spec = fields.mapping(obj, "spec")
        yield from _one(spec, "template", members=_count(fields.integer(spec, "parallelism")))
    elif kind == "CronJob":
        yield from _one(obj, "spec", "jobTemplate", "spec", "template")
    elif kind == "JobSet":
        yield from _job_set(obj)
    elif kind == "TrainJob":
        yield from _train_job(obj)
    elif kind in ("RayCluster", "RayJob", "RayService"):
        yield from _ray(obj, kind)
    elif kind == "LeaderWorkerSet":
        spec = fields.mapping(obj, "spec", "leaderWorkerTemplate")
        size = _count(fields.integer(spec, "size"))
        yield from _one(spec, "leaderTemplate", members=size, role="leader")
        yield from _one(spec, "workerTemplate", members=size, role="worker")
    elif specs := _replica_specs(obj):
        yield from _roles(specs, ("template",), "replicas")
    else:
        replicas = fields.integer(obj, "spec", "replicas") if kind == "StatefulSet" else None
        yield from _one(obj, "spec", "template", members=_count(replicas))


def _roles(items: list[JsonObject], path: tuple[str, ...], count: str) -> Iterator[_Template]:
    """Yield the template of each role of one job; all roles work together."""
    total = sum(_count(fields.integer(item, count)) for item in items)
    for number, item in enumerate(items):
        role = fields.text(item, "name") or fields.text(item, "groupName") or str(number)
        yield from _one(item, *path, members=total, role=role)


def _replica_specs(obj: JsonObject) -> list[JsonObject]:
    """Return the roles of a PyTorchJob, MPIJob and their like, each with its name."""
    for key, value in fields.mapping(obj, "spec").items():
        if key.endswith("ReplicaSpecs") and isinstance(value, dict):
            return [
                {**spec, "name": str(role).lower()}
                for role, spec in value.items()
                if isinstance(spec, dict)
            ]
    return []


def _job_set(obj: JsonObject) -> Iterator[_Template]:
    jobs = fields.objects(obj, "spec", "replicatedJobs")
    sizes = [
        _count(fields.integer(job, "replicas"))
        * _count(fields.integer(job, "template", "spec", "parallelism"))
        for job in jobs
    ]
    for job in jobs:
        role = fields.text(job, "name") or "job"
        yield from _one(job, "template", "spec", "template", members=_count(sum(sizes)), role=role)


def _train_job(obj: JsonObject) -> Iterator[_Template]:
    """Yield what a TrainJob says itself; volumes and security come with its runtime."""
    trainer = fields.mapping(obj, "spec", "trainer")
    if not trainer:
        return
    container = {
        "name": "node",
        "image": trainer.get("image"),
        "command": trainer.get("command"),
        "args": trainer.get("args"),
        "env": trainer.get("env"),
        "resources": trainer.get("resourcesPerNode"),
    }
    nodes = _count(fields.integer(trainer, "numNodes"))
    template = {"spec": {"containers": [container]}}
    yield _Template(role="node", template=template, members=nodes, whole=False)


def _ray(obj: JsonObject, kind: str) -> Iterator[_Template]:
    """Yield head and workers, with the shared memory that the operator mounts in each."""
    inside = {"RayJob": ("spec", "rayClusterSpec"), "RayService": ("spec", "rayClusterConfig")}
    spec = fields.mapping(obj, *inside.get(kind, ("spec",)))
    groups = [{**fields.mapping(spec, "headGroupSpec"), "groupName": "head"}]
    groups += fields.objects(spec, "workerGroupSpecs")
    for found in _roles(groups, ("template",), "replicas"):
        template = _with_shared_memory(found.template)
        yield msgspec.structs.replace(found, template=template)


def _with_shared_memory(template: JsonObject) -> JsonObject:
    spec = fields.mapping(template, "spec")
    containers = fields.objects(spec, "containers")
    mounts = fields.objects(containers[0], "volumeMounts")
    if any(mount.get("mountPath") == "/dev/shm" for mount in mounts):  # noqa: S108 - a field
        return template
    mount = {"name": _RAY_SHM["name"], "mountPath": "/dev/shm"}  # noqa: S108 - a field
    first = {**containers[0], "volumeMounts": [*mounts, mount]}
    volumes = [*fields.objects(spec, "volumes"), _RAY_SHM]
    labels = {**fields.mapping(template, "metadata", "labels"), "ray.io/cluster": "this"}
    metadata = {**fields.mapping(template, "metadata"), "labels": labels}
    spec = {**spec, "containers": [first, *containers[1:]], "volumes": volumes}
    return {**template, "metadata": metadata, "spec": spec}
