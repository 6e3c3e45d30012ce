"""What a write is about: a node, or a pod on it."""

from __future__ import annotations

from typing import Any

import msgspec

from gpudoctor.publish import names


class Target(msgspec.Struct, frozen=True):
    """A node (without a namespace) or a pod. `uid` tells one pod from the next of its name."""

    kind: str
    name: str
    namespace: str | None = None
    uid: str | None = None

    def __str__(self) -> str:
        return "/".join(part for part in (self.kind, self.namespace, self.name) if part)

    @property
    def diagnosis(self) -> str:
        """The name of its Diagnosis."""
        name = names.node_diagnosis if self.namespace is None else names.pod_diagnosis
        return name(self.name)


def node(name: str) -> Target:
    """Return the node. The kubelet's Events have the node's name for its uid, and so have ours."""
    return Target("Node", name, uid=name)


def pod(namespace: str, name: str, uid: str) -> Target:
    """Return the pod."""
    return Target("Pod", name, namespace, uid)


def owner(target: Target) -> list[dict[str, Any]]:
    """Return the owner references of what goes with a pod: it is collected with the pod, and
    never holds the pod's deletion up. A node, which has no namespace, cannot own it so.
    """
    if target.namespace is None:
        return []
    return [{"apiVersion": "v1", "kind": target.kind, "name": target.name, "uid": target.uid}]
