"""Device plugin, GPU operator and what a node advertises.

The scheduler prints the same words for a key that was never advertised, one that is 0 and one
that is used up. Which it is stands in the node object; why, in the chain driver -> container
toolkit -> device plugin, whose first broken link is the cause.
"""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal

from gpudoctor.checking import CheckSet, Result, finding
from gpudoctor.facts.kubernetes import placement, resources
from gpudoctor.facts.kubernetes.components import Role, Trouble, troubles
from gpudoctor.facts.kubernetes.model import Node, Pod
from gpudoctor.facts.kubernetes.placement import NodeFit
from gpudoctor.facts.kubernetes.situation import PodSituation
from gpudoctor.report import Evidence
from gpudoctor_checks import chain, let_in, supply

CHECKS = CheckSet()

_SHOWN = 3
# The plugin cannot start NVML at all, whatever state each of the GPUs is in.
_NO_NVML = "calling nvml.Init"


@CHECKS.check(PodSituation)
def not_advertised(situation: PodSituation) -> Iterator[Result]:
    """Nodes that have the hardware and would take the pod advertise none of what it asks for."""
    if not supply.is_waiting_for_a_node(situation):
        return
    for resource in supply.gpu_requests(situation):
        nodes = [
            fit.node
            for fit in supply.broken(situation, resource)
            if supply.upgrade_of(fit.node) is None
            and not chain.all_unhealthy(situation, fit.node, resource)
        ]
        if not nodes:
            continue
        yield finding(
            "gpu-resource-not-advertised",
            nodes[0].subject,
            f"{supply.names(nodes)} shows GPU hardware in its labels, but no {resource} in "
            f"allocatable: the scheduler sees none there. {chain.plugin_state(situation, nodes)}",
            *supply.allocatable_evidence(nodes, resource, chain.hardware_note(nodes[0], resource)),
            *chain.plugin_evidence(situation, nodes, resource),
            *supply.failure_evidence(situation),
            values={"resource": resource, "nodes": supply.names(nodes)},
            related=(situation.subject, *supply.subjects(nodes)),
            # Where a DRA driver runs, a class may offer what the node does not show.
            leans_on=(
                *("Node", "Pod", "DaemonSet"),
                *(["DeviceClass"] if any(n.name in situation.sliced for n in nodes) else []),
                *(["ResourceSlice"] if resource in situation.by_class else []),
            ),
        )


def _concerned(situation: PodSituation) -> list[tuple[str, NodeFit]]:
    """The broken nodes of a pending pod, or the node that a bound one was given nothing by."""
    if supply.is_waiting_for_a_node(situation):
        return [
            (resource, fit)
            for resource in supply.gpu_requests(situation)
            for fit in supply.broken(situation, resource)
        ]
    if situation.pod.phase == "Failed":
        return [
            (resource, fit)
            for resource in supply.gpu_requests(situation)
            for fit in situation.fits
            if not supply.offers_vendor(fit.node, resource)
        ]
    missed = let_in.does_without(situation)
    return [(resource, fit) for resource in missed for fit in situation.fits]


@CHECKS.check(PodSituation)
def component_failing(situation: PodSituation) -> Iterator[Result]:
    """Driver, toolkit or device plugin does not stay up on a node that offers nothing."""
    for role, name in (
        (Role.DRIVER, "driver-container-failing"),
        (Role.TOOLKIT, "container-toolkit-failing"),
        (Role.DEVICE_PLUGIN, "device-plugin-crashing"),
    ):
        seen: dict[str, tuple[Pod, Trouble]] = {}
        for resource, fit in _concerned(situation):
            for component in situation.components:
                pod = component.on(fit.node.name)
                if component.role is role and component.serves(resource) and pod is not None:
                    bad = [trouble for trouble in troubles(pod) if trouble.kind in chain.FAILING]
                    if bad:
                        seen.setdefault(fit.node.name, (pod, bad[0]))
        if seen:
            nodes = [fit.node for fit in situation.fits if fit.node.name in seen]
            yield chain.component_finding(situation, name, seen, nodes)


@CHECKS.check(PodSituation)
def plugin_blocked_by_taint(situation: PodSituation) -> Iterator[Result]:
    """The device plugin's DaemonSet does not tolerate what the pod itself tolerates."""
    if not supply.is_waiting_for_a_node(situation):
        return
    for resource in supply.gpu_requests(situation):
        candidates = supply.broken(situation, resource)
        for plugin in chain.plugins_of(situation, resource):
            if plugin.daemon_set is None:
                continue
            repelled = [
                (fit.node, taints)
                for fit in candidates
                if plugin.on(fit.node.name) is None
                and (
                    taints := placement.untolerated(
                        plugin.daemon_set.template.tolerations, fit.node.taints
                    )
                )
                and not placement.unmatched(plugin.daemon_set.template, fit.node)
            ]
            if repelled and not chain.served_otherwise(situation, plugin, repelled[0][0], resource):
                yield chain.repelled_finding(situation, plugin, repelled, resource)


@CHECKS.check(PodSituation)
def upgrading(situation: PodSituation) -> Iterator[Result]:
    """A node that the pod could use is being taken through a driver upgrade."""
    if not supply.is_waiting_for_a_node(situation):
        return
    for resource in supply.gpu_requests(situation):
        nodes = [
            (fit.node, upgrade)
            for fit in situation.fits
            if supply.may_enter(fit)
            and supply.has_hardware(fit.node, resource)
            and (fit.cordoned or not supply.offers_vendor(fit.node, resource))
            and (upgrade := supply.upgrade_of(fit.node)) is not None
        ]
        if not nodes:
            continue
        first, upgrade = nodes[0]
        listed = [node for node, _ in nodes]
        yield finding(
            "driver-upgrade-in-progress",
            first.subject,
            f"The GPU operator is upgrading the driver of {supply.names(listed)} (state "
            f"{upgrade.state}): it has cordoned the node and paused its GPU components, and "
            "gives the devices back by itself when the upgrade is done.",
            *(evidence for _, found in nodes[:_SHOWN] for evidence in found.evidence),
            *(
                Evidence(node.meta.path, "spec.unschedulable", "true")
                for node in listed[:_SHOWN]
                if node.unschedulable
            ),
            *supply.allocatable_evidence(listed, resource, "paused with the upgrade"),
            values={"node": supply.names(listed), "reason": upgrade.state},
            related=(situation.subject, *supply.subjects(listed)),
            leans_on=("Node",),
        )


@CHECKS.check(PodSituation)
def unhealthy_devices(situation: PodSituation) -> Iterator[Result]:
    """The pod would fit on a node if devices there were not marked unhealthy."""
    if not supply.is_waiting_for_a_node(situation):
        return
    for resource in supply.gpu_requests(situation):
        for fit in supply.unhealthy(situation, resource):
            node = fit.node
            if supply.upgrade_of(node) or (
                not supply.offers_vendor(node, resource)
                and not chain.all_unhealthy(situation, fit.node, resource)
            ):
                continue
            lost = supply.number(supply.lost_devices(node, resource))
            lines = chain.unhealthy_lines(situation, node)
            yield finding(
                "gpu-unhealthy-shrinks-allocatable",
                node.subject,
                f"{node.name} has capacity {supply.number(node.capacity[resource])} {resource} and "
                f"allocatable {supply.number(node.allocatable.get(resource, Decimal(0)))}: "
                f"{lost} marked unhealthy by the device plugin. Use never lowers allocatable. "
                f"With them the pod's {supply.number(situation.pod.requests[resource])} would fit.",
                Evidence(
                    node.meta.path,
                    f"status.capacity vs status.allocatable [{resource}]",
                    f"{supply.number(node.capacity[resource])} vs "
                    f"{supply.number(node.allocatable.get(resource, Decimal(0)))}",
                ),
                *(line.evidence for line in lines[:_SHOWN]),
                supply.request_evidence(situation, resource),
                values={"count": lost, "resource": resource, "node": node.name},
                related=(situation.subject,),
                leans_on=("Node", "Pod"),
            )


@CHECKS.check(PodSituation)
def refused_by_node_without_devices(situation: PodSituation) -> Iterator[Result]:
    """The kubelet refused the pod, and its node still lacks the devices now."""
    pod, node = situation.pod, situation.node
    if pod.phase != "Failed" or not pod.reason or node is None or not node.has_status:
        return
    for resource in supply.gpu_requests(situation):
        lost = supply.lost_devices(node, resource)
        failing = any(role_trouble(situation, node))
        if lost and not supply.upgrade_of(node) and not failing:
            yield finding(
                "gpu-unhealthy-shrinks-allocatable",
                node.subject,
                f"{node.name} still has {supply.number(lost)} of "
                f"{supply.number(node.capacity[resource])} {resource} marked unhealthy.",
                *supply.allocatable_evidence([node], resource, "as it is now"),
                *(line.evidence for line in chain.unhealthy_lines(situation, node)[:_SHOWN]),
                values={
                    "count": supply.number(lost),
                    "resource": resource,
                    "node": node.name,
                },
                related=(situation.subject,),
            )
        elif not lost and not supply.offers_vendor(node, resource):
            yield finding(
                "gpu-resource-not-advertised",
                node.subject,
                f"{node.name} offers no {resource} now. {chain.plugin_state(situation, [node])}",
                *supply.allocatable_evidence([node], resource, "as it is now"),
                *chain.plugin_evidence(situation, [node], resource),
                values={"resource": resource, "nodes": node.name},
                related=(situation.subject,),
                leans_on=("Pod", "DaemonSet"),
            )


@CHECKS.check(PodSituation)
def lost_gpu_hides_healthy_one(situation: PodSituation) -> Iterator[Result]:
    """A pod holds an unhealthy device, which is counted against the healthy ones that are left.

    Free is allocatable minus requests: the lost device has left the one and stays in the other.
    """
    if not supply.is_waiting_for_a_node(situation):
        return
    for resource, wanted in supply.gpu_requests(situation).items():
        for fit in supply.unhealthy(situation, resource):
            held = [
                held
                for held in situation.held_unhealthy
                if held.node == fit.node.name and held.resource == resource
            ]
            free = fit.free.get(resource, Decimal(0))
            if not held or free + len(held) < wanted:
                continue
            yield finding(
                "gpu-lost-blocks-allocation",
                fit.node.subject,
                f"{fit.node.name} has {len(held)} {resource} that is lost and still held by a pod. "
                "It is gone from allocatable and its holder still counts as use, so healthy "
                "devices that nobody uses look taken.",
                *(
                    Evidence(h.pod, "allocatedResourcesStatus", f"{h.device}: Unhealthy")
                    for h in held[:_SHOWN]
                ),
                *supply.allocatable_evidence([fit.node], resource, "the lost one is left out"),
                supply.request_evidence(situation, resource),
                values={"node": fit.node.name, "resource": resource},
                related=(situation.subject,),
                leans_on=("Node", "Pod"),
                fix=f"Delete the pod that holds the lost device ({held[0].pod}): the healthy ones "
                "can be given out at once.",
            )


def role_trouble(situation: PodSituation, node: Node) -> Iterator[Trouble]:
    """Yield what is wrong with the components' pods on the node."""
    for component in situation.components:
        pod = component.on(node.name)
        if pod is not None:
            yield from (t for t in troubles(pod) if t.kind in chain.FAILING)


@CHECKS.check(PodSituation)
def lost_gpu_in_use(situation: PodSituation) -> Iterator[Result]:
    """A GPU was lost while allotted: the kubelet refuses new devices on that node."""
    pod, node = situation.pod, situation.node
    text = f"{pod.reason} {pod.message}"
    lost = "GPU is lost" in text or (
        "GetPreferredAllocation rpc failed" in text and _NO_NVML not in text
    )
    stuck = "previously allocated devices are no longer healthy" in text
    if node is None or not (lost or stuck):
        return
    for resource in supply.gpu_requests(situation):
        if stuck and not lost and not supply.lost_devices(node, resource):
            continue
        yield finding(
            "gpu-lost-blocks-allocation",
            node.subject,
            f"The device plugin on {node.name} fails to hand out {resource}, healthy devices too, "
            "because a GPU there no longer answers.",
            Evidence(pod.meta.path, f"status.message ({pod.reason})", pod.message),
            *supply.allocatable_evidence([node], resource, "what the node still claims"),
            *(line.evidence for line in chain.unhealthy_lines(situation, node)[:_SHOWN]),
            values={"node": node.name, "resource": resource},
            related=(situation.subject,),
        )


@CHECKS.check(PodSituation)
def driver_seen_by_plugin(situation: PodSituation) -> Iterator[Result]:
    """The device plugin's log says that it cannot talk to the driver."""
    concerned = {fit.node.name: fit.node for _, fit in _concerned(situation)}
    for kind, name in (
        ("driver-missing", "driver-not-loaded"),
        ("driver-mismatch", "driver-library-mismatch"),
    ):
        for component in situation.components:
            if component.role is not Role.DEVICE_PLUGIN:
                continue
            for pod in component.pods:
                lines = [
                    line
                    for line in situation.component_lines
                    if line.pod == pod.subject and line.line.kind == kind
                ]
                if lines and pod.node in concerned:
                    node = concerned[pod.node]
                    yield finding(
                        name,
                        node.subject,
                        f"The device plugin on {node.name} cannot use the driver: "
                        f"{lines[-1].line.text}",
                        lines[-1].evidence,
                        values={"node": node.name},
                        related=(situation.subject,),
                    )


@CHECKS.check(PodSituation)
def rdma_zero(situation: PodSituation) -> Iterator[Result]:
    """The pod asks for an RDMA resource that nodes know and offer none of."""
    if not supply.is_waiting_for_a_node(situation):
        return
    for resource, wanted in situation.pod.requests.items():
        if not resources.is_rdma(resource) or wanted <= 0:
            continue
        reachable = [fit.node for fit in situation.fits if supply.may_enter(fit)]
        if any(node.allocatable.get(resource, Decimal(0)) >= wanted for node in reachable):
            continue
        empty = [node for node in reachable if resource in node.capacity | node.allocatable]
        missing = [
            node
            for node in reachable
            if supply.gpu_requests(situation).keys() & node.allocatable.keys()
        ]
        nodes = [n for n in empty if not n.allocatable.get(resource)] or (
            missing if not empty else []
        )
        if not nodes:
            continue
        lines = [
            line
            for line in situation.component_lines
            if line.line.kind in ("rdma-pool-empty", "rdma-netns")
        ]
        own = [
            line
            for line in lines
            if line.line.groups.get("resource", "").strip("\"'.")
            in (resource, resource.partition("/")[2])
        ] or lines
        yield finding(
            "rdma-resource-zero",
            nodes[0].subject,
            _rdma_detail(resource, nodes, bool(empty)),
            *supply.allocatable_evidence(nodes, resource, "no device matched"),
            *(line.evidence for line in own[:_SHOWN]),
            *_selector_evidence(situation, resource),
            *supply.failure_evidence(situation),
            values={"resource": resource, "nodes": supply.names(nodes)},
            related=(situation.subject, *supply.subjects(nodes)),
            leans_on=("Node",),
        )


def _rdma_detail(resource: str, nodes: list[Node], known: bool) -> str:
    others = sorted(
        {
            name
            for node in nodes
            for name, amount in node.allocatable.items()
            if amount > 0 and resources.is_rdma(name)
        }
    )
    offered = f" They offer {', '.join(others)} instead." if others else ""
    if not known:
        return f"No node that the pod may use has ever advertised {resource}.{offered}"
    return (
        f"{supply.names(nodes)} has the resource {resource} with 0 devices: its device plugin "
        f"runs, and its selectors match no adapter. The GPUs are not the problem.{offered}"
    )


def _selector_evidence(situation: PodSituation, resource: str) -> Iterator[Evidence]:
    short = resource.partition("/")[2]
    for config in situation.rdma_pools:
        if config.name == short:
            yield Evidence(config.config_map, f"data[{config.key}]", config.selectors)


@CHECKS.check(PodSituation)
def hugepages(situation: PodSituation) -> Iterator[Result]:
    """The pod asks for huge pages that nodes with its GPUs do not have."""
    if not supply.is_waiting_for_a_node(situation):
        return
    for resource, wanted in situation.pod.requests.items():
        if not resource.startswith("hugepages-") or wanted <= 0:
            continue
        admitted = [fit for fit in situation.fits if fit.is_admitted and _has_gpus(situation, fit)]
        short = [
            fit.node for fit in admitted if fit.node.allocatable.get(resource, Decimal(0)) < wanted
        ]
        if short and len(short) == len(admitted):
            yield finding(
                "hugepages-missing",
                short[0].subject,
                f"The pod asks for {wanted / 2**20:.0f} MiB of {resource}; {supply.have(short)} "
                "less. Pages that were reserved after the kubelet started are not seen until it "
                "restarts.",
                *supply.allocatable_evidence(short, resource, "bytes"),
                supply.request_evidence(situation, resource),
                *supply.failure_evidence(situation),
                values={"resource": resource, "nodes": supply.names(short)},
                related=(situation.subject, *supply.subjects(short)),
                leans_on=("Node",),
            )


def _has_gpus(situation: PodSituation, fit: NodeFit) -> bool:
    """Whether the node has enough GPUs free for the pod, were it not for anything else."""
    return all(
        fit.free.get(resource, Decimal(0)) >= wanted
        for resource, wanted in supply.gpu_requests(situation).items()
    )


@CHECKS.check(PodSituation)
def unhealthy_device_in_pod(situation: PodSituation) -> Iterator[Result]:
    """The kubelet reports a device that the pod holds as unhealthy."""
    if situation.node is None:
        return
    node = situation.node
    for status in situation.pod.statuses:
        bad = [device for device in status.devices if device.health == "Unhealthy"]
        if not bad:
            continue
        resource = bad[0].resource
        yield finding(
            "gpu-unhealthy-shrinks-allocatable",
            node.subject,
            f"Container {status.name} holds {len(bad)} device(s) of {resource} that the kubelet on "
            f"{node.name} reports as Unhealthy: {', '.join(device.id for device in bad[:_SHOWN])}. "
            "A pod keeps a device that fails under it; nothing moves it to a healthy one.",
            *(
                Evidence(
                    situation.pod.meta.path,
                    f"status.containerStatuses[{status.name}].allocatedResourcesStatus",
                    f"{device.id}: {device.health}",
                    device.message or None,
                )
                for device in bad[:_SHOWN]
            ),
            *supply.allocatable_evidence([node], resource, "what the node offers now"),
            *(line.evidence for line in chain.unhealthy_lines(situation, node)[:_SHOWN]),
            values={"count": str(len(bad)), "resource": resource, "node": node.name},
            related=(situation.subject,),
        )
