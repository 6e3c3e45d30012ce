"""Prometheus metrics of the controller: who leads, who is silent, and what it wrote.

Nothing is labelled with a node: which it was is in the node's condition and in the log.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

_COUNTS = {
    "nodes": "nodes of the cluster",
    "agents": "agents that renew their Lease",
    "silent_agents": "agents that do not: what they published is taken back",
    "tainted_nodes": "nodes with the taint gpudoctor.io/unhealthy",
}


class ControllerState(msgspec.Struct, frozen=True, kw_only=True):
    """`counts` by the names of the gauges, `writes` by kind, `failures` by the kind of error."""

    leads: bool
    braked: bool = False
    counts: Mapping[str, int] = {}
    writes: Mapping[str, int] = {}
    failures: Mapping[str, int] = {}


def render(state: ControllerState) -> bytes:
    """Return the text that Prometheus scrapes; one that does not lead knows nothing of nodes."""
    from prometheus_client import CollectorRegistry, Counter, Gauge, generate_latest

    registry = CollectorRegistry(auto_describe=False)

    def gauge(name: str, help_: str, value: float) -> None:
        Gauge(f"gpudoctor_controller_{name}", help_, registry=registry).set(value)

    def counter(name: str, help_: str, key: str, counts: Mapping[str, int]) -> None:
        family = Counter(f"gpudoctor_controller_{name}", help_, [key], registry=registry)
        for value, count in sorted(counts.items()):
            family.labels(value).inc(count)

    gauge("leader", "1 while this controller leads", float(state.leads))
    if state.leads:
        gauge("brake", "1 while no verdict may turn failing", float(state.braked))
        for name, value in state.counts.items():
            gauge(name, _COUNTS[name], value)
    counter("writes", "writes by what they are about", "kind", state.writes)
    counter("failures", "requests that failed, by kind of error", "error", state.failures)
    return generate_latest(registry)
