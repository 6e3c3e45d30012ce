"""What the rules on a pod and its machine share: their set, and the variables of its processes."""

from __future__ import annotations

from gpudoctor.checking import CheckSet
from gpudoctor.facts.node.model import WorkloadFacts
from gpudoctor.facts.pod_on_node import PodOnNode
from gpudoctor.report import Evidence

CHECKS = CheckSet()


def variable(pod: PodOnNode, name: str) -> tuple[str, WorkloadFacts] | None:
    """Return what a process of the pod has in its environment, with its container."""
    for workload in pod.containers:
        environment = (workload.process.environment if workload.process else None) or {}
        if name in environment:
            return environment[name].strip(), workload
    return None


def evidence(name: str, value: str, workload: WorkloadFacts) -> Evidence:
    """Return a variable of a process as evidence."""
    assert workload.process is not None
    return Evidence(f"/proc/{workload.process.pid}/environ", name, value)
