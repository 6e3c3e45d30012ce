"""Whether a pod is well, as far as its own status says: ready, ended well, on its way, or not well.

A first start may take long for good reasons (an image of 30 GB, a model of 140 GB), so
"on its way" ends where a probe, a failure or a generous bound says so.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from enum import StrEnum

import msgspec

from gpudoctor.facts.kubernetes import parse
from gpudoctor.facts.kubernetes.cluster import Cluster
from gpudoctor.facts.kubernetes.components import troubles
from gpudoctor.facts.kubernetes.model import ContainerStatus, Event, Pod
from gpudoctor.facts.kubernetes.resources import is_accounting, is_gpu
from gpudoctor.facts.kubernetes.situation import PodSituation
from gpudoctor.report import Evidence

_INDEX = "batch.kubernetes.io/job-completion-index"
_TO_SCHEDULE = timedelta(minutes=1)
_TO_CREATE = timedelta(minutes=10)
_TO_PULL = timedelta(hours=1)
_TO_BE_READY = timedelta(minutes=30)


class State(StrEnum):
    """How the pod is."""

    WELL = "well"
    STARTING = "starting"
    NOT_WELL = "not-well"
    UNKNOWN = "unknown"


class PodHealth(msgspec.Struct, frozen=True):
    """The state of a pod with the reason in words and where it was read."""

    state: State
    why: str
    evidence: Evidence


class Unexplained(msgspec.Struct, frozen=True):
    """A pod that is not well and that no rule could explain."""

    situation: PodSituation
    health: PodHealth


def assess(situation: PodSituation) -> PodHealth:
    """Judge a pod by its own status and events."""
    pod = situation.pod
    path = pod.meta.path

    def is_so(state: State, why: str, field: str, value: str) -> PodHealth:
        return PodHealth(state, why, Evidence(path, field, value))

    if pod.phase == "Succeeded":
        return is_so(State.WELL, "it has ended successfully", "status.phase", pod.phase)
    if pod.phase == "Failed":
        why = pod.reason or "a container failed"
        return is_so(State.NOT_WELL, f"it has failed: {why}", "status.phase", pod.phase)
    wrong = [trouble for trouble in troubles(pod) if trouble.kind != "init"]
    ready = pod.condition("Ready")
    if ready is not None and ready.status == "True" and not _unstable(situation):
        return is_so(State.WELL, "it is Ready", "status.conditions[Ready]", "True")
    if wrong:
        first = wrong[0]
        value = f"{first.reason}, exit code {first.exit_code}, {first.restarts} restarts"
        return is_so(State.NOT_WELL, f"container {first.container}: {value}", first.field, value)
    if pod.phase == "Running":
        return _running(situation)
    if pod.phase == "Pending":
        return _pending(situation)
    return is_so(State.UNKNOWN, "its status is not in the input", "status.phase", pod.phase)


def _unstable(situation: PodSituation) -> bool:
    """A container that failed and came back lately counts as not well although it is Ready."""
    return any(_failed_lately(status, situation.now) for status in situation.pod.statuses)


def _failed_lately(status: ContainerStatus, now: datetime | None) -> bool:
    last = status.last
    if not status.restarts or last.kind != "terminated" or last.exit_code in (0, None):
        return False
    if now is None or last.finished is None:
        return True
    return now - last.finished < _TO_CREATE


def _running(situation: PodSituation) -> PodHealth:
    pod = situation.pod
    waits = [status for status in pod.statuses if not status.ready and not status.is_init]
    name = waits[0].name if waits else "its containers"
    evidence = Evidence(pod.meta.path, "status.containerStatuses", f"{name}: running, not ready")
    started = max((s.state.started for s in waits if s.state.started), default=None)
    container = pod.container(name)
    bound = _TO_BE_READY
    if container is not None and container.startup is not None:
        bound = max(bound, timedelta(seconds=container.startup.budget))
    if _within(started, situation.now, bound):
        return PodHealth(State.STARTING, f"container {name} runs and is not ready yet", evidence)
    why = f"container {name} runs and has not become ready in {bound.total_seconds() / 60:.0f} min"
    return PodHealth(State.NOT_WELL, why, evidence)


def _pending(situation: PodSituation) -> PodHealth:
    pod, now = situation.pod, situation.now
    path = pod.meta.path
    if pod.node is None:
        scheduled = pod.condition("PodScheduled")
        said = scheduled.reason if scheduled else "no condition PodScheduled"
        evidence = Evidence(path, "status.conditions[PodScheduled]", said)
        if scheduled is None and not pod.gates and _within(pod.meta.created, now, _TO_SCHEDULE):
            return PodHealth(State.STARTING, "it was created a moment ago", evidence)
        adds = situation.provisioning()
        if adds is not None:
            evidence = Evidence(adds.path, f"{adds.reason} of {adds.component}", adds.message)
            return PodHealth(State.STARTING, "a node is being added for it", evidence)
        return PodHealth(State.NOT_WELL, f"it has no node: {said}", evidence)
    evidence = Evidence(path, "status.phase", f"Pending on {pod.node}")
    bad = [event for event in situation.events if _is_failure(event)]
    if bad:
        why = f"it does not start on {pod.node}: {bad[-1].reason}"
        newest = bad[-1]
        return PodHealth(State.NOT_WELL, why, Evidence(newest.path, newest.reason, newest.message))
    doing, bound = _start(situation)
    if _within(pod.meta.created, now, bound):
        return PodHealth(State.STARTING, f"it {doing} on {pod.node}", evidence)
    return PodHealth(State.NOT_WELL, f"it has not started on {pod.node}", evidence)


def _start(situation: PodSituation) -> tuple[str, timedelta]:
    """What a bound pod is doing, and how long that may take: images and models are large."""
    if situation.events and situation.events[-1].reason == "Pulling":
        return "pulls its image", _TO_PULL
    working = [s.name for s in situation.pod.statuses if s.is_init and s.state.kind == "running"]
    if working:
        return f"runs its init container {working[0]}", _TO_PULL
    return "is being created", _TO_CREATE


def _is_failure(event: Event) -> bool:
    return event.type == "Warning" and event.reason not in ("FailedScheduling", "Unhealthy")


def _within(since: datetime | None, now: datetime | None, bound: timedelta) -> bool:
    """Whether less than the bound has gone by; True where a time is not known."""
    return since is None or now is None or now - since < bound


def is_made_good(cluster: Cluster, pod: Pod) -> bool:
    """Whether the Job of a failed pod has completed all the same: it was an attempt, no fault."""
    kind, _, name = (pod.meta.owner or "").partition("/")
    if pod.phase != "Failed" or kind != "Job":
        return False
    job = cluster.one("batch", kind, name, pod.meta.namespace)
    if job is not None:
        return any(c.type == "Complete" and c.status == "True" for c in parse.conditions(job))
    attempts = cluster.owned_by(pod.meta.namespace or "default", f"{kind}/{name}")
    index = pod.meta.labels.get(_INDEX)
    return any(
        one.phase == "Succeeded" and one.meta.labels.get(_INDEX) == index for one in attempts
    )


def is_gpu_pod(pod: Pod) -> bool:
    """Whether the pod asks for GPUs, by extended resource or claim."""
    return bool(pod.claims) or any(is_gpu(r) or is_accounting(r) for r in pod.requests)
