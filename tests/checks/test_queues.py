"""Kueue: each way to be held has its name, and what only looks like it has not."""

from __future__ import annotations

from typing import Any

import pytest

from gpudoctor.report import Blame, Certainty, Severity, Verdict
from tests import kubernetes_objects as k8s
from tests.kubernetes_objects import Object, ask, condition, finding_of, shown

GROUP = "kueue.x-k8s.io/v1beta2"
GATE = [{"name": "kueue.x-k8s.io/admission"}]
NEVER = (
    "insufficient quota for nvidia.com/gpu in flavor {flavor}, previously considered podsets "
    "requests (0) + current podset request (32) > maximum capacity (24)"
)
UNUSED = "insufficient unused quota for nvidia.com/gpu in flavor {flavor}, 8 more needed"
REFUSED = "couldn't assign flavors to pod set main: "


def gated(name: str = "train-0", **meta: Any) -> Object:
    labels = {"kueue.x-k8s.io/queue-name": "lq", "kueue.x-k8s.io/pod-group-name": "wl"}
    return k8s.pod(
        name,
        limits={"nvidia.com/gpu": "8"},
        conditions=k8s.pending(k8s.GATED, "SchedulingGated"),
        meta={"labels": labels} | meta,
        spec={"schedulingGates": GATE},
    )


def workload(
    *conditions: Object, name: str = "wl", spec: Object | None = None, status: Object | None = None
) -> Object:
    template = {"spec": {"containers": [k8s.container(limits={"nvidia.com/gpu": "8"})]}}
    return k8s.custom(
        GROUP,
        "Workload",
        name,
        "team",
        spec={
            "queueName": "lq",
            "podSets": [{"name": "main", "count": 4, "template": template}],
        }
        | (spec or {}),
        status={"conditions": list(conditions)} | (status or {}),
    )


def unreserved(reason: str, message: str) -> Object:
    return condition("QuotaReserved", "False", reason, message)


def local_queue(**spec: Any) -> Object:
    return k8s.custom(GROUP, "LocalQueue", "lq", "team", spec={"clusterQueue": "cq"} | spec)


def cluster_queue(
    *flavors: str,
    name: str = "cq",
    api: str = GROUP,
    active: Object | None = None,
    **spec: Any,
) -> Object:
    quota = {"name": "nvidia.com/gpu", "nominalQuota": "16", "borrowingLimit": "8"}
    groups = [
        {
            "coveredResources": ["nvidia.com/gpu"],
            "flavors": [{"name": f, "resources": [quota]} for f in flavors or ("h100",)],
        }
    ]
    status = {"conditions": [active or condition("Active", "True", "Ready")]}
    return k8s.custom(
        api, "ClusterQueue", name, spec={"resourceGroups": groups} | spec, status=status
    )


def root(*objects: Object, complete: bool = True, pod: str = "team/train-0") -> tuple[str, ...]:
    return ask(*objects, complete=complete, pod=pod).roots


def held(reason: str, message: str, *more: Object, queue: Object | None = None) -> list[Object]:
    return [
        gated(),
        workload(unreserved(reason, message)),
        local_queue(),
        queue or cluster_queue(),
        *more,
    ]


# Quota


@pytest.mark.parametrize("reason", ["ExceedsMaxQuota", "Pending", "Inadmissible"])
def test_request_above_the_maximum_never_fits(reason: str) -> None:
    report = ask(*held(reason, REFUSED + NEVER.format(flavor="h100")))
    assert report.roots == ("queue-exceeds-max-quota",)
    found = finding_of(report, "queue-exceeds-max-quota")
    assert found.certainty is Certainty.CERTAIN
    assert "32 nvidia.com/gpu > 24" in found.title
    assert "ClusterQueue/cq spec.resourceGroups" in shown(found)
    assert "nominalQuota 16 + borrowingLimit 8" in shown(found)
    assert "Pod/team/train-0 spec.schedulingGates kueue.x-k8s.io/admission" in shown(found)


def test_older_message_of_the_maximum() -> None:
    message = (
        REFUSED + "insufficient quota for nvidia.com/gpu in flavor h100, request > maximum "
        "capacity (32 > 24)"
    )
    found = finding_of(ask(*held("Pending", message)), "queue-exceeds-max-quota")
    assert "32 nvidia.com/gpu > 24" in found.title


def test_earlier_pod_sets_count_into_the_request() -> None:
    message = REFUSED + NEVER.format(flavor="h100").replace("(0) + ", "(8) + ")
    found = finding_of(ask(*held("ExceedsMaxQuota", message)), "queue-exceeds-max-quota")
    assert "40 nvidia.com/gpu > 24" in found.title


def test_quota_in_use_is_waited_for() -> None:
    report = ask(*held("WaitingForQuota", REFUSED + UNUSED.format(flavor="h100")))
    assert report.roots == ("queue-waiting-for-quota",)
    assert "8 nvidia.com/gpu are missing" in finding_of(report, "queue-waiting-for-quota").title


@pytest.mark.parametrize("reason", ["ExceedsMaxQuota", "Pending"])
def test_one_flavor_too_small_and_another_in_use_is_waited_for(reason: str) -> None:
    # Kueue's reason names the worst flavor, but the other one will do once it is free.
    message = REFUSED + NEVER.format(flavor="a100") + ", " + UNUSED.format(flavor="h100")
    objects = held(reason, message, queue=cluster_queue("a100", "h100"))
    assert root(*objects) == ("queue-waiting-for-quota",)


def test_one_flavor_tainted_and_another_in_use_is_waited_for() -> None:
    message = (
        REFUSED
        + "untolerated taint {spot true NoSchedule <nil>} in flavor spot, "
        + UNUSED.format(flavor="h100")
    )
    objects = held("NoMatchingFlavor", message, queue=cluster_queue("spot", "h100"))
    assert root(*objects) == ("queue-waiting-for-quota",)


def test_two_resource_groups_both_have_to_fit() -> None:
    # cpu has a group of its own: that the GPUs will be free does not help.
    message = (
        REFUSED
        + NEVER.format(flavor="cpus").replace("nvidia.com/gpu", "cpu")
        + ", "
        + UNUSED.format(flavor="h100")
    )
    queue = cluster_queue("h100")
    queue["spec"]["resourceGroups"].append(
        {
            "coveredResources": ["cpu"],
            "flavors": [{"name": "cpus", "resources": [{"name": "cpu", "nominalQuota": "24"}]}],
        }
    )
    assert root(*held("Pending", message, queue=queue)) == ("queue-exceeds-max-quota",)


def test_second_pod_set_decides() -> None:
    message = (
        REFUSED
        + UNUSED.format(flavor="h100")
        + "; couldn't assign flavors to pod set worker: "
        + NEVER.format(flavor="h100")
    )
    assert root(*held("Pending", message)) == ("queue-exceeds-max-quota",)


def test_reason_alone_where_the_message_is_of_another_form() -> None:
    assert root(*held("ExceedsMaxQuota", "too much")) == ("queue-exceeds-max-quota",)
    assert root(*held("WaitingForQuota", "not now")) == ("queue-waiting-for-quota",)


def test_waiting_for_pods_ready_of_others() -> None:
    message = "waiting for all admitted workloads to be in PodsReady condition"
    report = ask(*held("WaitingForPodsReady", message))
    assert report.roots == ("queue-waiting-for-quota",)
    assert "not Ready yet" in finding_of(report, "queue-waiting-for-quota").title


def test_admitted_workload_is_not_held() -> None:
    admitted = [condition("QuotaReserved", "True"), condition("Admitted", "True")]
    pod = k8s.pod(
        conditions=k8s.pending("0/1 nodes are available: 1 Insufficient nvidia.com/gpu."),
        meta={"labels": {"kueue.x-k8s.io/pod-group-name": "wl"}},
        limits={"nvidia.com/gpu": "8"},
    )
    full = k8s.pod("other", node="gpu-1", phase="Running", limits={"nvidia.com/gpu": "8"})
    report = ask(pod, full, workload(*admitted), local_queue(), cluster_queue(), k8s.node())
    assert not [name for name in report.roots if name.startswith("queue-")]
    told = finding_of(report, "queue-admitted")
    assert "Workload/team/wl status.conditions[Admitted] True" in shown(told)


def test_old_api_version_and_cohort_field() -> None:
    objects = held("Pending", REFUSED + NEVER.format(flavor="h100"))
    objects[-1] = cluster_queue(api="kueue.x-k8s.io/v1beta1", cohort="research")
    assert root(*objects) == ("queue-exceeds-max-quota",)


def test_workload_missing_is_unknown_not_another_answer() -> None:
    report = ask(gated(), local_queue(), cluster_queue(), complete=False)
    assert set(report.roots) <= {"insufficient-evidence"}
    assert any("Workload" in unknown.what for unknown in report.unknown)


# Quota held by the evicted


def holder(evicted: bool, since: str = "2026-11-20T08:00:00Z", gpus: str = "16") -> Object:
    conditions = [condition("QuotaReserved", "True"), condition("Admitted", "False")]
    if evicted:
        conditions.append(condition("Evicted", "True", "Preempted") | {"lastTransitionTime": since})
    assignment = {"name": "main", "resourceUsage": {"nvidia.com/gpu": gpus}}
    admission = {"clusterQueue": "cq", "podSetAssignments": [assignment]}
    return workload(*conditions, name="old", status={"admission": admission})


WAITING = REFUSED + UNUSED.format(flavor="h100")
LATER = k8s.event(k8s.node(), "NodeReady", "Node gpu-1 is Ready", type="Normal")


def test_evicted_workload_that_keeps_its_quota() -> None:
    report = ask(*held("WaitingForQuota", WAITING, holder(True), LATER))
    assert report.roots == ("queue-quota-held-by-evicted-workload",)
    found = finding_of(report, "queue-quota-held-by-evicted-workload")
    assert found.explains == (finding_of(report, "queue-waiting-for-quota").id,)
    assert "Workload/team/old" in shown(found)


def test_holder_that_was_not_evicted() -> None:
    report = ask(*held("WaitingForQuota", WAITING, holder(False), LATER))
    assert report.roots == ("queue-waiting-for-quota",)
    assert "team/old (16)" in finding_of(report, "queue-waiting-for-quota").detail


def test_holder_that_was_evicted_a_moment_ago() -> None:
    just = holder(True, since="2026-11-20T08:19:00Z")
    assert root(*held("WaitingForQuota", WAITING, just, LATER)) == ("queue-waiting-for-quota",)


def test_evicted_holder_of_too_little_is_not_certain() -> None:
    report = ask(*held("WaitingForQuota", WAITING, holder(True, gpus="4"), LATER))
    found = finding_of(report, "queue-quota-held-by-evicted-workload")
    assert found.certainty is Certainty.LIKELY


def test_evicted_holder_of_another_cohort() -> None:
    other = holder(True)
    other["status"]["admission"]["clusterQueue"] = "elsewhere"
    assert root(*held("WaitingForQuota", WAITING, other, LATER)) == ("queue-waiting-for-quota",)


# The queue itself


@pytest.mark.parametrize("policy", ["Hold", "HoldAndDrain"])
def test_stopped_queue(policy: str) -> None:
    message = "LocalQueue lq is inactive"
    local = [gated(), workload(unreserved("Suspended", message)), cluster_queue()]
    report = ask(*local, local_queue(stopPolicy=policy))
    assert report.roots == ("queue-stopped",)
    assert finding_of(report, "queue-stopped").title == "Queue lq is stopped"
    stopped = cluster_queue(stopPolicy=policy)
    assert root(*local[:2], local_queue(), stopped) == ("queue-stopped",)


def test_stop_is_told_by_the_condition_alone() -> None:
    inactive = condition("Active", "False", "Stopped", "Can't admit new workloads: is stopped.")
    objects = held(
        "Inadmissible", "ClusterQueue cq is inactive", queue=cluster_queue(active=inactive)
    )
    assert root(*objects) == ("queue-stopped",)


def test_stop_is_told_by_the_workload_where_the_queue_is_not_in_the_input() -> None:
    wl = workload(unreserved("Suspended", "ClusterQueue cq is stopped"))
    assert root(gated(), wl, local_queue(), complete=False) == ("queue-stopped",)
    evicted = condition("Evicted", "True", "LocalQueueStopped", "The LocalQueue is stopped")
    wl = workload(unreserved("Pending", "The LocalQueue is stopped"), evicted)
    assert root(gated(), wl, complete=False) == ("queue-stopped",)


def test_stop_policy_none_is_not_stopped() -> None:
    objects = held("Pending", WAITING, queue=cluster_queue(stopPolicy="None"))
    assert root(*objects) == ("queue-waiting-for-quota",)


def test_queue_with_a_missing_flavor() -> None:
    inactive = condition(
        "Active", "False", "FlavorNotFound", "references missing ResourceFlavor(s): h"
    )
    objects = held("Suspended", "ClusterQueue cq is inactive", queue=cluster_queue(active=inactive))
    report = ask(*objects)
    assert report.roots == ("queue-misconfigured",)
    assert "missing ResourceFlavor" in finding_of(report, "queue-misconfigured").title


def test_inactive_queue_that_is_not_in_the_input_may_be_stopped() -> None:
    wl = workload(unreserved("Suspended", "ClusterQueue cq is inactive"))
    report = ask(gated(), wl, local_queue(), complete=False)
    assert finding_of(report, "queue-misconfigured").certainty is Certainty.LIKELY


def test_local_queue_that_does_not_exist() -> None:
    wl = workload(unreserved("Inadmissible", "LocalQueue lq doesn't exist"))
    assert root(gated(), wl, cluster_queue()) == ("queue-misconfigured",)
    # Without the Workload's word only a complete input proves it.
    assert root(gated(), cluster_queue()) == ("queue-misconfigured",)
    report = ask(gated(), cluster_queue(), complete=False)
    assert "queue-misconfigured" not in report.roots


def test_cluster_queue_that_does_not_exist() -> None:
    wl = workload(unreserved("Pending", ""))
    assert root(gated(), wl, local_queue()) == ("queue-misconfigured",)
    assert "queue-misconfigured" not in root(gated(), wl, local_queue(), complete=False)


def test_group_with_too_few_pods_is_never_queued() -> None:
    size = {"kueue.x-k8s.io/pod-group-total-count": "4"}
    pods = [gated(f"train-{n}", annotations=size) for n in range(3)]
    report = ask(*pods, local_queue(), cluster_queue())
    assert "3 of the 4 pods" in finding_of(report, "queue-misconfigured").title
    pods.append(gated("train-3", annotations=size))
    assert "queue-misconfigured" not in root(*pods, local_queue(), cluster_queue())


@pytest.mark.parametrize(
    "message",
    [
        "untolerated taint {nvidia.com/gpu present NoSchedule <nil>} in flavor h100",
        "flavor h100 doesn't match node affinity",
        "resource nvidia.com/gpu unavailable in ClusterQueue",
        'Flavor "h100" does not contain the requested level',
    ],
)
def test_no_flavor_takes_the_pods(message: str) -> None:
    report = ask(*held("NoMatchingFlavor", REFUSED + message))
    assert report.roots == ("queue-misconfigured",)
    found = finding_of(report, "queue-misconfigured")
    assert found.blame is Blame.REQUEST
    assert message in found.title


def test_deactivated_workload() -> None:
    evicted = condition("Evicted", "True", "Deactivated", "The workload is deactivated")
    objects = held("Pending", WAITING)
    objects[1] = workload(unreserved("Pending", WAITING), evicted, spec={"active": False})
    report = ask(*objects)
    assert report.roots == ("queue-misconfigured",)
    assert "spec.active" in finding_of(report, "queue-misconfigured").fix


# Topology and admission checks


LABEL = "cloud.example.com/rack"
TAS = [
    k8s.custom(
        GROUP,
        "ResourceFlavor",
        "h100",
        spec={"nodeLabels": {"pool": "h"}, "topologyName": "t"},
    ),
    k8s.custom(GROUP, "Topology", "t", spec={"levels": [{"nodeLabel": LABEL}]}),
]
NO_DOMAIN = REFUSED + f"no topology domains at level: {LABEL}"
NO_ROOM = (
    REFUSED
    + 'topology "t" allows to fit only 2 out of 4 pod(s). Total nodes: 4; excluded: '
    + 'resource "nvidia.com/gpu": 2'
)


def tas_node(name: str, **labels: str) -> Object:
    return k8s.node(
        name, labels={"pool": "h"} | {k.replace("_", "/"): v for k, v in labels.items()}
    )


def racked(name: str) -> Object:
    return k8s.node(name, labels={"pool": "h", LABEL: "r1"})


def test_nodes_without_the_topology_label() -> None:
    report = ask(*held("TopologyPlacementFailed", NO_DOMAIN, *TAS, tas_node("n1"), tas_node("n2")))
    assert report.roots == ("topology-level-label-missing",)
    found = finding_of(report, "topology-level-label-missing")
    assert found.certainty is Certainty.CERTAIN
    assert f"Node/n1 metadata.labels[{LABEL}] absent" in shown(found)
    assert LABEL in found.title


def test_label_is_missing_by_kueues_word_alone() -> None:
    report = ask(*held("Pending", NO_DOMAIN))
    assert report.roots == ("topology-level-label-missing",)
    assert finding_of(report, "topology-level-label-missing").certainty is Certainty.LIKELY


def test_labelled_nodes_without_a_usable_domain() -> None:
    report = ask(*held("Pending", NO_DOMAIN, *TAS, racked("n1"), racked("n2")))
    assert report.roots == ("topology-placement-failed",)


def test_no_domain_has_room() -> None:
    report = ask(*held("TopologyPlacementFailed", NO_ROOM, *TAS, racked("n1"), racked("n2")))
    assert report.roots == ("topology-placement-failed",)
    assert "only 2 out of 4" in finding_of(report, "topology-placement-failed").detail


def test_some_nodes_without_label_explain_the_lack_of_room() -> None:
    report = ask(*held("Pending", NO_ROOM, *TAS, racked("n1"), tas_node("n2")))
    assert report.roots == ("topology-level-label-missing",)
    cause = finding_of(report, "topology-level-label-missing")
    assert cause.certainty is Certainty.LIKELY
    assert finding_of(report, "topology-placement-failed").caused_by == (cause.id,)


def test_nodes_of_another_flavor_need_no_label() -> None:
    other = k8s.node("n9", labels={"pool": "other"})
    report = ask(*held("Pending", NO_ROOM, *TAS, racked("n1"), other))
    assert report.roots == ("topology-placement-failed",)


def checked(state: str) -> Object:
    return workload(
        condition("QuotaReserved", "True", "QuotaReserved"),
        condition("Admitted", "False", "UnsatisfiedAdmissionChecks"),
        status={
            "admission": {"clusterQueue": "cq"},
            "admissionChecks": [{"name": "prov", "state": state, "message": "waiting for nodes"}],
        },
    )


@pytest.mark.parametrize("state", ["Pending", "Retry", "Rejected"])
def test_admission_check_is_open(state: str) -> None:
    report = ask(gated(), checked(state), local_queue(), cluster_queue())
    assert report.roots == ("admission-check-pending",)
    assert "waits for admission check prov" in finding_of(report, "admission-check-pending").title


def test_admission_check_that_is_ready_is_not_the_cause() -> None:
    report = ask(gated(), checked("Ready"), local_queue(), cluster_queue())
    assert "admission-check-pending" not in report.roots


def test_evicted_by_an_admission_check() -> None:
    checks = [{"name": "prov", "state": "Retry", "message": "no nodes"}]
    report = ask(*evicted("AdmissionCheck", status={"admissionChecks": checks}))
    assert report.roots == ("admission-check-pending",)


def test_inactive_admission_check_is_shown() -> None:
    strategy = {"admissionChecks": [{"name": "prov"}]}
    check = k8s.custom(
        GROUP, "AdmissionCheck", "prov", status={"conditions": [condition("Active", "False")]}
    )
    queue = cluster_queue(admissionChecksStrategy=strategy)
    found = finding_of(
        ask(gated(), checked("Pending"), local_queue(), queue, check), "admission-check-pending"
    )
    assert "AdmissionCheck/prov" in shown(found)


# What happened before


def evicted(reason: str, *more: Object, **kwargs: Any) -> list[Object]:
    put_out = condition("Evicted", "True", reason, f"because of {reason}")
    wl = workload(unreserved("WaitingForQuota", WAITING), put_out, *more, **kwargs)
    return [gated(), wl, local_queue(), cluster_queue()]


def test_pods_not_ready_in_time() -> None:
    report = ask(*evicted("PodsReadyTimeout", status={"requeueState": {"count": 2}}))
    assert report.roots == ("queue-evicted-pods-ready-timeout",)
    assert "after 2 tries" in finding_of(report, "queue-evicted-pods-ready-timeout").detail


def test_requeuing_limit_exceeded_is_the_timeout_too() -> None:
    objects = evicted("DeactivatedDueToRequeuingLimitExceeded", spec={"active": False})
    report = ask(*objects)
    assert report.roots == ("queue-evicted-pods-ready-timeout",)


def test_readmitted_after_the_timeout_is_over() -> None:
    objects = evicted("PodsReadyTimeout", condition("Admitted", "True"))
    assert "queue-evicted-pods-ready-timeout" not in root(*objects)


def test_preempted_by_kueue() -> None:
    how = condition("Preempted", "True", "InCohortReclamation", "Preempted to accommodate wl-2")
    report = ask(*evicted("Preempted", how))
    assert report.roots == ("preempted",)
    assert "InCohortReclamation" in finding_of(report, "preempted").title


def test_eviction_that_is_over_is_not_said() -> None:
    objects = held("WaitingForQuota", WAITING)
    objects[1]["status"]["conditions"].append(condition("Evicted", "False", "QuotaReserved"))
    assert root(*objects) == ("queue-waiting-for-quota",)


def test_workload_of_a_grandparent_is_found() -> None:
    pod = gated(ownerReferences=[k8s.owner("Job", "tj-node-0")])
    pod["metadata"]["labels"] = {"jobset.sigs.k8s.io/jobset-name": "tj"}
    wl = workload(
        unreserved("Pending", REFUSED + NEVER.format(flavor="h100")), name="trainjob-tj-1"
    )
    wl["metadata"]["ownerReferences"] = [k8s.owner("TrainJob", "tj", uid="x")]
    assert root(pod, wl, local_queue(), cluster_queue()) == ("queue-exceeds-max-quota",)
    wl["metadata"]["ownerReferences"] = [k8s.owner("TrainJob", "another", uid="x")]
    assert "queue-exceeds-max-quota" not in root(pod, wl, local_queue(), cluster_queue())


def test_gated_pod_says_nothing_about_nodes() -> None:
    report = ask(*held("Pending", REFUSED + NEVER.format(flavor="h100"), k8s.node()))
    assert report.verdict is Verdict.FAILING
    loud = {f.name for f in report.findings if f.severity is not Severity.INFO}
    assert loud == {"queue-exceeds-max-quota"}
    assert "queue-admitted" not in {f.name for f in report.findings}


# What is shown, and the edges


def test_maximum_from_the_queue_where_the_message_has_no_number() -> None:
    old = REFUSED + "insufficient quota for nvidia.com/gpu flavor h100 in ClusterQueue"
    found = finding_of(ask(*held("Pending", old)), "queue-exceeds-max-quota")
    assert "32 nvidia.com/gpu > 24" in found.title
    queue = cluster_queue(cohort="research")
    del queue["spec"]["resourceGroups"][0]["flavors"][0]["resources"][0]["borrowingLimit"]
    found = finding_of(ask(*held("Pending", old, queue=queue)), "queue-exceeds-max-quota")
    assert "its maximum" in found.title
    queue["spec"].pop("cohort")
    found = finding_of(ask(*held("Pending", old, queue=queue)), "queue-exceeds-max-quota")
    assert "> 16" in found.title


def test_only_the_refused_resource_is_shown() -> None:
    queue = cluster_queue()
    resources = queue["spec"]["resourceGroups"][0]["flavors"][0]["resources"]
    resources.append({"name": "cpu", "nominalQuota": "64"})
    found = finding_of(
        ask(*held("Pending", REFUSED + NEVER.format(flavor="h100"), queue=queue)),
        "queue-exceeds-max-quota",
    )
    assert "nvidia.com/gpu in flavor h100" in shown(found)
    assert "cpu" not in shown(found)
    found = finding_of(
        ask(*held("WaitingForQuota", WAITING, queue=queue)), "queue-waiting-for-quota"
    )
    assert "cpu" not in shown(found)


@pytest.mark.parametrize("held_in", [("nvidia.com/gpu", "a100"), ("cpu", "h100")])
def test_evicted_holder_of_another_flavor_or_resource(held_in: tuple[str, str]) -> None:
    resource, flavor = held_in
    other = holder(True)
    (assignment,) = other["status"]["admission"]["podSetAssignments"]
    assignment |= {"flavors": {resource: flavor}, "resourceUsage": {resource: "16"}}
    assert root(*held("WaitingForQuota", WAITING, other, LATER)) == ("queue-waiting-for-quota",)


def test_largest_holders_come_first() -> None:
    small, large = holder(False, gpus="2"), holder(False, gpus="14")
    large["metadata"]["name"] = "large"
    found = finding_of(
        ask(*held("WaitingForQuota", WAITING, small, large)), "queue-waiting-for-quota"
    )
    assert "team/large (14), team/old (2)" in found.detail
    assert "Workload/team/large status.admission holds 14 nvidia.com/gpu" in shown(found)


def test_what_a_workload_was_told_is_shown_where_it_was_put_out() -> None:
    how = condition("Preempted", "True", "InCohortReclamation", "for wl-2")
    evidence = shown(finding_of(ask(*evicted("Preempted", how)), "preempted"))
    assert "status.conditions[Evicted] True Preempted: because of Preempted" in evidence
    assert "status.conditions[Preempted] True InCohortReclamation: for wl-2" in evidence
    plain = finding_of(ask(*evicted("Preempted")), "preempted")
    assert "Kueue, Preempted" in plain.title


def test_admission_check_shows_state_and_message() -> None:
    found = finding_of(
        ask(gated(), checked("Retry"), local_queue(), cluster_queue()), "admission-check-pending"
    )
    assert "status.admissionChecks prov Retry: waiting for nodes" in shown(found)
    objects = evicted("AdmissionCheck")
    found = finding_of(ask(*objects), "admission-check-pending")
    assert "because of AdmissionCheck" in found.detail


def test_at_most_three_unlabelled_nodes_are_named() -> None:
    many = [tas_node(f"n{n}") for n in range(1, 6)]
    found = finding_of(
        ask(*held("Pending", NO_DOMAIN, *TAS, *many)), "topology-level-label-missing"
    )
    assert "5 of 5 nodes of flavor h100 lack the label" in found.detail
    assert "n3" in found.detail
    assert "n4" not in found.detail
