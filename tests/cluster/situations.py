"""Clusters with one known reason why a GPU pod gets no node, and what has to be found.

`says` are pieces of the scheduler's message that prove that the real scheduler sees the
situation as it is meant; `roots` is the right answer.
"""

from __future__ import annotations

from dataclasses import dataclass

from tests.cluster.admin import JSON
from tests.cluster.objects import (
    DRA_DRIVER,
    GPU,
    ZONE,
    busy,
    claim,
    claiming_pod,
    device,
    device_class,
    elsewhere,
    gpu_pod,
    hardware,
    mounts,
    node,
    pod,
    priority_class,
    resource_slice,
    taint,
    volume,
    volume_claim,
)


@dataclass(frozen=True)
class Situation:
    """Objects, created in order, then the pod; `asked` is what gpudoctor is asked about.

    `event` is the reason of the event to wait for; empty, the PodScheduled condition is read.
    Lines before `since` place the pod.
    """

    name: str
    roots: frozenset[str]
    says: tuple[str, ...]
    pod: JSON
    objects: list[JSON]
    asked: str
    event: str
    since: str


def _situation(
    name: str,
    roots: str,
    says: str,
    asking: JSON,
    *objects: JSON,
    asked: str = "pod/train-0",
    event: str = "FailedScheduling",
    since: str = "",
) -> Situation:
    """`roots` are divided by blanks, `says` by bars."""
    words = tuple(filter(None, says.split("|")))
    return Situation(
        name, frozenset(roots.split()), words, asking, list(objects), asked, event, since
    )


NO_GPU = "Insufficient nvidia.com/gpu"
GPU_TAINT = taint("nvidia.com/gpu", "present")
H200 = {"cel": {"expression": f"device.attributes['{DRA_DRIVER}'].productName == 'NVIDIA H200'"}}
MISSPELT = {"cel": {"expression": H200["cel"]["expression"].replace("productName", "product")}}
APP = {"app": "train"}


def _spread(key: str) -> list[JSON]:
    return [
        {
            "maxSkew": 1,
            "topologyKey": key,
            "whenUnsatisfiable": "DoNotSchedule",
            "labelSelector": {"matchLabels": APP},
        }
    ]


def _near(kind: str) -> JSON:
    term = {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": APP}}
    return {kind: {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}


def _node_affinity(key: str, operator: str, *values: str) -> JSON:
    expression = {"key": key, "operator": operator, "values": list(values)}
    terms = {"nodeSelectorTerms": [{"matchExpressions": [expression]}]}
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}


def _quota(gpus: int) -> JSON:
    return {
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": {"name": "gpus"},
        "spec": {"hard": {f"requests.{GPU}": str(gpus)}},
    }


def _job(gpus: int) -> JSON:
    template = gpu_pod(gpus, restartPolicy="Never")
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": "train"},
        "spec": {"template": {"metadata": {"labels": APP}, "spec": template["spec"]}},
    }


CAPACITY = [
    _situation(
        "GPUs exhausted", "gpu-capacity-exhausted", f"2 {NO_GPU}|2 No preemption victims",
        gpu_pod(1),
        node("a", gpus=8, labels=hardware()), node("b", gpus=8, labels=hardware()),
        busy("a", 8), busy("b", 8),
    ),
    _situation(
        "GPUs fragmented", "gpu-fragmentation", f"2 {NO_GPU}",
        gpu_pod(4),
        node("a", gpus=8, labels=hardware()), node("b", gpus=8, labels=hardware()),
        busy("a", 6), busy("b", 6),
    ),
    _situation(
        "request above every node", "request-exceeds-largest-node",
        f"1 {NO_GPU}|Preemption is not helpful",
        gpu_pod(16), node("a", gpus=8, labels=hardware()),
    ),
    _situation(
        "key missing", "gpu-resource-not-advertised", f"1 {NO_GPU}",
        gpu_pod(1), node("a", labels=hardware()),
    ),
    _situation(
        "key zero", "gpu-resource-not-advertised", f"1 {NO_GPU}",
        gpu_pod(1), node("a", gpus=0, labels=hardware()),
    ),
    _situation(
        "unhealthy device", "gpu-unhealthy-shrinks-allocatable", f"1 {NO_GPU}",
        gpu_pod(8), node("a", gpus=8, healthy=7, labels=hardware()),
    ),
    _situation(
        "MIG under other names", "mig-resource-name-mismatch", f"1 {NO_GPU}",
        gpu_pod(1),
        node(
            "a", gpus=0, offers={"nvidia.com/mig-1g.10gb": "7"},
            labels=hardware() | {"nvidia.com/mig.strategy": "mixed"},
        ),
    ),
    _situation(
        "CPU exhausted", "non-gpu-resource-exhausted", "1 Insufficient cpu",
        pod(limits={GPU: "1", "cpu": "32"}),
        node("a", gpus=8, labels=hardware()),
        pod("other", limits={"cpu": "40"}, on="a"),
    ),
    _situation(
        "pod slots exhausted", "non-gpu-resource-exhausted", "1 Too many pods",
        gpu_pod(1),
        node("a", gpus=8, labels=hardware(), offers={"pods": "1"}), pod("other", on="a"),
    ),
    _situation(
        "RDMA resource zero", "rdma-resource-zero", "1 Insufficient rdma/hca",
        pod(limits={GPU: "1", "rdma/hca": "1"}),
        node("a", gpus=8, labels=hardware(), offers={"rdma/hca": "0"}),
    ),
    _situation(
        "hugepages missing", "hugepages-missing", "1 Insufficient hugepages-2Mi",
        pod(limits={GPU: "1", "hugepages-2Mi": "1Gi", "cpu": "1", "memory": "1Gi"}),
        node("a", gpus=8, labels=hardware()),
    ),
]  # fmt: skip

ENTRY = [
    _situation(
        "taint", "missing-toleration", "1 node(s) had untolerated taint(s)",
        gpu_pod(1), node("a", gpus=8, labels=hardware(), taints=[GPU_TAINT]),
    ),
    _situation(
        "selector", "node-selector-mismatch", "didn't match Pod's node affinity/selector",
        gpu_pod(1, nodeSelector={"nvidia.com/gpu.product": "NVIDIA-H200"}),
        node("a", gpus=8, labels=hardware()),
    ),
    _situation(
        "node affinity", "node-selector-mismatch", "didn't match Pod's node affinity/selector",
        gpu_pod(1, affinity=_node_affinity("nvidia.com/gpu.count", "Gt", "8")),
        node("a", gpus=8, labels=hardware()),
    ),
    _situation(
        "selector of a shared card", "node-selector-label-changed-by-sharing",
        "didn't match Pod's node affinity/selector",
        gpu_pod(1, nodeSelector={"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"}),
        node(
            "a", gpus=32,
            labels=hardware("NVIDIA-H100-80GB-HBM3-SHARED")
            | {"nvidia.com/gpu.replicas": "4", "nvidia.com/gpu.sharing-strategy": "time-slicing"},
        ),
    ),
    _situation(
        "cordoned", "node-cordoned", "1 node(s) were unschedulable",
        gpu_pod(1), node("a", gpus=8, labels=hardware(), cordoned=True),
    ),
    _situation(
        "node not ready", "node-not-ready", "1 node(s) had untolerated taint(s)",
        gpu_pod(1), node("a", gpus=8, labels=hardware(), ready=False),
    ),
    _situation(
        "no node at all", "no-gpu-node", "no nodes available to schedule pods", gpu_pod(1),
    ),
    _situation("CPU nodes only", "no-gpu-node", f"2 {NO_GPU}", gpu_pod(1), node("a"), node("b")),
    _situation(
        "CPU nodes, and tainted GPU nodes", "missing-toleration",
        f"2 {NO_GPU}|1 node(s) had untolerated taint(s)",
        gpu_pod(1),
        node("cpu-a"), node("cpu-b"),
        node("a", gpus=8, labels=hardware(), taints=[GPU_TAINT]),
    ),
    _situation(
        "tainted control plane, and full GPU nodes", "gpu-capacity-exhausted",
        f"1 {NO_GPU}|1 node(s) had untolerated taint(s)",
        gpu_pod(1),
        node("control", taints=[taint("node-role.kubernetes.io/control-plane")]),
        node("a", gpus=8, labels=hardware()), busy("a", 8),
    ),
    _situation(
        "one GPU node full, one of another product", "gpu-capacity-exhausted",
        f"1 {NO_GPU}|1 node(s) didn't match Pod's node affinity/selector",
        gpu_pod(1, nodeSelector={"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"}),
        node("a", gpus=8, labels=hardware()), busy("a", 8),
        node("b", gpus=8, labels=hardware("NVIDIA-A100-SXM4-80GB")),
    ),
]  # fmt: skip

NEIGHBOURS = [
    _situation(
        "topology spread", "topology-spread-unsatisfied",
        f"1 node(s) didn't match pod topology spread constraints|1 {NO_GPU}",
        gpu_pod(1, labels=APP, topologySpreadConstraints=_spread(ZONE)),
        node("a", gpus=8, labels=hardware() | {ZONE: "east"}), node("b", labels={ZONE: "west"}),
        busy("a", 1, labels=APP),
    ),
    _situation(
        "topology label missing", "topology-spread-unsatisfied",
        "didn't match pod topology spread constraints (missing required label)",
        gpu_pod(1, labels=APP, topologySpreadConstraints=_spread("example.com/rack")),
        node("a", gpus=8, labels=hardware()),
    ),
    _situation(
        "pod affinity", "pod-affinity-unsatisfied", "1 node(s) didn't match pod affinity rules",
        gpu_pod(1, affinity=_near("podAffinity")), node("a", gpus=8, labels=hardware()),
    ),
    _situation(
        "pod anti-affinity", "pod-affinity-unsatisfied",
        "1 node(s) didn't match pod anti-affinity rules",
        gpu_pod(1, affinity=_near("podAntiAffinity")),
        node("a", gpus=8, labels=hardware()), busy("a", 1, labels=APP),
    ),
    _situation(
        "anti-affinity of another pod", "pod-affinity-unsatisfied",
        "1 node(s) didn't satisfy existing pods anti-affinity rules",
        gpu_pod(1, labels=APP),
        node("a", gpus=8, labels=hardware()),
        busy("a", 1, affinity=_near("podAntiAffinity")),
    ),
    _situation(
        "host port taken", "host-port-taken", "didn't have free ports for the requested pod ports",
        gpu_pod(1, container={"ports": [{"containerPort": 80, "hostPort": 8080}],
                              "resources": {"limits": {GPU: "1"}}}),
        node("a", gpus=8, labels=hardware()),
        pod("other", on="a", container={"ports": [{"containerPort": 80, "hostPort": 8080}]}),
    ),
]  # fmt: skip

VOLUMES = [
    _situation(
        "volume in another zone", "volume-affinity-conflict",
        "1 node(s) didn't match PersistentVolume's node affinity",
        gpu_pod(1, volumes=mounts()),
        node("a", gpus=8, labels=hardware() | {ZONE: "east"}),
        volume("disk-west", "west"), volume_claim("disk-west"),
    ),
    _situation(
        "volume not bound", "volume-unbound", "unbound immediate PersistentVolumeClaims",
        gpu_pod(1, volumes=mounts()),
        node("a", gpus=8, labels=hardware()), volume_claim("absent"),
    ),
    _situation(
        "volume claim not there", "volume-unbound", 'persistentvolumeclaim "data" not found',
        gpu_pod(1, volumes=mounts()), node("a", gpus=8, labels=hardware()),
    ),
]  # fmt: skip

QUEUES = [
    _situation(
        "scheduling gate", "scheduling-gated", "Scheduling is blocked",
        gpu_pod(1, schedulingGates=[{"name": "example.com/approval"}]),
        node("a", gpus=8, labels=hardware()),
        event="",
    ),
    _situation(
        "resource quota", "resourcequota-exceeded", "exceeded quota: gpus",
        _job(4), node("a", gpus=8, labels=hardware()), _quota(2),
        asked="job/train", event="FailedCreate",
    ),
    _situation(
        "priority too low", "gpu-capacity-exhausted", f"1 {NO_GPU}|1 No preemption victims",
        gpu_pod(1),
        priority_class("high", 1000),
        node("a", gpus=8, labels=hardware()), busy("a", 8, priorityClassName="high"),
    ),
    _situation(
        "preempted by another pod", "preempted", "",
        gpu_pod(1, "urgent", priorityClassName="high"),
        priority_class("high", 1000),
        node("a", gpus=1, labels=hardware()), busy("a", 1),
        asked="pod/holds-a", event="Preempted",
    ),
    _situation(
        # That nobody has looked at the pod is a finding once it has waited for minutes.
        "scheduler that does not run, pod just made", "", "",
        gpu_pod(1, schedulerName="volcano"), node("a", gpus=8, labels=hardware()),
        event="",
    ),
]  # fmt: skip

CLAIMS = [
    _situation(
        "no matching device", "dra-no-matching-device", "1 cannot allocate all claims",
        claiming_pod(),
        device_class(), node("a"), resource_slice("a", [device("gpu-0")]),
        claim(selectors=[H200]),
    ),
    _situation(
        "device tainted", "dra-device-tainted", "1 cannot allocate all claims",
        claiming_pod(),
        device_class(), node("a"),
        resource_slice("a", [device("gpu-0", taints=[taint("gpu.nvidia.com/xid", "79")])]),
        claim(),
    ),
    _situation(
        "device class missing", "dra-no-matching-device", "device class gpu.example.com",
        claiming_pod(), node("a"), claim(device_class_name="gpu.example.com"),
    ),
    _situation(
        "devices in use", "gpu-capacity-exhausted", "1 cannot allocate all claims",
        claiming_pod(),
        device_class(), node("a"), resource_slice("a", [device("gpu-0")]),
        claim("other"), claiming_pod("holds-a", "other"), claim(),
    ),
    _situation(
        "devices in use by another namespace", "gpu-capacity-exhausted",
        "1 cannot allocate all claims",
        claiming_pod(),
        device_class(), node("a"), resource_slice("a", [device("gpu-0")]),
        elsewhere(claim("other")), elsewhere(claiming_pod("holds-a", "other")), claim(),
    ),
    _situation(
        "pool incomplete", "dra-pool-incomplete", "cannot allocate all claims",
        claiming_pod(),
        device_class(), node("a"), resource_slice("a", [device("gpu-0")], slices=2), claim(),
        since="1.37",
    ),
    _situation(
        "attribute misspelt", "dra-no-matching-device", "CEL runtime error: no such key",
        claiming_pod(),
        device_class(), node("a"), resource_slice("a", [device("gpu-0")]),
        claim(selectors=[MISSPELT]),
    ),
    _situation(
        "pool incomplete, all its devices wanted", "dra-pool-incomplete",
        "is currently being updated",
        claiming_pod(),
        device_class(), node("a"), resource_slice("a", [device("gpu-0")], slices=2),
        claim(allocationMode="All"),
    ),
    _situation(
        "extended resource by DRA, device tainted", "dra-device-tainted", "",
        gpu_pod(1),
        device_class(extendedResourceName=GPU), node("a"),
        resource_slice("a", [device("gpu-0", taints=[taint("gpu.nvidia.com/xid", "79")])]),
    ),
    _situation(
        "extended resource by DRA, in use", "gpu-capacity-exhausted", "",
        gpu_pod(1),
        device_class(extendedResourceName=GPU), node("a"),
        resource_slice("a", [device("gpu-0")]), gpu_pod(1, "holds-a"),
    ),
]  # fmt: skip

ALL = [*CAPACITY, *ENTRY, *NEIGHBOURS, *VOLUMES, *QUEUES, *CLAIMS]
