"""Kubernetes objects as the API returns them, small: plain functions that return JSON objects.

Keyword arguments are the fields that a test is about; everything else has the API's defaults
or is left out. `cluster` and `situation_of` turn them into what the facts modules take, `ask`
diagnoses a pod among them as `check --pod --from` does, `ask_node` a node.
"""

from __future__ import annotations

from typing import Any

import msgspec

from gpudoctor import readings
from gpudoctor.facts.kubernetes import fields, situation
from gpudoctor.facts.kubernetes.cluster import Cluster
from gpudoctor.facts.kubernetes.model import Scope
from gpudoctor.facts.kubernetes.situation import PodSituation
from gpudoctor.readings import kubernetes
from gpudoctor.report import Finding, Report, Severity
from gpudoctor.sources.bundle import Bundle
from gpudoctor.sources.bundle import Scope as BundleScope
from tests import cases_k8s

Object = dict[str, Any]

NOW = "2026-11-20T08:30:00Z"
CREATED = "2026-11-20T08:00:00Z"
GATED = "Scheduling is blocked due to non-empty scheduling gates"


def metadata(name: str, namespace: str | None = None, **more: Any) -> Object:
    """Metadata with labels, annotations, ownerReferences, uid, … as keyword arguments."""
    data: Object = {"name": name, "creationTimestamp": CREATED}
    if namespace:
        data["namespace"] = namespace
    return data | more


def owner(kind: str, name: str, api_version: str = "batch/v1", uid: str = "owner-uid") -> Object:
    """A controlling owner reference."""
    return {
        "apiVersion": api_version,
        "kind": kind,
        "name": name,
        "uid": uid,
        "controller": True,
    }


def condition(kind: str, status: str, reason: str = "", message: str = "") -> Object:
    """An entry of status.conditions."""
    return {
        "type": kind,
        "status": status,
        "reason": reason,
        "message": message,
        "lastTransitionTime": CREATED,
    }


def container(name: str = "main", limits: Object | None = None, **more: Any) -> Object:
    """A container whose requests equal its limits."""
    resources = {"limits": limits or {}, "requests": limits or {}}
    return {"name": name, "image": "example/train:1", "resources": resources} | more


def pod(
    name: str = "train-0",
    namespace: str = "team",
    *,
    limits: Object | None = None,
    containers: list[Object] | None = None,
    node: str | None = None,
    phase: str = "Pending",
    conditions: list[Object] | None = None,
    statuses: list[Object] | None = None,
    meta: Object | None = None,
    spec: Object | None = None,
    status: Object | None = None,
) -> Object:
    """A pod; `meta`, `spec` and `status` add fields beyond those that have an argument."""
    default = containers or [
        container(limits={"nvidia.com/gpu": "1"} if limits is None else limits)
    ]
    full_spec: Object = {"containers": default, "schedulerName": "default-scheduler"}
    if node:
        full_spec["nodeName"] = node
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": metadata(name, namespace, **(meta or {})),
        "spec": full_spec | (spec or {}),
        "status": {
            "phase": phase,
            "conditions": conditions or [],
            "containerStatuses": statuses or [],
        }
        | (status or {}),
    }


def pending(message: str, reason: str = "Unschedulable") -> list[Object]:
    """The conditions of a pod that the scheduler refused."""
    return [condition("PodScheduled", "False", reason, message)]


def container_status(name: str = "main", **more: Any) -> Object:
    """A container status; ready, restartCount, state, lastState as keyword arguments."""
    return {"name": name, "ready": False, "restartCount": 0, "state": {}, "lastState": {}} | more


def node(
    name: str = "gpu-1",
    *,
    allocatable: Object | None = None,
    capacity: Object | None = None,
    labels: Object | None = None,
    annotations: Object | None = None,
    taints: list[Object] | None = None,
    unschedulable: bool = False,
    conditions: list[Object] | None = None,
) -> Object:
    """A Ready node with 8 GPUs; capacity is allocatable unless it is given."""
    base = {"cpu": "64", "memory": "512Gi", "pods": "110"}
    offered = base | ({"nvidia.com/gpu": "8"} if allocatable is None else allocatable)
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": metadata(
            name,
            labels={"kubernetes.io/hostname": name} | (labels or {}),
            annotations=annotations or {},
        ),
        "spec": {"taints": taints or [], "unschedulable": unschedulable},
        "status": {
            "allocatable": offered,
            "capacity": offered if capacity is None else base | capacity,
            "conditions": conditions or [condition("Ready", "True", "KubeletReady")],
        },
    }


def event(
    about: Object,
    reason: str,
    message: str,
    *,
    component: str = "default-scheduler",
    type: str = "Warning",  # noqa: A002 - the API's word
    seen: str = "2026-11-20T08:20:00Z",
    count: int = 3,
) -> Object:
    """A v1 event about an object."""
    data = about["metadata"]
    name = data["name"]
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": metadata(f"{name}.{abs(hash((reason, message))):x}", data.get("namespace")),
        "involvedObject": {
            "apiVersion": about["apiVersion"],
            "kind": about["kind"],
            "name": name,
            "namespace": data.get("namespace"),
        },
        "reason": reason,
        "message": message,
        "type": type,
        "source": {"component": component},
        "firstTimestamp": CREATED,
        "lastTimestamp": seen,
        "count": count,
    }


def custom(
    api_version: str,
    kind: str,
    name: str,
    namespace: str | None = None,
    *,
    spec: Object | None = None,
    status: Object | None = None,
    **meta: Any,
) -> Object:
    """An object of any other kind."""
    return {
        "apiVersion": api_version,
        "kind": kind,
        "metadata": metadata(name, namespace, **meta),
        "spec": spec or {},
        "status": status or {},
    }


def cluster(*objects: Object, complete: bool = True, now: str = NOW) -> Cluster:
    """The objects as the facts modules take them; `complete` is the scope of the input."""
    raw = [msgspec.Raw(msgspec.json.encode(obj)) for obj in objects]
    return Cluster(raw, Scope(complete=complete), fields.moment(now))


def situation_of(
    read_from: Cluster, name: str = "train-0", logs: dict[str, str] | None = None
) -> PodSituation:
    """The situation of the pod of that name."""
    entry = next(found for found in read_from.pods if found.name == name)
    return situation.read(read_from, read_from.pod(entry), logs or {})


def ask(
    *objects: Object,
    pod: str = "team/train-0",
    logs: dict[str, str] | None = None,
    complete: bool = True,
) -> Report:
    """Diagnose a pod (namespace/name) among the objects."""
    case = {"command": f"check --pod {pod}", "objects": list(objects), "logs": logs or {}}
    return cases_k8s.ask(case, complete=complete)


def ask_node(
    *objects: Object,
    node: str = "gpu-1",
    logs: dict[str, str] | None = None,
    complete: bool = True,
) -> Report:
    """Diagnose a node among the objects, as `check --node --from` does."""
    recorded = Bundle(
        scope=BundleScope(objects="complete" if complete else "partial"),
        objects=tuple(msgspec.Raw(msgspec.json.encode(obj)) for obj in objects),
        logs=logs or {},
    )
    reading = kubernetes.read_node(kubernetes.Input(recorded), node)
    return readings.judge(reading, cases_k8s.checks())


def daemon(
    name: str = "nvidia-device-plugin",
    *,
    tolerations: list[Object] | None = None,
    node_selector: Object | None = None,
    desired: int = 1,
) -> Object:
    """A DaemonSet of namespace gpu-operator whose one container has its name."""
    template = {
        "containers": [container(name)],
        "tolerations": tolerations or [],
        "nodeSelector": node_selector or {},
    }
    return custom(
        "apps/v1",
        "DaemonSet",
        name,
        "gpu-operator",
        spec={"template": {"spec": template}},
        status={"desiredNumberScheduled": desired},
    )


def daemon_pod(
    of: str = "nvidia-device-plugin",
    on: str = "gpu-1",
    *,
    spec: Object | None = None,
    **status: Any,
) -> Object:
    """The pod `OF-ON` of that DaemonSet; `status` is what its container's status adds."""
    return pod(
        f"{of}-{on}",
        "gpu-operator",
        containers=[container(of)],
        node=on,
        phase="Running",
        statuses=[container_status(of, **({"ready": True, "state": {"running": {}}} | status))],
        meta={"ownerReferences": [owner("DaemonSet", of, "apps/v1")]},
        spec=spec,
    )


def crashing(reason: str = "Error", code: int = 1, restarts: int = 7, **end: Any) -> Object:
    """The fields of the status of a container in CrashLoopBackOff."""
    return {
        "ready": False,
        "restartCount": restarts,
        "state": {"waiting": {"reason": "CrashLoopBackOff"}},
        "lastState": {"terminated": {"exitCode": code, "reason": reason} | end},
    }


def held(node: str, amount: str, resource: str = "nvidia.com/gpu", name: str = "holder") -> Object:
    """A running pod that has so much of the resource on the node."""
    return pod(name, "other", limits={resource: amount}, node=node, phase="Running")


def finding_of(report: Report, name: str) -> Finding:
    """The only finding of that name; the others' names if there is not exactly one."""
    found = [finding for finding in report.findings if finding.name == name]
    assert len(found) == 1, [finding.name for finding in report.findings]
    return found[0]


def loud(report: Report) -> set[str]:
    """Names of the findings that are more than information."""
    return {found.name for found in report.findings if found.severity is not Severity.INFO}


def told(finding: Finding) -> tuple[str, str, str]:
    """Severity, certainty and subject as the report writes them."""
    return finding.severity.value, finding.certainty.value, str(finding.subject)


def shown(finding: Finding) -> str:
    """All of a finding's evidence as one text, a line each."""
    return "\n".join(
        f"{e.object}{' ' + e.path if e.path else ''} {e.value}" for e in finding.evidence
    )
