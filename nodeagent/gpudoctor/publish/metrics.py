"""Prometheus metrics of the agent: what its node is like, and how its own work goes.

Label sets are bounded: by the catalogue of findings, by verdicts, by outcomes. Nothing here is
labelled with a pod, a device or a text; which it was is in the Diagnosis.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import msgspec

from gpudoctor.publish import labels
from gpudoctor.report import Report, Verdict

PREFLIGHT_OUTCOMES = ("request", "node", "peer", "unknown")
"""How a preflight that does not pass ends, in the words of its termination message."""
_PREFLIGHT = re.compile(
    rf"gpudoctor preflight: ({'|'.join(PREFLIGHT_OUTCOMES)})(?:: ([A-Z]{{3}}\d{{3}}) )?"
)
_MOST_SEEN = 4096
_NUMBERS = {
    "driver": "the NVIDIA driver's version: major x 10^6 + minor x 10^3 + patch",
    "cuda": "the CUDA level of the driver, as CUDA counts it: 13.0 is 13000",
    "gpu-count": "GPUs that can be used",
    "nvlink-island-size": "GPUs of the smallest group that NVLink joins",
    "rdma-rails": "RDMA rails that carry traffic",
    "rdma-gbps": "Gb/s of each RDMA rail",
}
"""The node labels that are numbers worth a graph -> what they count."""


class AgentState(msgspec.Struct, frozen=True, kw_only=True):
    """How the agent's work goes. Times are seconds since the epoch.

    `rounds` counts rounds by how they ended, `writes` by what the server said to them (a few
    words each); `held` says that the cluster-wide brake keeps the verdict from turning bad.
    """

    period_seconds: float
    rounds: Mapping[str, int] = {}
    last_round_at: float | None = None
    last_round_seconds: float | None = None
    writes: Mapping[str, int] = {}
    waiting_writes: int = 0
    held: bool = False


class PreflightFailures:
    """Counts preflights that did not pass, each run of an init container once."""

    def __init__(self) -> None:
        self._seen: dict[str, None] = {}
        self.counts: Counter[tuple[str, str]] = Counter()

    def observe(self, pod: Mapping[str, Any]) -> None:
        """Count what is new in the init container statuses of a pod as the API has it."""
        for run, outcome, code in _failures(pod):
            if run not in self._seen:
                self.counts[outcome, code] += 1
            self._seen.pop(run, None)
            self._seen[run] = None
        while len(self._seen) > _MOST_SEEN:
            del self._seen[next(iter(self._seen))]


def _failures(pod: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    """Yield (run, outcome, runbook code or "") of each preflight that ended without passing."""
    for status in _list(_dict(pod.get("status")).get("initContainerStatuses")):
        for state in ("state", "lastState"):
            ended = _dict(_dict(_dict(status).get(state)).get("terminated"))
            said = _PREFLIGHT.match(str(ended.get("message", "")))
            if said and ended.get("containerID"):
                yield str(ended["containerID"]), said[1], said[2] or ""


def _dict(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def render(
    report: Report | None, agent: AgentState, preflight: Mapping[tuple[str, str], int]
) -> bytes:
    """Return the text that Prometheus scrapes; `report` is the node's last one, with its pods."""
    from prometheus_client import CollectorRegistry, generate_latest
    from prometheus_client.core import (
        CounterMetricFamily,
        GaugeMetricFamily,
        Metric,
    )
    from prometheus_client.registry import Collector

    def gauge(name: str, help_: str, samples: Iterable[tuple[dict[str, str], float]]) -> Metric:
        family = GaugeMetricFamily(f"gpudoctor_{name}", help_)
        for keys, value in samples:
            family.add_sample(f"gpudoctor_{name}", keys, value)
        return family

    def counter(name: str, help_: str, samples: Iterable[tuple[dict[str, str], float]]) -> Metric:
        family = CounterMetricFamily(f"gpudoctor_{name}", help_)
        for keys, value in samples:
            family.add_sample(f"gpudoctor_{name}_total", keys, value)
        return family

    class _Now(Collector):
        def collect(self) -> Iterator[Metric]:
            if report is not None:
                yield from (gauge(*entry) for entry in _of_node(report))
            yield from (gauge(*entry) for entry in _of_agent(agent))
            yield counter("rounds", "rounds by how they ended", _by("result", agent.rounds))
            yield counter("writes", "writes by the answer to them", _by("result", agent.writes))
            yield counter(
                "preflight_failures",
                "preflights in init containers of this node that did not pass",
                [
                    ({"outcome": outcome, "code": code}, count)
                    for (outcome, code), count in sorted(preflight.items())
                ],
            )

    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Now())
    return generate_latest(registry)


_Samples = Iterable[tuple[dict[str, str], float]]


def _of_node(report: Report) -> Iterator[tuple[str, str, _Samples]]:
    yield (
        "node_verdict",
        "1 for the verdict that holds, 0 for the others",
        _states(report.verdict),
    )
    yield "node_findings", "findings on the node", _findings([report])
    yield (
        "node_unknown_facts",
        "facts that were needed and could not be read",
        [({}, len(report.unknown))],
    )
    pods = Counter(child.verdict.value for child in report.children)
    yield (
        "pods",
        "GPU pods on the node by verdict",
        [({"verdict": verdict.value}, pods[verdict.value]) for verdict in Verdict],
    )
    yield "pod_findings", "findings on GPU pods of the node", _findings(report.children)
    for label in labels.of(report):
        if label.name in _NUMBERS and (label.value or "").lstrip("-").isdecimal():
            name = f"node_{label.name.replace('-', '_')}"
            yield name, _NUMBERS[label.name], [({}, float(label.value or 0))]


def _of_agent(agent: AgentState) -> Iterator[tuple[str, str, _Samples]]:
    yield "period_seconds", "how often the node is looked at", [({}, agent.period_seconds)]
    yield "waiting_writes", "writes that wait for the API server", [({}, agent.waiting_writes)]
    yield (
        "held_by_brake",
        "1 while the cluster-wide brake keeps the verdict from turning bad",
        [({}, float(agent.held))],
    )
    if agent.last_round_at is not None:
        yield (
            "last_round_timestamp_seconds",
            "when the last round ended",
            [({}, agent.last_round_at)],
        )
    if agent.last_round_seconds is not None:
        yield "last_round_seconds", "how long the last round took", [({}, agent.last_round_seconds)]


def _states(verdict: Verdict) -> _Samples:
    return [({"verdict": one.value}, float(one is verdict)) for one in Verdict]


def _findings(reports: Iterable[Report]) -> _Samples:
    """Count findings by what the catalogue bounds; `root` tells a cause from what it explains."""
    counts: Counter[tuple[str, str, str, str]] = Counter()
    for report in reports:
        roots = set(report.root_ids)
        for finding in report.findings:
            is_root = "true" if finding.id in roots else "false"
            counts[finding.code, finding.name, finding.severity.value, is_root] += 1
    keys = ("code", "name", "severity", "root")
    return [(dict(zip(keys, key, strict=True)), count) for key, count in sorted(counts.items())]


def _by(key: str, counts: Mapping[str, int]) -> _Samples:
    return [({key: name}, count) for name, count in sorted(counts.items())]
