"""The names under which we write to the cluster: each stands here and nowhere else.

The chart and its policies repeat some of them, and a test compares the two.
"""

from __future__ import annotations

from gpudoctor import PREFIX

GROUP = PREFIX
VERSION = "v1alpha1"
DIAGNOSES = "diagnoses"
"""The plural of the report object `Diagnosis`, as in its API path."""

AGENT = "gpudoctor-agent"
CONTROLLER = "gpudoctor-controller"
"""Field managers, and the names of the service accounts."""

NODE_CONDITION = f"{PREFIX}/Healthy"
"""Type of the node condition: True is well, False has the root cause, Unknown says what is not."""


def label(name: str) -> str:
    """Return the whole key of a label or annotation of ours: `gpudoctor.io/driver`."""
    return f"{PREFIX}/{name}"


def agent_lease(node: str) -> str:
    """Return the name of the Lease that the agent of a node renews, in the agents' namespace."""
    return f"agent-{node}"
