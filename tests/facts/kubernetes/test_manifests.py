"""Where pod templates lie in manifests of each kind, and what works together."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpudoctor.facts.kubernetes import manifests

TEMPLATE: dict[str, Any] = {
    "metadata": {"annotations": {"gpudoctor.io/require": "rdma"}},
    "spec": {
        "containers": [
            {"name": "main", "resources": {"limits": {"nvidia.com/gpu": 8}}},
        ]
    },
}


def of(kind: str, spec: dict[str, Any], version: str = "v1") -> dict[str, Any]:
    return {"apiVersion": version, "kind": kind, "metadata": {"name": "t"}, "spec": spec}


ROLES = {"Master": {"template": TEMPLATE}, "Worker": {"replicas": 3, "template": TEMPLATE}}
RAY = {
    "headGroupSpec": {"template": TEMPLATE},
    "workerGroupSpecs": [{"groupName": "gpu", "replicas": 2, "template": TEMPLATE}],
}
JOBS = [
    {
        "name": "workers",
        "replicas": 2,
        "template": {"spec": {"parallelism": 4, "template": TEMPLATE}},
    }
]
LEADERS = {"leaderWorkerTemplate": {"size": 2, "workerTemplate": TEMPLATE}}
TASKS = {"tasks": [{"name": "w", "replicas": 2, "template": TEMPLATE}]}
KINDS = [
    (of("Pod", TEMPLATE["spec"]), ["t"], 1),
    (of("Job", {"parallelism": 2, "template": TEMPLATE}), ["t"], 2),
    (of("CronJob", {"jobTemplate": {"spec": {"template": TEMPLATE}}}), ["t"], 1),
    (of("Deployment", {"replicas": 3, "template": TEMPLATE}), ["t"], 1),
    (of("StatefulSet", {"replicas": 3, "template": TEMPLATE}), ["t"], 3),
    (of("DaemonSet", {"template": TEMPLATE}), ["t"], 1),
    (of("JobSet", {"replicatedJobs": JOBS}), ["t"], 8),
    (of("PyTorchJob", {"pytorchReplicaSpecs": ROLES}), ["t/master", "t/worker"], 4),
    (of("MPIJob", {"mpiReplicaSpecs": ROLES}), ["t/master", "t/worker"], 4),
    (of("RayCluster", RAY), ["t/head", "t/gpu"], 3),
    (of("RayJob", {"rayClusterSpec": RAY}), ["t/head", "t/gpu"], 3),
    (of("RayService", {"rayClusterConfig": RAY}), ["t/head", "t/gpu"], 3),
    (of("LeaderWorkerSet", LEADERS), ["t"], 2),
    (of("Job", TASKS, "batch.volcano.sh/v1alpha1"), ["t"], 2),
    (of("Rollout", {"template": TEMPLATE}), ["t"], 1),
    (of("Service", {"selector": {}}), [], 0),
    (of("NodePool", {"template": {"spec": {"taints": []}}}), [], 0),
]


@pytest.mark.parametrize(("obj", "names", "members"), KINDS, ids=[k[0]["kind"] for k in KINDS])
def test_templates_of_each_kind(obj: dict[str, Any], names: list[str], members: int) -> None:
    found = manifests.read(obj)
    assert [one.pod.meta.name for one in found] == names
    assert {one.members for one in found} <= {members}
    assert all(one.pod.requests["nvidia.com/gpu"] == 8 for one in found)


def test_a_train_job_is_a_part_of_its_template() -> None:
    trainer = {
        "numNodes": 4,
        "image": "x",
        "env": [{"name": "NCCL_SOCKET_IFNAME", "value": "eth0"}],
        "resourcesPerNode": {"limits": {"nvidia.com/gpu": 8}},
    }
    [found] = manifests.read(of("TrainJob", {"trainer": trainer}))
    assert (found.members, found.whole) == (4, False)
    assert found.pod.containers[0].env == {"NCCL_SOCKET_IFNAME": "eth0"}
    assert manifests.read(of("TrainJob", {"runtimeRef": {"name": "torch"}})) == ()


def test_ray_brings_its_shared_memory() -> None:
    [head, _] = manifests.read(of("RayCluster", RAY))
    assert [mount.path for mount in head.pod.containers[0].mounts] == ["/dev/shm"]


def test_needs_are_declared_by_annotation_or_variable() -> None:
    [annotated] = manifests.read(of("Job", {"template": TEMPLATE}))
    assert annotated.declared == "rdma"
    env = [{"name": "GPUDOCTOR_REQUIRE", "value": "gpus=8"}]
    by_variable = {"spec": {"initContainers": [{"name": "p", "env": env}], **TEMPLATE["spec"]}}
    [found] = manifests.read(of("Job", {"template": by_variable}))
    assert found.declared == "gpus=8"
    [bare] = manifests.read(of("Pod", TEMPLATE["spec"]))
    assert bare.declared is None


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3)
    | st.dictionaries(
        st.sampled_from(
            ["kind", "spec", "template", "containers", "metadata", "replicas", "name", "env",
             "replicatedJobs", "workerGroupSpecs", "pytorchReplicaSpecs", "trainer", "tasks"]
        ),
        inner,
        max_size=4,
    ),
    max_leaves=25,
)  # fmt: skip


@given(JSON, st.sampled_from([obj["kind"] for obj, _, _ in KINDS] + ["TrainJob"]))
@settings(deadline=None, max_examples=300)
def test_any_object_is_read(spec: Any, kind: str) -> None:
    manifests.read({"kind": kind, "spec": spec, "metadata": spec})
