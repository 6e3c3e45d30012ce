"""What the controller knows of the nodes: their keys of ours, and now and then the rest.

Labels and annotations come from a watch of the metadata alone, which is a twentieth of what a
node is and changes with each heartbeat. Taints, conditions and allocatable are in no metadata:
they are listed in full, in pages, once in a few minutes, and of each node little is kept.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec

from gpudoctor.facts.kubernetes import resources
from gpudoctor.publish import labels, names, taint
from gpudoctor.sources.kubernetes.errors import GarbledError

T = TypeVar("T")


class Metadata(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """The part of `metadata` that matters here."""

    name: str = ""
    uid: str = ""
    resource_version: str = ""
    namespace: str = ""
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None


class Keys(msgspec.Struct, frozen=True, omit_defaults=True):
    """A node's name and uid, with those labels and annotations that are ours."""

    metadata: Metadata = Metadata()

    @property
    def name(self) -> str:
        """The node's name."""
        return self.metadata.name

    @property
    def ours(self) -> dict[str, str]:
        """Our labels, by their name without prefix."""
        return {
            key.removeprefix(names.label("")): value
            for key, value in (self.metadata.labels or {}).items()
        }

    @property
    def verdict(self) -> str | None:
        """The published verdict."""
        return self.ours.get(labels.VERDICT)

    @property
    def has_any(self) -> bool:
        """Whether anything of ours is on the node."""
        return bool(self.metadata.labels or self.metadata.annotations)


class _Spec(msgspec.Struct, frozen=True):
    taints: tuple[dict[str, Any], ...] | None = None


class _Status(msgspec.Struct, frozen=True):
    conditions: tuple[dict[str, Any], ...] | None = None
    allocatable: dict[str, Any] | None = None


class Node(msgspec.Struct, frozen=True):
    """A node as the API has it, as far as it matters here."""

    metadata: Metadata = Metadata()
    spec: _Spec = _Spec()
    status: _Status = _Status()

    @property
    def taints(self) -> tuple[dict[str, Any], ...]:
        """All taints, in their order."""
        return self.spec.taints or ()

    @property
    def condition(self) -> dict[str, Any] | None:
        """Our condition, None if there is none."""
        found = (one for one in self.status.conditions or () if _type(one) == names.NODE_CONDITION)
        return next(found, None)

    @property
    def gpus(self) -> int:
        """How many GPUs, or parts of GPUs that count as such, a pod can be given here at most."""
        offered = self.status.allocatable or {}
        return sum(_count(offered[name]) for name in offered if resources.is_gpu(name))


class Rest(msgspec.Struct, frozen=True):
    """What is kept of a node that was read in full."""

    name: str
    gpus: int
    is_tainted: bool
    said: str | None
    """The reason in our condition, None if there is none."""


def keep_keys(raw: msgspec.Raw) -> msgspec.Raw:
    """Keep of a node's metadata what is ours; anything else is kept as a node without a name."""
    try:
        found = msgspec.json.decode(raw, type=Keys).metadata
    except (msgspec.MsgspecError, ValueError):
        return msgspec.Raw(b"{}")
    kept = Metadata(
        name=found.name,
        uid=found.uid,
        labels=_ours(found.labels),
        annotations=_ours(found.annotations),
    )
    return msgspec.Raw(msgspec.json.encode(Keys(kept)))


def keep_rest(raw: msgspec.Raw) -> msgspec.Raw:
    """Keep of a whole node what `Rest` has."""
    try:
        node = msgspec.json.decode(raw, type=Node)
    except (msgspec.MsgspecError, ValueError):
        node = Node()
    condition = node.condition
    rest = Rest(
        name=node.metadata.name,
        gpus=node.gpus,
        is_tainted=any(map(taint.is_ours, node.taints)),
        said=None if condition is None else str(condition.get("reason", "")),
    )
    return msgspec.Raw(msgspec.json.encode(rest))


def keep_all(raw: msgspec.Raw) -> msgspec.Raw:
    """Keep of a whole node what `Node` has."""
    return msgspec.Raw(msgspec.json.encode(decoded(raw, Node, "Node")))


def decoded(raw: msgspec.Raw, kind: type[T], what: str) -> T:
    """Decode an object of the API; GarbledError where it is none."""
    try:
        return msgspec.json.decode(raw, type=kind)
    except (msgspec.MsgspecError, ValueError) as error:
        raise GarbledError(f"{what}: not as the API has it: {error}") from error


def _ours(pairs: Mapping[str, str] | None) -> dict[str, str] | None:
    return {key: value for key, value in (pairs or {}).items() if names.is_ours(key)} or None


def _type(condition: Mapping[str, Any]) -> object:
    return condition.get("type")


def _count(quantity: object) -> int:
    """A whole number of devices; device plugins advertise nothing else."""
    text = str(quantity)
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else 0
