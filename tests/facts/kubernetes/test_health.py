"""Whether a pod is well: each phase, and the bounds of "on its way" to the second."""

from __future__ import annotations

from typing import Any

import pytest

from gpudoctor.facts.kubernetes import health
from gpudoctor.facts.kubernetes.health import PodHealth, State
from tests import kubernetes_objects as k8s
from tests.kubernetes_objects import Object


def assess(pod: Object, *more: Object, now: str = k8s.NOW) -> PodHealth:
    return health.assess(k8s.situation_of(k8s.cluster(pod, *more, now=now)))


def running(started: str | None = k8s.CREATED, **more: Any) -> Object:
    status = k8s.container_status(state={"running": {"startedAt": started}})
    return k8s.pod(**({"node": "gpu-1", "phase": "Running", "statuses": [status]} | more))


READY = [k8s.condition("Ready", "True")]


class TestPhases:
    @pytest.mark.parametrize(
        ("pod", "state", "why"),
        [
            (k8s.pod(phase="Succeeded"), State.WELL, "it has ended successfully"),
            (k8s.pod(phase="Failed"), State.NOT_WELL, "it has failed: a container failed"),
            (
                k8s.pod(phase="Failed", status={"reason": "Evicted"}),
                State.NOT_WELL,
                "it has failed: Evicted",
            ),
            (running(conditions=READY), State.WELL, "it is Ready"),
            (k8s.pod(phase=""), State.UNKNOWN, "its status is not in the input"),
            (k8s.pod(phase="Unknown"), State.UNKNOWN, "its status is not in the input"),
        ],
    )
    def test_plain(self, pod: Object, state: State, why: str) -> None:
        found = assess(pod)
        assert (found.state, found.why) == (state, why)
        assert found.evidence.object == "Pod/team/train-0"

    def test_crash(self) -> None:
        pod = running(statuses=[k8s.container_status(**k8s.crashing())])
        found = assess(pod)
        assert found.state is State.NOT_WELL
        assert found.why == "container main: CrashLoopBackOff, exit code 1, 7 restarts"
        assert found.evidence.path == "status.containerStatuses[main]"

    @pytest.mark.parametrize(
        ("complete", "other", "index", "good"),
        [
            ("True", "Failed", "0", True),
            ("False", "Succeeded", "0", False),
            (None, "Succeeded", "0", True),
            (None, "Succeeded", "1", False),
            (None, "Running", "0", False),
        ],
    )
    def test_attempt_of_a_job_that_went_well(
        self, complete: str | None, other: str, index: str, good: bool
    ) -> None:
        def attempt(name: str, phase: str, index: str) -> Object:
            tags = {"batch.kubernetes.io/job-completion-index": index}
            made = {"ownerReferences": [k8s.owner("Job", "fold")], "labels": tags}
            return k8s.pod(name, phase=phase, meta=made)

        job = k8s.custom(
            "batch/v1",
            "Job",
            "fold",
            "team",
            status={"conditions": [k8s.condition("Complete", complete or "")]},
        )
        objects = [attempt("a", "Failed", "0"), attempt("b", other, index)]
        cluster = k8s.cluster(*objects, *([job] if complete else []))
        pods = [cluster.pod(entry) for entry in cluster.pods]
        assert health.is_made_good(cluster, pods[0]) is good
        assert not health.is_made_good(cluster, pods[1]) or other == "Failed"

    def test_init_container_that_still_runs_is_on_its_way(self) -> None:
        init = k8s.container_status("wait", state={"running": {}})
        pod = k8s.pod(
            node="gpu-1",
            spec={"initContainers": [k8s.container("wait")]},
            status={"initContainerStatuses": [init]},
        )
        assert assess(pod, now="2026-11-20T08:05:00Z").state is State.STARTING


class TestUnstable:
    @pytest.mark.parametrize(
        ("finished", "restarts", "code", "state"),
        [
            ("2026-11-20T08:20:01Z", 1, 1, State.NOT_WELL),
            ("2026-11-20T08:20:00Z", 1, 1, State.WELL),
            ("2026-11-20T08:29:00Z", 0, 1, State.WELL),
            ("2026-11-20T08:29:00Z", 1, 0, State.WELL),
            (None, 1, 1, State.NOT_WELL),
        ],
    )
    def test_ready_after_a_failure(
        self, finished: str | None, restarts: int, code: int, state: State
    ) -> None:
        last = {"terminated": {"exitCode": code, "finishedAt": finished}}
        status = k8s.container_status(
            ready=True, restartCount=restarts, state={"running": {}}, lastState=last
        )
        found = assess(running(conditions=READY, statuses=[status]))
        if state is State.WELL:
            assert found.state is State.WELL
        else:
            assert found.state is not State.WELL


class TestRunning:
    @pytest.mark.parametrize(
        ("now", "state"),
        [
            ("2026-11-20T08:29:59Z", State.STARTING),
            ("2026-11-20T08:30:00Z", State.NOT_WELL),
        ],
    )
    def test_half_an_hour_to_become_ready(self, now: str, state: State) -> None:
        found = assess(running(), now=now)
        assert found.state is state
        assert found.evidence.value == "main: running, not ready"
        if state is State.NOT_WELL:
            assert found.why == "container main runs and has not become ready in 30 min"

    @pytest.mark.parametrize(
        ("now", "state"),
        [
            ("2026-11-20T08:59:59Z", State.STARTING),
            ("2026-11-20T09:00:00Z", State.NOT_WELL),
        ],
    )
    def test_longer_startup_probe(self, now: str, state: State) -> None:
        probe = {"periodSeconds": 10, "failureThreshold": 360}
        pod = running(containers=[k8s.container(startupProbe=probe)])
        assert assess(pod, now=now).state is state

    def test_short_startup_probe_does_not_shorten(self) -> None:
        probe = {"periodSeconds": 1, "failureThreshold": 1}
        pod = running(containers=[k8s.container(startupProbe=probe)])
        assert assess(pod, now="2026-11-20T08:29:59Z").state is State.STARTING

    def test_newest_start_counts(self) -> None:
        statuses = [
            k8s.container_status(
                name, state={"running": {"startedAt": f"2026-11-20T0{hour}:00:00Z"}}
            )
            for name, hour in (("a", 5), ("b", 8))
        ]
        pod = running(containers=[k8s.container("a"), k8s.container("b")], statuses=statuses)
        assert assess(pod, now="2026-11-20T08:10:00Z").state is State.STARTING

    def test_time_that_is_not_known(self) -> None:
        assert assess(running(started=None)).state is State.STARTING

    def test_all_containers_ready_but_the_pod_is_not(self) -> None:
        status = k8s.container_status(ready=True, state={"running": {}})
        found = assess(running(statuses=[status]))
        assert found.state is State.STARTING
        assert "its containers" in found.why


class TestPending:
    def test_just_made(self) -> None:
        assert assess(k8s.pod(), now="2026-11-20T08:00:59Z").state is State.STARTING
        found = assess(k8s.pod(), now="2026-11-20T08:01:00Z")
        assert (found.state, found.why) == (
            State.NOT_WELL,
            "it has no node: no condition PodScheduled",
        )

    def test_gated_or_refused_is_not_on_its_way(self) -> None:
        gated = k8s.pod(spec={"schedulingGates": [{"name": "a"}]})
        assert assess(gated, now=k8s.CREATED).state is State.NOT_WELL
        found = assess(k8s.pod(conditions=k8s.pending("no")), now=k8s.CREATED)
        assert (found.state, found.why) == (State.NOT_WELL, "it has no node: Unschedulable")

    @pytest.mark.parametrize(
        ("reason", "now", "state", "why"),
        [
            (None, "2026-11-20T08:09:59Z", State.STARTING, "it is being created on gpu-1"),
            (None, "2026-11-20T08:10:00Z", State.NOT_WELL, "it has not started on gpu-1"),
            ("Scheduled", "2026-11-20T08:10:00Z", State.NOT_WELL, "it has not started on gpu-1"),
            ("Pulling", "2026-11-20T08:10:00Z", State.STARTING, "it pulls its image on gpu-1"),
            ("Pulling", "2026-11-20T08:59:59Z", State.STARTING, "it pulls its image on gpu-1"),
            ("Pulling", "2026-11-20T09:00:00Z", State.NOT_WELL, "it has not started on gpu-1"),
        ],
    )
    def test_bound(self, reason: str | None, now: str, state: State, why: str) -> None:
        pod = k8s.pod(node="gpu-1")
        events = [k8s.event(pod, reason, "x", type="Normal")] if reason else []
        found = assess(pod, *events, now=now)
        assert (found.state, found.why) == (state, why)

    @pytest.mark.parametrize(
        ("now", "state"),
        [("2026-11-20T08:59:59Z", State.STARTING), ("2026-11-20T09:00:00Z", State.NOT_WELL)],
    )
    def test_an_init_container_may_take_its_time(self, now: str, state: State) -> None:
        pod = k8s.pod(node="gpu-1")
        running = {"name": "fetch-model", "state": {"running": {}}}
        pod["status"]["initContainerStatuses"] = [running]
        found = assess(pod, now=now)
        assert found.state is state
        assert ("runs its init container fetch-model" in found.why) is (state is State.STARTING)

    @pytest.mark.parametrize(
        ("reason", "kind", "state"),
        [
            ("FailedMount", "Warning", State.NOT_WELL),
            ("FailedMount", "Normal", State.STARTING),
            ("FailedScheduling", "Warning", State.STARTING),
            ("Unhealthy", "Warning", State.STARTING),
        ],
    )
    def test_failure_events(self, reason: str, kind: str, state: State) -> None:
        pod = k8s.pod(node="gpu-1")
        found = assess(pod, k8s.event(pod, reason, "told", type=kind), now=k8s.CREATED)
        assert found.state is state
        if state is State.NOT_WELL:
            assert found.why == "it does not start on gpu-1: FailedMount"
            assert found.evidence.value == "told"


@pytest.mark.parametrize(
    ("pod", "expected"),
    [
        (k8s.pod(limits={"nvidia.com/gpu": "1"}), True),
        (k8s.pod(limits={"amd.com/gpu": "1"}), True),
        (k8s.pod(limits={"nvidia.com/gpumem": "4000"}), True),
        (k8s.pod(limits={"cpu": "1"}), False),
        (k8s.pod(limits={"rdma/hca": "1"}), False),
        (k8s.pod(limits={}, spec={"resourceClaims": [{"name": "gpu"}]}), True),
    ],
)
def test_gpu_pods(pod: Object, expected: bool) -> None:
    assert health.is_gpu_pod(k8s.situation_of(k8s.cluster(pod)).pod) is expected
