"""A Node, and the pods that use it up, from the fields of its description."""

from __future__ import annotations

import re
from collections.abc import Iterator

from gpudoctor.facts.kubernetes import ages
from gpudoctor.facts.kubernetes.described_fields import (
    Section,
    annotation_map,
    listed,
    pairs,
    plain,
    quantities,
)
from gpudoctor.facts.kubernetes.fields import JsonObject, quantity
from gpudoctor.facts.kubernetes.model import Occupant

_CONDITION = re.compile(
    r"^\s*(?P<type>\S+)\s+(?P<status>True|False|Unknown)\s+"
    rf"(?P<heartbeat>{ages.DATE}|<\w+>)\s+(?P<changed>{ages.DATE}|<\w+>)\s+"
    r"(?P<reason>\S+)(?:\s+(?P<message>\S.*))?$"
)
_TAINT = re.compile(r"^(?P<key>[^=:\s]+)(?:=(?P<value>[^:\s]*))?:(?P<effect>[A-Z]\w+)$")
_NODE_INFO = {
    "Kernel Version": "kernelVersion",
    "OS Image": "osImage",
    "Operating System": "operatingSystem",
    "Architecture": "architecture",
    "Container Runtime Version": "containerRuntimeVersion",
    "Kubelet Version": "kubeletVersion",
    "Machine ID": "machineID",
    "System UUID": "systemUUID",
    "Boot ID": "bootID",
}
_AMOUNT = r"\S+ \(\S+%\)"
_POD = re.compile(
    rf"^\s*(?P<namespace>[a-z0-9][a-z0-9-]*)\s+(?P<name>[a-z0-9][a-z0-9.-]*)\s+"
    rf"(?P<cpu>{_AMOUNT})\s+{_AMOUNT}\s+(?P<memory>{_AMOUNT})\s+{_AMOUNT}(?:\s+\S+)?\s*$"
)
_ALLOCATED = re.compile(
    r"^\s*(?P<resource>[a-zA-Z0-9][\w./-]*)\s+(?P<requests>\d\S*)(?: \(\S+%\))?(?:\s|$)"
)


def node(fields: dict[str, Section]) -> JsonObject:
    """Build the Node of these fields."""
    metadata: JsonObject = {
        "name": plain(fields.get("Name")) or "",
        "labels": pairs(fields.get("Labels")),
        "annotations": annotation_map(fields.get("Annotations")),
    }
    created = ages.moment(plain(fields.get("CreationTimestamp")) or "")
    if created is not None:
        metadata["creationTimestamp"] = ages.rfc3339(created)
    taints = (match for entry in listed(fields.get("Taints")) if (match := _TAINT.match(entry)))
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": metadata,
        "spec": {
            "unschedulable": plain(fields.get("Unschedulable")) == "true",
            "taints": [
                {key: value for key, value in taint.groupdict().items() if value}
                for taint in taints
            ],
        },
        "status": {
            "capacity": quantities(fields.get("Capacity")),
            "allocatable": quantities(fields.get("Allocatable")),
            "conditions": list(_conditions(fields.get("Conditions"))),
            "nodeInfo": {
                _NODE_INFO[key]: value
                for key, value in _entries(fields.get("System Info"))
                if key in _NODE_INFO
            },
        },
    }


def _entries(section: Section | None) -> Iterator[tuple[str, str]]:
    """Yield the `key: value` lines of a block whose values may hold colons."""
    for line in section.lines if section else ():
        key, colon, value = line.strip().partition(":")
        if colon and value.strip():
            yield key, value.strip()


def _conditions(section: Section | None) -> Iterator[JsonObject]:
    for line in section.lines if section else ():
        row = _CONDITION.match(line)
        if row is None:
            continue
        condition: JsonObject = {key: row[key] for key in ("type", "status", "reason")}
        condition["message"] = row["message"] or ""
        for key, name in (("heartbeat", "lastHeartbeatTime"), ("changed", "lastTransitionTime")):
            when = ages.moment(row[key])
            if when is not None:
                condition[name] = ages.rfc3339(when)
        yield condition


def occupants(fields: dict[str, Section], known: list[Occupant]) -> Iterator[JsonObject]:
    """Yield what uses up the node as pods, without those `known` from their own descriptions.

    The table of pods has no extended resources, only their sum is printed. That sum is one more
    pod, whose name cannot be a real one's, or all devices would seem free.
    """
    name = plain(fields.get("Name")) or ""
    here = [pod for pod in known if pod.node == name]
    told = {(pod.namespace, pod.name) for pod in here}
    for row in _rows(fields.get("Non-terminated Pods"), _POD):
        if (row["namespace"], row["name"]) not in told:
            requests = {"cpu": row["cpu"].split(" ")[0], "memory": row["memory"].split(" ")[0]}
            yield _occupant(row["namespace"], row["name"], name, requests)
    rest: dict[str, str] = {}
    for row in _rows(fields.get("Allocated resources"), _ALLOCATED):
        resource, used = row["resource"], quantity(row["requests"])
        if "/" in resource and used is not None:
            rest[resource] = str(used - sum(pod.requests.get(resource, 0) for pod in here))
    if rest:
        yield _occupant("(any)", f"(pods of {name})", name, rest)


def _rows(section: Section | None, row: re.Pattern[str]) -> Iterator[re.Match[str]]:
    for line in section.lines if section else ():
        match = row.match(line)
        if match is not None:
            yield match


def _occupant(namespace: str, name: str, node_name: str, requests: dict[str, str]) -> JsonObject:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {
            "nodeName": node_name,
            "containers": [{"name": "unknown", "resources": {"requests": requests}}],
        },
        "status": {"phase": "Running"},
    }
