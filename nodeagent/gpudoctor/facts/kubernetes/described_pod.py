"""A Pod from the fields of its description."""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import datetime
from typing import Any

from gpudoctor.facts.kubernetes import ages
from gpudoctor.facts.kubernetes.described_fields import (
    NONE,
    Section,
    annotation_map,
    blocks,
    inner_sections,
    listed,
    pairs,
    plain,
    quantities,
)
from gpudoctor.facts.kubernetes.fields import JsonObject
from gpudoctor.facts.kubernetes.parse import NOT_PRINTED

_CONTAINER_FIELDS = frozenset(
    {
        "Container ID", "Image", "Image ID", "Port", "Ports", "Host Port", "Host Ports",
        "SeccompProfile", "Command", "Args", "State", "Last State", "Ready", "Restart Count",
        "Limits", "Requests", "Liveness", "Readiness", "Startup", "Environment Variables from",
        "Environment", "Mounts", "Devices", "Restart Policy",
    }
)  # fmt: skip
_STATE_FIELDS = frozenset({"Reason", "Message", "Exit Code", "Signal", "Started", "Finished"})
_RESOURCES_FIELDS = frozenset({"Limits", "Requests"})
_CONDITION = re.compile(r"^\s*(?P<type>[A-Z]\S*)\s+(?P<status>True|False|Unknown)\s*$")
_TOLERATION = re.compile(
    r"^(?P<key>[^=:\s]*)(?:=(?P<value>[^:\s]*))?(?::(?P<effect>[A-Z]\w+))?"
    r"(?:\s*op=(?P<operator>\w+))?(?:\s+for\s+(?P<seconds>\d{1,18})s)?$"
)
_TOLERATES_ALL = re.compile(r"^op=Exists(?:\s+for\s+(?P<seconds>\d{1,18})s)?$")
_TERMINATING = re.compile(r"^Terminating(?: \(lasts (?P<age>\S+)\))?")
_VARIABLE = re.compile(r"^ {6}(?P<name>[A-Za-z_][\w.-]*):(?:[ \t]+(?P<value>.*))?$")
_FROM_KEY = re.compile(
    r"^<set to the key '(?P<key>[^']*)' (?P<of>in secret|of config map) '(?P<name>[^']*)'>"
)
_FROM_FIELD = re.compile(r"^(?P<value>.*?) ?\((?P<version>v1):(?P<path>[^()]+)\)$")
_MOUNT = re.compile(r"^\s*(?P<path>\S+) from (?P<name>\S+) \((?P<flags>[^)]*)\)\s*$")
_PROBE_FIELD = re.compile(r"(?P<key>[#A-Za-z]+)=(?P<number>\d{1,9})")
_PROBE_NAMES = {
    "delay": "initialDelaySeconds",
    "timeout": "timeoutSeconds",
    "period": "periodSeconds",
    "#success": "successThreshold",
    "successThreshold": "successThreshold",
    "#failure": "failureThreshold",
    "failureThreshold": "failureThreshold",
}
_PROBES = {"Liveness": "livenessProbe", "Readiness": "readinessProbe", "Startup": "startupProbe"}
_SHELL_FLAG = re.compile(r"^-[a-z]*c$")


def pod(fields: dict[str, Section], now: datetime) -> JsonObject:
    """Build the Pod of these fields."""
    spec: JsonObject = {}
    status: JsonObject = {}
    metadata: JsonObject = {
        "name": plain(fields.get("Name")) or "",
        "namespace": plain(fields.get("Namespace")) or "default",
        "labels": pairs(fields.get("Labels")),
        "annotations": annotation_map(fields.get("Annotations")),
    }
    _add_owner(metadata, fields)
    _add_placement(spec, status, fields)
    _add_status(metadata, status, fields, now)
    for key, name, statuses in (
        ("Init Containers", "initContainers", "initContainerStatuses"),
        ("Containers", "containers", "containerStatuses"),
        ("Ephemeral Containers", "ephemeralContainers", "ephemeralContainerStatuses"),
    ):
        if key in fields:
            built = [_container(*block) for block in blocks(fields[key].lines, 2)]
            spec[name] = [container for container, _ in built]
            status[statuses] = [state for _, state in built if state is not None]
    if "Resources" in fields:
        spec["resources"] = _resources(
            {
                part.key: part
                for part in inner_sections(fields["Resources"].lines, _RESOURCES_FIELDS, 2)
            }
        )
    if "Volumes" in fields:
        spec["volumes"] = [_volume(*block) for block in blocks(fields["Volumes"].lines, 2)]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": metadata,
        "spec": spec,
        "status": status,
    }


def _add_owner(metadata: JsonObject, fields: dict[str, Section]) -> None:
    kind, slash, name = (plain(fields.get("Controlled By")) or "").partition("/")
    if slash:
        metadata["ownerReferences"] = [{"kind": kind, "name": name, "controller": True}]


def _add_placement(spec: JsonObject, status: JsonObject, fields: dict[str, Section]) -> None:
    node, _, host_ip = (plain(fields.get("Node")) or "").partition("/")
    if node:
        spec["nodeName"] = node
    if host_ip:
        status["hostIP"] = host_ip
    for key, name in (
        ("Priority Class Name", "priorityClassName"),
        ("Runtime Class Name", "runtimeClassName"),
        ("Service Account", "serviceAccountName"),
    ):
        value = plain(fields.get(key))
        if value is not None:
            spec[name] = value
    priority = plain(fields.get("Priority"))
    if priority is not None and re.fullmatch(r"-?\d{1,10}", priority):
        spec["priority"] = int(priority)
    spec["nodeSelector"] = pairs(fields.get("Node-Selectors"))
    found = (_toleration(entry) for entry in listed(fields.get("Tolerations")))
    spec["tolerations"] = [toleration for toleration in found if toleration is not None]


def _toleration(entry: str) -> JsonObject | None:
    match = _TOLERATES_ALL.match(entry)
    if match is not None:
        found: JsonObject = {"operator": "Exists"}
    else:
        match = _TOLERATION.match(entry)
        if match is None:
            return None
        found = {"operator": match["operator"] or "Equal"}
        found |= {key: match[key] for key in ("key", "value", "effect") if match[key]}
    if match["seconds"]:
        found["tolerationSeconds"] = int(match["seconds"])
    return found


def _add_status(
    metadata: JsonObject, status: JsonObject, fields: dict[str, Section], now: datetime
) -> None:
    phase = plain(fields.get("Status")) or ""
    terminating = _TERMINATING.match(phase)
    if terminating is not None:
        since = ages.age_seconds(terminating["age"] or "") or 0
        metadata["deletionTimestamp"] = ages.before(now, since)
        phase = "Running" if plain(fields.get("IP")) else "Pending"
    status["phase"] = phase
    for key, name in (
        ("Reason", "reason"),
        ("Message", "message"),
        ("IP", "podIP"),
        ("QoS Class", "qosClass"),
        ("NominatedNodeName", "nominatedNodeName"),
    ):
        value = plain(fields.get(key))
        if value is not None:
            status[name] = value
    started = ages.moment(plain(fields.get("Start Time")) or "")
    if started is not None:
        status["startTime"] = ages.rfc3339(started)
    lines = fields["Conditions"].lines if "Conditions" in fields else []
    rows = [match for line in lines if (match := _CONDITION.match(line))]
    status["conditions"] = [{"type": row["type"], "status": row["status"]} for row in rows]


def _container(name: str, lines: list[str]) -> tuple[JsonObject, JsonObject | None]:
    """Return a container of the spec, and its status if the text has one."""
    fields = {part.key: part for part in inner_sections(lines, _CONTAINER_FIELDS, 4)}
    container: JsonObject = {
        "name": name,
        "resources": _resources(fields),
        "securityContext": NOT_PRINTED,
    }
    image = plain(fields.get("Image"))
    if image is not None:
        container["image"] = image
    command, args = _words(fields.get("Command")), _words(fields.get("Args"))
    runs_args = bool(command) and _SHELL_FLAG.match(command[-1]) is not None
    container["command"] = _script(command)
    container["args"] = ["\n".join(args)] if runs_args and args else _script(args)
    container["env"] = _environment(fields["Environment"].lines if "Environment" in fields else [])
    container["volumeMounts"] = _mounts(fields["Mounts"].lines if "Mounts" in fields else [])
    for key, probe in _PROBES.items():
        if key in fields:
            container[probe] = _probe(fields[key].value)
    return container, _container_status(name, fields) if "State" in fields else None


def _resources(fields: dict[str, Section]) -> JsonObject:
    return {
        "limits": quantities(fields.get("Limits")),
        "requests": quantities(fields.get("Requests")),
    }


def _words(section: Section | None) -> list[str]:
    return [line[6:] for line in section.lines if line.strip()] if section else []


def _script(words: list[str]) -> list[str]:
    """Put a shell script, which is printed line by line, back into one argument."""
    for number, word in enumerate(words[:-1]):
        if _SHELL_FLAG.match(word) and number <= 2:
            return [*words[: number + 1], "\n".join(words[number + 1 :])]
    return words


def _environment(lines: Iterable[str]) -> list[JsonObject]:
    found: list[JsonObject] = []
    for line in lines:
        match = _VARIABLE.match(line)
        if match is not None:
            found.append({"name": match["name"], **_value(match["value"] or "")})
        elif found and "value" in found[-1] and line.strip():
            found[-1]["value"] += f"\n{line.strip()}"
    return found


def _value(text: str) -> JsonObject:
    from_key = _FROM_KEY.match(text)
    if from_key is not None:
        source = "secretKeyRef" if from_key["of"] == "in secret" else "configMapKeyRef"
        return {"valueFrom": {source: {"name": from_key["name"], "key": from_key["key"]}}}
    from_field = _FROM_FIELD.match(text)
    if from_field is not None:
        return {"valueFrom": {"fieldRef": {"fieldPath": from_field["path"]}}}
    return {"value": text}


def _mounts(lines: Iterable[str]) -> list[JsonObject]:
    found = (match for line in lines if (match := _MOUNT.match(line)))
    return [
        {
            "name": mount["name"],
            "mountPath": mount["path"],
            "readOnly": "ro" in mount["flags"].split(","),
        }
        for mount in found
    ]


def _probe(text: str) -> JsonObject:
    """Read `http-get http://:80/ delay=120s timeout=5s period=10s #success=1 #failure=3`."""
    numbers: JsonObject = {
        _PROBE_NAMES[match["key"]]: int(match["number"])
        for match in _PROBE_FIELD.finditer(text)
        if match["key"] in _PROBE_NAMES
    }
    action = {"http-get": "httpGet", "tcp-socket": "tcpSocket", "exec": "exec", "grpc": "grpc"}
    name = action.get(text.split(" ")[0])
    return {name: {}, **numbers} if name else numbers


def _container_status(name: str, fields: dict[str, Section]) -> JsonObject:
    restarts = plain(fields.get("Restart Count")) or "0"
    status: JsonObject = {
        "name": name,
        "state": _state(fields["State"]),
        "lastState": _state(fields["Last State"]) if "Last State" in fields else {},
        "ready": plain(fields.get("Ready")) == "True",
        "restartCount": int(restarts) if re.fullmatch(r"\d{1,9}", restarts) else 0,
    }
    for key, api_name in (
        ("Image", "image"),
        ("Image ID", "imageID"),
        ("Container ID", "containerID"),
    ):
        value = plain(fields.get(key))
        if value is not None:
            status[api_name] = value
    return status


def _state(section: Section) -> JsonObject:
    kind = section.value.strip().lower()
    if kind not in ("waiting", "running", "terminated"):
        return {}
    parts = {part.key: part for part in inner_sections(section.lines, _STATE_FIELDS, 6)}
    state: Any = {}
    for key, name in (("Reason", "reason"), ("Message", "message")):
        value = plain(parts.get(key))
        if value is not None and value not in NONE:
            state[name] = value
    for key, name in (("Exit Code", "exitCode"), ("Signal", "signal")):
        value = plain(parts.get(key))
        if value is not None and re.fullmatch(r"-?\d{1,9}", value):
            state[name] = int(value)
    for key, name in (("Started", "startedAt"), ("Finished", "finishedAt")):
        when = ages.moment(plain(parts.get(key)) or "")
        if when is not None:
            state[name] = ages.rfc3339(when)
    return {kind: state}


def _volume(name: str, lines: list[str]) -> JsonObject:
    fields = {part.key: plain(part) or "" for part in inner_sections(lines, None, 4)}
    kind = fields.get("Type", "").split(" (")[0]
    volume: JsonObject = {"name": name}
    if kind == "EmptyDir":
        volume["emptyDir"] = {
            api_name: fields[key]
            for key, api_name in (("Medium", "medium"), ("SizeLimit", "sizeLimit"))
            if fields.get(key)
        }
    elif kind == "HostPath":
        volume["hostPath"] = {"path": fields.get("Path", "")}
    elif kind == "PersistentVolumeClaim":
        volume["persistentVolumeClaim"] = {"claimName": fields.get("ClaimName", "")}
    elif kind == "ConfigMap":
        volume["configMap"] = {"name": fields.get("Name", "")}
    elif kind == "Secret":
        volume["secret"] = {"secretName": fields.get("SecretName", "")}
    return volume
