"""The chain driver -> container toolkit -> device plugin on a node: its state, as evidence.

Shared by the rules that ask from a pod's side and from a node's side.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from gpudoctor.checking import Draft, finding
from gpudoctor.facts.kubernetes import resources
from gpudoctor.facts.kubernetes.components import Component, Role, Trouble, troubles
from gpudoctor.facts.kubernetes.model import Node, Pod, Taint
from gpudoctor.facts.kubernetes.situation import PodLogLine
from gpudoctor.report import Evidence, Subject
from gpudoctor_checks import supply

FAILING = ("crash", "image", "create", "exit")
_SHOWN = 3
_SHOWN_CHARS = 200


class Surroundings(Protocol):
    """What a pod's and a node's situation have in common: the components and their words."""

    @property
    def subject(self) -> Subject:
        """What is being diagnosed."""

    @property
    def components(self) -> tuple[Component, ...]:
        """The cluster's own GPU and RDMA components."""

    @property
    def component_lines(self) -> tuple[PodLogLine, ...]:
        """Telling lines of the components' logs."""


def all_unhealthy(around: Surroundings, node: Node, resource: str) -> bool:
    """Allocatable 0 below a capacity, with a plugin that runs: its devices are unhealthy."""
    if not supply.lost_devices(node, resource):
        return False
    return any(
        (pod := plugin.on(node.name)) is not None and not troubles(pod)
        for plugin in plugins_of(around, resource)
    ) or bool(unhealthy_lines(around, node))


def hardware_note(node: Node, resource: str) -> str:
    """Say which label shows that the node has the hardware."""
    vendor = resources.vendor_of(resource)
    shown = vendor.shown_by(node.labels) if vendor else None
    return f"although label {shown[0]}={shown[1]}" if shown else "it was advertised before"


def plugins_of(around: Surroundings, resource: str) -> list[Component]:
    """Return the device plugins of the resource's vendor."""
    return [
        component
        for component in around.components
        if component.role is Role.DEVICE_PLUGIN and component.serves(resource)
    ]


def plugin_state(around: Surroundings, nodes: list[Node]) -> str:
    """Say what is known of the device plugin on these nodes, in a sentence."""
    plugins = [part for part in around.components if part.role is Role.DEVICE_PLUGIN]
    if not plugins:
        return "No device plugin is among the objects read."
    running = [node for node in nodes if any(plugin.on(node.name) for plugin in plugins)]
    if len(running) < len(nodes):
        without = [node for node in nodes if node not in running]
        return f"The device plugin has no pod on {supply.names(without)}."
    held = [
        event
        for plugin in plugins
        for node in nodes
        if (pod := plugin.on(node.name)) and (event := plugin.holds(pod))
    ]
    if held:
        said = " ".join(held[0].message.split())
        return f"The device plugin has a pod there, which does not start: {said[:_SHOWN_CHARS]}"
    return "The device plugin has a pod there, which has not registered its devices."


def plugin_evidence(around: Surroundings, nodes: list[Node], resource: str) -> Iterator[Evidence]:
    """Yield what the device plugin has on each of the first few nodes."""
    for plugin in plugins_of(around, resource):
        for node in nodes[:_SHOWN]:
            pod = plugin.on(node.name)
            if pod is not None:
                yield from _state_evidence(pod)
                if event := plugin.holds(pod):
                    yield Evidence(event.path, f"{event.reason} (x{event.count})", event.message)
                said = [x for x in around.component_lines if x.pod == pod.subject]
                yield from (x.evidence for x in said if x.line.kind in _PLUGIN_LINES)
            elif plugin.daemon_set is not None:
                yield Evidence(
                    plugin.daemon_set.meta.path,
                    "status.desiredNumberScheduled",
                    str(plugin.daemon_set.desired),
                    f"no pod on {node.name}",
                )


_PLUGIN_LINES = ("plugin-start", "plugin-nvml", "plugin-strategy", "plugin-no-devices")


def _state_evidence(pod: Pod) -> Iterator[Evidence]:
    """What keeps a component's pod from working, or that it runs."""
    found = troubles(pod)
    if not found:
        yield Evidence(pod.meta.path, "status.phase", pod.phase, f"on {pod.node}")
    for trouble in found:
        yield _trouble_evidence(pod, trouble)


def _trouble_evidence(pod: Pod, trouble: Trouble) -> Evidence:
    value = trouble.reason
    if trouble.exit_code is not None:
        value += f", exit code {trouble.exit_code}"
    if trouble.restarts:
        value += f", {trouble.restarts} restarts"
    note = f"on {pod.node}" + (f": {trouble.message}" if trouble.message else "")
    return Evidence(pod.meta.path, trouble.field, value, note)


def component_finding(
    around: Surroundings, name: str, seen: dict[str, tuple[Pod, Trouble]], nodes: list[Node]
) -> Draft:
    """Draft a failing component: `seen` has its pod and trouble by node, `nodes` the same nodes."""
    pod, trouble = seen[nodes[0].name]
    owners = [owner.subject for owner, _ in seen.values()]
    lines = [line.evidence for line in around.component_lines if line.pod in owners]
    return finding(
        name,
        nodes[0].subject,
        f"Container {trouble.container} of {pod.meta.short} on {pod.node} is in {trouble.reason} "
        f"({trouble.restarts} restarts, exit code {trouble.exit_code}); what waits for it on "
        f"{supply.names(nodes)} stays down.",
        *(_trouble_evidence(*pair) for pair in list(seen.values())[:_SHOWN]),
        *lines[:_SHOWN],
        values={"node": supply.names(nodes), "reason": trouble.reason},
        related=(around.subject, *supply.subjects(nodes)),
        leans_on=("Node",),
    )


def served_otherwise(around: Surroundings, plugin: Component, node: Node, resource: str) -> bool:
    """Whether another plugin of the same vendor has a pod on the node."""
    return any(
        other is not plugin and other.on(node.name) is not None
        for other in plugins_of(around, resource)
    )


def repelled_finding(
    around: Surroundings,
    plugin: Component,
    repelled: list[tuple[Node, tuple[Taint, ...]]],
    resource: str,
) -> Draft:
    """Draft a device plugin whose DaemonSet does not tolerate the taints of these nodes."""
    nodes = [node for node, _ in repelled]
    taint = repelled[0][1][0]
    daemon_set = plugin.daemon_set
    assert daemon_set is not None
    tolerated = ", ".join(
        f"{t.key or '*'}{'=' + t.value if t.value else ''}:{t.effect or '*'}"
        for t in daemon_set.template.tolerations
    )
    return finding(
        "device-plugin-blocked-by-taint",
        nodes[0].subject,
        f"DaemonSet {daemon_set.meta.short} has no toleration for {taint} of "
        f"{supply.names(nodes)}, so no device plugin runs there and {resource} is never "
        "advertised. What has to change is the plugin's tolerations.",
        Evidence(
            daemon_set.meta.path,
            "status.desiredNumberScheduled",
            str(daemon_set.desired),
            "a DaemonSet that wants no pod reports no error",
        ),
        Evidence(
            daemon_set.meta.path,
            "spec.template.spec.tolerations",
            tolerated or "none",
            f"does not tolerate {taint}",
        ),
        *(
            Evidence(node.meta.path, "spec.taints", ", ".join(map(str, taints)))
            for node, taints in repelled[:_SHOWN]
        ),
        *supply.allocatable_evidence(nodes, resource, "no plugin has registered it"),
        values={"resource": resource, "nodes": supply.names(nodes)},
        related=(around.subject, *supply.subjects(nodes)),
        leans_on=("Node", "Pod"),
        fix=f"Add to the tolerations of DaemonSet {daemon_set.meta.short}: {{key: {taint.key}, "
        f"operator: Exists, effect: {taint.effect}}}",
    )


def unhealthy_lines(around: Surroundings, node: Node) -> list[PodLogLine]:
    """The device plugin's own words about the node's devices, one line a device."""
    owners = {
        pod.subject
        for component in around.components
        for pod in component.pods
        if pod.node == node.name
    }
    found: dict[str, PodLogLine] = {}
    for line in around.component_lines:
        if line.pod in owners and line.line.kind == "device-marked-unhealthy":
            device = line.line.groups.get("device") or line.line.groups.get("marked") or ""
            found.setdefault(device, line)
    return list(found.values())
