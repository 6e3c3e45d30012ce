"""The names under which we write to the cluster: each stands here and nowhere else.

The chart and its policies repeat some of them, and a test compares the two.
"""

from __future__ import annotations

import hashlib

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

NODE_CONDITION = f"{PREFIX}/Healthy"
"""Type of the node condition: True is well, False has the root cause, Unknown says what is not."""


_LONGEST_NAME = 253


def label(name: str) -> str:
    """Return the whole key of a label or annotation of ours: `gpudoctor.io/driver`."""
    return f"{PREFIX}/{name}"


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
    end = hashlib.sha256(name.encode()).hexdigest()[:10]
    return f"{name[: _LONGEST_NAME - len(end) - 1].rstrip('.-')}-{end}"
