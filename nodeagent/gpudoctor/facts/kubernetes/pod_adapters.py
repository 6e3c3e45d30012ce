"""RDMA adapters as a pod's own log shows them: an init container that runs ibstat, for example."""

from __future__ import annotations

import msgspec

from gpudoctor.facts.kubernetes.model import Pod
from gpudoctor.facts.node.model import Hca, NodeFacts
from gpudoctor.report import PREVIOUS

# Each format of the tools that are read has one of these.
_MARKS = ("CA '", "hca_id:", "Infiniband device '", " physical_state ")


class PodAdapters(msgspec.Struct, frozen=True):
    """The adapters, and which log (by its key) shows each."""

    facts: NodeFacts
    logs: dict[str, str]


def read(pod: Pod, logs: dict[str, str]) -> PodAdapters | None:
    """Return the adapters that tools printed into the pod's logs, None if there are none."""
    found: dict[str, Hca] = {}
    shown: dict[str, str] = {}
    for container in pod.containers:
        for suffix in (PREVIOUS, ""):
            key = f"{pod.meta.short}/{container.name}{suffix}"
            log = logs.get(key, "")
            if any(mark in log for mark in _MARKS):
                from gpudoctor.facts.node import rdma_text  # imported late: few pods print it

                for hca in rdma_text.parse(log) or ():
                    found[hca.name], shown[hca.name] = hca, key
    if not found:
        return None
    return PodAdapters(NodeFacts(subject=pod.subject, hcas=tuple(found.values())), shown)
