"""Refusals after placement: the kubelet's, the eviction manager's and the API server's words."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from gpudoctor import readings
from gpudoctor.readings import kubernetes
from gpudoctor.report import Report
from gpudoctor.sources.bundle import Bundle, Scope
from tests import cases_k8s
from tests import kubernetes_objects as k8s
from tests.kubernetes_objects import Object, ask, finding_of, loud, shown, told

GPU = "nvidia.com/gpu"
OWNER = [k8s.owner("ReplicaSet", "train", "apps/v1")]
EARLIER, LATER = "2026-11-20T07:00:00Z", "2026-11-20T08:10:00Z"


def refused(message: str, reason: str = "UnexpectedAdmissionError", **more: Any) -> Object:
    meta = {"ownerReferences": OWNER} | more.pop("meta", {})
    status = {"reason": reason, "message": message}
    return k8s.pod(node="gpu-1", phase="Failed", status=status, meta=meta, **more)


def sibling(phase: str = "Running", made: str | None = LATER) -> Object:
    meta = {"ownerReferences": OWNER, "creationTimestamp": made}
    return k8s.pod("train-1", node="gpu-1", phase=phase, meta=meta)


NO_HEALTHY = "Allocate failed due to no healthy devices present; cannot allocate unhealthy devices"
OUT_OF = "Node didn't have enough resource: {}, requested: 1, used: {}, capacity: {}"


class TestDevicesNotReady:
    NAME = "admission-rejected-devices-not-ready"

    def test_words(self) -> None:
        report = ask(refused(NO_HEALTHY), k8s.node())
        found = finding_of(report, "admission-rejected-devices-not-ready")
        assert told(found) == ("error", "certain", "Pod/team/train-0")
        assert report.roots == (self.NAME,)
        assert shown(found).splitlines() == [
            "Pod/team/train-0 status.reason (UnexpectedAdmissionError), phase Failed " + NO_HEALTHY,
            "Node/gpu-1 status.allocatable[nvidia.com/gpu] 8 of capacity 8",
        ]
        assert "gpu-1 offers all its devices now: the hardware is fine." in found.detail
        assert "only its controller makes a new one" in found.detail
        assert found.title == "gpu-1 refused team/train-0: its devices were not ready"

    @pytest.mark.parametrize(
        ("message", "reason", "expected"),
        [
            (NO_HEALTHY, "UnexpectedAdmissionError", True),
            (
                "Allocate failed due to can't allocate unregistered device nvidia.com/gpu, which "
                "is unexpected",
                "UnexpectedAdmissionError",
                True,
            ),
            ("cannot allocate unregistered device nvidia.com/gpu", "Other", True),
            (OUT_OF.format(GPU, 0, 0), "OutOfnvidia.com/gpu", True),
            (OUT_OF.format(GPU, 8, 8), "OutOfnvidia.com/gpu", False),
            (OUT_OF.format(GPU, 0, 0), "Other", False),
            (
                "previously allocated devices are no longer healthy; cannot allocate unhealthy",
                "UnexpectedAdmissionError",
                True,
            ),
            (NO_HEALTHY, "", False),
            ("Pod was rejected", "UnexpectedAdmissionError", False),
        ],
    )
    def test_messages(self, message: str, reason: str, expected: bool) -> None:
        assert (self.NAME in loud(ask(refused(message, reason), k8s.node()))) is expected

    def test_running_pod_with_an_old_message(self) -> None:
        pod = refused(NO_HEALTHY)
        pod["status"]["phase"] = "Running"
        assert self.NAME not in loud(ask(pod, k8s.node()))

    def test_devices_that_are_still_lost_are_the_cause(self) -> None:
        node = k8s.node(allocatable={GPU: "7"}, capacity={GPU: "8"})
        report = ask(refused(NO_HEALTHY), node)
        assert report.roots == ("gpu-unhealthy-shrinks-allocatable",)
        assert "the hardware is fine" not in finding_of(report, self.NAME).detail
        gone = "previously allocated devices are no longer healthy"
        assert self.NAME not in loud(ask(refused(gone), node))

    def test_node_that_is_not_in_the_input(self) -> None:
        found = finding_of(ask(refused(NO_HEALTHY), complete=False), self.NAME)
        assert told(found) == ("error", "likely", "Pod/team/train-0")
        assert "the hardware is fine" not in found.detail

    @pytest.mark.parametrize(
        ("phase", "made", "leftover"),
        [
            ("Running", LATER, True),
            ("Running", k8s.CREATED, True),
            ("Running", None, True),
            ("Running", EARLIER, False),
            ("Pending", LATER, False),
            ("Failed", LATER, False),
        ],
    )
    def test_a_replacement_that_runs(self, phase: str, made: str | None, leftover: bool) -> None:
        report = ask(refused(NO_HEALTHY), sibling(phase, made), k8s.node())
        found = finding_of(report, self.NAME)
        assert told(found)[0] == ("warning" if leftover else "error")
        said = "Its replacement train-1 runs; this one is a leftover that can be deleted."
        assert (said in found.detail) is leftover
        assert ("Pod/team/train-1 status.phase Running" in shown(found)) is leftover


class TestStaleAccounting:
    NAME = "admission-stale-device-accounting"
    MESSAGE = (
        "Pod was rejected: Allocate failed due to requested number of devices unavailable for "
        "nvidia.com/gpu. Requested: 4, Available: 2, which is unexpected"
    )

    def test_words(self) -> None:
        meta = {"deletionTimestamp": k8s.CREATED}
        leaving = k8s.pod("old", "other", node="gpu-1", phase="Running", meta=meta)
        staying = k8s.pod("new", "other", node="gpu-1", phase="Running")
        report = ask(refused(self.MESSAGE), k8s.node(), leaving, staying)
        found = finding_of(report, "admission-stale-device-accounting")
        assert told(found) == ("error", "certain", "Pod/team/train-0")
        assert report.roots == (self.NAME,)
        assert shown(found).splitlines() == [
            "Pod/team/train-0 status.reason (UnexpectedAdmissionError), phase Failed "
            + self.MESSAGE,
            "Node/gpu-1 status.allocatable[nvidia.com/gpu] 8 of capacity 8",
            "Pod/other/old metadata.deletionTimestamp set: it is terminating and still holds its "
            "devices",
        ]
        assert "(4 wanted, 2 available to the kubelet)" in found.detail
        assert found.title == (
            "gpu-1 refused team/train-0: the kubelet still counts devices of pods that are gone"
        )

    @pytest.mark.parametrize(
        ("message", "reason", "expected"),
        [
            (OUT_OF.format(GPU, 8, 8), "OutOfnvidia.com/gpu", "(1 wanted, 8 of 8 in use)"),
            (OUT_OF.format(GPU, 0, 0), "OutOfnvidia.com/gpu", None),
            (OUT_OF.format("cpu", 8000, 8000), "OutOfcpu", None),
            ("invalid allocation request: unknown device GPU-1a", "Unexpected", "did not: devices"),
            ("unknown device GPU-1a", "Unexpected", None),
            (NO_HEALTHY, "UnexpectedAdmissionError", None),
        ],
    )
    def test_messages(self, message: str, reason: str, expected: str | None) -> None:
        report = ask(refused(message, reason), k8s.node())
        assert (self.NAME in loud(report)) is (expected is not None)
        if expected:
            assert expected in finding_of(report, self.NAME).detail

    def test_pod_that_runs(self) -> None:
        pod = refused(self.MESSAGE)
        pod["status"]["phase"] = "Running"
        assert self.NAME not in loud(ask(pod, k8s.node()))

    def test_leftover(self) -> None:
        report = ask(refused(self.MESSAGE), sibling(), k8s.node())
        assert told(finding_of(report, self.NAME))[0] == "warning"


class TestNuma:
    NAME = "numa-alignment-rejected"
    MESSAGE = "Resources cannot be allocated with Topology locality"

    def kubelet(self, policy: str) -> Object:
        config = k8s.custom("v1", "ConfigMap", "kubelet-config", "kube-system")
        config["data"] = {
            "kubelet": "kind: KubeletConfiguration\napiVersion: kubelet.config.k8s.io/v1beta1\n"
            f"topologyManagerPolicy: {policy}\ntopologyManagerScope: pod\n"
        }
        return config

    @pytest.mark.parametrize("reason", ["TopologyAffinityError", "Topology Affinity Error"])
    def test_words(self, reason: str) -> None:
        report = ask(
            refused(self.MESSAGE, reason, limits={GPU: "4"}),
            k8s.node(),
            k8s.held("gpu-1", "2"),
            self.kubelet("single-numa-node"),
        )
        found = finding_of(report, "numa-alignment-rejected")
        assert told(found) == ("error", "certain", "Pod/team/train-0")
        assert report.roots == (self.NAME,)
        assert shown(found).splitlines() == [
            f"Pod/team/train-0 status.reason ({reason}), phase Failed {self.MESSAGE}",
            "ConfigMap/kube-system/kubelet-config data[kubelet] topologyManagerPolicy: "
            "single-numa-node, scope pod",
            "Node/gpu-1 status.allocatable[nvidia.com/gpu] minus bound pods 8 - 2 = 6 free",
            "Pod/team/train-0 spec.containers[main].resources.limits[nvidia.com/gpu] 4",
        ]
        assert "6 of nvidia.com/gpu are free there in total." in found.detail
        assert found.title == (
            "gpu-1 refused team/train-0: no aligned set of nvidia.com/gpu on one NUMA node"
        )

    def test_near_misses(self) -> None:
        assert self.NAME not in loud(ask(refused(self.MESSAGE, "Other"), k8s.node()))
        pod = refused(self.MESSAGE, "TopologyAffinityError")
        pod["status"]["phase"] = "Pending"
        assert self.NAME not in loud(ask(pod, k8s.node()))

    def test_lax_policy_and_unknown_node_are_not_shown(self) -> None:
        report = ask(refused(self.MESSAGE, "TopologyAffinityError"), self.kubelet("none"))
        found = finding_of(report, self.NAME)
        assert "topologyManagerPolicy" not in shown(found)
        assert "are free there" not in found.detail

    def test_pod_without_gpus(self) -> None:
        pod = refused(self.MESSAGE, "TopologyAffinityError", limits={"cpu": "4"})
        assert "no aligned set of devices" in finding_of(ask(pod, k8s.node()), self.NAME).title

    def test_leftover(self) -> None:
        report = ask(refused(self.MESSAGE, "TopologyAffinityError"), sibling(), k8s.node())
        assert told(finding_of(report, self.NAME))[0] == "warning"


class TestEvicted:
    NAME = "evicted-node-pressure"

    @pytest.mark.parametrize(
        ("message", "reason"),
        [
            ("The node was low on resource: ephemeral-storage. Threshold", "ephemeral-storage"),
            ("The node was low on resource: memory.", "memory"),
            ('Usage of EmptyDir volume "cache" exceeds the limit "1Gi".', "a local limit"),
            ("Pod ephemeral local storage usage exceeds the total limit", "a local limit"),
            ("", "a local limit"),
        ],
    )
    def test_words(self, message: str, reason: str) -> None:
        report = ask(refused(message, "Evicted"), k8s.node())
        found = finding_of(report, "evicted-node-pressure")
        assert told(found) == ("error", "certain", "Pod/team/train-0")
        assert report.roots == (self.NAME,)
        assert found.title == f"team/train-0 was evicted from gpu-1: {reason}"
        assert shown(found) == "Pod/team/train-0 status.reason Evicted"
        assert found.evidence[0].note == message

    def test_near_misses(self) -> None:
        message = "The node was low on resource: memory."
        assert self.NAME not in loud(ask(refused(message, "Preempting"), k8s.node()))
        pod = refused(message, "Evicted")
        pod["status"]["phase"] = "Running"
        assert self.NAME not in loud(ask(pod, k8s.node()))

    def test_leftover(self) -> None:
        report = ask(refused("low on resource: memory", "Evicted"), sibling(), k8s.node())
        assert told(finding_of(report, self.NAME))[0] == "warning"


JOB = k8s.custom("batch/v1", "Job", "train", "team")
SET = k8s.custom("apps/v1", "ReplicaSet", "train", "team")
EXCEEDED = (
    'pods "train-1" is forbidden: exceeded quota: gpus, requested: requests.nvidia.com/gpu=2, '
    "used: requests.nvidia.com/gpu=8, limited: requests.nvidia.com/gpu=8"
)


class TestQuota:
    NAME = "resourcequota-exceeded"

    def quota(self, name: str = "gpus") -> Object:
        return k8s.custom(
            "v1",
            "ResourceQuota",
            name,
            "team",
            status={
                "hard": {"requests.nvidia.com/gpu": "8"},
                "used": {"requests.nvidia.com/gpu": "8"},
            },
        )

    def refused_pod(self, *objects: Object, name: str = "train-1") -> Report:
        recorded = Bundle(
            scope=Scope(objects="complete"),
            objects=tuple(msgspec.Raw(msgspec.json.encode(obj)) for obj in objects),
        )
        reading = kubernetes.read_pod_named(kubernetes.Input(recorded), name, "team")
        return readings.judge(reading, cases_k8s.checks())

    def test_pod_that_was_never_made(self) -> None:
        event = k8s.event(JOB, "FailedCreate", EXCEEDED, component="job-controller", count=5)
        report = self.refused_pod(event, self.quota(), self.quota("other"))
        found = finding_of(report, "resourcequota-exceeded")
        assert told(found) == ("error", "certain", "Pod/team/train-1")
        assert report.roots == (self.NAME,)
        assert shown(found).splitlines() == [
            f"Event/team/train FailedCreate (x5) {EXCEEDED}",
            "ResourceQuota/team/gpus status.used vs status.hard [nvidia.com/gpu] "
            "requests.nvidia.com/gpu=8 vs requests.nvidia.com/gpu=8",
        ]
        assert found.title == "ResourceQuota gpus of the namespace is used up for nvidia.com/gpu"
        assert "asks for requests.nvidia.com/gpu=2, in use are requests.nvidia.com/gpu=8" in (
            found.detail
        )

    def test_newest_refusal_counts(self) -> None:
        old = k8s.event(JOB, "FailedCreate", EXCEEDED.replace("gpus", "past"))
        new = k8s.event(JOB, "FailedCreate", EXCEEDED)
        assert "ResourceQuota gpus" in finding_of(self.refused_pod(old, new), self.NAME).title

    def test_other_refusals(self) -> None:
        event = k8s.event(JOB, "FailedCreate", 'pods "train-1" is forbidden: no service')
        assert self.NAME not in loud(self.refused_pod(event))

    @pytest.mark.parametrize(
        ("owner", "ready", "severity"),
        [
            ("Job", False, "error"),
            ("Job", True, "error"),
            ("ReplicaSet", False, "warning"),
            ("ReplicaSet", True, None),
        ],
    )
    def test_further_pods_of_the_controller(
        self, owner: str, ready: bool, severity: str | None
    ) -> None:
        about = JOB if owner == "Job" else SET
        event = k8s.event(about, "FailedCreate", EXCEEDED)
        pod = k8s.pod(
            node="gpu-1",
            phase="Running",
            conditions=[k8s.condition("Ready", str(ready))],
            meta={"ownerReferences": [k8s.owner(owner, "train")]},
        )
        report = ask(pod, k8s.node(), event)
        found = [finding for finding in report.findings if finding.name == self.NAME]
        assert [each.severity.value for each in found] == ([severity] if severity else [])
        if found:
            assert str(found[0].subject) == "Pod/team/train-0"

    def test_peers_make_it_a_batch_job(self) -> None:
        labels = {"jobset.sigs.k8s.io/jobset-name": "train"}
        meta = {"ownerReferences": [k8s.owner("ReplicaSet", "train")], "labels": labels}
        ready = [k8s.condition("Ready", "True")]
        pods = [
            k8s.pod(name, node="gpu-1", phase="Running", conditions=ready, meta=meta)
            for name in ("train-0", "train-1")
        ]
        report = ask(*pods, k8s.node(), k8s.event(SET, "FailedCreate", EXCEEDED))
        assert told(finding_of(report, self.NAME))[0] == "error"


@pytest.mark.parametrize(
    ("why", "expected"),
    [
        ("pod x container wait-gcs-ready unable to find GPU device allocation", True),
        ("parse pod annotation error: unknown uuid: ", True),
        ("maximum request size for shared resources is 1; found 2", False),
        ("GetPreferredAllocation: GPU is lost", False),
    ],
)
def test_plugin_refuses_in_its_own_words(why: str, expected: bool) -> None:
    message = (
        f"Pod was rejected: Allocate failed due to rpc error: code = Unknown desc = {why}, which "
        "is unexpected"
    )
    status = {"reason": "UnexpectedAdmissionError", "message": message}
    report = k8s.ask(k8s.pod(node="gpu-1", phase="Failed", status=status), k8s.node())
    name = "admission-stale-device-accounting"
    assert (name in k8s.loud(report)) is expected
    if expected:
        assert k8s.finding_of(report, name).certainty == "likely"
        assert "its device plugin refuses" in k8s.finding_of(report, name).detail
