"""Pods that were bound to a node by name: the kubelet lets them in and gives them no GPU."""

from __future__ import annotations

from typing import Any

import pytest

from gpudoctor.report import Report
from tests import kubernetes_objects as k8s
from tests.kubernetes_objects import Object, ask, finding_of, loud, shown, told

NAME = "gpu-resource-not-advertised"
PRESENT = {"nvidia.com/gpu.present": "true"}
LOG = "team/train-0/main"
NO_GPU = "RuntimeError: No CUDA GPUs are available\n"
NO_LIBRARY = "ImportError: libcuda.so.1: cannot open shared object file: No such file\n"
OWN_ERROR = "FileNotFoundError: [Errno 2] No such file or directory: 'train.json'\n"


def failing(**more: Any) -> Object:
    statuses = [k8s.container_status(**k8s.crashing())]
    return k8s.pod(node="cpu-7", phase="Running", statuses=statuses, **more)


def well() -> Object:
    running = k8s.container_status(ready=True, state={"running": {}})
    ready = [k8s.condition("Ready", "True")]
    return k8s.pod(node="cpu-7", phase="Running", statuses=[running], conditions=ready)


def bare(**more: Any) -> Object:
    return k8s.node("cpu-7", **({"allocatable": {"cpu": "8"}} | more))


def asked(*objects: Object, log: str = NO_GPU) -> Report:
    return ask(*objects, logs={LOG: log})


class TestFailing:
    def test_node_without_any_gpu(self) -> None:
        report = asked(failing(), bare())
        found = finding_of(report, NAME)
        assert report.roots == (NAME,)
        assert told(found) == ("error", "certain", "Node/cpu-7")
        assert found.blame == "placement"
        assert "Take spec.nodeName out" in found.fix
        assert "Pod/team/train-0 spec.nodeName cpu-7" in shown(found)
        assert finding_of(report, "no-devices").caused_by == (found.id,)

    def test_library_is_missing_with_the_devices(self) -> None:
        report = asked(failing(), bare(labels=PRESENT), log=NO_LIBRARY)
        assert report.roots == (NAME,)
        assert "runtimeclass-missing" not in loud(report)
        found = finding_of(report, "driver-libs-not-injected")
        assert found.caused_by == (f"{NAME}@Node/cpu-7",)

    def test_node_with_hardware_is_broken(self) -> None:
        found = finding_of(asked(failing(), bare(labels=PRESENT)), NAME)
        assert told(found) == ("critical", "certain", "Node/cpu-7")
        assert "nvidia.com/gpu.present=true" in found.detail

    def test_cause_of_the_missing_plugin_is_the_root(self) -> None:
        daemon = "nvidia-device-plugin"
        plugin = k8s.daemon_pod(daemon, on="cpu-7", **k8s.crashing())
        report = asked(failing(), bare(labels=PRESENT), k8s.daemon(daemon), plugin)
        assert report.roots == ("device-plugin-crashing",)

    def test_devices_under_another_name(self) -> None:
        node = bare(labels=PRESENT, allocatable={"nvidia.com/mig-1g.10gb": "7"})
        assert "it offers nvidia.com/mig-1g.10gb" in finding_of(asked(failing(), node), NAME).detail

    def test_a_count_of_zero_is_less_sure(self) -> None:
        node = bare(labels=PRESENT, allocatable={"nvidia.com/gpu": "0"})
        assert told(finding_of(asked(failing(), node), NAME))[1] == "likely"

    def test_placed_by_the_scheduler_when_it_had_some(self) -> None:
        event = k8s.event(failing(), "Scheduled", "Successfully assigned", type="Normal")
        found = finding_of(asked(failing(), bare(), event), NAME)
        assert found.certainty == "likely"
        assert "It did when the scheduler placed the pod there." in found.detail


class TestNearMisses:
    def test_node_that_offers_it(self) -> None:
        node = bare(allocatable={"nvidia.com/gpu": "8"})
        assert asked(failing(), node).roots == ("no-devices",)

    def test_devices_that_are_all_unhealthy_were_given(self) -> None:
        node = bare(capacity={"nvidia.com/gpu": "8"}, allocatable={"nvidia.com/gpu": "0"})
        assert NAME not in loud(asked(failing(), node))

    def test_an_error_of_its_own(self) -> None:
        assert asked(failing(), bare(), log=OWN_ERROR).roots == ("application-error",)

    def test_running_out_of_the_memory_of_a_gpu(self) -> None:
        node = bare(labels=PRESENT, allocatable={"nvidia.com/gpu": "0"})
        log = "torch.OutOfMemoryError: CUDA out of memory. GPU 0 has no free memory\n"
        assert NAME not in loud(asked(failing(), node, log=log))

    def test_devices_by_dra(self) -> None:
        status = {
            "extendedResourceClaimStatus": {"resourceClaimName": "train-0-x", "requestMappings": []}
        }
        assert NAME not in loud(asked(failing(status=status), bare()))

    def test_plugin_that_is_away_took_nothing_back(self) -> None:
        node = bare(labels=PRESENT, allocatable={"nvidia.com/gpu": "0"})
        assert NAME not in loud(ask(failing(), node))

    def test_not_started_yet(self) -> None:
        pod = k8s.pod(node="cpu-7", statuses=[k8s.container_status()])
        assert NAME not in loud(ask(pod, bare()))

    @pytest.mark.parametrize("allocatable", [{}, {"cpu": "8"}])
    def test_node_whose_status_is_not_there(self, allocatable: Object) -> None:
        node = bare(allocatable=allocatable)
        if not allocatable:
            node["status"] = {}
        expected = {NAME} if allocatable else set()
        assert loud(asked(failing(), node)) & {NAME} == expected


class TestRunsOn:
    def test_falls_back_to_the_cpu(self) -> None:
        report = asked(well(), bare(), log="UserWarning: no CUDA-capable device is detected\n")
        assert told(finding_of(report, NAME)) == ("warning", "certain", "Node/cpu-7")

    def test_says_nothing_of_it(self) -> None:
        report = ask(well(), bare())
        assert report.verdict == "healthy"
        assert finding_of(report, NAME).severity == "info"
