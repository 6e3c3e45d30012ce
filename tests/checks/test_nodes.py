"""A node by itself: supply, components, upgrades, and what other agents report of it."""

from __future__ import annotations

import pytest

from gpudoctor.report import Report, Verdict
from tests import kubernetes_objects as k8s
from tests.kubernetes_objects import Object, ask, ask_node, finding_of, loud, shown, told

GPU = "nvidia.com/gpu"
PRESENT = {"nvidia.com/gpu.present": "true"}
TAINT = {"key": "team", "effect": "NoSchedule"}
PLUGIN = "gpu-operator/nvidia-device-plugin-gpu-1"


def bare(**more: object) -> Object:
    return k8s.node(**({"allocatable": {}, "labels": PRESENT} | more))  # type: ignore[arg-type]


def names(report: Report) -> set[str]:
    return {finding.name for finding in report.findings}


def test_healthy_node_is_healthy() -> None:
    report = ask_node(k8s.node(labels=PRESENT), k8s.daemon(), k8s.daemon_pod())
    assert report.findings == ()
    assert report.verdict is Verdict.HEALTHY


class TestNothingAdvertised:
    NAME = "gpu-resource-not-advertised"

    def test_words(self) -> None:
        report = ask_node(bare(), k8s.daemon(), k8s.daemon_pod())
        found = finding_of(report, "gpu-resource-not-advertised")
        assert told(found) == ("critical", "certain", "Node/gpu-1")
        assert report.roots == (self.NAME,)
        assert shown(found).splitlines() == [
            "Node/gpu-1 status.allocatable[nvidia.com/gpu] no such key",
            f"Pod/{PLUGIN} status.phase Running",
        ]
        assert "shows GPU hardware in its labels and offers no nvidia.com/gpu." in found.detail

    @pytest.mark.parametrize(
        ("labels", "resource"),
        [
            ({"amd.com/gpu.vram": "192G"}, "amd.com/gpu"),
            ({"feature.node.kubernetes.io/pci-1002.present": "true"}, "amd.com/gpu"),
            (PRESENT, GPU),
        ],
    )
    def test_vendors(self, labels: Object, resource: str) -> None:
        found = finding_of(ask_node(bare(labels=labels)), self.NAME)
        assert f"offers no {resource}." in found.detail

    def test_resource_that_it_once_had(self) -> None:
        capacity = {"gpu.intel.com/i915": "0", "cpu": "64"}
        report = ask_node(k8s.node(allocatable={}, capacity=capacity))
        assert "offers no gpu.intel.com/i915" in finding_of(report, self.NAME).detail

    @pytest.mark.parametrize(
        "node",
        [
            k8s.node(allocatable={}),
            k8s.node(allocatable={}, labels={"nvidia.com/gpu.present": "false"}),
            k8s.node(allocatable={}, labels={"gpu.intel.com/product": "Max_1550"}),
            bare(allocatable={"nvidia.com/mig-1g.10gb": "7"}),
            bare(labels=PRESENT | {"nvidia.com/gpu-driver-upgrade-state": "drain-required"}),
        ],
        ids=["no-hardware", "label-false", "resource-unknown", "slices", "upgrade"],
    )
    def test_near_misses(self, node: Object) -> None:
        assert self.NAME not in names(ask_node(node))

    def test_node_without_status_is_unknown(self) -> None:
        node = bare()
        del node["status"]
        report = ask_node(node)
        assert self.NAME not in names(report)
        assert report.verdict is Verdict.UNKNOWN

    def test_partial_input(self) -> None:
        assert told(finding_of(ask_node(bare(), complete=False), self.NAME))[1] == "likely"


class TestComponents:
    @pytest.mark.parametrize(
        ("daemon", "name"),
        [
            ("nvidia-driver-daemonset", "driver-container-failing"),
            ("nvidia-container-toolkit", "container-toolkit-failing"),
            ("nvidia-device-plugin", "device-plugin-crashing"),
        ],
    )
    def test_one_that_fails(self, daemon: str, name: str) -> None:
        pod = k8s.daemon_pod(daemon, **k8s.crashing())
        logs = {f"gpu-operator/{daemon}-gpu-1/{daemon}": "Failed to initialize NVML: x\n"}
        report = ask_node(bare(), k8s.daemon(daemon), pod, logs=logs)
        found = finding_of(report, name)
        assert told(found) == ("critical", "certain", "Node/gpu-1")
        assert report.roots == (name,)
        assert shown(found).splitlines() == [
            f"Pod/gpu-operator/{daemon}-gpu-1 status.containerStatuses[{daemon}] "
            "CrashLoopBackOff, exit code 1, 7 restarts",
            f"log gpu-operator/{daemon}-gpu-1/{daemon}:1 Failed to initialize NVML: x",
        ]
        elsewhere = k8s.daemon_pod(daemon, on="gpu-2", **k8s.crashing())
        assert name not in names(ask_node(bare(), k8s.daemon(daemon), elsewhere))
        offers = k8s.node(labels=PRESENT)
        assert name not in names(ask_node(offers, k8s.daemon(daemon), pod))
        well = k8s.daemon_pod(daemon)
        assert name not in names(ask_node(bare(), k8s.daemon(daemon), well))

    def test_first_container_that_fails_is_named(self) -> None:
        pod = k8s.daemon_pod()
        pod["status"]["containerStatuses"] = [
            k8s.container_status(name, **k8s.crashing(code=code))
            for name, code in (("first", 3), ("second", 4))
        ]
        found = finding_of(ask_node(bare(), k8s.daemon(), pod), "device-plugin-crashing")
        assert found.detail.startswith("Container first of ")
        assert "exit code 3)" in found.detail

    def test_component_of_another_vendor(self) -> None:
        daemon = "amdgpu-device-plugin"
        pod = k8s.daemon_pod(daemon, **k8s.crashing())
        assert ask_node(bare(), k8s.daemon(daemon), pod).roots == ("gpu-resource-not-advertised",)

    def test_plugin_blocked_by_taint(self) -> None:
        report = ask_node(bare(taints=[TAINT]), k8s.daemon(desired=0))
        found = finding_of(report, "device-plugin-blocked-by-taint")
        assert told(found) == ("critical", "certain", "Node/gpu-1")
        assert report.roots == ("device-plugin-blocked-by-taint",)
        assert "Node/gpu-1 spec.taints team:NoSchedule" in shown(found).splitlines()

    @pytest.mark.parametrize(
        "plugins",
        [
            [k8s.daemon(tolerations=[{"operator": "Exists"}])],
            [k8s.daemon(), k8s.daemon_pod()],
            [k8s.daemon(node_selector={"pool": "gold"})],
            [k8s.daemon_pod()],
            [k8s.daemon(), k8s.daemon("nvdp-other"), k8s.daemon_pod("nvdp-other")],
        ],
        ids=["tolerates", "has-a-pod", "not-meant", "no-daemon-set", "served-otherwise"],
    )
    def test_plugin_not_blocked(self, plugins: list[Object]) -> None:
        report = ask_node(bare(taints=[TAINT]), *plugins)
        assert "device-plugin-blocked-by-taint" not in names(report)


class TestLostDevices:
    NAME = "gpu-unhealthy-shrinks-allocatable"

    def node(self, offered: str, of: str = "8", resource: str = GPU, **more: object) -> Object:
        return bare(allocatable={resource: offered}, capacity={resource: of}, **more)

    def test_words(self) -> None:
        line = "XidCriticalError: Xid=48 on Device=GPU-1a; marking"
        logs = {f"{PLUGIN}/nvidia-device-plugin": f"{line}\n"}
        report = ask_node(self.node("6"), k8s.daemon(), k8s.daemon_pod(), logs=logs)
        found = finding_of(report, "gpu-unhealthy-shrinks-allocatable")
        assert told(found) == ("critical", "certain", "Node/gpu-1")
        assert report.roots == (self.NAME,)
        assert shown(found).splitlines() == [
            "Node/gpu-1 status.allocatable[nvidia.com/gpu] 6 of capacity 8",
            f"log {PLUGIN}/nvidia-device-plugin:1 {line}",
        ]
        assert found.detail.startswith("2 of 8 nvidia.com/gpu on gpu-1 are marked unhealthy")

    @pytest.mark.parametrize(
        ("offered", "of", "expected"),
        [("8", "8", False), ("7", "8", True), ("9", "8", False), ("0", "0", False)],
    )
    def test_boundary(self, offered: str, of: str, expected: bool) -> None:
        assert (self.NAME in names(ask_node(self.node(offered, of)))) is expected

    def test_none_left(self) -> None:
        plugin = [k8s.daemon(), k8s.daemon_pod()]
        assert ask_node(self.node("0"), *plugin).roots == (self.NAME,)
        assert ask_node(self.node("0")).roots == ("gpu-resource-not-advertised",)
        crashed = [k8s.daemon(), k8s.daemon_pod(**k8s.crashing())]
        assert ask_node(self.node("0"), *crashed).roots == ("device-plugin-crashing",)

    def test_near_misses(self) -> None:
        node = self.node("6", labels={"nvidia.com/gpu-driver-upgrade-state": "drain-required"})
        assert self.NAME not in names(ask_node(node))
        assert self.NAME not in names(ask_node(self.node("6", resource="example.com/card")))


class TestRdma:
    NAME = "rdma-resource-zero"

    def test_words(self) -> None:
        node = k8s.node(allocatable={GPU: "8", "rdma/a": "0", "rdma/b": "1"})
        line = "incorrect RDMA subsystem network namespace"
        logs = {"gpu-operator/k8s-rdma-shared-dp-gpu-1/k8s-rdma-shared-dp": f"{line}\n"}
        report = ask_node(node, k8s.daemon_pod("k8s-rdma-shared-dp"), logs=logs)
        found = finding_of(report, "rdma-resource-zero")
        assert told(found) == ("warning", "certain", "Node/gpu-1")
        assert shown(found).splitlines() == [
            "Node/gpu-1 status.allocatable[rdma/a] 0 of capacity 0",
            f"log gpu-operator/k8s-rdma-shared-dp-gpu-1/k8s-rdma-shared-dp:1 {line}",
        ]
        assert "gpu-1 has the resource rdma/a with 0 devices" in found.detail

    def test_in_capacity_alone(self) -> None:
        node = k8s.node(allocatable={GPU: "8"}, capacity={GPU: "8", "rdma/a": "0"})
        assert self.NAME in names(ask_node(node))

    def test_near_misses(self) -> None:
        node = k8s.node(allocatable={GPU: "8", "rdma/b": "1", "example.com/disk": "0"})
        assert self.NAME not in names(ask_node(node))


class TestOutOfService:
    def test_upgrade(self) -> None:
        labels = PRESENT | {"nvidia.com/gpu-driver-upgrade-state": "pod-deletion-required"}
        report = ask_node(bare(labels=labels, unschedulable=True))
        found = finding_of(report, "driver-upgrade-in-progress")
        assert told(found) == ("warning", "certain", "Node/gpu-1")
        assert "(state pod-deletion-required)" in found.detail
        assert told(finding_of(report, "node-cordoned")) == ("info", "certain", "Node/gpu-1")

    def test_cordon_alone_is_information(self) -> None:
        report = ask_node(k8s.node(unschedulable=True))
        found = finding_of(report, "node-cordoned")
        assert shown(found) == "Node/gpu-1 spec.unschedulable true"
        assert report.roots == ()
        assert names(ask_node(k8s.node())) == set()

    @pytest.mark.parametrize("status", ["False", "Unknown"])
    def test_not_ready(self, status: str) -> None:
        ready = k8s.condition("Ready", status, "KubeletNotReady", "runtime is down")
        report = ask_node(k8s.node(conditions=[ready]))
        found = finding_of(report, "node-not-ready")
        assert told(found) == ("critical", "certain", "Node/gpu-1")
        assert shown(found) == f"Node/gpu-1 status.conditions[Ready] {status}"
        assert found.title == "gpu-1 is not ready for pods: KubeletNotReady"
        assert found.detail == f"The kubelet of gpu-1 reports Ready {status}: runtime is down"

    def test_not_ready_without_a_reason(self) -> None:
        report = ask_node(k8s.node(conditions=[k8s.condition("Ready", "False")]))
        assert finding_of(report, "node-not-ready").title.endswith(": False")


class TestReported:
    NAME = "node-reported-unhealthy"

    @pytest.mark.parametrize(
        ("kind", "status", "expected"),
        [
            ("GpuXid", "True", True),
            ("GpuXid", "False", False),
            ("GpuXid", "Unknown", False),
            ("GPUHealthy", "False", True),
            ("GPUHealthy", "True", False),
            ("NvidiaFabricReady", "False", True),
            ("NvidiaFabricReady", "True", False),
            ("AcceleratedHardwareReady", "False", True),
            ("NvlinkDown", "True", True),
            ("EFADegraded", "True", True),
            ("InfinibandLinkFlapping", "True", True),
            ("Ready", "False", False),
            ("MemoryPressure", "True", False),
            ("KernelDeadlock", "True", False),
        ],
    )
    def test_conditions(self, kind: str, status: str, expected: bool) -> None:
        said = k8s.condition(kind, status, "Seen", "look here")
        report = ask_node(k8s.node(conditions=[said]))
        assert (self.NAME in names(report)) is expected
        if expected:
            found = finding_of(report, "node-reported-unhealthy")
            assert told(found) == ("warning", "likely", "Node/gpu-1")
            assert shown(found) == f"Node/gpu-1 status.conditions[{kind}] {status} Seen"
            assert found.evidence[0].note == "look here"
            assert found.title == f"Another agent reports trouble on gpu-1: {kind}"

    @pytest.mark.parametrize(
        ("label", "value", "expected"),
        [
            ("autopilot.ibm.com/gpuhealth", "EVICT", True),
            ("autopilot.ibm.com/gpuhealth", "WARN", True),
            ("autopilot.ibm.com/gpuhealth", "PASS", False),
            ("dgxc.nvidia.com/nvsentinel-state", "quarantined", True),
            ("dgxc.nvidia.com/nvsentinel-state", "remediation-succeeded", False),
            ("example.com/gpuhealth", "EVICT", False),
        ],
    )
    def test_labels(self, label: str, value: str, expected: bool) -> None:
        report = ask_node(k8s.node(labels={label: value}))
        assert (self.NAME in names(report)) is expected
        if expected:
            found = finding_of(report, self.NAME)
            assert shown(found) == f"Node/gpu-1 metadata.labels[{label}] {value}"

    def test_node_of_a_pod(self) -> None:
        node = k8s.node(conditions=[k8s.condition("GpuXid", "True", "Xid79")])
        running = k8s.pod(node="gpu-1", phase="Running")
        found = finding_of(ask(running, node), self.NAME)
        assert told(found) == ("warning", "likely", "Node/gpu-1")
        ended = k8s.pod(node="gpu-1", phase="Succeeded")
        assert self.NAME not in loud(ask(ended, node))
        assert self.NAME not in loud(ask(k8s.pod(), node))
