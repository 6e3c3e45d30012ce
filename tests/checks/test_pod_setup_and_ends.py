"""Pods that cannot be set up, or that something from outside ended; and what only looks so."""

from __future__ import annotations

from typing import Any

import pytest

from tests import kubernetes_objects as k8s
from tests.kubernetes_objects import Object, ask, finding_of, loud, shown, told

GPU = "nvidia.com/gpu"
CREATING = {"waiting": {"reason": "ContainerCreating"}}


def bound(state: Object, **more: Any) -> Object:
    """A pod on gpu-1 whose container has never run."""
    return k8s.pod(
        containers=[k8s.container(limits={GPU: "1"}, **more.pop("container", {}))],
        node="gpu-1",
        phase=more.pop("phase", "Pending"),
        conditions=[k8s.condition("Ready", "False")],
        statuses=[k8s.container_status(state=state)],
        **more,
    )


class TestVolumes:
    NAME = "volume-mount-failing"
    ATTACHED = 'Multi-Attach error for volume "pv-1" Volume is already exclusively attached'
    WAITED = "Unable to attach or mount volumes: timed out waiting for the condition"

    def test_the_cause_and_not_the_wait(self) -> None:
        pod = bound(CREATING)
        attach = k8s.event(pod, "FailedAttachVolume", self.ATTACHED, seen="2026-11-20T08:10:00Z")
        mount = k8s.event(pod, "FailedMount", self.WAITED, seen="2026-11-20T08:20:00Z")
        found = finding_of(ask(pod, k8s.node(), attach, mount), self.NAME)
        assert told(found) == ("error", "certain", "Pod/team/train-0")
        assert "Multi-Attach" in found.title + found.detail
        assert self.WAITED in shown(found)

    @pytest.mark.parametrize(
        "message",
        [
            'MountVolume.SetUp failed for volume "v" : secret "s3" not found',
            'MountVolume.SetUp failed for volume "v" : configmap "cfg" not found',
            'MountVolume.SetUp failed for volume "v" : object "team"/"cfg" not registered',
        ],
    )
    def test_an_object_that_is_not_there(self, message: str) -> None:
        pod = bound(CREATING)
        report = ask(pod, k8s.node(), k8s.event(pod, "FailedMount", message))
        assert report.roots == ("pod-config-error",)

    def test_overcome(self) -> None:
        pod = bound(CREATING)
        mount = k8s.event(pod, "FailedMount", self.WAITED, seen="2026-11-20T08:10:00Z")
        pull = k8s.event(pod, "Pulling", "x", seen="2026-11-20T08:11:00Z")
        assert self.NAME not in loud(ask(pod, k8s.node(), mount, pull))
        ran = bound({"running": {}}, phase="Running")
        assert self.NAME not in loud(ask(ran, k8s.node(), k8s.event(ran, "FailedMount", "x")))


class TestNamesWhatIsNotThere:
    NAME = "pod-config-error"

    def test_container(self) -> None:
        state = {"waiting": {"reason": "CreateContainerConfigError", "message": "no key x in s"}}
        found = finding_of(ask(bound(state), k8s.node()), self.NAME)
        assert told(found) == ("error", "certain", "Pod/team/train-0")
        assert "no key x in s" in found.title

    def test_container_that_is_merely_slow(self) -> None:
        assert self.NAME not in loud(ask(bound(CREATING), k8s.node()))


class TestDenied:
    NAME = "pod-creation-denied"

    @pytest.mark.parametrize(
        ("message", "words"),
        [
            ('admission webhook "a.b" denied the request: no', "a.b denies it"),
            ("ValidatingAdmissionPolicy 'p' with binding 'q' denied request: no", "p denies it"),
            (
                'pods "x" is forbidden: violates PodSecurity "baseline:latest": privileged',
                "baseline",
            ),
            ('failed calling webhook "m.kb.io": connection refused', "m.kb.io cannot be asked"),
        ],
    )
    def test_a_member_of_a_job(self, message: str, words: str) -> None:
        pod = bound({"running": {}}, phase="Running")
        pod["metadata"]["ownerReferences"] = [k8s.owner("Job", "train")]
        said = k8s.event(pod, "FailedCreate", f"Error creating: {message}")
        said["involvedObject"] = {"kind": "Job", "name": "train", "namespace": "team"}
        found = finding_of(ask(pod, k8s.node(), said), self.NAME)
        assert words in found.title

    def test_replicas_do_not_wait_for_each_other(self) -> None:
        pod = bound({"running": {}}, phase="Running")
        pod["metadata"]["ownerReferences"] = [k8s.owner("ReplicaSet", "web", "apps/v1")]
        said = k8s.event(pod, "FailedCreate", 'admission webhook "a.b" denied the request: no')
        said["involvedObject"] = {"kind": "ReplicaSet", "name": "web", "namespace": "team"}
        assert self.NAME not in loud(ask(pod, k8s.node(), said))


class TestNodeUnderThePod:
    NAME = "node-not-ready"

    @pytest.mark.parametrize(
        ("reason", "message"),
        [
            ("Terminated", "Pod was terminated in response to imminent node shutdown."),
            ("Shutdown", "Node is shutting, evicting pods"),
            ("NodeShutdown", "Pod was rejected as the node is shutting down."),
            ("Terminated", "Node is in progress of shutting down, not admitting any new pods"),
        ],
    )
    def test_shut_down(self, reason: str, message: str) -> None:
        pod = k8s.pod(node="gpu-1", phase="Failed", status={"reason": reason, "message": message})
        report = ask(pod, k8s.node())
        assert report.roots == (self.NAME,)
        assert told(finding_of(report, self.NAME)) == ("error", "certain", "Node/gpu-1")

    def test_ended_for_another_reason(self) -> None:
        status = {"reason": "Evicted", "message": "The node was low on resource: memory."}
        pod = k8s.pod(node="gpu-1", phase="Failed", status=status)
        assert self.NAME not in loud(ask(pod, k8s.node()))


class TestDeadline:
    def test_it_is_not_a_kill_by_nobody(self) -> None:
        end = {"terminated": {"exitCode": 137, "reason": "Error"}}
        pod = bound(end, phase="Failed", status={"reason": "DeadlineExceeded", "message": "x"})
        assert ask(pod, k8s.node()).roots == ("deadline-exceeded",)
        pod["status"]["reason"] = ""
        assert "deadline-exceeded" not in loud(ask(pod, k8s.node()))


class TestCommands:
    @pytest.mark.parametrize(
        "message",
        [
            'runc create failed: exec: "pyhton": executable file not found in $PATH: unknown',
            "crun: executable file `/run.sh` not found: No such file or directory",
            'error during container init: exec: "/run.sh": permission denied: unknown',
            'exec: "/run.sh": stat /run.sh: no such file or directory: unknown',
        ],
    )
    def test_not_in_the_image(self, message: str) -> None:
        pod = bound({"waiting": {"reason": "CrashLoopBackOff"}}, phase="Running")
        end = {"exitCode": 128, "reason": "StartError", "message": message}
        pod["status"]["containerStatuses"][0] |= {
            "restartCount": 3,
            "lastState": {"terminated": end},
        }
        found = finding_of(ask(pod, k8s.node()), "application-error")
        assert "its command cannot be run" in found.title

    def test_a_start_that_failed_for_unknown_reasons(self) -> None:
        pod = bound({"waiting": {"reason": "CrashLoopBackOff"}}, phase="Running")
        end = {"exitCode": 128, "reason": "StartError", "message": "cgroups: cannot find mount"}
        pod["status"]["containerStatuses"][0] |= {
            "restartCount": 3,
            "lastState": {"terminated": end},
        }
        assert ask(pod, k8s.node()).roots == ("insufficient-evidence",)
