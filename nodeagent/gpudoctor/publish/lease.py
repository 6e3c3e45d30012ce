"""The Lease by which an agent says that what it published of its node still holds.

It is renewed after a round, not at the start: an agent that comes up again and again and never
gets to see its node vouches for nothing, and the controller strips what it published.

The object is the agent's alone, so it takes back fields that somebody edited by hand: were they a
conflict, one `kubectl edit` would make a living agent a silent one.
"""

from __future__ import annotations

from datetime import UTC, datetime
from urllib.parse import quote

from gpudoctor.publish import names
from gpudoctor.publish.writes import Write, apply, forced

_API = "coordination.k8s.io/v1"


def leases_path(namespace: str) -> str:
    """Return the path of the Leases in a namespace."""
    return f"/apis/{_API}/namespaces/{quote(namespace, safe='')}/leases"


def renew(node: str, namespace: str, holder: str, now: datetime, period_s: float) -> Write:
    """Declare the agent's Lease; `holder` is its pod, `period_s` what it says of its rhythm.

    `now` should be the API server's time: the controller compares it with other agents'.
    """
    name = names.agent_lease(node)
    fields = {
        "apiVersion": _API,
        "kind": "Lease",
        "metadata": {
            "name": name,
            "namespace": namespace,
            "labels": {
                "app.kubernetes.io/name": "gpudoctor",
                "app.kubernetes.io/component": "agent",
            },
        },
        "spec": {
            "holderIdentity": holder,
            "leaseDurationSeconds": max(1, round(period_s)),
            "renewTime": now.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
        },
    }
    path = f"{leases_path(namespace)}/{quote(name, safe='')}"
    return forced(apply(f"Lease {name}", path, fields, names.AGENT))
