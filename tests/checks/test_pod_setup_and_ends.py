"""Pods that cannot be set up, or that something from outside ended; and what only looks so."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from gpudoctor import readings
from gpudoctor.readings import kubernetes
from gpudoctor.report import Report
from gpudoctor.sources.bundle import Bundle
from gpudoctor.sources.bundle import Scope as BundleScope
from tests import cases_k8s
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


def killed(
    reason: str = "Error", finished: str = "2026-11-20T08:10:00Z", code: int = 137, **more: Any
) -> Object:
    end = {"exitCode": code, "reason": reason, "finishedAt": finished}
    status = k8s.container_status(restartCount=1, state={"running": {}}, lastState={})
    status["lastState"] = {"terminated": end | {"startedAt": "2026-11-20T07:00:00Z"}}
    ready = [k8s.condition("Ready", "True")]
    return k8s.pod(node="gpu-1", phase="Running", statuses=[status], conditions=ready, **more)


class TestNodeRanOutOfMemory:
    NAME = "oom-killed"

    def event(self, seen: str = "2026-11-20T08:09:58Z", reason: str = "SystemOOM") -> Object:
        message = "System OOM encountered, victim process: python, pid: 7"
        return k8s.event(k8s.node(), reason, message, component="kubelet", seen=seen)

    def test_killed_in_the_same_moment(self) -> None:
        found = finding_of(ask(killed(), k8s.node(), self.event()), self.NAME)
        assert told(found) == ("error", "likely", "Pod/team/train-0")
        assert "gpu-1 as a whole ran out of memory" in found.detail
        assert "Event/gpu-1 SystemOOM" in shown(found)
        assert "memory request and limit" in found.fix

    @pytest.mark.parametrize(
        ("pod", "event"),
        [
            (killed(), {"seen": "2026-11-20T07:30:00Z"}),  # of another victim
            (killed(), {"reason": "OOMKilling"}),  # what the node's other agents say
            (killed(code=1), {}),
            (killed(code=143), {}),
        ],
    )
    def test_not_of_this_end(self, pod: Object, event: Object) -> None:
        assert self.NAME not in loud(ask(pod, k8s.node(), self.event(**event)))

    def test_the_kubelet_ended_it(self) -> None:
        said = "Container main failed liveness probe, will be restarted"
        pod = killed()
        kill = k8s.event(pod, "Killing", said, seen="2026-11-20T08:09:30Z")
        assert self.NAME not in loud(ask(pod, k8s.node(), self.event(), kill))

    def test_its_own_limit_is_said_as_before(self) -> None:
        found = finding_of(ask(killed("OOMKilled"), k8s.node(), self.event()), self.NAME)
        assert found.certainty == "certain"


DRAINED = {"type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI"}
LEAVING = {"key": "ToBeDeletedByClusterAutoscaler", "effect": "NoSchedule"}


class TestEvicted:
    NAME = "node-cordoned"

    def pod(self, condition: Object | None = None, phase: str = "Failed") -> Object:
        end = {"terminated": {"exitCode": 137, "reason": "Error"}}
        conditions = [condition] if condition else []
        status = k8s.container_status(state=end)
        return k8s.pod(node="gpu-1", phase=phase, statuses=[status], conditions=conditions)

    def test_drained_by_the_autoscaler(self) -> None:
        pod = self.pod(DRAINED)
        said = "deleting pod for node scale down"
        event = k8s.event(pod, "ScaleDown", said, component="cluster-autoscaler", type="Normal")
        report = ask(pod, k8s.node(taints=[LEAVING]), event)
        assert report.roots == (self.NAME,)
        found = finding_of(report, self.NAME)
        assert told(found) == ("error", "certain", "Node/gpu-1")
        assert "by cluster-autoscaler" in found.detail
        assert "safe-to-evict" in found.fix

    def test_drained_by_hand(self) -> None:
        report = ask(self.pod(DRAINED), k8s.node(unschedulable=True))
        assert report.roots == (self.NAME,)

    def test_by_karpenter_from_a_node_that_is_gone(self) -> None:
        pod = self.pod()
        event = k8s.event(pod, "Evicted", "Evicted pod: Underutilized", component="karpenter")
        assert self.NAME in loud(ask(pod, event))

    def test_evicted_by_somebody_while_the_node_stays(self) -> None:
        assert self.NAME not in loud(ask(self.pod(DRAINED), k8s.node()))

    def test_evicted_by_the_kubelet(self) -> None:
        pod = self.pod()
        pod["status"] |= {"reason": "Evicted", "message": "The node was low on resource: memory."}
        event = k8s.event(pod, "Evicted", "The node was low on resource", component="kubelet")
        report = ask(pod, k8s.node(unschedulable=True), event)
        assert report.roots == ("evicted-node-pressure",)

    def test_another_disruption(self) -> None:
        other = DRAINED | {"reason": "DeletionByPodGC"}
        report = ask(self.pod(other), k8s.node(unschedulable=True))
        assert self.NAME not in loud(report)

    def test_runs_on_a_cordoned_node(self) -> None:
        running = k8s.container_status(ready=True, state={"running": {}})
        ready = [k8s.condition("Ready", "True")]
        pod = k8s.pod(node="gpu-1", phase="Running", statuses=[running], conditions=ready)
        report = ask(pod, k8s.node(unschedulable=True))
        assert report.verdict == "healthy"


class TestRefusedForAnyReason:
    NAME = "pod-creation-denied"

    def report(self, message: str) -> Any:
        job = k8s.custom("batch/v1", "Job", "train", "team")
        return ask(k8s.event(job, "FailedCreate", message), pod="team/train-x")

    @pytest.mark.parametrize(
        ("message", "said"),
        [
            (
                'Error creating: pods "train-x" is forbidden: failed quota: compute: must specify '
                "limits.cpu for: main",
                "ResourceQuota compute demands requests and limits",
            ),
            (
                'Error creating: pods "train-x" is forbidden: maximum memory usage per Container '
                "is 8Gi, but limit is 16Gi",
                "refuses it: maximum memory usage per Container",
            ),
            (
                'Error creating: pods "train-x" is forbidden: error looking up service account '
                'team/runner: serviceaccount "runner" not found',
                "serviceaccount",
            ),
            (
                'Error creating: Pod "train-x" is invalid: spec.containers[0].image: Required '
                "value",
                "spec.containers[0].image: Required value",
            ),
        ],
    )
    def test_named(self, message: str, said: str) -> None:
        report = self.report(message)
        assert report.roots == (self.NAME,)
        found = finding_of(report, self.NAME)
        assert said in found.title

    @pytest.mark.parametrize(
        ("message", "name"),
        [
            (
                'Error creating: pods "train-x" is forbidden: exceeded quota: gpus, requested: '
                "requests.nvidia.com/gpu=1, used: requests.nvidia.com/gpu=8, limited: "
                "requests.nvidia.com/gpu=8",
                "resourcequota-exceeded",
            ),
            (
                'Error creating: pods "train-x" is forbidden: pod rejected: RuntimeClass "nvidia" '
                "not found",
                "runtimeclass-missing",
            ),
        ],
    )
    def test_what_has_a_name_of_its_own(self, message: str, name: str) -> None:
        assert self.report(message).roots == (name,)


class TestRefusedJob:
    """Who makes pods, or what makes them, is refused: by events and by what the object keeps."""

    DENIED = 'pods "rc-head" is forbidden: violates PodSecurity "restricted:latest": hostNetwork'

    def report(self, kind: str, name: str, *objects: Object) -> Report:
        raw = tuple(msgspec.Raw(msgspec.json.encode(obj)) for obj in objects)
        source = kubernetes.Input(Bundle(objects=raw, scope=BundleScope(objects="complete")))
        found = kubernetes.read_refused(source, kind, name, "team")
        if found is None:
            found = kubernetes.read_job(source, kind, name, "team", [])
        return readings.judge(found, cases_k8s.checks())

    @pytest.mark.parametrize(
        ("kind", "group", "about", "reason"),
        [
            ("PyTorchJob", "kubeflow.org/v1", "train", "FailedCreatePod"),
            ("RayCluster", "ray.io/v1", "train", "FailedToCreateHeadPod"),
            ("JobSet", "jobset.x-k8s.io/v1alpha2", "train", "JobCreationFailed"),
            ("JobSet", "jobset.x-k8s.io/v1alpha2", "train-workers-0", "FailedCreate"),
        ],
    )
    def test_by_events(self, kind: str, group: str, about: str, reason: str) -> None:
        job = k8s.custom(group, kind, "train", "team")
        made = job if about == "train" else k8s.custom("batch/v1", "Job", about, "team")
        report = self.report(kind.lower(), "train", job, k8s.event(made, reason, self.DENIED))
        assert report.roots == ("pod-creation-denied",)

    def test_by_what_the_object_keeps(self) -> None:
        state = {"state": "failed", "reason": self.DENIED}
        ray = k8s.custom("ray.io/v1", "RayCluster", "rc", "team", status=state)
        assert self.report("raycluster", "rc", ray).roots == ("pod-creation-denied",)
        replaced = {"conditions": [k8s.condition("ReplicaFailure", "True", "x", self.DENIED)]}
        ray["status"] = replaced
        assert self.report("raycluster", "rc", ray).roots == ("pod-creation-denied",)
        ray["status"]["conditions"][0]["status"] = "False"
        assert self.report("raycluster", "rc", ray).roots == ()
        ray["status"] = {"state": "ready", "reason": self.DENIED}
        assert self.report("raycluster", "rc", ray).roots == ()

    def test_of_another_job(self) -> None:
        job = k8s.custom("jobset.x-k8s.io/v1alpha2", "JobSet", "train", "team")
        other = k8s.custom("batch/v1", "Job", "trainer-workers-0", "team")
        said = k8s.event(other, "FailedCreate", self.DENIED)
        assert self.report("jobset", "train", job, said).roots == ()

    def test_of_a_pod_that_runs_beside_it(self) -> None:
        """A head runs; of its worker only the cluster object still speaks."""
        state = {"conditions": [k8s.condition("ReplicaFailure", "True", "x", self.DENIED)]}
        ray = k8s.custom("ray.io/v1", "RayCluster", "rc", "team", status=state)
        owner = k8s.owner("RayCluster", "rc", "ray.io/v1")
        head = bound({"running": {}}, phase="Running", meta={"ownerReferences": [owner]})
        head["status"]["containerStatuses"][0]["ready"] = True
        head["status"]["conditions"] = [k8s.condition("Ready", "True")]
        assert "pod-creation-denied" in loud(ask(head, k8s.node(), ray))


class TestHook:
    MESSAGE = 'Exec lifecycle hook ([/bin/sh]) for Container "main" failed'

    def pod(self, state: Object) -> Object:
        status = k8s.container_status(restartCount=4, state=state)
        status["lastState"] = {"terminated": {"exitCode": 0, "reason": "Completed"}}
        return k8s.pod(
            node="gpu-1",
            phase="Running",
            statuses=[status],
            conditions=[k8s.condition("Ready", "False")],
        )

    def test_fails(self) -> None:
        pod = self.pod({"waiting": {"reason": "PostStartHookError", "message": self.MESSAGE}})
        report = ask(pod, k8s.node())
        assert report.roots == ("application-error",)
        found = finding_of(report, "application-error")
        assert "its postStart hook fails" in found.title
        assert self.MESSAGE in str(found.evidence)

    def test_ends_well_for_ever_is_another_ending(self) -> None:
        report = ask(self.pod({"waiting": {"reason": "CrashLoopBackOff"}}), k8s.node())
        assert "hook" not in finding_of(report, "application-error").title
