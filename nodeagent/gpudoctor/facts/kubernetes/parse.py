"""API objects (decoded JSON) to facts. Accepts any shape; what is missing stays None or empty."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

from gpudoctor.facts.kubernetes import fields
from gpudoctor.facts.kubernetes.fields import JsonObject
from gpudoctor.facts.kubernetes.model import (
    AllocatedDevice,
    Condition,
    Container,
    ContainerStatus,
    DaemonSet,
    Event,
    Meta,
    Mount,
    Node,
    Occupant,
    Pod,
    PodClaim,
    Probe,
    Requirement,
    Resources,
    SelectorTerm,
    State,
    Taint,
    Toleration,
    Volume,
)
from gpudoctor.report import Subject
from gpudoctor.sources.environment import is_readable

NOT_PRINTED = "(not printed)"
"""Stands for a field that a text about an object leaves out, so that it is not taken as absent."""


def meta(obj: JsonObject) -> Meta:
    """Read kind and metadata of any object."""
    data = fields.mapping(obj, "metadata")
    owners = fields.objects(data, "ownerReferences")
    owner = next((ref for ref in owners if fields.flag(ref, "controller")), None)
    return Meta(
        kind=fields.text(obj, "kind") or "Object",
        name=fields.text(data, "name") or "",
        namespace=fields.text(data, "namespace"),
        uid=fields.text(data, "uid"),
        labels=fields.text_map(data, "labels"),
        annotations=fields.text_map(data, "annotations"),
        owner=f"{fields.text(owner, 'kind')}/{fields.text(owner, 'name')}" if owner else None,
        created=fields.moment(data, "creationTimestamp"),
        deleted=fields.moment(data, "deletionTimestamp"),
    )


def conditions(obj: JsonObject) -> tuple[Condition, ...]:
    """Read `status.conditions`."""
    return tuple(
        Condition(
            type=fields.text(item, "type") or "",
            status=fields.text(item, "status") or "Unknown",
            reason=fields.text(item, "reason") or "",
            message=fields.text(item, "message") or "",
            since=fields.moment(item, "lastTransitionTime"),
        )
        for item in fields.objects(obj, "status", "conditions")
    )


def taint(item: JsonObject) -> Taint:
    """Read a taint of a node or device."""
    return Taint(
        key=fields.text(item, "key") or "",
        value=fields.text(item, "value") or "",
        effect=fields.text(item, "effect") or "",
    )


def toleration(item: JsonObject) -> Toleration:
    """Read a toleration of a pod or claim."""
    return Toleration(
        key=fields.text(item, "key") or "",
        operator=fields.text(item, "operator") or "Equal",
        value=fields.text(item, "value") or "",
        effect=fields.text(item, "effect") or "",
    )


def node(obj: JsonObject) -> Node:
    """Read a Node."""
    status = fields.mapping(obj, "status")
    return Node(
        meta=meta(obj),
        unschedulable=fields.flag(obj, "spec", "unschedulable"),
        taints=tuple(taint(item) for item in fields.objects(obj, "spec", "taints")),
        capacity=fields.quantities(status, "capacity"),
        allocatable=fields.quantities(status, "allocatable"),
        conditions=conditions(obj),
        kubelet_version=fields.text(status, "nodeInfo", "kubeletVersion") or "",
        boot_id=fields.text(status, "nodeInfo", "bootID") or "",
        has_status=bool(fields.mapping(status, "allocatable")),
    )


def event(obj: JsonObject) -> Event:
    """Read an Event of v1 or events.k8s.io/v1."""
    about = fields.mapping(obj, "involvedObject") or fields.mapping(obj, "regarding")
    series = fields.mapping(obj, "series")
    seen = [
        fields.moment(series, "lastObservedTime"),
        fields.moment(obj, "lastTimestamp"),
        fields.moment(obj, "deprecatedLastTimestamp"),
        fields.moment(obj, "eventTime"),
        fields.moment(obj, "firstTimestamp"),
        fields.moment(obj, "metadata", "creationTimestamp"),
    ]
    counts = [fields.integer(series, "count"), fields.integer(obj, "count")]
    counts.append(fields.integer(obj, "deprecatedCount"))
    return Event(
        meta=meta(obj),
        about=Subject(
            kind=fields.text(about, "kind") or "",
            name=fields.text(about, "name") or "",
            namespace=fields.text(about, "namespace"),
        ),
        about_uid=fields.text(about, "uid"),
        reason=fields.text(obj, "reason") or "",
        message=fields.text(obj, "message") or fields.text(obj, "note") or "",
        type=fields.text(obj, "type") or "Normal",
        component=fields.text(obj, "reportingComponent")
        or fields.text(obj, "reportingController")
        or fields.text(obj, "source", "component")
        or "",
        seen=next((time for time in seen if time is not None), None),
        count=next((count for count in counts if count), 1),
    )


def pod(obj: JsonObject) -> Pod:
    """Read a Pod."""
    return _pod(meta(obj), fields.mapping(obj, "spec"), fields.mapping(obj, "status"))


def daemon_set(obj: JsonObject) -> DaemonSet:
    """Read a DaemonSet."""
    data = meta(obj)
    template = fields.mapping(obj, "spec", "template")
    labels = fields.text_map(template, "metadata", "labels")
    template_meta = Meta("Pod", data.name, data.namespace, labels=labels)
    return DaemonSet(
        meta=data,
        template=_pod(template_meta, fields.mapping(template, "spec"), {}),
        desired=fields.integer(obj, "status", "desiredNumberScheduled"),
        ready=fields.integer(obj, "status", "numberReady"),
    )


def _pod(data: Meta, spec: JsonObject, status: JsonObject) -> Pod:
    affinity = fields.mapping(
        spec, "affinity", "nodeAffinity", "requiredDuringSchedulingIgnoredDuringExecution"
    )
    security = fields.mapping(spec, "securityContext")
    return Pod(
        meta=data,
        node=fields.text(spec, "nodeName") or None,
        scheduler=fields.text(spec, "schedulerName") or "default-scheduler",
        priority=fields.integer(spec, "priority"),
        gates=tuple(
            fields.text(gate, "name") or "" for gate in fields.objects(spec, "schedulingGates")
        ),
        node_selector=fields.text_map(spec, "nodeSelector"),
        node_affinity=node_selector_terms(affinity) if affinity else None,
        tolerations=tuple(toleration(item) for item in fields.objects(spec, "tolerations")),
        containers=(
            *(_container(item, True) for item in fields.objects(spec, "initContainers")),
            *(_container(item, False) for item in fields.objects(spec, "containers")),
        ),
        volumes=tuple(_volume(item) for item in fields.objects(spec, "volumes")),
        requests=effective_requests(spec),
        runtime_class=fields.text(spec, "runtimeClassName"),
        host_network=fields.flag(spec, "hostNetwork"),
        hostname=fields.text(spec, "hostname") or "",
        host_ipc=fields.flag(spec, "hostIPC"),
        host_users=fields.at(spec, "hostUsers") is not False,
        restart_policy=fields.text(spec, "restartPolicy") or "Always",
        grace_period=fields.integer(spec, "terminationGracePeriodSeconds"),
        run_as_user=fields.integer(security, "runAsUser"),
        run_as_non_root=fields.flag(security, "runAsNonRoot"),
        claims=_pod_claims(spec, status),
        scheduling_group=fields.text(spec, "schedulingGroup", "podGroupName")
        or fields.text(spec, "workloadRef", "name"),
        phase=fields.text(status, "phase") or "",
        reason=fields.text(status, "reason") or "",
        message=fields.text(status, "message") or "",
        qos=fields.text(status, "qosClass") or "",
        nominated_node=fields.text(status, "nominatedNodeName"),
        conditions=conditions({"status": status}),
        statuses=(
            *(_status(s, True) for s in fields.objects(status, "initContainerStatuses")),
            *(_status(s, False) for s in fields.objects(status, "containerStatuses")),
        ),
    )


def node_selector_terms(selector: JsonObject) -> tuple[SelectorTerm, ...]:
    """Read the terms of a node selector (node affinity, volume, resource slice or claim)."""
    return tuple(
        SelectorTerm(
            labels=_requirements(term, "matchExpressions"),
            fields=_requirements(term, "matchFields"),
        )
        for term in fields.objects(selector, "nodeSelectorTerms")
    )


def _requirements(term: JsonObject, key: str) -> tuple[Requirement, ...]:
    return tuple(
        Requirement(
            key=fields.text(item, "key") or "",
            operator=fields.text(item, "operator") or "",
            values=fields.texts(item, "values"),
        )
        for item in fields.objects(term, key)
    )


def _container(item: JsonObject, is_init: bool) -> Container:
    security = fields.mapping(item, "securityContext")
    return Container(
        name=fields.text(item, "name") or "",
        image=fields.text(item, "image") or "",
        command=fields.texts(item, "command"),
        args=fields.texts(item, "args"),
        env={
            name: value
            for entry in fields.objects(item, "env")
            if (name := fields.text(entry, "name"))
            and is_readable(name)
            and (value := fields.text(entry, "value")) is not None
        },
        requests=fields.quantities(item, "resources", "requests"),
        limits=fields.quantities(item, "resources", "limits"),
        mounts=tuple(
            Mount(fields.text(m, "name") or "", fields.text(m, "mountPath") or "")
            for m in fields.objects(item, "volumeMounts")
        ),
        claims=tuple(
            fields.text(claim, "name") or ""
            for claim in fields.objects(item, "resources", "claims")
        ),
        capabilities=fields.texts(security, "capabilities", "add"),
        run_as_user=fields.integer(security, "runAsUser"),
        run_as_non_root=fields.flag(security, "runAsNonRoot"),
        privileged=fields.flag(security, "privileged"),
        security_known=item.get("securityContext") != NOT_PRINTED,
        liveness=_probe(fields.mapping(item, "livenessProbe")),
        startup=_probe(fields.mapping(item, "startupProbe")),
        is_init=is_init,
        is_sidecar=_is_sidecar(item, is_init),
    )


def _is_sidecar(item: JsonObject, is_init: bool) -> bool:
    return is_init and fields.text(item, "restartPolicy") == "Always"


def _probe(item: JsonObject) -> Probe | None:
    if not item:
        return None
    return Probe(
        initial_delay=fields.integer(item, "initialDelaySeconds") or 0,
        period=fields.integer(item, "periodSeconds") or 10,
        timeout=fields.integer(item, "timeoutSeconds") or 1,
        failure_threshold=fields.integer(item, "failureThreshold") or 3,
    )


def _volume(item: JsonObject) -> Volume:
    empty_dir = fields.mapping(item, "emptyDir")
    return Volume(
        name=fields.text(item, "name") or "",
        empty_dir="emptyDir" in item,
        medium=fields.text(empty_dir, "medium") or "",
        size_limit=fields.quantity(empty_dir.get("sizeLimit")),
        host_path=fields.text(item, "hostPath", "path"),
        claim=fields.text(item, "persistentVolumeClaim", "claimName"),
    )


def _pod_claims(spec: JsonObject, status: JsonObject) -> tuple[PodClaim, ...]:
    made = {
        fields.text(item, "name"): fields.text(item, "resourceClaimName")
        for item in fields.objects(status, "resourceClaimStatuses")
    }
    listed = [
        PodClaim(
            name=name,
            claim=fields.text(item, "resourceClaimName") or made.get(name),
            template=fields.text(item, "resourceClaimTemplateName"),
        )
        for item in fields.objects(spec, "resourceClaims")
        if (name := fields.text(item, "name"))
    ]
    # An extended resource that DRA serves: the scheduler makes the claim, the spec has none.
    extended = fields.text(status, "extendedResourceClaimStatus", "resourceClaimName")
    if extended:
        listed.append(PodClaim(name="extended resources", claim=extended))
    return tuple(listed)


def _status(item: JsonObject, is_init: bool) -> ContainerStatus:
    return ContainerStatus(
        name=fields.text(item, "name") or "",
        ready=fields.flag(item, "ready"),
        restarts=fields.integer(item, "restartCount") or 0,
        state=_state(fields.mapping(item, "state")),
        last=_state(fields.mapping(item, "lastState")),
        devices=tuple(
            AllocatedDevice(
                resource=fields.text(group, "name") or "",
                id=fields.text(device, "resourceID") or "",
                health=fields.text(device, "health") or "Unknown",
                message=fields.text(device, "message") or "",
            )
            for group in fields.objects(item, "allocatedResourcesStatus")
            for device in fields.objects(group, "resources")
        ),
        is_init=is_init,
    )


def _state(item: JsonObject) -> State:
    for kind in ("waiting", "running", "terminated"):
        found = fields.at(item, kind)
        if isinstance(found, dict):
            return State(
                kind=kind,
                reason=fields.text(found, "reason") or "",
                message=fields.text(found, "message") or "",
                exit_code=fields.integer(found, "exitCode"),
                started=fields.moment(found, "startedAt"),
                finished=fields.moment(found, "finishedAt"),
            )
    return State()


def effective_requests(spec: JsonObject) -> Resources:
    """Return what the scheduler counts for a pod: containers and sidecars add, init ones take
    the maximum, pod-level requests replace the sum where they are set, overhead comes on top.

    A limit without a request is the request, as the API server defaults it.
    """
    running: Resources = {}
    peak: Resources = {}
    for item in fields.objects(spec, "initContainers"):
        own = _container_requests(item)
        if _is_sidecar(item, True):
            _add(running, own)
            _raise_to(peak, running)
        else:
            _raise_to(peak, _sum(running, own))
    for item in fields.objects(spec, "containers"):
        _add(running, _container_requests(item))
    _raise_to(peak, running)
    peak.update(_container_requests(spec))
    _add(peak, fields.quantities(spec, "overhead"))
    return peak


def _container_requests(item: Any) -> Resources:
    return fields.quantities(item, "resources", "limits") | fields.quantities(
        item, "resources", "requests"
    )


def _add(total: Resources, more: Resources) -> None:
    for key, amount in more.items():
        total[key] = total.get(key, Decimal(0)) + amount


def _sum(first: Resources, second: Resources) -> Resources:
    total = dict(first)
    _add(total, second)
    return total


def _raise_to(peak: Resources, level: Resources) -> None:
    for key, amount in level.items():
        peak[key] = max(peak.get(key, Decimal(0)), amount)


def occupant(obj: JsonObject) -> Occupant | None:
    """Read a pod's claim on its node's capacity; None for unbound and ended pods."""
    spec = fields.mapping(obj, "spec")
    bound_to = fields.text(spec, "nodeName")
    if not bound_to or fields.text(obj, "status", "phase") in ("Succeeded", "Failed"):
        return None
    data = fields.mapping(obj, "metadata")
    return Occupant(
        namespace=fields.text(data, "namespace") or "",
        name=fields.text(data, "name") or "",
        node=bound_to,
        requests=effective_requests(spec),
        priority=fields.integer(spec, "priority") or 0,
        terminating="deletionTimestamp" in data,
        has_claims=bool(fields.objects(spec, "resourceClaims")),
    )
