"""`explain` for the tables of `kubectl get events` and `kubectl events`, and for the events of a
description without the rest.

The events' pods and nodes are not in the text: of a pod only its name is known, and where the
scheduler put it.
"""

from __future__ import annotations

import re

from gpudoctor.errors import InputError
from gpudoctor.facts.kubernetes import ages, described, events_table
from gpudoctor.facts.kubernetes.fields import JsonObject
from gpudoctor.readings import Format, Reading, kubernetes, kubernetes_text
from gpudoctor.report import ReportSubject, Unknown
from gpudoctor.sources.text import TextInput

_ASSIGNED = re.compile(r"^Successfully assigned \S+ to (?P<node>\S+)$")


def _matches(head: str) -> int:
    return events_table.matches(head) or len(described.loose_events(head))


def _read(text: TextInput) -> Reading:
    content = text.text()
    events = events_table.read(content) or described.loose_events(content)
    names = dict.fromkeys(
        (event["involvedObject"].get("namespace"), event["involvedObject"]["name"])
        for event in events
        if event["type"] == "Warning" and event["involvedObject"]["kind"] == "Pod"
    )
    if not events:
        raise InputError(f"{text.name}: no event is in it; paste what `kubectl get events` prints")
    if not names:
        nothing = Unknown("the pods", "no event in the text is a warning about one")
        subject = ReportSubject("Events", text.name)
        return Reading(subject=subject, facts=(), unknown=(nothing,), needed_unknown=True)
    pods = [_pod(namespace, name, events) for namespace, name in names]
    source = kubernetes.Input(kubernetes_text.as_bundle((*events, *pods), ages.EPOCH))
    entries = [kubernetes.find_pod(source.cluster, name, namespace) for namespace, name in names]
    return kubernetes_text.undated(kubernetes_text.read_subjects(source, entries, []))


def _pod(namespace: str | None, name: str, events: list[JsonObject]) -> JsonObject:
    """Build what the scheduler's last event tells of a pod: waiting for a node, or bound to it."""
    about = [
        event
        for event in events
        if event["involvedObject"]["name"] == name
        and event["reason"] in ("Scheduled", "FailedScheduling")
    ]
    pod: JsonObject = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": namespace},
    }
    if about:
        last = max(about, key=lambda event: event["lastTimestamp"] or "")
        assigned = _ASSIGNED.match(last["message"])
        if assigned is not None:
            pod["spec"] = {"nodeName": assigned["node"]}
        elif last["reason"] == "FailedScheduling":
            # What the scheduler writes to the pod whenever it sends this event.
            condition = {
                "type": "PodScheduled",
                "status": "False",
                "reason": "Unschedulable",
                "message": last["message"],
            }
            pod["status"] = {"phase": "Pending", "conditions": [condition]}
    return pod


FORMAT = Format("kubectl-events", _matches, _read)
