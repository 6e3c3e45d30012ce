"""A host's labels in its report: `facts.labels`, and what the Node object has of them now."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gpudoctor import PREFIX
from gpudoctor.facts.node import labels
from gpudoctor.facts.node.gpu import NodeGpus
from gpudoctor.facts.node.value import Value
from gpudoctor.readings.host_facts import HostFacts

LABELS, NOW = "labels", "labels_now"
"""Under `NOW` a report has the labels with our prefix that the Node object carries."""


def published(seen: HostFacts) -> dict[str, dict[str, str | None]]:
    """Return what a report says of the labels that a host should have."""
    node = labels.Node(
        facts=seen.node,
        gpus=seen.gpus if isinstance(seen.gpus, NodeGpus) else None,
        policy=seen.policy,
        defaults=seen.defaults,
    )
    return labels.published(labels.read(node))


def with_node(facts: Mapping[str, Any], of_node: Mapping[str, str]) -> dict[str, Any]:
    """Return a host's `facts` with what the labels of its Node object add."""
    told = facts.get(LABELS, {})
    so_far = {name: Value(one["value"], one["because"]) for name, one in told.items()}
    found = labels.published(labels.with_node_labels(so_far, of_node))
    return {**facts, LABELS: found, NOW: ours(of_node)}


def ours(of_node: Mapping[str, str]) -> dict[str, str]:
    """Return the labels with our prefix."""
    return {key: value for key, value in of_node.items() if key.startswith(f"{PREFIX}/")}
