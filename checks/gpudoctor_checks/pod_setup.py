"""Why a bound pod cannot be set up, or members of its job are not made: objects, volumes, policies.

None of it is about GPUs; the words of the controller or the kubelet that refuses are the answer.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from gpudoctor.checking import CheckSet, Result, finding
from gpudoctor.facts.kubernetes.components import troubles
from gpudoctor.facts.kubernetes.model import Event
from gpudoctor.facts.kubernetes.refusals import Refusal
from gpudoctor.facts.kubernetes.situation import PodSituation, RefusedPod
from gpudoctor.report import Evidence, Severity, Subject

CHECKS = CheckSet()

_CONFIG_REASON = "CreateContainerConfigError"
_NO_CLAIM = "FailedResourceClaimCreation"
_VOLUME_REASONS = ("FailedAttachVolume", "FailedMount", "FailedMapVolume")
# The kubelet's summary of a wait: what it waits for stands in an earlier event.
# Patterns as text: re compiles, once, what there is a message for.
_WAITED = r"timed out waiting for the condition|context deadline exceeded$"
_MISSING_OBJECT = (
    r"(?i)\b(?P<kind>secret|configmap|serviceaccount)s? \"(?P<name>[^\"]+)\" not found"
    r"|object \"(?P<path>[^\"]+)\"/\"(?P<named>[^\"]+)\" not registered"
)
_DENIED = (
    r"(?s)(?:admission webhook|ValidatingAdmissionPolicy) [\"'](?P<by>[^\"']+)[\"'].*?denied"
    r"(?: the)? request"
    r"|(?:violates PodSecurity) \"(?P<level>[^\"]+)\""
    r"|failed calling webhook \"(?P<broken>[^\"]+)\""
    r"|failed quota: (?P<quota>[^:\s]+): must specify"
)
# Any other refusal of the API server; those that have a name of their own are left out.
_REFUSED = (
    r"(?s)(?!.*(?:exceeded quota|RuntimeClass))"
    r"(?:is forbidden: |is invalid: |Internal error occurred: )(?P<why>.+)"
)
_SHOWN_CHARS = 160


def _start(message: str) -> str:
    text = " ".join(message.split())
    return text if len(text) <= _SHOWN_CHARS else text[: _SHOWN_CHARS - 1] + "…"


@CHECKS.check(PodSituation)
def pod_config_error(situation: PodSituation) -> Iterator[Result]:
    """The kubelet or a controller cannot resolve what the pod's spec names."""
    pod = situation.pod
    if pod.is_terminal:
        return
    for trouble in troubles(pod):
        if trouble.reason == _CONFIG_REASON:
            yield finding(
                "pod-config-error",
                pod.subject,
                f"The kubelet cannot make container {trouble.container}: "
                f"{trouble.message or trouble.reason}.",
                Evidence(
                    pod.meta.path, f"{trouble.field}.state.waiting", trouble.reason, trouble.message
                ),
                values={"pod": pod.meta.short, "reason": _start(trouble.message)},
            )
            return
    said = situation.events_with(_NO_CLAIM)
    if said and pod.node is None:
        yield finding(
            "pod-config-error",
            pod.subject,
            f"No ResourceClaim is made for the pod, so the scheduler waits: {said[-1].message}",
            _evidence(said[-1]),
            values={"pod": pod.meta.short, "reason": _start(said[-1].message)},
        )


def _evidence(event: Event) -> Evidence:
    return Evidence(event.path, f"{event.reason} (x{event.count})", event.message)


@CHECKS.check(PodSituation)
def volume_mount_failing(situation: PodSituation) -> Iterator[Result]:
    """A bound pod has no container yet, because a volume is not attached or mounted."""
    pod = situation.pod
    if pod.node is None or pod.is_terminal or pod.meta.deleted:
        return
    if any(status.has_run for status in pod.statuses):
        return
    said = situation.events_with(*_VOLUME_REASONS)
    # Mounting comes before the sandbox and the image: a later event of those means it is over.
    over = [e for e in situation.events if e.reason in ("Pulling", "Pulled", "Created", "Started")]
    if not said or (over and over[-1].seen and said[-1].seen and over[-1].seen >= said[-1].seen):
        return
    telling = [event for event in said if not re.search(_WAITED, event.message)] or list(said)
    cause = telling[-1]
    missing = re.search(_MISSING_OBJECT, cause.message)
    name = "pod-config-error" if missing else "volume-mount-failing"
    what = "names an object that is not there" if missing else "is not attached or mounted"
    claims = [v for v in pod.volumes if v.claim]
    yield finding(
        name,
        pod.subject,
        f"{pod.node} cannot start the pod's containers: a volume {what}. {_start(cause.message)}",
        _evidence(cause),
        *(_evidence(event) for event in said[-1:] if event is not cause),
        *(Evidence(pod.meta.path, f"spec.volumes[{v.name}]", v.claim or "") for v in claims),
        values={"pod": pod.meta.short, "reason": _start(cause.message), "node": pod.node},
        related=(Subject("Node", pod.node),),
    )


@CHECKS.check(RefusedPod)
def pod_denied(refused: RefusedPod) -> Iterator[Result]:
    """The API server does not let the pod be made: a policy or webhook denies it."""
    yield from _denials(refused.subject, refused.refusals, None)


@CHECKS.check(PodSituation)
def member_denied(situation: PodSituation) -> Iterator[Result]:
    """The same for further pods of this pod's controller: its job is short of members."""
    owner = situation.pod.meta.owner or ""
    if owner.startswith("ReplicaSet/") or situation.pod.is_terminal:
        return  # each replica serves by itself
    severity = Severity.WARNING if owner.startswith(("StatefulSet/", "DaemonSet/")) else None
    yield from _denials(situation.subject, situation.owner_refusals, severity)


def _who(match: re.Match[str]) -> tuple[str, str]:
    """Who does not let a pod be made, and how."""
    said = match.groupdict()
    if quota := said.get("quota"):
        return f"ResourceQuota {quota}", "demands requests and limits that its containers lack"
    if broken := said.get("broken"):
        return broken, "cannot be asked"
    if why := said.get("why"):
        return "the API server", f"refuses it: {_start(why)}"
    return next(value for value in said.values() if value), "denies it"


def _denials(
    subject: Subject, refusals: tuple[Refusal, ...], severity: Severity | None
) -> Iterator[Result]:
    for refusal in reversed(refusals):
        message, about = refusal.message, refusal.about
        match = re.search(_DENIED, message) or re.search(_REFUSED, message)
        if match is None:
            continue
        by, how = _who(match)
        yield finding(
            "pod-creation-denied",
            subject,
            f"{about.kind} {about.name} could not make a pod: {by} {how}. {_start(message)}",
            refusal.evidence,
            values={"name": f"{about.kind} {about.name}", "reason": f"{by} {how}"},
            related=(about,),
            severity=severity,
        )
        return
