"""`kubectl describe pod|node` text to objects as the API has them, for kubectl 1.20 and later.

The text leaves out much of an object: what is missing in the result is unknown, not absent. Ages
become times before `now`; without one, before the newest date in the text, or before an
arbitrary date when it holds none. Layout: kubectl's pkg/describe/describe.go.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from datetime import datetime, timedelta

import msgspec

from gpudoctor.facts.kubernetes import ages, described_node, described_pod, parse
from gpudoctor.facts.kubernetes.described_fields import Section, sections, table_events
from gpudoctor.facts.kubernetes.fields import JsonObject

_ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_NAME = re.compile(r"^(?P<indent>[ \t>|]*)Name:\s+(?P<name>\S+)\s*$")
_SECOND_LINE = re.compile(r"^(?:Namespace|Roles|Labels):")
_DATE = re.compile(ages.DATE)
_NAMED = re.compile(
    r"Successfully assigned (?P<namespace>[a-z0-9-]+)/(?P<assigned>[a-z0-9.-]+) to "
    r"|container \S+ in pod (?P<restarted>[a-z0-9.-]+)_(?P<of>[a-z0-9-]+)"
)
_KIND_OF_FIELD = {
    "QoS Class": "Pod",
    "Node-Selectors": "Pod",
    "IPs": "Pod",
    "Containers": "Pod",
    "Init Containers": "Pod",
    "Roles": "Node",
    "Allocatable": "Node",
    "System Info": "Node",
    "Desired Number of Nodes Scheduled": "DaemonSet",
    "StrategyType": "Deployment",
    "Update Strategy": "StatefulSet",
    "Parallelism": "Job",
    "Pods Status": "ReplicaSet",
}
"""A field that tells the kind; the first one of a text decides, the rest only for its events."""


class Described(msgspec.Struct, frozen=True):
    """What a text holds: `subjects` are the described pods and nodes, `others` what it says
    about further objects: events, and the pods that use up a node.
    """

    subjects: tuple[JsonObject, ...]
    others: tuple[JsonObject, ...]
    now: datetime


def read(text: str, now: datetime | None = None) -> Described:
    """Read any text; what is no description in it is passed over."""
    described = [list(sections(lines)) for lines in _split(text)]
    now = now or _now(text, described)
    subjects: list[JsonObject] = []
    others: list[JsonObject] = []
    nodes: list[dict[str, Section]] = []
    for parts in described:
        kind = _kind(parts)
        fields = {part.key: part for part in parts}
        if kind == "Pod":
            subjects.append(described_pod.pod(fields, now))
        elif kind == "Node":
            subjects.append(described_node.node(fields))
            nodes.append(fields)
        if kind is not None:
            others += _events(kind, fields, now)
    known = [held for subject in subjects if (held := parse.occupant(subject)) is not None]
    for fields in nodes:
        others += described_node.occupants(fields, known)
    return Described(tuple(subjects), tuple(others), now)


def starts(text: str) -> int:
    """Count the objects described in a text."""
    return sum(1 for _ in _split(text))


def loose_events(text: str, now: datetime | None = None) -> list[JsonObject]:
    """Read the Events table of a description that was pasted without the rest.

    The pod is known only as far as a message names it: kubelet and scheduler do.
    """
    lines = [_ANSI.sub("", line).rstrip("\r") for line in text.split("\n")]
    table = Section("Events", "", lines)
    named = next(filter(None, map(_NAMED.search, lines)), None)
    name = (named["assigned"] or named["restarted"]) if named else "(unnamed)"
    namespace = (named["namespace"] or named["of"]) if named else None
    fields = {"Name": Section("Name", name, []), "Events": table}
    if namespace:
        fields["Namespace"] = Section("Namespace", namespace, [])
    return list(_events("Pod", fields, now or ages.EPOCH))


def _split(text: str) -> Iterator[list[str]]:
    """Yield the lines of each object, without the indentation that quoting gave all of them."""
    lines = [_ANSI.sub("", line).rstrip("\r") for line in text.split("\n")]
    current: list[str] | None = None
    indent = 0
    for number, line in enumerate(lines):
        match = _NAME.match(line)
        if match is not None and _begins(lines, number, len(match["indent"])):
            if current is not None:
                yield current
            current, indent = [], len(match["indent"])
        if current is not None:
            current.append(line[indent:] if not line[:indent].strip(" \t>|") else line.lstrip())
    if current is not None:
        yield current


def _begins(lines: list[str], number: int, indent: int) -> bool:
    following = lines[number + 1] if number + 1 < len(lines) else ""
    return _SECOND_LINE.match(following[indent:]) is not None


def _kind(parts: Iterable[Section]) -> str | None:
    found = None
    for part in parts:
        if part.key == "Kind":
            # A custom resource: its own fields follow, whatever they are called.
            return part.value.strip() or None
        if found is None or found == "ReplicaSet":
            found = _KIND_OF_FIELD.get(part.key, found)
    return found


def _now(text: str, described: list[list[Section]]) -> datetime:
    """Take the newest event to be as old as the newest date: events end where a state began."""
    dates = [found for found in map(ages.moment, _DATE.findall(text)) if found is not None]
    if not dates:
        return ages.EPOCH
    youngest = [
        event.seen.last
        for parts in described
        for part in parts
        if part.key == "Events"
        for event in table_events(part)
        if event.seen.last is not None
    ]
    return max(dates) + timedelta(seconds=min(youngest, default=0))


def _events(kind: str, fields: dict[str, Section], now: datetime) -> Iterator[JsonObject]:
    about = {"kind": kind, "name": fields["Name"].value.strip()}
    if "Namespace" in fields:
        about["namespace"] = fields["Namespace"].value.strip()
    events = table_events(fields["Events"]) if "Events" in fields else []
    for number, row in enumerate(events):
        event = {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {
                "name": f"{about['name']}.{number}",
                "namespace": about.get("namespace"),
            },
            "involvedObject": about,
            "type": row.type,
            "reason": row.reason,
            "message": row.message,
            "source": {"component": row.component},
            "count": row.seen.count,
            "firstTimestamp": ages.before(now, row.seen.first),
            "lastTimestamp": ages.before(now, row.seen.last),
        }
        yield event
