"""What a probe ends: a container that still starts, one that hung, one that is asked the wrong way.

The kubelet stops it with SIGTERM, after the grace period with SIGKILL: it ends with 143 or 137, or
with 0 where the program ends well when it is told to.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import timedelta

from gpudoctor.checking import CheckSet, Draft, Result, finding
from gpudoctor.facts.kubernetes import mentions
from gpudoctor.facts.kubernetes.model import Container, ContainerStatus, Event
from gpudoctor.facts.kubernetes.model import State as ContainerState
from gpudoctor.facts.kubernetes.situation import PodSituation
from gpudoctor.report import Certainty, Evidence, Severity
from gpudoctor_checks.workload import end_text, ended

CHECKS = CheckSet()

_GRACE = timedelta(seconds=40)
_KILLED = (137, 143)
_RECENT = timedelta(hours=1)
# A status that does not come of loading, which answers 503 or not at all.
_REFUSES_PROBE = r"HTTP probe failed with statuscode: 40[01345]\b"


@CHECKS.check(PodSituation)
def liveness_kills(situation: PodSituation) -> Iterator[Result]:
    """A probe ends the container before it has ever been ready."""
    pod = situation.pod
    kills = [
        event
        for event in situation.events_with("Killing")
        if "liveness probe" in event.message or "startup probe" in event.message
    ]
    for status, end, field in (*ended(situation), *_ended_by_request(situation)):
        container = pod.container(status.name)
        named = [event for event in kills if mentions.names(event.message, status.name)]
        if not named or container is None or end.reason == "OOMKilled":
            continue
        answered = _answered(situation)
        if answered is not None:
            yield _wrong_probe(situation, status, named[-1], answered)
            return
        budget = _start_budget(container)
        if budget is None or not _died_within(end, budget):
            continue
        probe = "no startupProbe" if container.startup is None else "startupProbe"
        liveness = container.startup or container.liveness
        assert liveness is not None
        settings = (
            f"{probe}; initialDelaySeconds {liveness.initial_delay}, periodSeconds "
            f"{liveness.period}, failureThreshold {liveness.failure_threshold}: "
            f"{liveness.budget} s in all"
        )
        said, unhealthy = named[-1], situation.events_with("Unhealthy")
        yield finding(
            "liveness-kills-loading-model",
            pod.subject,
            f"The kubelet stops {status.name} after {liveness.budget} s because a probe fails "
            "while it still starts; exit code 137 or 143 with reason Error is that stop.",
            Evidence(said.path, f"{said.reason} (x{said.count})", said.message),
            Evidence(pod.meta.path, field, end_text(status, end)),
            Evidence(pod.meta.path, f"spec.containers[{status.name}]", settings),
            *(Evidence(event.path, event.reason, event.message) for event in unhealthy[-1:]),
            *(line.evidence for line in situation.lines_of("loading-model")[-1:]),
            values={"container": status.name, "pod": pod.meta.short},
            # What the probe saw is not known without: it may be asked the wrong way.
            certainty=Certainty.CERTAIN if unhealthy else Certainty.LIKELY,
            fix=f"Add to container {status.name} a startupProbe with the liveness probe's check, "
            "periodSeconds: 10 and failureThreshold: 180 (30 min); liveness waits until it passes.",
        )
        return


def _ended_by_request(
    situation: PodSituation,
) -> Iterator[tuple[ContainerStatus, ContainerState, str]]:
    """Containers that were restarted and had ended with 0, as a server does that is told to end."""
    for status in situation.pod.statuses:
        end = status.last
        if status.restarts and not status.ready and not status.is_init and end.exit_code == 0:
            yield status, end, f"status.containerStatuses[{status.name}].lastState.terminated"


def _answered(situation: PodSituation) -> Event | None:
    """The probe that ends containers, where their server answers it: the request is wrong."""
    said = [
        event
        for event in situation.events_with("Unhealthy")
        if not event.message.startswith("Readiness")
    ]
    return said[-1] if said and re.search(_REFUSES_PROBE, said[-1].message) else None


def _wrong_probe(
    situation: PodSituation, status: ContainerStatus, said: Event, answered: Event
) -> Draft:
    return finding(
        "application-error",
        situation.pod.subject,
        f"The server in {status.name} runs and answers its probe, with a status that says that it "
        "cannot be asked so; the kubelet ends it for that. More time to start does not help.",
        Evidence(answered.path, f"{answered.reason} (x{answered.count})", answered.message),
        Evidence(said.path, f"{said.reason} (x{said.count})", said.message),
        values={
            "container": status.name,
            "pod": situation.pod.meta.short,
            "reason": "its probe asks for what the server does not have",
        },
        certainty=Certainty.LIKELY,
        fix=f"Correct path, port and scheme of the probe of container {status.name}: ask for one "
        "that the server has, e.g. /health of vLLM.",
    )


def _start_budget(container: Container) -> int | None:
    probes = [probe.budget for probe in (container.startup, container.liveness) if probe]
    return sum(probes) if probes else None


def _died_within(end: ContainerState, budget: int) -> bool:
    """Whether the container lived no longer than its probes' budgets and the grace period."""
    if end.exit_code not in _KILLED and end.exit_code != 0:
        return False
    if end.started is None or end.finished is None:
        return True
    return end.finished - end.started <= timedelta(seconds=budget * 1.5) + _GRACE


@CHECKS.check(PodSituation)
def probe_ended_it(situation: PodSituation) -> Iterator[Result]:
    """A liveness probe ended a container that had served: its program hung or had failed."""
    pod, now = situation.pod, situation.now
    for event in reversed(situation.events_with("Killing")):
        if "liveness probe" not in event.message or pod.is_terminal:
            continue
        for status in pod.statuses:
            container = pod.container(status.name)
            end = status.last if status.last.kind == "terminated" else status.state
            named = mentions.names(event.message, status.name)
            if not named or container is None or not _served(container, end):
                continue
            if status.ready and now and end.finished and now - end.finished > _RECENT:
                continue
            yield _hung(situation, status, end, Evidence(event.path, event.reason, event.message))
            return


def _served(container: Container, end: ContainerState) -> bool:
    """Whether it lived well beyond what its probes give it to start."""
    if end.kind != "terminated" or end.started is None or end.finished is None:
        return False
    probes = [probe.budget for probe in (container.startup, container.liveness) if probe]
    start = timedelta(seconds=2 * sum(probes)) + timedelta(minutes=2)
    return end.exit_code in (0, 137, 143) and end.finished - end.started > start


def _hung(
    situation: PodSituation, status: ContainerStatus, end: ContainerState, said: Evidence
) -> Result:
    pod = situation.pod
    assert end.started is not None
    assert end.finished is not None
    lived = (end.finished - end.started).total_seconds() / 60
    errors = [line for line in situation.lines_of("python-error") if line.container == status.name]
    which = "lastState" if status.last is end else "state"
    return finding(
        "application-error",
        pod.subject,
        f"Container {status.name} had run {lived:.0f} min when its liveness probe failed and the "
        "kubelet ended it: the program hung, or said itself that it is not well. More time to "
        "start does not help.",
        said,
        Evidence(
            pod.meta.path,
            f"status.containerStatuses[{status.name}].{which}.terminated",
            f"exitCode {end.exit_code}, reason {end.reason}, lived {lived:.0f} min",
        ),
        *(line.evidence for line in errors[-1:]),
        values={
            "container": status.name,
            "pod": pod.meta.short,
            "reason": errors[-1].line.text[:80] if errors else "its liveness probe failed",
        },
        severity=Severity.WARNING if status.ready else None,
        certainty=Certainty.LIKELY,
    )
