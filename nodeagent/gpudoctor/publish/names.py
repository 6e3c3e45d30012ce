"""The names under which we write to the cluster: each stands here and nowhere else.

The chart and its policies repeat some of them, and a test compares the two.
"""

from __future__ import annotations

from gpudoctor import PREFIX

GROUP = PREFIX
VERSION = "v1alpha1"
DIAGNOSIS, DIAGNOSES, SHORT_NAME = "Diagnosis", "diagnoses", "gdx"
"""The report object: its kind, its plural as in its API path, and what to type for it."""

NAMESPACE = "gpudoctor"
"""Where the agents run unless the install says otherwise: Leases and the nodes' Diagnoses."""

AGENT = "gpudoctor-agent"
CONTROLLER = "gpudoctor-controller"
"""Field managers, and the names of the service accounts."""
LEADER_LEASE = CONTROLLER
"""The Lease for which the controllers run, in the agents' namespace; it carries the brake."""
COMPONENT_CONTROLLER = {
    "app.kubernetes.io/name": "gpudoctor",
    "app.kubernetes.io/component": "controller",
}
AGENTS = "app.kubernetes.io/name=gpudoctor,app.kubernetes.io/component=agent"
"""The label selector of the agents' Leases."""
POOLS = "gpudoctor-pools"
"""The ConfigMap with what the pools offer: the parameters of the policy of the same name."""

NODE_CONDITION = f"{PREFIX}/Healthy"
"""Type of the node condition: True is well, False has the root cause, Unknown says what is not."""
AGENT_SILENT = "AgentSilent"
"""Reason of the condition (Unknown) of a node whose agent no longer renews its Lease."""

BRAKE = f"{PREFIX}/brake"
"""Annotation of the leader's Lease: while it is there, no verdict turns bad."""
TAINT = f"{PREFIX}/unhealthy"
"""Key of the optional taint, with effect NoSchedule, of a node whose verdict is failing."""

_LONGEST_NAME = 253


def label(name: str) -> str:
    """Return the whole key of a label or annotation of ours: `gpudoctor.io/driver`."""
    return f"{PREFIX}/{name}"


def is_ours(key: str) -> bool:
    """Whether a label, annotation, taint or condition of a node is one of ours, by its prefix."""
    return key.startswith(f"{PREFIX}/")


def agent_lease(node: str) -> str:
    """Return the name of the Lease that the agent of a node renews, in the agents' namespace."""
    return bounded(f"agent-{node}")


def node_diagnosis(node: str) -> str:
    """Return the name of a node's Diagnosis, in the agents' namespace."""
    return bounded(f"node-{node}")


def pod_diagnosis(pod: str) -> str:
    """Return the name of a pod's Diagnosis, in the pod's namespace."""
    return bounded(f"pod-{pod}")


def bounded(name: str) -> str:
    """Return the name, or, if no object may have one so long, its start and a hash of it all."""
    if len(name) <= _LONGEST_NAME:
        return name
    import hashlib  # imported late: hardly any name is so long

    end = hashlib.sha256(name.encode()).hexdigest()[:10]
    return f"{name[: _LONGEST_NAME - len(end) - 1].rstrip('.-')}-{end}"
