"""Many agents in one process: each is the agent itself, but for its child and its HTTP endpoint.

What a child would report is set from outside. All else is as on a node: the watch of the pods, the
two agreeing rounds, the outbox, the Lease, and a token that is bound to the agent's own pod. The
endpoints would cost hundreds of threads that wake up twice a second.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path

from gpudoctor.agent.loop import Agent, Settings
from gpudoctor.agent.truth import AGREEING
from gpudoctor.publish import labels
from gpudoctor.report import (
    Audience,
    Blame,
    Certainty,
    Finding,
    Fixes,
    Layer,
    Report,
    ReportSubject,
    Severity,
    Subject,
    Verdict,
)
from gpudoctor.sources.kubernetes.client import connect
from tests.cluster.admin import wait_for

LABELS = {"driver": "580126009", "gpu-count": "8", "rdma": "ib", "gdr": "dmabuf", "nvlink": "all"}


class Simulated:
    """One agent; `says` is what its looks at the node find from now on.

    One that `flaps` finds something else as often as it can without being taken for noise.
    """

    def __init__(self, node: str, kubeconfig: Path, namespace: str, period: float) -> None:
        self.node = node
        self.says = Verdict.HEALTHY
        self.flaps = False
        self.labels = dict(LABELS)
        self.rounds = 0
        self.told: list[str] = []
        self.bundle = b""
        self._settings = Settings(
            node=node,
            namespace=namespace,
            pod=f"agent-of-{node}",
            period_s=period,
            listen="127.0.0.1:0",
        )
        self._kubeconfig = kubeconfig
        self._stop = threading.Event()
        self._agent: Agent | None = None
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start, or start anew, with no memory of a life before."""
        self._stop = threading.Event()
        agent = Agent(self._settings, lambda: connect(str(self._kubeconfig)), self.told.append)
        agent._rounds = _Child(self)  # type: ignore[assignment]
        self._agent = agent
        watch = threading.Thread(target=agent._picture.run, args=(self._stop,), daemon=True)
        self._thread = threading.Thread(target=agent._loop, args=(self._stop,), daemon=True)
        watch.start()
        self._thread.start()

    def stop(self) -> None:
        """End as by SIGTERM: what was published stays."""
        self._end()
        if self._thread is not None:
            self._thread.join(30)

    def _end(self) -> None:
        """Have it end, and do not wait for it."""
        self._stop.set()
        if self._agent is not None:
            self._agent._wake.set()

    def report(self) -> Report:
        """What the child answers."""
        self.rounds += 1
        if self.flaps:
            odd = self.rounds // AGREEING % 2
            self.says = Verdict.WARNING if odd else Verdict.HEALTHY
        return _report(self.node, self.says, self.labels)

    def desired(self) -> dict[str, str]:
        """The labels that the node should have by what its agent finds."""
        return labels.desired(_report(self.node, self.says, self.labels))


class _Child:
    """In place of the process that looks at the node."""

    def __init__(self, of: Simulated) -> None:
        self._of = of

    def ask(self, bundle: bytes) -> Report:
        self._of.bundle = bundle
        return self._of.report()

    def close(self) -> None:
        """There is nothing to end."""


@contextlib.contextmanager
def running(agents: Iterable[Simulated]) -> Iterator[dict[str, Simulated]]:
    """The agents by node, for as long as the context lasts."""
    fleet = {agent.node: agent for agent in agents}
    for agent in fleet.values():
        agent.start()
    try:
        yield fleet
    finally:
        stop(fleet.values())


def stop(fleet: Iterable[Simulated]) -> None:
    """End all of them at once."""
    agents = list(fleet)
    for agent in agents:
        agent._end()
    for agent in agents:
        agent.stop()


def after_rounds(fleet: Iterable[Simulated], count: int, seconds: float = 120.0) -> None:
    """Wait until each of them has looked at its node so many times more."""
    goals = [(agent, agent.rounds + count) for agent in fleet]

    def done() -> bool:
        return all(agent.rounds >= goal for agent, goal in goals)

    wait_for(f"{count} rounds of all", done, seconds)


def _report(node: str, verdict: Verdict, values: dict[str, str]) -> Report:
    findings = () if verdict is Verdict.HEALTHY else (_finding(node, verdict),)
    return Report(
        subject=ReportSubject("Node", node),
        observed_at="2026-11-29T19:00:00Z",
        verdict=verdict,
        roots=tuple(finding.name for finding in findings),
        root_ids=tuple(finding.id for finding in findings),
        findings=findings,
        unknown=(),
        facts={
            "labels": {
                name: {"value": value, "because": "set by the test"}
                for name, value in values.items()
            }
        },
    )


def _finding(node: str, verdict: Verdict) -> Finding:
    is_bad = verdict is Verdict.FAILING
    name, code = ("gpu-lost", "HW001") if is_bad else ("gpu-pcie-link-degraded", "HW014")
    return Finding(
        id=f"{name}@Node/{node}",
        code=code,
        name=name,
        layer=Layer.HARDWARE,
        severity=Severity.CRITICAL if is_bad else Severity.WARNING,
        certainty=Certainty.CERTAIN,
        blame=Blame.NODE,
        subject=Subject("Node", node),
        title="set by the test",
        detail="set by the test",
        evidence=(),
        explains=(),
        caused_by=(),
        audience=Audience.ADMIN,
        fix="none",
        fixes=Fixes(admin="none"),
        runbook=code,
    )
