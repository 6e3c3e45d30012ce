"""RDMA adapters as a pod's own log shows them: an init container that runs ibstat, for example."""

from __future__ import annotations

from gpudoctor.facts.kubernetes.model import Pod
from gpudoctor.facts.kubernetes.situation import PREVIOUS
from gpudoctor.facts.node.model import Hca, NodeFacts

# Each format of the tools that are read has one of these.
_MARKS = ("CA '", "hca_id:", "Infiniband device '", " physical_state ")


def read(pod: Pod, logs: dict[str, str]) -> NodeFacts | None:
    """Return the adapters that tools printed into the pod's logs, None if there are none."""
    found: dict[str, Hca] = {}
    for container in pod.containers:
        for suffix in (PREVIOUS, ""):
            log = logs.get(f"{pod.meta.short}/{container.name}{suffix}", "")
            if any(mark in log for mark in _MARKS):
                from gpudoctor.facts.node import rdma_text  # imported late: few pods print it

                found |= {hca.name: hca for hca in rdma_text.parse(log) or ()}
    return NodeFacts(subject=pod.subject, hcas=tuple(found.values())) if found else None
