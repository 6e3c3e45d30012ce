"""Leader election over one Lease: what a candidate concludes from it, and what it writes.

As in client-go, nobody compares clocks: a candidate notes by its own monotonic clock when it last
saw the Lease change, and takes it over once it has stood still for its duration. Each write
carries the resourceVersion that it was decided on, so that of two candidates one is refused.
Source: client-go tools/leaderelection; coordination.k8s.io/v1 Lease.
"""

from __future__ import annotations

from datetime import datetime

import msgspec

from gpudoctor.publish import names
from gpudoctor.publish.writes import JSON, MERGE, Write, patch

DURATION = 30.0
"""Seconds that a Lease stands still before another candidate may take it."""
RENEW_DEADLINE = 20.0
"""Seconds without a successful renewal after which the leader steps down: well before DURATION."""
RETRY = 5.0
"""Seconds between two renewals of the leader, and between two looks of a candidate."""

_API = "coordination.k8s.io/v1"


class _Metadata(msgspec.Struct, frozen=True, rename="camel"):
    resource_version: str = ""
    annotations: dict[str, str] | None = None


class _Spec(msgspec.Struct, frozen=True, rename="camel"):
    holder_identity: str | None = None
    lease_duration_seconds: int | None = None
    renew_time: str | None = None
    acquire_time: str | None = None
    lease_transitions: int | None = None


class _Lease(msgspec.Struct, frozen=True):
    metadata: _Metadata = _Metadata()
    spec: _Spec = _Spec()


class Held(msgspec.Struct, frozen=True):
    """The Lease as it was read: who holds it (nobody if empty), and what changes on a renewal."""

    version: str
    holder: str = ""
    renewed: str = ""
    duration: float = DURATION
    transitions: int = 0
    brake: str | None = None
    """The annotation of the brake, None without it."""


def read(lease: bytes) -> Held:
    """Read a Lease; fields that are absent or null stand for a Lease that nobody holds.

    msgspec.MsgspecError where it is not a Lease at all.
    """
    decoded = msgspec.json.decode(lease, type=_Lease)
    spec = decoded.spec
    return Held(
        version=decoded.metadata.resource_version,
        holder=spec.holder_identity or "",
        renewed=spec.renew_time or "",
        duration=float(spec.lease_duration_seconds or DURATION),
        transitions=spec.lease_transitions or 0,
        brake=(decoded.metadata.annotations or {}).get(names.BRAKE),
    )


class Candidate:
    """What one candidate knows; times are seconds of its own monotonic clock."""

    def __init__(self, identity: str, namespace: str) -> None:
        self.identity = identity
        self._path = f"/apis/{_API}/namespaces/{namespace}/leases"
        self._held: Held | None = None
        self._changed_at = 0.0
        self._renewed_at: float | None = None

    def leads(self, now: float) -> bool:
        """Whether this candidate leads, with time left to do something as the leader."""
        return self._renewed_at is not None and now - self._renewed_at < RENEW_DEADLINE

    @property
    def held(self) -> Held | None:
        """The Lease as last read, None where there is none."""
        return self._held

    def saw(self, held: Held | None, now: float) -> None:
        """Note the Lease as it is; None: there is none."""
        before = self._held
        if before is None or held is None or _beat(held) != _beat(before):
            self._changed_at = now
        self._held = held
        if held is None or held.holder != self.identity:
            self._renewed_at = None

    def renewed(self, held: Held, asked_at: float) -> None:
        """Note that the server took the write that was sent at `asked_at`; `held` is its answer."""
        self._held = held
        self._changed_at = self._renewed_at = asked_at

    def step_down(self) -> None:
        """Lead no longer, whatever the Lease says."""
        self._renewed_at = None

    def may_write(self, now: float) -> bool:
        """Whether to create, renew or take over the Lease as it was last seen."""
        held = self._held
        return (
            held is None
            or held.holder in ("", self.identity)
            or now - self._changed_at >= held.duration
        )

    def write(self, clock: datetime, brake: str | None) -> Write:
        """Declare oneself the leader. `clock` is for people to read; nobody compares it."""
        held, time = self._held, _micro_time(clock)
        spec: dict[str, object] = {
            "holderIdentity": self.identity,
            "leaseDurationSeconds": int(DURATION),
            "renewTime": time,
        }
        if held is None or held.holder != self.identity:
            spec["acquireTime"] = time
            spec["leaseTransitions"] = 0 if held is None else held.transitions + 1
        what = f"leader Lease {names.LEADER_LEASE}"
        if held is None:
            metadata = {"name": names.LEADER_LEASE, "labels": names.COMPONENT_CONTROLLER}
            lease = {"apiVersion": _API, "kind": "Lease", "metadata": metadata, "spec": spec}
            body = msgspec.json.encode(lease)
            query = {"fieldManager": names.CONTROLLER}
            return Write(
                what=what, method="POST", path=self._path, content_type=JSON, query=query, body=body
            )
        changed = {"resourceVersion": held.version, "annotations": {names.BRAKE: brake}}
        return self._patch(what, {"metadata": changed, "spec": spec})

    def release(self, clock: datetime) -> Write | None:
        """Give the Lease back, so that another need not wait; None where it is not ours."""
        if self._held is None or self._held.holder != self.identity:
            return None
        spec = {
            "holderIdentity": "",
            "leaseDurationSeconds": 1,
            "renewTime": _micro_time(clock),
        }
        metadata = {"resourceVersion": self._held.version}
        return self._patch("release of the leader Lease", {"metadata": metadata, "spec": spec})

    def _patch(self, what: str, changes: object) -> Write:
        path = f"{self._path}/{names.LEADER_LEASE}"
        return patch(what, path, MERGE, changes, names.CONTROLLER)


def _beat(held: Held) -> tuple[str, str]:
    return held.holder, held.renewed


def _micro_time(clock: datetime) -> str:
    return clock.strftime("%Y-%m-%dT%H:%M:%S.%fZ")
