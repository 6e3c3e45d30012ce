"""What is left when no other rule explains a pod that is not well: its program, or a gap.

How the container ended says which: by itself, by a signal that nothing accounts for, never
started because the image cannot run its command, or well and for ever again.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import msgspec

from gpudoctor.checking import CheckSet, Draft, Result, finding
from gpudoctor.facts.kubernetes.health import State, Unexplained
from gpudoctor.facts.kubernetes.model import ContainerStatus
from gpudoctor.facts.kubernetes.model import State as ContainerState
from gpudoctor.facts.kubernetes.situation import PodSituation
from gpudoctor.report import Certainty, Evidence
from gpudoctor_checks.workload import end_text, ended

CHECKS = CheckSet()

_NOT_RUN = 128
_HOOK = "PostStartHookError"
_SHOWN = 3
_OTHERWISE = ("OOMKilled", "ContainerStatusUnknown")
_SENT_SIGNALS = {137: "SIGKILL", 143: "SIGTERM"}
_OWN_SIGNALS = {
    132: "an instruction that this CPU does not have (SIGILL)",
    134: "abort (SIGABRT)",
    139: "a segmentation fault (SIGSEGV)",
}
# runc and crun, when the image does not have what the container is to run, or not executable.
_OWN_COMMAND = (
    r"(?is)(?:exec:? |executable file )[`'\"]?[^`'\"]+[`'\"]?:? .*"
    r"(?:not found|no such file or directory|permission denied)"
)
_ARCH = "kubernetes.io/arch"


class _Ending(msgspec.Struct, frozen=True):
    """A special way to end: in a few words, in a sentence, what to do, what shows it."""

    reason: str
    said: str
    fix: str
    evidence: tuple[Evidence, ...] = ()


@CHECKS.check(Unexplained)
def unexplained(case: Unexplained) -> Iterator[Result]:
    """Nothing else explains the pod: its program ended by itself, or the input does not tell."""
    situation = case.situation
    if case.health.state is not State.NOT_WELL:
        return
    ends = [
        (status, end, field)
        for status, end, field in (*ended(situation), *_ends_well_for_ever(situation))
        if (end.exit_code != _NOT_RUN or re.search(_OWN_COMMAND, end.message))
        and end.reason not in _OTHERWISE
    ]
    hook = _failed_hook(situation)
    if hook is not None:
        yield hook
    elif ends and _is_killed(situation, ends[0][1]):
        yield _killed_by_somebody(situation, *ends[0])
    elif ends:
        yield _application_error(situation, *ends[0])
    else:
        yield finding(
            "insufficient-evidence",
            situation.subject,
            f"The pod is not well ({case.health.why}), and what Kubernetes shows of it does not "
            "say why.",
            case.health.evidence,
            *([situation.failure.evidence] if situation.failure else []),
            *(
                Evidence(event.path, event.reason, event.message)
                for event in situation.events[-_SHOWN:]
            ),
            values={"pod": situation.pod.meta.short},
        )


def _failed_hook(situation: PodSituation) -> Draft | None:
    """A container that the kubelet ends, because the command of its postStart hook failed."""
    said = situation.events_with("FailedPostStartHook")
    for status in situation.pod.statuses:
        waits = status.state.kind == "waiting" and status.state.reason == _HOOK
        if waits:
            return finding(
                "application-error",
                situation.pod.subject,
                f"The postStart hook of container {status.name} fails, and the kubelet ends the "
                "container for that: the program itself need not be wrong.",
                Evidence(
                    situation.pod.meta.path,
                    f"status.containerStatuses[{status.name}].state.waiting",
                    status.state.reason,
                    status.state.message or None,
                ),
                *(Evidence(e.path, f"{e.reason} (x{e.count})", e.message) for e in said[-1:]),
                values={
                    "container": status.name,
                    "pod": situation.pod.meta.short,
                    "reason": "its postStart hook fails",
                },
                certainty=Certainty.LIKELY,
                fix="Run the hook's command by hand in the container. What takes long, such as a "
                "model's download, belongs into an init container: the hook holds readiness back.",
            )
    return None


def _ends_well_for_ever(
    situation: PodSituation,
) -> Iterator[tuple[ContainerStatus, ContainerState, str]]:
    """Containers that end with 0 and are started again, as a Deployment does with a script."""
    for status in situation.pod.statuses:
        end = status.latest_end
        looping = status.state.kind == "waiting" and status.state.reason == "CrashLoopBackOff"
        if looping and end is not None and end.exit_code == 0:
            yield status, end, f"status.containerStatuses[{status.name}].lastState.terminated"


def _is_killed(situation: PodSituation, end: ContainerState) -> bool:
    """Whether a signal from outside ended it: a program does not send those to itself."""
    return end.exit_code in _SENT_SIGNALS and not situation.lines_of("python-error")


def _killed_by_somebody(
    situation: PodSituation, status: ContainerStatus, end: ContainerState, field: str
) -> Draft:
    signal = _SENT_SIGNALS.get(end.exit_code or 0, "a signal")
    return finding(
        "insufficient-evidence",
        situation.subject,
        f"Somebody sent {signal} to container {status.name} (exit code {end.exit_code}, reason "
        f"{end.reason}, not OOMKilled), and nothing that was read says who. Events live about an "
        "hour: look at the next restart for Killing, Preempted or Evicted, and in the node's "
        "kernel log for the OOM killer.",
        Evidence(situation.pod.meta.path, field, end_text(status, end), end.message or None),
        values={"pod": situation.pod.meta.short},
    )


def _special(
    situation: PodSituation, status: ContainerStatus, end: ContainerState
) -> _Ending | None:
    """Return what the exit itself tells of the cause, None where only the program's log does."""
    if end.exit_code == _NOT_RUN:
        return _Ending(
            "its command cannot be run",
            f"Container {status.name} never started: the image cannot run its command.",
            "Correct command and args, or the image: what is to be run has to be in it.",
        )
    if end.exit_code == 0:
        return _Ending(
            "it ends well and is started again",
            f"Container {status.name} ends with exit code 0 and restartPolicy "
            f"{situation.pod.restart_policy} starts it again: its program is one that ends.",
            "Run a program that ends as a Job, not as a Deployment or StatefulSet.",
        )
    foreign = [x for x in situation.lines_of("exec-format") if x.container == status.name]
    return _foreign(situation, foreign[-1].evidence) if foreign else None


def _foreign(situation: PodSituation, line: Evidence) -> _Ending:
    """A program of another CPU architecture, or a script without its first line."""
    node = situation.node
    arch = node.labels.get(_ARCH) if node else None
    shown = (Evidence(node.meta.path, f"metadata.labels[{_ARCH}]", arch),) if node and arch else ()
    return _Ending(
        "exec format error: built for another CPU architecture",
        f"The kernel of {situation.pod.node} cannot run the container's program: it is built for "
        f"another CPU architecture than the node's{f', {arch}' if arch else ''} (or is a script "
        "without its #! line).",
        f"Use an image that is built for {arch or 'the CPU of the node'} too, or select nodes by "
        f"{_ARCH}.",
        (line, *shown),
    )


def _application_error(
    situation: PodSituation, status: ContainerStatus, end: ContainerState, field: str
) -> Draft:
    pod = situation.pod
    lines = [line for line in situation.lines_of("python-error") if line.container == status.name]
    signal = _OWN_SIGNALS.get(end.exit_code or 0)
    how = f"with {signal}" if signal else f"with exit code {end.exit_code}"
    special = _special(situation, status, end)
    last = lines[-1].line.text if lines else ""
    unread = "" if situation.has_log else " Its log was not read."
    return finding(
        "application-error",
        pod.subject,
        special.said
        if special
        else f"Container {status.name} ended {how}; nothing that Kubernetes says of the pod, its "
        f"node or its events accounts for it.{unread}",
        Evidence(pod.meta.path, field, end_text(status, end), end.message or None),
        *(special.evidence if special else ()),
        *(line.evidence for line in lines[-1:]),
        values={
            "container": status.name,
            "pod": pod.meta.short,
            "reason": special.reason if special else last[:80] or how,
        },
        certainty=Certainty.LIKELY if lines or special else Certainty.POSSIBLE,
        fix=special.fix if special else None,
    )
