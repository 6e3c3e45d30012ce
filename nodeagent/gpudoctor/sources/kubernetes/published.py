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
    """Read the Diagnoses of all nodes and their agents' Leases, in the agents' namespace.

    ApiError where the Diagnoses cannot be read; without the Leases it is only known which of them
    the controller has marked stale.
    """
    objects = list(client.list(kinds.DIAGNOSIS, namespace).objects)
    denied: list[str] = []
    try:
        objects += client.list(kinds.LEASE, namespace, labels=names.AGENTS).objects
    except ForbiddenError:
        denied.append(permission("list", kinds.LEASE, namespace))
    now = client.now.strftime("%Y-%m-%dT%H:%M:%SZ")
    return Bundle(now=now, scope=Scope(denied=tuple(denied)), objects=tuple(objects))


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
