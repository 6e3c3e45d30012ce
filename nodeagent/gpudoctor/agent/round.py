"""The child of a round: reads the host, judges it with the node's objects, prints the report.

`gpudoctor.agent.rounds` starts it as `python -m gpudoctor.agent.round`. Each line of standard
input is an order and a bundle, apart by a tab; each line of output an answer.
"""

from __future__ import annotations

import re
import signal
import sys
from pathlib import Path

import msgspec

from gpudoctor import readings, registry
from gpudoctor.agent.rounds import Answer, Order
from gpudoctor.facts.node.gpu import NodeGpus
from gpudoctor.facts.node.gpu_reader import parse_gpus
from gpudoctor.readings import Reading, host, host_facts, joined
from gpudoctor.readings.host_facts import HostFacts, Services
from gpudoctor.readings.kubernetes import Input
from gpudoctor.registry import Registry
from gpudoctor.report import Report, Severity, Subject, Unknown
from gpudoctor.sources import bundle, nvml_file, pod_resources, redaction
from gpudoctor.sources.host.live import LiveHost
from gpudoctor.sources.host.recorder import Recorder

_CONTAINER = re.compile(rb'"containerID":"([^"]+)"')
ROUNDS = 10
"""After so many the parent starts another child, unless a thing hangs that this one knows of."""


class Kubelet:
    """Asks for the pod resources where the node's containers are others than at the last asking.

    The kubelet gives devices and CPUs to a container once, when it starts; gRPC in a child of its
    own takes about as much processor time as the rest of a round. Each new child of rounds asks
    anew.
    """

    def __init__(self) -> None:
        self._containers: frozenset[bytes] = frozenset()
        self._answer: str | None = None

    def knows(self, objects: bytes) -> None:
        """Take in the bundle of a round: an answer for other containers is forgotten."""
        containers = frozenset(_CONTAINER.findall(objects))
        if containers != self._containers:
            self._containers, self._answer = containers, None

    def ask(self, deadline_s: float, root: str) -> str:
        """Return the kubelet's answer, as `pod_resources.read_pod_resources` does."""
        answer = self._answer or pod_resources.read_pod_resources(deadline_s, root)
        self._answer = None if pod_resources.is_error(answer) else answer
        return answer


def main() -> None:
    """Answer orders until standard input ends or the rounds are over."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which ends us
    kubelet = Kubelet()
    live: LiveHost | None = None
    checks: Registry | None = None
    for number, line in enumerate(sys.stdin.buffer, 1):
        told, _, objects = line.partition(b"\t")
        try:
            order = msgspec.json.decode(told, type=Order)
            live = live or LiveHost(order.host_root, programs=host.PROGRAMS)
            checks = checks or registry.load(order.checks)
            kubelet.knows(objects)
            judged = judge(_read(live, order, objects, kubelet), checks, order.observe)
            report = redaction.publishable(judged)
            answer = Answer(report=report, last=number >= ROUNDS and not live.stuck)
        except Exception as error:  # noqa: BLE001 - the parent says it; it must not end the agent
            answer = Answer(failure=f"{type(error).__name__}: {error}", last=True)
        sys.stdout.buffer.write(msgspec.json.encode(answer) + b"\n")
        sys.stdout.buffer.flush()
        if answer.last:
            break
    if live is not None:
        live.close()


def _read(live: LiveHost, order: Order, objects: bytes, kubelet: Kubelet) -> Reading:
    """Read the node: its machine, its objects and the GPU pods on it, in one."""
    seen = _look(live, order, kubelet)
    source = Input(bundle.decode(objects, "the agent's bundle"), {order.node: seen})
    return joined.read_node(source, order.node)


def _look(live: LiveHost, order: Order, kubelet: Kubelet) -> HostFacts:
    """Read the machine, with what the second DaemonSet wrote of its GPUs where that is mounted."""
    subject = Subject("Node", order.node)
    services = Services(order.host_root or "", kubelet.ask)
    folder = Path(services.root + nvml_file.FOLDER)
    gpus: NodeGpus | Unknown | None = None
    if not services.is_here and folder.is_dir():
        told = nvml_file.read(folder)
        gpus = told if isinstance(told, Unknown) else parse_gpus(told, subject)
    return host_facts.read(Recorder(live), subject, services=services, told=gpus)


def judge(reading: Reading, checks: Registry, observed: tuple[str, ...]) -> Report:
    """Judge without the rules that are only to be observed, and add what those find as info.

    So a new rule can be watched on a whole cluster before its findings turn a verdict.
    """
    if not observed:
        return readings.judge(reading, checks)
    report = readings.judge(reading, checks, lambda entry: not entry.code.startswith(observed))
    return _with_infos(
        report, readings.judge(reading, checks, lambda entry: entry.code.startswith(observed))
    )


def _with_infos(report: Report, beside: Report) -> Report:
    """Add the findings of another report of the same reading as such that decide nothing."""
    infos = tuple(
        msgspec.structs.replace(finding, severity=Severity.INFO, explains=(), caused_by=())
        for finding in beside.findings
    )
    return msgspec.structs.replace(
        report,
        findings=report.findings + infos,
        children=tuple(map(_with_infos, report.children, beside.children)),
    )


if __name__ == "__main__":
    main()
