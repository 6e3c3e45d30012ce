"""Device plugin, driver, RDMA pools and huge pages: what nodes advertise, and why they do not."""

from __future__ import annotations

from typing import Any

import pytest

from gpudoctor.report import Report
from tests import kubernetes_objects as k8s
from tests.kubernetes_objects import Object, ask, finding_of, loud, shown, told

GPU = "nvidia.com/gpu"
PRESENT = {"nvidia.com/gpu.present": "true"}
TAINT = {"key": "team", "value": "ml", "effect": "NoSchedule"}
TOLERATES = {"key": "team", "operator": "Exists", "effect": "NoSchedule"}
PLUGIN = "gpu-operator/nvidia-device-plugin-gpu-1"


def waiting(limits: Object | None = None, **more: Any) -> Object:
    message = "0/1 nodes are available: 1 Insufficient nvidia.com/gpu."
    return k8s.pod(limits=limits, conditions=k8s.pending(message), **more)


def bare(name: str = "gpu-1", **more: Any) -> Object:
    """A node with the hardware's label that advertises no GPU."""
    return k8s.node(name, **({"allocatable": {}, "labels": PRESENT} | more))


def refused(message: str, reason: str = "UnexpectedAdmissionError", **more: Any) -> Object:
    return k8s.pod(
        node="gpu-1", phase="Failed", status={"reason": reason, "message": message}, **more
    )


def names(report: Report) -> set[str]:
    return {finding.name for finding in report.findings}


class TestNotAdvertised:
    NAME = "gpu-resource-not-advertised"

    def test_hardware_without_resource(self) -> None:
        found = finding_of(ask(waiting(), bare()), "gpu-resource-not-advertised")
        assert told(found) == ("critical", "certain", "Node/gpu-1")
        assert shown(found).splitlines() == [
            "Node/gpu-1 status.allocatable[nvidia.com/gpu] no such key",
            "Pod/team/train-0 status.conditions[PodScheduled] Unschedulable 0/1 nodes are "
            "available: 1 Insufficient nvidia.com/gpu.",
        ]
        assert found.evidence[0].note == "although label nvidia.com/gpu.present=true"
        assert "gpu-1 shows GPU hardware in its labels, but no nvidia.com/gpu" in found.detail
        assert "No device plugin is among the objects read." in found.detail
        assert found.title == "nvidia.com/gpu is not advertised by gpu-1"

    def test_what_keeps_the_plugin_from_starting(self) -> None:
        plugin = k8s.daemon_pod()
        plugin["status"] = {"phase": "Pending", "containerStatuses": []}
        said = 'MountVolume.SetUp failed for volume "c" : configmap "c" not found'
        event = k8s.event(plugin, "FailedMount", said, component="kubelet")
        found = finding_of(ask(waiting(), bare(), k8s.daemon(), plugin, event), self.NAME)
        assert "does not start: MountVolume.SetUp failed" in found.detail
        assert f"Event/{PLUGIN} FailedMount (x3) {said}" in shown(found).splitlines()
        other = k8s.event(plugin, "Pulling", said, component="kubelet")
        found = finding_of(ask(waiting(), bare(), k8s.daemon(), plugin, other), self.NAME)
        assert "has not registered its devices" in found.detail
        started = k8s.daemon_pod()
        found = finding_of(ask(waiting(), bare(), k8s.daemon(), started, event), self.NAME)
        assert said not in shown(found)

    def test_hardware_by_the_type_of_the_machine(self) -> None:
        node = k8s.node(allocatable={}, labels={"node.kubernetes.io/instance-type": "g5.xlarge"})
        assert ask(waiting(), node).roots == (self.NAME,)
        other = k8s.node(allocatable={}, labels={"node.kubernetes.io/instance-type": "m5.xlarge"})
        assert ask(waiting(), other).roots == ("no-gpu-node",)

    def test_a_driver_of_claims_offers_it(self) -> None:
        spec = {"extendedResourceName": GPU}
        device_class = k8s.custom("resource.k8s.io/v1", "DeviceClass", "gpu.x", spec=spec)
        node = bare()
        piece = k8s.custom(
            "resource.k8s.io/v1", "ResourceSlice", "s", spec={"nodeName": node["metadata"]["name"]}
        )
        assert self.NAME not in names(ask(waiting(), node, device_class, piece))
        assert self.NAME in names(ask(waiting(), node, device_class))
        assert self.NAME in names(ask(waiting(), node, piece))

    def test_resource_of_zero_was_advertised_before(self) -> None:
        node = k8s.node(allocatable={GPU: "0"}, capacity={GPU: "0"})
        found = finding_of(ask(waiting(), node), self.NAME)
        assert "Node/gpu-1 status.allocatable[nvidia.com/gpu] 0 of capacity 0" in shown(found)
        assert found.evidence[0].note == "it was advertised before"

    def test_plugin_that_runs_and_has_not_registered(self) -> None:
        report = ask(waiting(), bare(), k8s.daemon(), k8s.daemon_pod())
        found = finding_of(report, self.NAME)
        assert f"Pod/{PLUGIN} status.phase Running" in shown(found).splitlines()
        assert "has a pod there, which has not registered its devices" in found.detail
        assert found.evidence[1].note == "on gpu-1"

    def test_plugin_that_has_no_pod_there(self) -> None:
        other = bare("gpu-2")
        report = ask(waiting(), bare(), other, k8s.daemon(desired=1), k8s.daemon_pod(on="gpu-2"))
        found = finding_of(report, self.NAME)
        assert "The device plugin has no pod on gpu-1." in found.detail
        line = "DaemonSet/gpu-operator/nvidia-device-plugin status.desiredNumberScheduled 1"
        assert line in shown(found).splitlines()

    def test_more_nodes_than_are_named(self) -> None:
        nodes = [bare(f"gpu-{number}") for number in range(1, 6)]
        found = finding_of(ask(waiting(), *nodes), self.NAME)
        assert found.title.endswith("gpu-1, gpu-2, gpu-3 and 2 more")
        assert sum(line.startswith("Node/") for line in shown(found).splitlines()) == 3

    def test_exactly_as_many_nodes_as_are_named(self) -> None:
        nodes = [bare(f"gpu-{number}") for number in range(1, 4)]
        found = finding_of(ask(waiting(), *nodes), self.NAME)
        assert found.title.endswith("gpu-1, gpu-2, gpu-3")

    def test_first_node_says_why_it_has_hardware(self) -> None:
        nodes = [bare("a", labels={"nvidia.com/gpu.count": "4"}), bare("b")]
        found = finding_of(ask(waiting(), *nodes), self.NAME)
        assert [e.note for e in found.evidence[:2]] == ["although label nvidia.com/gpu.count=4"] * 2

    def test_partial_input_makes_it_likely(self) -> None:
        found = finding_of(ask(waiting(), bare(), complete=False), self.NAME)
        assert told(found) == ("critical", "likely", "Node/gpu-1")

    @pytest.mark.parametrize(
        "labels",
        [
            {"nvidia.com/gpu.count": "8"},
            {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"},
            {"feature.node.kubernetes.io/pci-10de.present": "true"},
            {"feature.node.kubernetes.io/pci-0302_10de.present": "true"},
            {"cloud.google.com/gke-accelerator": "nvidia-l4"},
            {"k8s.amazonaws.com/accelerator": "nvidia-h100"},
        ],
    )
    def test_labels_that_show_hardware(self, labels: Object) -> None:
        assert self.NAME in loud(ask(waiting(), bare(labels=labels)))

    @pytest.mark.parametrize(
        "labels",
        [
            {},
            {"nvidia.com/gpu.present": "false"},
            {"nvidia.com/gpu.count": "0"},
            {"nvidia.com/gpu.product": ""},
            {"feature.node.kubernetes.io/pci-1002.present": "true"},
            {"nvidia.com/gpu.deploy.driver": "true"},
        ],
    )
    def test_labels_that_show_none(self, labels: Object) -> None:
        assert self.NAME not in names(ask(waiting(), bare(labels=labels)))

    @pytest.mark.parametrize(
        ("pod", "node"),
        [
            pytest.param(waiting(), k8s.node(labels=PRESENT), id="advertised"),
            pytest.param(waiting(), bare(taints=[TAINT]), id="may-not-enter"),
            pytest.param(
                waiting(spec={"nodeSelector": {"pool": "gold"}}), bare(), id="not-selected"
            ),
            pytest.param(waiting({"amd.com/gpu": "1"}), bare(), id="other-vendor"),
            pytest.param(waiting({"cpu": "1"}), bare(), id="no-gpu-asked"),
            pytest.param(waiting({GPU: "0"}), bare(), id="zero-gpus-asked"),
            pytest.param(waiting(), bare(allocatable={"nvidia.com/mig-1g.10gb": "7"}), id="slices"),
            pytest.param(k8s.pod(node="gpu-1"), bare(), id="bound"),
            pytest.param(k8s.pod(), bare(), id="nobody-refused"),
            pytest.param(waiting(spec={"schedulingGates": [{"name": "x"}]}), bare(), id="gated"),
            pytest.param(waiting(phase="Succeeded"), bare(), id="ended"),
        ],
    )
    def test_near_misses(self, pod: Object, node: Object) -> None:
        assert self.NAME not in loud(ask(pod, node))

    def test_node_without_status_says_nothing(self) -> None:
        node = bare()
        del node["status"]
        assert self.NAME not in names(ask(waiting(), node))


COMPONENTS = [
    ("nvidia-driver-daemonset", "driver-container-failing"),
    ("nvidia-container-toolkit", "container-toolkit-failing"),
    ("nvidia-device-plugin", "device-plugin-crashing"),
]


class TestComponentFailing:
    @pytest.mark.parametrize(("daemon", "name"), COMPONENTS)
    def test_crash(self, daemon: str, name: str) -> None:
        pod = k8s.daemon_pod(daemon, **k8s.crashing(message="cannot start"))
        logs = {f"gpu-operator/{daemon}-gpu-1/{daemon}": "Failed to initialize NVML: gone\n"}
        report = ask(waiting(), bare(), k8s.daemon(daemon), pod, logs=logs)
        found = finding_of(report, name)
        assert told(found) == ("critical", "certain", "Node/gpu-1")
        assert report.roots == (name,)
        status = f"status.containerStatuses[{daemon}]"
        assert shown(found).splitlines() == [
            f"Pod/gpu-operator/{daemon}-gpu-1 {status} CrashLoopBackOff, exit code 1, 7 restarts",
            f"log gpu-operator/{daemon}-gpu-1/{daemon}:1 Failed to initialize NVML: gone",
        ]
        assert found.evidence[0].note == "on gpu-1: cannot start"
        assert "is in CrashLoopBackOff (7 restarts, exit code 1)" in found.detail
        assert f"gpu-resource-not-advertised@{found.subject}" in found.explains

    @pytest.mark.parametrize(("daemon", "name"), COMPONENTS)
    @pytest.mark.parametrize(
        ("status", "fails"),
        [
            ({"state": {"waiting": {"reason": "ImagePullBackOff"}}}, True),
            ({"state": {"waiting": {"reason": "CreateContainerError"}}}, True),
            ({"state": {"terminated": {"exitCode": 2, "reason": "Error"}}}, True),
            ({"state": {"terminated": {"exitCode": 0, "reason": "Completed"}}}, False),
            ({"state": {"waiting": {"reason": "ContainerCreating"}}}, False),
            ({"state": {"running": {}}}, False),
        ],
        ids=["image", "create", "exit", "ended-well", "creating", "running"],
    )
    def test_what_counts_as_failing(
        self, daemon: str, name: str, status: Object, fails: bool
    ) -> None:
        pod = k8s.daemon_pod(daemon, **status)
        assert (name in loud(ask(waiting(), bare(), k8s.daemon(daemon), pod))) is fails

    @pytest.mark.parametrize(("daemon", "name"), COMPONENTS)
    @pytest.mark.parametrize("node", [k8s.node(labels=PRESENT), bare("gpu-2")])
    def test_no_matter_where_the_gpus_are_offered_or_elsewhere(
        self, daemon: str, name: str, node: Object
    ) -> None:
        pod = k8s.daemon_pod(daemon, **k8s.crashing())
        assert name not in names(ask(waiting(), node, k8s.daemon(daemon), pod))

    def test_plugin_of_another_vendor(self) -> None:
        daemon = "amdgpu-device-plugin"
        pod = k8s.daemon_pod(daemon, **k8s.crashing())
        report = ask(waiting(), bare(), k8s.daemon(daemon), pod)
        assert report.roots == ("gpu-resource-not-advertised",)

    def test_two_nodes_are_one_finding(self) -> None:
        daemon = "nvidia-driver-daemonset"
        pods = [k8s.daemon_pod(daemon, on=f"gpu-{n}", **k8s.crashing()) for n in (1, 2)]
        report = ask(waiting(), bare(), bare("gpu-2"), k8s.daemon(daemon), *pods)
        found = finding_of(report, "driver-container-failing")
        assert "gpu-1, gpu-2" in found.title
        assert len(found.evidence) == 2

    def test_refused_pod_asks_about_its_own_node(self) -> None:
        daemon = "nvidia-device-plugin"
        pod = k8s.daemon_pod(daemon, **k8s.crashing())
        message = "Allocate failed due to no healthy devices present; cannot allocate unhealthy"
        report = ask(refused(message), bare(), k8s.daemon(daemon), pod)
        assert report.roots == ("device-plugin-crashing",)
        running = k8s.pod(node="gpu-1", phase="Running")
        assert "device-plugin-crashing" not in names(ask(running, bare(), k8s.daemon(daemon), pod))


class TestBlockedByTaint:
    NAME = "device-plugin-blocked-by-taint"

    def test_pod_tolerates_what_the_plugin_does_not(self) -> None:
        pod = waiting(spec={"tolerations": [TOLERATES]})
        plugin = k8s.daemon(
            tolerations=[{"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"}],
            desired=0,
        )
        report = ask(pod, bare(taints=[TAINT]), plugin)
        found = finding_of(report, "device-plugin-blocked-by-taint")
        assert told(found) == ("critical", "certain", "Node/gpu-1")
        assert report.roots == (self.NAME,)
        daemon_set = "DaemonSet/gpu-operator/nvidia-device-plugin"
        assert shown(found).splitlines() == [
            f"{daemon_set} status.desiredNumberScheduled 0",
            f"{daemon_set} spec.template.spec.tolerations nvidia.com/gpu=present:NoSchedule",
            "Node/gpu-1 spec.taints team=ml:NoSchedule",
            "Node/gpu-1 status.allocatable[nvidia.com/gpu] no such key",
        ]
        assert found.fix == (
            "Add to the tolerations of DaemonSet gpu-operator/nvidia-device-plugin: "
            "{key: team, operator: Exists, effect: NoSchedule}"
        )
        assert "no toleration for team=ml:NoSchedule of gpu-1" in found.detail

    def test_all_nodes_that_repel_it_are_named(self) -> None:
        pod = waiting(spec={"tolerations": [TOLERATES]})
        nodes = [bare(f"gpu-{n}", taints=[TAINT]) for n in range(1, 6)]
        found = finding_of(ask(pod, *nodes, k8s.daemon()), self.NAME)
        assert found.title.endswith("the taints of gpu-1, gpu-2, gpu-3 and 2 more")
        taints = [line for line in shown(found).splitlines() if "spec.taints" in line]
        assert taints == [f"Node/gpu-{n} spec.taints team=ml:NoSchedule" for n in range(1, 4)]

    def test_tolerations_are_written_as_they_count(self) -> None:
        pod = waiting(spec={"tolerations": [TOLERATES]})
        tolerations = [{"operator": "Exists", "effect": "NoExecute"}, {"key": "a", "value": "b"}]
        report = ask(pod, bare(taints=[TAINT]), k8s.daemon(tolerations=tolerations))
        assert "tolerations *:NoExecute, a=b:*" in shown(finding_of(report, self.NAME))

    def test_plugin_without_any_toleration(self) -> None:
        pod = waiting(spec={"tolerations": [TOLERATES]})
        found = finding_of(ask(pod, bare(taints=[TAINT]), k8s.daemon()), self.NAME)
        assert "spec.template.spec.tolerations none" in shown(found)

    @pytest.mark.parametrize(
        ("plugins", "taint"),
        [
            pytest.param([k8s.daemon(tolerations=[TOLERATES])], TAINT, id="tolerates"),
            pytest.param(
                [k8s.daemon(tolerations=[{"operator": "Exists"}])], TAINT, id="tolerates-all"
            ),
            pytest.param([k8s.daemon(), k8s.daemon_pod()], TAINT, id="has-a-pod"),
            pytest.param(
                [k8s.daemon(node_selector={"pool": "gold"})], TAINT, id="not-meant-for-it"
            ),
            pytest.param(
                [
                    k8s.daemon(),
                    k8s.daemon("nvidia-device-plugin-mps"),
                    k8s.daemon_pod("nvidia-device-plugin-mps"),
                ],
                TAINT,
                id="another-plugin-serves",
            ),
            pytest.param([k8s.daemon("amdgpu-device-plugin")], TAINT, id="other-vendor"),
            pytest.param([k8s.daemon_pod(on="gpu-9")], TAINT, id="no-daemon-set"),
            pytest.param(
                [k8s.daemon()], {"key": "team", "effect": "PreferNoSchedule"}, id="soft-taint"
            ),
        ],
    )
    def test_near_misses(self, plugins: list[Object], taint: Object) -> None:
        pod = waiting(spec={"tolerations": [TOLERATES]})
        assert self.NAME not in names(ask(pod, bare(taints=[taint]), *plugins))


UPGRADE = "nvidia.com/gpu-driver-upgrade-state"
PAUSED = {"nvidia.com/gpu.deploy.device-plugin": "paused-for-driver-upgrade"}


class TestUpgrade:
    NAME = "driver-upgrade-in-progress"

    def test_cordoned_and_paused(self) -> None:
        labels = PRESENT | PAUSED | {UPGRADE: "pod-restart-required"}
        report = ask(waiting(), bare(labels=labels, unschedulable=True))
        found = finding_of(report, "driver-upgrade-in-progress")
        assert told(found) == ("error", "certain", "Node/gpu-1")
        assert report.roots == (self.NAME,)
        deploy = "nvidia.com/gpu.deploy.device-plugin"
        assert shown(found).splitlines() == [
            f"Node/gpu-1 metadata.labels[{UPGRADE}] pod-restart-required",
            f"Node/gpu-1 metadata.labels[{deploy}] paused-for-driver-upgrade",
            "Node/gpu-1 spec.unschedulable true",
            "Node/gpu-1 status.allocatable[nvidia.com/gpu] no such key",
        ]
        assert "(state pod-restart-required)" in found.detail
        assert found.title == "gpu-1 is out of service for a driver upgrade (pod-restart-required)"

    @pytest.mark.parametrize(
        ("labels", "cordoned", "expected"),
        [
            ({UPGRADE: "upgrade-required"}, True, True),
            ({UPGRADE: "upgrade-required"}, False, False),
            ({UPGRADE: "upgrade-required"} | PAUSED, False, True),
            ({UPGRADE: "drain-required"}, False, True),
            ({UPGRADE: "upgrade-failed"}, False, True),
            ({UPGRADE: "upgrade-done"}, True, False),
            ({UPGRADE: ""}, True, False),
            (PAUSED, False, True),
            ({"nvidia.com/gpu.deploy.driver": "true"}, True, False),
            ({"nvidia.com/ofed-driver-upgrade-state": "drain-required"}, True, True),
            ({"nvidia.com/ofed-driver-upgrade-state": "upgrade-done"}, True, False),
        ],
    )
    def test_states(self, labels: Object, cordoned: bool, expected: bool) -> None:
        report = ask(waiting(), bare(labels=PRESENT | labels, unschedulable=cordoned))
        assert (self.NAME in loud(report)) is expected

    @pytest.mark.parametrize(
        ("cordoned", "expected"), [(True, True), (False, False)], ids=["cordoned", "in-service"]
    )
    def test_node_that_still_offers_its_gpus(self, cordoned: bool, expected: bool) -> None:
        node = k8s.node(labels=PRESENT | {UPGRADE: "drain-required"}, unschedulable=cordoned)
        report = ask(waiting(), node, k8s.held("gpu-1", "8"))
        assert (self.NAME in loud(report)) is expected

    def test_node_that_the_pod_may_not_enter(self) -> None:
        labels = PRESENT | {UPGRADE: "drain-required"}
        node = bare(labels=labels, unschedulable=True, taints=[TAINT])
        assert self.NAME not in names(ask(waiting(), node))


def marked(offered: int, of: int = 8) -> Object:
    return k8s.node(allocatable={GPU: str(offered)}, capacity={GPU: str(of)})


class TestUnhealthy:
    NAME = "gpu-unhealthy-shrinks-allocatable"

    def test_pod_would_fit_with_the_lost_ones(self) -> None:
        line = "XidCriticalError: Xid=79 on Device=GPU-1a; marking device as unhealthy."
        log = f"{line}\n{line}\ndevice marked unhealthy: GPU-2b\n"
        logs = {f"{PLUGIN}/nvidia-device-plugin": log}
        report = ask(waiting({GPU: "8"}), marked(6), k8s.daemon(), k8s.daemon_pod(), logs=logs)
        found = finding_of(report, "gpu-unhealthy-shrinks-allocatable")
        assert told(found) == ("critical", "certain", "Node/gpu-1")
        assert report.roots == (self.NAME,)
        log_of = f"log {PLUGIN}/nvidia-device-plugin"
        assert shown(found).splitlines() == [
            "Node/gpu-1 status.capacity vs status.allocatable [nvidia.com/gpu] 8 vs 6",
            f"{log_of}:1 {line}",
            f"{log_of}:3 device marked unhealthy: GPU-2b",
            "Pod/team/train-0 spec.containers[main].resources.limits[nvidia.com/gpu] 8",
        ]
        assert found.title == "2 of the nvidia.com/gpu devices on gpu-1 marked unhealthy"
        assert "With them the pod's 8 would fit." in found.detail

    @pytest.mark.parametrize(
        ("wanted", "offered", "in_use", "expected"),
        [
            (8, 7, 0, True),
            (8, 8, 0, False),
            (9, 7, 0, False),
            (7, 7, 1, True),
            (7, 7, 0, False),
            (8, 7, 1, False),
            (2, 7, 6, True),
            (3, 7, 6, False),
            (1, 7, 7, True),
        ],
    )
    def test_boundary(self, wanted: int, offered: int, in_use: int, expected: bool) -> None:
        pod = waiting({GPU: str(wanted)})
        report = ask(pod, marked(offered), k8s.held("gpu-1", str(in_use)))
        assert (self.NAME in loud(report)) is expected

    @pytest.mark.parametrize("plugin_runs", [True, False])
    def test_none_left_is_a_matter_of_the_plugin(self, plugin_runs: bool) -> None:
        objects = [k8s.daemon(), k8s.daemon_pod()] if plugin_runs else []
        report = ask(waiting(), marked(0), *objects)
        expected = self.NAME if plugin_runs else "gpu-resource-not-advertised"
        assert report.roots == (expected,)

    def test_cordoned_node_is_no_supply(self) -> None:
        node = marked(7)
        node["spec"]["unschedulable"] = True
        assert self.NAME not in names(ask(waiting({GPU: "8"}), node))

    def test_upgrade_takes_devices_away_too(self) -> None:
        node = marked(7)
        node["metadata"]["labels"] |= {UPGRADE: "drain-required"}
        assert self.NAME not in names(ask(waiting({GPU: "8"}), node))

    def test_refused_pod_whose_node_still_lacks_devices(self) -> None:
        message = "Allocate failed due to no healthy devices present; cannot allocate unhealthy"
        found = finding_of(ask(refused(message), marked(5)), self.NAME)
        assert told(found) == ("critical", "certain", "Node/gpu-1")
        assert "gpu-1 still has 3 of 8 nvidia.com/gpu marked unhealthy" in found.detail
        line = "Node/gpu-1 status.allocatable[nvidia.com/gpu] 5 of capacity 8"
        assert shown(found).splitlines() == [line]

    def test_refused_pod_whose_node_offers_none_now(self) -> None:
        message = "Allocate failed due to no healthy devices present; cannot allocate unhealthy"
        report = ask(refused(message), bare())
        found = finding_of(report, "gpu-resource-not-advertised")
        assert told(found) == ("critical", "certain", "Node/gpu-1")
        assert "gpu-1 offers no nvidia.com/gpu now." in found.detail
        assert "status.allocatable[nvidia.com/gpu] no such key" in shown(found)

    @pytest.mark.parametrize(
        "node",
        [
            pytest.param(k8s.node(), id="all-there"),
            pytest.param(
                k8s.node(
                    allocatable={GPU: "5"}, capacity={GPU: "8"}, labels={UPGRADE: "drain-required"}
                ),
                id="upgrade",
            ),
        ],
    )
    def test_refused_pod_near_misses(self, node: Object) -> None:
        message = "Allocate failed due to no healthy devices present; cannot allocate unhealthy"
        found = names(ask(refused(message), node))
        assert found & {self.NAME, "gpu-resource-not-advertised"} == set()

    def test_refused_pod_where_the_plugin_crashes(self) -> None:
        message = "Allocate failed due to no healthy devices present; cannot allocate unhealthy"
        report = ask(refused(message), marked(0), k8s.daemon(), k8s.daemon_pod(**k8s.crashing()))
        assert report.roots == ("device-plugin-crashing",)

    def test_device_in_the_pod(self) -> None:
        devices = [
            {"resourceID": "GPU-1a", "health": "Unhealthy", "message": "Xid 79"},
            {"resourceID": "GPU-2b", "health": "Healthy"},
            {"resourceID": "GPU-3c", "health": "Unknown"},
        ]
        status = k8s.container_status(
            ready=True,
            state={"running": {}},
            allocatedResourcesStatus=[{"name": GPU, "resources": devices}],
        )
        pod = k8s.pod(node="gpu-1", phase="Running", statuses=[status])
        found = finding_of(ask(pod, marked(7)), self.NAME)
        assert told(found) == ("critical", "certain", "Node/gpu-1")
        assert "Container main holds 1 device(s) of nvidia.com/gpu" in found.detail
        assert shown(found).splitlines() == [
            "Pod/team/train-0 status.containerStatuses[main].allocatedResourcesStatus "
            "GPU-1a: Unhealthy",
            "Node/gpu-1 status.allocatable[nvidia.com/gpu] 7 of capacity 8",
        ]
        assert found.evidence[0].note == "Xid 79"
        devices[0]["health"] = "Healthy"
        assert self.NAME not in names(ask(pod, k8s.node()))


class TestLostGpu:
    NAME = "gpu-lost-blocks-allocation"

    @pytest.mark.parametrize(
        ("message", "offered", "expected"),
        [
            ("unable to get device: GPU is lost, which is unexpected", 8, True),
            ("device plugin GetPreferredAllocation rpc failed with err", 8, True),
            ("GetPreferredAllocation rpc failed: error calling nvml.Init: Unknown", 8, False),
            ("previously allocated devices are no longer healthy; cannot allocate", 7, True),
            ("previously allocated devices are no longer healthy; cannot allocate", 8, False),
            ("Pod was rejected: something else", 7, False),
        ],
    )
    def test_messages(self, message: str, offered: int, expected: bool) -> None:
        report = ask(refused(message), marked(offered))
        assert (self.NAME in loud(report)) is expected

    def test_words(self) -> None:
        message = "unable to get device: GPU is lost, which is unexpected"
        found = finding_of(ask(refused(message), k8s.node()), "gpu-lost-blocks-allocation")
        assert told(found) == ("critical", "certain", "Node/gpu-1")
        assert shown(found).splitlines() == [
            f"Pod/team/train-0 status.message (UnexpectedAdmissionError) {message}",
            "Node/gpu-1 status.allocatable[nvidia.com/gpu] 8 of capacity 8",
        ]
        assert "fails to hand out nvidia.com/gpu" in found.detail

    @pytest.mark.parametrize(
        ("health", "holds", "wanted", "in_use", "expected"),
        [
            ("Unhealthy", 1, 1, 6, True),
            ("Unhealthy", 1, 2, 6, False),
            ("Unhealthy", 2, 2, 4, True),
            ("Healthy", 1, 1, 6, False),
            ("Unhealthy", 1, 1, 0, False),
        ],
        ids=["hides-one", "not-enough", "hides-two", "healthy", "others-free"],
    )
    def test_lost_one_that_a_pod_holds_hides_a_healthy_one(
        self, health: str, holds: int, wanted: int, in_use: int, expected: bool
    ) -> None:
        devices = [{"resourceID": f"GPU-{n}", "health": health} for n in range(holds)]
        status = k8s.container_status(
            ready=True, allocatedResourcesStatus=[{"name": GPU, "resources": devices}]
        )
        holder = k8s.pod(
            "holder",
            "x",
            limits={GPU: str(holds)},
            node="gpu-1",
            phase="Running",
            statuses=[status],
        )
        others = k8s.held("gpu-1", str(in_use), name="others")
        report = ask(waiting({GPU: str(wanted)}), marked(8 - holds), holder, others)
        assert (self.NAME in loud(report)) is expected
        if expected:
            found = finding_of(report, self.NAME)
            assert told(found) == ("critical", "certain", "Node/gpu-1")
            assert shown(found).splitlines()[0] == (
                "Pod/x/holder allocatedResourcesStatus GPU-0: Unhealthy"
            )
            assert "Delete the pod that holds the lost device (Pod/x/holder)" in found.fix

    def test_pod_without_gpus(self) -> None:
        report = ask(refused("GPU is lost", limits={"cpu": "1"}), k8s.node())
        assert self.NAME not in names(report)


@pytest.mark.parametrize(
    ("line", "name"),
    [
        ("Failed to initialize NVML: ERROR_DRIVER_NOT_LOADED", "driver-not-loaded"),
        ("Failed to initialize NVML: ERROR_LIBRARY_NOT_FOUND", None),
        ("nvml error: driver not loaded: unknown", "driver-not-loaded"),
        (
            "Failed to initialize NVML: Driver/library version mismatch",
            "driver-library-mismatch",
        ),
    ],
)
def test_plugin_log_about_the_driver(line: str, name: str | None) -> None:
    logs = {f"{PLUGIN}/nvidia-device-plugin": f"start\n{line}\n"}
    report = ask(waiting(), bare(), k8s.daemon(), k8s.daemon_pod(), logs=logs)
    if name is None:
        assert loud(report) & {"driver-not-loaded", "driver-library-mismatch"} == set()
        return
    found = finding_of(report, name)
    assert str(found.subject) == "Node/gpu-1"
    assert shown(found).splitlines() == [f"log {PLUGIN}/nvidia-device-plugin:2 {line}"]
    assert found.detail == f"The device plugin on gpu-1 cannot use the driver: {line}"
    well = ask(waiting(), k8s.node(labels=PRESENT), k8s.daemon(), k8s.daemon_pod(), logs=logs)
    assert name not in names(well)


def test_only_the_node_whose_plugin_complains_and_its_newest_words() -> None:
    line = "nvml error: driver not loaded: {}"
    for node in ("gpu-1", "gpu-2"):
        key = f"gpu-operator/nvidia-device-plugin-{node}/nvidia-device-plugin"
        log = f"{line.format('first')}\n{line.format('last')}\n"
        plugins = [k8s.daemon_pod(on=name) for name in ("gpu-1", "gpu-2")]
        report = ask(waiting(), bare(), bare("gpu-2"), k8s.daemon(), *plugins, logs={key: log})
        found = finding_of(report, "driver-not-loaded")
        assert str(found.subject) == f"Node/{node}"
        assert found.detail.endswith(line.format("last"))
        assert shown(found).splitlines() == [f"log {key}:2 {line.format('last')}"]


RDMA = "rdma/hca_shared"


def with_rdma(amount: str | None, name: str = "gpu-1", **more: Any) -> Object:
    offered = {GPU: "8"} | ({RDMA: amount} if amount is not None else {})
    return k8s.node(name, allocatable=offered, **more)


class TestRdmaZero:
    NAME = "rdma-resource-zero"
    POD = waiting({GPU: "8", RDMA: "2"})

    def test_pool_without_adapter(self) -> None:
        config = k8s.custom("v1", "ConfigMap", "rdma-devices", "kube-system")
        config["data"] = {
            "config.json": '{"configList": [{"resourceName": "hca_shared", '
            '"selectors": {"vendors": ["15b3"]}}, {"resourceName": "other"}]}'
        }
        line = "no devices in device pool, creating empty resource server for hca_shared"
        stranger = "no devices in device pool, creating empty resource server for other"
        logs = {"gpu-operator/k8s-rdma-shared-dp-gpu-1/k8s-rdma-shared-dp": f"{stranger}\n{line}\n"}
        plugin = k8s.daemon_pod("k8s-rdma-shared-dp")
        report = ask(self.POD, with_rdma("0"), config, plugin, logs=logs)
        found = finding_of(report, "rdma-resource-zero")
        assert told(found) == ("error", "certain", "Node/gpu-1")
        assert report.roots == (self.NAME,)
        assert shown(found).splitlines()[:3] == [
            "Node/gpu-1 status.allocatable[rdma/hca_shared] 0 of capacity 0",
            f"log gpu-operator/k8s-rdma-shared-dp-gpu-1/k8s-rdma-shared-dp:2 {line}",
            'ConfigMap/kube-system/rdma-devices data[config.json] {"selectors":'
            '{"vendors":["15b3"]}}',
        ]
        assert "has the resource rdma/hca_shared with 0 devices" in found.detail

    def test_never_advertised(self) -> None:
        node = k8s.node(allocatable={GPU: "8", "rdma/hca_a": "63"})
        found = finding_of(ask(self.POD, node), self.NAME)
        assert found.detail == (
            "No node that the pod may use has ever advertised rdma/hca_shared. "
            "They offer rdma/hca_a instead."
        )
        assert "status.allocatable[rdma/hca_shared] no such key" in shown(found)

    @pytest.mark.parametrize(
        ("nodes", "expected"),
        [
            ([with_rdma("0")], True),
            ([with_rdma("2")], False),
            ([with_rdma("1")], False),
            ([with_rdma("0"), with_rdma("2", "gpu-2")], False),
            ([with_rdma("0"), with_rdma("2", "gpu-2", taints=[TAINT])], True),
            ([with_rdma("0", taints=[TAINT])], False),
            ([k8s.node(allocatable={})], False),
        ],
        ids=["zero", "enough", "too-few", "elsewhere", "not-to-enter", "none-to-enter", "no-gpus"],
    )
    def test_boundary(self, nodes: list[Object], expected: bool) -> None:
        assert (self.NAME in loud(ask(self.POD, *nodes))) is expected

    def test_pod_that_asks_for_none(self) -> None:
        assert self.NAME not in names(ask(waiting({GPU: "8"}), with_rdma("0")))
        assert self.NAME not in names(ask(waiting({GPU: "8", RDMA: "0"}), with_rdma("0")))


class TestHugepages:
    NAME = "hugepages-missing"
    PAGES = "hugepages-2Mi"

    def ask(self, wanted: str, offered: str | None, in_use: str = "0") -> Report:
        allocatable = {GPU: "8"} | ({self.PAGES: offered} if offered else {})
        return ask(
            waiting({GPU: "8", self.PAGES: wanted}),
            k8s.node(allocatable=allocatable),
            k8s.held("gpu-1", in_use),
        )

    def test_words(self) -> None:
        report = self.ask("1Gi", None)
        found = finding_of(report, "hugepages-missing")
        assert told(found) == ("error", "certain", "Node/gpu-1")
        assert report.roots == (self.NAME,)
        assert shown(found).splitlines()[:2] == [
            "Node/gpu-1 status.allocatable[hugepages-2Mi] no such key",
            "Pod/team/train-0 spec.containers[main].resources.limits[hugepages-2Mi] 1073741824",
        ]
        assert "asks for 1024 MiB of hugepages-2Mi; gpu-1 has less" in found.detail

    @pytest.mark.parametrize(
        ("wanted", "offered", "in_use", "expected"),
        [
            ("1Gi", "1Gi", "0", False),
            ("1026Mi", "1Gi", "0", True),
            ("1Gi", "1026Mi", "0", False),
            ("0", None, "0", False),
            ("1Gi", None, "1", False),
        ],
        ids=["equal", "more", "less", "none-asked", "gpus-in-use"],
    )
    def test_boundary(self, wanted: str, offered: str | None, in_use: str, expected: bool) -> None:
        assert (self.NAME in loud(self.ask(wanted, offered, in_use))) is expected
