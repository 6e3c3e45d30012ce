"""What the nodes offer against what one pod asks for: shared by the device and placement rules.

A node that the pod may not enter (taint, selector, cordon) is no supply; a node that has the
hardware and does not advertise it is broken supply, which is a matter of the device layer.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from decimal import Decimal

import msgspec

from gpudoctor.facts.kubernetes import resources
from gpudoctor.facts.kubernetes.model import Node
from gpudoctor.facts.kubernetes.placement import NodeFit
from gpudoctor.facts.kubernetes.situation import PodSituation
from gpudoctor.report import Evidence, Subject

UPGRADE_STATE = "nvidia.com/gpu-driver-upgrade-state"
NETWORK_UPGRADE_STATE = "nvidia.com/ofed-driver-upgrade-state"
_DEPLOY_PREFIX = "nvidia.com/gpu.deploy."
_PAUSED = "paused-for-driver-upgrade"
_AT_REST = ("", "upgrade-done")
_SHOWN = 3


class Upgrade(msgspec.Struct, frozen=True):
    """A driver upgrade that a node is in the middle of, by its labels."""

    state: str
    evidence: tuple[Evidence, ...]


def upgrade_of(node: Node) -> Upgrade | None:
    """Return the driver upgrade that the node's labels tell of, None when there is none."""
    paused = sorted(
        label
        for label, value in node.labels.items()
        if label.startswith(_DEPLOY_PREFIX) and value == _PAUSED
    )
    states = {
        label: node.labels[label]
        for label in (UPGRADE_STATE, NETWORK_UPGRADE_STATE)
        if node.labels.get(label, "") not in _AT_REST
    }
    # "upgrade-required" alone only says that one is due: nothing has been taken away yet.
    if not paused and not node.unschedulable:
        states = {k: v for k, v in states.items() if v not in ("upgrade-required",)}
    if not states and not paused:
        return None
    shown = [*states, *paused]
    return Upgrade(
        state=next(iter(states.values()), _PAUSED),
        evidence=tuple(
            Evidence(node.meta.path, f"metadata.labels[{label}]", node.labels[label])
            for label in shown
        ),
    )


def has_hardware(node: Node, resource: str) -> bool:
    """Whether labels or capacity say that the node has devices of the resource's vendor."""
    vendor = resources.vendor_of(resource)
    if resource in node.capacity or resource in node.allocatable:
        return True
    return vendor is not None and vendor.shown_by(node.labels) is not None


def knows_vendor(node: Node, resource: str) -> bool:
    """Whether the node has a key of the resource's vendor, if only with 0: a plugin was there."""
    vendor = resources.vendor_of(resource)
    return vendor is not None and any(
        resources.vendor_of(name) == vendor for name in node.capacity | node.allocatable
    )


def of_vendor(node: Node, resource: str) -> Iterator[str]:
    """Yield the names under which the node offers devices of the resource's vendor."""
    vendor = resources.vendor_of(resource)
    for name, amount in node.allocatable.items():
        if amount > 0 and (name == resource or (vendor and resources.vendor_of(name) == vendor)):
            yield name


def offers_vendor(node: Node, resource: str) -> bool:
    """Whether the node offers any device of the resource's vendor, under whatever name."""
    return any(of_vendor(node, resource))


def gpu_requests(situation: PodSituation) -> dict[str, Decimal]:
    """Return the GPU resources that the pod asks for."""
    return {
        name: amount
        for name, amount in situation.pod.requests.items()
        if amount > 0 and resources.is_gpu(name)
    }


def is_waiting_for_a_node(situation: PodSituation) -> bool:
    """Whether the scheduler has refused the pod; gates and queues come before the scheduler.

    Not while an autoscaler has just begun to add a node for it.
    """
    pod = situation.pod
    refused = pod.node is None and not pod.gates and not pod.is_terminal and situation.failure
    return bool(refused) and situation.provisioning() is None


def may_enter(fit: NodeFit) -> bool:
    """Whether taints and selectors let the pod in, a cordon left aside."""
    return not (fit.untolerated or fit.condition_taints or fit.unmatched)


def broken(situation: PodSituation, resource: str) -> list[NodeFit]:
    """Nodes that have the hardware, would take the pod, and advertise none of it."""
    return [
        fit
        for fit in situation.fits
        if may_enter(fit)
        and has_hardware(fit.node, resource)
        and not offers_vendor(fit.node, resource)
        and not (resource in situation.by_class and fit.node.name in situation.sliced)
        and fit.node.has_status
    ]


def unhealthy(situation: PodSituation, resource: str) -> list[NodeFit]:
    """Nodes where the pod would fit if the devices marked unhealthy were healthy."""
    wanted = situation.pod.requests.get(resource, Decimal(0))
    found = []
    for fit in situation.fits:
        lost = lost_devices(fit.node, resource)
        free = fit.free.get(resource, Decimal(0))
        if fit.is_admitted and lost > 0 and free < wanted <= free + lost:
            found.append(fit)
    return found


def lost_devices(node: Node, resource: str) -> Decimal:
    """Devices in capacity and not in allocatable: unhealthy, or of a plugin that just stopped."""
    capacity = node.capacity.get(resource, Decimal(0))
    return max(Decimal(0), capacity - node.allocatable.get(resource, Decimal(0)))


def number(amount: Decimal) -> str:
    """Write an amount without exponent or needless zeros."""
    return f"{amount.normalize():f}"


def names(nodes: Iterable[Node]) -> str:
    """Write node names, the first few and how many more."""
    listed = [node.name for node in nodes]
    more = f" and {len(listed) - _SHOWN} more" if len(listed) > _SHOWN else ""
    return ", ".join(listed[:_SHOWN]) + more


def have(nodes: Sequence[Node]) -> str:
    """Write node names with "has" or "have", whichever their number wants."""
    return f"{names(nodes)} {'has' if len(nodes) == 1 else 'have'}"


def subjects(nodes: Iterable[Node]) -> tuple[Subject, ...]:
    """Return the nodes as subjects."""
    return tuple(node.subject for node in nodes)


def allocatable_evidence(nodes: Sequence[Node], resource: str, note: str) -> tuple[Evidence, ...]:
    """Return what the first few nodes advertise of the resource."""
    return tuple(
        Evidence(
            node.meta.path,
            f"status.allocatable[{resource}]",
            _offered(node, resource),
            note,
        )
        for node in nodes[:_SHOWN]
    )


def _offered(node: Node, resource: str) -> str:
    if resource not in node.allocatable and resource not in node.capacity:
        return "no such key"
    offered = number(node.allocatable.get(resource, Decimal(0)))
    return f"{offered} of capacity {number(node.capacity.get(resource, Decimal(0)))}"


def request_evidence(situation: PodSituation, resource: str) -> Evidence:
    """Return what the pod asks for, summed as the scheduler sums it."""
    asking = [c.name for c in situation.pod.containers if resource in (c.limits | c.requests)]
    total = number(situation.pod.requests.get(resource, Decimal(0)))
    note = f"sum over containers {', '.join(asking)}" if len(asking) > 1 else None
    where = asking[0] if len(asking) == 1 else "*"
    path = f"spec.containers[{where}].resources.limits[{resource}]"
    return Evidence(situation.pod.meta.path, path, total, note)


def failure_evidence(situation: PodSituation) -> Iterator[Evidence]:
    """Yield the scheduler's own refusal, and why an autoscaler adds no node, where they are."""
    if situation.failure is not None:
        yield situation.failure.evidence
    said = situation.not_provisioned()
    if said is not None:
        yield Evidence(said.path, f"{said.reason} of {said.component}", said.message)
