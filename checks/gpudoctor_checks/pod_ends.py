"""How a pod ended from outside: its node went, its deadline passed, a probe ended what was hung."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta

from gpudoctor.checking import CheckSet, Result, finding
from gpudoctor.facts.kubernetes import mentions
from gpudoctor.facts.kubernetes.model import Container, ContainerStatus, Node, State
from gpudoctor.facts.kubernetes.situation import PodSituation
from gpudoctor.report import Certainty, Evidence, Severity, Subject

CHECKS = CheckSet()

_NODE_WENT = ("Terminated", "Shutdown", "NodeShutdown", "NodeLost", "NodeStatusUnknown")
_SHUTDOWN_WORDS = ("node shutdown", "node is shutting", "node is in progress of shutting down")
_DEADLINE = "DeadlineExceeded"
_RECENT = timedelta(hours=1)


@CHECKS.check(PodSituation)
def node_went_away(situation: PodSituation) -> Iterator[Result]:
    """The kubelet ended or refused the pod, because its machine was shutting down."""
    pod, node = situation.pod, situation.node
    message = pod.message.lower()
    if pod.phase != "Failed" or not (
        (pod.reason in _NODE_WENT and "node" in message)
        or any(word in message for word in _SHUTDOWN_WORDS)
    ):
        return
    name = pod.node or "its node"
    yield finding(
        "node-not-ready",
        Subject("Node", pod.node) if pod.node else pod.subject,
        f"{name} was shut down under the pod: its containers were told to end and are not "
        "started again there. On spot or preemptible machines that is the cloud taking one back.",
        Evidence(pod.meta.path, f"status.reason ({pod.reason}), phase {pod.phase}", pod.message),
        *(_ready_evidence(node) if node else ()),
        values={"nodes": name, "reason": "it was shut down"},
        severity=Severity.ERROR,
        related=(pod.subject,),
        fix="Let the job's controller make the pod again, and let it checkpoint on SIGTERM.",
    )


def _ready_evidence(node: Node) -> Iterator[Evidence]:
    ready = node.condition("Ready")
    if ready is not None:
        value = f"{ready.status} {ready.reason}".strip()
        yield Evidence(node.meta.path, "status.conditions[Ready]", value, ready.message or None)


@CHECKS.check(PodSituation)
def node_silent(situation: PodSituation) -> Iterator[Result]:
    """The kubelet under the pod does not report, or says that it is not ready."""
    pod, node = situation.pod, situation.node
    ready = node.condition("Ready") if node else None
    if node is None or ready is None or ready.status == "True" or pod.is_terminal:
        return
    stale = " What its status says of its containers is as old." if ready.status != "False" else ""
    going = " It is marked for deletion and stays until the kubelet answers or the Node object "
    yield finding(
        "node-not-ready",
        node.subject,
        f"{node.name}, on which the pod is, has Ready {ready.status}: {ready.message}{stale}"
        + (f"{going}is removed." if pod.meta.deleted else ""),
        *_ready_evidence(node),
        *(
            Evidence(event.path, f"{event.reason} (x{event.count})", event.message)
            for event in situation.events_with("NodeNotReady", "TaintManagerEviction")[-2:]
        ),
        values={"nodes": node.name, "reason": ready.reason or ready.status},
        related=(pod.subject,),
    )


@CHECKS.check(PodSituation)
def deadline_exceeded(situation: PodSituation) -> Iterator[Result]:
    """The pod was ended, because it ran longer than its activeDeadlineSeconds."""
    pod = situation.pod
    if pod.phase != "Failed" or pod.reason != _DEADLINE:
        return
    yield finding(
        "deadline-exceeded",
        pod.subject,
        "The kubelet ended the pod when its activeDeadlineSeconds had passed; exit code 137 or 143 "
        "is that end.",
        Evidence(pod.meta.path, f"status.reason, phase {pod.phase}", pod.reason, pod.message),
        values={"pod": pod.meta.short},
    )


@CHECKS.check(PodSituation)
def probe_ended_it(situation: PodSituation) -> Iterator[Result]:
    """A liveness probe ended a container that had served: its program hung or had failed."""
    pod, now = situation.pod, situation.now
    for event in reversed(situation.events_with("Killing")):
        if "liveness probe" not in event.message or pod.is_terminal:
            continue
        for status in pod.statuses:
            container = pod.container(status.name)
            end = status.last if status.last.kind == "terminated" else status.state
            named = mentions.names(event.message, status.name)
            if not named or container is None or not _served(container, end):
                continue
            if status.ready and now and end.finished and now - end.finished > _RECENT:
                continue
            yield _hung(situation, status, end, Evidence(event.path, event.reason, event.message))
            return


def _served(container: Container, end: State) -> bool:
    """Whether it lived well beyond what its probes give it to start."""
    if end.kind != "terminated" or end.started is None or end.finished is None:
        return False
    probes = [probe.budget for probe in (container.startup, container.liveness) if probe]
    start = timedelta(seconds=2 * sum(probes)) + timedelta(minutes=2)
    return end.exit_code in (0, 137, 143) and end.finished - end.started > start


def _hung(situation: PodSituation, status: ContainerStatus, end: State, said: Evidence) -> Result:
    pod = situation.pod
    assert end.started is not None
    assert end.finished is not None
    lived = (end.finished - end.started).total_seconds() / 60
    errors = [line for line in situation.lines_of("python-error") if line.container == status.name]
    which = "lastState" if status.last is end else "state"
    return finding(
        "application-error",
        pod.subject,
        f"Container {status.name} had run {lived:.0f} min when its liveness probe failed and the "
        "kubelet ended it: the program hung, or said itself that it is not well. More time to "
        "start does not help.",
        said,
        Evidence(
            pod.meta.path,
            f"status.containerStatuses[{status.name}].{which}.terminated",
            f"exitCode {end.exit_code}, reason {end.reason}, lived {lived:.0f} min",
        ),
        *(line.evidence for line in errors[-1:]),
        values={
            "container": status.name,
            "pod": pod.meta.short,
            "reason": errors[-1].line.text[:80] if errors else "its liveness probe failed",
        },
        severity=Severity.WARNING if status.ready else None,
        certainty=Certainty.LIKELY,
    )
