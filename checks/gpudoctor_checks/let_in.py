"""What the kubelet lets in and cannot give: a pod that was bound past the scheduler.

The scheduler never binds a pod to a node that lacks what it asks for. A pod that names its node
itself (`spec.nodeName`, a static pod) is not shown to it, and the kubelet drops requests for
extended resources that its node does not know: the pod starts, without a GPU and without a word.
Source: kubernetes pkg/kubelet/lifecycle/predicate.go (removeMissingExtendedResources).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from decimal import Decimal

from gpudoctor.checking import CheckSet, Result, finding
from gpudoctor.facts.kubernetes.components import troubles
from gpudoctor.facts.kubernetes.model import Node
from gpudoctor.facts.kubernetes.situation import PodLogLine, PodSituation
from gpudoctor.report import Blame, Certainty, Evidence, Severity
from gpudoctor_checks import chain, supply

CHECKS = CheckSet()

_NO_GPU_LINES = ("no-gpu", "driver-not-in-container")
_MISSES_GPU = (
    r"(?i)^(?!.*memory).*(?:\b(?:no|not|any|without|requires?)\b.*\b(?:cuda|nvidia|gpus?)\b"
    r"|\b(?:cuda|nvidia|gpus?)\b.*\b(?:no|not|none|unavailable|required|missing)\b)"
)
_BOUND_BY_NAME = (
    "No scheduler places it there: it was bound to the node by name. The kubelet drops a request "
    "for a resource that its node does not know, and starts the pod without it."
)
_OFFERED_THEN = "It did when the scheduler placed the pod there."
_LET_IT_BE_PLACED = (
    "Take spec.nodeName out, so that the scheduler finds a node that offers {resource}, or name "
    "one that does."
)


@CHECKS.check(PodSituation)
def let_in_without_devices(situation: PodSituation) -> Iterator[Result]:
    """The pod asks for GPUs and has started on a node that offers none: it was given none."""
    pod, node = situation.pod, situation.node
    if node is None or pod.claims or not _has_started(situation):
        return
    lines = _missing_lines(situation)
    harm = _harm(situation, lines)
    placed = situation.events_with("Scheduled")
    for resource in ungiven(situation):
        was_there = bool(placed) or resource in node.capacity | node.allocatable
        if was_there and not lines:
            continue  # what its plugin gave when it was there the pod still has
        hardware = supply.has_hardware(node, resource)
        yield finding(
            "gpu-resource-not-advertised",
            node.subject,
            f"The pod asks for {resource} and runs on {node.name}, which offers none"
            f"{_instead(node, resource)}. {_OFFERED_THEN if placed else _BOUND_BY_NAME}"
            f"{_plugin(situation, node, resource) if hardware else ''}",
            Evidence(pod.meta.path, "spec.nodeName", node.name),
            supply.request_evidence(situation, resource),
            *supply.allocatable_evidence([node], resource, "as it is now"),
            *(chain.plugin_evidence(situation, [node], resource) if hardware else ()),
            *(line.evidence for line in lines[-1:]),
            values={"resource": resource, "nodes": node.name},
            severity=None if hardware and harm is Severity.ERROR else harm,
            certainty=Certainty.LIKELY if was_there else Certainty.CERTAIN,
            blame=None if hardware else Blame.PLACEMENT,
            related=(pod.subject,),
            fix=None if hardware else _LET_IT_BE_PLACED.format(resource=resource),
        )
        return


def ungiven(situation: PodSituation) -> Iterator[str]:
    """Yield the GPU resources that the pod asks for and its node does not offer by that name."""
    node = situation.node
    if node is None or not node.has_status:
        return
    for resource in supply.gpu_requests(situation):
        if not node.capacity.get(resource, Decimal(0)) and not node.allocatable.get(resource):
            yield resource


def _has_started(situation: PodSituation) -> bool:
    return any(status.has_run for status in situation.pod.statuses if not status.is_init)


def does_without(situation: PodSituation) -> Iterator[str]:
    """Yield the GPU resources that the pod was not given, and that it shows to miss."""
    if not _has_started(situation) or situation.pod.claims:
        return
    if _harm(situation, _missing_lines(situation)) is not Severity.INFO:
        yield from ungiven(situation)


def _missing_lines(situation: PodSituation) -> list[PodLogLine]:
    """What a program says that misses its GPU."""
    return [
        found
        for found in situation.lines
        if found.line.kind in _NO_GPU_LINES
        or (found.line.kind == "python-error" and re.search(_MISSES_GPU, found.line.text))
    ]


def _harm(situation: PodSituation, lines: list[PodLogLine]) -> Severity:
    """As bad as what it does to the pod: a program may run on, or fail for a reason of its own."""
    pod = situation.pod
    fails = pod.phase == "Failed" or any(t.kind in ("crash", "exit") for t in troubles(pod))
    if fails and (lines or not situation.lines_of("python-error")):
        return Severity.ERROR
    return Severity.WARNING if lines else Severity.INFO


def _instead(node: Node, resource: str) -> str:
    others = sorted(n for n in supply.of_vendor(node, resource) if n != resource)
    return f" (it offers {', '.join(others)})" if others else ""


def _plugin(situation: PodSituation, node: Node, resource: str) -> str:
    note = chain.hardware_note(node, resource)
    return f" {node.name} should have some ({note}). {chain.plugin_state(situation, [node])}"
