"""GPU and RDMA components: recognised by what they are, and what is wrong with their pods."""

from __future__ import annotations

from typing import Any

import pytest

from gpudoctor.facts.kubernetes import components, parse
from gpudoctor.facts.kubernetes.components import Component, Role, Trouble
from gpudoctor.facts.kubernetes.model import Meta
from tests import kubernetes_objects as k8s
from tests.kubernetes_objects import Object


@pytest.mark.parametrize(
    ("words", "role"),
    [
        ("nvidia-driver-daemonset", Role.DRIVER),
        ("nvidia-driver-daemonset-5.15.0-rhel9 nvidia-driver-ctr", Role.DRIVER),
        ("nvidia-driver-installer cos", Role.DRIVER),
        ("nvidia-container-toolkit-daemonset", Role.TOOLKIT),
        ("nvidia-device-plugin-daemonset", Role.DEVICE_PLUGIN),
        ("nvdp-main", Role.DEVICE_PLUGIN),
        ("nvidia-gpu-device-plugin", Role.DEVICE_PLUGIN),
        ("hami-device-plugin", Role.DEVICE_PLUGIN),
        ("intel-gpu-plugin", Role.DEVICE_PLUGIN),
        ("neuron-device-plugin", Role.DEVICE_PLUGIN),
        ("k8s-rdma-shared-dev-plugin rdma-shared-dp", Role.RDMA_PLUGIN),
        ("sriov-network-device-plugin", Role.RDMA_PLUGIN),
        ("sriov-device-plugin", Role.RDMA_PLUGIN),
        ("aws-efa-k8s-device-plugin", Role.RDMA_PLUGIN),
        ("mofed-ubuntu22.04-ds", Role.NETWORK_DRIVER),
        ("doca-driver", Role.NETWORK_DRIVER),
        ("nvidia-mig-manager", Role.MIG_MANAGER),
        ("gpu-feature-discovery", Role.FEATURE_DISCOVERY),
        ("node-feature-discovery-worker", Role.FEATURE_DISCOVERY),
        ("nvidia-operator-validator", Role.VALIDATOR),
        ("nvidia-cuda-validator-x", Role.VALIDATOR),
        ("nvidia-dra-driver-gpu-kubelet-plugin", Role.DRA_DRIVER),
        ("k8s-dra-driver-gpu-controller", Role.DRA_DRIVER),
        ("kube-proxy", None),
        ("train-0 example/train", None),
    ],
)
def test_roles(words: str, role: Role | None) -> None:
    assert components.role_of(words) is role


@pytest.mark.parametrize(
    ("words", "resource", "serves"),
    [
        ("nvidia-device-plugin", "nvidia.com/gpu", True),
        ("nvidia-device-plugin", "nvidia.com/mig-1g.10gb", True),
        ("nvidia-device-plugin", "amd.com/gpu", False),
        ("amdgpu-device-plugin", "amd.com/gpu", True),
        ("intel-gpu-plugin", "gpu.intel.com/i915", True),
        ("intel-gpu-plugin", "nvidia.com/gpu", False),
        ("device-plugin", "nvidia.com/gpu", True),
        ("nvidia-device-plugin", "example.com/card", True),
    ],
)
def test_vendor(words: str, resource: str, serves: bool) -> None:
    part = Component(Role.DEVICE_PLUGIN, Meta("DaemonSet", "x"), None, (), words)
    assert part.serves(resource) is serves


def test_rdma_plugins_serve_whatever_their_vendor() -> None:
    part = Component(Role.RDMA_PLUGIN, Meta("DaemonSet", "x"), None, (), "nvidia rdma-shared")
    assert part.serves("amd.com/gpu")


def read(*objects: Object) -> tuple[Component, ...]:
    return components.read(k8s.cluster(*objects))


class TestRead:
    def test_daemon_set_with_its_pods(self) -> None:
        found = read(k8s.daemon(), k8s.daemon_pod(), k8s.daemon_pod(on="gpu-2"), k8s.daemon("web"))
        assert [(part.role, str(part.subject)) for part in found] == [
            (Role.DEVICE_PLUGIN, "DaemonSet/gpu-operator/nvidia-device-plugin")
        ]
        on = found[0].on("gpu-2")
        assert on is not None
        assert on.meta.name == "nvidia-device-plugin-gpu-2"
        assert found[0].on("gpu-3") is None

    def test_pods_whose_daemon_set_is_not_in_the_input(self) -> None:
        found = read(k8s.daemon_pod())
        assert [str(part.subject) for part in found] == [
            "Pod/gpu-operator/nvidia-device-plugin-gpu-1"
        ]
        assert found[0].daemon_set is None

    def test_static_pod(self) -> None:
        pod = k8s.pod("nvidia-device-plugin-x", "kube-system", limits={}, node="gpu-1")
        assert [part.role for part in read(pod)] == [Role.DEVICE_PLUGIN]

    @pytest.mark.parametrize(
        "pod",
        [
            k8s.pod("web-0", limits={}),
            k8s.pod("nvidia-device-plugin-test"),
            k8s.pod(
                "nvidia-device-plugin-x",
                limits={},
                meta={"ownerReferences": [k8s.owner("ReplicaSet", "x")]},
            ),
        ],
        ids=["other-name", "asks-for-gpus", "other-owner"],
    )
    def test_workloads_are_none(self, pod: Object) -> None:
        assert read(pod) == ()

    def test_init_containers_say_nothing(self) -> None:
        daemon = k8s.daemon("agent")
        daemon["spec"]["template"]["spec"]["initContainers"] = [
            k8s.container("toolkit-validation", image="x/container-toolkit")
        ]
        assert read(daemon) == ()

    def test_recognised_by_image_or_label(self) -> None:
        daemon = k8s.daemon("ds-7")
        daemon["spec"]["template"]["spec"]["containers"][0]["image"] = (
            "r.io/nvidia/k8s-device-plugin"
        )
        assert [part.role for part in read(daemon)] == [Role.DEVICE_PLUGIN]
        labelled = k8s.daemon("ds-8")
        labelled["spec"]["template"]["metadata"] = {"labels": {"app": "nvidia-driver-daemonset"}}
        assert [part.role for part in read(labelled)] == [Role.DRIVER]


def troubles(*, init: bool = False, always: bool = False, **status: Any) -> tuple[Trouble, ...]:
    policy: Object = {"restartPolicy": "Always"} if always else {}
    container = k8s.container(**policy)
    shown = [k8s.container_status(**status)]
    pod = (
        k8s.pod(spec={"initContainers": [container]}, status={"initContainerStatuses": shown})
        if init
        else k8s.pod(containers=[container], statuses=shown)
    )
    return components.troubles(parse.pod(pod))


ENDED = {"terminated": {"exitCode": 3, "reason": "Error", "message": "told"}}
WELL = {"terminated": {"exitCode": 0, "reason": "Completed"}}


class TestTroubles:
    @pytest.mark.parametrize(
        ("status", "kind", "reason"),
        [
            ({"state": {"waiting": {"reason": "ErrImagePull"}}}, "image", "ErrImagePull"),
            ({"state": {"waiting": {"reason": "ImagePullBackOff"}}}, "image", "ImagePullBackOff"),
            ({"state": {"waiting": {"reason": "InvalidImageName"}}}, "image", "InvalidImageName"),
            ({"state": {"waiting": {"reason": "ErrImageNeverPull"}}}, "image", "ErrImageNeverPull"),
            (
                {"state": {"waiting": {"reason": "CreateContainerError"}}},
                "create",
                "CreateContainerError",
            ),
            (
                {"state": {"waiting": {"reason": "CreateContainerConfigError"}}},
                "create",
                "CreateContainerConfigError",
            ),
            (
                {"state": {"waiting": {"reason": "RunContainerError"}}},
                "create",
                "RunContainerError",
            ),
            ({"state": {"waiting": {"reason": "CrashLoopBackOff"}}}, "crash", "CrashLoopBackOff"),
            ({"state": ENDED}, "exit", "Error"),
            ({"state": {"running": {}}, "lastState": ENDED, "restartCount": 1}, "exit", "Error"),
            ({"state": {"running": {}}, "lastState": ENDED, "restartCount": 0}, None, ""),
            ({"state": WELL}, None, ""),
            ({"state": {"running": {}}, "lastState": WELL, "restartCount": 1}, None, ""),
            ({"state": {"waiting": {"reason": "ContainerCreating"}}}, None, ""),
            ({"state": {"running": {}}}, None, ""),
            ({}, None, ""),
        ],
    )
    def test_kinds(self, status: Object, kind: str | None, reason: str) -> None:
        found = troubles(**status)
        assert [(each.kind, each.reason) for each in found] == ([(kind, reason)] if kind else [])
        if found:
            assert (found[0].container, found[0].field) == (
                "main",
                "status.containerStatuses[main]",
            )

    def test_what_the_last_end_says(self) -> None:
        waiting = {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off"}}
        found = troubles(state=waiting, lastState=ENDED, restartCount=4)[0]
        assert (found.message, found.exit_code, found.restarts) == ("told", 3, 4)
        bare = troubles(state=waiting)[0]
        assert (bare.message, bare.exit_code, bare.restarts) == ("back-off", None, 0)

    def test_init_containers(self) -> None:
        found = troubles(init=True, state={"running": {}})
        assert [(each.kind, each.reason) for each in found] == [("init", "still running")]
        assert found[0].field == "status.initContainerStatuses[main]"
        assert troubles(init=True, always=True, state={"running": {}}) == ()
        assert troubles(init=True, state=WELL) == ()
