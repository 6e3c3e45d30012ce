"""Reads what gpudoctor's own agents published about a node: its Diagnosis, labels and Lease."""

from __future__ import annotations

import msgspec

from gpudoctor.publish import names
from gpudoctor.sources.bundle import Bundle, Scope
from gpudoctor.sources.kubernetes import kinds
from gpudoctor.sources.kubernetes.client import Client, permission
from gpudoctor.sources.kubernetes.errors import ForbiddenError, NotFoundError
from gpudoctor.sources.kubernetes.kinds import Kind


def gather_labels(client: Client, node: str, namespace: str) -> Bundle:
    """Read a node, and its Diagnosis and its agent's Lease in the agents' namespace.

    ApiError where the node itself cannot be read.
    """
    objects = [client.get(kinds.NODE, node)]
    denied: list[str] = []
    for kind, name in (
        (kinds.DIAGNOSIS, names.node_diagnosis(node)),
        (kinds.LEASE, names.agent_lease(node)),
    ):
        objects += _one(client, kind, name, namespace, denied)
    now = client.now.strftime("%Y-%m-%dT%H:%M:%SZ")
    return Bundle(now=now, scope=Scope(denied=tuple(denied)), objects=tuple(objects))


def gather_fleet(client: Client, namespace: str) -> Bundle:
    """Read the Diagnoses of all nodes, their agents' Leases, and which nodes there are.

    ApiError where the Diagnoses cannot be read. Without the Leases it is only known which of them
    the controller has marked stale, and without the nodes not which have no agent.
    """
    objects = list(client.list(kinds.DIAGNOSIS, namespace).objects)
    denied: list[str] = []
    try:
        objects += client.list(kinds.LEASE, namespace, labels=names.AGENTS).objects
    except ForbiddenError:
        denied.append(permission("list", kinds.LEASE, namespace))
    try:
        objects += client.list(kinds.NODE, keep=_keep_hardware).objects
    except ForbiddenError:
        denied.append(permission("list", kinds.NODE, None))
    now = client.now.strftime("%Y-%m-%dT%H:%M:%SZ")
    return Bundle(now=now, scope=Scope(denied=tuple(denied)), objects=tuple(objects))


class _Metadata(msgspec.Struct, frozen=True):
    name: str = ""
    labels: dict[str, str] | None = None


class _Status(msgspec.Struct, frozen=True):
    capacity: dict[str, str] | None = None


class _Hardware(msgspec.Struct, frozen=True, rename="camel"):
    """What tells whether a node has GPUs."""

    api_version: str = "v1"
    kind: str = "Node"
    metadata: _Metadata = _Metadata()
    status: _Status = _Status()


def _keep_hardware(raw: msgspec.Raw) -> msgspec.Raw:
    """Keep of a node what tells whether it has GPUs: a whole one takes 20 KB and more."""
    try:
        found = msgspec.json.decode(raw, type=_Hardware)
    except (msgspec.MsgspecError, ValueError):
        return raw
    return msgspec.Raw(msgspec.json.encode(found))


def _one(
    client: Client, kind: Kind, name: str, namespace: str, denied: list[str]
) -> list[msgspec.Raw]:
    try:
        return [client.get(kind, name, namespace)]
    except NotFoundError:
        return []
    except ForbiddenError:
        denied.append(permission("get", kind, namespace))
        return []
