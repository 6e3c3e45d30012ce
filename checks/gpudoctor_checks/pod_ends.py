"""How a pod ended from outside: its node went, its deadline passed, memory or an eviction."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta

from gpudoctor.checking import CheckSet, Result, finding
from gpudoctor.facts.kubernetes.job_end import JobEnd
from gpudoctor.facts.kubernetes.model import Node
from gpudoctor.facts.kubernetes.situation import PodSituation
from gpudoctor.report import Certainty, Evidence, Severity, Subject
from gpudoctor_checks.workload import OWN_LIMIT, end_text, ended, if_recovered

CHECKS = CheckSet()

_NODE_WENT = ("Terminated", "Shutdown", "NodeShutdown", "NodeLost", "NodeStatusUnknown")
_SHUTDOWN_WORDS = ("node shutdown", "node is shutting", "node is in progress of shutting down")
_DEADLINE = "DeadlineExceeded"
_EVICTED = "EvictionByEvictionAPI"
_BY_KARPENTER = ("Evicted", "karpenter")
"""The kubelet's own event has the same reason: there it is short of something."""
_KEEP = (
    "set the annotation cluster-autoscaler.kubernetes.io/safe-to-evict (or karpenter.sh/"
    "do-not-disrupt) if it must not be moved, or a PodDisruptionBudget, and checkpoint on SIGTERM"
)
_KILLED = 137
_SAME_MOMENT = timedelta(minutes=2)
"""Between the kubelet's word of a process that the kernel killed and the container's end."""


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
def evicted_from_a_leaving_node(situation: PodSituation) -> Iterator[Result]:
    """The pod was put out through the eviction API, because its node is drained or removed."""
    pod, node = situation.pod, situation.node
    target = pod.condition("DisruptionTarget")
    by_api = target is not None and target.status == "True" and target.reason == _EVICTED
    told = [
        event
        for event in situation.events
        if event.reason == "ScaleDown" or (event.reason, event.component) == _BY_KARPENTER
    ]
    if pod.node is None or not (by_api or told) or not (pod.is_terminal or pod.meta.deleted):
        return
    leaving = [t for fit in situation.fits for t in fit.leaving]
    if node is not None and not (leaving or node.unschedulable or told):
        return  # a drain cordons first: somebody else evicted it
    by = ", ".join(dict.fromkeys(event.component for event in told if event.component))
    yield finding(
        "node-cordoned",
        Subject("Node", pod.node),
        f"{pod.node} is being drained{f' by {by}' if by else ''}, and the pod was evicted from it: "
        "its containers were told to end, and killed when the grace period was over (exit code 143 "
        "or 137). It is neither its memory nor its program.",
        *(
            [
                Evidence(
                    pod.meta.path,
                    f"status.conditions[DisruptionTarget] {target.reason}",
                    target.message,
                )
            ]
            if target is not None and by_api
            else []
        ),
        *(Evidence(event.path, event.reason, event.message) for event in told[-1:]),
        *(Evidence(f"Node/{pod.node}", "spec.taints", str(taint)) for taint in leaving[:2]),
        *(
            [Evidence(node.meta.path, "spec.unschedulable", "true")]
            if node is not None and node.unschedulable
            else []
        ),
        values={"nodes": pod.node},
        certainty=Certainty.LIKELY if node is None and not told else Certainty.CERTAIN,
        related=(pod.subject,),
        fix=f"For the pod: {_KEEP}. {pod.node}: see who drains it and whether that is meant.",
    )


@CHECKS.check(PodSituation)
def killed_as_the_node_ran_out(situation: PodSituation) -> Iterator[Result]:
    """The kernel ended a container when the machine as a whole had no memory left."""
    pod = situation.pod
    for status, end, field in ended(situation):
        if end.exit_code != _KILLED or end.reason == "OOMKilled" or end.finished is None:
            continue
        moment = end.finished
        by_kubelet = any(
            event.seen is not None and abs(event.seen - moment) <= _SAME_MOMENT
            for event in situation.events_with("Killing", "Evicted", "Preempting")
        )
        told = [
            event
            for event in situation.node_events
            if event.reason == "SystemOOM"
            and event.seen is not None
            and abs(event.seen - moment) <= _SAME_MOMENT
        ]
        if by_kubelet or not told:
            continue
        container = pod.container(status.name)
        limit = container.limits.get("memory") if container else None
        shown = f"{limit / 2**30:.1f} GiB" if limit else "none set: the node's own memory"
        yield finding(
            "oom-killed",
            pod.subject,
            f"{pod.node} as a whole ran out of memory when container {status.name} was killed "
            "(SIGKILL, without OOMKilled, which the kubelet says of a container's own limit). The "
            "kernel ends whom it finds largest. This is memory of the host, not of the GPU.",
            Evidence(told[-1].path, f"{told[-1].reason} (x{told[-1].count})", told[-1].message),
            Evidence(pod.meta.path, field, end_text(status, end)),
            Evidence(
                pod.meta.path, f"spec.containers[{status.name}].resources.limits.memory", shown
            ),
            values={"container": status.name, "pod": pod.meta.short, "limit": shown},
            severity=if_recovered(situation, status),
            certainty=Certainty.LIKELY,
            related=(Subject("Node", pod.node or ""),),
            fix=OWN_LIMIT,
        )
        return


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


@CHECKS.check(JobEnd)
def job_deadline_exceeded(end: JobEnd) -> Iterator[Result]:
    """The job ran longer than its own deadline: its controller has removed its pods."""
    if end.by_deadline:
        yield finding(
            "deadline-exceeded",
            end.subject,
            "Its controller ended the job when its deadline had passed, which counts from its "
            "start, waiting for a place included, and removed its pods.",
            end.evidence,
            values={"pod": f"{end.subject.namespace}/{end.subject.name}"},
        )
