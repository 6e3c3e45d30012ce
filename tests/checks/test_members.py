"""Members of a job: who is not there, who cannot run, and why, as the one that waits shows it."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest

from gpudoctor.report import Report, Verdict
from tests import kubernetes_objects as k8s
from tests.kubernetes_objects import Object, ask, finding_of, loud, shown, told

MISSING = "rendezvous-member-missing"
KUBEFLOW = "training.kubeflow.org"
OLD = "2026-11-20T07:00:00Z"
LATE = {"lastTimestamp": "2026-11-20T08:20:00Z"}
LOADING = {"running": {"startedAt": "2026-11-20T08:00:00Z"}}
IMAGE = {"waiting": {"reason": "ImagePullBackOff", "message": "Back-off pulling image"}}


def labels(role: str, index: int = 0) -> Object:
    return {
        f"{KUBEFLOW}/job-name": "train",
        f"{KUBEFLOW}/replica-type": role,
        f"{KUBEFLOW}/replica-index": str(index),
    }


def member(
    name: str, tags: Object, *, state: Object | None = None, env: Object | None = None, **more: Any
) -> Object:
    """A pod of a job that runs and is ready, unless a state says otherwise."""
    ready = state is None
    container = k8s.container(
        limits={"nvidia.com/gpu": "8"},
        env=[{"name": key, "value": value} for key, value in (env or {}).items()],
    )
    fields: Object = {
        "node": "gpu-1",
        "phase": "Running",
        "containers": [container],
        "statuses": [k8s.container_status(ready=ready, state=state or {"running": {}})],
        "conditions": [k8s.condition("Ready", "True" if ready else "False")],
        "meta": {"creationTimestamp": OLD, "labels": tags},
    }
    return k8s.pod(name, **(fields | more))


def master(env: Object | None = None, **more: Any) -> Object:
    return member("train-0", labels("master"), env=env, **more)


def worker(index: int = 0, **more: Any) -> Object:
    return member(f"train-worker-{index}", labels("worker", index), **more)


def refused(index: int = 0) -> Object:
    message = "0/1 nodes are available: 1 Insufficient nvidia.com/gpu."
    return worker(index, node=None, phase="Pending", statuses=[], conditions=k8s.pending(message))


def pytorch_job(workers: int = 3, **more: Any) -> Object:
    return k8s.custom(
        "kubeflow.org/v1",
        "PyTorchJob",
        "train",
        "team",
        spec={"pytorchReplicaSpecs": {"Master": {}, "Worker": {"replicas": workers}}} | more,
        status={"conditions": [k8s.condition("Running", "True", "PyTorchJobRunning")]},
    )


def quota(used: str) -> Object:
    amounts = {"requests.nvidia.com/gpu": "16"}
    status = {"hard": amounts, "used": {"requests.nvidia.com/gpu": used}}
    return k8s.custom("v1", "ResourceQuota", "gpus", "team", status=status)


def asked(*objects: Object, **more: Any) -> Report:
    """Ask at 08:20, when the node last spoke."""
    node = k8s.node("gpu-1", allocatable={"nvidia.com/gpu": "8"})
    tick = k8s.event(node, "NodeReady", "ready", type="Normal") | LATE
    return ask(node, tick, *objects, **more)


class TestNeverMade:
    def test_counted_against_the_job(self) -> None:
        found = finding_of(asked(master(), pytorch_job()), MISSING)
        assert told(found) == ("error", "certain", "Pod/team/train-0")
        assert "wants 4 members and 1 exists (train-0)" in found.detail
        assert "PyTorchJob/team/train spec.pytorchReplicaSpecs.*.replicas" in shown(found)
        assert "describe pytorchjob train" in found.fix

    def test_a_quota_that_is_used_up_is_the_cause(self) -> None:
        report = asked(master(), pytorch_job(), quota("16"))
        assert report.roots == ("resourcequota-exceeded",)
        found = finding_of(report, "resourcequota-exceeded")
        assert told(found)[1] == "likely"
        assert "16 vs 16" in shown(found)

    def test_a_quota_with_room_is_not(self) -> None:
        assert asked(master(), pytorch_job(), quota("8")).roots == (MISSING,)

    def test_by_what_the_operator_wrote_into_the_pod(self) -> None:
        found = finding_of(asked(master({"WORLD_SIZE": "4"})), MISSING)
        assert told(found)[1] == "likely"
        assert "env[WORLD_SIZE] 4" in shown(found)

    def test_nodes_of_torchrun(self) -> None:
        env = {"PET_NNODES": "2", "PET_NPROC_PER_NODE": "8", "WORLD_SIZE": "16"}
        assert "wants 2 members" in finding_of(asked(master(env)), MISSING).detail

    def test_with_a_part_of_the_input_it_is_unknown(self) -> None:
        report = asked(master(), pytorch_job(), complete=False)
        assert report.verdict is Verdict.UNKNOWN
        assert [gap.what for gap in report.unknown] == ["members of PyTorchJob/team/train"]
        assert MISSING not in loud(report)


OTHER_JOBS = {
    "mpi": (
        k8s.custom(
            "kubeflow.org/v2beta1",
            "MPIJob",
            "train",
            "team",
            spec={"mpiReplicaSpecs": {"Launcher": {"replicas": 1}, "Worker": {"replicas": 2}}},
        ),
        {f"{KUBEFLOW}/job-name": "train", f"{KUBEFLOW}/job-role": "worker"},
        2,
    ),
    "jobset": (
        k8s.custom(
            "jobset.x-k8s.io/v1alpha2",
            "JobSet",
            "train",
            "team",
            spec={
                "replicatedJobs": [
                    {"name": "leader", "replicas": 1, "template": {"spec": {"parallelism": 1}}},
                    {"name": "w", "replicas": 2, "template": {"spec": {"parallelism": 2}}},
                ]
            },
        ),
        {
            "jobset.sigs.k8s.io/jobset-name": "train",
            "jobset.sigs.k8s.io/replicatedjob-name": "leader",
        },
        5,
    ),
    "indexed": (
        k8s.custom(
            "batch/v1",
            "Job",
            "train",
            "team",
            spec={"completionMode": "Indexed", "parallelism": 3, "completions": 8},
        ),
        {"batch.kubernetes.io/job-name": "train"},
        3,
    ),
    "volcano": (
        k8s.custom(
            "batch.volcano.sh/v1alpha1",
            "Job",
            "train",
            "team",
            spec={"minAvailable": 2, "tasks": [{"replicas": 4}]},
        ),
        {"volcano.sh/job-name": "train"},
        2,
    ),
    "ray": (
        k8s.custom(
            "ray.io/v1",
            "RayCluster",
            "train",
            "team",
            spec={"workerGroupSpecs": [{"groupName": "g", "replicas": 2, "minReplicas": 0}]},
        ),
        {"ray.io/cluster": "train"},
        3,
    ),
}


@pytest.mark.parametrize("kind", OTHER_JOBS)
def test_other_jobs_by_their_object(kind: str) -> None:
    job, meta, wanted = OTHER_JOBS[kind]
    pod = member("train-0", meta, env={"MASTER_ADDR": "train-0.train"})
    found = finding_of(asked(pod, job), MISSING)
    assert f"wants {wanted} members and 1 exists" in found.detail
    assert found.certainty == "certain"
    assert found.severity == ("warning" if kind == "ray" else "error")


@pytest.mark.parametrize("kind", OTHER_JOBS)
def test_other_jobs_with_all_members(kind: str) -> None:
    job, meta, wanted = OTHER_JOBS[kind]
    part = "jobset.sigs.k8s.io/replicatedjob-name"
    others = [
        member(f"train-{n}", meta | ({part: "w"} if part in meta else {})) for n in range(1, wanted)
    ]
    assert asked(member("train-0", meta), job, *others).verdict is Verdict.HEALTHY


WRITTEN = {
    "lws": {
        "labels": {
            "leaderworkerset.sigs.k8s.io/name": "train",
            "leaderworkerset.sigs.k8s.io/group-index": "0",
        },
        "annotations": {"leaderworkerset.sigs.k8s.io/size": "2"},
    },
    "kueue": {
        "labels": {"kueue.x-k8s.io/pod-group-name": "train"},
        "annotations": {"kueue.x-k8s.io/pod-group-total-count": "2"},
    },
    "jobset": {
        "labels": {
            "jobset.sigs.k8s.io/jobset-name": "train",
            "jobset.sigs.k8s.io/replicatedjob-name": "w",
            "jobset.sigs.k8s.io/replicatedjob-replicas": "2",
        }
    },
}


@pytest.mark.parametrize("kind", WRITTEN)
def test_by_what_is_written_into_the_pod(kind: str) -> None:
    meta = WRITTEN[kind] | {"creationTimestamp": OLD}
    pod = member("train-0", {}, meta=meta)
    found = finding_of(asked(pod), MISSING)
    assert "wants 2 members and 1 exists" in found.detail
    assert found.certainty == "likely"
    other = member("train-1", {}, meta=meta)
    assert asked(pod, other).verdict is Verdict.HEALTHY


class TestNearMisses:
    def test_elastic_job_has_its_minimum(self) -> None:
        job = pytorch_job(elasticPolicy={"minReplicas": 1, "maxReplicas": 3})
        assert asked(master(), worker(), job).verdict is Verdict.HEALTHY

    def test_suspended(self) -> None:
        job = pytorch_job(runPolicy={"suspend": True})
        assert asked(master(), job).verdict is Verdict.HEALTHY

    def test_job_has_ended(self) -> None:
        job = pytorch_job()
        job["status"]["conditions"] = [k8s.condition("Succeeded", "True", "PyTorchJobSucceeded")]
        assert asked(master(), job).verdict is Verdict.HEALTHY

    def test_members_that_ended_well(self) -> None:
        gone = pytorch_job()
        gone["status"]["replicaStatuses"] = {"Worker": {"succeeded": 2}}
        done = worker(phase="Succeeded")
        gone["status"]["replicaStatuses"]["Worker"]["succeeded"] = 3
        assert asked(master(), done, gone).verdict is Verdict.HEALTHY

    def test_made_a_moment_ago(self) -> None:
        young = {"creationTimestamp": "2026-11-20T08:15:00Z", "labels": labels("master")}
        assert asked(master(meta=young), pytorch_job()).verdict is Verdict.HEALTHY

    def test_ray_that_scales_by_itself(self) -> None:
        job, meta, _ = OTHER_JOBS["ray"]
        job = {**job, "spec": {**job["spec"], "enableInTreeAutoscaling": True}}
        assert asked(member("train-0", meta), job).verdict is Verdict.HEALTHY

    def test_workers_of_a_queue(self) -> None:
        job = k8s.custom("batch/v1", "Job", "train", "team", spec={"parallelism": 8})
        pod = member("train-0", {"batch.kubernetes.io/job-name": "train"})
        assert asked(pod, job).verdict is Verdict.HEALTHY

    def test_parts_of_a_sweep(self) -> None:
        job, meta, _ = OTHER_JOBS["indexed"]
        assert asked(member("train-0", meta), job).verdict is Verdict.HEALTHY

    @pytest.mark.parametrize(
        ("policy", "expected"),
        [("LeaderReady", Verdict.STARTING), ("LeaderCreated", Verdict.FAILING), (None, None)],
    )
    def test_workers_that_are_made_of_a_ready_leader(
        self, policy: str | None, expected: Verdict | None
    ) -> None:
        leader = member(
            "serve-0",
            {},
            meta=WRITTEN["lws"] | {"creationTimestamp": OLD},
            statuses=[
                k8s.container_status(state={"running": {"startedAt": "2026-11-20T08:00:00Z"}})
            ],
            conditions=[k8s.condition("Ready", "False")],
        )
        lws = k8s.custom(
            "leaderworkerset.x-k8s.io/v1",
            "LeaderWorkerSet",
            "train",
            "team",
            spec={"startupPolicy": policy},
        )
        objects = [leader, lws] if policy else [leader]
        assert asked(*objects, pod="team/serve-0").verdict is (expected or Verdict.STARTING)

    def test_nccl_shows_that_they_had_met(self) -> None:
        lines = "\n".join(
            f"train-{n}:1:9 [0] NCCL INFO comm 0x1 rank {n} nranks 2 cudaDev 0 nvmlDev 0 "
            f"busId 1000 commId 0x7 - Init COMPLETE"
            for n in (0, 1)
        )
        report = asked(master(), pytorch_job(1), logs={"team/train-0/main": lines})
        assert MISSING not in loud(report)

    def test_own_trouble_comes_first(self) -> None:
        pod = master(state=IMAGE, phase="Pending")
        assert asked(pod, pytorch_job()).roots == ("image-pull-failing",)


class TestHeldUp:
    def test_member_without_a_node_is_the_cause(self) -> None:
        report = asked(master(), refused(), pytorch_job(1))
        assert report.roots == ("gpu-capacity-exhausted",)
        found = finding_of(report, MISSING)
        assert found.caused_by == ("gpu-capacity-exhausted@Pod/team/train-worker-0",)
        assert "1 of them cannot run (train-worker-0)" in found.detail

    def test_member_without_an_image(self) -> None:
        report = asked(master(), worker(state=IMAGE, phase="Pending"), pytorch_job(1))
        assert report.roots == ("image-pull-failing",)

    def test_member_that_still_starts(self) -> None:
        young = {"creationTimestamp": "2026-11-20T08:15:00Z", "labels": labels("worker")}
        late = worker(state=IMAGE, phase="Pending", meta=young)
        assert asked(master(), late, pytorch_job(1)).verdict is Verdict.HEALTHY

    def test_worse_than_the_wait_is_the_verdict(self) -> None:
        report = asked(master({"WORLD_SIZE": "2"}), worker(state=IMAGE, phase="Pending"))
        assert report.roots == ("image-pull-failing",)
        assert report.verdict is Verdict.FAILING

    def test_member_that_was_restarted_and_runs(self) -> None:
        again = k8s.container_status(ready=True, restartCount=2, state={"running": {}})
        again["lastState"] = {"terminated": {"exitCode": 1, "reason": "Error", "finishedAt": OLD}}
        report = asked(master(), worker(statuses=[again]), pytorch_job(1))
        assert report.verdict is Verdict.HEALTHY
        report = asked(master(statuses=[again]), worker(), pytorch_job(2))
        assert report.roots == (MISSING,)

    def test_member_that_ends_again_and_again(self) -> None:
        end = {"exitCode": 137, "reason": "OOMKilled", "finishedAt": "2026-11-20T08:18:00Z"}
        again = k8s.container_status(restartCount=9, state={"running": {}})
        again["lastState"] = {"terminated": end}
        report = asked(master(), worker(statuses=[again]), pytorch_job(1))
        assert report.roots == ("oom-killed",)
        assert finding_of(report, MISSING).caused_by == ("oom-killed@Pod/team/train-worker-0",)

    def test_program_of_the_member_is_its_own_matter(self) -> None:
        crashed = worker(statuses=[k8s.container_status(**k8s.crashing())])
        crashed["status"]["conditions"] = [k8s.condition("Ready", "False")]
        assert asked(master(), crashed, pytorch_job(1)).roots == (MISSING,)


class TestMainContainerWaits:
    """A worker fails, because the master whose name it has cannot be started."""

    LOG = "RuntimeError: [c10d] The client socket to (train-0, 29500): Name or service not known\n"

    def waiting(self, address: str = "train-0", log: str = LOG, **more: Any) -> Report:
        failing = k8s.container_status(**k8s.crashing())
        pod = worker(
            env={"MASTER_ADDR": address},
            statuses=[failing],
            conditions=[k8s.condition("Ready", "False")],
        )
        leader = master(**({"state": IMAGE, "phase": "Pending"} | more))
        logs = {"team/train-worker-0/main": log}
        return asked(pod, leader, pod="team/train-worker-0", logs=logs)

    def test_root_is_the_masters(self) -> None:
        report = self.waiting()
        assert report.roots == ("image-pull-failing",)
        assert finding_of(report, "peer-pod-failed-first").severity == "error"

    def test_master_that_runs(self) -> None:
        report = self.waiting(state=None, phase="Running")
        assert "peer-pod-failed-first" not in loud(report)

    def test_error_of_its_own(self) -> None:
        report = self.waiting(log="FileNotFoundError: [Errno 2] No such file: 'train.json'\n")
        assert report.roots == ("application-error",)

    def test_two_that_wait_for_each_other(self) -> None:
        report = self.waiting(state={"waiting": {"reason": "ContainerCreating"}})
        assert "image-pull-failing" not in loud(report)


class TestFailedMembers:
    FAILED = "peer-pod-failed-first"

    def failed(self, **more: Any) -> Object:
        end = {"terminated": {"exitCode": 1, "reason": "Error", "finishedAt": OLD}}
        return worker(
            phase="Failed", statuses=[k8s.container_status(state=end)], conditions=[], **more
        )

    def test_failed_for_good(self) -> None:
        report = asked(master({"WORLD_SIZE": "2"}), self.failed())
        assert report.roots == (self.FAILED,)
        found = finding_of(report, self.FAILED)
        assert told(found) == ("warning", "certain", "Pod/team/train-0")
        assert "main ended with Error, exit code 1" in shown(found)

    def test_what_ended_it_is_said_and_looked_up_there(self) -> None:
        end = {"terminated": {"exitCode": 137, "reason": "OOMKilled", "finishedAt": OLD}}
        gone = worker(phase="Failed", statuses=[k8s.container_status(state=end)], conditions=[])
        report = asked(master({"WORLD_SIZE": "2"}), gone)
        assert report.roots == (self.FAILED,)
        assert "OOMKilled" in shown(finding_of(report, self.FAILED))
        assert "oom-killed" not in loud(report)

    def test_one_that_ended_before_this_pod_did(self) -> None:
        first = {"exitCode": 137, "reason": "OOMKilled", "finishedAt": OLD}
        gone = worker(statuses=[k8s.container_status(state={"terminated": first})], phase="Failed")
        own = {
            "terminated": {"exitCode": 134, "reason": "Error", "finishedAt": "2026-11-20T07:10:00Z"}
        }
        pod = master(statuses=[k8s.container_status(state=own)], phase="Failed", conditions=[])
        report = asked(pod, gone, pytorch_job(1))
        assert report.roots == (self.FAILED,)
        assert "oom-killed" not in loud(report)

    def test_another_was_made_for_it(self) -> None:
        fresh = {"creationTimestamp": "2026-11-20T07:30:00Z", "labels": labels("worker")}
        again = member("train-worker-0b", {}, meta=fresh)
        report = asked(master({"WORLD_SIZE": "2"}), self.failed(), again)
        assert report.verdict is Verdict.HEALTHY

    def test_enough_are_left(self) -> None:
        job = pytorch_job(2, elasticPolicy={"minReplicas": 1})
        report = asked(master(), self.failed(), worker(1), job)
        assert report.verdict is Verdict.HEALTHY

    def test_launcher_that_waits_in_a_loop(self) -> None:
        launcher = member("train-launcher", {f"{KUBEFLOW}/job-name": "train"})
        log = "waiting for sshd on train-worker-0.train.team.svc\n"
        logs = {"team/train-launcher/main": log}
        report = asked(launcher, self.failed(), pod="team/train-launcher", logs=logs)
        assert report.roots == (self.FAILED,)

    def test_launcher_that_waited_and_runs(self) -> None:
        launcher = member("train-launcher", {f"{KUBEFLOW}/job-name": "train"})
        log = "waiting for sshd on train-worker-0.train.team.svc\nstep 1 loss 3\n"
        logs = {"team/train-launcher/main": log}
        report = asked(launcher, worker(), pod="team/train-launcher", logs=logs)
        assert report.verdict is Verdict.HEALTHY


class TestOtherNames:
    """Members are reached by their services and host names, which the pod's name need not be."""

    def waiting(self, words: str, tags: Object) -> Object:
        init = k8s.container("wait", args=[words])
        return member(
            "train-worker-x",
            tags,
            state={"waiting": {"reason": "PodInitializing"}},
            phase="Pending",
            spec={"initContainers": [init]},
            status={
                "initContainerStatuses": [
                    k8s.container_status("wait", state={"running": {"startedAt": OLD}})
                ]
            },
        )

    def test_head_of_a_ray_cluster(self) -> None:
        tags = {"ray.io/cluster": "rc", "ray.io/node-type": "worker"}
        head = member("rc-head-9x", tags | {"ray.io/node-type": "head"}, state=IMAGE)
        pod = self.waiting("ray health-check --address rc-head-svc.team.svc:6379", tags)
        report = asked(pod, head, pod="team/train-worker-x")
        assert report.roots == ("image-pull-failing",)
        other = self.waiting("ray health-check --address rc2-head-svc:6379", tags)
        report = asked(other, head, pod="team/train-worker-x")
        assert "image-pull-failing" not in loud(report)

    def test_host_name_of_an_indexed_job(self) -> None:
        tags = {"batch.kubernetes.io/job-name": "train"}
        leader = member("train-0-7xk2p", tags, state=IMAGE, spec={"hostname": "train-0"})
        pod = self.waiting("until nc -z train-0.train 29500; do sleep 1; done", tags)
        assert asked(pod, leader, pod="team/train-worker-x").roots == ("image-pull-failing",)


class TestSizeIsNotKnown:
    TAGS: ClassVar[Object] = {"ray.io/cluster": "rc"}

    def report(self, *more: Object, complete: bool = False) -> Report:
        message = "0/1 nodes are available: 1 Insufficient nvidia.com/gpu."
        waiting = member(
            "rc-w",
            self.TAGS,
            node=None,
            phase="Pending",
            statuses=[],
            conditions=k8s.pending(message),
        )
        return asked(member("train-0", self.TAGS), waiting, *more, complete=complete)

    def test_without_the_job_in_a_part_of_the_input(self) -> None:
        report = self.report()
        assert report.verdict is Verdict.UNKNOWN
        assert [gap.what for gap in report.unknown] == ["whether this pod waits for rc-w"]

    @pytest.mark.parametrize(
        ("owner", "operator", "said"),
        [
            ("MPIJob/x", "", "MPIJob x"),
            ("Job/x-launcher", "mpi-operator", "MPIJob x"),
            ("", "tfjob-controller", "TFJob x"),
            ("", "", "the job x"),
        ],
    )
    def test_the_job_by_its_right_kind(self, owner: str, operator: str, said: str) -> None:
        tags = {"training.kubeflow.org/job-name": "x", "training.kubeflow.org/job-role": "worker"}
        if operator:
            tags["training.kubeflow.org/operator-name"] = operator
        made = dict(zip(("kind", "name"), owner.partition("/")[::2], strict=True))
        of = {"ownerReferences": [k8s.owner(**made)]} if owner else {}
        one, other = (member(name, tags) for name in ("x-0", "x-1"))
        other["spec"].pop("nodeName")
        other["status"] = {
            "phase": "Pending",
            "conditions": k8s.pending("0/1 nodes are available: 1 Insufficient nvidia.com/gpu."),
        }
        one["metadata"] |= of
        (gap,) = asked(one, other, complete=False, pod="team/x-0").unknown
        assert gap.why.startswith(f"that one cannot run, and {said}, which")

    def test_where_owners_are_left_out(self) -> None:
        assert self.report(complete=True).verdict is Verdict.HEALTHY

    def test_job_that_needs_none(self) -> None:
        job = OTHER_JOBS["ray"][0]
        job = {**job, "metadata": {**job["metadata"], "name": "rc"}, "spec": {}}
        assert self.report(job).verdict is Verdict.HEALTHY
