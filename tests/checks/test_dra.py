"""DRA: why a claim is not allocated, why it is not prepared, and cards that two give out."""

from __future__ import annotations

from typing import Any

import pytest

from gpudoctor.report import Certainty, Severity
from tests import kubernetes_objects as k8s
from tests.kubernetes_objects import Object, ask, condition, finding_of, shown

V1 = "resource.k8s.io/v1"
REFUSED = (
    "0/2 nodes are available: 2 cannot allocate all claims. still not schedulable, preemption: "
    "0/2 nodes are available: 2 Preemption is not helpful for scheduling."
)
INVALID = (
    "0/2 nodes are available: 2 cannot allocate all claims, invalid resource pools were "
    "encountered."
)
XID = {"key": "gpu.nvidia.com/xid", "value": "79", "effect": "NoSchedule"}


def claiming(said: str | None = REFUSED, *, reason: str = "Unschedulable", **more: Any) -> Object:
    return k8s.pod(
        limits={},
        conditions=k8s.pending(said, reason) if said else [],
        spec={"resourceClaims": [{"name": "gpu", "resourceClaimName": "claim"}]},
        **more,
    )


def on_node(**more: Any) -> Object:
    return claiming(None, node="gpu-1", **more)


def request(count: int = 1, **more: Any) -> Object:
    return {
        "deviceClassName": "gpu.nvidia.com",
        "allocationMode": "ExactCount",
        "count": count,
    } | more


def claim(
    asked: Object | None = None,
    *devices: str,
    name: str = "claim",
    api: str = V1,
    driver: str = "gpu.nvidia.com",
    config: list[Object] | None = None,
) -> Object:
    body = asked or request()
    first = {"name": "r"} | (body if api.endswith("v1beta1") else {"exactly": body})
    results = [
        {"request": "r", "driver": driver, "pool": "gpu-1", "device": device} for device in devices
    ]
    status: Object = {}
    if devices:
        status["allocation"] = {"devices": {"results": results}}
        status["reservedFor"] = [{"resource": "pods", "name": "train-0"}]
    spec = {"devices": {"requests": [first], "config": config or []}}
    return k8s.custom(api, "ResourceClaim", name, "team", spec=spec, status=status)


def slice_(
    *devices: Object,
    node: str = "gpu-1",
    name: str = "slice-1",
    generation: int = 1,
    count: int = 1,
    driver: str = "gpu.nvidia.com",
    api: str = V1,
) -> Object:
    listed = [
        {"name": d["name"], "basic": {k: v for k, v in d.items() if k != "name"}}
        if api.endswith("v1beta1")
        else d
        for d in devices
    ]
    pool = {"name": node, "generation": generation, "resourceSliceCount": count}
    spec = {"driver": driver, "nodeName": node, "pool": pool, "devices": listed}
    return k8s.custom(api, "ResourceSlice", name, spec=spec)


def device(number: int = 0, *taints: Object, uuid: str | None = None) -> Object:
    attributes = {
        "type": {"string": "gpu"},
        "uuid": {"string": uuid or f"GPU-{number}"},
        "productName": {"string": "NVIDIA H100 80GB HBM3"},
    }
    return {"name": f"gpu-{number}", "attributes": attributes, "taints": list(taints)}


def node(gpus: str | None = None) -> Object:
    return k8s.node(allocatable={"nvidia.com/gpu": gpus} if gpus else {})


# Before placement


def test_free_devices_that_do_not_match() -> None:
    selector = [{"cel": {"expression": "device.attributes['gpu.nvidia.com'].memory > 200"}}]
    report = ask(claiming(), claim(request(selectors=selector)), slice_(device()), node())
    assert report.roots == ("dra-no-matching-device",)
    found = finding_of(report, "dra-no-matching-device")
    assert found.certainty is Certainty.CERTAIN
    assert "ResourceClaim/team/claim spec.devices.requests 1 of class gpu.nvidia.com" in shown(
        found
    )
    assert any("memory > 200" in unknown.what for unknown in report.unknown)


def test_no_device_is_published_at_all() -> None:
    report = ask(claiming(), claim(), node())
    assert report.roots == ("dra-no-matching-device",)
    assert "no driver publishes" in finding_of(report, "dra-no-matching-device").detail
    partial = finding_of(ask(claiming(), claim(), node(), complete=False), "dra-no-matching-device")
    assert partial.certainty is Certainty.LIKELY


@pytest.mark.parametrize("api", ["resource.k8s.io/v1beta1", "resource.k8s.io/v1beta2", V1])
def test_every_served_version(api: str) -> None:
    tainted = slice_(device(0, XID), api=api)
    report = ask(claiming(), claim(api=api), tainted, node())
    assert report.roots == ("dra-device-tainted",)
    assert "gpu.nvidia.com/xid=79:NoSchedule" in finding_of(report, "dra-device-tainted").title


def test_taint_that_is_tolerated_is_not_the_cause() -> None:
    tolerant = request(tolerations=[{"key": "gpu.nvidia.com/xid", "operator": "Exists"}])
    report = ask(claiming(), claim(tolerant), slice_(device(0, XID)), node())
    assert report.roots == ("dra-no-matching-device",)


def test_taint_without_effect_is_not_the_cause() -> None:
    harmless = {"key": "gpu.nvidia.com/unmonitored", "effect": "None"}
    report = ask(claiming(), claim(), slice_(device(0, harmless)), node())
    assert report.roots == ("dra-no-matching-device",)


def test_tainted_device_beside_a_free_one_is_not_the_cause() -> None:
    report = ask(claiming(), claim(), slice_(device(0, XID), device(1)), node())
    assert report.roots == ("dra-no-matching-device",)
    report = ask(claiming(), claim(request(2)), slice_(device(0, XID), device(1)), node())
    assert report.roots == ("dra-device-tainted",)


def test_claim_of_all_devices_meets_one_taint() -> None:
    everything = request(allocationMode="All")
    report = ask(claiming(), claim(everything), slice_(device(0, XID), device(1)), node())
    assert report.roots == ("dra-device-tainted",)


def test_taint_rule_of_the_administrator() -> None:
    rule = k8s.custom(
        "resource.k8s.io/v1beta2",
        "DeviceTaintRule",
        "drain",
        spec={"deviceSelector": {"driver": "gpu.nvidia.com", "pool": "gpu-1"}, "taint": XID},
    )
    report = ask(claiming(), claim(), slice_(device()), rule, node())
    assert report.roots == ("dra-device-tainted",)
    assert "DeviceTaintRule/drain" in shown(finding_of(report, "dra-device-tainted"))
    rule["spec"]["deviceSelector"]["pool"] = "another"
    assert ask(claiming(), claim(), slice_(device()), rule, node()).roots == (
        "dra-no-matching-device",
    )


def test_devices_that_others_hold() -> None:
    other = claim(None, "gpu-0", name="other")
    report = ask(claiming(), claim(), other, slice_(device()), node())
    assert report.roots == ("gpu-capacity-exhausted",)


def test_administrative_claims_hold_nothing() -> None:
    other = claim(request(adminAccess=True), "gpu-0", name="other")
    report = ask(claiming(), claim(), other, slice_(device()), node())
    assert report.roots == ("dra-no-matching-device",)


def test_pool_lacks_slices() -> None:
    report = ask(claiming(INVALID), claim(), slice_(device(), count=2), node())
    assert report.roots == ("dra-pool-incomplete",)
    found = finding_of(report, "dra-pool-incomplete")
    assert found.certainty is Certainty.CERTAIN
    assert "1 of 2 slices of generation 1" in found.detail


def test_pool_is_complete_with_its_second_slice() -> None:
    second = slice_(device(1), name="slice-2", count=2)
    report = ask(claiming(), claim(), slice_(device(), count=2), second, node())
    assert report.roots == ("dra-no-matching-device",)


def test_only_the_highest_generation_counts() -> None:
    old = [slice_(device(n), name=f"old-{n}", generation=1, count=2) for n in range(2)]
    new = slice_(device(0), name="new", generation=2, count=2)
    report = ask(claiming(INVALID), claim(), *old, new, node())
    found = finding_of(report, "dra-pool-incomplete")
    assert "1 of 2 slices of generation 2" in found.detail
    assert "2 more of an older one" in found.detail


def test_slices_missing_from_a_partial_input_prove_nothing() -> None:
    report = ask(claiming(), claim(), slice_(device(), count=2), node(), complete=False)
    assert "dra-pool-incomplete" not in report.roots


def test_pool_of_another_driver_does_not_matter() -> None:
    other = slice_(device(), driver="dra.net", node="gpu-2", name="net", count=3)
    report = ask(claiming(), claim(), slice_(device()), other, node())
    assert report.roots == ("dra-no-matching-device",)


def test_class_names_its_driver() -> None:
    gpus = k8s.custom(
        V1,
        "DeviceClass",
        "big",
        spec={"selectors": [{"cel": {"expression": "device.driver == 'gpu.acme.com'"}}]},
    )
    tainted = slice_(device(0, XID), driver="gpu.acme.com")
    report = ask(claiming(), claim(request(deviceClassName="big")), gpus, tainted, node())
    assert report.roots == ("dra-device-tainted",)


def test_extended_resource_served_by_dra() -> None:
    gpus = k8s.custom(
        V1, "DeviceClass", "gpu.nvidia.com", spec={"extendedResourceName": "nvidia.com/gpu"}
    )
    pod = k8s.pod(conditions=k8s.pending(REFUSED))
    report = ask(pod, gpus, slice_(device(0, XID)), node())
    assert report.roots == ("dra-device-tainted",)


def test_other_refusals_are_not_about_claims() -> None:
    said = "0/1 nodes are available: 1 Insufficient cpu."
    report = ask(claiming(said), claim(), slice_(device(0, XID)), node())
    assert not [name for name in report.roots if name.startswith("dra-")]


def test_claim_that_was_not_made_is_unknown() -> None:
    said = "0/1 nodes are available: waiting for resource claim to be created."
    report = ask(claiming(said), node())
    assert any("claim" in unknown.what for unknown in report.unknown)
    assert not [name for name in report.roots if name.startswith("dra-")]


# On the node


def failing(message: str, **more: Any) -> list[Object]:
    pod = on_node(**more)
    full = "Failed to prepare dynamic resources: " + message
    return [pod, k8s.event(pod, "FailedPrepareDynamicResources", full, component="kubelet"), node()]


@pytest.mark.parametrize(
    "message",
    [
        "prepare dynamic resources: DRA driver gpu.nvidia.com is not registered",
        "failed to get gRPC client for driver gpu.nvidia.com: plugin name gpu.nvidia.com not found "
        "in the list of registered DRA plugins",
    ],
)
def test_driver_is_not_registered(message: str) -> None:
    report = ask(*failing(message), claim(None, "gpu-0"), slice_(device()))
    assert report.roots == ("dra-driver-not-registered",)
    found = finding_of(report, "dra-driver-not-registered")
    assert found.title == "DRA driver gpu.nvidia.com is not registered on gpu-1"
    assert "gpu.nvidia.com/gpu-1/gpu-0; reserved for train-0" in shown(found)
    assert "ResourceSlice/slice-1" in shown(found)


def test_prepare_failed_for_another_reason() -> None:
    message = (
        "NodePrepareResources failed for ResourceClaim claim: error preparing devices: "
        "unable to create CDI spec file"
    )
    report = ask(*failing(message), claim(None, "gpu-0"), slice_(device()))
    assert report.roots == ("dra-prepare-failed",)
    assert "team/claim" in finding_of(report, "dra-prepare-failed").title


def test_prepare_failure_of_a_pod_that_runs_is_over() -> None:
    report = ask(
        *failing("NodePrepareResources failed", phase="Running"),
        claim(None, "gpu-0"),
        slice_(device()),
    )
    assert "dra-prepare-failed" not in report.roots


WAIT = "NodePrepareResources failed for claim claim: current node not ready in ComputeDomain"
DOMAIN = "compute-domain.nvidia.com"


def domain(
    status: str = "NotReady", joined: tuple[str, ...] = ("gpu-1",), wanted: int = 2
) -> Object:
    found = k8s.custom(
        "resource.nvidia.com/v1beta1",
        "ComputeDomain",
        "cd",
        "team",
        spec={"numNodes": wanted, "channel": {"resourceClaimTemplate": {"name": "cd-channel"}}},
        status={"status": status, "nodes": [{"name": n, "status": "Ready"} for n in joined]},
    )
    found["metadata"]["uid"] = "domain-uid"
    return found


def channel() -> Object:
    config = [{"opaque": {"driver": DOMAIN, "parameters": {"domainID": "domain-uid"}}}]
    asked = request(deviceClassName="compute-domain-default-channel.nvidia.com")
    return claim(asked, "channel-0", driver=DOMAIN, config=config)


def test_compute_domain_waits_for_nodes() -> None:
    report = ask(*failing(WAIT), channel(), domain())
    assert report.roots == ("compute-domain-not-ready",)
    found = finding_of(report, "compute-domain-not-ready")
    assert "1 of 2 nodes have joined" in found.detail
    assert "ComputeDomain/team/cd status.status NotReady" in shown(found)
    assert found.certainty is Certainty.CERTAIN


def test_compute_domain_by_its_status_alone() -> None:
    report = ask(on_node(), channel(), domain(), node())
    assert finding_of(report, "compute-domain-not-ready").certainty is Certainty.LIKELY


def test_compute_domain_over_two_cliques() -> None:
    nodes = [k8s.node(f"gpu-{n}", labels={"nvidia.com/gpu.clique": f"c.{n}"}) for n in (1, 2)]
    pod, event, _ = failing(WAIT)
    report = ask(pod, event, channel(), domain(joined=("gpu-1", "gpu-2")), *nodes)
    found = finding_of(report, "compute-domain-not-ready")
    assert "several NVLink cliques" in found.detail
    assert "Node/gpu-2 metadata.labels[nvidia.com/gpu.clique] c.2" in shown(found)


def test_domain_that_is_ready_or_of_another_is_not_the_cause() -> None:
    assert ask(on_node(), channel(), domain("Ready"), node()).roots == ()
    other = domain()
    other["metadata"]["uid"] = "another"
    assert ask(on_node(), channel(), other, node()).roots == ()


def test_missing_driver_explains_the_domain() -> None:
    message = f"DRA driver {DOMAIN} is not registered"
    report = ask(*failing(message), channel(), domain())
    assert report.roots == ("dra-driver-not-registered",)
    assert finding_of(report, "compute-domain-not-ready").caused_by


# Devices that were tainted later


def test_evicted_for_a_device_taint() -> None:
    pod = claiming(None, node="gpu-1", phase="Failed")
    pod["status"]["conditions"] = [
        condition("DisruptionTarget", "True", "DeletionByDeviceTaintManager", "taint xid")
    ]
    evicting = XID | {"effect": "NoExecute"}
    report = ask(pod, claim(None, "gpu-0"), slice_(device(0, evicting)), node())
    assert report.roots == ("dra-device-tainted",)


@pytest.mark.parametrize(
    ("ready", "severity"), [("True", Severity.INFO), ("False", Severity.WARNING)]
)
def test_own_device_tainted_while_running(ready: str, severity: Severity) -> None:
    pod = claiming(None, node="gpu-1", phase="Running")
    pod["status"]["conditions"] = [condition("Ready", ready)]
    report = ask(pod, claim(None, "gpu-0"), slice_(device(0, XID), device(1)), node())
    assert finding_of(report, "dra-device-tainted").severity is severity
    other = claim(None, "gpu-1")
    report = ask(pod, other, slice_(device(0, XID), device(1)), node())
    assert "dra-device-tainted" not in [f.name for f in report.findings]


# Two that give out the same cards


def plugin_pod(gpus: str = "1", uuid: str | None = None, name: str = "other") -> Object:
    devices = [{"resourceID": uuid, "health": "Healthy"}] if uuid else []
    status = k8s.container_status(
        ready=True, allocatedResourcesStatus=[{"name": "nvidia.com/gpu", "resources": devices}]
    )
    return k8s.pod(
        name, node="gpu-1", phase="Running", limits={"nvidia.com/gpu": gpus}, statuses=[status]
    )


def dra_pod(log: bool = False, uuid_of: str | None = None) -> Object:
    pod = claiming(None, node="gpu-1", phase="Running")
    devices = [{"resourceID": f"gpu.nvidia.com/gpu-1/{uuid_of}", "health": "Healthy"}]
    named = [{"name": "claim:gpu/r", "resources": devices}] if uuid_of else []
    pod["status"]["conditions"] = [condition("Ready", "False" if log else "True")]
    pod["status"]["containerStatuses"] = [
        k8s.container_status(ready=not log, allocatedResourcesStatus=named)
    ]
    return pod


NAME = "dra-device-plugin-double-allocation"
PUBLISHED = slice_(device(0), device(1))


def test_same_card_given_twice() -> None:
    objects = [dra_pod(uuid_of="gpu-0"), claim(None, "gpu-0"), PUBLISHED, node("2")]
    report = ask(*objects, plugin_pod(uuid="GPU-0"))
    assert report.roots[0] == "dra-device-plugin-double-allocation"
    found = finding_of(report, NAME)
    assert (found.severity, found.certainty) == (Severity.CRITICAL, Certainty.CERTAIN)
    assert "team/other and team/train-0" in found.detail
    # Another card: both are in use, and nothing is given twice yet.
    report = ask(*objects, plugin_pod(uuid="GPU-1"))
    assert finding_of(report, NAME).severity is Severity.WARNING


def test_more_given_than_there_are_cards() -> None:
    objects = [dra_pod(), claim(request(2), "gpu-0", "gpu-1"), PUBLISHED, node("2")]
    assert finding_of(ask(*objects, plugin_pod("1")), NAME).certainty is Certainty.CERTAIN


def test_out_of_memory_where_both_give_out() -> None:
    objects = [dra_pod(log=True), claim(None, "gpu-0"), PUBLISHED, node("2"), plugin_pod()]
    logs = {"team/train-0/main": "torch.OutOfMemoryError: CUDA out of memory.\n"}
    report = ask(*objects, logs=logs)
    assert finding_of(report, NAME).severity is Severity.CRITICAL


@pytest.mark.parametrize(
    "changed",
    [
        [PUBLISHED, node(), plugin_pod()],
        [PUBLISHED, node("0"), plugin_pod()],
        [slice_(device(0), driver=DOMAIN), node("2"), plugin_pod()],
        [slice_(device(0), node="gpu-2"), node("2"), plugin_pod()],
        [PUBLISHED, node("2")],
    ],
    ids=["no plugin", "plugin offers none", "channels", "another node", "plugin gives none"],
)
def test_one_alone_gives_out(changed: list[Object]) -> None:
    report = ask(dra_pod(), claim(None, "gpu-0"), *changed)
    assert NAME not in [finding.name for finding in report.findings]


# What is shown, and the edges


def test_words_of_what_is_wanted_and_published() -> None:
    selector = [{"cel": {"expression": "device.attributes.fast"}}]
    report = ask(claiming(), claim(request(2, selectors=selector)), slice_(device()), node())
    found = finding_of(report, "dra-no-matching-device")
    assert "which want 2 or more devices" in found.detail
    assert "2 of class gpu.nvidia.com where device.attributes.fast" in shown(found)
    assert "ResourceSlice/slice-1 spec.devices gpu-0 NVIDIA H100 80GB HBM3" in shown(found)
    assert "Pod/team/train-0 status.conditions[PodScheduled]" in shown(found)


def test_claims_that_are_not_in_the_input_leave_a_possibility() -> None:
    report = ask(claiming(), node(), complete=False)
    found = finding_of(report, "dra-no-matching-device")
    assert found.certainty is Certainty.POSSIBLE
    assert "which want" not in found.detail
    extended = k8s.custom(
        V1, "DeviceClass", "gpu.nvidia.com", spec={"extendedResourceName": "nvidia.com/gpu"}
    )
    pod = k8s.pod(conditions=k8s.pending(REFUSED))
    found = finding_of(ask(pod, extended, slice_(device()), node()), "dra-no-matching-device")
    assert found.certainty is Certainty.CERTAIN


def test_devices_in_use_name_their_class() -> None:
    other = claim(None, "gpu-0", name="other")
    found = finding_of(
        ask(claiming(), claim(), other, slice_(device()), node()), "gpu-capacity-exhausted"
    )
    assert "1 devices of class gpu.nvidia.com" in found.detail
    assert "ResourceClaim/team/claim" in shown(found)


def test_claim_of_all_devices_that_others_hold_in_part() -> None:
    everything = request(allocationMode="All")
    other = claim(None, "gpu-0", name="other")
    pool = slice_(device(0), device(1))
    assert ask(claiming(), claim(everything), other, pool, node()).roots == (
        "gpu-capacity-exhausted",
    )
    assert ask(claiming(), claim(everything), pool, node()).roots == ("dra-no-matching-device",)
    tainted = slice_(device(0), device(1, XID))
    assert ask(claiming(), claim(everything), other, tainted, node()).roots == (
        "dra-device-tainted",
    )


def test_scheduler_is_quoted_for_a_taint() -> None:
    found = finding_of(
        ask(claiming(), claim(), slice_(device(0, XID)), node()), "dra-device-tainted"
    )
    assert "cannot allocate all claims" in shown(found)
    assert "ResourceSlice/slice-1 spec.devices[gpu-0].taints" in shown(found)


def test_failure_names_the_claim_in_its_text() -> None:
    pod, event, here = failing("NodePrepareResources failed for ResourceClaim second: no CDI spec")
    pod["spec"]["resourceClaims"].append({"name": "two", "resourceClaimName": "second"})
    claims = [claim(None, "gpu-0"), claim(None, "gpu-1", name="second")]
    report = ask(pod, event, here, *claims, slice_(device(0), device(1)))
    assert "team/second" in finding_of(report, "dra-prepare-failed").title
    event["message"] = "NodePrepareResources failed: no CDI spec"
    assert "team/claim" in finding_of(ask(pod, event, here, *claims), "dra-prepare-failed").title


def test_disruption_that_is_over_or_another_evicts_nothing() -> None:
    pod = claiming(None, node="gpu-1", phase="Failed")
    evicting = XID | {"effect": "NoExecute"}
    objects = [claim(None, "gpu-0"), slice_(device(0, evicting)), node()]
    for status, reason in (
        ("False", "DeletionByDeviceTaintManager"),
        ("True", "EvictionByEvictionAPI"),
    ):
        pod["status"]["conditions"] = [condition("DisruptionTarget", status, reason)]
        assert (
            "evicted for a taint" not in finding_of(ask(pod, *objects), "dra-device-tainted").detail
        )


def test_other_refusals_leave_no_unknown_claim() -> None:
    said = "0/1 nodes are available: 1 Insufficient cpu."
    report = ask(claiming(said), claim(), node())
    assert not [unknown for unknown in report.unknown if "ResourceClaim" in unknown.what]


# In the words of kube-scheduler 1.34 and 1.37


def test_device_class_that_does_not_exist() -> None:
    said = "0/1 nodes are available: request r: device class gpu.nvidia.com does not exist."
    report = ask(claiming(said), claim(), node())
    assert report.roots == ("dra-no-matching-device",)
    detail = finding_of(report, "dra-no-matching-device").detail
    assert "there is no DeviceClass gpu.nvidia.com" in detail


def test_attribute_that_no_device_has() -> None:
    said = (
        'running "DynamicResources" filter plugin: claim team/claim: selector #0: '
        "CEL runtime error: no such key: product"
    )
    selector = [{"cel": {"expression": "device.attributes['gpu.nvidia.com'].product == 'H100'"}}]
    pod = claiming(said, reason="SchedulerError")
    report = ask(pod, claim(request(selectors=selector)), slice_(device()), node())
    assert report.roots == ("dra-no-matching-device",)
    assert finding_of(report, "scheduler-error").caused_by


def test_all_devices_of_a_pool_that_lacks_slices() -> None:
    said = (
        'running "DynamicResources" filter plugin: claim team/claim, request r: asks for all '
        "devices, but resource pool gpu.nvidia.com/gpu-1 is currently being updated"
    )
    wanted = claim({"deviceClassName": "gpu.nvidia.com", "allocationMode": "All"})
    pod = claiming(said, reason="SchedulerError")
    report = ask(pod, wanted, slice_(device(), count=2), node())
    assert report.roots == ("dra-pool-incomplete",)
    assert finding_of(report, "scheduler-error").caused_by
    assert finding_of(report, "dra-pool-incomplete").certainty is Certainty.CERTAIN


# Selectors that are evaluated here


def device_class(kind: str) -> Object:
    expression = (
        f"device.driver == 'gpu.nvidia.com' && device.attributes['gpu.nvidia.com'].type == '{kind}'"
    )
    spec = {"selectors": [{"cel": {"expression": expression}}]}
    return k8s.custom(V1, "DeviceClass", "gpu.nvidia.com", spec=spec)


def test_devices_in_use_with_the_class_of_the_driver_and_who_holds_them() -> None:
    other = claim(None, "gpu-0", name="other-claim")
    report = ask(claiming(), claim(), other, slice_(device()), device_class("gpu"), node())
    assert report.roots == ("gpu-capacity-exhausted",)
    assert report.unknown == ()
    found = finding_of(report, "gpu-capacity-exhausted")
    assert found.certainty is Certainty.CERTAIN
    assert "ResourceClaim/team/other-claim status.allocation gpu.nvidia.com/gpu-1/gpu-0" in shown(
        found
    )


def test_no_device_of_the_wanted_type() -> None:
    report = ask(claiming(), claim(), slice_(device()), device_class("mig"), node())
    assert report.roots == ("dra-no-matching-device",)
    found = finding_of(report, "dra-no-matching-device")
    assert "none of the 1 devices of gpu.nvidia.com matches" in found.detail


def test_devices_of_another_type_are_no_room() -> None:
    """One MIG device is free; the class wants whole cards, and all those are in use."""
    mig = device(1)
    mig["attributes"]["type"] = {"string": "mig"}
    other = claim(None, "gpu-0", name="other-claim")
    report = ask(claiming(), claim(), other, slice_(device(), mig), device_class("gpu"), node())
    assert report.roots == ("gpu-capacity-exhausted",)


def test_open_selector_where_no_device_is_free() -> None:
    selector = [{"cel": {"expression": "device.attributes['gpu.nvidia.com'].memory > 20"}}]
    other = claim(None, "gpu-0", name="other-claim")
    report = ask(claiming(), claim(request(selectors=selector)), other, slice_(device()), node())
    assert report.roots == ("gpu-capacity-exhausted",)
    assert finding_of(report, "gpu-capacity-exhausted").certainty is Certainty.LIKELY
    assert [gap.what for gap in report.unknown] != []
