"""Kubelet admission and the API server's refusals: the pod was turned away after placement.

A pod that the kubelet refuses is Failed for good: its controller makes another and the old one
stays. So the node is judged as it is now, and a replacement that runs makes it a leftover.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from gpudoctor.checking import CheckSet, Result, finding
from gpudoctor.facts.kubernetes import quotas, refusals
from gpudoctor.facts.kubernetes.model import Pod
from gpudoctor.facts.kubernetes.refusals import Refusal
from gpudoctor.facts.kubernetes.situation import PodSituation, RefusedPod
from gpudoctor.report import Certainty, Evidence, Severity, Subject
from gpudoctor_checks import supply

CHECKS = CheckSet()

_NOT_READY = (
    "no healthy devices present",
    "cannot allocate unregistered device",
    "can't allocate unregistered device",
)
# As text: re compiles, once, what there is a message for.
_STALE = (
    r"requested number of devices unavailable for (?P<resource>\S+?)\. "
    r"Requested: (?P<requested>\d+), Available: (?P<available>\d+)"
)
_UNKNOWN_DEVICE = "unknown device"
# The device plugin's own refusal; those that say more have rules of their own.
_PLUGIN_REFUSES = (
    r"(?s)Allocate failed due to rpc error(?!.*(?:maximum request size|GPU is lost|no longer))"
)
_NO_LONGER_HEALTHY = "previously allocated devices are no longer healthy"
_OUT_OF = (
    r"Node didn't have enough resource: (?P<resource>[^,\s]+), requested: (?P<requested>\d+), "
    r"used: (?P<used>\d+), capacity: (?P<capacity>\d+)"
)
_NUMA_REASONS = ("TopologyAffinityError", "Topology Affinity Error")
_PRESSURE = re.compile(r"low on resource: (?P<resource>[\w-]+)|exceed.*(?P<limit>limit|storage)")


def _is_refused(pod: Pod) -> bool:
    return pod.phase == "Failed" and bool(pod.reason)


def _replacement(situation: PodSituation) -> Pod | None:
    """A sibling that was made after this pod and runs."""
    made = situation.pod.meta.created
    return next(
        (
            other
            for other in situation.siblings
            if other.phase == "Running"
            and (made is None or other.meta.created is None or other.meta.created >= made)
        ),
        None,
    )


def _leftover(situation: PodSituation) -> tuple[Severity | None, str, tuple[Evidence, ...]]:
    """Severity, words and evidence that depend on whether a replacement already runs."""
    other = _replacement(situation)
    if other is None:
        return None, " The pod is Failed for good; only its controller makes a new one.", ()
    evidence = Evidence(other.meta.path, "status.phase", other.phase, "its replacement")
    said = f" Its replacement {other.meta.name} runs; this one is a leftover that can be deleted."
    return Severity.WARNING, said, (evidence,)


@CHECKS.check(PodSituation)
def devices_not_ready(situation: PodSituation) -> Iterator[Result]:
    """The kubelet had no healthy or registered device at that moment (reboot, plugin restart)."""
    pod, node = situation.pod, situation.node
    text = pod.message
    out_of = re.search(_OUT_OF, text) if pod.reason.startswith("OutOf") else None
    not_there = out_of is not None and out_of["capacity"] == "0"
    no_longer = _NO_LONGER_HEALTHY in text and not any(
        node and supply.lost_devices(node, resource) for resource in supply.gpu_requests(situation)
    )
    if not _is_refused(pod) or not (
        any(phrase in text for phrase in _NOT_READY) or not_there or no_longer
    ):
        return
    severity, said, more = _leftover(situation)
    healthy_now = bool(node) and all(
        node is not None
        and supply.offers_vendor(node, resource)
        and not supply.lost_devices(node, resource)
        for resource in supply.gpu_requests(situation)
    )
    now = f" {pod.node} offers all its devices now: the hardware is fine." if healthy_now else ""
    yield finding(
        "admission-rejected-devices-not-ready",
        situation.subject,
        f"The kubelet of {pod.node} refused the pod when its device plugin had not registered "
        f"the devices yet.{now}{said}",
        Evidence(pod.meta.path, f"status.reason ({pod.reason}), phase {pod.phase}", text),
        *_now(situation),
        *more,
        values={"node": pod.node or "the node", "pod": pod.meta.short},
        severity=severity,
        related=(node.subject,) if node else (),
        leans_on=("Pod", "Node"),
    )


def _now(situation: PodSituation) -> Iterator[Evidence]:
    if situation.node is not None:
        for resource in supply.gpu_requests(situation):
            yield from supply.allocatable_evidence([situation.node], resource, "as it is now")


@CHECKS.check(PodSituation)
def stale_accounting(situation: PodSituation) -> Iterator[Result]:
    """Scheduler and kubelet disagree about what is free on the node."""
    pod, node = situation.pod, situation.node
    if not _is_refused(pod):
        return
    stale = re.search(_STALE, pod.message)
    out_of = re.search(_OUT_OF, pod.message) if pod.reason.startswith("OutOf") else None
    unknown = "invalid allocation request" in pod.message and _UNKNOWN_DEVICE in pod.message
    if out_of is not None and (out_of["capacity"] == "0" or "/" not in out_of["resource"]):
        return
    refuses = re.search(_PLUGIN_REFUSES, pod.message) is not None
    if not (stale or out_of or unknown or refuses):
        return
    severity, said, more = _leftover(situation)
    numbers = ""
    if stale:
        numbers = f" ({stale['requested']} wanted, {stale['available']} available to the kubelet)"
    elif out_of:
        numbers = (
            f" ({out_of['requested']} wanted, {out_of['used']} of {out_of['capacity']} in use)"
        )
    why = "devices of pods that have ended, or were bound past the scheduler, still count"
    if refuses and not unknown:
        why = "its device plugin refuses to give out what the scheduler counted, in its own words"
    yield finding(
        "admission-stale-device-accounting",
        situation.subject,
        f"The scheduler saw room on {pod.node}, the kubelet did not{numbers}: {why}.{said}",
        Evidence(pod.meta.path, f"status.reason ({pod.reason}), phase {pod.phase}", pod.message),
        *_now(situation),
        *(
            Evidence(
                f"Pod/{held.namespace}/{held.name}",
                "metadata.deletionTimestamp",
                "set: it is terminating and still holds its devices",
            )
            for held in situation.neighbours
            if held.terminating
        ),
        *more,
        values={"node": pod.node or "the node", "pod": pod.meta.short},
        severity=severity,
        certainty=Certainty.LIKELY if refuses and not unknown else Certainty.CERTAIN,
        related=(node.subject,) if node else (),
    )


@CHECKS.check(PodSituation)
def out_of_plain_resource(situation: PodSituation) -> Iterator[Result]:
    """The kubelet has too little CPU, memory or slots for the pod: it was placed without a look."""
    pod = situation.pod
    out_of = re.search(_OUT_OF, pod.message) if pod.reason.startswith("OutOf") else None
    if not _is_refused(pod) or out_of is None or "/" in out_of["resource"]:
        return
    resource = out_of["resource"]
    severity, said, more = _leftover(situation)
    yield finding(
        "non-gpu-resource-exhausted",
        situation.subject,
        f"The kubelet of {pod.node} refused the pod before it started: {out_of['requested']} of "
        f"{resource} wanted, {out_of['used']} of {out_of['capacity']} in use. Scheduler "
        f"{pod.scheduler} placed it there all the same.{said}",
        Evidence(pod.meta.path, f"status.reason ({pod.reason}), phase {pod.phase}", pod.message),
        *(
            Evidence(
                f"Pod/{held.namespace}/{held.name}",
                f"requests[{resource}]",
                f"{supply.number(held.requests[resource])} on {held.node}",
            )
            for held in sorted(
                (held for held in situation.neighbours if held.requests.get(resource)),
                key=lambda held: -held.requests[resource],
            )[:3]
        ),
        *more,
        values={"pod": pod.meta.short, "resource": resource},
        severity=severity,
        related=(situation.node.subject,) if situation.node else (),
    )


@CHECKS.check(PodSituation)
def numa_alignment(situation: PodSituation) -> Iterator[Result]:
    """The topology manager found no NUMA node with all that the pod wants together."""
    pod, node = situation.pod, situation.node
    if not _is_refused(pod) or pod.reason not in _NUMA_REASONS:
        return
    wanted = supply.gpu_requests(situation)
    resource = next(iter(wanted), "devices")
    strict = [c for c in situation.kubelet_configs if c.topology_policy != "none"]
    severity, said, more = _leftover(situation)
    free = situation.fits[0].free.get(resource) if situation.fits else None
    count = f" {supply.number(free)} of {resource} are free there in total." if free else ""
    yield finding(
        "numa-alignment-rejected",
        situation.subject,
        f"The topology manager of {pod.node} refused the pod: what it asks for cannot come from "
        f"one NUMA node.{count} The scheduler is blind to NUMA and can choose the same node "
        f"again.{said}",
        Evidence(pod.meta.path, f"status.reason ({pod.reason}), phase {pod.phase}", pod.message),
        *(
            Evidence(
                config.config_map,
                f"data[{config.key}]",
                f"topologyManagerPolicy: {config.topology_policy}, scope {config.topology_scope}",
            )
            for config in strict
        ),
        *_used(situation, resource),
        *(supply.request_evidence(situation, name) for name in wanted),
        *more,
        values={
            "node": pod.node or "the node",
            "pod": pod.meta.short,
            "resource": resource,
        },
        severity=severity,
        related=(node.subject,) if node else (),
    )


def _used(situation: PodSituation, resource: str) -> Iterator[Evidence]:
    for fit in situation.fits:
        if resource in fit.node.allocatable:
            total, free = fit.node.allocatable[resource], fit.free[resource]
            yield Evidence(
                fit.node.meta.path,
                f"status.allocatable[{resource}] minus bound pods",
                f"{supply.number(total)} - {supply.number(total - free)} = "
                f"{supply.number(free)} free",
            )


@CHECKS.check(PodSituation)
def evicted(situation: PodSituation) -> Iterator[Result]:
    """The kubelet evicted the pod because the node, or the pod's own limit, ran short."""
    pod = situation.pod
    if pod.phase != "Failed" or pod.reason != "Evicted":
        return
    match = _PRESSURE.search(pod.message)
    short = (match["resource"] if match else None) or "a local limit"
    severity, said, more = _leftover(situation)
    yield finding(
        "evicted-node-pressure",
        situation.subject,
        f"The kubelet of {pod.node} evicted the pod: {pod.message}{said}",
        Evidence(pod.meta.path, "status.reason", pod.reason, pod.message),
        *more,
        values={"pod": pod.meta.short, "node": pod.node or "its node", "reason": short},
        severity=severity,
        related=(situation.node.subject,) if situation.node else (),
    )


@CHECKS.check(PodSituation)
def affinity_at_admission(situation: PodSituation) -> Iterator[Result]:
    """The kubelet refused the pod because the node no longer matches its selectors."""
    pod = situation.pod
    if not _is_refused(pod) or pod.reason not in ("NodeAffinity", "NodeSelectorMismatching"):
        return
    missing = "; ".join(text for fit in situation.fits for text in fit.unmatched)
    severity, said, more = _leftover(situation)
    yield finding(
        "node-selector-mismatch",
        situation.subject,
        f"The labels of {pod.node} did not match the pod's selectors when its kubelet looked: "
        f"{missing or 'they match now'}.{said}",
        Evidence(pod.meta.path, f"status.reason ({pod.reason})", pod.message),
        *(
            Evidence(fit.node.meta.path, "metadata.labels", f"do not match {'; '.join(missing_of)}")
            for fit in situation.fits
            if (missing_of := fit.unmatched)
        ),
        *more,
        values={"pod": pod.meta.short},
        severity=severity,
    )


@CHECKS.check(RefusedPod)
def pod_not_made(refused: RefusedPod) -> Iterator[Result]:
    """The API server refuses to make the pod, because a ResourceQuota is used up."""
    yield from _quota_findings(refused.subject, refused.refusals, refused.quotas, None)


@CHECKS.check(PodSituation)
def peers_not_made(situation: PodSituation) -> Iterator[Result]:
    """The same for further pods of this pod's controller: its job is short of members."""
    is_batch = (situation.pod.meta.owner or "").startswith("Job/") or bool(situation.peers)
    ready = situation.pod.condition("Ready")
    well = ready is not None and ready.status == "True"
    if well and not is_batch:
        return
    severity = None if is_batch else Severity.WARNING
    yield from _quota_findings(
        situation.subject,
        (*refusals.of_events(situation.events), *situation.owner_refusals),
        situation.quotas,
        severity,
    )


def _quota_findings(
    subject: Subject,
    said: tuple[Refusal, ...],
    known: tuple[quotas.ResourceQuota, ...],
    severity: Severity | None,
) -> Iterator[Result]:
    for one in reversed(said):
        refusal = quotas.refusal(one.message)
        if refusal is None:
            continue
        used = [
            Evidence(
                quota.meta.path,
                f"status.used vs status.hard [{refusal.resource}]",
                f"{refusal.used} vs {refusal.limited}",
            )
            for quota in known
            if quota.meta.name == refusal.quota
        ]
        yield finding(
            "resourcequota-exceeded",
            subject,
            f"{one.about.kind} {one.about.name} could not make a pod: it asks for "
            f"{refusal.requested}, in use are {refusal.used}, allowed are {refusal.limited}.",
            one.evidence,
            *used,
            values={"name": refusal.quota, "resource": refusal.resource},
            related=(one.about,),
            severity=severity,
        )
        return
