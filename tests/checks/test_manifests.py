"""What `check --lint` says of manifests, and near misses about which it says nothing."""

from __future__ import annotations

from typing import Any

import pytest

from gpudoctor.diagnosis import Diagnosis, diagnose
from gpudoctor.facts.kubernetes import manifests
from gpudoctor.registry import Registry
from gpudoctor.report import Severity
from gpudoctor_checks.manifests import CHECKS

SHM_VOLUME = {"name": "dshm", "emptyDir": {"medium": "Memory"}}
SHM_MOUNT = {"name": "dshm", "mountPath": "/dev/shm"}
RDMA = {"rdma/hca_shared_devices_a": 1}
ROOT_LOCKS = {"capabilities": {"add": ["IPC_LOCK"]}}


def container(gpus: int = 8, **changes: Any) -> dict[str, Any]:
    """A container about which nothing is to be said."""
    limits = {"nvidia.com/gpu": gpus, **RDMA} | changes.pop("limits", {})
    found = {
        "name": "main",
        "image": "example/train:1",
        "resources": {"limits": {key: value for key, value in limits.items() if value}},
        "volumeMounts": [SHM_MOUNT],
        "securityContext": ROOT_LOCKS,
    }
    return found | changes


def job(need: str | None = "rdma,gpus=8", parallelism: int = 2, **changes: Any) -> dict[str, Any]:
    near = {"kueue.x-k8s.io/podset-preferred-topology": "gpudoctor.io/rack"}
    metadata = {} if need is None else {"annotations": near | {"gpudoctor.io/require": need}}
    spec = {"containers": [container(**changes)], "volumes": [SHM_VOLUME]}
    template = {"metadata": metadata, "spec": spec}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": "train", "namespace": "ml"},
        "spec": {"parallelism": parallelism, "template": template},
    }


def lint(obj: dict[str, Any]) -> Diagnosis:
    return diagnose(Registry([CHECKS]), manifests.read(obj))


def found(obj: dict[str, Any]) -> list[tuple[str, str]]:
    return [(one.name, one.severity.value) for one in lint(obj).findings]


def test_nothing_to_say() -> None:
    assert found(job()) == []


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"volumeMounts": []}, ("shm-too-small", "warning")),
        ({"securityContext": {}}, ("missing-ipc-lock", "warning")),
        (
            {"securityContext": ROOT_LOCKS | {"runAsUser": 1000}},
            ("memlock-limit-nonroot", "warning"),
        ),
        (
            {"env": [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]},
            ("device-plugin-bypass-env", "warning"),
        ),
        (
            {"env": [{"name": "NCCL_SOCKET_IFNAME", "value": "ib0"}]},
            ("nccl-env-names-missing-device", "warning"),
        ),
        (
            {"args": ["vllm", "serve", "--tensor-parallel-size=32"]},
            ("tensor-parallel-exceeds-gpus", "warning"),
        ),
        ({"limits": {"rdma/hca_shared_devices_a": 0}}, ("rdma-not-requested", "error")),
    ],
)  # fmt: skip
def test_one_thing_is_wrong(changes: dict[str, Any], expected: tuple[str, str]) -> None:
    assert found(job(**changes)) == [expected]


@pytest.mark.parametrize(
    "changes",
    [
        {"gpus": 1, "volumeMounts": [], "need": "rdma,gpus=1"},
        {"limits": {"rdma/hca_shared_devices_a": 0}, "securityContext": {}, "need": "gpus=8"},
        {"limits": {"rdma/hca_shared_devices_a": 0, "vpc.amazonaws.com/efa": 32}},
        {"env": [{"name": "NCCL_SOCKET_IFNAME", "value": "eth0"}]},
        {"env": [{"name": "NCCL_SOCKET_IFNAME", "value": "^lo,docker"}]},
        {"args": ["vllm", "serve", "--tensor-parallel-size=8", "--pipeline-parallel-size=2"]},
    ],
)
def test_near_misses(changes: dict[str, Any]) -> None:
    assert found(job(**changes)) == []


def test_several_gpu_pods_declare_their_needs() -> None:
    assert found(job(None)) == [("needs-not-declared", "warning")]
    assert found(job(None, parallelism=1)) == []
    assert found(job(None, gpus=0, volumeMounts=[])) == []
    # The number of pods stands in the object; that of the GPUs of each has to be said.
    assert found(job("rdma")) == [("needs-not-declared", "warning")]
    assert found(job("rdma", parallelism=1)) == []


@pytest.mark.parametrize("need", ["rmda,gpus=8", "rdma,gpus=4", "gpus"])
def test_needs_that_cannot_be_right(need: str) -> None:
    [one] = lint(job(need)).findings
    assert (one.name, one.severity) == ("needs-not-declared", Severity.ERROR)


FABRIC = {"key": "gpudoctor.io/fabric", "operator": "Exists"}
NEAR: dict[str, dict[str, Any]] = {
    "selector": {"nodeSelector": {"gpudoctor.io/fabric": "a"}},
    "affinity among the pods": {"affinity": {"podAffinity": {}}},
    "affinity to nodes": {
        "affinity": {
            "nodeAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": {
                    "nodeSelectorTerms": [{"matchExpressions": [FABRIC]}]
                }
            }
        }
    },
    "spread": {"topologySpreadConstraints": [{"topologyKey": "rack"}]},
}
FAR: dict[str, dict[str, Any]] = {
    "nothing": {},
    "another selector": {"nodeSelector": {"gpudoctor.io/rdma": "ib"}},
    "apart": {"affinity": {"podAntiAffinity": {}}},
}


def anywhere(need: str = "rdma,gpus=8", parallelism: int = 2, **spec: Any) -> dict[str, Any]:
    """A job whose annotations do not say where."""
    obj = job(need, parallelism)
    template = obj["spec"]["template"]
    template["metadata"]["annotations"] = {"gpudoctor.io/require": need}
    template["spec"] |= spec
    return obj


@pytest.mark.parametrize("spec", NEAR.values(), ids=NEAR)
def test_how_near_is_said(spec: dict[str, Any]) -> None:
    assert found(anywhere(**spec)) == []


@pytest.mark.parametrize("spec", FAR.values(), ids=FAR)
def test_how_near_is_not_said(spec: dict[str, Any]) -> None:
    assert found(anywhere(**spec)) == [("topology-scope-not-declared", "info")]


def test_how_near_is_no_matter_without_rdma_between_pods() -> None:
    assert found(anywhere("gpus=8")) == []
    assert found(anywhere(parallelism=1)) == []


def test_a_train_job_is_judged_by_what_it_says() -> None:
    trainer = {"numNodes": 2, "resourcesPerNode": {"limits": {"nvidia.com/gpu": 8}}}
    obj = {"kind": "TrainJob", "metadata": {"name": "t"}, "spec": {"trainer": trainer}}
    assert found(obj) == []
    trainer["env"] = [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "0,1"}]
    assert found(obj) == [("device-plugin-bypass-env", "warning")]
