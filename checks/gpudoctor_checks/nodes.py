"""A node by itself: what it should advertise and does not, and what others say of its health."""

from __future__ import annotations

import re
from collections.abc import Iterator
from decimal import Decimal

from gpudoctor import PREFIX
from gpudoctor.checking import CheckSet, Result, finding
from gpudoctor.facts.kubernetes import placement, resources
from gpudoctor.facts.kubernetes.components import Role, troubles
from gpudoctor.facts.kubernetes.model import Condition, Node
from gpudoctor.facts.kubernetes.node_situation import NodeSituation
from gpudoctor.facts.kubernetes.situation import PodSituation
from gpudoctor.report import Certainty, Evidence, Severity, Subject
from gpudoctor_checks import chain, supply

CHECKS = CheckSet()

_KUBELET = ("Ready", "MemoryPressure", "DiskPressure", "PIDPressure", "NetworkUnavailable")
# Polarity differs between publishers: these report trouble with False, the others with True.
_GOOD_WHEN_TRUE = re.compile(r".*Ready$|.*Healthy$")
_ABOUT_GPUS = re.compile(
    r"gpu|xid|nvlink|nvidia|dcgm|accelerat|\bib|infiniband|efa|rdma|neuron|fabric", re.IGNORECASE
)
_VERDICT_LABELS = {
    "autopilot.ibm.com/gpuhealth": ("WARN", "EVICT"),
    "dgxc.nvidia.com/nvsentinel-state": (
        "quarantined",
        "draining",
        "drain-succeeded",
        "drain-failed",
        "remediating",
    ),
}


def _resource(node: Node) -> str | None:
    """The resource that a node with this hardware is expected to advertise."""
    advertised = [name for name in (*node.capacity, *node.allocatable) if resources.is_gpu(name)]
    if advertised:
        return max(advertised, key=lambda name: node.capacity.get(name, Decimal(0)))
    by_vendor = {"NVIDIA": "nvidia.com/gpu", "AMD": "amd.com/gpu"}
    for vendor in resources.VENDORS:
        default = by_vendor.get(vendor.name)
        if default and supply.has_hardware(node, default):
            return default
    return None


@CHECKS.check(NodeSituation)
def nothing_advertised(around: NodeSituation) -> Iterator[Result]:
    """The node has GPU hardware by its labels and offers no GPU under any name."""
    node, resource = around.node, _resource(around.node)
    if resource is None or supply.offers_vendor(node, resource) or not node.has_status:
        return
    if supply.upgrade_of(node) is not None or chain.all_unhealthy(around, node, resource):
        return
    yield finding(
        "gpu-resource-not-advertised",
        node.subject,
        f"{node.name} shows GPU hardware in its labels and offers no {resource}. "
        f"{chain.plugin_state(around, [node])}",
        *supply.allocatable_evidence([node], resource, chain.hardware_note(node, resource)),
        *chain.plugin_evidence(around, [node], resource),
        values={"resource": resource, "nodes": node.name},
        leans_on=("Pod", "DaemonSet"),
    )
    yield from _failing_components(around, resource)
    for plugin in chain.plugins_of(around, resource):
        if plugin.daemon_set is None or plugin.on(node.name) is not None:
            continue
        template = plugin.daemon_set.template
        taints = placement.untolerated(template.tolerations, node.taints)
        if (
            taints
            and not placement.unmatched(template, node)
            and not chain.served_otherwise(around, plugin, node, resource)
        ):
            yield chain.repelled_finding(around, plugin, [(node, taints)], resource)


def _failing_components(around: NodeSituation, resource: str) -> Iterator[Result]:
    node = around.node
    for role, name in (
        (Role.DRIVER, "driver-container-failing"),
        (Role.TOOLKIT, "container-toolkit-failing"),
        (Role.DEVICE_PLUGIN, "device-plugin-crashing"),
    ):
        for component in around.components:
            pod = component.on(node.name)
            if component.role is not role or pod is None or not component.serves(resource):
                continue
            bad = [trouble for trouble in troubles(pod) if trouble.kind in chain.FAILING]
            if bad:
                yield chain.component_finding(around, name, {node.name: (pod, bad[0])}, [node])
                break


@CHECKS.check(NodeSituation)
def devices_lost(around: NodeSituation) -> Iterator[Result]:
    """Capacity above allocatable: devices that the plugin has marked unhealthy."""
    node = around.node
    for resource in node.capacity:
        lost = supply.lost_devices(node, resource)
        if not resources.is_gpu(resource) or not lost or supply.upgrade_of(node):
            continue
        if not node.allocatable.get(resource) and not chain.all_unhealthy(around, node, resource):
            continue
        count = supply.number(lost)
        yield finding(
            "gpu-unhealthy-shrinks-allocatable",
            node.subject,
            f"{count} of {supply.number(node.capacity[resource])} {resource} on {node.name} are "
            "marked unhealthy by the device plugin. Use never lowers allocatable.",
            *supply.allocatable_evidence([node], resource, "capacity counts the unhealthy ones"),
            *(line.evidence for line in chain.unhealthy_lines(around, node)[:4]),
            values={"count": count, "resource": resource, "node": node.name},
        )


@CHECKS.check(NodeSituation)
def rdma_empty(around: NodeSituation) -> Iterator[Result]:
    """The node knows an RDMA resource and has none of it."""
    node = around.node
    empty = [
        name
        for name in node.capacity
        if resources.is_rdma(name) and not node.allocatable.get(name, Decimal(0))
    ]
    for resource in empty:
        yield finding(
            "rdma-resource-zero",
            node.subject,
            f"{node.name} has the resource {resource} with 0 devices: the selectors of its device "
            "plugin match no adapter.",
            *supply.allocatable_evidence([node], resource, "no device matched"),
            *(
                line.evidence
                for line in around.component_lines
                if line.line.kind in ("rdma-pool-empty", "rdma-netns")
            ),
            values={"resource": resource, "nodes": node.name},
            severity=Severity.WARNING,
        )


@CHECKS.check(NodeSituation)
def out_of_service(around: NodeSituation) -> Iterator[Result]:
    """An upgrade, a cordon, or a kubelet that does not report."""
    node = around.node
    upgrade = supply.upgrade_of(node)
    if upgrade is not None:
        yield finding(
            "driver-upgrade-in-progress",
            node.subject,
            f"The GPU operator is upgrading the driver of {node.name} (state {upgrade.state}).",
            *upgrade.evidence,
            values={"node": node.name, "reason": upgrade.state},
            severity=Severity.WARNING,
        )
    if node.unschedulable:
        yield finding(
            "node-cordoned",
            node.subject,
            f"{node.name} takes no new pods.",
            Evidence(node.meta.path, "spec.unschedulable", "true"),
            values={"nodes": node.name},
            severity=Severity.INFO,
        )
    ready = node.condition("Ready")
    if ready is not None and ready.status != "True":
        yield finding(
            "node-not-ready",
            node.subject,
            f"The kubelet of {node.name} reports Ready {ready.status}: {ready.message}",
            Evidence(node.meta.path, "status.conditions[Ready]", ready.status, ready.reason),
            values={"nodes": node.name, "reason": ready.reason or ready.status},
        )


@CHECKS.check(NodeSituation)
def reported_of_node(around: NodeSituation) -> Iterator[Result]:
    """Another agent's condition or label says that the node's GPUs are not well."""
    yield from _reported(around.node, ())


@CHECKS.check(PodSituation)
def reported_of_pods_node(situation: PodSituation) -> Iterator[Result]:
    """The same, for the node that the pod runs on."""
    if situation.node is not None and not situation.pod.is_terminal:
        yield from _reported(situation.node, (situation.subject,))


def _reported(node: Node, related: tuple[Subject, ...]) -> Iterator[Result]:
    said = [
        Evidence(
            node.meta.path,
            f"status.conditions[{condition.type}]",
            f"{condition.status} {condition.reason}".strip(),
            condition.message or None,
        )
        for condition in node.conditions
        if _is_bad(condition)
    ]
    said += [
        Evidence(node.meta.path, f"metadata.labels[{label}]", node.labels[label])
        for label, bad in _VERDICT_LABELS.items()
        if node.labels.get(label) in bad
    ]
    if said:
        first = said[0].path or ""
        yield finding(
            "node-reported-unhealthy",
            node.subject,
            f"Another agent on {node.name} reports trouble with its GPUs or network.",
            *said,
            values={"node": node.name, "reason": first.partition("[")[2].rstrip("]")},
            related=related,
            certainty=Certainty.LIKELY,
        )


def _is_bad(condition: Condition) -> bool:
    if condition.type.startswith(f"{PREFIX}/"):
        return (
            False  # what we said of the node last: an agent that believed it would never clear it
        )
    if condition.type in _KUBELET or not _ABOUT_GPUS.search(condition.type):
        return False
    bad = "False" if _GOOD_WHEN_TRUE.fullmatch(condition.type) else "True"
    return condition.status == bad
