"""MIG, time-slicing, HAMi, Volcano vGPU: other names, other numbers, other limits."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gpudoctor.report import Blame, Certainty, Severity
from tests import kubernetes_objects as k8s
from tests.kubernetes_objects import Object, ask, condition, finding_of, shown

MISMATCH = "mig-resource-name-mismatch"
GPU = "nvidia.com/gpu"
SMALL = "nvidia.com/mig-1g.5gb"
MIXED = {"nvidia.com/mig.strategy": "mixed", "nvidia.com/mig.config.state": "success"}


def lacking(resource: str, nodes: int = 1) -> list[Object]:
    return k8s.pending(
        f"0/{nodes} nodes are available: {nodes} Insufficient {resource}. preemption: 0/{nodes} "
        f"nodes are available: {nodes} Preemption is not helpful for scheduling."
    )


def asking(resource: str = GPU, count: str = "1", nodes: int = 1, **more: Any) -> Object:
    return k8s.pod(limits={resource: count}, conditions=lacking(resource, nodes), **more)


def mig_node(name: str = "gpu-1") -> Object:
    return k8s.node(name, allocatable={GPU: "0", SMALL: "7"}, labels=MIXED)


# Names


def test_mixed_strategy_moves_the_cards_to_other_names() -> None:
    report = ask(asking(), mig_node())
    assert report.roots == ("mig-resource-name-mismatch",)
    found = finding_of(report, MISMATCH)
    assert found.certainty is Certainty.CERTAIN
    assert f"Node/gpu-1 status.allocatable {GPU} 0, {SMALL} 7" in shown(found)
    assert f"Pod/team/train-0 spec.containers[0].resources.limits {GPU} 1" in shown(found)


def test_key_that_is_absent_is_a_mismatch_too() -> None:
    report = ask(asking(), k8s.node(allocatable={SMALL: "7"}))
    assert report.roots == ("mig-resource-name-mismatch",)


@pytest.mark.parametrize(
    ("wanted", "offered"),
    [
        (SMALL, "nvidia.com/mig-3g.20gb"),
        (SMALL, GPU),
        (GPU, "nvidia.com/gpu.shared"),
        ("nvidia.com/gpu.shared", GPU),
        ("amd.com/gpu", "amd.com/cpx_nps4"),
    ],
)
def test_other_name_of_the_same_vendor(wanted: str, offered: str) -> None:
    report = ask(asking(wanted), k8s.node(allocatable={offered: "4"}))
    assert report.roots == ("mig-resource-name-mismatch",)
    assert offered in finding_of(report, MISMATCH).title


@pytest.mark.parametrize(
    "node",
    [
        k8s.node(allocatable={GPU: "8", SMALL: "7"}),
        k8s.node(allocatable={GPU: "1", SMALL: "7"}),
        k8s.node(allocatable={GPU: "0", SMALL: "7"}, capacity={GPU: "8", SMALL: "7"}),
        k8s.node(allocatable={GPU: "0"}),
        k8s.node(allocatable={"amd.com/gpu": "8"}),
    ],
    ids=["offered and full", "one is offered", "unhealthy", "nothing else", "another vendor"],
)
def test_not_a_mismatch(node: Object) -> None:
    full = k8s.pod("full", node="gpu-1", phase="Running", limits={GPU: "8"})
    report = ask(asking(), node, full)
    assert MISMATCH not in [finding.name for finding in report.findings]


def test_node_that_offers_it_elsewhere_counts_only_if_the_pod_may_go_there() -> None:
    whole = k8s.node("gpu-2", allocatable={GPU: "8"}, labels={"pool": "whole"})
    full = k8s.pod("full", node="gpu-2", phase="Running", limits={GPU: "8"})
    pod = asking(nodes=2)
    assert MISMATCH not in ask(pod, mig_node(), whole, full).roots
    said = "0/2 nodes are available: 1 Insufficient nvidia.com/gpu, 1 node(s) didn't match Pod's node affinity/selector."  # noqa: E501
    picky = k8s.pod(conditions=k8s.pending(said), spec={"nodeSelector": {"pool": "mig"}})
    mig = k8s.node("gpu-1", allocatable={GPU: "0", SMALL: "7"}, labels=MIXED | {"pool": "mig"})
    assert MISMATCH in ask(picky, mig, whole).roots


def test_nodes_that_are_not_in_the_input_make_it_likely() -> None:
    report = ask(asking(nodes=3), mig_node())
    assert finding_of(report, MISMATCH).certainty is Certainty.LIKELY


def test_bound_pod_has_no_mismatch() -> None:
    pod = k8s.pod(node="gpu-1", phase="Running", conditions=[condition("Ready", "True")])
    assert ask(pod, mig_node()).roots == ()


# MIG manager


def failed(layout: str, strategy: str = "mixed", **allocatable: str) -> Object:
    labels = {
        "nvidia.com/mig.config": layout,
        "nvidia.com/mig.config.state": "failed",
        "nvidia.com/mig.strategy": strategy,
    }
    return k8s.node(allocatable={GPU: "0"} | allocatable, labels=labels)


def test_layout_could_not_be_applied() -> None:
    report = ask(asking(SMALL), failed("all-1g.5gb"))
    assert report.roots == ("mig-config-failed",)
    found = finding_of(report, "mig-config-failed")
    assert found.severity is Severity.CRITICAL
    assert found.subject.kind == "Node"
    assert "metadata.labels[nvidia.com/mig.config] all-1g.5gb" in shown(found)


def test_failed_layout_is_told_instead_of_the_missing_names() -> None:
    report = ask(asking(SMALL), failed("all-1g.5gb"))
    assert "gpu-resource-not-advertised" not in report.roots
    node = failed("custom-layout")
    node["status"]["allocatable"]["nvidia.com/mig-7g.40gb"] = "1"
    report = ask(asking(SMALL), node)
    assert report.roots == ("mig-config-failed",)
    assert MISMATCH not in [found.name for found in report.findings]


@pytest.mark.parametrize(
    ("wanted", "layout", "strategy", "hurts"),
    [
        (GPU, "all-disabled", "mixed", True),
        (GPU, "all-1g.5gb", "single", True),
        (GPU, "all-1g.5gb", "mixed", False),
        (SMALL, "all-disabled", "mixed", False),
        (SMALL, "all-balanced", "mixed", True),
    ],
)
def test_failed_layout_matters_if_it_would_offer_the_resource(
    wanted: str, layout: str, strategy: str, hurts: bool
) -> None:
    found = finding_of(ask(asking(wanted), failed(layout, strategy)), "mig-config-failed")
    assert (found.severity is Severity.CRITICAL) is hurts


def test_failed_node_beside_one_that_offers_it_is_not_the_cause() -> None:
    other = k8s.node("gpu-2", allocatable={SMALL: "7"})
    full = k8s.pod("full", node="gpu-2", phase="Running", limits={SMALL: "7"})
    report = ask(asking(SMALL, nodes=2), failed("all-1g.5gb"), other, full)
    assert finding_of(report, "mig-config-failed").severity is Severity.INFO
    assert "mig-config-failed" not in report.roots


def test_layout_in_progress_is_not_failed() -> None:
    node = failed("all-1g.5gb")
    node["metadata"]["labels"]["nvidia.com/mig.config.state"] = "pending"
    names = [finding.name for finding in ask(asking(SMALL), node).findings]
    assert "mig-config-failed" not in names


# Replicas

ABOVE_ONE = (
    "Pod was rejected: Allocate failed due to rpc error: code = Unknown desc = invalid allocation "
    'request for "nvidia.com/gpu": unable to validate request: maximum request size for shared '
    "resources is 1; found 2, which is unexpected"
)


def rejected(message: str) -> Object:
    return k8s.pod(
        node="gpu-1",
        phase="Failed",
        limits={GPU: "2"},
        status={"reason": "UnexpectedAdmissionError", "message": message},
    )


def test_more_than_one_replica_is_refused() -> None:
    report = ask(rejected(ABOVE_ONE), k8s.node())
    assert report.roots == ("shared-gpu-request-above-one",)
    title = finding_of(report, "shared-gpu-request-above-one").title
    assert "asks for 2 of nvidia.com/gpu" in title


def test_other_refusals_are_not_about_replicas() -> None:
    message = (
        "Pod was rejected: Allocate failed due to requested number of devices unavailable for "
        "nvidia.com/gpu. Requested: 2, Available: 0, which is unexpected"
    )
    assert "shared-gpu-request-above-one" not in ask(rejected(message), k8s.node()).roots


PRODUCT = "nvidia.com/gpu.product"
CHANGED = "node-selector-label-changed-by-sharing"
NO_MATCH = "0/1 nodes are available: 1 node(s) didn't match Pod's node affinity/selector."


def selecting(product: str, *, affinity: bool = False, **more: str) -> Object:
    spec: Object = {"nodeSelector": {PRODUCT: product} | more}
    if affinity:
        expression = {"key": PRODUCT, "operator": "In", "values": [product]}
        terms = {"nodeSelectorTerms": [{"matchExpressions": [expression]}]}
        required = {"requiredDuringSchedulingIgnoredDuringExecution": terms}
        spec = {"affinity": {"nodeAffinity": required}}
    return k8s.pod(conditions=k8s.pending(NO_MATCH), spec=spec)


def product_node(product: str) -> Object:
    return k8s.node(labels={PRODUCT: product})


@pytest.mark.parametrize(
    ("selected", "offered"),
    [
        ("NVIDIA-A100-SXM4-40GB", "NVIDIA-A100-SXM4-40GB-SHARED"),
        ("NVIDIA-A100-SXM4-40GB", "NVIDIA-A100-SXM4-40GB-MIG-1g.5gb"),
        ("NVIDIA-A100-SXM4-40GB", "NVIDIA-A100-SXM4-40GB-MIG-1g.5gb-SHARED"),
        ("NVIDIA-A100-SXM4-40GB-SHARED", "NVIDIA-A100-SXM4-40GB"),
    ],
)
@pytest.mark.parametrize("affinity", [False, True])
def test_product_label_changed_by_sharing(selected: str, offered: str, affinity: bool) -> None:
    report = ask(selecting(selected, affinity=affinity), product_node(offered))
    assert report.roots == ("node-selector-label-changed-by-sharing",)
    assert f"Node/gpu-1 metadata.labels[{PRODUCT}] {offered}" in shown(finding_of(report, CHANGED))


def test_other_product_is_not_sharing() -> None:
    report = ask(selecting("NVIDIA-A100-SXM4-40GB"), product_node("NVIDIA-A100-SXM4-80GB"))
    assert CHANGED not in [finding.name for finding in report.findings]


def test_another_selector_keeps_the_node_out_too() -> None:
    pod = selecting("NVIDIA-A100-SXM4-40GB", zone="b")
    report = ask(pod, product_node("NVIDIA-A100-SXM4-40GB-SHARED"))
    assert CHANGED not in [finding.name for finding in report.findings]


def test_some_node_bears_the_exact_label() -> None:
    exact = k8s.node("gpu-2", labels={PRODUCT: "NVIDIA-A100-SXM4-40GB"}, unschedulable=True)
    report = ask(
        selecting("NVIDIA-A100-SXM4-40GB"), product_node("NVIDIA-A100-SXM4-40GB-SHARED"), exact
    )
    assert CHANGED not in [finding.name for finding in report.findings]


# Scheduler extenders

REGISTER = "hami.io/node-nvidia-register"
NO_CARD = "hami-no-card-fits"
WRONG = "wrong-scheduler-name"


def card(memory: int = 40960, number: int = 0, **more: Any) -> Object:
    return {
        "id": f"GPU-{number}",
        "count": 10,
        "devmem": memory,
        "devcore": 100,
        "type": "NVIDIA-A100",
        "health": True,
    } | more


def hami_node(*cards: Object, name: str = "gpu-1", annotation: str | None = None) -> Object:
    text = annotation if annotation is not None else json.dumps(list(cards or (card(),)))
    return k8s.node(name, allocatable={GPU: "10"}, annotations={REGISTER: text})


def slice_pod(
    memory: str = "45000", *, cards: str = "1", scheduler: str = "hami-scheduler", said: str = ""
) -> Object:
    return k8s.pod(
        limits={GPU: cards, "nvidia.com/gpumem": memory},
        conditions=k8s.pending(said or "0/1 nodes are available: 1 NodeUnfitPod."),
        spec={"schedulerName": scheduler},
    )


def filtered(pod: Object, message: str, seen: str = "2026-11-20T08:20:00Z") -> Object:
    return k8s.event(pod, "FilteringFailed", message, component="hami-scheduler", seen=seen)


def test_slice_above_every_card() -> None:
    pod = slice_pod()
    refused = filtered(pod, "1 nodes CardInsufficientMemory(gpu-1)")
    report = ask(pod, refused, hami_node())
    assert report.roots == ("hami-no-card-fits",)
    found = finding_of(report, NO_CARD)
    assert "45000 MiB on one card, and the largest has 40960 MiB" in found.title
    assert found.blame is Blame.REQUEST
    assert "devmem 40960" in shown(found)


def test_slice_that_an_empty_card_could_hold_waits_for_room() -> None:
    pod = slice_pod("20000")
    report = ask(pod, filtered(pod, "1 nodes CardInsufficientMemory(gpu-1)"), hami_node())
    found = finding_of(report, NO_CARD)
    assert "no card has that much memory left" in found.title
    assert found.blame is Blame.PLACEMENT


@pytest.mark.parametrize(
    "annotation",
    [
        "GPU-0,10,40960,100,NVIDIA-A100,0,true:",
        "GPU-0,10,40960,100,NVIDIA-A100,0,true,0,hami-core:",
        json.dumps([card()]),
    ],
)
def test_cards_are_read_in_every_form(annotation: str) -> None:
    report = ask(slice_pod(), hami_node(annotation=annotation))
    assert report.roots == ("hami-no-card-fits",)
    assert finding_of(report, NO_CARD).certainty is Certainty.CERTAIN
    report = ask(slice_pod(), hami_node(annotation=annotation), complete=False)
    assert finding_of(report, NO_CARD).certainty is Certainty.LIKELY


def test_unreadable_register_proves_nothing() -> None:
    report = ask(
        slice_pod(said="0/1 nodes are available: 1 Too many pods."), hami_node(annotation="{")
    )
    assert NO_CARD not in [finding.name for finding in report.findings]


@pytest.mark.parametrize(
    "code",
    [
        "CardTypeMismatch",
        "CardUuidMismatch",
        "CardTimeSlicingExhausted",
        "CardComputeUnitsExhausted",
        "CardInsufficientCore",
        "CardNotHealth",
        "CardCordoned",
        "NumaNotFit",
        "ExclusiveDeviceAllocateConflict",
        "CardNotFoundCustomFilterRule",
        "CardMigTopologyInfeasible",
        "NodeInsufficientDevice",
        "AllocatedCardsInsufficientRequest",
        "ModeNotFit",
    ],
)
def test_each_code(code: str) -> None:
    pod = slice_pod("10000")
    report = ask(pod, filtered(pod, f"2 nodes {code}(gpu-1,gpu-2)"), hami_node())
    found = finding_of(report, NO_CARD)
    assert f"2 nodes {code}" in found.detail
    assert found.certainty is Certainty.CERTAIN


def test_code_of_an_hour_ago_is_not_said() -> None:
    pod = slice_pod("10000")
    old = filtered(pod, "1 nodes CardNotHealth(gpu-1)", seen="2026-11-20T07:20:00Z")
    new = filtered(pod, "1 nodes CardTimeSlicingExhausted(gpu-1)")
    assert "CardNotHealth" not in finding_of(ask(pod, old, new, hami_node()), NO_CARD).detail


def test_more_cards_than_a_node_has() -> None:
    found = finding_of(ask(slice_pod("1000", cards="2"), hami_node()), NO_CARD)
    assert "2 cards on one node, and the largest node has 1" in found.title
    wide = hami_node(card(), card(number=1))
    said = "0/1 nodes are available: 1 Too many pods."
    report = ask(slice_pod("1000", cards="2", said=said), wide)
    assert NO_CARD not in [finding.name for finding in report.findings]


def test_volcano_vgpu() -> None:
    said = "0/1 nodes are unavailable: 1 not enough gpu fitted on this node."
    pod = k8s.pod(
        limits={"volcano.sh/vgpu-number": "1", "volcano.sh/vgpu-memory": "45000"},
        conditions=k8s.pending(said),
        spec={"schedulerName": "volcano"},
    )
    text = "GPU-0,10,40960,NVIDIA-A100,true:"
    node = k8s.node(
        allocatable={"volcano.sh/vgpu-number": "10", "volcano.sh/vgpu-memory": "40960"},
        annotations={"volcano.sh/node-vgpu-register": text},
    )
    report = ask(pod, node)
    assert "the largest has 40960 MiB" in finding_of(report, NO_CARD).title


def test_namespace_quota_is_used_up() -> None:
    pod = slice_pod("1000")
    quota = k8s.custom(
        "v1",
        "ResourceQuota",
        "gpus",
        "team",
        status={
            "hard": {"limits.nvidia.com/gpumem": "8000"},
            "used": {"limits.nvidia.com/gpumem": "7500"},
        },
    )
    report = ask(pod, filtered(pod, "1 nodes ResourceQuotaNotFit(gpu-1)"), hami_node(), quota)
    assert report.roots == ("resourcequota-exceeded",)
    assert "7500 vs 8000" in shown(finding_of(report, "resourcequota-exceeded"))
    both = filtered(pod, "1 nodes CardInsufficientMemory(gpu-1)")
    quota_too = filtered(pod, "1 nodes ResourceQuotaNotFit(gpu-2)")
    assert ask(pod, both, quota_too, hami_node(), quota).roots == ("hami-no-card-fits",)


@pytest.mark.parametrize("has_event", [True, False])
def test_node_that_did_not_register(has_event: bool) -> None:
    pod = slice_pod("1000", said="0/1 nodes are available: 1 node unregistered.")
    event = filtered(pod, "node unregistered")
    events = [event] if has_event else []
    report = ask(pod, *events, k8s.node(allocatable={GPU: "10"}))
    assert report.roots == ("gpu-resource-not-advertised",)
    assert NO_CARD not in [finding.name for finding in report.findings]


def test_slice_given_to_the_wrong_scheduler() -> None:
    said = "0/1 nodes are available: 1 Insufficient nvidia.com/gpumem."
    report = ask(slice_pod("1000", scheduler="default-scheduler", said=said), hami_node())
    assert report.roots == ("wrong-scheduler-name",)
    found = finding_of(report, WRONG)
    assert "default-scheduler, but needs hami-scheduler" in found.title
    assert "Pod/team/train-0 spec.schedulerName default-scheduler" in shown(found)


def test_volcano_slice_given_to_the_wrong_scheduler() -> None:
    said = "0/1 nodes are available: 1 Insufficient volcano.sh/vgpu-memory."
    limits = {"volcano.sh/vgpu-number": "1", "volcano.sh/vgpu-memory": "1000"}
    pod = k8s.pod(limits=limits, conditions=k8s.pending(said))
    assert "needs volcano" in finding_of(ask(pod, k8s.node()), WRONG).title
    # Where nodes advertise it, it is a matter of capacity.
    node = k8s.node(allocatable={"volcano.sh/vgpu-number": "1", "volcano.sh/vgpu-memory": "500"})
    assert WRONG not in [finding.name for finding in ask(pod, node).findings]


def test_plain_gpu_on_the_default_scheduler_is_right() -> None:
    report = ask(asking(), k8s.node(allocatable={GPU: "0"}))
    assert WRONG not in [finding.name for finding in report.findings]


def test_scheduler_that_nobody_runs() -> None:
    pod = k8s.pod(spec={"schedulerName": "my-scheduler"})
    later = k8s.event(k8s.node(), "NodeReady", "ready", type="Normal")
    report = ask(pod, k8s.node(), later)
    assert report.roots == ("wrong-scheduler-name",)
    assert finding_of(report, WRONG).certainty is Certainty.LIKELY


@pytest.mark.parametrize(
    "change",
    [
        {"spec": {"schedulerName": "default-scheduler"}},
        {"spec": {"schedulerName": "my-scheduler"}, "conditions": lacking(GPU)},
        {
            "spec": {"schedulerName": "volcano"},
            "meta": {"annotations": {"scheduling.k8s.io/group-name": "pg"}},
        },
        {"spec": {"schedulerName": "my-scheduler", "schedulingGates": [{"name": "x"}]}},
    ],
    ids=["default", "answered", "grouped", "gated"],
)
def test_not_an_absent_scheduler(change: Object) -> None:
    later = k8s.event(k8s.node(), "NodeReady", "ready", type="Normal")
    report = ask(k8s.pod(**change), k8s.node(), later)
    assert WRONG not in [finding.name for finding in report.findings]


# The slice's limit in the process

QUOTA = "engine-memory-exceeds-vgpu-quota"
HOOK = (
    "[HAMI-core ERROR (pid:41 thread=1 allocator.c:52)]: Device 0 OOM 42634051584 / 41943040000\n"
)
TORCH = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 512.00 MiB. GPU 0 has a total "
    "capacity of {total} GiB\n"
)


def crashing(memory: str | None = "40000", *args: str, ready: str = "False") -> Object:
    limits = {GPU: "1"} | ({"nvidia.com/gpumem": memory} if memory else {})
    crash = {"terminated": {"exitCode": 1, "reason": "Error"}}
    waiting = {"waiting": {"reason": "CrashLoopBackOff"}}
    status = k8s.container_status(
        restartCount=0 if ready == "True" else 5,
        state={"running": {}} if ready == "True" else waiting,
        lastState={} if ready == "True" else crash,
    )
    return k8s.pod(
        node="gpu-1",
        phase="Running",
        containers=[k8s.container(limits=limits, args=list(args))],
        conditions=[condition("Ready", ready)],
        statuses=[status],
        spec={"schedulerName": "hami-scheduler"},
    )


def log(text: str) -> dict[str, str]:
    return {"team/train-0/main": text}


def test_slicing_library_refuses_memory() -> None:
    pod = crashing("40000", "--gpu-memory-utilization", "0.97")
    report = ask(pod, hami_node(card(81559)), logs=log(HOOK + TORCH.format(total="39.06")))
    assert report.roots == ("engine-memory-exceeds-vgpu-quota",)
    found = finding_of(report, QUOTA)
    assert "slice of 40000 MiB" in found.title
    assert "memory fraction 0.97 counts from that" in found.detail
    assert "0.49" not in json.dumps([found.detail, found.fix])
    assert "42634051584 / 41943040000" in shown(found)
    assert "spec.containers[0].args memory fraction 0.97" in shown(found)


def test_engine_that_sees_the_whole_card() -> None:
    report = ask(crashing(), hami_node(card(81559)), logs=log(HOOK + TORCH.format(total="79.65")))
    assert "must stay below 0.49" in finding_of(report, QUOTA).detail


def test_out_of_memory_at_the_slice_without_the_librarys_line() -> None:
    lines = log(TORCH.format(total="39.06"))
    found = finding_of(ask(crashing(), hami_node(card(81559)), logs=lines), QUOTA)
    assert found.certainty is Certainty.CERTAIN
    # The card is not known.
    assert finding_of(ask(crashing(), logs=lines), QUOTA).certainty is Certainty.LIKELY


@pytest.mark.parametrize(
    ("memory", "card_mib", "total"),
    [("40000", 81559, "79.65"), (None, 81559, "79.65"), ("40960", 40960, "39.50")],
    ids=["the card's total", "no slice asked", "slice is the card"],
)
def test_card_itself_is_full(memory: str | None, card_mib: int, total: str) -> None:
    report = ask(crashing(memory), hami_node(card(card_mib)), logs=log(TORCH.format(total=total)))
    assert QUOTA not in [finding.name for finding in report.findings]


def test_pod_that_lives_with_its_limit_is_only_warned() -> None:
    report = ask(crashing(ready="True"), hami_node(card(81559)), logs=log(HOOK))
    assert finding_of(report, QUOTA).severity is Severity.WARNING


# What is shown, and what proves nothing


def test_schedulers_words_are_shown_where_no_event_has_them() -> None:
    said = "0/1 nodes are available: 1 CardTypeMismatch."
    found = finding_of(ask(slice_pod("1000", said=said), hami_node()), NO_CARD)
    assert "status.conditions[PodScheduled] 1 CardTypeMismatch" in shown(found)
    assert found.certainty is Certainty.LIKELY
    pod = slice_pod("1000", said=said)
    by_event = ask(pod, filtered(pod, "1 nodes CardTypeMismatch(gpu-1)"), hami_node())
    assert "1 CardTypeMismatch\n" not in shown(finding_of(by_event, NO_CARD))


def test_one_unreadable_node_may_have_the_larger_card() -> None:
    said = "0/2 nodes are available: 2 Too many pods."
    broken = hami_node(name="gpu-2", annotation="{")
    report = ask(slice_pod(said=said), hami_node(), broken)
    assert NO_CARD not in [finding.name for finding in report.findings]


def test_nodes_in_a_row_are_all_named() -> None:
    report = ask(asking(nodes=2), mig_node("gpu-1"), mig_node("gpu-2"))
    found = finding_of(report, MISMATCH)
    assert "gpu-1, gpu-2 gives" in found.detail
    assert "FailedScheduling" not in shown(found)
    assert "status.conditions[PodScheduled] Unschedulable" in shown(found)


def test_slices_limit_of_the_newest_line_counts() -> None:
    older = HOOK.replace("41943040000", "20971520000")
    found = finding_of(ask(crashing(), hami_node(card(81559)), logs=log(older + HOOK)), QUOTA)
    assert "slice of 40000 MiB" in found.title
    assert found.certainty is Certainty.CERTAIN


def test_slice_without_gpumem_is_known_by_the_librarys_line() -> None:
    found = finding_of(ask(crashing(None), hami_node(card(81559)), logs=log(HOOK)), QUOTA)
    assert "of a card with 81559 MiB" in found.detail
    assert "The engine sees" not in found.detail
