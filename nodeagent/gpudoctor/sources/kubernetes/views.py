"""The few fields of pods, nodes and events by which the next request is chosen.

These are not facts: facts come from the recorded objects, by the modules that judge them.
"""

from __future__ import annotations

from typing import Any

import msgspec

from gpudoctor.publish import names

_KILLED = 137


class OwnerView(msgspec.Struct):
    """An owner reference."""

    kind: str = ""
    name: str = ""
    controller: bool | None = None


class MetadataView(msgspec.Struct, rename="camel"):
    """Object metadata."""

    name: str
    namespace: str | None = None
    uid: str | None = None
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None
    owner_references: list[OwnerView] | None = None

    @property
    def owner(self) -> str | None:
        """The controlling owner as Kind/name."""
        for owner in self.owner_references or ():
            if owner.controller:
                return f"{owner.kind}/{owner.name}"
        return None

    def annotation(self, name: str) -> str | None:
        """The annotation's value."""
        return (self.annotations or {}).get(name)


class ObjectView(msgspec.Struct):
    """Any object."""

    metadata: MetadataView
    kind: str = ""


class ResourcesView(msgspec.Struct):
    """A container's resources."""

    requests: dict[str, str | int | float] | None = None
    limits: dict[str, str | int | float] | None = None
    claims: list[Any] | None = None

    def devices(self) -> set[str]:
        """The extended resources that are asked for."""
        keys = {*(self.requests or ()), *(self.limits or ())}
        return {key for key in keys if is_device(key)}


def is_device(key: str) -> bool:
    """Whether a resource is one that a device plugin offers."""
    return "/" in key and not key.startswith("kubernetes.io/")


class ContainerView(msgspec.Struct, rename="camel"):
    """A container."""

    name: str
    image: str | None = None
    resources: ResourcesView | None = None
    restart_policy: str | None = None

    @property
    def uses_devices(self) -> bool:
        """Whether it asks for devices, by resource or by claim."""
        return bool(self.resources and (self.resources.devices() or self.resources.claims))


class ReferenceView(msgspec.Struct, rename="camel"):
    """Something that is named."""

    name: str | None = None
    claim_name: str | None = None
    pod_group_name: str | None = None


class VolumeView(msgspec.Struct, rename="camel"):
    """A volume: the claim or ConfigMap behind it."""

    persistent_volume_claim: ReferenceView | None = None
    config_map: ReferenceView | None = None

    @property
    def claim_name(self) -> str | None:
        """The PersistentVolumeClaim's name."""
        return self.persistent_volume_claim.claim_name if self.persistent_volume_claim else None


class PodClaimView(msgspec.Struct, rename="camel"):
    """An entry of `spec.resourceClaims`, or of its status."""

    name: str = ""
    resource_claim_name: str | None = None
    resource_claim_template_name: str | None = None


class PodSpecView(msgspec.Struct, rename="camel"):
    """A pod's spec."""

    node_name: str | None = None
    containers: list[ContainerView] | None = None
    init_containers: list[ContainerView] | None = None
    scheduling_gates: list[ReferenceView] | None = None
    resource_claims: list[PodClaimView] | None = None
    runtime_class_name: str | None = None
    volumes: list[VolumeView] | None = None
    scheduling_group: ReferenceView | None = None
    workload_ref: ReferenceView | None = None


class ConditionView(msgspec.Struct):
    """A condition."""

    type: str = ""
    status: str = ""
    reason: str | None = None
    message: str | None = None


class EndView(msgspec.Struct, rename="camel"):
    """How a container ended; StartError is a container that never ran."""

    exit_code: int = 0
    reason: str | None = None
    finished_at: str | None = None


class StateView(msgspec.Struct):
    """A container's state: one of the three is set."""

    waiting: Any = None
    running: Any = None
    terminated: EndView | None = None


class ContainerStatus(msgspec.Struct, rename="camel"):
    """A container's status."""

    name: str
    ready: bool = False
    restart_count: int = 0
    state: StateView | None = None
    last_state: StateView | None = None

    @property
    def is_waiting(self) -> bool:
        """Whether it waits to be started."""
        return self.state is None or (self.state.running is None and self.state.terminated is None)

    @property
    def is_running(self) -> bool:
        """Whether it runs now."""
        return self.state is not None and self.state.running is not None

    @property
    def has_run(self) -> bool:
        """Whether there can be a log."""
        ended = self.last_state is not None and self.last_state.terminated is not None
        return not self.is_waiting or ended

    @property
    def is_failing(self) -> bool:
        """Whether it has run and is not well now, or was restarted."""
        end = self.state.terminated if self.state else None
        if end is not None:
            return end.exit_code != 0
        return self.has_run and (self.restart_count > 0 or self.is_waiting)


class PodStatusView(msgspec.Struct, rename="camel"):
    """A pod's status."""

    phase: str = ""
    reason: str | None = None
    message: str | None = None
    conditions: list[ConditionView] | None = None
    container_statuses: list[ContainerStatus] | None = None
    init_container_statuses: list[ContainerStatus] | None = None
    resource_claim_statuses: list[PodClaimView] | None = None
    extended_resource_claim_status: PodClaimView | None = None

    @property
    def init_statuses(self) -> list[ContainerStatus]:
        """The init containers' statuses."""
        return self.init_container_statuses or []


class PodView(msgspec.Struct):
    """A pod."""

    metadata: MetadataView
    spec: PodSpecView
    status: PodStatusView = msgspec.field(default_factory=PodStatusView)

    @property
    def is_bound(self) -> bool:
        """Whether it has a node."""
        return bool(self.spec.node_name)

    @property
    def is_queued(self) -> bool:
        """Whether a queue or anyone else holds it back by a gate."""
        return bool(self.spec.scheduling_gates) and not self.is_bound

    @property
    def is_ready(self) -> bool:
        """Whether its condition Ready is True."""
        return any(c.type == "Ready" and c.status == "True" for c in self.status.conditions or ())

    @property
    def is_well(self) -> bool:
        """Whether it is ready without restarts, or has succeeded."""
        restarted = any(status.restart_count for status in self.status.container_statuses or ())
        return self.status.phase == "Succeeded" or (self.is_ready and not restarted)

    @property
    def has_run(self) -> bool:
        """Whether a main container has run."""
        return any(status.has_run for status in self.status.container_statuses or ())

    @property
    def was_killed(self) -> bool:
        """Whether a container was ended by SIGKILL, and not for its own memory limit."""
        return any(
            state.terminated.exit_code == _KILLED and state.terminated.reason != "OOMKilled"
            for status in self.status.container_statuses or ()
            for state in (status.state, status.last_state)
            if state and state.terminated
        )

    @property
    def first_failure(self) -> str | None:
        """When a container of it first failed (RFC 3339), None if none has."""
        states = [
            state.terminated
            for status in self.status.container_statuses or ()
            for state in (status.state, status.last_state)
            if state and state.terminated and state.terminated.exit_code != 0
        ]
        return min((end.finished_at for end in states if end.finished_at), default=None)

    def _containers(self) -> list[ContainerView]:
        return [*(self.spec.containers or ()), *(self.spec.init_containers or ())]

    def devices(self) -> set[str]:
        """The extended resources that any container asks for."""
        asked = (c.resources.devices() for c in self._containers() if c.resources)
        return set().union(*asked)

    def containers_with_devices(self) -> set[str]:
        """The names of containers that ask for devices."""
        return {container.name for container in self._containers() if container.uses_devices}

    @property
    def uses_devices(self) -> bool:
        """Whether it asks for devices, by resource or by claim."""
        return bool(self.containers_with_devices() or self.spec.resource_claims)

    def claim_names(self) -> list[str]:
        """The names of its ResourceClaims, as far as they are known."""
        made = list(self.status.resource_claim_statuses or ())
        if self.status.extended_resource_claim_status:
            made.append(self.status.extended_resource_claim_status)
        named = [*made, *(self.spec.resource_claims or ())]
        names = (claim.resource_claim_name for claim in named)
        return list(dict.fromkeys(name for name in names if name))

    def claim_words(self) -> list[str]:
        """The names by which claims and their templates are called."""
        claims = self.spec.resource_claims or ()
        words = [claim.resource_claim_template_name or "" for claim in claims]
        return [*words, *(claim.name for claim in claims), *self.claim_names()]


class NodeStatusView(msgspec.Struct):
    """A node's status."""

    capacity: dict[str, str | int] | None = None
    allocatable: dict[str, str | int] | None = None
    conditions: list[ConditionView] | None = None


class NodeView(msgspec.Struct):
    """A node."""

    metadata: MetadataView
    status: NodeStatusView = msgspec.field(default_factory=NodeStatusView)

    def _counts(self, key: str) -> tuple[str, str]:
        capacity, allocatable = self.status.capacity or {}, self.status.allocatable or {}
        return str(capacity.get(key, "0")), str(allocatable.get(key, "0"))

    @property
    def has_agent(self) -> bool:
        """Whether an agent of ours has written to it."""
        types = [condition.type for condition in self.status.conditions or ()]
        return any(map(names.is_ours, [*types, *(self.metadata.labels or ())]))

    def offers(self, key: str) -> bool:
        """Whether it has any of the resource to give."""
        return self._counts(key)[1] != "0"

    def lacks(self, key: str) -> bool:
        """Whether it gives none of the resource, or less than it has."""
        capacity, allocatable = self._counts(key)
        return allocatable == "0" or allocatable != capacity


class ObjectReferenceView(msgspec.Struct):
    """What an event is about."""

    kind: str | None = None
    name: str | None = None
    namespace: str | None = None


class EventView(msgspec.Struct, rename="camel"):
    """An event."""

    metadata: MetadataView
    involved_object: ObjectReferenceView | None = None
    reason: str | None = None
    message: str | None = None
