"""Facts about Kubernetes objects, as the rules read them; built by the modules beside this one.

Amounts are plain numbers (bytes, cores, devices). A field that the object does not have is
None or empty; whether that means "no" is for the scope of the input to say.
"""

from __future__ import annotations

from datetime import datetime
from decimal import Decimal

import msgspec

from gpudoctor.report import Subject

Resources = dict[str, Decimal]


class Meta(msgspec.Struct, frozen=True):
    """What every object has. `owner` is the controlling owner reference as kind/name."""

    kind: str
    name: str
    namespace: str | None = None
    uid: str | None = None
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}
    owner: str | None = None
    created: datetime | None = None
    deleted: datetime | None = None

    @property
    def subject(self) -> Subject:
        """The object as the subject of a finding."""
        return Subject(self.kind, self.name, self.namespace)

    @property
    def path(self) -> str:
        """The object as evidence names it: Kind/namespace/name."""
        return str(self.subject)

    @property
    def short(self) -> str:
        """namespace/name, or the name alone for objects without a namespace."""
        return f"{self.namespace}/{self.name}" if self.namespace else self.name


class Condition(msgspec.Struct, frozen=True):
    """An entry of `status.conditions`; `status` is True, False or Unknown as text."""

    type: str
    status: str
    reason: str = ""
    message: str = ""
    since: datetime | None = None


class Taint(msgspec.Struct, frozen=True):
    """A node's or a device's taint."""

    key: str
    value: str = ""
    effect: str = ""

    def __str__(self) -> str:
        value = f"={self.value}" if self.value else ""
        return f"{self.key}{value}:{self.effect}"

    @property
    def toleration(self) -> str:
        """What tolerates this taint and no other value of its key, as a line of YAML."""
        # In quotes, for true or 1 would be no text.
        how = f'operator: Equal, value: "{self.value}"' if self.value else "operator: Exists"
        return f"{{key: {self.key}, {how}, effect: {self.effect}}}"


class Toleration(msgspec.Struct, frozen=True):
    """A toleration; an empty key with Exists tolerates everything, an empty effect all effects."""

    key: str = ""
    operator: str = "Equal"
    value: str = ""
    effect: str = ""

    def tolerates(self, taint: Taint) -> bool:
        """Whether this toleration covers the taint, by the API's rules."""
        if self.effect and self.effect != taint.effect:
            return False
        if self.key and self.key != taint.key:
            return False
        if self.operator == "Exists":
            return True
        return bool(self.key) and self.value == taint.value


class Requirement(msgspec.Struct, frozen=True):
    """One match expression of a node selector or label selector."""

    key: str
    operator: str
    values: tuple[str, ...] = ()

    def __str__(self) -> str:
        values = f" [{', '.join(self.values)}]" if self.values else ""
        return f"{self.key} {self.operator}{values}"


class SelectorTerm(msgspec.Struct, frozen=True):
    """A node selector term: all requirements hold; `fields` are about metadata.name."""

    labels: tuple[Requirement, ...] = ()
    fields: tuple[Requirement, ...] = ()


class Probe(msgspec.Struct, frozen=True):
    """A probe with the API's defaults filled in; times in seconds."""

    initial_delay: int = 0
    period: int = 10
    timeout: int = 1
    failure_threshold: int = 3

    @property
    def budget(self) -> int:
        """Seconds from container start until the probe has failed often enough to act."""
        return self.initial_delay + self.period * self.failure_threshold


class Mount(msgspec.Struct, frozen=True):
    """A volume mount."""

    volume: str
    path: str


class Volume(msgspec.Struct, frozen=True):
    """A volume: `medium` and `size_limit` (bytes) of an emptyDir, `host_path`, or a claim."""

    name: str
    empty_dir: bool = False
    medium: str = ""
    size_limit: Decimal | None = None
    host_path: str | None = None
    claim: str | None = None


class Container(msgspec.Struct, frozen=True, kw_only=True):
    """A container of the spec. `env` holds literal values only; `is_sidecar` restarts always.

    Without `security_known` the input does not print the security context, as `kubectl describe`.
    """

    name: str
    image: str = ""
    command: tuple[str, ...] = ()
    args: tuple[str, ...] = ()
    env: dict[str, str] = {}
    requests: Resources = {}
    limits: Resources = {}
    mounts: tuple[Mount, ...] = ()
    claims: tuple[str, ...] = ()
    capabilities: tuple[str, ...] = ()
    run_as_user: int | None = None
    run_as_non_root: bool = False
    privileged: bool = False
    security_known: bool = True
    liveness: Probe | None = None
    startup: Probe | None = None
    is_init: bool = False
    is_sidecar: bool = False


class State(msgspec.Struct, frozen=True):
    """A container state; `kind` is waiting, running, terminated or absent."""

    kind: str = "absent"
    reason: str = ""
    message: str = ""
    exit_code: int | None = None
    started: datetime | None = None
    finished: datetime | None = None


class AllocatedDevice(msgspec.Struct, frozen=True):
    """A device given to a container and its health as the kubelet reports it."""

    resource: str
    id: str
    health: str
    message: str = ""


class ContainerStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The status of one container."""

    name: str
    ready: bool = False
    restarts: int = 0
    state: State = State()
    last: State = State()
    devices: tuple[AllocatedDevice, ...] = ()
    is_init: bool = False

    @property
    def latest_end(self) -> State | None:
        """The newest termination: of the container now, else before its last restart."""
        if self.state.kind == "terminated":
            return self.state
        return self.last if self.last.kind == "terminated" else None

    @property
    def has_run(self) -> bool:
        """Whether the container was started, now or before."""
        return bool(self.restarts) or self.state.kind in ("running", "terminated")


class PodClaim(msgspec.Struct, frozen=True):
    """An entry of `spec.resourceClaims` with the claim that was made for it, if known."""

    name: str
    claim: str | None = None
    template: str | None = None


class Pod(msgspec.Struct, frozen=True, kw_only=True):
    """A pod, spec and status."""

    meta: Meta
    node: str | None = None
    scheduler: str = "default-scheduler"
    priority: int | None = None
    gates: tuple[str, ...] = ()
    node_selector: dict[str, str] = {}
    node_affinity: tuple[SelectorTerm, ...] | None = None
    tolerations: tuple[Toleration, ...] = ()
    containers: tuple[Container, ...] = ()
    volumes: tuple[Volume, ...] = ()
    requests: Resources = {}
    runtime_class: str | None = None
    host_network: bool = False
    hostname: str = ""
    """What the pod says its host name is; else it is the pod's name."""
    host_ipc: bool = False
    host_users: bool = True
    restart_policy: str = "Always"
    grace_period: int | None = None
    run_as_user: int | None = None
    run_as_non_root: bool = False
    claims: tuple[PodClaim, ...] = ()
    scheduling_group: str | None = None
    phase: str = ""
    reason: str = ""
    message: str = ""
    qos: str = ""
    nominated_node: str | None = None
    conditions: tuple[Condition, ...] = ()
    statuses: tuple[ContainerStatus, ...] = ()

    @property
    def subject(self) -> Subject:
        """The pod as the subject of a finding."""
        return self.meta.subject

    @property
    def is_terminal(self) -> bool:
        """Whether the pod has ended and will not run again."""
        return self.phase in ("Succeeded", "Failed")

    def condition(self, kind: str) -> Condition | None:
        """Return the condition of that type."""
        return next((found for found in self.conditions if found.type == kind), None)

    def status_of(self, container: str) -> ContainerStatus | None:
        """Return the status of that container."""
        return next((found for found in self.statuses if found.name == container), None)

    def container(self, name: str) -> Container | None:
        """Return the container of that name."""
        return next((found for found in self.containers if found.name == name), None)


class Occupant(msgspec.Struct, frozen=True):
    """A pod as far as free capacity is concerned: bound to a node and not ended."""

    namespace: str
    name: str
    node: str
    requests: Resources
    priority: int = 0
    terminating: bool = False
    has_claims: bool = False


class Node(msgspec.Struct, frozen=True, kw_only=True):
    """A node, spec and status. `boot_id` is the kernel's own, by which the machine is known."""

    meta: Meta
    unschedulable: bool = False
    taints: tuple[Taint, ...] = ()
    capacity: Resources = {}
    allocatable: Resources = {}
    conditions: tuple[Condition, ...] = ()
    kubelet_version: str = ""
    boot_id: str = ""
    has_status: bool = True

    @property
    def name(self) -> str:
        """The node's name."""
        return self.meta.name

    @property
    def subject(self) -> Subject:
        """The node as the subject of a finding."""
        return self.meta.subject

    @property
    def labels(self) -> dict[str, str]:
        """The node's labels."""
        return self.meta.labels

    def condition(self, kind: str) -> Condition | None:
        """Return the condition of that type."""
        return next((found for found in self.conditions if found.type == kind), None)


class Event(msgspec.Struct, frozen=True, kw_only=True):
    """An event of either API. `about` is the object concerned, `seen` its newest occurrence."""

    meta: Meta
    about: Subject
    about_uid: str | None = None
    reason: str = ""
    message: str = ""
    type: str = "Normal"
    component: str = ""
    seen: datetime | None = None
    count: int = 1

    @property
    def path(self) -> str:
        """The event as evidence names it: by the object it is about."""
        parts = [self.about.namespace, self.about.name]
        return "Event/" + "/".join(part for part in parts if part)


class VolumeClaim(msgspec.Struct, frozen=True):
    """A claim: its phase, StorageClass ("" for none) and access modes; `said` is its last event."""

    meta: Meta
    phase: str
    storage_class: str
    modes: tuple[str, ...]
    said: Event | None

    @property
    def is_bound(self) -> bool:
        """Whether it has its volume."""
        return self.phase == "Bound"


class DaemonSet(msgspec.Struct, frozen=True, kw_only=True):
    """A DaemonSet: its pod template as a pod without a node, and its counts."""

    meta: Meta
    template: Pod
    desired: int | None = None
    ready: int | None = None


class Scope(msgspec.Struct, frozen=True):
    """How far the input reaches: which kinds it holds completely, and what was denied."""

    complete: bool = False
    complete_kinds: frozenset[str] = frozenset()
    denied: tuple[str, ...] = ()

    def has_all(self, kind: str) -> bool:
        """Whether an object of that kind which is not in the input does not exist."""
        return self.complete or kind in self.complete_kinds
