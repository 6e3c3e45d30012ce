"""Second networks of a pod: Multus annotations, their results, and network definitions.

Formats: `k8s.v1.cni.cncf.io/networks` (names `ns/name@interface`, or a JSON list) and
`k8s.v1.cni.cncf.io/network-status` of the Network Plumbing Working Group's specification.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from gpudoctor.facts.kubernetes import fields, parse
from gpudoctor.facts.kubernetes.fields import JsonObject
from gpudoctor.facts.kubernetes.model import Meta

WANTED = "k8s.v1.cni.cncf.io/networks"
RESULT = "k8s.v1.cni.cncf.io/network-status"
_RESULT_OLD = "k8s.v1.cni.cncf.io/networks-status"
_RESOURCE = "k8s.v1.cni.cncf.io/resourceName"


class Attachment(msgspec.Struct, frozen=True):
    """A network that the pod wants; `interface` is what the status says it got, if it says so."""

    namespace: str
    name: str
    interface: str | None = None


class NetworkDefinition(msgspec.Struct, frozen=True):
    """A NetworkAttachmentDefinition: its CNI type and the resource that it needs."""

    meta: Meta
    cni_type: str
    resource: str | None


def attachments(pod: Meta) -> tuple[Attachment, ...]:
    """Return the networks that the annotation asks for."""
    wanted = pod.annotations.get(WANTED, "").strip()
    own = pod.namespace or "default"
    if not wanted:
        return ()
    given = _interfaces(pod)
    if wanted.startswith(("[", "{")):
        decoded = _json(wanted)
        listed = decoded if isinstance(decoded, list) else [decoded]
        asked = [
            (fields.text(item, "namespace") or own, name)
            for item in listed
            if (name := fields.text(item, "name"))
        ]
    else:
        asked = [_split(part.strip(), own) for part in wanted.split(",") if part.strip()]
    return tuple(Attachment(ns, name, given.get(f"{ns}/{name}")) for ns, name in asked)


def _split(written: str, own: str) -> tuple[str, str]:
    path = written.partition("@")[0]
    namespace, slash, name = path.rpartition("/")
    return (namespace if slash else own), name


def interfaces(pod: Meta) -> frozenset[str]:
    """Return the interface names that the network status lists; empty if there is no status."""
    status = _json(pod.annotations.get(RESULT) or pod.annotations.get(_RESULT_OLD) or "")
    return frozenset(
        name
        for item in fields.objects({"list": status}, "list")
        if (name := fields.text(item, "interface"))
    )


def _interfaces(pod: Meta) -> dict[str, str]:
    status = _json(pod.annotations.get(RESULT) or pod.annotations.get(_RESULT_OLD) or "")
    return {
        name: fields.text(item, "interface") or ""
        for item in fields.objects({"list": status}, "list")
        if (name := fields.text(item, "name"))
    }


def definitions(objects: Iterable[JsonObject]) -> tuple[NetworkDefinition, ...]:
    """Read NetworkAttachmentDefinitions."""
    found = []
    for obj in objects:
        config = _json(fields.text(obj, "spec", "config") or "")
        plugins = fields.objects(config, "plugins")
        kinds = [fields.text(config, "type"), *(fields.text(item, "type") for item in plugins)]
        data = parse.meta(obj)
        cni_type = next((kind for kind in kinds if kind), "")
        found.append(NetworkDefinition(data, cni_type, data.annotations.get(_RESOURCE)))
    return tuple(found)


def _json(written: str) -> object:
    try:
        return msgspec.json.decode(written) if written else None
    except (msgspec.MsgspecError, RecursionError):
        return None
