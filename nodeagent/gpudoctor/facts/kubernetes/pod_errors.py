"""Errors of the runtime, the toolkit and CUDA in what a pod's status, events and logs quote.

A line in the log of a container that runs well or has ended well may be long overcome; it counts
only where the container has ended badly or is not ready, or where the error cannot be overcome in
place.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta

from gpudoctor.facts.kubernetes import resources
from gpudoctor.facts.kubernetes.components import Trouble, troubles
from gpudoctor.facts.kubernetes.model import ContainerStatus
from gpudoctor.facts.kubernetes.situation import PodSituation
from gpudoctor.facts.node.runtime_errors import ErrorLines, RecognisedError
from gpudoctor.report import PREVIOUS, Evidence

_LASTING = frozenset({"cgroup-device-access-lost", "driver-library-mismatch", "gpu-lost"})
# What each message of a lasting error has in it.
_LASTING_WORDS = (
    "Driver/library version mismatch",
    "Failed to initialize NVML",
    "API mismatch",
    "GPU is lost",
    "fallen off the bus",
)
# What a program says that goes on without the GPU that its container asks for.
_FELL_BACK_WORDS = ("The NVIDIA Driver was not detected", "Found no NVIDIA driver on your system")
_FAILURE_REASONS = frozenset(
    {
        "Failed",
        "FailedCreatePodSandBox",
        "FailedCreatePodContainer",
        "FailedMount",
        "UnexpectedAdmissionError",
        "BackOff",
        "InspectFailed",
        "Unhealthy",
    }
)
# What these say is overcome as soon as a container has started, ready or not.
_BEFORE_START = frozenset({"FailedCreatePodSandBox", "FailedMount"})
# A container that has been ready for so long after its last failure has overcome what ended it.
_RECOVERED_AFTER = timedelta(hours=1)
_MAX_LOG_LINES = 200_000


def read(situation: PodSituation, logs: dict[str, str]) -> ErrorLines | None:
    """Return the recognised errors of the pod, None if there is none."""
    found = tuple(_errors(situation, logs))
    if not found:
        return None
    return ErrorLines(
        subject=situation.subject,
        errors=tuple(_unique(found)),
        related=(situation.node.subject,) if situation.node else (),
    )


def _unique(
    found: tuple[tuple[RecognisedError, Evidence], ...],
) -> Iterator[tuple[RecognisedError, Evidence]]:
    """One occurrence of a name from each kind of place: the status, the events, the log."""
    seen: set[tuple[str, str]] = set()
    for error, evidence in found:
        place = evidence.object.partition("/")[0].partition(" ")[0]
        if (error.name, place) not in seen:
            seen.add((error.name, place))
            yield error, evidence


def _errors(
    situation: PodSituation, logs: dict[str, str]
) -> Iterator[tuple[RecognisedError, Evidence]]:
    quotes = tuple(_quotes(situation))
    telling = tuple(_telling_logs(situation, logs))
    if not quotes and not telling:
        return
    # Imported here: its patterns take longer to compile than a healthy pod takes to judge.
    from gpudoctor.facts.node.runtime_error_lines import recognise_all

    for evidence in quotes:
        for _, error in recognise_all((evidence.value or "").splitlines()):
            yield error, evidence
    for key, lasting in telling:
        lines = logs[key].splitlines()
        before = max(0, len(lines) - _MAX_LOG_LINES)
        for number, error in recognise_all(lines[before:]):
            if not lasting or error.name in _LASTING or any(map(error.text.__contains__, lasting)):
                yield error, Evidence.of_line(f"log {key}", before + number, error.text)


def _telling_logs(
    situation: PodSituation, logs: dict[str, str]
) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield the keys of the logs worth reading.

    Each with the words that still count, none of which is needed where the container is not well.
    """
    failing = {trouble.container for trouble in _lasting_troubles(situation)}
    for container in situation.pod.containers:
        status = situation.pod.status_of(container.name)
        ended = status is not None and status.state.kind == "terminated"
        well = container.name not in failing and (status is None or status.ready or ended)
        asks = any(map(resources.is_gpu, container.requests | container.limits))
        runs_without = well and asks and not ended
        lasting = _LASTING_WORDS + (_FELL_BACK_WORDS if runs_without else ())
        for suffix in (PREVIOUS, ""):
            if well and suffix:
                continue
            key = f"{situation.pod.meta.short}/{container.name}{suffix}"
            log = logs.get(key, "")
            if log and (not well or any(map(log.__contains__, lasting))):
                yield key, lasting if well else ()


def _lasting_troubles(situation: PodSituation) -> Iterator[Trouble]:
    """What is wrong with the containers, less what one has recovered from."""
    for trouble in troubles(situation.pod):
        status = situation.pod.status_of(trouble.container)
        if status is None or not _has_recovered(status, situation.now):
            yield trouble


def _has_recovered(status: ContainerStatus, now: datetime | None) -> bool:
    ended = status.last.finished
    runs = status.ready and status.state.kind == "running"
    return runs and ended is not None and now is not None and now - ended > _RECOVERED_AFTER


def _quotes(situation: PodSituation) -> Iterator[Evidence]:
    """Messages of the status and of events that still hold."""
    pod = situation.pod
    if pod.message:
        yield Evidence(pod.meta.path, f"status.message ({pod.reason})", pod.message)
    for trouble in _lasting_troubles(situation):
        if trouble.message:
            yield Evidence(pod.meta.path, f"{trouble.field} ({trouble.reason})", trouble.message)
    running = all(status.ready for status in pod.statuses) and bool(pod.statuses)
    started = any(status.state.kind in ("running", "terminated") for status in pod.statuses)
    holding = _FAILURE_REASONS - _BEFORE_START if started else _FAILURE_REASONS
    for event in situation.events:
        if event.type != "Warning" or event.reason not in holding or running:
            continue
        # What the program is asked for before it has started may come with its start.
        early = event.message.startswith("Startup probe") and not troubles(pod)
        if not early:
            yield Evidence(event.path, f"{event.reason} (x{event.count})", event.message)
