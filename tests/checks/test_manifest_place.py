"""What `check --lint` says of a manifest beside a cluster, and near misses."""

from __future__ import annotations

from typing import Any

import pytest

from gpudoctor.diagnosis import diagnose
from gpudoctor.facts.kubernetes import manifest_place, manifests
from gpudoctor.registry import Registry
from gpudoctor_checks.manifest_place import CHECKS
from tests import kubernetes_objects as k8s
from tests.checks.test_manifests import job

JSON = dict[str, Any]
GPU, HCA = "nvidia.com/gpu", "rdma/hca_shared_devices_a"
OFFERS = {GPU: "8", HCA: "63", "cpu": "64"}


def pools(**data: str) -> JSON:
    metadata = k8s.metadata("gpudoctor-pools", "gpudoctor")
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data}


def quota(hard: str, used: str = "0", namespace: str = "ml") -> JSON:
    key = f"requests.{GPU}"
    status = {"hard": {key: hard}, "used": {key: used}}
    metadata = k8s.metadata("gpus", namespace)
    return {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": metadata, "status": status}


def runtime_class(name: str, **scheduling: Any) -> JSON:
    return {
        "apiVersion": "node.k8s.io/v1",
        "kind": "RuntimeClass",
        "metadata": k8s.metadata(name),
        "handler": name,
        "scheduling": scheduling,
    }


def found(
    objects: list[JSON], spec: JSON | None = None, whole: bool = True, **changes: Any
) -> list[tuple[str, str]]:
    obj = job(**changes)
    obj["spec"]["template"]["spec"] |= spec or {}
    [manifest] = manifests.read(obj)
    cluster = k8s.cluster(*objects, complete=whole)
    placed = manifest_place.read(cluster, manifest, "ml")
    result = diagnose(Registry([CHECKS]), [placed])
    assert result.unknown == ()
    return [(one.name, one.severity.value) for one in result.findings]


NODE = k8s.node("gpu-1", allocatable=OFFERS)


def test_a_cluster_that_has_it_all() -> None:
    objects = [
        NODE,
        pools(offers="rdma,gdr", gpusPerNode="8"),
        quota("16"),
        runtime_class("nvidia"),
    ]
    assert found(objects, {"runtimeClassName": "nvidia"}) == []


def test_nothing_is_said_of_what_was_not_read() -> None:
    assert found([], {"runtimeClassName": "nvidia"}, whole=False) == []


@pytest.mark.parametrize(
    ("objects", "expected"),
    [
        ([k8s.node("cpu-1", allocatable={"cpu": "64"})], [("no-gpu-node", "warning")] * 2),
        (
            [k8s.node("gpu-1", allocatable={GPU: "8", "rdma/hca_b": "63"})],
            [("no-gpu-node", "warning")],
        ),
        (
            [k8s.node("gpu-1", allocatable=OFFERS | {GPU: "4"})],
            [("request-exceeds-largest-node", "warning")],
        ),
        (
            [k8s.node("gpu-1", allocatable=OFFERS, taints=[{"key": GPU, "effect": "NoSchedule"}])],
            [("missing-toleration", "warning")],
        ),
        ([NODE, pools(offers="nvlink")], [("needs-not-offered", "error")]),
        ([NODE, pools(gpusPerNode="4")], [("request-exceeds-largest-node", "error")]),
        ([NODE, quota("8")], [("resourcequota-exceeded", "error")]),
        ([NODE, quota("16", used="8")], [("resourcequota-exceeded", "warning")]),
    ],
)
def test_one_thing_is_not_there(objects: list[JSON], expected: list[tuple[str, str]]) -> None:
    assert found(objects) == expected


def test_a_quota_of_another_namespace_is_no_matter() -> None:
    assert found([NODE, quota("1", namespace="other")]) == []


def test_labels_that_no_node_has() -> None:
    selector = {"nodeSelector": {"gpudoctor.io/rdma": "ib"}}
    assert found([NODE], selector) == [("node-selector-mismatch", "warning")]
    labelled = k8s.node("gpu-2", allocatable=OFFERS, labels={"gpudoctor.io/rdma": "ib"})
    assert found([NODE, labelled], selector) == []


def test_a_runtime_class_that_does_not_exist() -> None:
    wanted = {"runtimeClassName": "nvidia"}
    assert found([NODE], wanted) == [("runtimeclass-missing", "error")]


def test_a_runtime_class_brings_its_tolerations() -> None:
    tainted = k8s.node("gpu-1", allocatable=OFFERS, taints=[{"key": GPU, "effect": "NoSchedule"}])
    tolerations = [{"key": GPU, "operator": "Exists"}]
    objects = [tainted, runtime_class("nvidia", tolerations=tolerations)]
    assert found(objects, {"runtimeClassName": "nvidia"}) == []


def test_a_full_cluster_is_no_matter() -> None:
    busy = k8s.pod("other", "ml", limits={GPU: "8"}, node="gpu-1", phase="Running")
    assert found([NODE, busy]) == []
