"""Gangs: a member that fits still waits for the others; queues of Volcano; preemption."""

from __future__ import annotations

from typing import Any

import pytest

from gpudoctor.report import Certainty, Severity
from tests import kubernetes_objects as k8s
from tests.kubernetes_objects import Object, ask, condition, finding_of, shown

VOLCANO = "scheduling.volcano.sh/v1beta1"
GANG = "gang-not-enough-resources"
FITS = "Pod team/train-0 can possibly be assigned to gpu-1, once minAvailable is satisfied"
LACKS = "0/2 nodes are unavailable: 2 Insufficient nvidia.com/gpu."
NOT_READY = (
    "3/3 tasks in gang unschedulable: pod group is not ready, 3 Pending, 3 minAvailable; "
    "Pending: 1 Unschedulable, 2 Schedulable. Origin reason is train-2: "
)


def member(name: str = "train-0", said: str = FITS, reason: str = "Schedulable") -> Object:
    return k8s.pod(
        name,
        limits={"nvidia.com/gpu": "4"},
        conditions=k8s.pending(said, reason),
        meta={"annotations": {"scheduling.k8s.io/group-name": "pg"}},
        spec={"schedulerName": "volcano"},
    )


def members() -> list[Object]:
    return [member(), member("train-1"), member("train-2", LACKS, "Unschedulable")]


def unschedulable(origin: str = LACKS, reason: str = "NotEnoughResources") -> Object:
    return condition("Unschedulable", "True", reason, NOT_READY + origin)


def group(phase: str, *conditions: Object, **spec: Any) -> Object:
    asked = {"minMember": 3, "minResources": {"nvidia.com/gpu": "12"}, "queue": "q"} | spec
    status = {"phase": phase, "conditions": list(conditions)}
    return k8s.custom(VOLCANO, "PodGroup", "pg", "team", spec=asked, status=status)


def queue(state: str = "Open", **spec: Any) -> Object:
    status = {"state": state, "allocated": {"nvidia.com/gpu": "8"}}
    return k8s.custom(VOLCANO, "Queue", "q", spec=spec, status=status)


def nodes(*gpus: int) -> list[Object]:
    return [
        k8s.node(f"gpu-{n}", allocatable={"nvidia.com/gpu": str(have)})
        for n, have in enumerate(gpus, 1)
    ]


def test_one_member_short() -> None:
    report = ask(*members(), group("Inqueue", unschedulable()), queue(), *nodes(4, 4))
    assert report.roots == ("gang-not-enough-resources",)
    found = finding_of(report, GANG)
    assert found.certainty is Certainty.CERTAIN
    assert "needs 12 nvidia.com/gpu at once, 8 can be had" in found.title
    assert "train-2" in found.detail
    assert "Node/gpu-1" in shown(found)
    assert "Schedulable" in shown(found)


def test_free_gpus_count_by_whole_members() -> None:
    # 12 are free, but 3 + 3 + 3 + 3 takes no member of 4.
    report = ask(*members(), group("Inqueue", unschedulable()), queue(), *nodes(3, 3, 3, 3))
    assert "0 can be had" in finding_of(report, GANG).title


def test_bound_members_count_as_had() -> None:
    placed = member("train-1")
    placed["spec"]["nodeName"] = "gpu-2"
    report = ask(
        member(),
        placed,
        member("train-2", LACKS, "Unschedulable"),
        group("Unknown", unschedulable()),
        queue(),
        *nodes(4, 4),
    )
    assert "8 can be had" in finding_of(report, GANG).title


def test_enough_nodes_contradict_the_number_not_the_scheduler() -> None:
    report = ask(*members(), group("Inqueue", unschedulable()), queue(), *nodes(8, 8))
    assert "less can be had" in finding_of(report, GANG).title


def test_podgroup_not_in_the_input_leaves_the_pods_event() -> None:
    pods = members()
    event = k8s.event(pods[0], "FailedScheduling", NOT_READY + LACKS, component="volcano")
    report = ask(*pods, event, *nodes(4, 4), complete=False)
    assert report.roots == ("gang-not-enough-resources",)


def test_running_gang_is_not_short() -> None:
    running = k8s.pod(
        node="gpu-1",
        phase="Running",
        conditions=[condition("Ready", "True")],
        meta={"annotations": {"scheduling.k8s.io/group-name": "pg"}},
        spec={"schedulerName": "volcano"},
    )
    assert ask(running, group("Running"), *nodes(4, 4)).roots == ()


def test_member_kept_off_by_labels_is_not_a_lack() -> None:
    origin = "0/2 nodes are unavailable: 2 node(s) didn't match Pod's node affinity/selector."
    pods = [member(), member("train-1"), member("train-2", origin, "Unschedulable")]
    report = ask(*pods, group("Inqueue", unschedulable(origin)), queue(), *nodes(4, 4))
    assert "node-selector-mismatch" in report.roots
    assert GANG not in report.roots
    assert "train-2" in finding_of(report, "node-selector-mismatch").title


def test_member_kept_off_by_a_taint_is_not_a_lack() -> None:
    origin = "0/2 nodes are unavailable: 2 node(s) had untolerated taint {gpu: yes}."
    pods = [member(), member("train-1"), member("train-2", origin, "Unschedulable")]
    report = ask(*pods, group("Inqueue", unschedulable(origin)), queue(), *nodes(4, 4))
    assert "missing-toleration" in report.roots
    assert GANG not in report.roots


@pytest.mark.parametrize("reason", ["NotEnoughTasks", "NotEnoughPodsOfTask"])
def test_too_few_members_exist(reason: str) -> None:
    message = "Not enough valid tasks for gang-scheduling, valid: 2, min: 3"
    few = condition("Unschedulable", "True", reason, message)
    report = ask(member(), member("train-1"), group("Inqueue", few), queue(), *nodes(8))
    assert report.roots == ("gang-not-enough-resources",)
    assert "needs 3 members at once, 2 can be had" in finding_of(report, GANG).title


def test_coscheduling_misses_siblings() -> None:
    said = (
        "0/2 nodes are available: 2 pre-filter pod train-0 cannot find enough sibling pods, "
        "current pods number: 2, minMember of group: 3."
    )
    pod = k8s.pod(
        conditions=k8s.pending(said), meta={"labels": {"scheduling.x-k8s.io/pod-group": "pg"}}
    )
    report = ask(pod, *nodes(8, 8))
    assert "needs 3 members at once, 2 can be had" in finding_of(report, GANG).title


@pytest.mark.parametrize(("size", "expected"), [("4", True), ("1", False), ("", False)])
def test_koordinator_misses_members(size: str, expected: bool) -> None:
    prefix = "gang.scheduling.koordinator.sh"
    said = 'running PreFilter plugin "Coscheduling": gang child pod not collect enough, gangName: x'
    pod = k8s.pod(
        conditions=k8s.pending(said),
        meta={"annotations": {f"{prefix}/name": "x", f"{prefix}/min-available": size}},
    )
    report = ask(pod, *nodes(8))
    assert ("gang-not-enough-resources" in report.roots) is expected
    if expected:
        found = finding_of(report, "gang-not-enough-resources")
        assert "starts when 4 members exist; 1 do" in found.detail


def native(*conditions: Object) -> Object:
    return k8s.custom(
        "scheduling.k8s.io/v1beta1",
        "PodGroup",
        "pg",
        "team",
        spec={"schedulingPolicy": {"gang": {"minCount": 2}}},
        status={"conditions": list(conditions)},
    )


def native_pod(said: str = "waiting for the gang") -> Object:
    return k8s.pod(
        limits={"nvidia.com/gpu": "8"},
        conditions=k8s.pending(said),
        spec={"schedulingGroup": {"podGroupName": "pg"}},
    )


def test_native_gang() -> None:
    message = "0/1 nodes are available: 1 Insufficient nvidia.com/gpu."
    held = condition("PodGroupInitiallyScheduled", "False", "Unschedulable", message)
    report = ask(native_pod(f"pod group pg: {message}"), native(held), *nodes(8))
    assert report.roots == ("gang-not-enough-resources",)
    assert "needs 16 nvidia.com/gpu at once, 8 can be had" in finding_of(report, GANG).title


def test_native_gang_that_was_placed_is_not_short() -> None:
    placed = condition("PodGroupInitiallyScheduled", "True")
    report = ask(native_pod("0/1 nodes are available: 1 Too many pods."), native(placed), *nodes(8))
    assert GANG not in [finding.name for finding in report.findings]


def test_native_workload_of_the_first_alpha() -> None:
    pod = native_pod("gang pg: 0/1 nodes are available: 1 Insufficient nvidia.com/gpu.")
    pod["spec"] |= {"workloadRef": {"name": "pg"}, "schedulingGroup": None}
    policy = {"name": "workers", "policy": {"gang": {"minCount": 2}}}
    workload = k8s.custom(
        "scheduling.k8s.io/v1alpha1", "Workload", "pg", "team", spec={"podGroups": [policy]}
    )
    assert "needs 16" in finding_of(ask(pod, workload, *nodes(8)), GANG).title


# Volcano's queues

FULL = "queue resource quota insufficient: insufficient nvidia.com/gpu"


def told(obj: Object, message: str) -> Object:
    return k8s.event(obj, "Unschedulable", message, component="volcano", type="Normal")


def waiting() -> Object:
    pod = member()
    pod["status"]["conditions"] = []
    return pod


def test_queue_is_full() -> None:
    pending = group("Pending")
    report = ask(
        waiting(),
        pending,
        told(pending, FULL),
        queue(capability={"nvidia.com/gpu": "16"}),
        *nodes(8, 8),
    )
    assert report.roots == ("volcano-queue-capability-exceeded",)
    found = finding_of(report, "volcano-queue-capability-exceeded")
    assert "8 allocated + 12 asked > 16" in found.detail
    assert "Queue/q spec.capability nvidia.com/gpu 16" in shown(found)


def test_queue_is_full_by_its_numbers_alone() -> None:
    limited = queue(capability={"nvidia.com/gpu": "16"})
    report = ask(waiting(), group("Pending"), limited, *nodes(8, 8))
    assert report.roots == ("volcano-queue-capability-exceeded",)


def test_queue_with_room_is_not_full() -> None:
    roomy = queue(capability={"nvidia.com/gpu": "20"})
    report = ask(waiting(), group("Pending"), roomy, *nodes(8, 8))
    assert "volcano-queue-capability-exceeded" not in report.roots


def test_group_that_was_let_in_is_not_held_by_its_queue() -> None:
    # The event is older than the phase.
    inqueue = group("Inqueue", unschedulable())
    limited = queue(capability={"nvidia.com/gpu": "16"})
    report = ask(*members(), inqueue, told(inqueue, FULL), limited, *nodes(4, 4))
    assert report.roots == ("gang-not-enough-resources",)


def test_cluster_is_overused() -> None:
    pending = group("Pending")
    message = "resource in cluster is overused: overused nvidia.com/gpu"
    report = ask(waiting(), pending, told(pending, message), queue(), *nodes(8))
    assert report.roots == ("gang-not-enough-resources",)
    assert "nvidia.com/gpu" in finding_of(report, GANG).title


def test_namespace_quota_is_used_up() -> None:
    pending = group("Pending")
    message = (
        "resource quota insufficient, requested: map[requests.nvidia.com/gpu:{{12 0} {<nil>} 12 "
        "DecimalSI}], used: map[requests.nvidia.com/gpu:{{8 0}}], limited: map[]"
    )
    report = ask(waiting(), pending, told(pending, message), queue(), *nodes(8, 8))
    assert report.roots == ("resourcequota-exceeded",)
    assert "requests.nvidia.com/gpu" in finding_of(report, "resourcequota-exceeded").title


@pytest.mark.parametrize("state", ["Closed", "Closing"])
def test_closed_queue(state: str) -> None:
    report = ask(waiting(), group("Pending"), queue(state), *nodes(8, 8))
    assert report.roots == ("queue-stopped",)


def test_queue_that_does_not_exist() -> None:
    report = ask(waiting(), group("Pending"), *nodes(8, 8))
    assert report.roots == ("queue-misconfigured",)
    assert "queue-misconfigured" not in ask(waiting(), group("Pending"), complete=False).roots


def test_kai_queue_over_its_limit() -> None:
    pod = k8s.pod(
        meta={"annotations": {"pod-group-name": "pg"}}, spec={"schedulerName": "kai-scheduler"}
    )
    said = {"type": "UnschedulableOnNodePool", "message": "team quota has reached the limit of 8"}
    kai = k8s.custom(
        "scheduling.run.ai/v2alpha2",
        "PodGroup",
        "pg",
        "team",
        spec={"minMember": 2, "queue": "team"},
        status={"schedulingConditions": [said]},
    )
    assert "queue-waiting-for-quota" in ask(pod, kai, *nodes(8)).roots


# Preemption


def put_out(reason: str, message: str) -> Object:
    return k8s.pod(
        node="gpu-1",
        phase="Failed",
        conditions=[condition("DisruptionTarget", "True", reason, message)],
    )


def test_preempted_by_the_scheduler() -> None:
    message = "default-scheduler: preempting to accommodate a higher priority pod"
    report = ask(put_out("PreemptionByScheduler", message), k8s.node())
    assert report.roots == ("preempted",)


def test_other_disruption_is_not_preemption() -> None:
    report = ask(put_out("DeletionByTaintManager", "Taint manager: deleting"), k8s.node())
    assert "preempted" not in report.roots


@pytest.mark.parametrize(
    ("reason", "message", "expected"),
    [
        ("Preempted", "Preempted by pod 8a2b on node gpu-1", True),
        ("Evict", "Pod is evicted, because of preempt", True),
        ("Evict", "Pod is evicted, because of reschedule", False),
        ("Evicted", "The node was low on resource: memory.", False),
    ],
)
def test_preempted_by_event(reason: str, message: str, expected: bool) -> None:
    pod = k8s.pod(node="gpu-1", phase="Failed")
    report = ask(pod, k8s.event(pod, reason, message), k8s.node())
    assert ("preempted" in [f.name for f in report.findings]) is expected


def test_pod_that_runs_on_is_only_warned() -> None:
    pod = k8s.pod(node="gpu-1", phase="Running", conditions=[condition("Ready", "True")])
    event = k8s.event(pod, "Preempting", "Preempted in order to admit critical pod")
    found = finding_of(ask(pod, event, k8s.node()), "preempted")
    assert found.severity is Severity.WARNING


def test_native_group_put_out_for_another() -> None:
    target = condition("DisruptionTarget", "True", "PreemptionByScheduler", "for a larger group")
    report = ask(native_pod("gang pg is preempted"), native(target), *nodes(8))
    assert report.roots == ("preempted",)
    assert "for a larger group" in finding_of(report, "preempted").title
    other = condition("DisruptionTarget", "True", "Maintenance", "")
    assert "preempted" not in ask(native_pod(), native(other), *nodes(8)).roots


# What is shown, and what decides between two readings


def test_words_and_evidence_of_a_gang() -> None:
    report = ask(*members(), group("Inqueue", unschedulable()), queue(), *nodes(4, 4))
    found = finding_of(report, GANG)
    assert "needs 12 nvidia.com/gpu for 3 members at once" in found.detail
    assert "the nodes can give 8 to whole members" in found.detail
    evidence = shown(found)
    assert "PodGroup/team/pg status.conditions[Unschedulable] True NotEnoughResources" in evidence
    assert "PodGroup/team/pg spec.minResources nvidia.com/gpu 12" in evidence
    assert "Pod/team/train-2 status.conditions[PodScheduled] Unschedulable" in evidence
    assert "Node/gpu-2 status.allocatable minus bound pods nvidia.com/gpu 4, 4 free" in evidence


def test_group_without_numbers_is_named_by_the_pod() -> None:
    pods = members()
    event = k8s.event(pods[0], "FailedScheduling", NOT_READY + LACKS, component="volcano")
    found = finding_of(ask(*pods, event, complete=False), GANG)
    assert "needs more nvidia.com/gpu at once, less can be had" in found.title
    assert "not all can be had" in found.detail
    assert "Event/team/train-0 FailedScheduling" in shown(found)


def test_members_that_ask_alike_make_the_sum_without_min_resources() -> None:
    pg = group("Inqueue", unschedulable(), minResources={})
    report = ask(*members()[:2], pg, queue(), *nodes(4, 4))
    assert "needs 12 nvidia.com/gpu" in finding_of(report, GANG).title


def test_lack_without_origin_is_likely_and_names_the_gpus() -> None:
    text = "3/3 tasks in gang unschedulable: pod group is not ready, 3 Pending, 3 minAvailable"
    bare = condition("Unschedulable", "True", "NotEnoughResources", text)
    report = ask(member(), group("Inqueue", bare), queue(), *nodes(4))
    found = finding_of(report, GANG)
    assert found.certainty is Certainty.LIKELY
    assert "12 nvidia.com/gpu" in found.title


def test_origin_of_another_kind_is_not_a_lack() -> None:
    origin = "0/2 nodes are unavailable: 2 node(s) didn't match pod anti-affinity rules."
    report = ask(member(), group("Inqueue", unschedulable(origin)), queue(), *nodes(4, 4))
    assert GANG not in [finding.name for finding in report.findings]


def test_member_that_lacks_without_any_word_of_a_gang_proves_nothing() -> None:
    said = "0/1 nodes are available: 1 Insufficient nvidia.com/gpu."
    pod = k8s.pod(
        conditions=k8s.pending(said), meta={"labels": {"scheduling.x-k8s.io/pod-group": "pg"}}
    )
    report = ask(pod, *nodes(0))
    assert GANG not in [finding.name for finding in report.findings]


def test_full_queue_comes_before_the_nodes() -> None:
    pending = group("Pending", unschedulable())
    report = ask(*members(), pending, told(pending, FULL), queue(), *nodes(4, 4))
    assert report.roots == ("volcano-queue-capability-exceeded",)
    assert GANG not in [finding.name for finding in report.findings]
    closed = ask(*members(), group("Pending", unschedulable()), queue("Closed"), *nodes(4, 4))
    assert GANG not in [finding.name for finding in closed.findings]
    limited = queue(capability={"nvidia.com/gpu": "16"})
    by_numbers = ask(*members(), group("Pending", unschedulable()), limited, *nodes(4, 4))
    assert GANG not in [finding.name for finding in by_numbers.findings]


def test_full_queue_shows_its_numbers() -> None:
    pending = group("Pending", queue="")
    report = ask(waiting(), pending, told(pending, FULL), *nodes(8))
    found = finding_of(report, "volcano-queue-capability-exceeded")
    assert "queue default" in found.detail
    assert "PodGroup/team/pg status.phase Pending" in shown(found)
    assert "PodGroup/team/pg spec.minResources nvidia.com/gpu 12" in shown(found)
    assert FULL in shown(found)


def test_queue_that_is_exactly_full_lets_in() -> None:
    # 8 allocated + 12 asked = 20.
    over = queue(capability={"nvidia.com/gpu": "19"})
    names = ask(waiting(), group("Pending"), over, *nodes(8)).roots
    assert names == ("volcano-queue-capability-exceeded",)
    other = queue(capability={"cpu": "1"})
    assert ask(waiting(), group("Pending"), other, *nodes(8)).roots != names


def test_kai_over_quota_is_not_a_lack_of_nodes() -> None:
    said = {
        "type": "UnschedulableOnNodePool",
        "reason": "NotEnoughResources",
        "message": "over quota: 1 Insufficient nvidia.com/gpu",
    }
    pod = k8s.pod(
        conditions=k8s.pending("gang: 0/1 nodes are available: 1 Insufficient nvidia.com/gpu."),
        meta={"annotations": {"pod-group-name": "pg"}},
        spec={"schedulerName": "kai-scheduler"},
    )
    kai = k8s.custom(
        "scheduling.run.ai/v2alpha2",
        "PodGroup",
        "pg",
        "team",
        spec={"minMember": 2, "queue": "team"},
        status={"schedulingConditions": [said]},
    )
    names = [finding.name for finding in ask(pod, kai, *nodes(8)).findings]
    assert "queue-waiting-for-quota" in names
    assert GANG not in names


@pytest.mark.parametrize(
    ("message", "members", "name"),
    [
        # Two members of two GPUs each, and a limit of two: never.
        ("Limit is 2 GPUs, currently 2 GPUs allocated", 2, "queue-exceeds-max-quota"),
        ("Limit is 4 GPUs, currently 2 GPUs allocated", 2, "queue-waiting-for-quota"),
        ("workload requested 9 GPUs, but team quota is 8 GPUs", 1, "queue-exceeds-max-quota"),
        ("workload requested 0.2 GPUs, but team quota is 0.3 GPUs", 0, "queue-waiting-for-quota"),
        ("over quota", 2, "queue-waiting-for-quota"),
    ],
)
def test_kai_limit_that_the_group_can_never_fit(message: str, members: int, name: str) -> None:
    pod = k8s.pod(
        limits={"nvidia.com/gpu": "2"} if members else {},
        conditions=k8s.pending(message),
        meta={"annotations": {"pod-group-name": "pg"}},
        spec={"schedulerName": "kai-scheduler"},
    )
    said = {"type": "UnschedulableOnNodePool", "reason": "OverLimit"}
    said["message"] = f"team quota has reached the allowable limit of GPUs. {message}"
    kai = k8s.custom(
        "scheduling.run.ai/v2alpha2",
        "PodGroup",
        "pg",
        "team",
        spec={"minMember": max(members, 1), "queue": "team"},
        status={"schedulingConditions": [said]},
    )
    names = [finding.name for finding in ask(pod, kai, *nodes(8)).findings]
    assert name in names
