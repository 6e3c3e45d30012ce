"""Where a pod can go: taints, selectors, affinity and free capacity evaluated per node.

Mirrors the scheduler's filters NodeUnschedulable, TaintToleration, NodeAffinity and
NodeResourcesFit; the others (volumes, spread, inter-pod affinity) are read from its message.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from decimal import Decimal

import msgspec

from gpudoctor.facts.kubernetes import fields
from gpudoctor.facts.kubernetes.model import (
    Node,
    Occupant,
    Pod,
    Requirement,
    Resources,
    SelectorTerm,
    Taint,
    Toleration,
)

CORDON_TAINT = "node.kubernetes.io/unschedulable"
# What the node controller sets, and what keeps pods off until an agent of the node is up.
_CONDITION_TAINT = (
    r"node\.kubernetes\.io/.*|.*/(?:agent|node)-not-ready|karpenter\.sh/unregistered"
    r"|node\.cloudprovider\.kubernetes\.io/(?:uninitialized|shutdown)"
    r"|(?:startup|ignore)-taint\.cluster-autoscaler\.kubernetes\.io/.*"
)
# What autoscalers and termination handlers set on a node that is about to go.
_LEAVING_TAINT = (
    r"karpenter\.sh/disrupt(?:ed|ion)|ToBeDeletedByClusterAutoscaler"
    r"|cloud\.google\.com/impending-node-termination|aws-node-termination-handler/.*"
)
_BLOCKING_EFFECTS = ("NoSchedule", "NoExecute")


class Shortage(msgspec.Struct, frozen=True):
    """A resource that a node cannot give: all amounts of one node, in the resource's unit."""

    resource: str
    wanted: Decimal
    free: Decimal
    allocatable: Decimal


class NodeFit(msgspec.Struct, frozen=True, kw_only=True):
    """One node against one pod. Empty tuples and False everywhere mean that it fits.

    `condition_taints` are those the node controller sets (not-ready, pressure, …) and those of
    agents that are not up yet, kept apart because the remedy is to repair the node, not to
    tolerate them. `leaving` are those of a node that is about to be removed, which is as good as
    `cordoned`. `free` is allocatable minus what the `occupants` request.
    """

    node: Node
    cordoned: bool = False
    untolerated: tuple[Taint, ...] = ()
    condition_taints: tuple[Taint, ...] = ()
    leaving: tuple[Taint, ...] = ()
    unmatched: tuple[str, ...] = ()
    shortages: tuple[Shortage, ...] = ()
    free: Resources = {}
    occupants: tuple[Occupant, ...] = ()

    @property
    def is_admitted(self) -> bool:
        """Whether the pod may go there as far as cordon, taints and selectors are concerned."""
        return not (self.cordoned or self.untolerated or self.condition_taints or self.unmatched)

    def shortage(self, resource: str) -> Shortage | None:
        """Return the shortage of that resource."""
        return next((found for found in self.shortages if found.resource == resource), None)


def matches(requirement: Requirement, labels: dict[str, str]) -> bool:
    """Evaluate one match expression against labels, as the API defines the operators."""
    value = labels.get(requirement.key)
    match requirement.operator:
        case "In":
            return value is not None and value in requirement.values
        case "NotIn":
            return value is None or value not in requirement.values
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
        case "Gt" | "Lt":
            return _compares(requirement, value)
    return False


def _compares(requirement: Requirement, value: str | None) -> bool:
    bound = fields.integer(requirement.values[0]) if requirement.values else None
    have = fields.integer(value)
    if bound is None or have is None:
        return False
    return have > bound if requirement.operator == "Gt" else have < bound


def unmatched_terms(terms: Iterable[SelectorTerm], node: Node) -> tuple[str, ...]:
    """Return what keeps the node out of every term (of the nearest term); empty if one matches."""
    nearest: tuple[str, ...] | None = None
    for term in terms:
        missing = tuple(str(r) for r in term.labels if not matches(r, node.labels)) + tuple(
            str(r) for r in term.fields if not matches(r, {"metadata.name": node.name})
        )
        if not term.labels and not term.fields:
            missing = ("an empty term, which matches no node",)
        if not missing:
            return ()
        if nearest is None or len(missing) < len(nearest):
            nearest = missing
    return nearest or ("no term at all",)


def unmatched(pod: Pod, node: Node) -> tuple[str, ...]:
    """Return the selectors and required affinities of the pod that the node does not match."""
    missing = tuple(
        f"{key}={value}"
        for key, value in pod.node_selector.items()
        if node.labels.get(key) != value
    )
    if pod.node_affinity is not None:
        missing += unmatched_terms(pod.node_affinity, node)
    return missing


def untolerated(tolerations: Iterable[Toleration], taints: Iterable[Taint]) -> tuple[Taint, ...]:
    """Return the blocking taints that no toleration covers."""
    listed = tuple(tolerations)
    return tuple(
        taint
        for taint in taints
        if taint.effect in _BLOCKING_EFFECTS and not any(t.tolerates(taint) for t in listed)
    )


def free_capacity(node: Node, occupants: Iterable[Occupant]) -> Resources:
    """Return allocatable minus what bound pods request; usage never lowers allocatable itself."""
    free = dict(node.allocatable)
    for occupant in occupants:
        for resource, amount in _with_slot(occupant.requests).items():
            if resource in free:
                free[resource] -= amount
    return free


def _with_slot(requests: Resources) -> Resources:
    """The requests and the one slot of `pods` that every pod takes without asking for it."""
    return requests | {"pods": Decimal(1)}


def fit(pod: Pod, node: Node, occupants: Iterable[Occupant]) -> NodeFit:
    """Evaluate one node against one pod."""
    open_taints = untolerated(pod.tolerations, node.taints)
    tolerates_cordon = any(
        t.tolerates(Taint(CORDON_TAINT, effect="NoSchedule")) for t in pod.tolerations
    )
    held = tuple(occupants)
    free = free_capacity(node, held)
    leaving = tuple(t for t in open_taints if re.fullmatch(_LEAVING_TAINT, t.key))
    of_node = tuple(t for t in open_taints if re.fullmatch(_CONDITION_TAINT, t.key))
    return NodeFit(
        node=node,
        cordoned=bool(leaving) or (node.unschedulable and not tolerates_cordon),
        untolerated=tuple(t for t in open_taints if t not in of_node and t not in leaving),
        condition_taints=tuple(t for t in of_node if t.key != CORDON_TAINT),
        leaving=leaving,
        unmatched=unmatched(pod, node),
        shortages=_shortages(pod.requests, node.allocatable, free),
        free=free,
        occupants=held,
    )


def _shortages(
    requests: Resources, allocatable: Resources, free: Resources
) -> tuple[Shortage, ...]:
    # Dumps may lack the number of slots, which no kubelet leaves out.
    wanted = _with_slot(requests) if "pods" in allocatable else requests
    return tuple(
        Shortage(
            resource=resource,
            wanted=amount,
            free=max(free.get(resource, Decimal(0)), Decimal(0)),
            allocatable=allocatable.get(resource, Decimal(0)),
        )
        for resource, amount in wanted.items()
        if amount > 0 and amount > free.get(resource, Decimal(0))
    )
