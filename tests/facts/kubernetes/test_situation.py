"""What concerns a pod: the refusal that still holds, its peers, neighbours, logs and refusals."""

from __future__ import annotations

from typing import Any

import pytest

from gpudoctor.facts.kubernetes import pod_errors, situation
from gpudoctor.facts.kubernetes.situation import PodSituation
from gpudoctor.report import Evidence
from tests import kubernetes_objects as k8s
from tests.kubernetes_objects import Object

NO_CPU = "0/3 nodes are available: 3 Insufficient cpu."
NO_GPU = "0/5 nodes are available: 5 Insufficient nvidia.com/gpu."


def read(
    *objects: Object, name: str = "train-0", logs: dict[str, str] | None = None
) -> PodSituation:
    return k8s.situation_of(k8s.cluster(*objects), name, logs)


class TestFailure:
    def test_newest_event_before_the_condition(self) -> None:
        pod = k8s.pod(conditions=k8s.pending("older"))
        old = k8s.event(pod, "FailedScheduling", NO_CPU, seen="2026-11-20T08:10:00Z")
        new = k8s.event(pod, "FailedScheduling", NO_GPU, component="volcano", count=7)
        found = read(pod, k8s.node(), new, old)
        assert found.failure is not None
        assert found.failure.raw == NO_GPU
        assert found.failure.scheduler == "volcano"
        assert found.failure.evidence.path == "FailedScheduling (x7)"
        assert found.failure.message.insufficient() == {"nvidia.com/gpu": 5}
        assert found.nodes_missing == 4

    def test_condition_alone(self) -> None:
        found = read(k8s.pod(conditions=k8s.pending(NO_CPU)))
        assert found.failure is not None
        assert found.failure.scheduler == "default-scheduler"
        assert found.failure.evidence.object == "Pod/team/train-0"
        assert found.nodes_missing == 3

    @pytest.mark.parametrize(
        "conditions",
        [
            [],
            k8s.pending(""),
            [k8s.condition("PodScheduled", "True", "", NO_CPU)],
            [k8s.condition("Other", "False", "", NO_CPU)],
        ],
    )
    def test_none(self, conditions: list[Object]) -> None:
        pod = k8s.pod(conditions=conditions)
        assert read(pod, k8s.event(pod, "Pulled", NO_CPU)).failure is None

    def test_bound_pod_has_none_left(self) -> None:
        pod = k8s.pod(node="gpu-1", conditions=k8s.pending(NO_CPU))
        found = read(pod, k8s.node(), k8s.node("gpu-2"), k8s.event(pod, "FailedScheduling", NO_CPU))
        assert found.failure is None
        assert [fit.node.name for fit in found.fits] == ["gpu-1"]
        assert found.nodes_missing == 0

    def test_more_nodes_than_the_scheduler_counted(self) -> None:
        nodes = [k8s.node(f"gpu-{n}") for n in range(4)]
        found = read(k8s.pod(conditions=k8s.pending(NO_CPU)), *nodes)
        assert found.nodes_missing == 0
        assert len(found.fits) == 4

    def test_node_that_is_not_in_the_input(self) -> None:
        found = read(k8s.pod(node="gpu-9"), k8s.node())
        assert (found.node, found.fits) == (None, ())


class TestNeighbours:
    def test_others_on_the_node(self) -> None:
        found = read(k8s.pod(node="gpu-1"), k8s.node(), k8s.held("gpu-1", "2"), k8s.held("g", "1"))
        assert [held.name for held in found.neighbours] == ["holder"]
        assert found.fits[0].free["nvidia.com/gpu"] == 6
        assert read(k8s.pod(), k8s.node(), k8s.held("gpu-1", "2")).neighbours == ()

    def test_pods_that_take_gpus_by_hand(self) -> None:
        env = [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]

        def thief(name: str, **more: Any) -> Object:
            return k8s.pod(name, "x", containers=[k8s.container(limits={}, env=env)], **more)

        objects = [
            thief("running", node="gpu-1", phase="Running"),
            thief("done", node="gpu-1", phase="Succeeded"),
            thief("elsewhere", node="gpu-2", phase="Running"),
            k8s.pod(
                "mentions", "x", node="gpu-1", meta={"labels": {"a": "NVIDIA_VISIBLE_DEVICES"}}
            ),
        ]
        found = read(k8s.pod(node="gpu-1"), *objects)
        assert [other.meta.name for other in found.bypassing] == ["running"]
        assert read(k8s.pod(), *objects).bypassing == ()


class TestGroup:
    def names(self, found: tuple[Any, ...]) -> list[str]:
        return [pod.meta.name for pod in found]

    @pytest.mark.parametrize(
        "label",
        [
            "jobset.sigs.k8s.io/jobset-name",
            "training.kubeflow.org/job-name",
            "leaderworkerset.sigs.k8s.io/group-key",
            "ray.io/cluster",
            "volcano.sh/job-name",
            "batch.kubernetes.io/job-name",
            "job-name",
        ],
    )
    def test_labels(self, label: str) -> None:
        mine, other = {"labels": {label: "a"}}, {"labels": {label: "b"}}
        found = read(
            k8s.pod(meta=mine),
            k8s.pod("x", meta=mine),
            k8s.pod("y", meta=other),
            k8s.pod("z", "elsewhere", meta=mine),
        )
        assert self.names(found.peers) == ["x"]

    def test_most_specific_label_decides(self) -> None:
        labels = {"jobset.sigs.k8s.io/jobset-name": "set", "job-name": "own"}
        found = read(
            k8s.pod(meta={"labels": labels}),
            k8s.pod("x", meta={"labels": labels | {"job-name": "other"}}),
            k8s.pod("y", meta={"labels": {"job-name": "own"}}),
        )
        assert self.names(found.peers) == ["x"]

    def test_names_that_differ_in_the_ordinal(self) -> None:
        found = read(
            k8s.pod("train-0"),
            k8s.pod("train-1"),
            k8s.pod("train-10"),
            k8s.pod("train-x"),
            k8s.pod("other-1"),
            k8s.pod("train-2", "elsewhere"),
            k8s.pod("train-3", containers=[k8s.container(image="other")]),
        )
        assert self.names(found.peers) == ["train-1", "train-10"]
        assert read(k8s.pod("train"), k8s.pod("train-1"), name="train").peers == ()
        assert read(k8s.pod("a-b"), k8s.pod("a-1"), name="a-b").peers == ()

    def test_siblings_have_the_same_controller(self) -> None:
        meta = {"ownerReferences": [k8s.owner("Job", "train")]}
        other = {"ownerReferences": [k8s.owner("Job", "other")]}
        found = read(k8s.pod(meta=meta), k8s.pod("x", meta=meta), k8s.pod("y", meta=other))
        assert self.names(found.siblings) == ["x"]
        assert read(k8s.pod(), k8s.pod("x", meta=meta)).siblings == ()

    def test_events_of_the_controller(self) -> None:
        meta = {"ownerReferences": [k8s.owner("Job", "train")]}
        job = k8s.custom("batch/v1", "Job", "train", "team")
        said = k8s.event(job, "FailedCreate", "no")
        assert [e.reason for e in read(k8s.pod(meta=meta), said).owner_events] == ["FailedCreate"]
        assert read(k8s.pod(), said).owner_events == ()


class TestLogs:
    LOGS = {  # noqa: RUF012 - read only
        "team/train-0/main!previous": "ValueError: old\n",
        "team/train-0/main": "start\nValueError: new\nCUDA out of memory\n",
        "team/train-1/main": "ValueError: of another\n",
    }

    def test_lines(self) -> None:
        found = read(k8s.pod(), logs=self.LOGS)
        said = [(line.previous, line.line.text) for line in found.lines_of("python-error")]
        assert said == [(True, "ValueError: old"), (False, "ValueError: new")]
        assert [line.line.kind for line in found.lines_of("gpu-oom", "shm")] == ["gpu-oom"]
        assert found.lines[0].evidence == Evidence(
            "log team/train-0/main!previous:1", value="ValueError: old", note="before the restart"
        )
        assert found.lines[1].evidence == Evidence(
            "log team/train-0/main:2", value="ValueError: new"
        )
        assert found.has_log
        assert not read(k8s.pod("train-7"), name="train-7", logs=self.LOGS).has_log

    def test_nccl_of_all_members(self) -> None:
        logs = {"team/train-1/main": "train-1:9:9 [0] NCCL INFO Using network Socket\n"}
        node = k8s.node(allocatable={"nvidia.com/gpu": "8", "rdma/a": "4", "rdma/b": "0"})
        found = read(k8s.pod(node="gpu-1"), k8s.pod("train-1"), node, logs=logs)
        assert found.nccl is not None
        assert found.nccl.rdma_expected_by == ("Node/gpu-1 offers rdma/a: 4",)
        assert read(k8s.pod(), logs=self.LOGS).nccl is None


class TestRefused:
    def test_pod_that_was_never_made(self) -> None:
        job = k8s.custom("batch/v1", "Job", "train", "team")
        other = k8s.custom("batch/v1", "Job", "train", "other")
        found = k8s.cluster(
            k8s.event(other, "FailedCreate", "x"),
            k8s.event(job, "FailedCreate", "no"),
            k8s.event(job, "SuccessfulCreate", "yes"),
            k8s.custom("v1", "ResourceQuota", "q", "team"),
            k8s.custom("v1", "ResourceQuota", "q", "other"),
        )
        refused = situation.read_refused(found, "train-abc", "team")
        assert refused is not None
        assert str(refused.subject) == "Pod/team/train-abc"
        assert [one.message for one in refused.refusals] == ["no"]
        assert [quota.meta.namespace for quota in refused.quotas] == ["team"]
        anywhere = situation.read_refused(found, "train-abc", None)
        assert anywhere is not None
        assert anywhere.subject.namespace == "team"
        assert situation.read_refused(found, "web-1", "team") is None
        assert situation.read_refused(found, "train-abc", "third") is None


class TestErrors:
    LINE = "Failed to initialize NVML: Unknown Error"
    SANDBOX = 'failed to get sandbox runtime: no runtime for "nvidia" is configured'

    def errors(self, pod: Object, *more: Object, logs: dict[str, str] | None = None) -> list[str]:
        found = pod_errors.read(read(pod, *more, logs=logs), logs or {})
        return [error.name for error, _ in found.errors] if found else []

    @pytest.mark.parametrize(
        ("status", "expected"),
        [
            ({"state": {"waiting": {"reason": "ContainerCreating"}}}, True),
            ({"state": {"running": {}}, "ready": False}, False),
            ({"state": {"running": {}}, "ready": True}, False),
            ({"state": {"terminated": {"exitCode": 0}}}, False),
        ],
        ids=["creating", "runs", "ready", "ended"],
    )
    def test_sandbox_error_is_overcome_by_a_start(self, status: Object, expected: bool) -> None:
        pod = k8s.pod(node="gpu-1", statuses=[k8s.container_status(**status)])
        event = k8s.event(pod, "FailedCreatePodSandBox", self.SANDBOX, component="kubelet")
        assert self.errors(pod, event) == (["runtime-handler-missing"] if expected else [])
        normal = k8s.event(pod, "FailedCreatePodSandBox", self.SANDBOX, type="Normal")
        other = k8s.event(pod, "Scheduled", self.SANDBOX)
        assert self.errors(pod, normal, other) == []

    @pytest.mark.parametrize(
        ("probe", "status", "expected"),
        [
            ("Startup", {"state": {"running": {}}}, False),
            ("Readiness", {"state": {"running": {}}}, True),
            (
                "Startup",
                {"state": {"running": {}}, "lastState": {"terminated": {"exitCode": 1}}},
                True,
            ),
        ],
        ids=["starts", "runs", "failed to start"],
    )
    def test_what_a_probe_asks_before_the_start(
        self, probe: str, status: Object, expected: bool
    ) -> None:
        """A driver's own pod asks for nvidia-smi until it has installed it."""
        status = status | ({"restartCount": 1} if "lastState" in status else {})
        pod = k8s.pod(node="gpu-1", statuses=[k8s.container_status(**status)])
        said = f"{probe} probe failed: /bin/sh: 1: nvidia-smi: not found"
        event = k8s.event(pod, "Unhealthy", said, component="kubelet")
        assert self.errors(pod, event) == (["driver-libs-not-injected"] if expected else [])

    def test_line_number_in_a_log_of_which_the_end_is_read(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(pod_errors, "_MAX_LOG_LINES", 2)
        logs = {"team/train-0/main": f"one\ntwo\nthree\n{self.LINE}\n"}
        pod = k8s.pod(node="gpu-1", statuses=[k8s.container_status(ready=False)])
        found = pod_errors.read(read(pod, logs=logs), logs)
        assert found is not None
        assert [evidence.object for _, evidence in found.errors] == ["log team/train-0/main:4"]

    def test_event_without_any_status(self) -> None:
        pod = k8s.pod(node="gpu-1")
        event = k8s.event(pod, "FailedCreatePodSandBox", self.SANDBOX, component="kubelet")
        assert self.errors(pod, event) == ["runtime-handler-missing"]

    @pytest.mark.parametrize(("ready", "expected"), [(True, []), (False, True)])
    def test_log_of_a_container_that_is_well(self, ready: bool, expected: Any) -> None:
        line = 'docker: Error: could not select device driver "" with capabilities: [[gpu]]'
        status = k8s.container_status(ready=ready, state={"running": {}})
        pod = k8s.pod(node="gpu-1", phase="Running", statuses=[status])
        found = self.errors(pod, logs={"team/train-0/main": line})
        assert bool(found) is bool(expected)

    @pytest.mark.parametrize(("code", "expected"), [(0, False), (1, True)])
    def test_log_of_a_container_that_has_ended(self, code: int, expected: bool) -> None:
        """An attempt that failed is made good by the one that came to its end."""
        line = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."
        status = k8s.container_status(restartCount=1, state={"terminated": {"exitCode": code}})
        pod = k8s.pod(phase="Failed" if code else "Succeeded", statuses=[status])
        found = self.errors(pod, logs={"team/train-0/main": line})
        assert bool(found) is expected

    def test_lasting_errors_count_although_the_container_is_ready(self) -> None:
        status = k8s.container_status(ready=True, state={"running": {}})
        pod = k8s.pod(node="gpu-1", phase="Running", statuses=[status])
        logs = {"team/train-0/main": self.LINE}
        assert self.errors(pod, logs=logs) == ["cgroup-device-access-lost"]

    def test_lasting_errors_of_an_attempt_before(self) -> None:
        status = k8s.container_status(ready=True, restartCount=1, state={"running": {}})
        pod = k8s.pod(node="gpu-1", phase="Running", statuses=[status])
        assert self.errors(pod, logs={"team/train-0/main!previous": self.LINE}) == []

    @pytest.mark.parametrize(("finished", "expected"), [("05:30", False), ("08:10", True)])
    def test_attempt_that_failed_long_ago(self, finished: str, expected: bool) -> None:
        line = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."
        last = {"exitCode": 1, "finishedAt": f"2026-11-20T{finished}:00Z", "message": line}
        status = k8s.container_status(
            ready=True, restartCount=1, state={"running": {}}, lastState={"terminated": last}
        )
        pod = k8s.pod(node="gpu-1", phase="Running", statuses=[status])
        event = k8s.event(pod, "Pulled", "x", type="Normal")
        found = self.errors(pod, event, logs={"team/train-0/main!previous": line})
        assert bool(found) is expected

    @pytest.mark.parametrize(
        ("limits", "state", "line", "expected"),
        [
            ({"nvidia.com/gpu": "1"}, "running", "The NVIDIA Driver was not detected.", True),
            ({"nvidia.com/gpu": "1"}, "running", "Found no NVIDIA driver on your system.", True),
            ({"cpu": "1"}, "running", "The NVIDIA Driver was not detected.", False),
            ({"nvidia.com/gpu": "1"}, "terminated", "The NVIDIA Driver was not detected.", False),
            # TensorFlow says so beside a program that has its GPU: it looks for libcudart alone.
            ({"nvidia.com/gpu": "1"}, "running", "Could not find cuda drivers on your", False),
        ],
    )
    def test_server_that_runs_on_without_its_gpu(
        self, limits: Object, state: str, line: str, expected: bool
    ) -> None:
        ended = {"exitCode": 0} if state == "terminated" else {}
        status = k8s.container_status(ready=state == "running", state={state: ended})
        containers = [k8s.container(limits=limits)]
        pod = k8s.pod(node="gpu-1", phase="Running", statuses=[status], containers=containers)
        found = self.errors(pod, logs={"team/train-0/main": f"starts\n{line}\nserves\n"})
        assert found == (["driver-libs-not-injected"] if expected else [])

    def test_one_of_a_name_and_place(self) -> None:
        status = k8s.container_status(**k8s.crashing(message=self.LINE))
        pod = k8s.pod(node="gpu-1", phase="Running", statuses=[status])
        logs = {"team/train-0/main": f"{self.LINE}\n{self.LINE}\n"}
        found = pod_errors.read(read(pod, logs=logs), logs)
        assert found is not None
        assert [evidence.object for _, evidence in found.errors] == [
            "Pod/team/train-0",
            "log team/train-0/main:1",
        ]

    def test_status_message(self) -> None:
        pod = k8s.pod(phase="Failed", status={"reason": "Error", "message": self.LINE})
        assert self.errors(pod) == ["cgroup-device-access-lost"]
