"""One node and everything in the input that concerns it: the fact type of the node checks."""

from __future__ import annotations

from datetime import datetime

import msgspec

from gpudoctor.facts.kubernetes import situation
from gpudoctor.facts.kubernetes.cluster import Cluster
from gpudoctor.facts.kubernetes.components import Component
from gpudoctor.facts.kubernetes.model import Event, Node, Occupant, Scope
from gpudoctor.facts.kubernetes.situation import PodLogLine
from gpudoctor.report import Subject


class NodeSituation(msgspec.Struct, frozen=True, kw_only=True):
    """A node, its events, the pods on it and the components that serve it."""

    node: Node
    events: tuple[Event, ...] = ()
    components: tuple[Component, ...] = ()
    component_lines: tuple[PodLogLine, ...] = ()
    occupants: tuple[Occupant, ...] = ()
    scope: Scope = Scope()
    now: datetime | None = None

    @property
    def subject(self) -> Subject:
        """The node as the subject of a finding."""
        return self.node.subject


def read(
    cluster: Cluster, node: Node, components: tuple[Component, ...], logs: dict[str, str]
) -> NodeSituation:
    """Gather what the input says about this node."""
    return NodeSituation(
        node=node,
        events=tuple(cluster.events_of("Node", node.name, None)),
        components=components,
        component_lines=tuple(
            line
            for part in components
            for pod in part.pods
            if pod.node == node.name
            for line in situation.log_lines(pod, logs)
        ),
        occupants=tuple(cluster.occupants(node.name)),
        scope=cluster.scope,
        now=cluster.now,
    )
