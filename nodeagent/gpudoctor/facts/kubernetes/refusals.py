"""What the API server refuses to make: a controller says so in events, some in its object as well.

Events live an hour. ReplicaSets, StatefulSets and Deployments keep the refusal in the condition
ReplicaFailure, KubeRay there too, or (before 1.3) in status.reason beside the state failed.
Sources: kubernetes pkg/controller, training-operator (FailedCreatePod), jobset (JobCreationFailed),
kuberay (FailedToCreateHeadPod, FailedToCreateWorkerPod).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from datetime import datetime

import msgspec

from gpudoctor.facts.kubernetes import fields, parse
from gpudoctor.facts.kubernetes.fields import JsonObject
from gpudoctor.facts.kubernetes.model import Event
from gpudoctor.report import Evidence, Subject

_REASON = r"Failed(?:To)?Create|Creat(?:e|ion)Failed"
_CONDITION = "ReplicaFailure"
_STATE = "failed"


class Refusal(msgspec.Struct, frozen=True):
    """`about` could not make something; `message` says why, `seen` when that was last so."""

    about: Subject
    message: str
    evidence: Evidence
    seen: datetime | None = None


def is_about_making(event: Event) -> bool:
    """Whether an event says that a controller failed to make a pod, or what makes pods."""
    return event.about.kind != "Pod" and re.search(_REASON, event.reason) is not None


def of_events(events: Iterable[Event]) -> Iterator[Refusal]:
    """Yield what these events say, oldest first."""
    for event in events:
        shown = Evidence(event.path, f"{event.reason} (x{event.count})", event.message)
        yield Refusal(event.about, event.message, shown, event.seen)


def lasting(obj: JsonObject) -> Iterator[Refusal]:
    """Yield what a controller's object says itself, as long as it is so."""
    data = parse.meta(obj)
    for condition in parse.conditions(obj):
        if condition.type == _CONDITION and condition.status == "True":
            field = f"status.conditions[{condition.type}] {condition.reason}"
            shown = Evidence(data.path, field, condition.message)
            yield Refusal(data.subject, condition.message, shown)
    said = fields.text(obj, "status", "reason")
    if said and fields.text(obj, "status", "state") == _STATE:
        yield Refusal(data.subject, said, Evidence(data.path, "status.reason", said))
