"""API objects to facts: effective requests, containers, environment, states, claims."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpudoctor.facts.kubernetes import parse
from gpudoctor.facts.kubernetes.model import (
    AllocatedDevice,
    Container,
    Mount,
    PodClaim,
    Probe,
    State,
    Volume,
)
from tests import kubernetes_objects as k8s
from tests.kubernetes_objects import Object

MODEST = settings(deadline=None, max_examples=60)
GPU = "nvidia.com/gpu"


def asks(amount: int, **more: Any) -> Object:
    return {"resources": {"requests": {"cpu": str(amount)}}} | more


def cpu(spec: Object) -> Decimal:
    return parse.effective_requests(spec).get("cpu", Decimal(0))


class TestEffectiveRequests:
    @pytest.mark.parametrize(
        ("spec", "amount"),
        [
            ({"containers": [asks(2), asks(3)]}, 5),
            ({"containers": [asks(2)], "initContainers": [asks(5), asks(4)]}, 5),
            ({"containers": [asks(6)], "initContainers": [asks(5)]}, 6),
            ({"containers": [asks(2)], "initContainers": [asks(3, restartPolicy="Always")]}, 5),
            (
                {
                    "containers": [asks(1)],
                    "initContainers": [asks(3, restartPolicy="Always"), asks(4)],
                },
                7,
            ),
            (
                {
                    "containers": [asks(1)],
                    "initContainers": [asks(4), asks(3, restartPolicy="Always")],
                },
                4,
            ),
            ({"containers": [asks(2)], "overhead": {"cpu": "1"}}, 3),
            ({"containers": [asks(2)], "resources": {"requests": {"cpu": "9"}}}, 9),
            ({"containers": [asks(9)], "resources": {"requests": {"cpu": "2"}}}, 2),
            ({"containers": [asks(2, restartPolicy="Always")]}, 2),
            ({}, 0),
        ],
        ids=[
            *("sum", "init-peak", "init-below", "sidecar", "sidecar-before-init"),
            *("sidecar-after-init", "overhead", "pod-level-up", "pod-level-down", "plain", "empty"),
        ],
    )
    def test_as_the_scheduler_sums(self, spec: Object, amount: int) -> None:
        assert cpu(spec) == amount

    def test_a_limit_is_the_request_where_none_is_given(self) -> None:
        both = {"resources": {"limits": {GPU: "2", "cpu": "4"}, "requests": {"cpu": "1"}}}
        assert parse.effective_requests({"containers": [both]}) == {GPU: 2, "cpu": 1}

    @MODEST
    @given(
        st.lists(st.integers(0, 9), max_size=3),
        st.lists(st.tuples(st.integers(0, 9), st.booleans()), max_size=4),
    )
    def test_never_below_what_runs_together(
        self, plain: list[int], init: list[tuple[int, bool]]
    ) -> None:
        spec = {
            "containers": [asks(n) for n in plain],
            "initContainers": [
                asks(n, restartPolicy="Always") if sidecar else asks(n) for n, sidecar in init
            ],
        }
        together = sum(plain) + sum(n for n, sidecar in init if sidecar)
        peak = max((n for n, _ in init), default=0)
        everything = sum(plain) + sum(n for n, _ in init)
        assert max(together, peak) <= cpu(spec) <= everything


class TestContainer:
    def test_all_fields(self) -> None:
        pod = parse.pod(
            k8s.pod(
                containers=[
                    k8s.container(
                        limits={GPU: "1"},
                        command=["vllm"],
                        args=["serve", 7],
                        volumeMounts=[{"name": "v", "mountPath": "/data"}],
                        securityContext={
                            "capabilities": {"add": ["IPC_LOCK"]},
                            "runAsUser": 1000,
                            "runAsNonRoot": True,
                            "privileged": True,
                        },
                        livenessProbe={"httpGet": {}},
                        startupProbe={
                            "initialDelaySeconds": 1,
                            "periodSeconds": 2,
                            "timeoutSeconds": 3,
                            "failureThreshold": 4,
                        },
                    )
                ]
            )
        )
        assert pod.containers == (
            Container(
                name="main",
                image="example/train:1",
                command=("vllm",),
                args=("serve", "7"),
                requests={GPU: Decimal(1)},
                limits={GPU: Decimal(1)},
                mounts=(Mount("v", "/data"),),
                capabilities=("IPC_LOCK",),
                run_as_user=1000,
                run_as_non_root=True,
                privileged=True,
                liveness=Probe(0, 10, 1, 3),
                startup=Probe(1, 2, 3, 4),
            ),
        )

    def test_probe_budget(self) -> None:
        assert Probe(30, 10, 1, 3).budget == 60

    def test_init_and_sidecar(self) -> None:
        spec = {"initContainers": [{"name": "i"}, {"name": "s", "restartPolicy": "Always"}]}
        pod = parse.pod(k8s.pod(spec=spec))
        assert [(c.name, c.is_init, c.is_sidecar) for c in pod.containers] == [
            ("i", True, False),
            ("s", True, True),
            ("main", False, False),
        ]

    @pytest.mark.parametrize(
        ("name", "kept"),
        [
            ("NCCL_SOCKET_IFNAME", True),
            ("NVIDIA_VISIBLE_DEVICES", True),
            ("TENSOR_PARALLEL_SIZE", True),
            ("LD_LIBRARY_PATH", True),
            ("WORLD_SIZE", True),
            ("VLLM_API_KEY", False),
            ("NVIDIA_TOKEN", False),
            ("CUDA_SECRET_X", False),
            ("GPU_PASSWORD", False),
            ("AWS_REGION", False),
            ("HOME", False),
            ("nccl_debug", False),
        ],
    )
    def test_environment_without_secrets(self, name: str, kept: bool) -> None:
        env = [{"name": name, "value": "v"}, {"name": "NCCL_FROM", "valueFrom": {"x": {}}}]
        pod = parse.pod(k8s.pod(containers=[k8s.container(env=env)]))
        assert pod.containers[0].env == ({name: "v"} if kept else {})

    def test_security_that_the_input_does_not_print(self) -> None:
        unknown = k8s.container(securityContext=parse.NOT_PRINTED)
        assert not parse.pod(k8s.pod(containers=[unknown])).containers[0].security_known
        assert parse.pod(k8s.pod()).containers[0].security_known


class TestPod:
    def test_volumes(self) -> None:
        volumes = [
            {"name": "a", "emptyDir": {}},
            {"name": "b", "emptyDir": {"medium": "Memory", "sizeLimit": "1Gi"}},
            {"name": "c", "hostPath": {"path": "/dev"}},
            {"name": "d", "persistentVolumeClaim": {"claimName": "data"}},
        ]
        assert parse.pod(k8s.pod(spec={"volumes": volumes})).volumes == (
            Volume("a", True),
            Volume("b", True, "Memory", Decimal(2**30)),
            Volume("c", host_path="/dev"),
            Volume("d", claim="data"),
        )

    def test_claims(self) -> None:
        spec = {
            "resourceClaims": [
                {"name": "own", "resourceClaimName": "shared"},
                {"name": "made", "resourceClaimTemplateName": "t"},
                {"name": "later", "resourceClaimTemplateName": "t"},
                {"resourceClaimName": "nameless"},
            ]
        }
        status = {
            "resourceClaimStatuses": [{"name": "made", "resourceClaimName": "train-0-made-x"}],
            "extendedResourceClaimStatus": {"resourceClaimName": "train-0-ext"},
        }
        assert parse.pod(k8s.pod(spec=spec, status=status)).claims == (
            PodClaim("own", "shared"),
            PodClaim("made", "train-0-made-x", "t"),
            PodClaim("later", None, "t"),
            PodClaim("extended resources", "train-0-ext"),
        )

    def test_defaults(self) -> None:
        pod = parse.pod({})
        assert (pod.meta.kind, pod.meta.name, pod.node) == ("Object", "", None)
        assert (pod.scheduler, pod.restart_policy, pod.host_users) == (
            "default-scheduler",
            "Always",
            True,
        )
        assert pod.node_affinity is None
        assert not parse.pod({"spec": {"hostUsers": False}}).host_users
        assert parse.pod({"spec": {"nodeName": ""}}).node is None

    @pytest.mark.parametrize(
        ("spec", "group"),
        [
            ({"schedulingGroup": {"podGroupName": "g"}}, "g"),
            ({"workloadRef": {"name": "w"}}, "w"),
            ({}, None),
        ],
    )
    def test_scheduling_group(self, spec: Object, group: str | None) -> None:
        assert parse.pod(k8s.pod(spec=spec)).scheduling_group == group

    def test_statuses(self) -> None:
        devices = [{"name": GPU, "resources": [{"resourceID": "GPU-1", "health": "Healthy"}, {}]}]
        main = k8s.container_status(
            restartCount=2,
            state={"waiting": {"reason": "CrashLoopBackOff", "message": "m"}},
            lastState={"terminated": {"exitCode": 1, "startedAt": k8s.CREATED}},
            allocatedResourcesStatus=devices,
        )
        init = k8s.container_status("init", state={"terminated": {"exitCode": 0}})
        pod = parse.pod(k8s.pod(statuses=[main], status={"initContainerStatuses": [init]}))
        first, second = pod.statuses
        assert (first.name, first.is_init, first.latest_end) == (
            "init",
            True,
            State("terminated", exit_code=0),
        )
        assert (second.restarts, second.state) == (2, State("waiting", "CrashLoopBackOff", "m"))
        assert second.latest_end is not None
        assert second.latest_end.exit_code == 1
        assert second.devices == (
            AllocatedDevice(GPU, "GPU-1", "Healthy"),
            AllocatedDevice(GPU, "", "Unknown"),
        )
        assert pod.status_of("main") is second
        assert pod.status_of("other") is None
        assert pod.container("main") is pod.containers[0]
        assert pod.container("other") is None
        assert pod.condition("Ready") is None

    def test_states(self) -> None:
        plain = parse.pod(k8s.pod(statuses=[k8s.container_status()])).statuses[0]
        assert plain.state == State()
        assert plain.latest_end is None
        odd = k8s.container_status(state={"running": None, "waiting": 7})
        assert parse.pod(k8s.pod(statuses=[odd])).statuses[0].state.kind == "absent"

    @pytest.mark.parametrize(
        ("phase", "terminal"),
        [("Succeeded", True), ("Failed", True), ("Running", False), ("", False)],
    )
    def test_terminal(self, phase: str, terminal: bool) -> None:
        assert parse.pod(k8s.pod(phase=phase)).is_terminal is terminal

    def test_owner_is_the_one_that_controls(self) -> None:
        owners = [k8s.owner("Node", "n") | {"controller": False}, k8s.owner("Job", "train")]
        assert parse.pod(k8s.pod(meta={"ownerReferences": owners})).meta.owner == "Job/train"
        assert parse.pod(k8s.pod(meta={"ownerReferences": owners[:1]})).meta.owner is None


class TestOccupant:
    def test_bound(self) -> None:
        meta = {"deletionTimestamp": k8s.CREATED}
        found = parse.occupant(k8s.pod(node="gpu-1", meta=meta, spec={"priority": 5}))
        assert found is not None
        assert (found.namespace, found.name, found.node) == ("team", "train-0", "gpu-1")
        assert (found.priority, found.terminating, found.requests) == (5, True, {GPU: Decimal(1)})
        plain = parse.occupant(k8s.held("gpu-1", "2"))
        assert plain is not None
        assert (plain.priority, plain.terminating) == (0, False)

    @pytest.mark.parametrize(
        "pod",
        [
            k8s.pod(),
            k8s.pod(node="gpu-1", phase="Succeeded"),
            k8s.pod(node="gpu-1", phase="Failed"),
            {},
        ],
    )
    def test_none(self, pod: Object) -> None:
        assert parse.occupant(pod) is None


class TestEvent:
    @pytest.mark.parametrize(
        ("obj", "seen"),
        [
            ({"series": {"lastObservedTime": "2026-01-06T00:00:00Z"}}, 6),
            ({"lastTimestamp": "2026-01-05T00:00:00Z"}, 5),
            ({"deprecatedLastTimestamp": "2026-01-04T00:00:00Z"}, 4),
            ({"eventTime": "2026-01-03T00:00:00Z"}, 3),
            ({"firstTimestamp": "2026-01-02T00:00:00Z"}, 2),
            ({"metadata": {"creationTimestamp": "2026-01-01T00:00:00Z"}}, 1),
            (
                {"lastTimestamp": None, "eventTime": "2026-01-03T00:00:00Z", "firstTimestamp": "x"},
                3,
            ),
            ({}, None),
        ],
    )
    def test_newest_time(self, obj: Object, seen: int | None) -> None:
        found = parse.event(obj).seen
        assert (found.day if found else None) == seen

    @pytest.mark.parametrize(
        ("obj", "count"),
        [
            ({"series": {"count": 7}, "count": 2}, 7),
            ({"count": 2, "deprecatedCount": 9}, 2),
            ({"deprecatedCount": 9}, 9),
            ({"count": 0}, 1),
            ({}, 1),
        ],
    )
    def test_count(self, obj: Object, count: int) -> None:
        assert parse.event(obj).count == count

    @pytest.mark.parametrize(
        ("obj", "component"),
        [
            ({"reportingComponent": "a", "source": {"component": "c"}}, "a"),
            ({"reportingController": "b", "source": {"component": "c"}}, "b"),
            ({"source": {"component": "c"}}, "c"),
            ({}, ""),
        ],
    )
    def test_component(self, obj: Object, component: str) -> None:
        assert parse.event(obj).component == component

    def test_path(self) -> None:
        about = {"kind": "Node", "name": "gpu-1"}
        assert parse.event({"involvedObject": about}).path == "Event/gpu-1"
        assert parse.event({"regarding": about | {"namespace": "n"}}).path == "Event/n/gpu-1"


def test_daemon_set() -> None:
    obj = k8s.daemon(tolerations=[{"key": "a", "operator": "Exists"}], desired=3)
    obj["status"]["numberReady"] = 2
    obj["spec"]["template"]["metadata"] = {"labels": {"app": "x"}}
    found = parse.daemon_set(obj)
    assert (found.desired, found.ready) == (3, 2)
    assert found.template.meta.labels == {"app": "x"}
    assert found.template.meta.path == "Pod/gpu-operator/nvidia-device-plugin"
    assert [t.key for t in found.template.tolerations] == ["a"]
    assert parse.daemon_set({}).desired is None
